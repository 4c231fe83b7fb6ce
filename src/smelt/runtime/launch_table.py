"""Build the tables of a call at given sizes: chunks, launches, argument frame."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.kernel.abi import PARALLEL
from smelt.python.dataclass import dataclass
from smelt.runtime.plan_tables import (
    CallStep,
    KernelStep,
    NativeFunction,
    PlanTables,
    Sizes,
    Step,
    TableBuilder,
    Value,
    place_values,
    step_values,
)
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


@dataclass(slots=True, eq=False, kw_only=True)
class Prepared(PlanTables):
    """Everything about a call that depends on sizes only."""

    segments: list[Segment]
    scratch: int
    code: list[Any]
    """Owners of the code that the tables point to; must live as long as the tables."""
    work: float = 0.0
    """Predicted time in ns."""
    parallel: bool = False
    """Whether a launch is meant for several threads."""
    call_bytes: int = 0
    """Most bytes that a library call among the kernels takes while it runs."""

    @property
    def has_parts(self) -> bool:
        """Whether it calls libraries."""
        return any(s.call is not None for s in self.segments)


class LaunchTableBuilder(TableBuilder):
    """Builder of the tables for one set of sizes."""

    def __init__(self, values: Sequence[Value], named: dict[str, int]) -> None:
        super().__init__(values, named)
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
        results = sorted(self.results(), key=lambda r: self.values[r[0]].number)
        if results and not any(nbytes for *_, nbytes, _ in results):
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
            sizes=self.sizes,
            frame=array("q", self.frame),
            addresses=self.addresses,
            arena=self.arena,
            strides=self.strides,
            shapes=self.shapes,
            results=[(n, shape, d.numpy, nbytes, over) for n, shape, d, nbytes, over in results],
            segments=self.segments,
            arena_bytes=self.places.nbytes,
            scratch=self.scratch,
            code=self.code,
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
            self.nbytes(n)
            for n in {*step_values(step)} - earlier
            if self.values[n].place == "output" and self.values[n].overwrites < 0
        )
        return step.specialize(self.sizes, results > step.stream_above) or step

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
                self.frame[slot] = math.prod(self.shapes[number][d + 1 :])  # until the call
                self.strides.append((slot, self.values[number].number, d))
            else:
                self.add_address(slot, operand)
        return base * 8

    def _operand(self, number: int) -> Operand:
        v = self.values[number]
        is_whole_array = v.place in ("input", "output", "held")
        return Operand(*self.locate(number), self.shapes[number], v.dtype.numpy, is_whole_array)

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
