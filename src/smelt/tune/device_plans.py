"""Race plans of a program on a device.

    settings = choose(DeviceRace(program, build, device, journal), machine)

A turn of a plan is a few calls that follow one another, made natively as calls that repeat are, and
timed by the device; plans take turns. Inputs that are indices are in bounds of what they index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Final, Protocol

from smelt import knobs
from smelt.errors import DeviceMemoryError, OutOfMemory
from smelt.fusion.plan import Cluster
from smelt.journal.facts import Journal
from smelt.kernel.ir import Kernel
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device, copy_to_host
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.memory import driver_memory
from smelt.tune.arrays import Array, random_array
from smelt.tune.memory import Program, Settings
from smelt.tune.race import Change, Contender, Race
from smelt.tune.schedules import STREAM, DeviceClock, index_extents

_LOG = logging.getLogger("smelt.tune")

CALLS: Final = 8
"""Calls of a turn."""
MAX_TURNS, MIN_TURNS = 15, 3
"""Turns of a plan, and those that it has whatever the time."""
SHARE: Final = 0.5
"""Part of a program's time for races in which plans race; schedules of kernels have the rest."""


class DeviceContender(Contender, Protocol):
    """A program compiled for a device."""

    @property
    def executable(self) -> DeviceExecutable: ...
    @property
    def clustered_kernels(self) -> Sequence[tuple[Cluster, Kernel]]: ...


class DeviceRace(Race[DeviceContender]):
    """Plans racing on a device."""

    _inputs: list[DeviceBuffer]
    _sizes: tuple[int, ...]

    def __init__(
        self,
        program: Program,
        build: Callable[[], DeviceContender],
        device: Device,
        journal: Journal,
    ) -> None:
        """Prepare a race; see `Race`."""
        super().__init__(program, build, journal)
        self.seconds = SHARE * knobs.TUNE_SECONDS.get()
        self._device, self._memory = device, driver_memory(device)
        self._clock = DeviceClock(device)

    def run(self, initial: Settings) -> tuple[Settings, float] | None:
        """Return the fastest settings; None if compiling fails, or memory does not suffice."""
        try:
            return super().run(initial)
        except (DeviceMemoryError, OutOfMemory) as error:
            _LOG.warning("the plans of %s are not raced: %s", self.program.graph.name, error)
            return None

    def changes(self, best: DeviceContender) -> list[Change]:
        """Return the close decisions, unless random values would decide how long a call takes."""
        flips = super().changes(best)
        if not flips:
            return flips
        sizes = tuple(max(self.program.sizes.get(n, 1), 0) for n in best.size_names)
        with self._device.current():
            is_counted = best.executable.prepared(sizes).operations is not None
        return flips if is_counted else []

    def place(self, best: DeviceContender, sizes: Mapping[str, int]) -> None:
        """Make random arrays on the device."""
        inputs = best.plan.graph.inputs
        extents: dict[int, int] = {}
        for cluster, kernel in best.clustered_kernels:
            bounds = index_extents(kernel, sizes)
            for p, node in zip(kernel.inputs, cluster.inputs, strict=True):
                if p.name in bounds and node in inputs:
                    k = inputs.index(node)
                    extents[k] = min(extents.get(k, bounds[p.name]), bounds[p.name])
        self._sizes = tuple(sizes[n] for n in best.size_names)
        self._inputs = [
            copy_to_device(
                random_array(x.type, sizes, k, extents.get(k)), x.type.dtype, self._memory, STREAM
            )
            for k, x in enumerate(self.program.graph.inputs)
        ]

    def results(self, contender: DeviceContender) -> Sequence[Array]:
        """Run a plan once and copy its results."""
        results = contender.executable.run(self._inputs, self._sizes, STREAM, self._memory)
        return [copy_to_host(x) for x in results]

    def ratio(self, one: DeviceContender, other: DeviceContender, ends: float) -> float:
        """Return the ratio of the medians of two plans' turns."""
        turns = [self._turn(c) for c in (one, other)]
        times: tuple[list[float], list[float]] = [], []
        for number in range(MAX_TURNS):
            for queue, measured in zip(turns, times, strict=True):
                measured.append(self._clock.milliseconds(queue))
            if number + 1 >= MIN_TURNS and perf_counter() > ends:
                break
        return median(times[1]) / median(times[0])

    def _turn(self, contender: DeviceContender) -> Callable[[], None]:
        """Return what queues the calls of a turn."""
        executable, inputs, memory = contender.executable, self._inputs, self._memory
        native = executable.record(inputs, self._sizes)
        addresses = [x.address for x in inputs]

        def queue() -> None:
            for _ in range(CALLS):
                words = None if native is None else native.run(addresses, STREAM)
                if native is None or words is None:
                    executable.compute(inputs, self._sizes, STREAM, memory)
                else:
                    native.adopt(words, inputs, memory, STREAM)

        return queue
