"""Results that are ranges of one value: slices that are returned, stored where they are computed.

A product is computed once for each element of its result.  Where several results are slices of it
(the queries, keys and values of one projection, the halves of a gate that are both kept), a kernel
walks the whole value and stores each element in the result whose range it lies in.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[4,6]) {
...   v0 = exp(x)
...   v1 = slice(v0) {starts=(0, 2), sizes=(4, 3), steps=(1, 1)}
...   return v1
... }''')
>>> part_of(graph.outputs[0]).dims
((0, 0, 4), (1, 2, 3))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits
from smelt.fusion.plan import Cluster
from smelt.fusion.trace import Term, trace
from smelt.fusion.units import Units, is_contraction, trace_of
from smelt.graph.ir import Node
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, axes_of, axis, mul, product, sub
from smelt.types.tensor import Shape

Dim = tuple[int, Index, Index]
"""For a dimension of a value: the result's dimension that walks it (-1: none, as it is one
element), where it begins and how long it is."""

MOST_PARTS = 8
"""Ranges of one value beyond which each is copied: every tile asks about each, and every vector of
a tile that lies in several.  A guard, not where the two are even."""
ROW_BEGINS = 128
"""Elements that a row of a range takes longer than the same in a kernel of its own, which walks on
over rows' ends (measured of tanh and sigmoid: 3 ranges of 128 columns take 1.5 times
as long, of 768 1.15 times)."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A result as a range of a value, along each dimension of that."""

    base: Node
    dims: tuple[Dim, ...]
    shape: Shape
    """What is stored, as `dims` count its dimensions: those of the result, of which each group that
    walks one dimension of the value is one (heads, and the columns of each)."""
    row: tuple[int, ...]
    """The result's dimensions that walk the value's last one."""


def part_of(node: Node) -> Part | None:
    """The value that a view is a range of, if it is one: nothing broadcast, padded or turned
    round, and each position once."""
    base = node
    while base.op.is_view and len(base.inputs) == 1:
        base = base.inputs[0]
    if base is node or base.op.is_view or base.op.is_source:
        return None
    found = trace(node.op, node.type, tuple(_key(x, base) for x in node.inputs))
    if found.guards or found.picks or len(found.reads) != 1:
        return None
    return _part(base, found.reads[0].terms, node.type.shape)


def _key(node: Node, base: Node) -> tuple[object, ...]:
    """A chain of views as `trace` is told of it."""
    if node is base:
        return (None, node.type, ())
    return (node.op, node.type, tuple(_key(x, base) for x in node.inputs))


def _part(base: Node, terms: Sequence[Term], shape: Shape) -> Part | None:
    """Each dimension of a value as a range; one element of several is told by a dimension of one
    element, or nothing would say which."""
    found: list[tuple[tuple[int, ...], Index]] = []
    single = [k for k, n in enumerate(shape) if n == 1]
    for term, whole in zip(terms, base.type.shape, strict=True):
        at: Index = term
        if isinstance(term, int):
            at = axis(f"a{term}", shape[term]) if term >= 0 else 0
        names = axes_of(at) if isinstance(at, Expr) else ()
        if not names and whole == 1:
            found.append(((), 0))
        elif not names and single:
            found.append(((single.pop(0),), at))
        elif (begins := _begins(at, names, shape)) is not None:
            found.append((tuple(sorted(int(name[1:]) for name in names)), begins))
        else:
            return None
    walked = [k for group, _ in found for k in group if shape[k] != 1]
    if sorted(walked) != [k for k, n in enumerate(shape) if n != 1]:
        return None
    groups = sorted([*(g for g, _ in found if g), *((k,) for k in single)])
    less = tuple(product(shape[k] for k in group) for group in groups)
    dims = [
        (groups.index(g), first, less[groups.index(g)]) if g else (-1, first, 1)
        for g, first in found
    ]
    return Part(base, tuple(dims), less, found[-1][0] if found else ())


def _begins(at: Index, names: Sequence[str], shape: Shape) -> Index | None:
    """Where a position begins that dimensions of a result walk step by step, the last of them
    fastest and nothing between them."""
    step: Index = 1
    order = sorted(int(name[1:]) for name in names)
    for k in reversed(order):
        if coefficient(at, f"a{k}") != step:
            return None
        at = sub(at, mul(step, axis(f"a{k}", shape[k])))
        step = mul(step, shape[k])
    between = [shape[k] for k in range(order[0], order[-1]) if k not in order] if order else [0]
    return None if not order or any(n != 1 for n in between) else at


def shared_parts(
    results: Collection[Node], parts: Mapping[Node, Part], holds_product: Callable[[Node], bool]
) -> dict[Node, Part]:
    """The results that are ranges of values which take a product of the same kernel to compute,
    where other results are ranges of the same, or all of it, or what is made of its elements one by
    one."""
    bases = dict.fromkeys([*results, *(part.base for part in parts.values())])
    made = {base: _made_of(base) for base in bases if not base.op.is_view}
    times = Counter(x for node in results if node not in parts for x in made.get(node, ()))
    times.update(x for part in parts.values() for x in made[part.base])
    several = {x for part in parts.values() for x in made[part.base] if times[x] > 1}
    several = {x for x in several if holds_product(x)}
    return {node: part for node, part in parts.items() if not several.isdisjoint(made[part.base])}


def _made_of(value: Node) -> set[Node]:
    """A value, and those that its elements are made of one by one, at the same positions."""
    found, pending = set[Node](), [value]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        same = [x for x in node.inputs if x.type.shape == value.type.shape and not x.op.is_view]
        if same and _is_plain(node):
            pending += same
    return found


def _is_plain(node: Node) -> bool:
    """Whether an operator makes one element of elements, without sums or anything that runs."""
    if not node.op.fusible:
        return False
    found = trace_of(node)
    return not (found.folds or found.dots or found.joins or found.picks) and found.along < 0


def stored_parts(units: Units, members: int, stored: int) -> dict[int, int]:
    """The stored units of a set that are ranges of another one of it, which is computed whole."""
    views = stored & units.views
    if not views or stored == views & -views:
        return {}

    def holds_product(base: Node) -> bool:
        pending, seen = [units.number[base]] if base in units.number else [], 0
        while pending:
            u = pending.pop()
            if not members >> u & 1 or seen >> u & 1:
                continue
            seen |= 1 << u
            if units.unit(u).trace.dots:
                return True
            pending += [e.producer for e in units.unit(u).edges]
        return False

    results = [units.values[u] for u in bits(stored)]
    found = shared_parts(results, _few_parts(units, stored), holds_product)
    return {units.number[node]: units.number[part.base] for node, part in found.items()}


def _few_parts(units: Units, stored: int) -> dict[Node, Part]:
    """The stored units that are ranges of values which are not cut into too many."""
    if len(units.ranges) < units.views.bit_count():
        units.ranges.update({u: part_of(units.values[u]) for u in bits(units.views)})
    known = {u: part for u, part in units.ranges.items() if part is not None}
    times = Counter(part.base for part in known.values())
    return {
        units.values[u]: part
        for u, part in known.items()
        if stored >> u & 1 and times[part.base] <= MOST_PARTS
    }


def shares_of_ranges(
    units: Units, members: int, stored: int, parts: Mapping[int, int], extents: Sequence[int]
) -> dict[int, float]:
    """For units that nothing but ranges is made of: the part of their elements that lies in those,
    which are all that is computed, and what their rows take beside.  A product is computed
    whole."""
    whole = {u for u in bits(stored) if u not in parts}
    found: dict[int, float] = {}
    for part, base in parts.items():
        some, every = ([extents[n] for n in units.unit(u).axes] for u in (part, base))
        told = units.ranges[part]
        row = prod(some[k] for k in told.row) if told is not None else 1
        share = prod(some) / prod(every) * (1 + ROW_BEGINS / row)
        found[base] = found.get(base, 0.0) + share
    for u in reversed([*bits(members)]):  # readers before operands
        unit = units.unit(u)
        if u in parts:
            continue
        if unit.is_fold or unit.along >= 0:
            whole.add(u)
        for edge in unit.edges:
            if u in whole or not edge.same:
                whole.add(edge.producer)
            else:
                found[edge.producer] = found.get(edge.producer, 0.0) + found.get(u, 0.0)
    return {u: share for u, share in found.items() if members >> u & 1 and u not in whole}


def cluster_parts(cluster: Cluster) -> dict[Node, Part]:
    """The same of a cluster: its results that are ranges of a value which is computed whole."""
    if any(cluster.shape(k) != node.type.shape for k, node in enumerate(cluster.outputs)):
        return {}
    inside = set(cluster.nodes)

    def holds_product(base: Node) -> bool:
        pending, seen = [base], set[Node]()
        while pending:
            node = pending.pop()
            if node not in inside or node in seen:
                continue
            seen.add(node)
            if is_contraction(node):
                return True
            pending += node.inputs
        return False

    parts = {node: part for node in cluster.outputs if (part := part_of(node)) is not None}
    return shared_parts(cluster.outputs, parts, holds_product)
