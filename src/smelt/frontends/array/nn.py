"""Building blocks of neural networks, composed of ordinary array functions.

The compiler knows none of them by name: softmax is a maximum, an exponential, a sum and a division,
and is fused as such.  Half types are computed in float32 and rounded once at the end.

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
from smelt.frontends.array.numpy_hints import missing_names
from smelt.frontends.array.promote import cast
from smelt.frontends.array.reduction import cast_to_float, is_empty, reduce_axes
from smelt.frontends.array.searching import take_along_axis
from smelt.frontends.array.spatial import (
    adaptive_avg_pool,
    adaptive_max_pool,
    avg_pool,
    conv,
    conv_transpose,
    max_pool,
    upsample,
)
from smelt.frontends.array.statistical import mean
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.views import axes_of
from smelt.types.dtype import f64

__all__ = [
    "adaptive_avg_pool", "adaptive_max_pool", "attention", "avg_pool", "batch_norm", "conv",
    "conv_transpose", "cross_entropy", "gelu", "group_norm", "layer_norm", "log_softmax",
    "logsumexp", "max_pool", "mish", "relu", "rms_norm", "rotary", "silu", "softmax", "upsample",
]  # fmt: skip

__getattr__ = missing_names("smelt.nn", __all__)


Axis = int | Sequence[int]


def _to_compute_type(x: Any, what: str) -> Array:
    """Cast `x` to the float dtype of calculations: float32 for half types."""
    return Array.of(cast_to_float(value(x, what)))


def _to_type_of(result: Array, x: Any) -> Array:
    """Cast a result to the dtype of `x`, if that is a float."""
    dtype = value(x, "nn").type.dtype
    return Array.of(cast(result.node, dtype)) if dtype.is_float else result


def relu(x: Any, /) -> Array:
    """Return max(x, 0) for each element."""
    return maximum(x, 0)


def silu(x: Any, /) -> Array:
    """Return x · sigmoid(x) for each element, also called swish."""
    upcast = _to_compute_type(x, "silu")
    return _to_type_of(upcast * sigmoid(upcast), x)


def mish(x: Any, /) -> Array:
    """Return x · tanh(log(1 + exp(x))) for each element."""
    upcast = _to_compute_type(x, "mish")
    softplus = maximum(upcast, 0) + log1p(exp(-abs(upcast)))
    return _to_type_of(upcast * tanh(softplus), x)


def gelu(x: Any, /, *, approximate: str = "none") -> Array:
    """Return x times the normal distribution function of x, for each element.

    See D. Hendrycks and K. Gimpel, 2016.  `approximate="tanh"` uses the tanh formula instead of
    erf.  Raises ArgumentError for other values.
    """
    upcast = _to_compute_type(x, "gelu")
    if approximate == "none":
        return _to_type_of(upcast * 0.5 * (1 + erf(upcast * math.sqrt(0.5))), x)
    if approximate != "tanh":
        raise ArgumentError.of("gelu", "approximate", approximate, "'none' or 'tanh'")
    inner = math.sqrt(2 / math.pi) * (upcast + 0.044715 * (upcast * upcast * upcast))
    return _to_type_of(upcast * 0.5 * (1 + tanh(inner)), x)


def _max_along(x: Array, axis: Axis | None) -> Array:
    """Return the maximum along `axis` with size 1 kept; -inf for no elements."""
    node = value(x, "max")
    axes = axes_of(axis, node.type.rank, "max")
    if any(is_empty(node, a) for a in axes):
        return total(x, axis=axis, keepdims=True) - math.inf
    return Array.of(reduce_axes("max", node, axes, keepdims=True))


def softmax(x: Any, /, *, axis: Axis = -1) -> Array:
    """Return exp(x) over its sum along `axis`, without overflow.

    Floats keep their dtype, integers give float64.  Raises AxisError.
    """
    upcast = _to_compute_type(x, "softmax")
    exps = exp(upcast - _max_along(upcast, axis))
    return _to_type_of(exps / total(exps, axis=axis, keepdims=True), x)


def logsumexp(x: Any, /, *, axis: Axis | None = None, keepdims: bool = False) -> Array:
    """Return log(sum(exp(x))) along `axis` without overflow; None for all dimensions.

    -inf where every element is -inf.  `keepdims` keeps the reduced dimensions with size 1.  Raises
    AxisError.
    """
    upcast = _to_compute_type(x, "logsumexp")
    largest = _max_along(upcast, axis)
    largest = where(abs(largest) == math.inf, 0.0, largest)
    result = log(total(exp(upcast - largest), axis=axis, keepdims=True)) + largest
    if not keepdims:
        result = total(result, axis=axis)  # over dimensions of size 1
    return _to_type_of(result, x)


def log_softmax(x: Any, /, *, axis: Axis = -1) -> Array:
    """Return the logarithm of `softmax`, accurate where softmax is tiny.

    Raises AxisError.
    """
    upcast = _to_compute_type(x, "log_softmax")
    shifted = upcast - _max_along(upcast, axis)
    return _to_type_of(shifted - log(total(exp(shifted), axis=axis, keepdims=True)), x)


def _scale_and_shift(result: Array, weight: Any, bias: Any, what: str) -> Array:
    if weight is not None:
        result = result * _to_compute_type(weight, what)
    return result if bias is None else result + _to_compute_type(bias, what)


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, /, *, axis: Axis = -1, eps: float = 1e-5
) -> Array:
    """Normalise to mean 0 and variance 1 along `axis`, then scale and shift.

    Args:
        x: the array.
        weight: scales that broadcast with x, or None.
        bias: shifts that broadcast with x, or None.
        axis: the dimensions to normalise.
        eps: added to the variance before its square root.

    Returns:
        An array of the shape and (float) dtype of `x`.

    See J. Ba et al., 2016.  Raises AxisError, ShapeError.
    """
    upcast = _to_compute_type(x, "layer_norm")
    centred = upcast - mean(upcast, axis=axis, keepdims=True)
    variance = mean(centred * centred, axis=axis, keepdims=True)
    return _to_type_of(
        _scale_and_shift(centred * rsqrt(variance + eps), weight, bias, "layer_norm"), x
    )


def rms_norm(x: Any, weight: Any = None, /, *, axis: Axis = -1, eps: float = 1e-6) -> Array:
    """Divide by the root of the mean square along `axis`, then scale by `weight`.

    `weight` broadcasts with x; `eps` is added to the mean square.  See B. Zhang et al., 2019.
    Raises AxisError, ShapeError.
    """
    upcast = _to_compute_type(x, "rms_norm")
    scale = rsqrt(mean(upcast * upcast, axis=axis, keepdims=True) + eps)
    return _to_type_of(_scale_and_shift(upcast * scale, weight, None, "rms_norm"), x)


def _per_channel(x: Array, weight: Any, what: str) -> Any:
    """Reshape a vector [channels] to broadcast with x [batch, channels, ...]."""
    if weight is None:
        return None
    node = value(weight, what)
    if node.type.rank != 1:
        raise ShapeError(op=what, operands=node.type_text, reason="weight and bias are vectors")
    array = Array.of(node)
    return reshape(array, (array.shape[0], *[1] * (x.ndim - 2)))


def group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, /, *, eps: float = 1e-5
) -> Array:
    """Normalise each group of channels of x [batch, channels, ...].

    Args:
        x: the array.
        groups: the number of groups of consecutive channels.
        weight: scales [channels], or None.
        bias: shifts [channels], or None.
        eps: added to the variance before its square root.

    See Y. Wu and K. He, 2018.  Raises ShapeError unless `groups` divides the channels.
    """
    upcast = _to_compute_type(x, "group_norm")
    if upcast.ndim < 2:
        raise ShapeError(op="group_norm", operands=upcast.node.type_text, reason="no channels")
    shape = upcast.shape
    split = reshape(upcast, (shape[0], groups, shape[1] // groups, *shape[2:]))
    axes = tuple(range(2, split.ndim))
    centred = split - mean(split, axis=axes, keepdims=True)
    variance = mean(centred * centred, axis=axes, keepdims=True)
    normalised = reshape(centred * rsqrt(variance + eps), shape)
    weight, bias = (_per_channel(upcast, w, "group_norm") for w in (weight, bias))
    return _to_type_of(_scale_and_shift(normalised, weight, bias, "group_norm"), x)


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
    """Normalise each channel of x [batch, channels, ...].

    Args:
        x: the array.
        mean_: running means [channels]; None, with `variance`, takes those of this batch.
        variance: running variances [channels].
        weight: scales [channels], or None.
        bias: shifts [channels], or None.
        eps: added to the variance before its square root.

    See S. Ioffe and C. Szegedy, 2015.  Raises ShapeError.
    """
    upcast = _to_compute_type(x, "batch_norm")
    if upcast.ndim < 2:
        raise ShapeError(op="batch_norm", operands=upcast.node.type_text, reason="no channels")
    if mean_ is None:
        axes = (0, *range(2, upcast.ndim))
        # rounded once: an error of the mean is one of every result, in units of the spread
        middle = mean(Array.of(cast(upcast.node, f64)), axis=axes, keepdims=True)
        centred = upcast - Array.of(cast(middle.node, upcast.dtype))
        spread = mean(centred * centred, axis=axes, keepdims=True)
    else:
        centred = upcast - _to_compute_type(_per_channel(upcast, mean_, "batch_norm"), "batch_norm")
        spread = _to_compute_type(_per_channel(upcast, variance, "batch_norm"), "batch_norm")
    weight, bias = (_per_channel(upcast, w, "batch_norm") for w in (weight, bias))
    return _to_type_of(
        _scale_and_shift(centred * rsqrt(spread + eps), weight, bias, "batch_norm"), x
    )


def cross_entropy(
    logits: Any,
    labels: Any,
    /,
    *,
    axis: int = -1,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Array:
    """Return the cross entropy -log softmax(logits) at the labels.

    Args:
        logits: floats with the classes along `axis`.
        labels: integers in the shape of logits without that axis.
        axis: the dimension of the classes.
        ignore: a label whose loss is 0 and not counted.
        reduction: "mean" over the counted labels, "sum", or "none".

    Returns:
        Rank 0, or the shape of `labels` for "none", in the dtype of `logits`.

    Raises DTypeError for labels that are not integers, ArgumentError for another reduction.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError.of("cross_entropy", "reduction", reduction, "'mean', 'sum' or 'none'")
    node = value(labels, "cross_entropy")
    if not node.type.dtype.is_integer:
        raise DTypeError(f"cross_entropy: labels are {node.type_text}, not integers")
    upcast = _to_compute_type(logits, "cross_entropy")
    classes = Array.of(node)
    counted = None if ignore is None else classes != ignore
    positions = classes if counted is None else where(counted, classes, 0)
    index = expand_dims(positions, axis=axis)
    picked = total(take_along_axis(upcast, index, axis=axis), axis=axis)
    loss = logsumexp(upcast, axis=axis) - picked
    if counted is not None:
        loss = where(counted, loss, 0.0)
    if reduction == "none":
        return _to_type_of(loss, logits)
    if reduction == "sum" or counted is None:
        return _to_type_of(total(loss) if reduction == "sum" else mean(loss), logits)
    number = Array.of(cast(counted.node, upcast.dtype))
    return _to_type_of(total(loss) / total(number), logits)


def _default_scale(width: Any) -> Any:
    """Return 1/√width; 1 without a feature, where all scores are 0."""
    try:
        return width**-0.5
    except ZeroDivisionError:
        return 1.0


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
    """Return softmax(q kᵀ · scale + bias) v over the last two dimensions.

    Args:
        q: queries [..., m, d].
        k: keys [..., n, d].
        v: values [..., n, e].
        mask: bool, broadcasts with [..., m, n]: true for keys that count.
        bias: floats added to the scores, broadcasts likewise.
        causal: query i attends to keys up to i + n - m only.
        scale: 1/√d by default, 1 if d is 0.

    Returns:
        [..., m, e] in the dtype of q; 0 for a query without any key.

    See A. Vaswani et al., 2017.  Raises ShapeError, DTypeError.
    """
    query, keys, values = (_to_compute_type(x, "attention") for x in (q, k, v))
    factor: Any = _default_scale(query.shape[-1]) if scale is None else scale
    scores = matmul(query, matrix_transpose(keys)) * factor
    if bias is not None:
        scores = scores + _to_compute_type(bias, "attention")
    if causal:
        m, n = scores.shape[-2:]
        visible = arange(n) <= expand_dims(arange(m), axis=1) + (n - m)
        mask = visible if mask is None else Array.of(value(mask, "attention")) & visible
    if mask is not None:
        scores = where(mask, scores, -math.inf)
    if scores.shape[-1] == 0:
        return _to_type_of(matmul(scores, values), q)
    largest = _max_along(scores, -1)
    if mask is not None:
        largest = where(largest == -math.inf, 0.0, largest)
    exps = exp(scores - largest)
    norm = total(exps, axis=-1, keepdims=True)
    if mask is not None:
        norm = where(norm == 0.0, 1.0, norm)
    return _to_type_of(matmul(exps / norm, values), q)


def rotary(
    x: Any, positions: Any = None, /, *, base: float = 10000.0, interleaved: bool = False
) -> Array:
    """Apply rotary position embedding to x [..., length, size] with an even size.

    Args:
        x: the array; pair i of its last dimension is rotated by the angle position ·
            base^(-2i/size).
        positions: numbers [length] or [..., length]; 0, 1, 2, ... if None.
        base: base of the wavelengths.
        interleaved: pairs are neighbours (0, 1), (2, 3), ...; else i and i + size/2.

    See J. Su et al., 2021.  Raises ShapeError for an odd size and below rank 2.
    """
    upcast = _to_compute_type(x, "rotary")
    if upcast.ndim < 2:
        raise ShapeError(op="rotary", operands=upcast.node.type_text, reason="no length and size")
    length, size = upcast.shape[-2:]
    if size % 2 != 0:
        raise ShapeError(op="rotary", operands=upcast.node.type_text, reason="the size is odd")
    if is_empty(upcast.node, upcast.ndim - 1):
        return _to_type_of(upcast, x)
    half = size // 2
    at = arange(length) if positions is None else Array.of(value(positions, "rotary"))
    steps = Array.of(cast(arange(half).node, upcast.dtype)) * (-2.0 * math.log(base) / size)
    angle = expand_dims(Array.of(cast(at.node, upcast.dtype)), axis=-1) * exp(steps)
    c, s = cos(angle), sin(angle)
    if interleaved:
        pairs = reshape(upcast, (*upcast.shape[:-1], half, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        rotated = concat(
            [expand_dims(a * c - b * s, axis=-1), expand_dims(a * s + b * c, axis=-1)], axis=-1
        )
        return _to_type_of(reshape(rotated, upcast.shape), x)
    a, b = upcast[..., :half], upcast[..., half:]
    return _to_type_of(concat([a * c - b * s, a * s + b * c], axis=-1), x)
