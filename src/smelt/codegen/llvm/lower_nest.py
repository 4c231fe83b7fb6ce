"""Lower a nest of a schedule to loops: folds, scans and stores, before any pass.

    nest n0, n1: q = sum(x*x over n1)     each i in 0 .. n0
                                            each j in 0 .. n1 with s = sum:f64 0.0
                                              v = x[i*n1 + j]
                                              s <- v*v
                                            q[i] = s

What a nest computes at each depth is a Let if something reads it twice or further in, and else part
of the value that reads it.  Reductions and scans whose accumulators vary inside of their loops have
them in arrays (`start_states`), and combine each element with what is there:

    nest n0, n1: q = sum(x*x over n0)     for i in 0 .. n0
                                            each j in 0 .. n1
                                              v = x[i*n1 + j]
                                              q[j] add = f64(v*v)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.llvm.instructions.reductions import Accumulator, ArgAccumulator, CompensatedSum
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import (
    Access,
    Item,
    StreamState,
)
from smelt.codegen.llvm.loops.partition_selects import is_select
from smelt.codegen.llvm.loops.unroll_factor import (
    adds_pairs,
    argreduce_with_value,
    is_fully_unrolled,
)
from smelt.codegen.llvm.nests.environment import Storage
from smelt.codegen.llvm.nests.nest import Limit, Nest, Schedule
from smelt.loop import ir as loop
from smelt.loop.steps import better, exact, two_sum
from smelt.ops.combine import BOTH, COMBINES, EXTREMES
from smelt.types.dtype import DType, f32, f64, i64
from smelt.types.expr import (
    Atom,
    Index,
    add,
    atoms,
    axis,
    coefficient,
    map_variables,
    may_wrap,
    mul,
    nonnegative,
    positive,
    product,
    size,
    sub,
)

Key = Item | StreamState
Body = tuple[loop.Statement, ...]
Arrays = tuple[Sequence[str], tuple[str, ...]]
"""Names of arrays in scratch memory, one for each part of a state, and their axes."""
_LETTERS = "ijklmnopq"
_MAX_NESTING = 32
"""Maximum operators inside of one another in a value: passes walk values by recursion."""


class Lowering:
    """The names, ranges and arrays at a point of a function."""

    def __init__(
        self, s: Schedule, storage: Storage, strides: Collection[str], taken: set[str]
    ) -> None:
        self.s, self.storage, self.strides, self.taken = s, storage, strides, taken
        self.stems: dict[str, str] = {}
        self.vars: Mapping[str, str] = {}
        """Variables of loops around the nests, by axis."""
        self.ranges: Mapping[str, tuple[Index, Index]] = {}
        self.arrays: dict[Key, Arrays] = {}
        """Where values, states of reductions and states of streams are."""
        self.scan_states: dict[Item, Arrays] = {}
        """Where the states of scans are that run across loops."""
        self.lanes: dict[str, int] = {}
        """Lanes that some loops take at once, by their variable."""
        self.loops: dict[str, str] = {}
        """Variables of the loops that were lowered last, by axis."""
        self.cuts: tuple[int, ...] = ()
        """Where the later stages of the last body begin: statements, without index expressions."""
        self.values: dict[Item, loop.Value] = {}
        """Values without loops, of this task and of the regions around."""
        self.dtypes: Mapping[str, DType] = {}
        """Types of the program's arrays."""
        self.answers: Mapping[Item, bool] = {}
        """Conditions that have one answer in all positions of the nest."""
        self.proven: Collection[Limit] = ()
        """Bounds checks that hold there."""

    def keep(self, item: Item, value: loop.Value) -> None:
        """Make a value without loops available to later nests."""
        self.values[item] = value

    def take_loops(self, variables: Mapping[str, str], lanes: Mapping[str, int]) -> None:
        """Note the variables of loops, and how many positions the schedule takes at once."""
        self.loops |= variables
        self.lanes |= lanes

    def take_cuts(self, cuts: Iterable[int]) -> None:
        """Note where the later stages of a body begin."""
        self.cuts = tuple(cuts)

    def fresh(self, stem: str) -> str:
        """Return a name that nothing has: the stem, with a number if it is taken."""
        name, count = stem, 0
        while name in self.taken:
            count += 1
            name = f"{stem}{count}"
        self.taken.add(name)
        return name

    def axis_name(self, axis: str) -> str:
        """Return a new variable for an axis: the axis' name, or a letter."""
        stem = self.stems.get(axis)
        if stem is None:
            letters = (c for c in _LETTERS if c not in (self.taken | {*self.stems.values()}))
            named = axis not in self.taken and axis.isidentifier()
            stem = self.stems[axis] = axis if named else next(letters, "i")
        return self.fresh(stem)

    def start(self, owner: Key, axis: str) -> Index:
        """Return the first position along an axis that an array in scratch memory has."""
        raise NotImplementedError

    def extent(self, owner: Key, a: str) -> Index:
        """Return the extent of an array in scratch memory along an axis."""
        return self.index(self.storage.extent(owner, a))

    def packed_place(self, variables: Mapping[str, str]) -> loop.Place:
        """Return where a nest packs the element at the loops' positions."""
        raise NotImplementedError

    def packed_value(self, item: Item, value: loop.Value) -> loop.Value:
        """Return an element as it is packed."""
        raise NotImplementedError

    def states(self, item: Item, axes: tuple[str, ...]) -> Index:
        """Return how many states of an item a task starts: there may be room for more."""
        outer, *inner = axes
        extents = [self.extent(item, a) for a in axes]
        if inner and outer in self.ranges:
            extents[0] = sub(self.ranges[outer][1], self.start(item, outer))
        return product(extents)

    def kept(self, item: Item, parts: Sequence[loop.Value]) -> loop.Value:
        """Return a value that an array in scratch memory holds, or a state there."""
        return self.finished(item, parts) if self.storage.holds_states(item) else parts[0]

    def finished(self, item: ssa.Reduction, parts: Sequence[loop.Value]) -> loop.Value:
        """Return the value of an item whose state has these parts."""
        match self.storage.accumulator_of(item):
            case CompensatedSum():
                return exact(*parts)
            case ArgAccumulator(parts=(_, place), farthest=farthest):
                is_start = loop.Apply("eq", (parts[1], loop.Const(farthest, place)))
                at = loop.Apply("select", (is_start, loop.Const(0, place), parts[1]))
                return loop.cast(at, i64)
            case acc:
                return _as(parts[0], acc.parts[0], item.dtype)

    def index(self, e: Index) -> Index:
        """Return an index expression of the kernel, over the names of the function."""
        return map_variables(e, self.leaf)

    def leaf(self, atom: Atom) -> Index:
        """Return a variable of the kernel in an index expression."""
        if atom.kind == "size":
            return loop.number(atom.name) if atom.name in self.strides else size(atom.name)
        if atom.kind == "axis":
            return axis(self.vars[atom.name], self.index(atom.extent))
        return self.position_index(self.values[self.s.phase.positions[atom.name]])

    def position_index(self, position: loop.Value) -> Index:
        """Return a computed position as an index expression."""
        index = loop.as_index(position)
        assert index is not None, position
        return index


def lower_nest(lowering: Lowering, nest: Nest) -> Body:
    """Return the statements of a nest; `start_states` go before."""
    return _Loops(lowering, nest).run()


def start_states(lowering: Lowering, nest: Nest) -> tuple[loop.For, ...]:
    """Return loops that start the states in arrays of a nest, of this task's positions."""
    states = {r: lowering.arrays[r] for r in nest.reductions if not nest.in_registers(r)}
    states |= {i: lowering.scan_states[i] for i in scans_across(nest)}
    return tuple(
        loop.For("each", var, 0, count, (loop.Store(loop.Place(name, axis(var, count)), start),))
        for item, (names, axes) in states.items()
        for name, start in zip(names, _starts(lowering, item), strict=True)
        for var, count in ((lowering.fresh("k"), lowering.states(item, axes)),)
    )


def scans_across(nest: Nest) -> list[ssa.Scan]:
    """Return the scans of a nest that run across its loops: not along the innermost one."""
    scans = (i for i in nest.items if isinstance(i, ssa.Scan))
    return [i for i in scans if i.over != nest.order[-1:]]


def _starts(lowering: Lowering, item: ssa.Reduction) -> tuple[loop.Const, ...]:
    """Return the parts of a state before any element."""
    match lowering.storage.accumulator_of(item):
        case CompensatedSum():
            return loop.Const(0.0, f64), loop.Const(0.0, f64)
        case ArgAccumulator(parts=(source, place), farthest=farthest):
            return loop.identity(item.row.name, source), loop.Const(farthest, place)
        case acc:
            return (loop.identity(item.row.name, acc.parts[0]),)


def _applied(op: str, args: tuple[loop.Value, ...]) -> loop.Value:
    """Apply an operator of the program, whose integers wrap; index expressions do not."""
    indices = [loop.as_index(x) for x in args]
    e = loop.as_index(result := loop.apply(op, *args))
    if op in loop.UNWRAPPED:
        has_values = any(a.kind == "value" for i in indices if i is not None for a in atoms(i))
        may_be_zero = op in loop.DIVISIONS and not positive(indices[-1] or 0)
        e = None if has_values or may_be_zero else e
    return loop.Apply(op, args) if e is None or may_wrap(e) else result


def _as(value: loop.Value, source: DType, dtype: DType) -> loop.Value:
    return value if source == dtype else loop.cast(value, dtype)


def _read(name: str, dtype: DType) -> loop.Value:
    return loop.position(loop.number(name)) if dtype == i64 else loop.Ref(name)


def mode_of(s: Schedule, nest: Nest, reduction: ssa.Reduction, acc: Accumulator) -> loop.Mode:
    """Return how a reduction accumulates.

    Few vectors of long rows have a better element, if positions ascend: one lane takes theirs.
    """
    if isinstance(acc, CompensatedSum):
        return "two_sum"
    if isinstance(acc, ArgAccumulator):
        ascends = acc.in_order and coefficient(reduction.positions, nest.vector or "") == 1
        if ascends and not is_fully_unrolled(s, nest):
            return "own"
        return "lanes" if acc.in_order else "places"
    types = {reduction.args[0].dtype, reduction.dtype}
    if acc.parts == (f64,) and types != {f64}:
        return "pairs" if adds_pairs(reduction, nest) else "f64"
    return "own"


class _Loops:
    """The loops of a nest."""

    def __init__(self, lowering: Lowering, nest: Nest) -> None:
        self.lowering, self.nest, self.order, self.s = lowering, nest, nest.order, lowering.s
        self.reductions, self.scalars = nest.reductions, nest.scalars
        self.saves, self.stores, self.updates = nest.saves, nest.stores, nest.state_updates
        self.in_arrays = [r for r in nest.reductions if not nest.in_registers(r)]
        places = ((r, argreduce_with_value(nest, r)) for r in nest.reductions)
        self.values_of = {r: best for r, best in places if best is not None}
        """Extremes that the folds of their positions have."""
        self.folded = [r for r in nest.reductions if r not in self.values_of]
        vanish = not (self.reductions or self.saves or self.stores or self.updates or self.scalars)
        self.vars = {} if vanish else {a: lowering.axis_name(a) for a in self.order}
        wide = {v: self.s.lanes * nest.unroll for a, v in self.vars.items() if a == nest.vector}
        lowering.take_loops(self.vars, wide)
        self.values: dict[Item, loop.Value] = {}
        self.carries: dict[Item, str] = {}
        self.places: dict[Item, DType] = {}
        """Types of positions."""
        self.nesting: dict[Item, int] = {}
        """Operators inside of an item's value; those of bound ones are not."""
        self.scans = [i for i in nest.items if isinstance(i, ssa.Scan)]
        self.carried: dict[Item, list[loop.Carry]] = {}
        """What scans along the innermost loop carry, part by part."""
        self.running: dict[Item, Sequence[loop.Value]] = {}
        """Parts of the values of scans, before they are rounded."""
        stages = nest.stages
        self.stage_of = {i: k for k, x in reversed([*enumerate(stages)]) for i in x.items}
        self.early = {i for x in stages[:-1] for i in x.saves}
        """What is stored before the last stage, which reads it from there."""
        self.crossing = self.early.union(*(x.keeps for x in stages))
        self.stages: list[int] = []
        """The stage of each statement of the innermost loop but of index expressions."""
        self.items = sorted(self._needed(), key=lambda i: self.stage_of.get(i, 0))
        self.uses = self._uses()

    def run(self) -> Body:
        """Return the statements."""
        if not (self.reductions or self.saves or self.stores or self.updates or self.scalars):
            return ()
        if not self.reductions and any(self.lowering.ranges[a] == (0, 0) for a in self.order):
            return ()
        if not self.order:
            return (*self._enter(0), *self._body())
        body = (*self._enter(0), *self._loops(0))
        cuts = {sum(at < k for at in self.stages) for k in range(1, len(self.nest.stages))}
        self.lowering.take_cuts(sorted(cuts - {0}))
        return body

    # ---- what is computed where ----------------------------------------------------------------

    def _roots(self) -> Iterator[Item]:
        """Yield what statements at the innermost position read, each as often as they do."""
        for r in self.reductions:
            yield from r.args
        yield from (*self.saves, *(u.value for u in self.updates), *self.scalars)
        for s in self.stores:
            yield s.value
            if s.where is not None:
                yield s.where
            yield from (self.s.phase.positions[n] for n in s.access.positions)

    def _needed(self) -> list[Item]:
        """Return the items that these loops compute or load, operands first."""
        items: dict[Item, None] = {}

        def need(item: Item) -> None:
            if item in items or item in self.lowering.values:
                return
            if not (self._is_kept(item) or isinstance(item, ssa.WindowRead)):
                for a in self._operands(item):
                    need(a)
            items[item] = None

        for root in self._roots():
            need(root)
        return list(items)

    def _is_kept(self, item: Item) -> bool:
        """Return whether an item is read from scratch memory."""
        return item in self.lowering.arrays and item not in self.nest.items

    def _uses(self) -> Counter[Item]:
        uses = Counter(self._roots())
        for item in self.items:
            if not self._is_kept(item):
                uses.update(self._operands(item))
        return uses

    def _operands(self, item: Item) -> tuple[Item, ...]:
        """Return what an item reads: one side of a selection whose condition has one answer."""
        if is_select(item) and (answer := self.lowering.answers.get(item.args[0])) is not None:
            return (item.args[1 if answer else 2],)
        return item.args

    def depth(self, item: Item) -> int:
        """Return how many loops must be open before an item is available."""
        return max((self.order.index(a) + 1 for a in item.axes if a in self.order), default=0)

    def _is_bound(self, item: Item) -> bool:
        """Return whether an item becomes a Let rather than a part of what reads it."""
        if isinstance(item, ssa.Const) or (
            isinstance(item, (ssa.IndexValue, ssa.BlockEdge)) and item.dtype == i64
        ):
            return False
        if isinstance(item, ssa.Position) or self.uses[item] > 1 or item in self.crossing:
            return True
        if len(self.stores) + len(self.updates) > 1 and isinstance(item, (ssa.Load, ssa.StateRead)):
            return True  # before anything is stored
        at = self.depth(item)
        readers = [i for i in self.items if not self._is_kept(i) and item in self._operands(i)]
        return at < (self.depth(readers[0]) if readers else len(self.order))

    def _enter(self, depth: int) -> Iterator[loop.Statement]:
        """Yield what is computed when `depth` loops are open."""
        for item in self.items:
            if self.depth(item) != depth:
                continue
            if isinstance(item, ssa.Scan) and not self._is_kept(item):
                yield from self._scan(item)
            register = self._make(item)
            is_index = loop.as_index(register) is not None
            nesting = 1 + max((self.nesting.get(a, 0) for a in item.args), default=0)
            if is_bound := self._is_bound(item) or nesting > _MAX_NESTING:
                name = self.lowering.fresh("v")
                yield loop.Let(name, register)
                register = _read(name, item.dtype)
            self.nesting[item] = 0 if is_bound else nesting
            self.values[item] = register
            if depth == 0:
                self.lowering.keep(item, register)
            if item in self.early:
                yield loop.Store(self._elements(item)[0], register)
            if depth == len(self.order) and not is_index:
                self.stages += [self.stage_of.get(item, 0)] * (is_bound + (item in self.early))

    # ---- loops ---------------------------------------------------------------------------------

    def _loops(self, depth: int) -> Body:
        if depth == len(self.order):
            return self._body()
        name = self.order[depth]
        opened = [r for r in self.folded if self.depth(r) == depth and r not in self.in_arrays]
        carry = tuple(self._carry(r) for r in opened)
        low, high = self.lowering.ranges[name]
        along = [i for i in self.scans if i.over == self.order[depth:]]
        starts = tuple(c for i in along for c in self._scan_starts(i))
        inner = (*self._enter(depth + 1), *self._loops(depth + 1))
        inner += tuple(
            loop.Next(c.name, end)
            for i in along
            for c, end in zip(self.carried[i], self.running[i], strict=True)
        )
        in_order = any(name in i.over for i in (*self.scans, *self.in_arrays))
        kind = "for" if in_order else "each"
        walk = loop.For(kind, self.vars[name], low, high, inner, carry=(*starts, *carry))
        body: list[loop.Statement] = [walk]
        for r, c in zip(opened, carry, strict=True):
            body += self._publish(r, c)
            for other in (x for x, best in self.values_of.items() if best is r):
                body += self._publish(other, replace(c, position="", mode="own"))
        return tuple(body)

    def _scan_starts(self, scan: ssa.Scan) -> list[loop.Carry]:
        """Return what a scan along the innermost loop carries."""
        starts = _starts(self.lowering, scan)
        self.carried[scan] = [loop.Carry(self.lowering.fresh("s"), x) for x in starts]
        return self.carried[scan]

    def _scan(self, scan: ssa.Scan) -> Iterator[loop.Statement]:
        """Yield what combines the state of a scan with an element."""
        acc, element = self.lowering.storage.accumulator_of(scan), self.value(scan.args[0])
        lets: list[loop.Let] = []

        def bound(value: loop.Value) -> loop.Value:
            lets.append(loop.Let(name := self.lowering.fresh("v"), value))
            return _read(name, acc.parts[0])

        places: Sequence[loop.Place] = ()
        if scan in self.carried:
            types = zip(self.carried[scan], acc.parts, strict=True)
            old: Sequence[loop.Value] = [_read(c.name, dtype) for c, dtype in types]
        else:
            places = self._places(scan, *self.lowering.scan_states[scan])
            old = [*map(loop.Load, places)]
        if isinstance(acc, CompensatedSum):
            total, error = old
            self.running[scan] = two_sum(bound(element), total, error, bound)
        else:
            element = _as(element, scan.args[0].dtype, acc.parts[0])
            self.running[scan] = (bound(loop.Apply(scan.row.scalar, (element, old[0]))),)
        yield from lets
        yield from map(loop.Store, places, self.running[scan])

    def _carry(self, reduction: ssa.Reduction) -> loop.Carry:
        row, name = reduction.row.name, self.lowering.fresh("s")
        self.carries[reduction] = name
        mode = self._mode(reduction)
        if reduction.row.positional:
            worst, start = _starts(self.lowering, reduction)
            start = loop.Const(0, i64) if mode == "own" else start
            self.places[reduction] = start.dtype
            return loop.Carry(name, worst, row, mode, self.lowering.fresh("p"), start)
        return loop.Carry(name, loop.identity(row, reduction.dtype), row, mode)

    def _mode(self, reduction: ssa.Reduction) -> loop.Mode:
        acc = self.lowering.storage.accumulator_of(reduction)
        return mode_of(self.s, self.nest, reduction, acc)

    def _publish(self, reduction: ssa.Reduction, carry: loop.Carry) -> Iterator[loop.Statement]:
        """Store the result of a reduction, or make it available to the task."""
        result: loop.Value
        if carry.position:
            result = _read(carry.position, self.places[reduction])
            if carry.mode != "own":
                result = self.lowering.finished(reduction, (loop.Ref(carry.name), result))
        elif carry.mode != "own" and reduction.dtype != f64:
            result = loop.Cast(loop.Ref(carry.name), reduction.dtype)
        else:
            result = _read(carry.name, reduction.dtype)
        if reduction in self.lowering.arrays:
            yield loop.Store(self._elements(reduction)[0], result)
        else:
            self.lowering.keep(reduction, result)

    def _body(self) -> Body:
        """Return the statements at the innermost position."""
        saves = (i for i in self.saves if i not in self.early)
        body: list[loop.Statement] = [self._save(i) for i in saves]
        for r in self.folded:
            if r in self.in_arrays:
                body += self._combined(r)
                continue
            element, position = self.value(r.args[0]), None
            if r.row.positional:
                position = loop.cast(loop.position(self._index(r.positions)), self.places[r])
            elif r.args[0].dtype != r.dtype and self._mode(r) == "own":
                element = loop.Cast(element, r.dtype)
            body.append(loop.Fold(self.carries[r], element, position))
        several = len(self.stores) + len(self.updates) > 1
        lets: list[loop.Statement] = []
        late: list[loop.Statement] = []

        def ready(item: Item) -> loop.Value:
            register = self.value(item)
            if several and not isinstance(register, (loop.Const, loop.IndexValue, loop.Ref)):
                lets.append(loop.Let(name := self.lowering.fresh("v"), register))
                register = self.values[item] = _read(name, item.dtype)
            return register

        for s in self.stores:
            where = None if s.where is None else self.value(s.where)
            at = self._index(s.access.offset)
            place = loop.Place(identifier(s.access.buffer), at, mask=where)
            late.append(loop.Store(place, ready(s.value)))
        late += [loop.Store(self._elements(u.state)[0], ready(u.value)) for u in self.updates]
        for item in self.scalars:
            self.lowering.keep(item, self.value(item))
        return (*body, *lets, *late)

    def _combined(self, reduction: ssa.Reduction) -> Iterator[loop.Statement]:
        """Combine an element with the state in arrays."""
        lets: list[loop.Let] = []

        def bound(value: loop.Value, dtype: DType = f64) -> loop.Value:
            lets.append(loop.Let(name := self.lowering.fresh("t"), value))
            return _read(name, dtype)

        places, element = self._elements(reduction), self.value(reduction.args[0])
        new: tuple[loop.Value, ...]
        match self.lowering.storage.accumulator_of(reduction):
            case CompensatedSum():
                element = bound(element)
                total, error = (bound(loop.Load(p)) for p in places)
                new = two_sum(element, total, error, bound)
            case ArgAccumulator(parts=dtypes, in_order=in_order):
                at = loop.cast(loop.position(self._index(reduction.positions)), dtypes[1])
                pair, old = (
                    (bound(value, dtypes[0]), bound(place, dtypes[1]))
                    for value, place in ((element, at), [*map(loop.Load, places)])
                )
                new = better(reduction.row.name, pair, old, in_order=in_order)
            case acc:
                element = _as(element, reduction.args[0].dtype, acc.parts[0])
                yield loop.Store(places[0], element, join=reduction.row.scalar)
                return
        yield from lets
        yield from (loop.Store(p, v) for p, v in zip(places, new, strict=True))

    # ---- values --------------------------------------------------------------------------------

    def value(self, item: Item) -> loop.Value:
        """Return the value of an item that is available here."""
        available = self.lowering.values.get(item)
        return self.values[item] if available is None else available

    def _index(self, e: Index) -> Index:
        return map_variables(e, self._leaf)

    def _leaf(self, atom: Atom) -> Index:
        if atom.kind == "value":
            return self.lowering.position_index(self.value(self.s.phase.positions[atom.name]))
        if atom.kind == "axis" and atom.name in self.vars:
            return axis(self.vars[atom.name], self.lowering.index(atom.extent))
        return self.lowering.leaf(atom)

    def _elements(self, owner: Key, window: Sequence[tuple[str, Index]] = ()) -> list[loop.Place]:
        """Return the current element of each array in scratch memory.

        Or the one at other positions along some axes.
        """
        return self._places(owner, *self.lowering.arrays[owner], window)

    def _places(
        self,
        owner: Key,
        names: Sequence[str],
        axes: tuple[str, ...],
        window: Sequence[tuple[str, Index]] = (),
    ) -> list[loop.Place]:
        """Return the current element of some arrays in scratch memory that have the same axes."""
        offset: Index = 0
        for a in axes:
            position = dict(window).get(a, axis(a, self.s.phase.axes[a]))
            at = sub(self._index(position), self.lowering.start(owner, a))
            offset = add(mul(offset, self.lowering.extent(owner, a)), at)
        return [loop.Place(name, offset) for name in names]

    def _save(self, item: Item) -> loop.Store:
        """Return what stores the current element of an item."""
        if not self.nest.packed:
            return loop.Store(self._elements(item)[0], self.value(item))
        value = self.lowering.packed_value(item, self.value(item))
        return loop.Store(self.lowering.packed_place(self.vars), value)

    def _make(self, item: Item) -> loop.Value:
        """Return the value of an item whose operands are available."""
        if self._is_kept(item):
            return self.lowering.kept(item, [*map(loop.Load, self._elements(item))])
        match item:
            case ssa.Const(value=number, dtype=dtype):
                return loop.position(int(number)) if dtype == i64 else loop.Const(number, dtype)
            case ssa.IndexValue(index=index, dtype=dtype):
                return loop.IndexValue(self._index(index), dtype)
            case ssa.Load(access=access):
                return self._load(access)
            case ssa.WindowRead(args=(source,), at=at):
                return self.lowering.kept(source, [*map(loop.Load, self._elements(source, at))])
            case ssa.StateRead(state=state):
                return loop.Load(self._elements(state)[0])
            case ssa.BlockEdge(what=what, axis=name):
                low, high = self.lowering.ranges[name]
                ends = {"first": low, "last": sub(high, 1), "length": sub(high, low)}
                return loop.position(ends[what])
            case _:
                args = tuple(self.value(a) for a in self._operands(item))
                return args[0] if len(args) < len(item.args) else self._applied(item, args)

    def _applied(self, item: Item, args: tuple[loop.Value, ...]) -> loop.Value:
        """Return the value of an item that is a function of its operands."""
        match item:
            case ssa.Position(inside=True):
                return args[0]
            case ssa.Position(extent=extent):
                last = loop.position(sub(self._index(extent), 1))
                least, largest = (COMBINES[name].scalar for name in EXTREMES)
                return loop.apply(largest, loop.apply(least, args[0], last), loop.position(0))
            case ssa.Scan():
                return self.lowering.finished(item, self.running[item])
            case ssa.Cast(to=dtype):
                return loop.cast(args[0], dtype)
            case ssa.KPair():
                first, second, *ends = args
                if ends:  # a value out of bounds may be anything
                    inside = loop.Apply("lt", tuple(ends))
                    second = loop.Apply("select", (inside, second, loop.Const(0.0, f32)))
                return loop.Shuffle((first, second), "halves")
            case _:
                assert isinstance(item, ssa.Operation), item
                return _applied(item.op, args)

    def _load(self, access: Access) -> loop.Value:
        """Return a load, masked by the bounds checks that are not proven."""
        tests: list[loop.Value] = []
        for e, n in (x for x in access.limits if x not in self.lowering.proven):
            at, end = self._index(e), self._index(n)
            if not nonnegative(at):
                tests.append(loop.Apply("le", (loop.position(0), loop.position(at))))
            tests.append(loop.Apply("lt", (loop.position(at), loop.position(end))))
        place = loop.Place(identifier(access.buffer), self._index(access.offset))
        if not tests:
            return loop.Load(place)
        mask = tests[0]
        for test in tests[1:]:
            mask = loop.Apply(BOTH, (mask, test))
        dtype = self.lowering.dtypes[access.buffer].compute
        other = None if access.gives_zero else loop.Const(access.other, dtype)
        return loop.Load(loop.Place(place.buffer, place.at, mask=mask), other)


def identifier(name: str) -> str:
    """Return a name without dots, which some arrays between phases have."""
    return name.replace(".", "_")


__all__ = [
    "Arrays",
    "Body",
    "Key",
    "Lowering",
    "identifier",
    "lower_nest",
    "scans_across",
    "start_states",
]
