"""Sizes of calls larger than the first one, for which a plan is to be good as well.

A program is planned once, with the sizes of its first call, and the plan serves all others.  What
is best for a few rows may lose the axis that a large call is long along, to save a start.  So where
a first call is small, kernels are also looked for at sizes that are larger, and those are taken
where they cost a small call little and spare a large one more.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,d], w: f32[d]) {
...   v0 = mul(x, w)
...   v1 = reduce.sum(v0) {axes=(1,)}
...   return v1
... }''')
>>> larger(Units(graph), Hints(n=64, d=8), 1 << 20)
{'n': 131072, 'd': 8}
>>> larger(Units(graph), Hints(n=1 << 20, d=8), 1 << 20) is None
True
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from smelt.fusion.bitsets import Hints, at_hints, bits
from smelt.fusion.cost import INLINE_LAUNCH_NS, INLINE_START_NS, Cost, Model
from smelt.fusion.state import Cluster, State
from smelt.fusion.streams import streamed_along
from smelt.fusion.units import Units
from smelt.graph.walk import size_names
from smelt.types.expr import size

SMALL_CALL, LARGE_CALL = 1 << 16, 1 << 20
"""Elements of the largest value up to which a call counts as small (fewer where they outgrow a
core's caches), and about as many as a large one has: they do outgrow them, and all cores have
something to do."""
MOST_UNITS = 60
"""Units beyond which looking for kernels twice takes too long."""
LEAST_ROWS = 16
"""What is shorter is part of the program, such as the channels of an image."""
REGRET = 1.25
"""By how much slower a small call may be for the sake of large ones."""
GAIN = 1.25
"""By how much faster both together must be, a call of either size counting the same: less is within
the model's error."""


def larger(units: Units, hints: Hints, cache: int) -> Hints | None:
    """Sizes of a large call; None where the first one is large, beside so many bytes of a core's
    own, or nothing is known of it.  What grows is how many rows arrays have, or the largest size
    where all have few."""
    names = size_names(units.graph)
    if len(units.units) > MOST_UNITS or not names or any(n not in hints for n in names):
        return None
    long = [n for n in names if hints[n] >= LEAST_ROWS]
    rows = {x.type.shape[0] for x in units.inputs if x.type.rank > 1}
    most = max(hints[n] for n in names)
    growing = [n for n in long if size(n) in rows] or [n for n in long if hints[n] == most]
    if not growing or _elements(units, hints) > min(SMALL_CALL, cache // 4):
        return None
    found = hints
    while max(_elements(units, found), *(found[n] for n in growing)) < LARGE_CALL:
        found = Hints({**found, **{n: 2 * found[n] for n in growing}})
    return found


def _elements(units: Units, hints: Hints) -> int:
    """Elements of the largest value."""
    return max(prod(at_hints(n, hints) for n in x.type.shape) for x in units.values)


def may_gain(first: State, more: Model) -> bool:
    """Whether kernels that are looked for at larger sizes may be much faster there than those that
    were found at the first call's: not if these take little more than the arithmetic and the arrays
    of the graph do, each once."""
    units = first.units
    work = sum(
        more.step_ns[u.number] * more.elements[u.number] * prod(more.extents[e] for e in u.ended)
        for u in units.units
    )
    touch = sum(more.read_ns(v, more.nbytes[v], more.cores) for v in range(len(units.inputs)))
    touch += sum(more.write_ns(u, more.cores) for u in bits(units.outputs))
    least = max(work / more.cores, touch)
    return _spent(more, first) > GAIN * least


def serves(first: State, other: State) -> bool:
    """Whether the kernels of `other`, found at larger sizes, are better than those that were found
    at the first call's, with calls of both in view."""
    if first.groups() == other.groups():
        return False
    small, large = _spent(first.model, first), _spent(other.model, first)
    less, least = _spent(first.model, other), _spent(other.model, other)
    return less <= REGRET * small and GAIN * less * least <= small * large


def _spent(model: Model, state: State) -> float:
    """Nanoseconds of all kernels at the sizes of a model.  Starts are not charged for the sake of
    other sizes, which are looked at."""
    own = model is state.model
    found = [
        c.cost if own and c.cost.stream >= 0 else _cost(model, c) for c in state.clusters.values()
    ]
    inline = sum(c.launch for c in found if c.launch <= 2 * INLINE_LAUNCH_NS)
    return sum(c.burden for c in found) - inline * (1 - INLINE_START_NS / INLINE_LAUNCH_NS)


def _cost(model: Model, cluster: Cluster) -> Cost:
    region = replace(cluster.region, work=-1.0)
    if cluster.cost.stream >= 0:
        found = streamed_along(model, region, cluster.cost.stream)
        if found is not None:
            return found
    return model.cost(region)
