"""Rows of poolings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import smelt as sm
from smelt.frontends.array.array import Array
from smelt.onnx.row import Call, Row
from smelt.onnx.rows_elementwise import like
from smelt.onnx.rows_product import auto_padding, padding_pairs
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32


@dataclass(frozen=True, slots=True)
class _Pool:
    """Windows of a pooling: extents, steps and paddings by spatial dimension."""

    extent: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Any, Any], ...]
    counts: tuple[Any, ...]
    """Number of windows."""
    beyond: tuple[Any, ...]
    """Elements after the padding that the last window of `ceil_mode` reads."""


def _pool(c: Call, x: Array) -> _Pool:
    count = x.ndim - 2
    extent = tuple(c.get("kernel_shape"))
    steps = tuple(c.get("strides") or (1,) * count)
    dilations = tuple(c.get("dilations") or (1,) * count)
    automatic = auto_padding(c.get("auto_pad", "NOTSET"), x.shape[2:], extent, steps, dilations)
    pads = padding_pairs(c, count) if automatic is None else automatic
    counts: list[Any] = []
    beyond: list[Any] = []
    for n, k, s, d, (low, high) in zip(x.shape[2:], extent, steps, dilations, pads, strict=True):
        room = n + low + high - ((k - 1) * d + 1)
        windows = room // s + 1
        extra: Any = 0
        if c.get("ceil_mode", 0) and s > 1 and room % s != 0:
            if windows * s < n + low:  # the last window starts inside the image
                extra = windows * s - room
                windows = windows + 1
        counts.append(windows)
        beyond.append(extra)
    return _Pool(extent, steps, dilations, tuple(pads), tuple(counts), tuple(beyond))


def _padded(x: Array, pool: _Pool, fill: Any) -> Array:
    widths = [(low, high + b) for (low, high), b in zip(pool.pads, pool.beyond, strict=True)]
    if all(isinstance(n, int) and n == 0 for pair in widths for n in pair):
        return x
    return sm.pad(x, [(0, 0), (0, 0), *widths], constant_values=fill)


def _lowest(x: Array) -> Any:
    if x.dtype.is_float:
        return -math.inf
    return False if x.dtype.kind == "bool" else int(np.iinfo(x.dtype.numpy).min)


def _max_pool(c: Call, x: Array) -> Any:
    pool = _pool(c, x)
    padded = _padded(x, pool, _lowest(x))
    if c.wants(1):
        return _max_with_positions(c, x, padded, pool)
    return sm.nn.max_pool(padded, pool.extent, stride=pool.steps, dilation=pool.dilations)


def _offset(x: Array, pool: _Pool, offset: Sequence[int]) -> Array:
    """Return the element of each window at one offset."""
    key: list[Any] = [slice(None), slice(None)]
    for o, s, d, n in zip(offset, pool.steps, pool.dilations, pool.counts, strict=True):
        key.append(slice(o * d, o * d + (n - 1) * s + 1, s))
    return x[tuple(key)]


def _max_with_positions(c: Call, x: Array, padded: Array, pool: _Pool) -> Any:
    """Return maxima and their positions in the flattened image, by one pass over offsets."""
    sides = x.shape[2:]
    best: Any = None
    place: Any = None
    for offset in itertools.product(*map(range, pool.extent)):
        value = _offset(padded, pool, offset)
        position = _position(c, pool, sides, offset, x.ndim)
        position = sm.broadcast_to(position, value.shape)
        if best is None:
            best, place = value, position
        else:
            is_larger = value > best
            best, place = sm.where(is_larger, value, best), sm.where(is_larger, position, place)
    plane: Any = 1
    for n in sides:
        plane = plane * n
    batch, channels = x.shape[:2]
    images = sm.reshape(sm.arange(batch * channels), (batch, channels, *(1,) * len(sides)))
    return best, place + images * plane


def _position(c: Call, pool: _Pool, sides: Any, offset: Sequence[int], rank: int) -> Any:
    total: Any = 0
    order = range(len(sides))
    for k in order if not c.get("storage_order", 0) else reversed(order):
        shape = [1] * rank
        shape[2 + k] = -1
        steps = sm.arange(pool.counts[k]) * pool.steps[k]
        at = steps + (offset[k] * pool.dilations[k] - pool.pads[k][0])
        total = total * sides[k] + sm.reshape(at, tuple(shape))
    return total


def _sums(x: Array, pool: _Pool) -> Array:
    """Return the sum of each window: a product with a kernel of ones."""
    channels = (x.shape[0] * x.shape[1], 1, *x.shape[2:])
    ones = sm.full((1, 1, *pool.extent), 1.0, dtype=x.dtype)
    total = sm.nn.conv(sm.reshape(x, channels), ones, stride=pool.steps, dilation=pool.dilations)
    return sm.reshape(total, (*x.shape[:2], *total.shape[2:]))


def _average_pool(c: Call, x: Array) -> Any:
    pool = _pool(c, x)
    wide = sm.astype(x, sm.float32) if x.dtype.compute is f32 else x
    padded = _padded(wide, pool, 0)
    includes = bool(c.get("count_include_pad", 0))
    plain = all(d == 1 for d in pool.dilations)
    no_pads = all(isinstance(n, int) and n == 0 for pair in pool.pads for n in pair)
    equal = all(isinstance(b, int) and b == 0 for b in pool.beyond) and (includes or no_pads)
    if plain:
        mean = sm.nn.avg_pool(padded, pool.extent, stride=pool.steps)
        result = mean if equal else mean * like(mean, math.prod(pool.extent))
    else:
        result = _sums(padded, pool)
        result = result / like(result, math.prod(pool.extent)) if equal else result
    if not equal:
        for k, n in enumerate(x.shape[2:]):
            result = result / _window_counts(pool, k, n, includes, result)
    return sm.astype(result, x.dtype)


def _window_counts(pool: _Pool, k: int, n: Any, includes: bool, like_: Array) -> Array:
    """Return how many elements of a dimension each window counts."""
    low, high = pool.pads[k]
    first, last = (-low, n + high) if includes else (0, n)
    total: Any = 0
    for o in range(pool.extent[k]):
        at = sm.arange(pool.counts[k]) * pool.steps[k] + (o * pool.dilations[k] - low)
        total = sm.astype((at >= first) & (at < last), like_.dtype) + total
    shape = [1] * like_.ndim
    shape[2 + k] = -1
    return sm.reshape(total, tuple(shape))


def _lp_pool(c: Call, x: Array) -> Any:
    p, pool = c.get("p", 2), _pool(c, x)
    powers = sm.square(x) if p == 2 else sm.pow(sm.abs(x), like(x, p))
    total = _sums(_padded(powers, pool, 0), pool)
    return sm.sqrt(total) if p == 2 else sm.pow(total, like(x, 1 / p))


def _global(name: str) -> Any:
    def rule(c: Call, x: Array) -> Any:
        axes = tuple(range(2, x.ndim))
        if name == "lp":
            p = c.get("p", 2)
            total = sm.sum(sm.pow(sm.abs(x), like(x, p)), axis=axes, keepdims=True)
            return sm.pow(total, like(x, 1 / p))
        return (sm.mean if name == "mean" else sm.max)(x, axis=axes, keepdims=True)

    return rule


def _max_unpool(c: Call, x: Array, positions: Array, wanted: Any = None) -> Any:
    count = x.ndim - 2
    if wanted is None:
        steps = c.get("strides") or (1,) * count
        pads = padding_pairs(c, count)
        extent = c.get("kernel_shape")
        sides = [
            (n - 1) * s - low - high + k
            for n, s, (low, high), k in zip(x.shape[2:], steps, pads, extent, strict=True)
        ]
        natural = (*x.shape[:2], *sides)
        shape = natural
    else:
        steps = c.get("strides") or (1,) * count
        extent = c.get("kernel_shape")
        pads = padding_pairs(c, count)
        sides = [
            (n - 1) * s - low - high + k
            for n, s, (low, high), k in zip(x.shape[2:], steps, pads, extent, strict=True)
        ]
        natural, shape = (*x.shape[:2], *sides), tuple(wanted.ints())
    size: Any = 1
    for n in natural:
        size = size * n
    flat = sm.zeros((size,), dtype=x.dtype)
    flat = flat.at[sm.reshape(positions, (-1,))].set(sm.reshape(x, (-1,)))
    image = sm.reshape(flat, natural)
    widths = [(0, int(b) - int(a)) for a, b in zip(natural, shape, strict=True)]
    return sm.pad(image, widths) if any(h for _, h in widths) else image


ROWS: tuple[Row, ...] = (
    Row("MaxPool", _max_pool),
    Row("AveragePool", _average_pool),
    Row("LpPool", _lp_pool),
    Row("GlobalAveragePool", _global("mean")),
    Row("GlobalMaxPool", _global("max")),
    Row("GlobalLpPool", _global("lp")),
    Row("MaxUnpool", _max_unpool, (2,)),
)
