"""Tests of the generator and of the comparison."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from tests.strategies.comparison import Judge, same_bits
from tests.strategies.graphs import STEPS, Program, graphs

from smelt.graph.interp import run
from smelt.graph.text import parse
from smelt.ops.elementwise import Map
from smelt.ops.reduce import Reduce
from smelt.ops.scalar import SCALARS


@cache
def sample() -> tuple[Program, ...]:
    """A fixed crowd of programs."""
    results: list[Program] = []

    @seed(1)
    @settings(
        max_examples=600,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs())
    def collect(program: Program) -> None:
        results.append(program)

    collect()
    return tuple(results)


def test_programs_are_worth_fusing() -> None:
    fusible = [
        sum(node.op.fusible and not node.op.is_source for node in p.graph.nodes()) for p in sample()
    ]
    assert np.mean([count >= 2 for count in fusible]) > 0.7


def test_programs_reach_every_kind_of_operator() -> None:
    names = Counter(node.op.name for p in sample() for node in p.graph.nodes())
    families = {name.split(".")[0] for name in names}
    assert families >= {
        "reduce",
        "scan",
        "scatter",
        "gather",
        "contract",
        "permute",
        "reshape",
        "expand",
        "slice",
        "flip",
        "pad",
        "concat",
        "iota",
        "cast",
        "input",
        "constant",
    }
    rows = {
        node.op.scalar for p in sample() for node in p.graph.nodes() if isinstance(node.op, Map)
    }
    assert len(rows) > 0.73 * len(SCALARS)


def test_programs_have_edges() -> None:
    shapes = {n for p in sample() for a in p.arrays for n in a.shape}
    assert shapes >= {0, 1, 2, 17, 33, 64, 65}
    assert any(p.graph.facts for p in sample())
    assert np.mean([len(p.graph.outputs) > 1 for p in sample()]) > 0.25
    kinds = {node.type.dtype.name for p in sample() for node in p.graph.nodes()}
    assert kinds >= {"bool", "i32", "i64", "f16", "bf16", "f32", "f64"}


def test_data_is_finite_unless_it_is_special() -> None:
    finite = 0
    for program in sample():
        with np.errstate(all="ignore"):
            finite += all(np.isfinite(a.astype(np.float64)).all() for a in run(*program))
    assert finite > 0.7 * len(sample())


@pytest.mark.parametrize("step", STEPS)
def test_every_step_alone(step: str) -> None:
    @seed(0)
    @settings(max_examples=25, deadline=None, database=None, phases=[Phase.generate])
    @given(graphs(max_nodes=4, steps=[step]))
    def check(program: Program) -> None:
        run(*program)

    check()


def test_shrinking_ends_at_something_small() -> None:
    def sums(program: Program) -> bool:
        return any(
            isinstance(n.op, Reduce) and n.op.combine == "sum" for n in program.graph.nodes()
        )

    program = find(graphs(), sums, settings=settings(max_examples=2000, database=None))
    assert len(program.graph.nodes()) <= 16  # a softmax is one step
    assert all(a.size <= 9 for a in program.arrays)


# ---- the judge -------------------------------------------------------------------------------


def test_same_bits() -> None:
    nan = np.array([np.nan, 0.0], np.float32)
    assert same_bits(nan, -nan * np.array([1, -1], np.float32))
    assert not same_bits(nan, np.array([np.nan, -0.0], np.float32))
    assert not same_bits(nan, nan.astype(np.float64))
    assert not same_bits(nan, np.array([1.0, 0.0], np.float32))
    assert same_bits(np.arange(3), np.arange(3))
    assert not same_bits(np.arange(3), np.arange(4))


def test_the_judge_accepts_what_rounding_explains() -> None:
    for program in sample()[:100]:
        judge = Judge(*program)
        close = [
            np.nextafter(a, a + 1) if a.dtype in (np.float32, np.float64) else a
            for a in judge.expected
        ]
        with np.errstate(all="ignore"):
            assert not judge.complaint(close)


def test_the_judge_sees_errors() -> None:
    """An error of 1 % (or of 1) in the largest element is noticed in most programs."""
    seen = total = 0
    for program in sample():
        judge = Judge(*program)
        for k, a in enumerate(judge.expected):
            with np.errstate(all="ignore"):
                wide = a.astype(np.float64)
            if not a.size or not np.isfinite(wide).all() or not wide.any() or a.dtype.itemsize == 2:
                continue
            at = np.unravel_index(np.argmax(np.abs(wide)), a.shape)
            wrong = [np.array(b, copy=True) for b in judge.expected]
            with np.errstate(over="ignore"):
                wrong[k][at] = ~a[at] if a.dtype.kind in "biu" else a[at] * 1.01
            total += 1
            seen += bool(judge.complaint(wrong))
    assert total > 200
    assert seen > 0.9 * total


@pytest.mark.parametrize("combine", ["sum", "prod"])
def test_the_order_of_a_reduction_decides_whether_it_overflows(combine: str) -> None:
    """Where the terms pass the largest number in some order, and nowhere else."""
    graph = parse(f"graph f(x: f64[n]) {{\n a = reduce.{combine}(x) {{axes=(0,)}}\n return a\n}}")
    terms = {"sum": (1e308, 1e308, -1e308, -1e308), "prod": (1e200, 1e200, 1e-200, 1e-200)}
    open_case = Judge(graph, [np.array(terms[combine])])
    for actual in (0.0, 1.0, np.inf, np.nan):
        assert not open_case.complaint([np.asarray(actual)])
    closed = Judge(
        graph,
        [np.array(terms[combine]) ** 0.5 if combine == "prod" else np.array(terms[combine]) / 8],
    )
    assert closed.complaint([np.asarray(np.inf)])
    assert not closed.complaint(closed.expected)


def test_the_oracle_names_the_position() -> None:
    program = sample()[0]
    judge = Judge(*program)
    assert "outputs instead of" in judge.complaint([])
    other = [a.astype(np.complex64) for a in judge.expected]
    assert "complex64" in judge.complaint(other)
