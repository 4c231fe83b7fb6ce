"""The environment of emission: what the code of a nest is emitted from, and how to emit more.

`Storage` says where each array is in a thread's scratch memory, and how far it extends;
`smelt.codegen.llvm.scratch.workspace` lays it out.

A `Scope` is the point of emission in a loop nest: bound axes, values that are available, lanes and
their mask.

Transformations of loops, drivers of products and memory accesses are functions of an environment.
`smelt.codegen.llvm.nest` implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field, replace
from fractions import Fraction
from math import gcd
from typing import Any, Final, Literal, Protocol, TypedDict, TypeGuard, Unpack

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.counting import emit_loop
from smelt.codegen.llvm.instructions.dot_product import DotInstruction
from smelt.codegen.llvm.instructions.indexing import (
    IndexEmitter,
    depth_terms,
    opaque,
)
from smelt.codegen.llvm.instructions.reductions import Accumulator, make_accumulator
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import (
    Access,
    Item,
    Region,
    StoreItem,
    StreamState,
    Visit,
    enclosing_regions,
    unvarying_axes,
)
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.nest import Limit, Nest, RowGroupRanges, Schedule
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Atom, Index, add, floordiv, mul, product, sub

Value = ir.Value
AxisRanges = Mapping[str, tuple[Value, Value]]
PACKED: Final = "packed.operand"
"""The array that a nest packs, in its loops."""


# ---- records -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowShare:
    """A nest's share of an array's next row: its begin and size as fractions of the row."""

    access: Access
    begin: Fraction
    share: Fraction


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
    group: DotInstruction | None = None
    """The instruction that reads factors as bits of its own type, with zeros past the last."""
    row_vectors: tuple[int, ...] = ()
    """Numbers of vectors for which rows that are no longer have loops of their own."""
    prefetch_rows: int = 0
    """Rows between what is read and what is prefetched, if any."""
    level: Literal[1, 2] = 2
    """The cache that it is prefetched into."""
    squares: bool = False
    """Whether a single array is packed as it is transposed, in squares past the axes' ends."""


# ---- protocols -----------------------------------------------------------------------------------


class VectorPacker(Protocol):
    """Says where the nests of a product pack its operands."""

    def packed_array(self, nest: Nest) -> PackedArray:
        """Return where loops pack an operand."""
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
    known_conditions: dict[Item, bool]
    products: VectorPacker
    proven_limits: frozenset[Limit]
    steps: Mapping[Visit, tuple[Value, Value]]


class Environment(ABC):
    """What the code of a task's current nest is emitted from."""

    def __init__(self, frame: Frame, ranges: AxisRanges, top: Scope, storage: Storage) -> None:
        self.frame, self.b, self.s = frame, frame.b, frame.s
        self.ranges, self.top, self.storage = ranges, top, storage
        self.proven_limits: frozenset[Limit] = frozenset()
        """Bounds checks that are proven for the code that is being emitted."""
        self.known_conditions: dict[Item, bool] = {}
        """Conditions whose answer is known in the version that is being emitted."""
        self.starts: Mapping[tuple[Region | None, str], Value] = {
            (None, axis): low for axis, (low, _) in ranges.items()
        }
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

    def origin(self, access: Access, order: Sequence[str], scope: Scope) -> Value:
        """Return an access' offset, without terms that vary along the axes of a nest."""

        def varies(atom: Atom) -> int:
            if atom.kind == "value":
                return int(not self.s.phase.positions[atom.name].axes.isdisjoint(order))
            return int(atom.kind == "axis" and atom.name in order)

        return self.index(depth_terms(access.offset, varies, 2)[0], scope)

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
    def index(self, e: Index, scope: Scope) -> Value:
        """Emit an index expression."""


# ---- the layout of scratch memory ----------------------------------------------------------------

Key = tuple[Item | StreamState, int]


@dataclass(frozen=True, eq=False)
class Storage:
    """Offsets, types and addresses of the arrays in a thread's scratch memory."""

    s: Schedule
    takes_over: Mapping[Item, Item]
    """Arrays whose memory another array takes over, with the item which does."""
    pitches: Mapping[Item, Index]
    """Elements between the rows of transposed strips."""
    arrays: Mapping[Key, tuple[Index, DType]] = field(
        default_factory=dict[Key, tuple[Index, DType]]
    )
    """Offset in bytes, and element type, of each array."""
    operands: Mapping[Key, Index] = field(default_factory=dict[Key, Index])
    """Bytes of arrays which tiles read past what was packed (see `zero_operands`)."""
    nbytes: Index = 0
    at: Mapping[Key, Value] = field(default_factory=dict[Key, Value])
    """The address of each array."""

    def extent(self, owner: Item | StreamState, axis: str) -> Index:
        """Return an array's extent along an axis; products have room for full register tiles."""
        if isinstance(owner, StreamState):
            return self.s.span(owner.region, axis)
        packed = next((c for c in self.s.products.packed if c.item is owner), None)
        if packed is not None:
            return packed.scratch_extent(axis, self.s.local)
        span = self.s.span(self.s.region(owner), axis)
        c = next((c for c in self.s.blocked if c.item is owner), None)
        owner = self.takes_over.get(owner, owner)
        for other in self.s.blocked:
            if owner is other.left and (other.direct or other.stored_pitch):
                c = other  # full tiles, at the operand's row stride
                if axis == c.left_axes[-1]:
                    return c.direct or c.stored_pitch
                if not c.m_contiguous:
                    break
        if c is None or axis not in (c.m, c.n):
            return span
        step = c.tile.rows if axis == c.m else c.tile.columns
        return mul(floordiv(add(span, step - 1), step), step)

    def rows(self, c: Contraction) -> Index:
        """Return how many rows of a product are in scratch."""
        return 1 if c.m is None else self.extent(c.item, c.m)

    def region(self, owner: Item | StreamState) -> Region | None:
        """Return the region in which an array is filled."""
        return owner.region if isinstance(owner, StreamState) else self.s.region(owner)

    def state_axes(self, state: StreamState) -> tuple[str, ...]:
        """Return the local axes of a state, the vector axis last."""
        fixed_axes = unvarying_axes(state.region)
        local_axes = [a for a in self.s.local if a in state.axes and a not in fixed_axes]
        setters = [n for n in self.s.nests if any(x.state is state for x in n.state_updates)]
        vector = setters[0].vector if setters else None
        return tuple(sorted(local_axes, key=lambda a: a == vector))

    def accumulator_of(self, item: ssa.Reduction) -> Accumulator:
        """Return the accumulator of a reduction or scan item."""
        in_order = len(item.over) == 1 or self._is_in_order(item, item.over)
        places = product(self.s.phase.axes[a] for a in item.over)
        return make_accumulator(
            item.row,
            item.args[0].dtype,
            plain=item.plain,
            in_order=in_order,
            places=places,
        )

    def _is_in_order(self, item: Item, over: tuple[str, ...]) -> bool:
        """Return whether loops meet the elements of a reduction in the order of positions."""
        nest = next(n for n in self.s.nests if item in n.reductions)
        return tuple(a for a in nest.order if a in over) == over

    def holds_states(self, item: Item) -> TypeGuard[ssa.Reduction]:
        """Return whether an array holds accumulator states rather than finished values."""
        if not isinstance(item, ssa.Reduce):
            return False
        nest = next(n for n in self.s.nests if item in n.reductions)
        return not nest.in_registers(item)

    def parts(self, item: Item) -> tuple[DType, ...]:
        """Return the types of the arrays which a kept item needs."""
        return self.accumulator_of(item).parts if self.holds_states(item) else (item.dtype,)

    def with_addresses(
        self, b: ir.IRBuilder, scratch: Value, index: Callable[[Index], Value]
    ) -> Storage:
        """Emit the addresses of all arrays, each from the one before it.

        They are opaque to LLVM, which would otherwise recompute them in loops from sizes of blocks
        and their quotients.
        """
        last: Index = 0
        offsets: dict[Index, Value] = {last: index(last)}
        addresses: dict[Key, Value] = {}
        for key, (offset, _) in self.arrays.items():
            if isinstance(offset, int):
                offsets[offset] = index(offset)
            elif offset not in offsets:
                offsets[offset] = opaque(b, b.add(offsets[last], index(sub(offset, last))))
                last = offset
            addresses[key] = b.gep(scratch, [offsets[offset]], source_etype=ir.IntType(8))
        return replace(self, at=addresses)

    def moved(self, b: ir.IRBuilder, nbytes: Value) -> Storage:
        """Return the same arrays, a number of bytes further on."""
        byte = ir.IntType(8)
        addresses = {key: b.gep(p, [nbytes], source_etype=byte) for key, p in self.at.items()}
        return replace(self, at=addresses)


# ---- scopes --------------------------------------------------------------------------------------


@dataclass
class Lanes:
    """The vector axis at the emission point.

    `base` is the position of lane 0, `count` the number of lanes, `alignment` a number which the
    position is a multiple of.
    """

    axis: str
    base: Value
    count: int
    mask: Value | None
    alignment: int = 1
    prefetched: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]], compare=False)
    """Buffers whose next cache lines have been prefetched, each from a lane on."""


@dataclass
class Scope:
    """A level of loops.

    Lookups go outwards, and return None for what is unknown; new values are stored here.
    """

    parent: Scope | None = None
    axes: dict[str, Value] = field(default_factory=dict)
    values: dict[Item, Value] = field(default_factory=dict)

    def bind(self, name: str, position: Value) -> None:
        """Set the current position on a loop axis."""
        self.axes[name] = position

    def define(self, item: Item, value: Value) -> Value:
        """Make the register of an item available here and further in, and return it."""
        self.values[item] = value
        return value

    def axis(self, name: str) -> Any:
        """Return the current position on a loop axis (i64)."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.axes:
                return scope.axes[name]
            scope = scope.parent
        return None

    def value(self, item: Item) -> Any:
        """Return the register of an item, if it is available here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if item in scope.values:
                return scope.values[item]
            scope = scope.parent
        return None
