"""`vmap` against a loop over slices, for operators with and without a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


_AT = np.array([[1, 2], [3, 0], [5, 5], [2, 2]])
_APART = np.array([[1, 2], [3, 0], [5, 4], [2, 3]])
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "elementwise": (lambda x, y: sm.sin(x) * y + 1, (_normal(4, 3, 2), _normal(4, 2)), 0),
    "both sides": (lambda x, y: x @ y, (_normal(4, 3, 2), _normal(2, 5, 4)), (0, 2)),
    "weights": (lambda x, y: x @ y, (_normal(4, 3, 2), _normal(2, 5)), (0, None)),
    "reduce": (lambda x: sm.mean(x, axis=-1, keepdims=True) - x, (_normal(4, 3, 2),), 0),
    "scan": (lambda x: sm.cumulative_sum(x, axis=0), (_normal(4, 3, 2),), 0),
    "softmax": (sm.nn.softmax, (_normal(4, 6),), 0),
    "position": (sm.argmax, (_normal(4, 6, 2),), 0),
    "views": (
        lambda x: sm.flip(sm.reshape(x, (3, 2)).T, axis=0)[1:, ::2],
        (_normal(4, 6),),
        0,
    ),
    "concat": (lambda x, y: sm.concat([x, y]), (_normal(4, 6), _normal(3)), (0, None)),
    "pad": (lambda x: sm.pad(x, ((1, 2), (0, 1))), (_normal(4, 3, 2),), 0),
    "gather both": (lambda x, i: x[i], (_normal(4, 6, 2), _AT), 0),
    "gather positions": (lambda x, i: x[i], (_normal(6, 2), _AT), (None, 0)),
    "gather values": (lambda x, i: x[i], (_normal(4, 6, 2), np.array([1, 2])), (0, None)),
    "gather inside": (lambda x, i: x[:, i], (_normal(4, 6, 3), _AT % 3), 0),
    "gather inside one": (lambda x, i: x[:, i], (_normal(6, 3), _AT % 3), (None, 0)),
    "scatter add": (lambda x, i, u: x.at[i].add(u), (_normal(4, 6, 2), _AT, _normal(4, 2, 2)), 0),
    "scatter set": (
        lambda x, i, u: x.at[i].set(u),
        (_normal(6, 2), _APART, _normal(2)),
        (None, 0, None),
    ),
    "library": (sm.sort, (_normal(4, 40),), 0),
    "inverse": (sm.linalg.inv, (_normal(4, 3, 3),), 0),
    "gradient": (sm.grad(lambda x: sm.sum(sm.tanh(x) ** 2)), (_normal(4, 3),), 0),
    "loop": (
        lambda c, x: sm.scan(lambda c, x: (c * 0.5 + x, sm.sum(c * x)), c, x)[1],
        (_normal(4, 3), _normal(4, 7, 3)),
        0,
    ),
    "loop of shared slices": (
        lambda c, x: sm.scan(lambda c, x: (c * 0.5 + x, c * x), c, x)[0],
        (_normal(4, 3), _normal(7, 3)),
        (0, None),
    ),
    "loop of a shared carry": (
        lambda c, x: sm.scan(lambda c, x: (c * 0.5 + x, c * x), c, x, reverse=True)[1],
        (_normal(3), _normal(4, 7, 3)),
        (None, 0),
    ),
    "while": (
        lambda x: sm.while_loop(lambda c: sm.sum(c) < 50, lambda c: c * 2, x),
        (abs(_normal(4, 3)) + 0.1,),
        0,
    ),
    "counts": (
        lambda x, n: sm.fori_loop(0, n, lambda i, c: c * 2 + i, x),
        (_normal(4, 3), np.array([1, 5, 0, 3])),
        0,
    ),
    "cond": (
        lambda p, x: sm.cond(p, lambda x: x @ x, lambda x: x.T, x),
        (np.array([True, False, True, True]), _normal(4, 3, 3)),
        0,
    ),
    "nested": (
        sm.vmap(lambda a, b: sm.sum(a * b), in_axes=(0, None)),
        (_normal(4, 3, 2), _normal(4, 2)),
        0,
    ),
}


@pytest.mark.parametrize("way", [lambda f: f, sm.jit], ids=["lazy", "jit"])
@pytest.mark.parametrize("case", CASES)
def test_slices(case: str, way: Any) -> None:
    f, arrays, in_axes = CASES[case]
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arrays)
    slices = [
        f(*(sm.asarray(x if a is None else x.take(k, a)) for x, a in zip(arrays, axes)))
        for k in range(4)
    ]
    result = way(sm.vmap(f, in_axes))(*map(sm.asarray, arrays))
    np.testing.assert_allclose(result, np.stack(slices), rtol=1e-10, atol=1e-12)


def test_nests_and_axes_of_results() -> None:
    f = sm.vmap(
        lambda p, s: {"a": p["w"], "b": (s * p["w"], 1.0)}, ({"w": 1}, None), {"a": 1, "b": 0}
    )
    w = _normal(3, 5)
    result = f({"w": sm.asarray(w)}, sm.asarray(2.0))
    np.testing.assert_array_equal(result["a"], w)
    np.testing.assert_array_equal(result["b"][0], 2 * w.T)
    assert result["b"][1].shape == (5,)


def test_gradient_through_vmap() -> None:
    w, x = _normal(3, 3), _normal(5, 3)
    slope = sm.grad(lambda w: sm.sum(sm.vmap(lambda v: w @ v)(sm.asarray(x)) ** 2))(sm.asarray(w))
    np.testing.assert_allclose(slope, 2 * (x @ w.T).T @ x)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: sm.vmap(lambda x, y: x + y)(sm.ones(3), sm.ones(4)), "E207"),
        (lambda: sm.vmap(lambda x: x, in_axes=None)(sm.ones(3)), "E207"),
        (lambda: sm.vmap(lambda x: x, in_axes=(0, 0))(sm.ones(3)), "E107"),
        (lambda: sm.vmap(lambda x: x)(1.0), "E107"),
        (lambda: sm.vmap(lambda x: x, in_axes=1)(sm.ones(3)), "E103"),
        (lambda: sm.vmap(lambda x: {x})(sm.ones(3)), "E204"),
    ],
)
def test_mistakes(call: Any, code: str) -> None:
    with pytest.raises(sm.errors.SmeltError) as caught:
        call()
    assert caught.value.code == code
