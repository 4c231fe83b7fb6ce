"""Choose anchors for shifted sums, and keep overflow visible.

A static gauge subtracts an anchor: one of the elements. A variance about an anchor a loses
precision by the factor (a - mean)^2 / variance: with an anchor k standard deviations from the mean,
the error of the sums grows by 1 + k^2, and k^2 < n for any element (P. Samuelson, "How deviant can
you be?", 1968). That is invisible for elements of fewer than 64 bits, whose sums are carried in
double precision. For doubles the anchor is the median of three elements: at most one element in k^2
is k deviations out (P. Chebyshev, 1867), and two of the three would have to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from smelt.fusion.cascade.forms import Product
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.combine import EXTREMES
from smelt.types.dtype import f64


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
