"""Rows of operators that move elements, and of sizes: Reshape, Slice, Concat, Shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import smelt as sm
from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.frontends.array.number import Number, Size
from smelt.onnx.known import MAX_CONTENT_ELEMENTS, Known, check_count, object_array
from smelt.onnx.row import Call, Row, axis_of
from smelt.types.dtype import from_numpy


def product(dims: Sequence[Any]) -> Any:
    """Return the product of dimensions, numbers or sizes."""
    total: Any = 1
    for d in dims:
        total = total * d
    return total


def _is(d: Any, number: int) -> bool:
    """Whether a dimension is a special number; a size is none, an argument is compared."""
    return not isinstance(d, Size) and bool(d == number)


def _are_numbers(*values: Any) -> bool:
    return not any(isinstance(x, Number) for v in values for x in v)


def _on_elements(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a host rule that views elements as a rule views arrays."""

    def host(c: Call, x: Any, *rest: Any) -> Any:
        bounds = [None if r is None else Known(r, np.int64) for r in rest]
        is_known = not any(k is not None and k.is_symbolic for k in bounds)
        return rule(c, x, *bounds) if is_known else NotImplemented

    return host


# Shapes


def _shape(c: Call, x: Any) -> Known:
    dims = list(x.shape)[slice(c.get("start", 0), c.get("end"))]
    return Known(object_array((len(dims),), dims), np.int64)


def _reshape_dims(c: Call, shape: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """Return the dimensions of a Reshape, with copied ones filled in; -1 may be left."""
    keeps_zero = not c.get("allowzero", 0)
    return [shape[k] if keeps_zero and _is(d, 0) else d for k, d in enumerate(dims)]


def _reshape(c: Call, x: Array, dims: Known | None = None) -> Any:
    target = _reshape_dims(c, x.shape, c.ints(dims, "shape"))
    target = [-1 if _is(d, -1) else 0 if _is(d, 0) else d for d in target]
    unknown = [k for k, d in enumerate(target) if isinstance(d, int) and d == -1]
    if unknown and any(isinstance(d, int) and d == 0 for d in target):
        rest = product([d for k, d in enumerate(target) if k != unknown[0]])
        target[unknown[0]] = 0 if rest == 0 else product(x.shape) // rest
    return x.reshape(tuple(target))


def _flatten(c: Call, x: Array) -> Any:
    axis = c.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return sm.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _axes(c: Call, axes: Any, rank: int) -> list[int]:
    return sorted(axis_of(int(a), rank) for a in c.ints(axes, "axes", ()))


def _squeeze(c: Call, x: Array, axes: Known | None = None) -> Any:
    positions = _axes(c, axes, x.ndim)
    if axes is None and c.get("axes") is None:
        positions = [k for k, d in enumerate(x.shape) if isinstance(d, int) and d == 1]
    for k in positions:
        if x.shape[k] != 1:
            raise UnsupportedError(f"the dimension {k} of {tuple(x.shape)} is not 1")
    return x.reshape(tuple(d for k, d in enumerate(x.shape) if k not in positions))


def _unsqueeze(c: Call, x: Any, axes: Known | None = None) -> Any:
    wanted = [int(a) for a in c.ints(axes, "axes", ())]
    rank = x.ndim + len(wanted)
    insert = np.expand_dims if isinstance(x, np.ndarray) else sm.expand_dims
    return insert(x, tuple(sorted(axis_of(a, rank) for a in wanted)))


def _transpose(c: Call, x: Array) -> Any:
    return sm.permute_dims(x, tuple(c.get("perm") or range(x.ndim - 1, -1, -1)))


def _broadcast(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shape that two shapes broadcast to; equal sizes are compared under a guard."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)

    def joint(x: Any, y: Any) -> Any:
        if isinstance(x, int) and x == 1:
            return y
        return x if (isinstance(y, int) and y == 1) or x == y or x != 1 else y

    return tuple(joint(x, y) for x, y in pairs)


def _expand(c: Call, x: Array, dims: Known) -> Any:
    return sm.broadcast_to(x, _broadcast(x.shape, dims.ints()))


def _expand_host(c: Call, x: Any, dims: Any) -> Any:
    if not _are_numbers(dims.flat):
        return NotImplemented
    wanted: tuple[int, ...] = tuple(int(d) for d in dims.flat)
    shape: tuple[Any, ...] = _broadcast(x.shape, wanted)
    return np.broadcast_to(x, shape) if product(shape) <= MAX_CONTENT_ELEMENTS else NotImplemented


def _concat(c: Call, *x: Any) -> Any:
    axis = axis_of(c.get("axis", 1), x[0].ndim)
    return sm.concat(list(x), axis=axis)


def _split(c: Call, x: Array, parts: Known | None = None) -> Any:
    axis = axis_of(c.get("axis", 0), x.ndim)
    lengths = c.ints(parts, "split")
    if lengths is None:
        count = c.get("num_outputs") or len(c.outputs)
        length = -(-x.shape[axis] // count)
        lengths = [length] * (count - 1)
        lengths.append(x.shape[axis] - length * (count - 1))
    results: list[Any] = []
    first: Any = 0
    for n in lengths:
        results.append(slice_along(x, axis, first, first + n))
        first = first + n
    return tuple(results)


def slice_along(x: Array, axis: int, start: Any, stop: Any, step: int = 1) -> Any:
    """Return a slice of one axis; start and stop are numbers or sizes in bounds."""
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


# Slices

_ENDS = 1 << 31
"""Positions beyond this mean the end of an axis."""


def _slice_terms(c: Call, rank: int, rest: Sequence[Any]) -> list[tuple[int, Any, Any, int]]:
    """Return (axis, start, stop, step) for each sliced axis."""
    padded = [*rest, *[None] * (4 - len(rest))]
    starts, stops = (c.ints(x, n) for x, n in zip(padded, ("starts", "ends"), strict=False))
    axes = c.ints(padded[2], "axes", range(len(starts)))
    steps = c.ints(padded[3], "", [1] * len(starts))
    return [
        (axis_of(int(a), rank), start, stop, int(step))
        for a, start, stop, step in zip(axes, starts, stops, steps, strict=True)
    ]


def _slice_of(start: Any, stop: Any, step: int, extent: Any) -> slice:
    """Return the slice that Python reads as ONNX does: bounds beyond the axis are its ends."""
    if step > 0:
        first = extent if _is_beyond(start, 1) else 0 if _is_beyond(start, -1) else start
        return slice(
            first, None if _is_beyond(stop, 1) else 0 if _is_beyond(stop, -1) else stop, step
        )
    if _is_beyond(stop, 1):
        return slice(0, 0, step)
    first = None if _is_beyond(start, 1) else 0 if _is_beyond(start, -1) else start
    last = None if _is_beyond(stop, -1) else stop
    if isinstance(extent, int):
        first = max(first + extent * (first < 0), 0) if isinstance(first, int) else first
        if isinstance(last, int):
            last += extent * (last < 0)
            last = None if last < 0 else min(last, extent - 1)
    return slice(first, last, step)


def _is_beyond(position: Any, sign: int) -> bool:
    """Return whether a bound stands for the end of every axis."""
    return isinstance(position, int) and position * sign >= _ENDS


def _slice(c: Call, x: Any, *rest: Any) -> Any:
    key: list[Any] = [slice(None)] * x.ndim
    for axis, start, stop, step in _slice_terms(c, x.ndim, rest):
        key[axis] = _slice_of(start, stop, step, x.shape[axis])
    return x[tuple(key)]


# Padding, tiling, filling


def _pad(c: Call, x: Array, pads: Known | None = None, value: Any = None, axes: Any = None) -> Any:
    widths = c.ints(pads, "pads")
    among = [axis_of(int(a), x.ndim) for a in c.ints(axes)] if axes is not None else range(x.ndim)
    half = len(widths) // 2
    pairs: list[tuple[Any, Any]] = [(0, 0) for _ in range(x.ndim)]
    for k, a in enumerate(among):
        pairs[a] = widths[k], widths[half + k]
    mode = c.get("mode", "constant")
    fill: Any = c.get("value", 0)
    if isinstance(value, Known) and not value.is_symbolic:
        fill, value = value.item(), None
    for a, (low, high) in enumerate(pairs):  # negative widths remove elements
        crop = [n if isinstance(n, int) and n < 0 else 0 for n in (low, high)]
        if any(crop):
            x = slice_along(x, a, -crop[0], x.shape[a] + crop[1])
            pairs[a] = low - crop[0], high - crop[1]
    if mode == "wrap":
        return _wrap(x, pairs)
    if value is not None:
        return _filled(x, pairs, c.array(value))
    if x.dtype.kind == "bool":
        fill = bool(fill)
    elif x.dtype.is_integer:
        fill = int(fill)
    if all(isinstance(n, int) and n == 0 for pair in pairs for n in pair):
        return x
    return (
        sm.pad(x, pairs, mode=mode, constant_values=fill)
        if mode == "constant"
        else sm.pad(x, pairs, mode=mode)
    )


def _filled(x: Array, pairs: Sequence[tuple[Any, Any]], value: Array) -> Any:
    """Pad with a value that the call computes."""
    inside = sm.pad(sm.full(x.shape, True, dtype=sm.bool), pairs, constant_values=False)
    return sm.where(inside, sm.pad(x, pairs), sm.reshape(value, ()))


def _wrap(x: Array, pairs: Sequence[tuple[Any, Any]]) -> Any:
    for a, (low, high) in enumerate(pairs):
        if isinstance(low, int) and isinstance(high, int) and low == high == 0:
            continue
        extent = x.shape[a]
        index = (sm.arange(extent + low + high) - low) % extent
        x = sm.take(x, index, axis=a)
    return x


def _constant_of_shape(c: Call, dims: Known) -> Any:
    value = c.tensor("value")
    value = Known(np.zeros(1, np.float32)) if value is None else value
    shape = dims.ints()
    if _are_numbers(shape) and product(shape) <= MAX_CONTENT_ELEMENTS and value.dtype != object:
        return Known(np.full(shape, value.elements.reshape(-1)[0], value.dtype))
    return sm.full(tuple(shape), value.item(), dtype=from_numpy(value.dtype))


def _constant(c: Call) -> Any:
    tensor = c.tensor("value")
    if tensor is None:
        tensor = c.tensor("sparse_value")
    if tensor is not None:
        return tensor
    for name, dtype in (("float", np.float32), ("int", np.int64), ("string", object)):
        for suffix, shape in (("", ()), ("s", (-1,))):
            value = c.get(f"value_{name}{suffix}")
            if value is not None:
                elements = np.array(value, dtype).reshape(shape)
                return Known(elements)
    raise UnsupportedError("Constant without a value")


def _range(c: Call, start: Known, stop: Known, step: Known) -> Any:
    first, last, by = start.item(), stop.item(), step.item()
    if _are_numbers([first, last, by]):
        check_count(math.ceil((last - first) / by))
        elements = (
            np.arange(first, last, by, dtype=start.dtype)
            if start.dtype.kind != "f"
            else _float_range(first, last, by, start.dtype)
        )
        if elements.size <= MAX_CONTENT_ELEMENTS:
            return Known(elements)
    return sm.arange(first, last, by, dtype=from_numpy(start.dtype))


def _float_range(first: Any, last: Any, by: Any, dtype: Any) -> Any:
    count = max(int(np.ceil((last - first) / by)), 0)
    return (np.arange(count, dtype=dtype) * dtype.type(by) + dtype.type(first)).astype(dtype)


def _eye_like(c: Call, x: Any) -> Any:
    rows, columns = x.shape
    source = x.dtype if isinstance(x, Known) else x.dtype.numpy
    return sm.eye(rows, columns, k=c.get("k", 0), dtype=from_numpy(c.dtype("dtype", source)))


def _trilu(c: Call, x: Array, k: Any = None) -> Any:
    diagonal = 0 if k is None else int(c.known(k).item())
    return (sm.triu if c.get("upper", 1) else sm.tril)(x, k=diagonal)


# Blocks of images


def _depth_to_space(c: Call, x: Array) -> Any:
    n, channels, h, w = x.shape
    b = c.get("blocksize")
    depth = channels // (b * b)
    if c.get("mode", "DCR") == "DCR":
        parts = sm.permute_dims(sm.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = sm.permute_dims(sm.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return sm.reshape(parts, (n, depth, h * b, w * b))


def _space_to_depth(c: Call, x: Array) -> Any:
    n, channels, h, w = x.shape
    b = c.get("blocksize")
    parts = sm.reshape(x, (n, channels, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if c.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = sm.permute_dims(parts, order)
    return sm.reshape(parts, (n, channels * b * b, h // b, w // b))


def _center_crop_pad(c: Call, x: Array, dims: Known) -> Any:
    axes = [axis_of(a, x.ndim) for a in c.get("axes") or range(x.ndim)]
    for a, wanted in zip(axes, dims.ints(), strict=True):
        extent = x.shape[a]
        if wanted < extent:
            first = (extent - wanted) // 2
            x = slice_along(x, a, first, first + wanted)
        elif wanted > extent:
            low = (wanted - extent) // 2
            pairs: list[Any] = [(0, 0)] * x.ndim
            pairs[a] = low, wanted - extent - low
            x = sm.pad(x, pairs)
    return x


def _reverse_sequence(c: Call, x: Array, lengths: Array) -> Any:
    time, batch = c.get("time_axis", 0), c.get("batch_axis", 1)
    moved = sm.moveaxis(x, (time, batch), (0, 1))
    steps = sm.reshape(sm.arange(moved.shape[0]), (-1, 1))
    ends = sm.reshape(sm.astype(lengths, sm.int64), (1, -1))
    index = sm.where(steps < ends, ends - 1 - steps, steps + 0 * ends)
    index = sm.reshape(index, (*index.shape, *(1,) * (moved.ndim - 2)))
    taken = sm.take_along_axis(moved, sm.broadcast_to(index, moved.shape), axis=0)
    return sm.moveaxis(taken, (0, 1), (time, batch))


ROWS: tuple[Row, ...] = (
    Row("Shape", _shape, raw=True),
    Row("Size", lambda c, x: Known(object_array((), [product(x.shape)]), np.int64), raw=True),
    Row("Identity", lambda c, x: x, raw=True),
    Row("Constant", _constant),
    Row("ConstantOfShape", _constant_of_shape, (0,)),
    Row("Reshape", _reshape, (1,), host=_on_elements(_reshape)),
    Row("Flatten", _flatten),
    Row("Squeeze", _squeeze, (1,), host=_on_elements(_squeeze)),
    Row("Unsqueeze", _unsqueeze, (1,), host=_on_elements(_unsqueeze)),
    Row("Transpose", _transpose, host=lambda c, x: x.transpose(c.get("perm"))),
    Row("Expand", _expand, (1,), host=_expand_host),
    Row("Concat", _concat, host=lambda c, *x: np.concatenate(x, axis=c.get("axis", 1))),
    Row("Split", _split, (1,)),
    Row("Slice", _slice, (1, 2, 3, 4), host=_on_elements(_slice)),
    Row("Pad", _pad, (1, 3)),
    Row("Tile", lambda c, x, repeats: sm.tile(x, tuple(repeats.ints())), (1,)),
    Row("Range", _range, (0, 1, 2)),
    Row("EyeLike", _eye_like, raw=True),
    Row("Trilu", _trilu, (1,)),
    Row("DepthToSpace", _depth_to_space),
    Row("SpaceToDepth", _space_to_depth),
    Row("CenterCropPad", _center_crop_pad, (1,)),
    Row("ReverseSequence", _reverse_sequence),
)
