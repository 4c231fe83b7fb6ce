"""Exponentials under a running maximum, carried as powers of 2.

A sum of b^(c(z - m)) needs no exact m to stay small: the power of 2 nearest b^(cm) will do, and
bringing the sum to another power of 2 rounds nothing.  So the digits of what is summed do not
depend on where the maximum stood, when it moved, or in how many parts the axis is visited
(ALGORITHMS 1.4, the integer gauge).  A gauge that is infinite or so large that its power of 2 says
too little counts as it is: `exp_far` of the rows that a power's row names in `over`.

    m' = max(m, max(z over n))
    l' = l * exp_moved(m, m') + sum(exp_over(z - exp_far(m'), exp_whole(m')) over n)
    sum(exp(z - m)) = l / exp_over(m - exp_far(m), exp_whole(m))
"""

from __future__ import annotations

from smelt.fusion.cascade.forms import Coefficient, multiplied
from smelt.fusion.cascade.gauge import Gauge
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.approximate import most_over
from smelt.ops.spec_scalar import ScalarOp


def greatest(terms: Terms, g: Gauge, c: Coefficient, atom: Term | None, *, new: bool) -> Term:
    """The greatest exponent before or after the present block, up to what is fixed: c times the
    gauge; what stands for no element at all is -inf, or 0 if the sign of c is not known.  With an
    `atom`, which is the gauge but where that is infinite, c times the atom."""
    state = terms.state(g.state, g.fold.axes, g.fold.dtype.compute, new=new)
    if atom is not None:
        state = terms.swap(atom, {g.fold: state})
    elif c.fixed:
        state = terms.where_equal(state, g.bottom, terms.const(0.0, state.dtype), state)
    return multiplied(terms, state, c)


def over(terms: Terms, row: ScalarOp, power: Term, most: Term, *, bound: bool) -> Term:
    """b^power over the power of 2 nearest b^most; `bound` tells that no power is above `most`."""
    far, whole, divided, _ = row.over
    near = terms.sub(power, terms.apply(far, most))
    if not bound:  # by more than makes it infinite
        near = terms.lesser(near, terms.const(most_over(near.dtype), near.dtype))
    return terms.apply(divided, near, terms.apply(whole, most))


def moved(terms: Terms, row: ScalarOp, g: Gauge, c: Coefficient, atom: Term | None) -> Term:
    """What a sum shrinks by in the present block; 0 where nothing was summed."""
    old, new = (greatest(terms, g, c, atom, new=n) for n in (False, True))
    found = terms.apply(row.over[3], old, new)
    if not c.fixed and atom is None:
        return found
    state = terms.state(g.state, g.fold.axes, g.fold.dtype.compute)
    return terms.where_equal(state, g.bottom, terms.const(0.0, found.dtype), found)
