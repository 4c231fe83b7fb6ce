"""Hoist the start of the backward pass into the forward graph.

PyTorch cuts the joint graph of a training step in two, and what crosses the cut is stored: for a
loss over a large vocabulary every logit. If all gradients come from one number, the loss, they are
that number's gradient times the gradients for a gradient of one. So the part of the backward pass
around the largest stored values can be computed in forward, from one, where the planner chunks its
rows (`smelt.fusion.chunking`). What then crosses the cut are its results, gradients of hidden
states and weights, which backward multiplies by the incoming gradient.

    early = move(joint, 1)          # number of new results, after the first one
    forward, backward = partition(joint, .., num_fwd_outputs=1 + early)
    drop(forward, 1, early)

The products commute with that factor up to rounding. Nothing is hoisted where one of them is
float16, in which gradients from one may underflow while those of a scaled loss do not; with
rounding="exact"; beyond an operator that is not known to be linear; and for a loss that is not one
number: each row then has its own factor, and a sum over rows cannot be formed before it is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from smelt import knobs
from smelt.frontends.torch.in_place import value_bytes
from smelt.frontends.torch.row import overloads

ATEN: Any = torch.ops.aten
_LINEAR = overloads("""
    t.default permute.default transpose.int view.default reshape.default _unsafe_view.default
    unsqueeze.default squeeze.dim squeeze.dims expand.default alias.default detach.default
    clone.default slice.Tensor select.int neg.default sum.default sum.dim_IntList mean.default
    mean.dim cumsum.default flip.default tril.default triu.default gather.default
    index_select.default div.Tensor div.Scalar _to_copy.default
""")
"""Linear in the first operand."""
_PRODUCTS = overloads("mul.Tensor mul.Scalar mm.default bmm.default")
"""Linear in one operand, if the other does not depend on hoisted values."""
_SUMS = {
    **dict.fromkeys(overloads("add.Tensor sub.Tensor"), (0, 1)),
    **dict.fromkeys(overloads("slice_scatter.default select_scatter.default"), (0, 1)),
    **dict.fromkeys(overloads("scatter.src scatter_add.default index_add.default"), (0, 3)),
    ATEN.where.self: (1, 2),
}
"""Linear in these operands together: each depends on hoisted values, or is zero."""
_ZEROS = {ATEN.scalar_tensor.default: 0, ATEN.full.default: 1, ATEN.full_like.default: 1}
"""Constants, and the position of their value."""


def hoist(joint: GraphModule, outputs: int, min_bytes: int) -> int:
    """Hoist the operators around the largest stored values into the forward graph.

    Only if those values take more than `min_bytes`. Returns how many results now stand after the
    first `outputs`.
    """
    graph = joint.graph
    tangents = [n for n in graph.find_nodes(op="placeholder") if "tangents" in str(n.target)]
    if len(tangents) != 1 or knobs.ROUNDING.get() == "exact" or not _is_scalar(tangents[0]):
        return 0
    backward_nodes = _dependents(graph.nodes, tangents[0])
    _cut_shape_dependence(graph, backward_nodes)
    hoisted = _large_region(graph.nodes, backward_nodes, min_bytes)
    if not hoisted or not all(
        _is_linear(n, backward_nodes) and _has_wide_range(n) for n in hoisted
    ):
        return 0
    (out,) = graph.find_nodes(op="output")
    results = list(out.args[0])
    boundary = [n for n in hoisted if any(u not in hoisted for u in n.users)]
    if _total_bytes(boundary, set(results)) >= _total_bytes(
        _stored_inputs(hoisted, backward_nodes), set()
    ):
        return 0
    _rewrite(joint, tangents[0], hoisted, boundary)
    results = list(out.args[0])
    out.args = ((*results[:outputs], *boundary, *results[outputs:]),)
    if "desc" in out.meta:
        descriptions = list(out.meta["desc"])
        out.meta["desc"] = [
            *descriptions[:outputs],
            *(None for _ in boundary),
            *descriptions[outputs:],
        ]
    graph.lint()
    joint.recompile()
    return len(boundary)


def remove_results(forward: GraphModule, first: int, count: int) -> list[Any]:
    """Remove results that the graph also returns among its stored values; return them."""
    (out,) = forward.graph.find_nodes(op="output")
    results = list(out.args[0])
    out.args = ((*results[:first], *results[first + count :]),)
    if "desc" in out.meta:
        descriptions = list(out.meta["desc"])
        out.meta["desc"] = [*descriptions[:first], *descriptions[first + count :]]
    forward.recompile()
    return results[first : first + count]


# ---- choice --------------------------------------------------------------------------------------


_WIDE_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Types whose range is no smaller than float32's."""


def _is_scalar(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.dim() and value.dtype in _WIDE_DTYPES


def _has_wide_range(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in _WIDE_DTYPES


def _dependents(nodes: Iterable[Node], start: Node) -> set[Node]:
    """Return the nodes that depend on a node, itself included."""
    dependents = {start}
    for node in nodes:
        if node.op != "output" and any(x in dependents for x in node.all_input_nodes):
            dependents.add(node)
    return dependents


def _cut_shape_dependence(graph: Any, backward_nodes: set[Node]) -> None:
    """Replace zeros made like a backward value by zeros that do not depend on it."""
    for node in [
        n for n in graph.nodes if n.target is ATEN.new_zeros.default and n in backward_nodes
    ]:
        value = node.meta["val"]
        with graph.inserting_before(node):
            options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            zeros = graph.call_function(ATEN.full.default, (node.args[1], 0), options)
        zeros.meta.update(node.meta)
        node.replace_all_uses_with(zeros)
        graph.erase_node(node)
        backward_nodes.discard(node)


def _total_bytes(nodes: Iterable[Node], excluded: set[Any]) -> int:
    return sum(value_bytes(n) for n in nodes if n not in excluded)


def _large_region(nodes: Iterable[Node], backward_nodes: set[Node], min_bytes: int) -> list[Node]:
    """Return the backward nodes that read, are or lead to the largest values.

    A value is large if it has at least half the bytes of the largest stored one.
    """
    nodes = list(nodes)
    stored = _stored_inputs((n for n in nodes if n in backward_nodes), backward_nodes)
    largest = max(map(value_bytes, stored), default=0)
    if largest <= min_bytes:
        return []

    def is_large(x: Node) -> bool:
        return x.op == "call_function" and 2 * value_bytes(x) >= largest

    region: set[Node] = set()
    for node in (n for n in nodes if n in backward_nodes and n.op == "call_function"):
        if is_large(node) or any(map(is_large, node.all_input_nodes)):
            region.add(node)
    for node in reversed(nodes):
        if (
            node in backward_nodes
            and node.op == "call_function"
            and any(u in region for u in node.users)
        ):
            region.add(node)
    return [n for n in nodes if n in region]


def _stored_inputs(hoisted: Iterable[Node], backward_nodes: set[Node]) -> set[Node]:
    """Return the forward values that the hoisted nodes read."""
    return {
        x
        for n in hoisted
        for x in n.all_input_nodes
        if x not in backward_nodes and x.op == "call_function" and x.target not in _ZEROS
    }


def _is_linear(node: Node, backward_nodes: set[Node]) -> bool:
    """Whether a factor of the backward operands is a factor of the result."""
    args = [x for x in node.args if isinstance(x, Node)]
    dependent = [x for x in args if x in backward_nodes]
    if len(dependent) < sum(x in backward_nodes for x in node.all_input_nodes):
        return False
    if node.target in _PRODUCTS:
        return len(dependent) == 1
    if node.target in _LINEAR:
        return dependent == args[:1]
    if node.target is ATEN.masked_fill.Scalar:
        return dependent == args[:1] and _is_number(node.args[2], 0)
    summed = _SUMS.get(node.target, ())
    return bool(summed) and all(
        x in backward_nodes or _is_zero(x) if k in summed else x not in backward_nodes
        for k, x in enumerate(node.args)
    )


def _is_zero(x: Any) -> bool:
    position = _ZEROS.get(x.target) if isinstance(x, Node) else None
    return position is not None and _is_number(x.args[position], 0)


def _is_number(x: Any, number: int) -> bool:
    return isinstance(x, int | float) and x == number


# ---- rewriting -----------------------------------------------------------------------------------


def _rewrite(joint: GraphModule, tangent: Node, hoisted: list[Node], boundary: list[Node]) -> None:
    """Compute hoisted nodes from a gradient of one and scale what others read of them."""
    graph, inside = joint.graph, set(hoisted)
    value = tangent.meta["val"]
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
        one = graph.call_function(
            ATEN.scalar_tensor.default, (1.0,), {"dtype": value.dtype, "device": value.device}
        )
        one.meta["val"] = torch.ones_like(value)
    tangent.replace_all_uses_with(one, delete_user_cb=lambda user: user in inside)
    for node in boundary:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        with graph.inserting_after(node):
            scaled = graph.call_function(ATEN.mul.Tensor, (node, tangent))
            scaled.meta["val"] = torch.mul(node.meta["val"], value)
        node.replace_all_uses_with(
            scaled, delete_user_cb=lambda u, product=scaled: u not in inside and u is not product
        )
