"""DLPack exchange including bfloat16, which NumPy does not support.

NumPy exchanges bfloat16 arrays as arrays of 16-bit integers, and the element type is changed in the
capsule.  Whoever consumes a capsule owns it and its struct, so it may be changed before it is
passed on (https://dmlc.github.io/dlpack/latest/python_spec.html).

>>> import_array(np.arange(3)).dtype
dtype('int64')
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from smelt.types.dtype import bf16

__all__ = ["export_array", "import_array"]

_TYPE_OFFSETS = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Byte offset of the element type in the struct, by the name of the capsule.

It follows a pointer, a device of two numbers and the rank; the versioned struct has 32 bytes before
these.
"""
_SHORT, _BFLOAT = (0, 16, 1), (4, 16, 1)
"""DLPack's code, bits and lanes of a 16-bit integer and of a bfloat16."""


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _replace_type(capsule: Any, old: tuple[int, int, int], new: tuple[int, int, int]) -> bool:
    """Change the element type of a capsule from `old` to `new`; return whether it was `old`."""
    name = _name(capsule)
    offset = _TYPE_OFFSETS.get(name)
    if offset is None:
        return False
    element_type = _Type.from_address(_pointer(capsule, name) + offset)
    if (element_type.code, element_type.bits, element_type.lanes) != old:
        return False
    element_type.code = new[0]
    return True


class _AsShort:
    """Foreign array of bfloat16, presented as one of 16-bit integers."""

    def __init__(self, array: Any) -> None:
        self.whole = array
        self.renamed = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.whole.__dlpack__(**options)
        self.renamed = _replace_type(capsule, _BFLOAT, _SHORT)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.whole.__dlpack_device__()


def import_array(x: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy view of an object with DLPack.

    Raises the exceptions of NumPy and of the object.
    """
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError):
        wrapper = _AsShort(x)
        view = np.from_dlpack(wrapper)
        return view.view(bf16.numpy) if wrapper.renamed else view


def export_array(data: np.ndarray[Any, Any], **options: Any) -> Any:
    """Return a DLPack capsule of an array.

    Raises BufferError where NumPy does.
    """
    if data.dtype != bf16.numpy:
        return data.__dlpack__(**options)
    capsule = data.view(np.int16).__dlpack__(**options)
    _replace_type(capsule, _SHORT, _BFLOAT)
    return capsule
