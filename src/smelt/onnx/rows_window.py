"""Rows of windows: convolutions and poolings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import smelt as sm
from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.onnx.row import Call, Row
from smelt.onnx.rows_elementwise import like
from smelt.onnx.rows_view import product
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32


def padding_pairs(c: Call, count: int) -> list[tuple[int, int]]:
    """Return the padding of each spatial dimension as the attribute says it."""
    pads = c.get("pads") or (0,) * (2 * count)
    return [(pads[k], pads[count + k]) for k in range(count)]


def auto_padding(
    mode: str, shape: Any, extent: Any, steps: Any, dilations: Any
) -> list[tuple[int, int]] | None:
    """Return the padding of `auto_pad`; None for NOTSET. Sizes are pinned for a stride above 1."""
    if mode in ("NOTSET", ""):
        return None
    if mode == "VALID":
        return [(0, 0)] * len(extent)
    pairs: list[tuple[int, int]] = []
    for n, k, s, d in zip(shape, extent, steps, dilations, strict=True):
        span = d * (k - 1) + 1
        total = span - 1 if s == 1 else max((-(-int(n) // s) - 1) * s + span - int(n), 0)
        small = total // 2
        pairs.append((small, total - small) if mode == "SAME_UPPER" else (total - small, small))
    return pairs


def _settings(c: Call, shape: Any, extent: Any) -> tuple[Any, Any, Any]:
    """Return steps, dilations and padding by spatial dimension."""
    count = len(extent)
    steps = tuple(c.get("strides") or (1,) * count)
    dilations = tuple(c.get("dilations") or (1,) * count)
    pads = auto_padding(c.get("auto_pad", "NOTSET"), shape, extent, steps, dilations)
    return steps, dilations, tuple(padding_pairs(c, count) if pads is None else pads)


def convolve(c: Call, x: Array, weight: Array, bias: Any = None) -> Any:
    """Return a convolution by the attributes of a node."""
    steps, dilations, pads = _settings(c, x.shape[2:], [int(n) for n in weight.shape[2:]])
    options: Any = {"padding": pads, "dilation": dilations, "groups": c.get("group", 1)}
    return sm.nn.conv(x, weight, bias, stride=steps, **options)


def _conv_transpose(c: Call, x: Array, weight: Array, bias: Any = None) -> Any:
    count = x.ndim - 2
    extent = [int(n) for n in weight.shape[2:]]
    steps = tuple(c.get("strides") or (1,) * count)
    dilations = tuple(c.get("dilations") or (1,) * count)
    extra: list[int] = list(c.get("output_padding") or (0,) * count)
    wanted, mode = c.get("output_shape"), c.get("auto_pad", "NOTSET")
    pairs = padding_pairs(c, count)
    if mode == "VALID":
        pairs = [(0, 0)] * count
    elif wanted is not None or mode.startswith("SAME"):
        pairs = []
        for k, n in enumerate(x.shape[2:]):
            full = (n - 1) * steps[k] + extra[k] + (extent[k] - 1) * dilations[k] + 1
            goal = n * steps[k] if wanted is None else wanted[-count:][k]
            total = int(full - goal)
            if total < 0:
                extra[k] -= total
                total = 0
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
    grown = [max(-a, 0) for pair in pairs for a in pair]
    if any(grown):
        raise UnsupportedError("ConvTranspose with negative pads")
    beyond = [max(e - max(s, d) + 1, 0) for e, s, d in zip(extra, steps, dilations, strict=True)]
    options: Any = {"padding": tuple(pairs), "dilation": dilations, "groups": c.get("group", 1)}
    options["output_padding"] = tuple(e - b for e, b in zip(extra, beyond, strict=True))
    result = sm.nn.conv_transpose(x, weight, bias, stride=steps, **options)
    if not any(beyond):
        return result
    fill = like(x, 0) if bias is None else sm.reshape(bias, (1, -1, *(1,) * count))
    padded = sm.pad(result - fill, [(0, 0), (0, 0), *((0, b) for b in beyond)])
    return padded + fill


def _col2im(c: Call, x: Array, image: Any, block: Any) -> Any:
    """Sum columns into the image that they are windows of: a transposed convolution."""
    sides, extent = [int(n) for n in image.ints()], [int(n) for n in block.ints()]
    steps, dilations, pairs = _settings(c, sides, extent)
    windows = [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (low, high) in zip(sides, extent, steps, dilations, pairs, strict=True)
    ]
    size = product(extent)
    batch, channels = x.shape[0], x.shape[1] // size
    columns = sm.reshape(x, (batch * channels, size, *windows))
    kernel = sm.reshape(sm.eye(size, dtype=x.dtype), (size, 1, *extent))
    extra = tuple(
        n - ((w - 1) * s - low - high + d * (k - 1) + 1)
        for n, w, k, s, d, (low, high) in zip(
            sides, windows, extent, steps, dilations, pairs, strict=True
        )
    )
    options: Any = {"padding": pairs, "dilation": dilations, "output_padding": extra}
    result = sm.nn.conv_transpose(columns, kernel, stride=steps, **options)
    return sm.reshape(result, (batch, channels, *sides))


# Poolings


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
    extent = tuple(c.get("kernel_shape"))
    steps, dilations, pads = _settings(c, x.shape[2:], extent)
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
    return _Pool(extent, steps, dilations, pads, tuple(counts), tuple(beyond))


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
    batch, channels = x.shape[:2]
    images = sm.reshape(sm.arange(batch * channels), (batch, channels, *(1,) * len(sides)))
    return best, place + images * product(sides)


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
    extent = c.get("kernel_shape")
    steps, _, pads = _settings(c, x.shape[2:], extent)
    sides = [
        (n - 1) * s - low - high + k
        for n, s, (low, high), k in zip(x.shape[2:], steps, pads, extent, strict=True)
    ]
    natural = (*x.shape[:2], *sides)
    shape = natural if wanted is None else tuple(wanted.ints())
    flat = sm.zeros((product(natural),), dtype=x.dtype)
    flat = flat.at[sm.reshape(positions, (-1,))].set(sm.reshape(x, (-1,)))
    image = sm.reshape(flat, natural)
    widths = [(0, int(b) - int(a)) for a, b in zip(natural, shape, strict=True)]
    return sm.pad(image, widths) if any(h for _, h in widths) else image


ROWS: tuple[Row, ...] = (
    Row("Conv", convolve),
    Row("ConvTranspose", _conv_transpose),
    Row("Col2Im", _col2im, (1, 2)),
    Row("MaxPool", _max_pool),
    Row("AveragePool", _average_pool),
    Row("LpPool", _lp_pool),
    Row("GlobalAveragePool", _global("mean")),
    Row("GlobalMaxPool", _global("max")),
    Row("GlobalLpPool", _global("lp")),
    Row("MaxUnpool", _max_unpool, (2,)),
)
