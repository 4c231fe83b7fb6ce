"""Models of instructions that the emulator does not know: dot products of Armv8.6.

Integer ones are exact. Those of bfloat16 add two products to a sum as float32 does, where Arm
rounds to odd and flushes denormals: the difference is within the error that any order of a float32
sum has.

>>> result = execute(0x4E82A420, lambda n: 1 if n else 0)
>>> result, execute(0xD503201F, lambda n: 0)
((0, 1), None)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Registers = Callable[[int], int]


def _lanes(bits: int, dtype: str) -> Array:
    return np.frombuffer(bits.to_bytes(16, "little"), dtype)


def _floats(bits: int) -> Array:
    """The eight bfloat16 numbers of a register."""
    return (_lanes(bits, "u2").astype("u4") << 16).view("f4")


def _add_pairs(total: Array, x: Array, y: Array) -> Array:
    """Sums, each with the products of two neighbours."""
    products = x.astype("f8") * y.astype("f8")
    return (total + products.reshape(-1, 2).sum(1).astype("f4")).astype("f4")


def _dot(left: str, right: str, total: int, x: int, y: int) -> Array:
    products = _lanes(x, left).astype("i4") * _lanes(y, right).astype("i4")
    return _lanes(total, "i4") + products.reshape(4, 4).sum(1, dtype="i4")


def _square(left: str, right: str, total: int, x: int, y: int) -> Array:
    rows, columns = (_lanes(*a).astype("i4").reshape(2, 8) for a in ((x, left), (y, right)))
    return _lanes(total, "i4") + (rows @ columns.T).ravel()


def _bfloat_dot(total: int, x: int, y: int) -> Array:
    return _add_pairs(_lanes(total, "f4"), _floats(x), _floats(y))


def _bfloat_square(total: int, x: int, y: int) -> Array:
    rows, columns = _floats(x).reshape(2, 4), _floats(y).reshape(2, 4)
    left, right = rows.repeat(2, axis=0), np.tile(columns, (2, 1))
    sums = _lanes(total, "f4")
    for first in (0, 2):
        pairs = left[:, first : first + 2], right[:, first : first + 2]
        sums = _add_pairs(sums, *(np.ascontiguousarray(p).ravel() for p in pairs))
    return sums


_VECTORS: dict[int, Callable[[int, int, int], Array]] = {
    0x4E80A400: partial(_square, "i1", "i1"),  # smmla
    0x6E80A400: partial(_square, "u1", "u1"),  # ummla
    0x4E80AC00: partial(_square, "u1", "i1"),  # usmmla
    0x6E40EC00: _bfloat_square,  # bfmmla
    0x4E809C00: partial(_dot, "u1", "i1"),  # usdot
    0x6E40FC00: _bfloat_dot,  # bfdot
}
"""Of three registers, by the bits that are not registers' numbers."""
_ELEMENTS: dict[int, Callable[[int, int, int], Array]] = {
    0x4F80F000: partial(_dot, "u1", "i1"),  # usdot
    0x4F00F000: partial(_dot, "i1", "u1"),  # sudot
    0x4F40F000: _bfloat_dot,  # bfdot
}
"""The same by one element of 32 bits of the last register."""


def _narrow(x: int) -> Array:
    """Four float32 numbers as bfloat16, rounded to even."""
    bits = _lanes(x, "u4").astype("u8")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, bits >> 16 | 0x40, rounded).astype("u2")


def execute(word: int, read: Registers) -> tuple[int, int] | None:
    """The register that an instruction writes, and its content; None if it is not known.

    `read` returns the content of a vector register.
    """
    target, first, second = word & 31, word >> 5 & 31, word >> 16 & 31
    if model := _VECTORS.get(word & 0xFFE0FC00):
        return target, _bits(model(read(target), read(first), read(second)))
    if model := _ELEMENTS.get(word & 0xFFC0F400):
        element = (word >> 11 & 1) << 1 | word >> 21 & 1
        repeated = _lanes(read(second), "u4")[element].repeat(4)
        return target, _bits(model(read(target), read(first), _bits(repeated)))
    if word & 0xBFFFFC00 == 0x0EA16800:  # bfcvtn, bfcvtn2
        low = read(target) & (1 << 64) - 1 if word >> 30 & 1 else 0
        half = _bits(np.concatenate([_narrow(read(first)), np.zeros(4, "u2")]))
        return target, half << 64 | low if word >> 30 & 1 else half
    if word & 0xFFFFFC00 == 0x1E634000:  # bfcvt
        return target, int(_narrow(read(first))[0])
    return None


def _bits(lanes: Array) -> int:
    return int.from_bytes(lanes.tobytes(), "little")
