r"""Find the user's line behind a failure while a plan runs.

A plan contains no lines: it may come from the cache, or have been built for an equal program with
other lines.  The graph of the program at hand has them.  Among several calls of one library
function, the failed one is found by running the reference again.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\n v0 = exp(x)\n v1 = neg(v0)\n return v1\n}")
>>> failed_call_origin("sort", graph, [[1.0, 2.0]]) is None
True

An access out of bounds is found by evaluating the checks of the graph:

>>> from smelt.graph.bounds_checks import collect_bounds_checks
>>> graph = parse("graph f(x: f32[n], i: i64[m]) {\n v0 = gather(x, i) {first=0}\n return v0\n}")
>>> checks = collect_bounds_checks(graph.outputs)
>>> try:
...     raise_first_out_of_bounds(checks, graph.inputs, [np.zeros(3, "f4"), np.array([0, 7])])
... except OutsideError as error:
...     error.message
'a read at computed positions: position 7 of an axis of 3'
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from smelt.errors import ExternError, OutsideError, SmeltError
from smelt.graph.bounds_checks import BoundsChecks, refuse_out_of_bounds
from smelt.graph.interp import run, solve_sizes
from smelt.graph.ir import Graph, Node
from smelt.ops.elementwise import Map
from smelt.ops.extern import Extern
from smelt.ops.spec import dims_at
from smelt.python.origin import Origin
from smelt.types.dtype import DType
from smelt.types.expr import evaluate
from smelt.types.tensor import TensorType


def _unwrapped(at: Node) -> Node:
    """Return indices before negative ones were wrapped."""
    if isinstance(at.op, Map) and at.op.scalar == "select":
        test, _, other = at.inputs
        if test.inputs and test.inputs[0] is other and test.type.shape == at.type.shape:
            return other
    return at


def raise_first_out_of_bounds(
    looks: BoundsChecks, inputs: Sequence[Node], arrays: Sequence[Any]
) -> NoReturn:
    """Raise OutsideError about the first operator with an index out of bounds.

    If the inputs no longer show which, as some were overwritten, it names all that may have one.
    """
    for at, low, extent, (what, origin) in looks.conditions:
        try:
            graph = Graph("outside", tuple(inputs), (at, _unwrapped(at)))
            positions, unwrapped_positions = run(graph, arrays)
            sizes = solve_sizes(graph, [np.asarray(a) for a in arrays], None)
            least, size = (evaluate(e, sizes) for e in (low, extent))
        except SmeltError:
            break
        out_of_bounds = unwrapped_positions[(positions < least) | (positions >= size)]
        if out_of_bounds.size:
            message = f"{what}: position {out_of_bounds.flat[0]} of an axis of {size}"
            raise OutsideError(message, origin=origin)
    refuse_out_of_bounds(looks.readers)


def failed_call_origin(call: object, graph: Graph, arrays: Sequence[Any]) -> Origin | None:
    """Return the line of the library call named `call` that failed on these inputs.

    None if the inputs, some of which may be overwritten by now, do not show it.
    """
    calls = [x for x in graph.nodes() if isinstance(x.op, Extern) and x.op.call == call]
    if len({x.origin for x in calls}) > 1:
        try:
            run(Graph("failed", graph.inputs, tuple(calls)), arrays)
        except ExternError as error:
            return error.origin
        except SmeltError:
            pass
        return None
    return calls[0].origin if calls else None


def largest_stored_value(
    outputs: Iterable[Node],
    sizes: Mapping[str, int],
    stored: Collection[tuple[tuple[int, ...], DType]],
) -> Node | None:
    """Return the largest computed value among those `stored` in memory, or None.

    `stored` has the shape and type of each.
    """
    result, largest_bytes = None, -1
    for x in Graph("largest", (), tuple(outputs)).nodes():
        kind = dims_at(x.type.shape, sizes), x.type.dtype
        nbytes = math.prod(kind[0]) * x.type.dtype.itemsize
        if x.inputs and x.origin is not None and kind in stored and nbytes > largest_bytes:
            result, largest_bytes = x, nbytes
    return result


def describe_value(x: Node, sizes: Mapping[str, int]) -> str:
    r"""Describe a value and its operands, with their shapes.

    >>> from smelt.graph.text import parse
    >>> graph = parse("graph f(x: f32[n,1], y: f32[m]) {\n v0 = add(x, y)\n return v0\n}")
    >>> describe_value(graph.outputs[0], {"n": 3, "m": 70000})
    'the largest value is f32[3,70000], add of f32[3,1] and f32[70000]'
    """

    def shown(y: Node) -> str:
        return str(TensorType(y.type.dtype, dims_at(y.type.shape, sizes)))

    operands = " and ".join(map(shown, x.inputs[:4])) + " .." * (len(x.inputs) > 4)
    return f"the largest value is {shown(x)}, {x.op.name} of {operands}"
