"""A compiled plan and its calls: tables made once for given sizes, one native call after that.

A call looks its sizes up, takes blocks for its results and one for everything in between, writes
the addresses into a copy of the argument frame, and enters native code once for each run of
kernels without a library call between them.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.errors import OutOfMemory
from smelt.kernel.abi import PARALLEL
from smelt.knobs.values import show_bytes
from smelt.runtime.memory import Block, address_of, allocate
from smelt.runtime.places import target
from smelt.runtime.prelude import Prelude, Run
from smelt.runtime.threadpools import announce
from smelt.runtime.threads import pool
from smelt.types.dtype import DType
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import Shape

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]

GRAIN_NS = 20_000.0
"""Least predicted time of a chunk: a helper's late start costs about a fifth of this."""
INLINE_NS = 8_000.0
"""Predicted time below which a launch runs in the calling thread alone."""
CYCLES_A_NS = 4.0
"""Near enough for cutting chunks on any machine of these years."""
MOST_CHUNKS = 64
_KNOWN = {"input": 0, "output": 1, "held": 2}
KEPT_SIZES = 256
"""Prepared tables kept; the oldest goes first."""


class Value(NamedTuple):
    """A tensor of the plan: `place` is input, held (a result of the prelude), output, arena or
    within (the memory of an output that is not written yet); `number` its position among its kind,
    or that output's, `offset` its bytes into the arena or that output."""

    dtype: DType
    shape: Shape
    place: str
    number: int = -1
    offset: Index = 0
    over: int = -1
    """For an output, the input in whose memory it is written; -1: memory of its own."""


class Native(NamedTuple):
    """One function of a kernel: its address, tasks, scratch bytes, cycles of work."""

    address: int
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A kernel on values.  `words` are its arguments in order: ("value", n), ("partial", k),
    ("size", expression) or ("stride", (n, d))."""

    name: str
    entries: tuple[Native, ...]
    words: tuple[tuple[str, Any], ...]
    partials: tuple[Index, ...] = ()
    loaded: Any = None
    variant: Callable[[Sizes, bool], KernelStep | None] | None = None
    """Another step that serves given sizes better, if one does; the flag asks for one that stores
    past the caches."""
    stream_above: int = 1 << 62
    """Bytes of a result above which that pays: no cache holds it."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The plan's names for the sizes in `entries` and `partials`, or their numbers, by the code's
    own names: kernels that differ in names share their code."""

    def sizes(self, named: Sizes) -> Sizes:
        """The plan's sizes under the code's names."""
        told = {own: int(n) for own, n in self.names.items() if n.isdigit()}
        return {**named, **told, **{own: named[n] for own, n in self.names.items() if n in named}}


class CallStep(NamedTuple):
    """A library call on arrays: call(sizes, inputs, outputs) writes its outputs."""

    name: str
    call: Callable[[Sizes, list[Array], list[Array]], None]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Step = KernelStep | CallStep


@dataclass(slots=True)
class Segment:
    """Kernels of one native call (tables and their addresses), or one library call."""

    call: CallStep | None = None
    tables: tuple[Array, ...] = ()
    chunks: int = 0
    launches: int = 0
    count: int = 0


@dataclass
class Prepared:
    """Everything about a call that sizes decide."""

    sizes: dict[str, int]
    shapes: list[tuple[int, ...]]
    frame: array[int]
    addresses: list[tuple[int, int, int]]
    """Words of the frame that are told at the call, by whose address, and how far behind that."""
    arena: list[tuple[int, int]]
    strides: list[tuple[int, int, int]]
    segments: list[Segment]
    arena_bytes: int
    scratch: int
    code: list[Any]
    """What the tables hold addresses of; it must live as long as they do."""
    results: list[tuple[int, tuple[int, ...], Any, int, int]] = field(default_factory=list)
    """Value, shape, dtype, bytes and the input written over (-1: none), by output."""
    work: float = 0.0
    """Predicted time in ns."""
    parallel: bool = False
    """Whether a launch is meant for several threads."""


def _filled(p: Prepared, where: list[int], block: Block | None) -> array[int]:
    """The argument frame of a call, addresses written into it."""
    frame = p.frame[:]
    for slot, source, offset in p.addresses:
        frame[slot] = where[source] + offset
    if block is not None:
        base = block.address
        for slot, offset in p.arena:
            frame[slot] = base + offset
    return frame


class Executable:
    """A plan that runs.  Safe to call from several threads."""

    def __init__(
        self, size_names: tuple[str, ...], values: Sequence[Value],
        launches: Sequence[Sequence[Step]], arena: Sequence[Index], outputs: Sequence[int],
        prelude: Prelude | None = None,
    ) -> None:  # fmt: skip
        """`launches` are groups of independent steps, in order; `outputs` number the values that
        are returned (an input among them is returned as it is); `arena` lists where values in
        the arena end, in bytes; `prelude` makes the values that are held."""
        self.size_names = size_names
        self.values = tuple(values)
        self.launches = tuple(tuple(group) for group in launches)
        self.arena = tuple(arena)
        self.outputs = tuple(outputs)
        self.prelude = prelude
        announce()
        self._prepared: dict[tuple[int, ...], Prepared] = {}
        self._lock = threading.Lock()

    # ---- calls -----------------------------------------------------------------------------------

    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
        held: Run | None = None,
        between: Block | None = None,
    ) -> list[Array]:
        """The results.  `arrays` are the inputs, `sizes` the values of `size_names`, `out` arrays
        to write into (None: allocate), for each result, or for each value that is computed in
        order of first return where that is another number, `held` the prelude's results for these
        inputs (None: computed now, kept nowhere), `between` memory for what stands between kernels,
        at least the `arena_bytes` of these sizes (None: taken for this call).

        Raises OutArgumentError for an `out` array of another shape or type or that is read-only,
        OutOfMemory before anything runs when memory does not suffice.
        """
        p = self._prepared.get(sizes)
        if p is None:
            p = self._prepare(sizes)
        ready = self._ready(arrays, held)
        results: list[Array] = []
        copies: list[tuple[Array, Array]] = []
        same = len(self.outputs) == len(p.results)
        each = out if out is not None and not same and len(out) == len(self.outputs) else None
        wanted = out if each is None else self._wanted(p, arrays, each, copies)
        for k, (_, shape, dtype, nbytes, over) in enumerate(p.results):
            given = wanted[k] if wanted is not None else None
            if given is None and over >= 0:
                results.append(arrays[over])
            elif given is None:
                results.append(allocate(nbytes).array(shape, dtype))
            else:
                results.append(target(given, shape, dtype, (*arrays, *results), copies))
        block = between
        if block is None and p.arena_bytes:
            block = allocate(p.arena_bytes)
        frame = p.frame
        if frame:
            frame = _filled(p, [address_of(a) for a in (*arrays, *results, *ready)], block)
            for slot, source, d in p.strides:
                frame[slot] = arrays[source].strides[d] // arrays[source].itemsize
        address = frame.buffer_info()[0]
        run = pool().run_addresses
        for s in p.segments:
            if s.call is None:
                run(s.chunks, s.launches, s.count, address, p.scratch)
            else:
                self._library(s.call, p, (arrays, results, ready), block)
        for given, temporary in copies:
            given[...] = temporary
            results = [given if r is temporary else r for r in results]
        return results if same else self._returned(p, arrays, results, each, out is None)

    def run_at(
        self, addresses: list[int], sizes: tuple[int, ...], inputs: Sequence[Any],
        held: Run | None = None,
    ) -> list[Array]:  # fmt: skip
        """The results for inputs that are told by their addresses.  Left out are inputs among
        them, and those that are written over inputs.

        `inputs` answer `stride(d)` in elements where a stride is told at the call, and as
        `np.asarray` where a library call reads them.  `held` as in `run`.  Raises OutOfMemory.
        """
        p = self._prepared.get(sizes)
        if p is None:
            p = self._prepare(sizes)
        if any(s.call is not None for s in p.segments) or (held is None and self.prelude):
            arrays = [np.asarray(x) for x in inputs]
            found = self.run(arrays, sizes, None, held)
            by_value = dict(zip(self.outputs, found, strict=True))
            return [by_value[v] for v, *_, over in p.results if over < 0]
        results: list[Array] = []
        where = addresses[:]
        for _, shape, dtype, nbytes, over in p.results:
            if over < 0:
                results.append(allocate(nbytes).array(shape, dtype))
            where.append(addresses[over] if over >= 0 else address_of(results[-1]))
        if held is not None:
            where += held.addresses
        block = allocate(p.arena_bytes) if p.arena_bytes else None
        frame = _filled(p, where, block)
        for slot, source, d in p.strides:
            frame[slot] = inputs[source].stride(d)
        address = frame.buffer_info()[0]
        run = pool().run_addresses
        for s in p.segments:
            run(s.chunks, s.launches, s.count, address, p.scratch)
        return results

    def prepared(self, sizes: tuple[int, ...]) -> Prepared:
        """Everything about calls with these sizes."""
        return self._prepared.get(sizes) or self._prepare(sizes)

    def _ready(self, arrays: Sequence[Array], held: Run | None) -> list[Array]:
        """The values that are held."""
        if self.prelude is None:
            return []
        return self.prelude.compute(arrays) if held is None else held.arrays

    def _wanted(
        self, p: Prepared, arrays: Sequence[Array], out: Sequence[Array | None],
        copies: list[tuple[Array, Array]],
    ) -> list[Array | None]:  # fmt: skip
        """Where each value that is computed goes, the first place of several; inputs that are
        returned as they are become copies, made now: something may be written over them."""
        first: dict[int, Array | None] = {v: None for v, *_ in p.results}
        for v, given in zip(self.outputs, out, strict=True):
            if v not in first and given is not None:
                copies.append((given, arrays[self.values[v].number].copy()))
            elif v in first and first[v] is None:
                first[v] = given
        return list(first.values())

    def _returned(
        self, p: Prepared, arrays: Sequence[Array], results: list[Array],
        out: Sequence[Array | None] | None, apart: bool,
    ) -> list[Array]:  # fmt: skip
        """Results by output, inputs returned as they are among them: those are in the arrays given
        for them, as is the first of several that share a value; `apart`, the others are copies."""
        computed = {v: r for (v, *_), r in zip(p.results, results, strict=True)}
        found: list[Array] = []
        handed: set[int] = set()
        for v, given in zip(self.outputs, out or [None] * len(self.outputs), strict=True):
            made = computed.get(v)
            if made is not None and given is not None and given is not made:
                given[...] = made
            as_it_is = made if made is not None else arrays[self.values[v].number]
            own = made.copy() if apart and made is not None and v in handed else as_it_is
            handed.add(v)
            found.append(own if given is None else given)
        return found

    def _library(
        self, step: CallStep, p: Prepared,
        known: tuple[Sequence[Array], list[Array], list[Array]], block: Any,
    ) -> None:  # fmt: skip
        def view(number: int) -> Array:
            v = self.values[number]
            kind = _KNOWN.get(v.place)
            if kind is not None:
                return known[kind][v.number]
            if v.place == "within":
                return self._guest(v, p, number, known[1][v.number])
            if block is None:  # every value between the steps is empty
                return np.empty(p.shapes[number], v.dtype.numpy)
            offset = int(evaluate(v.offset, p.sizes))
            made: Array = block.array(p.shapes[number], v.dtype.numpy, offset=offset)
            return made

        step.call(p.sizes, [view(n) for n in step.inputs], [view(n) for n in step.outputs])

    def _guest(self, v: Value, p: Prepared, number: int, host: Array) -> Array:
        """A value in the memory of a result."""
        shape, start = p.shapes[number], int(evaluate(v.offset, p.sizes))
        bits = host.reshape(-1).view(np.uint8)
        nbytes = math.prod(shape) * v.dtype.itemsize
        return bits[start : start + nbytes].view(v.dtype.numpy).reshape(shape)

    # ---- preparation -----------------------------------------------------------------------------

    def _within_limit(self, p: Prepared) -> None:
        """Raises OutOfMemory if a call needs more than the knob MAX_EXTRA_MEMORY allows."""
        limit = knobs.MAX_EXTRA_MEMORY.get()
        largest = max((nbytes for *_, nbytes, _ in p.results), default=0)
        needed = p.arena_bytes + sum(nbytes for *_, nbytes, over in p.results if over < 0)
        if limit is not None and needed > limit:
            raise OutOfMemory(
                needed=show_bytes(needed),
                available=show_bytes(limit),
                largest=f"the largest result takes {show_bytes(largest)}",
            )

    def _prepare(self, sizes: tuple[int, ...]) -> Prepared:
        named = dict(zip(self.size_names, sizes, strict=True))
        shapes = [tuple(int(evaluate(d, named)) for d in v.shape) for v in self.values]
        most = max((math.prod(shape) for shape in shapes), default=0)
        if most >= 1 << 62:  # what follows counts in 64 bits
            raise OutOfMemory(needed=f"{most:,} elements", available="2**63 - 1 bytes at most",
                              largest="a value of the program is larger")  # fmt: skip
        builder = _Builder(self, named, shapes)
        for group in self.launches:
            builder.group(group)
        p = builder.finish()
        for v, value in enumerate(self.values):
            if value.place == "output":
                nbytes = int(np.prod(shapes[v], dtype=object)) * value.dtype.itemsize
                p.results.append((v, shapes[v], value.dtype.numpy, nbytes, value.over))
        p.results.sort(key=lambda r: self.values[r[0]].number)
        self._within_limit(p)
        with self._lock:
            if len(self._prepared) >= KEPT_SIZES:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[sizes] = p
        return p


class _Builder:
    """Makes the tables of one set of sizes."""

    def __init__(self, home: Executable, named: dict[str, int], shapes: list[Any]) -> None:
        self.home, self.named, self.shapes = home, named, shapes
        self.inputs = sum(v.place == "input" for v in home.values)
        self.outside = self.inputs + sum(v.place == "output" for v in home.values)
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
        self.top = max((self.number(end) for end in home.arena), default=0)
        self.top = (self.top + 63) // 64 * 64

    def number(self, e: Index, named: Sizes | None = None) -> int:
        return int(evaluate(e, self.named if named is None else named))

    def group(self, steps: Sequence[Step]) -> None:
        """One group of independent steps: its kernels share launches, phase by phase."""
        kernels = [self._variant(s) for s in steps if isinstance(s, KernelStep)]
        self.code += [s.loaded for s in kernels]
        frames = [self._words(s) for s in kernels]
        for phase in range(max((len(s.entries) for s in kernels), default=0)):
            first, work = len(self.chunks), 0.0
            for step, base in zip(kernels, frames, strict=True):
                if phase < len(step.entries):
                    work += self._chunks(step.entries[phase], base, step.sizes(self.named))
            parallel = PARALLEL if work > INLINE_NS and len(self.chunks) - first > 1 else 0
            self.work += work
            self.parallel = self.parallel or bool(parallel)
            if len(self.chunks) > first:
                self.launches.append((first, len(self.chunks) - first, parallel, 0))
        for s in steps:
            if isinstance(s, CallStep):
                self._flush()
                self.segments.append(Segment(call=s))

    def _variant(self, step: KernelStep) -> KernelStep:
        """The kernel for these sizes: for few rows, say, or storing past the caches where a
        result outgrows them."""
        written = [what for kind, what in step.words if kind == "value"]
        largest = max((self._nbytes(v) for v in written
                       if self.home.values[v].place == "output"
                       and self.home.values[v].over < 0), default=0)  # fmt: skip
        if step.variant is None:
            return step
        return step.variant(self.named, largest > step.stream_above) or step

    def _nbytes(self, number: int) -> int:
        value = self.home.values[number]
        return math.prod(self.shapes[number]) * value.dtype.itemsize

    def _words(self, step: KernelStep) -> int:
        """The argument words of a kernel; gives their byte offset in the frame."""
        base = len(self.frame)
        places: list[int] = []
        own = step.sizes(self.named) if step.partials else self.named
        for nbytes in step.partials:
            places.append(self.top)
            self.top += (self.number(nbytes, own) + 63) // 64 * 64
        for kind, what in step.words:
            slot = len(self.frame)
            self.frame.append(0)
            if kind == "size":
                self.frame[slot] = self.number(what)
            elif kind == "partial":
                self.arena.append((slot, places[what]))
            elif kind == "stride":
                number, d = what
                self.strides.append((slot, self.home.values[number].number, d))
            else:
                self._address(slot, self.home.values[what])
        return base * 8

    def _address(self, slot: int, v: Value) -> None:
        if v.place == "input":
            self.addresses.append((slot, v.number, 0))
        elif v.place == "output":
            self.addresses.append((slot, self.inputs + v.number, 0))
        elif v.place == "within":
            self.addresses.append((slot, self.inputs + v.number, self.number(v.offset)))
        elif v.place == "held":
            self.addresses.append((slot, self.outside + v.number, 0))
        else:
            self.arena.append((slot, self.number(v.offset)))

    def _chunks(self, entry: Native, base: int, own: Sizes) -> float:
        """Cuts the tasks of one function into chunks; gives the predicted work in ns.  `own` are
        the sizes under the names of the kernel's code."""
        tasks, work = self.number(entry.tasks, own), self.number(entry.cycles, own) / CYCLES_A_NS
        self.scratch = max(self.scratch, self.number(entry.scratch, own))
        if tasks <= 0:
            return 0.0
        count = max(1, min(tasks, MOST_CHUNKS, int(work / GRAIN_NS)))
        if work <= INLINE_NS:
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
            self.segments.append(Segment(None, tables, chunks, launches, len(self.launches)))
        self.chunks, self.launches = [], []

    def finish(self) -> Prepared:
        self._flush()
        return Prepared(self.named, self.shapes, array("q", self.frame), self.addresses, self.arena,
                        self.strides, self.segments, self.top, self.scratch, self.code,
                        work=self.work, parallel=self.parallel)  # fmt: skip


__all__ = ["CallStep", "Executable", "KernelStep", "Native", "Prepared", "Value"]
