"""Rescale running sums of exponentials (online softmax) by exact powers of 2.

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
"""

from __future__ import annotations

from smelt.fusion.cascade.forms import Coefficient, multiply
from smelt.fusion.cascade.gauge import Gauge
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.approximate import max_over_argument
from smelt.ops.spec import ScalarOp


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
