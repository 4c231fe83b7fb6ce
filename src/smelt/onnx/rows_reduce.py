"""Rows of reductions, scans, sorting and searching."""

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


def _host_fold(start: Any, fold: Callable[[Any, Any], Any]) -> Callable[..., Any]:
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


ROWS: tuple[Row, ...] = (
    _reduction("ReduceSum", _sum, host=_host_fold(0, lambda a, b: a + b)),
    _reduction("ReduceProd", _prod, host=_host_fold(1, lambda a, b: a * b)),
    _reduction("ReduceMax", _extreme(sm.max, -float("inf")), host=_host_fold(None, max)),
    _reduction("ReduceMin", _extreme(sm.min, float("inf")), host=_host_fold(None, min)),
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
)
