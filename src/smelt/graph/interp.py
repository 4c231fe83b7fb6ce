r"""Run a graph with NumPy, one operator at a time, everything checked: the reference.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\n v0 = add(x, 1.0:f32)\n return v0\n}")
>>> run(graph, [np.arange(3, dtype=np.float32)])
[array([1., 2., 3.], dtype=float32)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import eq, le, lt, ne
from typing import Any

import numpy as np

from smelt.errors import (
    ArgumentError,
    DTypeError,
    ExternError,
    GuardError,
    IndexRangeError,
    InternalError,
    ShapeError,
)
from smelt.graph.ir import Fact, Graph, Node
from smelt.graph.walk import all_size_names as names_of_sizes
from smelt.graph.walk import use_counts
from smelt.ops.create import Input
from smelt.ops.spec import dims_at
from smelt.types.dtype import from_numpy
from smelt.types.expr import Expr, Index, evaluate, sizes_of, substitute, text
from smelt.types.tensor import shape_text

Array = np.ndarray[Any, Any]
_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le}


def run(graph: Graph, arrays: Sequence[Any], sizes: Mapping[str, int] | None = None) -> list[Array]:
    """Return the outputs for the given inputs, in order.

    `all_size_names` adds (or fixes) sizes that the inputs' shapes do not determine.  Raises
    ArgumentError for a wrong number of arrays, DTypeError and ShapeError for arrays that are not as
    declared, GuardError where a fact does not hold, IndexRangeError for a read out of bounds.
    """
    inputs = [np.asarray(a) for a in arrays]
    known_sizes = solve_sizes(graph, inputs, sizes)
    missing = [name for name in names_of_sizes(graph) if name not in known_sizes]
    if missing:
        raise ArgumentError(f"no input tells the size {missing[0]}; pass it in `all_size_names`")
    remaining_uses = use_counts(graph)
    values: dict[Node, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes():
        if node not in values:
            values[node] = evaluate_node(
                node, [values[operand] for operand in node.inputs], known_sizes
            )
        for operand in node.inputs:  # free values without further readers
            remaining_uses[operand] -= 1
            if not remaining_uses[operand]:
                del values[operand]
    return [values[node] for node in graph.outputs]


def evaluate_node(node: Node, operands: Sequence[Array], sizes: Mapping[str, int]) -> Array:
    """Evaluate one operator's reference on arrays, and check the result against the node's type.

    Operands are made C-contiguous first: NumPy's summation order follows the layout, and a result
    must not depend on whether an operand is a view.
    """
    try:
        with np.errstate(all="ignore"):
            rows = [np.ascontiguousarray(a) if a.ndim else a for a in operands]
            result = np.asarray(node.op.reference(sizes, *rows))
    except ExternError as error:
        error.origin = node.origin or error.origin
        raise
    except IndexError as error:
        raise IndexRangeError(f"{node.op.name}: {error}", origin=node.origin) from error
    shape = dims_at(node.type.shape, sizes)
    if result.shape != shape or result.dtype != node.type.dtype.numpy:
        raise InternalError(
            f"the reference of {node.op.name} gave {result.dtype}{list(result.shape)}"
            f" for {node.type} = {list(shape)}",
            origin=node.origin,
        )
    return result


def solve_sizes(
    graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the sizes that make the inputs' declared shapes those of `arrays`.

    Raises the errors of `run`.
    """
    if len(arrays) != len(graph.inputs):
        raise ArgumentError(
            f"graph {graph.name} takes {len(graph.inputs)} arrays, not {len(arrays)}"
        )
    solved = dict(sizes or {})
    unsolved: list[tuple[Input, Index, int, int]] = []
    for node, array in zip(graph.inputs, arrays, strict=True):
        op = node.op
        assert isinstance(op, Input)
        _check_input(op, array)
        unsolved += [(op, dim, n, a) for a, (dim, n) in enumerate(zip(op.type.shape, array.shape))]
    progress = True
    while unsolved and progress:
        remaining = [entry for entry in unsolved if not _match_dimension(solved, *entry)]
        progress, unsolved = len(remaining) < len(unsolved), remaining
    if unsolved:
        op, dim, n, _ = unsolved[0]
        raise ShapeError(f"input {op.label}: no sizes make {text(dim)} equal {n}")
    for fact in graph.facts:
        _check_fact(fact, solved)
    return solved


def _check_input(op: Input, array: Array) -> None:
    if from_numpy(array.dtype) != op.type.dtype or not array.dtype.isnative:
        raise DTypeError(f"input {op.label} is {op.type.dtype.long}, not {array.dtype}")
    if array.ndim != op.type.rank:
        raise ShapeError(
            f"input {op.label} is {op.type}, not an array of shape {list(array.shape)}"
        )


def _match_dimension(solved: dict[str, int], op: Input, dim: Index, n: int, axis: int) -> bool:
    """Check a dimension, or solve it for its only unknown size.

    Returns False if more sizes are unknown.
    """
    missing = [
        name for name in (sizes_of(dim) if isinstance(dim, Expr) else ()) if name not in solved
    ]
    if len(missing) > 1:
        return False
    if missing:
        value = _solve(dim, missing[0], n, solved)
        if value is None:
            return False
        solved[missing[0]] = value
    expected = evaluate(dim, solved)
    if expected != n:
        shown = f"{text(dim)} = {expected}" if isinstance(dim, Expr) else str(expected)
        raise ShapeError(
            f"input {op.label}[{shape_text(op.type.shape)}]: dimension {axis} is {n}, not {shown}"
        )
    return True


def _solve(dim: Index, name: str, n: int, solved: Mapping[str, int]) -> int | None:
    """Return the value of a size that makes `dim` equal n, or None.

    None unless `dim` is linear in the size.
    """
    values: dict[str, Index] = dict(solved)
    base, one, two = (evaluate(substitute(dim, values | {name: k}, "size"), {}) for k in (0, 1, 2))
    slope = one - base
    if slope == 0 or two - one != slope or (n - base) % slope:
        return None
    value = (n - base) // slope
    return int(value) if value >= 0 else None


def _check_fact(fact: Fact, solved: Mapping[str, int]) -> None:
    try:
        left, right = (int(evaluate(side, solved)) for side in (fact.left, fact.right))
    except KeyError as error:
        raise ArgumentError(
            f"no input tells the size {error}; pass it in `all_size_names`"
        ) from None
    if not _RELATIONS[fact.relation](left, right):
        raise GuardError(
            guard=f"{text(fact.left)} {fact.relation} {text(fact.right)}",
            found=f"{left} and {right}",
        )
