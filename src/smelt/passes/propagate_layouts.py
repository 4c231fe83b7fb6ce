"""Propagate permutations from operands to results, so that values keep their data's memory order.

A value is stored in the order of its axes.  Data that came with its axes in another order, such as
images with channels last, is a permutation of an input; computing in the order of its axes would
transpose it in the first kernel and back in the last, and kernels would read across the memory.
Here permutations move from operands to results, so that intermediates are stored as the data is:

    exp(permute(x))       ->  permute(exp(x))
    sum(permute(x))       ->  permute(sum(x))     in memory order, if no positions are returned
    contract(a, b)        ->  permute(contract(a, b))

The last is a choice: the result of a contraction may be stored in any order.  It follows the
operand that alone has all of the result's axes except at most one and whose rows end in the
reduction axis: the other operand's axis then ends the result's rows (a convolution with channels
last; one with strided windows, if several axes are then merged into each that the data has).
Attention scores and products of two matrices have no such operand.  For an image whose channels are
not last, the weights decide, which may have them last.

All other passes move permutations towards the inputs; this one runs once, after them.  Its result
is used only if fewer permutations are left, or if fewer contractions have operands whose reduction
axes are stored in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Input
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Permute, Reshape, Window, split_groups
from smelt.passes.compose import simplify_view, with_rank
from smelt.types.expr import Index, axes_of


def propagate_layouts(graph: Graph) -> Graph:
    """Move permutations from operands to results, and keep the data's order in contractions.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         propagate_layouts(
    ...             parse('''graph f(x: f32[n,h,c], w: f32[d,c], b: f32[d,1]) {
    ...   v0 = permute(x) {perm=(0, 2, 1)}
    ...   v1 = contract(v0, w) {spec="n,c,h; d,c -> n,d,h"}
    ...   v2 = add(v1, b)
    ...   v3 = permute(v2) {perm=(0, 2, 1)}
    ...   return v3
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,h,c], w: f32[d,c], b: f32[d,1]) {
      v0 = permute(x) {perm=(0, 2, 1)} : f32[n,c,h]
      v1 = contract(v0, w) {spec="n,c,h; d,c -> n,h,d"} : f32[n,h,d]
      v2 = reshape(b) {shape=(1, 1, d)} : f32[1,1,d]
      v3 = add(v1, v2) : f32[n,h,d]
      return v3
    }
    """
    permuted = propagate_permutations(graph, RULES | _LAYOUT_CHOICES)
    return permuted if _count_transposes(permuted) < _count_transposes(graph) else graph


def _count_transposes(graph: Graph) -> int:
    """Count values that are permuted when they are read or packed."""
    return count_permutations(graph) + sum(_has_mismatched_orders(x) for x in graph.nodes())


def propagate_permutations(graph: Graph, rules: Mapping[type[TensorOp], Rule]) -> Graph:
    """Move permutations from operands to results wherever `rules` say how.

    The graph may have more of them than before.
    """
    synthetic: dict[Node, bool] = {}  # computed from constants and iotas alone: has no layout

    def change(node: Node) -> Node:
        free_operands = [x for x in node.inputs if synthetic.get(x, False)]
        if isinstance(node.op, (Map, Cast)):
            new = _map(node, free_operands)
        elif node.op.is_view and type(node.op) not in rules:
            new = simplify_view(node)
        else:
            new = _apply_rule(node, rules)
        synthetic[new] = not isinstance(node.op, Input) and len(free_operands) == len(node.inputs)
        return new

    return rebuild(graph, change)


def count_permutations(graph: Graph) -> int:
    """Count permutations that something reads other than contractions.

    Contractions walk axes in any order.
    """
    return len(permuted_values(graph))


def permuted_values(graph: Graph) -> list[Node]:
    """Return the permutations that something reads other than contractions."""
    read = {x for node in graph.nodes() if not isinstance(node.op, Contract) for x in node.inputs}
    return [x for x in {*read, *graph.outputs} if isinstance(x.op, Permute)]


def _permuted(node: Node, perm: tuple[int, ...], op: TensorOp, *inputs: Node) -> Node:
    """Permute an operator on other operands; return `node` if the type would differ."""
    inner = build.apply(op, *inputs, origin=node.origin)
    result = simplify_view(build.apply(Permute(perm), inner, origin=node.origin))
    return result if result.type == node.type else node


Perm = tuple[int, ...]
Rule = Callable[[Node, Perm], Node]
"""Rewrites an operator whose first operand is permuted (by Perm) onto the unpermuted operand."""


def _apply_rule(node: Node, rules: Mapping[type[TensorOp], Rule]) -> Node:
    rule = rules.get(type(node.op))
    if rule is not None and rule is not RULES.get(type(node.op)):
        return rule(node, ())
    perm = _permutation_of(node.inputs[0]) if node.inputs else None
    return node if rule is None or perm is None else rule(node, perm)


def _permutation_of(x: Node) -> tuple[int, ...] | None:
    return x.op.perm if isinstance(x.op, Permute) else None


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(a) for a in range(len(perm)))


def _map(node: Node, free_operands: list[Node]) -> Node:
    """Apply an elementwise operator before the permutation that its operands share.

    Broadcast operands, and `free_operands`, which have no layout, are permuted instead.
    """
    shape = node.type.shape
    data = [x for x in node.inputs if x.type.shape == shape and x not in free_operands]
    perms = {_permutation_of(x) for x in data}
    perm = perms.pop() if len(perms) == 1 else None
    if perm is None:
        return node
    inverse, rank = Permute(_inverse(perm)), len(shape)
    operands = [
        x
        if not x.type.shape
        else x.inputs[0]
        if _permutation_of(x) == perm and x in data
        else simplify_view(build.apply(inverse, with_rank(x, rank), origin=x.origin))
        for x in node.inputs
    ]
    return _permuted(node, perm, node.op, *operands)


def _reduce(node: Node, perm: Perm) -> Node:
    """Reduce in memory order; positions are returned only if their axes keep their order."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduce)
    axes = [perm[a] for a in op.axes]
    if op.row.positional and axes != sorted(axes):
        return node
    remaining = [a for a in range(len(perm)) if a not in axes]
    order = tuple(remaining.index(p) for a, p in enumerate(perm) if a not in op.axes)
    return _permuted(node, order, replace(op, axes=tuple(sorted(axes))), x.inputs[0])


def _scan(node: Node, perm: Perm) -> Node:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Scan)
    return _permuted(node, perm, replace(op, axis=perm[op.axis]), *x.inputs)


def _window(node: Node, perm: Perm) -> Node:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Window)
    return _permuted(node, (*perm, len(perm)), replace(op, axis=perm[op.axis]), *x.inputs)


def _reshape(node: Node, perm: Perm) -> Node:
    """Reshape before a permutation, if merged dimensions are adjacent in memory."""
    (x,) = node.inputs
    groups: list[tuple[list[int], tuple[int, ...]]] = []  # dimensions in memory; new dimensions
    old = new = 0
    for source, target in split_groups(x.type.shape, node.type.shape):
        stored = [perm[old + k] for k, n in enumerate(source) if n != 1]
        if stored and stored != list(range(stored[0], stored[0] + len(stored))):
            return node
        groups.append((stored, tuple(range(new, new + len(target)))))
        old, new = old + len(source), new + len(target)
    order = [d for _, dims in sorted(groups, key=lambda g: g[0][:1]) for d in dims]
    shape = tuple(node.type.shape[d] for d in order)
    return _permuted(node, _inverse(tuple(order)), Reshape(shape), x.inputs[0])


def _gather(node: Node, perm: Perm) -> Node:
    """Gather before a permutation, if the indexed axes are adjacent in memory."""
    op, (x, *index) = node.op, node.inputs
    assert isinstance(op, Gather)
    indexed = list(perm[op.first : op.first + len(index)])
    if indexed != list(range(indexed[0], indexed[0] + len(indexed))):
        return node
    middle = node.type.rank - (x.type.rank - len(index))
    order: list[int] = []  # the dimensions of the result in memory order
    for p in range(len(perm)):
        a = perm.index(p)
        if p == indexed[0]:
            order += range(op.first, op.first + middle)
        elif p not in indexed:
            order.append(a if a < op.first else a - len(index) + middle)
    return _permuted(node, _inverse(tuple(order)), Gather(indexed[0]), x.inputs[0], *index)


def _concat(node: Node, _: Perm) -> Node:
    """Concatenate before the most common permutation of the pieces; permute the others."""
    op = node.op
    assert isinstance(op, Concat)
    perms = [_permutation_of(x) for x in node.inputs]
    perm = max(perms, key=lambda p: (perms.count(p), p is not None))
    if perm is None:
        return simplify_view(node)
    inverse = Permute(_inverse(perm))
    pieces = (
        x.inputs[0] if p == perm else simplify_view(build.apply(inverse, x, origin=x.origin))
        for x, p in zip(node.inputs, perms, strict=True)
    )
    return _permuted(node, perm, Concat(perm[op.axis]), *pieces)


# ---- contractions ----------------------------------------------------------------------------


def _contract(node: Node, _: Perm, *, channels_last: bool = False) -> Node:
    """Store the result of a contraction in the order of its data."""
    op = node.op
    assert isinstance(op, Contract)
    return _in_data_order(node, [(a,) for a in op.out], channels_last)


def _reshaped_contract(node: Node, _: Perm, *, channels_last: bool = False) -> Node:
    """Store a reshaped contraction in the axis order of its data operand.

    Axes that the reshape merges stay adjacent.
    """
    (x,) = node.inputs
    perm = _permutation_of(x) or tuple(range(x.type.rank))
    inner = x.inputs[0] if isinstance(x.op, Permute) else x
    if isinstance(inner.op, Contract):
        out, position = [inner.op.out[p] for p in perm], 0
        merged: list[Axes] = []
        for source, _target in split_groups(x.type.shape, node.type.shape):
            merged.append(tuple(out[position : position + len(source)]))
            position += len(source)
        reordered = _in_data_order(inner, [group for group in merged if group], channels_last)
        if reordered is not inner:
            x = simplify_view(build.apply(Permute(perm), reordered, origin=x.origin))
            node = build.apply(node.op, x, origin=node.origin)
    outer = _permutation_of(x)
    return _reshape(node, outer) if outer is not None else node


Axes = tuple[str, ...]
Terms = tuple[Index, ...]


def _in_data_order(node: Node, merged: Sequence[Axes], channels_last: bool) -> Node:
    """Store a contraction's result in the axis order of its data operand.

    It is unchanged if no operand qualifies as data.  Axes that are `merged` later stay adjacent.
    With `channels_last`, its channels go last even if the data has them elsewhere.
    """
    op = node.op
    assert isinstance(op, Contract)
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    for data, other in (sides, sides[::-1]):
        order = _result_order(node, data, other[0], merged, channels_last)
        if order is not None and order != op.out:
            perm = tuple(order.index(a) for a in op.out)
            return _permuted(node, perm, replace(op, out=order), *node.inputs)
    return node


def _result_order(
    node: Node, data: tuple[Terms, Node], other: Terms, merged: Sequence[Axes], channels_last: bool
) -> Axes | None:
    """Return the axes of the result in the order of the data, or None.

    With `channels_last`, axes that both operands have follow those that a window slides along.
    """
    op, (terms, x) = node.op, data
    assert isinstance(op, Contract)
    used, seen = ({a for t in side for a in axes_of(t)} for side in (terms, other))
    data_groups = [group for group in merged if used.intersection(group)]
    other_groups = [group for group in merged if not used.intersection(group)]
    data_only = [a for group in data_groups for a in group if a in used and a not in seen]
    if (
        len(other_groups) > 1
        or len(data_only) < _MIN_DATA_AXES
        or (not other_groups and len(merged) < len(op.out))
    ):
        return None
    stored = [a for d in memory_order(x) for a in _result_axes(terms[d], op.out)]
    if sorted(a for a in stored if a in op.out) != sorted(a for a in op.out if a in used):
        return None
    ends_in_reduction = stored[-1] not in op.out and stored[-1] in seen
    channels_last = channels_last and isinstance(x.op, Window)
    if (
        other_groups
        and not ends_in_reduction
        and not (channels_last or (isinstance(x.op, Window) and _has_mismatched_orders(node)))
    ):
        return None
    data_groups.sort(key=lambda group: next(n for n, a in enumerate(stored) if a in group))
    if channels_last:
        data_groups.sort(key=lambda group: not set(group).isdisjoint(seen))
    return tuple(a for group in (*data_groups, *other_groups) for a in group)


def _has_mismatched_orders(node: Node) -> bool:
    """Whether a contraction's operands store the reduction axes in different orders."""
    op = node.op
    if not isinstance(op, Contract):
        return False
    left, right = (
        [
            a
            for d in _memory_order_with_windows(x)
            for a in sorted(axes_of(terms[d]))
            if a not in op.out
        ]
        for terms, x in zip((op.left, op.right), node.inputs, strict=True)
    )
    return [a for a in left if a in right] != [a for a in right if a in left]


_MIN_DATA_AXES = 2
"""Minimum number of axes that only the data has: with one in each operand, either could be the
data."""


def _result_axes(term: Index, out: tuple[str, ...]) -> list[str]:
    """Return the result axes in an operand's dimension, or its reduction axis."""
    name = bare_axis(term)
    return [name] if name is not None else [a for a in axes_of(term) if a in out]


def memory_order(x: Node) -> list[int]:
    """Return the dimensions of a value, slowest first, without the taps of windows."""
    if isinstance(x.op, Window):
        return memory_order(x.inputs[0])
    if isinstance(x.op, Permute):
        perm = x.op.perm
        return [perm.index(p) for p in memory_order(x.inputs[0])]
    return list(range(x.type.rank))


def _memory_order_with_windows(x: Node) -> list[int]:
    """Return `memory_order` with taps, each after the dimension that its window slides along."""
    if isinstance(x.op, Permute):
        perm = x.op.perm
        return [perm.index(p) for p in _memory_order_with_windows(x.inputs[0])]
    if not isinstance(x.op, Window):
        return list(range(x.type.rank))
    order = _memory_order_with_windows(x.inputs[0])
    order.insert(order.index(x.op.axis) + 1, x.type.rank - 1)
    return order


RULES: dict[type[TensorOp], Rule] = {
    Gather: _gather,
    Reduce: _reduce,
    Reshape: _reshape,
    Scan: _scan,
    Window: _window,
}

_LAYOUT_CHOICES: dict[type[TensorOp], Rule] = {
    Concat: _concat,
    Contract: _contract,
    Reshape: _reshaped_contract,
}
"""Rules of operators that choose their result's order even if no operand is permuted."""
CHANNELS_LAST_RULES = RULES | {
    Concat: _concat,
    Contract: partial(_contract, channels_last=True),
    Reshape: partial(_reshaped_contract, channels_last=True),
}
"""Rules that put channels of windowed contractions last, whatever the data's order."""
