"""Call the NVIDIA driver (libcuda) through ctypes, with every result checked.

    driver = system_driver()            # loads libcuda on first use
    device = driver.device(0)           # retains its primary context, which torch shares
    module = device.load(image)         # a cubin, or PTX that the driver compiles

A `Library` gives the addresses of the driver's functions, so that a test can put others in their
place. Calls release the GIL. No toolkit is needed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from smelt.errors import (
    CaptureError,
    DeviceError,
    DeviceForkError,
    DriverCallError,
    NoDriverError,
    OldDriverError,
)
from smelt.python.caches import cached_property

NOT_READY: Final = 600
"""Status of a query: the work before it has not finished."""
INVALID_VALUE: Final = 1
"""Status of a call whose arguments the driver does not take."""
OUT_OF_MEMORY: Final = 2
"""Status of an allocation that does not fit."""
NOT_CAPTURING: Final = 0
"""State of a stream that is not recorded into a graph."""
NO_TIMING: Final = 2
"""Flag of an event that orders streams and is not timed."""
NON_BLOCKING: Final = 1
"""Flag of a stream that does not wait for the legacy default stream."""
CAPTURE_ISOLATION: Final = 905
"""Status of a captured stream that would wait for one that is not captured."""
CAPTURE_IMPLICIT: Final = 906
"""Status of a call in the default stream while a stream that waits for it is captured."""
RELAXED_CAPTURE: Final = 2
"""Mode of a capture, and of a thread, that forbids no call on what is not captured."""
RELEASE_THRESHOLD: Final = 4
"""Attribute of a pool: bytes that it keeps when the host waits for the device."""
LOST: Final = frozenset({214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721})
"""Statuses after kernels that fail: the context is lost, and every later call returns them."""

REQUIRED_VERSION: Final = 12_000
"""Oldest version of the driver's interface: 1000 times the major plus 10 times the minor one."""

TYPES: Final[dict[str, Any]] = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "q": ctypes.c_uint64,
    "b": ctypes.c_ubyte,
    "h": ctypes.c_ushort,
    "s": ctypes.c_char_p,
    "f": ctypes.c_float,
}
SIGNATURES: Final = {
    "cuInit": "u",
    "cuDriverGetVersion": "p",
    "cuGetErrorName": "ip",
    "cuGetErrorString": "ip",
    "cuDeviceGetCount": "p",
    "cuDeviceGet": "pi",
    "cuDeviceGetName": "pii",
    "cuDeviceGetAttribute": "pii",
    "cuDeviceTotalMem_v2": "pi",
    "cuDevicePrimaryCtxRetain": "pi",
    "cuCtxGetCurrent": "p",
    "cuCtxPushCurrent_v2": "p",
    "cuCtxPopCurrent_v2": "p",
    "cuModuleLoadDataEx": "ppupp",
    "cuModuleUnload": "p",
    "cuModuleGetFunction": "pps",
    "cuFuncSetAttribute": "pii",
    "cuFuncSetCacheConfig": "pi",
    "cuFuncLoad": "p",
    "cuLaunchKernel": "puuuuuuuppp",
    "cuStreamCreate": "pu",
    "cuStreamDestroy_v2": "p",
    "cuStreamSynchronize": "p",
    "cuStreamWaitEvent": "ppu",
    "cuStreamIsCapturing": "pp",
    "cuThreadExchangeStreamCaptureMode": "p",
    "cuStreamBeginCapture_v2": "pi",
    "cuStreamEndCapture": "pp",
    "cuGraphInstantiateWithFlags": "ppq",
    "cuGraphExecUpdate_v2": "ppp",
    "cuGraphLaunch": "pp",
    "cuGraphDestroy": "p",
    "cuGraphExecDestroy": "p",
    "cuEventCreate": "pu",
    "cuEventRecord": "pp",
    "cuEventQuery": "p",
    "cuEventSynchronize": "p",
    "cuEventElapsedTime": "ppp",
    "cuEventDestroy_v2": "p",
    "cuMemAllocAsync": "pqp",
    "cuMemFreeAsync": "pp",
    "cuMemAlloc_v2": "pq",
    "cuMemFree_v2": "p",
    "cuMemHostAlloc": "pqu",
    "cuMemGetInfo_v2": "pp",
    "cuMemcpyHtoDAsync_v2": "ppqp",
    "cuMemcpyDtoHAsync_v2": "ppqp",
    "cuMemcpyDtoDAsync_v2": "ppqp",
    "cuMemcpy2DAsync_v2": "pp",
    "cuMemsetD8Async": "pbqp",
    "cuMemsetD16Async": "phqp",
    "cuMemsetD32Async": "puqp",
    "cuMemsetD2D32Async": "pquqqp",
    "cuDeviceGetDefaultMemPool": "pi",
    "cuMemPoolTrimTo": "pq",
    "cuMemPoolSetAttribute": "pip",
}
"""The functions called, with a letter of `TYPES` per argument."""

SHARED_ON_REQUEST: Final = 8
"""Attribute of a function: bytes of dynamic shared memory that a launch may have."""
PREFER_SHARED: Final = 1
"""Configuration of a function: its processor has more shared memory than cache."""
PLAIN_SHARED_BYTES: Final = 48 << 10
"""Shared memory that a program may have without a request."""
MULTIPROCESSORS: Final = 16
"""Attribute of a device: its multiprocessors."""
MAJOR: Final = 75
"""Attribute of a device: the first number of its architecture."""
MINOR: Final = 76
"""Attribute of a device: the second number of its architecture."""
FACTS: Final = {
    "processors": MULTIPROCESSORS,
    "clock_khz": 13,
    "memory_khz": 36,
    "bus_bits": 37,
    "cache_bytes": 38,
    "shared_bytes": 81,
    "registers": 82,
    "double_ratio": 87,
}
"""Attributes of a device that its rates follow from."""
ERROR_LOG: Final = 5
"""Option of loading: where to write what is wrong with an image."""
ERROR_LOG_BYTES: Final = 6
"""Option of loading: how long that may be."""
_LOG_BYTES: Final = 4096
READS_PAGEABLE_MEMORY: Final = 88
"""Attribute of a device: whether it reads the host's memory that is not pinned by itself."""
MEMORY_POOLS: Final = 115
"""Attribute of a device: whether memory is allocated in stream order, which vGPUs may lack."""


class Library(Protocol):
    """Functions of the driver."""

    def address(self, symbol: str) -> int | None:
        """Return the address of a function, None if there is none."""
        ...


class _SystemLibrary:
    """The driver's library of this system."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoDriverError(reason="the driver's library libcuda.so.1 does not load") from error

    def address(self, symbol: str) -> int | None:
        try:
            return ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value
        except AttributeError:
            return None


class Driver:
    """The driver's functions; each raises an error unless it succeeds."""

    def __init__(self, library: Library) -> None:
        """Bind and initialise the driver.

        Raises NoDriverError without a device and OldDriverError for an old driver.
        """
        self._library = library
        self._functions: dict[str, Any] = {}
        self._devices: dict[int, Device] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.addresses: dict[str, int] = {}
        code = self.result("cuInit", 0)
        if code:
            raise NoDriverError(reason=f"the driver reports {self._describe(code)[0]}")
        self.version = self.number("cuDriverGetVersion")
        if self.version < REQUIRED_VERSION:
            raise OldDriverError(
                present=_version_text(self.version), required=_version_text(REQUIRED_VERSION)
            )
        self.count = self.number("cuDeviceGetCount")
        if not self.count:
            raise NoDriverError(reason="the driver reports no device")

    # ---- calls -----------------------------------------------------------------------------------

    def result(self, name: str, *arguments: Any) -> int:
        """Call a function and return its status.

        Raises DeviceForkError in a child of the process that initialised the driver.
        """
        if self._process != os.getpid():
            raise DeviceForkError(parent=self._process)
        function = self._functions.get(name)
        if function is None:
            kinds = [TYPES[kind] for kind in SIGNATURES[name]]
            function = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self.address(name))
            self._functions[name] = function
        return int(function(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raise DriverCallError unless it succeeds."""
        code = self.result(name, *arguments)
        if code:
            raise self.error(name, code)

    def offers(self, name: str) -> bool:
        """Return whether the driver has a function, which older ones may lack."""
        return name in self.addresses or bool(self._library.address(name))

    def address(self, name: str) -> int:
        """Return the address of a function, for native code."""
        if name not in self.addresses:
            address = self._library.address(name)
            if not address:
                raise OldDriverError(f"the driver has no function {name}")
            self.addresses[name] = address
        return self.addresses[name]

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function that stores an int at its first argument, and return that."""
        place = ctypes.c_int()
        self.call(name, ctypes.byref(place), *arguments)
        return place.value

    def word(self, name: str, *arguments: Any) -> int:
        """Call a function that stores 64 bits at its first argument, and return them."""
        place = ctypes.c_uint64()
        self.call(name, ctypes.byref(place), *arguments)
        return place.value

    def error(self, call: str, code: int, message: str = "") -> DriverCallError:
        """Return the error of a failed call; an earlier kernel may be to blame."""
        name, text = self._describe(code)
        text += f": {message}" if message else ""
        if code in LOST:
            text += "; a kernel that was queued before has failed, and its context is lost"
        return DriverCallError(call=call, name=name, text=text)

    def _describe(self, code: int) -> tuple[str, str]:
        """Return the driver's name and text of a status."""
        texts: list[str] = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            place = ctypes.c_char_p()
            failed = self.result(function, code, ctypes.byref(place))
            texts.append("" if failed or place.value is None else place.value.decode())
        return texts[0] or f"status {code}", texts[1]

    # ---- devices ---------------------------------------------------------------------------------

    def device(self, ordinal: int) -> Device:
        """Return a device, whose primary context is retained for the life of the process.

        Raises DeviceError for an ordinal that there is not.
        """
        with self._lock:
            device = self._devices.get(ordinal)
            if device is None:
                if not 0 <= ordinal < self.count:
                    names = ", ".join(f"cuda:{k}" for k in range(self.count))
                    raise DeviceError(device=f"cuda:{ordinal}", known=f"cpu, {names}")
                device = self._devices[ordinal] = Device(self, ordinal)
        return device


class Module:
    """Loaded image; what nobody refers to is unloaded before another one is loaded."""

    __slots__ = ("__weakref__", "_functions", "device", "handle")

    def __init__(self, device: Device, handle: int) -> None:
        self.device = device
        self.handle = handle
        self._functions: dict[str, tuple[int, int]] = {}
        """By symbol: the function's handle, and the shared memory that it may have."""

    def function(self, symbol: str, shared_bytes: int = 0) -> int:
        """Return the handle of a function that may have that much dynamic shared memory.

        It is valid while the module is referenced.
        Raises DriverCallError for an unknown symbol, or more shared memory than the device has.
        """
        driver = self.device.driver
        handle, most = self._functions.get(symbol, (0, 0))
        if handle and shared_bytes <= most:
            return handle
        with self.device.current(), self.device.relaxed():
            handle = handle or driver.word("cuModuleGetFunction", self.handle, symbol.encode())
            # Requested from the first byte on: static shared memory of the image counts as well.
            if shared_bytes:
                driver.call("cuFuncSetAttribute", handle, SHARED_ON_REQUEST, shared_bytes)
            if shared_bytes > PLAIN_SHARED_BYTES:  # as many programs of a processor as fit
                driver.call("cuFuncSetCacheConfig", handle, PREFER_SHARED)
            # Else the first launch loads the code, which waits for the whole device.
            if driver.offers("cuFuncLoad"):
                driver.call("cuFuncLoad", handle)
        self._functions[symbol] = handle, shared_bytes
        return handle

    def __del__(self) -> None:
        self.device.discard("cuModuleUnload", self.handle)


class Device:
    """A GPU with its primary context, the one that torch and CuPy use."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.handle = driver.number("cuDeviceGet", ordinal)
        self.context = driver.word("cuDevicePrimaryCtxRetain", self.handle)
        self.arch = f"sm_{self.attribute(MAJOR)}{self.attribute(MINOR)}"
        self.multiprocessors = self.attribute(MULTIPROCESSORS)
        self.reads_pageable_memory = bool(self.attribute(READS_PAGEABLE_MEMORY))
        """Whether copies of the host's memory may begin after they are queued."""
        self.has_pools = bool(self.attribute(MEMORY_POOLS))
        """Whether memory is allocated and freed in stream order."""
        self.words: array[int] | None = None
        """The driver's functions and the context, for native code; see `native_call`."""
        self.fill: Module | None = None
        """Code that writes tables; see `array_tables`."""
        self._unused: list[tuple[str, int]] = []
        self._running: deque[tuple[int, Callable[[], object]]] = deque()
        """Events, and what is called when they have passed; any thread may add and take."""
        self.captured: set[object] = set()
        """What owns code that other libraries' graphs launch; it is never unloaded."""
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.model} ({self.arch})>"

    @property
    def model(self) -> str:
        """Name that the maker gave the device."""
        text = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", text, len(text), self.handle)
        return text.value.decode()

    @cached_property
    def facts(self) -> dict[str, int]:
        """What rates follow from (`FACTS`) and `memory_bytes`; 0 is unknown to the driver."""
        place, facts = ctypes.c_uint64(), {}
        self.driver.result("cuDeviceTotalMem_v2", ctypes.byref(place), self.handle)
        for name, number in FACTS.items():
            value = ctypes.c_int()
            code = self.driver.result(
                "cuDeviceGetAttribute", ctypes.byref(value), number, self.handle
            )
            facts[name] = 0 if code else value.value
        return {**facts, "memory_bytes": place.value}

    def attribute(self, number: int) -> int:
        """Return an attribute of the device by its number in the driver's interface."""
        return self.driver.number("cuDeviceGetAttribute", number, self.handle)

    @contextmanager
    def current(self) -> Generator[None]:
        """Make the device's context this thread's for a block, if it is not."""
        if self.driver.word("cuCtxGetCurrent") == self.context:
            yield
            return
        self.driver.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.driver.word("cuCtxPopCurrent_v2")

    @contextmanager
    def relaxed(self) -> Generator[None]:
        """Allow what no capture forbids for good reason: loading, waiting, pinning memory.

        While any thread records a stream in the mode that torch takes, these calls would fail in
        all threads and end that capture, though they concern other streams.
        """
        mode = ctypes.c_int(RELAXED_CAPTURE)
        self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def load(self, image: bytes) -> Module:
        """Load a cubin, or PTX, which the driver compiles.

        Raises DriverCallError for an image of another architecture, with the compiler's message.
        """
        if image.lstrip()[:2] == b"//" and not image.endswith(b"\0"):
            image += b"\0"  # PTX is a C string
        place, log = ctypes.c_uint64(), ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        self.release_discarded()
        with self.current(), self.relaxed():
            code = self.driver.result(
                "cuModuleLoadDataEx", ctypes.byref(place), image, 2, options, values
            )
        if code:
            message = log.value.decode(errors="replace").strip()
            raise self.driver.error("cuModuleLoadDataEx", code, message)
        return Module(self, place.value)

    def memory(self) -> tuple[int, int]:
        """Return the bytes that are free, and all bytes."""
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        with self.current(), self.relaxed():
            self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being recorded into a graph.

        Raises CaptureError for the default stream while one that waits for it is recorded.
        """
        place = ctypes.c_int()
        with self.current():  # the default stream is that of the current context
            code = self.driver.result("cuStreamIsCapturing", stream, ctypes.byref(place))
        if code == CAPTURE_IMPLICIT:
            raise CaptureError(
                reason="the call is in the default stream, for which a captured stream waits",
                hint="Call in the stream that is captured, or when the capture has ended.",
            )
        if code:
            raise self.driver.error("cuStreamIsCapturing", code)
        return place.value != NOT_CAPTURING

    def synchronize(self, stream: int) -> None:
        """Wait until everything in a stream has run."""
        with self.current():
            self.driver.call("cuStreamSynchronize", stream)

    def order(self, first: int, second: int) -> None:
        """Make what will be queued in the second stream wait for the first one's queue.

        Raises CaptureError if the second one alone is captured.
        """
        driver = self.driver
        with self.current():
            event = driver.word("cuEventCreate", NO_TIMING)
            driver.call("cuEventRecord", event, first)
            code = driver.result("cuStreamWaitEvent", second, event, 0)
            driver.call("cuEventDestroy_v2", event)
        if code == CAPTURE_ISOLATION:
            raise CaptureError(reason="an array was written in a stream that is not captured")
        if code:
            raise driver.error("cuStreamWaitEvent", code)

    def call_behind(self, stream: int, function: Callable[[], object]) -> None:
        """Call a function when what is queued in a stream has run, without waiting.

        If it runs still, `call_finished` calls the function. A finalizer may be the caller.
        """
        try:
            event = self._recorded(stream)
        except Exception:  # noqa: BLE001 - the driver may be gone at the end of the process
            event = 0
        if event:
            self._running.append((event, function))
        else:
            function()

    def _recorded(self, stream: int) -> int:
        """Return an event behind a stream's work; 0 in captures and forked processes."""
        if not self.is_ours or self.is_capturing(stream):
            return 0
        with self.current(), self.relaxed():
            event = self.driver.word("cuEventCreate", NO_TIMING)
            self.driver.call("cuEventRecord", event, stream)
        return event

    def call_finished(self) -> None:
        """Call the functions whose events have passed."""
        if not self.is_ours:
            return
        for _ in range(len(self._running)):
            try:
                event, function = self._running.popleft()
            except IndexError:  # another thread took the last one
                return
            with self.current(), self.relaxed():
                code = self.driver.result("cuEventQuery", event)
            if code == NOT_READY:
                self._running.append((event, function))
            else:
                self.forget("cuEventDestroy_v2", event)
                function()

    @property
    def is_ours(self) -> bool:
        """Whether this process made the object, rather than one that it was forked from."""
        return self._process == os.getpid()

    def discard(self, call: str, handle: int) -> None:
        """Let `release_discarded` destroy an object of the driver by a call.

        Not at once: a finalizer may run while a stream is captured, which that would end.
        """
        self._unused.append((call, handle))

    def release_discarded(self) -> None:
        """Destroy what was discarded."""
        unused, self._unused = self._unused, []
        for call, handle in unused:
            self.forget(call, handle)

    def forget(self, call: str, *arguments: Any) -> None:
        """Make a call of a finalizer, whose failure nobody can act on.

        A forked child leaves its parent's objects alone.
        """
        if self.is_ours:
            try:
                with self.current(), self.relaxed():
                    self.driver.result(call, *arguments)
            except Exception:  # noqa: BLE001 - the driver may be gone at the end of the process
                return


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class _Current:
    """The driver of this process, and the library that a test put in its place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: Library | None = None
        self.driver: Driver | None = None


_CURRENT: Final = _Current()


def system_driver() -> Driver:
    """Return the driver of this process; load and initialise it on first use.

    Raises NoDriverError and OldDriverError.
    """
    with _CURRENT.lock:
        if _CURRENT.driver is None:
            library = _SystemLibrary() if _CURRENT.library is None else _CURRENT.library
            _CURRENT.driver = Driver(library)
        return _CURRENT.driver


@contextmanager
def use_library(library: Library | None) -> Generator[None]:
    """Use another library instead of libcuda for a block, for tests and dry runs."""
    before = _CURRENT.library, _CURRENT.driver
    _CURRENT.library, _CURRENT.driver = library, None
    try:
        yield
    finally:
        _CURRENT.library, _CURRENT.driver = before
