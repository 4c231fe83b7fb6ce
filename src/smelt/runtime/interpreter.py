"""What native calls take for granted about the interpreter and NumPy, looked at in this process.

Objects are laid out as CPython 3.11 to 3.14 with the interpreter lock lays them out, arrays as
NumPy 2 does, on a 64-bit machine with the low byte first; every offset that is used is compared
with what public interfaces say of live objects.

>>> isinstance(is_possible(), bool)
True
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from smelt.runtime import native_call as code

__all__ = [
    "NDARRAY",
    "NEW_FROM_DESCR",
    "SET_BASE",
    "api",
    "function_at",
    "is_possible",
    "numpy_table",
    "offset_of",
    "word_at",
]

Array = np.ndarray[Any, Any]

VERSIONS: Final = ((3, 11), (3, 14))
NEW_FROM_DESCR, SET_BASE, NDARRAY, ABI = 94, 282, 2, 0
"""Places in NumPy's table of functions, part of its stable binary interface."""

word_at = ctypes.c_int64.from_address
"""The 64-bit word at an address."""


def is_possible() -> bool:
    """Whether this interpreter and this NumPy are laid out as the native code takes them to be."""
    try:
        return _interpreter_is_known() and _arrays_are_known() and numpy_table() is not None
    except (AttributeError, ImportError, ValueError):
        return False


def _interpreter_is_known() -> bool:
    locked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    low, high = VERSIONS
    sample = bytes(range(40, 60))
    return (
        sys.implementation.name == "cpython"
        and low <= sys.version_info[:2] <= high
        and locked()
        and sys.maxsize > 1 << 32
        and sys.byteorder == "little"
        and object.__basicsize__ == 16  # more in builds that count or trace otherwise
        and not hasattr(sys, "getobjects")
        and ctypes.string_at(id(sample) + code.BYTES_AT, 20) == sample
        and _references_are_known()
        and all(
            word_at(id(x) + code.OBJECT["KIND"]).value == id(type(x)) for x in (1, "a", object())
        )
    )


def _references_are_known() -> bool:
    x = object()
    count = ctypes.c_int32.from_address(id(x) + code.OBJECT["REFERENCES"])
    before = count.value
    others = [x, x]
    told = sys.getrefcount(x) - count.value  # 1 where the call's argument counts
    return count.value == before + len(others) and told in (0, 1)


def _arrays_are_known() -> bool:
    base = np.zeros((3, 4, 5), np.int16)
    samples = [base, base[:, ::2], base.T, base[1, 1, 1:1], np.zeros(()), base.view(">i2")]
    samples += [np.asfortranarray(base[0]), np.broadcast_to(base[0], (2, 4, 5))]
    return all(_is_known(a) for a in samples)


def _is_known(a: Array) -> bool:
    """Whether an array's fields are where they are looked for.  What is no pointer, or known by
    other means, is compared before a pointer is followed."""

    def at(name: str) -> int:
        return word_at(id(a) + code.NDARRAY[name]).value

    def half(name: str) -> int:
        return ctypes.c_int32.from_address(id(a) + code.NDARRAY[name]).value

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(word_at(at(name) + 8 * k).value for k in range(a.ndim))

    return (
        np.ndarray.__basicsize__ >= max(code.NDARRAY.values()) + 8
        and half("ND_RANK") == a.ndim
        and half("ND_FLAGS") & 0xFFFF == a.flags.num & 0xFFFF
        and at("ND_DATA") == a.__array_interface__["data"][0]
        and at("ND_DESCR") == id(a.dtype)
        and at("ND_BASE") == (0 if a.base is None else id(a.base))
        and numbers("ND_DIMS") == a.shape
        and numbers("ND_STRIDES") == a.strides
    )


def numpy_table() -> int | None:
    """Where NumPy keeps its functions; None for another version of its interface."""
    capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
    pointer = api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = pointer(capsule, None)
    if not table or word_at(table + 8 * NDARRAY).value != id(np.ndarray):
        return None
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(word_at(table + 8 * ABI).value)()
    return int(table) if version >> 24 == 2 else None


def api(name: str, *types: Any) -> Callable[..., Any]:
    """A function of CPython under types of our own: those of `ctypes.pythonapi` are shared."""
    return ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))


def function_at(name: str) -> int:
    """Address of a function of CPython."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def offset_of(kind: Any, name: str) -> int:
    """Where the instances of a class keep a slot.  Raises ValueError if that cannot be told."""
    x, mark = kind.__new__(kind), object()
    setattr(x, name, mark)
    places = range(16, kind.__basicsize__, 8)
    (found,) = [k for k in places if word_at(id(x) + k).value == id(mark)]
    return found
