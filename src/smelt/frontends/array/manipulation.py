"""Manipulation functions of the array API standard: other shapes and orders of the same elements.

None of them moves data by itself: each is an index map that the kernel reading it follows.

>>> import smelt as sm
>>> x = sm.reshape(sm.arange(6), (2, -1))
>>> permute_dims(x, (1, 0)), roll(x, 1, axis=1)
(Array([[0, 3],
       [1, 4],
       [2, 5]]), Array([[2, 0, 1],
       [5, 3, 4]]))
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, AxisError, ShapeError, TracerError
from smelt.frontends.array import views
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.evaluate_pending import realise
from smelt.frontends.array.families import align
from smelt.frontends.array.number import Size, as_dim, dims, is_whole
from smelt.frontends.array.scope import Scope
from smelt.frontends.array.subscript import take
from smelt.frontends.array.trace_cache import replayed
from smelt.frontends.array.value import Value, copied, leaf
from smelt.frontends.array.views import axes_of, axis_of, shape_of, take_range
from smelt.types.expr import Index, add, mod, mul, sub
from smelt.types.tensor import Shape, broadcast_shapes

__all__ = [
    "broadcast_arrays",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "tile",
    "unstack",
]


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Array:
    """The elements in row-major order in another shape, one dimension of which may be -1.

    Raises ShapeError if the number of elements differs.
    """
    node = value(x, "reshape")
    found = views.reshape(node, dims(shape))
    return Array.of(copied(node) if copy and found is node else found)


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """The dimensions in another order.  Raises AxisError if `axes` does not name each once."""
    node = value(x, "permute_dims")
    rank = node.type.rank
    perm = tuple(axis_of(int(a), rank, "permute_dims") for a in axes)
    if sorted(perm) != list(range(rank)):
        raise AxisError(f"permute_dims: {tuple(axes)} does not name each of {rank} dimensions once")
    return Array.of(views.permute(node, perm))


def matrix_transpose(x: Any, /) -> Array:
    """The last two dimensions swapped.  Raises ShapeError for fewer than two."""
    return Array.of(value(x, "matrix_transpose")).mT


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Dimensions moved from `source` to `destination` places.  Raises AxisError."""
    node = value(x, "moveaxis")
    rank = node.type.rank
    sides = [(s,) if isinstance(s, (int, np.integer)) else tuple(s) for s in (source, destination)]
    first, second = (tuple(axis_of(int(a), rank, "moveaxis") for a in side) for side in sides)
    if (
        len(first) != len(second)
        or len(set(first)) != len(first)
        or len(set(second)) != len(second)
    ):
        raise AxisError(f"moveaxis: {source} and {destination} do not pair distinct dimensions")
    perm = [a for a in range(rank) if a not in first]
    for place, a in sorted(zip(second, first, strict=True)):
        perm.insert(place, a)
    return Array.of(views.permute(node, perm))


def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Array:
    """New dimensions of size 1 at `axis` of the result.  Raises AxisError."""
    node = value(x, "expand_dims")
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    places = axes_of(given, node.type.rank + len(given), "expand_dims")
    shape = list(shape_of(node))
    for place in places:
        shape.insert(place, 1)
    return Array.of(views.reshape(node, tuple(shape)))


def squeeze(x: Any, /, axis: int | Sequence[int]) -> Array:
    """Without the dimensions `axis`, which have size 1.  Raises ShapeError, AxisError."""
    node = value(x, "squeeze")
    places = axes_of(axis, node.type.rank, "squeeze")
    shape = shape_of(node)
    for a in places:
        one = shape[a] == 1 or (node.scope is not None and node.scope.same(shape[a], 1))
        if not one:
            raise ShapeError(op="squeeze", operands=node.told, reason=f"axis {a} is not 1")
    rest = tuple(d for a, d in enumerate(shape) if a not in places)
    return Array.of(views.reshape(node, rest))


def broadcast_to(x: Any, /, shape: Any) -> Array:
    """`x` repeated along new dimensions and those of size 1.  Raises ShapeError."""
    return Array.of(views.expand(value(x, "broadcast_to"), dims(shape)))


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """All arrays in their common shape.  Raises ShapeError."""
    nodes = [value(a, "broadcast_arrays") for a in arrays]
    if not nodes:
        return []
    shape = broadcast_shapes(*(t.shape for t in align("broadcast_arrays", *nodes)))
    return [Array.of(views.expand(node, shape)) for node in nodes]


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Array:
    """Arrays one after another along an existing `axis`; flattened first for None.

    Raises ShapeError if another dimension differs, ArgumentError for no arrays.
    """
    nodes = [value(a, "concat") for a in arrays]
    if not nodes:
        raise ArgumentError(op="concat", argument="arrays", value="()", expected="at least one")
    if axis is None:
        nodes = [views.reshape(n, (-1,)) for n in nodes]
        axis = 0
    return Array.of(views.concat(nodes, axis_of(axis, nodes[0].type.rank, "concat")))


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """Arrays of one shape along a new `axis`.  Raises ShapeError, ArgumentError for no arrays."""
    nodes = [value(a, "stack") for a in arrays]
    if not nodes:
        raise ArgumentError(op="stack", argument="arrays", value="()", expected="at least one")
    place = axis_of(axis, nodes[0].type.rank + 1, "stack")
    return Array.of(views.stack(nodes, place))


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The arrays along `axis`, which loses that dimension.  Raises AxisError."""
    node = value(x, "unstack")
    place = axis_of(axis, node.type.rank, "unstack")
    array = Array.of(node)
    lead = (slice(None),) * place
    return tuple(array[(*lead, k)] for k in range(operator.index(array.shape[place])))


def flip(x: Any, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """The elements in reverse order along `axis`, all dimensions for None.  Raises AxisError."""
    node = value(x, "flip")
    return Array.of(views.flip(node, axes_of(axis, node.type.rank, "flip")))


def roll(
    x: Any, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None
) -> Array:
    """Elements moved on by `shift` along `axis`, those beyond the end to the beginning.

    None rolls the flattened array.  Raises AxisError, ArgumentError if the two do not match.
    """
    node = value(x, "roll")
    shape = shape_of(node)
    if axis is None:
        flat = _roll(views.reshape(node, (-1,)), as_dim(shift), 0)
        return Array.of(views.reshape(flat, shape))
    axes = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    shifts = (shift,) * len(axes) if is_whole(shift) else tuple(shift)  # type: ignore[arg-type]
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for a, s in zip(axes, shifts, strict=True):
        node = _roll(node, as_dim(s), axis_of(a, node.type.rank, "roll"))
    return Array.of(node)


@replayed
def _roll(x: Value, steps: Index, axis: int) -> Value:
    shape = shape_of(x)
    n = shape[axis]
    if n == 0:
        return x
    scope = views.scope_of(x, (steps,))
    if scope is None or (isinstance(n, int) and isinstance(steps, int)):
        moved: Index = mod(steps, n)
    else:  # the usual case, a shift below the size, stays symbolic
        ahead = scope.holds(0, "<=", steps)
        if scope.holds(steps if ahead else mul(steps, -1), "<", n):
            moved = steps if ahead else add(n, steps)
        else:
            moved = scope.pin(steps) % scope.pin(n)
        n = scope.canon(n)
        shape = shape_of(x)
    if moved == 0:
        return x
    ones = (1,) * len(shape)
    zero: Shape = (0,) * len(shape)
    cut = sub(n, moved)
    tail = take_range(x, _set(zero, axis, cut), _set(shape, axis, moved), ones)
    return views.concat([tail, take_range(x, zero, _set(shape, axis, cut), ones)], axis)


def _set(shape: Shape, axis: int, size: Index) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Each element `repeats` times along `axis`; the array is flattened first for None.

    `repeats` may be an array of counts, outside `jit`.  Raises AxisError, TracerError.
    """
    node = value(x, "repeat")
    if axis is None:
        node = views.reshape(node, (-1,))
        axis = 0
    place = axis_of(axis, node.type.rank, "repeat")
    if not is_whole(repeats):
        return _repeat_each(node, repeats, place)
    shape = shape_of(node)
    (times,) = dims(repeats)
    if isinstance(times, int) and times < 0:
        raise ArgumentError(op="repeat", argument="repeats", value=times, expected="0 or more")
    wide = views.reshape(node, (*shape[: place + 1], 1, *shape[place + 1 :]))
    wide = views.expand(wide, (*shape[: place + 1], times, *shape[place + 1 :]))
    return Array.of(views.reshape(wide, _set(shape, place, mul(shape[place], times))))


def _repeat_each(x: Value, repeats: Any, axis: int) -> Array:
    counts = value(np.asarray(repeats) if isinstance(repeats, (list, tuple)) else repeats, "repeat")
    if counts.scope is not None:
        raise TracerError(use="repeat", value=counts.told)
    known = realise(counts)
    size = shape_of(x)[axis]
    n = size if isinstance(size, int) else Size(size, _scope(x)).value()
    if known.size not in (1, n) or (known.size and int(known.min()) < 0):
        raise ArgumentError(
            op="repeat",
            argument="repeats",
            value=repr(known),
            expected=f"counts for {n} elements, none negative",
        )
    places = np.repeat(np.arange(n), known.reshape(-1) if known.size != 1 else int(known.item()))
    return Array.of(take(x, [leaf(places)], axis))


def _scope(x: Value) -> Scope:
    """The recording of a value whose shape is symbolic."""
    assert x.scope is not None
    return x.scope


def tile(x: Any, repetitions: Any, /) -> Array:
    """The whole array repeated along each dimension; new dimensions stand in front."""
    node = value(x, "tile")
    times = dims(repetitions)
    shape = shape_of(node)
    rank = max(len(times), len(shape))
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - len(shape)) + shape
    pairs = [d for n in shape for d in (1, n)]
    wide = [d for t, n in zip(times, shape, strict=True) for d in (t, n)]
    found = views.expand(views.reshape(node, tuple(pairs)), tuple(wide))
    return Array.of(
        views.reshape(found, tuple(mul(t, n) for t, n in zip(times, shape, strict=True)))
    )
