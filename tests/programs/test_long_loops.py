"""Unrolled loops: twice the steps take twice the work in each compiler stage.

Counted are operators, queries to the planner, statements and lines, not seconds: they show what
grows with the square of a program's length on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.fusion.formulas import MACHINE

import smelt as sm
from smelt import lower, passes
from smelt.codegen.build import llvm_text
from smelt.compiler import driver
from smelt.fusion import plan, state
from smelt.journal.facts import Journal

Program = tuple[Callable[..., Any], tuple[Any, ...]]

SLACK = 1.5
"""What counts may grow beyond the number of steps, squares of which would be 2: where programs
begin and end differs, and so does how many steps make a kernel."""


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def recurrence(steps: int) -> Program:
    """Columns of an array, one after the other, through a long function."""

    def run(x: Any, w: Any) -> Any:
        h = x[:, 0]
        for t in range(1, steps):
            h = sm.tanh(h * w + x[:, t])
        return h

    return run, (ones(256, steps), ones(256))


def written(steps: int) -> Program:
    """Rows of a result that are written in turn."""

    def run(x: Any) -> Any:
        y, h = sm.zeros_like(x), x[0]
        y[0] = h
        for t in range(1, steps):
            h = 0.9 * h + x[t]
            y[t] = h
        return y

    return run, (ones(steps, 64),)


def read_back(steps: int) -> Program:
    """Rows that are written over, each from the row before."""

    def run(x: Any) -> Any:
        y = x * 1.0
        for t in range(1, steps):
            y[t] = y[t] + 0.5 * y[t - 1]
        return y

    return run, (ones(steps, 64),)


def integrator(steps: int) -> Program:
    """Runge and Kutta's method."""

    def run(y: Any, k: Any) -> Any:
        def slope(y: Any) -> Any:
            return k * y * (1.0 - y)

        for _ in range(steps // 4):
            a = slope(y)
            b = slope(y + 0.05 * a)
            c = slope(y + 0.05 * b)
            d = slope(y + 0.1 * c)
            y = y + 0.1 / 6.0 * (a + 2.0 * b + 2.0 * c + d)
        return y

    return run, (ones(1000), ones(1000))


def layers(steps: int) -> Program:
    """Products with norms between them, each with a weight of its own."""

    def run(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = sm.maximum(x @ w, 0.0)
            x = x / sm.sqrt(sm.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return x

    return run, (ones(32, 64), *(ones(64, 64) for _ in range(steps // 3)))


class Counts(NamedTuple):
    """What the stages made of a program."""

    operators: int
    questions: int
    statements: int
    lines: int


def counts(program: Program) -> Counts:
    function, arrays = program
    graph = passes.run(sm.jit(function).lower(*arrays).trace.graph, Journal(), "eager")
    hints = dict.fromkeys(driver.input_size_names(graph), 64)
    queries: list[None] = []
    with pytest.MonkeyPatch.context() as patch:
        look = state.build_region
        patch.setattr(state, "build_region", lambda *a: (queries.append(None), look(*a))[1])
        fused_plan = plan(graph, MACHINE, Journal(), hints)
    kernels = [lower.run(c, "eager", hints) for c in fused_plan.clusters]
    lines = sum(llvm_text(k, MACHINE).count("\n") for k in kernels)
    return Counts(len(graph.nodes()), len(queries), sum(len(k.body) for k in kernels), lines)


@pytest.mark.parametrize("make", [recurrence, written, read_back, integrator, layers])
def test_twice_the_steps_are_twice_the_work(make: Callable[[int], Program]) -> None:
    shorter, longer = counts(make(24)), counts(make(48))
    for name, before, after in zip(Counts._fields, shorter, longer, strict=True):
        assert after <= 2 * SLACK * before, (name, before, after)


@pytest.mark.parametrize("make", [recurrence, written, read_back, integrator, layers])
def test_long_loops_are_what_numpy_says(make: Callable[[int], Program]) -> None:
    function, arrays = make(24)
    rng = np.random.default_rng(3)
    arrays = tuple(rng.uniform(0.1, 0.9, a.shape).astype(np.float32) for a in arrays)
    actual = np.asarray(sm.jit(function)(*arrays))
    wide = [sm.asarray(a.astype(np.float64)) for a in arrays]
    want = np.asarray(function(*wide))
    np.testing.assert_allclose(actual, want, rtol=24 * 64 * 2.0**-23)
