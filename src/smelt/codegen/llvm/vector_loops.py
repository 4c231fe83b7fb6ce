"""Turn the loops of a map into those that are printed: vectors, prefetches, offsets.

    each j in from .. to          each j_1 in from .. mid by 64       y[o1 + j_1 : 64] = ..
      y[n*i + j] = ..             each j_2 in mid .. to by 16         y[o1 + j_2 : 16 | prefix(..)]

A map is one nest without reductions whose arrays are read and written element by element along its
vectors; `why_not` says what else keeps its own emission.  Which passes run follows from the
schedule, and each of them is a function from loops to loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from smelt.codegen.llvm.access.prefetch import CACHE_LINE, PREFETCH_BYTES, PREFETCH_ROWS
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.loops.full_unroll import is_fully_unrolled
from smelt.codegen.llvm.loops.poll import has_few_tasks
from smelt.codegen.llvm.loops.versioning import is_select
from smelt.codegen.llvm.lower_to_loop import LoweredPhase, is_short, refusal
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.loop import ir as loop
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    atom_index,
    bound,
    loads,
    rename,
    replace_loop,
    statements,
    substitute,
    substitute_index,
    values,
    with_body,
    with_func_body,
)
from smelt.ops.combine import BOTH
from smelt.types.affine import coefficient
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axis,
    build,
    floordiv,
    minimum,
    mod,
    mul,
    sub,
    terms_of,
)

MAX_ALIGNED_VECTORS = 4
"""Maximum vectors of a loop that computes for no longer than memory moves."""
MIN_ITERATIONS = 8
"""Minimum iterations of a loop that begins at a cache line: getting there costs one."""
SKEW = "{}_skew"
"""Name of the number that is the address of an array, modulo a cache line."""


def why_not(s: Schedule, *, streaming: bool) -> str:
    """Return why a phase is not printed from its loops; empty if it is."""
    if reason := refusal(s):
        return reason
    if len(s.nests) != 1 or s.phase.regions() or s.phase.cut:
        return "more than one nest"
    nest = s.nests[0]
    if (
        nest.reductions
        or nest.saves
        or any(isinstance(i, (ssa.UniformSelect, ssa.Scan)) for i in nest.items)
    ):
        return "no map"
    if any(s.phase.axes[a] == 0 for a in nest.order):
        return "no elements"
    if nest.vector is None or nest.order[-1] != nest.vector or s.lanes & (s.lanes - 1):
        return "no vectors"
    if nest.transposed or nest.stages or nest.store_range or is_fully_unrolled(s, nest, nest.items):
        return "tiles, stages, ranges, or a row of a few vectors"
    if has_few_tasks(s):
        return "few tasks, which ask whether to go on"
    moving = [i for i in nest.items if nest.vector in i.axes]
    if any(isinstance(i, (ssa.IndexValue, ssa.Position)) for i in moving):
        return "positions along the vectors"
    if any(is_select(i) and nest.vector not in i.args[0].axes for i in moving):
        return "a choice for whole rows"
    steps = [_step(a, nest.vector) for a in _accesses(s, moving)]
    if not all(step in (0, 1) for step in steps):
        return "lanes that are apart"
    if any(a.limits for a in _accesses(s, nest.items)) or any(
        _step(x.access, nest.vector) != 1 or x.where is not None for x in nest.stores
    ):
        return "bounds checks, or stores under a condition"
    if streaming and (len(nest.stores) > 1 or not _fills_lines(s)):
        return "results that no common alignment suits"
    if streaming and len(nest.order) > 1:
        return "rows, which begin at cache lines only now and then"
    return ""


def _accesses(s: Schedule, items: Iterable[Item]) -> Iterator[Access]:
    yield from (i.access for i in items if isinstance(i, ssa.Load))
    yield from (x.access for x in s.phase.stores)


def _step(access: Access, vector: str) -> Index | None:
    return coefficient(access.offset, vector)


def _fills_lines(s: Schedule) -> bool:
    nest = s.nests[0]
    size = s.phase.dtypes[nest.stores[0].access.buffer].itemsize
    wide = s.lanes * nest.unroll * size
    return nest.unroll <= MAX_ALIGNED_VECTORS and wide % CACHE_LINE == 0


def vector_loops(s: Schedule, phase: LoweredPhase, *, streaming: bool) -> loop.Func:
    """Return the loops of a map in vectors, ready to be printed."""
    func, ((var, wide),), lanes = phase.func, phase.lanes.items(), s.lanes
    if streaming:
        func, head, lines, usual = _from_cache_line(func, var, wide)
        func = _mask_all(func, head, lanes)
        for step in (wide, lanes):
            func = vectorize(func, lines, step, "scalar")
        func = _mask_all(func, lines, lanes)
        var = usual
    func = vectorize(func, var, wide, "scalar")
    func = _mask_all(func, var, lanes)
    prefetcher = _Prefetcher(s, phase, func, streaming=streaming)
    body = prefetcher.body(func.body)
    lets = [loop.Let(name, loop.position(e)) for e, name in prefetcher.distances.items()]
    func = with_func_body(func, (*lets, *body))
    return with_func_body(func, _Hoister(Names(func)).tasks(func.body))


def _mask_all(func: loop.Func, var: str, lanes: int) -> loop.Func:
    """Take `lanes` iterations at once, all of them masked."""
    before = set(bound(func.body))
    func = vectorize(func, var, lanes, "mask")
    loops = (s for s in statements(func.body) if isinstance(s, loop.For))
    full, masked = (s for s in loops if s.var not in before)
    func = replace_loop(func, full.var, lambda _: ())
    return replace_loop(func, masked.var, lambda s: (replace(s, low=full.low),))


# ---- stores past the caches ----------------------------------------------------------------------


def _from_cache_line(func: loop.Func, var: str, step: int) -> tuple[loop.Func, str, str, str]:
    """Store full cache lines past the caches, from the first one on.

    each j in from .. to          lead = -(address of y[n*i + from]) % 64
      y[n*i + j] = v              if the row is long or lead == 0
                                    each a in from .. start    y[n*i + a] = v
                                    each b in start .. to      y[n*i + b] nt = v
                                  else
                                    each c in from .. to       y[n*i + c] = v

    Returns the variables of the three loops too.
    """
    names = Names(func)
    head, lines, usual, lead, start = (names.new(n) for n in (var, var, var, "lead", "start"))
    sizes = {p.name: p.dtype.itemsize for p in func.params}
    numbers: list[str] = []

    def change(s: loop.For) -> Body:
        (store,) = (t for t in s.body if isinstance(t, loop.Store))
        buffer, at = store.place.buffer, store.place.at
        assert not isinstance(at, loop.Value)
        numbers.append(SKEW.format(buffer))
        size = sizes[buffer]
        first = substitute_index(at, {s.var: s.low})
        address = add(loop.number(numbers[0]), mul(first, size))
        begin = add(s.low, floordiv(loop.number(lead), size))
        needed = mul(MIN_ITERATIONS * step, minimum(loop.number(lead), 1))
        is_long = _test("ge", sub(s.high, s.low), needed)
        whole_elements = _test("eq", mod(address, size), 0)
        aligned = (
            loop.Let(start, loop.position(minimum(begin, s.high))),
            _copy(s, head, s.low, loop.number(start), names),
            _copy(s, lines, loop.number(start), s.high, names, nontemporal=True),
        )
        return (
            loop.Let(lead, loop.position(mod(mul(address, -1), CACHE_LINE))),
            loop.If(
                loop.Apply(BOTH, (is_long, whole_elements)),
                aligned,
                (_copy(s, usual, s.low, s.high, names),),
            ),
        )

    func = replace_loop(func, var, change)
    return replace(func, numbers=(*func.numbers, *numbers)), head, lines, usual


def _test(op: str, left: Index, right: Index) -> loop.Value:
    return loop.Apply(op, (loop.position(left), loop.position(right)))


def _copy(
    s: loop.For, var: str, low: Index, high: Index, names: Names, *, nontemporal: bool = False
) -> loop.For:
    """Return a copy of a loop over another range."""
    copied = rename(s.body, {n: names.new(n) for n in bound(s.body)})
    body = substitute(copied, {s.var: axis(var, s.high)})
    if nontemporal:
        body = tuple(replace(t, nontemporal=True) if isinstance(t, loop.Store) else t for t in body)
    return loop.For(s.kind, var, low, high, body)


# ---- prefetches ----------------------------------------------------------------------------------


class _Prefetcher(Rewriter):
    """Adds prefetches of later rows, the next page, and lines to write."""

    def __init__(
        self, s: Schedule, phase: LoweredPhase, func: loop.Func, *, streaming: bool
    ) -> None:
        super().__init__()
        nest = s.nests[0]
        self.sizes = {p.name: p.dtype.itemsize for p in func.params}
        self.rows = len(nest.order) > 1 and nest.vector in s.block
        outer = nest.order[:-1][-1:]
        block = next((s.block[a] for a in outer if a in s.block), 2)
        self.distance = mul(PREFETCH_ROWS, minimum(sub(block, 1), 1))
        """Rows: none if a task has a single one, since others come much later then."""
        self.new_names = Names(func)
        self.distances: dict[Index, str] = {}
        """Names of distances in elements, which are bound before all tasks."""
        self.length = s.phase.axes[nest.vector or ""]
        self.streaming = streaming
        self.row = ""
        """Variable of the loop around the vectors."""

    def statement(self, s: loop.Statement) -> Body:
        """Add the prefetches of a statement."""
        match s:
            case loop.For(kind="each", step=1):
                self.row = s.var if self.rows else ""
                new = self.body(s.body)
                self.row = ""
                return (with_body(s, new),)
            case loop.Let() | loop.Store():
                return (*self._after_loads(s),)
            case loop.For():
                return (with_body(s, self.body(s.body)),)
            case loop.If():
                return (loop.If(s.cond, self.body(s.then), self.body(s.other), s.results),)
            case _:
                return (s,)

    def _after_loads(self, s: loop.Let | loop.Store) -> Iterator[loop.Statement]:
        """Yield a statement with prefetches: first what it waits for, then what comes later."""
        bound_loads: dict[loop.Load, loop.Value] = {}
        for load in loads(*values(s)):
            ahead = () if load in bound_loads else tuple(self._ahead(load.place))
            if ahead:
                name = self.new_names.new("v")
                bound_loads[load] = loop.Ref(name)
                yield loop.Let(name, load)
                yield from ahead
        swap = Rewriter(change=lambda v: bound_loads.get(v, v) if isinstance(v, loop.Load) else v)
        value = swap.value(s.value)
        if isinstance(s, loop.Let):
            yield loop.Let(s.name, value)
            return
        if written := tuple(self._written(s)):
            name = self.new_names.new("v")
            yield loop.Let(name, value)
            yield from written
            value = loop.Ref(name)
        yield loop.Store(s.place, value, s.join, s.nontemporal)

    def _ahead(self, place: loop.Place) -> Iterator[loop.Prefetch]:
        """Yield prefetches of what a load reads some rows or a page later."""
        if not self.row or place.lanes == 1 or isinstance(place.at, loop.Value):
            return
        step = coefficient(place.at, self.row)
        if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
            return
        if place.mask is None:
            yield from self._lines(place, self._named(mul(step, self.distance)), 2)
        elif step == self.length:
            yield from self._lines(place, PREFETCH_BYTES // self.sizes[place.buffer], 1)

    def _named(self, distance: Index) -> Index:
        if isinstance(distance, int) or is_short(distance):
            return distance
        if distance not in self.distances:
            self.distances[distance] = self.new_names.new("ahead")
        return loop.number(self.distances[distance])

    def _written(self, s: loop.Store) -> Iterator[loop.Prefetch]:
        """Yield prefetches of the lines that a store will write one page later."""
        if self.streaming and s.place.mask is None and not s.nontemporal:
            far = PREFETCH_BYTES // self.sizes[s.place.buffer]
            yield from self._lines(s.place, far, 1, write=True)

    def _lines(
        self, place: loop.Place, far: Index, level: int, *, write: bool = False
    ) -> Iterator[loop.Prefetch]:
        assert not isinstance(place.at, loop.Value)
        size = self.sizes[place.buffer]
        for k in range(0, place.lanes * size, CACHE_LINE):
            line = loop.Place(place.buffer, add(place.at, add(far, k // size)))
            yield loop.Prefetch(line, 1 if level == 1 else 2, write)


# ---- offsets -------------------------------------------------------------------------------------


class _Hoister:
    """Binds the part of each offset that does not change in a loop before it.

    for j ..: y[t*c + 7 + j] = x[j]      row = t*c;  for j ..: y[row + j + 7] = x[j]
    """

    def __init__(self, names: Names) -> None:
        self.names = names

    def tasks(self, body: Body) -> Body:
        """Rewrite the loops of every task; what is outside of tasks stays."""
        return tuple(
            with_body(s, self._block(s.body))
            if isinstance(s, loop.For) and s.kind == "chunk"
            else s
            for s in body
        )

    def _block(self, body: Body) -> Body:
        out: list[loop.Statement] = []
        for s in body:
            if isinstance(s, loop.For):
                lets, inner = self._before(s)
                out += [*lets, with_body(inner, self._block(inner.body))]
            elif isinstance(s, loop.If):
                out.append(loop.If(s.cond, self._block(s.then), self._block(s.other), s.results))
            else:
                out.append(s)
        return tuple(out)

    def _before(self, s: loop.For) -> tuple[list[loop.Statement], loop.For]:
        """Return what is bound before a loop, and the loop."""
        varying = {s.var, *bound(s.body)}
        lets: dict[Index, str] = {}

        def split(e: Index) -> Index:
            terms = dict(terms_of(e))
            fixed = {
                m: c
                for m, c in terms.items()
                if m and not any(x.name in varying for a in m for x in atoms(atom_index(a)))
            }
            part = build(fixed)
            if isinstance(part, int) or is_short(part):
                return e
            if part not in lets:
                lets[part] = self.names.new("o")
            rest = build({m: c for m, c in terms.items() if m not in fixed})
            return add(loop.number(lets[part]), rest)

        body = _Split(split).body(s.body)
        bindings: list[loop.Statement] = [
            loop.Let(name, loop.position(part)) for part, name in lets.items()
        ]
        return bindings, with_body(s, body)


class _Split(Rewriter):
    """Rebuilds statements with every index expression changed by a function."""

    def __init__(self, split: Callable[[Index], Index]) -> None:
        super().__init__()
        self.split = split

    def index(self, e: Index) -> Index:
        """Change an index expression."""
        if isinstance(e, int):
            return e
        new = self.known.get(e)
        if new is None:
            new = self.known[e] = self.split(e)
        return new


__all__ = ["vector_loops", "why_not"]
