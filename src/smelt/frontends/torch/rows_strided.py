"""Lower `as_strided`: find which dimensions of a value the strides step along.

`as_strided` says where elements are stored, as overlapping chunks are often written. In a dense
value each offset has one digit for each dimension, the slowest first; a stride that is a multiple
of one dimension's stride steps along that one, and several along the same are windows that slide
over it. Where they carry into the dimension before, both are merged.

    x: [8,128,64], as_strided([8,7,32,64], [8192,1024,64,1])  ->  x[i, 16*c + j, d]

Offsets count from the start of the storage, whatever view of it `as_strided` is called on: before a
program is lowered, `rebase_on_memory` makes it a call on the value that owns the storage.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch

from smelt.errors import UnsupportedError
from smelt.frontends.torch.eager_memory import storages
from smelt.frontends.torch.layout import PARTIAL_VIEWS, memory_order
from smelt.frontends.torch.row import Call, Row
from smelt.frontends.torch.value import V
from smelt.ops.view import Window
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, add, floordiv, mul, nonnegative, product, sub


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


ROWS = (Row("aten.as_strided.default", _as_strided, alias=True),)
"""Rows of views by strides."""
