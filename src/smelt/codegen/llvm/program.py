"""Kernel -> Program: a flat graph of values with flat memory offsets, the form that is scheduled.

Trees become shared items, index tuples become one offset in elements, streams over the parts of a
split axis become two phases: one that leaves partial results in a buffer, one that merges them in
order.  Neighbouring axes that every access walks as one are collapsed into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.codegen.llvm.collapse import collapse
from smelt.codegen.llvm.items import (
    Access,
    Buffer,
    Clamping,
    Converting,
    Folding,
    Item,
    Kind,
    Payload,
    Phase,
    Program,
    StoreItem,
)
from smelt.codegen.llvm.refine import refine
from smelt.errors import UnsupportedError
from smelt.kernel import ir as k
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, f64, i64
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axis,
    bounds,
    floordiv,
    maximum,
    mul,
    nonnegative,
    product,
    size,
    sub,
)


class PhaseBuilder:
    """Makes the items of one phase, equal ones once."""

    def __init__(self, kernel: k.Kernel, phase: Phase, program: Program) -> None:
        self.kernel, self.phase, self.program = kernel, phase, program
        self.known: dict[object, Item] = {}
        self.names: dict[str, Item] = {}

    def item(
        self,
        kind: Kind,
        payload: Payload,
        args: tuple[Item, ...],
        axes: Iterable[str],
        dtype: DType,
    ) -> Item:
        number = payload.other if isinstance(payload, Access) else payload  # 0.0 is not -0.0
        key = (kind, payload, repr(number) if isinstance(number, float) else None, type(number),
               args, dtype)  # fmt: skip
        found = self.known.get(key)
        if found is None:
            found = Item(len(self.phase.items), kind, payload, args, frozenset(axes), dtype)
            self.known[key] = found
            self.phase.items.append(found)
        return found

    def index_axes(self, *index: Index) -> frozenset[str]:
        """Axes of index expressions, through computed positions."""
        found: set[str] = set()
        for e in index:
            for atom in atoms(e):
                if atom.kind == "axis":
                    found.add(atom.name)
                elif atom.kind == "value":
                    found |= self.phase.positions[atom.name].axes
        return frozenset(found)

    def index_args(self, *index: Index) -> tuple[Item, ...]:
        """The computed positions that index expressions read."""
        names = dict.fromkeys(a.name for e in index for a in atoms(e) if a.kind == "value")
        return tuple(self.phase.positions[n] for n in names)

    def value(self, value: k.Value) -> Item:
        """The item of a kernel value."""
        match value:
            case k.Const(value=number, dtype=dtype):
                return self.item("const", number, (), (), dtype.compute)
            case k.Ref(name=name):
                return self.names[name]
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
                return self.item("cast", Converting(dtype), args, _axes(args), dtype.compute)
            case k.Reduce(combine=combine, arg=operand, over=over, dtype=dtype):
                return self.fold(COMBINES[combine], self.value(operand), over, dtype)
            case k.Dot(left=left, right=right, over=over, dtype=dtype):
                return self._dot(left, right, over, dtype)
            case k.Scan(combine=combine, arg=operand, along=along, dtype=dtype):
                arg = self.convert(self.value(operand), dtype.compute)
                folding = Folding(COMBINES[combine], (along,), 0)
                return self.item("scan", folding, (arg,), arg.axes | {along}, dtype.compute)
            case _:
                raise UnsupportedError(f"the CPU back end has no lowering for {value}")

    def convert(self, item: Item, dtype: DType) -> Item:
        """`item` as another type."""
        if item.dtype == dtype:
            return item
        return self.item("cast", Converting(dtype), (item,), item.axes, dtype.compute)

    def fold(self, row: Combine, arg: Item, over: tuple[str, ...], dtype: DType) -> Item:
        """A fold of an item over axes of the phase; a partial result may be of a wider type."""
        missing = [a for a in over if a not in arg.axes]
        positions: Index = 0
        for name in over:
            extent = self.phase.axes[name]
            positions = add(mul(positions, extent), axis(name, extent))
        if not row.positional:
            partial = row.wide and arg.dtype.is_float and dtype == f64
            arg = arg if partial else self.convert(arg, dtype.compute)
        axes = (arg.axes | set(missing)) - set(over)
        return self.item("fold", Folding(row, over, positions), (arg,), axes, dtype.compute)

    def _dot(self, left: k.Value, right: k.Value, over: tuple[str, ...], dtype: DType) -> Item:
        wide = dtype.compute
        args = tuple(self.convert(self.value(v), wide) for v in (left, right))
        folding = Folding(COMBINES[SUM_OF_PRODUCTS[0]], over, 0)
        return self.item("dot", folding, args, _axes(args) - set(over), wide)

    def _load(self, load: k.Load) -> Item:
        param = self.kernel.param(load.param)
        access = self.access(param, load.index, load.other)
        args = self.index_args(access.offset, *(e for pair in access.limits for e in pair))
        axes = self.index_axes(access.offset, *(e for e, _ in access.limits))
        return self.item("load", access, args, axes, param.dtype.compute)

    def access(
        self, param: k.Param, index: tuple[Index, ...], other: k.Const | None
    ) -> Access:  # fmt: skip
        """The flat form of param[index]."""
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
        limits = tuple((e, n) for e, n in zip(index, param.shape, strict=True) if not _inside(e, n))
        return Access(param.name, offset, limits, other.value)

    def store(self, s: k.Store) -> None:
        """Adds a store."""
        param = self.kernel.param(s.param)
        access = self.access(param, s.index, None)
        where = None if s.where is None else self.value(s.where)
        found = self.value(s.value)
        axes = self.index_axes(*s.index) | found.axes | (where.axes if where else frozenset())
        self.phase.stores.append(StoreItem(access, found, where, axes))

    def statement(self, s: k.Statement) -> None:
        """Adds a straight-line statement."""
        match s:
            case k.Let(name=name, value=value):
                self.names[name] = self.value(value)
            case k.Position(name=name, value=value, extent=extent):
                arg = self.convert(self.value(value), i64)
                self.phase.positions[name] = self.item(
                    "position", Clamping(name, extent), (arg,), arg.axes, i64
                )
            case k.Store():
                self.store(s)
            case _:
                raise UnsupportedError(f"the CPU back end has no lowering for {s}")


def stride_name(param: str, d: int) -> str:
    """The size symbol that stands for a stride told at the call."""
    return f"{param}__stride{d}"


def _axes(items: Iterable[Item]) -> frozenset[str]:
    return frozenset[str]().union(*(i.axes for i in items))


def _inside(e: Index, limit: Index) -> bool:
    """0 <= e < limit for all values of the axes."""
    span = bounds(e)
    return span is not None and nonnegative(span[0]) and nonnegative(sub(sub(limit, 1), span[1]))


def program(kernel: k.Kernel) -> Program:
    """The scheduled form's input.  Raises UnsupportedError for what this back end cannot run."""
    buffers = [Buffer(p.name, p.dtype, False, _nbytes(p)) for p in kernel.inputs]
    buffers += [Buffer(p.name, p.dtype, True, _nbytes(p)) for p in kernel.outputs]
    strides = [(p.name, d) for p in kernel.inputs if p.strides is not None
               for d, s in enumerate(p.strides) if s is None]  # fmt: skip
    out = Program(kernel.name, buffers, strides, [], [])
    axes = {a.name: a.extent for a in kernel.axes}
    grid = [b.axis for b in kernel.grid if isinstance(b, k.Block)]
    streams = [s for s in kernel.body if isinstance(s, k.Stream)]
    if not streams:
        phase = Phase(kernel.name, axes, grid)
        builder = PhaseBuilder(kernel, phase, out)
        for s in kernel.body:
            builder.statement(s)
        out.phases.append(prune(phase))
    else:
        _split_phases(kernel, out, axes, grid)
    out.phases = [prune(collapse(refine(p))) for p in out.phases]
    return out


def _nbytes(p: k.Param) -> Index:
    return product((*p.shape, p.dtype.itemsize))


def _split_phases(
    kernel: k.Kernel, out: Program, axes: dict[str, Index], grid: list[str]
) -> None:  # fmt: skip
    """One phase that folds each part into a partial result, one that merges the parts."""
    splits = [s for s in kernel.grid if isinstance(s, k.Split)]
    streams = [s for s in kernel.body if isinstance(s, k.Stream)]
    plain = len(splits) == 1 and len(streams) == 1 and len(streams[0].blocks) == 1
    if not plain or streams[0].blocks[0].part != splits[0].name:
        raise UnsupportedError(f"the CPU back end has no lowering for the streams of {kernel.name}")
    split, stream = splits[0], streams[0]
    extent = axes[split.axis]
    length = maximum(floordiv(add(extent, split.parts - 1), split.parts), 1)
    first = Phase(f"{kernel.name}.parts", dict(axes), list(grid))
    first.cut[split.axis] = (split.name, length)
    first.axes[split.name] = split.parts
    first.grid.append(split.name)
    second = Phase(f"{kernel.name}.merge", {**axes, split.name: split.parts}, list(grid))
    parts, merged = PhaseBuilder(kernel, first, out), PhaseBuilder(kernel, second, out)
    states = {s.name: s for s in stream.states}
    for s in stream.body:
        if isinstance(s, k.Update):
            _partial(parts, merged, states[s.state], s, split, grid)
        else:
            parts.statement(s)
    for s in kernel.body:
        if not isinstance(s, (k.Stream, k.Merge)):
            merged.statement(s)
    out.phases += [prune(first), prune(second)]


def _partial(
    parts: PhaseBuilder, merged: PhaseBuilder, state: k.State, update: k.Update,
    split: k.Split, grid: Sequence[str],
) -> None:  # fmt: skip
    """state' = state op fold(..): the fold goes to memory for each part, and is folded again."""
    value = update.value
    fold = value.args[1] if isinstance(value, k.Apply) and len(value.args) == 2 else None
    if not isinstance(fold, k.Reduce):
        raise UnsupportedError(f"the CPU back end cannot split the state {state.name}")
    row = COMBINES[fold.combine]
    found = parts.fold(row, parts.value(fold.arg), fold.over, _partial_dtype(fold.dtype))
    order = (*grid, *state.axes)
    extents = tuple(parts.phase.axes[a] for a in order)
    name = f"{state.name}.parts"
    nbytes = product((split.parts, *extents, _partial_dtype(fold.dtype).itemsize))
    buffer = Buffer(name, _partial_dtype(fold.dtype), True, nbytes)
    parts.program.partials.append(buffer)
    parts.program.buffers.append(buffer)
    offset: Index = axis(split.name, split.parts)
    for a, n in zip(order, extents, strict=True):
        offset = add(mul(offset, n), axis(a, n))
    access = Access(name, offset)
    axes = frozenset((split.name, *order))
    parts.phase.stores.append(StoreItem(access, found, None, axes))
    again = merged.item("load", access, (), axes, buffer.dtype.compute)
    total = merged.fold(row, again, (split.name,), buffer.dtype)
    merged.names[state.name] = merged.convert(total, fold.dtype.compute)


def _partial_dtype(dtype: DType) -> DType:
    """Partial float results keep double precision."""
    return f64 if dtype.kind == "float" else dtype


def prune(phase: Phase) -> Phase:
    """Drops items that no store needs, axes nobody walks, and renumbers."""
    wanted: set[Item] = set()
    pending = [s.value for s in phase.stores] + [s.where for s in phase.stores if s.where]
    pending += [p for s in phase.stores for p in _store_positions(s, phase)]
    while pending:
        item = pending.pop()
        if item not in wanted:
            wanted.add(item)
            pending.extend(item.args)
    phase.items = [i for i in phase.items if i in wanted]
    for number, item in enumerate(phase.items):
        item.number = number
    return phase


def _store_positions(s: StoreItem, phase: Phase) -> list[Item]:
    names = [a.name for a in atoms(s.access.offset) if a.kind == "value"]
    return [phase.positions[n] for n in names]
