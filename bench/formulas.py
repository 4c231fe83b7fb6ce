"""The benchmark's functions, each written once in the array API's names.

Each function takes a namespace `xp` and arrays of any size: NumPy in float64 computes the
reference, the libraries under test run the same text. Two names go beyond the standard, and the
namespace adapters provide them: `xp.erf`, and `xp.contiguous`, which requests row-major memory in
libraries that distinguish views from copies.

>>> import numpy as np
>>> [int(v) for v in double_relu_plus_one(np, np.asarray([-3.0, 0.0, 1.0, 3.0]))]
[1, 1, 3, 7]
"""

from __future__ import annotations

import math
from typing import Any

Array = Any
Namespace = Any

ADAM_STEP = 10
ADAM = (1e-3, 0.9, 0.999, 1e-8)
"""Learning rate, the two decay rates, and the epsilon of the division."""

RATE, VOLATILITY = 0.02, 0.3
GROUPS = 32


def log_relu(xp: Namespace, x: Array, b: Array) -> Array:
    """A1: `log(relu(x + b))`, minus infinity where the sum is not positive."""
    return xp.log(xp.maximum(x + b, 0.0))


def double_relu_plus_one(xp: Namespace, x: Array) -> Array:
    """A2: `relu(x * 2) + 1`."""
    return xp.maximum(x * 2.0, 0.0) + 1.0


def bias_gelu(xp: Namespace, x: Array, b: Array) -> Array:
    """The exact GELU of `x + b`, by the error function."""
    h = x + b
    return 0.5 * h * (1.0 + xp.erf(h * math.sqrt(0.5)))


def residual_layer_norm(
    xp: Namespace, x: Array, residual: Array, bias: Array, gain: Array, shift: Array
) -> Array:
    """Layer normalisation over the last axis of `x + bias + residual`."""
    h = x + bias + residual
    d = h - xp.mean(h, axis=-1, keepdims=True)
    variance = xp.mean(d * d, axis=-1, keepdims=True)
    return d / xp.sqrt(variance + 1e-5) * gain + shift


def rms_norm(xp: Namespace, x: Array, gain: Array) -> Array:
    """Root-mean-square normalisation over the last axis."""
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


def softmax(xp: Namespace, x: Array) -> Array:
    """Softmax over the last axis, with the maximum subtracted."""
    w = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return w / xp.sum(w, axis=-1, keepdims=True)


def cross_entropy(xp: Namespace, logits: Array, labels: Array) -> Array:
    """Mean over the rows of `logsumexp(row) - row[label]`."""
    z = logits - xp.max(logits, axis=-1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(z), axis=-1, keepdims=True))
    picked = xp.take_along_axis(z, xp.reshape(labels, (-1, 1)), axis=-1)
    return xp.mean(total - picked)


def group_norm_silu(xp: Namespace, x: Array, gain: Array, shift: Array) -> Array:
    """Group normalisation over [batch, channel, height, width], then `y * sigmoid(y)`."""
    batch, channels, height, width = x.shape
    groups = math.gcd(GROUPS, channels)
    h = xp.reshape(x, (batch, groups, channels // groups * height * width))
    d = h - xp.mean(h, axis=-1, keepdims=True)
    variance = xp.mean(d * d, axis=-1, keepdims=True)
    n = xp.reshape(d / xp.sqrt(variance + 1e-5), (batch, channels, height, width))
    y = n * xp.reshape(gain, (channels, 1, 1)) + xp.reshape(shift, (channels, 1, 1))
    return y / (1.0 + xp.exp(-y))


def adam(xp: Namespace, p: Array, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
    """Adam, one step: the new parameters and both moments."""
    rate, decay1, decay2, tiny = ADAM
    m = decay1 * m + (1.0 - decay1) * g
    v = decay2 * v + (1.0 - decay2) * (g * g)
    root = xp.sqrt(v / (1.0 - decay2**ADAM_STEP)) + tiny
    return p - rate / (1.0 - decay1**ADAM_STEP) * m / root, m, v


def black_scholes(xp: Namespace, spot: Array, strike: Array, time: Array) -> tuple[Array, Array]:
    """Prices of a European call and put."""
    spread = VOLATILITY * xp.sqrt(time)
    up = (xp.log(spot / strike) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * time) / spread
    down = up - spread
    share = 0.5 + 0.5 * xp.erf(up * math.sqrt(0.5))
    chance = 0.5 + 0.5 * xp.erf(down * math.sqrt(0.5))
    discounted = strike * xp.exp(-RATE * time)
    call = spot * share - discounted * chance
    return call, call - spot + discounted


def column_statistics(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """Mean and variance of each column."""
    return xp.mean(x, axis=0), xp.var(x, axis=0)


def transposed_write(xp: Namespace, x: Array) -> Array:
    """A8: `contiguous(transpose(f(x)))` with a cheap `f`."""
    return xp.contiguous(xp.permute_dims(x * 2.0 + 1.0, (1, 0)))


def chain(xp: Namespace, x: Array, y: Array) -> Array:
    """Four elementwise operators on two arrays."""
    return xp.maximum(x * y + x, 0.0) * 0.5


def tiny(xp: Namespace, x: Array, y: Array, z: Array) -> Array:
    """Two operators on three arrays: all overhead."""
    return x * y + z


def total(xp: Namespace, x: Array) -> Array:
    """The sum of all elements."""
    return xp.sum(x)


def index_of_largest(xp: Namespace, x: Array) -> Array:
    """Position of the largest element, in row-major order."""
    return xp.argmax(xp.reshape(x, (-1,)))
