"""When an axis is streamed: where rows outgrow fast memory, however the algebra is spelled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.property.oracles import agree, interpret, sizes_at, spread

import smelt as sm
from smelt import fusion, lower, passes
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.compiler import driver
from smelt.errors import REASONS
from smelt.fusion.plan import Plan
from smelt.fusion.text import parse, text
from smelt.fusion.verify import verify
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal
from smelt.kernel import interp
from smelt.kernel.ir import Block, Kernel, Stream
from smelt.kernel.verify import verify as verify_kernel
from smelt.machine.target import Target
from smelt.ops.create import Input

MACHINE = Target.for_isa("avx512", cores=2)
Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Planned:
    """A program planned for some sizes."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel, ...]

    @property
    def streamed(self) -> list[str]:
        """The operators whose axis is streamed, kernel by kernel."""
        return [c.stream[0].op.name if c.stream else "" for c in self.plan.clusters]

    @property
    def sweeps(self) -> list[int]:
        """Streams of each kernel."""
        return [sum(isinstance(s, Stream) for s in k.body) for k in self.kernels]


def planned(code: Callable[..., Any], small: Shapes, large: Shapes) -> Planned:
    """`code` recorded for small arrays, whose sizes are symbols, and planned for large ones."""
    trace = sm.jit(code).lower(*(np.zeros(s, np.float32) for s in small)).trace
    graph = passes.run(trace.graph, Journal(), "fast")
    values = trace.match(*(n for s in large for n in s))
    assert values is not None
    hints = dict(zip(driver.input_size_names(trace.graph), values, strict=True))
    plan = verify(fusion.plan(graph, MACHINE, None, hints))
    built = [verify_kernel(lower.run(c, "fast", hints)) for c in plan.clusters]
    return Planned(graph, plan, tuple(built))


def check(actual: Planned, small: Shapes) -> None:
    """The kernels in the kernel interpreter against the graph."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in small]
    sizes = sizes_at(actual.graph, arrays)
    values = dict(zip(actual.graph.inputs, arrays, strict=True))
    for cluster, kernel in zip(actual.plan.clusters, actual.kernels, strict=True):
        inputs = [values[x] if x in values else evaluate_node(x, [], sizes) for x in cluster.inputs]
        got = interp.run(kernel, inputs, sizes, grid_sizes={a.name: 5 for a in kernel.axes})
        values |= dict(zip(cluster.outputs, got.values(), strict=True))
    allowed = spread(actual.graph, arrays, sizes)
    for node, want, off in zip(
        actual.graph.outputs, interpret(actual.graph, arrays, sizes), allowed, strict=True
    ):
        assert isinstance(node.op, Input) or not (problem := agree(values[node], want, off)), (
            problem
        )


def softmax(x: Any, axis: int = -1) -> Any:
    e = sm.exp2((x - sm.max(x, axis=axis, keepdims=True)) * 1.4426950408889634)
    return e / sm.sum(e, axis=axis, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return sm.nn.softmax(sm.matmul(q, sm.matrix_transpose(k)) * 0.125) @ v


def attention_otherwise(q: Any, k: Any, v: Any) -> Any:
    return softmax(sm.matmul(q * 0.125, sm.permute_dims(k, (0, 2, 1)))) @ v


def attention_of_slices(x: Any) -> Any:
    """Queries, keys and values of two heads in the columns of one array."""
    q, k, v = sm.unstack(sm.permute_dims(sm.reshape(x, (x.shape[0], 3, 2, 64)), (1, 2, 0, 3)))
    return attention(q, k, v)


def attention_of_groups(q: Any, k: Any, v: Any) -> Any:
    """Heads of queries that share keys, between the rows and the elements of a head."""
    scores = softmax(sm.einsum("sgrd,tgd->grst", q, k) * 0.125)
    return sm.einsum("grst,tgd->sgrd", scores, v)


def linear_logsumexp(h: Any, w: Any) -> Any:
    return sm.nn.logsumexp(h @ sm.matrix_transpose(w), axis=-1)


def quantised(x: Any) -> Any:
    return sm.sum(sm.round(x / sm.max(abs(x), axis=-1, keepdims=True) * 127), axis=-1)


QKV, LONG_KEYS = ((2, 9, 8), (2, 11, 8), (2, 11, 6)), ((12, 4096, 64),) * 3
ROWS = ((5, 23),)
PROGRAMS = {
    "long rows": (sm.nn.softmax, ROWS, [(8, 1 << 22)], [2]),
    "long rows otherwise": (softmax, ROWS, [(8, 1 << 22)], [2]),
    "long columns": (lambda x: softmax(x, 0), ROWS, [(8192, 4096)], [2]),
    "long sums": (lambda x: sm.nn.logsumexp(x, axis=-1), ROWS, [(64, 1 << 18)], [1]),
    "attention": (attention, QKV, LONG_KEYS, [1]),
    "attention otherwise": (attention_otherwise, QKV, LONG_KEYS, [1]),
    "attention of slices": (attention_of_slices, ((9, 384),), [(4096, 384)], [1]),
    "attention of groups": (
        attention_of_groups,
        ((9, 3, 2, 8), (9, 3, 8), (9, 3, 8)),
        [(2048, 4, 2, 64), (2048, 4, 64), (2048, 4, 64)],
        [1],
    ),
    "logits": (linear_logsumexp, ((7, 8), (9, 8)), [(512, 512), (32000, 512)], [1]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_streams_where_rows_outgrow_the_cache(name: str) -> None:
    code, small, large, sweeps = PROGRAMS[name]
    plan = planned(code, small, large)
    assert plan.sweeps == sweeps
    assert all(plan.streamed)
    assert text(parse(text(plan.plan), plan.graph)) == text(plan.plan)
    check(plan, small)


def test_blocks_of_rows_are_long_wherever_a_layout_has_them() -> None:
    """And the code multiplies those blocks, though it does not know the sizes."""
    _, small, large, _ = PROGRAMS["attention of groups"]
    (kernel,) = planned(attention_of_groups, small, large).kernels
    blocks = {b.axis: b.size for b in kernel.grid if isinstance(b, Block)}
    assert [*blocks.values()] == [64, 1, 1]
    rows = next(iter(blocks))
    products = [c for p in program(kernel).phases for c in schedule(p, MACHINE).blocked]
    assert [c.m for c in products] == [rows, rows]


def normal(x: Any) -> Any:
    centred = x - sm.mean(x, axis=-1, keepdims=True)
    return centred / sm.sqrt(sm.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def transposed(x: Any) -> Any:
    return sm.permute_dims(x, (1, 0))


@pytest.mark.parametrize(
    ("code", "count"),
    [
        (normal, 1),
        (lambda x: transposed(normal(x)), 2),
        (lambda x: normal(transposed(x)), 2),
        (lambda x: transposed(normal(transposed(x))), 1),
        (lambda x: transposed(sm.exp(x)), 1),
        (lambda x: transposed(softmax(x)), 2),
        (lambda x: softmax(transposed(x)), 2),
        (lambda x: sm.sum(x + transposed(x), axis=-1), 2),
    ],
)
def test_reduced_rows_are_transposed_by_a_kernel_of_their_own(code: Any, count: int) -> None:
    """Lanes that are taken from as many lines, or put there, cost more than a round trip."""
    plan = planned(code, [(11, 11)], [(2048, 2048)])
    assert len(plan.kernels) == count
    check(plan, [(11, 11)])


@pytest.mark.parametrize(
    ("code", "large"),
    [
        (sm.nn.softmax, [(4096, 1024)]),
        (lambda x: sm.sum(x, axis=-1), [(64, 1 << 20)]),
        (sm.exp, [(64, 1 << 20)]),
    ],
)
def test_rows_that_fit_and_lone_reductions_do_not_stream(code: Any, large: Shapes) -> None:
    assert not any(planned(code, ROWS, large).streamed)


def test_what_cannot_be_corrected_is_visited_again() -> None:
    plan = planned(quantised, ROWS, [(64, 1 << 20)])
    check(plan, ROWS)
    for cluster, sweeps in zip(plan.plan.clusters, plan.sweeps, strict=True):
        assert cluster.stream is None or sweeps == 2


def test_decisions_say_how_each_reduction_is_carried() -> None:
    plan = planned(attention, QKV, LONG_KEYS).plan
    actual = {(d.reason, d.details["how"]) for d in plan.decisions if d.reason == "carried"}
    assert actual == {
        ("carried", "what was summed is rescaled at every change"),
        ("carried", "what is read is applied once, at the end"),
    }
    assert any(d.reason == "cascade" for d in plan.decisions)
    for d in plan.decisions:
        assert "?" not in REASONS[d.reason].explain(**d.details)


def test_extremes_of_products_whose_operand_is_two_arrays_at_computed_positions() -> None:
    """Which of the arrays is read depends on a position: a value, and no fold, along the summed
    axis of a product that a streamed one is asked to hold."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, s).astype(np.float32) for s in ((640, 96), (192, 257)))
    at = rng.integers(0, 192, 192)

    def code(x: Any, at: Any, w: Any) -> Any:
        return sm.max(sm.take(sm.concat([x, x + 1], axis=1), at, axis=1) @ w, axis=0)

    wanted = (np.concatenate([x, x + 1], axis=1)[:, at] @ w).max(0)
    assert np.array_equal(np.asarray(sm.jit(code)(x, at, w)), wanted)


def test_products_of_integers_are_work() -> None:
    """They were taken for masks, which cost nothing where tasks take whole rows: all of this ran in
    one task, and computed again for each result what the product reads."""

    def code(a: Any) -> Any:
        x = sm.astype((a > 0) | (a.T > 0), sm.int64)
        cubes = x @ x * x
        return sm.sum(cubes), sm.sum(cubes, axis=1)

    plan = planned(code, [(8, 8)], [(500, 500)])
    assert len(plan.plan.clusters) > 1 and not any(plan.streamed)


def standardised(x: Any) -> Any:
    z = sm.clip((x - sm.mean(x, axis=0)) / (sm.std(x, axis=0) + 1e-6), -3, 3)
    return z, sm.sum(sm.abs(z) > 2, axis=1)


def pulled(y: Any) -> Any:
    away = y[:, None] - y[None]
    near = 1 / (1 + sm.sum(away**2, axis=-1))
    return sm.sum((near * near / sm.sum(near))[..., None] * away, axis=1)


def filtered(x: Any, p: Any, f: Any) -> Any:
    gain = p[:, 0] / (p[0, 0] + 1)
    x, p = x + (1 - x[:, :1]) * gain, p - gain[:, None] * p[0][None]
    return x @ f.T, f @ p @ f.T


@pytest.mark.parametrize(
    ("code", "small", "large"),
    [
        (standardised, [(6, 5)], [(50000, 12)]),
        (pulled, [(6, 2)], [(1500, 2)]),
        (filtered, [(9, 8), (8, 8), (8, 8)], [(20000, 8), (8, 8), (8, 8)]),
    ],
)
def test_what_vectors_would_stay_empty_for_is_not_streamed(
    code: Callable[..., Any], small: Shapes, large: Shapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams that would leave vectors nearly empty are split.

    Columns visited one by one, adjacent pairs of numbers, and rows of eight along a small product:
    as one kernel each was three to ten times as slow.
    """
    monkeypatch.setattr(sys.modules[__name__], "MACHINE", Target.for_isa("avx512", cores=1))
    plan = planned(code, small, large)
    assert len(plan.plan.clusters) > 1 and not any(plan.streamed)
    check(plan, small)
