"""Operands of elementwise functions: conversion to values, and the promotion of their types.

Arrays promote by the array API's table; a Python number takes the type of the array beside it
(and of its own kind where that kind is higher).

>>> x = from_host(np.ones(3, np.float32))
>>> [v.type.dtype for v in together("add", x, 2)]
[f32, f32]
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array.convert import from_host, number_dtype
from smelt.frontends.array.value import Value, constant, record
from smelt.ops.elementwise import Cast
from smelt.types.dtype import DTYPES, DType, f64, promote

__all__ = ["cast", "common", "from_host", "number", "together"]

_CASTS = {d: Cast(d) for d in DTYPES}
_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2}


def cast(x: Value, dtype: DType) -> Value:
    """`x` as `dtype`; itself if it has that type."""
    return x if x.type.dtype is dtype else record(_CASTS[dtype], (x,))


class Symbolic(Protocol):
    """A number that is not known while recording (`smelt.frontends.array.number`)."""

    @property
    def dtype(self) -> DType: ...

    def node(self, dtype: DType) -> Value: ...


Number = bool | int | float | Symbolic


def weak(dtype: DType, number: Number) -> DType:
    """The type of an operation between an array of `dtype` and a Python number."""
    own = number_dtype(number) if isinstance(number, (bool, int, float)) else number.dtype
    if _RANK[own.kind] <= _RANK[dtype.kind]:
        return dtype
    return own if own.kind != "float" else f64


def number(value: Number, dtype: DType, what: str) -> Value:
    """A Python number as `dtype`.  Raises ArgumentError for an integer beyond its range."""
    if not isinstance(value, (bool, int, float)):
        return value.node(dtype)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            raise ArgumentError(
                op=what, argument="operand", value=value, expected=f"a number that {dtype} holds"
            )
        return constant(int(value), dtype)
    return constant(float(value) if dtype.is_float else bool(value), dtype)


def common(what: str, *dtypes: DType) -> DType:
    """The promoted type.  Raises DTypeError that names the operation."""
    found = dtypes[0]
    try:
        for d in dtypes[1:]:
            found = promote(found, d)
    except DTypeError as error:
        raise DTypeError(f"{what}({', '.join(d.long for d in dtypes)}): {error.detail}") from None
    return found


def together(what: str, x: Value | Number, y: Value | Number) -> tuple[Value, Value]:
    """Two operands in their common type; one of them may be a Python number."""
    if not isinstance(x, Value):
        if not isinstance(y, Value):
            return together(what, own_value(x, what), own_value(y, what))
        dtype = weak(y.type.dtype, x)
        return number(x, dtype, what), cast(y, dtype)
    if not isinstance(y, Value):
        dtype = weak(x.type.dtype, y)
        return cast(x, dtype), number(y, dtype, what)
    dtype = common(what, x.type.dtype, y.type.dtype)
    return cast(x, dtype), cast(y, dtype)


def own_value(x: Number, what: str) -> Value:
    """A number that stands beside no array, in its default type."""
    return number(x, number_dtype(x) if isinstance(x, (bool, int, float)) else x.dtype, what)
