"""Data types, their functions and the inspection functions of the array API standard.

>>> result_type(types.f32, types.bf16), isdtype(types.u8, "integral"), finfo("float16").max
(f32, True, 65504.0)
>>> __array_namespace_info__().default_dtypes()["real floating"]
f64
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array.array import Array, check_device, value
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.convert import computable
from smelt.frontends.array.number import Number
from smelt.frontends.array.promote import cast, common, promote_with_number
from smelt.frontends.array.value import copied
from smelt.python.dataclass import dataclass
from smelt.types import dtype as types
from smelt.types.dtype import DTYPES, NUMPYS_NAMES, DType, from_numpy, parse

DTypeLike = Any
"""Specification of a dtype: a smelt or NumPy dtype, a scalar type, bool, int, float, or a name.

Names are NumPy's ("float32", "f4", "i8" for int64) and the short ones of reports ("f32", "i64")."""

_NUMBERS = (bool, int, float, complex)
_PYTHON: dict[type, DType] = {
    bool: types.bool_,
    int: types.i64,
    float: types.f64,
    complex: types.c128,
}


def as_dtype(dtype: DTypeLike, default: DType | None = None) -> DType:
    """Return the dtype for a specification (see `DTypeLike`); `default` for None.

    Raises DTypeError for an unknown one, ComplexOperand for complex ones.
    """
    if dtype is None and default is not None:
        return default
    return computable(lookup_dtype(dtype))


def lookup_dtype(dtype: DTypeLike) -> DType:
    """Return the dtype for a specification, complex ones included."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    return _named(dtype) if isinstance(dtype, str) else from_numpy(dtype)


def _named(name: str) -> DType:
    """Return the dtype of a name of ours, or of NumPy's: "i8" and "u8" have 8 bytes, as there."""
    try:
        return from_numpy(name) if name in NUMPYS_NAMES else parse(name)
    except DTypeError as unknown:
        try:
            return from_numpy(np.dtype(name))
        except TypeError:
            raise unknown from None


@takes_complex
def astype(x: Array, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> Array:
    """Convert `x` to another dtype, element by element.

    Args:
        x: the array.
        dtype: the dtype of the result.
        copy: False returns `x` itself if it has that dtype.
        device: None or "cpu".

    Floats are truncated on conversion to integers; nonzero becomes True; values out of range are
    implementation-defined, as in the standard.  Raises DTypeError if imaginary parts would be
    lost, DeviceError.
    """
    check_device(device)
    node = value(x, "astype")
    dtype = as_dtype(dtype)
    if node.type.dtype is dtype:
        return Array.of(copied(node)) if copy else x
    return Array.of(cast(node, dtype))


def as_operand_type(x: Array, dtype: DType) -> Array:
    """Convert `x` for a calculation: the array itself, never a copy, if it has the dtype."""
    return x if x.node.type.dtype is dtype else Array.of(cast(x.node, dtype))


def _type_of(x: Any) -> DType:
    return x.dtype if isinstance(x, (Array, Number)) else lookup_dtype(getattr(x, "dtype", x))


def can_cast(from_: Any, to: DTypeLike, /) -> bool:
    """Return whether promotion of one dtype (or array) with `to` gives `to`.

    Raises DTypeError for an unknown dtype.
    """
    target = lookup_dtype(to)
    try:
        return types.promote(_type_of(from_), target) is target
    except DTypeError:
        return False


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the dtype of an operation on these arrays, dtypes and Python numbers.

    Raises DTypeError where the promotion table has no entry, ArgumentError without arguments.
    """
    if not arrays_and_dtypes:
        raise ArgumentError("result_type() needs an array or a dtype")
    numbers = [x for x in arrays_and_dtypes if isinstance(x, _NUMBERS)]
    rest = [_type_of(x) for x in arrays_and_dtypes if not isinstance(x, _NUMBERS)]
    if not rest:
        rest = [lookup_dtype(type(numbers.pop(0)))]
    result = common("result_type", *rest)
    for number in numbers:
        if isinstance(number, complex):
            wider = types.c128 if result.kind in ("bool", "int", "uint") else types.c64
            result = types.promote(result, wider)
        elif result.kind != "complex":
            result = promote_with_number(result, number)
    return result


_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


def isdtype(dtype: DTypeLike, kind: Any) -> bool:
    """Return whether a dtype is of a kind.

    `kind` is a dtype, a name of the standard's kinds, such as "real floating", or a tuple of these.
    Raises ArgumentError for an unknown name, DTypeError for an unknown dtype.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    found_dtype = lookup_dtype(dtype)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ArgumentError.of("isdtype", "kind", kind, f"one of {list(_KINDS)}")
        return found_dtype.kind in _KINDS[kind]
    return found_dtype is lookup_dtype(kind)


@dataclass(frozen=True, slots=True)
class FInfo:
    """Limits of a floating-point dtype; see `finfo`."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IInfo:
    """Limits of an integer dtype; see `iinfo`."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FInfo:
    """Return the limits of a floating-point dtype or array.

    A complex dtype has those of its parts.  Raises DTypeError for other kinds.
    """
    dtype = _type_of(type)
    dtype = {types.c64: types.f32, types.c128: types.f64}.get(dtype, dtype)
    if not dtype.is_float:
        raise DTypeError(f"finfo({dtype.long}): not a floating-point type")
    info = ml_dtypes.finfo(dtype.numpy)
    eps, largest, least = float(info.eps), float(info.max), float(info.min)
    return FInfo(dtype.bits, eps, largest, least, float(info.smallest_normal), dtype)


def iinfo(type: Any, /) -> IInfo:
    """Return the limits of an integer dtype or array.

    Raises DTypeError for other kinds.
    """
    dtype = _type_of(type)
    if not dtype.is_integer:
        raise DTypeError(f"iinfo({dtype.long}): not an integer type")
    info = np.iinfo(dtype.numpy)
    return IInfo(dtype.bits, int(info.max), int(info.min), dtype)


__all__ = ["__array_api_version__", "__array_namespace_info__", "e", "inf", "nan", "newaxis", "pi"]

__array_api_version__ = "2024.12"
e = math.e
pi = math.pi
inf = math.inf
nan = math.nan
newaxis = None


class Info:
    """Inspection object of the array API standard."""

    def capabilities(self) -> dict[str, Any]:
        """Return the standard's capabilities.

        Boolean masks and data-dependent shapes work outside `jit`; any rank is allowed.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """Return the default device, "cpu"."""
        return "cpu"

    def devices(self) -> list[str]:
        """Return the devices: only "cpu"."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtypes of Python numbers, by kind.

        Raises DeviceError.
        """
        check_device(device)
        return {
            "real floating": types.f64,
            "complex floating": types.c128,
            "integral": types.i64,
            "indexing": types.i64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes that arrays may have, by name.

        bfloat16 and float16 exist as well but are not in the standard.  Raises ArgumentError for an
        unknown kind, DeviceError.
        """
        check_device(device)
        standard = {d.long: d for d in DTYPES if d.bits != 16 or not d.is_float}
        if kind is None:
            return standard
        if not isinstance(kind, (str, tuple)):
            raise ArgumentError.of("dtypes", "kind", kind, "a name or tuple of names")
        return {name: d for name, d in standard.items() if isdtype(d, kind)}


def __array_namespace_info__() -> Info:  # noqa: N807 - the standard's name
    """Return the inspection object: capabilities, devices and dtypes."""
    return Info()
