"""The interior of a row: where every test of positions has its usual answer.

Shifted neighbours, margins and joined arrays are tests of the position along the vector axis, each
of which flips once.  The answers that hold in the middle of a row hold together from some position
up to another one, which are computed when the row begins; a loop of its own runs between them, in
which nothing is tested and no other side is loaded:

    x[i-2]  ends at 2 <= i                         i  0 1 2 .................... n-2 n-1
    x[i+1]  ends at i < n - 1                      tested   [untested .........]  tested
    i < a   is false from a on

Where the positions stand in no order that is known while compiling, or sizes leave nothing between
them, the tested loop does it all: nothing but speed depends on where they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.access.memory import FARTHEST_STEP
from smelt.codegen.llvm.access.nontemporal import main_loop
from smelt.codegen.llvm.access.proven_bounds import SEVERAL, Limit, row_limits
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Item, Phase, accesses_of, visited_axes
from smelt.codegen.llvm.loops.partition_selects import (
    MOST_ITEMS,
    Piece,
    by_rows,
    by_vectors,
    combined,
    conditions,
    known,
    pieces,
    work,
)
from smelt.codegen.llvm.loops.versioning import needed
from smelt.dataclass import dataclass
from smelt.kernel.bounds import Facts
from smelt.types.affine import coefficient
from smelt.types.dtype import bool_
from smelt.types.expr import Index, atoms, axes_of, evaluate, mul, sub, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

Value = ir.Value

LARGE = 1 << 20
"""What sizes are taken for where it is asked which answer is the usual one."""
LOOK = Fraction(1, 4), Fraction(3, 4)
"""Parts of a row at which a test has one answer, if that is the usual one."""
MOST_AXES = 3
"""Axes that a test moves along at most: it is looked at in as many corners as they have."""
FEW = 64
"""Positions at an end of an axis for which tested loops are fast enough."""
SHORTEST = 4
"""Vectors of a row from which on it is looked at."""


@dataclass(frozen=True, slots=True)
class Interior:
    """Where `gaps` are >= 0, which is where the conditions `taken` have their answers and `limits`
    hold; `edges`: what is around is a few positions at the ends of an axis."""

    gaps: tuple[Index, ...]
    items: tuple[Item, ...]
    """What is computed there."""
    taken: dict[Item, bool]
    limits: frozenset[Limit]
    edges: bool


def interior_of(home: NestEmitter, given: Facts = ()) -> Interior | None:
    """The interior of the rows of the present nest; None where nothing is saved by it, or as much
    by cutting rows in pieces of which all positions are known
    (`smelt.codegen.llvm.loops.partition_selects`)."""
    phase, nest = home.s.phase, home.nest
    name = nest.vector
    if name is None or not _is_plain(phase, nest, name):
        return None
    extent = phase.axes[name]
    if isinstance(extent, int) and extent < SHORTEST * home.s.lanes:
        return None
    found = _found(home, lambda e: _is_told(e) and goes_on(e, name))
    if found is None:
        return None
    least = work(found.items, home.assumed | found.limits), len(found.items)
    for piece in pieces(nest, name, extent, given):
        own = needed(nest, home.taken | piece.taken)
        cost = work(own, home.assumed | piece.limits), len(own)
        if cost < least or (cost == least and not found.edges):
            return None
    return found


def _usual_rows(home: NestEmitter) -> Interior | None:
    """The rows of the present nest in which tests that do not move along them have their usual
    answers; None where hardly anything is saved."""
    nest = home.nest
    if nest.turned or nest.settings or nest.fixed or nest.folds or nest.packed:
        return None
    if any(i.kind in ("scan", "branch", "peek") for i in nest.items):
        return None
    found = _found(home, lambda e: _is_told(e) and nest.vector not in axes_of(e) != ())
    if found is None:
        return None
    saved = work(home.items, home.assumed) - work(found.items, home.assumed | found.limits)
    return found if saved >= SEVERAL else None


def _is_plain(phase: Phase, nest: Nest, name: str) -> bool:
    """Whether rows may be taken in any parts: nothing is carried along them."""
    if nest.order[-1:] != (name,) or name in phase.places:
        return False
    if nest.settings or nest.fixed or nest.turned or nest.packed or nest.once:
        return False
    if name in visited_axes(phase.segments[nest.time]):
        return False
    accesses = [*accesses_of(nest.items), *(s.access for s in nest.stores)]
    if any(coefficient(a.offset, name) is None for a in accesses):  # runs of so many lanes
        return False
    return not any(i.kind in ("scan", "branch", "peek") for i in nest.items)


def _found(home: NestEmitter, counts: Callable[[Index], bool]) -> Interior | None:
    """Where the tests that count have their usual answers; None where nothing is saved there."""
    nest, gaps = home.nest, dict[Index, None]()
    taken = {} if nest.stages else _usual(home, counts, gaps)
    items = needed(nest, home.taken | taken) if taken else home.items
    limits: set[Limit] = set()
    for e, n in dict.fromkeys(p for x in accesses_of(items) for p in x.limits):
        inner = e, sub(sub(n, 1), e)
        if (e, n) not in home.assumed and counts(e) and all(map(_answer, inner)):
            limits.add((e, n))
            gaps |= dict.fromkeys(inner)
    before = work(home.items, home.assumed), len(home.items)
    if (work(items, home.assumed | limits), len(items)) >= before:
        return None
    return Interior(tuple(gaps), tuple(items), taken, frozenset(limits), all(map(_is_edge, gaps)))


def _usual(
    home: NestEmitter, counts: Callable[[Index], bool], gaps: dict[Index, None]
) -> dict[Item, bool]:
    """The conditions that have a usual answer, and what is >= 0 where they have it."""
    asked, known = conditions(home.nest), dict(home.taken)
    for item in home.items:
        gap = gap_of(item) if item in asked and item not in known else None
        answer = None
        if gap is not None and counts(gap):
            answer = _answer(gap)
            if answer is not None:
                gaps[gap if answer else sub(mul(gap, -1), 1)] = None
        elif item in asked and item.kind == "apply" and _is_logic(item):
            answer = combined(str(item.payload), [known.get(a) for a in item.args])
        if answer is not None:
            known[item] = answer
    return {i: answer for i, answer in known.items() if i not in home.taken}


def has_usual_sides(nest: Nest) -> bool:
    """Whether selections of a nest have a usual side, which has loops of its own."""
    asked = conditions(nest)
    gaps = (gap_of(i) for i in nest.items if i in asked)
    return any(g is not None and _is_told(g) and _answer(g) is not None for g in gaps)


def _is_logic(item: Item) -> bool:
    return all(x.dtype == bool_ for x in (item, *item.args))


def goes_on(e: Index, name: str) -> bool:
    """Whether an index goes on by one small number along an axis."""
    step = coefficient(e, name)
    return isinstance(step, int) and 1 <= abs(step) <= FARTHEST_STEP


def _is_told(e: Index) -> bool:
    """Whether an index is made of few positions, and of sizes."""
    return len(axes_of(e)) <= MOST_AXES and all(a.kind != "value" for a in atoms(e))


def _answer(gap: Index) -> bool | None:
    """Whether a gap is >= 0 in the middle of the axes it moves along; None if in a part of that."""
    sizes = defaultdict[str, int](lambda: LARGE)
    axes = {a.name: evaluate(a.extent, sizes) for a in atoms(gap) if a.kind == "axis"}
    parts = product(*([int(n * part) for part in LOOK] for n in axes.values()))
    found = {evaluate(gap, sizes, dict(zip(axes, at, strict=True))) >= 0 for at in parts}
    return found.pop() if len(found) == 1 else None


def _is_edge(gap: Index) -> bool:
    """Whether a gap is below 0 at a few positions next to an end of an axis."""
    sizes = defaultdict[str, int](lambda: LARGE)
    axes = {a.name: a.extent for a in atoms(gap) if a.kind == "axis"}
    ends = (
        substitute(gap, dict.fromkeys(axes, 0)),
        substitute(gap, {a: sub(n, 1) for a, n in axes.items()}),
    )
    return all(evaluate(e, sizes) >= 0 or (isinstance(e, int) and e >= -FEW) for e in ends)


# ---- emission ------------------------------------------------------------------------------------


def narrowed(
    home: NestEmitter, scope: Scope, gaps: Iterable[Index], axis: str = ""
) -> tuple[Value, Value]:
    """The first position of a row, or of another axis, where gaps are >= 0, and what follows the
    last one."""
    name, b = axis or home.nest.vector or "", home.b
    low, _ = first, last = home.ranges[name]
    for gap in gaps:
        step = coefficient(gap, name)
        assert isinstance(step, int) and step
        rest = home.index(substitute(gap, {name: 0}), scope)
        if step > 0:
            begin = b.sub(number(0), rest)
            if step > 1:
                begin = b.sdiv(b.add(begin, number(step - 1)), number(step))
            first = b.select(b.icmp_signed("<", first, begin), begin, first)
        else:
            reach = rest if step == -1 else b.sdiv(rest, number(-step))
            end = b.select(b.icmp_signed("<", rest, number(0)), low, b.add(reach, number(1)))
            last = b.select(b.icmp_signed("<", end, last), end, last)
    return first, last


def in_parts(
    home: NestEmitter,
    scope: Scope,
    given: Facts,
    at: Callable[[int, bool], Callable[[Value], None]],
    walk: Callable[[Value, Value], None],
) -> bool:
    """Emits the loops over vectors of a row: tested ones around its interior, or those of pieces of
    it; whether it has either.

    `at` gives the body for so many lanes, with or without the mask of the row's end; `walk` emits
    the loop over wide vectors between two positions."""
    b, lanes = home.b, home.s.lanes
    name, wide, step = home.nest.vector or "", lanes * home.nest.wide, home.folds.rest()
    found = interior_of(home, given)
    if found is None:
        cut = pieces(home.nest, name, home.s.phase.axes[name], given)
        if cut:
            by_vectors(home, cut, scope, wide, at)
        return bool(cut)
    low, high = home.ranges[name]
    first, last = narrowed(home, scope, found.gaps)
    begin = b.add(low, b.and_(b.add(b.sub(first, low), number(lanes - 1)), number(-lanes)))
    fits, whole = b.icmp_signed("<=", b.add(begin, number(lanes)), last), b.sub(last, begin)
    middle = b.select(fits, b.add(begin, b.and_(whole, number(-wide))), high)
    end = b.select(fits, b.add(begin, b.and_(whole, number(-lanes))), high)
    begin = b.select(fits, begin, high)
    single = home.nest.wide > 1 and len(found.items) <= MOST_ITEMS
    end = end if single else middle

    def side(k: Value) -> None:
        is_first = b.icmp_signed("==", k, number(0))
        start = b.select(is_first, low, end)
        home.loop(start, b.select(is_first, begin, high), step, at(step, True))
        with b.if_then(is_first), known(home, Piece(None, (), found.taken, found.limits)):
            main_loop(home, begin, wide, lambda: walk(begin, middle), scope)
            if single:
                home.loop(middle, end, lanes, at(lanes, False))

    home.loop(number(0), number(2), 1, side)
    return True


def each_row(
    home: NestEmitter, outer: Sequence[str], scope: Scope, run: Callable[[Facts, bool], None]
) -> None:
    """Emits the loops over vectors of a row: in versions for rows where all tests that do not move
    along it have their usual answers and for others, or for each stretch of an outer axis that has
    its own selections, or else for rows that lie inside of what is read, and others.  `run` is told
    what holds, and whether such rows are few."""
    usual = _usual_rows(home)
    for name in reversed(outer if usual is None or not usual.edges else ()):
        found = pieces(home.nest, name, home.s.phase.axes[name])
        if found:
            by_rows(home, name, found, scope, lambda facts: _twins(home, scope, facts, run))
            return
    if usual is None:
        _twins(home, scope, (), run)
        return
    b = home.b
    holds: Value = ir.Constant(ir.IntType(1), 1)
    for gap in usual.gaps:
        holds = b.and_(holds, b.icmp_signed(">=", home.index(gap, scope), number(0)))
    with b.if_else(holds) as (inside, border):
        with inside, known(home, Piece(None, (), usual.taken, usual.limits)):
            run(usual.gaps, False)
        with border:
            run((), usual.edges)


def _twins(
    home: NestEmitter, scope: Scope, facts: Facts, run: Callable[[Facts, bool], None]
) -> None:
    """Emits a row twice if need be: for rows that lie inside of what is read, and for others."""
    limits, hold = row_limits(home, scope)
    if hold is None:
        run(facts, False)
        return
    with home.b.if_else(hold) as (inside, border):
        with inside:
            before, home.assumed = home.assumed, home.assumed | limits
            run(facts, False)
            home.assumed = before
        with border:
            run(facts, False)


__all__ = ["each_row", "goes_on", "has_usual_sides", "in_parts", "interior_of", "narrowed"]
