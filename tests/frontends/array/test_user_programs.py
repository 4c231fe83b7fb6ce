"""Small programs as users write them, the same with NumPy and with Smelt as their namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frontends.array.numpy_comparison import MODES, check

import smelt as sm
from smelt.frontends.array.numpy_hints import FUNCTIONS

Program = Callable[..., Any]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def statistics(xp, x):
    mean, spread = xp.mean(x, axis=0), xp.std(x, axis=0, correction=1)
    z = (x - mean) / spread
    cube, fourth = xp.mean(z**3, axis=0), xp.mean(z**4, axis=0) - 3
    return mean, spread, cube, fourth, xp.argmin(x, axis=0), (z.T @ z) / (x.shape[0] - 1)


def blur(xp, x):
    weights, (n, m) = (1, 4, 6, 4, 1), x.shape
    p = xp.concat([x[:1, :], x[:1, :], x, x[-1:, :], x[-1:, :]], axis=0)
    y = sum(w * p[i : i + n, :] for i, w in enumerate(weights)) / 16
    p = xp.concat([y[:, :1], y[:, :1], y, y[:, -1:], y[:, -1:]], axis=1)
    return sum(w * p[:, i : i + m] for i, w in enumerate(weights)) / 16


def edges(xp, x):
    across = x[2:, 2:] - x[2:, :-2] + 2 * (x[1:-1, 2:] - x[1:-1, :-2]) + x[:-2, 2:] - x[:-2, :-2]
    down = x[2:, 2:] - x[:-2, 2:] + 2 * (x[2:, 1:-1] - x[:-2, 1:-1]) + x[2:, :-2] - x[:-2, :-2]
    size = xp.hypot(across, down)
    return size, size > xp.mean(size), xp.atan2(down, across)


def life(xp, board):
    beside = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    for _ in range(4):
        n = sum(xp.roll(board, step, axis=(0, 1)) for step in beside)
        board = xp.astype((n == 3) | ((board == 1) & (n == 2)), xp.uint8)
    return board


def k_means(xp, x, centres):
    for _ in range(4):
        far = xp.sum((x[:, None, :] - centres[None, :, :]) ** 2, axis=-1)
        label = xp.argmin(far, axis=1)
        member = xp.astype(label[:, None] == xp.arange(centres.shape[0])[None, :], x.dtype)
        count = xp.sum(member, axis=0)
        centres = (member.T @ x) / xp.maximum(count, xp.ones_like(count))[:, None]
    return label, centres


def principal(xp, x):
    x = x - xp.mean(x, axis=0)
    c = x.T @ x / (x.shape[0] - 1)
    v = xp.ones(x.shape[1], dtype=x.dtype)
    for _ in range(30):
        w = c @ v
        v = w / xp.sqrt(xp.sum(w * w))
    return xp.abs(v), v @ c @ v


def heat(xp, u):
    for _ in range(20):
        u = xp.concat([u[:1], u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]), u[-1:]])
    return u


def letters(xp, codes):
    places = xp.arange(128, dtype=codes.dtype)
    count = xp.sum(xp.astype(codes[:, None] == places[None, :], xp.int64), axis=0)
    part = count / xp.sum(count)
    entropy = -xp.sum(xp.where(count > 0, part * xp.log2(xp.where(count > 0, part, 1.0)), 0.0))
    return count, entropy, xp.argmax(count)


def masked(xp, x, m):
    count = xp.sum(xp.astype(m, x.dtype), axis=1)
    total = xp.sum(xp.where(m, x, 0), axis=1)
    mean = xp.where(count > 0, total / xp.where(count > 0, count, 1), xp.nan)
    top = xp.max(xp.where(m, x, -xp.inf), axis=1)
    return mean, top, xp.any(m, axis=1), xp.all(m, axis=1), xp.where(m, x, mean[:, None])


def bits(xp, x):
    v = x - ((x >> 1) & 0x55555555)
    v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
    ones = (((v + (v >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24
    y = x ^ (x << 13)
    y = y ^ (y >> 17)
    return ones, x ^ (x >> 1), y ^ (y << 5), ~x & 0xFF, (x & (x - 1)) == 0, x % 7, x // 5


def stretched(xp, a, b):
    outer = a[:, None] * b[None, :]
    wide = xp.broadcast_to(a[:, None], (a.shape[0], b.shape[0]))
    return (
        xp.permute_dims(outer, (1, 0)),
        xp.tensordot(a, b, axes=0),
        wide + outer,
        xp.cumulative_sum(outer, axis=1),
        xp.stack([a, a * 2], axis=-1),
        xp.tril(outer),
        xp.diff(a),
        xp.flip(outer, axis=0),
        xp.linalg.vecdot(outer, outer),
    )


def nothing(xp, e, x):
    return (
        xp.sum(e),
        xp.prod(e),
        e + 1,
        xp.concat([e, e]),
        xp.sum(x, axis=1),
        xp.any(e > 0),
        xp.all(e > 0),
        xp.reshape(x, (0, 2)),
        e[:0],
    )


def looked_up(xp, x, i):
    return (
        xp.take(x, i, axis=0),
        xp.sort(x, axis=0),
        xp.argsort(x, axis=1),
        xp.searchsorted(xp.sort(x[:, 0]), x[:5, 1]),
        xp.clip(x, -1, 1),
        x[1::3, ::-1],
        x[i, xp.zeros_like(i)],
        xp.count_nonzero(x > 0, axis=0),
    )


def escapes(xp, real, imaginary):
    x, y = xp.zeros_like(real), xp.zeros_like(imaginary)
    steps = xp.zeros(real.shape, dtype=xp.int32)
    for _ in range(20):
        inside = x * x + y * y <= 4
        x, y = (
            xp.where(inside, x * x - y * y + real, x),
            xp.where(inside, 2 * x * y + imaginary, y),
        )
        steps = steps + xp.astype(inside, xp.int32)
    return steps


def written(xp, x):
    y = xp.asarray(x, copy=True)
    y[1:3, :] = 0
    y[:, 0] += 1
    y *= 2
    y[y.shape[0] - 1, ...] = xp.arange(y.shape[1], dtype=y.dtype)
    y[y > 3] = -1
    return y


PROGRAMS: dict[Program, tuple[Any, ...]] = {
    statistics: (normal(500, 12),),
    blur: (normal(30, 41),),
    edges: (normal(20, 33),),
    life: ((RNG.random((24, 31)) < 0.3).astype(np.uint8),),
    k_means: (normal(400, 3), normal(7, 3)),
    principal: (normal(300, 9),),
    heat: (normal(200),),
    letters: (RNG.integers(32, 127, 2000).astype(np.uint8),),
    masked: (normal(20, 17), RNG.random((20, 17)) < 0.1),
    bits: (RNG.integers(0, 1 << 32, 1000).astype(np.uint32),),
    stretched: (normal(33), normal(17)),
    nothing: (normal(0), normal(4, 0)),
    looked_up: (normal(50, 6), RNG.integers(0, 50, 20)),
    escapes: (normal(15, 15), normal(15, 15)),
    written: (normal(6, 5),),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_the_same_as_with_numpy(program: Program, mode: str) -> None:
    check(mode, program, *PROGRAMS[program], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [sm.float16, sm.bfloat16])
def test_networks_in_half_types(dtype: Any) -> None:
    """Within what a few roundings of the type explain."""
    x, w = normal(64, 32), normal(32, 16) / 4

    def network(xp, x, w):
        h = x @ w
        h = h * xp.tanh(h)
        h = h - xp.mean(h, axis=-1, keepdims=True)
        return h / xp.sqrt(xp.var(h, axis=-1, keepdims=True) + 1e-3)

    actual = sm.jit(lambda x, w: network(sm, x, w))(
        sm.asarray(x, dtype=dtype), sm.asarray(w, dtype=dtype)
    )
    assert actual.dtype == dtype
    near = 0.02 if dtype == sm.float16 else 0.15
    wide = np.asarray(sm.astype(actual, sm.float64))
    assert np.abs(wide - network(np, x, w)).max() < near


def test_an_area_by_throwing_darts() -> None:
    """Monte Carlo with explicit keys: the same key gives the same darts, others give others."""

    def area(key: Any) -> Any:
        darts = sm.random.uniform(key, (200_000, 2))
        return 4 * sm.mean(sm.astype(sm.sum(darts * darts, axis=1) < 1, sm.float64))

    actual = [float(sm.jit(area)(sm.random.key(seed))) for seed in (0, 0, 1)]
    assert actual[0] == actual[1] != actual[2]
    assert all(
        abs(x - np.pi) < 5 * 4 * np.sqrt(np.pi / 4 * (1 - np.pi / 4) / 200_000) for x in actual
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpys_names_say_what_to_write(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'.* sm\.{FUNCTIONS[name]}"):
        getattr(sm, name)
    actual = sm
    for part in FUNCTIONS[name].split("."):
        actual = getattr(actual, part)
    assert callable(actual)


def test_misspelt_names_get_the_nearest_one() -> None:
    x: Any = sm.ones(3)
    with pytest.raises(AttributeError, match="no attribute 'maen'; did you mean 'mean'"):
        x.maen  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'linspce'; did you mean 'linspace'"):
        sm.linspce  # noqa: B018
    assert not hasattr(x, "__cuda_array_interface__")


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(AttributeError, match=r"module .smelt. has no attribute .frobnitz.$"):
        sm.frobnitz  # noqa: B018
