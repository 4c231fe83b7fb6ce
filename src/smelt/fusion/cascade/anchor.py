"""Anchors of static gauges: what elements are told apart from, and what is left where squares of
the differences leave the range of doubles.

A variance about an anchor a loses what (a - mean)^2 is more than it.  With an anchor k standard
deviations from the mean it has 1 + k^2 times the error of the sums, and k^2 < n for any element (P.
Samuelson, "How deviant can you be?", 1968).  That is too little for elements of fewer bits to
notice, whose sums are carried in double precision.  Doubles notice an anchor far out: theirs is the
middle one of three elements.  No more than one element in k^2 is k deviations out (P. Chebyshev,
1867), and two of the three would have to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from smelt.fusion.cascade.forms import Product
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.combine import EXTREMES
from smelt.types.dtype import f64


def anchor(terms: Terms, element: Term, over: tuple[str, ...], product: Product) -> Term:
    """An element among those over axes, in double precision; 0 where those that are looked at are
    infinite or count for nothing in the product: what a mask hides may be any number."""
    counts = [terms.negated(terms.equals(t, 0)) for t, n in product.plain if n > 0]
    wide, counts = terms.cast(element, f64), [*product.masks, *counts]

    def at(third: int, otherwise: Term) -> Term:
        found = terms.first(wide, over, third)
        known = terms.equals(terms.sub(found, found), 0)
        for c in counts:
            known = terms.both(known, terms.first(c, over, third))
        return terms.choose(known, found, otherwise)

    zero = terms.const(0.0, f64)
    if element.dtype.bits < f64.bits:
        return at(0, zero)
    third = at(2, zero)
    second = at(1, third)
    first = at(0, second)
    least, most = EXTREMES
    high = terms.apply(least, terms.apply(most, first, second), third)
    return terms.apply(most, terms.apply(least, first, second), high)


def in_range(terms: Terms, total: Term, leading: Term, firsts: Iterable[Term]) -> Term:
    """A total about another point; infinite where the sum of the powers themselves, `leading`, is
    too large for a double although every difference is finite: what is taken off is so as well."""
    beyond = leading
    for t in firsts:
        beyond = terms.add(beyond, terms.sub(t, t))
    for bound in (math.inf, -math.inf):
        total = terms.where_equal(leading, bound, beyond, total)
    return total
