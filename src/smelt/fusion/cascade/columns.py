"""Choose columns of a contraction that a stream keeps in one task, to avoid recomputation.

    sum(exp(score[i, j]) * v[j, c] over j)

The left operand is computed on the fly.  If blocks of c became tasks of their own, each would
compute the scores and their exponentials again. Where every other state of the stream has c too (a
softmax's sum lacks it, a plain sum of kernels has no other state), nothing else shows that c
belongs inside. A stream that also stores results along its axis is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term
from smelt.ops.scalar import SCALARS

MIN_COST = 4.0
"""Minimum cost of an operand's element that counts as computed; loads and casts cost less."""
REDUCTION_COST = 4.0
"""Minimum cost of a reduction within an element."""


def inner_columns(
    states: Iterable[State], roots: Iterable[Term], axis: str, sizes: Mapping[str, int], most: int
) -> frozenset[str]:
    """Return the axes that only cheap operands of carried contractions along `axis` have.

    Their other operand must be expensive. Empty where these axes have more than `most` positions at
    `sizes`, or where one of `roots` is stored along `axis`.
    """
    if any(axis in t.axes for t in roots):
        return frozenset()
    names: set[str] = set()
    for s in states:
        if s.block.kind == "dot" and s.block.over == (axis,):
            for computed, other in (s.block.args, s.block.args[::-1]):
                if _cost(computed) >= MIN_COST > _cost(other):
                    names |= other.axes - computed.axes
    return frozenset(names) if prod(sizes[a] for a in names) <= most else frozenset()


def _cost(t: Term) -> float:
    """Return the cost of an element, counting common subterms once."""
    seen: set[Term] = set()
    pending, cost = [t], 0.0
    while pending:
        a = pending.pop()
        if a in seen:
            continue
        seen.add(a)
        pending += a.args
        if a.kind == "apply":
            cost += SCALARS[a.op].cost
        elif a.args and a.kind in ("opaque", "reduce", "dot"):
            cost += REDUCTION_COST
    return cost
