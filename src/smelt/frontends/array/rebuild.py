"""The last step of a recording: its nodes once more, with the sizes that are left."""

from __future__ import annotations

from smelt.frontends.array.sizes import Sizes
from smelt.graph import build
from smelt.graph.ir import Fact, Node
from smelt.graph.walk import map_indices
from smelt.ops.create import Constant, SizeOf
from smelt.types.expr import sizes_of, text


def again(sizes: Sizes, x: Node, made: dict[Node, Node]) -> Node:
    """The node with canonical sizes, its type inferred once more."""
    if isinstance(x.op, Constant):
        return x
    if isinstance(x.op, SizeOf) and isinstance(sizes.canon(x.op.expr), int):
        number = sizes.canon(x.op.expr)
        assert isinstance(number, int)
        value = float(number) if x.op.dtype.is_float else number
        return build.constant(value, x.op.dtype, x.origin)
    op = map_indices(x.op, sizes.canon)
    return build.apply(op, *(made[i] for i in x.inputs), origin=x.origin)


def facts(sizes: Sizes, names: tuple[str, ...]) -> tuple[Fact, ...]:
    """The guards about `names` that say more than the equalities built into the graph's types."""
    found: dict[tuple[str, str, str], Fact] = {}
    for g in sizes.guards:
        left, right = sizes.canon(g.left), sizes.canon(g.right)
        used = {*sizes_of(left), *sizes_of(right)}
        if g.relation != "==" and used and used <= set(names):
            found[text(left), g.relation, text(right)] = Fact(left, g.relation, right)
    return tuple(found.values())
