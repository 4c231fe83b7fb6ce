"""Hold what a plan does at sizes, on any device: its steps, places of values, and tables.

Values are placed by the plan, and a second time for known sizes. A plan's offsets hold for all
sizes and do not include its kernels' workspaces: partial results and operands packed per call. For
known sizes values can be packed more tightly, and a kernel's workspace goes where no value lives
during its launch. Values that are dead when a large result is written are placed inside that
result's memory, as far as they fit.

    kernel 0: x -> a, packs w            arena   a | b
    kernel 1: a -> b, packs v                      w's panels above a, v's above both
    kernel 2: b -> y                     y       a, too, if it fits and y is large

Tables say which arguments kernels get, where addresses go, and what the results are; those of a
call on this machine are its chunks, launches and argument frame.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from smelt import knobs
from smelt.errors import OutOfMemory
from smelt.kernel.abi import PARALLEL
from smelt.kernel.offsets import lower_bound, pack
from smelt.knobs.values import show_bytes
from smelt.python.dataclass import dataclass
from smelt.runtime.threads import pool
from smelt.types.dtype import DType
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import Shape

Array = np.ndarray[Any, Any]
Sizes: TypeAlias = Mapping[str, int]
Strides: TypeAlias = tuple[int, ...]
"""Strides of an array in elements."""
NO_STRIDES: Mapping[int, Strides] = {}
"""The strides of inputs that are all contiguous."""


class Value(NamedTuple):
    """Tensor of the plan.

    `place` is input, held (a result of the prelude), output, arena or within (the memory of an
    output that is not written yet). `number` is its index among the values there, or that
    output's number; `offset` its bytes into the arena or that output.
    """

    dtype: DType
    shape: Shape
    place: str
    number: int = -1
    offset: Index = 0
    overwrites: int = -1
    """For an output, the input that it overwrites; -1: separate memory."""


class NativeFunction(NamedTuple):
    """Function of a kernel: its address, tasks, scratch bytes, cycles of work."""

    address: int
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Kernel on values.

    `words` are its arguments in order: ("value", n), ("partial", k), ("size", expression) or
    ("stride", (n, d)).
    """

    name: str
    entries: tuple[NativeFunction, ...]
    words: tuple[tuple[str, Any], ...]
    partials: tuple[Index, ...] = ()
    loaded: Any = None
    specialize: Callable[[Sizes, bool], KernelStep | None] | None = None
    """Returns a step better suited to given sizes, or None.

    The flag requests non-temporal stores.
    """
    stream_above: int = 1 << 62
    """Threshold on bytes of results: non-temporal stores are faster above, no cache holds them."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Plan's names, or numbers, for the code's size names in `entries` and `partials`.

    Kernels that differ in names share their code.
    """

    def sizes(self, named: Sizes) -> Sizes:
        """Return the plan's sizes under the code's names."""
        constants = {code_name: int(n) for code_name, n in self.names.items() if n.isdigit()}
        return {
            **named,
            **constants,
            **{code_name: named[n] for code_name, n in self.names.items() if n in named},
        }


class CallStep(NamedTuple):
    """Library call on arrays: call(sizes, inputs, outputs) writes its outputs.

    `prepare` sets up what the call needs for given sizes before anything runs, and returns the
    bytes that the call takes while it runs.
    """

    name: str
    call: Callable[[Sizes, list[Array], list[Array]], None]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    prepare: Callable[[Sizes], int] | None = None


Step = KernelStep | CallStep


# ---- places of values ---------------------------------------------------------------------------

CACHE_LINE_BYTES = 64
"""Cache line in bytes; all offsets are multiples of it."""
MIN_SAVED_BYTES = 1 << 18
"""Bytes that must be saved to replace the plan's offsets; searching takes about a millisecond."""

Place: TypeAlias = tuple[int, int]
"""Output whose memory holds the value (-1: the arena), and the byte offset."""


class Layout(NamedTuple):
    """Placement of values and kernel workspaces at given sizes."""

    values: Mapping[int, Place]
    """Locations of values that are neither inputs nor results, by number."""
    partials: Mapping[tuple[int, int, int], int]
    """Arena offsets of workspaces, by group, step and number in the step."""
    nbytes: int
    """Arena size in bytes."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Memory of one value, of values sharing one location, or of a kernel's workspace."""

    hint: int
    filled: int
    """Bytes used; `hint` is that rounded up to cache lines."""
    first: int
    last: int
    values: list[int] = field(default_factory=list[int])
    partial: tuple[int, int, int] | None = None
    at: int = 0
    host: int = -1


def place_values(
    values: Sequence[Value],
    launches: Sequence[Sequence[Step]],
    arena: Sequence[Index],
    sizes: Mapping[str, int],
) -> Layout:
    """Place values at `sizes`; `arena` lists where the plan's arena values end, in bytes."""
    partials = list(_workspaces(launches, sizes))
    top = _round_to_lines(max((int(evaluate(end, sizes)) for end in arena), default=0))
    plan_bytes = top + sum(p.hint for p in partials)
    if plan_bytes > MIN_SAVED_BYTES:
        pieces, written = _value_pieces(values, launches, sizes)
        results = {n: _nbytes(values[n], sizes) for n in written}
        least = _lower_bound([*pieces, *partials], written, results, len(launches))
        if plan_bytes - least > MIN_SAVED_BYTES:
            unplaced = _place_in_results(pieces, written, results)
            nbytes = pack([*unplaced, *partials])
            if plan_bytes - nbytes > MIN_SAVED_BYTES:
                hosts = {n: values[n].number for n in written}
                placed = {n: (hosts.get(p.host, -1), p.at) for p in pieces for n in p.values}
                return Layout(placed, {p.partial: p.at for p in partials if p.partial}, nbytes)
    for p in partials:
        p.at, top = top, top + p.hint
    placed = {
        n: (v.number if v.place == "within" else -1, int(evaluate(v.offset, sizes)))
        for n, v in enumerate(values)
        if v.place in ("arena", "within")
    }
    return Layout(placed, {p.partial: p.at for p in partials if p.partial}, top)


def _round_to_lines(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


def _nbytes(value: Value, sizes: Mapping[str, int]) -> int:
    return math.prod(int(evaluate(d, sizes)) for d in value.shape) * value.dtype.itemsize


def _workspaces(launches: Sequence[Sequence[Step]], sizes: Mapping[str, int]) -> Iterator[_Piece]:
    """Yield the kernels' workspaces, which live for one launch."""
    for time, group in enumerate(launches):
        for k, step in enumerate(group):
            if isinstance(step, CallStep) or not step.partials:
                continue
            code_sizes = step.sizes(sizes)
            for j, size in enumerate(step.partials):
                nbytes = int(evaluate(size, code_sizes))
                yield _Piece(_round_to_lines(nbytes), nbytes, time, time, partial=(time, k, j))


def _value_pieces(
    values: Sequence[Value], launches: Sequence[Sequence[Step]], sizes: Mapping[str, int]
) -> tuple[list[_Piece], dict[int, int]]:
    """Return the pieces of values with their lifetimes, and when each result is first written.

    Values that take over another value's memory in the plan share a piece with it. Results
    written over inputs are left out.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, group in enumerate(launches):
        for step in group:
            for n in step_values(step):
                first.setdefault(n, time)
                last[n] = time
    current: dict[Any, _Piece] = {}
    pieces: list[_Piece] = []
    written: dict[int, int] = {}
    for n, begin in first.items():
        v = values[n]
        if v.place == "output" and v.overwrites < 0:
            written[n] = begin
        if v.place not in ("arena", "within"):
            continue
        nbytes, location = _nbytes(v, sizes), (v.place, v.number, v.offset)
        previous = current.get(location)
        if previous is not None and begin <= previous.last:
            previous.filled = max(previous.filled, nbytes)
            previous.hint, previous.last = (
                _round_to_lines(previous.filled),
                max(previous.last, last[n]),
            )
            previous.values.append(n)
            continue
        current[location] = piece = _Piece(_round_to_lines(nbytes), nbytes, begin, last[n], [n])
        pieces.append(piece)
    return pieces, written


def step_values(step: Step) -> Iterator[int]:
    """Yield the values that a step reads or writes."""
    if isinstance(step, CallStep):
        yield from step.inputs
        yield from step.outputs
    else:
        yield from (operand for kind, operand in step.words if kind == "value")


def _lower_bound(
    pieces: Sequence[_Piece], written: Mapping[int, int], results: Mapping[int, int], end: int
) -> int:
    """Return a lower bound of the arena: peak live bytes that fit into no result."""
    full = [_Piece(results[n], results[n], time, end) for n, time in written.items()]
    return max(lower_bound([*pieces, *full]) - sum(results.values()), 0)


def _place_in_results(
    pieces: list[_Piece], written: Mapping[int, int], results: Mapping[int, int]
) -> list[_Piece]:
    """Place pieces that are dead before a result is written inside that result.

    Results are tried from the largest down. Returns the pieces that still need arena space.
    """
    for host in sorted(written, key=lambda n: -results[n]):
        guests = [p for p in pieces if p.last < written[host] and p.filled <= results[host]]
        while guests:
            pack(guests)
            fits = [p for p in guests if p.at + p.filled <= results[host]]
            if len(fits) == len(guests):
                break
            guests = fits
        for p in guests:
            p.host = host
        pieces = [p for p in pieces if p.host < 0]
    return pieces


# ---- tables -------------------------------------------------------------------------------------

MAX_PREPARED = 256
"""Tables kept, one per tuple of sizes; the oldest is evicted first."""
Addresses: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""An address for each of many runs."""
Result: TypeAlias = tuple[int, tuple[int, ...], Any, int, int]
"""Value, shape, dtype, bytes, and the input it overwrites (-1: none)."""


@dataclass(slots=True, eq=False, kw_only=True)
class PlanTables:
    """Everything of a call that depends on sizes only, on any device."""

    sizes: dict[str, int]
    frame: array[int]
    """Arguments of all kernels, and then room for `most_arguments` words."""
    addresses: list[tuple[int, int, int]]
    """Words filled at the call: (slot, source, offset in bytes).

    Sources are inputs, then results, then held values.
    """
    arena: list[tuple[int, int]]
    """Words filled with addresses in the arena: (slot, offset in bytes)."""
    strides: list[tuple[int, int, int]]
    """Words filled with strides: (slot, input, dimension)."""
    arena_bytes: int
    shapes: list[tuple[int, ...]]
    """Shape of each value."""
    results: list[Result] = field(default_factory=list)
    most_arguments: int = 0
    aligned: frozenset[int] = frozenset()
    """Sources whose addresses must be multiples of 16."""

    @property
    def has_parts(self) -> bool:
        """Whether it does more than launch kernels."""
        raise NotImplementedError

    @property
    def operations(self) -> int | None:
        """Launches and copies that a call queues; None if values on the device decide."""
        return 0

    def fill(
        self, where: Sequence[int], arena: int, strides: Mapping[int, Strides] = NO_STRIDES
    ) -> array[int]:
        """Return the frame of a call on sources and an arena given by address.

        `strides` are those of inputs that need not be contiguous, by number.
        """
        frame = self.frame[:]
        if strides:
            for slot, source, d in self.strides:
                if source in strides:
                    frame[slot] = strides[source][d]
        for slot, source, offset in self.addresses:
            frame[slot] = where[source] + offset
        for slot, offset in self.arena:
            frame[slot] = arena + offset
        return frame

    def check_limit(self, working: int = 0, copied: int = 0, passed: int = 0) -> None:
        """Raise OutOfMemory if a call needs more than the knob MAX_EXTRA_MEMORY allows.

        It also takes `working` bytes and copies of arguments, and `passed` bytes of results are
        the caller's.
        """
        limit = knobs.MAX_EXTRA_MEMORY.get()
        if limit is None:
            return
        new = sum(nbytes for *_, nbytes, over in self.results if over < 0)
        needed = self.arena_bytes + working + copied + new - passed
        if needed > limit:
            largest, what = max(
                (max((r[3] for r in self.results), default=0), "the largest result takes"),
                (copied, "copies of arguments with strides take"),
            )
            raise OutOfMemory(
                needed=show_bytes(needed),
                available=show_bytes(limit),
                largest=f"{what} {show_bytes(largest)}",
            )

    def fill_runs(self, count: int, where: Sequence[Addresses | int], arena: int) -> Addresses:
        """Return a frame for each of many runs in one arena, without room behind it."""
        words = len(self.frame) - self.most_arguments
        frames = np.empty((count, words), np.int64)
        frames[:] = self.frame[:words]
        for slot, source, offset in self.addresses:
            frames[:, slot] = where[source] + offset
        for slot, offset in self.arena:
            frames[:, slot] = arena + offset
        return frames


T = TypeVar("T", bound=PlanTables)


class PlanExecutable(Generic[T]):
    """Plan ready to run on a device, with tables for the sizes of calls."""

    reads_strides = False
    """Whether it reads inputs that are not contiguous as they lie, as a part of a plan."""

    def __init__(
        self,
        size_names: tuple[str, ...],
        values: Sequence[Value],
        groups: Sequence[Sequence[Any]],
        arena: Sequence[Index],
        outputs: Sequence[int],
    ) -> None:
        self.size_names = size_names
        self.values = tuple(values)
        self.launches = tuple(map(tuple, groups))
        self.arena = tuple(arena)
        self.outputs = tuple(outputs)
        self._prepared: dict[tuple[int, ...], T] = {}
        self._lock = threading.Lock()

    def prepared(self, sizes: tuple[int, ...]) -> T:
        """Return the tables for calls with these sizes."""
        p = self._prepared.get(sizes)
        if p is None:
            p = self._build_tables(dict(zip(self.size_names, sizes, strict=True)))
            with self._lock:
                if len(self._prepared) >= MAX_PREPARED:
                    self._forget(next(iter(self._prepared)))
                self._prepared[sizes] = p
        return p

    def _build_tables(self, named: dict[str, int]) -> T:
        raise NotImplementedError

    def _forget(self, sizes: tuple[int, ...]) -> None:
        del self._prepared[sizes]


class TableBuilder:
    """Common part of the builders of tables."""

    places: Layout

    def __init__(self, values: Sequence[Value], sizes: dict[str, int]) -> None:
        self.values, self.sizes = values, sizes
        self.shapes = [tuple(int(evaluate(d, sizes)) for d in v.shape) for v in values]
        self.inputs = sum(v.place == "input" for v in values)
        self._first_held = self.inputs + sum(v.place == "output" for v in values)
        self.frame: list[int] = []
        self.addresses: list[tuple[int, int, int]] = []
        self.arena: list[tuple[int, int]] = []
        self.strides: list[tuple[int, int, int]] = []

    def nbytes(self, n: int) -> int:
        """Return the bytes of a value."""
        return math.prod(self.shapes[n]) * self.values[n].dtype.itemsize

    def results(self) -> list[Result]:
        """Return the computed values, in their order."""
        return [
            (n, self.shapes[n], v.dtype, self.nbytes(n), v.overwrites)
            for n, v in enumerate(self.values)
            if v.place == "output"
        ]

    def locate(self, n: int) -> tuple[int, int]:
        """Return the source of a value, -1 for the arena, and its byte offset there."""
        v = self.values[n]
        first = {"input": 0, "output": self.inputs, "held": self._first_held}.get(v.place)
        if first is not None:
            return first + v.number, 0
        host, offset = self.places.values[n]
        return (self.inputs + host if host >= 0 else -1), offset

    def add_address(self, slot: int, n: int) -> int:
        """Note that a word is the address of a value; return its source."""
        source, offset = self.locate(n)
        if source < 0:
            self.arena.append((slot, offset))
        else:
            self.addresses.append((slot, source, offset))
        return source


# ---- launches ------------------------------------------------------------------------------------


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
