"""Lower a kernel's statements to items: value numbering, flat offsets, loop-invariant code motion.

Trees become shared items (equal ones once), index tuples become one offset in elements.  Each item
gets the first segment in which all that it depends on is available, so that what a stream's body
computes without the stream's axes and states is computed once, before the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from smelt.codegen.llvm.loopir.clone import prune
from smelt.codegen.llvm.loopir.items import (
    Access,
    Buffer,
    Clamp,
    Conversion,
    Edge,
    Item,
    Kind,
    Payload,
    Phase,
    Reduction,
    Region,
    StateUpdate,
    StoreItem,
    StreamState,
    Visit,
    enclosing_regions,
    unvarying_axes,
    visited_axes,
)
from smelt.kernel import ir as k
from smelt.kernel.bounds import proves_inside
from smelt.ops.combine import ANY_FAILS, BOTH, CHOICE, COMBINES, EXTREMES, SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.scalar import SCALARS
from smelt.types.affine import dependent_axes
from smelt.types.dtype import DType, bool_, f32, f64, i64
from smelt.types.expr import (
    Expr,
    Index,
    add,
    atoms,
    axis,
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

    def item(
        self,
        kind: Kind,
        payload: Payload,
        args: tuple[Item, ...],
        axes: Iterable[str],
        dtype: DType,
    ) -> Item:
        """Return the item with these properties, a new one if there is none yet."""
        number = payload.other if isinstance(payload, Access) else payload  # 0.0 is not -0.0
        over = payload.over if isinstance(payload, Reduction) else ()
        time = self._segment_of(kind, (*axes, *over), args)
        key = (
            kind,
            payload,
            repr(number) if isinstance(number, float) else None,
            type(number),
            args,
            dtype,
            time,
        )
        item = self.items_by_key.get(key)
        if item is None:
            item = Item(kind, payload, args, frozenset(axes), dtype, time)
            self.items_by_key[key] = item
            self.items.append(item)
        return item

    def _segment_of(self, kind: Kind, axes: Iterable[str], args: tuple[Item, ...]) -> int:
        """Return the first segment in which an item can be computed."""
        if kind in ("state", "edge"):
            return self.now
        segment, all_axes = max((a.time for a in args), default=0), set(axes)
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
                return self.item("const", dtype.round_number(number), (), (), dtype.compute)
            case k.Ref(name=name, next=following):
                return (self.new if following else self.names)[name]
            case k.IndexValue(index=index, dtype=dtype):
                args = self.index_args(index)
                return self.item("index", index, args, self.index_axes(index), dtype.compute)
            case k.Load():
                return self._load(value)
            case k.Apply(op=op, args=operands):
                args = tuple(self.value(a) for a in operands)
                dtype = SCALARS[op].result(*(a.dtype for a in args))
                return self.item("apply", op, args, _axes(args), dtype)
            case k.Cast(arg=operand, dtype=dtype):
                args = (self.value(operand),)
                if dtype == args[0].dtype:
                    return args[0]
                return self.item("cast", Conversion(dtype), args, _axes(args), dtype.compute)
            case k.Reduce(combine=combine, arg=operand, over=over, dtype=dtype):
                return self.reduce(COMBINES[combine], self.value(operand), over, dtype)
            case k.Dot(left=left, right=right, over=over, dtype=dtype):
                return self._dot(left, right, over, dtype)
            case k.Scan(combine=combine, arg=operand, along=along, dtype=dtype):
                arg = self.convert(self.value(operand), dtype.compute)
                if along in unvarying_axes(self.region):
                    return arg
                folding = Reduction(COMBINES[combine], (along,), 0)
                return self.item("scan", folding, (arg,), arg.axes | {along}, dtype.compute)
            case k.If():
                return self._if(value)
            case k.Partial(condition=condition):
                all_hold = self.value(condition)
                fails = self.item("apply", ANY_FAILS[1], (all_hold,), all_hold.axes, bool_)
                return self._reduce_block(ANY_FAILS[0], fails)
            case k.Extreme(arg=arg, largest=largest):
                return self._extreme(self.value(arg), largest)

    def _reduce_block(self, combine: str, item: Item) -> Item:
        """Return the reduction of an item over the current block."""
        over = tuple(a for a in self.axes if a in item.axes - self.fixed)
        return self.reduce(COMBINES[combine], item, over, item.dtype)

    def _extreme(self, item: Item, largest: bool) -> Item:
        """Return the smallest or largest value of an item in the current block."""
        name = bare_axis(item.payload) if isinstance(item.payload, Expr) else None
        if name is None or name in self.fixed or item.dtype != i64:
            return self._reduce_block(EXTREMES[largest], item)
        return self.item("edge", Edge("last" if largest else "first", name), (), (), i64)

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
        return self.item(
            "branch" if is_uniform else "apply", CHOICE, args, _axes(args), args[1].dtype
        )

    def convert(self, item: Item, dtype: DType) -> Item:
        """Return `item` converted to a type."""
        if item.dtype == dtype:
            return item
        return self.item("cast", Conversion(dtype), (item,), item.axes, dtype.compute)

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
                self.item("const", 0, (), (), i64)
                if row.positional
                else self.convert(arg, dtype.compute)
            )
        positions, edges = self._positions(over) if row.positional else (0, ())
        args = (arg, *edges)
        folding = Reduction(row, over, positions, self.all_single_precision, pairs or dtype != f64)
        return self.item("reduce", folding, args, arg.axes - set(over), dtype.compute)

    def _positions(self, over: tuple[str, ...]) -> tuple[Index, tuple[Item, ...]]:
        """Return the row-major position over axes in the current block.

        Besides, the bounds of blocks that it reads.
        """
        positions: Index = 0
        edges: list[Item] = []

        def edge(what: Literal["first", "length"], name: str, extent: Index) -> Index:
            bound = self.item("edge", Edge(what, name), (), (), i64)
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
            return self.item("apply", SUM_OF_PRODUCTS[1], args, _axes(args), wide)
        folding = Reduction(COMBINES[SUM_OF_PRODUCTS[0]], over, 0, factors=dtype)
        return self.item("dot", folding, args, _axes(args) - set(over), wide)

    def _load(self, load: k.Load) -> Item:
        param = self.kernel.param(load.param)
        other = k.Const(0, param.dtype.compute) if self.guarded else None
        access = self.access(param, load.index, load.other or other)
        args = self.index_args(access.offset, *(e for pair in access.limits for e in pair))
        axes = self.index_axes(access.offset, *(e for e, _ in access.limits))
        return self.item("load", access, args, axes, param.dtype.compute)

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
        axes = self.index_axes(*s.index)
        old = Item(
            "load",
            access,
            self.index_args(access.offset),
            axes,
            new.dtype,
            self.now,
        )
        self.items.append(old)  # never shared with another load: the destination changes
        return self.item("apply", s.join, (old, new), old.axes | new.axes, new.dtype)

    def _before_rounding(self, item: Item, dtype: DType) -> Item:
        """Return the argument of a conversion that storing as `dtype` makes redundant.

        That is a conversion to a half type: the store rounds anyway.  Other items are returned as
        they are.
        """
        half = isinstance(item.payload, Conversion) and item.payload.dtype == dtype != f32
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
                clamping = Clamp(name, extent, self._is_inside(arg, extent))
                self.positions[name] = self.item("position", clamping, (arg,), arg.axes, i64)
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
        tests = {
            (t.payload, t.args[1]) for t in _tests(region.where) if _is_same_value(t.args[0], at)
        }
        low = any(op == "ge" and self._is_block_end(end, extent, 0) for op, end in tests)
        return low and any(op == "le" and self._is_block_end(end, extent, 1) for op, end in tests)

    def _is_block_end(self, item: Item, extent: Index, last: int) -> bool:
        """Return whether a value is a bound of an axis, or of its current block."""
        edge = item.payload
        if item.kind == "edge" and isinstance(edge, Edge):
            axis_extent = self.axes.get(edge.axis)
            return edge.what == ("last" if last else "first") and axis_extent == extent
        end = sub(extent, 1) if last else 0
        return item.kind in ("const", "index") and item.dtype == i64 and edge == end

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
        """Return a block's visit, with its bounds as items."""
        start, stop = (
            None if e is None else self.convert(self.value(e), i64) for e in (b.start, b.stop)
        )
        at = b.start.index if isinstance(b.start, k.IndexValue) else None
        if isinstance(at, int) and b.size == 1:
            return Visit(b.axis, b.size, at, stop, part)
        return Visit(b.axis, b.size, 0, stop, part, start)

    def _read(self, state: StreamState) -> Item:
        """Return the current value of a state."""
        return self.item("state", state, (), state.axes, state.dtype)

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


def _tests(item: Item) -> Iterator[Item]:
    """Yield the comparisons whose conjunction an item is."""
    if item.kind == "apply" and item.payload == BOTH:
        for arg in item.args:
            yield from _tests(arg)
    elif item.kind == "apply" and len(item.args) == 2:
        yield item


def _is_same_value(a: Item, b: Item) -> bool:
    """Return whether two items are the same value, whatever their segments."""
    if a is b:
        return True
    alike = (a.kind, a.payload, a.dtype) == (b.kind, b.payload, b.dtype) and a.kind != "state"
    return alike and len(a.args) == len(b.args) and all(map(_is_same_value, a.args, b.args))


def _axes(items: Iterable[Item]) -> frozenset[str]:
    return frozenset[str]().union(*(i.axes for i in items))
