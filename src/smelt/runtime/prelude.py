"""What a plan computes from its constant inputs: once, for as long as they are what they were.

The results of a prelude belong to the constants that they were computed from, told apart by
identity: the objects that own them.  A run of a prelude is *kept* while all its owners live and
their stamps (address and version, say) stay as they were; a changed stamp makes it run again.
Where memory may be written without a new stamp, a few elements spread over each constant are looked
at as well in every call, and one stretch of them all in turn: whatever changes the whole is noticed
at once, a single element after `Run.turns` calls at most.  Results die with the first of their
owners.

Equal parts of several plans on the same constants are one array.  All arrays together stay below
the knob CONSTANTS; beyond it the runs that were made first go first.
"""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.runtime.memory import address_of

WATCHED = 16
"""Elements of a constant that are looked at in every call."""
STRETCH = 1 << 15
"""Bytes of all constants that are looked at in a call, in turn: about five microseconds."""

Array = np.ndarray[Any, Any]
Key: TypeAlias = tuple[int, ...]
Stamps: TypeAlias = tuple[Hashable, ...]


class Runnable(Protocol):
    """A compiled graph."""

    @property
    def size_names(self) -> tuple[str, ...]: ...

    def run(self, arrays: Sequence[Array], sizes: tuple[int, ...]) -> list[Array]: ...


Compiler: TypeAlias = Callable[[Graph, Mapping[str, int]], Runnable]
"""Makes what runs a graph, given sizes that are likely."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Memory that a program may take, where its caller knows what it would take without Smelt."""

    nbytes: int
    """Of results, what lies between them and constants that are kept, together."""
    kept: int
    """Of constants that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A graph of one output, for given sizes."""

    graph: Graph
    sizes: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Part:
    """One result of a prelude: computed from constants, laid out for its reader, or both."""

    name: str
    """The value in the plan that it is, or is made from."""
    steps: tuple[Step, ...]
    """What computes it, one after another; the first one reads the sources."""
    sources: tuple[int, ...]
    """The inputs of the plan that it reads."""
    nbytes: int
    computed: bool
    packed: bool

    @cached_property
    def key(self) -> str:
        """What is computed: equal keys on the same constants give equal arrays."""
        return "\n".join(f"{text(s.graph)} {dict(s.sizes)}" for s in self.steps)

    def facts(self) -> dict[str, Any]:
        """Everything as JSON data."""
        return {
            "name": self.name,
            "steps": [(text(s.graph), dict(s.sizes)) for s in self.steps],
            "sources": self.sources,
            "nbytes": self.nbytes,
            "computed": self.computed,
            "packed": self.packed,
        }

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Part:
        """The inverse of `facts`.  Raises KeyError, TypeError or ValueError if it is not that."""
        steps = tuple(Step(_parsed(source), dict(sizes)) for source, sizes in facts["steps"])
        return Part(
            facts["name"],
            steps,
            tuple(facts["sources"]),
            int(facts["nbytes"]),
            bool(facts["computed"]),
            bool(facts["packed"]),
        )


@lru_cache(maxsize=512)
def _parsed(source: str) -> Graph:
    """The graph of a step; the layers of a network have the same ones."""
    return parse(source)


_MADE: dict[tuple[str, str], Runnable] = {}
_MADE_LIMIT = 512


def _run_step(step: Step, arrays: Sequence[Array], compiler: Compiler) -> Array:
    """The step's result; its graph is compiled once a process."""
    key = text(step.graph), knobs.fingerprint()
    made = _MADE.get(key)
    if made is None:
        while len(_MADE) >= _MADE_LIMIT:
            _MADE.pop(next(iter(_MADE)), None)
        made = _MADE.setdefault(key, compiler(step.graph, step.sizes))
    (found,) = made.run(arrays, tuple(step.sizes[n] for n in made.size_names))
    return found


class Held:
    """One result, shared by all runs that hold it."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array


class _Watch:
    """Elements of an array, its ends among them, and what they were."""

    __slots__ = ("_at", "_bits", "_known")

    def __init__(self, array: Array) -> None:
        # not by `np.unique`, which imports masked arrays: tens of milliseconds
        spread = np.linspace(0, max(array.size - 1, 0), WATCHED).astype(np.int64)
        places = spread[np.diff(spread, prepend=-1) > 0][: array.size]
        bits = array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array
        if bits.flags.c_contiguous:
            self._bits, self._at = bits.reshape(-1), places
        else:
            self._bits, self._at = bits, np.unravel_index(places, bits.shape)
        self._known = self._now()

    def _now(self) -> bytes:
        bits: bytes = self._bits[self._at].tobytes()
        return bits

    def same(self) -> bool:
        """Whether they still are."""
        return self._now() == self._known


class _Patrol:
    """The checksums of an array's bytes, stretch by stretch; none where they do not lie together.

    CRC-32 tells every change within 32 neighbouring bits, and any other but one in 4e9 (ISO 3309).
    """

    __slots__ = ("_bytes", "sums")

    def __init__(self, array: Array) -> None:
        order = sorted(range(array.ndim), key=lambda d: -abs(array.strides[d]))
        turned = array.transpose(order)
        together = turned.flags.c_contiguous and array.size
        bits = turned.reshape(-1).view(np.uint8) if together else np.empty(0, np.uint8)
        self._bytes = bits.data
        self.sums = tuple(map(self._sum, range(0, len(self._bytes), STRETCH)))

    def _sum(self, at: int) -> int:
        return zlib.crc32(self._bytes[at : at + STRETCH])

    def same(self, turn: int) -> bool:
        """Whether one stretch still has its checksum."""
        return self._sum(turn * STRETCH) == self.sums[turn]


class Run:
    """The results of a prelude for given constants; `stamps` say in which state those were.

    Watching a constant also keeps its memory alive, so that no other gets its address."""

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
        self, held: Sequence[Held], stamps: Stamps, watched: Sequence[tuple[Array, _Patrol]]
    ) -> None:
        self.held, self.stamps = tuple(held), stamps
        self.watches = [_Watch(a) for a, _ in watched]
        self._patrols = [(p, k) for _, p in watched for k in range(len(p.sums))]
        self._turn = 0
        self.arrays = [h.array for h in held]
        self.addresses = [address_of(a) for a in self.arrays]
        self.owners: tuple[weakref.ref[Any], ...] = ()

    @property
    def turns(self) -> int:
        """Calls after which every byte that is watched has been looked at."""
        return len(self._patrols)

    def same(self) -> bool:
        """Whether all that is looked at in this call is as it was."""
        if self._patrols:
            patrol, part = self._patrols[self._turn % len(self._patrols)]
            self._turn += 1  # two threads at once look at one stretch twice
            if not patrol.same(part):
                return False
        return all(w.same() for w in self.watches)


class Prelude:
    """The parts of one plan, and the runs that are kept.  Safe to use from several threads."""

    def __init__(self, parts: Sequence[Part], compiler: Compiler) -> None:
        self.parts = tuple(parts)
        self._compiler = compiler
        self.sources = tuple(sorted({s for p in parts for s in p.sources}))
        """The inputs of the plan that some part reads."""
        self._runs: dict[Key, Run] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all results."""
        return sum(p.nbytes for p in self.parts)

    @property
    def holds(self) -> bool:
        """Whether results are kept now, for constants that are alive."""
        return bool(self._runs)

    def compute(self, inputs: Sequence[Array]) -> list[Array]:
        """The results for the plan's inputs, kept nowhere."""
        return [self._compute(p, [inputs[s] for s in p.sources]) for p in self.parts]

    def _compute(self, part: Part, arrays: list[Array]) -> Array:
        for step in part.steps:
            arrays = [_run_step(step, arrays, self._compiler)]
        return arrays[0]

    def once(self, inputs: Sequence[Array]) -> Run:
        """The same as a run, for constants that nothing can be known of."""
        return Run([Held(a) for a in self.compute(inputs)], (), ())

    def run(
        self,
        owners: Sequence[Any],
        stamps: Stamps,
        elements: Callable[[int], Array],
        *,
        watched: bool = False,
    ) -> Run:
        """The results for constants that `owners` own, one for each of `sources`.

        A stamp changes whenever its owner's elements are known to; `elements(k)` gives those of
        input k.  They are `watched` where somebody may write to them by another way.
        """
        key = tuple(map(id, owners))
        found = self._runs.get(key)
        told = found is None or found.stamps != stamps
        if found is not None and not told and found.same():
            return found
        self.drop(key)
        places = dict(zip(self.sources, zip(key, stamps, strict=True), strict=True))
        settings = knobs.fingerprint()
        marks = {s: _Patrol(elements(s)) for s in self.sources} if watched else {}
        held: list[Held] = []
        for p in self.parts:
            sums = tuple(marks[s].sums for s in p.sources if s in marks)
            name = p.key, settings, tuple(places[s] for s in p.sources), sums
            one = _HELD.get(name) if told else None  # equal stamps told nothing just now
            if one is None:
                one = _HELD[name] = Held(self._compute(p, [elements(s) for s in p.sources]))
            held.append(one)
        found = Run(held, stamps, [(elements(s), mark) for s, mark in marks.items()])
        if _make_room(self.nbytes):
            self._keep(key, owners, found)
        return found

    def _keep(self, key: Key, owners: Sequence[Any], run: Run) -> None:
        home: weakref.ref[Prelude] = weakref.ref(
            self
        )  # a run that held its prelude would wait for the collector

        def forget(_: object) -> None:
            prelude = home()
            if prelude is not None:
                prelude.drop(key)

        run.owners = tuple(weakref.ref(x, forget) for x in owners)
        self._runs[key] = run
        _ORDER.append((home, key))

    def drop(self, key: Key) -> None:
        """Forgets a run; the next call with its owners makes it again."""
        self._runs.pop(key, None)

    def clear(self) -> None:
        """Forgets all runs."""
        self._runs.clear()


_HELD: weakref.WeakValueDictionary[Hashable, Held] = weakref.WeakValueDictionary()
_ORDER: deque[tuple[weakref.ref[Prelude], Key]] = deque()
"""Runs in order of making.  Every step on it is atomic: there is no lock that a fork could copy."""
_ORDER_LIMIT = 4096


def held_bytes() -> int:
    """Bytes that the results of preludes take in this process."""
    return sum(h.array.nbytes for h in tuple(_HELD.values()))


def clear() -> None:
    """Forgets every kept run of the process: the next calls look at their constants anew."""
    while _ORDER:
        _forget_oldest()
    _HELD.clear()  # what a call in progress still reads is no answer for later ones


def _make_room(nbytes: int) -> bool:
    """Forgets old runs until all results together stay below the cap; False if these alone do
    not."""
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


__all__ = ["Allowance", "Compiler", "Held", "Part", "Prelude", "Run", "Step", "clear", "held_bytes"]
