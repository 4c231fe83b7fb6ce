"""The loop-level IR: a kernel as phases of SSA values with flat memory offsets.

Each item is one value with the set of axes that it varies along; loads and stores have one offset
in elements.  A phase is work over a grid of tasks, in segments one after another; the segments of a
stream's body (a region) run once for every block of the stream.  A program has one phase, or
several where a stream is split over tasks or a kernel is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal

from smelt.ops.combine import Combine
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, atoms

Kind = Literal[
    "const",
    "index",
    "load",
    "apply",
    "branch",
    "cast",
    "reduce",
    "dot",
    "scan",
    "position",
    "state",
    "edge",
    "window",
    "unit",
]
"""Kinds of values, with their payloads.

- const: a constant.  index: an index expression as a number.
- load: an `Access`.  apply: a scalar operator, by name.  cast: a `Conversion`.
- branch: a selection whose condition is uniform in a block.
- reduce, dot, scan: a reduction, a contraction, a scan, with a `Reduction`.
- position: a computed position, with a `Clamp`.
- state: the current value of a `StreamState` state.  edge: an `Edge` of the current block.
- window: a `WindowRead`, by a window.  unit: a pair of short numbers in 32 bits.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Item:
    """An SSA value.

    `axes` are those along which it varies; `dtype` is its register type; `time` is the first
    segment of the phase in which it can be computed.
    """

    kind: Kind
    payload: Payload
    args: tuple[Item, ...]
    axes: frozenset[str]
    dtype: DType
    time: int = 0

    def __repr__(self) -> str:
        return f"%{self.kind}"


@dataclass(frozen=True, slots=True)
class Access:
    """The memory location of a load or store.

    An offset in elements; `limits` are the bounds checks (index, extent) that are not proven, and
    `other` is what a load yields where one fails.
    """

    buffer: str
    offset: Index
    limits: tuple[tuple[Index, Index], ...] = ()
    other: float | int | bool = 0

    @property
    def gives_zero(self) -> bool:
        """Return whether out-of-bounds loads yield +0, as lanes outside a mask do."""
        return self.other == 0 and math.copysign(1.0, self.other) > 0

    @property
    def positions(self) -> list[str]:
        """Return the names of computed positions that the indices read."""
        return [
            a.name
            for e in (self.offset, *(x for p in self.limits for x in p))
            for a in atoms(e)
            if a.kind == "value"
        ]

    def map_indices(self, put: Callable[[Index], Index]) -> Access:
        """Return the access with every index expression replaced."""
        limits = tuple((put(e), put(n)) for e, n in self.limits)
        return Access(self.buffer, put(self.offset), limits, self.other)


def accesses_of(items: Iterable[Item]) -> list[Access]:
    """Return the accesses of the loads among items."""
    return [i.payload for i in items if isinstance(i.payload, Access)]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction, scan or contraction over axes.

    `positions` is the row-major position over the axes, for argmax and argmin.
    """

    row: Combine
    over: tuple[str, ...]
    positions: Index
    plain: bool = False
    """Float64 accumulators are more precise than the result needs: no compensated sum."""
    pairs: bool = False
    """The result is rounded to float32 or less, so that the first additions may be done in that
    type."""
    factors: DType | None = None
    """Of a contraction: the type of its factors (bfloat16 with float32 sums)."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A type conversion; a half type rounds, and the value continues as float32."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class Clamp:
    """A computed position: its name in index expressions and the extent to clamp it into.

    `inside`: it needs no clamp, because the enclosing part of a stream's body runs only where it is
    in bounds.
    """

    name: str
    extent: Index
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """A bound of the current block of an axis: its "first" index, "last" index, or "length"."""

    what: Literal["first", "last", "length"]
    axis: str


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """A region's walk along an axis.

    In blocks of `size` (1: a single position; None: all at once) from `first` (or `start`) up to
    `stop`.  `part`: only through one part, as (axis that numbers the parts, how many there are).
    Blocks end at multiples of their size from `first`, wherever the walk starts.
    """

    axis: str
    size: int | None
    first: int = 0
    stop: Item | None = None
    part: tuple[str, Index] | None = None
    start: Item | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The body of a stream, inside `parent`.

    Or a conditional part of a body: it runs in the blocks where `where` holds, or covers only
    a sub-range (`bounds`) of some axes, and visits nothing itself.
    """

    parent: Region | None
    visits: tuple[Visit, ...]
    where: Item | None = None
    bounds: tuple[Visit, ...] = ()

    @property
    def is_conditional(self) -> bool:
        """Return whether this is a conditional part of a stream's body."""
        return self.where is not None or bool(self.bounds)

    @property
    def cuts(self) -> tuple[Visit, ...]:
        """Return the axes of which the region covers only a part."""
        return (*self.visits, *self.bounds)


def enclosing_regions(region: Region | None) -> list[Region]:
    """Return a region and all enclosing ones, outer to inner."""
    regions: list[Region] = []
    while region is not None:
        regions.insert(0, region)
        region = region.parent
    return regions


def unvarying_axes(region: Region | None) -> set[str]:
    """Return the axes that a region visits one position at a time.

    Visits of enclosing regions count.
    """
    return {v.axis for r in enclosing_regions(region) for v in r.visits if v.size == 1}


def visited_axes(region: Region | None) -> set[str]:
    """Return the axes that a region and the enclosing ones visit block by block."""
    return {v.axis for r in enclosing_regions(region) for v in r.visits}


def cut_axes(region: Region | None) -> set[str]:
    """Return the axes of which a region covers a part at a time.

    Visits and bounds of enclosing regions count.
    """
    return {v.axis for r in enclosing_regions(region) for v in r.cuts}


def bounded_axes(region: Region | None) -> set[str]:
    """Return the axes that a region or an enclosing one limits to a sub-range (`bounds`)."""
    return {v.axis for r in enclosing_regions(region) for v in r.bounds}


@dataclass(frozen=True, slots=True, eq=False)
class StreamState:
    """A state that a stream carries: an array over `axes`, declared in `region` outside the
    stream."""

    name: str
    axes: frozenset[str]
    dtype: DType
    region: Region | None


@dataclass(frozen=True, slots=True, eq=False)
class StateUpdate:
    """The new value of a carried state, assigned at the end of segment `time`."""

    state: StreamState
    value: Item
    time: int


@dataclass(frozen=True, slots=True)
class WindowRead:
    """A read, by a window, of a value that the task keeps for many positions.

    `at` has the index along each position axis (`smelt.codegen.llvm.loopir.compute_at`).
    """

    at: tuple[tuple[str, Index], ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """The positions that windows reach along a position axis.

    `length` positions from `axis`*`step` on, for each position of the result axis `axis`.
    """

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
    | Conversion
    | Reduction
    | Clamp
    | Edge
    | StreamState
    | WindowRead
)


@dataclass(frozen=True, slots=True)
class StoreItem:
    """A store of `value` to an access, in segment `time`, if `where` holds."""

    access: Access
    value: Item
    where: Item | None
    axes: frozenset[str]
    time: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer argument: its name, element type, whether it is written, and its size in bytes."""

    name: str
    dtype: DType
    written: bool
    nbytes: Index
    is_dense: bool = True
    """Whether its elements follow one another: not those of an argument with strides."""


@dataclass(frozen=True, eq=False)
class Phase:
    """Work over a grid of independent tasks.

    `cut` splits axes into parts: axis -> (grid axis that numbers the parts, part length).
    `segments` has the region of each segment: one before a stream, one in it, one after it.
    `lanes` is the vector axis that the kernel requires, if any; `blocked_axes` are grid axes that
    the kernel takes in blocks.
    """

    name: str
    axes: Mapping[str, Index]
    grid: tuple[str, ...]
    cut: Mapping[str, tuple[str, Index]] = field(default_factory=dict[str, tuple[str, Index]])
    items: tuple[Item, ...] = ()
    stores: tuple[StoreItem, ...] = ()
    positions: Mapping[str, Item] = field(default_factory=dict[str, Item])
    segments: tuple[Region | None, ...] = (None,)
    state_updates: tuple[StateUpdate, ...] = ()
    dtypes: Mapping[str, DType] = field(default_factory=dict[str, DType])
    """Element types of the kernel's arrays, as they are stored."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Second names of arrays that are read as elements of another type."""
    lanes: str | None = None
    blocked_axes: frozenset[str] = frozenset()
    window_positions: Mapping[str, Reach] = field(default_factory=dict[str, Reach])
    """Position axes that windows of other axes reach: the task's part follows from theirs."""
    widened: frozenset[Item] = frozenset()
    """Items that are float64 only because accumulators are, while all else is narrower."""

    def regions(self) -> list[Region]:
        """Return every region once, outer before inner."""
        return [r for r in dict.fromkeys(self.segments) if r is not None]

    def stream_bounds(self) -> list[tuple[Item, int]]:
        """Return the conditions and bounds of all streams.

        Each with the segment at whose end it must be computed.
        """
        return [
            (item, self.segments.index(r) - 1)
            for r in self.regions()
            for item in (r.where, *(end for v in r.cuts for end in (v.start, v.stop)))
            if item is not None
        ]

    def roots(self) -> list[Item]:
        """Return the items that are used outside of the item graph."""
        roots = [s.value for s in self.stores] + [s.where for s in self.stores if s.where]
        roots += [
            self.positions[a.name]
            for s in self.stores
            for a in atoms(s.access.offset)
            if a.kind == "value"
        ]
        return (
            roots
            + [s.value for s in self.state_updates]
            + [item for item, _ in self.stream_bounds()]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A kernel ready to be scheduled."""

    name: str
    buffers: tuple[Buffer, ...]
    strides: tuple[tuple[str, int], ...]
    phases: tuple[Phase, ...]
    partials: tuple[Buffer, ...]
