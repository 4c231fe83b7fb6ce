"""Section E: attention in its variants, always from matmul, softmax and matmul.

One kernel each, and nothing with queries times keys is stored, but where heads are mixed; the same
numbers as plain NumPy in double precision.  Plans are those for long sequences, numbers are checked
at small sizes by the program that was planned for the long ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import REFERENCE, RUNS

import smelt as sm
from smelt import knobs
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.compiler import driver
from smelt.fusion.plan import Plan
from smelt.kernel.ir import Dot, If, Let, Stream
from smelt.kernel.walk import splits, statements, values_of, visit
from smelt.types.expr import evaluate
from smelt.types.expr import text as expr_text

Array = np.ndarray[Any, Any]
Code = Callable[..., Any]
HEADS, LONG, DIM = 8, 2048, 64


@dataclass(frozen=True)
class Variant:
    """One way to attend: code on (namespace, q, k, v, ..) and shapes of what else it takes."""

    name: str
    code: Code
    more: tuple[str, ...] = ()
    """Further arguments: `slopes` [h], `lengths` [h], `bias` [m,n], `documents` [n], ..."""
    mask_facts: str = ""
    """What the stream says of blocks that the mask rules out (where it goes `from` and `to`, and
    `where` it takes a block up), and whether the mask is computed only in blocks that it `cut`s."""
    group: int = 1
    """Query heads to each head of keys."""
    queries: int = 0
    """How many there are, where that is not as many as keys."""
    heads: int = HEADS
    pairs: int = 1
    """Pairs of queries and keys."""
    parts: bool = False
    """Parts that the keys are split into, for lack of other tasks."""

    def __str__(self) -> str:
        return self.name


def weights(xp: Any, s: Any) -> Any:
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def scores(xp: Any, q: Any, k: Any) -> Any:
    return xp.matmul(q, xp.matrix_transpose(k)) * 0.125


def positions(xp: Any, s: Any) -> tuple[Any, Any]:
    return xp.expand_dims(xp.arange(s.shape[-2]), axis=1), xp.arange(s.shape[-1])


def plain(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return xp.matmul(weights(xp, scores(xp, q, k)), v)


def masked(xp: Any, s: Any, keep: Any, v: Any) -> Any:
    return xp.matmul(weights(xp, xp.where(keep, s, -np.inf)), v)


def causal(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, j <= i, v)


def causal_of_itself(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """One row of positions for queries and keys, of which there are as many."""
    s = scores(xp, q, k)
    i = xp.arange(s.shape[-1])
    return masked(xp, s, xp.expand_dims(i, axis=1) >= i, v)


def causal_of_few(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """The queries stand at the end of the keys."""
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, j <= i + (s.shape[-1] - s.shape[-2]), v)


def window(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, (j <= i) & (i - j < 5), v)


def prefix(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, (j <= i) | (j < 3), v)


def padded(xp: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    s = scores(xp, q, k)
    keep = xp.arange(s.shape[-1]) < xp.expand_dims(lengths, axis=(1, 2))
    return masked(xp, s, keep, v)


def near(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, xp.abs(i - j) < 5, v)


def dilated(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, (j <= i) & (i - j < 9) & ((i - j) % 2 == 0), v)


def sinks(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """A window, and the first positions for everyone."""
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, (j <= i) & ((i - j < 5) | (j < 2)), v)


def chunked(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, i // 64 == j // 64, v)


def documents(xp: Any, q: Any, k: Any, v: Any, ids: Any) -> Any:
    return masked(xp, scores(xp, q, k), xp.expand_dims(ids, axis=1) == ids, v)


def causal_documents(xp: Any, q: Any, k: Any, v: Any, ids: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return masked(xp, s, (xp.expand_dims(ids, axis=1) == ids) & (j <= i), v)


def chosen(xp: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
    return masked(xp, scores(xp, q, k), keep, v)


def alibi(xp: Any, q: Any, k: Any, v: Any, slopes: Any) -> Any:
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    far = xp.astype(j - i, s.dtype)
    return masked(xp, s + far * xp.expand_dims(slopes, axis=(1, 2)), j <= i, v)


def biased(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    return xp.matmul(weights(xp, scores(xp, q, k) + bias), v)


def relative(xp: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
    """A number for each distance, found by its place in a table."""
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    return xp.matmul(weights(xp, s + xp.take(table, j - i + s.shape[-1] - 1, axis=0)), v)


def beside_a_sink(xp: Any, q: Any, k: Any, v: Any, sink: Any) -> Any:
    """A number of each head takes part in the sum, and leads nowhere."""
    s, c = scores(xp, q, k), xp.expand_dims(sink, axis=(1, 2))
    i, j = positions(xp, s)
    s = xp.where(j <= i, s, -np.inf)
    top = xp.maximum(xp.max(s, axis=-1, keepdims=True), c)
    e = xp.exp(s - top)
    return xp.matmul(e / (xp.sum(e, axis=-1, keepdims=True) + xp.exp(c - top)), v)


def joined_to_a_sink(xp: Any, q: Any, k: Any, v: Any, sink: Any) -> Any:
    """Add the sink as a column that is cut off the weights again (GPT-OSS, 2025)."""
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    s = xp.where(j <= i, s, -np.inf)
    c = xp.broadcast_to(xp.expand_dims(sink, axis=(1, 2)), (*s.shape[:-1], 1))
    row = xp.concat([s, c], axis=-1)
    row = row - xp.max(row, axis=-1, keepdims=True)
    return xp.matmul(weights(xp, row)[..., :-1], v)


def capped(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return xp.matmul(weights(xp, 30.0 * xp.tanh(scores(xp, q, k) / 30.0)), v)


def normed(xp: Any, q: Any, k: Any, v: Any) -> Any:
    def unit(x: Any) -> Any:
        return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    return xp.matmul(weights(xp, scores(xp, unit(q), unit(k))), v)


def grouped(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """q: [h,g,m,d], k and v: [h,n,d]."""
    return plain(xp, q, xp.expand_dims(k, axis=1), xp.expand_dims(v, axis=1))


def differential(xp: Any, q: Any, k: Any, v: Any, p: Any, r: Any, factors: Any) -> Any:
    """What two attentions have in common is taken away (Ye et al., 2024)."""
    factor = xp.expand_dims(factors, axis=(1, 2))
    return xp.matmul(weights(xp, scores(xp, q, k)) - factor * weights(xp, scores(xp, p, r)), v)


def talking(xp: Any, q: Any, k: Any, v: Any, before: Any, after: Any) -> Any:
    """Heads are mixed before and after the softmax (Shazeer et al., 2020)."""
    s = xp.sum(xp.expand_dims(before, axis=(2, 3)) * scores(xp, q, k), axis=1)
    w = xp.sum(xp.expand_dims(after, axis=(2, 3)) * weights(xp, s), axis=1)
    return xp.matmul(w, v)


VARIANTS = (
    Variant("E1 plain", plain),
    Variant("E1 causal", causal, mask_facts="to cut"),
    Variant("E1 causal of itself", causal_of_itself, mask_facts="to cut"),
    Variant("E1 window", window, mask_facts="from to cut"),
    Variant("E1 near", near, mask_facts="from to cut"),
    Variant("E1 dilated", dilated, mask_facts="from to where"),
    Variant("E1 prefix", prefix, mask_facts="to where cut"),
    Variant("E1 sinks", sinks, mask_facts="to where cut"),
    Variant("E1 chunked", chunked, mask_facts="from to where cut"),
    Variant("E1 padded", padded, ("lengths",), mask_facts="to cut"),
    Variant("E1 documents", documents, ("ids",), mask_facts="from to where cut"),
    Variant("E1 causal documents", causal_documents, ("ids",), mask_facts="from to where cut"),
    Variant("E1 chosen", chosen, ("keep",), mask_facts="where cut"),
    Variant("E2 alibi", alibi, ("slopes",), mask_facts="to cut"),
    Variant("E2 bias", biased, ("bias",), mask_facts="where"),
    Variant("E2 relative positions", relative, ("table",)),
    Variant("E2 sink", beside_a_sink, ("slopes",), mask_facts="to cut"),
    Variant("E2 joined to a sink", joined_to_a_sink, ("slopes",), mask_facts="to cut"),
    Variant("E2 softcap", capped),
    Variant("E3 grouped", grouped, group=3),
    Variant("E3 multi-query", grouped, group=HEADS, heads=1),
    Variant("E3 cross", plain, queries=97),
    Variant("E4 one query of a head", plain, queries=1, heads=1, parts=True),
    Variant("E4 one query of a group", grouped, group=4, queries=1, heads=1, parts=True),
    Variant("E4 few queries", causal_of_few, queries=5, heads=1, parts=True, mask_facts="to cut"),
    Variant("E6 differential", differential, ("q", "k", "slopes"), pairs=2),
    Variant("E6 talking heads", talking, ("mix", "mix")),
)
EVERY = pytest.mark.parametrize("variant", VARIANTS, ids=str)
MIXED = VARIANTS[-1]
"""One kernel could hold the heads that are mixed, but no block of a product with them inside."""
STREAMED = pytest.mark.parametrize("variant", VARIANTS[:-1], ids=str)


def arguments(v: Variant, heads: int, n: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    lead = (heads, v.group) if v.group > 1 else (heads,)
    m = v.queries or n
    shapes = [(*lead, m, DIM), (heads, n, DIM), (heads, n, DIM)]
    results: list[Array] = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    more = {
        "slopes": lambda: 2.0 ** -np.arange(1.0, heads + 1),
        "lengths": lambda: rng.integers(1, n + 1, heads),
        "bias": lambda: np.where(rng.random((n, n)) < 0.5 - np.eye(n), -np.inf, 0.5),
        "table": lambda: rng.standard_normal(2 * n - 1),
        "ids": lambda: np.sort(rng.integers(0, 1 + n // 16, n)),
        "mix": lambda: rng.standard_normal((heads, heads)),
        "q": lambda: rng.standard_normal((heads, m, DIM)),
        "k": lambda: rng.standard_normal((heads, n, DIM)),
        "keep": lambda: (rng.random((n, n)) < 0.5) | np.eye(n, dtype=bool),
    }
    for name in v.more:
        a = np.asarray(more[name]())
        results.append(a if a.dtype.kind in "ib" else a.astype(np.float32))
    return results


_MADE: dict[str, tuple[Any, driver.Compiled]] = {}


def compiled_variant(v: Variant) -> tuple[Any, driver.Compiled]:
    """The recording of a variant, and its program for long sequences."""
    if v.name not in _MADE:
        trace = sm.jit(lambda *xs: v.code(sm, *xs)).lower(*arguments(v, 2, 5)).trace
        large = arguments(v, v.heads, LONG * (16 if v.parts else 1))
        values = trace.match(*(n for a in large for n in a.shape))
        assert values is not None
        hints = dict(zip(driver.input_size_names(trace.graph), values, strict=True))
        with knobs.config(rounding="fast"):
            _MADE[v.name] = trace, driver.compile(trace.graph, hints=hints, target=RUNS)
    return _MADE[v.name]


def elements(plan: Plan, sizes: dict[str, int]) -> int:
    """Elements of the largest value that any kernel writes."""
    shapes = [n.type.shape for c in plan.clusters for n in c.outputs]
    return max(int(np.prod([int(evaluate(d, sizes)) for d in s])) for s in shapes)


@STREAMED
def test_one_kernel_that_stores_its_result_alone(variant: Variant) -> None:
    trace, program = compiled_variant(variant)
    large = arguments(variant, variant.heads, LONG)
    sizes = dict(
        zip(program.size_names, trace.match(*(n for a in large for n in a.shape)), strict=True)
    )
    assert len(program.kernels) == 1
    queries = variant.queries or LONG
    assert elements(program.plan, sizes) == variant.group * variant.heads * queries * DIM
    assert all(c.stream is not None for c in program.plan.clusters)
    (kernel,) = program.kernels
    assert kernel is not None
    assert len([s for s in statements(kernel) if isinstance(s, Stream)]) == 1  # no second sweep


@STREAMED
def test_what_a_mask_rules_out_is_not_visited(variant: Variant) -> None:
    (kernel,) = compiled_variant(variant)[1].kernels
    assert kernel is not None
    stream = next(s for s in kernel.body if isinstance(s, Stream))
    (block,) = stream.blocks
    cut = any(isinstance(s, Let) and isinstance(s.value, If) for s in stream.body)
    said = {"from": block.start, "to": block.stop, "where": stream.where, "cut": cut or None}
    assert {word for word, value in said.items() if value is not None} == set(
        variant.mask_facts.split()
    )


@STREAMED
def test_few_tasks_share_the_keys(variant: Variant) -> None:
    (kernel,) = compiled_variant(variant)[1].kernels
    assert kernel is not None
    visits = [n.partition("//")[2] for n in (expr_text(s.parts) for s in splits(kernel))]
    assert visits == (["512 + 1"] if variant.parts else [])


def test_products_of_mixed_heads_are_blocked() -> None:
    """One kernel that walks them stores no scores, and takes many times as long.  In rounds over
    queries there are three, and no scores of all queries either."""
    trace, compiled = compiled_variant(MIXED)
    large = arguments(MIXED, HEADS, LONG)
    sizes = dict(
        zip(compiled.size_names, trace.match(*(n for a in large for n in a.shape)), strict=True)
    )
    (cluster,) = compiled.plan.clusters
    assert cluster.body is not None
    assert elements(compiled.plan, sizes) == HEADS * LONG * DIM
    kernels = [k for k in compiled_variant(MIXED)[1].kernels if k is not None]
    blocked = [c for k in kernels for p in program(k).phases for c in schedule(p, RUNS).blocked]
    dots = [
        v
        for k in kernels
        for s in statements(k)
        for root in values_of(s)
        for v in visit(root)
        if isinstance(v, Dot)
    ]
    assert len(kernels) == 3 and len(blocked) == len(dots) == 2


@pytest.mark.parametrize("shape", [(2, 4, 512, 32), (2, 4, 512, 2, 16), (8, 512 * 32)])
def test_a_result_under_another_shape_is_no_kernel(shape: tuple[int, ...]) -> None:
    def code(q: Any) -> Any:
        weights = sm.nn.softmax(q @ sm.matrix_transpose(q) * 0.1, axis=-1)
        return sm.reshape(weights @ q, shape)

    q = np.random.default_rng(0).standard_normal((8, 512, 32), dtype=np.float32)
    report = sm.explain(code, q)
    assert len(report.kernels) == 1
    scores = q @ q.swapaxes(1, 2) * np.float32(0.1)
    grown = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (grown / grown.sum(-1, keepdims=True)) @ q
    np.testing.assert_allclose(np.asarray(sm.jit(code)(q)), wanted.reshape(shape), atol=1e-5)


@EVERY
def test_numbers(variant: Variant) -> None:
    trace, program = compiled_variant(variant)
    for heads, n in ((1, 1), (2, 7), (3, 129)):
        inputs = arguments(variant, heads, n, seed=n)
        values = trace.match(*(d for a in inputs for d in a.shape))
        arrays: Sequence[Array] = [inputs[k] for k in trace.arguments]
        (actual,) = program.run(list(arrays), tuple(values))
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs]
        with np.errstate(all="ignore"):
            want = variant.code(REFERENCE, *wide)
        assert np.allclose(actual, want, rtol=2e-5, atol=2e-6, equal_nan=True)
