"""Sum products of normalised weights under a power of 2 near the weights' sum.

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

from collections.abc import Callable

from smelt.fusion.cascade.forms import NotSeparable, Product
from smelt.fusion.cascade.formula import is_nonnegative
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.combine import COMBINES, POWERS_OF_TWO, SUM_OF_PRODUCTS
from smelt.ops.reduce import accumulator
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64

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
    one = terms.const(0.0, dtype)
    return ScaledWeight(
        terms.mul(element, terms.apply(moved, one, after)),
        terms.apply(moved, before, after),
        terms.apply(moved, before, one),
    )


def _clamped(terms: Terms, total: Term, dtype: DType) -> Term:
    """Return a sum clamped to the numbers whose power of 2 is within reach."""
    reach = MAX_EXPONENT_F64 if dtype.bits == f64.bits else MAX_EXPONENT
    least, most = (terms.const(2.0**p, dtype) for p in (-reach, reach))
    return terms.minimum(terms.maximum(terms.cast(total, dtype), least), most)
