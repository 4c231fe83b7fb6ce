"""Building blocks of neural networks, written in the primitives that every other program uses.

Nothing here is known to the compiler by name: softmax is a maximum, an exponential, a sum and a
division, and is fused as such.  Half types are computed in float32 and rounded once at the end.

>>> import smelt as sm
>>> softmax(sm.asarray([0.0, 0.0])), gelu(sm.asarray([0.0, 1.0]))
(Array([0.5, 0.5]), Array([0.        , 0.84134475]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from smelt.errors import ArgumentError, DTypeError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.convolution import conv, conv_transpose
from smelt.frontends.array.creation import arange
from smelt.frontends.array.elementwise import (
    cos,
    erf,
    exp,
    log,
    log1p,
    maximum,
    rsqrt,
    sigmoid,
    sin,
    tanh,
    where,
)
from smelt.frontends.array.linalg import matmul
from smelt.frontends.array.manipulation import concat, expand_dims, matrix_transpose, reshape
from smelt.frontends.array.pooling import (
    adaptive_avg_pool,
    adaptive_max_pool,
    avg_pool,
    max_pool,
    upsample,
)
from smelt.frontends.array.promote import cast
from smelt.frontends.array.reduction import floating, fold, is_empty
from smelt.frontends.array.searching import take_along_axis
from smelt.frontends.array.statistical import mean
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.views import axes_of

__all__ = [
    "adaptive_avg_pool", "adaptive_max_pool", "attention", "avg_pool", "batch_norm", "conv",
    "conv_transpose", "cross_entropy", "gelu", "group_norm", "layer_norm", "log_softmax",
    "logsumexp", "max_pool", "mish", "relu", "rms_norm", "rotary", "silu", "softmax", "upsample",
]  # fmt: skip

Axis = int | Sequence[int]


def _wide(x: Any, what: str) -> Array:
    """`x` in the type that is computed in."""
    return Array.of(floating(value(x, what)))


def _narrow(found: Array, x: Any) -> Array:
    """Back in the dtype of `x`, if that is a float."""
    dtype = value(x, "nn").type.dtype
    return Array.of(cast(found.node, dtype)) if dtype.is_float else found


def relu(x: Any, /) -> Array:
    """max(x, 0)."""
    return maximum(x, 0)


def silu(x: Any, /) -> Array:
    """x · sigmoid(x), also called swish."""
    wide = _wide(x, "silu")
    return _narrow(wide * sigmoid(wide), x)


def mish(x: Any, /) -> Array:
    """x · tanh(log(1 + exp(x)))."""
    wide = _wide(x, "mish")
    softplus = maximum(wide, 0) + log1p(exp(-abs(wide)))
    return _narrow(wide * tanh(softplus), x)


def gelu(x: Any, /, *, approximate: str = "none") -> Array:
    """x times the normal distribution function of x (D. Hendrycks and K. Gimpel, 2016).

    `approximate="tanh"` takes the tanh formula instead of erf.  Raises ArgumentError for others.
    """
    wide = _wide(x, "gelu")
    if approximate == "none":
        return _narrow(wide * 0.5 * (1 + erf(wide * math.sqrt(0.5))), x)
    if approximate != "tanh":
        raise ArgumentError(
            op="gelu", argument="approximate", value=repr(approximate), expected="'none' or 'tanh'"
        )
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    return _narrow(wide * 0.5 * (1 + tanh(inner)), x)


def _greatest(x: Array, axis: Axis | None) -> Array:
    """The greatest element along `axis`, which is kept; -inf of nothing."""
    node = value(x, "max")
    axes = axes_of(axis, node.type.rank, "max")
    if any(is_empty(node, a) for a in axes):
        return total(x, axis=axis, keepdims=True) - math.inf
    return Array.of(fold("max", node, axes, keepdims=True))


def softmax(x: Any, /, *, axis: Axis = -1) -> Array:
    """exp(x) over its sum along `axis`, without overflow.  Raises AxisError."""
    wide = _wide(x, "softmax")
    grown = exp(wide - _greatest(wide, axis))
    return _narrow(grown / total(grown, axis=axis, keepdims=True), x)


def logsumexp(x: Any, /, *, axis: Axis | None = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) along `axis` without overflow; -inf where every element is -inf."""
    wide = _wide(x, "logsumexp")
    top = _greatest(wide, axis)
    top = where(abs(top) == math.inf, 0.0, top)
    found = log(total(exp(wide - top), axis=axis, keepdims=True)) + top
    if not keepdims:
        found = total(found, axis=axis)  # over dimensions of size 1
    return _narrow(found, x)


def log_softmax(x: Any, /, *, axis: Axis = -1) -> Array:
    """The logarithm of `softmax`, accurate where that is tiny."""
    wide = _wide(x, "log_softmax")
    shifted = wide - _greatest(wide, axis)
    return _narrow(shifted - log(total(exp(shifted), axis=axis, keepdims=True)), x)


def _scaled(found: Array, weight: Any, bias: Any, what: str) -> Array:
    if weight is not None:
        found = found * _wide(weight, what)
    return found if bias is None else found + _wide(bias, what)


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, /, *, axis: Axis = -1, eps: float = 1e-5
) -> Array:
    """x with mean 0 and variance 1 along `axis`, then times `weight` plus `bias`.

    `weight` and `bias` broadcast with x (J. Ba et al., 2016).
    """
    wide = _wide(x, "layer_norm")
    centred = wide - mean(wide, axis=axis, keepdims=True)
    variance = mean(centred * centred, axis=axis, keepdims=True)
    return _narrow(_scaled(centred * rsqrt(variance + eps), weight, bias, "layer_norm"), x)


def rms_norm(x: Any, weight: Any = None, /, *, axis: Axis = -1, eps: float = 1e-6) -> Array:
    """x over the root of its mean square along `axis`, times `weight` (B. Zhang et al., 2019)."""
    wide = _wide(x, "rms_norm")
    scale = rsqrt(mean(wide * wide, axis=axis, keepdims=True) + eps)
    return _narrow(_scaled(wide * scale, weight, None, "rms_norm"), x)


def _channels(x: Array, weight: Any, what: str) -> Any:
    """A vector [channels] that broadcasts with x: [batch, channels, ...]."""
    if weight is None:
        return None
    node = value(weight, what)
    if node.type.rank != 1:
        raise ShapeError(op=what, operands=node.told, reason="weight and bias are vectors")
    array = Array.of(node)
    return reshape(array, (array.shape[0], *[1] * (x.ndim - 2)))


def group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, /, *, eps: float = 1e-5
) -> Array:
    """Normalise each group of channels of x: [batch, channels, ...] (Y. Wu and K. He, 2018).

    `weight` and `bias` are vectors [channels].  Raises ShapeError unless groups divides channels.
    """
    wide = _wide(x, "group_norm")
    if wide.ndim < 2:
        raise ShapeError(op="group_norm", operands=wide.node.told, reason="no channels")
    shape = wide.shape
    split = reshape(wide, (shape[0], groups, shape[1] // groups, *shape[2:]))
    axes = tuple(range(2, split.ndim))
    centred = split - mean(split, axis=axes, keepdims=True)
    variance = mean(centred * centred, axis=axes, keepdims=True)
    found = reshape(centred * rsqrt(variance + eps), shape)
    weight, bias = (_channels(wide, w, "group_norm") for w in (weight, bias))
    return _narrow(_scaled(found, weight, bias, "group_norm"), x)


def batch_norm(
    x: Any,
    mean_: Any = None,
    variance: Any = None,
    weight: Any = None,
    bias: Any = None,
    /,
    *,
    eps: float = 1e-5,
) -> Array:
    """Normalise each channel of x: [batch, channels, ...] (S. Ioffe and C. Szegedy, 2015).

    Args:
        x: the array.
        mean_: running means [channels]; those of this batch if None (with `variance`).
        variance: running variances [channels].
        weight: scales [channels].
        bias: shifts [channels].
        eps: added to the variance before its root.
    """
    wide = _wide(x, "batch_norm")
    if wide.ndim < 2:
        raise ShapeError(op="batch_norm", operands=wide.node.told, reason="no channels")
    if mean_ is None:
        axes = (0, *range(2, wide.ndim))
        centred = wide - mean(wide, axis=axes, keepdims=True)
        spread = mean(centred * centred, axis=axes, keepdims=True)
    else:
        centred = wide - _wide(_channels(wide, mean_, "batch_norm"), "batch_norm")
        spread = _wide(_channels(wide, variance, "batch_norm"), "batch_norm")
    weight, bias = (_channels(wide, w, "batch_norm") for w in (weight, bias))
    return _narrow(_scaled(centred * rsqrt(spread + eps), weight, bias, "batch_norm"), x)


def cross_entropy(
    logits: Any,
    labels: Any,
    /,
    *,
    axis: int = -1,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Array:
    """-log softmax(logits) at the labels.

    Args:
        logits: floats with the classes along `axis`.
        labels: integers in the shape of logits without that axis.
        axis: where the classes are.
        ignore: a label that counts for nothing.
        reduction: "mean" over the labels that count, "sum", or "none".

    Raises DTypeError for labels that are no integers, ArgumentError for another reduction.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(
            op="cross_entropy",
            argument="reduction",
            value=repr(reduction),
            expected="'mean', 'sum' or 'none'",
        )
    node = value(labels, "cross_entropy")
    if not node.type.dtype.is_integer:
        raise DTypeError(f"cross_entropy: labels are {node.told}, not integers")
    wide = _wide(logits, "cross_entropy")
    marks = Array.of(node)
    counts = None if ignore is None else marks != ignore
    picks = marks if counts is None else where(counts, marks, 0)
    at = expand_dims(picks, axis=axis)
    chosen = total(take_along_axis(wide, at, axis=axis), axis=axis)
    loss = logsumexp(wide, axis=axis) - chosen
    if counts is not None:
        loss = where(counts, loss, 0.0)
    if reduction == "none":
        return _narrow(loss, logits)
    if reduction == "sum" or counts is None:
        return _narrow(total(loss) if reduction == "sum" else mean(loss), logits)
    number = Array.of(cast(counts.node, wide.dtype))
    return _narrow(total(loss) / total(number), logits)


def attention(
    q: Any,
    k: Any,
    v: Any,
    /,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    scale: float | None = None,
) -> Array:
    """softmax(q kᵀ · scale + bias) v over the last two dimensions (A. Vaswani et al., 2017).

    Args:
        q: queries [..., m, d].
        k: keys [..., n, d].
        v: values [..., n, e].
        mask: bool, broadcasts with [..., m, n]: keys that count.
        bias: floats added to the scores, broadcasts likewise.
        causal: query i sees keys up to i + n - m.
        scale: 1/√d by default.

    Returns:
        [..., m, e] in the dtype of q; 0 for a query without any key.
    """
    query, keys, values = (_wide(x, "attention") for x in (q, k, v))
    factor: Any = query.shape[-1] ** -0.5 if scale is None else scale
    scores = matmul(query, matrix_transpose(keys)) * factor
    if bias is not None:
        scores = scores + _wide(bias, "attention")
    if causal:
        m, n = scores.shape[-2:]
        seen = arange(n) <= expand_dims(arange(m), axis=1) + (n - m)
        mask = seen if mask is None else Array.of(value(mask, "attention")) & seen
    if mask is not None:
        scores = where(mask, scores, -math.inf)
    if scores.shape[-1] == 0:
        return _narrow(matmul(scores, values), q)
    top = _greatest(scores, -1)
    if mask is not None:
        top = where(top == -math.inf, 0.0, top)
    grown = exp(scores - top)
    norm = total(grown, axis=-1, keepdims=True)
    if mask is not None:
        norm = where(norm == 0.0, 1.0, norm)
    return _narrow(matmul(grown / norm, values), q)


def rotary(
    x: Any, positions: Any = None, /, *, base: float = 10000.0, interleaved: bool = False
) -> Array:
    """Rotary position embedding of x: [..., length, size] with an even size (J. Su et al., 2021).

    Args:
        x: the array; each pair of its last dimension turns by position · base^(-2i/size).
        positions: numbers [length] or [..., length]; 0, 1, 2, ... if None.
        base: of the wave lengths.
        interleaved: pairs are neighbours (0, 1), (2, 3), ...; else i and i + size/2.

    Raises ShapeError for an odd size.
    """
    wide = _wide(x, "rotary")
    length, size = wide.shape[-2:]
    if size % 2 != 0:
        raise ShapeError(op="rotary", operands=wide.node.told, reason="the size is odd")
    half = size // 2
    at = arange(length) if positions is None else Array.of(value(positions, "rotary"))
    steps = Array.of(cast(arange(half).node, wide.dtype)) * (-2.0 * math.log(base) / size)
    angle = expand_dims(Array.of(cast(at.node, wide.dtype)), axis=-1) * exp(steps)
    c, s = cos(angle), sin(angle)
    if interleaved:
        pairs = reshape(wide, (*wide.shape[:-1], half, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        turned = concat(
            [expand_dims(a * c - b * s, axis=-1), expand_dims(a * s + b * c, axis=-1)], axis=-1
        )
        return _narrow(reshape(turned, wide.shape), x)
    a, b = wide[..., :half], wide[..., half:]
    return _narrow(concat([a * c - b * s, a * s + b * c], axis=-1), x)
