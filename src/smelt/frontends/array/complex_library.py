"""Complex functions that NumPy computes: one call in a plan, on real and imaginary parts.

A call has one result, so both parts of a complex result are stacked in a leading dimension.

>>> from smelt.frontends.array.complex_array import complex_array
>>> call_stacked("complex_unary", *complex_array([1j]).parts, function="arcsin")
Array([0.+0.88137359j])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray, pair
from smelt.frontends.array.library import call, with_extern_errors
from smelt.frontends.array.value import Buffer
from smelt.ops.extern import EXTERNS, ExternRow, register
from smelt.types.dtype import c64, c128
from smelt.types.tensor import TensorType


def joined(real: Buffer, imag: Buffer) -> Buffer:
    """Return the complex array of two parts."""
    dtype = c64 if real.dtype == np.float32 else c128
    z = np.empty(np.broadcast_shapes(real.shape, imag.shape), dtype.numpy)
    z.real, z.imag = real, imag
    return z


def stacked(z: Any, like: Buffer) -> Buffer:
    """Return both parts of a complex array, in the dtype of the operand."""
    return np.stack([z.real, z.imag]).astype(like.dtype, copy=False)


def call_stacked(name: str, *parts: Array, **options: Any) -> ComplexArray:
    """Record a call whose result is both parts of a complex array."""
    both = Array.of(call(name, *(p.node for p in parts), **options))
    return pair(both[0], both[1])


def _of_parts(row: ExternRow) -> ExternRow:
    """Return the row that calls a function of complex arrays with their parts."""
    name = f"complex_{row.name}"
    is_registered = row.name in EXTERNS  # then its errors are ours
    function = row.call if is_registered else with_extern_errors(name, row.call)

    def infer(*types: TensorType, **options: Any) -> TensorType:
        result = row.infer(*types[::2], **options)
        return TensorType(result.dtype, (2, *result.shape))

    def run(*parts: Buffer, **options: Any) -> Buffer:
        operands = [joined(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        with np.errstate(all="ignore"):
            return stacked(function(*operands, **options), parts[0])

    return ExternRow(name, f"{row.doc}, complex", infer, run)


def _same(x: TensorType, *_: TensorType, **_options: Any) -> TensorType:
    return x


def _reduced(x: TensorType, axis: Any, keepdims: bool) -> TensorType:
    shape = [(1 if k in axis else d) for k, d in enumerate(x.shape) if keepdims or k not in axis]
    return TensorType(x.dtype, tuple(shape))


def _unary(z: Buffer, function: str) -> Any:
    return getattr(np, function)(z)


for _row in (
    ExternRow("unary", "a function of numbers", _same, _unary),
    ExternRow("power", "powers", _same, np.power),
    ExternRow("prod", "products over axes", _reduced, np.prod),
    ExternRow("cumprod", "running products", _same, np.cumprod),
    *[row for name, row in EXTERNS.items() if name.startswith("linalg_")],
):
    register(_of_parts(_row))
