"""Gradients of composites, first and second, against PyTorch's; and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.autodiff.differences import check

import smelt as sm
from smelt.autodiff.sums import Sums
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.graph import interp
from smelt.graph.ir import Graph

Array = np.ndarray[Any, Any]
plain_reverse = import_module("smelt.autodiff.reverse")  # the package has a function of this name


class Case(NamedTuple):
    """A function, the same function in PyTorch, and the shapes of its float arguments."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def spelt_softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def base_two(x: Any) -> Any:
    """Softmax in powers of two, its scale folded into the base."""
    scaled = x * (0.7 * math.log2(math.e))
    e = sm.exp2(scaled - sm.max(scaled, axis=-1, keepdims=True))
    return e / sm.sum(e, axis=-1, keepdims=True)


def masked(x: Any) -> Any:
    rows, columns = x.shape[-2:]
    seen = sm.expand_dims(sm.arange(rows), axis=1) >= sm.arange(columns)
    return sm.nn.softmax(sm.where(seen, x, -math.inf))


def masked_in_torch(torch: Any, x: Any) -> Any:
    seen = torch.arange(x.shape[-2])[:, None] >= torch.arange(x.shape[-1])
    return torch.softmax(torch.where(seen, x, -math.inf), -1)


def rotated_in_torch(t: Any, x: Any) -> Any:
    size = x.shape[-1]
    steps = 10000.0 ** (-2 * t.arange(size // 2, dtype=x.dtype) / size)
    angle = t.arange(x.shape[-2], dtype=x.dtype)[:, None] * steps
    a, b, c, s = x[..., : size // 2], x[..., size // 2 :], t.cos(angle), t.sin(angle)
    return t.cat([a * c - b * s, a * s + b * c], -1)


LABELS = np.array([2, 0, 4, 4, 1])
CASES: dict[str, Case] = {
    "softmax": Case(sm.nn.softmax, lambda t, x: t.softmax(x, -1), ((5, 7),)),
    "softmax over the first axis": Case(
        lambda x: sm.nn.softmax(x, axis=0), lambda t, x: t.softmax(x, 0), ((5, 7),)),
    "softmax spelt": Case(lambda x: spelt_softmax(sm, x), lambda t, x: t.softmax(x, -1), ((5, 7),)),
    "softmax by exp2": Case(base_two, lambda t, x: t.softmax(0.7 * x, -1), ((5, 7),)),
    "softmax with a mask": Case(masked, masked_in_torch, ((2, 5, 5),)),
    "log_softmax": Case(sm.nn.log_softmax, lambda t, x: t.log_softmax(x, -1), ((5, 7),)),
    "logsumexp": Case(
        lambda x: sm.nn.logsumexp(x, axis=-1), lambda t, x: t.logsumexp(x, -1), ((5, 7),)),
    "cross_entropy": Case(
        lambda x: sm.nn.cross_entropy(x, LABELS),
        lambda t, x: t.nn.functional.cross_entropy(x, t.tensor(LABELS)), ((5, 7),)),
    "cross_entropy with a label that does not count": Case(
        lambda x: sm.nn.cross_entropy(x, LABELS, ignore=4),
        lambda t, x: t.nn.functional.cross_entropy(x, t.tensor(LABELS), ignore_index=4),
        ((5, 7),)),
    "layer_norm": Case(
        sm.nn.layer_norm, lambda t, x, w, b: t.nn.functional.layer_norm(x, (7,), w, b),
        ((5, 7), (7,), (7,))),
    "rms_norm": Case(
        sm.nn.rms_norm, lambda t, x, w: t.nn.functional.rms_norm(x, (7,), w, eps=1e-6),
        ((5, 7), (7,))),
    "group_norm": Case(
        lambda x, w, b: sm.nn.group_norm(x, 2, w, b),
        lambda t, x, w, b: t.nn.functional.group_norm(x, 2, w, b), ((3, 4, 5), (4,), (4,))),
    "batch_norm": Case(
        lambda x, w, b: sm.nn.batch_norm(x, None, None, w, b),
        lambda t, x, w, b: t.nn.functional.batch_norm(x, None, None, w, b, training=True),
        ((6, 4, 5), (4,), (4,))),
    "gelu": Case(sm.nn.gelu, lambda t, x: t.nn.functional.gelu(x), ((5, 7),)),
    "gelu by tanh": Case(
        lambda x: sm.nn.gelu(x, approximate="tanh"),
        lambda t, x: t.nn.functional.gelu(x, approximate="tanh"), ((5, 7),)),
    "silu": Case(sm.nn.silu, lambda t, x: t.nn.functional.silu(x), ((5, 7),)),
    "mish": Case(sm.nn.mish, lambda t, x: t.nn.functional.mish(x), ((5, 7),)),
    "relu": Case(sm.nn.relu, lambda t, x: t.relu(x), ((5, 7),)),
    "attention": Case(
        sm.nn.attention, lambda t, q, k, v: t.softmax(q @ k.mT / math.sqrt(3), -1) @ v,
        ((2, 5, 3), (2, 6, 3), (2, 6, 4))),
    "attention, causal": Case(
        lambda q, k, v: sm.nn.attention(q, k, v, causal=True),
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 5, 3), (2, 5, 3), (2, 5, 4))),
    "attention, queries in groups": Case(
        sm.nn.attention,
        lambda t, q, k, v: t.softmax(q @ k.mT / math.sqrt(3), -1) @ v,
        ((2, 3, 5, 3), (2, 1, 6, 3), (2, 1, 6, 4))),
    "mlp": Case(
        lambda x, w, b, v: sm.tanh(x @ w + b) @ v, lambda t, x, w, b, v: t.tanh(x @ w + b) @ v,
        ((5, 3), (3, 4), (4,), (4, 2))),
    "conv": Case(
        lambda x, w, b: sm.nn.conv(x, w, b, stride=2, padding=1, dilation=2),
        lambda t, x, w, b: t.nn.functional.conv2d(x, w, b, 2, 1, 2),
        ((2, 3, 8, 7), (4, 3, 3, 2), (4,))),
    "max_pool": Case(
        lambda x: sm.nn.max_pool(x, 3, stride=2),
        lambda t, x: t.nn.functional.max_pool1d(x, 3, 2), ((2, 3, 9),)),
    "variance": Case(
        lambda x: sm.var(x, axis=1, correction=1.0), lambda t, x: t.var(x, 1), ((5, 7),)),
    "product": Case(lambda x: sm.prod(x, axis=1), lambda t, x: t.prod(x, 1), ((3, 4),)),
    "running product": Case(
        lambda x: sm.cumulative_prod(x, axis=1), lambda t, x: t.cumprod(x, 1), ((3, 4),)),
    "extremes": Case(
        lambda x: sm.max(x, axis=0) - sm.min(x, axis=0),
        lambda t, x: t.amax(x, 0) - t.amin(x, 0), ((5, 7),)),
    "embedding": Case(
        lambda x: sm.take(x, LABELS, axis=0), lambda t, x: x[t.tensor(LABELS)], ((5, 3),)),
    "power": Case(lambda x, y: sm.exp(x) ** y, lambda t, x, y: t.exp(x) ** y, ((4, 1), (3,))),
    "rotary": Case(sm.nn.rotary, rotated_in_torch, ((2, 5, 4),)),
}  # fmt: skip


def draw(case: Case, dtype: str) -> list[Array]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=s).astype(dtype) for s in case.shapes]


def weights(shape: tuple[int, ...]) -> Array:
    """Something that makes the elements of a result count differently."""
    return np.cos(np.arange(math.prod(shape))).reshape(shape)


def by_torch(case: Case, arrays: list[Array], *, twice: bool) -> list[Array]:
    torch = pytest.importorskip("torch")
    xs = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
    y = case.theirs(torch, *xs)
    total = (y * torch.tensor(weights(tuple(y.shape)))).sum()
    slopes = torch.autograd.grad(total, xs, create_graph=twice)
    if twice:
        again = sum((g * g * torch.tensor(weights(tuple(g.shape)) + 2)).sum() for g in slopes)
        if not again.requires_grad:  # a linear function has a constant gradient
            return [np.zeros(a.shape) for a in arrays]
        slopes = torch.autograd.grad(again, xs, allow_unused=True)
    return [
        np.zeros(a.shape) if g is None else g.detach().numpy()
        for a, g in zip(arrays, slopes, strict=True)
    ]


def total(case: Case, xs: tuple[Any, ...]) -> Any:
    y = case.ours(*xs)
    return sm.sum(y * sm.astype(sm.asarray(weights(tuple(map(int, y.shape)))), y.dtype))


def run(function: Callable[..., Any], arrays: list[Array], *, compiled: bool) -> list[Array]:
    """The results, of compiled code or of the graph's interpreter, which needs no compiling."""
    if compiled:
        return [np.asarray(g) for g in sm.jit(function)(*arrays)]
    trace = sm.jit(function).lower(*arrays).trace
    inputs = [arrays[k] for k in trace.arguments] + [evaluate(x) for x in trace.captured]
    result = interp.run(trace.graph, inputs)
    return [result[r.position] for r in trace.results]


def by_us(case: Case, arrays: list[Array], *, twice: bool, compiled: bool = False) -> list[Array]:
    places = tuple(range(len(arrays)))
    once = sm.grad(lambda *xs: total(case, xs), places)

    def again(*xs: Any) -> Any:
        slopes = once(*xs)
        return sum(
            sm.sum(g * g * sm.astype(sm.asarray(weights(a.shape) + 2), g.dtype))
            for g, a in zip(slopes, arrays, strict=True)
        )

    return run(sm.grad(again, places) if twice else once, arrays, compiled=compiled)


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    case = CASES[name]
    arrays = draw(case, "float64")
    for a, b in zip(by_us(case, arrays, twice=False), by_torch(case, arrays, twice=False)):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


COMPILED = (
    "softmax spelt",
    "cross_entropy",
    "layer_norm",
    "attention, causal",
    "mlp",
    "conv",
    "running product",
    "embedding",
)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_short_floats_against_torch(name: str) -> None:
    """A few dozen rounded operators: errors of some 2⁻²⁴ of the largest term each."""
    case = CASES[name]
    arrays = draw(case, "float32")
    result = by_us(case, arrays, twice=False, compiled=True)
    for a, b in zip(result, by_torch(case, arrays, twice=False), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1, np.abs(b).max()))


@pytest.mark.parametrize("name", CASES)
def test_twice_against_torch(name: str) -> None:
    case = CASES[name]
    arrays = draw(case, "float64")
    for a, b in zip(by_us(case, arrays, twice=True), by_torch(case, arrays, twice=True)):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10 * max(1, np.abs(b).max()))


def graph_of(function: Callable[..., Any], *arrays: Array) -> Graph:
    return sm.jit(function).lower(*arrays).trace.graph


@pytest.mark.parametrize("name", ["layer_norm", "softmax spelt", "gelu", "logsumexp"])
def test_against_differences(name: str) -> None:
    case = CASES[name]
    arrays = draw(case, "float64")
    check(graph_of(case.ours, *arrays), arrays, rtol=1e-5, atol=1e-6)


# ---- what gradients cost -----------------------------------------------------------------------


def operators(name: str) -> list[str]:
    case = CASES[name]
    arrays = draw(case, "float64")

    def back(*xs: Any) -> Any:
        y, pull = sm.vjp(case.ours, *xs)
        return pull(y)

    return [n.op.name for n in graph_of(back, *arrays).nodes()]


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "softmax spelt",
        "softmax by exp2",
        "softmax with a mask",
        "log_softmax",
        "logsumexp",
        "cross_entropy",
        "softmax over the first axis",
        "attention",
        "attention, causal",
    ],
)
def test_no_gradient_runs_through_the_gauge(name: str) -> None:
    """Comparing with the maximum is how its gradient finds its way back to the place."""
    names = operators(name)
    assert names.count("reduce.max") == 1
    compared = [n for n in names if n == "eq"]
    allowed = {"logsumexp": 1, "cross_entropy": 2, "attention, causal": 2}  # of their own
    assert len(compared) <= allowed.get(name, 0)


def test_an_extreme_that_matters_is_no_gauge() -> None:
    """A shift by the maximum is differentiated if the result keeps it."""
    x = np.array([1.0, 3.0, 2.0])
    slope = sm.grad(lambda x: sm.sum(sm.exp(x - sm.max(x))))(x)
    e = np.exp(x - 3)
    np.testing.assert_allclose(np.asarray(slope), e - (np.arange(3) == 1) * e.sum())


def test_a_variance_sends_nothing_through_its_mean() -> None:
    """Sums forward: mean, variance.  Backward: of ĝ, of ĝ·x̂, and those of weight and bias."""
    assert operators("layer_norm").count("reduce.sum") == 6
    x = np.linspace(-1, 1, 12).reshape(3, 4)
    graph = graph_of(sm.grad(lambda x: sm.sum(sm.var(x, axis=1))), x)
    assert [n.op.name for n in graph.nodes()].count("reduce.sum") == 1


@pytest.mark.parametrize("name", ["attention", "attention, causal"])
def test_the_row_sum_of_attention_comes_from_its_result(name: str) -> None:
    """Σⱼ Pᵢⱼ·dPᵢⱼ = Σ_d dOᵢ_d·Oᵢ_d: the sum does not wait for all keys."""
    case = CASES[name]

    def back(q: Any, k: Any, v: Any) -> Any:
        _, pull = sm.vjp(case.ours, q, k, v)
        return pull(v[:, :5] * 2 if name == "attention" else v * 2)

    graph = graph_of(back, *draw(case, "float64"))
    folded = [n.inputs[0] for n in graph.nodes() if n.op.name == "reduce.sum"]
    products = [x for x in folded if x.op.name == "mul"]
    assert len(products) == 1
    assert {x.op.name for x in products[0].inputs} & {"contract"}
    assert products[0].type.shape[-1] == graph.inputs[-1].type.shape[-1]


@pytest.mark.parametrize("name", CASES)
def test_cheap_derivatives_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients stay if no gauge is dropped, no zero sum known and no sum swapped."""
    case = CASES[name]
    arrays = draw(case, "float64")
    cheap = by_us(case, arrays, twice=False)
    monkeypatch.setattr(plain_reverse, "gauges", lambda *_: [])
    monkeypatch.setattr(Sums, "sums_to_zero", lambda *_: False)
    monkeypatch.setattr(Sums, "swap", lambda *_: None)
    for a, b in zip(cheap, by_us(case, arrays, twice=False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
