"""Check the assumptions of native calls about CPython and NumPy in this process.

Native calls assume the object layout of CPython 3.11 to 3.14 with the GIL, the array layout of
NumPy 2, and a 64-bit little-endian machine. Every offset used is compared with what public
interfaces report about live objects.

>>> isinstance(is_supported(), bool)
True
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from smelt.runtime import native_layout as layout

Array = np.ndarray[Any, Any]

VERSIONS: Final = ((3, 11), (3, 14))
"""Oldest and newest supported CPython version."""
NEW_FROM_DESCR, SET_BASE, NDARRAY, ABI = 94, 282, 2, 0
"""Indices in NumPy's table of functions, part of its stable binary interface."""

word_at = ctypes.c_int64.from_address
"""64-bit word at an address, as a ctypes object."""


def is_supported() -> bool:
    """Return whether interpreter and NumPy have the layout that native code assumes."""
    try:
        return _interpreter_is_supported() and _array_layout_matches() and numpy_table() is not None
    except (AttributeError, ImportError, ValueError):
        return False


def _interpreter_is_supported() -> bool:
    locked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    low, high = VERSIONS
    sample = bytes(range(40, 60))
    return (
        sys.implementation.name == "cpython"
        and low <= sys.version_info[:2] <= high
        and locked()
        and sys.maxsize > 1 << 32
        and sys.byteorder == "little"
        and object.__basicsize__ == 16  # larger in debug and tracing builds
        and not hasattr(sys, "getobjects")
        and ctypes.string_at(id(sample) + layout.BYTES["CONTENT"], 20) == sample
        and _reference_counts_match()
        and all(
            word_at(id(x) + layout.OBJECT["TYPE"]).value == id(type(x)) for x in (1, "a", object())
        )
    )


def _reference_counts_match() -> bool:
    x = object()
    count = ctypes.c_int32.from_address(id(x) + layout.OBJECT["REFERENCES"])
    before = count.value
    others = [x, x]
    difference = sys.getrefcount(x) - count.value  # 1 where the call's argument counts
    return count.value == before + len(others) and difference in (0, 1)


def _array_layout_matches() -> bool:
    base = np.zeros((3, 4, 5), np.int16)
    samples = [base, base[:, ::2], base.T, base[1, 1, 1:1], np.zeros(()), base.view(">i2")]
    samples += [np.asfortranarray(base[0]), np.broadcast_to(base[0], (2, 4, 5))]
    return all(_fields_match(a) for a in samples)


def _fields_match(a: Array) -> bool:
    """Return whether an array's fields are at the expected offsets.

    Plain numbers and pointers known by other means are compared before a pointer is followed.
    """

    def at(name: str) -> int:
        return word_at(id(a) + layout.NDARRAY[name]).value

    def half(name: str) -> int:
        return ctypes.c_int32.from_address(id(a) + layout.NDARRAY[name]).value

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(word_at(at(name) + 8 * k).value for k in range(a.ndim))

    return (
        np.ndarray.__basicsize__ >= max(layout.NDARRAY.values()) + 8
        and half("RANK") == a.ndim
        and half("FLAGS") & 0xFFFF == a.flags.num & 0xFFFF
        and at("DATA") == a.__array_interface__["data"][0]
        and at("DESCR") == id(a.dtype)
        and at("BASE") == (0 if a.base is None else id(a.base))
        and numbers("DIMS") == a.shape
        and numbers("STRIDES") == a.strides
    )


def numpy_table() -> int | None:
    """Return the address of NumPy's C API table; None for another API version."""
    capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
    pointer = c_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = pointer(capsule, None)
    if not table or word_at(table + 8 * NDARRAY).value != id(np.ndarray):
        return None
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(word_at(table + 8 * ABI).value)()
    return int(table) if version >> 24 == 2 else None


def c_function(name: str, *types: Any) -> Callable[..., Any]:
    """Return a CPython function with its own ctypes types.

    The functions of `ctypes.pythonapi` are shared with other users, types included.
    """
    return ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))


def function_at(name: str) -> int:
    """Return the address of a CPython function."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def offset_of(kind: Any, name: str) -> int:
    """Return the offset of a slot in instances of a class.

    Raises ValueError if it cannot be determined.
    """
    x, mark = kind.__new__(kind), object()
    setattr(x, name, mark)
    places = range(16, kind.__basicsize__, 8)
    (offset,) = [k for k in places if word_at(id(x) + k).value == id(mark)]
    return offset
