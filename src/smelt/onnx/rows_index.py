"""Rows of operators that read or write at computed positions."""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm
from smelt.frontends.array.array import Array
from smelt.onnx.known import Known
from smelt.onnx.row import Call, NeedsHostError, NeedsValueError, Row, axis_of, computable

__all__ = ["ROWS"]


def _wrapped(index: Array, extent: Any) -> Array:
    """Return positions counted from the front."""
    if index.dtype.kind == "uint":
        return sm.astype(index, sm.int64)
    index = sm.astype(index, sm.int64)
    return sm.where(index < 0, index + extent, index)


def _gather_host(c: Call, x: Any, index: Any) -> Any:
    if index.dtype == object:
        return NotImplemented
    axis = axis_of(c.get("axis", 0), x.ndim)
    taken = x.take(index.reshape(-1), axis=axis)
    return taken.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _gather(c: Call, x: Any, index: Any) -> Any:
    axis = axis_of(c.get("axis", 0), x.ndim)
    array = c.array(x)
    if isinstance(index, Known) and index.is_content and index.elements.size == 1:
        position = index.item()
        shape = (*array.shape[:axis], *index.shape, *array.shape[axis + 1 :])
        if isinstance(position, int):
            return sm.reshape(array[(slice(None),) * axis + (position,)], shape)
    return sm.take(array, c.array(index), axis=axis)


def _gather_elements(c: Call, x: Array, index: Array) -> Any:
    axis = axis_of(c.get("axis", 0), x.ndim)
    return x[_along(index, axis, x)]


def _along(index: Array, axis: int, x: Array) -> tuple[Any, ...]:
    """Return positions for every dimension: `index` along one, its axis_shape along the others."""
    key: list[Any] = []
    for a in range(index.ndim):
        if a == axis:
            key.append(_wrapped(index, x.shape[a]))
        else:
            shape = [1] * index.ndim
            shape[a] = -1
            key.append(sm.reshape(sm.arange(index.shape[a]), tuple(shape)))
    return tuple(key)


def _gather_nd(c: Call, x: Array, index: Array) -> Any:
    batch = c.get("batch_dims", 0)
    depth = int(index.shape[-1])
    key: list[Any] = []
    rank = index.ndim - 1
    for a in range(batch):
        shape = [1] * rank
        shape[a] = -1
        key.append(sm.reshape(sm.arange(x.shape[a]), tuple(shape)))
    key += [_wrapped(index[..., k], x.shape[batch + k]) for k in range(depth)]
    if not key:
        return sm.broadcast_to(x, (*index.shape[:-1], *x.shape))
    return x[tuple(key)]


def _scatter(x: Array, key: tuple[Any, ...], updates: Array, how: str) -> Any:
    place = x.at[key]
    if how in ("none", ""):
        return place.set(updates)
    method = {"add": place.add, "mul": place.multiply, "max": place.max, "min": place.min}[how]
    return method(updates)


def _scatter_elements(c: Call, x: Array, index: Array, updates: Array) -> Any:
    axis = axis_of(c.get("axis", 0), x.ndim)
    return _scatter(x, _along(index, axis, x), updates, c.get("reduction", "none"))


def _scatter_nd(c: Call, x: Array, index: Array, updates: Array) -> Any:
    depth = int(index.shape[-1])
    key = tuple(_wrapped(index[..., k], x.shape[k]) for k in range(depth))
    return _scatter(x, key, updates, c.get("reduction", "none"))


def _scatter_nd_host(c: Call, x: Any, index: Any, updates: Any) -> Any:
    if c.get("reduction", "none") != "none" or index.dtype == object:
        return NotImplemented
    result = x.astype(object) if updates.dtype == object else x.copy()
    flat = index.reshape(-1, index.shape[-1])
    parts = updates.reshape(len(flat), -1)
    for k, position in enumerate(flat):
        view = result[tuple(slice(int(p), int(p) + 1 or None) for p in position)]
        view[...] = parts[k : k + 1].reshape(view.shape)
    return result


def _tensor_scatter(c: Call, cache: Array, update: Array, starts: Any = None) -> Any:
    """Write rows of `update` into a cache, from a position for each batch on."""
    axis = axis_of(c.get("axis", -2), cache.ndim)
    length, extent = update.shape[axis], cache.shape[axis]
    shape = [1] * cache.ndim
    shape[axis] = -1
    steps = sm.reshape(sm.arange(length), tuple(shape))
    if starts is not None:
        steps = steps + sm.reshape(sm.astype(starts, sm.int64), (-1, *(1,) * (cache.ndim - 1)))
    if c.get("mode", "linear") == "circular":
        steps = steps % extent
    key: list[Any] = []
    for a in range(cache.ndim):
        axis_shape = [1] * cache.ndim
        axis_shape[a] = -1
        key.append(
            steps if a == axis else sm.reshape(sm.arange(update.shape[a]), tuple(axis_shape))
        )
    return cache.at[tuple(key)].set(update)


def _one_hot(c: Call, index: Array, depth: Known, values: Array) -> Any:
    count = int(depth.item())
    axis = axis_of(c.get("axis", -1), index.ndim + 1)
    wide = sm.astype(index, sm.int64)
    wide = sm.expand_dims(sm.where(wide < 0, wide + count, wide), axis=axis)
    shape = [1] * (index.ndim + 1)
    shape[axis] = -1
    hit = sm.reshape(sm.arange(count), tuple(shape)) == wide
    return sm.where(hit, values[1], values[0])


# Results whose sizes depend on elements: computed in NumPy, outside of programs


def _elements(c: Call, x: Any) -> Any:
    """Return elements in NumPy; while recording only those that are constants."""
    content = c.known(x)
    if content.is_symbolic:
        raise NeedsValueError
    return content.elements


def _non_zero(c: Call, x: Any) -> Any:
    elements = _elements(c, x)
    positions = np.nonzero(np.atleast_1d(elements))
    return Known(np.stack(positions).astype(np.int64))


def _compress(c: Call, x: Any, condition: Any) -> Any:
    chosen = np.flatnonzero(_elements(c, condition).reshape(-1)).astype(np.int64)
    axis = c.get("axis")
    if isinstance(x, Known) and not computable(x.dtype):
        return Known(np.take(x.elements, chosen, axis=axis))
    array = c.array(x)
    if axis is None:
        return sm.take(sm.reshape(array, (-1,)), sm.asarray(chosen), axis=0)
    return sm.take(array, sm.asarray(chosen), axis=axis_of(axis, array.ndim))


def _unique(c: Call, x: Any) -> Any:
    elements, axis = _elements(c, x), c.get("axis")
    values, first, inverse, counts = np.unique(
        elements, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not c.get("sorted", 1):
        order = np.argsort(first)
        values = np.take(values, order, axis=0 if axis is None else axis)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return tuple(
        Known(v) for v in (values, *(np.asarray(k, np.int64) for k in (first, inverse, counts)))
    )


def _non_max_suppression(
    c: Call, boxes: Any, scores: Any, count: Any = None, overlap: Any = None, least: Any = None
) -> Any:
    """Select boxes by falling score; skip those that overlap a selected one."""
    corners, values = _elements(c, boxes), _elements(c, scores)
    most = int(_elements(c, count).reshape(-1)[0]) if count is not None else 0
    limit = float(_elements(c, overlap).reshape(-1)[0]) if overlap is not None else 0.0
    floor = float(_elements(c, least).reshape(-1)[0]) if least is not None else -np.inf
    selected: list[tuple[int, int, int]] = []
    for batch, classes in enumerate(values):
        ends = _corners(corners[batch], c.get("center_point_box", 0))
        for label, row in enumerate(classes):
            among = np.flatnonzero(row > floor)
            order = among[np.argsort(-row[among], kind="stable")]
            selected += [(batch, label, int(k)) for k in _suppress(ends, order, most, limit)]
    return Known(np.array(selected, np.int64).reshape(-1, 3))


def _corners(boxes: Any, is_centred: int) -> Any:
    if is_centred:
        half = boxes[:, 2:] / 2
        return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)
    pairs = boxes.reshape(-1, 2, 2)
    return np.concatenate((pairs.min(axis=1), pairs.max(axis=1)), axis=1)


def _suppress(boxes: Any, order: Any, most: int, limit: float) -> list[int]:
    kept: list[int] = []
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    while order.size and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(best)
        low = np.maximum(boxes[order, :2], boxes[best, :2])
        high = np.minimum(boxes[order, 2:], boxes[best, 2:])
        common = np.prod(np.clip(high - low, 0, None), axis=1)
        union = areas[order] + areas[best] - common
        order = order[common <= limit * union]
    return kept


def _gather_row(c: Call, x: Any, index: Any) -> Any:
    if isinstance(x, Known) and not computable(x.dtype):
        raise NeedsHostError("Gather of a type that arrays do not have")
    return _gather(c, x, index)


def _bit_cast(c: Call, x: Any) -> Any:
    content = c.known(x)
    target = c.dtype("to")
    return Known(np.ascontiguousarray(content.elements).view(target).reshape(content.shape))


def _array_feature_extractor(c: Call, x: Array, index: Array) -> Any:
    taken = sm.take(x, sm.reshape(index, (-1,)), axis=x.ndim - 1)
    return sm.reshape(taken, (1, -1)) if x.ndim == 1 else taken


ROWS: tuple[Row, ...] = (
    Row("Gather", _gather_row, host=_gather_host, raw=True),
    Row("GatherElements", _gather_elements),
    Row("GatherND", _gather_nd),
    Row("ScatterElements", _scatter_elements),
    Row("Scatter", _scatter_elements),
    Row("ScatterND", _scatter_nd, host=_scatter_nd_host),
    Row("TensorScatter", _tensor_scatter),
    Row("OneHot", _one_hot, (1,)),
    Row("NonZero", _non_zero, raw=True),
    Row("Compress", _compress, raw=True),
    Row("Unique", _unique, raw=True),
    Row("NonMaxSuppression", _non_max_suppression, raw=True),
    Row("BitCast", _bit_cast, raw=True),
    Row("ArrayFeatureExtractor", _array_feature_extractor, domain="ai.onnx.ml"),
)
