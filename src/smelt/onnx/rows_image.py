"""Rows of resampling: Resize, Upsample, GridSample, AffineGrid.

Resize is separable: each axis is a sum over few neighbours, whose positions and weights are
computed in NumPy when both sizes are numbers. Nearest neighbours at a whole factor are a broadcast,
for any size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import smelt as sm
from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.onnx.known import Known, check_count
from smelt.onnx.row import Call, Row, axis_of
from smelt.onnx.rows_elementwise import like
from smelt.python.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _Axis:
    """Resampling of one axis."""

    extent: int
    """Elements of the input."""
    goal: int
    """Elements of the output."""
    scale: float
    roi: tuple[float, float]
    """Ends of the cropped region, as fractions of the extent."""


def _coordinates(mode: str, a: _Axis, *, nearest: bool) -> Any:
    """Return the position in the input of each output element.

    Which neighbour is the nearest depends on rounding where a position is halfway between two: the
    positions have the type of the scales then, as they have in other implementations.
    """
    type_ = np.float32 if nearest else np.float64
    x, scale = np.arange(a.goal, dtype=type_), type_(a.scale)
    width = a.scale * a.extent
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * (a.extent - 1) / (width - 1) if width != 1 else x * 0
    if mode == "tf_crop_and_resize":
        first, last = a.roi
        if a.goal == 1:
            return x * 0 + (first + last) * (a.extent - 1) / 2
        return first * (a.extent - 1) + x * (last - first) * (a.extent - 1) / (a.goal - 1)
    if mode == "pytorch_half_pixel" and a.goal == 1:
        return x * 0
    half = (x + type_(0.5)) / scale - type_(0.5)
    if mode == "half_pixel_symmetric":
        centre = a.extent / 2
        return centre * (1 - a.goal / width) + half
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise UnsupportedError(f"Resize with coordinates {mode!r}")
    return half


def _cubic(distance: Any, a: float) -> Any:
    d = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _weights(c: Call, mode: str, ratio: Any, scale: float) -> tuple[int, Any]:
    """Return the offset of the first neighbour and the weights [output, neighbour]."""
    if mode == "nearest":
        rounding = c.get("nearest_mode", "round_prefer_floor")
        upper = {
            "round_prefer_floor": ratio > 0.5,
            "round_prefer_ceil": ratio >= 0.5,
            "floor": ratio >= 1,
            "ceil": ratio > 0,
        }[rounding]
        return 0, np.stack([~upper, upper], axis=1).astype(np.float64)
    shrink = min(scale, 1.0) if c.get("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1
    offsets = np.arange(first, 2 - first)
    distance = (offsets - ratio[:, None]) * shrink
    if mode == "linear":
        weights = np.clip(1 - np.abs(distance), 0, 1)
    else:
        weights = _cubic(distance, c.get("cubic_coeff_a", -0.75))
    if c.get("antialias", 0):
        weights = weights / weights.sum(axis=1, keepdims=True)
    return first, weights


def _left_neighbours(at: Any) -> tuple[Any, Any]:
    """Return the neighbour to the left of each position, itself excluded, and the distance."""
    base = np.ceil(at) - 1
    return base, at - base


def _resample(c: Call, x: Array, axis: int, a: _Axis) -> Array:
    """Resize one axis between sizes that are numbers."""
    check_count(a.goal)
    mode = c.get("mode", "nearest")
    transform = c.get("coordinate_transformation_mode", "half_pixel")
    at = _coordinates(transform, a, nearest=mode == "nearest")
    base, ratio = _left_neighbours(at)
    first, weights = _weights(c, mode, ratio, a.scale)
    index = base[:, None].astype(np.int64) + np.arange(first, first + weights.shape[1])
    if c.get("exclude_outside", 0):
        weights = np.where((index < 0) | (index >= a.extent), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    index = np.clip(index, 0, a.extent - 1)
    shape = [1] * x.ndim
    shape[axis] = -1
    if mode == "nearest":
        taken = np.take_along_axis(index, weights.argmax(axis=1)[:, None], axis=1)[:, 0]
        result = _take(x, taken, axis, a)
    else:
        result: Any = None
        for k in range(weights.shape[1]):
            if a.goal and not weights[:, k].any():
                continue
            factor = sm.asarray(weights[:, k].astype(x.dtype.numpy))
            part = sm.take(x, sm.asarray(index[:, k]), axis=axis) * sm.reshape(factor, tuple(shape))
            result = part if result is None else result + part
    if transform == "tf_crop_and_resize":
        outside = sm.asarray((at < 0) | (at > a.extent - 1))
        fill = like(result, c.get("extrapolation_value", 0.0))
        result = sm.where(sm.reshape(outside, tuple(shape)), fill, result)
    return result


def _take(x: Array, index: Any, axis: int, a: _Axis) -> Array:
    """Take positions that are numbers; a whole factor is a broadcast."""
    factor = a.goal // a.extent if a.extent else 0
    if factor * a.extent == a.goal and np.array_equal(index, np.arange(a.goal) // max(factor, 1)):
        return _repeat(x, axis, factor)
    return sm.take(x, sm.asarray(index), axis=axis)


def _repeat(x: Array, axis: int, factor: int) -> Array:
    shape = x.shape
    wide = sm.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = sm.broadcast_to(wide, (*shape[: axis + 1], factor, *shape[axis + 1 :]))
    return sm.reshape(wide, (*shape[:axis], shape[axis] * factor, *shape[axis + 1 :]))


def _is_repeat(c: Call, scale: float) -> bool:
    """Whether nearest neighbours at a scale are a broadcast for every size."""
    if c.get("mode", "nearest") != "nearest" or not float(scale).is_integer() or scale < 1:
        return False
    mode = c.get("coordinate_transformation_mode", "half_pixel")
    if mode not in ("asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        return False
    a = _Axis(7, 7 * int(scale), scale, (0, 1))
    at = _coordinates(mode, a, nearest=True)
    base, ratio = _left_neighbours(at)
    upper = _weights(c, "nearest", ratio, scale)[1][:, 1] > 0
    index = np.clip(np.where(upper, base + 1, base), 0, 6)
    return np.array_equal(index, np.arange(a.goal) // int(scale))


def _resize(c: Call, x: Array, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    if c.version < 11:  # two inputs, positions without an offset
        return _upsample(c, x, roi)
    axes = [axis_of(a, x.ndim) for a in c.get("axes") or range(x.ndim)]
    factors = [float(s) for s in scales.ints()] if scales is not None and scales.ints() else None
    goals = sizes.ints() if sizes is not None else None
    if factors is None and goals is None:
        raise UnsupportedError("Resize without scales and sizes")
    policy = c.get("keep_aspect_ratio_policy", "stretch")
    regions = None if roi is None or not roi.ints() else roi.ints()
    if goals is not None and policy != "stretch":
        ratios = [float(int(g)) / int(x.shape[a]) for g, a in zip(goals, axes, strict=True)]
        factor = (min if policy == "not_larger" else max)(ratios)
        factors = [factor] * len(axes)
        goals = [math.floor(factor * int(x.shape[a]) + 0.5) for a in axes]
    result = x
    for k, a in enumerate(axes):
        region = (
            (0.0, 1.0) if regions is None else (float(regions[k]), float(regions[len(axes) + k]))
        )
        scale = None if factors is None else factors[k]
        result = _resize_axis(c, result, a, scale, None if goals is None else goals[k], region)
    return result


def _resize_axis(
    c: Call, x: Array, axis: int, scale: float | None, goal: Any, region: tuple[float, float]
) -> Array:
    extent = x.shape[axis]
    crops = c.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if scale is not None and goal is None:
        if scale == 1 and not crops:
            return x
        if _is_repeat(c, scale):
            return _repeat(x, axis, int(scale))
        extent = int(extent)
        span = (region[1] - region[0]) if crops else 1.0
        goal = math.floor(np.float32(extent * scale) * np.float32(span))  # 10 * 0.7 is 7 there
    elif not crops and goal == extent:
        return x
    else:
        extent, goal = int(extent), int(goal)
    factor = goal / extent if scale is None else scale
    return _resample(c, x, axis, _Axis(extent, goal, factor, region))


def _upsample(c: Call, x: Array, scales: Any = None) -> Any:
    """Resize as before opset 11; where an axis shrinks the right neighbour is the nearest."""
    factors = np.array(scales.ints() if scales is not None else c.get("scales"), np.float32)
    result = x
    for rounding, chosen in (("ceil", factors < 1), ("floor", factors >= 1)):
        if not chosen.any():
            continue
        attributes = {
            "mode": c.get("mode", "nearest"),
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": rounding,
        }
        some = Known(np.where(chosen, factors, np.float32(1)))
        result = c.call("Resize", result, None, some, version=18, **attributes)
    return result


# Sampling at computed positions


def _denormalized(v: Array, extent: Any, corners: bool) -> Array:
    """Return pixel positions for coordinates from -1 to 1.

    With `corners` these are the centres of the first and the last pixel, else their outer edges.
    """
    half, one = like(v, 0.5), like(v, 1)
    n = sm.full((), extent, dtype=v.dtype)
    if corners:
        return (v + one) * half * (n - one)
    return ((v + one) * n - one) * half


def _reflected(v: Array, low: Any, high: Any) -> Array:
    """Reflect positions at both borders until they are inside."""
    span = high - low
    offset = sm.abs(v - low)
    if not isinstance(span, Array):
        span = like(v, span)
    turns = sm.floor(offset / span)
    rest = offset - turns * span
    is_even = sm.remainder(turns, like(v, 2)) == like(v, 0)
    return sm.where(is_even, rest + low, high - rest)


def _grid_sample(c: Call, x: Array, grid: Array) -> Any:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(
        c.get("mode", "bilinear"), c.get("mode", "bilinear")
    )
    padding, corners = c.get("padding_mode", "zeros"), bool(c.get("align_corners", 0))
    count = x.ndim - 2
    positions: list[Array] = []
    for k in range(count):  # the last coordinate is of the last dimension
        n = x.shape[2 + k]
        positions.append(_denormalized(grid[..., count - 1 - k], n, corners))
    read = _Sampler(x, padding, corners)
    if mode == "nearest":
        return read([sm.astype(sm.round(p), sm.int64) for p in positions], positions)
    if mode == "bicubic":
        taps: Sequence[int] = (-1, 0, 1, 2)
        weigh: Callable[[Array, int], Array] = _cubic_weight
    else:
        taps, weigh = (0, 1), _linear_weight
        if padding != "zeros":
            positions = [read.bring_inside(p, k) for k, p in enumerate(positions)]
    bases = [sm.floor(p) for p in positions]
    ratios = [p - b for p, b in zip(positions, bases, strict=True)]
    total: Any = None
    for offsets in itertools.product(taps, repeat=count):
        at = [b + like(b, o) for b, o in zip(bases, offsets, strict=True)]
        weight: Any = None
        for r, o in zip(ratios, offsets, strict=True):
            w = weigh(r, o)
            weight = w if weight is None else weight * w
        value = read([sm.astype(p, sm.int64) for p in at], at) * sm.expand_dims(weight, axis=1)
        total = value if total is None else total + value
    return sm.astype(total, x.dtype)


def _linear_weight(ratio: Array, offset: int) -> Array:
    return ratio if offset else like(ratio, 1) - ratio


def _cubic_weight(ratio: Array, offset: int) -> Array:
    a, d = -0.75, sm.abs(ratio - like(ratio, offset))
    if offset in (0, 1):
        return (like(d, a + 2) * d - like(d, a + 3)) * d * d + like(d, 1)
    return ((like(d, a) * d - like(d, 5 * a)) * d + like(d, 8 * a)) * d - like(d, 4 * a)


class _Sampler:
    """Reads an image at positions [batch, *shape], with a rule for positions out of bounds.

    `padding` is the rule: zeros, border or reflection. `corners` is that of `_denormalized`.
    """

    def __init__(self, x: Array, padding: str, corners: bool) -> None:
        self.x, self.padding, self.corners = x, padding, corners

    def bring_inside(self, p: Array, k: int) -> Array:
        """Clip positions along spatial dimension `k`; reflect them before, if that is the rule."""
        n = sm.full((), self.x.shape[2 + k], dtype=p.dtype)
        zero, one, half = like(p, 0), like(p, 1), like(p, 0.5)
        if self.padding == "reflection":
            low, high = (zero, n - one) if self.corners else (-half, n - half)
            high = sm.maximum(high, low + one)  # one pixel: `clip` finds it from any position
            p = _reflected(p, low, high)
        return sm.clip(p, zero, n - one)

    def __call__(self, at: list[Array], exact: list[Array]) -> Array:
        """Return the elements [batch, channels, *shape] at whole positions `at`.

        `exact` are the same positions as floats, before they were rounded.
        """
        inside: Any = None
        clipped: list[Array] = []
        for k, p in enumerate(at):
            n = self.x.shape[2 + k]
            if self.padding == "zeros":
                ok = (p >= 0) & (p < n)
                inside = ok if inside is None else inside & ok
                clipped.append(sm.clip(p, 0, n - 1))
            elif self.padding == "border":
                clipped.append(sm.clip(p, 0, n - 1))
            else:
                reflected = self.bring_inside(sm.astype(p, exact[k].dtype), k)
                clipped.append(sm.astype(sm.round(reflected), sm.int64))
        rank = at[0].ndim
        batch = sm.reshape(sm.arange(self.x.shape[0]), (-1, *(1,) * (rank - 1)))
        last = sm.moveaxis(self.x, 1, -1)
        values = sm.moveaxis(last[(batch, *clipped)], -1, 1)
        if inside is None:
            return values
        return sm.where(sm.expand_dims(inside, axis=1), values, like(values, 0))


def _affine_grid(c: Call, theta: Array, size: Known) -> Any:
    sides = [int(n) for n in size.ints()[2:]]
    check_count(math.prod(sides))
    corners = bool(c.get("align_corners", 0))
    axes: list[Any] = []
    for n in sides:
        outer = 1 if corners else 1 - 1 / max(n, 1)
        axes.append(np.linspace(outer, -outer, n)[::-1])  # one position is the last corner
    mesh = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones_like(mesh[0])], axis=-1)
    base = sm.asarray(points.reshape(-1, len(sides) + 1).astype(theta.dtype.numpy))
    grid = sm.matmul(base, sm.matrix_transpose(theta))
    return sm.reshape(grid, (theta.shape[0], *sides, len(sides)))


def _pixel_shift(c: Call) -> float:
    """Return where a pixel's centre is; without a shift, regions have at least a pixel."""
    default = "half_pixel" if c.version >= 16 else "output_half_pixel"
    mode = c.get("coordinate_transformation_mode", default)
    return 0.5 if mode == "half_pixel" else 0.0


def _roi_align(c: Call, x: Array, rois: Array, batches: Array) -> Any:
    """Pool samples of each bin of each region, interpolated linearly."""
    height, width = c.get("output_height", 1), c.get("output_width", 1)
    ratio, scale = c.get("sampling_ratio", 0), c.get("spatial_scale", 1.0)
    if not ratio:
        return _roi_align_known(c, x, rois, batches)
    shift = _pixel_shift(c)
    ends = rois * like(rois, scale) - like(rois, shift)
    starts = ends[:, :2]
    spans = ends[:, 2:] - starts
    if not shift:
        spans = sm.maximum(spans, like(spans, 1))
    samples: list[Array] = []
    for axis, count in ((1, height), (0, width)):
        steps = (np.arange(count * ratio) + 0.5) / (count * ratio)
        grid = sm.asarray(steps.astype(rois.dtype.numpy))
        samples.append(starts[:, axis : axis + 1] + spans[:, axis : axis + 1] * grid)
    return _pool_regions(c, x, samples, batches, (height, width, ratio, ratio))


def _pool_regions(
    c: Call, x: Array, samples: list[Array], batches: Array, grid: tuple[int, int, int, int]
) -> Array:
    """Return the mean or maximum of each bin's samples: [region, channels, height, width].

    `samples` are positions [region, sample] along y and x, `batches` the image of each region.
    `grid` has the bins along y and x, and the samples of a bin along y and x.
    """
    height, width, rows, columns = grid
    y, x_position = sm.expand_dims(samples[0], axis=2), sm.expand_dims(samples[1], axis=1)
    batch = sm.reshape(sm.astype(batches, sm.int64), (-1, 1, 1))
    last = sm.moveaxis(x, 1, -1)
    image_height, image_width = x.shape[2], x.shape[3]
    inside = (
        (y >= like(y, -1))
        & (y <= sm.full((), image_height, dtype=y.dtype))
        & (x_position >= like(x_position, -1))
        & (x_position <= sm.full((), image_width, dtype=x_position.dtype))
    )
    parts: list[tuple[Array, Array, Array]] = []
    for p, extent in ((y, image_height), (x_position, image_width)):
        p = sm.maximum(p, like(p, 0))
        low = sm.minimum(sm.astype(sm.floor(p), sm.int64), extent - 1)
        top = sm.minimum(low + 1, extent - 1)
        r = sm.where(low >= extent - 1, like(p, 0), p - sm.astype(low, p.dtype))
        parts.append((low, top, r))
    (y0, y1, ry), (x0, x1, rx) = parts
    one = like(ry, 1)
    values: list[Any] = []
    for a, wa in ((y0, one - ry), (y1, ry)):
        for b, wb in ((x0, one - rx), (x1, rx)):
            values.append(last[(batch, a, b)] * sm.expand_dims(wa * wb, axis=-1))
    largest = c.get("mode", "avg") == "max"
    shape = (-1, height, rows, width, columns, x.shape[1])

    def reduce_bins(v: Array, reduction: Any) -> Array:
        v = sm.where(sm.expand_dims(inside, axis=-1), v, like(v, 0))
        return reduction(sm.reshape(v, shape), axis=(2, 4))

    if largest:
        total = sm.maximum(sm.maximum(values[0], values[1]), sm.maximum(values[2], values[3]))
        return sm.moveaxis(reduce_bins(total, sm.max), -1, 1)
    total = values[0] + values[1] + values[2] + values[3]
    return sm.moveaxis(reduce_bins(total, sm.mean), -1, 1)


def _roi_align_known(c: Call, x: Array, rois: Array, batches: Array) -> Any:
    """Sample as many points as a bin has pixels: each region by itself, from its values."""
    height, width = c.get("output_height", 1), c.get("output_width", 1)
    shift = _pixel_shift(c)
    regions = c.known(rois).elements * c.get("spatial_scale", 1.0) - shift
    results: list[Array] = []
    for k, (x1, y1, x2, y2) in enumerate(regions):
        h, w = y2 - y1, x2 - x1
        if not shift:
            h, w = max(h, 1.0), max(w, 1.0)
        rows, columns = math.ceil(h / height), math.ceil(w / width)
        ys = y1 + h * (np.arange(height * rows) + 0.5) / (height * rows)
        xs = x1 + w * (np.arange(width * columns) + 0.5) / (width * columns)
        samples = [sm.asarray(v[None].astype(rois.dtype.numpy)) for v in (ys, xs)]
        grid = (height, width, rows, columns)
        results.append(_pool_regions(c, x, samples, batches[k : k + 1], grid))
    return sm.concat(results, axis=0)


ROWS: tuple[Row, ...] = (
    Row("Resize", _resize, (1, 2, 3)),
    Row("Upsample", _upsample, (1,)),
    Row("GridSample", _grid_sample),
    Row("AffineGrid", _affine_grid, (1,)),
    Row("RoiAlign", _roi_align),
)
