"""Short lines of an image are packed by a few vectors each, under masks that all lines share.

What a line of 28 has beyond its margins is two vectors.  Where they begin and which of their lanes
are inside is the same for line after line, so it is found once, and the loop over lines does
nothing but load and store.  Vectors are stored whole: what one has beyond the end of its line is
overwritten by the next line.

    masks       0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1   1 1 1 1 1 1 1 1 1 1 1 0 - - - -
    line n      . x x x x x x x x x x x x x x x x x x x x x x x x x x .
    line n+1                                                            . x x x x x x x x x x

Lines that lie outside of the image themselves have loops of their own, before and behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import unlike
from smelt.codegen.llvm.access.prefetch import ask_later
from smelt.codegen.llvm.access.proven_bounds import Inside, Limit, tested
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import accesses_of
from smelt.codegen.llvm.loops.partition_interior import goes_on, narrowed
from smelt.codegen.llvm.products.packing import Packer
from smelt.dataclass import dataclass
from smelt.types.expr import atoms, axes_of, sub

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

Value = ir.Value
I1 = ir.IntType(1)
VECTORS = (1, 2, 4)
"""Vectors of a line for which there are loops: with more of them tests are a small part."""
KINDS = ("const", "index", "load", "apply", "cast", "unit")
"""What is packed by them: all of it is had lane by lane, whatever the others are."""


@dataclass(frozen=True, slots=True)
class _Tests:
    """The limits of what is packed: those that its lines alone decide about, and the others."""

    rows: tuple[Limit, ...]
    others: tuple[Limit, ...]
    alike: bool
    """Whether all that is tested has the same limits along the lines' axis."""


def each_length(home: NestEmitter, nest: Nest, run: Callable[[int], None]) -> None:
    """Emits a nest that packs lines of an image by `run`, for each number of vectors that its lines
    may fit in; 0 for lines of any length."""
    if _tests(home, nest) is None:
        run(0)
        return
    b, lanes, line = home.b, home.s.lanes, nest.order[-1]
    low, high = home.ranges[line]
    most = home.s.phase.axes[line]
    if isinstance(most, int) and 0 < most <= VECTORS[-1] * lanes:
        run(-(-most // lanes))
        return

    def upto(counts: tuple[int, ...]) -> None:
        if not counts:
            run(0)
            return
        fits = b.icmp_signed("<=", b.sub(high, low), number(counts[0] * lanes))
        with b.if_else(fits) as (short, long):
            with short:
                run(counts[0])
            with long:
                upto(counts[1:])

    upto(VECTORS)


def packs_lines(home: NestEmitter, scope: Scope, depth: int) -> bool:
    """Emits the loop over lines of a nest that packs short ones, if this is where they begin;
    whether it did."""
    packer = home.products
    if not isinstance(packer, Packer) or not packer.vectors:
        return False
    tests = _tests(home, home.nest) if depth == len(home.nest.order) - 2 else None
    if tests is None:
        return False
    _lines(home, scope, depth, packer.vectors, tests)
    return True


def _tests(home: NestEmitter, nest: Nest) -> _Tests | None:
    """The limits of a nest, if none moves along its lines and across them, and all it computes may
    be had in vectors that are stored whole."""
    if len(nest.order) < 2 or not nest.once or nest.packed != "right" or nest.turned:
        return None
    row, line = nest.order[-2:]
    if home.bands or nest.vector != line:
        return None
    if any(i.kind not in KINDS or i in home.s.kept for i in nest.items):
        return None
    loads = [a for a in accesses_of(nest.items) if a.limits]
    pairs = dict.fromkeys(p for a in loads for p in a.limits if p not in home.assumed)
    rows: list[Limit] = []
    for e, n in pairs:
        if any(x.kind == "value" for x in atoms(e)) or {row, line} & {*axes_of(n)}:
            return None
        if row in axes_of(e):
            if line in axes_of(e) or not goes_on(e, row):
                return None
            rows.append((e, n))
    alike = all({*rows} <= {*a.limits} for a in loads)
    return _Tests(tuple(rows), tuple(p for p in pairs if p not in rows), alike)


def _lines(home: NestEmitter, scope: Scope, depth: int, count: int, tests: _Tests) -> None:
    """The loops over lines of so many vectors."""
    b, (row, line), lanes = home.b, home.nest.order[-2:], home.s.lanes
    low, high = home.ranges[line]
    m = LLVMMachine(b, lanes, home.home.target)
    vectors: list[Lanes] = []
    for k in range(count):
        at = b.add(low, number(k * lanes))
        mask = b.icmp_signed("<", iota(lanes), splat(b, b.sub(high, at), lanes))
        own = Lanes(line, at, lanes, unlike(m, mask))
        place = Scope(scope, {line: at}, lanes=own)
        found = {pair: tested(home, *pair, place) for pair in tests.others}
        known = {p: Inside(unlike(m, test.mask), test.some) for p, test in found.items()}
        vectors.append(replace(own, inside=known))

    def through(start: Value, end: Value, given: dict[Limit, Inside]) -> None:
        def inside(position: Value) -> None:
            inner = Scope(scope, {row: position})
            home.enter(inner, depth + 1)
            if count > 1:
                _ask(home, Scope(inner, {line: low}), count)
            for own in vectors:
                own = replace(own, inside={**own.inside, **given})
                place = Scope(inner, {line: own.base}, lanes=own)
                home.enter(place, depth + 2)
                home.body(place)

        home.loop(start, end, 1, inside)

    first, last = home.ranges[row]
    if not tests.rows:
        through(first, last, {})
    else:
        _around(home, scope, tests, through)


AHEAD = 2
"""Positions of the outermost axis by which packing runs behind what it has asked memory for."""


def _ask(home: NestEmitter, scope: Scope, vectors: int) -> None:
    """Has the processor fetch what a line is packed of a little later: the lines of one channel are
    too few for it to foresee those of the next."""
    home.enter(scope, len(home.nest.order))
    for access in dict.fromkeys(accesses_of(home.items)):
        ask_later(home, access, home.nest.order[0], AHEAD, scope, vectors * home.s.lanes)


def _around(
    home: NestEmitter,
    scope: Scope,
    tests: _Tests,
    through: Callable[[Value, Value, dict[Limit, Inside]], None],
) -> None:
    """Lines that are inside, and those around them."""
    b, row, lanes = home.b, home.nest.order[-2], home.s.lanes
    low, high = home.ranges[row]
    gaps = (g for e, n in tests.rows for g in (e, sub(sub(n, 1), e)))
    first, last = narrowed(home, scope, gaps, row)
    first = b.select(b.icmp_signed("<", first, high), first, high)
    last = b.select(b.icmp_signed("<", last, first), first, last)
    none = Inside(ir.Constant(ir.VectorType(I1, lanes), None), I1(0))
    outside = dict.fromkeys(tests.rows, none) if tests.alike else {}

    def side(k: Value) -> None:
        before = b.icmp_signed("==", k, number(0))
        through(b.select(before, low, last), b.select(before, first, high), outside)
        with b.if_then(before):
            known = home.assumed
            home.assumed = known | {*tests.rows}
            through(first, last, {})
            home.assumed = known

    home.loop(number(0), number(2), 1, side)


__all__ = ["each_length", "packs_lines"]
