"""Compute and cache what a plan derives from constant inputs (prepacked weights, say).

Results of a prelude belong to the constants that they were computed from, identified by the
objects that own them. The results are cached while all owners live and their stamps (address and
version, say) are unchanged; a changed stamp recomputes them. Where memory may be written without
a new stamp, each call also compares a few elements spread over each constant and the checksum of
one stretch of bytes, cycling through all of them: a change of the whole is noticed at once, a
change of one element after at most `Run.check_period` calls. Results die with the first of their
owners.

Equal parts of several plans on the same constants share one array. All arrays together stay below
the knob CONSTANTS; beyond it the oldest runs are dropped first.
"""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from smelt import knobs
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.runtime.memory import address_of

WATCHED_ELEMENTS = 16
"""Elements of a constant that are compared in every call."""
CHECKSUM_BYTES = 1 << 15
"""Bytes whose checksum is verified per call, cycling through all constants."""

Array = np.ndarray[Any, Any]
Key: TypeAlias = tuple[int, ...]
Stamps: TypeAlias = tuple[Hashable, ...]


class Runnable(Protocol):
    """Compiled graph."""

    @property
    def size_names(self) -> tuple[str, ...]: ...

    def run(self, arrays: Sequence[Array], sizes: tuple[int, ...]) -> list[Array]: ...


Compiler: TypeAlias = Callable[[Graph, Mapping[str, int]], Runnable]
"""Compiles a graph, given likely sizes."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of a program's memory, set by callers that know its use without Smelt."""

    nbytes: int
    """Limit of results, intermediates and cached constants together."""
    constant_bytes: int
    """Limit of cached constants."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Graph with a single output, at fixed sizes."""

    graph: Graph
    sizes: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Part:
    """Single result of a prelude: computed from constants, packed for its reader, or both."""

    name: str
    """Value in the plan that it is, or is made from."""
    steps: tuple[Step, ...]
    """Graphs that compute it in sequence; the first one reads the sources."""
    sources: tuple[int, ...]
    """Inputs of the plan that it reads."""
    nbytes: int
    computed: bool
    packed: bool

    @cached_property
    def key(self) -> str:
        """Identity of the computation: equal keys on the same constants give equal arrays."""
        return "\n".join(f"{text(s.graph)} {dict(s.sizes)}" for s in self.steps)


_COMPILED: dict[tuple[str, str], Runnable] = {}
"""Compiled graphs of steps, by graph text and settings."""
_COMPILED_LIMIT = 512


def _run_step(step: Step, arrays: Sequence[Array], compiler: Compiler) -> Array:
    """Return the step's result, compiling its graph once per process."""
    key = text(step.graph), knobs.fingerprint()
    runnable = _COMPILED.get(key)
    if runnable is None:
        while len(_COMPILED) >= _COMPILED_LIMIT:
            _COMPILED.pop(next(iter(_COMPILED)), None)
        runnable = _COMPILED.setdefault(key, compiler(step.graph, step.sizes))
    (result,) = runnable.run(arrays, tuple(step.sizes[n] for n in runnable.size_names))
    return result


class SharedResult:
    """Result shared by all runs that use it."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array


class _Samples:
    """Sampled elements of an array, its ends included, with their values."""

    __slots__ = ("_at", "_bits", "_known")

    def __init__(self, array: Array) -> None:
        # np.unique would import masked arrays, which is slow
        spread = np.linspace(0, max(array.size - 1, 0), WATCHED_ELEMENTS).astype(np.int64)
        positions = spread[np.diff(spread, prepend=-1) > 0][: array.size]
        raw = array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array
        if raw.flags.c_contiguous:
            self._bits, self._at = raw.reshape(-1), positions
        else:
            self._bits, self._at = raw, np.unravel_index(positions, raw.shape)
        self._known = self._current()

    def _current(self) -> bytes:
        bits: bytes = self._bits[self._at].tobytes()
        return bits

    def same(self) -> bool:
        """Return whether the sampled elements are unchanged."""
        return self._current() == self._known


class _Checksums:
    """Checksums of an array's bytes by stretch; none if the bytes are not contiguous.

    CRC-32 detects every change within 32 adjacent bits, and misses one in 4e9 of others (ISO
    3309).
    """

    __slots__ = ("_bytes", "sums")

    def __init__(self, array: Array) -> None:
        order = sorted(range(array.ndim), key=lambda d: -abs(array.strides[d]))
        ordered = array.transpose(order)
        contiguous = ordered.flags.c_contiguous and array.size
        raw = ordered.reshape(-1).view(np.uint8) if contiguous else np.empty(0, np.uint8)
        self._bytes = raw.data
        self.sums = tuple(map(self._sum, range(0, len(self._bytes), CHECKSUM_BYTES)))

    def _sum(self, at: int) -> int:
        return zlib.crc32(self._bytes[at : at + CHECKSUM_BYTES])

    def same(self, turn: int) -> bool:
        """Return whether one stretch still has its checksum."""
        return self._sum(turn * CHECKSUM_BYTES) == self.sums[turn]


class Run:
    """Results of a prelude for given constants in the state that `stamps` describe.

    Watching a constant also keeps its memory alive, so that no other array gets its address.
    """

    __slots__ = (
        "__weakref__",
        "_patrols",
        "_turn",
        "addresses",
        "arrays",
        "held",
        "owners",
        "stamps",
        "watches",
    )

    def __init__(
        self,
        held: Sequence[SharedResult],
        stamps: Stamps,
        sampled: Sequence[tuple[Array, _Checksums]],
    ) -> None:
        self.held, self.stamps = tuple(held), stamps
        self.watches = [_Samples(a) for a, _ in sampled]
        self._patrols = [(p, k) for _, p in sampled for k in range(len(p.sums))]
        self._turn = 0
        self.arrays = [h.array for h in held]
        self.addresses = [address_of(a) for a in self.arrays]
        self.owners: tuple[weakref.ref[Any], ...] = ()

    @property
    def check_period(self) -> int:
        """Number of calls after which every watched byte has been checked."""
        return len(self._patrols)

    def unchanged(self) -> bool:
        """Return whether everything checked in this call is unchanged."""
        if self._patrols:
            checksums, part = self._patrols[self._turn % len(self._patrols)]
            self._turn += 1  # a race only checks a stretch twice
            if not checksums.same(part):
                return False
        return all(w.same() for w in self.watches)


class Prelude:
    """Parts of one plan, and its cached runs; safe to use from several threads."""

    def __init__(self, parts: Sequence[Part], compiler: Compiler) -> None:
        self.parts = tuple(parts)
        self._compiler = compiler
        self.sources = tuple(sorted({s for p in parts for s in p.sources}))
        """Inputs of the plan that some part reads."""
        self._runs: dict[Key, Run] = {}

    @property
    def nbytes(self) -> int:
        """Size of all results in bytes."""
        return sum(p.nbytes for p in self.parts)

    @property
    def has_results(self) -> bool:
        """Whether results are cached for constants that are alive."""
        return bool(self._runs)

    def compute(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the results for the plan's inputs without caching them."""
        return [self._compute(p, [inputs[s] for s in p.sources]) for p in self.parts]

    def _compute(self, part: Part, arrays: list[Array]) -> Array:
        for step in part.steps:
            arrays = [_run_step(step, arrays, self._compiler)]
        return arrays[0]

    def run_uncached(self, inputs: Sequence[Array]) -> Run:
        """Return an uncached run, for constants whose changes cannot be tracked."""
        return Run([SharedResult(a) for a in self.compute(inputs)], (), ())

    def run(
        self,
        owners: Sequence[Any],
        stamps: Stamps,
        elements: Callable[[int], Array],
        *,
        watched: bool = False,
    ) -> Run:
        """Return the results for constants with these owners, one owner per source.

        A stamp changes whenever its owner's elements are known to change; `elements(k)` returns
        the elements of input k. With `watched`, changes that leave the stamps equal are looked
        for as well.
        """
        key = tuple(map(id, owners))
        cached = self._runs.get(key)
        stamps_differ = cached is None or cached.stamps != stamps
        if cached is not None and not stamps_differ and cached.unchanged():
            return cached
        self.drop(key)
        stamped_sources = dict(zip(self.sources, zip(key, stamps, strict=True), strict=True))
        settings = knobs.fingerprint()
        checksums = {s: _Checksums(elements(s)) for s in self.sources} if watched else {}
        results: list[SharedResult] = []
        for p in self.parts:
            sums = tuple(checksums[s].sums for s in p.sources if s in checksums)
            name = p.key, settings, tuple(stamped_sources[s] for s in p.sources), sums
            # Equal stamps have just proved unreliable, so do not look results up by them.
            result = _HELD.get(name) if stamps_differ else None
            if result is None:
                result = _HELD[name] = SharedResult(
                    self._compute(p, [elements(s) for s in p.sources])
                )
            results.append(result)
        cached = Run(results, stamps, [(elements(s), mark) for s, mark in checksums.items()])
        if _make_room(self.nbytes):
            self._keep(key, owners, cached)
        return cached

    def adopt(self, owners: Sequence[Any], stamps: Stamps, arrays: Sequence[Array]) -> None:
        """Take results that were computed before for constants with these owners.

        They are kept while all owners live, whatever the knob CONSTANTS allows.
        """
        run = Run([SharedResult(x) for x in arrays], stamps, ())
        self._hold(tuple(map(id, owners)), owners, run)

    def _keep(self, key: Key, owners: Sequence[Any], run: Run) -> None:
        self._hold(key, owners, run)
        _ORDER.append((weakref.ref(self), key))

    def _hold(self, key: Key, owners: Sequence[Any], run: Run) -> None:
        # A strong reference would form a cycle that only the garbage collector frees.
        home: weakref.ref[Prelude] = weakref.ref(self)

        def forget(_: object) -> None:
            prelude = home()
            if prelude is not None:
                prelude.drop(key)

        run.owners = tuple(weakref.ref(x, forget) for x in owners)
        self._runs[key] = run

    def drop(self, key: Key) -> None:
        """Forget a run; the next call with its owners recomputes it."""
        self._runs.pop(key, None)

    def clear(self) -> None:
        """Forget all runs."""
        self._runs.clear()


_HELD: weakref.WeakValueDictionary[Hashable, SharedResult] = weakref.WeakValueDictionary()
"""Results by computation and state of the constants, shared by all preludes."""
_ORDER: deque[tuple[weakref.ref[Prelude], Key]] = deque()
"""Runs from oldest to newest.

Every operation on it is atomic, so there is no lock that a fork could copy.
"""
_ORDER_LIMIT = 4096


def held_bytes() -> int:
    """Return the bytes of all cached prelude results in this process."""
    return sum(h.array.nbytes for h in tuple(_HELD.values()))


def clear() -> None:
    """Forget every cached run of the process, so the next calls recompute them."""
    while _ORDER:
        _forget_oldest()
    _HELD.clear()  # later calls must not reuse results that a running call still holds


def _make_room(nbytes: int) -> bool:
    """Drop old runs until all results fit the cap; return whether `nbytes` fits."""
    limit = knobs.CONSTANTS.get()
    if nbytes > limit:
        return False
    while _ORDER and (len(_ORDER) > _ORDER_LIMIT or held_bytes() > limit):
        _forget_oldest()
    return True


def _forget_oldest() -> None:
    try:
        home, key = _ORDER.popleft()
    except IndexError:
        return
    prelude = home()
    if prelude is not None:
        prelude.drop(key)
