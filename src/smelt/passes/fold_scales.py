"""Fold scales by constants from a contraction's result into its constant operand.

The result of a contraction may be scaled and shifted by constants, as by a normalisation with known
statistics:

    (contract(x, w) - m) * s + t        is        contract(x, w * s) + ((0 - m) * s + t)

where s varies along axes of the result that w has.  What stands to the right of w is computed once
(`smelt.passes.constant_subgraph`).  The rounding changes (weights are rounded before the products,
and the shift is scaled in advance), so `rounding="fast"` must allow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import users, with_inputs
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Map
from smelt.ops.view import Reshape
from smelt.python.dataclass import dataclass

SUM, TIMES = COMBINES[SUM_OF_PRODUCTS[0]].scalar, SUM_OF_PRODUCTS[1]


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A value product * factor + shift; None means factor 1 or shift 0."""

    product: Node
    weights: int
    """The contraction's constant operand, 0 or 1."""
    factor: Node | None = None
    shift: Node | None = None


def fold_scales(graph: Graph) -> Graph:
    """Move scales of a contraction's result into its constant operand.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         fold_scales(
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
    constants = _constant_values(graph)
    if not any(constants.values()):
        return graph
    readers, outputs = users(graph), set(graph.outputs)
    scaled: dict[Node, _Scaled] = {}
    for node in graph.nodes():
        single_use = [x for x in node.inputs if x not in outputs and len(readers[x]) == 1]
        value = _contraction(node, constants) or _scaled_or_shifted(
            node, scaled, constants, single_use
        )
        if value is not None:
            scaled[node] = value
    dims = {node: k for node, v in scaled.items() if (k := _weight_dim(v)) is not None}
    last = {node: k for node, k in dims.items() if not any(r in dims for r in readers[node])}
    if not last:
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        dim = last.get(node)
        new[node] = (
            with_inputs(node, tuple(new[x] for x in node.inputs))
            if dim is None
            else _fold_scale(scaled[node], dim, new)
        )
    outs = tuple(new[node] for node in graph.outputs)
    return replace(graph, outputs=outs)


def _constant_values(graph: Graph) -> dict[Node, bool]:
    """Return the values that depend on constants alone: True if on inputs, False if on numbers."""
    result: dict[Node, bool] = {}
    for node in graph.nodes():
        if isinstance(node.op, Constant):
            result[node] = False
        elif isinstance(node.op, Input):
            if node.op.constant:
                result[node] = True
        elif node.inputs and all(x in result for x in node.inputs):
            result[node] = any(result[x] for x in node.inputs)
    return result


def _contraction(node: Node, constants: Mapping[Node, bool]) -> _Scaled | None:
    """Return a contraction with one constant operand of the result's own type, or None."""
    if not isinstance(node.op, Contract) or node in constants or not node.type.dtype.is_float:
        return None
    sides = [k for k, x in enumerate(node.inputs) if constants.get(x)]
    is_own_type = sides and node.inputs[sides[0]].type.dtype == node.type.dtype
    return _Scaled(node, sides[0]) if is_own_type else None


def _scaled_or_shifted(
    node: Node,
    scaled: Mapping[Node, _Scaled],
    constants: Mapping[Node, bool],
    single_use: list[Node],
) -> _Scaled | None:
    """Return a scaled or shifted known value that nothing else reads, or None."""
    positions = [k for k, x in enumerate(node.inputs) if x in scaled]
    if not isinstance(node.op, Map) or len(node.inputs) != 2 or len(positions) != 1:
        return None
    (k,), row = positions, node.op.row
    x, other = node.inputs[k], node.inputs[1 - k]
    if x not in single_use or other not in constants or node.type != x.type:
        return None
    value = scaled[x]

    def combined(operand: Node | float, fixed: Node | float = other) -> Node:
        law = row.powers or row.linear
        if operand == float(law is row.powers) and fixed is other and law[1 - k] == 1:
            return other
        pair = [
            m if isinstance(m, Node) else build.constant(m, node.type.dtype)
            for m in (operand, fixed)
        ]
        return build.apply(node.op, *pair[:: 1 if k == 0 else -1], origin=node.origin)

    if row.powers and row.powers[k] == 1:
        shift = None if value.shift is None else combined(value.shift)
        return _Scaled(value.product, value.weights, combined(value.factor or 1.0), shift)
    if row.linear and abs(row.linear[k]) == 1:
        factor = value.factor if row.linear[k] == 1 else combined(value.factor or 1.0, 0.0)
        return _Scaled(value.product, value.weights, factor, combined(value.shift or 0.0))
    return None


def _weight_dim(v: _Scaled) -> int | None:
    """Return the dimension of the weights along which the factor varies (their rank if none)."""
    if v.factor is None or not isinstance(v.product.op, Contract):
        return None
    op, shape = v.product.op, v.factor.type.shape
    varying = [op.out[len(op.out) - len(shape) + d] for d, n in enumerate(shape) if n != 1]
    terms = (op.left, op.right)[v.weights]
    if not varying:
        return len(terms)
    names = [bare_axis(t) for t in terms]
    return names.index(varying[0]) if len(varying) == 1 and varying[0] in names else None


def _fold_scale(v: _Scaled, dim: int, new: Mapping[Node, Node]) -> Node:
    """Return the contraction with scaled weights, plus the shift."""
    product, weights = v.product, v.product.inputs[v.weights]
    assert v.factor is not None
    (n,) = [d for d in v.factor.type.shape if d != 1] or [1]
    shape = tuple(n if d == dim else 1 for d in range(weights.type.rank))
    factor = build.apply(Reshape(shape), v.factor, origin=v.factor.origin)
    scaled = build.map(TIMES, weights, factor, origin=v.factor.origin)
    sides = [new[x] for x in product.inputs]
    sides[v.weights] = scaled
    result = build.apply(product.op, *sides, origin=product.origin)
    return result if v.shift is None else build.map(SUM, result, v.shift, origin=v.shift.origin)
