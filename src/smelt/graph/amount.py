"""How much a program has to compute, for given sizes.

A plan is right for all sizes, and chosen for those of the first call.  Where there is much more to
compute than it was chosen for, what it does twice to save a start, or holds in a cache, is no gain
any more, and the program is planned anew.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\\n v0 = exp(x) : f32[n]\\n return v0\\n}")
>>> elements(graph, {"n": 100}), is_far(graph, {"n": 100}, {"n": 1000}), \
is_far(graph, {"n": 100}, {"n": 1600})
(200, False, True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from smelt.graph.ir import Graph
from smelt.types.expr import evaluate

__all__ = ["elements", "is_far"]

FAR = 16
"""Times as many elements from which on a plan is made anew: what it chose was for few."""


def elements(graph: Graph, sizes: Mapping[str, int]) -> int:
    """How many elements a graph is given and gives, where sizes tell that; 1 where none do."""
    shapes = [x.type.shape for x in (*graph.inputs, *graph.outputs)]
    told = [shape for shape in shapes if not all(isinstance(d, int) for d in shape)]
    return sum(math.prod(int(evaluate(d, sizes)) for d in shape) for shape in told) or 1


def is_far(graph: Graph, known: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether there is much more to compute than at the sizes `known`."""
    if all(now[name] <= n for name, n in known.items()):
        return False
    return elements(graph, now) >= FAR * elements(graph, known)
