"""Lower scatters and searches: writes at computed positions, `searchsorted`, `topk`.

Each position of a scatter takes a row along the inner axes that are not indexed. A write that has
room for one position along its axis is elementwise, and fuses with its readers. All others end a
kernel, in which each written value is computed where it is stored (`smelt.lower.scatter`).

A kernel begins with a copy of the destination. If that is large compared with what is written, and
not a constant fill, torch is called, which may update it in place.

`searchsorted` is an unrolled binary search with torch's own steps:

    first, last = 0, n
    while first < last:                      # bit_length(n) times
        middle = (first + last) // 2
        if row[middle] < x: first = middle + 1
        else: last = middle

Each step is a gather, which fuses with what is around it. The steps are those of torch, so that
unsorted rows, and NaN in them, give the same result as there.

`topk` of few elements is one reduction over the row for each element, as `top_k` of the array front
end. For more elements, or in long rows, torch finds all in about one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of, same
from smelt.frontends.torch.value import V, concat, gather, iota, number, select, wrap_negative
from smelt.ops.combine import COMBINES
from smelt.ops.create import Constant
from smelt.ops.elementwise import Cast
from smelt.ops.index import Scatter
from smelt.ops.view import Expand, Reshape
from smelt.types.dtype import bool_, i32, i64, u8
from smelt.types.expr import Index, evaluate, product, sub
from smelt.types.tensor import Shape, broadcast_shapes


def _searchsorted(
    c: Call,
    rows: V,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: V | None = None,
) -> V:
    """Lower `searchsorted`: each row of `x` in its own sorted row.

    Or all of `x` in the only one.
    """
    if sorter is not None:
        raise UnsupportedError("a search in rows that are sorted by positions")
    if not isinstance(x, V):
        x = number(x, rows.dtype, c.origin)
    return _binary_search(c, rows, x, after=right or side == "right")


def _bucketize(c: Call, x: Any, row: V, *, out_int32: bool = False, right: bool = False) -> V:
    return _searchsorted(c, row, x, out_int32=out_int32, right=right)


def _binary_search(c: Call, rows: V, x: V, *, after: bool) -> V:
    """Return how many elements of a row come before each element of `x`.

    Equal ones do if `after`. The number of steps is fixed by the length of a row: further steps
    would change nothing, and a symbolic length has no known number of steps.
    """
    n = rows.shape[-1]
    if not isinstance(n, int) or not 0 < n < 1 << 30:
        raise UnsupportedError("a search in rows of a symbolic length, or of none")
    if rows.dtype != x.dtype:
        raise UnsupportedError("a search for elements of another type")
    leading_positions = [iota(x.shape, d, i64, c.origin) for d in range(rows.rank - 1)]
    first, last = (number(k, i32, c.origin).expand(x.shape) for k in (0, n))
    for _ in range(n.bit_length()):
        middle = (first + last).map("shr", 1)
        element = gather(rows, 0, *leading_positions, middle.map("min", n - 1).cast(i64))
        stays = element.map("gt" if after else "ge", x)  # false for NaN, which sorts last
        is_open = first.map("lt", last)
        first = select(is_open.map("and", stays.map("not")), middle.map("add", 1), first)
        last = select(is_open.map("and", stays), middle, last)
    return first.cast(c.dtype)


MAX_SHORT_ROW = 1024
"""Elements of a row that stay in the first-level cache."""
MAX_PASSES = (16, 4)
"""Maximum passes that are as fast as torch's search, for 32-bit elements: over rows up to SHORT,
and over longer ones."""


def _top(
    c: Call, x: V, k: Any, dim: int = -1, largest: bool = True, *_sorted: Any, **_more: Any
) -> tuple[V, V]:
    """Return values and positions, always sorted."""
    if not x.rank or not isinstance(k, int) or not k:
        raise UnsupportedError("a number of elements known only at the call, or none")
    a = axis_of(dim, x.rank)
    extent = x.shape[a]
    length = evaluate(extent, c.sizes.hints)
    visits = MAX_PASSES[length > MAX_SHORT_ROW] * 32 // max(32, x.dtype.compute.bits)
    if k > visits:
        raise UnsupportedError("many elements, or of long rows, which torch finds in one visit")
    positions = _first_positions(x, k, a, extent, largest=largest)
    others = [
        positions if d == a else iota(_axis_shape(x, d), d, i64, c.origin) for d in range(x.rank)
    ]
    return gather(x, 0, *others), positions


def _axis_shape(x: V, a: int) -> tuple[Index, ...]:
    return tuple(n if d == a else 1 for d, n in enumerate(x.shape))


def _first_positions(x: V, k: int, a: int, extent: Index, *, largest: bool) -> V:
    keys, at = _keys_and_positions(x, a, extent, largest=largest)
    kind, is_worse = ("max", "lt") if largest else ("min", "gt")
    worst = number(COMBINES[kind].identity(keys.dtype), keys.dtype, x.origin)
    after_all = (1 << (at.dtype.bits - 1)) - 1
    no_position, before_all = (number(n, at.dtype, x.origin) for n in (after_all, -after_all))
    v = keys.reduce(kind, (a,), True)
    chosen = [select(keys.map("eq", v), at, no_position).reduce("min", (a,), True)]
    for _ in range(1, k):
        p = chosen[-1]
        later = keys.map("eq", v).map("and", at.map("gt", p))
        remaining = select(keys.map(is_worse, v).map("or", later), keys, worst)
        best = remaining.reduce(kind, (a,), True)
        free = at.map("gt", select(best.map("eq", v), p, before_all))
        fits = keys.map("eq", best).map("and", free)
        chosen.append(select(fits, at, no_position).reduce("min", (a,), True))
        v = best
    result = concat(chosen, a)
    if x.dtype.is_float:  # undo the shift of NaN positions
        was_nan = result.map("lt", 0) if largest else result.map("ge", extent)
        moved = result.map("add" if largest else "sub", extent)
        result = select(was_nan, moved, result)
    return result.map("max", 0).map("min", sub(extent, 1)).cast(i64)


def _keys_and_positions(x: V, a: int, extent: Index, *, largest: bool) -> tuple[V, V]:
    """Return comparable keys, and positions that order equal ones.

    NaN counts as the greatest: its key is infinite, at a position before all others, or after all
    others where the least elements come first.
    """
    short = isinstance(extent, int) and extent < 1 << 30
    positions = iota(_axis_shape(x, a), a, i32 if short else i64, x.origin)
    keys = x.cast(u8) if x.dtype == bool_ else x.to_compute_type()
    if not x.dtype.is_float:
        return keys, positions
    is_nan = keys.map("isnan")
    moved = positions.map("sub" if largest else "add", extent)
    infinity = number(math.inf, keys.dtype, x.origin)
    return select(is_nan, infinity, keys), select(is_nan, moved, positions)


_MAX_COPY_RATIO = 4
"""Lower a scatter (which copies the destination) only if the destination has at most this many
times as many elements as are written; otherwise torch updates in place."""
_REDUCTIONS = {
    "sum": ("add", "sum"),
    "prod": ("mul", "prod"),
    "amax": ("max", "max"),
    "amin": ("min", "min"),
}
"""Torch's reduction -> (scatter mode, reduction with the same identity)."""


def _scatter_into(c: Call, how: str, x: V, values: V, *index: V) -> V:
    """Scatter `values` at positions along the first axes of `x`.

    Several values may meet at a position: their sum or product is rounded to a half type once.
    """
    if x.dtype.kind == "bool" and how != "put":
        raise UnsupportedError("booleans that are added")
    if not _is_filled(x) and not _is_small_enough_to_copy(c, x, index):
        raise UnsupportedError("a small part of a large array, which torch may write in place")
    start = x.to_compute_type() if how in ("add", "mul") else x
    values = values.cast(x.dtype).cast(start.dtype)
    return start.op(Scatter(how), values, *(a.cast(i64) for a in index)).cast(x.dtype)


def _is_filled(x: V) -> bool:
    """Whether all elements are the same constant."""
    node = x.node
    while isinstance(node.op, (Expand, Reshape)):
        (node,) = node.inputs
    return isinstance(node.op, Constant)


def _is_small_enough_to_copy(c: Call, x: V, index: Sequence[V]) -> bool:
    """Whether enough is written that copying the destination is cheap."""
    index_shape = broadcast_shapes(*(a.shape for a in index))
    written = product((*index_shape, *x.shape[len(index) :]))
    return evaluate(product(x.shape), c.sizes.hints) <= _MAX_COPY_RATIO * evaluate(
        written, c.sizes.hints
    )


def _leading_positions(c: Call, shape: Shape, last: int) -> list[V]:
    """Return index arrays along the first axes of a shape, up to axis `last`."""
    return [
        iota(tuple(n if k == a else 1 for k, n in enumerate(shape[: last + 1])), a, i64, c.origin)
        for a in range(last + 1)
    ]


# ---- rows of elements ----------------------------------------------------------------------------


def _row_positions(c: Call, x: V, dim: int, index: V, values: V) -> list[V]:
    """Return positions of rows along all axes up to `dim`."""
    if not x.rank or index.rank != 1:
        raise UnsupportedError("a single element that is added")
    a = axis_of(dim, x.rank)
    if values.shape != (*x.shape[:a], *index.shape, *x.shape[a + 1 :]):
        raise UnsupportedError("rows of another shape")
    return [*(i.reshape(*i.shape, 1) for i in _leading_positions(c, x.shape, a - 1)), index]


def _index_add(c: Call, x: V, dim: int, index: V, values: V, *, alpha: Any = 1) -> V:
    rows = _row_positions(c, x, dim, index, values)
    return _scatter_into(c, "add", x, values if alpha == 1 else values * alpha, *rows)


def _index_put(
    c: Call, x: V, indices: Sequence[V | None], values: V, accumulate: bool = False
) -> V:
    chosen = [(k, i) for k, i in enumerate(indices) if i is not None]
    first = chosen[0][0]
    if [k for k, _ in chosen] != list(range(first, first + len(chosen))):
        raise UnsupportedError("index arrays that are not side by side")
    if any(i.dtype.kind not in ("int", "uint") or i.dtype.name == "u8" for _, i in chosen):
        raise UnsupportedError("writes by a mask: their number depends on data")
    index = [wrap_negative(i, x.shape[k]) for k, i in chosen]
    rank = max(i.rank for i in index)
    before = [i.reshape(*i.shape, *[1] * rank) for i in _leading_positions(c, x.shape, first - 1)]
    return _scatter_into(c, "add" if accumulate else "put", x, values, *before, *index)


def _axis_positions(c: Call, x: V, a: int, index: V, values: V | None) -> list[V]:
    """Return positions along all axes up to `a`; all axes but `a` count up."""
    rest = (*x.shape[:a], *x.shape[a + 1 :])
    if not x.rank or index.rank != x.rank or (*index.shape[:a], *index.shape[a + 1 :]) != rest:
        raise UnsupportedError("positions beside which others are not written")
    if values is not None and values.shape != index.shape:
        raise UnsupportedError("more values than positions")
    node = index.node
    while isinstance(node.op, Cast):
        (node,) = node.inputs
    shape = index.shape
    if isinstance(node.op, Expand):
        (node,) = node.inputs
        shape = (*[1] * (index.rank - node.type.rank), *node.type.shape)
    if any(n != 1 for n in shape[a + 1 :]):
        raise UnsupportedError("positions of their own for each element")
    before = [i.reshape(*i.shape, 1) for i in _leading_positions(c, x.shape, a - 1)]
    return [*before, V(node, index.origin).reshape(*shape[: a + 1])]


def _scatter(how: str) -> Any:
    """Scatter at several positions along an axis, the same for all inner elements."""

    def lower(c: Call, x: V, dim: int, index: V, value: Any, **_options: Any) -> V:
        values = value if isinstance(value, V) and value.rank else None
        rows = _axis_positions(c, x, axis_of(dim, x.rank), index, values)
        return _scatter_into(
            c, how, x, c.value(value, c.dtype) if values is None else values, *rows
        )

    return lower


def _scatter_reduce(
    c: Call, x: V, dim: int, index: V, values: V, how: str, *, include_self: bool = True
) -> V:
    rows = _axis_positions(c, x, axis_of(dim, x.rank), index, values)
    return _scatter_reduce_rows(c, x, values, rows, how, include_self=include_self)


def _index_reduce(
    c: Call, x: V, dim: int, index: V, values: V, how: str, *, include_self: bool = True
) -> V:
    rows = _row_positions(c, x, dim, index, values)
    return _scatter_reduce_rows(c, x, values, rows, how, include_self=include_self)


def _scatter_reduce_rows(
    c: Call, x: V, values: V, rows: Sequence[V], how: str, *, include_self: bool
) -> V:
    """Scatter-reduce rows; the reduction starts from `x` or from its identity.

    A mean is a sum divided by the number of writes.
    """
    mean = how == "mean" and x.dtype.is_float
    if how not in _REDUCTIONS and not mean:
        raise UnsupportedError(f"{how} of what is written")
    mode, reduction = _REDUCTIONS["sum" if mean else how]
    if not include_self:
        identity = c.number(COMBINES[reduction].identity(x.dtype), x.dtype)
        x = _scatter_into(c, "put", x, identity, *rows)
    result = _scatter_into(c, mode, x.to_compute_type() if mean else x, values, *rows)
    if not mean:
        return result
    indexed = x.shape[: len(rows)]
    one = c.number(1, result.dtype)
    first = (one if include_self else c.number(0, result.dtype)).expand(indexed)
    count = first.op(Scatter("add"), one, *(a.cast(i64) for a in rows))
    count = count.map("max", 1.0).reshape(*indexed, *[1] * (x.rank - len(indexed)))
    return (result / count).cast(x.dtype)


# ---- one position --------------------------------------------------------------------------------


def _elementwise_scatter(rule: Any, several: Any) -> Any:
    """Scatter one position along an axis elementwise; `several` is used for other calls."""

    def lower(c: Call, x: V, dim: int, index: V, value: Any, **options: Any) -> V:
        a = axis_of(dim, x.rank)
        if not x.rank or index.shape != (*x.shape[:a], 1, *x.shape[a + 1 :]):
            return several(c, x, dim, index, value, **options)
        is_target = iota(x.shape, a, i64, c.origin).map("eq", index.cast(i64))
        if isinstance(value, V) and value.rank and value.shape != index.shape:
            raise UnsupportedError("more values than positions")
        c.reads.append(
            (index.node, x.shape[a], (getattr(c.origin, "operator", "a read"), c.origin))
        )
        return rule(is_target, x, c.value(value, c.dtype))

    return lower


def _replace(is_target: V, x: V, value: V) -> V:
    return select(is_target, value, x)


def _accumulate(is_target: V, x: V, value: V) -> V:
    return x + select(is_target, value, number(0, x.dtype))


ROWS = (
    *same("scatter.value scatter.src", _elementwise_scatter(_replace, _scatter("put"))),
    Row("aten.scatter_add.default", _elementwise_scatter(_accumulate, _scatter("add"))),
    Row("aten.scatter_reduce.two", _scatter_reduce),
    Row("aten.index_add.default", _index_add),
    Row("aten.index_reduce.default", _index_reduce),
    Row("aten.index_put.default", _index_put, copies_base=True),
    Row("aten._unsafe_index_put.default", _index_put, in_bounds=True),
    *same("searchsorted.Tensor searchsorted.Scalar", _searchsorted, in_bounds=True),
    *same("bucketize.Tensor bucketize.Scalar", _bucketize, in_bounds=True),
    Row("aten.topk.default", _top),
)
"""Rows of scatters and searches."""
