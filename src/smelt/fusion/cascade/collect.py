"""Collect the terms of a region by evaluating each operator's `define` at its position.

The planner sees here, before a kernel exists, what lowering will see in the kernel's values: the
same analysis of the same terms gives the same answer. The axes of a region are called a0, a1, ..

>>> from smelt.fusion.region import build_region
>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> units = Units(
...     parse('''graph f(x: f32[n,m]) {
...   v0 = reduce.max(x) {axes=(1,)}
...   v1 = reshape(v0) {shape=(n,1)}
...   v2 = sub(x, v1)
...   return v2
... }''')
... )
>>> found = collect(units, build_region(units, 0b110, 0b100), 1, "fast")
>>> found.roots[2].args[1].op, found.roots[2].axes == {"a0", "a1"}
('max', True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from smelt.fusion.bitsets import bits
from smelt.fusion.cascade.term import Term, Terms
from smelt.fusion.region import Region
from smelt.fusion.units import AT_ZERO, Units
from smelt.graph.ir import Node
from smelt.kernel.ir import IndexValue
from smelt.ops.combine import SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.spec import Element, Indices, Limits, ScalarOp, Update
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_
from smelt.types.expr import Index, atoms, axis, dependent_axes
from smelt.types.expr import value as position_index
from smelt.types.tensor import TensorType


class NotCollected(Exception):
    """A region uses the axis in a way that no stream supports."""


@dataclass(slots=True)
class Collected:
    """The terms of a region with respect to one of its axes."""

    terms: Terms
    roots: dict[int, Term] = field(default_factory=dict[int, Term])
    """The term of each stored unit."""
    units: dict[Term, int] = field(default_factory=dict[Term, int])
    """The unit of each reduction over the axis."""
    loads: dict[Term, tuple[int, Indices]] = field(default_factory=dict[Term, tuple[int, Indices]])
    """Elements of arrays from outside: the value, and the position where it is read."""


def collect(units: Units, region: Region, a: int, rounding: str) -> Collected:
    """Return the terms of a region with axis number `a` streamed. Raises NotCollected."""
    collector = _Collector(units, region, f"a{a}", rounding)
    # operands before readers, so that long chains need no deep recursion
    for u in reversed(region.masks):
        for place in region.positions[u]:
            if all(isinstance(t, int) for t in place):
                collector.element(units.values[region.parts.get(u, u)], collector.index_of(place))
    for u in bits(region.stored):  # a range is stored at the positions of the value it belongs to
        full_value = units.values[region.parts.get(u, u)]
        collector.out.roots[u] = collector.element(
            full_value, collector.index_of(region.positions[u][0])
        )
    return collector.out


class _Operand:
    """An operand of a node as its `define` sees it."""

    def __init__(self, collector: _Collector, node: Node) -> None:
        self.collector, self.node = collector, node

    @property
    def type(self) -> TensorType:
        return self.node.type

    def at(self, *index: Index) -> Term:
        self.collector.element_reads.append((self.node, index))
        return self.collector.element(self.node, index)


class _Collector:
    """Builds terms; implements `Definer` of `smelt.ops.spec`."""

    def __init__(self, units: Units, region: Region, name: str, rounding: str) -> None:
        self.units, self.region, self.name, self.rounding = units, region, name, rounding
        self.out = Collected(Terms())
        self.terms = self.out.terms
        self.extents = {f"a{k}": units.extents[e] for k, e in enumerate(region.axes)}
        self.axes = {name: axis(name, extent) for name, extent in self.extents.items()}
        self.numbered: list[Index] = [*self.axes.values()]
        """The axes of the region; sharing these objects makes comparing positions cheap."""
        self.known: dict[tuple[Node, Indices], Term] = {}
        self.current: list[int] = []
        self.picks: dict[str, Term] = {}
        self.element_reads: list[tuple[Node, Indices]] = []
        """Elements that the current definition has read."""

    def index_of(self, place: tuple[object, ...]) -> Indices:
        """Return a position of the region as index expressions."""
        index: list[Index] = []
        for t in place:
            if isinstance(t, int):
                index.append(0 if t == AT_ZERO else self.numbered[t])
            else:
                index.append(t)  # type: ignore[arg-type]
        return tuple(index)

    def element(self, node: Node, index: Indices) -> Term:
        """Return the element of a node at a position."""
        key = node, index
        term = self.known.get(key)
        if term is not None:
            return term
        number = self.units.number.get(node, -1)
        if number >= 0 and not self.region.members >> number & 1:
            value = ("load", number, index)
            term = self.terms.leaf(value, self._axes(*index), node.type.dtype.compute)
            self.out.loads[term] = number, index
        else:
            term = self._through_view(node, index) or self._define(node, index, number)
            if number >= 0 and self.rounding != "fast":
                term = self.terms.cast(term, node.type.dtype)
            if term.is_reduction:
                self.out.units.setdefault(term, number)
        self.known[key] = term
        return term

    def _through_view(self, node: Node, index: Indices) -> Term | None:
        """Return the element that a view element was resolved to before; None if unknown."""
        source = self.units.view_sources.get((node, index))
        return None if source is None else self.element(*source)

    def _define(self, node: Node, index: Indices, number: int) -> Term:
        outer_reads, self.element_reads = self.element_reads, []
        self.current.append(number)
        term = node.op.define(self, index, *(_Operand(self, x) for x in node.inputs))
        self.current.pop()
        reads, self.element_reads = self.element_reads, outer_reads
        if node.op.is_view and len(reads) == 1 and self.known.get(reads[0]) is term:
            self.units.view_sources[node, index] = reads[0]
        return term

    def _axes(self, *index: Index) -> frozenset[str]:
        return dependent_axes(index, lambda name: self.picks[name].axes)

    # ---- the definer ---------------------------------------------------------------------------

    def apply(self, op: ScalarOp, *args: Term) -> Term:
        return self.terms.apply(op.name, *args)

    def cast(self, value: Term, dtype: DType) -> Term:
        return self.terms.cast(value, dtype.compute if self.rounding == "fast" else dtype)

    def constant(self, value: float | int | bool, dtype: DType) -> Term:
        return self.terms.const(value, dtype.compute)

    def index(self, position: Index, dtype: DType) -> Term:
        args = tuple(self.picks[x.name] for x in atoms(position) if x.kind == "value")
        axes = self._axes(position)
        return self.terms.opaque(IndexValue(position, dtype), args, axes, dtype.compute)

    def position(self, value: Term, extent: Index) -> Index:
        name = f"p{value.number}"
        self.picks[name] = value
        return position_index(name, extent)

    def reduce(self, combine: Combine, dtype: DType, extents: Indices, body: Element[Term]) -> Term:
        over, (element,) = self._over(extents, lambda j: (body(j),))
        if not over:
            return (
                self.terms.const(0, dtype)
                if combine.positional
                else self.terms.cast(element, dtype)
            )
        if self.name not in over:
            axes = element.axes - set(over)
            return self.terms.opaque(
                ("reduce", combine.name, over), (element,), axes, dtype.compute
            )
        if combine.positional:
            return self.terms.arg_reduce(combine.name, element, over, self.extents)
        return self.terms.reduce(combine.name, element, over, dtype.compute)

    def dot(self, dtype: DType, extents: Indices, body: Element[tuple[Term, Term]]) -> Term:
        over, sides = self._over(extents, body)
        left, right = (self.terms.cast(t, dtype.compute) for t in sides)
        if not over:
            return self.terms.apply(SUM_OF_PRODUCTS[1], left, right)
        if self.name not in over:
            axes = (left.axes | right.axes) - set(over)
            return self.terms.opaque(("reduce", "", over), (left, right), axes, dtype.compute)
        exact = self.rounding == "exact"
        return self.terms.dot(left, right, over, dtype.compute if exact else dtype)

    def _over(
        self, extents: Indices, body: Element[tuple[Term, ...]]
    ) -> tuple[tuple[str, ...], tuple[Term, ...]]:
        numbers = self.region.reduced_axis_order.get(self.current[-1], ())
        if len(numbers) != len(extents):
            raise NotCollected("reduce")
        names = tuple(f"a{k}" for k in numbers)
        return names, body(tuple([self.axes[n] for n in names]))

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], Term],
    ) -> Term:
        element = body(at)
        if bare_axis(at) in (self.name, None):
            raise NotCollected(combine.name)
        return self.terms.opaque(
            ("scan", combine.name, at), (element,), element.axes, dtype.compute
        )

    def join(self, how: str, first: Term, extents: Indices, body: Update[Term]) -> Term:
        raise NotCollected(how)

    def inside(self, limits: Limits, value: Callable[[], Term], other: Term) -> Term:
        args = tuple(self.picks[x.name] for e, _ in limits for x in atoms(e) if x.kind == "value")
        axes = self._axes(*(e for e, _ in limits))
        if not axes and not args:
            return value()
        holds = self.terms.opaque(("inside", limits), args, axes, bool_)
        return self.terms.select(holds, value(), other)
