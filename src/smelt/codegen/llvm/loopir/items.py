"""A kernel ready to be scheduled: values as a flat graph with flat memory offsets.

Each item is one value with the axes it varies along; loads and stores carry one offset in elements.
A phase is work over a grid, in segments one after another; those of a stream's body (a region) run
once for every block of the stream.  A program is one phase, or two where a stream is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Literal

from smelt.dataclass import dataclass
from smelt.ops.combine import Combine
from smelt.types.dtype import DType
from smelt.types.expr import Index, atoms

Kind = Literal[
    "const",
    "index",
    "load",
    "apply",
    "branch",
    "cast",
    "fold",
    "dot",
    "scan",
    "position",
    "state",
    "edge",
    "peek",
    "unit",
]


class Item:
    """One value.  `axes` are those that it varies along; `dtype` is its register type; `time` is
    the first segment of the phase in which it is known."""

    __slots__ = ("args", "axes", "dtype", "kind", "number", "payload", "time")

    def __init__(
        self,
        number: int,
        kind: Kind,
        payload: Payload,
        args: tuple[Item, ...],
        axes: frozenset[str],
        dtype: DType,
        time: int = 0,
    ) -> None:
        self.number, self.payload = number, payload
        self.kind: Kind = kind
        self.args, self.axes, self.dtype, self.time = args, axes, dtype, time

    def __repr__(self) -> str:
        return f"%{self.number}:{self.kind}"


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load or store goes: an offset in elements, and limits that are not proven."""

    buffer: str
    offset: Index
    limits: tuple[tuple[Index, Index], ...] = ()
    other: float | int | bool = 0

    @property
    def gives_zero(self) -> bool:
        """Whether positions outside read as 0 (but not -0), as lanes outside a mask do."""
        return self.other == 0 and math.copysign(1.0, self.other) > 0

    @property
    def positions(self) -> list[str]:
        """Computed positions that are read."""
        return [
            a.name
            for e in (self.offset, *(x for p in self.limits for x in p))
            for a in atoms(e)
            if a.kind == "value"
        ]

    def moved(self, put: Callable[[Index], Index]) -> Access:
        """The same with other expressions for its axes."""
        limits = tuple((put(e), put(n)) for e, n in self.limits)
        return Access(self.buffer, put(self.offset), limits, self.other)


def accesses_of(items: Iterable[Item]) -> list[Access]:
    """What some items read from memory."""
    return [i.payload for i in items if isinstance(i.payload, Access)]


@dataclass(frozen=True, slots=True)
class Folding:
    """A fold over axes; `positions` is the row-major position over them, for arg kinds."""

    row: Combine
    over: tuple[str, ...]
    positions: Index
    plain: bool = False
    """Double precision is more than the result needs: its own errors need not be carried along."""
    pairs: bool = False
    """The result is rounded to single precision or less, by nobody who would see how it began."""
    factors: DType | None = None
    """Of a dot: the type whose products are summed (bfloat16 beside its float32 sums)."""


@dataclass(frozen=True, slots=True)
class Converting:
    """A conversion: the type written (a half type rounds, then goes on as float32)."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class Clamping:
    """A computed position: its name in index expressions and the extent it is clamped into, unless
    it is `inside` for sure, as what the part of a stream's body around it has asked."""

    name: str
    extent: Index
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """A number of the present block of an axis: its "first" index, its "last", or its "length"."""

    what: Literal["first", "last", "length"]
    axis: str


@dataclass(eq=False)
class Visit:
    """How a region walks an axis: in blocks of `size` (1: held still, None: all at once) from
    `first` (or `start`) up to `stop`, or through a part (the axis that numbers it, how many there
    are).  Blocks end at multiples of their size from `first`, wherever the walk starts."""

    axis: str
    size: int | None
    first: int = 0
    stop: Item | None = None
    part: tuple[str, Index] | None = None
    start: Item | None = None


@dataclass(eq=False)
class Region:
    """The body of a stream, inside `parent`; or that part of a body which runs in the blocks where
    `where` holds, or `sees` a part of some axes: it visits nothing itself."""

    parent: Region | None
    visits: tuple[Visit, ...]
    where: Item | None = None
    sees: tuple[Visit, ...] = ()

    @property
    def is_inner(self) -> bool:
        """Whether this is a part of a stream's body."""
        return self.where is not None or bool(self.sees)

    @property
    def cuts(self) -> tuple[Visit, ...]:
        """The axes of which there is but a part inside."""
        return (*self.visits, *self.sees)


def chain(region: Region | None) -> list[Region]:
    """A region and all around it, outer to inner."""
    found: list[Region] = []
    while region is not None:
        found.insert(0, region)
        region = region.parent
    return found


def still_axes(region: Region | None) -> set[str]:
    """The axes that a region and those around it hold still."""
    return {v.axis for r in chain(region) for v in r.visits if v.size == 1}


def visited_axes(region: Region | None) -> set[str]:
    """The axes that a region and those around it visit block by block."""
    return {v.axis for r in chain(region) for v in r.visits}


def cut_axes(region: Region | None) -> set[str]:
    """The axes of which a region and those around it have a part at a time."""
    return {v.axis for r in chain(region) for v in r.cuts}


def seen_axes(region: Region | None) -> set[str]:
    """The axes of which a region and those around it see a part."""
    return {v.axis for r in chain(region) for v in r.sees}


@dataclass(eq=False)
class Carried:
    """What a stream carries: one place over `axes`, which stands outside of the stream."""

    name: str
    axes: frozenset[str]
    dtype: DType
    region: Region | None


@dataclass(eq=False)
class Setting:
    """The new value of a carried state, at the end of a segment."""

    state: Carried
    value: Item
    time: int


@dataclass(frozen=True, slots=True)
class Peek:
    """Where a value is read that a task holds for many places: the index along each axis of them
    (`smelt.codegen.llvm.loopir.compute_at`)."""

    at: tuple[tuple[str, Index], ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """What an axis of places covers: from position `axis`*`step` on, `length` places for each
    position of another axis."""

    axis: str
    step: int
    length: int


Payload = (
    float
    | int
    | bool
    | Index
    | Access
    | str
    | Converting
    | Folding
    | Clamping
    | Edge
    | Carried
    | Peek
)


@dataclass(frozen=True, slots=True)
class StoreItem:
    """A write of `value` at an access, in the segment `time`."""

    access: Access
    value: Item
    where: Item | None
    axes: frozenset[str]
    time: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer argument: its name, element type, and whether it is written."""

    name: str
    dtype: DType
    written: bool
    nbytes: Index


@dataclass
class Phase:
    """Work over a grid.  `grid` axes are independent; `cut` limits some axes to blocks: axis ->
    block length, with the block's number as a grid axis of its own.  `segments` tells the region
    of each segment: one before a stream, one in it, one after it.  `lanes` is the axis that the
    kernel wants vectors to run along, if it says so, `taken` are grid axes that it takes in
    blocks."""

    name: str
    axes: dict[str, Index]
    grid: list[str]
    cut: dict[str, tuple[str, Index]] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    stores: list[StoreItem] = field(default_factory=list)
    positions: dict[str, Item] = field(default_factory=dict)
    segments: list[Region | None] = field(default_factory=lambda: [None])
    settings: list[Setting] = field(default_factory=list)
    dtypes: dict[str, DType] = field(default_factory=dict)
    """Element types of the kernel's arrays, as they lie in memory."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Second names of arrays, which are read as elements of another type."""
    lanes: str | None = None
    taken: frozenset[str] = frozenset()
    places: dict[str, Reach] = field(default_factory=dict)
    """Axes of places that windows of other axes reach: a task's part follows from theirs."""

    carried: set[Item] = field(default_factory=set[Item])
    """What is in double precision because sums are, though all else is narrower."""

    def regions(self) -> list[Region]:
        """Every region once, outer before inner."""
        return [r for r in dict.fromkeys(self.segments) if r is not None]

    def guides(self) -> list[tuple[Item, int]]:
        """Where streams start and stop and what they visit, with the segment at whose end that has
        to be known."""
        return [
            (item, self.segments.index(r) - 1)
            for r in self.regions()
            for item in (r.where, *(end for v in r.cuts for end in (v.start, v.stop)))
            if item is not None
        ]

    def roots(self) -> list[Item]:
        """The items that somebody outside of the graph of items wants."""
        found = [s.value for s in self.stores] + [s.where for s in self.stores if s.where]
        found += [
            self.positions[a.name]
            for s in self.stores
            for a in atoms(s.access.offset)
            if a.kind == "value"
        ]
        return found + [s.value for s in self.settings] + [item for item, _ in self.guides()]


@dataclass
class Program:
    """A kernel ready to be scheduled."""

    name: str
    buffers: list[Buffer]
    strides: list[tuple[str, int]]
    phases: list[Phase]
    partials: list[Buffer]
