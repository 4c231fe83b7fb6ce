"""Build the tables of a call at given sizes: chunks, launches, argument frame."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from smelt.kernel.abi import PARALLEL
from smelt.python.dataclass import dataclass
from smelt.runtime.layout import place_values, step_values
from smelt.runtime.steps import CallStep, KernelStep, NativeFunction, Sizes, Step, Value
from smelt.runtime.threads import pool
from smelt.types.expr import Index, evaluate

Array = np.ndarray[Any, Any]

MIN_CHUNK_NS = 10_000.0
"""Minimum predicted time of a chunk, in ns.

The delay until a helper starts must be small against it.
"""
MAX_INLINE_NS = 8_000.0
"""Maximum predicted time of a launch in the calling thread alone, in ns."""
CYCLES_PER_NS = 4.0
"""Assumed clock rate in cycles per ns, accurate enough for choosing chunk sizes."""
MAX_CHUNKS = 64
"""Maximum chunks of one kernel function in a launch, before rounding to the threads."""
MAX_CHUNK_NS = 20_000_000.0
"""Maximum predicted time of a chunk, in ns: interrupts come between chunks."""


class Operand(NamedTuple):
    """Value that a library call reads or writes."""

    source: int
    """Index among inputs, results and held values, in this order; -1: the arena."""
    offset: int
    """Offset from there in bytes."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    whole: bool
    """Whether it is that array unchanged."""


@dataclass(slots=True)
class Segment:
    """Kernels of one native call (tables and their addresses), or one library call."""

    call: CallStep | None = None
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    tables: tuple[Array, ...] = ()
    chunks: int = 0
    launches: int = 0
    count: int = 0


@dataclass
class Prepared:
    """Everything about a call that depends on sizes only."""

    sizes: dict[str, int]
    frame: array[int]
    addresses: list[tuple[int, int, int]]
    """Frame words filled at the call: (slot, source, offset in bytes from its address)."""
    arena: list[tuple[int, int]]
    strides: list[tuple[int, int, int]]
    segments: list[Segment]
    arena_bytes: int
    scratch: int
    code: list[Any]
    """Owners of the code that the tables point to; must live as long as the tables."""
    results: list[tuple[int, tuple[int, ...], Any, int, int]] = field(default_factory=list)
    """By output: value, shape, dtype, bytes, and the input it overwrites (-1: none)."""
    work: float = 0.0
    """Predicted time in ns."""
    parallel: bool = False
    """Whether a launch is meant for several threads."""
    call_bytes: int = 0
    """Most bytes that a library call among the kernels takes while it runs."""


class LaunchTableBuilder:
    """Builder of the tables for one set of sizes."""

    def __init__(
        self, values: Sequence[Value], named: dict[str, int], shapes: list[tuple[int, ...]]
    ) -> None:
        self.values, self.sizes, self.shapes = values, named, shapes
        self.inputs = sum(v.place == "input" for v in values)
        self.first_held = self.inputs + sum(v.place == "output" for v in values)
        self.frame: list[int] = []
        self.addresses: list[tuple[int, int, int]] = []
        self.arena: list[tuple[int, int]] = []
        self.strides: list[tuple[int, int, int]] = []
        self.segments: list[Segment] = []
        self.chunks: list[tuple[int, int, int, int]] = []
        self.launches: list[tuple[int, int, int, int]] = []
        self.code: list[Any] = []
        self.scratch = 0
        self.work = 0.0
        self.parallel = False
        self.call_bytes = 0

    def build(self, launches: Sequence[Sequence[Step]], arena: Sequence[Index]) -> Prepared:
        """Build the tables of `launches`; `arena` lists where the plan's values end, in bytes.

        If all results are empty nothing runs, because index expressions assume sizes of at least
        1. Launches without any results do run: they are timed.
        """
        results = [n for n, v in enumerate(self.values) if v.place == "output"]
        if results and not any(map(self._nbytes, results)):
            launches = ()
        groups: list[list[Step]] = []
        written: set[int] = set()
        for group in launches:
            groups.append(
                [s if isinstance(s, CallStep) else self._select_variant(s, written) for s in group]
            )
            written.update(n for s in group for n in step_values(s))
        self.places = place_values(self.values, groups, arena, self.sizes)
        for time, group in enumerate(groups):
            self._add_group(time, group)
        self._flush()
        return Prepared(
            self.sizes,
            array("q", self.frame),
            self.addresses,
            self.arena,
            self.strides,
            self.segments,
            self.places.nbytes,
            self.scratch,
            self.code,
            work=self.work,
            parallel=self.parallel,
            call_bytes=self.call_bytes,
        )

    def number(self, e: Index, named: Sizes | None = None) -> int:
        return int(evaluate(e, self.sizes if named is None else named))

    def _add_group(self, time: int, steps: Sequence[Step]) -> None:
        """Add a group of independent steps, whose kernels share launches phase by phase."""
        kernels = [(k, s) for k, s in enumerate(steps) if isinstance(s, KernelStep)]
        self.code += [s.loaded for _, s in kernels]
        frames = [self._add_arguments(time, k, s) for k, s in kernels]
        for phase in range(max((len(s.entries) for _, s in kernels), default=0)):
            first, work = len(self.chunks), 0.0
            for (_, step), base in zip(kernels, frames, strict=True):
                if phase < len(step.entries):
                    work += self._add_chunks(step.entries[phase], base, step.sizes(self.sizes))
            parallel = PARALLEL if work > MAX_INLINE_NS and len(self.chunks) - first > 1 else 0
            self.work += work
            self.parallel = self.parallel or bool(parallel)
            if len(self.chunks) > first:
                self.launches.append((first, len(self.chunks) - first, parallel, 0))
        for s in steps:
            if isinstance(s, CallStep):
                if s.prepare is not None:
                    self.call_bytes = max(self.call_bytes, s.prepare(self.sizes))
                self._flush()
                inputs, outputs = (tuple(map(self._operand, n)) for n in (s.inputs, s.outputs))
                self.segments.append(Segment(s, inputs, outputs))

    def _select_variant(self, step: KernelStep, earlier: set[int]) -> KernelStep:
        """Select the kernel variant for these sizes.

        It may use non-temporal stores if the results are large. Values in `earlier` were touched
        by earlier groups, so they do not count as this kernel's results.
        """
        if step.specialize is None:
            return step
        results = sum(
            self._nbytes(n)
            for n in {*step_values(step)} - earlier
            if self.values[n].place == "output" and self.values[n].overwrites < 0
        )
        return step.specialize(self.sizes, results > step.stream_above) or step

    def _nbytes(self, number: int) -> int:
        value = self.values[number]
        return math.prod(self.shapes[number]) * value.dtype.itemsize

    def _add_arguments(self, time: int, k: int, step: KernelStep) -> int:
        """Append the argument words of a group's kernel `k`; return their byte offset."""
        base = len(self.frame)
        for kind, operand in step.words:
            slot = len(self.frame)
            self.frame.append(0)
            if kind == "size":
                self.frame[slot] = self.number(operand)
            elif kind == "partial":
                self.arena.append((slot, self.places.partials[time, k, operand]))
            elif kind == "stride":
                number, d = operand
                self.strides.append((slot, self.values[number].number, d))
            else:
                self._add_address(slot, operand)
        return base * 8

    def _add_address(self, slot: int, number: int) -> None:
        source, offset = self._locate(number)
        if source < 0:
            self.arena.append((slot, offset))
        else:
            self.addresses.append((slot, source, offset))

    def _locate(self, number: int) -> tuple[int, int]:
        """Return the source of a value, as in `Operand`, and its byte offset there."""
        v = self.values[number]
        first = {"input": 0, "output": self.inputs, "held": self.first_held}.get(v.place)
        if first is not None:
            return first + v.number, 0
        host, offset = self.places.values[number]
        return (self.inputs + host if host >= 0 else -1), offset

    def _operand(self, number: int) -> Operand:
        v = self.values[number]
        is_whole_array = v.place in ("input", "output", "held")
        return Operand(*self._locate(number), self.shapes[number], v.dtype.numpy, is_whole_array)

    def _add_chunks(self, entry: NativeFunction, base: int, code_sizes: Sizes) -> float:
        """Split a function's tasks into chunks; return the predicted work in ns.

        `code_sizes` are the sizes under the names of the kernel's code.
        """
        tasks, work = (
            self.number(entry.tasks, code_sizes),
            self.number(entry.cycles, code_sizes) / CYCLES_PER_NS,
        )
        self.scratch = max(self.scratch, self.number(entry.scratch, code_sizes))
        if tasks <= 0:
            return 0.0
        most = max(MAX_CHUNKS, int(work / MAX_CHUNK_NS))
        count = max(1, min(tasks, most, int(work / MIN_CHUNK_NS)))
        # Use a multiple of the threads: 3 chunks on 2 threads take as long as 4.
        if count > (threads := pool().threads):
            count = min(-(-count // threads) * threads, tasks)
        if work <= MAX_INLINE_NS:
            count = 1
        for k in range(count):
            begin, end = tasks * k // count, tasks * (k + 1) // count
            self.chunks.append((entry.address, base, begin, end))
        return work

    def _flush(self) -> None:
        if self.launches:
            tables = tuple(
                np.array(t, np.int64).reshape(-1, 4) for t in (self.chunks, self.launches)
            )
            chunks, launches = (int(t.ctypes.data) for t in tables)
            self.segments.append(
                Segment(None, (), (), tables, chunks, launches, len(self.launches))
            )
        self.chunks, self.launches = [], []
