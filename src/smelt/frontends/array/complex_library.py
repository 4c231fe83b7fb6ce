"""Complex functions that NumPy computes: one call in a plan, on real and imaginary parts.

A call has one result, so both parts of a complex result are stacked in a leading dimension.

>>> call_unary("arcsin", *map(Array.of, (from_host(np.zeros(1)), from_host(np.ones(1)))))
Array([0.+0.88137359j])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray, pair
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.library import call, with_extern_errors
from smelt.frontends.array.value import Buffer
from smelt.ops.extern import EXTERNS, ExternRow, register
from smelt.types.dtype import c64, c128
from smelt.types.tensor import TensorType

__all__ = ["call_power", "call_stacked", "call_unary", "from_host", "joined"]


def joined(real: Buffer, imag: Buffer) -> Buffer:
    """Return the complex array of two parts."""
    dtype = c64 if real.dtype == np.float32 else c128
    z = np.empty(np.broadcast_shapes(real.shape, imag.shape), dtype.numpy)
    z.real, z.imag = real, imag
    return z


def stacked(z: Any, like: Buffer) -> Buffer:
    """Return both parts of a complex array, in the dtype of the operand."""
    return np.stack([z.real, z.imag]).astype(like.dtype, copy=False)


def _unary(real: Buffer, imag: Buffer, function: str) -> Buffer:
    with np.errstate(all="ignore"):
        return stacked(getattr(np, function)(joined(real, imag)), real)


def _power(a: Buffer, b: Buffer, c: Buffer, d: Buffer) -> Buffer:
    with np.errstate(all="ignore"):
        return stacked(np.power(joined(a, b), joined(c, d)), a)


def _same(x: TensorType, *_: TensorType, **_options: Any) -> TensorType:
    return TensorType(x.dtype, (2, *x.shape))


def _prod(real: Buffer, imag: Buffer, axis: tuple[int, ...], keepdims: bool) -> Buffer:
    with np.errstate(all="ignore"):
        return stacked(np.prod(joined(real, imag), axis=axis, keepdims=keepdims), real)


def _prod_type(x: TensorType, _: TensorType, axis: Any, keepdims: bool) -> TensorType:
    shape = [(1 if k in axis else d) for k, d in enumerate(x.shape) if keepdims or k not in axis]
    return TensorType(x.dtype, (2, *shape))


def _scan(real: Buffer, imag: Buffer, axis: int) -> Buffer:
    with np.errstate(all="ignore"):
        return stacked(np.cumprod(joined(real, imag), axis=axis), real)


def _of_matrices(row: ExternRow) -> ExternRow:
    """Return the row for complex matrices of a row for real ones."""

    def infer(*types: TensorType, **options: Any) -> TensorType:
        result = row.infer(*types[::2], **options)
        return TensorType(result.dtype, (2, *result.shape))

    def run(*parts: Buffer, **options: Any) -> Buffer:
        operands = [joined(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return stacked(row.call(*operands, **options), parts[0])

    return ExternRow(f"complex_{row.name}", f"{row.doc}, complex", infer, run)


def call_stacked(name: str, *parts: Array, **options: Any) -> ComplexArray:
    """Record a call whose result is both parts of a complex array."""
    both = Array.of(call(name, *(p.node for p in parts), **options))
    return pair(both[0], both[1])


def call_unary(function: str, real: Array, imag: Array) -> ComplexArray:
    """Record NumPy's function of one complex array."""
    return call_stacked("complex_unary", real, imag, function=function)


def call_power(a: Array, b: Array, c: Array, d: Array) -> ComplexArray:
    """Record NumPy's power of two complex arrays of the same shape."""
    return call_stacked("complex_power", a, b, c, d)


_ROWS: tuple[tuple[str, str, Callable[..., TensorType], Callable[..., Any]], ...] = (
    ("complex_unary", "a function of complex numbers", _same, _unary),
    ("complex_power", "complex powers", _same, _power),
    ("complex_prod", "products of complex numbers over axes", _prod_type, _prod),
    ("complex_cumprod", "running products of complex numbers", _same, _scan),
)
for _name, _doc, _infer, _call in _ROWS:
    register(ExternRow(_name, _doc, _infer, with_extern_errors(_name, _call)))
for _row in [row for name, row in EXTERNS.items() if name.startswith("linalg_")]:
    register(_of_matrices(_row))
