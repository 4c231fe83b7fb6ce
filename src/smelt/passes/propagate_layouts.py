"""A value lies in memory in the order that what it is computed from lies in.

A value is stored in the order of its axes.  Data that came with its axes in another order, as
images with their channels last, is a permutation of an input; computing on it in the order of its
axes would turn it in the first kernel and turn it back in the last, and kernels would read across
the memory.  Here permutations travel with the data, from operands to results, so that what is
stored between kernels lies as the data does:

    exp(permute(x))       ->  permute(exp(x))
    sum(permute(x))       ->  permute(sum(x))     as the memory lies, if no positions are asked for
    contract(a, b)        ->  permute(contract(a, b))

The last is a choice: the result of a contraction may lie in any order.  It lies as one operand
does that alone has all of the result's axes but one at most, where that operand's summed axis
ends its rows: the other operand's axis then ends the result's rows (a convolution with its
channels last; one that is laid out by steps, if several axes are then merged into each that the
data has).  Scores of attention and products of two matrices have no such operand.  Where an image's
channels are not last, its weights tell, which may have them last.

All other passes move permutations towards the inputs; this one runs once, after them, and counts
only where permutations meet and fewer are left, or where fewer contractions are at odds: summed
axes lie in one order in one operand, and in another order in the other.
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
from smelt.passes.compose import lifted, settle
from smelt.types.expr import Index, axes_of

__all__ = [
    "CHANNELS_LAST",
    "RULES",
    "layouts",
    "memory_order",
    "permutations",
    "travelled",
    "turned_values",
]


def layouts(graph: Graph) -> Graph:
    """Permutations move from operands to results, and contractions keep their data's order.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         layouts(
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
    turned = travelled(graph, RULES | _CHOICES)
    return turned if _price(turned) < _price(graph) else graph


def _price(graph: Graph) -> int:
    """Values that are turned: where they are read, or while an operand is packed."""
    return permutations(graph) + sum(_at_odds(x) for x in graph.nodes())


def travelled(graph: Graph, rules: Mapping[type[TensorOp], Rule]) -> Graph:
    """The graph with permutations moved from operands to results wherever the rules say how; it
    may have more of them than before."""
    made: dict[Node, bool] = {}  # of numbers and counting alone: it lies nowhere

    def change(node: Node) -> Node:
        own = [x for x in node.inputs if made.get(x, False)]
        if isinstance(node.op, (Map, Cast)):
            new = _map(node, own)
        elif node.op.is_view and type(node.op) not in rules:
            new = settle(node)
        else:
            new = _moved(node, rules)
        made[new] = not isinstance(node.op, Input) and len(own) == len(node.inputs)
        return new

    return rebuild(graph, change)


def permutations(graph: Graph) -> int:
    """Permutations that somebody reads other than contractions, which walk axes in any order."""
    return len(turned_values(graph))


def turned_values(graph: Graph) -> list[Node]:
    """Those permutations."""
    read = {x for node in graph.nodes() if not isinstance(node.op, Contract) for x in node.inputs}
    return [x for x in {*read, *graph.outputs} if isinstance(x.op, Permute)]


def _turned(node: Node, perm: tuple[int, ...], op: TensorOp, *inputs: Node) -> Node:
    """A permutation of an operator on other operands; `node` if that is not the same after all."""
    inner = build.apply(op, *inputs, origin=node.origin)
    found = settle(build.apply(Permute(perm), inner, origin=node.origin))
    return found if found.type == node.type else node


Perm = tuple[int, ...]
Rule = Callable[[Node, Perm], Node]
"""An operator whose first operand is turned, on what that lies as."""


def _moved(node: Node, rules: Mapping[type[TensorOp], Rule]) -> Node:
    rule = rules.get(type(node.op))
    if rule is not None and rule is not RULES.get(type(node.op)):
        return rule(node, ())
    perm = _perm(node.inputs[0]) if node.inputs else None
    return node if rule is None or perm is None else rule(node, perm)


def _perm(x: Node) -> tuple[int, ...] | None:
    return x.op.perm if isinstance(x.op, Permute) else None


def _back(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(a) for a in range(len(perm)))


def _map(node: Node, made: list[Node]) -> Node:
    """Elementwise operators on operands that are turned alike; what is made of nothing, and what
    is broadcast, is turned for it."""
    shape = node.type.shape
    data = [x for x in node.inputs if x.type.shape == shape and x not in made]
    perms = {_perm(x) for x in data}
    perm = perms.pop() if len(perms) == 1 else None
    if perm is None:
        return node
    turn, rank = Permute(_back(perm)), len(shape)
    operands = [
        x
        if not x.type.shape
        else x.inputs[0]
        if _perm(x) == perm and x in data
        else settle(build.apply(turn, lifted(x, rank), origin=x.origin))
        for x in node.inputs
    ]
    return _turned(node, perm, node.op, *operands)


def _reduce(node: Node, perm: Perm) -> Node:
    """A reduction as the memory lies; where positions are asked for, if they stay in order."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduce)
    axes = [perm[a] for a in op.axes]
    if op.row.positional and axes != sorted(axes):
        return node
    left = [a for a in range(len(perm)) if a not in axes]
    order = tuple(left.index(p) for a, p in enumerate(perm) if a not in op.axes)
    return _turned(node, order, replace(op, axes=tuple(sorted(axes))), x.inputs[0])


def _scan(node: Node, perm: Perm) -> Node:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Scan)
    return _turned(node, perm, replace(op, axis=perm[op.axis]), *x.inputs)


def _window(node: Node, perm: Perm) -> Node:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Window)
    return _turned(node, (*perm, len(perm)), replace(op, axis=perm[op.axis]), *x.inputs)


def _reshape(node: Node, perm: Perm) -> Node:
    """Dimensions that are split, or joined where they lie side by side, on what is turned."""
    (x,) = node.inputs
    groups: list[tuple[list[int], tuple[int, ...]]] = []  # places in memory; the new dimensions
    place = new = 0
    for source, target in split_groups(x.type.shape, node.type.shape):
        own = [perm[place + k] for k, n in enumerate(source) if n != 1]
        if own and own != list(range(own[0], own[0] + len(own))):
            return node
        groups.append((own, tuple(range(new, new + len(target)))))
        place, new = place + len(source), new + len(target)
    order = [d for _, dims in sorted(groups, key=lambda g: g[0][:1]) for d in dims]
    shape = tuple(node.type.shape[d] for d in order)
    return _turned(node, _back(tuple(order)), Reshape(shape), x.inputs[0])


def _gather(node: Node, perm: Perm) -> Node:
    """Positions along axes that lie side by side in memory too."""
    op, (x, *index) = node.op, node.inputs
    assert isinstance(op, Gather)
    taken = list(perm[op.first : op.first + len(index)])
    if taken != list(range(taken[0], taken[0] + len(taken))):
        return node
    middle = node.type.rank - (x.type.rank - len(index))
    order: list[int] = []  # the dimensions of the result as they lie
    for p in range(len(perm)):
        a = perm.index(p)
        if p == taken[0]:
            order += range(op.first, op.first + middle)
        elif p not in taken:
            order.append(a if a < op.first else a - len(index) + middle)
    return _turned(node, _back(tuple(order)), Gather(taken[0]), x.inputs[0], *index)


def _concat(node: Node, _: Perm) -> Node:
    """Pieces of which half at least are turned alike: the others are turned for them."""
    op = node.op
    assert isinstance(op, Concat)
    perms = [_perm(x) for x in node.inputs]
    perm = max(perms, key=lambda p: (perms.count(p), p is not None))
    if perm is None:
        return settle(node)
    turn = Permute(_back(perm))
    pieces = (
        x.inputs[0] if p == perm else settle(build.apply(turn, x, origin=x.origin))
        for x, p in zip(node.inputs, perms, strict=True)
    )
    return _turned(node, perm, Concat(perm[op.axis]), *pieces)


# ---- contractions ----------------------------------------------------------------------------


def _contract(node: Node, _: Perm, *, sought: bool = False) -> Node:
    """A contraction whose result lies as its data does, turned or not."""
    op = node.op
    assert isinstance(op, Contract)
    return _lying(node, [(a,) for a in op.out], sought)


def _merged(node: Node, _: Perm, *, sought: bool = False) -> Node:
    """Axes of a contraction that are merged: the result lies as the data does with these axes."""
    (x,) = node.inputs
    perm = _perm(x) or tuple(range(x.type.rank))
    inner = x.inputs[0] if isinstance(x.op, Permute) else x
    if isinstance(inner.op, Contract):
        out, place = [inner.op.out[p] for p in perm], 0
        merged: list[Axes] = []
        for source, _target in split_groups(x.type.shape, node.type.shape):
            merged.append(tuple(out[place : place + len(source)]))
            place += len(source)
        lying = _lying(inner, [group for group in merged if group], sought)
        if lying is not inner:
            x = settle(build.apply(Permute(perm), lying, origin=x.origin))
            node = build.apply(node.op, x, origin=node.origin)
    found = _perm(x)
    return _reshape(node, found) if found is not None else node


Axes = tuple[str, ...]
Terms = tuple[Index, ...]


def _lying(node: Node, merged: Sequence[Axes], sought: bool) -> Node:
    """A contraction with its result in the order of its data, if one operand is what that is;
    axes that are merged later stay side by side.  `sought`: with its channels last if need be."""
    op = node.op
    assert isinstance(op, Contract)
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    for data, other in (sides, sides[::-1]):
        order = _order(node, data, other[0], merged, sought)
        if order is not None and order != op.out:
            perm = tuple(order.index(a) for a in op.out)
            return _turned(node, perm, replace(op, out=order), *node.inputs)
    return node


def _order(
    node: Node, data: tuple[Terms, Node], other: Terms, merged: Sequence[Axes], sought: bool
) -> Axes | None:
    """The axes of the result in the order of the data, if one operand is what that is.  Where it is
    `sought`, axes that both operands have come behind those that a window slides along."""
    op, (terms, x) = node.op, data
    assert isinstance(op, Contract)
    used, seen = ({a for t in side for a in axes_of(t)} for side in (terms, other))
    own = [group for group in merged if used.intersection(group)]
    new = [group for group in merged if not used.intersection(group)]
    alone = [a for group in own for a in group if a in used and a not in seen]
    if len(new) > 1 or len(alone) < _ALONE or (not new and len(merged) < len(op.out)):
        return None
    lies = [a for d in memory_order(x) for a in _axes(terms[d], op.out)]
    if sorted(a for a in lies if a in op.out) != sorted(a for a in op.out if a in used):
        return None
    ends = lies[-1] not in op.out and lies[-1] in seen
    sought = sought and isinstance(x.op, Window)
    if new and not ends and not (sought or (isinstance(x.op, Window) and _at_odds(node))):
        return None
    own.sort(key=lambda group: next(n for n, a in enumerate(lies) if a in group))
    if sought:
        own.sort(key=lambda group: not set(group).isdisjoint(seen))
    return tuple(a for group in (*own, *new) for a in group)


def _at_odds(node: Node) -> bool:
    """Whether a contraction's operands have summed axes in different orders in memory."""
    op = node.op
    if not isinstance(op, Contract):
        return False
    left, right = (
        [a for d in _places(x) for a in sorted(axes_of(terms[d])) if a not in op.out]
        for terms, x in zip((op.left, op.right), node.inputs, strict=True)
    )
    return [a for a in left if a in right] != [a for a in right if a in left]


_ALONE = 2
"""Axes that the data of a contraction has and the other operand has not, at least: with one each,
either could be the data."""


def _axes(term: Index, out: tuple[str, ...]) -> list[str]:
    """The axes of the result that a dimension runs along, or the summed one that it is."""
    name = bare_axis(term)
    return [name] if name is not None else [a for a in axes_of(term) if a in out]


def memory_order(x: Node) -> list[int]:
    """The dimensions of a value from the slowest to the fastest, without the places in windows."""
    if isinstance(x.op, Window):
        return memory_order(x.inputs[0])
    if isinstance(x.op, Permute):
        perm = x.op.perm
        return [perm.index(p) for p in memory_order(x.inputs[0])]
    return list(range(x.type.rank))


def _places(x: Node) -> list[int]:
    """The same with the places in windows, each behind the dimension that it is a place of."""
    if isinstance(x.op, Permute):
        perm = x.op.perm
        return [perm.index(p) for p in _places(x.inputs[0])]
    if not isinstance(x.op, Window):
        return list(range(x.type.rank))
    found = _places(x.inputs[0])
    found.insert(found.index(x.op.axis) + 1, x.type.rank - 1)
    return found


RULES: dict[type[TensorOp], Rule] = {
    Gather: _gather,
    Reduce: _reduce,
    Reshape: _reshape,
    Scan: _scan,
    Window: _window,
}

_CHOICES: dict[type[TensorOp], Rule] = {Concat: _concat, Contract: _contract, Reshape: _merged}
"""Operators that choose how their results lie, whether their first operand is turned or not."""
CHANNELS_LAST = RULES | {
    Concat: _concat,
    Contract: partial(_contract, sought=True),
    Reshape: partial(_merged, sought=True),
}
"""Rules by which sums over windows have their channels last, however their data lies."""
