"""Exchange arrays on a device by DLPack, without copies.

`import_capsule` reads the struct that another library hands over, checks what it claims, and keeps
it until the buffer is gone. `export_capsule` hands out ours, in the versioned form where the
consumer knows it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from smelt.errors import DLPackError, DTypeError
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.cuda.driver import Device, Driver
from smelt.types.dtype import DTYPES, DType
from smelt.types.tensor import row_major

CUDA: Final = 2
"""DLPack's type of an NVIDIA device."""
LEGACY_STREAM: Final = 1
"""DLPack's number of the legacy default stream, whose handle is 0."""
_VERSION: Final = (1, 0)
_KINDS: Final = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_BFLOAT: Final = 4


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_FORMS: Final[dict[bytes, Any]] = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}
_python = ctypes.pythonapi


def _function(name: str, *types: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(*types)((name, _python))


_capsule_name = _function("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_name_at = _function("PyCapsule_GetName", ctypes.c_char_p, ctypes.c_void_p)
_pointer_at = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_new = _function(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_NAMES: Final = {
    name: ctypes.create_string_buffer(name) for form in _FORMS for name in (form, b"used_" + form)
}
"""Names of capsules, which are referred to by address and live as long as the process."""


# ---- import --------------------------------------------------------------------------------------


class _Imported:
    """Another library's struct; its deleter is called behind what uses the memory.

    A library that frees memory in the order of `stream` itself is told with the last reference.
    """

    __slots__ = ("_deleter", "_device", "_is_ordered", "_others", "_stream", "_struct")

    def __init__(
        self, struct: int, deleter: int, device: Device, stream: int, *, is_ordered: bool
    ) -> None:
        self._struct = struct
        self._deleter = deleter
        self._device, self._stream, self._is_ordered = device, stream, is_ordered
        self._others: set[int] = set()

    def used_by(self, stream: int) -> None:
        """Record that another stream uses the memory."""
        self._others.add(stream)

    def __del__(self) -> None:
        if not self._deleter:
            return
        delete = partial(ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._deleter), self._struct)
        device, stream = self._device, self._stream
        for other in self._others - {stream}:
            with suppress(Exception):  # the driver may be gone at the end of the process
                device.order(other, stream)
        if self._is_ordered:
            delete()
        else:
            device.call_behind(stream, delete)


def import_capsule(
    capsule: Any, driver: Driver, stream: int, what: str, *, is_ordered: bool = False
) -> DeviceBuffer:
    """Return the buffer of a capsule, which is ordered in `stream`.

    With `is_ordered` the other library frees its memory in the order of this stream.

    Raises DLPackError for memory that is not on a device or that is misdescribed, DTypeError for
    elements of another type than ours.
    """
    name = _capsule_name(capsule)
    form = _FORMS.get(name)
    if form is None:
        raise DLPackError(what=what, reason=f"a capsule with the name {name!r}")
    address = _pointer(capsule, name)
    struct = form.from_address(address)
    if form is _Versioned and struct.major != _VERSION[0]:
        raise DLPackError(what=what, reason=f"DLPack version {struct.major}.{struct.minor}")
    tensor = struct.tensor
    if tensor.device_type != CUDA:
        raise DLPackError(what=what, reason=f"a device of type {tensor.device_type}, not {CUDA}")
    shape = tuple(int(tensor.shape[k]) for k in range(tensor.ndim))
    if min(shape, default=0) < 0:
        raise DLPackError(what=what, reason=f"shape {shape}")
    strides = (
        tuple(int(tensor.strides[k]) for k in range(tensor.ndim))
        if tensor.strides
        else row_major(shape)
    )
    dtype = _dtype(tensor, what)
    start = (tensor.data or 0) + tensor.byte_offset
    if start % dtype.itemsize and math.prod(shape):
        raise DLPackError(what=what, reason=f"an address that {dtype.name} is not aligned at")
    device = driver.device(int(tensor.device_id))
    _rename(capsule, ctypes.addressof(_NAMES[b"used_" + name]))
    device.call_finished()
    deleter = struct.deleter or 0
    owner = _Imported(address, deleter, device, stream, is_ordered=is_ordered)
    return DeviceBuffer(start, shape, strides, dtype, device, stream, owner)


def _dtype(tensor: _Tensor, what: str) -> DType:
    code = tensor.code, tensor.bits, tensor.lanes
    for dtype in DTYPES:
        if _code(dtype) == code:
            return dtype
    raise DTypeError(f"{what}: elements of DLPack's type {code} are not supported on a device")


def _code(dtype: DType) -> tuple[int, int, int]:
    """Return DLPack's code (-1: not exchanged), bits and lanes of a dtype."""
    kind = _BFLOAT if dtype.name == "bf16" else _KINDS.get(dtype.kind, -1)
    return kind, 8 * dtype.itemsize, 1


# ---- export --------------------------------------------------------------------------------------

_EXPORTED: Final[dict[int, tuple[Any, ...]]] = {}
"""What exported structs refer to, by their addresses, until their consumers are done."""


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int) -> None:
    _EXPORTED.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop_capsule(capsule: int) -> None:
    """Free the struct of a capsule that nobody consumed."""
    name = _name_at(capsule)
    if name in _FORMS:
        _EXPORTED.pop(_pointer_at(capsule, name), None)


def export_capsule(buffer: DeviceBuffer, *, stream: int | None, is_versioned: bool) -> Any:
    """Return a capsule of a buffer that may be used in the consumer's stream.

    `stream` has DLPack's numbers: None is the legacy default stream, -1 needs no order.
    """
    if stream != -1:
        _order(buffer, stream_handle(stream))
    struct: Any = _Versioned() if is_versioned else _Managed()
    rank = len(buffer.shape)
    shape, strides = ((ctypes.c_int64 * rank)(*n) for n in (buffer.shape, buffer.strides))
    code, bits, lanes = _code(buffer.dtype)
    struct.tensor = _Tensor(
        buffer.address, CUDA, buffer.device.ordinal, rank, code, bits, lanes, shape, strides, 0
    )
    struct.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
    if is_versioned:
        struct.major, struct.minor = _VERSION
    address = ctypes.addressof(struct)
    _EXPORTED[address] = struct, shape, strides, buffer
    name = _NAMES[b"dltensor_versioned" if is_versioned else b"dltensor"]
    return _new(address, ctypes.addressof(name), ctypes.cast(_drop_capsule, ctypes.c_void_p).value)


def is_shared(buffer: DeviceBuffer) -> bool:
    """Return whether another library may have the memory: it gave or has been given it."""
    is_exported = any(parts[-1] is buffer for parts in [*_EXPORTED.values()])
    return is_exported or isinstance(buffer.owner, _Imported)


def stream_handle(number: int | None) -> int:
    """Return the driver's handle of a stream that DLPack numbers.

    >>> stream_handle(None), stream_handle(1), stream_handle(4096)
    (0, 0, 4096)
    """
    return 0 if number in (None, LEGACY_STREAM) else int(number)


def stream_number(handle: int) -> int:
    """Return DLPack's number of a stream.

    >>> stream_number(0), stream_number(4096)
    (1, 4096)
    """
    return handle or LEGACY_STREAM


def _order(buffer: DeviceBuffer, stream: int) -> None:
    """Order a stream after the one that writes the buffer, which it uses."""
    if stream == buffer.stream:
        return
    buffer.device.order(buffer.stream, stream)
    if hasattr(buffer.owner, "used_by"):
        buffer.owner.used_by(stream)
