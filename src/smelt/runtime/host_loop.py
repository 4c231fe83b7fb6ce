"""Run a loop on the processor, as the function of a call step."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.runtime.executable import Executable
from smelt.runtime.loop import Loop, LoopShape
from smelt.runtime.memory import address_of, allocate
from smelt.runtime.plan_tables import Addresses, Operand, Prepared, Sizes
from smelt.runtime.sliced_plan import Slices
from smelt.runtime.threads import pool

Array = np.ndarray[Any, Any]

_MAX_LOOPS = 64
"""Loops kept, one per tuple of sizes."""
_MIN_TABLED_STEPS, _MAX_TABLED_STEPS = 8, 256
"""Steps of a loop in one native call."""


class LoopCall:
    """Repeated execution of a step."""

    def __init__(self, shape: LoopShape, wanted: tuple[int, ...], step: Executable) -> None:
        self.shape, self.wanted, self.step = shape, wanted, step
        step.nested = True
        self._loops: dict[tuple[int, ...], Loop] = {}

    def __call__(self, sizes: Sizes, inputs: list[Array], outputs: list[Array]) -> None:
        """Run all steps, writing into `outputs`."""
        loop = self._loop(sizes)
        operands = [np.require(x, requirements="C") for x in inputs]
        block = allocate(loop.nbytes)
        places = [address_of(x) for x in (*operands, *outputs)]
        loop.queue([*places, block.address], _HostStream())

    def prepare(self, sizes: Sizes) -> int:
        """Prepare a step at these sizes; return the bytes that the loop needs besides results."""
        return self._loop(sizes).nbytes

    def _loop(self, sizes: Sizes) -> Loop:
        key = tuple(sizes.values())
        loop = self._loops.get(key)
        if loop is None:
            loop = Loop(self.shape, self.wanted, self.step, sizes)
            if len(self._loops) >= _MAX_LOOPS:
                self._loops.clear()
            self._loops[key] = loop
        return loop


class _HostStream:
    """The processor, which copies and runs kernels at once."""

    def copy(self, to: int, to_slices: Slices, source: int, slices: Slices) -> None:
        if slices.runs == 1:
            ctypes.memmove(to, source, slices.total)
            return
        for k in range(slices.runs):
            ctypes.memmove(to + k * to_slices.pitch, source + k * slices.pitch, slices.nbytes)

    def is_true(self, address: int) -> bool:
        return bool(ctypes.c_uint8.from_address(address).value)

    def bind(self, p: Prepared, where: Sequence[int], memory: int) -> Callable[[], None]:
        frame = p.fill(where, memory)
        address, run = frame.buffer_info()[0], pool().run_addresses

        def view(x: Operand) -> Array:
            first = where[x.source] if x.source >= 0 else memory
            return _array_at(first + x.offset, x.shape, x.dtype)

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


def _array_at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """View memory as an array, which must live as long as it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.ndarray(shape, dtype, memory)
