"""What is computed before chunks, the chunked axis, and limits on memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.poisoned_memory import LARGE, NAN, run_poisoned, same_bits
from tests.runtime.test_chunking import CASES, both_ways, compiled, f32, graph_of, sizes_of

import smelt as sm
from smelt import knobs, passes
from smelt.compiler import driver
from smelt.explain.analysis import memory_analysis
from smelt.fusion import chunking, compose
from smelt.fusion.bitsets import Hints
from smelt.fusion.chunking import chunk_graph
from smelt.fusion.text import parse, text
from smelt.fusion.verify import verify
from smelt.journal.facts import Journal
from smelt.machine.target import Target


def heads(q: Any, k: Any, v: Any) -> Any:
    """Attention and its gradients: heads wait for nobody, but have too much for one round."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return sm.sum((sm.nn.softmax(q @ sm.matrix_transpose(k) * 0.2) @ v) ** 2)

    return sm.value_and_grad(loss, (0, 1, 2))(q, k, v)[1]


def test_chunk_loops_may_follow_chunk_loops() -> None:
    """The gradient of a softmax over columns waits for sums that wait for one over rows."""

    def loss(x: Any, w: Any) -> Any:
        z = x @ sm.matrix_transpose(w)
        return sm.mean(sm.max(sm.nn.softmax(z, axis=0) * sm.nn.softmax(z, axis=1), axis=1))

    def code(x: Any, w: Any) -> Any:
        return sm.value_and_grad(loss, (0, 1))(x, w)[1]

    arrays = 0.3 * f32(150, 24), 0.3 * f32(301, 24)
    program = compiled(code, *arrays)
    assert len(program.plan.chunked_clusters) == 2
    printed = text(program.plan, graph=True)
    assert text(verify(parse(printed)), graph=True) == printed
    result = program.run(arrays, sizes_of(graph_of(code, arrays), arrays))
    for got, want in zip(result, map(np.asarray, sm.jit(code)(*arrays)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", ["biased", "both ways"])
def test_half_types_are_cut_too(name: str) -> None:
    """What joins and what is summed over rows is kept in float32 between rounds."""
    code, arrays = CASES[name]
    inputs = tuple(a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 else a for a in arrays)
    program = compiled(code, *inputs)
    assert program.plan.chunked_clusters
    result = program.run(inputs, sizes_of(graph_of(code, inputs), inputs))
    exact = (a.astype(np.float32) if a.dtype == ml_dtypes.bfloat16 else a for a in inputs)
    for got, want in zip(result, map(np.asarray, sm.jit(code)(*exact)), strict=True):
        assert got.dtype == ml_dtypes.bfloat16
        most = 2.0**-5 * np.abs(want).max()  # a few roundings of what is summed and of the sum
        np.testing.assert_allclose(got.astype(np.float32), want, atol=most)


def test_scores_of_labels_are_computed_and_not_read() -> None:
    """Scores of labels are computed by PyTorch's spelling of the loss.

    It reads the diagonal of a log-softmax of the transposed scores; its gradient compares positions
    once for either way.
    """

    def code(x: Any, y: Any) -> Any:
        z = x @ sm.matrix_transpose(y)
        n, half = z.shape[0], np.float32(-0.5)
        hot = sm.where(sm.arange(n)[:, None] == sm.arange(n)[None, :], half, half * 0)
        transposed = sm.matrix_transpose(z)
        low, high = (sm.nn.log_softmax(a, axis=1) for a in (z, transposed))
        dz = hot - sm.exp(low) * sm.sum(hot, axis=1, keepdims=True)
        dt = hot - sm.exp(high) * sm.sum(hot, axis=1, keepdims=True)
        places = sm.arange(n)
        loss = sm.mean(high[places, places]) + sm.mean(low[places, places])
        d = dz + sm.matrix_transpose(dt)
        return loss, d @ y, sm.matrix_transpose(d) @ x

    arrays = 0.3 * f32(140, 24), 0.3 * f32(140, 24)
    program = compiled(code, *arrays)
    assert program.plan.chunked_clusters
    gathers = [n for n in program.graph.nodes() if n.op.name == "gather"]
    assert all(1 in n.inputs[0].type.shape for n in gathers)  # of rows, not of scores
    result = program.run(arrays, sizes_of(graph_of(code, arrays), arrays))
    x, y = (a.astype(np.float64) for a in arrays)
    e = np.exp(x @ y.T)
    p, q = e / e.sum(axis=1, keepdims=True), e / e.sum(axis=0)
    wanted = np.log(np.diag(p)).mean() + np.log(np.diag(q)).mean()
    d = 0.5 * (p + q) - np.eye(140)
    for got, want in zip(result, (wanted, d @ y, d.T @ x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


def test_queries_are_cut_and_not_heads() -> None:
    """Heads come first and wait for nobody, but the scores of one are too many."""
    graph = graph_of(heads, (f32(3, 5, 7), f32(3, 6, 7), f32(3, 6, 7)))
    graph = passes.run(graph, Journal(), "eager")
    scores = next(n for n in graph.nodes() if n.op.name == "contract")
    sizes = {"n0": 12, "n1": 4096, "n2": 64, "n4": 4096, "n8": 64}
    actual = chunk_graph(graph, [scores], sizes, 1 << 25, 48)
    assert actual is not None and not actual.recomputes
    assert actual.extent == scores.type.shape[1]
    assert [p.combine for p in actual.written].count("add") == 2  # of keys and of values


def test_recomputation_has_to_be_worth_its_time() -> None:
    """Recomputing is worth it if it saves much memory or the user asks.

    Sums over all rows that chunks read are computed before from the same value; otherwise the value
    is stored, and the reason has the numbers.
    """
    arrays = CASES["both ways"][1]
    program = compiled(both_ways, *arrays, slower=1.0)
    assert not program.plan.chunked_clusters
    (refused,) = [d for d in program.plan.decisions if d.reason == "not-in-rounds"]
    assert "times as long" in refused.details["how"]
    with knobs.config(max_extra_memory=70_000):
        limited = compiled(both_ways, *arrays, slower=1.0)
    assert limited.plan.chunked_clusters
    sizes = dict(zip(program.size_names, sizes_of(program.graph, arrays), strict=True))
    bytes_ = [memory_analysis(m, sizes).temp_size_in_bytes for m in (program, limited)]
    assert bytes_[0] >= 140 * 140 * 4 and bytes_[1] < 140 * 140 * 2


def test_a_limit_on_memory_is_met_where_chunks_can() -> None:
    """Nothing is large for a machine with a large cache, but the limit says what is."""
    code, arrays = CASES["head"]
    graph = graph_of(code, arrays)
    sizes = dict(zip(driver.input_size_names(graph), sizes_of(graph, arrays), strict=True))
    room, results = 40_000, 4 * (1 + 150 * 24 + 301 * 24)
    target = Target.for_isa(driver.host().isa)
    whole = driver.compile(graph, hints=sizes, target=target)
    with knobs.config(max_extra_memory=room + results):
        program = driver.compile(graph, hints=sizes, target=target)
        result = program.run(arrays, tuple(sizes.values()))
    assert program.plan.chunked_clusters and not whole.plan.chunked_clusters
    assert memory_analysis(program, sizes).temp_size_in_bytes <= room
    for got, want in zip(result, whole.run(arrays, tuple(sizes.values())), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_an_unreachable_limit_is_reported_with_a_reachable_one() -> None:
    """The error names what would do: with that much the same program runs.  What a round keeps
    counts, and the limit is met."""
    code, arrays = CASES["head"]
    jitted = sm.jit(code)
    jitted(*arrays)
    with sm.config(max_extra_memory=1), pytest.raises(sm.errors.OutOfMemory) as caught:
        jitted(*arrays)
    number, unit = str(caught.value.fields["needed"]).split()
    least = int(float(number) * {"KiB": 2**10, "MiB": 2**20}[unit] * 1.01)
    results = 4 * (1 + 150 * 24 + 301 * 24)
    assert results < least < results + 150 * 301 * 4
    with sm.config(max_extra_memory=least):
        result = jitted(*arrays)
    for got, want in zip(map(np.asarray, result), map(np.asarray, jitted(*arrays)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_memory_of_a_chunk_counts_for_the_limit() -> None:
    code, arrays = CASES["head"]
    graph = graph_of(code, arrays)
    sizes = dict(zip(driver.input_size_names(graph), sizes_of(graph, arrays), strict=True))
    results = 4 * (1 + 150 * 24 + 301 * 24)
    target = Target.for_isa(driver.host().isa)
    with knobs.config(max_extra_memory=results + 40_000):
        program = driver.compile(graph, hints=sizes, target=target)
        prepared = program.executable.prepared(tuple(sizes.values()))
    assert program.plan.chunked_clusters and prepared.call_bytes > 0
    assert prepared.call_bytes + prepared.arena_bytes <= 40_000


@pytest.mark.parametrize("name", CASES)
def test_a_plan_fits_no_less_memory_than_it_takes(name: str) -> None:
    """A call would be refused under a limit for which its own plan was chosen."""
    code, arrays = CASES[name]
    program = compiled(code, *arrays)
    values = sizes_of(graph_of(code, arrays), arrays)
    prepared = program.executable.prepared(values)
    sizes = Hints(dict(zip(program.size_names, values, strict=True)))
    taken = prepared.arena_bytes + prepared.call_bytes
    assert prepared.call_bytes and not compose._fits(program.plan, sizes, taken - 1)


def needed(code: Any, arrays: tuple[Any, ...], limit: int) -> int:
    """Bytes that a plan made under a limit needs beyond its inputs."""
    with knobs.config(max_extra_memory=limit):
        program = compiled(code, *arrays)
    with knobs.config(max_extra_memory=None):
        result = program.executable.prepared(sizes_of(program.graph, arrays))
    results = sum(nbytes for *_, nbytes, over in result.results if over < 0)
    return result.arena_bytes + result.call_bytes + results


@pytest.mark.parametrize("name", CASES)
def test_what_a_plan_under_a_lower_limit_needs_is_enough(name: str) -> None:
    """A limit that leaves more room is not a reason for a plan that does not fit."""
    code, arrays = CASES[name]
    least = needed(code, arrays, 1)
    for limit in (least, least + 4000, 2 * least):
        assert needed(code, arrays, limit) <= limit


def test_reductions_before_the_chunks_end_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads of one word: what is summed over rows is read by what is made before it."""

    def loss(x: Any, w: Any, d: Any) -> Any:
        one, other = (x * d @ sm.matrix_transpose(w) for _ in range(2))
        transposed = sm.exp(sm.minimum(sm.matrix_transpose(other), np.float32(2)))
        back = sm.matrix_transpose(transposed)
        squares = (v * v for v in (back, back @ w * 0.1, w, sm.nn.logsumexp(one, axis=1)))
        return sum(sm.mean(v) for v in squares)

    def code(x: Any, w: Any, d: Any) -> Any:
        return sm.value_and_grad(loss, (0, 1))(x, w, d)

    looks = 0

    class Counted(chunking._ChunkGrower):  # pyright: ignore[reportPrivateUsage]
        def run(self, *args: Any) -> Any:
            nonlocal looks
            looks += 1
            assert looks < 1000, "planning does not end"
            return super().run(*args)

    monkeypatch.setattr(chunking, "_ChunkGrower", Counted)
    arrays = 0.3 * f32(17, 24), 0.3 * f32(1, 24), f32(24)
    with knobs.config(max_extra_memory=1):
        program = compiled(code, *arrays)
    with knobs.config(max_extra_memory=None):
        result = program.run(arrays, sizes_of(program.graph, arrays))
    for got, want in zip(result, _flat(sm.jit(code)(*arrays)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def _flat(actual: Any) -> list[Any]:
    value, gradients = actual
    return [np.asarray(v) for v in (value, *gradients)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fill", [NAN, LARGE])
def test_chunks_in_poisoned_memory(name: str, fill: int) -> None:
    """What a round waits for holds what nobody wrote before the first, and stands apart."""
    code, arrays = CASES[name]
    program = compiled(code, *arrays)
    order = sizes_of(graph_of(code, arrays), arrays)
    wanted = [np.array(a) for a in program.run(arrays, order)]
    problem = same_bits(wanted, run_poisoned(program.executable, arrays, order, fill))
    assert not problem, problem
