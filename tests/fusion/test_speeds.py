"""Plans on machines of other speeds: what is not stored does not depend on fast arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.runtime import test_losses as losses

import smelt as sm
from smelt import driver, fusion, knobs, passes
from smelt.fusion.bitsets import Hints, at_hints
from smelt.graph.ir import Graph
from smelt.journal import Journal
from smelt.target import Target

THREADS = (1, 2, 8, 64)
ARITHMETIC = (1.0, 0.5, 0.25)
"""Rates of arithmetic relative to the assumed one."""
LAST_LEVEL = 32 << 20
ROWS = 384
"""Rows for each thread: two of a stream's blocks."""


def entropy(x: Any, w: Any, y: Any) -> Any:
    z = losses.logits(x, w)
    return sm.mean(sm.nn.logsumexp(z, axis=-1) - losses.gathered(z, y))


LOSSES = {
    "cross-entropy": entropy,
    "label smoothing": losses.smoothed,
    "z-loss": losses.z_loss,
    "entropy": losses.with_entropy,
    "ignored rows": losses.with_holes,
    "soft cap": losses.capped,
}


@cache
def program(name: str, rows: int, columns: int, width: int) -> tuple[Graph, dict[str, int]]:
    """Return the graph of a loss after the passes, and its sizes."""
    specs = [sm.spec(f"f32[{rows},{width}]"), sm.spec(f"f32[{columns},{width}]")]
    specs.append(sm.spec(f"int64[{rows}]"))
    trace = sm.jit(LOSSES[name]).lower(*specs).trace
    names = driver.input_size_names(trace.graph)
    sizes = trace.match(*[n for x in specs for n in x.shape])
    graph = passes.run(trace.graph, Journal(), knobs.ROUNDING.get())
    return graph, dict(zip(names, sizes, strict=True))


def largest_stored(plan: fusion.Plan, sizes: dict[str, int]) -> int:
    """Return the elements of the largest value between kernels."""
    stored = [n for c in plan.clusters for n in c.outputs if n not in plan.graph.outputs]
    return max((at_hints(n.type.elements, Hints(sizes)) for n in stored), default=0)


@pytest.mark.parametrize(
    ("name", "columns", "width"),
    [*((name, 5000, 64) for name in LOSSES), ("cross-entropy", 32_000, 768)],
)
def test_no_logits_are_stored_however_slow_arithmetic_is(
    name: str, columns: int, width: int
) -> None:
    """A mean over all rows leaves one task; the losses of rows are a kernel of their own then."""
    stored: list[tuple[int, float]] = []
    for threads in THREADS:
        rows = ROWS * threads
        graph, sizes = program(name, rows, columns, width)
        for rate in ARITHMETIC:
            machine = Target.for_isa("avx512", threads)
            machine = replace(machine, fma_gflops=machine.fma_gflops * rate, l3_bytes=LAST_LEVEL)
            with knobs.config(check_positions=False):
                plan = fusion.plan(graph, machine, Journal(keep=False), sizes)
            if largest_stored(plan, sizes) >= rows * columns:
                stored.append((threads, rate))
    assert not stored
