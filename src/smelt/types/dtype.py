"""Define element types, and the type promotion of the array API standard.

>>> promote(i32, i64), promote(f32, bf16), promote(u8, i8)
(i64, f32, i16)
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

from smelt.errors import DTypeError
from smelt.python.dataclass import dataclass

Kind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """An element type.

    `name` is the short spelling of the IRs, `long` the array API's name.
    """

    name: str
    long: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]
    number: int
    """Hash of `numpy`, with which a type may be compared; cached, as NumPy computes it slowly."""

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The type for `np.dtype(x)`, by NumPy's protocol, so that libraries take ours."""
        return self.numpy

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory (bool takes one)."""
        return self.numpy.itemsize

    @property
    def compute(self) -> DType:
        """The type of arithmetic: half types compute in float32."""
        return f32 if self.kind == "float" and self.bits == 16 else self

    def round_number(self, number: float | int | bool) -> float | int | bool:
        """Round a number to a half type; return it unchanged for other types.

        Those round it when they compute with it.

        >>> f16.round_number(0.1), f16.round_number(1e6), f32.round_number(0.1)
        (0.0999755859375, inf, 0.1)
        """
        if self.compute is self:
            return number
        with np.errstate(over="ignore"):
            return float(np.asarray(number, "f8").astype(self.numpy))

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.long

    def __eq__(self, other: object) -> bool:
        if self is other:  # the common case: there is one instance of each
            return True
        if isinstance(other, DType):
            return self.name == other.name
        if isinstance(other, str):
            named = _parse_name(other)
            is_ours = other == self.name and other not in NUMPYS_NAMES
            return is_ours or (named is not None and named == self.numpy)
        if isinstance(other, (np.dtype, type)):
            named = parse_numpy(other)
            return named is not None and named == self.numpy
        return NotImplemented

    def __hash__(self) -> int:
        return self.number

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.name,)


def parse_numpy(spelling: Any) -> np.dtype[Any] | None:
    """Return the dtype of NumPy with this spelling, None if there is none."""
    try:
        return np.dtype(spelling)
    except Exception:  # noqa: BLE001 - NumPy's parser raises SyntaxError, ValueError and others
        return None


_parse_name = lru_cache(256)(parse_numpy)

NUMPYS_NAMES = frozenset(("i8", "u8"))
"""Short names that are NumPy's too, for integers of 8 bytes: `dtype="i8"` of array code means
those, the text of a type (`i8[n]`) means 8 bits."""


def _row(name: str, long: str, kind: Kind, bits: int, scalar: Any) -> DType:
    dtype = np.dtype(scalar)
    return DType(name, long, kind, bits, dtype, hash(dtype))


bool_ = _row("bool", "bool", "bool", 8, np.bool_)
i8 = _row("i8", "int8", "int", 8, np.int8)
i16 = _row("i16", "int16", "int", 16, np.int16)
i32 = _row("i32", "int32", "int", 32, np.int32)
i64 = _row("i64", "int64", "int", 64, np.int64)
u8 = _row("u8", "uint8", "uint", 8, np.uint8)
u16 = _row("u16", "uint16", "uint", 16, np.uint16)
u32 = _row("u32", "uint32", "uint", 32, np.uint32)
u64 = _row("u64", "uint64", "uint", 64, np.uint64)
f16 = _row("f16", "float16", "float", 16, np.float16)
bf16 = _row("bf16", "bfloat16", "float", 16, ml_dtypes.bfloat16)
f32 = _row("f32", "float32", "float", 32, np.float32)
f64 = _row("f64", "float64", "float", 64, np.float64)
c64 = _row("c64", "complex64", "complex", 64, np.complex64)
c128 = _row("c128", "complex128", "complex", 128, np.complex128)

DTYPES: tuple[DType, ...] = (
    bool_,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
    f16,
    bf16,
    f32,
    f64,
    c64,
    c128,
)
COMPUTABLE: tuple[DType, ...] = tuple(d for d in DTYPES if d.kind != "complex")
_BY_NAME = {d.name: d for d in DTYPES} | {d.long: d for d in DTYPES}
_BY_NUMPY = {d.numpy: d for d in DTYPES}


def parse(name: str) -> DType:
    """Return the type named `name` (short or long); raises DTypeError for an unknown name."""
    try:
        return _BY_NAME[name]
    except KeyError:
        names = ", ".join(n for n, row in _BY_NAME.items() if row.kind != "complex")
        raise DTypeError(
            f"unknown element type {name!r}; known: {names}",
            hint="Choose one of the names above; arrays have theirs in x.dtype.",
        ) from None


def parse_in_text(name: str) -> DType:
    """Return the type `name` of a text such as `u8[n]`, whose numbers count bits.

    Raises DTypeError for an unknown name, and for codes of NumPy that count bytes ("f4").

    >>> parse_in_text("u8"), parse_in_text("float32"), parse_in_text("double")
    (u8, f32, f64)
    """
    theirs = None if name in _BY_NAME else parse_numpy(name)
    row = None if theirs is None else counterpart(theirs)
    if row is None:
        return parse(name)
    if any(c.isdigit() for c in name) and name != theirs.name:  # type: ignore[union-attr]
        raise DTypeError(
            f"{name!r} counts bytes, as in NumPy; the text of a type counts bits",
            hint=f'Write "{row.long}" or "{row.name}".',
        )
    return row


def refuse_ambiguous(name: object) -> None:
    """Raise DTypeError for "i8" and "u8": bytes in NumPy, bits in the text of types."""
    if isinstance(name, str) and name in NUMPYS_NAMES:
        bits, bytes_ = parse(name), from_numpy(name)
        raise DTypeError(
            f"{name!r} has {bits.bits} bits in types ({name}[n]) and {bytes_.bits} in NumPy",
            hint=f'Write "{bits.long}", or "{bytes_.name}" ("{bytes_.long}").',
        )


def from_numpy(dtype: object) -> DType:
    """Return the type of a NumPy dtype (or of anything that `np.dtype` takes).

    Raises DTypeError for types without a counterpart (strings, objects, dates, long double).
    """
    if isinstance(dtype, DType):
        return dtype
    numpy_dtype = parse_numpy(dtype)
    if numpy_dtype is None:
        raise DTypeError(f"{dtype!r} is not an element type")
    row = counterpart(numpy_dtype)
    if row is None:
        raise DTypeError(
            f"NumPy dtype {numpy_dtype} has no counterpart in Smelt",
            hint="Convert it in NumPy first, where that has a meaning: x.astype(np.float32).",
        )
    return row


def counterpart(dtype: np.dtype[Any]) -> DType | None:
    """Return the type of a NumPy dtype, None for strings, objects and dates."""
    return _BY_NUMPY.get(dtype) or _BY_NUMPY.get(dtype.newbyteorder("="))


_SIGNED = {8: i8, 16: i16, 32: i32, 64: i64}
_FLOATS = {32: f32, 64: f64}
_COMPLEX = {32: c64, 64: c128}


@cache
def promote(a: DType, b: DType) -> DType:
    """Return the smallest type that both convert to (array API 2024.12, Type Promotion Rules).

    Mixed kinds beyond the standard follow NumPy for bool; an integer with a float gives the float's
    type. Raises DTypeError for uint64 with a signed integer, which no integer type holds.
    """
    if a == b:
        return a
    rank = {"bool": 0, "uint": 1, "int": 2, "float": 3, "complex": 4}
    low, high = sorted((a, b), key=lambda d: (rank[d.kind], d.bits))
    if low.kind == "bool":
        return high
    if low.kind == high.kind:
        if low.kind == "float" and low.bits == high.bits:
            return f32  # float16 with bfloat16
        return high
    if (low.kind, high.kind) == ("uint", "int"):
        if low.bits < high.bits:
            return high
        if low.bits < 64:
            return _SIGNED[low.bits * 2]
        raise DTypeError("uint64 and a signed integer have no common integer type; cast one first")
    if high.kind == "complex" and low.kind == "float":
        return _COMPLEX[max(high.bits // 2, low.bits, 32)]
    return high


def number_text(value: object) -> str:
    """Return `repr` of a number, with the sign of NaN; `float` reads it back.

    >>> number_text(-0.0), number_text(float("nan")), number_text(float("-nan"))
    ('-0.0', 'nan', '-nan')
    """
    if isinstance(value, float) and math.isnan(value) and math.copysign(1.0, value) < 0:
        return "-nan"
    return repr(value)
