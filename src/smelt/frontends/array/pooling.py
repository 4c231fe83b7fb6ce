"""Pooling and resizing of images [batch, channels, *spatial].

All are composed of index maps, reductions and elementwise functions.

>>> import smelt as sm
>>> x = sm.reshape(sm.arange(6.0), (1, 1, 6))
>>> max_pool(x, 2), avg_pool(x, 3), upsample(x[..., :2], scale=2)
(Array([[[1., 3., 5.]]]), Array([[[1., 4.]]]), Array([[[0., 0., 1., 1.]]]))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.creation import arange
from smelt.frontends.array.elementwise import clip, floor, maximum, minimum, where
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.manipulation import expand_dims
from smelt.frontends.array.number import user_dim
from smelt.frontends.array.promote import cast
from smelt.frontends.array.reduction import cast_to_float as wide_of
from smelt.frontends.array.reduction import mean as average
from smelt.frontends.array.reduction import reduce_axes
from smelt.frontends.array.searching import take
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import expand, pin_dimensions, reshape, shape_of
from smelt.frontends.array.windows import (
    Windows,
    check_fit,
    padding_of,
    per_dimension,
    slide,
    spatial_rank,
)
from smelt.ops.combine import COMBINES
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index, floordiv, mod, mul


def _windows(
    what: str, x: Value, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Windows, tuple[int, ...]]:
    """Return the windows, and the padding added for partial windows at the ends."""
    count = spatial_rank(what, x)
    extent = per_dimension(what, "size", size, count)
    dilated = per_dimension(what, "dilation", dilation, count)
    steps = extent if stride is None else per_dimension(what, "stride", stride, count)
    padding_pairs = padding_of(what, padding, extent, dilated)
    w = Windows(extent, steps, dilated, padding_pairs)
    if any(2 * max(pair) > w.span(k) for k, pair in enumerate(padding_pairs)):
        raise ArgumentError.of(
            what, "padding", padding, "at most half of a window: others would see the margin only"
        )
    check_fit(what, x, w, x.type_text)
    if not ceil:
        return w, (0,) * count
    beyond_end = tuple(
        _missing_elements(w, k, n) for k, n in enumerate(pin_dimensions(x, range(2, 2 + count)))
    )
    extended = tuple(
        (low, high + e) for (low, high), e in zip(padding_pairs, beyond_end, strict=True)
    )
    return Windows(extent, steps, dilated, extended), beyond_end


def _missing_elements(w: Windows, k: int, n: int) -> int:
    """Return how many elements the last, partial window along dimension k lacks."""
    low, high = w.pad_widths[k]
    lacking = (w.span(k) - n - low - high) % w.stride[k]
    return lacking if lacking + high < w.span(k) else 0


def _reduce_windows(what: str, x: Value, w: Windows, combine: str) -> Value:
    view = slide(what, x, w, COMBINES[combine].identity(x.type.dtype))
    axes = tuple(range(x.type.rank, view.type.rank))
    return reduce_axes(combine, view, axes, keepdims=False) if axes else view


def max_pool(
    x: Any,
    size: Any,
    /,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Array:
    """Return the maximum of each window of x [batch, channels, *spatial].

    Args:
        x: the array.
        size: of the windows; one number for all spatial dimensions or one for each, like all that
            follow.
        stride: distance of windows; their size if None.
        padding: elements on both sides that are never the maximum, at most half a window.
        dilation: distance between neighbouring elements of a window.
        ceil: include a last window that is partly beyond the end.

    Returns:
        [batch, channels, *spatial] in the dtype of `x`.

    Raises ShapeError where the windows do not fit, ArgumentError for other settings.
    """
    node = value(x, "max_pool")
    w, _ = _windows("max_pool", node, size, stride, padding, dilation, ceil)
    return Array.of(_reduce_windows("max_pool", node, w, "max"))


def avg_pool(
    x: Any,
    size: Any,
    /,
    *,
    stride: Any = None,
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
) -> Array:
    """Return the mean of each window of x [batch, channels, *spatial].

    Arguments as in `max_pool`; floats keep their dtype, integers give float64.  With
    `count_padding` zeros of the padding count as elements.

    Raises ShapeError where the windows do not fit, ArgumentError for other settings.
    """
    node = value(x, "avg_pool")
    w, beyond_end = _windows("avg_pool", node, size, stride, padding, 1, ceil)
    upcast = wide_of(node)
    total = Array.of(_reduce_windows("avg_pool", upcast, w, "sum"))
    equal_counts = not any(beyond_end) and (count_padding or not any(map(any, w.pad_widths)))
    if equal_counts:
        mean = total * (1.0 / math.prod(w.extent))
        return _to_type_of(mean, node)
    shape = shape_of(node)[2:]
    for k, (extent, step, (low, high)) in enumerate(
        zip(w.extent, w.stride, w.pad_widths, strict=True)
    ):
        n = user_dim(shape[k], node.scope)
        start = arange(total.shape[2 + k]) * step - low
        end = n + high - beyond_end[k] if count_padding else n
        count = minimum(start + extent, end) - (start if count_padding else maximum(start, 0))
        total = total / _broadcast_vector(count, k, len(shape), upcast.type.dtype)
    return _to_type_of(total, node)


def _broadcast_vector(vector: Array, k: int, count: int, dtype: DType) -> Array:
    """Reshape a vector to dimension k of `count`."""
    node = cast(vector.node, dtype)
    shape = tuple(shape_of(node)[0] if a == k else 1 for a in range(count))
    return Array.of(reshape(node, shape))


def _to_type_of(result: Array, x: Value) -> Array:
    return Array.of(cast(result.node, x.type.dtype)) if x.type.dtype.is_float else result


def _adaptive(
    what: str,
    x: Any,
    size: Any,
    reduce_all: Callable[[Value, tuple[int, ...]], Value],
    ragged: Callable[[Array, Array, int], Array],
) -> Array:
    """Split each dimension into `size` nearly equal runs and reduce each run.

    `reduce_all` reduces runs of equal length, `ragged` masked runs of different lengths.
    """
    node = value(x, what)
    count = spatial_rank(what, node)
    goals = per_dimension(what, "size", size, count)
    split: list[Index] = []
    axes: list[int] = []
    for k, goal in enumerate(goals):
        n = shape_of(node)[2 + k]
        even = mod(n, goal) == 0 or (node.scope is not None and node.scope.divisible(n, goal))
        if not even:
            node = _ragged_runs(Array.of(node), 2 + k, goal, ragged).node
            n = goal
        n = n if node.scope is None else node.scope.canon(n)
        split += [goal, floordiv(n, goal)]
        axes.append(3 + 2 * k)
    node = reshape(node, (*shape_of(node)[:2], *split))
    return Array.of(reduce_all(node, tuple(axes)))


def _ragged_runs(
    x: Array, axis: int, goal: int, reduce_masked: Callable[[Array, Array, int], Array]
) -> Array:
    """Reduce runs floor(i·n/goal) .. ceil((i+1)·n/goal) - 1 along one axis."""
    n = x.shape[axis]
    numbers = arange(goal)
    first, end = (numbers * n) // goal, ((numbers + 1) * n + (goal - 1)) // goal
    longest = (n + goal - 1) // goal + 1
    at = expand_dims(first, axis=1) + arange(longest)
    inside = at < expand_dims(end, axis=1)
    runs = take(x, clip(at, 0, n - 1), axis=axis)
    shape = (*(1,) * axis, *shape_of(inside.node), *(1,) * (x.ndim - axis - 1))
    return reduce_masked(runs, Array.of(reshape(inside.node, shape)), axis + 1)


def adaptive_avg_pool(x: Any, size: Any, /) -> Array:
    """Return the means of `size` nearly equal runs along each spatial dimension.

    Args:
        x: [batch, channels, *spatial].
        size: runs per dimension; one number, or one for each.  Run i of n elements is
            floor(i·n/size) .. ceil((i+1)·n/size) - 1.

    Returns:
        [batch, channels, *size]; floats keep their dtype, integers give float64.

    Raises ShapeError, ArgumentError.
    """
    node = value(x, "adaptive_avg_pool")

    def ragged(runs: Array, inside: Array, axis: int) -> Array:
        total = reduce_axes("sum", where(inside, runs, 0).node, (axis,), keepdims=False)
        counts = reduce_axes("sum", cast(inside.node, runs.dtype), (axis,), keepdims=False)
        return Array.of(BINARY["divide"](total, counts))

    means = _adaptive(
        "adaptive_avg_pool",
        Array.of(wide_of(node)),
        size,
        lambda v, axes: average(v, axes, keepdims=False),
        ragged,
    )
    return _to_type_of(means, node)


def adaptive_max_pool(x: Any, size: Any, /) -> Array:
    """Return the maxima of `size` nearly equal runs along each spatial dimension.

    Runs and arguments are those of `adaptive_avg_pool`.  Raises ShapeError, ArgumentError.
    """

    def ragged(runs: Array, inside: Array, axis: int) -> Array:
        masked = where(inside, runs, COMBINES["max"].identity(runs.dtype))
        return Array.of(reduce_axes("max", masked.node, (axis,), keepdims=False))

    return _adaptive(
        "adaptive_max_pool",
        x,
        size,
        lambda v, axes: reduce_axes("max", v, axes, keepdims=False),
        ragged,
    )


def upsample(
    x: Any,
    size: Any = None,
    /,
    *,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Array:
    """Resize x [batch, channels, *spatial] to `size`, or to `scale` times its size.

    Args:
        x: the array.
        size: of the result; one number, or one for each spatial dimension.
        scale: a factor instead of a size, likewise.
        mode: "nearest" takes element floor(i / factor); "linear" interpolates between the
            neighbours of (i + ½) / factor - ½ along each dimension (bilinear for two).
        align_corners: "linear" maps the first and last elements to each other.

    Returns:
        [batch, channels, *size]; "nearest" keeps the dtype, "linear" that of floats.

    Raises ShapeError for an empty result, ArgumentError for other settings.
    """
    node = value(x, "upsample")
    count = spatial_rank("upsample", node)
    if (size is None) == (scale is None) or mode not in ("nearest", "linear"):
        bad = (
            ("mode", mode, "'nearest' or 'linear'")
            if mode not in ("nearest", "linear")
            else ("size", size, "a size or a scale, not both")
        )
        raise ArgumentError(op="upsample", argument=bad[0], value=repr(bad[1]), expected=bad[2])
    result = Array.of(node)
    if mode == "linear":
        result = Array.of(wide_of(node))
    goals = _goals(result, size, scale, count)
    for k, (goal, ratio) in enumerate(goals):
        if mode == "linear":
            result = _interpolate(result, 2 + k, goal, ratio, align_corners)
        else:
            result = _nearest(result, 2 + k, goal, ratio)
    return _to_type_of(result, node) if mode == "linear" else result


def _goals(x: Array, size: Any, scale: Any, count: int) -> list[tuple[Any, float | None]]:
    """Return the new size of each dimension, and the scale factor if one was passed."""
    if size is not None:
        return [(n, None) for n in per_dimension("upsample", "size", size, count)]
    factors: Sequence[Any] = scale if isinstance(scale, (tuple, list)) else (scale,) * count
    if len(factors) != count or not all(isinstance(f, (int, float)) and f > 0 for f in factors):
        raise ArgumentError.of("upsample", "scale", scale, f"a positive number, or {count} of them")
    goals: list[tuple[Any, float | None]] = []
    for n, f in zip(x.shape[2:], factors, strict=True):
        length = n * int(f) if float(f).is_integer() else math.floor(int(n) * f)
        if isinstance(length, int) and length < 1:
            raise ShapeError.of("upsample", "nothing would be left", x.node)
        goals.append((length, float(f)))
    return goals


def _nearest(x: Array, axis: int, goal: Any, ratio: float | None) -> Array:
    n = x.shape[axis]
    if ratio is None and n == 0:
        raise ShapeError(op="upsample", operands=x.node.type_text, reason="nothing to repeat")
    if (ratio is not None and ratio.is_integer()) or (ratio is None and goal % n == 0):
        times = int(ratio) if ratio is not None else goal // int(n)
        return _repeat_positions(x, axis, times)
    numbers = arange(goal)
    if ratio is None:
        return take(x, (numbers * n) // goal, axis=axis)
    exact = floor(Array.of(cast(numbers.node, wide_of(numbers.node).type.dtype)) * (1.0 / ratio))
    positions = Array.of(cast(exact.node, i64))
    return take(x, clip(positions, 0, n - 1), axis=axis)


def _repeat_positions(x: Array, axis: int, times: int) -> Array:
    shape = shape_of(x.node)
    before, after = shape[: axis + 1], shape[axis + 1 :]
    node = reshape(x.node, (*before, 1, *after))
    node = expand(node, (*before, times, *after))
    return Array.of(reshape(node, (*shape[:axis], mul(shape[axis], times), *after)))


def _interpolate(x: Array, axis: int, goal: Any, ratio: float | None, corners: bool) -> Array:
    n = x.shape[axis]
    numbers = Array.of(cast(arange(goal).node, x.dtype))
    if corners:
        positions = numbers * ((n - 1) / max(goal - 1, 1))
    else:
        step = 1.0 / ratio if ratio is not None else n / goal
        positions = maximum((numbers + 0.5) * step - 0.5, 0.0)
    low = clip(Array.of(cast(floor(positions).node, i64)), 0, n - 1)
    weight = _broadcast_vector(
        positions - Array.of(cast(low.node, x.dtype)), axis - 2, x.ndim - 2, x.dtype
    )
    high = minimum(low + 1, n - 1)
    return take(x, low, axis=axis) * (1.0 - weight) + take(x, high, axis=axis) * weight
