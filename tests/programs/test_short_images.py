"""Depthwise convolutions of small images: strides along any axis, axes of length one."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import smelt as sm

CASES = {
    "lines two apart": ((1, 16, 18, 20), (4, 3), (2, 1), ((0, 0), (1, 1))),
    "lines three apart": ((2, 17, 20, 9), (5, 3), (3, 1), ((1, 1), (1, 1))),
    "planes three apart": ((1, 16, 7, 6, 8), (4, 2, 3), (3, 1, 1), ((0, 0), (0, 0), (1, 1))),
    "one place along an axis": ((1, 16, 2, 2, 4), (2, 2, 3), (1, 1, 1), ((1, 0), (0, 0), (1, 1))),
}


@pytest.mark.parametrize("name", CASES)
def test_as_windows_say(name: str) -> None:
    shape, window, steps, margins = CASES[name]
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype("f4")
    w = rng.standard_normal((shape[1], 1, *window)).astype("f4")
    y = sm.jit(lambda x, w: sm.nn.conv(x, w, stride=steps, padding=margins, groups=shape[1]))(x, w)
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), *margins))
    axes = tuple(range(2, x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(padded, window, axes)
    seen = seen[(slice(None), slice(None), *[slice(None, None, s) for s in steps])]
    places = seen.reshape(*seen.shape[: x.ndim], -1)
    weights = w.astype("f8").reshape(shape[1], *[1] * len(axes), -1)
    expected, size = (places * weights).sum(-1), np.abs(places * weights).sum(-1)
    # each product is rounded once, and the sum no more often than it has terms
    bound = (prod(window) + 1) * 2.0**-24 * size
    assert np.all(np.abs(np.asarray(y) - expected) <= bound)
