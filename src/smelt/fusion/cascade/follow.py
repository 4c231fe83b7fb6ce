"""Factors without a column that tells how they move, as states: by what `derive` has found.

    sum(f(v; r))    g' = max(g, max(v over n))
                    a' = a * f(g; g') / c + sum(f(v; g') over n)
                    at the end a * f(g; r) / c

where g stands for a harmless number as long as f(g; g) is not c: before the first element, where
all of them are zero, or where something is infinite, which the end then tells.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.dataclass import dataclass
from smelt.fusion.cascade.derive import FALLBACK, HELD, Gauged, Ranked, gauged, ranked
from smelt.fusion.cascade.forms import NotSeparable, Product, Sorts
from smelt.fusion.cascade.formula import Formula, cut
from smelt.fusion.cascade.gauge import opposite
from smelt.fusion.cascade.proofs import is_wanting
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.combine import EXTREMES
from smelt.types.dtype import DType, f64, i64

LARGEST = EXTREMES[1]
MOST_PARTS = 6
"""Products that one element may become."""

UNPROVED = "without a proof, for which `pip install 'smelt[derive]'` would look"
"""Said of a factor that numbers speak for."""
MakeState = Callable[[Term], Term]
"""Gives the state of a plain fold."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A factor under a gauge."""

    element: Term
    """The factor at the new gauge."""
    moved: Term
    """What sums shrink by in the present block."""
    fine: Term
    """Whether the last gauge is one."""
    last: Term
    """What brings a sum from the last gauge to what was asked for."""
    otherwise: Term
    """NaN where a sum is NaN although there was no gauge."""
    count: Term
    slot: Term


def follow(
    terms: Terms, t: Term, fold: Term, sorts: Sorts, state: MakeState, *, alone: bool
) -> Followed:
    """A factor of the elements of a sum, under a gauge.  Raises NotSeparable.

    Unless it is `alone`, its gauge must be the very fold that it reads: another factor may be zero
    where the gauge is greatest, and what that makes too small to see must be too small anyway."""
    f = cut(t, sorts)
    known = None if f is None else gauged(f)
    if f is None or known is None:
        raise NotSeparable(t.op if f is None or not is_wanting(f.key) else f"{t.op} {UNPROVED}")
    combine = opposite(LARGEST) if known.least else LARGEST
    own = known.slot.is_fold and known.slot.op == combine and known.slot.args[0] is f.varying
    if not (alone or own):
        raise NotSeparable(t.op)
    return _under(terms, f, known, combine, fold, state)


def _under(
    terms: Terms, f: Formula, known: Gauged, combine: str, fold: Term, state: MakeState
) -> Followed:
    v, slot = f.varying, known.slot
    dtype = v.dtype.compute
    held = {t: terms.const(HELD, t.dtype) for t in f.moving if t is not slot}
    last = state(terms.fold(combine, v, fold.over, dtype))
    new = terms.state(last.value, last.axes, dtype, new=True)
    unit = terms.const(known.unit, dtype)

    def fine(g: Term) -> Term:
        return terms.equals(f.of(terms, {**held, v: g, slot: g}, dtype), known.unit)

    def safe(g: Term) -> Term:
        return terms.choose(fine(g), g, terms.const(FALLBACK, dtype))

    def less(x: Term) -> Term:
        return x if known.unit == 1.0 else terms.div(x, unit)

    nothing, all_ = terms.const(0.0, dtype), terms.const(1.0, dtype)
    moved = less(f.of(terms, {**held, v: safe(last), slot: safe(new)}, dtype))
    kept = terms.choose(fine(last), moved, terms.choose(fine(new), nothing, all_))
    asked: dict[Term, Term] = {v: safe(last)}
    return Followed(
        f.of(terms, {**held, slot: safe(new)}, dtype),
        kept,
        fine(last),
        less(f.of(terms, asked, dtype)),
        f.of(terms, {v: last}, dtype),
        terms.count(fold.over, i64),
        slot,
    )


def finished(terms: Terms, found: Term, by: Followed) -> Term:
    """A sum at what was asked for."""
    otherwise = terms.cast(by.otherwise, found.dtype)
    number = terms.either(terms.is_number(otherwise), terms.equals(by.count, 0))
    brought = terms.mul(found, terms.cast(by.last, found.dtype))
    return terms.choose(by.fine, brought, terms.choose(number, found, otherwise))


def in_parts(terms: Terms, product: Product, sorts: Sorts, dtype: DType) -> list[Product]:
    """A product whose factors of some rank are written as sums of products."""
    found = [
        Product(
            product.plain,
            product.hoisted,
            product.growing,
            product.sums,
            product.masks,
            product.number,
        )
    ]
    for t in product.derived:
        f = cut(t, sorts)
        known = None if f is None or gauged(f) is not None else ranked(f, dtype)
        if f is None or known is None or product.growing:
            parts = [Product(derived=(t,))]
        else:
            parts = list(_parts(terms, f, known))
        found = [one.times(other) for one in found for other in parts]
    if len(found) > MOST_PARTS:
        raise NotSeparable(product.derived[0].op)
    return found


def _parts(terms: Terms, f: Formula, known: Ranked) -> list[Product]:
    dtype = f64 if known.wide else f.varying.dtype.compute
    moved = [f.of(terms, {f.varying: terms.const(a, dtype)}, dtype) for a in known.places]
    found: list[Product] = []
    for b, anchor in enumerate(known.anchors):
        u: Term | None = None
        for row, m in zip(known.weights, moved, strict=True):
            part = terms.mul(m, terms.const(row[b], dtype))
            u = part if u is None else terms.add(u, part)
        assert u is not None
        element = f.of(terms, {r: terms.const(anchor, dtype) for r in f.moving}, dtype)
        found.append(Product(plain=((element, 1),), hoisted=((u, 1),)))
    return found
