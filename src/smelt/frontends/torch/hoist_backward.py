"""Gradients in forward: the way back through a large head moves in front of the cut.

PyTorch cuts the joint graph of a training step in two, and what crosses the cut is stored: for a
loss over a large vocabulary every logit.  Where all gradients come from one number, the loss, they
are that number's own gradient times what they are for a gradient of one.  So the part of the way
back that stands around the largest stored values can be computed in forward, from one, where the
planner runs it in rounds (`smelt.fusion.chunking`); what crosses the cut are its results, gradients
of hidden states and weights, which backward multiplies by the gradient that it is given.

    early = move(joint, 1)          # results more, behind the first one
    forward, backward = partition(joint, .., num_fwd_outputs=1 + early)
    drop(forward, 1, early)

The products commute with that factor up to rounding: not where one of them is float16, in which
gradients from one may be too small while those from a scaled loss are not, and not with
rounding="exact".  An operator that is not known to be linear in what it gets keeps everything as it
was.  So does a loss that is not one number: each row then has a factor of its own, and a sum over
rows cannot be formed before it is known.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from smelt import knobs

__all__ = ["drop", "move"]

ATEN: Any = torch.ops.aten
_VIEWS = {
    ATEN.t.default,
    ATEN.permute.default,
    ATEN.transpose.int,
    ATEN.view.default,
    ATEN.reshape.default,
    ATEN._unsafe_view.default,
    ATEN.unsqueeze.default,
    ATEN.squeeze.dim,
    ATEN.squeeze.dims,
    ATEN.expand.default,
    ATEN.alias.default,
    ATEN.detach.default,
    ATEN.clone.default,
    ATEN.slice.Tensor,
    ATEN.select.int,
}
_LINEAR = _VIEWS | {
    ATEN.neg.default,
    ATEN.sum.default,
    ATEN.sum.dim_IntList,
    ATEN.mean.default,
    ATEN.mean.dim,
    ATEN.cumsum.default,
    ATEN.flip.default,
    ATEN.tril.default,
    ATEN.triu.default,
    ATEN.gather.default,
    ATEN.index_select.default,
    ATEN.div.Tensor,
    ATEN.div.Scalar,
    ATEN._to_copy.default,
}
"""Linear in the first operand."""
_PRODUCTS = {ATEN.mul.Tensor, ATEN.mul.Scalar, ATEN.mm.default, ATEN.bmm.default}
"""Linear in one operand, if the other does not depend on what is moved."""
_SUMS = {
    ATEN.add.Tensor: (0, 1),
    ATEN.sub.Tensor: (0, 1),
    ATEN.where.self: (1, 2),
    ATEN.scatter.src: (0, 3),
    ATEN.scatter_add.default: (0, 3),
    ATEN.index_add.default: (0, 3),
    ATEN.slice_scatter.default: (0, 1),
    ATEN.select_scatter.default: (0, 1),
}
"""Linear in these operands together: each is moved too, or zero."""
_ZEROS = {ATEN.scalar_tensor.default: 0, ATEN.full.default: 1, ATEN.full_like.default: 1}
"""Constants, and the place of their value."""


def move(joint: GraphModule, outputs: int, least: int) -> int:
    """Moves what stands around the largest values behind the cut in front of it, if they take more
    than `least` bytes; gives how many results stand behind the first `outputs` now."""
    graph = joint.graph
    given = [n for n in graph.find_nodes(op="placeholder") if "tangents" in str(n.target)]
    if len(given) != 1 or knobs.ROUNDING.get() == "exact" or not _is_scalar(given[0]):
        return 0
    behind = _reached(graph.nodes, given[0])
    _shape_only(graph, behind)
    moved = _around(graph.nodes, behind, least)
    if not moved or not all(_is_linear(n, behind) and _is_wide(n) for n in moved):
        return 0
    (out,) = graph.find_nodes(op="output")
    results = list(out.args[0])
    edge = [n for n in moved if any(u not in moved for u in n.users)]
    if _nbytes(edge, set(results)) >= _nbytes(_kept(moved, behind), set()):
        return 0
    _carry_out(joint, given[0], moved, edge)
    results = list(out.args[0])
    out.args = ((*results[:outputs], *edge, *results[outputs:]),)
    if "desc" in out.meta:
        told = list(out.meta["desc"])
        out.meta["desc"] = [*told[:outputs], *(None for _ in edge), *told[outputs:]]
    graph.lint()
    joint.recompile()
    return len(edge)


def drop(forward: GraphModule, first: int, count: int) -> list[Any]:
    """Takes results out of a graph that are told among its stored values as well; gives them."""
    (out,) = forward.graph.find_nodes(op="output")
    results = list(out.args[0])
    out.args = ((*results[:first], *results[first + count :]),)
    if "desc" in out.meta:
        told = list(out.meta["desc"])
        out.meta["desc"] = [*told[:first], *told[first + count :]]
    forward.recompile()
    return results[first : first + count]


# ---- what is moved -------------------------------------------------------------------------------


_ENOUGH = (torch.float32, torch.float64, torch.bfloat16)
"""Types whose range is no smaller than float32's."""


def _is_scalar(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.dim() and value.dtype in _ENOUGH


def _is_wide(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in _ENOUGH


def _reached(nodes: Iterable[Node], start: Node) -> set[Node]:
    """What depends on a node."""
    found = {start}
    for node in nodes:
        if node.op != "output" and any(x in found for x in node.all_input_nodes):
            found.add(node)
    return found


def _shape_only(graph: Any, behind: set[Node]) -> None:
    """Writes zeros that are made like a tensor behind, with a shape of their own, without it."""
    for node in [n for n in graph.nodes if n.target is ATEN.new_zeros.default and n in behind]:
        value = node.meta["val"]
        with graph.inserting_before(node):
            told = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            made = graph.call_function(ATEN.full.default, (node.args[1], 0), told)
        made.meta.update(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        behind.discard(node)


def _size(node: Node) -> int:
    """Bytes of a value at the sizes that it was traced with; 0 for what is no tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    count = value.itemsize
    for n in value.shape:
        count *= n if isinstance(n, int) else int(n.node.hint or 0)
    return count


def _nbytes(nodes: Iterable[Node], but: set[Any]) -> int:
    return sum(_size(n) for n in nodes if n not in but)


def _around(nodes: Iterable[Node], behind: set[Node], least: int) -> list[Node]:
    """Those behind that read, are or lead to values about as large as the largest that is kept."""
    nodes = list(nodes)
    kept = _kept((n for n in nodes if n in behind), behind)
    most = max(map(_size, kept), default=0)
    if most <= least:
        return []

    def is_large(x: Node) -> bool:
        return x.op == "call_function" and 2 * _size(x) >= most

    found: set[Node] = set()
    for node in (n for n in nodes if n in behind and n.op == "call_function"):
        if is_large(node) or any(map(is_large, node.all_input_nodes)):
            found.add(node)
    for node in reversed(nodes):
        if node in behind and node.op == "call_function" and any(u in found for u in node.users):
            found.add(node)
    return [n for n in nodes if n in found]


def _kept(moved: Iterable[Node], behind: set[Node]) -> set[Node]:
    """What is stored for those that are moved."""
    return {
        x
        for n in moved
        for x in n.all_input_nodes
        if x not in behind and x.op == "call_function" and x.target not in _ZEROS
    }


def _is_linear(node: Node, behind: set[Node]) -> bool:
    """Whether a factor of what an operator gets from behind is one of what it gives."""
    args = [x for x in node.args if isinstance(x, Node)]
    mine = [x for x in args if x in behind]
    if len(mine) < sum(x in behind for x in node.all_input_nodes):
        return False
    if node.target in _PRODUCTS:
        return len(mine) == 1
    if node.target in _LINEAR:
        return mine == args[:1]
    if node.target is ATEN.masked_fill.Scalar:
        return mine == args[:1] and _is_number(node.args[2], 0)
    summed = _SUMS.get(node.target, ())
    return bool(summed) and all(
        x in behind or _is_zero(x) if k in summed else x not in behind
        for k, x in enumerate(node.args)
    )


def _is_zero(x: Any) -> bool:
    place = _ZEROS.get(x.target) if isinstance(x, Node) else None
    return place is not None and _is_number(x.args[place], 0)


def _is_number(x: Any, wanted: int) -> bool:
    return isinstance(x, int | float) and x == wanted


# ---- moving --------------------------------------------------------------------------------------


def _carry_out(joint: GraphModule, given: Node, moved: list[Node], edge: list[Node]) -> None:
    """Computes `moved` from one, and multiplies what others read of it."""
    graph, inside = joint.graph, set(moved)
    value = given.meta["val"]
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
        one = graph.call_function(
            ATEN.scalar_tensor.default, (1.0,), {"dtype": value.dtype, "device": value.device}
        )
        one.meta["val"] = torch.ones_like(value)
    given.replace_all_uses_with(one, delete_user_cb=lambda user: user in inside)
    for node in edge:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        with graph.inserting_after(node):
            scaled = graph.call_function(ATEN.mul.Tensor, (node, given))
            scaled.meta["val"] = torch.mul(node.meta["val"], value)
        node.replace_all_uses_with(
            scaled, delete_user_cb=lambda u, own=scaled: u not in inside and u is not own
        )
