"""Relatives of linear + cross-entropy, forward and backward: right, and no large value is stored.

Each is plain array code.  Values and gradients are compared with the same code on float64, where
finite differences check the gradients; memory is counted on a machine with hardly any cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.test_chunking import PLANNED, Array, compiled, f32, graph_of, sizes_of

import smelt as sm
from smelt.explain.analysis import memory_analysis

N, V, D = 150, 301, 24
RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, V, N)
WITH_HOLES = np.where(RNG.random(N) < 0.3, -100, LABELS)
WEIGHTS = (RNG.random(V) + 0.5).astype(np.float32)


def logits(x: Any, w: Any) -> Any:
    return x @ sm.matrix_transpose(w)


def gathered(z: Any, y: Any) -> Any:
    return sm.take_along_axis(z, y[:, None], axis=1)[:, 0]


def smoothed(x: Any, w: Any, y: Any) -> Any:
    z = logits(x, w)
    total = sm.nn.logsumexp(z, axis=-1)
    return sm.mean(total - 0.9 * gathered(z, y) - 0.1 * sm.mean(z, axis=-1))


def z_loss(x: Any, w: Any, y: Any) -> Any:
    z = logits(x, w)
    total = sm.nn.logsumexp(z, axis=-1)
    return sm.mean(total - gathered(z, y) + 1e-2 * total**2)


def with_entropy(x: Any, w: Any, y: Any) -> Any:
    p = sm.nn.log_softmax(logits(x, w), axis=-1)
    return sm.mean(-gathered(p, y) + 0.1 * sm.sum(sm.exp(p) * p, axis=-1))


def with_holes(x: Any, w: Any, y: Any) -> Any:
    """Rows without a label count for nothing."""
    z = logits(x, w)
    there = y >= 0
    loss = sm.nn.logsumexp(z, axis=-1) - gathered(z, sm.where(there, y, 0))
    return sm.sum(sm.where(there, loss, 0.0)) / sm.sum(sm.astype(there, z.dtype))


def weighted(x: Any, w: Any, y: Any, c: Any) -> Any:
    z = logits(x, w)
    weight = sm.take(c, y)
    return sm.sum(weight * (sm.nn.logsumexp(z, axis=-1) - gathered(z, y))) / sm.sum(weight)


def capped(x: Any, w: Any, y: Any) -> Any:
    z = 5.0 * sm.tanh(logits(x, w) / 5.0)
    return sm.mean(sm.nn.logsumexp(z, axis=-1) - gathered(z, y))


def distilled(x: Any, w: Any, h: Any, u: Any) -> Any:
    low = sm.nn.log_softmax(logits(x, w), axis=-1)
    high = sm.nn.log_softmax(logits(h, u), axis=-1)
    return sm.sum(sm.exp(high) * (high - low)) / x.shape[0]


def one_way(x: Any, y: Any) -> Any:
    """In-batch negatives: each row against all others."""
    z = logits(x, y)
    return sm.mean(sm.nn.logsumexp(z, axis=-1) - sm.sum(x * y, axis=-1))


def both_ways(x: Any, y: Any) -> Any:
    """The same, and each column against all others."""
    z = logits(x, y)
    there, back = sm.nn.logsumexp(z, axis=-1), sm.nn.logsumexp(z, axis=0)
    return sm.mean(there + back - 2.0 * sm.sum(x * y, axis=-1))


HEAD = f32(N, D), f32(V, D)
CASES: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "label smoothing": (smoothed, (*HEAD, LABELS)),
    "z-loss": (z_loss, (*HEAD, LABELS)),
    "entropy": (with_entropy, (*HEAD, LABELS)),
    "ignored rows": (with_holes, (*HEAD, WITH_HOLES)),
    "class weights": (weighted, (*HEAD, LABELS, WEIGHTS)),
    "soft cap": (capped, (*HEAD, LABELS)),
    "distillation": (distilled, (*HEAD, f32(N, 16), f32(V, 16))),
    "one way": (one_way, (f32(N, D), f32(N, D))),
}


def back(loss: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        value, slopes = sm.value_and_grad(loss, (0, 1))(*args)
        return value, *slopes

    return both


@pytest.mark.parametrize("name", CASES)
def test_right_and_nothing_of_all_rows_is_stored(name: str) -> None:
    loss, arrays = CASES[name]
    code = back(loss)
    program = compiled(code, *arrays)
    sizes = sizes_of(graph_of(code, arrays), arrays)
    assert program.plan.chunked_clusters, [
        d for d in program.plan.decisions if d.reason == "not-in-rounds"
    ]
    whole = 4 * arrays[0].shape[0] * arrays[1].shape[0]
    named = dict(zip(program.size_names, sizes, strict=True))
    assert memory_analysis(program, named).temp_size_in_bytes < whole
    wide = tuple(a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays)
    exact = [np.asarray(r) for r in sm.jit(code)(*wide)]
    for got, want in zip(program.run(arrays, sizes), exact, strict=True):
        # a sum of V terms and a product over as many, each term within some ulp of float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    loss, arrays = CASES[name]
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    _, *slopes = (np.asarray(r) for r in sm.jit(back(loss))(*wide))
    value = sm.jit(loss)
    for k in (0, 1):
        step = RNG.standard_normal(wide[k].shape)
        ends = []
        for h in (1e-5, -1e-5):
            moved = list(wide)
            moved[k] = moved[k] + h * step
            ends.append(float(value(*moved)))
        want = float(np.sum(slopes[k] * step))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(want, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_heads_of_half_types_are_summed_in_float32(dtype: Any) -> None:
    """Sums over chunks are rounded once, like those of one pass.

    Where such sums take as much memory as the logits, the logits are stored.
    """
    x, w = (a.astype(dtype) for a in HEAD)
    x, y = np.tile(x, (8, 1)), np.tile(LABELS, 8)
    code = back(smoothed)
    program = compiled(code, x, w, y)
    assert program.plan.chunked_clusters, [
        d for d in program.plan.decisions if d.reason == "not-in-rounds"
    ]
    sizes = sizes_of(graph_of(code, (x, w, y)), (x, w, y))
    named = dict(zip(program.size_names, sizes, strict=True))
    assert memory_analysis(program, named).temp_size_in_bytes < x.shape[0] * V * 2
    step = float(ml_dtypes.finfo(dtype).eps)
    for got, want in zip(program.run((x, w, y), sizes), sm.jit(code)(x, w, y), strict=True):
        whole = np.asarray(want, np.float32)
        # the same sums in another order: at most the last bit of a half type differs
        np.testing.assert_allclose(
            np.asarray(got, np.float32), whole, rtol=2 * step, atol=1e-6 * np.abs(whole).max()
        )
    few = x[:50], np.tile(w, (1, 8)), y[:50]
    few = np.tile(few[0], (1, 8)), few[1], few[2]
    (refused,) = [d for d in compiled(code, *few).plan.decisions if d.reason == "not-in-rounds"]
    assert "keep as much" in refused.details["how"]


def test_rows_and_columns_that_wait_for_one_another_are_stored_once() -> None:
    """Each gradient needs its row's sum and its column's: that of all rows.  No rounds serve that,
    and one value of all rows and columns is all that is kept for it."""
    arrays = f32(N, D), f32(N, D)
    code = back(both_ways)
    planned, built = compiled(code, *arrays, target=PLANNED), compiled(code, *arrays)
    assert not planned.plan.chunked_clusters
    sizes = dict(zip(("n0", "n1"), (N, D), strict=True))
    temporary = memory_analysis(planned, sizes).temp_size_in_bytes
    assert N * N * 4 <= temporary <= 1.5 * N * N * 4
    wide = tuple(a.astype(np.float64) for a in arrays)
    result = built.run(arrays, sizes_of(graph_of(code, arrays), arrays))
    for got, want in zip(result, map(np.asarray, sm.jit(code)(*wide)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * np.abs(want).max())
