r"""Find which index is out of bounds, once one is, by running the reference again.

>>> from smelt.graph.bounds_checks import collect_bounds_checks
>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n], i: i64[m]) {\n v0 = gather(x, i) {first=0}\n return v0\n}")
>>> try:
...     raise_first_out_of_bounds(
...         collect_bounds_checks(graph.outputs),
...         graph.inputs,
...         [np.zeros(3, "f4"), np.array([0, 7])],
...     )
... except OutsideError as error:
...     error.message
'a read at computed positions: position 7 of an axis of 3'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from smelt.errors import OutsideError, SmeltError
from smelt.graph.bounds_checks import BoundsChecks, refuse_out_of_bounds
from smelt.graph.interp import run, solve_sizes
from smelt.graph.ir import Graph, Node
from smelt.ops.elementwise import Map
from smelt.types.expr import evaluate

__all__ = ["np", "raise_first_out_of_bounds"]


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
