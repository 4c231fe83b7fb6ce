"""Lower reductions, scans, softmax, norms and losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axes_of, axis_of, from_torch, rows, same
from smelt.frontends.torch.value import V, gather, iota, number, select
from smelt.types.dtype import bool_, f64, i64, u8
from smelt.types.expr import Index, floordiv


def _reduce(combine: str) -> Callable[..., V]:
    """Reduce in the type of the result."""

    def lower(c: Call, x: V, dim: Any = None, keepdim: bool = False, **_options: Any) -> V:
        total = x.cast(c.dtype).reduce(combine, axes_of(dim, x.rank), keepdim)
        return total.cast(c.dtype)

    return lower


def _mean(c: Call, x: V, dims: Any = None, keepdim: bool = False, **_options: Any) -> V:
    x = x.cast(c.dtype).to_compute_type()
    return x.mean(axes_of(dims, x.rank), keepdim).cast(c.dtype)


def _any_or_all(combine: str) -> Callable[..., V]:
    return lambda c, x, dims=None, keepdim=False: (
        x.cast(bool_).reduce(combine, axes_of(dims, x.rank), keepdim).cast(c.dtype)
    )


def _min_or_max(combine: str) -> Callable[..., V]:
    return lambda c, x, dims=None, keepdim=False: _reduce_extreme(
        combine, x, axes_of(dims, x.rank), keepdim
    )


def _reduce_extreme(combine: str, x: V, axes: Sequence[int], keep: bool) -> V:
    if x.dtype == bool_:
        result = x.cast(u8).reduce(combine, axes, keep)
        return result if combine.startswith("arg") else result.cast(bool_)
    return x.reduce(combine, axes, keep)


def _min_or_max_with_index(combine: str) -> Callable[..., tuple[V, V]]:
    def lower(c: Call, x: V, dim: int, keepdim: bool = False) -> tuple[V, V]:
        axes = (axis_of(dim, x.rank),)
        return _reduce_extreme(combine, x, axes, keepdim), _reduce_extreme(
            f"arg{combine}", x, axes, keepdim
        )

    return lower


def _argreduce(combine: str) -> Callable[..., V]:
    def lower(c: Call, x: V, dim: Any = None, keepdim: bool = False) -> V:
        x = x.cast(u8) if x.dtype == bool_ else x
        if dim is not None:
            return x.reduce(combine, (axis_of(dim, x.rank),), keepdim)
        result = x.reshape(x.type.elements).reduce(combine, (0,))
        return result.reshape(*c.shape)

    return lower


def _moments(x: V, axes: Sequence[int], correction: Any) -> tuple[V, V]:
    """Return variance and mean, both with the axes kept as 1."""
    mean = x.mean(axes, keep=True)
    deviation = x - mean
    count = number(x.count(axes), x.dtype, x.origin)
    divisor = (count - float(correction)).map("max", 0) if correction else count
    return (deviation * deviation).sum(axes, keep=True) / divisor, mean


def _drop_axes(x: V, axes: Sequence[int], keep: bool) -> V:
    if keep:
        return x
    return x.reshape(*(n for a, n in enumerate(x.shape) if a not in axes))


def _spread(result: Callable[[V, V], Sequence[V]]) -> Callable[..., Any]:
    """Reduce to what `result` makes of variance and mean."""

    def lower(c: Call, x: V, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
        axes = axes_of(dim, x.rank)
        moments = _moments(x.to_compute_type(), axes, 1 if correction is None else correction)
        results = [_drop_axes(y, axes, keepdim).cast(c.dtype) for y in result(*moments)]
        return results[0] if len(results) == 1 else tuple(results)

    return lower


_var = _spread(lambda variance, mean: (variance,))


def _vector_norm(
    c: Call, x: V, order: Any = 2, dim: Any = None, keepdim: bool = False, **_options: Any
) -> V:
    axes = axes_of(dim, x.rank)
    x = x.cast(c.dtype).to_compute_type()
    if order == 2:
        norm = (x * x).sum(axes, keepdim).map("sqrt")
    elif order == 1:
        norm = x.map("abs").sum(axes, keepdim)
    elif order == math.inf:
        norm = x.map("abs").reduce("max", axes, keepdim)
    else:
        raise UnsupportedError(f"a norm of order {order}")
    return norm.cast(c.dtype)


def _scan(combine: str) -> Callable[..., V]:
    def lower(c: Call, x: V, dim: int, **_options: Any) -> V:
        x = x.cast(c.dtype)
        if not x.rank:
            return x
        result = x.scan(combine, axis_of(dim, x.rank)).cast(c.dtype)
        # Eager code's sums start with 0, which a sum of -0 becomes.
        return result.map("add", 0) if combine == "sum" and c.dtype.is_float else result

    return lower


# ---- softmax -------------------------------------------------------------------------------------


def _softmax(c: Call, x: V, dim: int, _half_to_float: bool = False) -> V:
    axes = (axis_of(dim, x.rank),) if x.rank else ()
    widened = x.to_compute_type()
    exponentials = (widened - widened.reduce("max", axes, True)).map("exp")
    return (exponentials / exponentials.sum(axes, True)).cast(c.dtype)


def _log_softmax(c: Call, x: V, dim: int, _half_to_float: bool = False) -> V:
    axes = (axis_of(dim, x.rank),) if x.rank else ()
    widened = x.to_compute_type()
    shifted = widened - widened.reduce("max", axes, True)
    return (shifted - shifted.map("exp").sum(axes, True).map("log")).cast(c.dtype)


def _logsumexp(c: Call, x: V, dims: Any, keepdim: bool = False) -> V:
    axes = axes_of(dims, x.rank)
    widened = x.cast(c.dtype).to_compute_type()
    maximum = widened.reduce("max", axes, True)
    maximum = select(maximum.map("abs").map("eq", math.inf), number(0.0, maximum.dtype), maximum)
    result = (widened - maximum).map("exp").sum(axes, True).map("log") + maximum
    return _drop_axes(result, axes, keepdim).cast(c.dtype)


# ---- norms ---------------------------------------------------------------------------------------


def _affine(x: V, weight: V | None, bias: V | None) -> V:
    """Return x · weight + bias, which broadcast already."""
    if weight is not None:
        x = x * weight.cast(x.dtype)
    return x if bias is None else x + bias.cast(x.dtype)


def _layer_norm(
    c: Call, x: V, shape: Sequence[Any], weight: V | None, bias: V | None, eps: float
) -> tuple[V, V, V]:
    axes = tuple(range(x.rank - len(shape), x.rank))
    widened = x.to_compute_type()
    variance, mean = _moments(widened, axes, 0)
    scale = (variance + float(eps)).map("rsqrt")
    normed = _affine((widened - mean) * scale, weight, bias).cast(x.dtype)
    kind = from_torch(c.out[1].dtype)
    return normed, mean.cast(kind), scale.cast(kind)


def _channels(x: V | None, rank: int) -> V | None:
    """Reshape a vector of channels to broadcast with [batch, channels, ...]."""
    return None if x is None else x.reshape(x.shape[0], *[1] * (rank - 2))


def _group_norm(
    c: Call,
    x: V,
    weight: V | None,
    bias: V | None,
    batch: Index,
    channels: Index,
    _inner: Index,
    groups: int,
    eps: float,
) -> tuple[V, V, V]:
    widened = x.to_compute_type()
    split = widened.reshape(batch, groups, floordiv(channels, groups), *x.shape[2:])
    axes = tuple(range(2, split.rank))
    variance, mean = _moments(split, axes, 0)
    scale = (variance + float(eps)).map("rsqrt")
    normed = ((split - mean) * scale).reshape(*x.shape)
    weight, bias = (_channels(w, x.rank) for w in (weight, bias))
    normed = _affine(normed, weight, bias).cast(x.dtype)
    shape = (batch, groups)
    return normed, mean.reshape(*shape).cast(x.dtype), scale.reshape(*shape).cast(x.dtype)


def _batch_norm(
    c: Call,
    x: V,
    weight: V | None,
    bias: V | None,
    mean: V,
    variance: V,
    _momentum: float,
    eps: float,
) -> tuple[V, V | None, V | None]:
    widened = x.to_compute_type()
    scale = (variance.cast(widened.dtype) + float(eps)).map("rsqrt")
    shift = mean.cast(widened.dtype)
    if weight is not None:
        scale = scale * weight.cast(widened.dtype)
    at = [_channels(y, x.rank) for y in (scale, shift, bias)]
    assert at[0] is not None and at[1] is not None
    return _affine((widened - at[1]) * at[0], None, at[2]).cast(x.dtype), None, None


def _batch_norm_training(
    c: Call,
    x: V,
    weight: V | None,
    bias: V | None,
    running_mean: V | None,
    running_var: V | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[V | None, ...]:
    """Normalize with the statistics of this batch, and update the running ones."""
    if not training or running_mean is None or running_var is None:
        raise UnsupportedError("batch norm without running statistics")
    axes = (0, *range(2, x.rank))
    widened = x.to_compute_type()
    # Rounded once: an error of the mean is one of every result, in units of the spread.
    mean = widened.cast(f64).mean(axes, keep=True).cast(widened.dtype)
    centred = widened - mean
    variance = (centred * centred).mean(axes, keep=True)
    scale = (variance + float(eps)).map("rsqrt")
    weight, bias = (_channels(w, x.rank) for w in (weight, bias))
    normed = _affine(centred * scale, weight, bias).cast(x.dtype)
    channels = x.shape[1]
    flat_mean, flat_var, flat_scale = (y.reshape(channels) for y in (mean, variance, scale))
    count = number(x.count(axes), widened.dtype, c.origin)
    unbiased = flat_var * (count / (count - 1.0))
    new_mean = running_mean * (1.0 - momentum) + flat_mean * momentum
    new_var = running_var * (1.0 - momentum) + unbiased * momentum
    results = (normed, flat_mean, flat_scale, new_mean, new_var)
    return tuple(y.cast(from_torch(t.dtype)) for y, t in zip(results, c.out, strict=True))


def _rms_norm(
    c: Call, x: V, shape: Sequence[Any], weight: V | None = None, eps: float | None = None
) -> tuple[V, V]:
    axes = tuple(range(x.rank - len(shape), x.rank))
    widened = x.to_compute_type()
    tiny = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}[x.dtype.name]
    scale = ((widened * widened).mean(axes, True) + (tiny if eps is None else eps)).map("rsqrt")
    return _affine(widened * scale, weight, None).cast(x.dtype), scale


# ---- losses --------------------------------------------------------------------------------------


def _nll_loss(
    c: Call, x: V, target: V, weight: V | None, reduction: int, ignore: int
) -> tuple[V, V]:
    """Return -x at the target, times its class's weight, and the total weight.

    `x` is [batch, classes], or [classes] alone.
    """
    if x.rank == 1:
        x, target, reduction = x.unsqueeze(0), target.reshape(1), reduction or 2
    is_counted = target.map("ne", ignore)
    classes = select(is_counted, target, number(0, target.dtype)).unsqueeze(1).cast(i64)
    rows = iota((x.shape[0], 1), 0, i64, c.origin)
    picked = gather(x, 0, rows, classes).reshape(x.shape[0]).to_compute_type()
    weights = number(1.0, picked.dtype)
    if weight is not None:
        weights = gather(weight, 0, classes).reshape(x.shape[0]).cast(picked.dtype)
        picked = picked * weights
    zero = number(0.0, picked.dtype)
    loss = select(is_counted, -picked, zero)
    if reduction == 0:
        return loss.cast(c.dtype), number(0.0, c.dtype, c.origin)
    total = select(is_counted, weights, zero).sum((0,))
    total_loss = loss.sum((0,))
    return (total_loss / total if reduction == 1 else total_loss).cast(c.dtype), total.cast(c.dtype)


def _mse_loss(c: Call, x: V, y: V, reduction: int = 1) -> V:
    difference = x.to_compute_type() - y.to_compute_type()
    loss = difference * difference
    if reduction:
        axes = tuple(range(loss.rank))
        loss = loss.mean(axes) if reduction == 1 else loss.sum(axes)
    return loss.cast(c.dtype)


ROWS = (
    *same("sum.default sum.dim_IntList", _reduce("sum")),
    *same("prod.default prod.dim_int", _reduce("prod")),
    *same("mean.default mean.dim", _mean),
    *rows("{}.{}", _any_or_all, "any all", "default dim dims"),
    *rows("a{}.{}", _min_or_max, "max min"),
    *rows("{}.{}", _min_or_max, "max min"),
    *rows("{}.{}", _min_or_max_with_index, "max min", "dim"),
    *rows("{}.{}", _argreduce, "argmax argmin"),
    Row("aten.var.correction", _var),
    Row(
        "aten.var.dim",
        lambda c, x, dim, unbiased=True, keepdim=False: _var(
            c, x, dim, correction=int(unbiased), keepdim=keepdim
        ),
    ),
    Row("aten.std.correction", _spread(lambda variance, mean: (variance.map("sqrt"),))),
    Row("aten.var_mean.correction", _spread(lambda variance, mean: (variance, mean))),
    Row("aten.linalg_vector_norm.default", _vector_norm),
    Row("aten.cumsum.default", _scan("sum")),
    Row("aten.cumprod.default", _scan("prod")),
    Row("aten._softmax.default", _softmax),
    Row("aten._log_softmax.default", _log_softmax),
    Row("aten.logsumexp.default", _logsumexp),
    Row("aten.native_layer_norm.default", _layer_norm),
    Row("aten.native_group_norm.default", _group_norm),
    Row("aten._native_batch_norm_legit_no_training.default", _batch_norm),
    Row("aten._native_batch_norm_legit_functional.default", _batch_norm_training),
    Row("aten._fused_rms_norm.default", _rms_norm),
    Row("aten.nll_loss_forward.default", _nll_loss),
    Row("aten.mse_loss.default", _mse_loss),
)
"""Rows of reductions, norms and losses."""
