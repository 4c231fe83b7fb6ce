"""The loop-level IR: a kernel as phases of SSA values with flat memory offsets.

Each item is one value with the set of axes that it varies along; loads and stores have one offset
in elements.  A phase is work over a grid of tasks, in segments one after another; the segments of a
stream's body (a region) run once for every block of the stream.  A program has one phase, or
several where a stream is split over tasks or a kernel is split.

Modules that name many kinds of items import this one as `ssa`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, Self

from smelt.ops.combine import Combine
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, atoms, sub


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Item:
    """An SSA value: one class for each kind.

    `axes` are those along which it varies; `dtype` is its register type; `time` is the first
    segment of the phase in which it can be computed.
    """

    args: tuple[Item, ...]
    axes: frozenset[str]
    dtype: DType
    time: int = field(default=0, kw_only=True)

    def __repr__(self) -> str:
        return f"%{type(self).__name__.lower()}"

    @property
    def indices(self) -> tuple[Index, ...]:
        """The index expressions of the item itself, without those of its operands."""
        return ()

    def map_indices(self, put: Callable[[Index], Index]) -> Self:
        """Return the item with its index expressions replaced; its axes stay."""
        return self

    @property
    def number(self) -> float | int | bool | None:
        """The constant that the item has, if any."""
        return None

    @property
    def operation(self) -> tuple[object, ...]:
        """What is equal for two items that do the same with their operands."""
        fields = (getattr(self, name) for name in self.__match_args__[3:])
        return (type(self), self.dtype, repr(self.number), *fields)  # 0.0 is not -0.0 or False

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal for two items that are the same value."""
        return (self.args, self.axes, self.time, self.operation)


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
    def indices(self) -> tuple[Index, ...]:
        """Return the index expressions: the offset and those of the bounds checks."""
        return (self.offset, *(e for pair in self.limits for e in pair))

    @property
    def positions(self) -> list[str]:
        """Return the names of computed positions that the indices read."""
        return [a.name for e in self.indices for a in atoms(e) if a.kind == "value"]

    def map_indices(self, put: Callable[[Index], Index]) -> Access:
        """Return the access with every index expression replaced."""
        limits = tuple((put(e), put(n)) for e, n in self.limits)
        return Access(self.buffer, put(self.offset), limits, self.other)


# ---- kinds of items ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Const(Item):
    """A constant."""

    value: float | int | bool

    @property
    def number(self) -> float | int | bool | None:
        return self.value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IndexValue(Item):
    """An index expression as a number."""

    index: Index

    @property
    def indices(self) -> tuple[Index, ...]:
        return (self.index,)

    def map_indices(self, put: Callable[[Index], Index]) -> IndexValue:
        return replace(self, index=put(self.index))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load(Item):
    """An element of an array."""

    access: Access

    @property
    def indices(self) -> tuple[Index, ...]:
        return self.access.indices

    @property
    def number(self) -> float | int | bool | None:
        return self.access.other

    def map_indices(self, put: Callable[[Index], Index]) -> Load:
        return replace(self, access=self.access.map_indices(put))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operation(Item):
    """A scalar operator, by name."""

    op: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Apply(Operation):
    """A scalar operator of every element."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UniformSelect(Operation):
    """A selection whose condition is uniform in a block."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Item):
    """A conversion to type `to`; a half type rounds, and the value continues as float32."""

    to: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduction(Item):
    """A reduction, scan or contraction over axes.

    `positions` is the row-major position over the axes, for argmax and argmin.
    """

    row: Combine
    over: tuple[str, ...]
    positions: Index = 0
    plain: bool = False
    """Float64 accumulators are more precise than the result needs: no compensated sum."""
    pairs: bool = False
    """The result is rounded to float32 or less, so that the first additions may be done in that
    type."""
    factors: DType | None = None
    """Of a contraction: the type of its factors (bfloat16 with float32 sums)."""

    @property
    def indices(self) -> tuple[Index, ...]:
        return (self.positions,)

    def map_indices(self, put: Callable[[Index], Index]) -> Self:
        return replace(self, positions=put(self.positions))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce(Reduction):
    """A reduction of a value."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dot(Reduction):
    """A contraction of two operands."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scan(Reduction):
    """The reductions of all prefixes along an axis."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Position(Item):
    """A computed position: its name in index expressions and the extent to clamp it into.

    `inside`: it needs no clamp, because the enclosing part of a stream's body runs only where it is
    in bounds.
    """

    name: str
    extent: Index
    inside: bool = False

    @property
    def indices(self) -> tuple[Index, ...]:
        return (self.extent,)

    def map_indices(self, put: Callable[[Index], Index]) -> Position:
        return replace(self, extent=put(self.extent))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StateRead(Item):
    """The current value of a stream's state."""

    state: StreamState


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockEdge(Item):
    """A bound of the current block of an axis: its "first" index, "last" index, or "length"."""

    what: Literal["first", "last", "length"]
    axis: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowRead(Item):
    """A read, by a window, of a value that the task keeps for many positions.

    `at` has the index along each position axis (`smelt.codegen.llvm.loopir.compute_at`).
    """

    at: tuple[tuple[str, Index], ...]

    @property
    def indices(self) -> tuple[Index, ...]:
        return tuple(e for _, e in self.at)

    def map_indices(self, put: Callable[[Index], Index]) -> WindowRead:
        return replace(self, at=tuple((a, put(e)) for a, e in self.at))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KPair(Item):
    """A pair of short numbers in 32 bits."""


NO_AXES = frozenset[str]()


def union_of_axes(items: Iterable[Item]) -> frozenset[str]:
    """Return the axes along which any of the items varies."""
    return frozenset[str]().union(*(i.axes for i in items))


def apply(op: str, args: tuple[Item, ...], dtype: DType) -> Apply:
    """Return a scalar operator of items."""
    return Apply(args, union_of_axes(args), dtype, op)


def cast(item: Item, dtype: DType) -> Cast:
    """Return the conversion of an item to a type."""
    return Cast((item,), item.axes, dtype.compute, dtype)


def index_of(item: Item) -> Index | None:
    """Return an item as an index expression, if it is one."""
    if isinstance(item, IndexValue):
        return item.index
    return item.value if isinstance(item, Const) and isinstance(item.value, int) else None


def over_axes(item: Item) -> tuple[str, ...]:
    """Return the axes that an item reduces or scans."""
    return item.over if isinstance(item, Reduction) else ()


def accesses_of(items: Iterable[Item]) -> list[Access]:
    """Return the accesses of the loads among items."""
    return [i.access for i in items if isinstance(i, Load)]


def contiguous_pair(unit: Item) -> tuple[Access, Access] | None:
    """Return the two loads of a pair if they are neighbours in memory, else None."""
    if not isinstance(unit, KPair) or len(unit.args) != 2:
        return None
    pair = fixed_loads(unit.args)
    return pair if pair and sub(pair[1].offset, pair[0].offset) == 1 else None


def fixed_loads(pair: Sequence[Item]) -> tuple[Access, Access] | None:
    """Return the accesses of two loads at positions that are not computed, else None."""
    accesses = accesses_of(pair)
    if len(accesses) < 2 or accesses[0].positions:
        return None
    return accesses[0], accesses[1]


# ---- regions, states and phases ------------------------------------------------------------------


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
class Reach:
    """The positions that windows reach along a position axis.

    `length` positions from `axis`*`step` on, for each position of the result axis `axis`.
    """

    axis: str
    step: int
    length: int


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
