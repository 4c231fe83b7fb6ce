"""Allocate device memory in stream order, from the driver's pool or from torch.

A `DeviceBlock` is memory of one device that belongs to one stream: it may be used there at once,
and is freed in that stream's order when the last reference is gone, after everything queued until
then. A stream that uses another one's block is recorded with `used_by`; the block is then freed
only after that stream has passed its use, too.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from smelt.errors import CaptureError, DeviceMemoryError
from smelt.knobs.values import show_bytes
from smelt.python.imports import fork_safe_import
from smelt.runtime.cuda.driver import NO_TIMING, OUT_OF_MEMORY, RELEASE_THRESHOLD, Device
from smelt.runtime.cuda.native_call import device_words, native_calls


class DeviceBlock(Protocol):
    """Device memory; it is freed in stream order with the last reference to it."""

    address: int
    nbytes: int

    def used_by(self, stream: int) -> None:
        """Record that another stream uses the block."""
        ...


class Memory(Protocol):
    """Source of device memory."""

    device: Device
    is_capturable: bool
    """Whether blocks may be allocated while the stream is recorded into a graph."""

    def allocate(self, nbytes: int, stream: int) -> DeviceBlock:
        """Return a block that belongs to a stream; raise DeviceMemoryError."""
        ...


class _DriverBlock:
    """Block of the driver's pool."""

    __slots__ = ("_memory", "_others", "_stream", "address", "nbytes")

    def __init__(self, memory: DriverMemory, address: int, nbytes: int, stream: int) -> None:
        self._memory = memory
        self._stream = stream
        self._others: set[int] | None = None
        self.address = address
        self.nbytes = nbytes

    def used_by(self, stream: int) -> None:
        if stream != self._stream:
            self._others = {*(self._others or ()), stream}

    def __del__(self) -> None:
        self._memory.free(self.address, self.nbytes, self._stream, self._others)


class DriverMemory:
    """Blocks from the device's default pool (`cuMemAllocAsync`).

    A device without pools, such as a part of a virtual one, has `cuMemAlloc` and `cuMemFree`. The
    latter waits for the device, so that a block is free for every stream.
    """

    is_capturable = False

    def __init__(self, device: Device) -> None:
        self.device = device
        self.held = 0
        """Bytes of blocks that are referenced; a plain sum."""
        self._words = device_words(device)
        self._free = native_calls().free
        self._pool = self._keeping_pool() if device.has_pools else None

    def _keeping_pool(self) -> int:
        """Return the device's pool, which keeps a share of the memory that is free.

        By default it returns everything to the device whenever the host waits, and the next call
        would map it again. Without a limit other allocators, such as torch's, would miss it.
        """
        driver, keep = self.device.driver, self.device.memory()[1] // _KEPT_DIVISOR
        with self.device.current():
            pool = driver.word("cuDeviceGetDefaultMemPool", self.device.handle)
            place = ctypes.byref(ctypes.c_uint64(keep))
            driver.call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, place)
        return pool

    def allocate(self, nbytes: int, stream: int) -> DeviceBlock:
        """Return a block of at least one byte; see `Memory.allocate`.

        Raises CaptureError while the stream is captured.
        """
        driver, size = self.device.driver, max(nbytes, 1)
        place = ctypes.c_uint64()
        call, *rest = ("cuMemAlloc_v2",) if self._pool is None else ("cuMemAllocAsync", stream)
        with self.device.current():
            if self.device.is_capturing(stream):
                raise CaptureError(reason="memory of the driver's pool would be part of the graph")
            code = driver.result(call, ctypes.byref(place), size, *rest)
            if code == OUT_OF_MEMORY:
                with self.device.relaxed():
                    driver.call("cuStreamSynchronize", stream)  # what was freed there is free now
                    self.trim()
                code = driver.result(call, ctypes.byref(place), size, *rest)
        if code == OUT_OF_MEMORY:
            raise self.shortage(nbytes)
        if code:
            raise driver.error(call, code)
        return self.adopt(place.value, size, stream)

    def trim(self) -> None:
        """Return what is free to the device, for other allocators."""
        if self._pool is not None:
            self.device.driver.call("cuMemPoolTrimTo", self._pool, 0)

    def adopt(self, address: int, nbytes: int, stream: int) -> DeviceBlock:
        """Return the block of memory that native code has allocated from the pool."""
        self.held += nbytes
        return _DriverBlock(self, address, nbytes, stream)

    def shortage(self, nbytes: int) -> DeviceMemoryError:
        """Return the error of an allocation that does not fit."""
        free, total = self.device.memory()
        return DeviceMemoryError(
            needed=show_bytes(nbytes),
            device=self.device.name,
            free=f"{show_bytes(free)} of {show_bytes(total)}",
            held=show_bytes(self.held),
        )

    def free(self, address: int, nbytes: int, stream: int, others: set[int] | None) -> None:
        """Free a block in its stream, after what other streams have queued."""
        self.held -= nbytes
        if not self.device.is_ours:
            return
        for other in others or ():
            event = ctypes.c_uint64()
            self.device.forget("cuEventCreate", ctypes.byref(event), NO_TIMING)
            self.device.forget("cuEventRecord", event.value, other)
            self.device.forget("cuStreamWaitEvent", stream, event.value, 0)
            self.device.forget("cuEventDestroy_v2", event.value)
        self._free(self._words.buffer_info()[0], address, stream)


class _TorchBlock:
    """Memory of a torch tensor, which its caching allocator owns."""

    __slots__ = ("_torch", "address", "nbytes", "tensor")

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch = torch
        self.tensor = tensor
        self.address = int(tensor.data_ptr())
        self.nbytes = int(tensor.numel() * tensor.element_size())

    def used_by(self, stream: int) -> None:
        device = self.tensor.device
        self.tensor.record_stream(self._torch.cuda.ExternalStream(stream, device=device))


class TorchMemory:
    """Blocks from torch's caching allocator, which knows torch's streams and graphs."""

    is_capturable = True

    def __init__(self, device: Device) -> None:
        self.device = device
        self._torch = fork_safe_import("torch")
        self._type = self._torch.uint8
        self._place = self._torch.device("cuda", device.ordinal)

    def allocate(self, nbytes: int, stream: int) -> DeviceBlock:
        """Return a block of torch's current stream, which must be `stream`."""
        torch = self._torch
        try:
            try:
                tensor = torch.empty(max(nbytes, 1), dtype=self._type, device=self._place)
            except torch.OutOfMemoryError:
                with self.device.current(), self.device.relaxed():
                    driver_memory(self.device).trim()
                tensor = torch.empty(max(nbytes, 1), dtype=self._type, device=self._place)
        except torch.OutOfMemoryError as error:
            free, total = self.device.memory()
            raise DeviceMemoryError(
                needed=show_bytes(nbytes),
                device=self.device.name,
                free=f"{show_bytes(free)} of {show_bytes(total)}",
                held=f"{show_bytes(torch.cuda.memory_reserved(self._place))} (torch's cache)",
            ) from error
        return _TorchBlock(torch, tensor)


_KEPT_DIVISOR: Final = 16
"""A pool keeps this share of the device's memory for later calls while it is free."""
_LOCK: Final = threading.Lock()
_MEMORIES: Final = WeakKeyDictionary[Device, DriverMemory]()


def driver_memory(device: Device) -> DriverMemory:
    """Return the memory of a device's default pool, one object per device."""
    with _LOCK:
        memory = _MEMORIES.get(device)
        if memory is None:
            memory = _MEMORIES[device] = DriverMemory(device)
    return memory
