"""Random programs: the gradient in a random direction is the derivative in that direction."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from tests.strategies.effort import NIGHT, effort
from tests.strategies.graphs import Program, graphs

from smelt.autodiff import gradient
from smelt.errors import GradientError
from smelt.graph import interp
from smelt.graph.verify import verify
from smelt.types.dtype import bool_, f64, i64

pytestmark = NIGHT

STEPS = (2.0**-16, 2.0**-19)
"""Differences with both must agree: then no kink or jump lies between."""


def total(program: Program, arrays: list[np.ndarray], seeds: list[np.ndarray]) -> float:
    floats = [y for y in interp.run(program.graph, arrays) if y.dtype.kind == "f"]
    return sum(float(np.sum(y * s)) for y, s in zip(floats, seeds, strict=True))


def along(
    program: Program,
    arrays: list[np.ndarray],
    seeds: list[np.ndarray],
    way: list[np.ndarray],
    step: float,
) -> tuple[float, float]:
    """Differences of the weighted sum of all results in one direction, ahead and behind."""
    ahead, here, behind = (
        total(
            program,
            [
                a + s * step * w if a.dtype == np.float64 else a
                for a, w in zip(arrays, way, strict=True)
            ],
            seeds,
        )
        for s in (1, 0, -1)
    )
    return (ahead - here) / step, (here - behind) / step


@effort(80)
@given(graphs(max_nodes=8, dtypes=(f64, i64, bool_), flavours=("normal",)))
def test_gradients_of_random_programs(program: Program) -> None:
    outputs = [y for y in program.graph.outputs if y.type.dtype == f64]
    assume(outputs and any(a.dtype == np.float64 for a in program.arrays))
    try:
        by = [x for x in program.graph.inputs if x.type.dtype == f64]
        whole = verify(gradient(program.graph, by))
    except GradientError:
        assume(False)
    rng = np.random.default_rng(0)
    arrays = [  # no two alike: max(x, x) has a kink in most directions
        a + rng.normal(scale=0.01, size=a.shape) if a.dtype == np.float64 else a
        for a in program.arrays
    ]
    values = interp.run(program.graph, arrays)
    floats = [y for y in values if y.dtype.kind == "f"]
    assume(all(np.isfinite(y).all() for y in floats))
    seeds = [rng.uniform(0.5, 1.5, y.shape).astype(y.dtype) for y in floats]
    way = [rng.choice([-1.0, 1.0], a.shape) for a in arrays]
    (ahead, behind), (near, _) = (along(program, arrays, seeds, way, step) for step in STEPS)
    first = (ahead + behind) / 2
    size = max(1.0, sum(float(np.sum(np.abs(y))) for y in floats))
    noise = 2.0**-48 * size / STEPS[1]
    bend = max(abs(ahead - behind), abs(ahead - near))
    assume(np.isfinite(bend) and bend <= 1e-3 * max(1, abs(first)) + noise)
    slopes = interp.run(whole, [*arrays, *seeds])[len(values) :]
    moved = [w for a, w in zip(arrays, way, strict=True) if a.dtype == np.float64]
    actual = sum(float(np.sum(g * w)) for g, w in zip(slopes, moved, strict=True))
    assume(np.isfinite(actual))  # asin(tanh(20)): 0 · inf, where the limit is 0
    assert abs(actual - first) <= 1e-3 * max(1, abs(first)) + 4 * noise, (actual, first)
