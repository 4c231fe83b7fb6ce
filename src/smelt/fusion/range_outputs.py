"""Store results that are slices of one value where that value is computed.

A contraction is computed once for each element of its result. If several results are slices of it
(queries, keys and values of one projection; the halves of a gate that are both kept), a kernel
iterates over the full value and stores each element in the result whose range has it.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[4,6]) {
...   v0 = exp(x)
...   v1 = slice(v0) {starts=(0, 2), sizes=(4, 3), steps=(1, 1)}
...   return v1
... }''')
>>> range_of(graph.outputs[0]).dims
((0, 0, 4), (1, 2, 3))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

from smelt.fusion.bitsets import bits, closure
from smelt.fusion.plan import Cluster
from smelt.fusion.trace import Term, trace, view_key
from smelt.fusion.units import Units, is_contraction, trace_of
from smelt.graph.ir import Node
from smelt.graph.walk import reachable
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, axes_of, axis, coefficient, mul, product, sub
from smelt.types.tensor import Shape

Dim = tuple[int, Index, Index]
"""For a dimension of a value: the result's dimension that iterates over it, start and length.

The dimension is -1 if none does, as it is a single element.
"""

MAX_RANGES = 8
"""Maximum ranges of one value; with more, each is copied.

Every tile tests for each range, and every vector of a tile that overlaps several. A safeguard, not
a break-even point.
"""
ROW_START_ELEMENTS = 128
"""Extra time per row of a range, in elements.

A kernel of its own would continue across the ends of rows.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RangeOutput:
    """A result as a range of a value, along each dimension of that value."""

    base: Node
    dims: tuple[Dim, ...]
    shape: Shape
    """The stored shape to which `dims` refer.

    It is the result's, with each group of dimensions that iterates over one dimension of the value
    merged (such as heads and the columns of each).
    """
    row: tuple[int, ...]
    """The result's dimensions that iterate over the value's last one."""


def range_of(node: Node) -> RangeOutput | None:
    """Return the value that a view is a range of, if it is one.

    Nothing may be broadcast, padded or reversed, and each position occurs once.
    """
    base = node
    while base.op.is_view and len(base.inputs) == 1:
        base = base.inputs[0]
    if base is node or base.op.is_view or base.op.is_source:
        return None
    keys = tuple(view_key(x, lambda y: y is base) for x in node.inputs)
    traced = trace(node.op, node.type, keys)
    if traced.guards or traced.data_positions or len(traced.reads) != 1:
        return None
    return _range_from_terms(base, traced.reads[0].terms, node.type.shape)


def _range_from_terms(base: Node, terms: Sequence[Term], shape: Shape) -> RangeOutput | None:
    """Return the range that a view reads in each dimension; None if it is none.

    One element out of several needs a result dimension of extent 1 to identify it.
    """
    ranges: list[tuple[tuple[int, ...], Index]] = []
    unit_dims = [k for k, n in enumerate(shape) if n == 1]
    for term, extent in zip(terms, base.type.shape, strict=True):
        index: Index = term
        if isinstance(term, int):
            index = axis(f"a{term}", shape[term]) if term >= 0 else 0
        names = axes_of(index) if isinstance(index, Expr) else ()
        if not names and extent == 1:
            ranges.append(((), 0))
        elif not names and unit_dims:
            ranges.append(((unit_dims.pop(0),), index))
        elif (begins := _start(index, names, shape)) is not None:
            ranges.append((tuple(sorted(int(name[1:]) for name in names)), begins))
        else:
            return None
    walked = [k for group, _ in ranges for k in group if shape[k] != 1]
    if sorted(walked) != [k for k, n in enumerate(shape) if n != 1]:
        return None
    groups = sorted([*(g for g, _ in ranges if g), *((k,) for k in unit_dims)])
    merged_shape = tuple(product(shape[k] for k in group) for group in groups)
    dims = [
        (groups.index(g), first, merged_shape[groups.index(g)]) if g else (-1, first, 1)
        for g, first in ranges
    ]
    return RangeOutput(base, tuple(dims), merged_shape, ranges[-1][0] if ranges else ())


def _start(offset: Index, names: Sequence[str], shape: Shape) -> Index | None:
    """Return the start of a range that dimensions of a result iterate over contiguously.

    The last of them is the fastest, and nothing may be between them.
    """
    step: Index = 1
    order = sorted(int(name[1:]) for name in names)
    for k in reversed(order):
        if coefficient(offset, f"a{k}") != step:
            return None
        offset = sub(offset, mul(step, axis(f"a{k}", shape[k])))
        step = mul(step, shape[k])
    between = [shape[k] for k in range(order[0], order[-1]) if k not in order] if order else [0]
    return None if not order or any(n != 1 for n in between) else offset


def shared_parts(
    results: Collection[Node],
    parts: Mapping[Node, RangeOutput],
    holds_product: Callable[[Node], bool],
) -> dict[Node, RangeOutput]:
    """Return the results that are ranges of a value with a shared contraction.

    That is so if other results are ranges of that value, are that value, or are computed from its
    elements one by one.
    """
    bases = dict.fromkeys([*results, *(part.base for part in parts.values())])
    sources = {base: _elementwise_sources(base) for base in bases if not base.op.is_view}
    use_counts = Counter(x for node in results if node not in parts for x in sources.get(node, ()))
    use_counts.update(x for part in parts.values() for x in sources[part.base])
    shared = {x for part in parts.values() for x in sources[part.base] if use_counts[x] > 1}
    shared = {x for x in shared if holds_product(x)}
    return {node: part for node, part in parts.items() if not shared.isdisjoint(sources[part.base])}


def _elementwise_sources(value: Node) -> set[Node]:
    """Return a value and those that its elements are computed from at the same positions."""

    def operands(node: Node) -> list[Node]:
        same = [x for x in node.inputs if x.type.shape == value.type.shape and not x.op.is_view]
        return same if same and node.op.fusible and trace_of(node).is_elementwise else []

    return {*reachable([value], operands)}


def stored_parts(units: Units, members: int, stored: int) -> dict[int, int]:
    """Return the stored units of a set that are ranges of another of its units.

    The value is that unit, which is computed in full.
    """
    views = stored & units.views
    if stored == views & -views:
        return {}

    def holds_product(base: Node) -> bool:
        if base not in units.number:
            return False
        before = closure(1 << units.number[base], units.operands, members)
        return any(units.unit(u).trace.dots for u in bits(before))

    results = [units.values[u] for u in bits(stored)]
    ranges = shared_parts(results, _limited_ranges(units, stored), holds_product)
    return {units.number[node]: units.number[part.base] for node, part in ranges.items()}


def _limited_ranges(units: Units, stored: int) -> dict[Node, RangeOutput]:
    """Return the stored units that are ranges of values without too many ranges."""
    if len(units.ranges) < units.views.bit_count():
        units.ranges.update({u: range_of(units.values[u]) for u in bits(units.views)})
    ranges = {u: part for u, part in units.ranges.items() if part is not None}
    range_counts = Counter(part.base for part in ranges.values())
    return {
        units.values[u]: part
        for u, part in ranges.items()
        if stored >> u & 1 and range_counts[part.base] <= MAX_RANGES
    }


def shares_of_ranges(
    units: Units, members: int, stored: int, parts: Mapping[int, int], extents: Sequence[int]
) -> dict[int, float]:
    """Return for units that only ranges are computed from the share of elements computed.

    It includes the extra time at the start of rows. Contractions are computed in full.
    """
    full_units = {u for u in bits(stored) if u not in parts}
    shares: dict[int, float] = {}
    for part, base in parts.items():
        range_sizes, base_sizes = ([extents[n] for n in units.unit(u).axes] for u in (part, base))
        range_info = units.ranges[part]
        row_elements = prod(range_sizes[k] for k in range_info.row) if range_info is not None else 1
        share = prod(range_sizes) / prod(base_sizes) * (1 + ROW_START_ELEMENTS / row_elements)
        shares[base] = shares.get(base, 0.0) + share
    for u in reversed([*bits(members)]):  # readers before operands
        unit = units.unit(u)
        if u in parts:
            continue
        if unit.is_reduction or unit.scan_axis >= 0:
            full_units.add(u)
        for edge in unit.edges:
            if u in full_units or not edge.same:
                full_units.add(edge.producer)
            else:
                shares[edge.producer] = shares.get(edge.producer, 0.0) + shares.get(u, 0.0)
    return {u: share for u, share in shares.items() if members >> u & 1 and u not in full_units}


def cluster_parts(cluster: Cluster) -> dict[Node, RangeOutput]:
    """Return a cluster's results that are ranges of a value computed in full."""
    if any(cluster.shape(k) != node.type.shape for k, node in enumerate(cluster.outputs)):
        return {}
    inside = set(cluster.nodes)

    def holds_product(base: Node) -> bool:
        before = reachable({base} & inside, lambda node: inside.intersection(node.inputs))
        return any(map(is_contraction, before))

    parts = {node: part for node in cluster.outputs if (part := range_of(node)) is not None}
    return shared_parts(cluster.outputs, parts, holds_product)
