"""Verify a graph at the sizes of a call, for graphs that come as text.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n]) {
...   v0 = slice(x) {starts=(2,), sizes=(4,), steps=(1,)}
...   return v0
... }''')
>>> verify_sizes(graph, {"n": 6})
>>> verify_sizes(graph, {"n": 5})
Traceback (most recent call last):
    ...
smelt.errors.VerifyError: E405 not well formed: slice reads positions 2 to 5 of 5 elements at the
    sizes of this call
...
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from math import prod

from smelt.errors import OverflowSizeError, ShapeError, SmeltError, VerifyError
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import all_size_names, input_size_names, map_indices
from smelt.ops.create import Input
from smelt.types.expr import Expr, text
from smelt.types.intervals import interval, number
from smelt.types.tensor import MAX_BYTES, check_contiguous

_HOLDS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}


def verify_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Check that a call with these sizes is safe; its inputs are contiguous.

    Raises VerifyError for facts that fail and positions outside an operand, ShapeError for
    negative dimensions, and OverflowSizeError for sizes that 64 bits cannot hold.
    """
    unknown = [name for name in all_size_names(graph) if name not in input_size_names(graph)]
    if unknown:
        raise VerifyError(f"graph {graph.name}: the size {unknown[0]} follows from no input")
    for fact in graph.facts:
        if not _HOLDS[fact.relation](number(fact.left, sizes), number(fact.right, sizes)):
            shown = ", ".join(f"{name}={n}" for name, n in sizes.items())
            relation = f"{text(fact.left)} {fact.relation} {text(fact.right)}"
            raise VerifyError(f"graph {graph.name} requires {relation}, which fails for {shown}")
    for node in graph.nodes():
        try:
            _check_node(node, sizes)
        except SmeltError as error:
            error.origin = node.origin or error.origin
            raise


def _check_node(node: Node, sizes: Mapping[str, int]) -> None:
    """Check an operator's type, numbers and the positions that it reads."""
    shape = [number(d, sizes) for d in node.type.shape]
    if min(shape, default=0) < 0:
        raise ShapeError(f"{node.op.name} has the shape {shape} at the sizes of this call")
    nbytes = prod(max(n, 1) for n in shape) * node.type.dtype.itemsize
    if nbytes > MAX_BYTES:
        raise OverflowSizeError(what=f"{node.op.name} of {node.type}", bytes=nbytes)
    map_indices(node.op, lambda e: _checked(e, sizes))
    if isinstance(node.op, Input):
        check_contiguous(node.op.label, shape, node.op.strides)
    if 0 in shape:
        return
    for index, extent in node.op.reads(*(x.type for x in node.inputs)):
        span, limit = interval(index, sizes), number(extent, sizes)
        if span is not None and (span[0] < 0 or span[1] >= limit):
            raise VerifyError(
                f"{node.op.name} reads positions {span[0]} to {span[1]} of {limit} elements at the"
                " sizes of this call"
            )


def _checked(e: Expr, sizes: Mapping[str, int]) -> Expr:
    """Return an index expression if 64 bits hold it at the sizes of the call."""
    interval(e, sizes)
    return e
