"""Views of memory by strides: which dimensions of a value the places belong to.

`as_strided` says where elements lie, as chunks that overlap are often written.  A value that lies
without gaps has a digit for each of its dimensions in every place, the slowest first; a stride that
is a multiple of one dimension's step walks along that one, and several along the same are windows
that slide over it.  Where they carry into the dimension before, both are one.

    x: [8,128,64], as_strided([8,7,32,64], [8192,1024,64,1])  ->  x[i, 16*c + j, d]

It counts from the start of the memory, whatever view of that it is called on: before a program is
lowered, `on_memory` has it called on the value whose memory that is.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch

from smelt.dataclass import dataclass
from smelt.errors import UnsupportedError
from smelt.frontends.torch.eager_memory import storages
from smelt.frontends.torch.layout import PARTS, memory_order
from smelt.frontends.torch.row import Call, Row
from smelt.frontends.torch.value import V
from smelt.ops.view import Window
from smelt.types.expr import Index, add, floordiv, mul, nonnegative, product, sub

__all__ = ["ROWS", "on_memory"]


def on_memory(graph: torch.fx.Graph) -> None:
    """Has views by strides be views of the values whose memory they show: of a view in between its
    own elements alone may be made."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        x: Any = node.args[0]
        base: Any = _whole(x)
        if base is x:
            continue
        told = dict(zip(("size", "stride", "storage_offset"), node.args[1:], strict=False))
        told |= node.kwargs
        start = told.get("storage_offset")
        start = x.meta["val"].storage_offset() if start is None else start
        node.args, node.kwargs = (base, told["size"], told["stride"], start), {}


def _whole(x: Any) -> Any:
    """The value that a view shows a part of; of parts of parts the first, else the view itself."""
    found = x
    while x.op == "call_function":
        called: Any = x.args[0] if x.target is operator.getitem else x
        before = called.args[0] if called.args else None
        if not isinstance(before, torch.fx.Node) or not _same_memory(x, before):
            return found
        if str(called.target) in PARTS and before.op == "call_function":
            found = before
        x = before
    return found


def _same_memory(x: torch.fx.Node, y: torch.fx.Node) -> bool:
    pair = [t for t in (x.meta.get("val"), y.meta.get("val")) if isinstance(t, torch.Tensor)]
    places = {memory for t in pair for memory, _ in storages(t)}
    return len(pair) == 2 and len(places) == 1


@dataclass(slots=True)
class _Along:
    """A dimension of a value in its order in memory, and what walks along it."""

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
    walked = [k for k, (n, s) in enumerate(zip(shape, strides, strict=True)) if n != 1 and s != 0]
    found = _levels(x.shape, steps, {k: c.index(strides[k]) for k in walked}, offset)
    levels = _carried(found, shape)
    x, places = _walked(x.reshape(*[a.extent for a in levels]), levels, shape)
    x = x.permute(*[places.index(k) for k in walked])
    x = x.reshape(*[n if k in walked else 1 for k, n in enumerate(shape)])
    return x.expand(shape)


def _levels(
    shape: Sequence[Index], steps: Sequence[Index], strides: dict[int, Index], offset: int
) -> list[_Along]:
    """The dimensions, each with what walks along it: the slowest whose step divides the stride."""
    found = [_Along(n) for n in shape]
    steps = [product(shape[k + 1 :]) if n == 1 else steps[k] for k, n in enumerate(shape)]
    for k, stride in strides.items():
        for along, step in zip(found, steps, strict=True):
            times = floordiv(stride, step) if step != 0 else 0
            if isinstance(times, int) and times > 0 and mul(step, times) == stride:
                along.walks.append((k, times))
                break
        else:
            raise UnsupportedError("a stride that is no multiple of one dimension's")
    for along, step in zip(found, steps, strict=True):
        if offset and not isinstance(step, int):
            raise UnsupportedError("a view by strides from a place among symbolic sizes")
        along.first, offset = divmod(offset, step) if isinstance(step, int) else (0, 0)
    return found


def _reach(along: _Along, shape: Sequence[Index]) -> Index:
    """How many positions from the first one on are walked over."""
    reach: Index = 1
    for k, step in along.walks:
        reach = add(reach, mul(sub(shape[k], 1), step))
    return reach


def _carried(levels: list[_Along], shape: Sequence[Index]) -> list[_Along]:
    """The same, where no walk leaves its dimension: it is one with those before, where it must."""
    found: list[_Along] = []
    left = list(levels)
    while left:
        inner = left.pop()
        room = sub(inner.extent, add(inner.first, _reach(inner, shape)))
        if nonnegative(room):
            found.insert(0, inner)
            continue
        if not left:
            raise UnsupportedError("a view by strides of places that are not all of the value")
        outer, n = left.pop(), inner.extent
        if not isinstance(n, int) and (outer.walks or outer.first):
            raise UnsupportedError("a view by strides along several dimensions of symbolic sizes")
        times = n if isinstance(n, int) else 0
        walks = [(k, step * times) for k, step in outer.walks]
        first = outer.first * times + inner.first
        left.append(_Along(mul(outer.extent, n), first, walks + inner.walks))
    return found


def _walked(x: V, levels: list[_Along], shape: Sequence[Index]) -> tuple[V, list[int]]:
    """The value as it is walked over, and which dimension of the result each of its own is."""
    places = [-1 - k for k in range(len(levels))]
    for level, along in enumerate(levels):
        a = places.index(-1 - level)
        x = x.narrow(a, along.first, _reach(along, shape))
        if not along.walks:
            x = x.pick(a, 0)
            places.pop(a)
            continue
        rest = sorted(along.walks, key=lambda w: (-w[1], isinstance(shape[w[0]], int)))
        while len(rest) > 1:
            (k, step), *rest = rest
            extent = _reach(_Along(0, 0, rest), shape)
            if not isinstance(extent, int):
                raise UnsupportedError("windows of a symbolic size")
            x = x.op(Window(a, extent, step, 1))
            places[a] = k
            places.append(-1)
            a = x.rank - 1
        ((places[a], step),) = rest
        x = x.narrow(a, 0, shape[places[a]], step)
    return x, places


ROWS = (Row("aten.as_strided.default", _as_strided, alias=True),)
"""Views by strides."""
