"""Parts of a product that meet again become products with parts of one factor.

A layer with a gate keeps the weights of both its halves in one array.  Its product is cut in two,
and elementwise operators put the halves together: each element of the result is made of two that
lie far apart in the product, which must be stored for that.  As products with parts of the weight
both are there where their elements meet, and neither is stored.

    h = x @ w; silu(h[:, :n]) * h[:, n:]  ->  silu(x @ w[:, :n]) * (x @ w[:, n:])

No element is computed twice: parts that overlap stay parts, and so does a product that anything
else reads, or a matrix whose rows are cut (which took 0.98 to 1.23 times as long: each part packs
the other factor for itself).

Few rows are multiplied at the speed at which memory has the weight, and little is stored; reading
one array from end to end is faster then.  Narrow parts fill no tiles that the whole product would.
The numbers of rows and columns are those of the first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from smelt.dataclass import dataclass
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, size_names, users
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Slice
from smelt.passes.compose import settle
from smelt.passes.views import sliced
from smelt.types.expr import Index, add, evaluate, sub

__all__ = ["divided"]

Sizes = Mapping[str, int]
Readers = Mapping[Node, Sequence[Node]]

GUESS = 192
"""A size that nobody gives."""
ROWS = 192
"""Rows of a product from which on it is divided (measured on AVX-512 at 64 to 1024 summed: it takes
up to 20 % less time then; at 128 rows between 11 % less and 19 % more, at 8 up to 12 % more)."""
WIDTH = 64
"""Columns that each part has at least (measured likewise: parts of 64 to 128 take between half of
the time and 7 % more, those of 32 and 48 up to 1.5 times as long, of 16 up to 3 times)."""


def divided(graph: Graph, sizes: Sizes | None = None) -> Graph:
    """Products whose parts meet become a product for each part.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         divided(
    ...             parse('''graph f(x: f32[n,k], w: f32[k,192]) {
    ...   h = contract(x, w) {spec="n,k; k,c -> n,c"}
    ...   a = slice(h) {starts=(0, 0), sizes=(n, 96), steps=(1, 1)}
    ...   b = slice(h) {starts=(0, 96), sizes=(n, 96), steps=(1, 1)}
    ...   y = mul(a, b)
    ...   return y
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,k], w: f32[k,192]) {
      v0 = slice(w) {starts=(0, 0), sizes=(k, 96), steps=(1, 1)} : f32[k,96]
      v1 = contract(x, v0) {spec="n,k; k,c -> n,c"} : f32[n,96]
      v2 = slice(w) {starts=(0, 96), sizes=(k, 96), steps=(1, 1)} : f32[k,96]
      v3 = contract(x, v2) {spec="n,k; k,c -> n,c"} : f32[n,96]
      v4 = mul(v1, v3) : f32[n,96]
      return v4
    }
    """
    nodes = graph.nodes()
    if not any(isinstance(x.op, Slice) for x in nodes):
        return graph
    readers, outputs = users(graph), set(graph.outputs)
    at = dict.fromkeys(size_names(graph), GUESS) | dict(sizes or {})
    found: dict[Node, _Cut] = {}
    for node in nodes:
        if isinstance(node.op, Contract):
            chain = _chain(node, readers, outputs)
            cut = _cut(chain, readers, at) if chain else None
            found.update(dict.fromkeys(readers[chain[-1]], cut) if cut else {})

    def change(node: Node, old: Node) -> Node:
        cut = found.get(old)
        return node if cut is None else _part(node, node.inputs[0], cut, cut.path)

    return rebuild_from(graph, change) if found else graph


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a product is divided: an axis of its result, the factor that has it, and which of that
    one's dimensions it is."""

    axis: int
    factor: int
    dim: int
    path: tuple[tuple[int, ...], ...]
    """Which operands lead to the product, from the elementwise operator that is last back."""


def _chain(product: Node, readers: Readers, outputs: set[Node]) -> list[Node]:
    """A product and the elementwise operators behind it, up to what nothing but slices read; none
    if there is no such value."""
    chain, x = [product], product
    while x not in outputs and readers[x]:
        if all(isinstance(y.op, Slice) for y in readers[x]):
            return chain
        first, *others = dict.fromkeys(readers[x])
        wide = [z for z in first.inputs if z.type.shape == first.type.shape and z is not x]
        made = x.type.shape != first.type.shape or any(z.inputs for z in wide)
        if others or made or not isinstance(first.op, (Map, Cast)):
            return []  # what is added may be a product as well: many narrow ones gain nothing
        chain.append(x := first)
    return []


def _cut(chain: Sequence[Node], readers: Readers, at: Sizes) -> _Cut | None:
    """Along which axis of a product its parts are apart and meet again, if they do."""
    op, shape, parts = chain[0].op, chain[0].type.shape, readers[chain[-1]]
    assert isinstance(op, Contract)
    plain = all(bare_axis(t) is not None for t in (*op.left, *op.right))
    if len(parts) < 2 or op.padded or not plain:
        return None
    boxes = [x.op for x in parts if isinstance(x.op, Slice)]
    cut = {
        a
        for box in boxes
        for a, n in enumerate(shape)
        if (box.starts[a], box.sizes[a], box.steps[a]) != (0, n, 1)
    }
    if len(cut) != 1 or any(step != 1 for box in boxes for step in box.steps):
        return None
    (a,) = cut
    if len(shape) == 2 and a == 0:
        return None  # parts of its rows share their columns, which each packs for itself
    names = [[bare_axis(t) for t in side] for side in (op.left, op.right)]
    own = [k for k, side in enumerate(names) if op.out[a] in side]
    if len(own) != 1 or names[own[0]].count(op.out[a]) != 1:
        return None
    rows = [n for n, name in zip(shape, op.out, strict=True) if name not in names[own[0]]]
    narrow = min(_number(box.sizes[a], at) for box in boxes) < WIDTH
    if narrow or prod(_number(n, at) for n in rows) < ROWS:
        return None
    if not _are_apart(boxes, a) or not _meet(parts, readers):
        return None
    path = [tuple(k for k, z in enumerate(y.inputs) if z is x) for x, y in pairwise(chain)]
    return _Cut(a, own[0], names[own[0]].index(op.out[a]), tuple(path[::-1]))


def _number(n: Index, at: Sizes) -> int:
    return n if isinstance(n, int) else int(evaluate(n, at))


def _are_apart(boxes: Sequence[Slice], a: int) -> bool:
    """Whether parts certainly do not overlap, whatever the sizes, in some order."""
    known = [box for box in boxes if isinstance(box.starts[a], int)]
    other = [box for box in boxes if not isinstance(box.starts[a], int)]
    order = [*sorted(known, key=lambda box: int(box.starts[a])), *other]  # type: ignore[arg-type]
    gaps = [sub(y.starts[a], add(x.starts[a], x.sizes[a])) for x, y in pairwise(order)]
    return all(isinstance(gap, int) and gap >= 0 for gap in gaps)


def _meet(parts: Sequence[Node], readers: Readers) -> bool:
    """Whether elementwise operators put all parts together."""
    made: dict[Node, int] = {x: 1 << k for k, x in enumerate(parts)}
    pending, every = list(parts), (1 << len(parts)) - 1
    while pending:
        x = pending.pop()
        for y in readers[x]:
            if isinstance(y.op, (Map, Cast)) and y.type.shape == x.type.shape:
                both = made.get(y, 0) | made[x]
                if both == every:
                    return True
                if both != made.get(y, 0):
                    made[y] = both
                    pending.append(y)
    return False


def _part(view: Node, x: Node, cut: _Cut, path: tuple[tuple[int, ...], ...]) -> Node:
    """A part of what is made of a product: as much of its operands, made into the same."""
    if path:
        inner = _part(view, x.inputs[path[0][0]], cut, path[1:])
        operands = [
            inner if k in path[0] else sliced(view, x, z) if z.type.shape else z
            for k, z in enumerate(x.inputs)
        ]
        return build.apply(x.op, *operands, origin=x.origin)
    box, op, factors = view.op, x.op, list(x.inputs)
    assert isinstance(box, Slice)
    assert isinstance(op, Contract)
    y = factors[cut.factor]
    starts: list[Index] = [0] * y.type.rank
    sizes = list(y.type.shape)
    starts[cut.dim], sizes[cut.dim] = box.starts[cut.axis], box.sizes[cut.axis]
    less = Slice(tuple(starts), tuple(sizes), (1,) * y.type.rank)
    factors[cut.factor] = settle(build.apply(less, y, origin=view.origin))
    kept = tuple(e for e in op.extents if e[0] != op.out[cut.axis])
    return build.apply(replace(op, extents=kept), *factors, origin=x.origin)
