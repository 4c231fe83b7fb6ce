"""Time what is queued on a device by its own clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from smelt.runtime.cuda.driver import Device

STREAM: Final = 0
"""The stream that races run in."""


class DeviceClock:
    """Two events of a device, which are recorded around work."""

    def __init__(self, device: Device) -> None:
        self._device = device
        with device.current():
            self._events = [device.driver.word("cuEventCreate", 0) for _ in range(2)]

    def __del__(self) -> None:
        for event in getattr(self, "_events", ()):
            self._device.forget("cuEventDestroy_v2", event)

    def milliseconds(self, queue: Callable[[], object]) -> float:
        """Return the device's time for what `queue` queues in `STREAM`; waits for it."""
        driver, (first, last) = self._device.driver, self._events
        with self._device.current():
            driver.call("cuEventRecord", first, STREAM)
            queue()
            driver.call("cuEventRecord", last, STREAM)
            driver.call("cuEventSynchronize", last)
            place = ctypes.c_float()
            driver.call("cuEventElapsedTime", ctypes.byref(place), first, last)
        return place.value
