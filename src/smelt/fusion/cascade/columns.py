"""Columns of products that a stream takes: axes which one operand has alone, while the other one
is made on the way.

    sum(exp(score[i, j]) * v[j, c] over j)

Tasks of their own for blocks of c would each make the scores and their powers again.  Where nothing
else of the stream lacks c (a softmax's sum does, a plain sum of kernels has none), only this tells
that c belongs inside.  A stream that also writes what it makes along its axis is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term
from smelt.ops.scalar import SCALARS

LEAST_COST = 4.0
"""Row cost of an operand's element from which it counts as made: reading one, converting it and
scaling it cost less."""
FOLDED = 4.0
"""The least that a fold within an element costs."""
MOST = 1024
"""Columns of which a task keeps the sums for its rows: all of them stay in L2."""


def columns(
    states: Iterable[State], roots: Iterable[Term], axis: str, sizes: Mapping[str, int]
) -> frozenset[str]:
    """The axes of a stream's carried products along `axis` that only operands have which are not
    made, in products whose other operand is; none where these are many positions at a call's
    `sizes`, or some of the `roots` are written along `axis`."""
    if any(axis in t.axes for t in roots):
        return frozenset()
    found: set[str] = set()
    for s in states:
        if s.block.kind == "dot" and s.block.over == (axis,):
            for made, other in (s.block.args, s.block.args[::-1]):
                if _cost(made) >= LEAST_COST > _cost(other):
                    found |= other.axes - made.axes
    return frozenset(found) if prod(sizes[a] for a in found) <= MOST else frozenset()


def _cost(t: Term) -> float:
    """Row cost of an element, common parts once."""
    seen: set[Term] = set()
    pending, found = [t], 0.0
    while pending:
        a = pending.pop()
        if a in seen:
            continue
        seen.add(a)
        pending += a.args
        if a.kind == "apply":
            found += SCALARS[a.op].cost
        elif a.args and a.kind in ("opaque", "fold", "dot"):
            found += FOLDED
    return found
