"""Row chunking of large values: which graphs are chunked, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import smelt as sm
from smelt import fusion, knobs
from smelt.compiler import driver
from smelt.errors import VerifyError
from smelt.errors.reasons import REASONS
from smelt.explain.analysis import memory_analysis
from smelt.explain.report import report
from smelt.fusion import compose
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.plan import Plan
from smelt.fusion.text import parse, text
from smelt.fusion.verify import verify
from smelt.graph import text as graph_text
from smelt.graph.interp import run as interpret
from smelt.graph.ir import Graph
from smelt.graph.loop import Loop
from smelt.graph.text import name_values
from smelt.journal.facts import Journal
from smelt.kernel.chunks import WHOLE
from smelt.lower import interp
from smelt.machine.target import Target
from smelt.runtime import executable, host_stream, memory
from smelt.runtime.executable import CallStep
from smelt.runtime.host_stream import HostCall
from smelt.runtime.sliced_plan import LINE_BYTES

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
TINY = replace(Target.for_isa(driver.host().isa), l3_bytes=1 << 14)
"""A machine for which the values of small tests are large, wherever it runs."""
PLANNED = replace(Target.for_isa("avx512"), l3_bytes=1 << 14)
"""The same with known instructions: for what is said of a plan that does not run."""


def graph_of(code: Callable[..., Any], arrays: tuple[Array, ...]) -> Graph:
    """What the function computes; that its labels are inside is promised."""
    with knobs.config(check_positions=False):
        return sm.jit(code).lower(*arrays).trace.graph


def compiled(
    code: Callable[..., Any], *arrays: Array, slower: float = 9.0, target: Target = TINY
) -> driver.Compiled:
    """Compile the function for a machine with hardly any cache.

    Recomputed values do not keep chunks of a few hundred numbers from being chosen.
    """
    graph = graph_of(code, arrays)
    sizes = dict(zip(driver.input_size_names(graph), sizes_of(graph, arrays), strict=True))
    with patch.multiple(compose, MAX_SLOWER=slower, IO_TIME_FACTOR=0.01):
        return driver.compile(graph, hints=sizes, target=target, journal=Journal())


def sizes_of(graph: Graph, arrays: tuple[Array, ...]) -> tuple[int, ...]:
    named: dict[str, int] = {}
    for x, a in zip(graph.inputs, arrays, strict=True):
        for d, n in zip(x.type.shape, a.shape, strict=True):
            named.setdefault(str(d), n)
    return tuple(named[n] for n in driver.input_size_names(graph))


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def head(x: Any, w: Any, y: Any) -> Any:
    z = x @ sm.matrix_transpose(w)
    total = sm.nn.logsumexp(z, axis=-1)
    return sm.mean(total - sm.take_along_axis(z, y[:, None], axis=1)[:, 0])


def head_back(x: Any, w: Any, y: Any) -> Any:
    value, (dx, dw) = sm.value_and_grad(head, (0, 1))(x, w, y)
    return value, dx, dw


def distilled(x: Any, w: Any, y: Any, u: Any) -> Any:
    """KL divergence of two heads, back to the first."""

    def loss(x: Any, w: Any) -> Any:
        low = sm.nn.log_softmax(x @ sm.matrix_transpose(w), axis=-1)
        high = sm.nn.log_softmax(y @ sm.matrix_transpose(u), axis=-1)
        return sm.sum(sm.exp(high) * (high - low)) / x.shape[0]

    value, (dx, dw) = sm.value_and_grad(loss, (0, 1))(x, w)
    return value, dx, dw


def contrast(x: Any, y: Any) -> Any:
    """In-batch negatives, one way: each row against all others, itself the right one."""

    def loss(x: Any, y: Any) -> Any:
        z = x @ sm.matrix_transpose(y)
        return sm.mean(sm.nn.logsumexp(z, axis=-1) - sm.sum(x * y, axis=-1))

    value, (dx, dy) = sm.value_and_grad(loss, (0, 1))(x, y)
    return value, dx, dy


def apart(x: Any, w: Any, y: Any, u: Any) -> Any:
    """Jensen-Shannon divergence of two heads, token by token: nothing is summed over the tokens,
    and no sum can be corrected through the logarithm of a sum of both."""
    p, q = (sm.nn.softmax(a @ sm.matrix_transpose(b)) for a, b in ((x, w), (y, u)))
    mean = 0.5 * (p + q)
    each = p * (sm.log(p) - sm.log(mean)) + q * (sm.log(q) - sm.log(mean))
    return (0.5 * sm.sum(each, axis=1),)


def words_back(h: Any, e: Any, b: Any, keep: Any, g: Any) -> Any:
    """A SPLADE head and its gradients.  A text's logits are as large as those of all, and tokens
    wait for the largest of their text; words wait for nobody."""

    def largest(h: Any, e: Any, b: Any) -> Any:
        z = sm.log1p(sm.nn.relu(sm.matmul(h, sm.matrix_transpose(e)) + b))
        return sm.max(sm.where(keep[:, :, None], z, 0.0), axis=1)

    result, pull = sm.vjp(largest, h, e, b)
    return result, *pull(g)


def hinge(x: Any, w: Any, y: Any) -> Any:
    """The greatest of the others' scores above the right one's: truths of all stand beside it."""

    def loss(x: Any, w: Any) -> Any:
        z = x @ sm.matrix_transpose(w)
        is_label = y[:, None] == sm.arange(z.shape[1])
        others = sm.max(sm.where(is_label, -sm.inf, z), axis=1)
        return sm.mean(others - sm.sum(sm.where(is_label, z, 0), axis=1))

    return sm.value_and_grad(loss, (0, 1))(x, w)[1]


def gathered(x: Any, w: Any, y: Any) -> Any:
    """Cross-entropy whose right scores are products of their own: the way back has a large
    scatter, which no rounds make."""

    def loss(x: Any, w: Any) -> Any:
        scores = sm.sum(x * sm.take(w, y, axis=0), axis=1)
        return sm.mean(sm.nn.logsumexp(x @ sm.matrix_transpose(w), axis=1) - scores)

    return sm.value_and_grad(loss, (0, 1))(x, w)[1]


def both(x: Any, w: Any) -> Any:
    """Each element waits for all rows: a softmax over columns and one over rows."""
    z = x @ sm.matrix_transpose(w)
    p = sm.nn.softmax(z, axis=0) * sm.nn.softmax(z, axis=1)
    return (sm.matrix_transpose(p) @ x,)


def both_ways(x: Any, y: Any, scale: Any) -> Any:
    """Symmetric cross-entropy with in-batch negatives.

    It is that of the scores and of the transposed scores: the gradient of every score waits for its
    column's sum.
    """

    def loss(x: Any, y: Any, scale: Any) -> Any:
        z = x @ sm.matrix_transpose(y) * scale
        diagonal = sm.arange(z.shape[0])
        return sm.nn.cross_entropy(z, diagonal) + sm.nn.cross_entropy(
            sm.matrix_transpose(z), diagonal
        )

    value, slopes = sm.value_and_grad(loss, (0, 1, 2))(x, y, scale)
    return value, *slopes


def biased(x: Any, w: Any, t: Any) -> Any:
    """Scores and a number for each distance, whose gradient joins what the distances say."""

    def loss(x: Any, w: Any, t: Any) -> Any:
        z = x @ sm.matrix_transpose(w)
        i, j = sm.arange(z.shape[0])[:, None], sm.arange(z.shape[1])
        return sm.mean(sm.nn.logsumexp(z + t[(i * 5 + j * 3) % t.shape[0]], axis=1))

    return sm.value_and_grad(loss, (0, 1, 2))(x, w, t)[1]


LABELS = RNG.integers(0, 301, 150)
CASES: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "head": (head_back, (f32(150, 24), f32(301, 24), LABELS)),
    "picked": (gathered, (f32(150, 24), f32(301, 24), LABELS)),
    "distilled": (distilled, (f32(150, 24), f32(301, 24), f32(150, 16), f32(301, 16))),
    "contrast": (contrast, (f32(140, 24), f32(140, 24))),
    "apart": (
        apart,
        tuple(0.2 * f32(*s) for s in ((150, 240), (301, 240), (150, 160), (301, 160))),
    ),
    "both": (both, (f32(150, 24), f32(301, 24))),
    "both ways": (both_ways, (0.3 * f32(140, 24), 0.3 * f32(140, 24), f32())),
    "biased": (biased, (f32(150, 24), f32(301, 24), f32(37))),
    "words": (
        words_back,
        (f32(2, 50, 24), f32(301, 24), f32(301), RNG.random((2, 50)) < 0.7, f32(2, 301)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_chunks_give_the_result_of_one_pass(name: str) -> None:
    code, arrays = CASES[name]
    program = compiled(code, *arrays)
    assert program.plan.chunked_clusters, "its large values are stored whole"
    ((_, body),) = program.plan.chunked_clusters
    assert body.chunks.block < max(n for a in arrays for n in a.shape[:-1])
    result = program.run(arrays, sizes_of(graph_of(code, arrays), arrays))
    whole = sm.jit(code)(*arrays)
    for got, want in zip(result, map(np.asarray, whole), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6 * np.abs(want).max())


def test_loops_around_chunks_run_compiled_steps() -> None:
    def walk(start: Any, steps: Any) -> Any:
        return sm.scan(lambda c, m: (sm.tanh(c @ m), c), start, steps)[0]

    def code(x: Any, w: Any, y: Any, steps: Any) -> Any:
        _, dx, dw = head_back(x + walk(steps[0, 0], steps), w, y)
        return dx, dw, walk(sm.sum(dx, axis=0), steps)

    arrays = (*CASES["head"][1], 0.2 * f32(10, 24, 24))
    program = compiled(code, *arrays)
    assert program.plan.chunked_clusters
    clusters = program.plan.all_clusters
    loops = [c for c in clusters if any(isinstance(n.op, Loop) for n in c.nodes)]
    assert len(loops) == 2
    assert all(c.loop is not None and c.loop.plan is not None for c in loops)
    assert len({c.name for c in clusters}) == len(clusters)
    result = program.run(arrays, sizes_of(graph_of(code, arrays), arrays))
    for got, want in zip(result, map(np.asarray, sm.jit(code)(*arrays)), strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("count", [0, 1, 47, 48, 49, 97, 150])
def test_one_plan_serves_every_number_of_rows(count: int) -> None:
    """Fewer rows than a block, whole blocks, one row more, none at all."""
    x, w, y = CASES["head"][1]
    program = compiled(head_back, x, w, y)
    graph = graph_of(head_back, (x, w, y))
    arrays = x[:count].copy(), w, y[:count].copy()
    value, dx, dw = program.run(arrays, sizes_of(graph, arrays))
    z = (arrays[0] @ w.T).astype(np.float64)
    e = np.exp(z - z.max(axis=1, keepdims=True)) if count else z
    p = e / e.sum(axis=1, keepdims=True)
    places = np.arange(count)
    p[places, arrays[2]] -= 1
    if count:
        loss = -np.log(p[places, arrays[2]] + 1).mean()
        np.testing.assert_allclose(value, loss, rtol=1e-5)
    np.testing.assert_allclose(dx, p @ w / max(count, 1), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(dw, p.T @ arrays[0] / max(count, 1), rtol=1e-3, atol=1e-5)


def test_words_are_cut_and_not_texts() -> None:
    """Words are the last axis of the logits: blocks of them do not lie together, and need not."""
    program = compiled(words_back, *CASES["words"][1])
    ((number, body),) = program.plan.chunked_clusters
    cluster, chunking = program.plan.clusters[number], body.chunks
    cut = {(cluster.inputs[c.place].type.rank, c.axis) for c in chunking.reads if c.axis >= 0}
    assert cut == {(1, 0), (2, 0), (2, 1)}  # bias, words' vectors, what arrives at the result
    assert [c.axis for c in chunking.makes if cluster.outputs[c.place].type.rank == 3] == [WHOLE]
    assert "contract" not in [
        n.op.name for c in program.plan.clusters if c.body is None for n in c.nodes
    ]


def test_large_values_are_not_chunked_for_a_large_result() -> None:
    """Where as much comes out as is held, and nothing is summed, rounds save little."""

    def wide(x: Any, w: Any, v: Any) -> Any:
        p = sm.nn.softmax(x @ sm.matrix_transpose(w))
        return sm.nn.softmax(p * sm.log(p + 1.0)) @ v

    arrays = f32(150, 240), f32(301, 240), f32(301, 240)
    program = compiled(wide, *arrays)
    sizes = dict(zip(program.size_names, sizes_of(program.graph, arrays), strict=True))
    assert memory_analysis(program, sizes).temp_size_in_bytes >= 150 * 301 * 4
    assert not program.plan.chunked_clusters


def test_the_gradient_is_that_of_finite_differences() -> None:
    x, w, y = (a.astype(np.float64) if a.dtype.kind == "f" else a for a in CASES["head"][1])
    program = compiled(head_back, x, w, y)
    sizes = sizes_of(graph_of(head_back, (x, w, y)), (x, w, y))
    assert program.plan.chunked_clusters
    _, dx, dw = program.run((x, w, y), sizes)
    for k, slope in ((0, dx), (1, dw)):
        step = RNG.standard_normal((x, w)[k].shape)
        ends = []
        for h in (1e-5, -1e-5):
            moved = [x, w, y]
            moved[k] = moved[k] + h * step
            ends.append(float(program.run(tuple(moved), sizes)[0]))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float(np.sum(slope * step)), rel=1e-6)


def test_nothing_of_all_rows_is_in_memory() -> None:
    """What a round keeps between its kernels is less than the large value."""
    x, w, y = CASES["head"][1]
    program = compiled(head_back, x, w, y)
    sizes = dict(zip(program.size_names, sizes_of(program.graph, (x, w, y)), strict=True))
    assert memory_analysis(program, sizes).temp_size_in_bytes < x.shape[0] * w.shape[0] * 4
    program.run((x, w, y), tuple(sizes.values()))
    (turns,) = [
        s.call
        for g in program.executable.launches
        for s in g
        if isinstance(s, CallStep) and isinstance(s.call, HostCall)
    ]
    taken = [p.arena_bytes for p in turns.body._prepared.values()]
    assert max(taken) < x.shape[0] * w.shape[0] * 4


@pytest.mark.parametrize("thrifty", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_a_chunk_keeps_fits_and_is_right_in_either_plan(
    name: str, thrifty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fastest and memory-reusing plans are right in native code and the interpreter."""
    code, arrays = CASES[name]
    search = fusion.plan_single.plan

    def either(*args: Any, **settings: Any) -> Plan:
        return search(*args, **{**settings, "thrifty": thrifty})

    monkeypatch.setattr(fusion.plan_single, "plan", either)
    planned, built = compiled(code, *arrays, target=PLANNED), compiled(code, *arrays)
    ((_, inner),) = planned.plan.chunked_clusters
    sizes = dict(zip(built.size_names, sizes_of(built.graph, arrays), strict=True))
    hints = Hints({**sizes, inner.chunks.rows: inner.chunks.block})
    made_of = zip(inner.plan.graph.outputs, inner.chunks.makes, strict=True)
    summed = sum(at_hints(n.type.nbytes, hints) for n, c in made_of if c.combine)
    kept = compose.arena_bytes(inner.plan, hints)
    assert kept <= max(PLANNED.l3_bytes * 3 // 4, summed * 5 // 4)
    result = built.run(arrays, tuple(sizes.values()))
    output = result
    if thrifty and name in ("contrast", "apart"):  # sums and rows: the others take 20 times as long
        output = interp.run(built.plan, built.kernels, arrays, sizes)
    whole = sm.jit(code)(*arrays)
    for got, other, want in zip(result, output, map(np.asarray, whole), strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6 * np.abs(want).max())
        np.testing.assert_allclose(other, want, rtol=3e-5, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("name", CASES)
def test_sums_over_chunks_begin_with_the_first_chunk(name: str) -> None:
    """What stands in a result's memory before counts for nothing."""
    code, arrays = CASES[name]
    program = compiled(code, *arrays)
    sizes = sizes_of(graph_of(code, arrays), arrays)
    wanted = program.run(arrays, sizes)
    into = [np.full_like(x, np.nan) for x in wanted]
    for got, want in zip(program.run(arrays, sizes, into), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def f32_empty(shape: tuple[int, int]) -> Array:
    return np.zeros(shape, np.float32)


def planned(code: Callable[..., Any], *arrays: Array) -> Plan:
    """The plan for one core of a machine with the speeds that are assumed."""
    target = replace(Target.for_isa("avx512"), cores=1)
    graph = graph_of(code, arrays)
    sizes = dict(zip(driver.input_size_names(graph), sizes_of(graph, arrays), strict=True))
    return compose.plan(driver.passes.run(graph), target, None, sizes)


@pytest.mark.parametrize(
    ("code", "others", "n", "rows", "kept"),
    [(head_back, (), 1024, 512, 1), (distilled, ((512, 512),), 512, 256, 2)],
)
def test_a_large_value_reuses_memory_where_that_avoids_chunking(
    code: Callable[..., Any], others: tuple[tuple[int, int], ...], n: int, rows: int, kept: int
) -> None:
    """The gradient of the logits takes their place, so that a round has twice the rows."""
    v, d = 32000, 512
    more = *map(f32_empty, others), *(f32_empty((v, d)) for _ in others)
    labels = () if others else (np.zeros(n, np.int64),)
    plan = planned(code, f32_empty((n, d)), f32_empty((v, d)), *more, *labels)
    ((_, body),) = plan.chunked_clusters
    assert body.chunks.block == rows
    large = [
        s for s in body.plan.slots if s.offset is not None and len(str(s.nbytes).split("*")) == 3
    ]
    assert [s.reuses is None for s in large] == [True] * kept + [False]
    (reported, *_) = [d for d in plan.decisions if d.reason == "written-over"]
    assert REASONS[reported.reason].code == "F026" and reported.saves_bytes in (
        rows * v * 4,
        rows * v * 2,
    )
    assert {reported.details["value"], reported.details["old"]} <= set(
        name_values(plan.graph).values()
    )


def test_a_round_keeps_as_much_as_it_adds_to() -> None:
    """A chunk keeps as much as it accumulates.

    Smaller chunks would read and write the gradient of the weights more often than what they hold;
    their rows are whole blocks of what products sum.
    """
    plan = planned(
        head_back, f32_empty((512, 512)), f32_empty((32000, 512)), np.zeros(512, np.int64)
    )
    ((_, body),) = plan.chunked_clusters
    assert body.chunks.block == 256
    (place,) = [c.place for c in body.chunks.makes if c.combine]
    (slot,) = [s for s in body.plan.slots if s.node is body.plan.graph.outputs[place]]
    assert slot.reuses is not None, "it is copied after every round"


def test_a_large_sum_over_rows_is_added_to() -> None:
    """A gradient that waits for its norm is as large as what rounds are made for."""

    def code(x: Any, w: Any, y: Any) -> Any:
        value, dx, dw = head_back(x, w, y)
        return value, dx, dw / sm.sqrt(sm.sum(sm.square(dw)))

    arrays = f32(150, 24), f32(301, 24), RNG.integers(0, 301, 150)
    program = compiled(code, *arrays)
    assert program.plan.chunked_clusters
    result = program.run(arrays, sizes_of(graph_of(code, arrays), arrays))
    for got, want in zip(result, sm.jit(code)(*arrays), strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "last", ["pad(v3) {low=(0, 0), high=(0, 2), value=31}", "concat(v3, b) {axis=1}"]
)
def test_elements_beside_a_sum_are_not_summed(last: str) -> None:
    """Padding of a sum is stored once; chunks merge what they reduce."""
    source = """graph f(x: u8[m,65], limit: i32[m,1], y: u8[1,65,2], b: u64[m,2]) {
      at = iota() {shape=(1, 65), axis=1, dtype=i32}
      inside = le(at, limit)
      v0 = select(inside, x, 1:u8)
      v1 = reshape(v0) {shape=(m, 65, 1)}
      v2 = sub(v1, y)
      v3 = reduce.sum(v2) {axes=(1,)}
      v4 = LAST
      return v4
    }"""
    graph, m = graph_text.parse(source.replace("LAST", last)), 200
    arrays = [
        RNG.integers(0, 3, (m, 65)).astype(np.uint8),
        RNG.integers(0, 60, (m, 1)).astype(np.int32),
        RNG.integers(0, 3, (1, 65, 2)).astype(np.uint8),
        RNG.integers(0, 60, (m, 2)).astype(np.uint64),
    ]
    with patch.multiple(compose, MAX_SLOWER=9.0, IO_TIME_FACTOR=0.01):
        program = driver.compile(graph, hints={"m": m}, target=TINY, journal=Journal())
    assert program.plan.chunked_clusters
    np.testing.assert_array_equal(program.run(arrays, (m,))[0], interpret(graph, arrays)[0])


def test_a_round_keeps_less_where_that_is_about_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = f32_empty((512, 512)), f32_empty((32000, 512)), np.zeros(512, np.int64)
    rows: list[int] = []
    for worth in (1.0, 1.5):
        monkeypatch.setattr(compose, "MAX_SLOWDOWN", worth)
        ((_, body),) = planned(head_back, *arrays).chunked_clusters
        rows.append(body.chunks.block)
    assert rows[0] == 256 > rows[1]


def test_booleans_of_large_values_are_chunked_too() -> None:
    """They are a quarter as large, and may fit the last cache where the values do not."""
    plan = planned(hinge, f32_empty((1000, 512)), f32_empty((32000, 512)), np.zeros(1000, np.int64))
    assert plan.chunked_clusters
    x, w, y = f32(150, 24), f32(301, 24), LABELS
    chunked = compiled(hinge, x, w, y)
    assert chunked.plan.chunked_clusters
    actual = chunked.run((x, w, y), sizes_of(graph_of(hinge, (x, w, y)), (x, w, y)))
    z = x @ w.T
    z[np.arange(150), y] = -np.inf
    dz = (np.arange(301) == z.argmax(1)[:, None]).astype(np.float32)
    dz[np.arange(150), y] -= 1
    np.testing.assert_allclose(actual[0], dz @ w / 150, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual[1], dz.T @ x / 150, rtol=1e-4, atol=1e-6)


def test_all_chunks_share_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last round of fewer rows takes none of its own, which would wait beside the other."""
    x, w, y = CASES["head"][1]
    program = compiled(head_back, x, w, y)
    rows = 2 * program.plan.chunked_clusters[0][1].chunks.block + 1
    x, y = x[:rows].copy(), y[:rows].copy()
    taken: list[int] = []
    for module in (host_stream, executable):
        monkeypatch.setattr(module, "allocate", lambda n: (taken.append(n), memory.allocate(n))[1])
    sizes = sizes_of(graph_of(head_back, (x, w, y)), (x, w, y))
    program.run((x, w, y), sizes)
    (turns,) = [
        s.call
        for g in program.executable.launches
        for s in g
        if isinstance(s, CallStep) and isinstance(s.call, HostCall)
    ]
    arenas = {p.arena_bytes for p in turns.body._prepared.values()}
    assert len(arenas) == 2  # whole rounds and a shorter one
    nbytes = turns.prepare(dict(zip(program.size_names, sizes, strict=True)))
    assert max(arenas) < nbytes <= max(arenas) + 2 * LINE_BYTES
    assert [n for n in taken if n in {*arenas, nbytes}] == [nbytes]


def running(x: Any, w: Any) -> Any:
    """Rows wait for the rows before them."""
    p = sm.cumulative_sum(x @ sm.matrix_transpose(w), axis=0)
    return sm.matrix_transpose(sm.nn.softmax(p, axis=1)) @ x


def test_rows_that_wait_for_others_are_not_cut() -> None:
    x, w = f32(150, 24), f32(301, 24)
    program = compiled(running, x, w)
    assert not program.plan.chunked_clusters
    (actual,) = program.run((x, w), sizes_of(graph_of(running, (x, w)), (x, w)))
    np.testing.assert_allclose(actual, np.asarray(sm.jit(running)(x, w)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_plan_says_what_runs(name: str) -> None:
    """Printed, read again, verified: the rounds with their body."""
    program = compiled(CASES[name][0], *CASES[name][1])
    printed = text(program.plan, graph=True)
    again = verify(parse(printed))
    assert text(again, graph=True) == printed
    ((number, body),) = again.chunked_clusters
    assert body.chunks == program.plan.chunked_clusters[0][1].chunks
    assert "in rounds of rows=" in printed and " by 48, 256 over " in printed
    assert (number,) in program.plan.launches


def test_a_plan_whose_chunks_do_not_fit_is_refused() -> None:
    program = compiled(head_back, *CASES["head"][1])
    ((number, body),) = program.plan.chunked_clusters
    cluster = program.plan.clusters[number]
    first, *rest = body.chunks.reads
    for reads in ((first._replace(axis=1), *rest), tuple(rest), (first._replace(place=99), *rest)):
        wrong = replace(cluster, body=replace(body, chunks=replace(body.chunks, reads=reads)))
        clusters = [wrong if c is cluster else c for c in program.plan.clusters]
        with pytest.raises(VerifyError, match="rounds"):
            verify(replace(program.plan, clusters=tuple(clusters)))


def test_a_report_shows_chunks_and_their_kernels() -> None:
    """All rounds together cross memory with less than is stored else; a round has its kernels."""
    program = compiled(head_back, *CASES["head"][1])
    x, w, _ = CASES["head"][1]
    sizes = dict(zip(program.size_names, sizes_of(program.graph, CASES["head"][1]), strict=True))
    reported = report(program, sizes)
    (whole,) = [k for k in reported.data.kernels if k.kind == "rounds"]
    inner = [k for k in reported.data.kernels if k.within == whole.id]
    rows = program.plan.chunked_clusters[0][1].chunks.block
    assert whole.rounds == -(-x.shape[0] // rows)
    assert inner and all(k.rounds == whole.rounds and k.text for k in inner)
    assert whole.flops >= 3 * 2 * x.size * w.shape[0]
    assert reported.data.total.flops == sum(
        k.flops for k in reported.data.kernels if k.within is None
    )
    assert f"{whole.rounds} rounds of {rows} rows" in str(reported)
    exp, total = (
        next(n for n in reported.data.nodes if n.op == op) for op in ("exp", "reduce.sum")
    )
    assert reported.why(exp.label, total.label).together
    (decision,) = [d for d in reported.decisions if d.reason == "rounds"]
    assert decision.code == "F115" and decision.saves_bytes >= 2 * 4 * x.shape[0] * w.shape[0]
    assert decision.fused_ns and decision.split_ns


def test_values_that_are_not_cut_say_why() -> None:
    program = compiled(running, f32(150, 24), f32(301, 24))
    (refused,) = [d for d in program.plan.decisions if d.reason == "not-in-rounds"]
    assert refused.verdict == "split"
    assert "mixes rows" in refused.details["how"]
