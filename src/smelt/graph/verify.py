r"""Verify that a graph is well formed; a failure shows the lines around the fault.

In every graph, and in the steps of its loops: there is no cycle; every value has the type that its
operator infers; every input that is read is declared, once, under a unique name; names can be
printed; outputs exist.

>>> from smelt.graph.text import parse
>>> verify(parse("graph f(x: f32[4]) {\n  v0 = exp(x) : f32[5]\n  return v0\n}"))
Traceback (most recent call last):
...
smelt.errors.VerifyError: E405 not well formed: graph f: v0 is f32[5], but exp(f32[4]) gives f32[4]
  1   graph f(x: f32[4]) {
  2 >   v0 = exp(x) : f32[5]
  3       return v0
...
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from math import prod
from typing import NoReturn

import numpy as np

from smelt.errors import OverflowSizeError, ShapeError, SmeltError, VerifyError
from smelt.graph.build import MISTAKES
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.text import RESERVED, name_values, text
from smelt.graph.walk import all_size_names, input_size_names, map_indices
from smelt.ops.create import Constant, Input
from smelt.types.expr import Expr, Index
from smelt.types.expr import text as expr_text
from smelt.types.intervals import interval, number
from smelt.types.tensor import MAX_BYTES, TensorType, check_bytes, check_contiguous

_LABEL = re.compile(r"[^\W\d][\w.]*")
_SIZE = re.compile(r"[^\W\d]\w*")
_GRAPH = re.compile(r"[^\s(){}]+")
_RELATIONS = ("==", "!=", "<", "<=")
CONTEXT = 3
"""Lines shown above and below the fault."""


def verify(graph: Graph) -> Graph:
    """Return `graph`; raise VerifyError if it is not well formed."""
    _acyclic(graph)
    _inputs(graph)
    _spelling(graph)
    for node in graph.nodes():
        _node(graph, node)
    return graph


def verify_same_signature(before: Graph, after: Graph) -> Graph:
    """Return `after` if it has the inputs, output types and checks of `before`.

    Raises VerifyError otherwise: a pass must not change what a graph takes and returns.
    """
    if tuple(n.op for n in before.inputs) != tuple(n.op for n in after.inputs):
        _fail(after, None, "the inputs are not those of the graph it was made from")
    for k, (old, new) in enumerate(zip(before.outputs, after.outputs)):
        if old.type != new.type:
            _fail(after, new, f"output {k} was {old.type} and is {new.type} now")
    if len(before.outputs) != len(after.outputs):
        _fail(after, None, f"{len(before.outputs)} outputs became {len(after.outputs)}")
    if before.checks != after.checks:
        _fail(after, None, f"of its outputs {before.checks} were checks, {after.checks} are now")
    return after


def _acyclic(graph: Graph) -> None:
    """Check for cycles with an explicit stack: the graph's own walk and printer would not end."""
    done: set[Node] = set()
    entered: set[Node] = set()
    stack = list(graph.outputs)
    while stack:
        node = stack[-1]
        if node in done or node in entered:
            stack.pop()
            done.add(node)
            continue
        entered.add(node)
        for operand in node.inputs:
            if operand in entered and operand not in done:
                raise VerifyError(
                    f"graph {graph.name}: {node} depends on itself through {operand}",
                    origin=node.origin,
                )
            if operand not in done:
                stack.append(operand)


def _inputs(graph: Graph) -> None:
    declared = set(graph.inputs)
    if len(declared) != len(graph.inputs):
        _fail(graph, None, "an input is declared twice")
    labels: set[str] = set()
    for node in graph.nodes():
        if not isinstance(node.op, Input):
            continue
        label = node.op.label
        if node not in declared:
            _fail(graph, node, f"{label} is read but is not an input of the graph")
        if label in labels:
            _fail(graph, node, f"two inputs are called {label}")
        labels.add(label)
        _strides(graph, node, node.op)


def _strides(graph: Graph, node: Node, op: Input) -> None:
    if op.type != node.type:
        _fail(graph, node, f"{op.label} is declared {op.type} and used as {node.type}")
    if op.strides is None:
        return
    if len(op.strides) != op.type.rank or any(s not in (0, 1, None) for s in op.strides):
        _fail(graph, node, f"strides {op.strides} do not describe {op.label}: {op.type}")


def _spelling(graph: Graph) -> None:
    """Check that all names in a graph's text form can be parsed."""
    if not _GRAPH.fullmatch(graph.name):
        _fail(graph, None, f"{graph.name!r} cannot name a graph")
    for node in graph.inputs:
        label = node.op.label if isinstance(node.op, Input) else ""
        if not _LABEL.fullmatch(label) or label in ("require", "return", "strides", "constant"):
            _fail(graph, node, f"{label!r} cannot name an input")
    for name in all_size_names(graph):
        if not _SIZE.fullmatch(name) or name in RESERVED:
            _fail(graph, None, f"{name!r} cannot name a size")
    for fact in graph.facts:
        if fact.relation not in _RELATIONS:
            _fail(graph, None, f"{fact.relation!r} is not a relation; known: {_RELATIONS}")


def _node(graph: Graph, node: Node) -> None:
    operands = tuple(operand.type for operand in node.inputs)
    if isinstance(node.op, Constant) and not _is_representable(node.op):
        _fail(graph, node, f"{node.op.value!r} is not {node.op.dtype.name}")
    if isinstance(node.op, Loop):
        verify(node.op.body.graph)
    try:
        inferred = check_bytes(node.op.infer(*operands))
    except SmeltError as error:
        _fail(graph, node, error.message, error)
    except MISTAKES as error:
        operand_types = ", ".join(map(str, operands))
        _fail(graph, node, f"{node.op.name} does not take ({operand_types}): {error}", error)
    if not _is_same_type(inferred, node.type):
        operand_types = ", ".join(map(str, operands))
        name = name_values(graph)[node]
        reason = f"{name} is {node.type}, but {node.op.name}({operand_types}) gives {inferred}"
        _fail(graph, node, reason)


def _is_representable(op: Constant) -> bool:
    """Whether a constant is a number that its element type holds, if rounded."""
    value, dtype = op.value, op.dtype
    if not isinstance(value, (bool, int, float)):
        return False
    if dtype.is_integer and not isinstance(value, float):
        info = np.iinfo(dtype.numpy)
        return bool(info.min <= value <= info.max)
    return not isinstance(value, int) or abs(value) < 2**1023


def _is_same_type(a: TensorType, b: TensorType) -> bool:
    return a.dtype == b.dtype and a.rank == b.rank and all(map(_equal, a.shape, b.shape))


def _equal(a: Index, b: Index) -> bool:
    return a == b


def _fail(graph: Graph, node: Node | None, reason: str, cause: Exception | None = None) -> NoReturn:
    origin = node.origin if node is not None else None
    context = _source_context(graph, node)
    raise VerifyError(f"graph {graph.name}: {reason}\n{context}", origin=origin) from cause


def _source_context(graph: Graph, node: Node | None) -> str:
    """Print the graph with line numbers, cut to the neighbourhood of `node`."""
    lines = text(graph).split("\n")
    fault = _line_of(graph, node, lines)
    width = len(str(len(lines)))
    numbered: list[str] = []
    for k, line in enumerate(lines):
        if fault is None or abs(k - fault) <= CONTEXT:
            numbered.append(f"  {k + 1:>{width}} {'>' if k == fault else ' '} {line}".rstrip())
    return "\n".join(numbered)


def _line_of(graph: Graph, node: Node | None, lines: list[str]) -> int | None:
    if node is None:
        return None
    name = name_values(graph)[node]
    if isinstance(node.op, Input):
        starts = (f"    {name}: ", f"graph {graph.name}(")
    elif isinstance(node.op, Constant):
        return next((k for k, line in enumerate(lines) if name in line), None)
    else:
        starts = (f"  {name} = ",)
    return next((k for s in starts for k, line in enumerate(lines) if line.startswith(s)), None)


# ---- at the sizes of a call ---------------------------------------------------------------------

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
            relation = f"{expr_text(fact.left)} {fact.relation} {expr_text(fact.right)}"
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
