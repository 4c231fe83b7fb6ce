"""Lower a kernel's statements to items: value numbering, flat offsets, loop-invariant code motion.

Trees become shared items (equal ones once), index tuples become one offset in elements.  Each item
gets the first segment in which all that it depends on is available, so that what a stream's body
computes without the stream's axes and states is computed once, before the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import (
    Access,
    Buffer,
    Item,
    Phase,
    Region,
    StateUpdate,
    StoreItem,
    StreamState,
    Visit,
    enclosing_regions,
    unvarying_axes,
    visited_axes,
)
from smelt.codegen.llvm.loopir.rewrite import prune
from smelt.errors import VerifyError
from smelt.kernel import ir as k
from smelt.kernel.bounds import proves_inside
from smelt.ops.combine import ANY_FAILS, BOTH, CHOICE, COMBINES, EXTREMES, SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import replace
from smelt.types.dtype import DType, bool_, f32, f64, i64
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axis,
    dependent_axes,
    mul,
    size,
    sub,
    value,
)


class PhaseBuilder:
    """Builds the items of one phase, equal ones once."""

    def __init__(self, kernel: k.Kernel, phase: Phase, buffers: Sequence[Buffer]) -> None:
        """`phase` has no items yet; `buffers` are all arrays but those between phases."""
        self.kernel, self.axes = kernel, phase.axes
        self._phase, self.segments = phase, list[Region | None]([None])
        self.items: list[Item] = []
        self.stores: list[StoreItem] = []
        self.positions: dict[str, Item] = {}
        self.state_updates: list[StateUpdate] = []
        self.items_by_key: dict[object, Item] = {}
        self.names: dict[str, Item] = {}
        self.new: dict[str, Item] = {}
        self.region: Region | None = None
        self.latest: dict[Region | None, int] = {None: 0}
        self.states: dict[str, StreamState] = {}
        self.fixed = {e.axis for e in kernel.grid if isinstance(e, k.Block) and e.size == 1}
        self.guarded = False
        self.all_single_precision = not any(b.dtype == f64 for b in buffers)

    def phase(self) -> Phase:
        """Return the phase that has been built, without what nothing reads."""
        params = (*self.kernel.inputs, *self.kernel.outputs)
        return prune(
            replace(
                self._phase,
                items=tuple(self.items),
                stores=tuple(self.stores),
                positions=self.positions,
                segments=tuple(self.segments),
                state_updates=tuple(self.state_updates),
                dtypes={p.name: p.dtype for p in params},
            )
        )

    def define(self, name: str, item: Item) -> None:
        """Let a name of the kernel stand for an item."""
        self.names[name] = item

    def item(self, item: Item) -> Item:
        """Return an item in the first segment where it can be computed, equal ones once."""
        if time := self._segment_of(item):
            item = replace(item, time=time)
        first = self.items_by_key.setdefault(item.key, item)
        if first is item:
            self.items.append(item)
        return first

    def _segment_of(self, item: Item) -> int:
        """Return the first segment in which an item can be computed."""
        if isinstance(item, (ssa.StateRead, ssa.BlockEdge)):
            return self.now
        segment = max((a.time for a in item.args), default=0)
        all_axes = item.axes.union(ssa.over_axes(item))
        for region in enclosing_regions(self.region):
            around = region.parent
            inside = any(v.axis in all_axes for v in region.cuts)
            if (
                region.is_conditional
            ):  # conditions of blocks: only in the blocks that run the conditional part
                inside |= around is not None and segment >= self.latest[around]
            if inside:
                segment = max(segment, self.latest[region])
        return segment

    @property
    def now(self) -> int:
        """The number of the current segment."""
        return len(self.segments) - 1

    def index_axes(self, *index: Index) -> frozenset[str]:
        """Return the axes of index expressions, through computed positions."""
        return dependent_axes(index, lambda name: self.positions[name].axes)

    def index_args(self, *index: Index) -> tuple[Item, ...]:
        """Return the computed positions that index expressions read."""
        names = dict.fromkeys(a.name for e in index for a in atoms(e) if a.kind == "value")
        return tuple(self.positions[n] for n in names)

    def value(self, value: k.Value) -> Item:
        """Return the item of a kernel value."""
        match value:
            case k.Const(value=number, dtype=dtype):
                return self.item(
                    ssa.Const((), ssa.NO_AXES, dtype.compute, dtype.round_number(number))
                )
            case k.Ref(name=name, next=following):
                return (self.new if following else self.names)[name]
            case k.IndexValue(index=index, dtype=dtype):
                args, axes = self.index_args(index), self.index_axes(index)
                return self.item(ssa.IndexValue(args, axes, dtype.compute, index))
            case k.Load():
                return self._load(value)
            case k.Apply(op=op, args=operands):
                args = tuple(self.value(a) for a in operands)
                dtype = SCALARS[op].result(*(a.dtype for a in args))
                return self.item(ssa.apply(op, args, dtype))
            case k.Cast(arg=operand, dtype=dtype):
                return self.convert(self.value(operand), dtype)
            case k.Reduce(combine=combine, arg=operand, over=over, dtype=dtype):
                return self.reduce(COMBINES[combine], self.value(operand), over, dtype)
            case k.Dot(left=left, right=right, over=over, dtype=dtype):
                return self._dot(left, right, over, dtype)
            case k.Scan(combine=combine, arg=operand, along=along, dtype=dtype):
                arg = self.convert(self.value(operand), dtype.compute)
                if along in unvarying_axes(self.region):
                    return arg
                axes = arg.axes | {along}
                return self.item(ssa.Scan((arg,), axes, dtype.compute, COMBINES[combine], (along,)))
            case k.Rename(old=old):
                raise VerifyError(f"the axis {old} is renamed, which a CPU's code does not do")
            case k.If():
                return self._if(value)
            case k.Partial(condition=condition):
                all_hold = self.value(condition)
                fails = self.item(ssa.apply(ANY_FAILS[1], (all_hold,), bool_))
                return self._reduce_block(ANY_FAILS[0], fails)
            case k.Extreme(arg=arg, largest=largest):
                return self._extreme(self.value(arg), largest)

    def _reduce_block(self, combine: str, item: Item) -> Item:
        """Return the reduction of an item over the current block."""
        over = tuple(a for a in self.axes if a in item.axes - self.fixed)
        return self.reduce(COMBINES[combine], item, over, item.dtype)

    def _extreme(self, item: Item, largest: bool) -> Item:
        """Return the smallest or largest value of an item in the current block."""
        name = bare_axis(item.index) if isinstance(item, ssa.IndexValue) else None
        if name is None or name in self.fixed or item.dtype != i64:
            return self._reduce_block(EXTREMES[largest], item)
        return self.item(ssa.BlockEdge((), ssa.NO_AXES, i64, "last" if largest else "first", name))

    def _if(self, v: k.If) -> Item:
        """Lower a selection.

        The side that is not chosen may have any value, but its loads must not leave their array.
        """
        chosen = v.value
        if (
            isinstance(v.condition, k.Partial)
            and isinstance(chosen, k.Apply)
            and chosen.op == CHOICE
            and chosen.args[0] == v.condition.condition
            and chosen.args[1] == v.other
        ):
            return self.value(chosen)  # if the mask excludes nothing, both are the same
        outer, self.guarded = self.guarded, True
        args = tuple(self.value(x) for x in (v.condition, v.value, v.other))
        self.guarded = outer
        is_uniform = args[0].axes <= self.fixed | unvarying_axes(self.region)
        kind = ssa.UniformSelect if is_uniform else ssa.Apply
        return self.item(kind(args, ssa.union_of_axes(args), args[1].dtype, CHOICE))

    def convert(self, item: Item, dtype: DType) -> Item:
        """Return `item` converted to a type."""
        if item.dtype == dtype:
            return item
        return self.item(ssa.cast(item, dtype))

    def reduce(
        self, row: Combine, arg: Item, over: tuple[str, ...], dtype: DType, *, pairs: bool = False
    ) -> Item:
        """Return the reduction of an item over axes of the phase.

        A partial result may have a wider type; with `pairs`, it is rounded to a narrower one in the
        end.
        """
        still = unvarying_axes(self.region) | self.fixed
        over = tuple(a for a in over if a not in still)
        if not row.positional:
            partial = row.wide and arg.dtype.is_float and dtype == f64
            arg = arg if partial else self.convert(arg, dtype.compute)
        if not over:
            return (
                self.item(ssa.Const((), ssa.NO_AXES, i64, 0))
                if row.positional
                else self.convert(arg, dtype.compute)
            )
        positions, edges = self._positions(over) if row.positional else (0, ())
        plain, pairs = self.all_single_precision, pairs or dtype != f64
        args, axes = (arg, *edges), arg.axes - set(over)
        return self.item(ssa.Reduce(args, axes, dtype.compute, row, over, positions, plain, pairs))

    def _positions(self, over: tuple[str, ...]) -> tuple[Index, tuple[Item, ...]]:
        """Return the row-major position over axes in the current block.

        Besides, the bounds of blocks that it reads.
        """
        positions: Index = 0
        edges: list[Item] = []

        def edge(what: Literal["first", "length"], name: str, extent: Index) -> Index:
            bound = self.item(ssa.BlockEdge((), ssa.NO_AXES, i64, what, name))
            edges.append(bound)
            self.positions[f"{name}.{what}.{bound.time}"] = bound
            return value(f"{name}.{what}.{bound.time}", extent)

        for name in over:
            length = extent = self.axes[name]
            position: Index = axis(name, extent)
            if name in visited_axes(self.region):
                length = edge("length", name, extent)
                position = sub(position, edge("first", name, extent))
            positions = add(mul(positions, length), position)
        return positions, tuple(edges)

    def _dot(self, left: k.Value, right: k.Value, over: tuple[str, ...], dtype: DType) -> Item:
        wide = dtype.compute
        args = tuple(self.convert(self.value(v), wide) for v in (left, right))
        still = unvarying_axes(self.region) | self.fixed
        over = tuple(a for a in over if a not in still)
        if not over:
            return self.item(ssa.apply(SUM_OF_PRODUCTS[1], args, wide))
        row, axes = COMBINES[SUM_OF_PRODUCTS[0]], ssa.union_of_axes(args) - set(over)
        return self.item(ssa.Dot(args, axes, wide, row, over, factors=dtype))

    def _load(self, load: k.Load) -> Item:
        param = self.kernel.param(load.param)
        other = k.Const(0, param.dtype.compute) if self.guarded else None
        access = self.access(param, load.index, load.other or other)
        args = self.index_args(*access.indices)
        axes = self.index_axes(access.offset, *(e for e, _ in access.limits))
        return self.item(ssa.Load(args, axes, param.dtype.compute, access))

    def access(self, param: k.Param, index: tuple[Index, ...], other: k.Const | None) -> Access:
        """Return the flat form of param[index], with the bounds checks that are not proven."""
        offset: Index = 0
        if param.strides is None:
            for e, n in zip(index, param.shape, strict=True):
                offset = add(mul(offset, n), e)
        else:
            for d, (e, stride) in enumerate(zip(index, param.strides, strict=True)):
                step = size(stride_name(param.name, d)) if stride is None else stride
                offset = add(offset, mul(e, step))
        if other is None:
            return Access(param.name, offset)
        pairs = zip(index, param.shape, strict=True)
        limits = tuple((e, n) for e, n in pairs if not proves_inside(e, n))
        return Access(param.name, offset, limits, other.dtype.round_number(other.value))

    def store(self, s: k.Store) -> None:
        """Add a store."""
        param = self.kernel.param(s.param)
        access = self.access(param, s.index, None)
        where = None if s.where is None else self.value(s.where)
        stored = self.value(s.value)
        if s.join:
            stored = self._combine_with_stored(s, access, stored)
        stored = self._before_rounding(stored, param.dtype)
        axes = self.index_axes(*s.index) | stored.axes | (where.axes if where else frozenset())
        if not s.join:
            axes |= visited_axes(self.region)
        self.stores.append(StoreItem(access, stored, where, axes, self.now))

    def _combine_with_stored(self, s: k.Store, access: Access, new: Item) -> Item:
        """Return a value combined with what is stored at its destination."""
        if s.join == k.PUT:
            return new
        args, axes = self.index_args(access.offset), self.index_axes(*s.index)
        old = ssa.Load(args, axes, new.dtype, access, time=self.now)
        self.items.append(old)  # never shared with another load: the destination changes
        return self.item(ssa.apply(s.join, (old, new), new.dtype))

    def _before_rounding(self, item: Item, dtype: DType) -> Item:
        """Return the argument of a conversion that storing as `dtype` makes redundant.

        That is a conversion to a half type: the store rounds anyway.  Other items are returned as
        they are.
        """
        half = isinstance(item, ssa.Cast) and item.to == dtype != f32
        return item.args[0] if half and item.args[0].dtype == item.dtype == f32 else item

    def body(self, body: Iterable[k.Statement]) -> None:
        """Add statements in order."""
        for s in body:
            self.statement(s)

    def statement(self, s: k.Statement) -> None:
        """Add a statement."""
        match s:
            case k.Let(name=name, value=value):
                self.names[name] = self.value(value)
            case k.Position(name=name, value=value, extent=extent):
                arg = self.convert(self.value(value), i64)
                inside = self._is_inside(arg, extent)
                position = ssa.Position((arg,), arg.axes, i64, name, extent, inside)
                self.positions[name] = self.item(position)
            case k.Store():
                self.store(s)
            case k.Update(state=name, value=value):
                self.new[name] = self.value(value)
                self.state_updates.append(StateUpdate(self.states[name], self.new[name], -1))
            case k.Stream():
                self._stream(s)
            case k.Merge():
                pass

    def _is_inside(self, at: Item, extent: Index) -> bool:
        """Return whether the enclosing conditional part runs only where a position is in bounds.

        And the position is not available earlier, so that its loads cannot be hoisted above the
        test.
        """
        region = self.region
        if region is None or region.where is None or at.time < self.latest[region.parent]:
            return False
        tests = {(t.op, t.args[1]) for t in _tests(region.where) if _is_same_value(t.args[0], at)}
        low = any(op == "ge" and self._is_block_end(end, extent, 0) for op, end in tests)
        return low and any(op == "le" and self._is_block_end(end, extent, 1) for op, end in tests)

    def _is_block_end(self, item: Item, extent: Index, last: int) -> bool:
        """Return whether a value is a bound of an axis, or of its current block."""
        if isinstance(item, ssa.BlockEdge):
            axis_extent = self.axes.get(item.axis)
            return item.what == ("last" if last else "first") and axis_extent == extent
        end = sub(extent, 1) if last else 0
        return item.dtype == i64 and ssa.index_of(item) == end

    # ---- streams ---------------------------------------------------------------------------------

    def _stream(self, s: k.Stream) -> None:
        """Lower a stream: initial states, its body as a region, and final states."""
        parts = {e.name: e.parts for e in self.kernel.grid if isinstance(e, k.Split)}
        visits = [
            self._visit(b, None if b.part is None else (b.part, parts[b.part])) for b in s.blocks
        ]
        starts: dict[StreamState, Item] = {}
        for state in s.states:
            init = self.value(state.init)
            axes = (init.axes | {*state.axes} | self.fixed) - unvarying_axes(self.region)
            starts[StreamState(state.name, axes, init.dtype, self.region)] = init
        self.state_updates += [StateUpdate(t, init, self.now) for t, init in starts.items()]
        outer = self.names, self.new, self.states
        self.names, self.new, self.states = {**self.names}, {}, {t.name: t for t in starts}
        self._enter(Region(self.region, tuple(visits)))
        self.names |= {t.name: self._read(t) for t in starts}
        if s.where is None and not s.bounds:
            self.body(s.body)
        else:
            where = None if s.where is None else self.value(s.where)
            sees = tuple(self._visit(b, None) for b in s.bounds)
            self._enter(Region(self.region, (), where, sees))
            self.body(s.body)
            self._leave()
        self._leave()
        self.names, self.new, self.states = outer
        self.names |= {t.name: self._read(t) for t in starts}

    def _visit(self, b: k.Block, part: tuple[str, Index] | None) -> Visit:
        start, stop = (
            None if e is None else self.convert(self.value(e), i64) for e in (b.start, b.stop)
        )
        at = b.start.index if isinstance(b.start, k.IndexValue) else None
        if isinstance(at, int) and b.size == 1:
            return Visit(b.axis, b.size, at, stop, part)
        return Visit(b.axis, b.size, 0, stop, part, start)

    def _read(self, state: StreamState) -> Item:
        return self.item(ssa.StateRead((), state.axes, state.dtype, state))

    def _enter(self, region: Region) -> None:
        self.region = region
        self._segment()

    def _leave(self) -> None:
        """Leave a stream or a conditional part of it; states are updated here."""
        self.state_updates = [
            replace(s, time=self.now) if s.time < 0 and s.state in self.states.values() else s
            for s in self.state_updates
        ]
        assert self.region is not None
        self.region = self.region.parent
        self._segment()

    def _segment(self) -> None:
        self.segments.append(self.region)
        self.latest[self.region] = self.now


def stride_name(param: str, d: int) -> str:
    """Return the size symbol for a stride that is only known at the call."""
    return f"{param}__stride{d}"


def _tests(item: Item) -> Iterator[ssa.Apply]:
    """Yield the comparisons whose conjunction an item is."""
    if isinstance(item, ssa.Apply) and item.op == BOTH:
        for arg in item.args:
            yield from _tests(arg)
    elif isinstance(item, ssa.Apply) and len(item.args) == 2:
        yield item


def _is_same_value(a: Item, b: Item) -> bool:
    """Return whether two items are the same value, whatever their segments."""
    if a is b:
        return True
    alike = a.operation == b.operation and not isinstance(a, ssa.StateRead)
    return alike and len(a.args) == len(b.args) and all(map(_is_same_value, a.args, b.args))
