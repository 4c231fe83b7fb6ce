"""A stand-in for libcuda: streams, events, graphs and memory, which executes launches in NumPy.

    fake = FakeDriver()
    with use_library(fake):
        ...

Device memory is host memory that this module owns; addresses are real, so a wrong one fails here
(`FakeError` or the status of an illegal address) instead of being read. Work is queued: a stream
runs what was queued in it when something waits for it, as late as the interface allows. So a block
that is freed before its stream has passed it, or read from another stream without an event, gives
a failure and not a right number by luck.

Contexts are current in a thread, and every call that acts on one needs it. A capture forbids what
CUDA calls potentially unsafe, by its mode and the thread's, and such a call ends it.

An image is JSON: `{"functions": {symbol: {"engine": name, ...}}}`; `ENGINES` maps names to
functions of the driver, the image's data and the launch.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from smelt.runtime.cuda.array_tables import FILL_PTX, FILL_WORDS
from smelt.runtime.cuda.copies import _Copy2D
from smelt.runtime.cuda.driver import SIGNATURES

TYPES = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "q": ctypes.c_uint64,
    "b": ctypes.c_ubyte,
    "h": ctypes.c_ushort,
    "s": ctypes.c_char_p,
}
OK, INVALID, NO_MEMORY, NO_CONTEXT, INVALID_HANDLE, NOT_FOUND = 0, 1, 2, 201, 400, 500
NOT_READY, ILLEGAL = 600, 700
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_IMPLICIT = 900, 901, 905, 906
CAPTURED_EVENT = 907
NAMES = {
    INVALID: b"CUDA_ERROR_INVALID_VALUE",
    NO_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    NO_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    INVALID_HANDLE: b"CUDA_ERROR_INVALID_HANDLE",
    NOT_FOUND: b"CUDA_ERROR_NOT_FOUND",
    NOT_READY: b"CUDA_ERROR_NOT_READY",
    ILLEGAL: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    CAPTURE_UNSUPPORTED: b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    CAPTURE_INVALIDATED: b"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    CAPTURE_ISOLATION: b"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
    CAPTURE_IMPLICIT: b"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
    CAPTURED_EVENT: b"CUDA_ERROR_CAPTURED_EVENT",
}
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
"""Modes of a capture, and of a thread."""
WITHOUT_CONTEXT = {
    *("cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"),
    *("cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute"),
    *("cuDevicePrimaryCtxRetain", "cuDeviceGetDefaultMemPool", "cuMemPoolSetAttribute"),
    "cuDeviceTotalMem_v2",
    *("cuMemPoolTrimTo", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"),
    "cuThreadExchangeStreamCaptureMode",
}
UNSAFE = {
    *("cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuMemHostAlloc"),
    *("cuEventQuery", "cuEventSynchronize", "cuStreamDestroy_v2", "cuMemGetInfo_v2"),
    *(
        "cuGraphExecDestroy",
        "cuGraphInstantiateWithFlags",
        "cuGraphExecUpdate_v2",
        "cuMemPoolTrimTo",
    ),
}
"""Functions that a capture forbids in its thread, and a global one in all threads."""
POISON = 0xA5
EVENT_MS = 0.001
"""Minimum time between two events."""


class Refused(Exception):
    """A call that the driver refuses with a status."""


class FakeError(AssertionError):
    """A caller does what CUDA leaves undefined."""


class Stream:
    """Queue of work; `graph` is the list that a capture fills."""

    def __init__(self, handle: int, flags: int = 0) -> None:
        self.handle = handle
        self.waits_for_default = not flags & 1
        self.queue: deque[Callable[[], None]] = deque()
        self.graph: list[Callable[[], None]] | None = None
        self.mode, self.thread = RELAXED, 0
        self.is_invalid = False


class Event:
    """Event; `is_captured` says whether a captured stream recorded it last."""

    def __init__(self, flags: int = 0) -> None:
        self.is_timed = not flags & 2
        self.is_captured = False
        self.stream: Stream | None = None
        self.marks: deque[Callable[[], None]] = deque()
        self.done = True
        self.reached_ms = 0.0


class Block:
    """Memory of the device: `state` is live or freed, in the order of its stream."""

    def __init__(self, nbytes: int, stream: int) -> None:
        self.bytes = np.full(nbytes + 512, POISON, np.uint8)
        base = self.bytes.ctypes.data
        self.address = -(-base // 256) * 256
        self.nbytes = nbytes
        self.stream = stream
        self.first = self.address - base

    def view(self, offset: int, dtype: Any) -> np.ndarray[Any, Any]:
        """The rest of the block from an offset on."""
        dtype = np.dtype(dtype)
        count = (self.nbytes - offset) // dtype.itemsize
        start = self.first + offset
        return self.bytes[start : start + count * dtype.itemsize].view(dtype)


class FakeDriver:
    """Functions of the driver; `calls` lists the names of those called, in order."""

    def __init__(
        self, *, devices: int = 1, version: int = 12_080, memory: int = 1 << 30, arch: int = 90
    ) -> None:
        self.devices, self.version_number, self.capacity, self.arch = (
            devices,
            version,
            memory,
            arch,
        )
        self.model = "Fake GPU"
        self.figures = {16: 132, 13: 1_980_000, 36: 2_619_000, 37: 5120, 38: 50 << 20}
        self.figures |= {81: 228 << 10, 82: 65536, 87: 2}
        """Attributes by number: those of an H100."""
        self.calls: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.failing: dict[str, int] = {}
        """Status that a function returns instead of working."""
        self.missing: set[str] = set()
        self.lost = 0
        """Status that every call returns once a kernel has failed, as a driver's do."""
        self.live: dict[int, Block] = {}
        self.retired: dict[int, Block] = {}
        """Blocks whose free is queued."""
        self.streams: dict[int, Stream] = {0: Stream(0, 1)}
        self.modules: dict[int, dict[str, Any]] = {}
        self.functions: dict[int, dict[str, Any]] = {}
        self._modules_of = WeakKeyDictionary[Callable[[], None], int]()
        """By launch: the module of its function."""
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.pinned: dict[int, Any] = {}
        self._threads: dict[int, list[int]] = {}
        self._modes: dict[int, int] = {}
        self.pool_keeps = 0
        """Bytes that the pool keeps when the host waits."""
        self.error: BaseException | None = None
        self.clock_ms = 0.0
        """Time of the device: each launch takes `launch_ms` of it."""
        self.launch_ms: Callable[[dict[str, Any]], float] = lambda data: 1.0
        self.reads_pageable = 0
        """Whether the device reads the host's memory itself, as late as its queue allows."""
        self.has_pools = True
        self.used = self.most_used = 0
        self._handles = itertools.count(0x1000)
        self._callbacks: dict[str, Any] = {}
        self._keep: list[Any] = []
        self._texts: dict[int, Any] = {}

    def address(self, symbol: str) -> int | None:
        if symbol in self.missing or symbol not in SIGNATURES:
            return None
        if symbol not in self._callbacks:
            kinds = [TYPES[k] for k in SIGNATURES[symbol]]
            function = getattr(self, symbol)

            def callback(*arguments: Any) -> int:
                self.calls.append(symbol)
                if self.lost and not symbol.startswith("cuGetError"):
                    return self.lost
                if symbol in self.failing:
                    return self.failing[symbol]
                if symbol not in WITHOUT_CONTEXT and not self.contexts:
                    self.error = self.error or FakeError(f"{symbol} without a current context")
                    return NO_CONTEXT
                if symbol in UNSAFE and self._forbidding():
                    for stream in self._forbidding():
                        stream.is_invalid = True
                    return CAPTURE_UNSUPPORTED
                try:
                    return function(*arguments) or OK
                except Refused as refused:
                    return int(refused.args[0])
                except BaseException as error:  # noqa: BLE001 - ctypes would print it and go on
                    self.error = self.error or error
                    return ILLEGAL

            self._callbacks[symbol] = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(callback)
        return ctypes.cast(self._callbacks[symbol], ctypes.c_void_p).value

    @property
    def contexts(self) -> list[int]:
        """The contexts of the calling thread, the current one last."""
        return self._threads.setdefault(threading.get_ident(), [])

    def _forbidding(self) -> list[Stream]:
        """The captured streams that forbid the calling thread what is unsafe."""
        here = threading.get_ident()
        allowed = {GLOBAL: (GLOBAL,), THREAD_LOCAL: (), RELAXED: ()}[self._modes.get(here, GLOBAL)]
        is_free = self._modes.get(here, GLOBAL) == RELAXED
        return [
            s
            for s in self.streams.values()
            if s.graph is not None
            and not is_free
            and (s.mode != RELAXED if s.thread == here else s.mode in allowed)
        ]

    # ---- devices ---------------------------------------------------------------------------------

    def cuInit(self, flags: int) -> int:
        return OK

    def cuDriverGetVersion(self, place: int) -> None:
        _put_int(place, self.version_number)

    def cuGetErrorName(self, code: int, place: int) -> int:
        return self._text(NAMES.get(code, b"CUDA_ERROR_UNKNOWN"), place)

    def cuGetErrorString(self, code: int, place: int) -> int:
        return self._text(b"text of status %d" % code, place)

    def _text(self, text: bytes, place: int) -> int:
        buffer = self._texts.setdefault(hash(text), ctypes.create_string_buffer(text))
        _put_word(place, ctypes.addressof(buffer))
        return OK

    def cuDeviceGetCount(self, place: int) -> None:
        _put_int(place, self.devices)

    def cuDeviceGet(self, place: int, ordinal: int) -> None:
        _put_int(place, ordinal)

    def cuDeviceGetName(self, text: int, length: int, device: int) -> None:
        name = self.model.encode() + b"\0"
        ctypes.memmove(text, name, len(name))

    def cuDeviceGetAttribute(self, place: int, attribute: int, device: int) -> int:
        values = {
            75: self.arch // 10,
            76: self.arch % 10,
            88: self.reads_pageable,
            115: self.has_pools,
            **self.figures,
        }
        if attribute not in values:
            return INVALID
        _put_int(place, values[attribute])
        return OK

    def cuDeviceTotalMem_v2(self, place: int, device: int) -> None:
        _put_word(place, self.capacity)

    def cuDevicePrimaryCtxRetain(self, place: int, device: int) -> None:
        _put_word(place, 0xC0 + device)

    def cuCtxGetCurrent(self, place: int) -> None:
        _put_word(place, self.contexts[-1] if self.contexts else 0)

    def cuCtxPushCurrent_v2(self, context: int) -> None:
        self.contexts.append(context)

    def cuCtxPopCurrent_v2(self, place: int) -> int:
        if not self.contexts:
            return NO_CONTEXT
        _put_word(place, self.contexts.pop())
        return OK

    # ---- code ------------------------------------------------------------------------------------

    def cuModuleLoadDataEx(
        self, place: int, image: int, count: int, options: int, values: int
    ) -> int:
        numbers = (ctypes.c_int * count).from_address(options)
        option = dict(zip(numbers, (ctypes.c_uint64 * count).from_address(values), strict=True))
        text = ctypes.string_at(image)
        try:
            data = json.loads(text) if text != FILL_PTX else FILL
        except ValueError:
            message = b"line 1: no such instruction\0"
            ctypes.memmove(option[5], message, min(len(message), option[6]))
            return 200
        handle = next(self._handles)
        self.modules[handle] = data["functions"]
        _put_word(place, handle)
        return OK

    def cuModuleUnload(self, module: int) -> None:
        del self.modules[module]

    def cuModuleGetFunction(self, place: int, module: int, symbol: bytes) -> int:
        data = self.modules[module].get(symbol.decode())
        if data is None:
            return NOT_FOUND
        handles = [
            handle
            for handle, f in [*self.functions.items()]
            if (f["module"], f["symbol"]) == (module, symbol.decode())
        ]
        handle = handles[0] if handles else next(self._handles)
        if not handles:
            self.functions[handle] = {
                "symbol": symbol.decode(),
                "most_shared": (48 << 10) - data.get("static_shared", 0),
                "module": module,
                **data,
            }
        _put_word(place, handle)
        return OK

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> int:
        if attribute != 8 or value > 232_448:
            return INVALID
        self.functions[function]["most_shared"] = value
        return OK

    def cuFuncLoad(self, function: int) -> int:
        return OK if function in self.functions else INVALID

    def cuFuncSetCacheConfig(self, function: int, preference: int) -> int:
        self.functions[function]["prefers"] = preference
        return OK

    def cuLaunchKernel(self, function: int, *launch_arguments: Any) -> int:
        x, y, z, bx, _, _, shared, stream, parameters, _ = launch_arguments
        data = self.functions[function]
        if data["module"] not in self.modules:
            raise FakeError("a function of an unloaded module is launched")
        if 0 in (x, y, z, bx) or bx % 32 or bx > 1024 or shared > data["most_shared"]:
            return INVALID
        arguments = [
            _argument(_word(parameters + 8 * k), kind) for k, kind in enumerate(data["arguments"])
        ]
        launch = {
            "symbol": data["symbol"],
            "grid": (x, y, z),
            "threads": bx,
            "shared": shared,
            "stream": stream or 0,
            "arguments": arguments,
        }
        self.launches.append(launch)

        def execute() -> None:
            self.clock_ms += self.launch_ms(data)
            ENGINES[data["engine"]](self, data, launch)

        self._modules_of[execute] = data["module"]
        self._queue(stream, execute)
        return OK

    # ---- streams and events ----------------------------------------------------------------------

    def _queue(self, stream: int | None, work: Callable[[], None]) -> None:
        s = self.streams[stream or 0]
        self._check_default(s)
        if s.graph is not None:
            s.graph.append(work)
        else:
            s.queue.append(work)

    def _check_default(self, s: Stream) -> None:
        """Refuse the default stream while a stream that waits for it is captured."""
        others = [x for x in self.streams.values() if x.graph is not None and x.waits_for_default]
        if not s.handle and others:
            raise Refused(CAPTURE_IMPLICIT)

    def drain(self, stream: int | None = 0) -> None:
        """Run everything that is queued in a stream."""
        s = self.streams[stream or 0]
        if s.graph is not None:
            raise FakeError("a captured stream is waited for")
        while s.queue:
            s.queue.popleft()()

    def cuStreamCreate(self, place: int, flags: int) -> None:
        _put_word(place, self.new_stream(flags))

    def cuStreamDestroy_v2(self, stream: int) -> None:
        self.drain(stream)
        del self.streams[stream]

    def cuStreamSynchronize(self, stream: int | None) -> None:
        self.drain(stream)

    def cuStreamIsCapturing(self, stream: int | None, place: int) -> None:
        s = self.streams[stream or 0]
        self._check_default(s)
        _put_int(place, 2 if s.is_invalid else int(s.graph is not None))

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> None:
        here, new = threading.get_ident(), ctypes.c_int.from_address(mode).value
        _put_int(mode, self._modes.get(here, GLOBAL))
        self._modes[here] = new

    def cuStreamWaitEvent(self, stream: int | None, event: int, flags: int) -> None:
        e = self.events[event]
        if self.streams[stream or 0].graph is not None and not e.is_captured:
            raise Refused(CAPTURE_ISOLATION)
        self._queue(stream, lambda: self._reach(e))

    def cuEventCreate(self, place: int, flags: int) -> None:
        handle = next(self._handles)
        self.events[handle] = Event(flags)
        _put_word(place, handle)

    def cuEventRecord(self, event: int, stream: int | None) -> None:
        e = self.events[event]
        e.stream, e.done = self.streams[stream or 0], False
        e.is_captured = e.stream.graph is not None

        def mark() -> None:
            e.done, e.reached_ms = True, self.clock_ms

        self._queue(stream, mark)

    def _reach(self, e: Event) -> None:
        while not e.done:
            assert e.stream is not None
            e.stream.queue.popleft()()

    def cuEventQuery(self, event: int) -> int:
        if self.events[event].is_captured:
            return CAPTURED_EVENT
        return OK if self.events[event].done else NOT_READY

    def cuEventSynchronize(self, event: int) -> int:
        if self.events[event].is_captured:
            return CAPTURED_EVENT
        self._reach(self.events[event])
        return OK

    def cuEventElapsedTime(self, place: int, first: int, last: int) -> int:
        events = self.events[first], self.events[last]
        if not all(e.is_timed and e.stream is not None for e in events):
            return INVALID_HANDLE
        if not all(e.done for e in events):
            return NOT_READY
        elapsed = self.events[last].reached_ms - self.events[first].reached_ms
        ctypes.c_float.from_address(place).value = max(elapsed, EVENT_MS)
        return OK

    def cuEventDestroy_v2(self, event: int) -> None:
        del self.events[event]

    # ---- graphs ----------------------------------------------------------------------------------

    def cuStreamBeginCapture_v2(self, stream: int | None, mode: int) -> int:
        if not stream:
            return 900
        s = self.streams[stream]
        s.graph, s.mode, s.thread, s.is_invalid = [], mode, threading.get_ident(), False
        return OK

    def cuStreamEndCapture(self, stream: int, place: int) -> int:
        s = self.streams[stream]
        graph, s.graph = s.graph, None
        if s.is_invalid:
            s.is_invalid = False
            _put_word(place, 0)
            return CAPTURE_INVALIDATED
        handle = next(self._handles)
        self.graphs[handle] = graph or []
        _put_word(place, handle)
        return OK

    def cuGraphInstantiateWithFlags(self, place: int, graph: int, flags: int) -> None:
        handle = next(self._handles)
        self.graphs[handle] = list(self.graphs[graph])
        _put_word(place, handle)

    def cuGraphExecUpdate_v2(self, instance: int, graph: int, info: int) -> int:
        if len(self.graphs[instance]) != len(self.graphs[graph]):
            return 910
        self.graphs[instance] = list(self.graphs[graph])
        return OK

    def cuGraphLaunch(self, instance: int, stream: int | None) -> None:
        for work in self.graphs[instance]:
            if self._modules_of.get(work, 0) not in (0, *self.modules):
                raise FakeError("a graph launches a function of an unloaded module")
            self._queue(stream, work)

    def cuGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def cuGraphExecDestroy(self, instance: int) -> None:
        del self.graphs[instance]

    # ---- memory ----------------------------------------------------------------------------------

    def cuMemAllocAsync(self, place: int, nbytes: int, stream: int | None) -> int:
        assert self.has_pools
        return self._allocate(place, nbytes, stream)

    def _allocate(self, place: int, nbytes: int, stream: int | None) -> int:
        if self.used + nbytes > self.capacity:
            return NO_MEMORY
        if self.streams[stream or 0].graph is not None:
            raise FakeError("memory is allocated in a captured stream")
        block = Block(nbytes, stream or 0)
        self.live[block.address] = block
        self.used += nbytes
        self.most_used = max(self.used, self.most_used)
        _put_word(place, block.address)
        return OK

    def cuMemFreeAsync(self, address: int, stream: int | None) -> None:
        assert self.has_pools
        self._free(address, stream)

    def _free(self, address: int, stream: int | None) -> None:
        block = self.live.pop(address)
        self.retired[address] = block

        def free() -> None:
            del self.retired[address]
            self.used -= block.nbytes
            block.bytes[:] = POISON

        self._queue(stream, free)

    def cuMemAlloc_v2(self, place: int, nbytes: int) -> int:
        assert not self.has_pools
        return self._allocate(place, nbytes, None)

    def cuMemFree_v2(self, address: int) -> None:
        """Free at once: the driver waits for all that is queued."""
        self._free(address, None)
        self.synchronize()

    def block_at(self, address: int) -> tuple[Block, int]:
        """The block that an address lies in, and the offset there."""
        for block in (*self.live.values(), *self.retired.values()):
            if block.address <= address < block.address + max(block.nbytes, 1):
                return block, address - block.address
        raise FakeError(f"address {address:#x} is in no block of the device")

    def cuMemGetInfo_v2(self, free: int, total: int) -> None:
        _put_word(free, self.capacity - self.used)
        _put_word(total, self.capacity)

    def cuMemHostAlloc(self, place: int, nbytes: int, flags: int) -> None:
        buffer = ctypes.create_string_buffer(nbytes)
        self.pinned[ctypes.addressof(buffer)] = buffer
        _put_word(place, ctypes.addressof(buffer))

    def cuMemcpyHtoDAsync_v2(self, to: int, source: int, n: int, stream: int | None) -> None:
        if self.reads_pageable:
            self._queue(stream, lambda: self._write(to, ctypes.string_at(source, n)))
            return
        data = ctypes.string_at(source, n)  # pageable memory is read before the call returns
        self._queue(stream, lambda: self._write(to, data))

    def _write(self, to: int, data: bytes) -> None:
        block, offset = self.block_at(to)
        block.view(offset, np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)

    def _read(self, source: int, n: int) -> bytes:
        block, offset = self.block_at(source)
        data = block.view(offset, np.uint8)[:n].tobytes()
        if len(data) != n:
            raise FakeError("a copy reads beyond its block")
        return data

    def cuMemcpyDtoHAsync_v2(self, to: int, source: int, n: int, stream: int | None) -> None:
        self._queue(stream, lambda: ctypes.memmove(to, self._read(source, n), n) and None)

    def cuMemcpyDtoDAsync_v2(self, to: int, source: int, n: int, stream: int | None) -> None:
        self._queue(stream, lambda: self._write(to, self._read(source, n)))

    def cuMemcpy2DAsync_v2(self, copy: int, stream: int | None) -> int:
        c = _Copy2D.from_buffer_copy((ctypes.c_char * ctypes.sizeof(_Copy2D)).from_address(copy))
        if (c.from_kind, c.to_kind) != (2, 2) or min(c.from_pitch, c.to_pitch) < c.width:
            return INVALID

        def work() -> None:
            for k in range(c.height):
                self._write(c.to + k * c.to_pitch, self._read(c.source + k * c.from_pitch, c.width))

        self._queue(stream, work)
        return OK

    def cuMemsetD8Async(self, to: int, value: int, n: int, stream: int | None) -> None:
        self._queue(stream, lambda: self._write(to, value.to_bytes(1, "little") * n))

    def cuMemsetD16Async(self, to: int, value: int, n: int, stream: int | None) -> None:
        self._queue(stream, lambda: self._write(to, value.to_bytes(2, "little") * n))

    def cuMemsetD32Async(self, to: int, value: int, n: int, stream: int | None) -> None:
        self._queue(stream, lambda: self._write(to, value.to_bytes(4, "little") * n))

    def cuMemsetD2D32Async(
        self, to: int, pitch: int, value: int, width: int, height: int, stream: int | None
    ) -> None:
        for row in range(height):
            self.cuMemsetD32Async(to + row * pitch, value, width, stream)

    def cuDeviceGetDefaultMemPool(self, place: int, device: int) -> None:
        _put_word(place, 0xF0)

    def cuMemPoolSetAttribute(self, pool: int, attribute: int, value: int) -> int:
        if attribute != 4:
            return INVALID
        self.pool_keeps = _word(value)
        return OK

    def cuMemPoolTrimTo(self, pool: int, keep: int) -> None:
        return None

    # ---- what other libraries do -----------------------------------------------------------------

    def new_stream(self, flags: int = 1) -> int:
        """Create a stream, as torch's pool has them: the default stream does not wait for it."""
        handle = next(self._handles)
        self.streams[handle] = Stream(handle, flags)
        return handle

    def begin_capture(self, stream: int, mode: int = GLOBAL) -> None:
        """Begin a capture, as `torch.cuda.graph` does."""
        assert self.cuStreamBeginCapture_v2(stream, mode) == OK

    def end_capture(self, stream: int) -> int:
        """End a capture and return its graph, ready to launch; 0: a call has ended it."""
        place = ctypes.c_uint64()
        self.cuStreamEndCapture(stream, ctypes.addressof(place))
        return place.value

    # ---- what tests look at ----------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first failure of a call or of queued work."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def synchronize(self) -> None:
        """Run everything queued anywhere."""
        for handle in list(self.streams):
            self.drain(handle)
        self.check()


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _put_word(address: int, value: int) -> None:
    ctypes.c_uint64.from_address(address).value = value


def _put_int(address: int, value: int) -> None:
    ctypes.c_int.from_address(address).value = value


def _argument(address: int, kind: str) -> Any:
    if kind == "words":
        return tuple((ctypes.c_uint64 * FILL_WORDS).from_address(address))
    if kind == "i32":
        return ctypes.c_int32.from_address(address).value
    return _word(address)


Engine = Callable[[FakeDriver, dict[str, Any], dict[str, Any]], None]
ENGINES: dict[str, Engine] = {}
"""How images are executed, by name."""


def engine(function: Engine) -> Engine:
    """Register an engine under the name of its function."""
    ENGINES[function.__name__] = function
    return function


@engine
def affine(fake: FakeDriver, data: dict[str, Any], launch: dict[str, Any]) -> None:
    """y[i] = scale * x[i] + shift for float32, of n elements in blocks of `block`."""
    x, y, n = launch["arguments"]
    if launch["grid"][0] != -(-n // data["block"]):
        raise FakeError("another grid than the kernel's")
    source, target = (fake.block_at(a) for a in (x, y))
    values = source[0].view(source[1], np.float32)[:n]
    target[0].view(target[1], np.float32)[:n] = values * data["scale"] + data["shift"]


@engine
def fill(fake: FakeDriver, data: dict[str, Any], launch: dict[str, Any]) -> None:
    """Write words that are parameters to memory."""
    target, words = launch["arguments"]
    if launch["grid"] != (1, 1, 1) or launch["threads"] < FILL_WORDS:
        raise FakeError("another grid than the kernel's")
    block, offset = fake.block_at(target)
    block.view(offset, np.uint64)[:FILL_WORDS] = words


FILL = {"functions": {"smelt_fill": {"engine": "fill", "arguments": ["ptr", "words"]}}}
"""What the driver compiles `FILL_PTX` to."""


def image(**functions: dict[str, Any]) -> bytes:
    """Return an image with these functions."""
    return json.dumps({"functions": functions}).encode()
