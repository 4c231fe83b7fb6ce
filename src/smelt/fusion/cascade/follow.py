"""Carry sums of factors whose rescaling rule is derived (`derive.py`).

Elements f(v; r) depend on a reduction r that is not finished.  They are summed at the running value
g instead, and the sum is rescaled whenever g moves (its *transport*).  f(g; g) is one number c:

    sum(f(v; r))    g' = max(g, max(v over n))
                    a' = a * f(g; g') / c + sum(f(v; g') over n)
                    at the end a * f(g; r) / c

A harmless number replaces g as long as f(g; g) is not c: before the first element, where all
elements are zero, or where one is infinite (which the end detects).
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.fusion.cascade.derive import (
    FALLBACK,
    PLACEHOLDER,
    Gauged,
    LowRank,
    find_gauge,
    find_low_rank,
)
from smelt.fusion.cascade.forms import Dependence, NotSeparable, Product
from smelt.fusion.cascade.formula import Formula, to_formula
from smelt.fusion.cascade.gauge import opposite
from smelt.fusion.cascade.proofs import is_unproved
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.combine import EXTREMES
from smelt.packages.version import DISTRIBUTION
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64, i64

LARGEST = EXTREMES[1]
MAX_PRODUCTS = 6
"""Maximum products that one element may be expanded into."""

UNPROVED = f"without a proof, for which `pip install '{DISTRIBUTION}[derive]'` would look"
"""Appended to the reason for a factor that only sampling supports."""
MakeState = Callable[[Term], Term]
"""Returns the state of a plain reduction."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A factor under a gauge."""

    element: Term
    """The factor at the new gauge."""
    rescale: Term
    """Factor by which sums are rescaled in the current block."""
    gauge_is_valid: Term
    """Whether the last gauge is valid, that is f(g; g) = c."""
    final_factor: Term
    """Factor that brings a sum from the last gauge to the requested value."""
    otherwise: Term
    """NaN where a sum is NaN although there was no valid gauge."""
    count: Term
    slot: Term


def follow(
    terms: Terms, t: Term, reduction: Term, sorts: Dependence, state: MakeState, *, alone: bool
) -> Followed:
    """Carry a factor of a sum's elements under a gauge. Raises NotSeparable.

    Unless the factor is `alone`, its gauge must be the reduction that it reads: another factor may
    be zero where the gauge is attained, and what then underflows must be negligible anyway.
    """
    f = to_formula(t, sorts)
    gauge = None if f is None else find_gauge(f)
    if f is None or gauge is None:
        raise NotSeparable(t.op if f is None or not is_unproved(f.key) else f"{t.op} {UNPROVED}")
    combine = opposite(LARGEST) if gauge.least else LARGEST
    is_own_gauge = (
        gauge.slot.is_reduction and gauge.slot.op == combine and gauge.slot.args[0] is f.varying
    )
    if not (alone or is_own_gauge):
        raise NotSeparable(t.op)
    return _under_gauge(terms, f, gauge, combine, reduction, state)


def _under_gauge(
    terms: Terms, f: Formula, gauge: Gauged, combine: str, reduction: Term, state: MakeState
) -> Followed:
    v, slot = f.varying, gauge.slot
    dtype = v.dtype.compute
    placeholders = {t: terms.const(PLACEHOLDER, t.dtype) for t in f.moving if t is not slot}
    last = state(terms.reduce(combine, v, reduction.over, dtype))
    new = terms.state(last.value, last.axes, dtype, new=True)
    unit = terms.const(gauge.unit, dtype)

    def is_valid(g: Term) -> Term:
        return terms.equals(
            f.instantiate(terms, {**placeholders, v: g, slot: g}, dtype), gauge.unit
        )

    def safe(g: Term) -> Term:
        return terms.select(is_valid(g), g, terms.const(FALLBACK, dtype))

    def over_unit(x: Term) -> Term:
        return x if gauge.unit == 1.0 else terms.div(x, unit)

    zero, one = terms.const(0.0, dtype), terms.const(1.0, dtype)
    moved_ratio = over_unit(
        f.instantiate(terms, {**placeholders, v: safe(last), slot: safe(new)}, dtype)
    )
    rescale = terms.select(is_valid(last), moved_ratio, terms.select(is_valid(new), zero, one))
    at_last: dict[Term, Term] = {v: safe(last)}
    return Followed(
        f.instantiate(terms, {**placeholders, slot: safe(new)}, dtype),
        rescale,
        is_valid(last),
        over_unit(f.instantiate(terms, at_last, dtype)),
        f.instantiate(terms, {v: last}, dtype),
        terms.count(reduction.over, i64),
        slot,
    )


def finish(terms: Terms, total: Term, followed: Followed) -> Term:
    """Bring a sum from the last gauge to the requested value."""
    otherwise = terms.cast(followed.otherwise, total.dtype)
    number = terms.logical_or(terms.is_number(otherwise), terms.equals(followed.count, 0))
    rescaled = terms.mul(total, terms.cast(followed.final_factor, total.dtype))
    return terms.select(followed.gauge_is_valid, rescaled, terms.select(number, total, otherwise))


def expand_low_rank(
    terms: Terms, product: Product, sorts: Dependence, dtype: DType
) -> list[Product]:
    """Expand low-rank factors of a product into sums of products."""
    result = [
        Product(
            product.direct,
            product.hoisted,
            product.exponentials,
            product.sums,
            product.masks,
            product.number,
        )
    ]
    for t in product.unclassified:
        f = to_formula(t, sorts)
        low_rank = None if f is None or find_gauge(f) is not None else find_low_rank(f, dtype)
        if f is None or low_rank is None or product.exponentials:
            expanded = [Product(unclassified=(t,))]
        else:
            expanded = list(_low_rank_products(terms, f, low_rank))
        result = [left.times(right) for left in result for right in expanded]
    if len(result) > MAX_PRODUCTS:
        raise NotSeparable(product.unclassified[0].op)
    return result


def _low_rank_products(terms: Terms, f: Formula, low_rank: LowRank) -> list[Product]:
    dtype = f64 if low_rank.wide else f.varying.dtype.compute
    moved_values = [
        f.instantiate(terms, {f.varying: terms.const(a, dtype)}, dtype)
        for a in low_rank.sample_points
    ]
    result: list[Product] = []
    for b, anchor in enumerate(low_rank.anchors):
        u: Term | None = None
        for row, m in zip(low_rank.weights, moved_values, strict=True):
            part = terms.mul(m, terms.const(row[b], dtype))
            u = part if u is None else terms.add(u, part)
        assert u is not None
        element = f.instantiate(terms, {r: terms.const(anchor, dtype) for r in f.moving}, dtype)
        result.append(Product(direct=((element, 1),), hoisted=((u, 1),)))
    return result
