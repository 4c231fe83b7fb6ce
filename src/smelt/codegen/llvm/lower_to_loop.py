"""Lower the schedule of a phase to loops: tasks, folds and stores, before any pass.

    phase                                     func
      grid n0 in blocks of 4                    chunk t in 0 .. (n0 + 3) // 4
      nest n0, n1: q = sum(x*x over n1)           alloc q: f32[4] in task
      nest n0, n1: y[n0,n1] = x / q               each i in t*4 .. min(t*4 + 4, n0)
                                                    each j in 0 .. n1 with s = sum:f64 0.0
                                                      v = x[i*n1 + j]
                                                      s <- v*v
                                                    q[i - t*4] = s
                                                  each i in t*4 .. min(t*4 + 4, n0)  ..

Streams are loops over blocks, and their states are arrays of the task.

Not lowered: contractions, windows, and parts of transposed tiles (`refusal`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import (
    Buffer,
    Item,
    Program,
    Region,
    StreamState,
    Visit,
    enclosing_regions,
)
from smelt.codegen.llvm.loopir.lower import stride_name
from smelt.codegen.llvm.loops.unroll_factor import is_single_block
from smelt.codegen.llvm.lower_nest import (
    Arrays,
    Body,
    Key,
    Lowering,
    identifier,
    lower_nest,
    scans_across,
    start_states,
)
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.codegen.llvm.scratch.workspace import lay_out, scan_state_axes
from smelt.loop import ir as loop
from smelt.loop.walk import is_short
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import (
    Atom,
    Index,
    add,
    atoms,
    axis,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    product,
    sub,
)


def refusal(s: Schedule) -> str:
    """Return why a schedule has no loop form yet; empty if it has one."""
    kinds = {type(i) for i in s.phase.items}
    if s.products or ssa.Dot in kinds:
        return "a product"
    if ssa.WindowRead in kinds or s.phase.window_positions:
        return "windows"
    return "pairs of short numbers" if ssa.KPair in kinds or s.phase.aliases else ""


@dataclass(frozen=True, slots=True)
class LoweredPhase:
    """The loops of a phase, their vectors, and their arrays.

    `lanes` has loops by their variable, `buffers` the program's arrays by their names in the loops.
    """

    func: loop.Func
    lanes: Mapping[str, int]
    buffers: Mapping[str, str]


def lower_phase(s: Schedule, source: Program) -> LoweredPhase:
    """Return the loops of a phase of a program that `refusal` does not refuse."""
    lowering = _PhaseLowering(s, source.buffers, {stride_name(p, d) for p, d in source.strides})
    buffers = {identifier(name): name for name in lowering.buffers}
    return LoweredPhase(lowering.func(), lowering.lanes, buffers)


class _PhaseLowering(Lowering):
    """Lowers a whole phase."""

    def __init__(self, s: Schedule, buffers: Sequence[Buffer], strides: Collection[str]) -> None:
        self.buffers = {b.name: b for b in buffers if b.name in _buffers_of(s)}
        used = [*_indices(s), *(b.nbytes for b in self.buffers.values())]
        names = dict.fromkeys(a.name for e in used for a in atoms(e) if a.kind == "size")
        super().__init__(s, lay_out(s), strides, {*names, *map(identifier, self.buffers)})
        self.dtypes = {b.name: b.dtype for b in self.buffers.values()}
        self.sizes = tuple(n for n in names if n not in strides)
        self.numbers = tuple(n for n in names if n in strides)
        self.before: list[loop.Statement] = []
        """Names for numbers of the whole function."""
        self.at_start: list[loop.Statement] = []
        """Names for numbers of a task."""
        self.block = {g: self._named("rows", self.index(n)) for g, n in s.block.items()}
        self.chunk = self._chunk()
        self.task_names = {s.name for s in self.at_start if isinstance(s, loop.Let)}
        self.ranges = {a: self._task_range(a) for a in s.local}
        self.starts: Mapping[tuple[Region | None, str], Index] = {
            (None, a): low for a, (low, _) in self.ranges.items()
        }

    # ---- the function --------------------------------------------------------------------------

    def _named(self, stem: str, e: Index, *, in_task: bool = False) -> Index:
        """Return an index expression, by a name if it is long."""
        return self._name_in(self.at_start if in_task else self.before, e, stem)

    def _chunk(self) -> loop.For | None:
        """Return the loop over tasks; name each task's part of the grid.

        Several grid axes are one number, the last of them fastest.
        """
        s, counts = self.s, list[tuple[str, Index]]()
        for g in s.phase.grid:
            if is_single_block(s, g):
                continue
            n = self.index(s.phase.axes[g])
            if g in self.block:
                n = floordiv(add(n, sub(self.block[g], 1)), self.block[g])
            counts.append((g, n))
        if not counts:
            return None
        tasks, first = [self._named("tasks", n) for _, n in counts], counts[0][0]
        single = len(counts) == 1 and first not in s.local
        var = self.axis_name(first) if single else self.fresh("t")
        rest: Index = axis(var, product(tasks))
        for (g, _), n in list(zip(counts, tasks, strict=True))[::-1]:
            part = rest if g == first else mod(rest, n)
            rest = rest if g == first else floordiv(rest, n)
            if len(counts) == 1:
                name = var
            else:
                name = self.fresh("t") if g in s.local else self.axis_name(g)
                self.at_start.insert(0, loop.Let(name, loop.position(part)))
            self.vars = {**self.vars, g: name}
        return loop.For("chunk", var, 0, product(tasks), ())

    def func(self) -> loop.Func:
        """Return the function of the phase."""
        allocs = self._allocs()
        body = (*self.at_start, *allocs, *self._segments(None, 0)[0])
        if self.chunk is not None:
            body = (replace(self.chunk, body=body),)
        params = tuple(
            loop.Param(identifier(b.name), b.dtype, self.index(self._elements(b)), b.written)
            for b in self.buffers.values()
        )
        name = identifier(self.s.phase.name)
        return loop.Func("func", name, params, self.sizes, self.numbers, (*self.before, *body))

    def _elements(self, b: Buffer) -> Index:
        return floordiv(b.nbytes, b.dtype.itemsize)

    def _task_range(self, a: str) -> tuple[Index, Index]:
        s, extent = self.s, self.index(self.s.phase.axes[a])
        if a in self.block and not is_single_block(s, a):
            number, length = self._task_number(a), self.block[a]
        elif a in s.phase.cut:
            part, n = s.phase.cut[a]
            number, length = self._task_number(part), self._named("rows", self.index(n))
        else:
            return 0, extent
        low = self._named("from", mul(number, length), in_task=True)
        return low, self._named("to", minimum(add(low, length), extent), in_task=True)

    def _task_number(self, g: str) -> Index:
        """Return which part of a grid axis a task has."""
        assert self.chunk is not None
        name = self.vars[g]
        return axis(name, self.chunk.high) if name == self.chunk.var else loop.number(name)

    def _allocs(self) -> Body:
        """Return the arrays that nests keep in scratch memory."""
        owners: dict[Key, tuple[str, ...]] = {**self.s.materialised}
        for update in self.s.phase.state_updates:
            owners[update.state] = self.storage.state_axes(update.state)
        statements: list[loop.Statement] = []

        def named(owner: Key, stem: str, parts: Sequence[DType], axes: tuple[str, ...]) -> Arrays:
            names = [self.fresh(identifier(stem)) for _ in parts]
            elements = product(self.extent(owner, a) for a in axes)
            pairs = zip(names, parts, strict=True)
            statements.extend(loop.Alloc(name, t, elements, "task") for name, t in pairs)
            return names, axes

        for owner, axes in owners.items():
            stem = owner.name if isinstance(owner, StreamState) else "e"
            parts = self.storage.parts(owner) if isinstance(owner, Item) else (owner.dtype,)
            self.arrays[owner] = named(owner, stem, parts, axes)
        for scan in (i for nest in self.s.nests for i in scans_across(nest)):
            parts = self.storage.accumulator_of(scan).parts
            self.scan_states[scan] = named(scan, "s", parts, scan_state_axes(self.s, scan))
        return tuple(statements)

    def extent(self, owner: Key, a: str) -> Index:
        """Return the extent of an array in scratch memory along an axis, by its name."""
        extent = self.storage.extent(owner, a)
        return self.block[a] if extent == self.s.block.get(a) else self.index(extent)

    # ---- streams -------------------------------------------------------------------------------

    def _segments(self, region: Region | None, at: int) -> tuple[Body, int]:
        """Return a region's statements from segment `at` on, and the first one after it."""
        segments = self.s.phase.segments
        body: list[loop.Statement] = []
        while at < len(segments):
            inner = segments[at]
            if inner is region:
                for nest in (n for n in self.s.nests if n.time == at):
                    body += (*start_states(self, nest), *lower_nest(self, nest))
                at += 1
            elif inner is not None and inner.parent is region:
                part, at = self._region(inner, at)
                body += part
            else:
                break
        return tuple(body), at

    def _region(self, region: Region, at: int) -> tuple[Body, int]:
        """Return a stream's loops over blocks, or a conditional part of a body."""
        outside = dict(self.values), self.ranges, self.starts, self.vars
        before: list[loop.Statement] = []
        for visit in region.bounds:
            low, stop = (self._name_in(before, e) for e in self._span(visit, before))
            self.ranges = {**self.ranges, visit.axis: (low, stop)}
        body, after = self._visits(region, region.visits, at)
        self.values, self.ranges, self.starts, self.vars = outside
        condition = None if region.where is None else self.values[region.where]
        body = (*before, *body)
        return ((loop.If(condition, body),) if condition is not None else body), after

    def _visits(self, region: Region, visits: Sequence[Visit], at: int) -> tuple[Body, int]:
        if not visits:
            return self._segments(region, at)
        visit, *inner = visits
        before: list[loop.Statement] = []
        low, stop = (self._name_in(before, e) for e in self._span(visit, before))
        start: Index = low
        if visit.size is None:
            self.ranges = {**self.ranges, visit.axis: (low, stop)}
            self.starts = {**self.starts, (region, visit.axis): low}
            body, after = self._visits(region, inner, at)
            return (*before, *body), after
        var = self.axis_name(visit.axis) if visit.size == 1 else self.fresh("b")
        if visit.size == 1:
            self.vars = {**self.vars, visit.axis: var}
        if visit.size != 1 and visit.start is not None:
            first = self._first(visit)
            start = sub(low, mod(sub(low, first), visit.size))
        block = axis(var, self.index(self.s.phase.axes[visit.axis]))
        begin = block if start == low else maximum(block, low)
        end = minimum(add(block, visit.size), stop)
        self.ranges = {**self.ranges, visit.axis: (begin, end)}
        self.starts = {**self.starts, (region, visit.axis): begin}
        body, after = self._visits(region, inner, at)
        return (*before, loop.For("for", var, start, stop, body, visit.size)), after

    def _name_in(self, body: list[loop.Statement], e: Index, stem: str = "end") -> Index:
        """Return an index expression by a name that a block binds, unless it is short."""
        if isinstance(e, int) or is_short(e):
            return e
        body.append(loop.Let(name := self.fresh(stem), loop.position(e)))
        return loop.number(name)

    def _first(self, visit: Visit) -> Index:
        return add(self.ranges[visit.axis][0], visit.first)

    def _span(self, visit: Visit, before: list[loop.Statement]) -> tuple[Index, Index]:
        """Return where the blocks of an axis begin and end in this task."""
        first, last = self._first(visit), self.ranges[visit.axis][1]
        low, stop = first, last
        if visit.start is not None:
            low = minimum(maximum(self._position(visit.start, before), first), last)
        if visit.stop is not None:
            stop = minimum(maximum(self._position(visit.stop, before), low), last)
        if visit.part is None:
            return low, stop
        name, parts = visit.part
        unit = visit.size or 1
        blocks = floordiv(add(sub(last, first), unit - 1), unit)
        each = mul(floordiv(add(blocks, sub(self.index(parts), 1)), self.index(parts)), unit)
        begin = add(first, mul(self.index(axis(name, parts)), each))
        return maximum(low, begin), minimum(add(begin, each), stop)

    def _position(self, item: Item, before: list[loop.Statement]) -> Index:
        """Return an integer value as an index, bound before if it is not one."""
        available = self.values[item]
        index = loop.as_index(available)
        if index is not None:
            return index
        name = self.fresh("v")
        before.append(loop.Let(name, available))
        return loop.number(name)

    def start(self, owner: Key, axis: str) -> Index:
        """Return the first position along an axis that an array in scratch memory has."""
        around = enclosing_regions(self.storage.region(owner))
        inner = [r for r in around if (r, axis) in self.starts]
        return self.starts[inner[-1] if inner else None, axis]

    # ---- indices -------------------------------------------------------------------------------

    def leaf(self, atom: Atom) -> Index:
        """Return a variable of the kernel in an index expression."""
        if atom.kind == "axis":
            name, task = self.vars[atom.name], self.chunk
            if task is not None and name in self.task_names and name != task.var:
                return loop.number(name)
        return super().leaf(atom)


def _buffers_of(s: Schedule) -> set[str]:
    loads = {i.access.buffer for i in s.phase.items if isinstance(i, ssa.Load)}
    return loads | {x.access.buffer for x in s.phase.stores}


def _indices(s: Schedule) -> Iterator[Index]:
    yield from s.phase.axes.values()
    yield from (length for _, length in s.phase.cut.values())
    yield from s.block.values()
    for item in s.phase.items:
        yield from item.indices
    yield from (store.access.offset for store in s.phase.stores)
