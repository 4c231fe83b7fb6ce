"""Products of arrays as contractions in index notation.

A contraction sums the product of two operands over the letters that the result lacks, as in
`bmk,bkn->bmn`.

>>> import numpy as np
>>> from smelt.frontends.array.convert import from_host
>>> a, b = from_host(np.ones((5, 1, 2, 3))), from_host(np.ones((4, 3, 6)))
>>> matmul(a, b).type
TensorType(dtype=f64, shape=(5, 4, 2, 6))
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import lru_cache

from smelt.errors import AxisError, DTypeError, ShapeError
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.promote import cast, common, has_numpys_rules
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.sizes import mismatch
from smelt.frontends.array.trace_cache import cache_trace
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import as_integer, axes_of, axis_list, axis_of, permute, reshape
from smelt.ops.contract import Contract
from smelt.types.dtype import DType, bool_, i64
from smelt.types.expr import Index, axis
from smelt.types.tensor import Shape


@lru_cache(maxsize=1024)
def _operator(left: str, right: str, out: str, dtype: DType | None) -> Contract:
    """Return the contraction operator for letters such as `bmk`, `bkn`, `bmn`."""
    first, second = (tuple(axis(name, 0) for name in side) for side in (left, right))
    return Contract(first, second, tuple(out), dtype=dtype)


def contract(
    what: str, a: Value, b: Value, left: str, right: str, out: str, total: DType | None = None
) -> Value:
    """Multiply two operands and sum over the letters that `out` lacks.

    `total` is the type of the sum of short integers, which are then not cast first. Raises
    ShapeError where sizes of a letter differ, DTypeError for bool.
    """
    if total is None:
        dtype = common(what, a.type.dtype, b.type.dtype)
        if dtype.kind == "bool":
            if has_numpys_rules():
                counts = contract(what, cast(a, i64), cast(b, i64), left, right, out)
                return cast(counts, bool_)
            raise DTypeError(
                f"{what}({a.type_text}, {b.type_text}): products of booleans are not defined"
            )
        a, b = cast(a, dtype), cast(b, dtype)
    sizes: dict[str, Index] = {}
    for letters, x in ((left, a), (right, b)):
        for position, (letter, d) in enumerate(zip(letters, shape_of(x), strict=True)):
            expected = sizes.setdefault(letter, d)
            scope = a.scope or b.scope
            if expected != d and (scope is None or not scope.same(expected, d)):
                both = x is b and letter in left and letter not in out
                summed = left.index(letter) - len(left) if both else None
                raise mismatch(
                    what, (a.type, b.type), position - len(letters), (expected, d), scope, summed
                )
    if not set(left + right) - set(out):
        if total is not None:
            a, b = cast(a, total), cast(b, total)
        return _outer(a, b, left, right, out)
    return record(_operator(left, right, out, total), (a, b))


def _outer(a: Value, b: Value, left: str, right: str, out: str) -> Value:
    """Multiply without summation: each operand is broadcast over the letters that it lacks."""
    sides: list[Value] = []
    for x, letters in ((a, left), (b, right)):
        x = permute(x, sorted(range(len(letters)), key=lambda k: out.index(letters[k])))
        sizes = dict(zip(sorted(letters, key=out.index), shape_of(x), strict=True))
        sides.append(reshape(x, tuple(sizes.get(c, 1) for c in out)))
    return BINARY["multiply"](*sides)


@cache_trace
def matmul(a: Value, b: Value, total: DType | None = None) -> Value:
    """Return the matrix product over the last two dimensions; others broadcast.

    `total` is the type of the sum of short integers. Raises ShapeError, DTypeError for bool.
    """
    if not a.type.shape or not b.type.shape:
        raise ShapeError.of("matmul", "an operand has no dimensions", a, b)
    rows = "m" if a.type.rank > 1 else ""
    columns = "n" if b.type.rank > 1 else ""
    return _stacked("matmul", a, b, rows + "k", "k" + columns, rows + columns, total)


def _stacked(
    what: str, a: Value, b: Value, left: str, right: str, out: str, total: DType | None = None
) -> Value:
    """Contract trailing dimensions with leading dimensions broadcast."""
    free = "".join(c for c in string.ascii_letters if c not in "mnk")
    rank = max(a.type.rank - len(left), b.type.rank - len(right))
    letters = free[:rank]
    sides: list[str] = []
    values: list[Value] = []
    scope = a.scope or b.scope
    if scope is not None:  # decide which of them broadcast; errors are raised below
        stacks = a.type.shape[: a.type.rank - len(left)], b.type.shape[: b.type.rank - len(right)]
        for d, e in zip(reversed(stacks[0]), reversed(stacks[1]), strict=False):
            scope.broadcast_dim(d, e)
    for x, tail in ((a, left), (b, right)):
        stack = shape_of(x)[: x.type.rank - len(tail)]
        x, used = _without_ones(x, stack, letters[rank - len(stack) :])
        sides.append(used)
        values.append(x)
    batch = "".join(c for c in letters if c in sides[0] + sides[1])
    spec = sides[0] + left, sides[1] + right, batch + out
    result = contract(what, values[0], values[1], *spec, total)
    if batch == letters:
        return result
    shape = list(shape_of(result))
    for position, letter in enumerate(letters):
        if letter not in batch:
            shape.insert(position, 1)
    return reshape(result, tuple(shape))


def _without_ones(x: Value, stack: Shape, letters: str) -> tuple[Value, str]:
    """Drop leading dimensions of size 1, which the other operand's replace."""
    larger = [k for k, d in enumerate(stack) if d != 1]
    if len(larger) == len(stack):
        return x, letters
    shape = shape_of(x)
    x = reshape(x, (*(stack[k] for k in larger), *shape[len(stack) :]))
    return x, "".join(letters[k] for k in larger)


def tensordot(a: Value, b: Value, axes: int | tuple[Sequence[int], Sequence[int]]) -> Value:
    """Sum products over pairs of axes: the last and first `axes`, or two sequences.

    Raises ShapeError, AxisError, DTypeError for bool.
    """
    rank_a, rank_b = a.type.rank, b.type.rank
    pair = axis_list(axes)
    if len(pair) == 2:
        first, second = (list(axis_list(side)) for side in pair)
    else:
        count = as_integer(axes, "tensordot(axes=...)")
        if count > min(rank_a, rank_b):
            raise AxisError(op="tensordot", axis=count - 1, ndim=min(rank_a, rank_b))
        first, second = list(range(rank_a - count, rank_a)), list(range(count))
    first = [axis_of(i, rank_a, "tensordot") for i in first]
    second = [axis_of(i, rank_b, "tensordot") for i in second]
    axes_of(first, rank_a, "tensordot")
    axes_of(second, rank_b, "tensordot")
    if len(first) != len(second):
        raise ShapeError.of("tensordot", f"{len(first)} axes are paired with {len(second)}", a, b)
    left = list(string.ascii_lowercase[:rank_a])
    right = list(string.ascii_uppercase[:rank_b])
    for i, j in zip(first, second, strict=True):
        right[j] = left[i]
    out = [c for i, c in enumerate(left) if i not in first]
    out += [c for j, c in enumerate(right) if j not in second]
    return contract("tensordot", a, b, "".join(left), "".join(right), "".join(out))


def vecdot(a: Value, b: Value, axis: int) -> Value:
    """Sum products along one axis, counted from the end; others broadcast.

    Raises ShapeError, AxisError, DTypeError for bool.
    """
    if as_integer(axis, "vecdot(axis=...)") >= 0 or not a.type.shape or not b.type.shape:
        raise ShapeError.of("vecdot", f"axis {axis} is not counted from the end of both", a, b)
    transposed: list[Value] = []
    for x in (a, b):
        rank = x.type.rank
        dim = axis_of(axis, rank, "vecdot")
        transposed.append(permute(x, [*(i for i in range(rank) if i != dim), dim]))
    return _stacked("vecdot", transposed[0], transposed[1], "k", "k", "")
