"""Scalar rows, third chapter: powers, exponentials, logarithms, circular and special functions.

>>> from smelt.ops.scalar import SCALARS
>>> SCALARS["exp"].monotone, SCALARS["tanh"].derivative is not None
((1,), True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.errors import DTypeError
from smelt.ops import approximate
from smelt.ops.machine import Machine
from smelt.ops.reference import accurate, each
from smelt.ops.scalar_arithmetic import FLOAT_UNARY
from smelt.ops.spec_scalar import Lower, ScalarOp
from smelt.types.dtype import DType, f32

M = Machine[Any]
V = Any


def _by_width(single: Callable[..., Any], double: Callable[..., Any] | None = None) -> Lower:
    """The float32 formula for everything up to 32 bits, the float64 formula above."""

    def lower(m: M, d: DType, *args: V) -> V:
        if d.compute == f32:
            return single(m, *args)
        if double is None:
            raise DTypeError(f"{single.__name__} has no float64 formula yet")
        return double(m, *args)

    return lower


ROWS = (
    ScalarOp(
        "exp", 1, "e^x", FLOAT_UNARY, accurate(np.exp), _by_width(approximate.exp),
        cost=6.0, monotone=(1,), derivative=(lambda a, x, r: r,),
    ),
    ScalarOp(
        "log", 1, "the natural logarithm", FLOAT_UNARY, accurate(np.log),
        _by_width(approximate.log),
        cost=9.0, monotone=(1,), derivative=(lambda a, x, r: a.reciprocal(x),),
    ),
    ScalarOp(
        "tanh", 1, "the hyperbolic tangent", FLOAT_UNARY, accurate(np.tanh),
        _by_width(approximate.tanh),
        cost=13.0, monotone=(1,), derivative=(lambda a, x, r: a.sub(a.const(1.0), a.square(r)),),
    ),
    ScalarOp(
        "erf", 1, "the error function", FLOAT_UNARY, accurate(each(math.erf)),
        _by_width(approximate.erf),
        cost=16.0, monotone=(1,),
        derivative=(
            lambda a, x, r: a.mul(a.const(2 / math.sqrt(math.pi)), a.exp(a.neg(a.square(x)))),
        ),
    ),
)  # fmt: skip
