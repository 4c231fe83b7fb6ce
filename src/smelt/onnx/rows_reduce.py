"""Rows of reductions, scans, sorting and searching, normalisations and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import smelt as sm
from smelt.frontends.array.array import Array
from smelt.onnx.known import Known, object_array
from smelt.onnx.row import Call, Row, axis_of
from smelt.onnx.rows_elementwise import like, truncated_quotient
from smelt.onnx.rows_view import product, slice_along
from smelt.types.dtype import f32


def _reduced_axes(c: Call, axes: Any, rank: int) -> tuple[int, ...]:
    """Return the axes of a reduction; without any, each element is reduced alone."""
    wanted = c.ints(axes, "axes", ())
    if not wanted:
        return () if c.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(axis_of(int(a), rank) for a in wanted))


def _reduction(
    name: str,
    function: Callable[..., Any],
    before: Callable[[Array], Array] | None = None,
    after: Callable[[Array], Array] | None = None,
    host: Callable[..., Any] | None = None,
) -> Row:
    """Return the row of a reduction, with maps before and after it."""

    def rule(c: Call, x: Array, axes: Known | None = None) -> Any:
        among = _reduced_axes(c, axes, x.ndim)
        y = x if before is None else before(x)
        y = function(y, axis=among, keepdims=bool(c.get("keepdims", 1)))
        return y if after is None else after(y)

    return Row(name, rule, (1,), host=host)


def _sum(x: Array, **options: Any) -> Any:
    return sm.sum(x, dtype=x.dtype, **options)


def _prod(x: Array, **options: Any) -> Any:
    return sm.prod(x, dtype=x.dtype, **options)


def _mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    if not x.dtype.is_integer:
        return sm.mean(x, axis=axis, keepdims=keepdims)
    total = sm.sum(x, axis=axis, dtype=x.dtype, keepdims=keepdims)
    count = sm.full((), product([x.shape[a] for a in axis]), dtype=x.dtype)
    return truncated_quotient(total, count)


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    return sm.astype(sm.nn.logsumexp(x, axis=axis, keepdims=keepdims), x.dtype)


def _extreme(function: Callable[..., Any], empty: float) -> Callable[..., Any]:
    def rule(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
        if x.dtype.kind == "bool":
            both = sm.any if empty < 0 else sm.all
            return both(x, axis=axis, keepdims=keepdims)
        if any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in axis):
            kept = [1 if a in axis else d for a, d in enumerate(x.shape)]
            shape = kept if keepdims else [d for a, d in enumerate(x.shape) if a not in axis]
            info = None if x.dtype.is_float else np.iinfo(x.dtype.numpy)
            value = empty if info is None else int(info.min if empty < 0 else info.max)
            return sm.full(tuple(shape), value, dtype=x.dtype)
        return function(x, axis=axis, keepdims=keepdims)

    return rule


def _host_fold(fold: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a host rule for a vector of sizes that is reduced completely."""

    def host(c: Call, x: Any, axes: Any = None) -> Any:
        if x.ndim != 1 or x.dtype.kind not in "iO" or not x.size:
            return NotImplemented
        if axes is not None and not axes.size and c.get("noop_with_empty_axes", 0):
            return NotImplemented
        values = list(x.flat) if x.dtype == object else x.tolist()
        total = values[0]
        for v in values[1:]:
            total = fold(total, v)
        result = object_array((1,) if c.get("keepdims", 1) else (), [total])
        return Known(result, np.int64 if x.dtype == object else x.dtype)

    return host


def _arg_extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(c: Call, x: Array) -> Any:
        axis, keep = axis_of(c.get("axis", 0), x.ndim), bool(c.get("keepdims", 1))
        if not c.get("select_last_index", 0):
            return sm.astype(function(x, axis=axis, keepdims=keep), sm.int64)
        index = function(sm.flip(x, axis=axis), axis=axis, keepdims=keep)
        return sm.astype(x.shape[axis] - 1 - index, sm.int64)

    return rule


def _scan(function: Callable[..., Any], neutral: int) -> Callable[..., Any]:
    def rule(c: Call, x: Array, axis: Known) -> Any:
        a = axis_of(int(axis.item()), x.ndim)
        if c.get("reverse", 0):
            x = sm.flip(x, axis=a)
        y = function(x, axis=a, dtype=x.dtype)
        if c.get("exclusive", 0):
            first = sm.full((*x.shape[:a], 1, *x.shape[a + 1 :]), neutral, dtype=x.dtype)
            y = slice_along(sm.concat([first, y], axis=a), a, 0, x.shape[a])
        return sm.flip(y, axis=a) if c.get("reverse", 0) else y

    return rule


def _top_k(c: Call, x: Array, k: Known | None = None) -> Any:
    axis = axis_of(c.get("axis", -1), x.ndim)
    count = c.get("k") if k is None else k.item()
    largest = bool(c.get("largest", 1))
    best = sm.top_k(x, count, axis=axis, largest=largest)
    return best.values, sm.astype(best.indices, sm.int64)


def _hardmax(c: Call, x: Array) -> Any:
    if c.version < 13:
        return _on_two_axes(c, x, _hardmax_last)
    axis = axis_of(c.get("axis", -1), x.ndim)
    index = sm.argmax(x, axis=axis, keepdims=True)
    shape = [1] * x.ndim
    shape[axis] = -1
    return sm.astype(sm.reshape(sm.arange(x.shape[axis]), tuple(shape)) == index, x.dtype)


def _hardmax_last(x: Array) -> Any:
    index = sm.argmax(x, axis=-1, keepdims=True)
    return sm.astype(sm.arange(x.shape[-1]) == index, x.dtype)


def _on_two_axes(c: Call, x: Array, function: Callable[[Array], Array]) -> Any:
    """Apply a function of rows as before opset 13: axes from `axis` on are one."""
    axis = axis_of(c.get("axis", 1), x.ndim)
    rows = sm.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return sm.reshape(function(rows), x.shape)


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(c: Call, x: Array) -> Any:
        if c.version < 13 and c.get("axis", 1) not in (-1, x.ndim - 1):
            return _on_two_axes(c, x, lambda rows: function(rows, axis=-1))
        axis = c.get("axis", 1 if c.version < 13 else -1)
        return function(x, axis=axis_of(axis, x.ndim))

    return rule


def _wide(x: Array) -> Array:
    """Return a value in the type of arithmetic: float32 for half types."""
    return sm.astype(x, sm.float32) if x.dtype.compute is f32 and x.dtype is not f32 else x


def _norm(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    squares = sm.sum(sm.square(_wide(x)), axis=axis, keepdims=keepdims)
    if x.dtype.is_integer:
        return sm.astype(sm.sqrt(sm.astype(squares, sm.float64)), x.dtype)
    return sm.astype(sm.sqrt(squares), x.dtype)


def _log(x: Array) -> Array:
    if x.dtype.is_integer:
        return sm.astype(sm.log(sm.astype(x, sm.float64)), x.dtype)
    return sm.log(x)


def _lp_normalize(c: Call, x: Array) -> Any:
    axis = axis_of(c.get("axis", -1), x.ndim)
    if c.get("p", 2) == 1:
        norm = sm.sum(sm.abs(x), axis=axis, keepdims=True)
    else:
        norm = sm.sqrt(sm.sum(sm.square(x), axis=axis, keepdims=True))
    return sm.where(norm == like(x, 0), like(x, 0), x / norm)


# Normalisations


def _standardized(c: Call, y: Array, axes: Any) -> tuple[Array, Array, Array]:
    """Return the mean over axes, the distances from it, and one over their spread."""
    mean = sm.mean(y, axis=axes, keepdims=True)
    centred = y - mean
    variance = sm.mean(centred * centred, axis=axes, keepdims=True)
    return mean, centred, sm.rsqrt(variance + like(y, c.get("epsilon", 1e-5)))


def _layer_norm(c: Call, x: Array, scale: Any, bias: Any = None) -> Any:
    axis = axis_of(c.get("axis", -1), x.ndim)
    mean, centred, factor = _standardized(c, _wide(x), tuple(range(axis, x.ndim)))
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
    _, centred, factor = _standardized(c, _wide(x), tuple(range(2, x.ndim)))
    scale, bias = (_per_channel(_wide(v), x.ndim) for v in (scale, bias))
    return sm.astype(centred * factor * scale + bias, x.dtype)


def _group_norm(c: Call, x: Array, scale: Array, bias: Array) -> Any:
    groups, channels = c.get("num_groups"), x.shape[1]
    if c.version < 21:  # scales of groups rather than of channels
        scale, bias = (sm.repeat(v, channels // groups) for v in (scale, bias))
    _, centred, factor = _standardized(c, sm.reshape(_wide(x), (x.shape[0], groups, -1)), -1)
    result = sm.astype(sm.reshape(centred * factor, x.shape), x.dtype)
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


def _nll(c: Call, scores: Array, labels: Array, weight: Any = None) -> Any:
    """Return the negative log likelihood of labels [n, *d] for scores [n, classes, *d]."""
    labels, ignored = sm.astype(labels, sm.int64), c.get("ignore_index")
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


def _softmax_cross_entropy(c: Call, scores: Array, labels: Array, weight: Any = None) -> Any:
    logs = sm.nn.log_softmax(scores, axis=1)
    return _nll(c, logs, labels, weight), logs


ROWS: tuple[Row, ...] = (
    _reduction("ReduceSum", _sum, host=_host_fold(lambda a, b: a + b)),
    _reduction("ReduceProd", _prod, host=_host_fold(lambda a, b: a * b)),
    _reduction("ReduceMax", _extreme(sm.max, -float("inf")), host=_host_fold(max)),
    _reduction("ReduceMin", _extreme(sm.min, float("inf")), host=_host_fold(min)),
    _reduction("ReduceMean", _mean),
    _reduction("ReduceL1", _sum, before=sm.abs),
    _reduction("ReduceL2", _norm, after=None),
    _reduction("ReduceLogSum", _sum, after=_log),
    _reduction("ReduceLogSumExp", _log_sum_exp),
    _reduction("ReduceSumSquare", _sum, before=sm.square),
    Row("ArgMax", _arg_extreme(sm.argmax)),
    Row("ArgMin", _arg_extreme(sm.argmin)),
    Row("CumSum", _scan(sm.cumulative_sum, 0), (1,)),
    Row("CumProd", _scan(sm.cumulative_prod, 1), (1,)),
    Row("TopK", _top_k, (1,)),
    Row("Hardmax", _hardmax),
    Row("Softmax", _softmax(sm.nn.softmax)),
    Row("LogSoftmax", _softmax(sm.nn.log_softmax)),
    Row("LpNormalization", _lp_normalize),
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
    Row("NegativeLogLikelihoodLoss", _nll),
    Row("SoftmaxCrossEntropyLoss", _softmax_cross_entropy),
)
