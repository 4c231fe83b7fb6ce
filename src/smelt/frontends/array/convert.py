"""Convert array-like objects to values: NumPy arrays, DLPack, the array interface, numbers.

>>> from_host(np.arange(3)).type
TensorType(dtype=i64, shape=(3,))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import DLPackError, UnsupportedError
from smelt.frontends.array.dlpack import import_array
from smelt.frontends.array.value import Buffer, Value, foreign, leaf
from smelt.types.dtype import DType, bool_, f64, from_numpy, i64

__all__ = ["as_buffer", "computable", "from_host", "is_foreign_array", "number_dtype"]


def number_dtype(number: bool | int | float) -> DType:
    """Return the default dtype of a Python number."""
    return bool_ if isinstance(number, bool) else i64 if isinstance(number, int) else f64


def computable(dtype: DType) -> DType:
    """Return `dtype`; raise UnsupportedError for complex dtypes."""
    if dtype.kind == "complex":
        raise UnsupportedError(f"complex numbers ({dtype.long}) are not supported")
    return dtype


def is_foreign_array(x: object) -> bool:
    """Return whether `x` exposes its memory by NumPy, DLPack or the array interface."""
    return (
        isinstance(x, (np.ndarray, np.generic))
        or hasattr(x, "__dlpack__")
        or hasattr(x, "__array_interface__")
    )


def as_buffer(x: Any) -> Buffer:
    """Return a NumPy view of an array-like object, without a copy.

    Raises DLPackError for memory that cannot be read, UnsupportedError for masked elements, which
    no operator would skip.
    """
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise UnsupportedError(
            "a NumPy masked array with masked elements",
            hint="Pass x.filled(value), or x.data and x.mask as two arrays for sm.where.",
        )
    if isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array_interface__"):
        return np.asarray(x)
    try:
        return import_array(x)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise DLPackError(what=type(x).__name__, reason=str(error)) from error


def usable(data: Buffer) -> Buffer:
    """Return `data` if kernels can read it, else a copy.

    A copy is needed for foreign byte order and unaligned addresses or strides.  Raises
    UnsupportedError for complex dtypes.
    """
    computable(from_numpy(data.dtype))
    if not data.dtype.isnative:
        return data.astype(data.dtype.newbyteorder("="))
    item = data.itemsize
    if not data.flags.aligned or any(s % item for s in data.strides):
        return data.copy()
    return data


def from_host(x: Any) -> Value:
    """Return the value of an array-like object, sharing its memory if kernels can read it.

    Raises DTypeError for unsupported element types, UnsupportedError for complex ones, DLPackError
    for memory that cannot be read.
    """
    original = as_buffer(x)
    data = usable(original)
    # Scalars and our copies are private.  Read-only memory is not: its owner may still write to it.
    return leaf(data) if data is not original or isinstance(x, np.generic) else foreign(data)
