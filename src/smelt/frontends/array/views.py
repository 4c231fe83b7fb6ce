"""Views of values: reshape, permute, expand, slice, pad and concatenate.

Sizes may be symbols of a recording; where sizes need to be equal, its scope decides and adds
guards.

>>> from smelt.frontends.array.convert import from_host
>>> x = from_host(np.ones((2, 3, 4)))
>>> reshape(x, (-1, 4)).type, permute(x, (2, 0, 1)).type
(TensorType(dtype=f64, shape=(6, 4)), TensorType(dtype=f64, shape=(4, 2, 3)))
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, AxisError, ShapeError, SmeltError
from smelt.frontends.array.promote import cast, common
from smelt.frontends.array.scope import Scope, scope_of, shape_of
from smelt.frontends.array.trace_cache import cache_trace
from smelt.frontends.array.value import Value, record
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Slice, split_groups
from smelt.types.expr import Index, evaluate, floordiv, product, text
from smelt.types.tensor import Shape, shape_text


def pin_dimensions(x: Value, dims: Sequence[int]) -> tuple[int, ...]:
    """Return dimensions as numbers; the recording is valid for these only."""
    shape: Any = shape_of(x)
    return tuple(shape[p] if x.scope is None else x.scope.pin(shape[p]) for p in dims)


def axis_of(axis: int, rank: int, what: str) -> int:
    """Return an axis counted from 0.

    Raises AxisError, ArgumentError for something that is not an integer.
    """
    axis = as_integer(axis, f"{what}(axis=...)")
    position = axis + rank if axis < 0 else axis
    if not 0 <= position < rank:
        raise AxisError(op=what, axis=axis, ndim=rank)
    return position


def as_integer(x: Any, what: str = "a size or a position") -> int:
    """Return an integer that a user passed.

    Raises ArgumentError for something that is not an integer.
    """
    try:
        return operator.index(x)
    except SmeltError:
        raise
    except TypeError:
        shown = repr(x) if isinstance(x, (float, str)) else type(x).__name__
        raise ArgumentError(f"{what}: {shown} is not an integer") from None


def axes_of(axes: int | Sequence[int] | None, rank: int, what: str) -> tuple[int, ...]:
    """Return axes counted from 0, in increasing order; all of them for None.

    Raises AxisError for an unknown or repeated axis.
    """
    if axes is None:
        return tuple(range(rank))
    requested = axis_list(axes)
    positions = [axis_of(a, rank, what) for a in requested]
    if len(set(positions)) != len(positions):
        raise AxisError(f"{what}: axes {requested} name one axis twice")
    return tuple(sorted(positions))


def axis_list(axes: Any) -> tuple[Any, ...]:
    """Return one axis or a sequence of axes as a tuple."""
    is_array = isinstance(axes, np.ndarray) and axes.ndim == 1
    several = is_array or (isinstance(axes, Sequence) and not isinstance(axes, str))
    return tuple(axes) if several else (axes,)


def permute(x: Value, perm: Sequence[int]) -> Value:
    """Permute dimensions: axis k of the result is axis perm[k] of x."""
    perm = tuple(perm)
    return x if perm == tuple(range(len(perm))) else record(Permute(perm), (x,))


@cache_trace
def reshape(x: Value, shape: Shape) -> Value:
    """Return the elements in another shape; one dimension may be -1.

    Raises ShapeError if the number of elements differs.
    """
    scope = scope_of(x, shape)
    source = shape_of(x)
    if any(isinstance(d, int) and d < -1 for d in shape) or shape.count(-1) > 1:
        raise _unfit("reshape", x, "its elements do not fill the shape", shape, scope)
    if scope is not None:
        _pin_constant_sizes(source, shape, scope)
        source = shape_of(x)
    if -1 in shape:
        shape = _solve(x, source, shape, scope)
    if shape == source:
        return x
    if scope is not None:
        same = scope.same(product(shape), product(source))
        shape = scope.shape(shape)
    else:
        same = product(shape) == product(source)
    if not same:
        raise _unfit("reshape", x, "its elements do not fill the shape", shape, scope)
    return record(Reshape(shape), (x,), scope)


def _unfit(op: str, x: Value, reason: str, shape: Shape, scope: Scope | None) -> ShapeError:
    shape = shape if scope is None else tuple(scope.hint(d) for d in shape)
    return ShapeError.of(op, f"{reason} [{shape_text(shape)}]", x)


def _pin_constant_sizes(source: Shape, shape: Shape, scope: Scope) -> None:
    """Bind sizes of the source that correspond to constants of the new shape.

    For x.reshape(4, -1, 4, 32) of x[b,n,d], called with [4,512,128], b is 4, d is 128, and n is the
    rest.  Other sizes would fit in number but spread each row over several, which is hardly ever
    meant.
    """
    before = [scope.hint(d) for d in source]
    after = [-1 if d == -1 else scope.hint(d) for d in shape]
    total, fixed = math.prod(before), math.prod(d for d in after if d != -1)
    if not total or not fixed or total % fixed:
        return
    after = [total // fixed if d == -1 else d for d in after]
    s = t = 0
    for old, new in split_groups(tuple(before), tuple(after)):
        old_sizes, new_sizes = source[s : s + len(old)], shape[t : t + len(new)]
        s, t = s + len(old), t + len(new)
        are_constants = all(isinstance(d, int) and d != -1 for d in new_sizes)
        if are_constants and any(not isinstance(scope.canon(d), int) for d in old_sizes):
            scope.same(product(old_sizes), product(new_sizes))


def _solve(x: Value, source: Shape, shape: Shape, scope: Scope | None) -> Shape:
    """Return `shape` with its -1 replaced by a size."""
    unknown = shape.index(-1)
    others = product(shape[:unknown] + shape[unknown + 1 :])
    total = product(source)
    empty = others == 0 if scope is None else scope.hint(others) == 0
    fits = not empty and (
        int(evaluate(total, {})) % int(evaluate(others, {})) == 0
        if scope is None
        else scope.divisible(total, others)
    )
    if not fits:
        raise _unfit("reshape", x, "its elements do not fill the shape", shape, scope)
    if scope is not None:
        total, others = scope.canon(total), scope.canon(others)
        shape = scope.shape(shape)
    return (*shape[:unknown], floordiv(total, others), *shape[unknown + 1 :])


def expand(x: Value, shape: Shape) -> Value:
    """Broadcast `x` to a shape.

    Raises ShapeError if it does not fit.
    """
    scope = scope_of(x, shape)
    source = shape_of(x)
    if source == shape:
        return x
    new = len(shape) - len(source)
    if new < 0:
        raise _unfit("broadcast_to", x, "it has more dimensions than the shape", shape, scope)
    for position, (a, b) in enumerate(zip(source, shape[new:], strict=True)):
        if a == 1 or a == b:
            continue
        if scope is not None and scope.hint(a) == 1:
            scope.pin(a)
        elif scope is None or not scope.same(a, b):
            raise ShapeError.of(
                "broadcast_to",
                f"dimension {position - len(source)} is {_number(a, scope)}, not "
                f"{_number(b, scope)}",
                x,
            )
    return record(Expand(scope.shape(shape) if scope is not None else shape), (x,), scope)


def _number(d: Index, scope: Scope | None) -> str:
    return text(d if scope is None else scope.hint(d))


def take_range(x: Value, starts: Shape, counts: Shape, steps: tuple[int, ...]) -> Value:
    """Return x[start + i*step] for i below count, in every dimension.

    All positions must be in bounds.
    """
    if counts == shape_of(x) and all(s == 1 for s in steps):
        return x
    return record(Slice(starts, counts, steps), (x,), scope_of(x, starts, counts))


def flip(x: Value, axes: tuple[int, ...]) -> Value:
    """Reverse the order along the axes."""
    return record(Flip(axes), (x,)) if axes else x


def pad(x: Value, low: Shape, high: Shape, number: float | int | bool) -> Value:
    """Pad `x` with one number; `low` and `high` are widths per dimension."""
    if not any(d != 0 for d in (*low, *high)):
        return x
    return record(Pad(low, high, number), (x,), scope_of(x, low, high))


def concat(values: Sequence[Value], axis: int, what: str = "concat") -> Value:
    """Concatenate arrays of one rank along an axis.

    Raises ShapeError, DTypeError.
    """
    return _concat(*values, axis=axis, what=what)


@cache_trace
def _concat(*values: Value, axis: int, what: str) -> Value:
    return _concat_parts(what, values, values, axis, f"only axis {axis} may differ in size")


def stack(values: Sequence[Value], axis: int) -> Value:
    """Stack arrays of one shape along a new axis.

    Raises ShapeError, DTypeError.
    """
    return _stack(*values, axis=axis)


@cache_trace
def _stack(*values: Value, axis: int) -> Value:
    parts: list[Value] = []
    for x in values:
        shape = shape_of(x)
        parts.append(reshape(x, (*shape[:axis], 1, *shape[axis:])))
    return _concat_parts("stack", values, parts, axis, "their shapes differ")


def _concat_parts(
    what: str, originals: Sequence[Value], parts: Sequence[Value], axis: int, reason: str
) -> Value:
    """Concatenate `parts`; errors name the arrays that the user passed."""
    dtype = common(what, *(v.type.dtype for v in parts))
    parts = [cast(v, dtype) for v in parts]
    scope = next((v.scope for v in parts if v.scope is not None), None)
    first = parts[0]
    for v in parts[1:]:
        fits = len(v.type.shape) == len(first.type.shape)
        for a, (n, m) in enumerate(zip(first.type.shape, v.type.shape)):
            if a != axis and n != m:
                fits = fits and scope is not None and scope.same(n, m)
        if not fits:
            raise ShapeError(
                op=what, operands=", ".join(x.type_text for x in originals), reason=reason
            )
    return first if len(parts) == 1 else record(Concat(axis), tuple(parts), scope)
