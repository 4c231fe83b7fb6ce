"""Kernels that carry reductions from block to block, for every block size and odd row.

Each program is forced into one kernel that streams an axis.  The kernel interpreter runs it with
blocks of several sizes; the graph interpreter says what is right, and how far rounding may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import one_cluster
from tests.property.oracles import agree, interpret, sizes_at, spread

import smelt as sm
from smelt import lower, passes
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal
from smelt.kernel import interp
from smelt.kernel.ir import Block, Dot, Kernel, Reduce, Stream, Update
from smelt.kernel.text import parse, text
from smelt.kernel.text_print import value_text
from smelt.kernel.verify import verify
from smelt.kernel.walk import visit
from smelt.ops.reduce import Reduce as ReduceOp

Array = np.ndarray[Any, Any]
Code = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A program, the shapes of its inputs, and what it must become."""

    name: str
    code: Code
    shapes: tuple[tuple[int, ...], ...]
    states: tuple[int, ...]
    """How many states each stream carries."""

    def __str__(self) -> str:
        return self.name


def softmax(x: Any, axis: int = -1) -> Any:
    e = sm.exp(x - sm.max(x, axis=axis, keepdims=True))
    return e / sm.sum(e, axis=axis, keepdims=True)


def softmax_of_twos(x: Any) -> Any:
    s = x * 1.4426950408889634
    e = sm.exp2(s - sm.max(s, axis=-1, keepdims=True))
    return e * (1.0 / sm.sum(e, axis=-1, keepdims=True))


def softmax_scaled_late(x: Any) -> Any:
    m = sm.max(x, axis=-1, keepdims=True)
    e = sm.exp2((x - m) * 1.4426950408889634)
    return e / sm.sum(e, axis=-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(sm.matmul(q, sm.matrix_transpose(k)) * 0.125) @ v


def attention_scale_first(q: Any, k: Any, v: Any) -> Any:
    s = sm.matmul(q * 0.125, sm.matrix_transpose(k))
    return sm.nn.softmax(s, axis=-1) @ v


def attention_divided_last(q: Any, k: Any, v: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k))
    e = sm.exp2(s * 0.18033688 - sm.max(s, axis=-1, keepdims=True) * 0.18033688)
    return (e @ v) / sm.sum(e, axis=-1, keepdims=True)


def weights(e: Any) -> Any:
    return e / sm.sum(e, axis=-1, keepdims=True)


def weighed(q: Any, k: Any, v: Any) -> Any:
    return weights(sm.exp(sm.matmul(q, sm.matrix_transpose(k)) * 0.125)) @ v


def weighed_signed(q: Any, k: Any, v: Any) -> Any:
    return weights(sm.matmul(q, sm.matrix_transpose(k)) + 20.0) @ v


def weighed_by_distance(x: Any, y: Any, v: Any) -> Any:
    return weights(1.0 / (1.0 + sm.abs(x - sm.matrix_transpose(y)))) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    n = s.shape[-1]
    rows, columns = sm.arange(s.shape[-2]), sm.arange(n)
    s = sm.where(columns <= sm.expand_dims(rows, axis=1), s, -sm.inf)
    return softmax(s) @ v


def causal_added(q: Any, k: Any, v: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    rows, columns = sm.arange(s.shape[-2]), sm.arange(s.shape[-1])
    ahead = columns - sm.expand_dims(rows, axis=1) > 0
    return softmax(s + sm.astype(sm.where(ahead, -sm.inf, 0.0), sm.float32)) @ v


def window(q: Any, k: Any, v: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    rows, columns = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
    return softmax(sm.where((columns <= rows) & (rows - columns < 4), s, -sm.inf)) @ v


def padded(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    last = sm.expand_dims(sm.astype(sm.abs(lengths) * 4, sm.int64), axis=(1, 2))
    return softmax(sm.where(sm.arange(s.shape[-1]) < last, s, -sm.inf)) @ v


def masked(q: Any, k: Any, v: Any, mask: Callable[[Any, Any], Any], hidden: float = -sm.inf) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    rows, columns = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
    return softmax(sm.where(mask(rows, columns), s, hidden)) @ v


def near(q: Any, k: Any, v: Any) -> Any:
    return masked(q, k, v, lambda i, j: sm.abs(i - j) <= 3)


def sinks(q: Any, k: Any, v: Any) -> Any:
    return masked(q, k, v, lambda i, j: (j <= i) & ((i - j < 4) | (j < 2)))


def chunked(q: Any, k: Any, v: Any) -> Any:
    return masked(q, k, v, lambda i, j: i // 7 == j // 7)


def documents(q: Any, k: Any, v: Any, ids: Any) -> Any:
    document = sm.astype(ids, sm.int64)
    return masked(q, k, v, lambda i, j: (sm.expand_dims(document, axis=1) == document) & (j <= i))


def faint(q: Any, k: Any, v: Any) -> Any:
    return masked(q, k, v, lambda i, j: (j <= i) & (i - j < 4), -1e9)


def faint_documents(q: Any, k: Any, v: Any, ids: Any) -> Any:
    document = sm.astype(ids, sm.int64)
    return masked(q, k, v, lambda i, j: sm.expand_dims(document, axis=1) == document, -1e4)


def faint_padded(q: Any, k: Any, v: Any, keep: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    rows, columns = sm.arange(s.shape[-2]), sm.arange(s.shape[-1])
    s = sm.where(sm.expand_dims(keep > 0, axis=(0, 1)), s, float(np.finfo(np.float32).min))
    return softmax(sm.where(columns <= sm.expand_dims(rows, axis=1), s, -sm.inf)) @ v


def faint_added(q: Any, k: Any, v: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    rows, columns = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
    return softmax(s + (sm.astype(columns <= rows, s.dtype) - 1) * 1e9) @ v


def faint_cleared(q: Any, k: Any, v: Any, ids: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    last = sm.astype(ids, sm.int64)
    keep = sm.astype(sm.expand_dims(last, axis=1) == last, s.dtype)
    return softmax(s * keep - 1e4 * (1 - keep)) @ v


def softmin(q: Any, k: Any, v: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    rows, columns = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
    s = sm.where(columns <= rows, s, 1e9)
    e = sm.exp(sm.min(s, axis=-1, keepdims=True) - s)
    return (e / sm.sum(e, axis=-1, keepdims=True)) @ v


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
    return softmax(s + sm.where(bias > 1.0, -sm.inf, bias)) @ v


def added(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return softmax(sm.matmul(q, sm.matrix_transpose(k)) * 0.125 + bias) @ v


def entropy(x: Any) -> Any:
    z = x - sm.max(x, axis=-1, keepdims=True)
    e = sm.exp(z)
    total = sm.sum(e, axis=-1)
    return sm.log(total) - sm.sum(e * z, axis=-1) / total


def divergence(x: Any, y: Any) -> Any:
    p, q = sm.nn.log_softmax(x), sm.nn.log_softmax(y)
    return sm.sum(sm.exp(p) * (p - q), axis=-1)


def weighted(x: Any, w: Any) -> Any:
    return sm.sum(softmax(x) * w, axis=-1)


def variance(x: Any, axis: int = 0) -> Any:
    m = sm.mean(x, axis=axis, keepdims=True)
    return sm.mean((x - m) ** 2, axis=axis)


def skew(x: Any) -> Any:
    d = x - sm.mean(x, axis=0, keepdims=True)
    return sm.sum(d * d * d, axis=0)


def covariance(x: Any, y: Any) -> Any:
    a = x - sm.mean(x, axis=0, keepdims=True)
    return sm.sum(a * (y - sm.mean(y, axis=0, keepdims=True)), axis=0)


def largest_normalised(x: Any) -> Any:
    return sm.max(sm.nn.log_softmax(x), axis=-1)


def quantised(x: Any) -> Any:
    return sm.sum(sm.round(x / sm.max(abs(x), axis=-1, keepdims=True) * 127), axis=-1)


def least_weighted(x: Any) -> Any:
    e = sm.exp((sm.min(x, axis=-1, keepdims=True) - x) * 0.5)
    return sm.sum(e * x, axis=-1) / sm.sum(e, axis=-1)


def nearest(x: Any, y: Any, norms: Any) -> Any:
    return sm.argmin(norms - 2 * (x @ sm.matrix_transpose(y)), axis=1)


def both(x: Any) -> Any:
    return sm.max(x, axis=-1), sm.argmax(x, axis=-1)


SQUARE = ((2, 23, 8), (2, 23, 8), (2, 23, 6))
ROWS, QKV = ((5, 41),), ((2, 9, 8), (2, 23, 8), (2, 23, 6))
CASES = (
    Case("softmax", softmax, ROWS, (2, 0)),
    Case("softmax called", sm.nn.softmax, ROWS, (2, 0)),
    Case("softmax of twos", softmax_of_twos, ROWS, (2, 0)),
    Case("softmax scaled late", softmax_scaled_late, ROWS, (2, 0)),
    Case("softmax of columns", lambda x: softmax(x, 0), ROWS, (2, 0)),
    Case("log softmax", sm.nn.log_softmax, ROWS, (2, 0)),
    Case("logsumexp", lambda x: sm.nn.logsumexp(x, axis=-1), ROWS, (2,)),
    Case("entropy", entropy, ROWS, (3,)),
    Case("divergence", divergence, ((4, 37), (4, 37)), (5,)),
    Case("weighted", weighted, ((4, 37), (4, 37)), (3,)),
    Case("variance", variance, ((53, 7),), (2,)),
    Case("variance of rows", lambda x: variance(x, 1), ROWS, (2,)),
    Case("skew", skew, ((53, 7),), (3,)),
    Case("covariance", covariance, ((53, 7), (53, 7)), (3,)),
    Case("largest normalised", largest_normalised, ROWS, (2,)),
    Case("least weighted", least_weighted, ROWS, (3,)),
    Case("quantised", quantised, ROWS, (1, 1)),
    Case("argmax", lambda x: sm.argmax(x, axis=-1), ROWS, (2,)),
    Case("argmin of columns", lambda x: sm.argmin(x, axis=0), ROWS, (2,)),
    Case("argmax of all", sm.argmax, ROWS, (2,)),
    Case("max and argmax", both, ROWS, (2,)),
    Case("nearest", nearest, ((9, 4), (41, 4), (41,)), (2,)),
    Case("attention", attention, QKV, (3,)),
    Case("attention scale first", attention_scale_first, QKV, (3,)),
    Case("attention divided last", attention_divided_last, QKV, (3,)),
    Case("weighed", weighed, QKV, (2,)),
    Case("weighed signed", weighed_signed, QKV, (3,)),
    Case("weighed by distance", weighed_by_distance, ((9, 1), (23, 1), (23, 2)), (2,)),
    Case("causal", causal, SQUARE, (3,)),
    Case("causal added", causal_added, SQUARE, (3,)),
    Case("window", window, SQUARE, (3,)),
    Case("padded", padded, (*QKV, (2,)), (3,)),
    Case("faint", faint, SQUARE, (3, 3)),
    Case("faint documents", faint_documents, (*SQUARE, (23,)), (3, 3)),
    Case("faint padded", faint_padded, (*SQUARE, (23,)), (3, 3)),
    Case("faint added", faint_added, SQUARE, (3, 3)),
    Case("faint cleared", faint_cleared, (*SQUARE, (23,)), (3, 3)),
    Case("softmin", softmin, SQUARE, (3, 3)),
    Case("near", near, SQUARE, (3,)),
    Case("sinks", sinks, SQUARE, (3,)),
    Case("chunked", chunked, SQUARE, (3,)),
    Case("documents", documents, (*SQUARE, (23,)), (3,)),
    Case("biased", biased, (*SQUARE, (23, 23)), (3,)),
    Case("added", added, (*SQUARE, (23, 23)), (3,)),
)
EVERY = pytest.mark.parametrize("case", CASES, ids=str)
_KNOWN: dict[str, tuple[Graph, Kernel]] = {}


def drawn(case: Case, seed: int = 0, scale: float = 3.0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(shape) * scale).astype(np.float32) for shape in case.shapes]


def streamed(case: Case) -> tuple[Graph, Kernel]:
    """The graph of a case, and the kernel that streams."""
    if case.name not in _KNOWN:
        recorded = sm.jit(case.code).lower(*drawn(case)).trace.graph
        graph = passes.run(recorded, Journal(), "fast")
        cluster = one_cluster(graph)
        folds = [n for n in cluster.nodes if isinstance(n.op, ReduceOp)]
        cluster = replace(cluster, stream=(folds[0], 0))
        _KNOWN[case.name] = graph, verify(lower.run(cluster, "fast", {}))
    return _KNOWN[case.name]


def check(case: Case, arrays: list[Array], blocks: int) -> None:
    """The kernel with blocks of one size against the graph."""
    graph, kernel = streamed(case)
    sizes = sizes_at(graph, arrays)
    names = [b.axis for b in kernel.grid if isinstance(b, Block)]
    names += [s.blocks[0].axis for s in kernel.body if isinstance(s, Stream)]
    result = interp.run(kernel, arrays, sizes, grid_sizes=dict.fromkeys(names, blocks))
    allowed = spread(graph, arrays, sizes)
    wanted = interpret(graph, arrays, sizes)
    for got, want, tolerance in zip(result.values(), wanted, allowed, strict=True):
        assert not (problem := agree(got, want, tolerance)), problem


def streams(kernel: Kernel) -> list[Stream]:
    return [s for s in kernel.body if isinstance(s, Stream)]


def shape_of(kernel: Kernel) -> list[list[str]]:
    """What each stream carries: a fold or a contraction for each state."""
    results: list[list[str]] = []
    for s in streams(kernel):
        folds = [
            v
            for u in s.body
            if isinstance(u, Update)
            for v in visit(u.value)
            if isinstance(v, Reduce | Dot)
        ]
        results.append([v.combine if isinstance(v, Reduce) else "dot" for v in folds])
    return results


@EVERY
@pytest.mark.parametrize("blocks", [5, 16, 4096])
def test_numbers(case: Case, blocks: int) -> None:
    check(case, drawn(case, blocks), blocks)


@pytest.mark.parametrize("name", ["softmax", "entropy", "covariance"])
def test_blocks_of_one(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    check(case, drawn(case), 1)


@EVERY
def test_states(case: Case) -> None:
    _, kernel = streamed(case)
    assert tuple(len(s.states) for s in streams(kernel)) == case.states


@EVERY
def test_text_reads_back(case: Case) -> None:
    _, kernel = streamed(case)
    assert text(parse(text(kernel))) == text(kernel)


@pytest.mark.parametrize(
    "names",
    [
        ("softmax", "softmax called", "softmax of twos", "softmax scaled late"),
        ("attention", "attention scale first"),
    ],
    ids=lambda names: names[0],
)
def test_other_spellings_carry_the_same(names: tuple[str, ...]) -> None:
    first, *others = [shape_of(streamed(c)[1]) for c in CASES if c.name in names]
    assert others == [first] * (len(names) - 1)


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("causal", "last(n1) + 1"),
        ("causal added", "last(n1) + 1"),
        ("window", "last(n1) + 1"),
        ("attention", None),
        ("softmax", None),
        ("padded", "v"),
        ("near", "last(n1) + 4"),
        ("sinks", "last(n1) + 1"),
        ("chunked", "w"),
        ("documents", "last(n1) + 1"),
        ("added", None),
        ("faint", "last(n1) + 1"),
        ("faint documents", "w"),
        ("softmin", "last(n1) + 1"),
        ("faint added", "last(n1) + 1"),
        ("faint cleared", "w"),
    ],
)
def test_blocks_that_a_mask_rules_out_are_not_visited(name: str, stop: str | None) -> None:
    _, kernel = streamed(next(c for c in CASES if c.name == name))
    actual = streams(kernel)[0].blocks[0].stop
    if stop is None or actual is None:
        assert stop is None and actual is None
    else:
        assert stop in value_text(actual, kernel)


def read(case: Case, arrays: list[Array], blocks: int) -> int:
    """Elements of the keys that a kernel reads."""
    graph, kernel = streamed(case)
    names = [b.axis for b in kernel.grid if isinstance(b, Block)]
    names += [s.blocks[0].axis for s in streams(kernel)]
    trace = interp.Trace()
    interp.run(
        kernel,
        arrays,
        sizes_at(graph, arrays),
        trace=trace,
        grid_sizes=dict.fromkeys(names, blocks),
    )
    return trace.loads[kernel.inputs[1].name].elements


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("causal", 10 / 16),
        ("window", 7 / 16),
        ("near", 10 / 16),
        ("sinks", 9 / 16),
        ("chunked", 10 / 16),
        ("documents", 7 / 16),
        ("added", 7 / 16),
    ],
)
def test_what_is_read_follows_what_is_visible(name: str, most: float) -> None:
    """Four blocks of rows and of keys: sixteen tiles, of which only those that matter are read."""
    case = next(c for c in CASES if c.name == name)
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((2, 32, 8)).astype(np.float32) for _ in range(3)]
    place = np.arange(32)
    if name == "documents":
        arrays.append((place // 10).astype(np.float32))
    if name == "added":
        band = (place[:, None] >= place) & (place[:, None] - place < 4)
        arrays.append(np.where(band, 0.5, -np.inf).astype(np.float32))
    assert read(case, arrays, 8) <= most * 2 * 4 * 32 * 8
    check(case, arrays, 8)


@pytest.mark.parametrize("kind", ["none", "one", "window", "blocks", "nan", "every other"])
def test_masks_that_are_data(kind: str) -> None:
    """Dense masks that rule out rows, single elements, whole blocks, or nothing at all."""
    case = next(c for c in CASES if c.name == "added")
    q, k, v, bias = drawn(case)
    place = np.arange(23)
    keep = {
        "none": np.zeros((23, 23), bool),
        "one": place[:, None] == 22 - place,
        "window": abs(place[:, None] - place) < 3,
        "blocks": place[:, None] // 8 == place // 8,
        "nan": place[:, None] < 30,
        "every other": (place[:, None] + place) % 2 == 0,
    }[kind]
    bias = np.where(keep, bias, -np.inf).astype(np.float32)
    if kind == "nan":
        bias[3, 5] = np.nan
    for blocks in (5, 8):
        check(case, [q, k, v, bias], blocks)


def spoilt(a: Array, how: str) -> Array:
    """Rows that are hard to carry."""
    a = a.copy()
    line = a.reshape(-1, a.shape[-1])
    match how:
        case "nothing first":
            line[:, : a.shape[-1] // 2] = -np.inf
        case "nothing":
            line[0] = -np.inf
        case "one finite":
            line[:] = -np.inf
            line[:, -2] = 1.5
        case "nan":
            line[0, 3] = np.nan
            line[1, -1] = np.nan
        case "rising":
            line.sort(axis=-1)
        case "falling":
            line[:] = -np.sort(-line, axis=-1)
        case "huge":
            line[:, ::2] = 3e38
        case "tiny":
            line[:] *= 1e-42
        case "equal":
            line[:] = np.round(line)
        case "infinite":
            line[0, 5] = np.inf
        case _:
            line[:, 1:] -= 1e4
    return a


SPOILT = (
    "nothing first",
    "nothing",
    "one finite",
    "nan",
    "rising",
    "falling",
    "huge",
    "tiny",
    "infinite",
    "equal",
    "far below the first",
)

ODD = (
    "softmax",
    "softmax scaled late",
    "softmax of columns",
    "logsumexp",
    "entropy",
    "weighted",
    "largest normalised",
    "argmax",
    "argmin of columns",
    "max and argmax",
)


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("name", ODD)
def test_odd_rows(name: str, how: str) -> None:
    case = next(c for c in CASES if c.name == name)
    first, *rest = drawn(case)
    check(case, [spoilt(first, how), *rest], 8)


@pytest.mark.parametrize("how", ["nan", "infinite", "huge", "tiny"])
def test_odd_attention(how: str) -> None:
    case = next(c for c in CASES if c.name == "causal")
    q, k, v = drawn(case)
    check(case, [spoilt(q, how), k, v], 8)
    check(case, [q, spoilt(k, how), v], 8)
    if how != "huge":  # a sum is divided at the end: it may overflow where a mean does not
        check(case, [q, k, spoilt(v, how)], 8)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_moments_far_from_zero(offset: float) -> None:
    """An anchor and double precision: nothing cancels but the rounding of the mean itself."""
    _, kernel = streamed(next(c for c in CASES if c.name == "variance"))
    x = (np.random.default_rng(2).standard_normal((53, 7)) + offset).astype(np.float32)
    (actual,) = interp.run(kernel, [x], grid_sizes={"n": 8}).values()
    assert np.allclose(actual, x.astype(np.float64).var(axis=0), rtol=1e-5 + 1e-9 * offset)
