"""Match a graph as an instance of a more general one, with some sizes substituted.

A plan made for one size of words and another of masks is also right where both are the same size.
Both graphs must be built alike, node by node; no equivalence is derived.

>>> from smelt.graph.text import parse
>>> general, special = (
...     parse(f'''graph f(x: f32[{a}], i: i64[{b}]) {{
...   v0 = exp(x)
...   v1 = gather(v0, i) {{first=0}}
...   return v1
... }}''')
...     for a, b in (("n0", "n1"), ("m*2", "m"))
... )
>>> match_instance(general, special), match_instance(special, general)
({'n0': m*2, 'n1': m}, None)
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.graph.ir import Fact, Graph
from smelt.graph.walk import all_size_names, map_indices, map_type
from smelt.ops.create import Constant, SizeOf
from smelt.ops.spec import TensorOp
from smelt.types.expr import Index, size, sizes_of, substitute


def match_instance(general: Graph, special: Graph) -> Mapping[str, Index] | None:
    """Express each size of a general graph in those of a special one.

    None if the special graph is not an instance of the general one.
    """
    try:
        return _match(general, special)
    except ZeroDivisionError:  # the general graph divides by a size that is 0 here
        return None


def _match(general: Graph, special: Graph) -> Mapping[str, Index] | None:
    if _counts(general) != _counts(special):
        return None
    general_nodes, special_nodes = general.nodes(), special.nodes()
    names = _sizes_from_inputs(general, special)
    if (
        len(general_nodes) != len(special_nodes)
        or names is None
        or not names.keys() >= {*all_size_names(general)}
    ):
        return None
    cache: dict[Index, Index] = {}

    def substituted(e: Index) -> Index:
        if e not in cache:
            cache[e] = substitute(e, names, "size")
        return cache[e]

    nodes = dict(zip(general_nodes, special_nodes, strict=True))
    for a, b in nodes.items():
        if (
            map_type(a.type, substituted) != b.type
            or not _is_same_op(map_indices(a.op, substituted), b.op)
            or [nodes[x] for x in a.inputs] != [*b.inputs]
        ):
            return None
    facts = {Fact(substituted(f.left), f.relation, substituted(f.right)) for f in general.facts}
    signature = [nodes[x] for x in (*general.inputs, *general.outputs)]
    if signature != [*special.inputs, *special.outputs] or not facts <= {*special.facts}:
        return None
    return names


def _is_same_op(a: TensorOp, b: TensorOp) -> bool:
    """Whether two operators are equal; a size with a number substituted equals the constant."""
    if isinstance(a, SizeOf) and isinstance(b, Constant):
        return a.expr == b.value
    return a == b


def _counts(graph: Graph) -> tuple[int, int, int]:
    return len(graph.inputs), len(graph.outputs), graph.checks


def _sizes_from_inputs(general: Graph, special: Graph) -> dict[str, Index] | None:
    """Return the sizes that dimensions of inputs determine; None if two disagree."""
    names: dict[str, Index] = {}
    for a, b in zip(general.inputs, special.inputs, strict=True):
        if a.type.rank != b.type.rank:
            return None
        for d, e in zip(a.type.shape, b.type.shape, strict=True):
            dim_names = sizes_of(d)
            if (
                len(dim_names) == 1
                and d == size(dim_names[0])
                and names.setdefault(dim_names[0], e) != e
            ):
                return None
    return names
