"""Arrays on a GPU: what `sm.asarray(x, device="cuda:0")` and compiled calls on devices return.

A `DeviceArray` has elements from the start: nothing is pending. `sm.jit` functions take and return
such arrays, and those of torch and CuPy, where they lie. Its operators run at once, as a compiled
function of one operator each.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from smelt.errors import (
    ArgumentError,
    DeviceError,
    DLPackError,
    DonatedError,
    DTypeError,
    UnsupportedError,
)
from smelt.frontends.array.array import Array
from smelt.frontends.array.convert import refuse_lazy_signs
from smelt.frontends.array.creation import asarray
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.families import ARITHMETIC, COMPARISONS
from smelt.frontends.array.value import leaf
from smelt.python.imports import fork_safe_import
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device, copy_to_host
from smelt.runtime.cuda.dlpack import CUDA, export_capsule, import_capsule, stream_number
from smelt.runtime.cuda.driver import Device, system_driver
from smelt.runtime.cuda.flags import deferred_flags
from smelt.runtime.cuda.memory import Memory, TorchMemory, driver_memory
from smelt.types.dtype import DType

VERSIONED = (1, 0)
"""Minimum DLPack version whose capsules are versioned."""


class DeviceArray:
    """Array whose elements are in the memory of a GPU.

    Made by `sm.asarray(x, device="cuda:0")`, `x.to_device("cuda:0")` and compiled calls, never by
    calling the class. Reading elements (`float(x)`, `x.to_device("cpu")`) waits for the device.
    """

    __slots__ = ("__weakref__", "_donated", "buffer")
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    buffer: DeviceBuffer
    _donated: tuple[str, str]
    """Type of an array that was donated, and where."""

    @staticmethod
    def of(buffer: DeviceBuffer) -> DeviceArray:
        """Return the array of a buffer."""
        array = DeviceArray.__new__(DeviceArray)
        array.buffer = buffer
        return array

    def give_away(self, where: str) -> None:
        """Make reading the array raise DonatedError from now on."""
        b = self.buffer
        self._donated = f"{b.dtype.name}[{','.join(map(str, b.shape))}]", where
        del self.buffer

    def __getattr__(self, name: str) -> Any:
        """Raise DonatedError for the buffer of a donated array."""
        if name == "buffer":
            value, where = self._donated
            raise DonatedError(value=value, where=where)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.buffer.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.buffer.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.buffer.nbytes // self.buffer.dtype.itemsize

    @property
    def device(self) -> str:
        """Device that holds the elements, such as "cuda:0"."""
        return self.buffer.device.name

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        """Return the elements on another device: "cpu" copies them and waits.

        Raises DeviceError for another GPU, and OutsideError if a call before had a position out
        of bounds.
        """
        if stream is not None:
            raise UnsupportedError(f"stream={stream!r}: copies run in the array's own stream")
        if device == "cpu":
            return Array.of(leaf(self._read()))
        if ordinal_of(device) != self.buffer.device.ordinal:
            raise DeviceError(
                f"{self.device} to {device}: arrays do not move from one GPU to another",
                hint='Copy by the host: x.to_device("cpu").to_device("cuda:1").',
            )
        return self

    def _read(self) -> np.ndarray[Any, Any]:
        data = copy_to_host(self.buffer)
        deferred_flags(self.buffer.device).check(wait=True)
        return data

    def item(self) -> bool | int | float:
        """Return the only element as a Python number; waits for the device.

        Raises ArgumentError unless there is exactly one element.
        """
        if self.size != 1:
            raise ArgumentError(f"item() needs one element, not shape {self.shape}")
        return self._read().item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers; waits for the device."""
        return self._read().tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        return operator.index(self._read()[()])

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len(x) of an array of rank 0")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device!r})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise DeviceError(
            f"NumPy reads memory of the CPU, the array is on {self.device}",
            hint='Copy it: np.asarray(x.to_device("cpu")).',
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.buffer.device.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device}; x.to_device moves it")
        if copy:
            raise BufferError("a copy is made by to_device, not by an export")
        is_versioned = max_version is not None and tuple(max_version) >= VERSIONED
        return export_capsule(self.buffer, stream=stream, is_versioned=is_versioned)


_OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, f"__{name}__") for name in (*ARITHMETIC, "matmul", *COMPARISONS)
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    name: getattr(operator, name) for name in ("neg", "pos", "abs", "invert")
}


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    """Return a compiled function of one operator."""
    return fork_safe_import("smelt.frontends.array.jit").jit(function)


def _define_operators() -> None:
    for name, function in _OPERATORS.items():

        def forward(x: Any, y: Any, f: Callable[..., Any] = function) -> Any:
            return _compiled(f)(x, y)

        def backward(x: Any, y: Any, f: Callable[..., Any] = function) -> Any:
            return _compiled(f)(y, x)

        setattr(DeviceArray, f"__{name}__", forward)
        if name not in COMPARISONS:
            setattr(DeviceArray, f"__r{name}__", backward)
    for name, function in _UNARY.items():

        def apply(x: Any, f: Callable[[Any], Any] = function) -> Any:
            return _compiled(f)(x)

        setattr(DeviceArray, f"__{name}__", apply)


_define_operators()


# ---- places --------------------------------------------------------------------------------------


class Place:
    """Where a call on a device runs: the device, the stream, and where memory comes from."""

    __slots__ = ("device", "memory", "stream")

    def __init__(self, device: Device, stream: int, memory: Memory) -> None:
        self.device = device
        self.stream = stream
        self.memory = memory


def ordinal_of(device: Any) -> int:
    """Return the number of a GPU: "cuda", "cuda:1", DLPack's pair, torch's device.

    Raises DeviceError for anything else.

    >>> ordinal_of("cuda"), ordinal_of("cuda:1"), ordinal_of((2, 3))
    (0, 1, 3)
    """
    if isinstance(device, tuple) and len(device) == 2 and device[0] == CUDA:
        return int(device[1])
    name, _, number = str(device).partition(":")
    if name != "cuda" or not (number or "0").isdecimal():
        raise DeviceError(device=str(device), known="cpu, cuda:0, ...")
    return int(number or 0)


def to_device(x: Any, device: Any, dtype: DTypeLike = None) -> Any:
    """Return an array-like object on a GPU; what is there already is not copied.

    Raises DeviceError, NoDriverError, OldDriverError, DeviceMemoryError, and DTypeError for complex
    elements.
    """
    target = system_driver().device(ordinal_of(device))
    if isinstance(x, DeviceArray) or _torch_tensor(x) is not None or _is_on_device(x):
        buffer = buffer_of(x)
        array = x if isinstance(x, DeviceArray) else DeviceArray.of(buffer)
        if buffer.device is not target:
            array = array.to_device(target.name)
        kind = None if dtype is None else as_dtype(dtype)
        return array if kind in (None, buffer.dtype) else _converted(array, kind)
    host = asarray(x, dtype=dtype)
    if host.dtype.kind == "complex":
        raise DTypeError(
            f"elements of {host.dtype.name} on {target.name}: a device has no complex arrays",
            hint="Move sm.real(x) and sm.imag(x); the function computes with both.",
        )
    data = np.asarray(host)
    return DeviceArray.of(copy_to_device(data, host.dtype, driver_memory(target), 0))


def _converted(array: DeviceArray, dtype: Any) -> Any:
    astype = fork_safe_import("smelt.frontends.array.dtypes").astype
    return fork_safe_import("smelt.frontends.array.jit").jit(lambda x: astype(x, dtype))(array)


def _is_on_device(x: Any) -> bool:
    where = getattr(x, "__dlpack_device__", None)
    return where is not None and where()[0] == CUDA


def _torch_tensor(x: Any) -> Any:
    """Return torch if `x` is a tensor of torch on a GPU, else None."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or not x.is_cuda:
        return None
    return torch


def place_of(x: Any, buffer: DeviceBuffer) -> Place:
    """Return where a call runs; `x` is its first array on a device."""
    device = buffer.device
    memory = driver_memory(device) if _torch_tensor(x) is None else TorchMemory(device)
    return Place(device, buffer.stream, memory)


def buffer_of(x: Any) -> DeviceBuffer:
    """Return the buffer of an array on a device, sharing its memory.

    Raises DLPackError and DTypeError for arrays that cannot be read there.
    """
    if isinstance(x, DeviceArray):
        return x.buffer
    driver, torch = system_driver(), _torch_tensor(x)
    what = type(x).__name__
    if torch is None:
        return import_capsule(x.__dlpack__(stream=stream_number(0)), driver, 0, what)
    try:
        refuse_lazy_signs(x)
    except BufferError as error:
        raise DLPackError(what=what, reason=str(error)) from error
    stream = int(torch.cuda.current_stream(x.device).cuda_stream)
    with torch.cuda.device(x.device):  # torch exports tensors of the current device alone
        capsule = x.detach().__dlpack__(stream=-1)  # the tensor's stream is ours: no order
    return import_capsule(capsule, driver, stream, what, is_ordered=True)
