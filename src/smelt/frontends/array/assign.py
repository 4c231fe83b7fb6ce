"""Writing by index: `x[key] = value` and `x.at[key].add(value)`, as new versions of x.

Values computed from the old version do not change.  A box, selected by slices and integers, is
overlaid by an elementwise select on positions, which fuses with its neighbours; integer arrays
scatter.

>>> x = from_host(np.zeros((3, 4)))
>>> put(x, (slice(1), 2), 5).type
TensorType(dtype=f64, shape=(3, 4))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import DTypeError, IndexRangeError
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.families import BINARY, align
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.subscript import (
    SELECT,
    IndexArray,
    IntegerIndex,
    NewAxis,
    Part,
    SliceRange,
    adjacent,
    as_array,
    basic_index,
    boolean_value,
    check_axis_not_empty,
    hashable_key,
    index_item,
    is_mask,
    parse,
    range_of,
    restore_key,
    sole_boolean,
    take,
)
from smelt.frontends.array.trace_cache import cache_trace
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import expand, flip, pad, permute, reshape, scope_of, shape_of
from smelt.ops.create import Iota
from smelt.ops.index import Scatter
from smelt.types.dtype import bool_, i64
from smelt.types.expr import Index, sub
from smelt.types.tensor import broadcast_shapes

__all__ = [
    "SCATTER_COMBINES",
    "cast_same_kind",
    "from_host",
    "np",
    "overlay_box",
    "put",
    "update",
]


def put(x: Value, key: Any, value: Value | Any) -> Value:
    """Return x after `x[key] = value`.

    Raises ShapeError if the value does not fit, DTypeError, IndexRangeError.
    """
    return update(x, key, value, "put", "x[key] = value")


def update(x: Value, key: Any, value: Value | Any, how: str, what: str) -> Value:
    """Return x with the elements at `key` replaced by, or combined with, `value`.

    `how` is "put" or a key of `SCATTER_COMBINES`; `what` names the operation in errors.  A position
    that is named several times is combined as often, in the order of the positions.
    """
    v = value if isinstance(value, Value) else number(value, x.type.dtype, what)
    if x.scope is None and v.scope is None:
        simple = hashable_key(key)
        if simple is not None:
            return _update_simple(x, v, simple, how)
    v = cast_same_kind(v, x)

    boolean = sole_boolean(key)
    if boolean is not None:
        return _update_where(x, boolean, _combine(x, v, how))
    masked = _update_masked(x, key, v, how)
    if masked is not None:
        return masked
    parts = parse(x, key)
    if any(isinstance(p, IndexArray) for p in parts):
        return _scatter(x, parts, v, how)
    return _update_box(x, parts, v, how)


@cache_trace
def _update_simple(x: Value, v: Value, key: tuple[Any, ...], how: str) -> Value:
    """Update a box with constant bounds; the operators depend on types only."""
    return _update_box(x, parse(x, restore_key(key)), cast_same_kind(v, x), how)


def _update_box(x: Value, parts: list[Part], v: Value, how: str) -> Value:
    """Replace a box of x by a value, or combine it with one."""
    if how != "put":
        old = basic_index(x, parts)
        v = expand(_trim(v, old.type.rank), shape_of(old))
        v = _combine(old, v, how)
    return overlay_box(x, parts, v)


SCATTER_COMBINES = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
"""How a scatter combines the present element with an update -> the binary function."""


def _combine(old: Value, v: Value, how: str) -> Value:
    return v if how == "put" else BINARY[SCATTER_COMBINES[how]](old, v)


def _update_where(x: Value, truth: Value, v: Value) -> Value:
    """Return x after `x[truth] = v`, which writes all of x or nothing."""
    shape = shape_of(v)
    if len(shape) == x.type.rank + 1 and shape[0] == 0 and not boolean_value(truth):
        return x
    return record(SELECT, (truth, expand(_trim(v, x.type.rank), shape_of(x)), x))


def _update_masked(x: Value, key: Any, v: Value, how: str) -> Value | None:
    """Return x after `x[key] = v` for a key with one mask, else None.

    The result is a select.  Besides the mask the key may have slices and integers.  None is
    returned unless v is the same for all elements that the mask selects (it may vary along the
    dimensions after the mask): otherwise their number matters.
    """
    items = [index_item(item) for item in (key if isinstance(key, tuple) else (key,))]
    masks = [item for item in items if is_mask(item)]
    if len(masks) != 1 or sum(isinstance(item, Value) for item in items) > 1:
        return None
    mask_index, (mask,) = next(k for k, item in enumerate(items) if is_mask(item)), masks
    before, after = items[:mask_index], items[mask_index + 1 :]
    parts = parse(x, (*before, *[slice(None)] * mask.type.rank, *after))
    old = basic_index(x, parts)
    rest = old.type.rank - mask.type.rank
    first = rest - _dims(after) if Ellipsis in before else _dims(before)
    only_slices = all(isinstance(p, SliceRange) for p in parts)
    if not mask.type.rank or v.type.rank > (rest - first if only_slices else 0):
        return None
    scope = scope_of(old) or scope_of(mask)
    for a, b in zip(shape_of(mask), shape_of(old)[first:], strict=False):
        if not (a == b if scope is None else scope.same(a, b)):
            raise IndexRangeError(
                f"a mask {mask.type_text} does not fit {x.type_text}",
                hint="A mask has the sizes of the dimensions that it stands for; none stretches.",
            )
    v = _combine(old, expand(v, shape_of(old)) if v.type.rank else v, how)
    mask = reshape(mask, (*shape_of(mask), *[1] * (rest - first)))
    return overlay_box(x, parts, record(SELECT, (mask, v, old)))


def _dims(items: list[Any]) -> int:
    """Return how many dimensions the slices and new axes among these items produce."""
    return sum(item is None or isinstance(item, slice) for item in items)


def cast_same_kind(v: Value, x: Value) -> Value:
    """Cast a value to an array's dtype by NumPy's same-kind rule.

    Raises DTypeError if the array's kind is narrower (integers for floats).
    """
    rank = {"bool": 0, "uint": 1, "int": 1, "float": 2}
    if rank[v.type.dtype.kind] > rank[x.type.dtype.kind]:
        raise DTypeError(f"{v.type_text} cannot be written into {x.type_text}")
    return cast(v, x.type.dtype)


def overlay_box(x: Value, parts: list[Part], v: Value) -> Value:
    """Replace a box of x by a value, through a select by position."""
    shape = shape_of(x)
    ranges = [range_of(p) for p in parts if not isinstance(p, NewAxis)]
    box = tuple(
        1 if isinstance(p, IntegerIndex) else range_of(p).count
        for p in parts
        if not isinstance(p, NewAxis)
    )
    key_shape = tuple(
        1 if isinstance(p, NewAxis) else p.count
        for p in parts
        if isinstance(p, (NewAxis, SliceRange))
    )
    v = reshape(expand(_trim(v, len(key_shape)), key_shape), box)
    if any(r.count == 0 for r in ranges):
        return x
    mask: Value | None = None
    for r in ranges:
        v, in_range = _place_along(v, r, shape[r.axis], len(shape))
        mask = (
            in_range if mask is None else mask if in_range is None else record_and(mask, in_range)
        )
    return v if mask is None else record(SELECT, (mask, expand(v, shape), x))


def _trim(v: Value, rank: int) -> Value:
    """Drop leading dimensions of size 1 that exceed the target's rank."""
    shape = shape_of(v)
    extra = len(shape) - rank
    if extra > 0 and all(d == 1 for d in shape[:extra]):
        return reshape(v, shape[extra:])
    return v


def record_and(a: Value, b: Value) -> Value:
    """Record the logical conjunction of two bool values."""
    return BINARY["logical_and"](a, b)


def _place_along(v: Value, r: SliceRange, size: Index, rank: int) -> tuple[Value, Value | None]:
    """Move the value to its positions along r.axis; also return where it applies (None: all)."""
    if r.count == size:
        return (flip(v, (r.axis,)) if r.step < 0 else v), None
    along = [1] * rank
    along[r.axis] = size  # type: ignore[call-overload]
    scope = scope_of(v, (size, r.start, r.count))
    at = record(Iota(tuple(along), r.axis, i64), (), scope)
    offset = BINARY["subtract"](at, as_array(IntegerIndex(0, r.start)))
    if r.count == 1:
        return v, BINARY["equal"](offset, 0)
    if r.step == 1:
        low: list[Index] = [0] * rank
        high: list[Index] = [0] * rank
        low[r.axis], high[r.axis] = r.start, sub(sub(size, r.start), r.count)
        inner = BINARY["less"](offset, as_array(IntegerIndex(0, r.count)))
        in_range = record_and(BINARY["greater_equal"](offset, 0), inner)
        return pad(v, tuple(low), tuple(high), False if v.type.dtype is bool_ else 0), in_range
    return _place_strided(v, r, offset)


def _place_strided(v: Value, r: SliceRange, offset: Value) -> tuple[Value, Value]:
    """Read the value at offset // step for every |step|-th position."""
    if r.step < 0:
        offset = BINARY["multiply"](offset, -1)
    step = abs(r.step)
    quotient = BINARY["floor_divide"](offset, step)
    in_range = record_and(
        BINARY["equal"](BINARY["remainder"](offset, step), 0),
        record_and(
            BINARY["greater_equal"](offset, 0),
            BINARY["less"](quotient, as_array(IntegerIndex(0, r.count))),
        ),
    )
    last = as_array(IntegerIndex(0, sub(r.count, 1)))
    index = BINARY["maximum"](BINARY["minimum"](quotient, last), 0)
    flat = reshape(index, (shape_of(index)[r.axis],))
    return take(v, [flat], r.axis), in_range


def _scatter(x: Value, parts: list[Part], v: Value, how: str) -> Value:
    """Scatter into integer positions: move the indexed axes to the front, and back after."""
    parts = [p for p in parts if not isinstance(p, NewAxis)]
    arrays = [p for p in parts if isinstance(p, (IndexArray, IntegerIndex))]
    ranges = [p for p in parts if isinstance(p, SliceRange)]
    index = [as_array(p) for p in arrays]
    middle = broadcast_shapes(*(t.shape for t in align("index", *index)))
    axes = [p.axis for p in arrays]
    side_by_side = adjacent(parts)
    first = sum(r.axis < axes[0] for r in ranges) if side_by_side else 0
    counts = tuple(r.count for r in ranges)
    v = expand(_trim(v, len(middle) + len(counts)), (*counts[:first], *middle, *counts[first:]))
    lead = range(first, first + len(middle))
    others = [a for a in range(len(v.type.shape)) if a not in lead]
    v = permute(v, (*lead, *others))
    for r in ranges:
        if r.count != shape_of(x)[r.axis]:
            return _scatter_boxed(x, ranges, arrays, index, v, len(middle), how)
        if r.step < 0:
            v = flip(v, (len(middle) + ranges.index(r),))
    order = (*axes, *[r.axis for r in ranges])
    permuted = permute(x, order)
    check_axis_not_empty(permuted, index)
    scattered = record(Scatter(how), (permuted, v, *index))
    return permute(scattered, [order.index(a) for a in range(len(order))])


def _scatter_boxed(
    x: Value,
    ranges: list[SliceRange],
    arrays: list[IndexArray | IntegerIndex],
    index: list[Value],
    v: Value,
    middle: int,
    how: str,
) -> Value:
    """Scatter where some slices are partial: these become index arrays as well."""
    partial = [r for r in ranges if r.count != shape_of(x)[r.axis]]
    partial_count = len(partial)
    index = [reshape(i, (*shape_of(i), *[1] * partial_count)) for i in index]
    for k, r in enumerate(partial):
        along: list[Index] = [1] * partial_count
        along[k] = r.count
        at = record(Iota(tuple(along), k, i64), (), scope_of(x, (r.count,)))
        at = BINARY["add"](BINARY["multiply"](at, r.step), as_array(IntegerIndex(0, r.start)))
        index.append(at)
    full = [r for r in ranges if r not in partial]
    axes = [middle + ranges.index(r) for r in (*partial, *full)]
    v = permute(v, (*range(middle), *axes))
    order = (*[p.axis for p in arrays], *[r.axis for r in partial], *[r.axis for r in full])
    permuted = permute(x, order)
    check_axis_not_empty(permuted, index)
    scattered = record(Scatter(how), (permuted, v, *index))
    return permute(scattered, [order.index(a) for a in range(len(order))])
