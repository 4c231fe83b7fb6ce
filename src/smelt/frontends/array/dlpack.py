"""DLPack with bfloat16, which NumPy does not speak: its arrays pass as ones of 16-bit integers, and
the word for the element type is changed in the capsule that passes.

A capsule belongs to the one who takes it, as the struct in it does: whoever is asked for one may
change it before it is handed on (https://dmlc.github.io/dlpack/latest/python_spec.html).

>>> enter(np.arange(3)).dtype
dtype('int64')
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from smelt.types.dtype import bf16

__all__ = ["enter", "leave"]

_AT = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Where the element type is told, by the name of the capsule: behind a pointer, a device of two
numbers and the rank; a struct with a version has 32 bytes ahead of them."""
_SHORT, _BFLOAT = (0, 16, 1), (4, 16, 1)
"""Code, bits and lanes of an integer and of a bfloat16."""


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _renamed(capsule: Any, old: tuple[int, int, int], new: tuple[int, int, int]) -> bool:
    """Has the capsule tell another element type, if it told `old`."""
    name = _name(capsule)
    place = _AT.get(name)
    if place is None:
        return False
    told = _Type.from_address(_pointer(capsule, name) + place)
    if (told.code, told.bits, told.lanes) != old:
        return False
    told.code = new[0]
    return True


class _Short:
    """A foreign array of bfloat16 as one of integers."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.renamed = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.whole.__dlpack__(**options)
        self.renamed = _renamed(capsule, _BFLOAT, _SHORT)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.whole.__dlpack_device__()


def enter(x: Any) -> np.ndarray[Any, Any]:
    """A NumPy view of what speaks DLPack.  Raises what that and NumPy raise."""
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError):
        short = _Short(x)
        found = np.from_dlpack(short)
        return found.view(bf16.numpy) if short.renamed else found


def leave(data: np.ndarray[Any, Any], **options: Any) -> Any:
    """A capsule with the memory of an array.  Raises BufferError as NumPy does."""
    if data.dtype != bf16.numpy:
        return data.__dlpack__(**options)
    capsule = data.view(np.int16).__dlpack__(**options)
    _renamed(capsule, _SHORT, _BFLOAT)
    return capsule
