"""The sentence encoder MiniLM-L6-v2 as ordinary array API code.

One function, written once against the Python array API standard (2024.12): with `numpy` as its
namespace it is the reference of the demo, with `smelt` the program that is compiled. `erf`, which
the standard lacks and the network's GELU needs, is taken from the namespace where it exists and
computed from standard functions elsewhere.

>>> import numpy as np
>>> weights = random_weights(hidden=8, layers=1, vocabulary=20, positions=16, seed=1)
>>> ids = np.asarray([[1, 5, 2], [1, 2, 0]])
>>> vectors = encode(np, weights, ids, ids > 0, heads=2)
>>> vectors.shape, bool(np.allclose(np.linalg.vector_norm(vectors, axis=1), 1, atol=1e-6))
((2, 8), True)

The network is the encoder of Wang et al., "MiniLM: Deep Self-Attention Distillation" (2020),
fine-tuned and pooled as in Reimers and Gurevych, "Sentence-BERT" (2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""An array of the namespace in use."""

Namespace: TypeAlias = Any
"""A module with the array API's functions: `numpy`, `array_api_strict`, `smelt`."""

Weights: TypeAlias = Mapping[str, Array]
"""The network's parameters by name, as `demo.weights.load` returns them."""

HEADS = 12
"""Attention heads of MiniLM-L6-v2: the one size that no weight's shape determines."""

EPSILON = 1e-12
"""Added to a variance before its root, as in training."""

MASKED = -1.0e9
"""The score of a padding token: its exp() is 0, and a row of padding only stays finite."""

# erf(x) ~ x P(x^2) / Q(x^2) on [-4, 4] and +-1 beyond, ascending coefficients: a minimax fit by
# Lawson's reweighting. Error 2.2e-8 in exact arithmetic, at most 4e-7 in float32.
ERF_LIMIT = 4.0
ERF_P = (1.12837898, 0.196248087, 0.0534673705, 0.00400361126, 0.000288041082, 1.97484114e-6)
ERF_Q = (1.0, 0.507251498, 0.116476067, 0.0154443515, 0.00121635242, 3.74809636e-5)


def encode(
    xp: Namespace, weights: Weights, ids: Array, mask: Array, *, heads: int = HEADS
) -> Array:
    """Embed a batch of token sequences as vectors of length one.

    Args:
        xp: the array namespace to compute with.
        weights: the parameters, float32 arrays of that namespace; matrices are [inputs, outputs].
        ids: token numbers, int64 [batch, length]; anything in range where `mask` is false.
        mask: bool [batch, length]: true at tokens, false at padding. Each row has a token.
        heads: attention heads; must divide the hidden size.

    Returns:
        float32 [batch, hidden], each row of Euclidean length one.
    """
    hidden = _embed(xp, weights, ids)
    for layer in range(layers_of(weights)):
        at = f"layer{layer}"
        attended = _attention(xp, weights, at, hidden, mask, heads)
        hidden = _layer_norm(xp, weights, f"{at}.attention_norm", hidden + attended)
        wide = _gelu(xp, _linear(weights, f"{at}.widen", hidden))
        hidden = _layer_norm(
            xp, weights, f"{at}.norm", hidden + _linear(weights, f"{at}.narrow", wide)
        )
    pooled = _masked_mean(xp, hidden, mask)
    return pooled / xp.sqrt(xp.sum(pooled * pooled, axis=-1, keepdims=True))


def layers_of(weights: Weights) -> int:
    """Return the number of transformer layers in `weights`."""
    return sum(name.endswith(".widen.matrix") for name in weights)


def erf(xp: Namespace, x: Array) -> Array:
    """Compute the error function of a floating-point array, elementwise.

    Uses the namespace's function where it has one (`smelt.erf`), else the rational approximation
    above, within 4e-7 in float32, NaN for NaN.

    >>> import numpy as np
    >>> [round(float(v), 6) for v in erf(np, np.asarray([-9.0, 0.0, 0.5]))]
    [-1.0, 0.0, 0.5205]
    """
    native = getattr(xp, "erf", None)
    if native is not None:
        return native(x)
    x = xp.clip(x, -ERF_LIMIT, ERF_LIMIT)
    square = x * x
    return x * _polynomial(square, ERF_P) / _polynomial(square, ERF_Q)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Evaluate by Horner's rule, in place where the namespace's arrays allow it."""
    value = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value += coefficient
        value *= x
    value += coefficients[0]
    return value


def _embed(xp: Namespace, weights: Weights, ids: Array) -> Array:
    """Add and normalise token, position and segment embeddings: [batch, length, hidden]."""
    batch, length = ids.shape
    words = xp.take(weights["words"], xp.reshape(ids, (-1,)), axis=0)
    words = xp.reshape(words, (batch, length, weights["words"].shape[1]))
    # Every token is of the first of the network's two segments.
    positions = weights["positions"][:length, :] + weights["segments"][0, :]
    return _layer_norm(xp, weights, "embed_norm", words + positions)


def _attention(
    xp: Namespace, weights: Weights, at: str, hidden: Array, mask: Array, heads: int
) -> Array:
    """Apply multi-head self-attention to [batch, length, hidden]; keys exclude padding."""
    batch, length, size = hidden.shape

    def split(name: str) -> Array:
        parts = _linear(weights, f"{at}.{name}", hidden)
        parts = xp.reshape(parts, (batch, length, heads, size // heads))
        return xp.permute_dims(parts, (0, 2, 1, 3))

    query, key, value = split("query"), split("key"), split("value")
    scores = xp.matmul(query, xp.matrix_transpose(key)) / math.sqrt(size // heads)
    scores = xp.where(mask[:, None, None, :], scores, MASKED)
    joined = xp.permute_dims(xp.matmul(_softmax(xp, scores), value), (0, 2, 1, 3))
    return _linear(weights, f"{at}.attended", xp.reshape(joined, (batch, length, size)))


def _softmax(xp: Namespace, x: Array) -> Array:
    grown = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return grown / xp.sum(grown, axis=-1, keepdims=True)


def _layer_norm(xp: Namespace, weights: Weights, at: str, x: Array) -> Array:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    scaled = centred / xp.sqrt(variance + EPSILON)
    return scaled * weights[f"{at}.scale"] + weights[f"{at}.shift"]


def _gelu(xp: Namespace, x: Array) -> Array:
    """Apply the exact GELU, x times the normal distribution function of x."""
    return 0.5 * x * (1.0 + erf(xp, x * math.sqrt(0.5)))


def _linear(weights: Weights, at: str, x: Array) -> Array:
    return x @ weights[f"{at}.matrix"] + weights[f"{at}.bias"]


def _masked_mean(xp: Namespace, hidden: Array, mask: Array) -> Array:
    """Return the mean of each sequence's tokens: [batch, hidden]."""
    unpadded = xp.where(mask[:, :, None], hidden, 0.0)
    tokens = xp.sum(xp.astype(mask, hidden.dtype), axis=1, keepdims=True)
    return xp.sum(unpadded, axis=1) / tokens


def random_weights(
    *, hidden: int, layers: int, vocabulary: int, positions: int, seed: int
) -> dict[str, NDArray[np.float32]]:
    """Draw parameters of given sizes, named as the real ones, for tests and examples.

    Every value comes from one seeded generator, so equal arguments give equal weights.
    """
    source = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {}

    def draw(name: str, *shape: int, around: float = 0.0) -> None:
        weights[name] = (around + 0.1 * source.standard_normal(shape)).astype(np.float32)

    def linear(name: str, inputs: int, outputs: int) -> None:
        draw(f"{name}.matrix", inputs, outputs)
        draw(f"{name}.bias", outputs)

    def norm(name: str) -> None:
        draw(f"{name}.scale", hidden, around=1.0)
        draw(f"{name}.shift", hidden)

    draw("words", vocabulary, hidden)
    draw("positions", positions, hidden)
    draw("segments", 2, hidden)
    norm("embed_norm")
    for layer in range(layers):
        for name in ("query", "key", "value", "attended"):
            linear(f"layer{layer}.{name}", hidden, hidden)
        norm(f"layer{layer}.attention_norm")
        linear(f"layer{layer}.widen", hidden, 4 * hidden)
        linear(f"layer{layer}.narrow", 4 * hidden, hidden)
        norm(f"layer{layer}.norm")
    return weights
