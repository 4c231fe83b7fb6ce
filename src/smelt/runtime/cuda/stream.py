"""Launch what a plan's table lists, and copy, in a stream of a device."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smelt.runtime.cuda.copies import copy_slices
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.graphs import LaunchGraphs
from smelt.runtime.cuda.native_call import FIRST_ARGUMENT, ROW_WORDS, native_calls
from smelt.runtime.cuda.tables import PreparedLaunches
from smelt.runtime.plan_tables import Addresses
from smelt.runtime.sliced_plan import Slices


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

    def bind(self, p: PreparedLaunches, where: Sequence[int], memory: int) -> Callable[[], None]:
        """Return what queues a plan on sources and memory of its own given by address."""
        frame = p.fill(where, memory)
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
                part.queue(frame[first : first + length], DeviceStream(device, in_stream))
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
