"""Manipulation functions of the array API standard: shapes and orders of the same elements.

None of them moves data by itself: each is an index map that is applied by the kernel that reads the
result.

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
from smelt.frontends.array.cache_calls import cache_call
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.families import align
from smelt.frontends.array.number import as_dim, dims, is_integral
from smelt.frontends.array.scope import scope_of, shape_of
from smelt.frontends.array.subscript import take
from smelt.frontends.array.trace_cache import cache_trace
from smelt.frontends.array.value import Value, copied, leaf
from smelt.frontends.array.views import axes_of, axis_list, axis_of, pin_dimensions, take_range
from smelt.types.expr import Index, add, mod, mul, sub
from smelt.types.tensor import Shape, broadcast_shapes


@cache_call
def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Array:
    """Return the elements, in row-major order, in another shape.

    Args:
        x: the array.
        shape: an integer or a sequence of integers; one of them may be -1, which is worked out.
        copy: True copies the elements even if the shape is the same.

    Raises ShapeError if the number of elements differs, ArgumentError for a size that is not an
    integer.
    """
    node = value(x, "reshape")
    result = views.reshape(node, dims(shape))
    return Array.of(copied(node) if copy and result is node else result)


@cache_call
def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """Permute the dimensions: dimension k of the result is dimension `axes[k]`.

    Raises AxisError unless `axes` names each dimension once.
    """
    node = value(x, "permute_dims")
    rank = node.type.rank
    perm = tuple(axis_of(a, rank, "permute_dims") for a in axis_list(axes))
    if sorted(perm) != list(range(rank)):
        raise AxisError(f"permute_dims: {axes} does not name each of {rank} dimensions once")
    return Array.of(views.permute(node, perm))


@takes_complex
def matrix_transpose(x: Any, /) -> Array:
    """Swap the last two dimensions.

    Raises ShapeError below rank 2.
    """
    return Array.of(value(x, "matrix_transpose")).mT


@cache_call
def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Move dimensions `source` to positions `destination` of the result.

    Each is an integer or a sequence; the other dimensions keep their order.  Raises AxisError
    unless both name as many different dimensions.
    """
    node = value(x, "moveaxis")
    rank = node.type.rank
    sides = axis_list(source), axis_list(destination)
    first, second = (tuple(axis_of(a, rank, "moveaxis") for a in side) for side in sides)
    if (
        len(first) != len(second)
        or len(set(first)) != len(first)
        or len(set(second)) != len(second)
    ):
        raise AxisError(f"moveaxis: {source} and {destination} do not pair distinct dimensions")
    perm = [a for a in range(rank) if a not in first]
    for position, a in sorted(zip(second, first, strict=True)):
        perm.insert(position, a)
    return Array.of(views.permute(node, perm))


@cache_call
def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Array:
    """Insert dimensions of size 1 at positions `axis` of the result.

    `axis` is an integer or a sequence of integers.  Raises AxisError.
    """
    node = value(x, "expand_dims")
    requested = axis_list(axis)
    new_dims = axes_of(requested, node.type.rank + len(requested), "expand_dims")
    shape = list(shape_of(node))
    for dim in new_dims:
        shape.insert(dim, 1)
    return Array.of(views.reshape(node, tuple(shape)))


@cache_call
def squeeze(x: Any, /, axis: int | Sequence[int] | None = None) -> Array:
    """Remove the dimensions `axis`, which must have size 1; None removes all of size 1.

    Raises ShapeError for another size, AxisError.
    """
    node = value(x, "squeeze")
    shape = shape_of(node)
    if axis is None:
        axis = tuple(a for a, d in enumerate(shape) if d == 1)
    removed = axes_of(axis, node.type.rank, "squeeze")
    for a in removed:
        one = shape[a] == 1 or (node.scope is not None and node.scope.same(shape[a], 1))
        if not one:
            raise ShapeError(op="squeeze", operands=node.type_text, reason=f"axis {a} is not 1")
    rest = tuple(d for a, d in enumerate(shape) if a not in removed)
    return Array.of(views.reshape(node, rest))


@cache_call
def broadcast_to(x: Any, /, shape: Any) -> Array:
    """Broadcast `x` to a shape, repeating it along new dimensions and those of size 1.

    Raises ShapeError if it does not fit.
    """
    return Array.of(views.expand(value(x, "broadcast_to"), dims(shape)))


@takes_complex
def broadcast_arrays(*arrays: Any) -> list[Array]:
    """Broadcast all arrays to their common shape.

    Raises ShapeError if there is none.
    """
    nodes = [value(a, "broadcast_arrays") for a in arrays]
    if not nodes:
        return []
    shape = broadcast_shapes(*(t.shape for t in align("broadcast_arrays", *nodes)))
    return [Array.of(views.expand(node, shape)) for node in nodes]


@takes_complex
def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Array:
    """Concatenate arrays along an existing `axis`; None flattens them first.

    The dtype is the promoted one.  Raises ShapeError if another dimension differs, ArgumentError
    without arrays, AxisError, DTypeError.
    """
    nodes = [value(a, "concat") for a in arrays]
    if not nodes:
        raise ArgumentError(op="concat", argument="arrays", value="()", expected="at least one")
    if axis is None:
        nodes = [views.reshape(n, (-1,)) for n in nodes]
        axis = 0
    return Array.of(views.concat(nodes, axis_of(axis, nodes[0].type.rank, "concat")))


@takes_complex
def stack(arrays: Sequence[Any], /, axis: int = 0) -> Array:
    """Stack arrays of one shape along a new `axis`.

    The dtype is the promoted one.  Raises ShapeError, ArgumentError without arrays, AxisError,
    DTypeError.
    """
    nodes = [value(a, "stack") for a in arrays]
    if not nodes:
        raise ArgumentError(op="stack", argument="arrays", value="()", expected="at least one")
    dim = axis_of(axis, nodes[0].type.rank + 1, "stack")
    return Array.of(views.stack(nodes, dim))


@takes_complex
def unstack(x: Any, /, axis: int = 0) -> tuple[Array, ...]:
    """Split an array along `axis` into arrays without that dimension.

    Inside `jit` the size of the axis becomes a constant of the recording.  Raises AxisError.
    """
    node = value(x, "unstack")
    dim = axis_of(axis, node.type.rank, "unstack")
    array = Array.of(node)
    lead = (slice(None),) * dim
    return tuple(array[(*lead, k)] for k in range(operator.index(array.shape[dim])))


@cache_call
def flip(x: Any, /, axis: int | Sequence[int] | None = None) -> Array:
    """Reverse the order of elements along `axis`; None reverses all dimensions.

    Raises AxisError.
    """
    node = value(x, "flip")
    return Array.of(views.flip(node, axes_of(axis, node.type.rank, "flip")))


@cache_call
def roll(x: Any, /, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array:
    """Shift elements cyclically by `shift` positions along `axis`.

    Several axes take one shift for all or one each; None rolls the flattened array.  Raises
    AxisError, ArgumentError if there is not one shift for each axis.
    """
    node = value(x, "roll")
    shape = shape_of(node)
    if axis is None:
        flat = _roll(views.reshape(node, (-1,)), as_dim(shift), 0)
        return Array.of(views.reshape(flat, shape))
    axes = axis_list(axis)
    several = isinstance(shift, Sequence) and not isinstance(shift, str)
    shifts = tuple(shift) if several else (shift,) * len(axes)  # type: ignore[arg-type]
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for a, s in zip(axes, shifts, strict=True):
        node = _roll(node, as_dim(s), axis_of(a, node.type.rank, "roll"))
    return Array.of(node)


@cache_trace
def _roll(x: Value, steps: Index, axis: int) -> Value:
    shape = shape_of(x)
    n = shape[axis]
    if n == 0:
        return x
    scope = scope_of(x, (steps,))
    if scope is None or (isinstance(n, int) and isinstance(steps, int)):
        offset: Index = mod(steps, n)
    else:  # a shift below the size, the usual case, stays symbolic
        is_forward = scope.holds(0, "<=", steps)
        if scope.holds(steps if is_forward else mul(steps, -1), "<", n):
            offset = steps if is_forward else add(n, steps)
        else:
            offset = scope.pin(steps) % scope.pin(n)
        n = scope.canon(n)
        shape = shape_of(x)
    if offset == 0:
        return x
    ones = (1,) * len(shape)
    zero: Shape = (0,) * len(shape)
    split = sub(n, offset)
    tail = take_range(x, _set(zero, axis, split), _set(shape, axis, offset), ones)
    return views.concat([tail, take_range(x, zero, _set(shape, axis, split), ones)], axis)


def _set(shape: Shape, axis: int, size: Index) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


@takes_complex
def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Array:
    """Repeat each element `repeats` times along `axis`; None flattens first.

    `repeats` is an integer or, outside `jit`, an array with a count for each element.  Raises
    AxisError, ArgumentError for negative or missing counts, TracerError for counts without values.
    """
    node = value(x, "repeat")
    if axis is None:
        node = views.reshape(node, (-1,))
        axis = 0
    dim = axis_of(axis, node.type.rank, "repeat")
    if not is_integral(repeats):
        return _repeat_each(node, repeats, dim)
    shape = shape_of(node)
    (times,) = dims(repeats)
    if isinstance(times, int) and times < 0:
        raise ArgumentError(op="repeat", argument="repeats", value=times, expected="0 or more")
    repeated = views.reshape(node, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    repeated = views.expand(repeated, (*shape[: dim + 1], times, *shape[dim + 1 :]))
    return Array.of(views.reshape(repeated, _set(shape, dim, mul(shape[dim], times))))


def _repeat_each(x: Value, repeats: Any, axis: int) -> Array:
    counts = value(
        np.asarray(repeats) if isinstance(repeats, (list, tuple, range)) else repeats, "repeat"
    )
    if counts.scope is not None:
        raise TracerError(use="repeat", value=counts.type_text)
    values = evaluate(counts)
    (n,) = pin_dimensions(x, (axis,))
    if values.size not in (1, n) or (values.size and int(values.min()) < 0):
        raise ArgumentError.of(
            "repeat", "repeats", values, f"counts for {n} elements, none negative"
        )
    sources = np.repeat(
        np.arange(n), values.reshape(-1) if values.size != 1 else int(values.item())
    )
    return Array.of(take(x, [leaf(sources)], axis))


@takes_complex
def tile(x: Any, repetitions: Any, /) -> Array:
    """Repeat the whole array along each dimension.

    Args:
        x: the array.
        repetitions: an integer, or one for each of the last dimensions.  If there are more of them
            than dimensions, `x` gets leading dimensions of size 1.
    """
    node = value(x, "tile")
    times = dims(repetitions)
    shape = shape_of(node)
    rank = max(len(times), len(shape))
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - len(shape)) + shape
    pairs = [d for n in shape for d in (1, n)]
    target = [d for t, n in zip(times, shape, strict=True) for d in (t, n)]
    expanded = views.expand(views.reshape(node, tuple(pairs)), tuple(target))
    return Array.of(
        views.reshape(expanded, tuple(mul(t, n) for t, n in zip(times, shape, strict=True)))
    )
