"""Run loops and chunks of rows on the processor, as functions of call steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.runtime.executable import Executable
from smelt.runtime.memory import address_of, allocate, array_maker
from smelt.runtime.plan_tables import Addresses, Operand, Prepared, Sizes, Strides
from smelt.runtime.sliced_plan import HostPart, Slices
from smelt.runtime.threads import pool

Array = np.ndarray[Any, Any]

_MAX_PARTS = 64
"""Parts kept of a step, one per tuple of sizes."""
_MIN_TABLED_STEPS, _MAX_TABLED_STEPS = 8, 256
"""Steps of a loop in one native call."""


class HostCall:
    """Repeated execution of a plan, on other slices of arrays each time."""

    def __init__(self, body: Executable, make: Callable[[Executable, Sizes], HostPart]) -> None:
        self.body = body
        self._make = make
        self._parts: dict[tuple[int, ...], HostPart] = {}

    def __call__(self, sizes: Sizes, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the plan as often as sizes or values decide, writing into `outputs`."""
        part = self._part(sizes)
        block = allocate(part.nbytes)
        if not part.reads_strides:
            inputs = [np.require(x, requirements="C") for x in inputs]
        strides = {
            k: tuple(s // x.itemsize for s in x.strides)
            for k, x in enumerate(inputs)
            if not x.flags.c_contiguous
        }
        places = [address_of(x) for x in (*inputs, *outputs)]
        part.queue([*places, block.address], _HostStream(), strides)

    def prepare(self, sizes: Sizes) -> int:
        """Prepare the plan at these sizes; return the bytes that it needs besides results."""
        return self._part(sizes).nbytes

    def _part(self, sizes: Sizes) -> HostPart:
        key = tuple(sizes.values())
        part = self._parts.get(key)
        if part is None:
            part = self._make(self.body, sizes)
            if len(self._parts) >= _MAX_PARTS:
                self._parts.clear()
            self._parts[key] = part
        return part


class _HostStream:
    """The processor, which copies and runs kernels at once."""

    def copy(self, to: int, to_slices: Slices, source: int, slices: Slices) -> None:
        if slices.runs == 1:
            ctypes.memmove(to, source, slices.total)
            return
        shape = slices.runs, slices.nbytes
        target, part = (
            array_maker(shape, np.dtype(np.uint8), (s.pitch, 1))(at)
            for at, s in ((to, to_slices), (source, slices))
        )
        target[...] = part

    def fill(self, to: int, element: Any, count: int) -> None:
        array_maker((count,), np.asarray(element).dtype)(to)[...] = element

    def is_true(self, address: int) -> bool:
        return bool(ctypes.c_uint8.from_address(address).value)

    def bind(
        self, p: Prepared, where: Sequence[int], memory: int, strides: Mapping[int, Strides]
    ) -> Callable[[], None]:
        frame = p.fill(where, memory, strides)
        address, run = frame.buffer_info()[0], pool().run_addresses

        def view(x: Operand) -> Array:
            first = where[x.source] if x.source >= 0 else memory
            steps = strides.get(x.source)
            apart = None if steps is None else tuple(s * x.dtype.itemsize for s in steps)
            return array_maker(x.shape, x.dtype, apart)(first + x.offset)

        parts: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            (run, (s.chunks, s.launches, s.count, address, p.scratch))
            if s.call is None
            else (s.call.call, (p.sizes, [*map(view, s.inputs)], [*map(view, s.outputs)]))
            for s in p.segments
        ]

        def run_parts(_: Any = frame) -> None:  # the frame lives as long as the function
            for call, arguments in parts:
                call(*arguments)

        return run_parts

    def launch_runs(
        self, p: Prepared, count: int, where: Sequence[Addresses | int], memory: int
    ) -> None:
        frames = p.fill_runs(count, where, memory)
        if len(p.segments) == 1 and count >= _MIN_TABLED_STEPS:
            _run_tables(p, frames)
            return
        segments = [(s.chunks, s.launches, s.count) for s in p.segments]
        run, address = pool().run_addresses, frames.ctypes.data
        for _ in range(count):
            for segment in segments:
                run(*segment, address, p.scratch)
            address += frames.strides[0]


def _run_tables(p: Prepared, frames: Addresses) -> None:
    """Run many steps a native call, each on a frame of its own."""
    (segment,) = p.segments
    most = min(len(frames), _MAX_TABLED_STEPS)
    steps = np.arange(most)[:, None]
    chunks, launches = (np.repeat(t[None], most, axis=0) for t in segment.tables)
    chunks[..., 1] += frames.strides[0] * steps
    launches[..., 0] += len(segment.tables[0]) * steps
    tables, run = (address_of(chunks), address_of(launches)), pool().run_addresses
    for first in range(0, len(frames), most):
        part = frames[first : first + most]
        run(*tables, segment.count * len(part), part.ctypes.data, p.scratch)
