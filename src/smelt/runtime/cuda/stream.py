"""Launch a plan's table in a device's stream, or replay it as one graph.

A graph costs one call for all kernels, and less time on the device between two of them. It holds
the addresses of a call, so it is worth making only for addresses that come again: with a caching
allocator a program that runs in a loop soon gets the memory of an earlier call. Addresses seen for
the second time are captured; a plan keeps `MAX_GRAPHS` graphs, and the one that has not been
replayed for the longest time is updated in place for new addresses.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from smelt.runtime.cuda.copies import copy_slices, fill
from smelt.runtime.cuda.driver import NON_BLOCKING, RELAXED_CAPTURE, Device
from smelt.runtime.cuda.native_call import FIRST_ARGUMENT, ROW_WORDS, native_calls
from smelt.runtime.cuda.tables import PreparedLaunches
from smelt.runtime.plan_tables import NO_STRIDES, Addresses, Strides
from smelt.runtime.sliced_plan import Slices

MIN_LAUNCHES: Final = 4
"""Minimum launches of a plan that is replayed as a graph."""
MAX_LAUNCHES: Final = 4096
"""Maximum launches of a plan that is replayed as a graph; a node takes about a kilobyte."""
MAX_GRAPHS: Final = 4
"""Graphs that a plan keeps at one set of sizes."""
MAX_SEEN: Final = 16
"""Frames remembered until they come a second time."""


def is_replayed(operations: int | None) -> bool:
    """Return whether a plan of so many launches is replayed; None: values on the device decide.

    >>> is_replayed(1), is_replayed(50), is_replayed(None)
    (False, True, False)
    """
    return operations is not None and MIN_LAUNCHES <= operations <= MAX_LAUNCHES


class _CapturedGraph:
    """Instantiated graph."""

    __slots__ = ("_device", "handle")

    def __init__(self, device: Device, handle: int) -> None:
        self._device = device
        self.handle = handle

    def __del__(self) -> None:
        self._device.discard("cuGraphExecDestroy", self.handle)


class LaunchGraphs:
    """Graphs of one table of launches, by the addresses in its frame."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._graphs: OrderedDict[bytes, _CapturedGraph] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def run(self, frame: bytes, launch: Callable[[int], None], stream: int) -> None:
        """Run `launch(stream)`, or replay its graph where the frame has come before.

        The context must be current.
        """
        with self._lock:
            graph = self._graphs.get(frame)
            if graph is not None:
                self._graphs.move_to_end(frame)
            elif frame in self._seen:
                del self._seen[frame]
                with self._device.relaxed():
                    graph = self._graphs[frame] = self._capture(launch)
            else:
                self._seen[frame] = None
                if len(self._seen) > MAX_SEEN:
                    self._seen.popitem(last=False)
            if graph is not None:
                self._device.driver.call("cuGraphLaunch", graph.handle, stream)
                return
        launch(stream)

    def _capture(self, launch: Callable[[int], None]) -> _CapturedGraph:
        """Record the launches, in a stream of ours: the default stream cannot be captured."""
        driver, place = self._device.driver, ctypes.c_uint64()
        self._device.release_discarded()
        stream = driver.word("cuStreamCreate", NON_BLOCKING)
        try:
            driver.call("cuStreamBeginCapture_v2", stream, RELAXED_CAPTURE)
            try:
                launch(stream)
            finally:
                code = driver.result("cuStreamEndCapture", stream, ctypes.byref(place))
            if code:
                raise driver.error("cuStreamEndCapture", code)
            return self._instantiate(place.value)
        finally:
            driver.call("cuStreamDestroy_v2", stream)
            if place.value:
                driver.call("cuGraphDestroy", place.value)

    def _instantiate(self, graph: int) -> _CapturedGraph:
        driver = self._device.driver
        if len(self._graphs) >= MAX_GRAPHS:
            _, oldest = self._graphs.popitem(last=False)
            info = (ctypes.c_uint64 * 4)()  # what could not be updated, which we do not read
            if not driver.result("cuGraphExecUpdate_v2", oldest.handle, graph, info):
                return oldest
        return _CapturedGraph(self._device, driver.word("cuGraphInstantiateWithFlags", graph, 0))


class DeviceStream(NamedTuple):
    """A stream of a device, whose context must be current."""

    device: Device
    number: int

    def copy(self, to: int, to_slices: Slices, source: int, slices: Slices) -> None:
        """Queue a copy of slices with the same pieces."""
        copy_slices(self.device, to, to_slices, source, slices, self.number)

    def is_true(self, address: int) -> bool:
        """Read a bool of the device; waits for what is queued before."""
        place, call = ctypes.c_uint8(), self.device.driver.call
        call("cuMemcpyDtoHAsync_v2", ctypes.addressof(place), address, 1, self.number)
        call("cuStreamSynchronize", self.number)
        return bool(place.value)

    def fill(self, to: int, element: Any, count: int) -> None:
        """Queue writes of an element of NumPy to adjacent places."""
        fill(self.device, to, element, count, self.number)

    def bind(
        self,
        p: PreparedLaunches,
        where: Sequence[int],
        memory: int,
        strides: Mapping[int, Strides],
    ) -> Callable[[], None]:
        """Return what queues a plan on sources and memory of its own given by address."""
        frame = p.fill(where, memory, strides)
        return lambda: launch_frame(self.device, p, frame, self.number, None)

    def launch_runs(
        self, p: PreparedLaunches, count: int, where: Sequence[Addresses | int], memory: int
    ) -> None:
        """Launch kernels repeatedly, by one table: each run has a frame of its own."""
        frames = p.fill_runs(count, where, memory)
        words = frames.shape[1]
        rows = np.tile(p.rows, (count, 1, 1))
        rows[:, :, FIRST_ARGUMENT] += words * np.arange(count)[:, None]
        room = array("q", [0] * p.most_arguments)
        call = self.device.driver.address("cuLaunchKernel")
        failed = native_calls().launch(
            rows.ctypes.data,
            count * len(p.rows),
            frames.ctypes.data,
            room.buffer_info()[0],
            self.number,
            call,
        )
        if failed:
            number = ((failed >> 32) - 1) % len(p.rows) + 1
            raise launch_error(self.device, p, number << 32 | failed & 0xFFFFFFFF)


def launch_frame(
    device: Device,
    p: PreparedLaunches,
    frame: array[int],
    stream: int,
    graphs: LaunchGraphs | None,
) -> None:
    """Launch what a table lists, or replay its graph; the context must be current.

    Raises DriverCallError if a launch fails.
    """
    address, words = frame.buffer_info()
    argument_words = words - p.most_arguments
    call = device.driver.address("cuLaunchKernel")

    def launch(in_stream: int) -> None:
        room = address + 8 * argument_words
        for first, length, part in p.segments:
            if part is not None:
                words, queue = frame[first : first + length], DeviceStream(device, in_stream)
                part.queue(words, queue, NO_STRIDES)
                continue
            rows = p.rows.ctypes.data + 8 * ROW_WORDS * first
            failed = native_calls().launch(rows, length, address, room, in_stream, call)
            if failed:
                raise launch_error(device, p, failed + (first << 32))

    if graphs is None:
        launch(stream)
    else:
        graphs.run(frame[:argument_words].tobytes(), launch, stream)


def launch_kept(
    device: Device, p: PreparedLaunches, frame: array[int], stream: int, numbers: Sequence[int]
) -> None:
    """Launch what computes some workspaces that outlive calls; the context must be current.

    Raises DriverCallError if a launch fails.
    """
    address, words = frame.buffer_info()
    room = address + 8 * (words - p.most_arguments)
    call = device.driver.address("cuLaunchKernel")
    for k in numbers:
        row = p.kept_rows.ctypes.data + 8 * ROW_WORDS * k
        failed = native_calls().launch(row, 1, address, room, stream, call)
        if failed:
            raise device.driver.error(f"cuLaunchKernel ({p.kept[k].name})", failed & 0xFFFFFFFF)


def launch_error(device: Device, p: PreparedLaunches, failed: int) -> Exception:
    """Return the error of a launch that failed, with its kernel's name."""
    name = p.names[(failed >> 32) - 1]
    return device.driver.error(f"cuLaunchKernel of {name}", failed & 0xFFFFFFFF)
