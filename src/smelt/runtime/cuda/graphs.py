"""Replay the launches of a plan as one CUDA graph.

A graph costs one call for all kernels, and less time on the device between two of them. It holds
the addresses of a call, so it is worth making only for addresses that come again: with a caching
allocator a program that runs in a loop soon gets the memory of an earlier call. Addresses seen for
the second time are captured; a plan keeps `MAX_GRAPHS` graphs, and the one that has not been
replayed for the longest time is updated in place for new addresses.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from smelt.runtime.cuda import status
from smelt.runtime.cuda.driver import Device

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
        stream = driver.word("cuStreamCreate", status.NON_BLOCKING)
        try:
            driver.call("cuStreamBeginCapture_v2", stream, status.RELAXED_CAPTURE)
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
