"""How far rounding may take a program's results from the mathematics: stochastic arithmetic.

The graph is run operator by operator in its own types a few times, each floating result moved at
random by as much as that operator may err (J. Vignes, 1978): scalar functions by some units in the
last place, sums and contractions by what adding up so many terms of that size may lose.  What the
results then differ by, times a factor, is the tolerance of each element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.graph.ir import Graph, Node
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.reduce import Reduce, Scan, accumulator
from smelt.types.dtype import DType

__all__ = ["tolerances"]

Array = np.ndarray[Any, Any]
RUNS = 5
FACTOR = 8.0
ULP = 4.0
"""What a scalar function may err, in units in the last place."""
EXACT = frozenset(
    (
        "abs",
        "ceil",
        "copysign",
        "floor",
        "gather",
        "max",
        "min",
        "neg",
        "nextafter",
        "round",
        "select",
        "sign",
        "trunc",
    )
)
"""Operators whose results are never rounded."""
_EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


def tolerances(graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """The largest error of every element of every output; infinite where rounding decides."""
    rng = np.random.default_rng(1)
    base = _run(graph, arrays, sizes, None)
    off = [np.zeros(v.shape) for v in base]
    with np.errstate(all="ignore"):
        for _ in range(RUNS):
            for k, moved in enumerate(_run(graph, arrays, sizes, rng)):
                distance = np.where(moved == base[k], 0.0, np.abs(moved - base[k]))
                both = np.isnan(moved) & np.isnan(base[k])
                distance = np.where(np.isnan(distance), np.where(both, 0.0, np.inf), distance)
                off[k] = np.maximum(off[k], distance)
        return [
            FACTOR * _smooth(o) + _own(n.type.dtype, v)
            for o, v, n in zip(off, base, graph.outputs, strict=True)
        ]


def _smooth(off: Array) -> Array:
    """No less than what is usual: among many elements some are hardly moved by chance."""
    finite = off[np.isfinite(off)]
    return np.maximum(off, np.median(finite)) if finite.size else off


def _own(dtype: DType, value: Array) -> Array:
    """The last rounding of a result."""
    if not dtype.is_float:
        return np.zeros(value.shape)
    return np.where(np.isfinite(value), np.abs(value), 0.0) * ULP * _EPS[dtype.name] + 1e-37


def _run(graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int], rng: Any) -> list[Array]:
    values: dict[Node, Array] = dict(zip(graph.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        for node in graph.nodes():
            if isinstance(node.op, Input):
                continue
            operands = [values[x] for x in node.inputs]
            result = np.asarray(node.op.reference(sizes, *operands))
            if rng is not None and _rounds(node):
                result = _moved(node, result, operands, sizes, rng)
            values[node] = result.astype(node.type.dtype.numpy)
        return [values[n].astype(np.float64) for n in graph.outputs]


def _rounds(node: Node) -> bool:
    op = node.op
    picks = isinstance(op, (Reduce, Scan)) and not op.row.wide
    exact = op.is_view or op.is_source or picks or op.name in EXACT
    return node.type.dtype.is_float and not exact


def _moved(
    node: Node, actual: Array, operands: list[Array], sizes: Mapping[str, int], rng: Any
) -> Array:
    wide = actual.astype(np.float64)
    error = ULP * _EPS[node.type.dtype.name] * np.abs(wide)
    error = error + _lost(node, operands, sizes)
    noise = rng.uniform(-1.0, 1.0, wide.shape) * error
    return wide + np.where(np.isfinite(noise), noise, 0.0)


def _lost(node: Node, operands: list[Array], sizes: Mapping[str, int]) -> Any:
    """What adding up may lose: a rounding for each doubling, of the sum of magnitudes."""
    op, dtype = node.op, node.type.dtype
    if isinstance(op, Contract):
        eps, terms = _EPS[dtype.compute.name], operands[0].size
    elif isinstance(op, (Reduce, Scan)) and op.row.wide:
        eps, terms = _EPS[accumulator(op.row, dtype).name], operands[0].size
    else:
        return 0.0
    pairs = 0.0
    if isinstance(op, Reduce) and op.row.compensated and dtype.bits < 64:
        pairs = 2.0**-23  # each four elements are added in single precision
    magnitudes = [np.abs(a.astype(np.float64)) for a in operands]
    total = np.asarray(op.reference(sizes, *magnitudes)).astype(np.float64)
    return (pairs + eps * (2 + np.log2(terms + 1))) * total
