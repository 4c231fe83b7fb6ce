"""The environment of emission: what the code of a nest is emitted from, and how to emit more.

Transformations of loops, drivers of products and memory accesses are functions of an environment.
`smelt.codegen.llvm.nest` implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from math import gcd
from typing import Final, Literal, Protocol, TypedDict, Unpack

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.counting import emit_loop
from smelt.codegen.llvm.instructions.indexing import (
    IndexEmitter,
    depth_terms,
    lane_invariant,
    multiple_of,
)
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import (
    Access,
    Item,
    Reduction,
    Region,
    StoreItem,
    StreamState,
    Visit,
    accesses_of,
    cut_axes,
    enclosing_regions,
)
from smelt.codegen.llvm.nests.nest import Limit, Nest, RowGroupRanges, Schedule
from smelt.codegen.llvm.nests.storage import Storage
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Atom, Index, atoms

Value = ir.Value
AxisRanges = Mapping[str, tuple[Value, Value]]
PACKED: Final = "packed.operand"
"""The array that a nest packs, in its loops."""


# ---- records -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CachedGather:
    """The cached vectors of a load, by number of lanes: address, and address of the offset read."""

    vectors: Mapping[int, tuple[Value, Value]]
    low: Value | None
    """The position of the first of several adjacent vectors; None if there is one."""


@dataclass(frozen=True, slots=True)
class RowShare:
    """A nest's share of an array's next row: its begin and size as fractions of the row."""

    access: Access
    begin: Fraction
    share: Fraction


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A batch of rows whose reductions end together.

    `first` is the first row; `held` has the addresses of each reduction's stored vectors, part by
    part.
    """

    axis: str
    first: Value
    held: Mapping[Reduction, list[Value]]
    lanes: Mapping[Reduction, int]
    """Lanes that a reduction's vectors keep: as many as rows that become one vector."""


@dataclass(frozen=True, slots=True, eq=False)
class DirectStores:
    """The products of a task which tiles may store directly, with their stores."""

    stores: Mapping[Item, tuple[StoreItem, ...]]
    nests: frozenset[Nest]
    """Nests which do nothing but store such products."""
    rounded: frozenset[Item]
    """Products which are rounded as they are stored; partial sums stay in scratch."""
    enabled: Value
    """Whether the tiles of this task write outputs directly (i1)."""


@dataclass(frozen=True, slots=True, eq=False)
class LateStore:
    """The last nest of the previous task, which runs inside of the loops of `host`."""

    host: Nest
    late: Environment
    pending: Value
    """Whether rows of the previous task are still to be stored (i1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A function that is being emitted: its builder, arguments, and the machine."""

    b: ir.IRBuilder
    target: Target
    s: Schedule
    buffers: Mapping[str, Value]
    dtypes: Mapping[str, DType]
    lengths: Mapping[str, int]
    """Elements of the contiguous inputs whose length is known."""
    sizes: Mapping[str, Value]
    entry: IndexEmitter
    """Index expressions that are computed before the loop over tasks."""
    shares: Mapping[Nest, Sequence[RowShare]]
    """The parts of the next task's rows that each nest prefetches."""
    streaming: bool
    """Whether results are written by non-temporal stores."""
    done: ir.Block
    """Where the function returns, after the last task or when its run was given up."""

    def index(self, e: Index) -> Value:
        """Emit an expression over sizes alone, inside a task."""
        return IndexEmitter(self.b, lambda atom: self.sizes[atom.name], self.entry.found).emit(e)


@dataclass(frozen=True, slots=True, eq=False)
class PackedArray:
    """The array that a nest packs an operand into, as loops write it.

    Positions count from `starts`, each axis in elements of `steps`. Those along vectors are in
    panels of `width` columns, if that is not 0, and count from where the nest begins.
    """

    address: Value
    dtype: DType
    starts: Mapping[str, Value]
    steps: Mapping[str, Value]
    width: int = 0
    panel: Value | None = None
    """Elements between panels."""
    stores_whole: bool = False
    """Whether masked vectors are stored whole: nothing reads what is past their end."""
    row_vectors: tuple[int, ...] = ()
    """Numbers of vectors for which rows that are no longer have loops of their own."""
    prefetch_rows: int = 0
    """Rows between what is read and what is prefetched, if any."""
    level: Literal[1, 2] = 2
    """The cache that it is prefetched into."""


# ---- protocols -----------------------------------------------------------------------------------


class VectorPacker(Protocol):
    """Takes the vectors of the operands that nests pack for a product."""

    def put(self, nest: Nest, value: Value, scope: Scope) -> None:
        """Store one vector of a packed operand."""
        ...

    def packed_array(self, nest: Nest) -> PackedArray | None:
        """Return where loops pack an operand; None if only `put` knows."""
        ...


class Reductions(Protocol):
    """Emits the reductions of the current nest."""

    def tail_lanes(self) -> int:
        """Return the lanes of the masked vectors at the end of a loop."""
        ...

    def values_of_argreduce(self, reduction: Reduction) -> list[Reduction]:
        """Return the reductions of the extreme value whose position another one finds."""
        ...

    def finished(self, reduction: Reduction, scope: Scope) -> Value:
        """Return the result of a reduction whose states are in scratch."""
        ...


# ---- the environment -----------------------------------------------------------------------------


class Settings(TypedDict, total=False):
    """What emission reads and a transformation may change for a part of the code."""

    top: Scope
    ranges: AxisRanges
    direct: DirectStores
    storage: Storage
    late_store: LateStore
    starts: Mapping[tuple[Region | None, str], Value]
    accesses: Sequence[Access]
    cached_gathers: Mapping[Item, CachedGather]
    items: Sequence[Item]
    known_conditions: dict[Item, bool]
    live_items: frozenset[Item]
    nontemporal: int
    prefetch_enabled: bool
    prefetches_stores: bool
    products: VectorPacker
    proven_limits: frozenset[Limit]
    row_batch: RowBatch
    saves: Sequence[Item]
    steps: Mapping[Visit, tuple[Value, Value]]


class Environment(ABC):
    """What the code of a task's current nest is emitted from."""

    reductions: Reductions

    def __init__(self, frame: Frame, ranges: AxisRanges, top: Scope, storage: Storage) -> None:
        self.frame, self.b, self.s = frame, frame.b, frame.s
        self.ranges, self.top, self.storage = ranges, top, storage
        self.nest: Nest = self.s.nests[0]
        """The nest that is being emitted."""
        self.items: Sequence[Item] = []
        """What it computes, but for what no version of its code needs."""
        self.live_items: frozenset[Item] = frozenset()
        self.accesses: Sequence[Access] = []
        self.groups: Mapping[Access, Sequence[Index]] = {}
        """The terms of each access' offset, by the loops that must be open."""
        self.saves: Sequence[Item] = []
        self.nontemporal, self.prefetches_stores, self.prefetch_enabled = 0, False, True
        self.proven_limits: frozenset[Limit] = frozenset()
        """Bounds checks that are proven for the code that is being emitted."""
        self.cached_gathers: Mapping[Item, CachedGather] = {}
        """Loads whose gathers are cached across rows of the current loops."""
        self.known_conditions: dict[Item, bool] = {}
        """Conditions whose answer is known in the version that is being emitted."""
        self.starts: Mapping[tuple[Region | None, str], Value] = {
            (None, axis): low for axis, (low, _) in ranges.items()
        }
        self.row_batch: RowBatch | None = None
        """Rows whose reductions are finished together."""
        self.steps: Mapping[Visit, tuple[Value, Value]] = {}
        """Start of the current block of a visit, and of its first block."""
        self.row_groups: Sequence[RowGroupRanges] = ()
        self.direct = DirectStores({}, frozenset(), frozenset(), ir.IntType(1)(1))
        self.products: VectorPacker | None = None
        """The product that is being emitted, or the last one."""
        self.late_store: LateStore | None = None

    @contextmanager
    def within(self, **changes: Unpack[Settings]) -> Generator[None]:
        """Emit code with some settings changed; afterwards they are as before."""
        before = {name: getattr(self, name) for name in changes}
        vars(self).update(changes)
        yield
        vars(self).update(before)

    def narrowed(self, ranges: AxisRanges) -> AbstractContextManager[None]:
        """Emit code with the ranges of some axes changed."""
        return self.within(ranges={**self.ranges, **ranges})

    def loop(
        self,
        low: Value,
        high: Value,
        step: int | Value,
        inside: Callable[[Value], None],
    ) -> None:
        """for position in range(low, high, step)"""
        emit_loop(self.b, low, high, step, inside)

    def loop_alignment(self, name: str, step: int) -> int:
        """Return a number that divides all positions of a loop along an axis.

        The loop goes on by `step` from where the task's part of the axis begins.
        """
        starts_at_task = self.ranges[name][0] is self.starts[None, name]
        if not starts_at_task or name in self.s.phase.window_positions:
            return 1
        block = self.s.block.get(name, self.s.phase.cut.get(name, ("", 0))[1])
        return gcd(step, block) if isinstance(block, int) else 1

    def find_accesses(self, items: Sequence[Item]) -> list[Access]:
        """Return the accesses of items and of the current nest's stores."""
        return [*accesses_of(items), *(s.access for s in self.nest.stores)]

    def origin(self, access: Access, order: Sequence[str], scope: Scope) -> Value:
        """Return an access' offset, without terms that vary along the axes of a nest."""

        def varies(atom: Atom) -> int:
            if atom.kind == "value":
                return int(not self.s.phase.positions[atom.name].axes.isdisjoint(order))
            return int(atom.kind == "axis" and atom.name in order)

        return self.index(depth_terms(access.offset, varies, 2)[0], scope)

    def _depth_of(self, atom: Atom) -> int:
        """Return how many loops must be open before a variable is available."""
        order = self.nest.order
        if atom.kind == "axis":
            return order.index(atom.name) + 1 if atom.name in order else 0
        if atom.kind == "value":
            return self.depth(self.s.phase.positions[atom.name])
        return 0

    def depth(self, item: Item) -> int:
        """Return how many loops must be open before an item is available."""
        order = self.nest.order
        return max((order.index(a) + 1 for a in item.axes if a in order), default=0)

    def vector_position(self, e: Index) -> bool:
        """Return whether `e` reads a computed position that differs between lanes."""
        v = self.nest.vector
        names = [a.name for a in atoms(e) if a.kind == "value"]
        return any(v in self.s.phase.positions[n].axes for n in names)

    def step(self, access: Access, axis: str, lanes: int = 0) -> Index | None:
        """Return the elements between neighbouring lanes, or None if that is not one number.

        Of vectors of the nest, or of `lanes` if these are more.
        """
        if self.vector_position(access.offset):
            return None
        stride = coefficient(access.offset, axis)
        region = self.s.phase.segments[self.nest.time]
        partial_axes = {*self.s.phase.cut, *cut_axes(region), *self.s.phase.window_positions}
        wide = max(self.s.lanes * self.nest.unroll, lanes)
        if (
            stride is None
            and axis not in partial_axes
            and multiple_of(self.s.block.get(axis, 0)) % wide == 0
        ):
            return coefficient(lane_invariant(access.offset, axis, wide), axis)
        return stride

    def machine(self, scope: Scope, vector: bool) -> LLVMMachine:
        """Return the machine for scalar or vector registers in a scope."""
        lanes = scope.lanes.count if vector and scope.lanes is not None else None
        return LLVMMachine(self.b, lanes, self.frame.target)

    def is_vector(self, item: Item, scope: Scope) -> bool:
        """Return whether the item differs between lanes."""
        return scope.lanes is not None and (scope.lanes.axis in item.axes)

    def start(self, owner: Item | StreamState, axis: str) -> Value:
        """Return the first position along an axis which a scratch array has."""
        around = [
            r for r in enclosing_regions(self.storage.region(owner)) if (r, axis) in self.starts
        ]
        return self.starts[around[-1] if around else None, axis]

    def extent(self, owner: Item | StreamState, axis: str) -> Value:
        """Return the extent of a scratch array along an axis."""
        return self.frame.index(self.storage.extent(owner, axis))

    def address(self, buffer: str, at: Value) -> Value:
        """Return the address of an element of an array in memory."""
        base = self.frame.buffers[buffer]
        return self.b.gep(base, [at], source_etype=memory_type(self.frame.dtypes[buffer]))

    @abstractmethod
    def run(self, nest: Nest, scope: Scope | None = None) -> None:
        """Emit one nest, inside the loops of `scope`."""

    @abstractmethod
    def open(self, nest: Nest, scope: Scope | None = None) -> Scope:
        """Make a nest the current one, and emit what is invariant in its loops."""

    @abstractmethod
    def enter(self, scope: Scope, depth: int) -> None:
        """Emit what is invariant when `depth` loops are open."""

    @abstractmethod
    def body(self, scope: Scope) -> None:
        """Emit the innermost body: values, saves, reductions, stores, and updates of states."""

    @abstractmethod
    def save(self, scope: Scope) -> None:
        """Store what later nests need."""

    @abstractmethod
    def index(self, e: Index, scope: Scope, *, lanes: bool = False) -> Value:
        """Emit an index expression; with `lanes`, as a vector along the vector axis."""

    @abstractmethod
    def get(self, item: Item, scope: Scope, vector: bool) -> Value:
        """Return the register of an item: available, in scratch, or computed here.

        Broadcast if `vector`.
        """

    @abstractmethod
    def reload(self, item: Item, scope: Scope) -> Value:
        """Return the register of a kept item, from scratch."""

    @abstractmethod
    def put(self, s: StoreItem, value: Value, where: Value | None, scope: Scope) -> None:
        """Store a value, or its lanes, where a condition holds."""
