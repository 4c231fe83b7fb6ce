"""Race the schedules of a kernel on a device.

    code = race(kernel, sizes, compiler, device, seconds, journal)

A kernel runs alone, on random arrays of the sizes of the call, where integers that are indices are
in bounds. It writes first values of what it combines, so that it may run again. Its launches are
raced one after another, each with the schedules chosen so far for the others. Candidates take
turns, since a device's clock changes, and the time of one is the median of its turns. A candidate
that is not clearly faster than the predicted best loses.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from math import prod
from statistics import median
from time import perf_counter
from typing import Final

from smelt.errors import (
    DeviceCompileError,
    DeviceKernelError,
    DeviceMemoryError,
    DeviceSizeError,
    DriverCallError,
    OutOfMemory,
)
from smelt.journal.facts import Journal, Measured
from smelt.kernel.block_reduction import values_behind
from smelt.kernel.device_code import DeviceCode, ScheduledLaunch, SchedulingCompiler
from smelt.kernel.ir import Kernel, Let, Load, Position
from smelt.kernel.walk import statements
from smelt.ops.spec import dims_at
from smelt.python.dataclass import dataclass
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device, copy_to_host
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.memory import driver_memory
from smelt.runtime.cuda.tables import DeviceStep, LoadedCode
from smelt.runtime.plan_tables import Value
from smelt.tune.arrays import Array, agree, random_array
from smelt.tune.race import CLEAR_RATIO, MAX_INPUT_BYTES
from smelt.types.expr import evaluate
from smelt.types.tensor import TensorType

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


_LOG = logging.getLogger("smelt.tune")

REPEATS: Final = 16
"""Launches of a turn, which follow one another on the device without the host."""
MAX_TURNS, MIN_TURNS = 7, 2
"""Turns of each candidate, and those that it has whatever the time."""

Schedules = Sequence[Sequence[ScheduledLaunch]]


def can_race(kernel: Kernel) -> bool:
    """Return whether arrays can be made up for a kernel: it has no families of these."""
    return not any(p.each for p in (*kernel.inputs, *kernel.outputs))


def index_extents(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return inputs whose elements are indices, each with the extent of the shortest axis.

    Indices that are spread over their axis make a kernel read and combine as many elements as a
    call does; a kernel clamps every index, so that no other one would be out of bounds either.
    """
    bound = {s.name: s.value for s in statements(kernel) if isinstance(s, Let)}
    integers = {p.name for p in kernel.inputs if p.dtype.kind in ("int", "uint")}
    extents: dict[str, int] = {}
    for position in statements(kernel):
        if not isinstance(position, Position):
            continue
        extent = int(evaluate(position.extent, sizes))
        for value in values_behind(position.value, bound):
            if isinstance(value, Load) and value.param in integers:
                extents[value.param] = min(extents.get(value.param, extent), extent)
    return extents


def race(
    kernel: Kernel,
    sizes: Mapping[str, int],
    compiler: SchedulingCompiler,
    device: Device,
    seconds: float,
    journal: Journal,
) -> DeviceCode:
    """Return the fastest code of a kernel at these sizes.

    That is the predicted best if the kernel cannot race. Raises what compiling it raises.
    """
    every = [list(s) for s in compiler.schedules(kernel, sizes)]
    best = compiler.compile_schedules(kernel, sizes, every, device.arch)
    nbytes = sum(prod(dims_at(p.shape, sizes)) * p.dtype.itemsize for p in kernel.inputs)
    is_alone = all(len(s) < 2 for s in every)
    if is_alone or nbytes > MAX_INPUT_BYTES or not can_race(kernel):
        return best
    try:
        track = _Track(kernel, sizes, device)
        leader = track.entry("the predicted best", best)
        ends = perf_counter() + seconds
        for number, schedules in enumerate(every):
            rivals = [leader]
            for schedule in schedules:
                every[number] = [schedule]
                rivals += _rival(track, schedule.blocks, compiler, every, rivals)
            winner = _fastest(rivals, ends, journal, kernel.name)
            is_changed = winner is not leader
            chosen = [s for s in schedules if is_changed and s.blocks == winner.title]
            leader, every[number] = winner, chosen or schedules
    except (DeviceMemoryError, OutOfMemory) as error:
        _LOG.warning("the schedules of %s are not raced: %s", kernel.name, error)
        return best
    return leader.code


def _rival(
    track: _Track,
    title: str,
    compiler: SchedulingCompiler,
    every: Schedules,
    others: Sequence[_Entry],
) -> list[_Entry]:
    """Return the entry of these schedules; none if it is refused, wrong, or there already."""
    try:
        code = compiler.compile_schedules(track.kernel, track.sizes, every, track.device.arch)
        if any(code == e.code for e in others):
            return []
        entry = track.entry(title, code)
    except (DeviceCompileError, DeviceKernelError, DeviceSizeError, DriverCallError) as error:
        _LOG.info("a schedule of %s is left out: %s: %s", track.kernel.name, title, error)
        return []
    if not all(map(agree, others[0].results, entry.results)):
        _LOG.warning("a schedule of %s gives other numbers: %s", track.kernel.name, title)
        return []
    return [entry]


def _fastest(entries: Sequence[_Entry], ends: float, journal: Journal, name: str) -> _Entry:
    """Return the first entry, or the fastest one if it is clearly faster."""
    times: list[list[float]] = [[] for _ in entries]
    for turn in range(MAX_TURNS):
        for entry, measured in zip(entries, times, strict=True):
            measured.append(entry.milliseconds())
        if turn + 1 >= MIN_TURNS and perf_counter() > ends:
            break
    medians = list(map(median, times))
    fastest = min(range(len(entries)), key=medians.__getitem__)
    if medians[fastest] >= CLEAR_RATIO * medians[0]:
        return entries[0]
    ratio = medians[fastest] / medians[0]
    journal.record(Measured(f"{name}: {entries[fastest].title}", ratio, "of the time"))
    return entries[fastest]


class _Track:
    """A kernel's arrays on a device."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int], device: Device) -> None:
        """Fill the inputs; raise DeviceMemoryError or OutOfMemory where they do not fit."""
        self.kernel, self.sizes, self.device = kernel, sizes, device
        self.memory = driver_memory(device)
        extents = index_extents(kernel, sizes)
        arrays = [
            random_array(TensorType(p.dtype, p.shape), sizes, k, extents.get(p.name))
            for k, p in enumerate(kernel.inputs)
        ]
        self.inputs = [
            copy_to_device(x, p.dtype, self.memory, STREAM)
            for x, p in zip(arrays, kernel.inputs, strict=True)
        ]
        self.clock = DeviceClock(device)

    def entry(self, title: str, code: DeviceCode) -> _Entry:
        """Load code and run it once."""
        kernel = self.kernel
        params = (*kernel.inputs, *kernel.outputs)
        places = [("input", k) for k in range(len(kernel.inputs))]
        places += [("output", k) for k in range(len(kernel.outputs))]
        values = [Value(p.dtype, p.shape, *place) for p, place in zip(params, places, strict=True)]
        loaded = LoadedCode(code, tuple(map(self.device.load, code.images)))
        numbers = {p.name: k for k, p in enumerate(params)}
        step = DeviceStep(kernel.name, lambda _: loaded, {}, numbers)
        outputs = range(len(kernel.inputs), len(params))
        executable = DeviceExecutable(
            self.device, tuple(self.sizes), values, [[step]] * REPEATS, (), tuple(outputs)
        )
        entry = _Entry(title, code, self, executable)
        entry.results = [copy_to_host(x) for x in entry.run()]
        return entry


@dataclass(slots=True, eq=False)
class _Entry:
    """A kernel in certain schedules, in a race."""

    title: str
    code: DeviceCode
    track: _Track
    executable: DeviceExecutable
    results: Sequence[Array] = ()

    def run(self) -> list[DeviceBuffer]:
        """Queue `REPEATS` launches of the kernel."""
        track = self.track
        sizes = tuple(track.sizes.values())
        return self.executable.compute(track.inputs, sizes, STREAM, track.memory)

    def milliseconds(self) -> float:
        """Return the device's time of one turn."""
        return self.track.clock.milliseconds(self.run)
