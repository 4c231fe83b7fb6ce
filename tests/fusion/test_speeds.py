"""Plans by speeds of machines: figures of the class, and no logits for slow arithmetic."""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tests.runtime import test_losses as losses

import smelt as sm
from smelt import fusion, knobs, passes
from smelt.compiler import driver
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.text import text
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal
from smelt.machine.processor import PROCESSORS, Isa
from smelt.machine.target import LEVELS, Bandwidth, Rates, Target

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
    """A mean over all rows leaves one task: losses of rows are a kernel of their own."""
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


# ---- figures of the class ------------------------------------------------------------------------

CLASSES = [name for name, row in PROCESSORS.items() if row.speeds]
NARROW = ("haswell", "broadwell", "skylake", "znver2", "znver3")
"""Classes without AVX-512."""


def typical(cpu: str, cores: int = 2) -> Target:
    """Return a machine before it is measured."""
    isa: Isa = "neon-bf16" if cpu.startswith("neoverse") else "avx512"
    return Target.for_isa("avx2" if cpu in NARROW else isa, cores, cpu)


def measured(machine: Target, factor: float) -> Target:
    """Return a machine with all measured figures off by a factor."""
    rates = [
        Bandwidth(*(Rates(*(x * factor for x in astuple(side.at(at)))) for at in LEVELS))
        for side in (machine.one_thread, machine.all_threads)
    ]
    return replace(
        machine,
        measured=True,
        one_thread=rates[0],
        all_threads=rates[1],
        nt_store_gbs=machine.nt_store_gbs * factor,
        nt_copy_gbs=machine.nt_copy_gbs / factor,
        fma_gflops=machine.fma_gflops / factor,
        launch_ns=machine.launch_ns / factor,
        op_cost_scale=machine.op_cost_scale * factor,
    )


@pytest.mark.parametrize("cpu", CLASSES)
def test_no_measured_figure_is_in_a_plan(cpu: str) -> None:
    usual = typical(cpu)
    graph, sizes = program("cross-entropy", 512, 5000, 64)
    plans: set[str] = set()
    for factor in (1.0, 0.1, 1.3, 10.0):
        machine = measured(usual, factor)
        assert machine.planning == usual
        plans.add(text(fusion.plan(graph, machine, None, sizes)))
    assert plans == {text(fusion.plan(graph, usual, None, sizes))}


@pytest.mark.parametrize("cpu", CLASSES)
def test_rates_of_a_class_fall_from_level_to_level(cpu: str) -> None:
    for threads in (1, 8, 64):
        side = typical(cpu, threads).all_threads
        for near, far in pairwise(side.at(at) for at in LEVELS):
            assert all(a >= b > 0 for a, b in zip(astuple(near), astuple(far), strict=True))
