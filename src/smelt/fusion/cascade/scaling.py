"""Keep carried sums in range: anchors, exact powers of 2, scaled weights.

A static gauge subtracts an anchor: one of the elements. A variance about an anchor a loses
precision by the factor (a - mean)^2 / variance: with an anchor k standard deviations from the mean,
the error of the sums grows by 1 + k^2, and k^2 < n for any element (P. Samuelson, "How deviant can
you be?", 1968). That is invisible for elements of fewer than 64 bits, whose sums are carried in
double precision. For doubles the anchor is the median of three elements: at most one element in k^2
is k deviations out (P. Chebyshev, 1867), and two of the three would have to be.

One pass over z computes the sum of b^(c(z - m)) under a running maximum m (its *gauge*), which only
keeps the sum in range. So the terms are divided by the power of 2 nearest b^(cm) instead of by
b^(cm): rescaling from one power of 2 to another does not round. The digits of a sum then do not
depend on when the maximum moved or on how the axis is partitioned (the integer gauge of
`docs/derivations.md`, running-shift). A gauge that is infinite, or so large that its power of 2
says too little, is subtracted directly, by the operator `exp_far`. The table row of a power names
all these operators (`ScalarOp.over`).

    m' = max(m, max(z over n))
    l' = l * exp_moved(m, m') + sum(exp_over(z - exp_far(m'), exp_whole(m')) over n)
    sum(exp(z - m)) = l / exp_over(m - exp_far(m), exp_whole(m))

A sum of products of e / l, where l reads the sum of all e, equals the sum of products of e, over l.
But e has no bound of its own: products of large weights overflow and those of small ones underflow,
where e / l does neither. So they are carried under the power of 2 nearest the running sum of
magnitudes. For weights that are never negative that sum is carried already: it is their divisor.
Rescaling from one power to the next does not round.

    l' = l + sum(e over n)
    a' = a * 2^(n(l) - n(l')) + sum(e / 2^n(l') * v over n)
    sum(e / l * v) = a * (2^n(l) / l)

The power stays within +-`MAX_EXPONENT`, so that it can always be undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from smelt.fusion.cascade.forms import Coefficient, NotSeparable, Product, multiply
from smelt.fusion.cascade.formula import is_nonnegative
from smelt.fusion.cascade.gauge import Gauge
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.approximate import max_over_argument
from smelt.ops.combine import COMBINES, EXTREMES, POWERS_OF_TWO, SUM_OF_PRODUCTS
from smelt.ops.reduce import accumulator
from smelt.ops.spec import ScalarOp
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64


def anchor(terms: Terms, element: Term, over: tuple[str, ...], product: Product) -> Term:
    """Return one of the elements over axes, in double precision.

    0 where the candidates are infinite or have no weight in the product: a masked element may be
    any number.
    """
    conditions = [terms.logical_not(terms.equals(t, 0)) for t, n in product.direct if n > 0]
    wide, conditions = terms.cast(element, f64), [*product.masks, *conditions]

    def element_or(third: int, otherwise: Term) -> Term:
        candidate = terms.first(wide, over, third)
        is_usable = terms.equals(terms.sub(candidate, candidate), 0)
        for c in conditions:
            is_usable = terms.logical_and(is_usable, terms.first(c, over, third))
        return terms.select(is_usable, candidate, otherwise)

    zero = terms.const(0.0, f64)
    if element.dtype.bits < f64.bits:
        return element_or(0, zero)
    third = element_or(2, zero)
    second = element_or(1, third)
    first = element_or(0, second)
    least, most = EXTREMES
    high = terms.apply(least, terms.apply(most, first, second), third)
    return terms.apply(most, terms.apply(least, first, second), high)


def propagate_overflow(terms: Terms, total: Term, leading: Term, firsts: Iterable[Term]) -> Term:
    """Return a total about another point, infinite where the sum of powers overflowed.

    `leading` is that sum. It may be too large for a double although every difference is finite; the
    terms that are subtracted are infinite then as well.
    """
    beyond = leading
    for t in firsts:
        beyond = terms.add(beyond, terms.sub(t, t))
    for bound in (math.inf, -math.inf):
        total = terms.where_equal(leading, bound, beyond, total)
    return total


def max_exponent(terms: Terms, g: Gauge, c: Coefficient, atom: Term | None, *, new: bool) -> Term:
    """Return the largest exponent before or after the current block: c times the gauge.

    Without elements it is -inf, or 0 if the sign of c is unknown. If an `atom` is passed (equal to
    the gauge except where that is infinite), c times the atom.
    """
    state = terms.state(g.state, g.reduction.axes, g.reduction.dtype.compute, new=new)
    if atom is not None:
        state = terms.substitute(atom, {g.reduction: state})
    elif c.fixed:
        state = terms.where_equal(state, g.bottom, terms.const(0.0, state.dtype), state)
    return multiply(terms, state, c)


def divide_by_power(terms: Terms, row: ScalarOp, power: Term, most: Term, *, bound: bool) -> Term:
    """Return b^power over the power of 2 nearest b^most.

    `bound` says that no power exceeds `most`.
    """
    far, exponent_op, divided, _ = row.over
    offset = terms.sub(power, terms.apply(far, most))
    if not bound:  # clamp to exponents that still overflow
        offset = terms.minimum(offset, terms.const(max_over_argument(offset.dtype), offset.dtype))
    return terms.apply(divided, offset, terms.apply(exponent_op, most))


def rescale_factor(
    terms: Terms, row: ScalarOp, g: Gauge, c: Coefficient, atom: Term | None
) -> Term:
    """Return the factor by which a sum is rescaled in the current block.

    It is 0 if nothing was summed before.
    """
    old, new = (max_exponent(terms, g, c, atom, new=n) for n in (False, True))
    factor = terms.apply(row.over[3], old, new)
    if not c.fixed and atom is None:
        return factor
    state = terms.state(g.state, g.reduction.axes, g.reduction.dtype.compute)
    return terms.where_equal(state, g.bottom, terms.const(0.0, factor.dtype), factor)


MAX_EXPONENT = 60
"""Largest magnitude of the binary exponent for single precision.

Rescaling a sum from one end to the other, times some number, stays in range.
"""
MAX_EXPONENT_F64 = 500
"""As `MAX_EXPONENT`, for double precision."""


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A factor divided by the power of 2 nearest its running sum."""

    element: Term
    """The factor over the power."""
    rescale: Term
    """Factor by which sums are rescaled in the current block."""
    power: Term
    """The last power."""


def scale_weight(
    terms: Terms,
    product: Product,
    element: Term,
    over: tuple[str, ...],
    state: Callable[[Term], Term],
) -> ScaledWeight:
    """Scale a factor from whose sum of products another factor was hoisted.

    Raises NotSeparable if several factors were left: their product may be out of range by itself.
    """
    alone = len(product.direct) == 1 and product.direct[0][1] == 1
    if not alone or product.unclassified or not set(over) <= element.axes:
        raise NotSeparable(SUM_OF_PRODUCTS[1])
    magnitude = element
    if not is_nonnegative(element, {}):
        magnitude = terms.maximum(element, terms.neg(element))
    combine = SUM_OF_PRODUCTS[0]
    accumulator_type = accumulator(COMBINES[combine], element.dtype)
    last = state(terms.reduce(combine, magnitude, over, accumulator_type))
    new = terms.state(last.value, last.axes, accumulator_type, new=True)
    dtype = element.dtype.compute
    log, moved = POWERS_OF_TWO
    before, after = (terms.apply(log, _clamped(terms, t, dtype)) for t in (last, new))
    zero = terms.const(0.0, dtype)  # the exponent of 1
    return ScaledWeight(
        terms.mul(element, terms.apply(moved, zero, after)),
        terms.apply(moved, before, after),
        terms.apply(moved, before, zero),
    )


def _clamped(terms: Terms, total: Term, dtype: DType) -> Term:
    """Return a sum clamped to the numbers whose power of 2 is within reach."""
    reach = MAX_EXPONENT_F64 if dtype.bits == f64.bits else MAX_EXPONENT
    least, most = (terms.const(2.0**p, dtype) for p in (-reach, reach))
    return terms.minimum(terms.maximum(terms.cast(total, dtype), least), most)
