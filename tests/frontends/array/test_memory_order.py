"""Results have the memory order of their operands: Fortran's, or any dense one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array.memory import memory_order
from smelt.graph.text import parse
from smelt.passes.input_layouts import apply_input_layouts

rng = np.random.default_rng(8)


def _permuted(*shape: int, order: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    """An array whose dimensions lie in the order, slowest first; reversed if none is given."""
    order = order or tuple(range(len(shape)))[::-1]
    contiguous = rng.standard_normal([shape[d] for d in order])
    return contiguous.transpose(np.argsort(order))


X, Y, COLUMN, ROW = _permuted(5, 7), _permuted(5, 7), rng.random((5, 1)), rng.random(7)
IMAGE = _permuted(4, 5, 3, order=(2, 0, 1))
SAME: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda xp, x: xp.exp(x) * 2, (X,)),
    (lambda xp, x, y: xp.exp(x) * y, (X, Y)),
    (lambda xp, x, y: xp.exp(x) * y, (X, np.ascontiguousarray(Y))),
    (lambda xp, x, c, r: xp.exp(x) * c + r, (X, COLUMN, ROW)),
    (lambda xp, x: x + xp.arange(5.0)[:, None] * xp.arange(7.0), (X,)),
    (lambda xp, x: (x - xp.mean(x, axis=0)) / xp.std(x, axis=1, keepdims=True), (X,)),
    (lambda xp, x: (xp.sum(x), xp.argmax(x, axis=0), xp.argmax(x), xp.min(x, axis=1)), (X,)),
    (lambda xp, x: (x.T, x.T + 1, x, x * 1), (X,)),
    (lambda xp, x: x[1:-1, 2:] - x[:-2, :-2] * 2, (X,)),
    (lambda xp, x: xp.cumulative_sum(x, axis=0), (X,)),
    (lambda xp, x: xp.exp(x), (IMAGE,)),
    (lambda xp, x: xp.exp(x) / xp.sum(xp.exp(x), axis=2, keepdims=True), (IMAGE,)),
    (lambda xp, x: xp.sum(xp.exp(x), axis=(0, 2)), (IMAGE,)),
]
OTHER: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda xp, x: xp.reshape(x + 1, (-1,)), (X,)),
    (lambda xp, x: x.T @ xp.exp(x) @ x.T, (X,)),
    (lambda xp, x: (x + 1, xp.exp(x) @ x.T), (X,)),
    (lambda xp, x: xp.sort(x, axis=0) * 2, (X,)),
    (lambda xp, x: xp.where(x > 0, x, 0.0), (_permuted(5, 1, 7),)),
    (lambda xp, x: xp.concat([x, x * 2], axis=0), (X,)),
    (lambda xp, x: (x[0], x[:, 0] + 1), (X,)),
    (lambda xp, x: xp.take(x, xp.asarray([2, 0]), axis=1) + 1, (X,)),
]


def _check(f: Callable[..., Any], args: tuple[Any, ...], strides: bool) -> None:
    expected = f(np, *args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    g = sm.jit(lambda *args: f(sm, *args))
    for k in range(6):  # Python answers first, native code then
        results = f(sm, *map(sm.asarray, args)) if k == 0 else g(*args)
        results = [np.asarray(y) for y in (results if isinstance(results, tuple) else (results,))]
        for y, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(y, want, rtol=1e-12, atol=1e-12)
            assert not strides or k == 0 or y.strides == want.strides


@pytest.mark.parametrize("case", range(len(SAME)))
def test_results_have_numpys_layout(case: int) -> None:
    _check(*SAME[case], strides=True)


@pytest.mark.parametrize("case", range(len(OTHER)))
def test_values_are_right_where_orders_meet(case: int) -> None:
    _check(*OTHER[case], strides=False)


def test_one_recording_serves_all_sizes() -> None:
    f = sm.jit(lambda x: sm.exp(x) + 1)
    for n, m in ((5, 7), (7, 5), (100, 3), (3, 3)):
        for _ in range(4):
            x = np.asfortranarray(rng.standard_normal((n, m)))
            y = np.asarray(f(x))
            assert y.flags.f_contiguous
            np.testing.assert_allclose(y, np.exp(x) + 1, rtol=1e-14)
    assert sum(map(len, f.traces.values())) == 1
    for n, m in ((0, 3), (3, 0), (1, 4), (4, 1), (1, 1)):
        assert np.asarray(f(np.asfortranarray(np.ones((n, m))))).shape == (n, m)


def test_out_has_its_own_order() -> None:
    f: Any = sm.jit(lambda x: sm.exp(x) + 1)
    ahead = f.lower(X).compile()
    wide = np.empty((5, 14))
    for out in (np.empty((5, 7)), np.empty((5, 7), order="F"), wide[:, ::2]):
        for call in (f, f, f, ahead):
            out[...] = 0
            assert call(X, out=out) is out
            np.testing.assert_allclose(out, np.exp(X) + 1, rtol=1e-14)
    np.testing.assert_allclose(np.asarray(ahead(X)), np.exp(X) + 1, rtol=1e-14)


def test_lazy_arrays_keep_the_order() -> None:
    for x in (X, np.asfortranarray(rng.standard_normal((300, 200)))):
        y = sm.exp(sm.asarray(x)) + 1
        assert np.asarray(y).strides == x.strides
        np.testing.assert_allclose(np.asarray(y * 2), np.exp(x) * 2 + 2, rtol=1e-14)


def test_donated_and_shared_memory() -> None:
    f = sm.jit(lambda x, y: (sm.exp(x) * y, y + 1), donate="y")
    for _ in range(4):
        y = sm.asarray(np.ones((5, 7)), copy=True)
        a, b = f(X, y)
        np.testing.assert_allclose(np.asarray(a), np.exp(X), rtol=1e-14)
        np.testing.assert_array_equal(np.asarray(b), np.full((5, 7), 2.0))
    y = sm.jit(sm.exp)(X)
    z = np.from_dlpack(y)
    assert z.strides == (8, 40)
    np.testing.assert_array_equal(z, np.asarray(y))
    np.testing.assert_array_equal(np.asarray(y[1:, ::2] - 1.0), np.asarray(y)[1:, ::2] - 1.0)


def test_what_an_order_is() -> None:
    base = np.zeros((4, 5, 6))
    assert memory_order(base) is None
    assert memory_order(base.transpose(1, 0, 2)) == ("turned", (1, 0, 2))
    assert memory_order(base.T) == ("turned", (2, 1, 0))
    assert memory_order(base[:, ::2].T) == (1, None, None)
    assert memory_order(base[::-1]) == (None, None, 1)
    assert memory_order(np.broadcast_to(base[0].T, (3, 6, 5))) == (0, 1, None)


def test_nothing_is_transposed_where_orders_meet() -> None:
    mixed = parse("graph f(x: f32[n,m], y: f32[n,m]) {\n v0 = mul(x, y)\n return v0\n}")
    assert apply_input_layouts(mixed, [(1, 0), None]) is None
    actual = apply_input_layouts(mixed, [(1, 0), (1, 0)])
    assert actual is not None
    assert actual[1] == ((1, 0),)
    product = parse(
        "graph f(x: f32[n,m], y: f32[m,k]) {\n v0 = contract(x, y) "
        '{spec="a,b; b,c -> a,c"}\n return v0\n}'
    )
    assert apply_input_layouts(product, [(1, 0), None]) is None


def test_what_runs_backwards_leaves_as_a_copy() -> None:
    torch = pytest.importorskip("torch")
    x = np.arange(6.0)[::-1]
    assert torch.equal(torch.from_dlpack(sm.asarray(x)), torch.tensor(x.copy()))
    np.testing.assert_array_equal(np.from_dlpack(sm.asarray(x)), x)
