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
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm.bypass import main_loop
from smelt.codegen.llvm.gaps import gap_of
from smelt.codegen.llvm.indexing import number
from smelt.codegen.llvm.items import Item, Phase, accesses_of, visited_axes
from smelt.codegen.llvm.limits import Limit
from smelt.codegen.llvm.memory import FARTHEST_STEP
from smelt.codegen.llvm.pieces import (
    MOST_ITEMS,
    Piece,
    by_vectors,
    combined,
    conditions,
    known,
    pieces,
    work,
)
from smelt.codegen.llvm.scope import Scope
from smelt.codegen.llvm.versions import needed
from smelt.dataclass import dataclass
from smelt.kernel.bounds import Facts
from smelt.types.affine import coefficient
from smelt.types.dtype import bool_
from smelt.types.expr import Index, atoms, evaluate, mul, sub, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.nests import Nest

Value = Any

LARGE = 1 << 20
"""What sizes are taken for where it is asked which answer is the usual one."""
LOOK = Fraction(1, 4), Fraction(3, 4)
"""Parts of a row at which a test has one answer, if that is the usual one."""
SHORTEST = 4
"""Vectors of a row from which on it is looked at."""


@dataclass(frozen=True, slots=True)
class Interior:
    """Where `gaps` are >= 0, which is where the conditions `taken` have their answers and `limits`
    hold."""

    gaps: tuple[Index, ...]
    taken: dict[Item, bool]
    limits: frozenset[Limit]


def interior_of(phase: Phase, nest: Nest, lanes: int, given: Facts = ()) -> Interior | None:
    """The interior of the rows of a nest; None where nothing is saved by it, or as much by cutting
    rows in pieces of which all positions are known (`smelt.codegen.llvm.pieces`)."""
    name = nest.vector
    if name is None or not _is_plain(phase, nest, name):
        return None
    extent = phase.axes[name]
    if isinstance(extent, int) and extent < SHORTEST * lanes:
        return None
    gaps: dict[Index, None] = {}
    taken: dict[Item, bool] = {} if nest.stages else _usual(nest, name, extent, gaps)
    items = needed(nest, taken) if taken else nest.items
    limits: set[Limit] = set()
    for e, n in {p for x in accesses_of(items) for p in x.limits}:
        inner = e, sub(sub(n, 1), e)
        if _is_told(e, name) and all(_answer(g, name, extent) for g in inner):
            limits.add((e, n))
            gaps |= dict.fromkeys(inner)
    least = work(items, limits), len(items)
    if not gaps or least >= (work(nest.items, frozenset()), len(nest.items)):
        return None
    for piece in pieces(nest, name, extent, given):
        own = needed(nest, piece.taken)
        if (work(own, piece.limits), len(own)) <= least:
            return None
    return Interior(tuple(gaps), taken, frozenset(limits))


def _is_plain(phase: Phase, nest: Nest, name: str) -> bool:
    """Whether rows may be taken in any parts: nothing is carried along them."""
    if len(nest.items) > MOST_ITEMS or nest.order[-1:] != (name,) or name in phase.places:
        return False
    if nest.settings or nest.fixed or nest.turned or nest.packed or nest.once:
        return False
    if name in visited_axes(phase.segments[nest.time]):
        return False
    accesses = [*accesses_of(nest.items), *(s.access for s in nest.stores)]
    if any(coefficient(a.offset, name) is None for a in accesses):  # runs of so many lanes
        return False
    return not any(i.kind in ("scan", "branch", "peek") for i in nest.items)


def _usual(nest: Nest, name: str, extent: Index, gaps: dict[Index, None]) -> dict[Item, bool]:
    """The conditions that have a usual answer, and what is >= 0 where they have it."""
    asked, found = conditions(nest), dict[Item, bool]()
    for item in nest.items:
        gap = gap_of(item) if item in asked else None
        answer = None
        if gap is not None and _is_told(gap, name):
            answer = _answer(gap, name, extent)
            if answer is not None:
                gaps[gap if answer else sub(mul(gap, -1), 1)] = None
        elif item in asked and item.kind == "apply" and _is_logic(item):
            answer = combined(str(item.payload), [found.get(a) for a in item.args])
        if answer is not None:
            found[item] = answer
    return found


def _is_logic(item: Item) -> bool:
    return all(x.dtype == bool_ for x in (item, *item.args))


def goes_on(e: Index, name: str) -> bool:
    """Whether an index goes on by one small number along an axis."""
    step = coefficient(e, name)
    return isinstance(step, int) and 1 <= abs(step) <= FARTHEST_STEP


def _is_told(e: Index, name: str) -> bool:
    """Whether an index goes on so, and is made of positions and sizes alone."""
    return goes_on(e, name) and all(a.kind != "value" for a in atoms(e))


def _answer(gap: Index, name: str, extent: Index) -> bool | None:
    """Whether a gap is >= 0 in the middle half of a row; None if it is in a part of that."""
    sizes = defaultdict[str, int](lambda: LARGE)
    others = {a.name: a.extent for a in atoms(gap) if a.kind == "axis"}
    length = evaluate(extent, sizes)
    found: set[bool] = set()
    for part in LOOK:
        at = {a: int(evaluate(n, sizes)) // 2 for a, n in others.items()}
        at[name] = int(length * part)
        found.add(evaluate(gap, sizes, at) >= 0)
    return found.pop() if len(found) == 1 else None


# ---- emission ------------------------------------------------------------------------------------


def narrowed(home: NestEmitter, scope: Scope, gaps: Iterable[Index]) -> tuple[Value, Value]:
    """The first position of a row where gaps are >= 0, and what follows the last one."""
    name, b = home.nest.vector or "", home.b
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
    home: NestEmitter, scope: Scope, given: Facts,
    at: Callable[[int, bool], Callable[[Value], None]], walk: Callable[[Value, Value], None],
) -> bool:  # fmt: skip
    """Emits the loops over vectors of a row: tested ones around its interior, or those of pieces of
    it; whether it has either.

    `at` gives the body for so many lanes, with or without the mask of the row's end; `walk` emits
    the loop over wide vectors between two positions."""
    b, lanes = home.b, home.s.lanes
    name, wide, step = home.nest.vector or "", lanes * home.nest.wide, home.folds.rest()
    found = interior_of(home.s.phase, home.nest, lanes, given)
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

    def side(k: Value) -> None:
        is_first = b.icmp_signed("==", k, number(0))
        start = b.select(is_first, low, end)
        home.loop(start, b.select(is_first, begin, high), step, at(step, True))
        with b.if_then(is_first), known(home, Piece(None, (), found.taken, found.limits)):
            main_loop(home, begin, wide, lambda: walk(begin, middle), scope)
            home.loop(middle, end, lanes, at(lanes, False))

    home.loop(number(0), number(2), 1, side)
    return True


__all__ = ["goes_on", "in_parts", "interior_of", "narrowed"]
