"""Programs over many arrays of different sizes compile in a time linear in their number."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.types import polynomial
from smelt.types.expr import Expr, atoms

SHAPES = [(50, 24), (24,), (24, 72), (72,), (24, 96), (96, 24), (96,)]


def step_of(shapes: list[tuple[int, ...]]) -> Any:
    """A step of AdamW whose gradients are clipped by their common norm, and its arguments."""
    start, step = sm.optim.adamw(1e-3)
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    function = sm.jit(lambda p, g, state: step(p, sm.optim.clip(g, 1.0), state))
    return function.lower(arrays, arrays, start(arrays))


def test_proofs_about_the_sizes_of_many_arrays_take_few_steps(monkeypatch: Any) -> None:
    steps: list[int] = []
    prove = polynomial._shifted_coefficient
    monkeypatch.setattr(
        polynomial,
        "_shifted_coefficient",
        lambda m, terms, positive: steps.append(len(terms)) or prove(m, terms, positive),
    )
    shapes = [(3 + 2 * k, 40 + 3 * k) if k % 2 else (5 + 7 * k,) for k in range(14)]
    with sm.config(cache=False):
        step_of(shapes).compile()
    assert sum(steps) < 20_000


def test_parts_of_a_sum_depend_on_its_own_axes_alone() -> None:
    """The sums of several arrays have nothing in common but the kernel."""
    arrays = [np.ones((40 + k, 3000 + k), np.float32) for k in range(4)]
    norm = sm.jit(lambda x: sm.optim.clip(x, 1.0))
    with sm.config(cache=False):
        kernels = sm.explain(norm, arrays).kernels
    parts = [line for k in kernels for line in k.text.splitlines() if "split(" in line]
    assert parts
    for line in parts:
        assert line.count("*") <= 1, line


@pytest.mark.clock
def test_a_step_over_two_hundred_parameters_compiles_in_seconds() -> None:
    lowered = step_of([SHAPES[k % len(SHAPES)] for k in range(200)])
    start = time.perf_counter()
    with sm.config(cache=False):
        lowered.compile()
    assert time.perf_counter() - start < 10


def test_helpers_of_this_module_see_symbolic_sizes() -> None:
    graph = step_of(SHAPES).trace.graph
    dims = [n for node in graph.inputs for n in node.type.shape]
    assert any(isinstance(n, Expr) and atoms(n) for n in dims)
