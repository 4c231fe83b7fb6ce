"""Weights that are divided by their sum, summed as products under a power of 2 near that sum.

A sum of products of e / l, where l reads the sum of all e, is that of e over l.  But e has no
bound of its own: products of large weights would leave the range of their type, and those of small
ones vanish, where e / l does neither.  So they are carried under the power of 2 nearest the running
sum of their sizes.  Weights that are never negative have that sum carried already: it is what they
are divided by.  Bringing products from one power to the next rounds nothing.

    l' = l + sum(e over n)
    a' = a * 2^(n(l) - n(l')) + sum(e / 2^n(l') * v over n)
    sum(e / l * v) = a * (2^n(l) / l)

The power stays within `REACH`, so that it can always be undone: beyond, sums count as those there.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.dataclass import dataclass
from smelt.fusion.cascade.forms import NotSeparable, Product
from smelt.fusion.cascade.formula import is_positive
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.combine import COMBINES, POWERS_OF_TWO, SUM_OF_PRODUCTS
from smelt.ops.reduce import accumulator
from smelt.types.dtype import DType, f64

REACH = 60
"""Largest power of 2, and least but for the sign, that single precision is carried under: what
brings a sum from one end to the other, times some number, is still in range."""
REACH_WIDE = 500
"""The same of double precision."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A factor under the power of 2 nearest its running sum."""

    element: Term
    """The factor over the power."""
    moved: Term
    """What sums shrink by in the present block."""
    power: Term
    """The last power."""


def weighed(
    terms: Terms,
    product: Product,
    element: Term,
    over: tuple[str, ...],
    state: Callable[[Term], Term],
) -> Weighed:
    """An element of which something has left a sum of products.  Raises NotSeparable where it was
    several factors: their product may be out of range by itself."""
    alone = len(product.plain) == 1 and product.plain[0][1] == 1
    if not alone or product.derived or not set(over) <= element.axes:
        raise NotSeparable(SUM_OF_PRODUCTS[1])
    size = element
    if not is_positive(element, {}):
        size = terms.greater(element, terms.neg(element))
    combine = SUM_OF_PRODUCTS[0]
    wide = accumulator(COMBINES[combine], element.dtype)
    last = state(terms.fold(combine, size, over, wide))
    new = terms.state(last.value, last.axes, wide, new=True)
    dtype = element.dtype.compute
    log, moved = POWERS_OF_TWO
    before, after = (terms.apply(log, _within(terms, t, dtype)) for t in (last, new))
    one = terms.const(0.0, dtype)
    return Weighed(
        terms.mul(element, terms.apply(moved, one, after)),
        terms.apply(moved, before, after),
        terms.apply(moved, before, one),
    )


def _within(terms: Terms, total: Term, dtype: DType) -> Term:
    """A sum, or the nearest number whose power of 2 is within reach."""
    reach = REACH_WIDE if dtype.bits == f64.bits else REACH
    least, most = (terms.const(2.0**p, dtype) for p in (-reach, reach))
    return terms.lesser(terms.greater(terms.cast(total, dtype), least), most)
