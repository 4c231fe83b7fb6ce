"""Plan attention under dilated windows for GPUs, and compare it with NumPy on the CPU.

A window is spelled by rows and columns of an image or by distances along a line; each spelling has
a program on every GPU and the numbers of NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

WIDTH = 24
Window = Callable[[Any, Any, Any], Any]


def _rows(i: Any, j: Any) -> Any:
    return i // WIDTH - j // WIDTH


def _columns(i: Any, j: Any) -> Any:
    return i % WIDTH - j % WIDTH


def _near(xp: Any, d: Any, step: int, reach: int) -> Any:
    return (xp.abs(d) <= reach) & (d % step == 0)


WINDOWS: dict[str, Window] = {
    "remainder of a distance": lambda xp, i, j: (
        _near(xp, _rows(i, j), 2, 6) & _near(xp, _columns(i, j), 2, 6)
    ),
    "remainder of a magnitude": lambda xp, i, j: (
        _near(xp, xp.abs(_rows(i, j)), 2, 6) & _near(xp, xp.abs(_columns(i, j)), 2, 6)
    ),
    "two comparisons": lambda xp, i, j: (
        (_rows(i, j) >= -6)
        & (_rows(i, j) <= 6)
        & (_columns(i, j) >= -6)
        & (_columns(i, j) <= 6)
        & (_rows(i, j) % 2 == 0)
        & (_columns(i, j) % 2 == 0)
    ),
    "larger of two": lambda xp, i, j: (
        (xp.maximum(xp.abs(_rows(i, j)), xp.abs(_columns(i, j))) <= 6)
        & (xp.abs(_rows(i, j)) % 2 + xp.abs(_columns(i, j)) % 2 == 0)
    ),
    "equal remainders": lambda xp, i, j: (
        (i // WIDTH % 2 == j // WIDTH % 2)
        & (i % WIDTH % 2 == j % WIDTH % 2)
        & (xp.abs(_rows(i, j)) <= 6)
        & (xp.abs(_columns(i, j)) <= 6)
    ),
    "negated": lambda xp, i, j: (
        ~(
            (xp.abs(_rows(i, j)) > 6)
            | (xp.abs(_columns(i, j)) > 6)
            | (_rows(i, j) % 2 != 0)
            | (_columns(i, j) % 2 != 0)
        )
    ),
    "lowest bit": lambda xp, i, j: (
        (_rows(i, j) & 1 == 0)
        & (_columns(i, j) & 1 == 0)
        & (xp.abs(_rows(i, j)) <= 6)
        & (xp.abs(_columns(i, j)) <= 6)
    ),
    "quotients": lambda xp, i, j: (
        (xp.abs(_rows(i, j) // 2) <= 3)
        & (_rows(i, j) % 2 == 0)
        & (xp.abs(_columns(i, j) // 2) <= 3)
        & (_columns(i, j) % 2 == 0)
    ),
    "squares": lambda xp, i, j: (
        (_rows(i, j) ** 2 <= 36)
        & (_columns(i, j) ** 2 <= 36)
        & (_rows(i, j) % 2 == 0)
        & (_columns(i, j) % 2 == 0)
    ),
    "rows alone": lambda xp, i, j: _near(xp, _rows(i, j), 2, 6) & (xp.abs(_columns(i, j)) <= 6),
    "every third, causal": lambda xp, i, j: (
        _near(xp, _rows(i, j), 3, 9) & (_rows(i, j) >= 0) & _near(xp, _columns(i, j), 3, 6)
    ),
    "line": lambda xp, i, j: _near(xp, i - j, 2, 12),
    "line, causal": lambda xp, i, j: ((i - j) % 4 == 0) & (i >= j) & (i - j < 64),
}


def attention(window: Window) -> Callable[[Any, Any, Any], Any]:
    def run(q: Any, k: Any, v: Any) -> Any:
        i = sm.arange(q.shape[1])
        seen = window(sm, i[:, None], i[None, :])
        scores = sm.where(seen, q @ sm.matrix_transpose(k) * 32**-0.5, -sm.inf)
        return sm.nn.softmax(scores, axis=-1) @ v

    return run


def programs(window: Window, target: str) -> None:
    with sm.config(device_code=False):
        report = sm.explain(attention(window), *[sm.spec("f32[4,576,32]")] * 3, target=target)
    assert len(report.kernels) == 1
    assert "no program" not in str(report)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_dilated_window_has_a_program(window: str) -> None:
    programs(WINDOWS[window], "h100")


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["a100", "4090", "b200", "mi300x"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_dilated_window_has_a_program_on_every_gpu(window: str, target: str) -> None:
    programs(WINDOWS[window], target)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_dilated_window_has_the_numbers_of_numpy(window: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 576, 32)).astype(np.float32)
    i = np.arange(576)
    seen = WINDOWS[window](np, i[:, None], i[None, :])
    scores = np.where(seen, q.astype(np.float64) @ k.transpose(0, 2, 1) * 32**-0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    actual = np.asarray(sm.jit(attention(WINDOWS[window]))(q, k, v))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
