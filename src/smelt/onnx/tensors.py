"""Decode tensors of an ONNX file to NumPy arrays, and name ONNX's element types.

Types that arrays do not have (floats of 8 and 4 bits, integers of 4 and 2, text) are storage: NumPy
converts them, outside of programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from smelt.errors import OnnxFileError, OnnxLimitError, UnsupportedError
from smelt.onnx.model import SparseTensor, StoredTensor

Data = np.ndarray[Any, Any]
MAX_TENSOR_RANK = 32
MAX_EXPANDED_BYTES = 64 << 20
"""Largest dense form of a sparse tensor."""

_TYPES: dict[int, tuple[str, Any]] = {
    1: ("float", np.float32),
    2: ("uint8", np.uint8),
    3: ("int8", np.int8),
    4: ("uint16", np.uint16),
    5: ("int16", np.int16),
    6: ("int32", np.int32),
    7: ("int64", np.int64),
    8: ("string", np.object_),
    9: ("bool", np.bool_),
    10: ("float16", np.float16),
    11: ("double", np.float64),
    12: ("uint32", np.uint32),
    13: ("uint64", np.uint64),
    14: ("complex64", np.complex64),
    15: ("complex128", np.complex128),
    16: ("bfloat16", ml_dtypes.bfloat16),
    17: ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
    18: ("float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    19: ("float8e5m2", ml_dtypes.float8_e5m2),
    20: ("float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    21: ("uint4", ml_dtypes.uint4),
    22: ("int4", ml_dtypes.int4),
    23: ("float4e2m1", ml_dtypes.float4_e2m1fn),
    24: ("float8e8m0", ml_dtypes.float8_e8m0fnu),
    25: ("uint2", ml_dtypes.uint2),
    26: ("int2", ml_dtypes.int2),
}
"""TensorProto.data_type -> (ONNX's name, NumPy's type)."""
_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""Types of which several elements share a byte."""
_NUMBERS = {np.dtype(t): n for n, (_, t) in _TYPES.items()}
_FIELDS = {
    1: "floats",
    7: "int64s",
    11: "doubles",
    12: "uint64s",
    13: "uint64s",
    14: "floats",
    15: "doubles",
}
"""Types whose numbers are not stored in int32_data."""


def dtype_of(data_type: int) -> np.dtype[Any]:
    """Return NumPy's type for an ONNX type; raises OnnxFileError for an unknown number."""
    if data_type not in _TYPES:
        raise OnnxFileError(f"the element type {data_type} is unknown")
    return np.dtype(_TYPES[data_type][1])


def type_number(dtype: Any) -> int:
    """Return ONNX's number of a NumPy type."""
    return _NUMBERS[np.dtype(dtype)]


def type_text(data_type: int) -> str:
    """Return a type as ONNX Runtime spells it, for instance tensor(float)."""
    return f"tensor({_TYPES[data_type][0]})" if data_type in _TYPES else "tensor(?)"


def is_packed(data_type: int) -> bool:
    """Whether several elements share a byte."""
    return data_type in _BITS


def decode(
    tensor: StoredTensor | SparseTensor, external: Callable[[StoredTensor, int], memoryview]
) -> Data:
    """Return a tensor's elements, where possible as a view of the file.

    `external` returns the bytes of a tensor whose data is in another file. Raises OnnxFileError for
    bytes that do not fit the shape, OnnxLimitError for a shape beyond the limits.
    """
    if isinstance(tensor, SparseTensor):
        return _dense(tensor, external)
    dtype, fields = dtype_of(tensor.data_type), tensor.fields
    if any(d < 0 for d in tensor.dims) or len(tensor.dims) > MAX_TENSOR_RANK or "segment" in fields:
        raise _misfit(tensor, "its dimensions are not a shape")
    count = math.prod(tensor.dims)
    if tensor.data_type == 8:
        strings = [bytes(s) for s in fields.get("strings", ())]
        if len(strings) != count:
            raise _misfit(tensor, f"{len(strings)} strings for {count} elements")
        texts = np.empty(count, object)
        texts[:] = [s.decode("utf-8", "replace") for s in strings]
        return texts.reshape(tensor.dims)
    stored_bits = _BITS.get(tensor.data_type, dtype.itemsize * 8)
    size = -(-count * stored_bits // 8)
    values = fields.get(_FIELDS.get(tensor.data_type, "int32s"), ())
    if fields.get("location") == 1:
        if "raw" in fields or values:
            raise _misfit(tensor, "its data is stored twice")
        raw: Any = external(tensor, size)
    elif "raw" in fields:
        if values:
            raise _misfit(tensor, "its data is stored twice")
        raw = fields["raw"]
    else:
        return _from_values(tensor, dtype, values, count)
    if len(raw) != size:
        raise _misfit(tensor, f"{len(raw)} bytes, {size} expected")
    if stored_bits < 8:
        return _unpack(np.frombuffer(raw, np.uint8), count, stored_bits, dtype).reshape(tensor.dims)
    return (
        np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(tensor.dims)
    )


def _misfit(tensor: StoredTensor, what: str) -> OnnxFileError:
    shape = list(tensor.dims[:MAX_TENSOR_RANK])
    return OnnxFileError(f"tensor {tensor.name!r} of shape {shape}: {what}")


def _from_values(tensor: StoredTensor, dtype: np.dtype[Any], values: Any, count: int) -> Data:
    """Return elements that are stored as numbers of a wider type."""
    number = tensor.data_type
    parts = 2 if number in (14, 15) else 1
    bits = _BITS.get(number, 8)
    expected = count * parts if bits == 8 else -(-count * bits // 8)
    if len(values) != expected:
        raise _misfit(tensor, f"{len(values)} numbers, {expected} expected")
    try:
        if bits < 8:
            return _unpack(np.array(values, np.uint8), count, bits, dtype).reshape(tensor.dims)
        if number in (14, 15):
            wide = np.array(values, np.float32 if number == 14 else np.float64)
            return wide.view(dtype).reshape(tensor.dims)
        if number in (10, 16):  # bits of a half type
            return np.array(values, np.uint16).view(dtype).reshape(tensor.dims)
        if number in (17, 18, 19, 20, 24):
            return np.array(values, np.uint8).view(dtype).reshape(tensor.dims)
        if number in (12, 13):
            return np.array(values, np.int64).view(np.uint64).astype(dtype).reshape(tensor.dims)
        return np.array(values, dtype).reshape(tensor.dims)
    except (OverflowError, ValueError):
        raise _misfit(tensor, f"a number that {dtype} cannot hold") from None


def _unpack(raw: Data, count: int, bits: int, dtype: np.dtype[Any]) -> Data:
    """Return elements that share bytes, the first in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype == np.dtype(ml_dtypes.float4_e2m1fn):
        return codes.astype(np.uint8).view(dtype)
    if dtype in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.int2)):
        half = 1 << (bits - 1)
        return ((codes.astype(np.int8) ^ half) - half).astype(dtype)
    return codes.astype(dtype)


def _dense(tensor: SparseTensor, external: Callable[[StoredTensor, int], memoryview]) -> Data:
    values, indices = decode(tensor.values, external), decode(tensor.indices, external)
    if any(d < 0 for d in tensor.dims) or len(tensor.dims) > MAX_TENSOR_RANK:
        raise _misfit(tensor.values, "its dimensions are not a shape")
    if values.dtype == object:
        raise UnsupportedError("a sparse tensor of strings")
    if math.prod(tensor.dims) * values.itemsize > MAX_EXPANDED_BYTES:
        raise OnnxLimitError(f"a sparse tensor of shape {list(tensor.dims)}")
    dense = np.zeros(tensor.dims, values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError):
        raise _misfit(tensor.values, "a position out of bounds") from None
    return dense


_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_WHOLE = ("int4", "uint4", "int2", "uint2")


def convert(x: Data, dtype: np.dtype[Any], saturate: bool = True, rounding: str = "up") -> Data:
    """Return elements as another type.

    With `saturate` numbers beyond a float of 8 bits become its largest ones; `rounding` is that of
    powers of two: "up", "down" or "nearest".
    """
    if dtype.kind == "O":
        return x.astype(np.str_).astype(object)
    if x.dtype.kind == "O":
        x = np.array([float(t) for t in x.reshape(-1)], np.float64).reshape(x.shape)
    with np.errstate(all="ignore"):
        if dtype.name == "float8_e8m0fnu":
            return _powers_of_two(x.astype(np.float32), saturate, rounding).view(dtype)
        if dtype.name in _FLOAT8 and saturate:
            info = ml_dtypes.finfo(dtype)
            return np.clip(x.astype(np.float32), float(info.min), float(info.max)).astype(dtype)
        return x.astype(dtype)


def _powers_of_two(x: Data, saturate: bool, rounding: str) -> Data:
    """Return the exponent bits of numbers, rounded to powers of two."""
    bits = x.view(np.uint32)
    exponent = ((bits >> 23) & 255).astype(np.int64)
    fraction = bits & 0x7FFFFF
    grows = {
        "up": fraction > 0,
        "down": fraction < 0,
        "nearest": np.where(exponent > 0, fraction >= 0x400000, fraction > 0x400000),
    }
    if rounding not in grows:
        raise UnsupportedError(f"the rounding {rounding!r} of a cast")
    more = grows[rounding] & (exponent < (254 if saturate else 255))
    return (exponent + more).astype(np.uint8)


def spread(v: Any, x: Any, axis: int, block: int) -> Any:
    """Return scales or zero points in a shape that broadcasts with `x`."""
    if v is None or v.ndim == 0 or v.size == 1:
        return None if v is None else v.reshape(())
    if block:
        return np.take(np.repeat(v, block, axis=axis), np.arange(x.shape[axis]), axis=axis)
    return v.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim)) if v.ndim == 1 else v


def quantize(x: Data, scale: Data, zero: Data | None, dtype: np.dtype[Any], saturate: bool) -> Data:
    """Return x / scale (+ zero point) as a narrow type; operands broadcast."""
    steps = x.astype(np.float32) / scale.astype(np.float32)
    if dtype.name in _WHOLE:
        info = ml_dtypes.iinfo(dtype)
        steps = np.rint(steps)
        if zero is not None:
            steps = steps + zero.astype(np.float32)
        return np.clip(steps, info.min, info.max).astype(dtype)
    if zero is not None:
        steps = steps + zero.astype(np.float32)
    return convert(steps, dtype, saturate)


def dequantize(x: Data, scale: Data, zero: Data | None) -> Data:
    """Return (x - zero point) * scale; operands broadcast."""
    wide = x.astype(np.float32)
    if zero is not None:
        wide = wide - zero.astype(np.float32)
    return (wide * scale.astype(np.float32)).astype(scale.dtype)
