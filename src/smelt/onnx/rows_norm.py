"""Rows of normalisations and losses."""

from __future__ import annotations

from typing import Any

import smelt as sm
from smelt.frontends.array.array import Array
from smelt.onnx.row import Call, Row, axis_of
from smelt.onnx.rows_elementwise import like
from smelt.onnx.rows_view import product
from smelt.types.dtype import f32, f64


def _wide(x: Array) -> Array:
    """Return a value in the type of arithmetic: float32 for half types."""
    return x if x.dtype in (f32, f64) else sm.astype(x, sm.float32)


def _layer_norm(c: Call, x: Array, scale: Any, bias: Any = None) -> Any:
    axis = axis_of(c.get("axis", -1), x.ndim)
    axes = tuple(range(axis, x.ndim))
    y = _wide(x)
    mean = sm.mean(y, axis=axes, keepdims=True)
    centred = y - mean
    variance = sm.mean(centred * centred, axis=axes, keepdims=True)
    factor = sm.rsqrt(variance + like(y, c.get("epsilon", 1e-5)))
    result = sm.astype(centred * factor, x.dtype) * scale
    result = result if bias is None else result + bias
    return result, sm.astype(mean, sm.float32), sm.astype(factor, sm.float32)


def _skip_layer_norm(
    c: Call, x: Array, skip: Array, gamma: Array, beta: Any = None, bias: Any = None
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = sm.nn.layer_norm(total, gamma, beta, eps=c.get("epsilon", 1e-12))
    return y, None, None, total


def _skip_simplified(c: Call, x: Array, skip: Array, gamma: Array, bias: Any = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    return sm.nn.rms_norm(total, gamma, eps=c.get("epsilon", 1e-12)), None, None, total


def _rms_norm(c: Call, x: Array, scale: Array) -> Any:
    axis = axis_of(c.get("axis", -1), x.ndim)
    axes = tuple(range(axis, x.ndim))
    y = _wide(x)
    square = sm.mean(y * y, axis=axes, keepdims=True)
    factor = sm.rsqrt(square + like(y, c.get("epsilon", 1e-5)))
    return sm.astype(y * factor, x.dtype) * scale


def _per_channel(vector: Array, rank: int) -> Array:
    return sm.reshape(vector, (-1, *(1,) * (rank - 2)))


def _batch_norm(c: Call, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Any:
    rank, eps = x.ndim, like(_wide(x), c.get("epsilon", 1e-5))
    if not c.get("training_mode", 0):
        y, centre, spread = _wide(x), _wide(mean), _wide(variance)
        factor = _wide(scale) * sm.rsqrt(spread + eps)
        shift = _wide(bias) - centre * factor
        result = y * _per_channel(factor, rank) + _per_channel(shift, rank)
        return sm.astype(result, x.dtype)
    axes = (0, *range(2, rank))
    y = _wide(x)
    batch_mean = sm.mean(y, axis=axes)
    batch_variance = sm.mean(sm.square(y - _per_channel(batch_mean, rank)), axis=axes)
    momentum = c.get("momentum", 0.9)
    factor = _wide(scale) * sm.rsqrt(batch_variance + eps)
    result = (y - _per_channel(batch_mean, rank)) * _per_channel(factor, rank)
    result = sm.astype(result + _per_channel(_wide(bias), rank), x.dtype)
    running = [
        sm.astype(_wide(old) * momentum + new * (1 - momentum), old.dtype)
        for old, new in ((mean, batch_mean), (variance, batch_variance))
    ]
    return result, *running


def _instance_norm(c: Call, x: Array, scale: Array, bias: Array) -> Any:
    axes = tuple(range(2, x.ndim))
    y = _wide(x)
    centred = y - sm.mean(y, axis=axes, keepdims=True)
    variance = sm.mean(centred * centred, axis=axes, keepdims=True)
    result = centred * sm.rsqrt(variance + like(y, c.get("epsilon", 1e-5)))
    return sm.astype(
        result * _per_channel(_wide(scale), x.ndim) + _per_channel(_wide(bias), x.ndim), x.dtype
    )


def _group_norm(c: Call, x: Array, scale: Array, bias: Array) -> Any:
    groups, channels = c.get("num_groups"), x.shape[1]
    if c.version < 21:  # scales of groups rather than of channels
        scale, bias = (sm.repeat(v, channels // groups) for v in (scale, bias))
    y = sm.reshape(_wide(x), (x.shape[0], groups, -1))
    centred = y - sm.mean(y, axis=-1, keepdims=True)
    variance = sm.mean(centred * centred, axis=-1, keepdims=True)
    result = centred * sm.rsqrt(variance + like(y, c.get("epsilon", 1e-5)))
    result = sm.astype(sm.reshape(result, x.shape), x.dtype)
    return result * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


def _mean_variance(c: Call, x: Array) -> Any:
    axes = tuple(axis_of(a, x.ndim) for a in c.get("axes") or (0, 2, 3))
    centred = x - sm.mean(x, axis=axes, keepdims=True)
    variance = sm.mean(centred * centred, axis=axes, keepdims=True)
    return centred / (sm.sqrt(variance) + like(x, 1e-9))


def _local_response(c: Call, x: Array) -> Any:
    size = c.get("size")
    low = (size - 1) // 2
    widths = [(0, 0), (low, size - 1 - low), *[(0, 0)] * (x.ndim - 2)]
    squares = sm.pad(x * x, widths)
    total: Any = 0
    for k in range(size):
        total = squares[:, k : k + x.shape[1]] + total
    alpha, beta, bias = c.get("alpha", 1e-4), c.get("beta", 0.75), c.get("bias", 1.0)
    return x / sm.pow(like(x, bias) + total * like(x, alpha / size), like(x, beta))


# Losses


def _dropout(c: Call, x: Array, ratio: Any = None, training: Any = None) -> Any:
    is_training = training is not None and bool(c.known(training).item())
    rate = 0.5 if ratio is None else float(c.known(ratio).item())
    if is_training and rate:
        mask = sm.random.uniform(sm.random.key(c.get("seed", 0)), x.shape) >= rate
        return sm.where(mask, x / like(x, 1 - rate), like(x, 0)), mask
    return (x, sm.full(x.shape, True, dtype=sm.bool)) if c.wants(1) else x


def _nll(c: Call, scores: Array, labels: Array, weight: Any, ignored: int | None) -> Any:
    """Return the negative log likelihood of labels [n, *d] for scores [n, classes, *d]."""
    labels = sm.astype(labels, sm.int64)
    counts = None if ignored is None else labels != ignored
    safe = labels if counts is None else sm.where(counts, labels, 0)
    picked = -sm.squeeze(sm.take_along_axis(scores, sm.expand_dims(safe, axis=1), axis=1), axis=1)
    weights = None if weight is None else sm.take(weight, safe, axis=0)
    if counts is not None:
        zero = like(scores, 0)
        ones = like(scores, 1) if weights is None else weights
        weights = sm.where(counts, ones, zero)
    reduction = c.get("reduction", "mean")
    loss = picked if weights is None else picked * weights
    if reduction == "none":
        return loss
    total = sm.sum(loss)
    if reduction == "sum":
        return total
    return total / (like(scores, 1) * product(loss.shape) if weights is None else sm.sum(weights))


def _negative_log_likelihood(c: Call, scores: Array, labels: Array, weight: Any = None) -> Any:
    return _nll(c, scores, labels, weight, c.get("ignore_index"))


def _softmax_cross_entropy(c: Call, scores: Array, labels: Array, weight: Any = None) -> Any:
    logs = sm.nn.log_softmax(scores, axis=1)
    return _nll(c, logs, labels, weight, c.get("ignore_index")), logs


ROWS: tuple[Row, ...] = (
    Row("LayerNormalization", _layer_norm),
    Row("SimplifiedLayerNormalization", _rms_norm),
    Row("SkipLayerNormalization", _skip_layer_norm, domain="com.microsoft"),
    Row("SkipSimplifiedLayerNormalization", _skip_simplified, domain="com.microsoft"),
    Row("RMSNormalization", _rms_norm),
    Row("BatchNormalization", _batch_norm),
    Row("InstanceNormalization", _instance_norm),
    Row("GroupNormalization", _group_norm),
    Row("MeanVarianceNormalization", _mean_variance),
    Row("LRN", _local_response),
    Row("Dropout", _dropout),
    Row("NegativeLogLikelihoodLoss", _negative_log_likelihood),
    Row("SoftmaxCrossEntropyLoss", _softmax_cross_entropy),
)
