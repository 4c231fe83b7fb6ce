"""Lower views, concatenation, padding and other data movement, and constant sources.

`as_strided` says where elements are stored, as overlapping chunks are often written. Its rule finds
which dimensions of a value the strides step along. In a dense value each offset has one digit for
each dimension, the slowest first; a stride that is a multiple of one dimension's stride steps along
that one, and several along the same are windows that slide over it. Where they carry into the
dimension before, both are merged.

    x: [8,128,64], as_strided([8,7,32,64], [8192,1024,64,1])  ->  x[i, 16*c + j, d]

Offsets count from the start of the storage, whatever view of it `as_strided` is called on: before a
program is lowered, `rebase_on_memory` makes it a call on the value that owns the storage.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import torch

from smelt.errors import UnsupportedError
from smelt.frontends.torch.fake_facts import storages
from smelt.frontends.torch.layout import PARTIAL_VIEWS, memory_order
from smelt.frontends.torch.row import Call, Row, axes_of, axis_of, same
from smelt.frontends.torch.value import V, concat, iota, is_zeros, select
from smelt.ops.view import Expand, Window
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f64, i64
from smelt.types.expr import (
    Expr,
    Index,
    add,
    floordiv,
    maximum,
    mod,
    mul,
    nonnegative,
    product,
    sub,
)
from smelt.types.tensor import Shape


def _reshape(c: Call, x: V, *_shape: Any) -> V:
    shape = c.shape
    if product(shape) == x.type.elements:
        return x.reshape(*shape)
    if (respelled := _respell_dims(x.shape, shape)) is not None:
        return x.respell(respelled).reshape(*shape)
    if (respelled := _respell_dims(shape, x.shape)) is not None:
        return x.reshape(*respelled).respell(shape)
    tail = 0  # trailing dimensions that are equal; the sizes before are spelt otherwise
    while tail < min(x.rank, len(shape)) and x.shape[-1 - tail] == shape[-1 - tail]:
        tail += 1
    first, rest = x.shape[: x.rank - tail], x.shape[x.rank - tail :]
    flat = x.reshape(product(first), *rest)
    return flat.narrow(0, 0, product(shape[: len(shape) - tail])).reshape(*shape)


def _respell_dims(dims: Shape, parts: Shape) -> Shape | None:
    """Respell each dimension of `dims` as a product of consecutive dimensions of `parts`.

    n is spelt 7 * (n // 7) where the parts are n // 7 and 7. That is at most n, so in views, where
    all of them multiply to the same number, it is n. None if they do not line up.
    """
    respelled: list[Index] = []
    start = 0
    for n in dims:
        for end in range(start, len(parts) + 1):
            group = parts[start:end]
            size = product(group)
            if size == n or any(d != 0 and size == mul(d, floordiv(n, d)) for d in group):
                break
        else:
            return None
        respelled.append(size)
        start = end
    return tuple(respelled) if product(respelled) == product(parts) else None


def _expand(c: Call, x: V, _size: Any, *, implicit: bool = False) -> V:
    """Expand, even if nothing is repeated.

    In another trace, whose batch is not 1, elements are repeated.
    """
    return x.op(Expand(c.shape))


def _position(c: Call, x: V, a: int, position: Any) -> Index:
    """Return a position along an axis, counted from the front."""
    counted = c.sizes.require_nonnegative(position)
    return add(x.shape[a], counted) if c.sizes.is_negative(counted) else counted


def _start(c: Call, x: V, a: int, start: Any) -> Index:
    """Return the start of a slice, counted from the front, clamped to the axis."""
    first = _position(c, x, a, 0 if start is None else start)
    return 0 if c.sizes.is_negative(first) else first


def _slice(c: Call, x: V, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> V:
    a = axis_of(dim, x.rank)
    count = c.shape[a]
    if count == x.shape[a] and step == 1:
        return x
    if count == 0:
        return x.narrow(a, 0, 0)
    first = _start(c, x, a, start)
    rest = sub(x.shape[a], count)
    if step == 1 and first == maximum(rest, 0) and c.sizes.is_nonnegative(rest):
        first = rest  # a slice never takes more than there is
    return x.narrow(a, first, count, step)


def _transpose(c: Call, x: V, a: int, b: int) -> V:
    return x.transpose(axis_of(a, x.rank), axis_of(b, x.rank)) if x.rank else x


def _select(c: Call, x: V, dim: int, position: Any) -> V:
    a = axis_of(dim, x.rank)
    return x.pick(a, _position(c, x, a, position))


def _unbind(c: Call, x: V, dim: int = 0) -> tuple[V, ...]:
    return tuple(x.pick(axis_of(dim, x.rank), k) for k in range(len(c.out)))


def _flip(c: Call, x: V, dims: Sequence[int]) -> V:
    return x.flip(*axes_of(list(dims), x.rank)) if dims else x


def _split(c: Call, x: V, _sizes: Any, dim: int = 0) -> tuple[V, ...]:
    """Split an axis into consecutive parts of the lengths that torch reports."""
    a = axis_of(dim, x.rank)
    parts: list[V] = []
    start: Index = 0
    for part in c.out:
        count = c.sizes.index(part.shape[a])
        parts.append(x.narrow(a, start, count))
        start = add(start, count)
    return tuple(parts)


def _diagonal(c: Call, x: V, offset: int = 0, dim1: int = 0, dim2: int = 1) -> V:
    a, b = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    rest = [k for k in range(x.rank) if k not in (a, b)]
    x = x.permute(*rest, a, b)
    rows, columns = x.shape[-2:]
    count = c.shape[-1]
    if not isinstance(rows, int) or not isinstance(columns, int) or not isinstance(count, int):
        raise UnsupportedError("the diagonal of a matrix of symbolic size")
    flat = x.reshape(*x.shape[:-2], rows * columns)
    start = offset if offset >= 0 else -offset * columns
    return flat.narrow(flat.rank - 1, start, count, columns + 1)


def _cat(c: Call, parts: Sequence[V], dim: int = 0) -> V:
    a = axis_of(dim, len(c.shape))
    full = [p for p in parts if p.rank == len(c.shape)]
    shapes = [(*c.shape[:a], p.shape[a], *c.shape[a + 1 :]) for p in full]
    return concat(
        [c.sizes.respell(p.cast(c.dtype), s) for p, s in zip(full, shapes, strict=True)], a
    )


def _stack(c: Call, parts: Sequence[V], dim: int = 0) -> V:
    a = axis_of(dim, len(c.shape))
    shape = (*c.shape[:a], *c.shape[a + 1 :])
    return concat([c.sizes.respell(p.cast(c.dtype), shape).unsqueeze(a) for p in parts], a)


def _repeat(c: Call, x: V, repeats: Sequence[Any]) -> V:
    new = len(repeats) - x.rank
    shape = (*[1] * new, *x.shape)
    inner: list[Index] = []
    for n in shape:
        inner += [1, n]
    outer: list[Index] = []
    for r, n in zip(repeats, shape, strict=True):
        outer += [r, n]
    return x.reshape(*inner).expand(tuple(outer)).reshape(*map(mul, repeats, shape))


def _split_padding(c: Call, n: Index) -> tuple[Index, Index]:
    """Return what a padding removes and what it adds.

    The tracer adds no guard of its sign.
    """
    negated = sub(0, n)
    if nonnegative(n) or nonnegative(negated):
        c.sizes.require_nonnegative(n)
    return maximum(negated, 0), maximum(n, 0)


def _pad(c: Call, x: V, pad: Sequence[Any], value: Any = 0) -> V:
    low: list[Index] = [0] * x.rank
    high: list[Index] = [0] * x.rank
    for k in range(len(pad) // 2):
        low[x.rank - 1 - k], high[x.rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    for a in range(x.rank):
        (first, low[a]), (last, high[a]) = _split_padding(c, low[a]), _split_padding(c, high[a])
        x = x.narrow(a, first, sub(x.shape[a], add(first, last)))
    number = c.number(value, x.dtype).node.op.attributes()["value"]
    return x.pad(tuple(low), tuple(high), number)


def _roll(c: Call, x: V, shifts: Sequence[int], dims: Sequence[int] = ()) -> V:
    flat = not dims
    shape = x.shape
    if flat:
        x, dims = x.reshape(x.type.elements), (0,)
    for shift, dim in zip(shifts, dims, strict=True):
        a = axis_of(dim, x.rank)
        n = x.shape[a]
        if n == 0:
            continue
        negated = sub(0, c.sizes.require_nonnegative(shift))
        is_backward = nonnegative(negated)
        if not (is_backward or nonnegative(shift)):
            raise UnsupportedError("a roll to either side")
        k = mod(negated if is_backward else shift, n)
        first = k if is_backward else sub(n, k)  # the position that moves to the front
        if k != 0:
            x = concat([x.narrow(a, first, sub(n, first)), x.narrow(a, 0, first)], a)
    return x.reshape(*shape) if flat else x


def _select_scatter(c: Call, x: V, y: V, dim: int, position: Any) -> V:
    a = axis_of(dim, x.rank)
    if is_zeros(x):
        return _pad_to(y.unsqueeze(a), x, a, _position(c, x, a, position))
    index = iota(x.shape, a, i64, c.origin)
    mask = index.map("eq", c.number(_position(c, x, a, position), i64))
    return select(mask, y.unsqueeze(a).expand(x.shape), x)


def _diagonal_scatter(c: Call, x: V, y: V, offset: int = 0, dim1: int = 0, dim2: int = 1) -> V:
    a, b = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    order = [*(k for k in range(x.rank) if k not in (a, b)), a, b]
    x = x.permute(*order)
    rows, columns = x.shape[-2:]
    count = y.shape[-1]
    if not isinstance(rows, int) or not isinstance(columns, int) or not isinstance(count, int):
        raise UnsupportedError("the diagonal of a matrix of symbolic size")
    last = x.rank - 2
    rest = (rows if offset >= 0 else columns) - count
    y = y.pad((0,) * y.rank, (*[0] * last, rest), x.dtype.numpy.type(0).item())
    y = y.unsqueeze(last + 1 if offset >= 0 else last).expand(x.shape)
    index = (iota(x.shape, last, i64, c.origin) + offset).map("eq", iota(x.shape, last + 1, i64))
    return select(index, y, x).permute(*(order.index(k) for k in range(x.rank)))


def _pad_to(y: V, x: V, a: int, first: Index) -> V:
    """Pad `y` with zeros along an axis, from `first` on, to the size of `x`."""
    low: list[Index] = [0] * x.rank
    high = list(low)
    low[a], high[a] = first, sub(sub(x.shape[a], first), y.shape[a])
    return y.pad(tuple(low), tuple(high), x.dtype.numpy.type(0).item())


def _slice_scatter(
    c: Call, x: V, y: V, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> V:
    a = axis_of(dim, x.rank)
    first, count = _start(c, x, a, start), y.shape[a]
    if count == x.shape[a]:
        return y
    if step != 1:
        return _strided_scatter(c, x, y, a, (first, step))
    if is_zeros(x):
        return _pad_to(y, x, a, first)
    after = add(first, count)
    parts = [x.narrow(a, 0, first)] if first != 0 else []
    parts.append(y)
    if after != x.shape[a]:
        parts.append(x.narrow(a, after, sub(x.shape[a], after)))
    return concat(parts, a)


def _strided_scatter(c: Call, x: V, y: V, a: int, comb: tuple[Index, int]) -> V:
    """Write `y` at every `step`-th position of an axis: spread by zeros, then selected."""
    (first, step), n, count = comb, x.shape[a], y.shape[a]
    zeros: list[Index] = [0] * y.rank
    spaced = y.unsqueeze(a + 1).pad(
        (0,) * (y.rank + 1), (*zeros[: a + 1], step - 1, *zeros[a + 1 :]), 0
    )
    spread = spaced.reshape(*y.shape[:a], mul(count, step), *y.shape[a + 1 :])
    low, high = (*zeros[:a], first, *zeros[a + 1 :]), (*zeros[:a], n, *zeros[a + 1 :])
    spread = spread.pad(low, high, 0).narrow(a, 0, n)
    distance = iota(x.shape, a, i64, c.origin) - c.number(first, i64)
    mask = distance.map("mod", step).map("eq", 0).map("and", distance.map("ge", 0))
    return select(mask.map("and", distance.map("lt", c.number(mul(count, step), i64))), spread, x)


def _triangle(keep: str) -> Any:
    """Keep one side of a diagonal, with zeros on the other."""

    def lower(c: Call, x: V, diagonal: int = 0) -> V:
        rows = iota(x.shape, x.rank - 2, i64, c.origin)
        columns = iota(x.shape, x.rank - 1, i64, c.origin)
        return select((columns - rows).map(keep, diagonal), x, c.number(0, x.dtype))

    return lower


# ---- sources -------------------------------------------------------------------------------------


def _fill_like(value: Any) -> Any:
    return lambda c, *_more, **_options: c.number(value, c.dtype).expand(c.shape)


def _full_like(c: Call, _x: None, value: Any, **_options: Any) -> V:
    return c.value(value, c.dtype).expand(c.shape)


def _arange(c: Call, start: Any, end: Any, step: Any = 1, **_options: Any) -> V:
    steps = iota(c.shape, 0, c.dtype, c.origin)
    if c.dtype.is_float and not (isinstance(start, (int, Expr)) and step == 1):
        steps = iota(c.shape, 0, f64, c.origin)
        return (steps * step + c.number(start, steps.dtype)).cast(c.dtype)
    scaled = steps if step == 1 else steps * step
    return scaled if start == 0 else scaled + start


def _eye(c: Call, *_more: Any, **_options: Any) -> V:
    rows, columns = (iota(c.shape, a, i64, c.origin) for a in (0, 1))
    return rows.map("eq", columns).cast(c.dtype)


_ZEROS = """
    zeros.default zeros_like.default new_zeros.default empty_like.default new_empty.default
    new_empty_strided.default empty.memory_format _efficientzerotensor.default
"""
"""Sources of zeros, or of memory whose elements do not matter."""


def rebase_on_memory(graph: torch.fx.Graph) -> None:
    """Rebase views by strides on the value whose storage they show.

    A view between the two might be computed with its own elements alone.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        x: Any = node.args[0]
        base: Any = _base_value(x)
        if base is x:
            continue
        arguments = dict(zip(("size", "stride", "storage_offset"), node.args[1:], strict=False))
        arguments |= node.kwargs
        start = arguments.get("storage_offset")
        start = x.meta["val"].storage_offset() if start is None else start
        node.args, node.kwargs = (base, arguments["size"], arguments["stride"], start), {}


def _base_value(x: Any) -> Any:
    """Return the value of which a view shows a part.

    For nested parts the outermost value; the view itself if it is not part.
    """
    base = x
    while x.op == "call_function":
        called: Any = x.args[0] if x.target is operator.getitem else x
        before = called.args[0] if called.args else None
        if not isinstance(before, torch.fx.Node) or not _share_storage(x, before):
            return base
        if str(called.target) in PARTIAL_VIEWS and before.op == "call_function":
            base = before
        x = before
    return base


def _share_storage(x: torch.fx.Node, y: torch.fx.Node) -> bool:
    pair = [t for t in (x.meta.get("val"), y.meta.get("val")) if isinstance(t, torch.Tensor)]
    shared = {memory for t in pair for memory, _ in storages(t)}
    return len(pair) == 2 and len(shared) == 1


@dataclass(slots=True)
class _Level:
    """A dimension of a value in memory order, with the steps along it."""

    extent: Index
    first: int = 0
    walks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Dimensions of the result, each with its step."""


def _as_strided(c: Call, x: V, _shape: Any, strides: Sequence[Any], start: Any = None) -> V:
    order = memory_order(c.fakes[0])
    if order is None:
        raise UnsupportedError("a view by strides of memory with gaps")
    offset = 0 if start is None else c.sizes.index(start - c.fakes[0].storage_offset())
    if not isinstance(offset, int) or offset < 0:
        raise UnsupportedError("a view by strides from a symbolic place")
    x, shape = x.permute(*order), c.shape
    steps = [c.sizes.index(c.fakes[0].stride(a)) for a in order]
    moving = [k for k, (n, s) in enumerate(zip(shape, strides, strict=True)) if n != 1 and s != 0]
    assigned = _assign_strides(x.shape, steps, {k: c.index(strides[k]) for k in moving}, offset)
    levels = _merge_levels(assigned, shape)
    x, positions = _window_levels(x.reshape(*[a.extent for a in levels]), levels, shape)
    x = x.permute(*[positions.index(k) for k in moving])
    x = x.reshape(*[n if k in moving else 1 for k, n in enumerate(shape)])
    return x.expand(shape)


def _assign_strides(
    shape: Sequence[Index], steps: Sequence[Index], strides: dict[int, Index], offset: int
) -> list[_Level]:
    """Assign each stride to the slowest dimension whose stride divides it.

    Also splits the offset among the dimensions. Raises UnsupportedError if a stride fits none.
    """
    levels = [_Level(n) for n in shape]
    steps = [product(shape[k + 1 :]) if n == 1 else steps[k] for k, n in enumerate(shape)]
    for k, stride in strides.items():
        for level, step in zip(levels, steps, strict=True):
            times = floordiv(stride, step) if step != 0 else 0
            if isinstance(times, int) and times > 0 and mul(step, times) == stride:
                level.walks.append((k, times))
                break
        else:
            raise UnsupportedError("a stride that is not a multiple of one dimension's")
    for level, step in zip(levels, steps, strict=True):
        if offset and not isinstance(step, int):
            raise UnsupportedError("a view by strides from a place among symbolic sizes")
        level.first, offset = divmod(offset, step) if isinstance(step, int) else (0, 0)
    return levels


def _reach(level: _Level, shape: Sequence[Index]) -> Index:
    """Return how many positions from the first one on are covered."""
    reach: Index = 1
    for k, step in level.walks:
        reach = add(reach, mul(sub(shape[k], 1), step))
    return reach


def _merge_levels(levels: list[_Level], shape: Sequence[Index]) -> list[_Level]:
    """Merge a dimension with the one before it where steps would leave it."""
    merged: list[_Level] = []
    remaining = list(levels)
    while remaining:
        inner = remaining.pop()
        remaining_extent = sub(inner.extent, add(inner.first, _reach(inner, shape)))
        if nonnegative(remaining_extent):
            merged.insert(0, inner)
            continue
        if not remaining:
            raise UnsupportedError("a view by strides of places that are not all of the value")
        outer, n = remaining.pop(), inner.extent
        if not isinstance(n, int) and (outer.walks or outer.first):
            raise UnsupportedError("a view by strides along several dimensions of symbolic sizes")
        times = n if isinstance(n, int) else 0
        walks = [(k, step * times) for k, step in outer.walks]
        first = outer.first * times + inner.first
        remaining.append(_Level(mul(outer.extent, n), first, walks + inner.walks))
    return merged


def _window_levels(x: V, levels: list[_Level], shape: Sequence[Index]) -> tuple[V, list[int]]:
    """Slice and window each level; return the value and the result dimension of each axis."""
    positions = [-1 - k for k in range(len(levels))]
    for level, along in enumerate(levels):
        a = positions.index(-1 - level)
        x = x.narrow(a, along.first, _reach(along, shape))
        if not along.walks:
            x = x.pick(a, 0)
            positions.pop(a)
            continue
        rest = sorted(along.walks, key=lambda w: (-w[1], isinstance(shape[w[0]], int)))
        while len(rest) > 1:
            (k, step), *rest = rest
            extent = _reach(_Level(0, 0, rest), shape)
            if not isinstance(extent, int):
                raise UnsupportedError("windows of a symbolic size")
            x = x.op(Window(a, extent, step, 1))
            positions[a] = k
            positions.append(-1)
            a = x.rank - 1
        ((positions[a], step),) = rest
        x = x.narrow(a, 0, shape[positions[a]], step)
    return x, positions


_RESHAPES = """
    view.default _unsafe_view.default reshape.default squeeze.default squeeze.dim squeeze.dims
"""
_ALIASES = (
    *same(_RESHAPES, _reshape),
    *same("alias.default detach.default", lambda c, x: x),
    *same("split.Tensor split_with_sizes.default", _split),
    Row("aten.unsqueeze.default", lambda c, x, dim: x.unsqueeze(dim)),
    Row("aten.permute.default", lambda c, x, dims: x.permute(*(axis_of(d, x.rank) for d in dims))),
    Row("aten.transpose.int", _transpose),
    Row("aten.t.default", lambda c, x: x.permute(1, 0) if x.rank == 2 else x),
    Row("aten.expand.default", _expand),
    Row("aten.slice.Tensor", _slice),
    Row("aten.select.int", _select),
    Row("aten.unbind.int", _unbind),
    Row("aten.diagonal.default", _diagonal),
    Row("aten.as_strided.default", _as_strided),
)
_SOURCES = (
    *same(_ZEROS, _fill_like(0)),
    *same("ones.default ones_like.default new_ones.default", _fill_like(1)),
    *same("fill.Scalar full_like.default", _full_like),
    *same("arange.start_step arange.start", _arange),
    *same("eye.default eye.m", _eye),
    Row("aten.full.default", lambda c, _, value, **_o: c.number(value, c.dtype).expand(c.shape)),
    Row("aten.scalar_tensor.default", lambda c, value, **_: c.number(value, c.dtype)),
    Row("aten.arange.default", lambda c, end, **_: iota(c.shape, 0, c.dtype, c.origin)),
)
ROWS = (
    *(replace(row, alias=True) for row in _ALIASES),
    *(replace(row, source=True) for row in _SOURCES),
    Row("aten.flip.default", _flip),
    Row("aten.cat.default", _cat),
    Row("aten.stack.default", _stack),
    Row("aten.repeat.default", _repeat),
    Row("aten.constant_pad_nd.default", _pad),
    Row("aten.roll.default", _roll),
    Row("aten.select_scatter.default", _select_scatter),
    Row("aten.slice_scatter.default", _slice_scatter),
    Row("aten.diagonal_scatter.default", _diagonal_scatter),
    Row("aten.tril.default", _triangle("le")),
    Row("aten.triu.default", _triangle("ge")),
    Row("aten.lift_fresh_copy.default", lambda c, x: x),
)
"""Rows of views, data movement and sources."""
