"""Count values that are one function of arrays of any shapes: one launch may compute all of them.

An optimiser updates each parameter by the same formula, and clips by the norm of each gradient.
Values with one formula have operands with one formula, down to inputs of one dtype, so that none of
them depends on another. The planner counts their launch once (`smelt.fusion.device_cost`); which
kernels do share one is decided when sizes are known, by their texts.

>>> from smelt.graph.text import parse
>>> units = Units(
...     parse('''graph f(x: f32[n], y: f32[m,k]) {
...   v0 = square(x)
...   v1 = reduce.sum(v0) {axes=(0,)}
...   v2 = square(y)
...   v3 = reduce.sum(v2) {axes=(0, 1)}
...   v4 = add(v1, v3)
...   return v4
... }''')
... )
>>> formulas(units)
[0, 0, 1, 2, 1, 2, 3]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.units import AT_ZERO, Unit, Units
from smelt.graph.ir import Node
from smelt.kernel.device_code import MAX_MAPPED_ELEMENTS, MAX_REDUCED_ELEMENTS
from smelt.ops.create import Constant
from smelt.types.expr import Index, product

MIN_FAMILY = 8
"""Minimum arrays for which a plan counts on a launch in common.

With fewer, one kernel of all of them may be faster than a launch that first needs a table.
"""


def formulas(units: Units) -> list[int]:
    """Return a number for each value: equal ones have one formula."""
    numbered: dict[Hashable, int] = {}
    by_node: dict[Node, int] = {}
    for node in units.order:
        operands = tuple(by_node[x] for x in node.inputs)
        if node.op.is_view and [product(x.type.shape) for x in node.inputs] == [_count(node)]:
            by_node[node] = operands[0]  # all elements, in another shape
            continue
        key = *_operator(node), node.type.dtype, _count(node) == 1, operands
        by_node[node] = numbered.setdefault(key, len(numbered))
    numbers = dict.fromkeys(by_node[node] for node in units.values)
    short = {n: k for k, n in enumerate(numbers)}
    return [short[by_node[node]] for node in units.values]


def _count(node: Node) -> Index:
    return product(node.type.shape)


def _operator(node: Node) -> tuple[Hashable, ...]:
    """Return an operator without shapes and axes."""
    return (node.op,) if isinstance(node.op, Constant) else (type(node.op), node.op.name)


class Families:
    """Values of a graph whose kernels may share launches; `elements` are those of each value."""

    def __init__(self, units: Units, elements: Sequence[int]) -> None:
        self.units = units
        every = formulas(units)
        counts = Counter(every)
        self.sizes = [counts[f] if counts[f] >= MIN_FAMILY else 1 for f in every]
        """Values with the formula of each value, 1 if they are few."""
        self.numbers = [f if n > 1 else -1 for f, n in zip(every, self.sizes, strict=True)]
        """The formula of each value, -1 if few values have it."""
        self.largest = max(self.sizes, default=1)
        self.flat = [True] * len(units.inputs)
        """Whether each value takes elements of arrays of one shape one by one."""
        for unit in units.units:
            self.flat.append(self._is_flat(unit, elements))
        self.members = sum(
            1 << u.number
            for u in units.units
            if self.flat[u.number]
            and self.sizes[u.number] > 1
            and 1
            < max(elements[v] for v in (u.number, *bits(units.operands[u.number])))
            <= (MAX_REDUCED_ELEMENTS if u.is_reduction else MAX_MAPPED_ELEMENTS)
        )
        """Values of whole arrays, or reductions of them, whose kernels share a launch."""

    def _is_flat(self, unit: Unit, elements: Sequence[int]) -> bool:
        traced, n = unit.trace, elements[unit.number]
        if unit.is_library or unit.is_scatter or unit.scan_axis >= 0:
            return False
        if unit.is_reduction and (n != 1 or unit.rank or traced.dots or traced.positional):
            return False
        arrays = [e for e in unit.edges if elements[e.producer] != 1]
        reads_own = (
            elements[e.producer] == n and all(t in (k, AT_ZERO) for k, t in enumerate(e.terms))
            for e in arrays
        )
        return (unit.is_reduction or all(reads_own)) and all(self.flat[e.producer] for e in arrays)

    def of(self, region: Region) -> tuple[int, int]:
        """Return how many kernels share a region's launches, and how many it prevents.

        Those are members that the region computes beside others.
        """
        reductions = sum(1 << u for u in region.reduced_axes)
        members = [*bits((region.stored | reductions) & self.members)]
        if not members:
            return 1, 0
        if len({self.numbers[u] for u in members}) == len(members) and self._is_one(region):
            return min(self.sizes[u] for u in bits(region.stored)), 0
        return 1, len(members)

    def _is_one(self, region: Region) -> bool:
        """Return whether a region stores elements of one space, or reduces all of it."""
        reduced = {*region.reduced_axes.values()}
        if region.scanned or (reduced and reduced != {region.all_axes}):
            return False
        results = [region.positions.get(u, [(None,)]) for u in bits(region.stored)]
        every = [p for read in (*region.loads.values(), *results) for p in read]
        places = {p for p in every if any(t != AT_ZERO for t in p)}
        if len(places) != 1 or {*places.pop()} - {AT_ZERO} != {*bits(region.all_axes)}:
            return False
        # what waits for a reduction would take a second pass
        levels = region.levels
        return not any(levels.get(u) for u in bits(region.stored) if any(region.masks[u]))
