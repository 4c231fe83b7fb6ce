"""Gradients against central differences of the graph's own interpreter, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.autodiff import gradient
from smelt.graph import interp
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.graph.verify import verify

Array = np.ndarray[Any, Any]
STEP = 2.0**-14
"""Central differences of a function with |f'''| ≤ M err by M·STEP²/6 and by 2⁻⁵²/STEP·|f|."""


def graph_of(source: str, dtype: str = "f64") -> Graph:
    """The text of a graph with its float type filled in for `T`."""
    return parse(source.replace("T[", f"{dtype}[").replace(":T", f":{dtype}"))


def numeric(graph: Graph, arrays: Sequence[Array], seeds: Sequence[Array], place: int) -> Array:
    """What the cotangent of input `place` should be: d(Σ seeds · float outputs) / d elements."""

    def total(moved: Array) -> float:
        inputs = [moved if k == place else a for k, a in enumerate(arrays)]
        floats = [y for y in interp.run(graph, inputs) if y.dtype.kind == "f"]
        return sum(float(np.sum(y * s)) for y, s in zip(floats, seeds, strict=True))

    x = arrays[place]
    result = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[at] += STEP
        below[at] -= STEP
        result[at] = (total(above) - total(below)) / (2 * STEP)
    return result


def seeds_for(graph: Graph, arrays: Sequence[Array], seed: int = 3) -> list[Array]:
    """A cotangent for each float output."""
    rng = np.random.default_rng(seed)
    outs = [y for y in interp.run(graph, arrays) if y.dtype.kind in "fV"]
    return [rng.uniform(0.5, 1.5, y.shape).astype(y.dtype) for y in outs]


def gradients(graph: Graph, arrays: Sequence[Array], seeds: Sequence[Array]) -> list[Array]:
    """The cotangents of all float inputs, by the interpreter."""
    whole = verify(gradient(graph))
    return interp.run(whole, [*arrays, *seeds])[len(graph.outputs) :]


def check(graph: Graph, arrays: Sequence[Array], atol: float = 2e-6, rtol: float = 2e-6) -> None:
    """Every gradient of a float64 graph against differences."""
    seeds = seeds_for(graph, arrays)
    actual = iter(gradients(graph, arrays, seeds))
    for place, a in enumerate(arrays):
        if a.dtype == np.float64:
            wanted = numeric(graph, arrays, seeds, place)
            np.testing.assert_allclose(next(actual), wanted, rtol=rtol, atol=atol)
