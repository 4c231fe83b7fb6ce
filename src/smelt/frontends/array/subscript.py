"""Reading by index: `x[key]` as views and gathers.

Basic keys (integers, slices, None, Ellipsis) become slices and reshapes.  Integer arrays become
gathers, with negative positions counted from the end.  A boolean mask selects elements where their
number is known, that is outside a recording.

>>> x = from_host(np.arange(12).reshape(3, 4))
>>> get(x, (1, slice(None, None, -1))).type
TensorType(dtype=i64, shape=(4,))

>>> hashable_key((0, slice(1, None), ..., None)), hashable_key([0, 1])
((0, (1, None, None), Ellipsis, None), None)
>>> restore_key((0, (1, None, None)))
(0, slice(1, None, None))
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.errors import (
    ArgumentError,
    BoundsError,
    DTypeError,
    IndexRangeError,
    TracerError,
    UnsupportedError,
)
from smelt.frontends.array.at_once import view_of
from smelt.frontends.array.convert import from_host, operand_of_numpy
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.families import BINARY, align
from smelt.frontends.array.number import Number, Scalar, Size, as_dim
from smelt.frontends.array.promote import cast
from smelt.frontends.array.scope import Scope, scope_of, shape_of
from smelt.frontends.array.trace_cache import cache_trace, cache_trace_in_recording
from smelt.frontends.array.value import (
    RANGES,
    SNAPSHOT_BYTES,
    STATE,
    Buffer,
    Value,
    constant,
    leaf,
    record,
)
from smelt.frontends.array.views import as_integer, flip, permute, reshape, take_range
from smelt.graph.bounds import is_in_bounds
from smelt.knobs import BOUNDS_CHECK
from smelt.ops.create import SizeOf
from smelt.ops.elementwise import Map
from smelt.ops.index import Gather
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_, i64
from smelt.types.expr import Index, add, floordiv, mul, sub, text

ARRAY = "array"
"""Marks an array among the items of a key."""
OTHER = object()
"""Marks an item that is not a plain integer, slice, None or Ellipsis."""


def hashable_key(key: Any) -> tuple[Any, ...] | None:
    """Return a key of plain integers, slices, None and Ellipsis as a hashable tuple.

    None for keys with other items.
    """
    items: list[Any] = []
    for item in key if key.__class__ is tuple else (key,):
        kind = item.__class__
        if not (kind is int or item is None or item is Ellipsis):
            item = hashable_item(item) if kind is slice else OTHER
            if item is OTHER:
                return None
        items.append(item)
    return tuple(items)


def restore_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Restore the key that `hashable_key` converted."""
    return tuple([slice(*i) if i.__class__ is tuple else i for i in key])


def plain_key(key: Any) -> tuple[Any, ...] | None:
    """Return a key for NumPy's arrays, with the elements of arrays.

    None if some are not computed, and for items that NumPy might take otherwise.
    """
    items: list[Any] = []
    for item in key if key.__class__ is tuple else (key,):
        node: Any = getattr(item, "node", None)
        if isinstance(node, Value) and node.type.dtype.kind in ("bool", "int", "uint"):
            item = view_of(node)
        is_array = isinstance(item, np.ndarray) and item.dtype.kind in "iub"
        is_plain = isinstance(item, _PLAIN_ITEMS) and hashable_item(item) is not OTHER
        if not (is_array or is_plain or item is None) or (item is None and node is not None):
            return None
        items.append(item)
    return tuple(items)


def is_element(items: Sequence[Any]) -> bool:
    """Return whether the items of a key are integers."""
    for i in items:  # noqa: SIM110 - a generator costs more than most keys
        if i.__class__ not in _INTEGERS:
            return False
    return True


def copied_elements(shape: Sequence[int], key: Any) -> int:
    """Return a bound on the elements that arrays and lists of a key copy.

    -1 for a key without arrays, which takes a view, and for items that NumPy might take otherwise.
    Raises ValueError for arrays that do not broadcast, IndexError for too many items.

    >>> copied_elements((10, 4), (slice(None), np.array([1, 3]))), copied_elements((10,), slice(2))
    (20, -1)
    """
    count, axis, copied = math.prod(shape), 0, list[tuple[int, ...]]()
    items = key if key.__class__ is tuple else (key,)
    for item in items:
        kind = item.__class__
        if item is None:
            continue
        if item is Ellipsis:
            axis += len(shape) - sum(map(_dimensions, items))
            continue
        if kind is list:
            item = np.asarray(item)
            kind = np.ndarray
        if kind is np.ndarray and item.dtype.kind in "iub" and item.size:
            is_mask = item.dtype.kind == "b"
            copied.append((int(np.count_nonzero(item)),) if is_mask else item.shape)
        elif kind is not slice and kind not in _INTEGERS:
            return -1
        if kind is not slice:
            for _ in range(_dimensions(item)):
                count //= shape[axis] or 1
                axis += 1
        else:
            axis += 1
    if not copied:
        return -1
    is_one = all(s == copied[0] for s in copied)
    return count * math.prod(copied[0] if is_one else np.broadcast_shapes(*copied))


def _dimensions(item: Any) -> int:
    """Return how many dimensions an item of a key selects from."""
    if item is None or item is Ellipsis:
        return 0
    if item.__class__ is list:
        item = np.asarray(item)
    return item.ndim if item.__class__ is np.ndarray and item.dtype.kind == "b" else 1


_INTEGERS = frozenset((int, np.int64, np.intp))
VIEWING = frozenset((int, np.int64, slice, type(None), type(Ellipsis)))
"""Types of items that take a view, if a key has no others."""
_PLAIN_ITEMS = (int, slice, type(Ellipsis))


def hashable_item(item: Any) -> Any:
    """Return a hashable item of a key: a slice as a tuple, `OTHER` if unsupported."""
    if item.__class__ is int or item is None or item is Ellipsis:
        return item
    if item.__class__ is slice:
        start, stop, step = bounds = (item.start, item.stop, item.step)
        if (
            (start is None or start.__class__ is int)
            and (stop is None or stop.__class__ is int)
            and (step is None or step.__class__ is int)
        ):
            return bounds
    return OTHER


SELECT = Map("select")


@dataclass(slots=True)
class SliceRange:
    """Slice of one dimension: x[start + i*step] for i below count."""

    axis: int
    start: Index
    count: Index
    step: int


@dataclass(slots=True)
class IntegerIndex:
    """Integer index, which removes a dimension."""

    axis: int
    at: Index


@dataclass(slots=True)
class NewAxis:
    """New dimension of size 1 (None in a key)."""


@dataclass(slots=True)
class IndexArray:
    """Array of positions along one dimension."""

    axis: int
    at: Value


Part = SliceRange | IntegerIndex | NewAxis | IndexArray


def get(x: Value, key: Any) -> Value:
    """Return x[key].

    Raises IndexRangeError, DTypeError for float indices, TracerError for masks in a recording.
    """
    simple = hashable_key(key)
    if simple is not None:
        return get_simple(x, key, simple)
    items = key if key.__class__ is tuple else (key,)
    if x.scope is None:
        selected = _select_computed(x, key)
        if selected is not None:
            return selected
        scope = _scope_in(items)
        return _get(x if scope is None else scope.capture(x), key)
    nodes: list[Any] = [getattr(item, "node", None) for item in items]
    arrays = [n for n in nodes if n.__class__ is Value and n.scope is x.scope]
    plain_items = tuple(
        [
            ARRAY if n in arrays else hashable_item(item)
            for n, item in zip(nodes, items, strict=True)
        ]
    )
    return _get(x, key) if OTHER in plain_items else _get_recorded(x, *arrays, key=plain_items)


def get_simple(x: Value, key: Any, simple: tuple[Any, ...]) -> Value:
    """Return x[key] for a key that `hashable_key` has converted to `simple`."""
    copied = None if x.data is None else _copy_small(x, key)
    return _get_simple(x, simple) if copied is None else copied


@cache_trace_in_recording
def _get_recorded(x: Value, *arrays: Value, key: tuple[Any, ...]) -> Value:
    """Return x[key], with `arrays` of the recording in place of `ARRAY` in the key."""
    remaining = iter(arrays)
    return _get(x, tuple([next(remaining) if i is ARRAY else i for i in restore_key(key)]))


def _copy_small(x: Value, key: Any) -> Value | None:
    """Copy a few elements of a computed array at once, if possible.

    Recording costs more, and a loop over x[k] would wait with one operator for each k.  None in a
    recording, for many or all elements (another name of the array), for a key that does not fit,
    and if x is not computed.
    """
    if STATE.scope is not None or STATE.tapes:
        return None
    data = x.current_buffer()
    if data is None:
        return None
    try:
        part = np.asarray(data[key])
    except (IndexError, ValueError):
        return None
    is_all = part.size == data.size
    return None if is_all or part.nbytes > SNAPSHOT_BYTES else leaf(part.copy())


def _select_computed(x: Value, key: Any) -> Value | None:
    """Return x[key] at once for a mask outside of recordings, else None.

    The number of elements has to be known, and finding it reads the mask: the elements of x, which
    are computed along with it, are selected in the same pass.
    """
    if STATE.scope is not None or STATE.tapes:
        return None
    mask = getattr(key, "node", key)
    if mask.__class__ is np.ndarray and mask.dtype.kind == "b" and mask.ndim:
        if mask.shape != x.type.shape[: mask.ndim]:
            return None
        selector = mask
    elif isinstance(mask, Value) and is_mask(mask) and mask.scope is None and mask.type.rank:
        check_mask_fits(x, mask)
        selector = evaluate(mask)
    else:
        return None
    data = x.current_buffer()
    if data is None or data.shape != x.type.shape or data.dtype != x.type.dtype.numpy:
        return None
    if not data.flags.c_contiguous:
        return leaf(data[selector])
    rows = data.reshape(selector.size, *data.shape[selector.ndim :])
    return leaf(rows.take(np.flatnonzero(selector), axis=0))  # faster than data[selector]


def _scope_in(key: tuple[Any, ...]) -> Scope | None:
    """Return the recording whose sizes bound a slice of an array from outside."""
    for item in key:
        if item.__class__ is slice:
            for bound in (item.start, item.stop):
                if isinstance(bound, Number):
                    return bound.scope
    return None


@cache_trace
def _get_simple(x: Value, key: tuple[Any, ...]) -> Value:
    return _get(x, restore_key(key))


def _get(x: Value, key: Any) -> Value:
    truth = sole_boolean(key)
    if truth is not None:
        whole_of = basic_index(x, [NewAxis(), *parse(x, ...)])
        return (
            whole_of if boolean_value(truth) else basic_index(whole_of, parse(whole_of, slice(0)))
        )
    parts = parse(x, key)
    if not any(isinstance(p, IndexArray) for p in parts):
        return basic_index(x, parts)
    arrays = [p for p in parts if isinstance(p, (IndexArray, IntegerIndex))]
    side_by_side = adjacent(parts)
    index = [as_array(p) for p in arrays]
    sliced = basic_index(
        x,
        [
            p if isinstance(p, SliceRange) else _full_range(x, p)
            for p in parts
            if not isinstance(p, NewAxis)
        ],
    )
    axes = [p.axis for p in arrays]
    others = [a for a in range(len(x.type.shape)) if a not in axes]
    first = sum(a < axes[0] for a in others) if side_by_side else 0
    permuted = permute(sliced, (*others[:first], *axes, *others[first:]))
    gathered = take(permuted, index, first)
    middle = max(i.type.rank for i in index)
    return _insert_new_axes(gathered, parts, first, side_by_side, middle)


# Reading


def parse(x: Value, key: Any) -> list[Part]:
    """Parse a subscript: return the effect of each item of a key.

    They are in the order of the result's dimensions.  Raises IndexRangeError for more items than
    dimensions.
    """
    items = [index_item(item) for item in (key if isinstance(key, tuple) else (key,))]
    rank = len(x.type.shape)
    used = sum(_consumed(item) for item in items)
    gaps = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(gaps) > 1:
        raise IndexRangeError("an index has more than one Ellipsis (...)")
    if used > rank:
        raise IndexRangeError(f"{used} indices for {x.type_text}, an array of rank {rank}")
    gap = gaps[0] if gaps else len(items)
    items[gap : gap + 1] = [slice(None)] * (rank - used)
    parts: list[Part] = []
    shape = shape_of(x)
    axis = 0
    for item in items:
        if item is None:
            parts.append(NewAxis())
        elif is_mask(item):
            parts += _mask_positions(x, axis, item)
        else:
            parts.append(_part(x, axis, shape[axis], item))
        axis += _consumed(item)
    return parts


def _consumed(item: Any) -> int:
    """Return how many dimensions an item indexes."""
    if item is None or item is Ellipsis:
        return 0
    return item.type.rank if is_mask(item) else 1


def index_item(item: Any) -> Any:
    """Convert an item to None, Ellipsis, a slice, an integer, a Size or a Value.

    Raises IndexRangeError for anything that is not an index.
    """
    if item is None or item is Ellipsis or isinstance(item, (slice, int, Size)):
        return item if not isinstance(item, bool) else from_host(np.asarray(item))
    if isinstance(item, Scalar):
        return item.node(item.dtype)
    node = getattr(item, "node", item)
    if isinstance(node, Value):
        return node
    if isinstance(item, np.integer):
        return int(item)
    if isinstance(item, (list, range)):
        return from_host(np.asarray(item) if item else np.zeros(0, np.int64))
    if isinstance(item, (np.ndarray, np.generic)) or hasattr(item, "__dlpack__"):
        return operand_of_numpy(item)
    try:
        return operator.index(item)
    except TypeError:
        raise IndexRangeError(
            f"{type(item).__name__} is not an index",
            hint="Use integers, slices, None, Ellipsis, or integer and boolean arrays.",
        ) from None


def is_mask(item: Any) -> bool:
    """Return whether an item of a key is a boolean array."""
    return isinstance(item, Value) and item.type.dtype is bool_


def sole_boolean(key: Any) -> Value | None:
    """Return the boolean of rank 0 that is the whole key, else None.

    An Ellipsis may follow it.  Such a key adds a first dimension of size 1 if it is true and 0 if
    it is false.
    """
    item = key
    if isinstance(key, tuple) and key and (len(key) == 1 or (len(key) == 2 and key[1] is ...)):
        item = key[0]
    if isinstance(item, (list, tuple, slice)) or item is None or getattr(item, "ndim", 0) != 0:
        return None
    index = index_item(item)
    return index if is_mask(index) else None


def boolean_value(item: Value) -> bool:
    """Return a boolean's value; raise TracerError in a recording."""
    return bool(_mask_values(item))


def unknown_count_error(mask: Value) -> TracerError:
    """Return the TracerError for a mask in a recording whose count of elements is needed."""
    mask.scope.check_open(mask.type_text)  # type: ignore[union-attr]
    return TracerError(
        use="indexing with a boolean array",
        value=mask.type_text,
        hint="Use sm.where(mask, x, other): its shape does not depend on values."
        " x[mask] += y and x[mask] = f(x[mask]) may be written, elementwise.",
    )


def _mask_values(item: Value) -> np.ndarray[Any, Any]:
    if item.scope is not None:
        raise unknown_count_error(item)
    return evaluate(item)


def check_mask_fits(x: Value, mask: Value, axis: int = 0) -> None:
    """Raise IndexRangeError unless a mask has the sizes of x's dimensions from `axis`."""
    scope, shape = x.scope or mask.scope, shape_of(mask)
    covered = shape_of(x)[axis : axis + len(shape)]
    fits = len(covered) == len(shape) and all(
        d == n if scope is None else scope.same(d, n) for d, n in zip(covered, shape, strict=True)
    )
    if not fits:
        raise IndexRangeError(f"a mask {mask.type_text} at axis {axis} does not fit {x.type_text}")


def _mask_positions(x: Value, axis: int, item: Value) -> list[Part]:
    """Convert a mask to the positions of its true elements, an array per dimension."""
    mask = _mask_values(item)
    if mask.ndim == 0:
        raise UnsupportedError("indexing with a boolean of rank 0 beside others; use sm.where")
    check_mask_fits(x, item, axis)
    positions_ = np.nonzero(mask)
    return [IndexArray(axis + k, leaf(np.ascontiguousarray(at))) for k, at in enumerate(positions_)]


def _part(x: Value, axis: int, size: Index, item: Any) -> Part:
    if isinstance(item, slice):
        return _slice(x, axis, size, item)
    if isinstance(item, Value):
        if not item.type.dtype.is_integer:
            raise DTypeError(
                f"an index array is {item.type_text}: integers or booleans are indices"
            )
        return IndexArray(axis, resolve_positions(item, size))
    at = as_dim(item)
    scope = _check_inside(at, size)
    return IntegerIndex(axis, at if holds(scope, 0, "<=", at) else add(at, size))


def _check_inside(at: Index, size: Index) -> Scope | None:
    """Return the recording that decided that -size <= at < size, or None.

    Raises IndexRangeError if that does not hold.
    """
    scope = None if isinstance(at, int) and isinstance(size, int) else STATE.scope
    if not holds(scope, mul(size, -1), "<=", at) or not holds(scope, at, "<", size):
        raise IndexRangeError(
            index=text(at if scope is None else scope.hint(at)),
            size=text(size if scope is None else scope.hint(size)),
        )
    return scope


def holds(scope: Scope | None, a: Index, relation: str, b: Index) -> bool:
    """Return whether a < b or a <= b, whichever `relation` names.

    A recording adds a guard if need be.
    """
    if scope is not None:
        return scope.holds(a, relation, b)
    return a < b if relation == "<" else a <= b  # type: ignore[operator]


def _slice(x: Value, axis: int, size: Index, item: slice) -> SliceRange:
    """Apply Python's rule for slices to sizes that may be symbols."""
    step = 1 if item.step is None else as_integer(item.step)
    if step == 0:
        raise ArgumentError(op="slice", argument="step", value=0, expected="another number")
    scope = scope_of(x, (size,))
    low: Index = 0 if step > 0 else -1
    high = size if step > 0 else sub(size, 1)

    def bound(limit: Any, default: Index) -> Index:
        if limit is None:
            return default
        at = as_dim(limit)
        if not holds(scope or scope_of(x, (at,)), 0, "<=", at):
            at = add(at, size)
        if holds(scope, at, "<", low):
            return low
        return high if holds(scope, high, "<", at) else at

    start = bound(item.start, low if step > 0 else high)
    stop = bound(item.stop, high if step > 0 else low)
    span = sub(stop, start) if step > 0 else sub(start, stop)
    if not holds(scope_of(x, (span,)), 0, "<", span):
        return SliceRange(axis, 0, 0, 1)
    count = floordiv(add(span, abs(step) - 1), abs(step))
    return SliceRange(axis, start, count, step if count != 1 else 1)


def basic_index(x: Value, parts: Sequence[Part]) -> Value:
    """Apply slices, integers and new dimensions to x."""
    ranges = [range_of(p) for p in parts if not isinstance(p, NewAxis)]
    reversed_ = [r.axis for r in ranges if r.step == -1 and r.count == shape_of(x)[r.axis]]
    x = flip(x, tuple(reversed_))
    x = take_range(
        x,
        tuple(0 if r.axis in reversed_ else r.start for r in ranges),
        tuple(r.count for r in ranges),
        tuple(1 if r.axis in reversed_ else r.step for r in ranges),
    )
    shape: list[Index] = []
    for p in parts:
        if isinstance(p, NewAxis):
            shape.append(1)
        elif isinstance(p, SliceRange):
            shape.append(p.count)
    return reshape(x, tuple(shape))


def range_of(p: Part) -> SliceRange:
    """Return a slice or an integer as a range."""
    if isinstance(p, IntegerIndex):
        return SliceRange(p.axis, p.at, 1, 1)
    assert isinstance(p, SliceRange)
    return p


def _full_range(x: Value, p: IntegerIndex | IndexArray | Part) -> SliceRange:
    assert not isinstance(p, NewAxis)
    return SliceRange(p.axis, 0, shape_of(x)[p.axis], 1)


def adjacent(parts: Sequence[Part]) -> bool:
    """Return whether integer and array indices are adjacent (NumPy's rule for the result)."""
    indices = [k for k, p in enumerate(parts) if isinstance(p, (IndexArray, IntegerIndex))]
    return indices == list(range(indices[0], indices[-1] + 1))


def as_array(p: IndexArray | IntegerIndex) -> Value:
    """Return positions as an integer value."""
    if isinstance(p, IndexArray):
        return p.at
    if isinstance(p.at, int):
        return constant(p.at, i64)
    scope = STATE.scope
    assert scope is not None
    return scope.record(SizeOf(p.at, i64), ())


def _insert_new_axes(
    x: Value, parts: list[Part], first: int, side_by_side: bool, middle: int
) -> Value:
    """Insert dimensions of size 1 where the key has None."""
    if not any(isinstance(p, NewAxis) for p in parts):
        return x
    shape = list(shape_of(x))
    out: list[Index] = [] if side_by_side else shape[:middle]
    source = iter(shape[:first] + shape[first + middle :])
    is_inserted = False
    for p in parts:
        if isinstance(p, NewAxis):
            out.append(1)
        elif isinstance(p, SliceRange):
            out.append(next(source))
        elif side_by_side and not is_inserted:
            out.extend(shape[first : first + middle])
            is_inserted = True
    return reshape(x, tuple(out))


def resolve_positions(index: Value, size: Index, *, wraps: bool = True) -> Value:
    """Convert index values to positions; negative ones count from the end if `wraps`.

    Values known now are checked.  Outside of a recording they stay constants, which bounds checks
    recognise (`smelt.graph.bounds_checks`).  Values known only later, of a recording or a pending
    array, are checked where they are computed.

    Raises IndexRangeError; under `SMELT_BOUNDS_CHECK` BoundsError, which names the access.
    """
    data = index.current_buffer()
    if data is None and STATE.scope is not None and index.scope is None:
        if not index.shared and is_in_bounds(index, size):
            return cast(index, i64)  # as it is written: what decodes codes may stay an expression
        data = evaluate(index)  # a recording reads its present elements
    if STATE.scope is not None and index.shared:  # every call reads its elements of the time
        index = STATE.scope.capture(index)
    if data is not None and data.size:
        low = _check_known(index, data, size, wraps)
        if STATE.scope is None and index.type.dtype.kind != "uint" and low < 0:
            assert isinstance(size, int)
            signed = data.astype(np.int64)
            return leaf(np.add(signed, size, out=signed, where=signed < 0))
    unsigned = index.type.dtype.kind == "uint"
    index = cast(index, i64)
    if not wraps or unsigned or (data is not None and STATE.scope is None):
        return index
    n = as_array(IntegerIndex(0, size))
    return record(SELECT, (BINARY["less"](index, 0), BINARY["add"](index, n), index))


def _check_known(index: Value, data: np.ndarray[Any, Any], size: Index, wraps: bool) -> int:
    """Return the minimum of known positions after checking that all are in bounds."""
    low, high = range_of_elements(index, data)
    for at in (low, high):
        try:
            if at < 0 and not wraps:
                raise IndexRangeError(index=at, size=text(size))
            _check_inside(at, size)
        except IndexRangeError:
            if not BOUNDS_CHECK.get():
                raise
            raise BoundsError(
                access="gather", index=at, buffer="an array", size=text(size)
            ) from None
    return low


def take(x: Value, index: Sequence[Value], first: int) -> Value:
    """Gather x[:, .., i, j, ..] with adjacent index arrays from axis `first`.

    All positions must be in bounds.
    """
    align("index", *index)
    check_axis_not_empty(x, index, range(first, first + len(index)))
    return record(Gather(first), (x, *index))


def check_axis_not_empty(x: Value, index: Sequence[Value], axes: Sequence[int]) -> None:
    """Raise IndexRangeError if there are positions in one of the axes without elements."""
    counts = [d for i in index for d in shape_of(i)]
    if any(d == 0 for d in counts):
        return
    shape = shape_of(x)
    for size in (shape[a] for a in axes):
        if not holds(x.scope, 0, "<", size):
            if any(not holds(x.scope, 0, "<", d) for d in counts):
                return  # there are no positions
            raise IndexRangeError(f"positions in an empty axis of {x.type_text}")


_FEW = 256
"""Maximum elements for which a pass takes no longer than a look into the cache."""


def range_of_elements(x: Value, data: Buffer) -> tuple[int, int]:
    """Return the smallest and the largest element of integers with elements `data`.

    Programs use the same positions many times, and a pass over them takes as long as a use: the
    ends are cached.
    """
    is_cached = data.size > _FEW and not x.shared
    ends = RANGES.get(x) if is_cached else None
    if ends is None:
        ends = int(data.min()), int(data.max())
        if is_cached:
            RANGES[x] = ends
    return ends
