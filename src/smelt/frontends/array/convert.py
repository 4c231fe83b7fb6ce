"""Convert array-like objects to values: NumPy arrays, DLPack, the array interface, numbers.

>>> from_host(np.arange(3)).type
TensorType(dtype=i64, shape=(3,))

>>> import_array(np.arange(3)).dtype
dtype('int64')
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from smelt.errors import DLPackError, UnsupportedError
from smelt.frontends.array.complex_calls import ComplexOperand
from smelt.frontends.array.value import STATE, Buffer, Value, foreign, leaf
from smelt.types.dtype import DType, bf16, bool_, f64, from_numpy, i64

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
    """Change the element type of a DLPack capsule from `old` to `new`.

    Returns whether it was `old`.
    """
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
    refuse_lazy_signs(x)
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError):
        wrapper = _AsShort(x)
        view = np.from_dlpack(wrapper)
        return view.view(bf16.numpy) if wrapper.renamed else view


def refuse_lazy_signs(x: Any) -> None:
    """Raise BufferError for a tensor whose memory has its elements with the other sign.

    Torch exports such a view of a conjugated one without a word.
    """
    if hasattr(x, "is_neg") and x.is_neg():
        raise BufferError("its memory has negated elements: pass x.resolve_neg()")


def export_array(data: np.ndarray[Any, Any], **options: Any) -> Any:
    """Return a DLPack capsule of an array.

    Raises BufferError where NumPy does.
    """
    if data.dtype != bf16.numpy:
        return data.__dlpack__(**options)
    capsule = data.view(np.int16).__dlpack__(**options)
    _replace_type(capsule, _SHORT, _BFLOAT)
    return capsule


def number_dtype(number: bool | int | float) -> DType:
    """Return the default dtype of a Python number."""
    return bool_ if isinstance(number, bool) else i64 if isinstance(number, int) else f64


def computable(dtype: DType) -> DType:
    """Return `dtype`; raise ComplexOperand for complex dtypes, which values do not have."""
    if dtype.kind == "complex":
        raise ComplexOperand(f"complex numbers ({dtype.long}) for this function")
    return dtype


def is_foreign_array(x: object) -> bool:
    """Return whether `x` exposes its memory by NumPy, DLPack or the array interface.

    An object with `__array__` counts too, unless it has NumPy's functions of its own.
    """
    if isinstance(x, np.generic) or hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__"):
        return True
    kind = type(x)
    has_functions = isinstance(x, type) or hasattr(kind, "__array_ufunc__")
    return hasattr(kind, "__array__") and not has_functions


_GPU = 2
"""DLPack's type of an NVIDIA device."""


def is_on_gpu(x: object) -> bool:
    """Return whether an object is an array whose elements are on an NVIDIA device."""
    if isinstance(x, (np.ndarray, np.generic, int, float)):
        return False
    where = getattr(x, "__dlpack_device__", None)
    return where is not None and not isinstance(x, type) and where()[0] == _GPU


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
    if not hasattr(x, "__dlpack__"):
        return np.asarray(x)
    if is_on_gpu(x):
        raise DLPackError(
            what=type(x).__name__,
            reason="its elements are on a GPU, the function computes on the CPU",
            hint="Call it inside sm.jit, on arrays of one device, or copy the array to the CPU.",
        )
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


def operand_of_numpy(x: Any) -> Value:
    """Return the value of NumPy's array as an operand.

    With NumPy's rules it has the present elements, whatever is written later: masks and results of
    operators on small arrays are NumPy's own.

    Raises the errors of `from_host`.
    """
    if x.__class__ is not np.ndarray or STATE.scope is not None or STATE.tapes:
        return from_host(x)
    if x.size <= STATE.small_elements:
        return leaf(usable(x).copy())
    node = from_host(x)
    if STATE.small_elements and node.shared:
        node.share(copied=True)
    return node


def from_host(x: Any) -> Value:
    """Return the value of an array-like object, sharing its memory if kernels can read it.

    Raises DTypeError for unsupported element types, UnsupportedError for complex ones, DLPackError
    for memory that cannot be read.
    """
    original = as_buffer(x)
    data = usable(original)
    # Scalars and our copies are private.  Read-only memory is not: its owner may still write to it.
    return leaf(data) if data is not original or isinstance(x, np.generic) else foreign(data)
