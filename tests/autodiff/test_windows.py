"""Gradients of sliding windows, without an array of all windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm

# name: (image, weights, options of sm.nn.conv)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a line": ((2, 3, 11), (4, 3, 5), {"padding": 2}),
    "an image": ((2, 16, 9, 7), (12, 16, 3, 3), {"padding": 1}),
    "a body": ((1, 3, 4, 5, 6), (4, 3, 3, 2, 3), {"padding": 1}),
    "dilated": ((2, 3, 11, 12), (4, 3, 3, 3), {"padding": 2, "dilation": 2}),
    "groups": ((2, 6, 7, 8), (8, 3, 3, 3), {"padding": 1, "groups": 2}),
    "single channels": ((2, 5, 8, 9), (5, 1, 3, 3), {"padding": 1, "groups": 5}),
    "single channels, apart": ((2, 5, 8, 9), (5, 1, 3, 3), {"groups": 5, "stride": 2}),
    "apart": ((2, 3, 9, 10), (8, 3, 3, 3), {"padding": 1, "stride": 2}),
    "apart in groups": ((2, 6, 9, 10), (8, 3, 3, 4), {"padding": 1, "stride": 2, "groups": 2}),
    "apart and dilated": ((2, 3, 16, 13), (4, 3, 3, 5), {"stride": (2, 3), "dilation": (3, 2)}),
    "every second of all": ((2, 3, 13, 13), (4, 3, 3, 3), {"stride": 2, "dilation": 2}),
    "side by side": ((2, 3, 9, 8), (4, 3, 2, 2), {"stride": 2}),
    "gaps": ((2, 3, 11, 12), (4, 3, 2, 3), {"stride": (3, 4), "padding": 1}),
    "points apart": ((2, 3, 9, 8), (4, 3, 1, 1), {"stride": 3}),
    "left over": ((1, 2, 12, 11), (3, 2, 4, 5), {"stride": (3, 4)}),
}
FOLDED = {"every second of all"}
"""Where places of one remainder alone are in windows: still laid back and summed."""


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_images(name: str) -> None:
    """They are what the transposed convolution gives, and nothing is laid back."""
    image, weights, options = CASES[name]
    x, w = _random(*image), _random(*weights)
    g = _random(*sm.nn.conv(x, w, **options).shape)

    @sm.jit
    def gradients(x: Any, w: Any, g: Any) -> Any:
        return sm.grad(lambda x: sm.sum(sm.nn.conv(x, w, **options) * g))(x)

    got = np.asarray(gradients(x, w, g))
    plain = sm.nn.conv_transpose(g, w, **options).shape
    more = [n - m for n, m in zip(image[2:], plain[2:], strict=True)]
    expected = np.asarray(sm.nn.conv_transpose(g, w, output_padding=more, **options))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    assert ("shear" in sm.explain(gradients, x, w, g).to_json()) == (name in FOLDED)


def test_second_derivatives() -> None:
    """Gradients by the weights, of gradients by the image."""
    x, w = _random(1, 2, 6, 5), _random(3, 2, 3, 3)

    def slope(w: Any) -> Any:
        of_x = sm.grad(lambda x: sm.sum(sm.nn.conv(x, w, stride=2) ** 2))(x)
        return sm.sum(of_x**2)

    actual, h = np.asarray(sm.jit(sm.grad(slope))(w)), 1e-6
    for at in ((0, 0, 0, 0), (2, 1, 1, 2)):
        step = np.zeros_like(w)
        step[at] = h
        expected = (float(slope(w + step)) - float(slope(w - step))) / (2 * h)
        assert actual[at] == pytest.approx(expected, rel=1e-6)


def test_infinite_weights_skip_padding_in_exact_gradients() -> None:
    """The gradient of a margin's neighbour is what the weights that it meets say."""
    x, w, g = np.ones((1, 1, 4)), np.array([[[np.inf, 1.0, 1.0]]]), np.ones((1, 1, 4))

    def slope(x: Any) -> Any:
        return sm.grad(lambda x: sm.sum(sm.nn.conv(x, w, padding=1) * g))(x)

    actual = np.asarray(sm.jit(slope, rounding="exact")(x))
    np.testing.assert_array_equal(actual, [[[np.inf, np.inf, np.inf, 2.0]]])
