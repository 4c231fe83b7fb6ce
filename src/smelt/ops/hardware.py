"""Formulas for float32 with a GPU's approximate instructions, for rows that have one.

The instructions have errors of about 2 units in the last place. What a formula adds to them is
said beside it; u is 2^-24, half a unit in the last place of 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeVar

from smelt.ops.machine import Machine
from smelt.ops.spec import Lower
from smelt.types.dtype import DType, f32, i32

V = TypeVar("V")
Approximate = Literal["exp2", "log2", "rsqrt", "sqrt", "div"]
"""Instructions: 2^x, log2 x, 1/√x, √x and x / y."""


class Hardware(Machine[V], Protocol[V]):
    """A machine with approximate instructions."""

    def approximate(self, function: Approximate, *args: V) -> V:
        """Return a function of float32 with a few units of error; subnormals may be 0."""
        ...


M = Hardware[Any]
_HIGH = float(f32.numpy.type(math.log2(math.e)))
_LOW = float(f32.numpy.type(math.log2(math.e) - _HIGH))


def _exp(m: M, d: DType, x: V) -> V:
    """Return 2^(x log2 e); the rounding of the product adds |x| u."""
    return m.approximate("exp2", m.mul(x, m.const(d, _HIGH)))


def _exp_over(m: M, d: DType, x: V, n: V) -> V:
    """Return e^x / 2^n; the rounding of the exponent adds about |exponent| u."""
    whole = m.convert(n, i32, d)
    high = m.fma(x, m.const(d, _HIGH), m.neg(whole))
    return m.approximate("exp2", m.fma(x, m.const(d, _LOW), high))


def _log(m: M, d: DType, x: V) -> V:
    """Return log2 x · ln 2; the product adds u."""
    return m.mul(m.approximate("log2", x), m.const(d, math.log(2)))


def _sigmoid(m: M, d: DType, x: V) -> V:
    """Return 1 / (1 + 2^(-x log2 e)); the product adds |x| u."""
    power = m.approximate("exp2", m.mul(x, m.const(d, -_HIGH)))
    return m.approximate("div", m.const(d, 1.0), m.add(m.const(d, 1.0), power))


HARDWARE: Mapping[str, Lower] = {
    "exp": _exp,
    "exp2": lambda m, d, x: m.approximate("exp2", x),
    "exp_over": _exp_over,
    "exp2_over": lambda m, d, x, n: m.approximate("exp2", m.sub(x, m.convert(n, i32, d))),
    "log": _log,
    "log2": lambda m, d, x: m.approximate("log2", x),
    "sigmoid": _sigmoid,
    "rsqrt": lambda m, d, x: m.approximate("rsqrt", x),
    "sqrt": lambda m, d, x: m.approximate("sqrt", x),
    "div": lambda m, d, x, y: m.approximate("div", x, y),
}
"""The formulas by the names of their rows."""
