"""Read errors that programs report on the device, without waiting for it.

A program with data-dependent positions computes a flag: whether any was out of bounds. Waiting for
it would stop the queue of the device, so the flag is copied to pinned memory in stream order, and
the error is raised by the next call that finds it there, or by the next synchronisation.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from smelt.errors import CaptureError
from smelt.runtime.cuda.driver import NO_TIMING, NOT_READY, Device

MAX_PENDING: Final = 256
"""Flags that may be pending; one more waits for the oldest."""


class _Pending(NamedTuple):
    """Flag on its way to the host."""

    slot: int
    event: int
    fail: Callable[[], NoReturn]


class DeferredFlags:
    """Pending flags of one device, oldest first."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._slots: list[int] = []

    def add(self, flag: int, stream: int, fail: Callable[[], NoReturn]) -> None:
        """Copy a byte of the device to the host in stream order.

        `fail` raises its error.
        """
        driver = self._device.driver
        with self._device.current(), self._device.relaxed():
            if not self._slots and not self._pending:
                base = driver.word("cuMemHostAlloc", MAX_PENDING, 0)
                self._slots = [base + k for k in range(MAX_PENDING)]
            if not self._slots:
                self.check(wait=True)
            with self._lock:
                slot = self._slots.pop()
            driver.call("cuMemcpyDtoHAsync_v2", slot, flag, 1, stream)
            event = driver.word("cuEventCreate", NO_TIMING)
            driver.call("cuEventRecord", event, stream)
        self._pending.append(_Pending(slot, event, fail))

    def check(self, *, wait: bool = False) -> None:
        """Raise the error of the oldest flag that is set and has arrived.

        With `wait`, all flags are waited for.
        """
        if not self._pending:
            return
        driver = self._device.driver
        with self._device.current(), self._device.relaxed():
            while self._pending:
                first = self._pending[0]
                if wait:
                    driver.call("cuEventSynchronize", first.event)
                elif (code := driver.result("cuEventQuery", first.event)) != 0:
                    if code != NOT_READY:
                        raise driver.error("cuEventQuery", code)
                    return
                with self._lock:
                    if not self._pending or self._pending[0] is not first:
                        continue  # another thread was faster
                    self._pending.popleft()
                is_set = ctypes.c_uint8.from_address(first.slot).value
                driver.call("cuEventDestroy_v2", first.event)
                self._slots.append(first.slot)
                if is_set:
                    first.fail()


def positions_are_checked() -> CaptureError:
    """Return the error of a captured call whose positions the host would check."""
    return CaptureError(
        reason="positions are checked by the host",
        hint="Record with sm.config(check_positions=False) what may be captured.",
    )


_LOCK: Final = threading.Lock()
_FLAGS: Final = WeakKeyDictionary[Device, DeferredFlags]()


def deferred_flags(device: Device) -> DeferredFlags:
    """Return the pending flags of a device, one object per device."""
    with _LOCK:
        flags = _FLAGS.get(device)
        if flags is None:
            flags = _FLAGS[device] = DeferredFlags(device)
    return flags
