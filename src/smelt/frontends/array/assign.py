"""Writing by index: `x[key] = value` and `x.at[key].add(value)`, as new versions of x.

`x[key] = value` gives the name x a new version; `x.at[key].set(value)`, as in JAX, returns that
version and leaves x as it is.  Its other methods combine a value with the present element.  Where a
position is named several times, `x[i] = x[i] + 1` keeps one sum; `x.at[i].add(1)` adds each time.

Values computed from the old version do not change.  A box, selected by slices and integers, is
overlaid by an elementwise select on positions, which fuses with its neighbours; integer arrays
scatter.

>>> import numpy as np
>>> from smelt.frontends.array.convert import from_host
>>> x = from_host(np.zeros((3, 4)))
>>> put(x, (slice(1), 2), 5).type
TensorType(dtype=f64, shape=(3, 4))
>>> import smelt as sm
>>> sm.zeros(3).at[sm.asarray([0, 2, 2])].add(1)
Array([1., 0., 2.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from smelt.errors import DTypeError, IndexRangeError
from smelt.frontends.array.families import BINARY, UNARY, align
from smelt.frontends.array.numpy_hints import missing_attribute
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.scope import scope_of, shape_of
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
    get,
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
from smelt.frontends.array.views import expand, flip, pad, permute, reshape
from smelt.ops.create import Iota
from smelt.ops.index import Scatter
from smelt.types.dtype import DType, bool_, i64
from smelt.types.expr import Index, add, mul, sub
from smelt.types.tensor import Shape, broadcast_shapes

if TYPE_CHECKING:
    from smelt.frontends.array.array import Array


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
    return overlay_box(x, parts, v, how)


@cache_trace
def _update_simple(x: Value, v: Value, key: tuple[Any, ...], how: str) -> Value:
    """Update a box with constant bounds; the operators depend on types only."""
    return overlay_box(x, parse(x, restore_key(key)), cast_same_kind(v, x), how)


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
    if has_wider_kind(v, x.type.dtype):
        raise DTypeError(f"{v.type_text} cannot be written into {x.type_text}")
    return cast(v, x.type.dtype)


def has_wider_kind(v: Value, dtype: DType) -> bool:
    """Return whether a value's kind is not one that a dtype holds: floats for integers."""
    rank = {"bool": 0, "uint": 1, "int": 1, "float": 2}
    return rank[v.type.dtype.kind] > rank[dtype.kind]


def overlay_box(x: Value, parts: list[Part], v: Value, how: str = "put") -> Value:
    """Replace or combine a box of x by a select on positions.

    x is read at the positions of the result only, so that the result may take its memory.
    """
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
    box_mask: Value | None = None
    step_mask: Value | None = None
    for r in ranges:
        v, in_range, on_step = _place_along(v, r, shape[r.axis], len(shape))
        box_mask, step_mask = _both(box_mask, in_range), _both(step_mask, on_step)
    masks = [m for m in (step_mask, box_mask) if m is not None]
    v = expand(v, shape)
    if how == "mul":
        # Elsewhere the factors are 1, also in the derivative, where an infinity times 0 is NaN.
        for mask in masks:
            v = record(SELECT, (mask, v, number(1, x.type.dtype, "x.at")))
    v = _combine(x, v, how)
    for mask in masks:
        v = record(SELECT, (mask, v, x))
    return v


def _both(a: Value | None, b: Value | None) -> Value | None:
    """Return the conjunction of two masks, of which None is true everywhere."""
    return b if a is None else a if b is None else record_and(a, b)


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


def _place_along(
    v: Value, r: SliceRange, size: Index, rank: int
) -> tuple[Value, Value | None, Value | None]:
    """Move the value to its positions along r.axis.

    Also return masks of where it applies (None: everywhere): the range, and the steps within it.
    """
    if r.count == size:
        return (flip(v, (r.axis,)) if r.step < 0 else v), None, None
    along = [1] * rank
    along[r.axis] = size  # type: ignore[call-overload]
    scope = scope_of(v, (size, r.start, r.count))
    at = record(Iota(tuple(along), r.axis, i64), (), scope)
    start = as_array(IntegerIndex(0, r.start))
    if r.count == 1:
        return v, BINARY["equal"](at, start), None
    reach = mul(sub(r.count, 1), r.step)
    lowest, highest = (r.start, add(r.start, reach))[:: 1 if r.step > 0 else -1]
    stop = add(highest, 1)
    in_range = record_and(
        BINARY["greater_equal"](at, as_array(IntegerIndex(0, lowest))),
        BINARY["less"](at, as_array(IntegerIndex(0, stop))),
    )
    if r.step == 1:
        low: list[Index] = [0] * rank
        high: list[Index] = [0] * rank
        low[r.axis], high[r.axis] = r.start, sub(size, stop)
        v = pad(v, tuple(low), tuple(high), False if v.type.dtype is bool_ else 0)
        return v, in_range, None
    offset = BINARY["subtract"](at, start)
    if r.step < 0:
        offset = BINARY["multiply"](offset, -1)
    on_step = BINARY["equal"](BINARY["remainder"](offset, abs(r.step)), 0)
    quotient = BINARY["floor_divide"](offset, abs(r.step))
    last = as_array(IntegerIndex(0, sub(r.count, 1)))
    index = BINARY["maximum"](BINARY["minimum"](quotient, last), 0)
    return take(v, [reshape(index, (size,))], r.axis), in_range, on_step


def _scatter(x: Value, parts: list[Part], v: Value, how: str) -> Value:
    """Scatter into integer positions.

    Each axis of x up to the last indexed or partly sliced one gets an index array; those of slices
    count.  Axes keep their order, so that the result may take the memory of x.
    """
    shape = shape_of(x)
    arrays = [p for p in parts if isinstance(p, (IndexArray, IntegerIndex))]
    ranges = [p for p in parts if isinstance(p, SliceRange)]
    index = [as_array(p) for p in arrays]
    middle = broadcast_shapes(*(t.shape for t in align("index", *index)))
    before = sum(r.axis < arrays[0].axis for r in ranges)
    v = _order_as_written(v, parts, middle, before)
    place = [k if k < before else k + len(middle) for k in range(len(ranges))]
    whole = [r.count == shape[r.axis] for r in ranges]
    v = flip(v, tuple(k for k, r, w in zip(place, ranges, whole, strict=True) if w and r.step < 0))
    last = max(
        p.axis for p, w in zip([*arrays, *ranges], [*[False] * len(arrays), *whole]) if not w
    )
    rank = len(middle) + sum(r.axis <= last for r in ranges)
    positions = {
        p.axis: reshape(i, (*shape_of(i), *[1] * (rank - before - len(middle))))
        for p, i in zip(arrays, index, strict=True)
    }
    for k, r, w in zip(place, ranges, whole, strict=True):
        if r.axis <= last:
            along: list[Index] = [1] * rank
            along[k] = r.count
            at = record(Iota(tuple(along), k, i64), (), scope_of(x, (r.count,)))
            if not w:
                start = as_array(IntegerIndex(0, r.start))
                at = BINARY["add"](BINARY["multiply"](at, r.step), start)
            positions[r.axis] = at
    check_axis_not_empty(x, index, [p.axis for p in arrays])
    return record(Scatter(how), (x, v, *(positions[a] for a in range(last + 1))))


def _order_as_written(v: Value, parts: list[Part], middle: Shape, before: int) -> Value:
    """Return the value in the shape that a scatter writes.

    `before` slices come first, then the dimensions of the index arrays, then all other slices.
    """
    others = [p for p in parts if isinstance(p, (SliceRange, NewAxis))]
    starts = (k for k, p in enumerate(parts) if isinstance(p, (IndexArray, IntegerIndex)))
    first = next(starts) if adjacent(parts) else 0
    counts = [1 if isinstance(p, NewAxis) else p.count for p in others]
    v = expand(_trim(v, len(middle) + len(counts)), (*counts[:first], *middle, *counts[first:]))
    kept = [k for k, p in enumerate(others) if isinstance(p, SliceRange)]
    first_kept = sum(k < first for k in kept)
    counts = [counts[k] for k in kept]
    v = reshape(v, (*counts[:first_kept], *middle, *counts[first_kept:]))
    lead = range(first_kept, first_kept + len(middle))
    rest = [a for a in range(v.type.rank) if a not in lead]
    return permute(v, (*rest[:before], *lead, *rest[before:]))


class At:
    """Type of `x.at`; indexing it gives a `Place`."""

    __slots__ = ("_array", "_read")

    def __init__(self, array: Array, read: Callable[[Any, str], Any]) -> None:
        self._array = array
        self._read = read

    def __getitem__(self, key: Any) -> Place:
        return Place(self._array, key, self._read)


class Place:
    """Elements of an array that are to be changed in a copy.

    Keys are those of `x[key]`; a boolean mask takes one value.  Values broadcast to the selected
    elements and are cast to the array's dtype, which may not change their kind.  Positions that are
    named several times are combined in their order; with `set` the last value wins.  All methods
    have derivatives; equal extremes share theirs evenly.

    Raises ShapeError, DTypeError, IndexRangeError for positions known to be out of bounds, and
    OutsideError, at run time, for others.
    """

    __slots__ = ("_array", "_key", "_read")

    def __init__(self, array: Array, key: Any, read: Callable[[Any, str], Any]) -> None:
        self._array = array
        self._key = key
        self._read = read

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError with the nearest name."""
        raise missing_attribute("x.at[key]", name, type(self))

    def get(self) -> Array:
        """Return the elements: `x[key]`."""
        return self._array.of(get(self._array.node, self._key))

    def set(self, value: Any, /) -> Array:
        """Return a copy with `value` at the selected elements."""
        return self._updated("set", "put", value)

    def add(self, value: Any, /) -> Array:
        """Return a copy with `value` added to the selected elements."""
        return self._updated("add", "add", value)

    def subtract(self, value: Any, /) -> Array:
        """Return a copy with `value` subtracted from the selected elements.

        Raises DTypeError for booleans.
        """
        node = self._operand("subtract", value)
        if node.type.dtype is bool_:
            raise DTypeError(f"x.at[key].subtract: {node.type_text} cannot be subtracted")
        minus = UNARY["negative"](node)  # unsigned integers too: sums wrap around
        return self._updated("subtract", "add", self._array.of(minus))

    def multiply(self, value: Any, /) -> Array:
        """Return a copy with the selected elements multiplied by `value`."""
        return self._updated("multiply", "mul", value)

    mul = multiply

    def divide(self, value: Any, /) -> Array:
        """Return a copy with the selected elements divided by `value`.

        An element that is named several times is divided by the product of its values.  Raises
        DTypeError unless x is an array of floats.
        """
        x = self._array.node
        if not x.type.dtype.is_float:
            raise DTypeError(f"x.at[key].divide: {x.type_text} has no fractions")
        ones = expand(number(1.0, x.type.dtype, "divide"), shape_of(x))
        below = update(ones, self._key, self._operand("divide", value), "mul", "x.at[key].divide")
        return self._array.of(BINARY["divide"](x, below))

    def max(self, value: Any, /) -> Array:
        """Return a copy with the maximum of `value` and each selected element.

        NaN if either is NaN.
        """
        return self._updated("max", "max", value)

    def min(self, value: Any, /) -> Array:
        """Return a copy with the minimum of `value` and each selected element.

        NaN if either is NaN.
        """
        return self._updated("min", "min", value)

    def _operand(self, name: str, value: Any) -> Value:
        operand = self._read(value, f"x.at[key].{name}")
        if isinstance(operand, Value):
            return operand
        x = self._array.node
        if isinstance(operand, float) and not x.type.dtype.is_float:
            raise DTypeError(f"x.at[key].{name}({operand}): {x.type_text} does not hold it")
        return number(operand, x.type.dtype, f"x.at[key].{name}")

    def _updated(self, name: str, how: str, value: Any) -> Array:
        v = self._operand(name, value)
        return self._array.of(update(self._array.node, self._key, v, how, f"x.at[key].{name}"))
