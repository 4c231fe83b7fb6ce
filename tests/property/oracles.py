"""Oracles of a program: graph interpreter, kernel interpreter, native code, and tolerances.

Two correct runs differ because each rounds in its own places.  How much that may matter is a
property of the program and its data: `Spread` runs the graph several times with every floating
result disturbed by a few units in the last place (stochastic arithmetic, Vignes 1978) and takes the
observed deviation, times a factor, as the tolerance of every element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tests.strategies.comparison import may_overflow

from smelt import knobs
from smelt.compiler import driver
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Graph, Node
from smelt.lower import interp as plan_interp
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.reduce import Reduce, Scan
from smelt.types.dtype import f64
from smelt.types.expr import sizes_of

Array = np.ndarray[Any, Any]
DISTURBANCE_ULP = 8
"""Units in the last place: the largest error that a scalar operator may have, doubled."""
FACTOR = 16.0
RUNS = 4
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def sizes_at(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """Values of the size symbols that stand alone in some input's shape."""
    results: dict[str, int] = {}
    for node, a in zip(graph.inputs, arrays, strict=True):
        for dim, n in zip(node.type.shape, a.shape, strict=True):
            if not isinstance(dim, int) and sizes_of(dim) == (str(dim),):
                results[str(dim)] = n
    return results


def interpret(
    graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int], rng: Any = None
) -> list[Array]:
    """The graph operator by operator; with `rng`, every floating result is disturbed."""
    values: dict[Node, Array] = dict(zip(graph.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        if rng is not None:  # what a sum of products rounds inside is as if its operands moved
            values = {node: _moved(a, rng) for node, a in values.items()}
        for node in graph.nodes():
            if node not in values:
                operands = [values[x] for x in node.inputs]
                result = evaluate_node(node, operands, sizes)
                if rng is not None:
                    undecided = may_overflow(node, operands, sizes)
                    result = _disturbed(node, result + _inside(node, operands, sizes, rng), rng)
                    result = np.where(undecided, np.nan, result) if np.any(undecided) else result
                values[node] = np.asarray(result, node.type.dtype.numpy)
    return [values[n] for n in graph.outputs]


def _moved(a: Array, rng: Any) -> Array:
    """An input moved by some units in the last place; half types are exact in float32."""
    eps = _EPS[str(a.dtype)] if a.dtype in (np.float32, np.float64) else None
    if eps is None:
        return a
    noise = rng.integers(-DISTURBANCE_ULP, DISTURBANCE_ULP + 1, a.shape)
    return np.asarray(a.astype(np.float64) * (1.0 + noise * (eps / 2))).astype(a.dtype)


def _inside(node: Node, operands: Sequence[Array], sizes: Mapping[str, int], rng: Any) -> Any:
    """What a fold may round inside: by its largest partial results, of which nothing may be left
    in the result (3e38 - 3e38 + 0.25), in the type that it adds in."""
    op = node.op
    if not node.type.dtype.is_float or not isinstance(op, (Reduce, Scan, Contract)):
        return 0
    if isinstance(op, (Reduce, Scan)) and not op.row.wide:
        return 0
    wide = [np.abs(np.where(np.isfinite(x), x, 0).astype(np.float64)) for x in operands]
    eps = _EPS["float64" if isinstance(op, Scan) or node.type.dtype == f64 else "float32"]
    most = np.asarray(op.reference(sizes, *wide), np.float64)
    noise = rng.integers(-DISTURBANCE_ULP, DISTURBANCE_ULP + 1, most.shape)
    return (noise * (eps / 2) * most).astype(node.type.dtype.numpy)


def _disturbed(node: Node, actual: Array, rng: Any) -> Array:
    eps = _EPS.get(str(actual.dtype))
    if eps is None or node.op.is_view or node.op.is_source:
        return actual
    noise = rng.integers(-DISTURBANCE_ULP, DISTURBANCE_ULP + 1, actual.shape)
    wide = actual.astype(np.float64)
    return np.asarray(wide * (1.0 + noise * (eps / 2)), np.float64).astype(actual.dtype)


def spread(graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """How far apart correct runs may be, element by element of every output."""
    rng = np.random.default_rng(1)
    exact = [_as_float(v) for v in interpret(graph, arrays, sizes)]
    out = [np.zeros(v.shape) for v in exact]
    for _ in range(RUNS):
        for k, v in enumerate(interpret(graph, arrays, sizes, rng)):
            with np.errstate(all="ignore"):
                off = np.abs(_as_float(v) - exact[k])
            out[k] = np.maximum(out[k], np.where(np.isnan(off), np.inf, off))
    return [
        FACTOR * o + _floor(node, v) for o, v, node in zip(out, exact, graph.outputs, strict=True)
    ]


def _floor(node: Node, value: Array) -> Array:
    eps = _EPS.get(node.type.dtype.long, 0.0)
    tiny = float(np.finfo(np.float32).tiny) if eps else 0.0
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(value), np.abs(value) * eps * DISTURBANCE_ULP, 0.0) + tiny


def _as_float(v: Array) -> Array:
    return v.astype(np.float64)


def agree(first: Array, second: Array, tolerance: Array) -> str:
    """Empty, or where two results differ by more than the tolerance."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return f"{first.dtype}{list(first.shape)} and {second.dtype}{list(second.shape)}"
    a, b = _as_float(first), _as_float(second)
    with np.errstate(all="ignore"):
        same = (first == second) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance)
    same |= np.isinf(tolerance)
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"at {at}: {first[at]} and {second[at]}, allowed {tolerance[at]}; {(~same).sum()} differ"


def compiled(
    graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int], **settings: Any
) -> tuple[Any, list[Array]]:
    """The compiled program and its results under some knobs."""
    with knobs.config(**settings):
        program = driver.compile(graph, hints=sizes)
        order = tuple(sizes[n] for n in program.size_names)
        return program, program.run(list(arrays), order)


def kernels_agree(
    program: Any, arrays: Sequence[Array], sizes: Mapping[str, int], allowed: Sequence[Array]
) -> str:
    """Runs every kernel in the kernel interpreter in place of the native code, and compares."""
    with np.errstate(all="ignore"):
        result = plan_interp.run(program.plan, program.kernels, arrays, sizes)
    native = program.run(list(arrays), tuple(sizes[n] for n in program.size_names))
    outputs = program.plan.graph.outputs
    for k, (node, want, got) in enumerate(zip(outputs, result, native, strict=True)):
        if isinstance(node.op, Input):
            continue
        problem = agree(want, got, allowed[k])
        if problem:
            return f"output {k}, kernel interpreter and native code: {problem}"
    return ""
