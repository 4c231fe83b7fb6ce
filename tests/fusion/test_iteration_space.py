"""Splits and lanes of rows: what is decided, and that prices and kernels follow one decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from tests.fusion.formulas import MACHINE

import smelt as sm
from smelt import fusion, lower
from smelt.fusion.iteration_space import IterationSpace, Step
from smelt.fusion.predict import costs
from smelt.kernel.ir import Split

ROW, COLUMN = 0, 1


def reduced_rows(rows: int, columns: int, over: int = COLUMN) -> IterationSpace:
    """A matrix whose axis `over` is reduced."""
    sizes = (rows, columns)
    return IterationSpace(
        MACHINE.tiling,
        lambda axes: prod(n for a, n in enumerate(sizes) if axes >> a & 1),
        [1 - over],
        [[1 << ROW, 1 << COLUMN]],
        [Step("sum", ["x"], 0b11, 1 << over, 1 << over)],
        sizes,
        1 << over,
    )


def test_each_lane_takes_a_short_row() -> None:
    assert reduced_rows(4096, 3).lane_axis() == ROW
    assert reduced_rows(4096, 300).lane_axis() == reduced_rows(5, 3).lane_axis() == -1
    assert reduced_rows(4096, 3, over=ROW).lane_axis() == -1


def test_an_axis_is_split_where_tasks_are_few() -> None:
    assert reduced_rows(2, 1 << 20).split() == COLUMN
    assert reduced_rows(4096, 1 << 20).split() == -1
    assert reduced_rows(2, 1 << 10).split() == -1
    space = reduced_rows(2, 1 << 20)
    waiting = Step("centred", ["x", "sum"], 0b11)
    assert replace(space, steps=[*space.steps, waiting]).split() == -1


def test_parts_of_columns_have_enough_rows() -> None:
    tiling, columns = MACHINE.tiling, reduced_rows(1 << 14, 3, over=ROW)
    assert columns.rows_per_step(ROW) == tiling.short_rows
    assert columns.parts(ROW, tiling.short_rows) == (1 << 14) // tiling.short_rows
    assert reduced_rows(1, 1 << 20).parts(COLUMN, None) == tiling.max_parts


@pytest.mark.parametrize("shape", [(3, 100_000), (100_000, 3), (64, 4096), (7, 50, 4000)], ids=str)
@pytest.mark.parametrize("reduce", [sm.sum, sm.max], ids=["sum", "max"])
def test_kernels_are_split_as_they_are_priced(
    shape: tuple[int, ...], reduce: Callable[..., Any]
) -> None:
    for axis in range(len(shape)):
        x = np.empty(shape, "f4")
        trace = sm.jit(lambda x, axis=axis: reduce(x, axis=axis)).lower(x).trace
        plan = fusion.plan(trace.graph, MACHINE, None, trace.hints)
        (cost,) = costs(plan, MACHINE, trace.hints)
        kernel = lower.run(plan.clusters[0], "eager", trace.hints)
        assert cost.split == any(isinstance(b, Split) for b in kernel.grid)
