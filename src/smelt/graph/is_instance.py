"""Whether a graph is another one with some sizes put in.

What was planned for a batch of words and another batch of masks is right where both are the same
batch, too.  Both graphs must be built alike, node by node; nothing is computed about them.

>>> from smelt.graph.text import parse
>>> general, special = (
...     parse(f'''graph f(x: f32[{a}], i: i64[{b}]) {{
...   v0 = exp(x)
...   v1 = gather(v0, i) {{first=0}}
...   return v1
... }}''')
...     for a, b in (("n0", "n1"), ("m*2", "m"))
... )
>>> instance(general, special), instance(special, general)
({'n0': m*2, 'n1': m}, None)
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.graph.ir import Fact, Graph
from smelt.graph.walk import map_indices, map_type, sizes
from smelt.ops.create import Constant, SizeOf
from smelt.ops.spec import TensorOp
from smelt.types.expr import Index, size, sizes_of, substitute

__all__ = ["instance"]


def instance(general: Graph, special: Graph) -> Mapping[str, Index] | None:
    """What each size of the general graph is in the special one; None if they differ otherwise."""
    try:
        return _matched(general, special)
    except ZeroDivisionError:  # the general one divides by a size that is 0 here
        return None


def _matched(general: Graph, special: Graph) -> Mapping[str, Index] | None:
    if _counts(general) != _counts(special):
        return None
    one, other = general.nodes(), special.nodes()
    names = _told(general, special)
    if len(one) != len(other) or names is None or not names.keys() >= {*sizes(general)}:
        return None
    known: dict[Index, Index] = {}

    def put(e: Index) -> Index:
        if e not in known:
            known[e] = substitute(e, names, "size")
        return known[e]

    nodes = dict(zip(one, other, strict=True))
    for a, b in nodes.items():
        if (
            map_type(a.type, put) != b.type
            or not _same(map_indices(a.op, put), b.op)
            or [nodes[x] for x in a.inputs] != [*b.inputs]
        ):
            return None
    facts = {Fact(put(f.left), f.relation, put(f.right)) for f in general.facts}
    ends = [nodes[x] for x in (*general.inputs, *general.outputs)]
    if ends != [*special.inputs, *special.outputs] or not facts <= {*special.facts}:
        return None
    return names


def _same(a: TensorOp, b: TensorOp) -> bool:
    """Whether two operators are equal; a size with its number put in is that number."""
    if isinstance(a, SizeOf) and isinstance(b, Constant):
        return a.expr == b.value
    return a == b


def _counts(graph: Graph) -> tuple[int, int, int]:
    return len(graph.inputs), len(graph.outputs), graph.checks


def _told(general: Graph, special: Graph) -> dict[str, Index] | None:
    """What the sizes are that dimensions of inputs tell; None where two tell something else."""
    names: dict[str, Index] = {}
    for a, b in zip(general.inputs, special.inputs, strict=True):
        if a.type.rank != b.type.rank:
            return None
        for d, e in zip(a.type.shape, b.type.shape, strict=True):
            told = sizes_of(d)
            if len(told) == 1 and d == size(told[0]) and names.setdefault(told[0], e) != e:
                return None
    return names
