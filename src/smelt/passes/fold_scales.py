"""Scales by constants, moved from a product's result into its constant operand.

What is done to the result of a product may be a scale and a shift by constants, as a normalisation
with known statistics is:

    (contract(x, w) - m) * s + t        is        contract(x, w * s) + ((0 - m) * s + t)

where s varies along axes of the result that w has.  What stands on the right of w is computed once
(`smelt.passes.constant_subgraph`).  Each product is then rounded after its weight was, and the
shift is taken together with the scale: allowed with `rounding="fast"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.dataclass import dataclass
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import renew, users
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Map
from smelt.ops.view import Reshape

SUM, TIMES = COMBINES[SUM_OF_PRODUCTS[0]].scalar, SUM_OF_PRODUCTS[1]


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A value that is product * factor + shift; None stands for 1 and for 0."""

    product: Node
    weights: int
    """The product's constant operand, 0 or 1."""
    factor: Node | None = None
    shift: Node | None = None


def scales(graph: Graph) -> Graph:
    """Move scales of a product's result into its constant operand.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         scales(
    ...             parse('''graph f(x: f32[n,4], w: f32[8,4] constant, s: f32[8] constant) {
    ...   y = contract(x, w) {spec="n,k; o,k -> n,o"}
    ...   z = mul(y, s)
    ...   return z
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,4], w: f32[8,4] constant, s: f32[8] constant) {
      v0 = reshape(s) {shape=(8, 1)} : f32[8,1]
      v1 = mul(w, v0) : f32[8,4]
      v2 = contract(x, v1) {spec="n,k; o,k -> n,o"} : f32[n,8]
      return v2
    }
    """
    fixed = _fixed(graph)
    if not any(fixed.values()):
        return graph
    readers, outputs = users(graph), set(graph.outputs)
    known: dict[Node, _Scaled] = {}
    for node in graph.nodes():
        alone = [x for x in node.inputs if x not in outputs and len(readers[x]) == 1]
        found = _product(node, fixed) or _changed(node, known, fixed, alone)
        if found is not None:
            known[node] = found
    places = {node: k for node, v in known.items() if (k := _place(v)) is not None}
    ends = {node: k for node, k in places.items() if not any(r in places for r in readers[node])}
    if not ends:
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        place = ends.get(node)
        new[node] = (
            renew(node, tuple(new[x] for x in node.inputs))
            if place is None
            else _moved(known[node], place, new)
        )
    outs = tuple(new[node] for node in graph.outputs)
    return replace(graph, outputs=outs)


def _fixed(graph: Graph) -> dict[Node, bool]:
    """What constants alone decide: True for values of constant inputs, False for numbers."""
    found: dict[Node, bool] = {}
    for node in graph.nodes():
        if isinstance(node.op, Constant):
            found[node] = False
        elif isinstance(node.op, Input):
            if node.op.constant:
                found[node] = True
        elif node.inputs and all(x in found for x in node.inputs):
            found[node] = any(found[x] for x in node.inputs)
    return found


def _product(node: Node, fixed: Mapping[Node, bool]) -> _Scaled | None:
    """A product with one constant operand, of the result's own type."""
    if not isinstance(node.op, Contract) or node in fixed or not node.type.dtype.is_float:
        return None
    sides = [k for k, x in enumerate(node.inputs) if fixed.get(x)]
    same = sides and node.inputs[sides[0]].type.dtype == node.type.dtype
    return _Scaled(node, sides[0]) if same else None


def _changed(
    node: Node, known: Mapping[Node, _Scaled], fixed: Mapping[Node, bool], alone: list[Node]
) -> _Scaled | None:
    """A known value that was scaled or shifted by a constant, and that nobody else reads."""
    places = [k for k, x in enumerate(node.inputs) if x in known]
    if not isinstance(node.op, Map) or len(node.inputs) != 2 or len(places) != 1:
        return None
    (k,), row = places, node.op.row
    x, other = node.inputs[k], node.inputs[1 - k]
    if x not in alone or other not in fixed or node.type != x.type:
        return None
    before = known[x]

    def put(moving: Node | float, still: Node | float = other) -> Node:
        law = row.powers or row.linear
        if moving == float(law is row.powers) and still is other and law[1 - k] == 1:
            return other
        pair = [
            m if isinstance(m, Node) else build.constant(m, node.type.dtype)
            for m in (moving, still)
        ]
        return build.apply(node.op, *pair[:: 1 if k == 0 else -1], origin=node.origin)

    if row.powers and row.powers[k] == 1:
        shift = None if before.shift is None else put(before.shift)
        return _Scaled(before.product, before.weights, put(before.factor or 1.0), shift)
    if row.linear and abs(row.linear[k]) == 1:
        factor = before.factor if row.linear[k] == 1 else put(before.factor or 1.0, 0.0)
        return _Scaled(before.product, before.weights, factor, put(before.shift or 0.0))
    return None


def _place(v: _Scaled) -> int | None:
    """The dimension of the weights along which a factor varies (their rank if along none)."""
    if v.factor is None or not isinstance(v.product.op, Contract):
        return None
    op, shape = v.product.op, v.factor.type.shape
    varying = [op.out[len(op.out) - len(shape) + d] for d, n in enumerate(shape) if n != 1]
    terms = (op.left, op.right)[v.weights]
    if not varying:
        return len(terms)
    names = [bare_axis(t) for t in terms]
    return names.index(varying[0]) if len(varying) == 1 and varying[0] in names else None


def _moved(v: _Scaled, place: int, new: Mapping[Node, Node]) -> Node:
    """The product with scaled weights, and what is added."""
    product, weights = v.product, v.product.inputs[v.weights]
    assert v.factor is not None
    (n,) = [d for d in v.factor.type.shape if d != 1] or [1]
    shape = tuple(n if d == place else 1 for d in range(weights.type.rank))
    factor = build.apply(Reshape(shape), v.factor, origin=v.factor.origin)
    scaled = build.map(TIMES, weights, factor, origin=v.factor.origin)
    sides = [new[x] for x in product.inputs]
    sides[v.weights] = scaled
    found = build.apply(product.op, *sides, origin=product.origin)
    return found if v.shift is None else build.map(SUM, found, v.shift, origin=v.shift.origin)
