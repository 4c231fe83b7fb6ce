"""Print a nest of a function from its loops.

The loops read what the function has: ranges and positions of axes are numbers, arrays in scratch
memory are parameters, and a value that was computed before is an array of one element.

    tile nest(x: f32[], e: f32[], v: f32[1], y: out f32[]; n, from, to, at)
      each j in from .. to
        y[at*n + j] = x[at*n + j] * e[j - from] * v[0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.prefetch import next_block, next_task, share_start
from smelt.codegen.llvm.instructions.dot_product import to_packed_bits
from smelt.codegen.llvm.instructions.indexing import multiple_of, number, splat
from smelt.codegen.llvm.instructions.reductions import adds_pairs_first
from smelt.codegen.llvm.loopir.items import Item, Load, StateRead, accesses_of, cut_axes
from smelt.codegen.llvm.loops.partition_selects import version_condition
from smelt.codegen.llvm.loops.unroll_factor import is_fully_unrolled
from smelt.codegen.llvm.lower_nest import (
    Key,
    Lowering,
    identifier,
    lower_nest,
    scans_across,
    start_states,
)
from smelt.codegen.llvm.nests.environment import (
    PACKED,
    Environment,
    LateStore,
    PackedArray,
    RowShare,
    Scope,
)
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.print_loops import LoopPrinter, Typed
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.codegen.llvm.scratch.workspace import SCAN_STATE_KEY, TRANSPOSED_PART, scan_state_axes
from smelt.codegen.llvm.vector_loops import (
    Fill,
    Share,
    Tile,
    in_columns,
    in_rows,
    in_squares,
    in_tiles,
    in_vectors,
    without_vectors,
)
from smelt.loop import ir as loop
from smelt.loop.passes.align_stores import store_past
from smelt.loop.passes.collapse import join_rows
from smelt.loop.passes.fuse_if import fuse_if
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.passes.version import version
from smelt.loop.walk import is_short, loads, loop_over, statements, values
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, i16, i64
from smelt.types.expr import Atom, Expr, Index, add, atoms, axis, floordiv, mod, mul, sub

Value = ir.Value


def run_as_loops(env: Environment, nest: Nest, scope: Scope) -> None:
    """Emit a nest from its loops, inside those of `scope`."""
    packed = env.products.packed_array(nest) if env.products and nest.packed else None
    squares = packed is not None and packed.squares
    printer = LoopPrinter(env.b, env.frame.target, env.frame.entry.found, env.frame.done)
    lowering = NestLowering(env, nest, scope, printer, packed=packed)
    func = lowering.func()
    asks = [*env.frame.shares.get(nest, ())]
    late, cuts = env.late_store, lowering.cuts
    if late is not None and late.host is nest:
        func, cuts = _with_late_stores(func, lowering, late), [cut + 1 for cut in cuts]
        asks += env.frame.shares.get(env.s.nests[-1], ())
    steps = {identifier(a.buffer): next_block(env.s, nest, a) for a in accesses_of(nest.items)}
    blocks = {name: lowering.index(step) for name, step in steps.items() if step is not None}
    groups = (x.groups.group for x in env.row_groups if nest in x.groups.nests)
    group = next(groups, 0)
    joins = any(c.transposes_sums for c in env.s.products.values())
    joins &= not (nest.reductions or cuts or is_fully_unrolled(env.s, nest, nest.items))
    printer.begin(states := lowering.states_func())
    printer.block(states.body)
    sums = [r for r in nest.reductions if r in lowering.arrays and adds_pairs_first(r)]
    pairs = {lowering.arrays[r][0][0] for r in sums if nest.pairs}

    align = _alignment(env, nest)

    def vectors(func: loop.Func) -> loop.Func:
        for var in lowering.lanes if func.body else ():  # there may be no elements
            if joins:
                func, var = join_rows(func, var)  # of sums that were stored without gaps
            fills: Sequence[Fill] = ()
            if squares:
                return in_squares(func, env.s, nest, next(iter(lowering.tiles().values())))
            if packed is not None and nest.order[1:] and nest.order[0] == nest.vector:
                return in_columns(func, var, env.s.lanes, packed, lowering.next_tasks())
            if nest.transposed:
                tiles, streaming = lowering.tiles(), env.frame.streaming
                func, fills = in_tiles(func, env.s, nest, tiles, streaming=streaming)
            shares = [lowering.share(x) for x in asks]
            func = in_vectors(
                func,
                env.s,
                nest,
                var,
                shares,
                cuts,
                blocks,
                pairs,
                align=1 if joins else align,
                storage=env.storage,
                vector_bytes=env.frame.target.vector_bytes,
                streaming=env.frame.streaming,
                packed=packed,
                group=group,
                fills=fills,
            )
        return func if lowering.lanes else without_vectors(func, env.s, nest)

    ended = (r for r in nest.reductions if r not in env.s.materialised)
    results = {item: lowering.values[item] for item in (*nest.scalars, *ended)}
    choice = None if env.known_conditions or nest.transposed else version_condition(nest)
    if choice is None:
        func = vectors(func)
    else:
        names = {item: lowering.fresh("r") for item in results}
        ends = {names[item]: value for item, value in results.items()}
        func = version(func, lowering.values[choice], vectors, ends)
        results = {item: loop.Ref(name) for item, name in names.items()}
    printer.begin(func)
    printer.block(func.body)
    for item, value in results.items():
        env.top.define(item, printer.value(value).value)


def print_scalar(env: Environment, item: Item, scope: Scope) -> Value:
    """Emit an item at the position of a scope."""
    items, pending = dict[Item, None](), [item]
    while pending:
        x = pending.pop()
        if x not in items and x not in env.s.materialised and scope.value(x) is None:
            items[x] = None
            pending += x.args
    nest = Nest(0, (), None, items=tuple(reversed(items)), scalars=(item,))
    printer = LoopPrinter(env.b, env.frame.target, env.frame.entry.found)
    lowering = NestLowering(env, nest, scope, printer)
    printer.begin(func := lowering.func())
    printer.block(func.body)
    return printer.value(lowering.values[item]).value


def _alignment(env: Environment, nest: Nest) -> int:
    """Return a number that divides the position at which a nest's vectors begin.

    Operands are packed from multiples of a vector on, in parts too.
    """
    wide, phase, v = env.s.lanes * nest.unroll, env.s.phase, nest.vector
    if v is None:
        return 1
    partial = {*phase.cut, *cut_axes(phase.segments[nest.time]), *phase.window_positions}
    if nest.packed and v not in partial and multiple_of(env.s.block.get(v, 0)) % wide == 0:
        return wide
    return env.loop_alignment(v, wide)


def _with_late_stores(func: loop.Func, host: NestLowering, late: LateStore) -> loop.Func:
    """Store the rows of the previous task inside of the loops over this one's."""
    lowering = NestLowering(late.late, late.late.s.nests[-1], late.late.top, host.printer, host)
    condition = lowering.scalar("pending", late.pending, bool_)
    stores = lowering.func()
    params = dict.fromkeys((*func.params, *stores.params))
    numbers = dict.fromkeys((*func.numbers, *stores.numbers))
    func = replace(func, params=tuple(params), numbers=tuple(numbers))
    arrays = {identifier(x.access.buffer) for x in lowering.nest.stores}
    return fuse_if(func, store_past(stores.body, arrays), condition, *host.cuts[:1])


class NestLowering(Lowering):
    """Lowers one nest; gives the names of what it reads from outside to a printer.

    Its names are others than those of the nest `beside` it.
    """

    def __init__(
        self,
        env: Environment,
        nest: Nest,
        scope: Scope,
        printer: LoopPrinter,
        beside: Lowering | None = None,
        packed: PackedArray | None = None,
        sums: Sequence[Item] = (),
    ) -> None:
        taken = {*env.frame.sizes, *map(identifier, env.frame.buffers)}
        super().__init__(env.s, env.storage, (), beside.taken if beside else taken)
        self.env, self.nest, self.scope, self.printer = env, nest, scope, printer
        self.packed, self.sums = packed, sums
        self.dtypes = env.frame.dtypes
        self.answers, self.proven = env.known_conditions, env.proven_limits
        self.numbers: dict[Value, Index] = {}
        self.params: list[loop.Param] = []
        self.tile_names: dict[Load, str] = {}
        for name, value in env.frame.sizes.items():
            printer.bind(name, value)
        accesses = [*accesses_of(nest.items), *(x.access for x in nest.stores)]
        accesses += [x.access for x in env.frame.shares.get(nest, ())]
        for name in dict.fromkeys(a.buffer for a in accesses if a.buffer in env.frame.buffers):
            address, elements = env.frame.buffers[name], env.frame.lengths.get(name, 0)
            self._add_array(identifier(name), address, self.dtypes[name], elements)
        self._add_scratch()
        for item in sums:
            self.arrays[item] = [name := self.fresh("sums")], nest.order[-1:]
            self.params.append(loop.Param(name, item.dtype, None))
        if packed is not None:
            self._add_array(PACKED, packed.address, packed.dtype)
            if (group := packed.group) is not None and group.step == "bfloats":
                (item,) = nest.saves
                bits_of = partial(to_packed_bits, item=item, group=group)
                printer.add_bits(PACKED, packed.address, i16, bits_of)
        self.ranges = {a: self._range(a) for a in env.s.phase.axes if self._has_range(a)}
        self._add_values()

    def states_func(self) -> loop.Func:
        """Return the loops that start states, in vectors."""
        body = start_states(self, self.nest)
        func = self._func(body)
        for walk in body:
            func = vectorize(func, walk.var, self.s.lanes, "mask")
        return func

    def func(self) -> loop.Func:
        """Return the loops of the nest."""
        return self._func(lower_nest(self, self.nest))

    def open_func(self, arrays: Mapping[str, DType]) -> loop.Func:
        """Return the loops of the nest with more arrays; the last numbers are loops' ends."""
        self.params += (loop.Param(x, t, None, written=True) for x, t in arrays.items())
        ends = [self.fresh(x) for _ in self.nest.order for x in ("begin", "end")]
        for a, low, high in zip(self.nest.order, ends[::2], ends[1::2], strict=True):
            self.printer.bind(low, self.env.ranges[a][0])
            self.printer.bind(high, self.env.ranges[a][1])
            self.ranges = {**self.ranges, a: (loop.number(low), loop.number(high))}
        func = self.func()
        return replace(func, numbers=(*func.numbers, *ends))

    def _func(self, body: tuple[loop.Statement, ...]) -> loop.Func:
        names = sorted({a.name for e in self.numbers.values() for a in atoms(e)})
        sizes = tuple(n for n in self.env.frame.sizes)
        return loop.Func("tile", "nest", tuple(self.params), sizes, tuple(names), body)

    # ---- what is there ---------------------------------------------------------------------------

    def _add_array(self, name: str, address: Value, dtype: DType, elements: int = 0) -> None:
        self.taken.add(name)
        self.params.append(loop.Param(name, dtype, None, written=True))
        self.printer.add_array(name, address, dtype, elements)

    def _add_scratch(self) -> None:
        """Name the arrays in scratch memory that the nest reads or writes."""
        s, storage, nest = self.s, self.storage, self.nest
        used: dict[Key, tuple[str, ...]] = {}
        saves = () if nest.packed else nest.saves
        for item in (*self._read(), *saves):
            if item in s.materialised and (item not in nest.items or item in saves):
                used[item] = s.materialised[item]
            elif isinstance(item, StateRead):
                used[item.state] = storage.state_axes(item.state)
        for item in nest.reductions:
            if item in s.materialised:
                used[item] = s.materialised[item]
        for update in nest.state_updates:
            used[update.state] = storage.state_axes(update.state)
        for owner, axes in used.items():
            parts = len(storage.parts(owner)) if isinstance(owner, Item) else 1
            stem = "e" if isinstance(owner, Item) else identifier(owner.name)
            self.arrays[owner] = self._scratch(owner, stem, range(parts)), axes
        for scan in scans_across(nest):
            keys = range(SCAN_STATE_KEY, SCAN_STATE_KEY + len(storage.accumulator_of(scan).parts))
            self.scan_states[scan] = self._scratch(scan, "s", keys), scan_state_axes(s, scan)
        for item in nest.transposed:
            (self.tile_names[item],) = self._scratch(item, "t", (TRANSPOSED_PART,))

    def _scratch(self, owner: Key, stem: str, parts: Sequence[int]) -> list[str]:
        """Return the names of some arrays of an owner in scratch memory."""
        names = [self.fresh(stem) for _ in parts]
        for part, name in zip(parts, names, strict=True):
            dtype = self.storage.arrays[owner, part][1].compute
            self._add_array(name, self.storage.at[owner, part], dtype)
        return names

    def _read(self) -> list[Item]:
        """Return the items that are read in the nest, and those it computes."""
        nest = self.nest
        roots = [x for t in nest.stores for x in (t.value, t.where) if x is not None]
        roots += [u.value for u in nest.state_updates]
        roots += [a for r in nest.reductions for a in r.args]
        positions = (a for t in nest.stores for a in t.access.positions)
        roots += [self.s.phase.positions[n] for n in positions]
        return [
            *roots,
            *nest.saves,
            *nest.scalars,
            *nest.items,
            *(a for i in nest.items for a in i.args),
        ]

    def _add_values(self) -> None:
        """Name the values that are available before the nest."""
        for item in dict.fromkeys(self._read()):
            value = self.scope.value(item)
            if value is not None and item.dtype == i64:
                self.keep(item, loop.position(self.number("v", value)))
            elif value is not None:
                self.keep(item, self.scalar("v", value, item.dtype.compute))

    def scalar(self, stem: str, value: Value, dtype: DType) -> loop.Value:
        """Return a register as the element of an array of one."""
        name = self.fresh(stem)
        self.params.append(loop.Param(name, dtype, 1))
        self.printer.add_register(name, value, dtype)
        return loop.Load(loop.Place(name, 0))

    def number(self, stem: str, value: Value) -> Index:
        """Return an i64 register as an index expression."""
        if isinstance(value, ir.Constant):
            return int(value.constant)
        if value not in self.numbers:
            self.printer.bind(name := self.fresh(stem), value)
            self.numbers[value] = loop.number(name)
        return self.numbers[value]

    def _has_range(self, a: str) -> bool:
        return a in self.env.ranges or self.scope.axis(a) is not None

    def _range(self, a: str) -> tuple[Index, Index]:
        """Return the positions of an axis: a single one if a loop outside has it."""
        if (at := self.scope.axis(a)) is not None:
            position = self.number("at", at)
            return position, add(position, 1)
        low, high = self.env.ranges[a]
        extent = self.s.phase.axes[a]
        if high is self.env.frame.index(extent):
            return self.number("from", low), self.index(extent)
        return self.number("from", low), self.number("to", high)

    def tiles(self) -> dict[Load, Tile]:
        """Return the tiles that transposed loads are read from."""
        s, nest, tiles = self.s, self.nest, dict[Load, Tile]()
        row, column = (self.loops[a] for a in nest.order[-2:])
        for item, name in self.tile_names.items():
            pitch = self.storage.pitches[item] if nest.strips else transpose_side(s.lanes)
            at = self.index(item.access.offset)
            tiles[item] = Tile(name, (row, column), at, self.index(pitch))
        return tiles

    def share(self, x: RowShare) -> Share:
        """Return the part of a next row that the nest prefetches."""
        first, before = share_start(self.s, self.nest, x)
        name = identifier(x.access.buffer)
        return Share(name, self.index(first), x.share, self.index(before))

    def next_tasks(self) -> dict[str, Index]:
        """Return the elements between what this task and the next one read of arrays."""
        steps = {a.buffer: next_task(self.env, a) for a in accesses_of(self.nest.items)}
        return {identifier(x): self.index(n) for x, n in steps.items() if n is not None}

    # ---- names -----------------------------------------------------------------------------------

    def start(self, owner: Key, axis: str) -> Index:
        """Return the first position along an axis that an array in scratch memory has."""
        if owner in self.sums:
            return 0
        return self.number("first", self.env.start(owner, axis))

    def packed_place(self, variables: Mapping[str, str]) -> loop.Place:
        """Return where a nest packs the element at the loops' positions."""
        packed = self.packed
        if packed is None:  # a product takes the vectors themselves
            a = self.nest.order[-1]
            return loop.Place(PACKED, axis(variables[a], self.index(self.s.phase.axes[a])))
        at: Index = 0
        for a, name in variables.items():
            position = axis(name, self.index(self.s.phase.axes[a]))
            step = self.number("step", packed.steps[a]) if a in packed.steps else 1
            if packed.panel is not None and a == self.nest.vector:
                column = sub(position, self.ranges[a][0])
                panel = mul(floordiv(column, packed.width), self.number("panel", packed.panel))
                at = add(at, add(panel, mod(column, packed.width)))
            else:
                start = self.number("from", packed.starts[a])
                at = add(at, mul(sub(position, start), step))
        return loop.Place(PACKED, at)

    def packed_value(self, item: Item, value: loop.Value) -> loop.Value:
        """Return an element as it is packed: some instructions read it as bytes of either sign."""
        group = self.packed.group if self.packed else None
        if group is None or group.step == "bfloats":
            return value
        if item.dtype != group.dtype:
            value = loop.cast(value, group.dtype)
        sign = loop.Const(-128, group.dtype)
        return loop.Apply("xor", (value, sign)) if group.left_offset else value

    def leaf(self, atom: Atom) -> Index:
        """Return a variable of the kernel in an index expression."""
        if atom.kind != "axis":
            return super().leaf(atom)
        if atom.name in self.loops:
            return axis(self.loops[atom.name], self.index(atom.extent))
        position = self.number("at", self.scope.axis(atom.name))
        if isinstance(position, int):
            return position
        assert isinstance(position, Expr) and is_short(position)
        (name,) = (a.name for a in atoms(position))
        return axis(name, self.index(atom.extent))


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A row of a nest, at which its values are computed vector by vector."""

    names: Mapping[str, Typed]
    position: Value
    """The position along the axis before the last one."""


class NestBody:
    """Prints what a nest of rows computes at positions that a product chooses.

    The product has sums in registers: they are arrays, of which a vector is read where it is.

        each i in 0 .. m                              row(i):         o = n*i
          each j in 0 .. n                            put(row, j):    y[o + j : 16] = sum*x[j : 16]
            y[n*i + j] = sum[j]*x[j]

    `targets` are arrays that the nest stores to instead of the program's: where a row has column 0
    is said at each vector.  They may be written past the end of a row (`stores_whole`).  What a
    nest packs is a vector that `packed` returns.  Vectors begin at multiples of `align`.
    """

    def __init__(
        self,
        env: Environment,
        nest: Nest,
        lanes: int,
        sums: Sequence[Item] = (),
        targets: Mapping[str, DType] | None = None,
        *,
        scope: Scope | None = None,
        stores_whole: bool = False,
        align: int = 1,
    ) -> None:
        nest = replace(nest, items=tuple(i for i in nest.items if i not in sums))
        self.printer = LoopPrinter(env.b, env.frame.target, env.frame.entry.found)
        lowering = NestLowering(env, nest, Scope(scope or env.top), self.printer, sums=sums)
        self.nest, self.sums = nest, {x: lowering.arrays[x][0][0] for x in sums}
        self.dtypes = {identifier(x): dtype for x, dtype in (targets or {}).items()}
        arrays = {**self.dtypes}
        if nest.packed:
            arrays[PACKED] = nest.saves[0].dtype
        self.lowered, self.outside = lowering.open_func(arrays), self.printer.names
        *self.axes, self.column = (lowering.loops[a] for a in nest.order)
        self.env, self.align = env, align
        self.stores_whole = tuple(self.dtypes) if stores_whole else ()
        self._open(lanes)

    def _open(self, lanes: int) -> None:
        """Print what is computed once for all rows."""
        align = max(self.align, self.env.loop_alignment(self.nest.order[-1], lanes))
        func = in_rows(self.lowered, self.nest, self.column, lanes, align, self.stores_whole)
        first, *bodies = func.body, *(loop_over(func.body, a).body for a in self.axes)
        self.first = [s for s in first if not isinstance(s, loop.For)]
        self.before = [s for body in bodies for s in body if not isinstance(s, loop.For)]
        self.whole, self.masked = (s for s in bodies[-1] if isinstance(s, loop.For))
        self.lanes = lanes
        self.printer.resume(self.outside)
        self.printer.begin(func)
        self.printer.block(self.first)
        self.names = self.printer.names

    def widened(self, lanes: int) -> NestBody:
        """Return what prints the same rows in other vectors."""
        body = copy(self)
        body._open(lanes)
        return body

    def row(self, *positions: Value) -> Row:
        """Print what is computed once for a row."""
        self.printer.resume(self.names)
        for name, position in zip(self.axes, positions, strict=True):
            self.printer.bind(name, position)
        self.printer.block(self.before)
        return Row(self.printer.names, positions[-1])

    def rows(self, *positions: Value, count: int, end: Value | None = None) -> list[Row]:
        """Print `count` consecutive rows; those from `end` on, if any, repeat the one before."""
        b, (*outer, first) = self.printer.b, positions
        nexts = [b.add(first, number(r)) for r in range(1, count)]
        if end is not None:
            last = b.sub(end, number(1))
            nexts = [b.minimum(row, last) for row in nexts]
        return [self.row(*outer, row) for row in (first, *nexts)]

    def put(
        self,
        row: Row,
        column: Value,
        mask: Value | None,
        sums: Mapping[Item, Value],
        targets: Sequence[Value] = (),
    ) -> None:
        """Print a vector of a row, from its sums; `targets` are addresses of column 0."""
        for item, value in sums.items():
            self.printer.add_register(self.sums[item], value, item.dtype)
        self._aim(targets)
        self.printer.block(self._body(row, column, mask))

    def put_all(
        self,
        position: Value,
        columns: tuple[Value, Value],
        sums: Mapping[Item, Value],
        targets: Sequence[Value] = (),
    ) -> None:
        """Print a row between two columns; `sums` and targets have column 0 at addresses."""
        self.printer.resume(self.outside)
        for name, value in zip(self.lowered.numbers[-2:], columns, strict=True):
            self.printer.bind(name, value)
        (row,) = self.axes
        self.printer.bind(row, position)
        for item, address in sums.items():
            self.printer.add_array(self.sums[item], address, item.dtype)
        self._aim(targets)
        self.printer.block([*self.first, *self.before, self.whole, self.masked])

    def _aim(self, targets: Sequence[Value]) -> None:
        """Say where the targets have column 0 of a row."""
        for (name, dtype), address in zip(self.dtypes.items(), targets, strict=True):
            self.printer.add_array(name, address, dtype)

    def packed(self, row: Row, column: Value, mask: Value | None) -> Value:
        """Print a vector of a row that the nest packs, undefined outside the mask."""
        *before, store = self._body(row, column, mask)
        assert isinstance(store, loop.Store), store
        self.printer.block([*before, loop.Let(PACKED, store.value)])
        return splat(self.printer.b, self.printer.names[PACKED].value, self.lanes)

    def gathers(self) -> bool:
        """Return whether lanes of a vector read elements that are apart."""
        reads = (x.place for s in statements(self.whole.body) for v in values(s) for x in loads(v))
        vectors = [p for p in reads if p.lanes > 1]
        return any(isinstance(p.at, loop.Value) or p.stride not in (0, 1) for p in vectors)

    def _body(self, row: Row, column: Value, mask: Value | None) -> Sequence[loop.Statement]:
        """Return the statements of a vector, whose position and mask are bound."""
        walk, body = self.whole, self.whole.body
        self.printer.resume(row.names)
        if mask is not None:
            walk, (on, *body) = self.masked, self.masked.body
            assert isinstance(on, loop.Let), on
            self.printer.bind(on.name, mask, bool_)
        self.printer.bind(walk.var, column)
        return body
