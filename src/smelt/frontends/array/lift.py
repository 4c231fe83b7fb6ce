"""From a recording with numbers for sizes to a graph over size symbols.

Every distinct leaf size above 1 becomes a symbol.  Attributes of views hold plain numbers that came
from those sizes by arithmetic nobody recorded; each is replaced by an expression that has the same
value now.  A guess can only cost a compilation later: the graph is checked to be the recorded one
for the sizes at hand, and where no expression fits, the sizes concerned stay numbers.

    y = sm.reshape(x, (6, 4))        # x: f32[2, 3, 4]
    reshape(x) {shape=(n0*n1, n2)}   # for all n0, n1, n2
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt.errors import InternalError, ShapeError
from smelt.frontends.array.value import Value, layout
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Constant, Iota
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Pad, Reshape, Slice, split_groups
from smelt.types.expr import Index, evaluate, floordiv, mod, product, size, sizes_of, sub
from smelt.types.tensor import Shape, TensorType

Symbols = dict[int, Index]


@dataclass(frozen=True, slots=True)
class Lifted:
    """A graph over symbols, the values of its symbols, and a key that equal programs share."""

    graph: Graph
    sizes: tuple[int, ...]
    key: Hashable

    @property
    def hints(self) -> dict[str, int]:
        """The values of the symbols by name."""
        return {f"n{k}": n for k, n in enumerate(self.sizes)}


class _Stuck(Exception):
    """These sizes cannot be symbols."""

    def __init__(self, values: set[int]) -> None:
        super().__init__()
        self.values = values


def lift(nodes: Sequence[Value], leaves: Sequence[Value], outputs: Sequence[Value]) -> Lifted:
    """The graph of `nodes` (operands first) over symbols."""
    values = dict.fromkeys(n for x in leaves for n in x.type.shape if isinstance(n, int) and n > 1)
    fixed: set[int] = set()
    while True:
        free = [n for n in values if n not in fixed]
        symbols: Symbols = {n: size(f"n{k}") for k, n in enumerate(free)}
        try:
            graph = _build(nodes, leaves, outputs, symbols)
        except _Stuck as stuck:
            new = stuck.values - fixed
            fixed |= new or set(free)
            if not free:
                raise InternalError("a recorded program has no graph") from stuck
            continue
        return Lifted(graph, tuple(free), structure(graph.nodes(), graph.inputs, graph.outputs))


def _build(
    nodes: Sequence[Value], leaves: Sequence[Value], outputs: Sequence[Value], symbols: Symbols
) -> Graph:
    sizes = {f"n{k}": n for k, n in enumerate(symbols)}
    made: dict[Node, Node] = {}
    for k, x in enumerate(leaves):
        shape = tuple(symbols.get(n, n) for n in x.type.shape if isinstance(n, int))
        assert x.data is not None
        made[x] = build.input(f"x{k}", TensorType(x.type.dtype, shape), layout(x.data), x.origin)
    for x in nodes:
        if x in made:
            continue
        inputs = tuple(made[i] for i in x.inputs)
        made[x] = x if isinstance(x.op, Constant) else _apply(x, inputs, symbols, sizes)
    return Graph("lazy", tuple(made[x] for x in leaves), tuple(made[x] for x in outputs))


def _apply(
    x: Value, inputs: tuple[Node, ...], symbols: Symbols, sizes: dict[str, int]
) -> Node:  # fmt: skip
    types = [i.type for i in inputs]
    rewrite = _REWRITES.get(type(x.op))
    try:
        op = rewrite(x, types, symbols, sizes) if rewrite else x.op
        found = build.apply(op, *inputs, origin=x.origin)
    except ShapeError:
        raise _Stuck(_used(types, sizes)) from None
    if tuple(evaluate(d, sizes) for d in found.type.shape) != x.type.shape:
        raise _Stuck(_used(types, sizes))
    return found


def _used(types: Sequence[TensorType], sizes: dict[str, int]) -> set[int]:
    return {sizes[name] for t in types for d in t.shape for name in sizes_of(d)}


def _expand(x: Value, types: list[TensorType], symbols: Symbols, sizes: dict[str, int]) -> TensorOp:
    source = types[0].shape
    new = len(x.type.shape) - len(source)
    shape = tuple(
        source[a - new] if a >= new and source[a - new] != 1 else symbols.get(_int(n), n)
        for a, n in enumerate(x.type.shape)
    )
    return Expand(shape)


def _reshape(x: Value, types: list[TensorType], symbols: Symbols, sizes: dict[str, int]) -> TensorOp:
    source = types[0].shape
    numbers = tuple(int(evaluate(d, sizes)) for d in source)
    if 0 in numbers:
        return x.op
    out: list[Index] = []
    place = 0
    for old, new in split_groups(numbers, x.type.shape):
        part = source[place : place + len(old)]
        place += len(old)
        out.extend(_regroup(part, new, symbols, sizes))
    return Reshape(tuple(out))


def _regroup(source: Shape, target: Shape, symbols: Symbols, sizes: dict[str, int]) -> Shape:
    """`target`, which has the product of `source`, as expressions."""
    total = product(source)
    guess = tuple(symbols.get(_int(n), n) for n in target)
    if product(guess) == total:
        return guess
    for k in reversed(range(len(target))):
        others = product(guess[:k] + guess[k + 1 :])
        if target[k] != 1 and others != 0 and mod(total, others) == 0:
            return (*guess[:k], floordiv(total, others), *guess[k + 1 :])
    used = {name for d in (*source, *guess) for name in sizes_of(d)}
    raise _Stuck({sizes[name] for name in used})


def _slice(x: Value, types: list[TensorType], symbols: Symbols, sizes: dict[str, int]) -> TensorOp:
    op = x.op
    assert isinstance(op, Slice)
    starts: list[Index] = []
    counts: list[Index] = []
    for dim, start, count, step in zip(types[0].shape, op.starts, op.sizes, op.steps, strict=True):
        first, extent = _range(dim, _int(start), _int(count), step, symbols, sizes)
        starts.append(first)
        counts.append(extent)
    return Slice(tuple(starts), tuple(counts), op.steps)


def _range(
    dim: Index, start: int, count: int, step: int, symbols: Symbols, sizes: dict[str, int]
) -> tuple[Index, Index]:
    n = int(evaluate(dim, sizes))
    if isinstance(dim, int) or step != 1 and (start, count) != (n - 1, n):
        return start, symbols.get(count, count) if step == 1 and isinstance(dim, int) else count
    if step != 1:
        return sub(dim, 1), dim  # reversed
    if count == n:
        return 0, dim
    if start + count == n:  # up to the end: x[1:], or the last few: x[-2:]
        return (start, sub(dim, start)) if start <= count else (sub(dim, count), count)
    if start + count > n // 2:
        return start, sub(dim, n - count)
    return start, symbols.get(count, count)


def _iota(x: Value, types: list[TensorType], symbols: Symbols, sizes: dict[str, int]) -> TensorOp:
    op = x.op
    assert isinstance(op, Iota)
    return replace(op, shape=tuple(symbols.get(_int(n), n) for n in op.shape))


def _pad(x: Value, types: list[TensorType], symbols: Symbols, sizes: dict[str, int]) -> TensorOp:
    """Margins stay numbers, except where together they make a known size of the result."""
    op = x.op
    assert isinstance(op, Pad)
    low, high = list(op.low), list(op.high)
    for a, (dim, n) in enumerate(zip(types[0].shape, x.type.shape, strict=True)):
        goal = symbols.get(_int(n), n)
        if (low[a], high[a]) != (0, 0) and goal != n and sizes_of(sub(goal, dim)):
            high[a] = sub(sub(goal, dim), low[a])
    return Pad(tuple(low), tuple(high), op.value)


def _int(n: Index) -> int:
    assert isinstance(n, int)
    return n


_REWRITES: dict[type, Callable[..., TensorOp]] = {
    Expand: _expand, Reshape: _reshape, Slice: _slice, Iota: _iota, Pad: _pad,
}  # fmt: skip


def structure(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Hashable:
    """What two equal programs have in common: operators, operands by number, input types."""
    places = {x: k for k, x in enumerate(nodes)}
    given = set(inputs)
    body = tuple(
        (x.op, *[places[i] for i in x.inputs]) if x not in given else signature(x) for x in nodes
    )
    return body, tuple(places[x] for x in inputs), tuple(places[x] for x in outputs)


def signature(x: Any) -> Hashable:
    """The key of an input: its type and layout (of a leaf, those of the memory it holds)."""
    if isinstance(x, Value):
        assert x.data is not None
        return x.type.dtype.name, x.type.shape, layout(x.data)
    return x.op.type.dtype.name, x.op.type.shape, x.op.strides


__all__ = ["Lifted", "lift", "structure"]
