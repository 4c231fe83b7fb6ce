"""Batch norm of channels whose mean is large beside their spread: no less exact than PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import smelt as sm

SHAPES = (4, 7, 13, 30), (500, 6)
EPS = 1e-5


def _sample(shape: tuple[int, ...], *, apart: float = 0.0) -> Any:
    """Return channels of mean 3000 and spread 0.1; the first sample may be elsewhere."""
    x = 3000 + 0.1 * np.random.default_rng(1).standard_normal(shape)
    x += 100.0 * np.arange(shape[1]).reshape(
        1, -1, *[1] * (len(shape) - 2)
    )  # every channel its own
    x[0] += apart
    return x.astype(np.float32)


def _exact(x: Any) -> tuple[Any, Any, Any]:
    """Return the exact result, and the best one with a mean that is rounded once."""
    wide, axes = x.astype(np.float64), (0, *range(2, x.ndim))
    mean = wide.mean(axes, keepdims=True)
    scale = 1 / np.sqrt(((wide - mean) ** 2).mean(axes, keepdims=True) + EPS)
    return (wide - mean) * scale, (x - mean.astype(np.float32)) * scale, scale


def _error(result: Any, exact: Any) -> float:
    return float(np.linalg.norm(np.asarray(result, np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("apart", [0.0, 50.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mean_is_rounded_once(shape: tuple[int, ...], apart: float) -> None:
    x = _sample(shape, apart=apart)
    exact, best, _ = _exact(x)
    least = _error(best, exact) + 1e-6
    for f in (sm.nn.batch_norm, sm.jit(sm.nn.batch_norm)):
        assert _error(f(x), exact) <= 1.1 * least


@pytest.mark.parametrize("shape", SHAPES)
def test_training_in_pytorch(shape: tuple[int, ...]) -> None:
    x = torch.from_numpy(_sample(shape))
    exact, best, scale = _exact(x.numpy())
    make: Any = torch.nn.BatchNorm2d if x.ndim == 4 else torch.nn.BatchNorm1d
    layer, eager = make(shape[1]), make(shape[1])
    result, theirs = torch.compile(layer, backend="smelt")(x), eager(x)
    least = _error(best, exact) + 1e-6
    assert _error(result.detach(), exact) <= 1.1 * least
    assert _error(result.detach(), exact) <= 1.5 * _error(theirs.detach(), exact) + 1e-4
    n = x.numel() // shape[1]
    variance = (1 / scale.ravel() ** 2 - EPS) * n / (n - 1)
    np.testing.assert_allclose(layer.running_var, 0.9 + 0.1 * variance, rtol=1e-5)
    np.testing.assert_allclose(layer.running_mean, eager.running_mean, rtol=1e-6)


def test_other_norms_round_their_mean_twice() -> None:
    """Other norms are off by a unit of the mean's last place, over the spread.

    docs/limits.md says so.
    """
    x = _sample((7, 390), apart=0.0) - np.float32(100) * np.arange(390, dtype=np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    spread = np.sqrt((centred**2).mean(1, keepdims=True) + EPS)
    error = np.abs(np.asarray(sm.nn.layer_norm(x)) - centred / spread)
    assert (error <= 1.5 * np.spacing(np.float32(3000)) / spread).all()
