"""Choose larger sizes to plan for as well, and between the plans for both.

A program is planned once, with the sizes of its first call, and the plan serves all others. A
fusion that saves a launch for a few rows may slow down a call with many. So if the first call is
small, kernels are also searched for at larger sizes, and taken if they cost a small call little and
save a large one more.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,d], w: f32[d]) {
...   v0 = mul(x, w)
...   v1 = reduce.sum(v0) {axes=(1,)}
...   return v1
... }''')
>>> larger_sizes(Units(graph), Hints(n=64, d=8), 1 << 20)
{'n': 131072, 'd': 8}
>>> larger_sizes(Units(graph), Hints(n=1 << 20, d=8), 1 << 20) is None
True
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from smelt.fusion.bitsets import Hints, at_hints, bits
from smelt.fusion.cost import INLINE_LAUNCH_NS, INLINE_START_NS
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.state import Cluster, State
from smelt.fusion.streams import stream_cost
from smelt.fusion.units import Units
from smelt.graph.walk import input_size_names
from smelt.types.expr import size

SMALL_CALL, LARGE_CALL = 1 << 16, 1 << 20
"""Maximum elements of the largest value of a small call, and minimum of a large one.

The largest value of a small call also fits in a core's own cache, at four bytes an element. That of
a large call exceeds the caches and gives all cores work.
"""
MAX_UNITS = 60
"""Maximum units for which kernels are searched for twice."""
MIN_ROWS = 16
"""Smallest size that may grow; smaller ones belong to the program, such as image channels."""
REGRET = 1.25
"""Largest slowdown of a small call for the benefit of large ones."""
GAIN = 1.25
"""Minimum product of both speedups, a call of either size counting the same.

Less is within the model's error.
"""


def larger_sizes(units: Units, hints: Hints, cache: int) -> Hints | None:
    """Return sizes of a large call, None if the first call is large.

    Also None if a size is unknown. `cache` is the size of a core's own cache in bytes. The numbers
    of rows of arrays grow, or the largest size if all arrays have few rows.
    """
    names = input_size_names(units.graph)
    if len(units.units) > MAX_UNITS or not names or any(n not in hints for n in names):
        return None
    large_names = [n for n in names if hints[n] >= MIN_ROWS]
    row_counts = {x.type.shape[0] for x in units.inputs if x.type.rank > 1}
    largest = max(hints[n] for n in names)
    grown = [n for n in large_names if size(n) in row_counts] or [
        n for n in large_names if hints[n] == largest
    ]
    if not grown or _elements(units, hints) > min(SMALL_CALL, cache // 4):
        return None
    sizes = hints
    while max(_elements(units, sizes), *(sizes[n] for n in grown)) < LARGE_CALL:
        sizes = Hints({**sizes, **{n: 2 * sizes[n] for n in grown}})
    return sizes


def _elements(units: Units, hints: Hints) -> int:
    """Return the elements of the largest value."""
    return max(prod(at_hints(n, hints) for n in x.type.shape) for x in units.values)


def may_gain(first: State, larger_model: CostModel) -> bool:
    """Return whether kernels searched for at larger sizes may be much faster there.

    Not if those found at the first call's sizes take little more than the graph's arithmetic or
    arrays, each once.
    """
    units = first.units
    work = sum(
        larger_model.step_ns[u.number]
        * larger_model.elements[u.number]
        * prod(larger_model.extents[e] for e in u.reduced_extents)
        for u in units.units
    )
    traffic_ns = sum(
        larger_model.read_ns(v, larger_model.nbytes[v], larger_model.cores)
        for v in range(len(units.inputs))
    )
    traffic_ns += sum(larger_model.write_ns(u, larger_model.cores) for u in bits(units.outputs))
    least = max(work / larger_model.cores, traffic_ns)
    return _plan_ns(larger_model, first) > GAIN * least


def is_better_for_both(first: State, other: State) -> bool:
    """Return whether `other`, found at larger sizes, is better for calls of both sizes together."""
    if first.groups() == other.groups():
        return False
    first_small, first_large = _plan_ns(first.model, first), _plan_ns(other.model, first)
    other_small, other_large = _plan_ns(first.model, other), _plan_ns(other.model, other)
    return (
        other_small <= REGRET * first_small
        and GAIN * other_small * other_large <= first_small * first_large
    )


def _plan_ns(model: CostModel, state: State) -> float:
    """Return the nanoseconds of all kernels at the sizes of a model.

    A start in the calling thread is charged as for repeated calls, INLINE_START_NS.
    """
    is_own = model is state.model
    costs = [
        c.cost if is_own and c.cost.stream >= 0 else _cost(model, c)
        for c in state.clusters.values()
    ]
    inline = sum(c.launch for c in costs if c.launch <= 2 * INLINE_LAUNCH_NS)
    return sum(c.objective_ns for c in costs) - inline * (1 - INLINE_START_NS / INLINE_LAUNCH_NS)


def _cost(model: CostModel, cluster: Cluster) -> Cost:
    """Return the cost of a cluster's kernel at the sizes of another model.

    The axis that it streams stays, if it can be streamed there. `work` is reset because a region
    caches what its own model computed.
    """
    region = replace(cluster.region, work=-1.0)
    if cluster.cost.stream >= 0:
        prediction = stream_cost(model, region, cluster.cost.stream)
        if prediction is not None:
            return prediction
    return model.cost(region)
