"""Rebuild the nodes of a recording with canonical sizes.

This is the last step of a recording: symbols that were bound meanwhile are replaced, and types
inferred again.
"""

from __future__ import annotations

from smelt.frontends.array.sizes import Sizes
from smelt.graph import build
from smelt.graph.ir import Fact, Node
from smelt.graph.walk import map_indices
from smelt.ops.create import Constant, SizeOf
from smelt.types.expr import sizes_of, text


def rebuild_node(sizes: Sizes, x: Node, rebuilt: dict[Node, Node]) -> Node:
    """Return a node with canonical sizes and its type inferred again."""
    if isinstance(x.op, Constant):
        return x
    if isinstance(x.op, SizeOf) and isinstance(sizes.canon(x.op.expr), int):
        number = sizes.canon(x.op.expr)
        assert isinstance(number, int)
        value = float(number) if x.op.dtype.is_float else number
        return build.constant(value, x.op.dtype, x.origin)
    op = map_indices(x.op, sizes.canon)
    return build.apply(op, *(rebuilt[i] for i in x.inputs), origin=x.origin)


def facts(sizes: Sizes, names: tuple[str, ...]) -> tuple[Fact, ...]:
    """Return the guards about `names` other than equalities, which the types express."""
    by_text: dict[tuple[str, str, str], Fact] = {}
    for g in sizes.guards:
        left, right = sizes.canon(g.left), sizes.canon(g.right)
        used = {*sizes_of(left), *sizes_of(right)}
        if g.relation != "==" and used and used <= set(names):
            by_text[text(left), g.relation, text(right)] = Fact(left, g.relation, right)
    return tuple(by_text.values())
