"""Evaluate operators on constants at compile time, with the reference interpreter.

Results must be single numbers, possibly broadcast: a Graph has no constant arrays.
"""

from __future__ import annotations

import math

from smelt.errors import SmeltError
from smelt.graph import build
from smelt.graph.interp import Array, evaluate_node
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import reachable, rebuild_from, use_counts
from smelt.ops.combine import CHOICE
from smelt.ops.create import Input
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Expand
from smelt.passes.compose import splat
from smelt.passes.simplify import python_number
from smelt.types.dtype import bool_

MAX_FOLDED_ELEMENTS = 4096
"""Maximum number of elements of a value that is evaluated at compile time."""


def fold_constants(graph: Graph) -> Graph:
    """Evaluate operators on constants.

    An operator applied to a select between two numbers is a select between two other numbers, so
    that a mask reads the same however it is spelled, as `tril(ones) == 0` or `(1 - keep) * -1e9`.
    If the select has other readers, it is rewritten only where its mask takes no memory of its own.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         fold_constants(
    ...             parse('''graph f(x: f32[n]) {
    ...   a = sqrt(64.0:f32)
    ...   b = iota() {shape=(5,), axis=0, dtype=i64}
    ...   c = reduce.sum(b) {axes=(0,)}
    ...   d = cast(c) {dtype=f32}
    ...   e = div(d, a)
    ...   y = mul(x, e)
    ...   return y
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n]) {
      v0 = mul(x, 1.25:f32) : f32[n]
      return v0
    }
    """
    values: dict[Node, Array] = {}
    reads = use_counts(graph)

    def change(node: Node, old: Node) -> Node:
        value = _value(node, values)
        if value is None:
            return _map_select(node, [reads[x] for x in old.inputs])
        new = node if splat(node) else _as_number(node, value)
        values[new] = value
        return new

    return rebuild_from(graph, change)


def _value(node: Node, values: dict[Node, Array]) -> Array | None:
    """Return the elements of a small value that depends on no input, or None."""
    if not node.op.fusible or (not node.op.is_source and not node.inputs):
        return None
    operands = [values.get(x) for x in node.inputs]
    count = math.prod(n if isinstance(n, int) else MAX_FOLDED_ELEMENTS + 1 for n in node.type.shape)
    if any(x is None for x in operands) or count > MAX_FOLDED_ELEMENTS:
        return None
    try:
        return evaluate_node(node, [x for x in operands if x is not None], {})
    except (IndexError, KeyError, SmeltError, ValueError):
        return None  # a size known only at the call, or an error to be raised there


def _as_number(node: Node, value: Array) -> Node:
    """Return the node as a broadcast number if all elements have the same bits."""
    if value.size == 0 or value.tobytes() != value.flat[0].tobytes() * value.size:
        return node
    number = build.constant(python_number(value.reshape(-1)[:1]), node.type.dtype, node.origin)
    if not node.type.shape:
        return number
    return build.apply(Expand(node.type.shape), number, origin=node.origin)


def _map_select(node: Node, reads: list[int]) -> Node:
    """Move an elementwise operator into both sides of a select between numbers.

    `reads` gives for each operand how often it is read.
    """
    varying = {x for x in node.inputs if splat(x) is None}
    scalar = isinstance(node.op, Cast) or (isinstance(node.op, Map) and not node.op.row.is_select)
    if not scalar or len(varying) != 1:
        return node
    (x,) = varying
    selected = _select_of_numbers(x)
    if selected is None or x.type.shape != node.type.shape:
        return node
    mask, *sides = selected
    only_reader = reads[node.inputs.index(x)] == 1
    if not (only_reader or isinstance(mask.op, Input) or _depends_on_indices(mask)):
        return node
    results: list[Node] = []
    for side in sides:
        numbers = [splat(side if n is x else n) for n in node.inputs]
        one = build.apply(node.op, *(n for n in numbers if n is not None), origin=node.origin)
        value = evaluate_node(one, [n.op.reference({}) for n in one.inputs], {})
        results.append(_as_number(one, value))
    return build.map(CHOICE, mask, *results, origin=node.origin)


def _depends_on_indices(mask: Node) -> bool:
    return not any(isinstance(x.op, Input) for x in reachable([mask], lambda x: x.inputs))


def _select_of_numbers(x: Node) -> tuple[Node, Node, Node] | None:
    """Return the mask and both numbers of a select between numbers, or None.

    A cast of a boolean to a number counts as a select between 1 and 0.
    """
    if isinstance(x.op, Map) and x.op.row.is_select:
        mask, one, other = x.inputs
        high, low = splat(one), splat(other)
    elif isinstance(x.op, Cast) and x.inputs[0].type.dtype == bool_:
        mask, kind = x.inputs[0], x.type.dtype
        high, low = (build.constant(n, kind, x.origin) for n in (1, 0))
    else:
        return None
    if high is None or low is None or mask.type.shape != x.type.shape:
        return None
    return mask, high, low
