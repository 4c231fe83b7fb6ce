"""Every row of the catalogue differentiated: G1, backward of all that is planned forward."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import inputs, matched
from tests.catalogue.rows import Row, draw, small

import smelt as sm
from smelt.frontends.array.tree import flatten
from smelt.graph import interp

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parent.parent / "catalogue"
MODULES = sorted(p.stem for p in FOLDER.glob("test_?_*.py") if p.stem != "test_g_training")
QUANTISED = {"C11": "rounds to integers, and scales them in float32"}
ROWS: list[Row] = [
    row
    for m in MODULES
    for row in getattr(import_module(f"tests.catalogue.{m}"), "ROWS", ())
    if row.id not in QUANTISED
]
STEP = 2.0**-17


def floats(xs: Any) -> list[Any]:
    return [x for x in flatten(xs)[0] if x.dtype.kind == "float"]


def run(function: Any, arrays: list[Array]) -> list[Array]:
    """The results by the graph's interpreter."""
    trace = sm.jit(function).lower(*arrays).trace
    sizes = matched(trace, [n for a in arrays for n in a.shape])
    actual = interp.run(trace.graph, inputs(trace, arrays), sizes)
    places = {r.position for r in trace.results if r.kind == "graph"}
    assert len(places) <= len(actual)
    return [actual[r.position] if r.kind == "graph" else arrays[r.position] for r in trace.results]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id.replace(" ", "_"))
def test_backward(row: Row) -> None:
    """The gradient in a random direction is the derivative in that direction."""
    arrays = draw(row, small(row, 3), "f64")
    moving = [k for k, a in enumerate(arrays) if a.dtype == np.float64]
    rng = np.random.default_rng(0)

    def value(*arguments: Any) -> Any:
        return floats(row.code(sm, *arguments))

    results = run(value, arrays)
    seeds = [rng.uniform(0.5, 1.5, y.shape) for y in results]
    way = {k: rng.choice([-1.0, 1.0], arrays[k].shape) for k in moving}

    def back(*arguments: Any) -> Any:
        def of_floats(*xs: Any) -> Any:
            whole = list(arguments[: len(arrays)])
            for k, x in zip(moving, xs, strict=True):
                whole[k] = x
            return value(*whole)

        return sm.vjp(of_floats, *(arguments[k] for k in moving))[1](list(arguments[len(arrays) :]))

    slopes = run(back, [*arrays, *seeds])
    actual = sum(float(np.sum(g * way[k])) for k, g in zip(moving, slopes, strict=True))

    def total(step: float) -> float:
        moved = [a + step * way[k] if k in way else a for k, a in enumerate(arrays)]
        return sum(float(np.sum(y * s)) for y, s in zip(run(value, moved), seeds, strict=True))

    wanted, again = ((total(s) - total(-s)) / (2 * s) for s in (STEP, STEP / 8))
    if abs(wanted - again) > 1e-2 * max(1.0, abs(wanted)):
        pytest.skip("a jump lies in between")
    size = sum(float(np.sum(np.abs(y))) for y in results)
    near = 1e-4 * max(1.0, abs(wanted), *(float(np.abs(g).sum()) for g in slopes))
    assert abs(actual - wanted) <= near + 2.0**-45 * size / STEP, (actual, wanted)
