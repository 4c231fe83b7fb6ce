"""Split matmuls of gated units (SwiGLU) into one matmul per half of the weights.

A gated layer keeps the weights of both halves in one array.  Its result is sliced in two and
combined elementwise: each element of the output reads two elements that are far apart in the
matmul, which therefore must be stored.  With a matmul per slice of the weights, both elements are
in registers together, and neither is stored.

    h = x @ w; silu(h[:, :n]) * h[:, n:]  ->  silu(x @ w[:, :n]) * (x @ w[:, n:])

No element is computed twice: overlapping slices are left, and so is a matmul that anything else
reads, or a matrix whose rows are sliced (each part would pack the other factor for itself).

With few rows, a matmul runs at the bandwidth of its weights and stores little, so that reading one
array from end to end is faster.  Narrow parts do not fill the tiles that the whole matmul fills.
The machine's thresholds apply to the sizes of the first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from smelt.dataclass import dataclass
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import input_size_names, rebuild_from, users
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Slice
from smelt.passes.compose import simplify_view
from smelt.passes.views import slice_operand
from smelt.tiling import CPU_TILING, Tiling
from smelt.types.expr import Index, add, evaluate, sub

__all__ = ["split_gated_matmul"]

Sizes = Mapping[str, int]
Readers = Mapping[Node, Sequence[Node]]

ASSUMED_SIZE = 192
"""Value of a size that is not known."""


def split_gated_matmul(
    graph: Graph, sizes: Sizes | None = None, tiling: Tiling = CPU_TILING
) -> Graph:
    """Split matmuls whose slices are combined elementwise.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         split_gated_matmul(
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
    known_sizes = dict.fromkeys(input_size_names(graph), ASSUMED_SIZE) | dict(sizes or {})
    splits: dict[Node, _Split] = {}
    for node in nodes:
        if isinstance(node.op, Contract):
            chain = _elementwise_chain(node, readers, outputs)
            split = _find_split(chain, readers, known_sizes, tiling) if chain else None
            splits.update(dict.fromkeys(readers[chain[-1]], split) if split else {})

    def change(node: Node, old: Node) -> Node:
        split = splits.get(old)
        return node if split is None else _compute_part(node, node.inputs[0], split, split.path)

    return rebuild_from(graph, change) if splits else graph


@dataclass(frozen=True, slots=True)
class _Split:
    """The split axis of a result, the factor that has it, and its dimension there."""

    axis: int
    factor: int
    dim: int
    path: tuple[tuple[int, ...], ...]
    """Operand positions on the way to the matmul, from the last elementwise operator back."""


def _elementwise_chain(product: Node, readers: Readers, outputs: set[Node]) -> list[Node]:
    """Return a matmul and the elementwise operators up to a value that only slices read.

    An empty list if there is none.
    """
    chain, x = [product], product
    while x not in outputs and readers[x]:
        if all(isinstance(y.op, Slice) for y in readers[x]):
            return chain
        first, *others = dict.fromkeys(readers[x])
        operands = [z for z in first.inputs if z.type.shape == first.type.shape and z is not x]
        is_computed = x.type.shape != first.type.shape or any(z.inputs for z in operands)
        if others or is_computed or not isinstance(first.op, (Map, Cast)):
            return []  # the other operand may be a matmul too, and many narrow ones gain nothing
        chain.append(x := first)
    return []


def _find_split(
    chain: Sequence[Node], readers: Readers, sizes: Sizes, tiling: Tiling
) -> _Split | None:
    """Return the axis along which disjoint slices are combined again, or None."""
    op, shape, parts = chain[0].op, chain[0].type.shape, readers[chain[-1]]
    assert isinstance(op, Contract)
    is_plain = all(bare_axis(t) is not None for t in (*op.left, *op.right))
    if len(parts) < 2 or op.padded or not is_plain:
        return None
    regions = [x.op for x in parts if isinstance(x.op, Slice)]
    sliced_axes = {
        a
        for region in regions
        for a, n in enumerate(shape)
        if (region.starts[a], region.sizes[a], region.steps[a]) != (0, n, 1)
    }
    if len(sliced_axes) != 1 or any(step != 1 for region in regions for step in region.steps):
        return None
    (a,) = sliced_axes
    if len(shape) == 2 and a == 0:
        return None  # each part of the rows would pack the shared columns for itself
    names = [[bare_axis(t) for t in side] for side in (op.left, op.right)]
    factor = [k for k, side in enumerate(names) if op.out[a] in side]
    if len(factor) != 1 or names[factor[0]].count(op.out[a]) != 1:
        return None
    rows = [n for n, name in zip(shape, op.out, strict=True) if name not in names[factor[0]]]
    columns = min(_extent(region.sizes[a], sizes) for region in regions)
    is_narrow = columns < tiling.min_gated_columns
    if is_narrow or prod(_extent(n, sizes) for n in rows) < tiling.min_gated_rows:
        return None
    if not _are_disjoint(regions, a) or not _are_combined(parts, readers):
        return None
    path = [tuple(k for k, z in enumerate(y.inputs) if z is x) for x, y in pairwise(chain)]
    return _Split(a, factor[0], names[factor[0]].index(op.out[a]), tuple(path[::-1]))


def _extent(n: Index, at: Sizes) -> int:
    return n if isinstance(n, int) else int(evaluate(n, at))


def _are_disjoint(regions: Sequence[Slice], a: int) -> bool:
    """Whether slices are disjoint for all sizes."""
    static = [region for region in regions if isinstance(region.starts[a], int)]
    symbolic = [region for region in regions if not isinstance(region.starts[a], int)]
    order = [*sorted(static, key=lambda region: int(region.starts[a])), *symbolic]  # type: ignore[arg-type]
    gaps = [sub(y.starts[a], add(x.starts[a], x.sizes[a])) for x, y in pairwise(order)]
    return all(isinstance(gap, int) and gap >= 0 for gap in gaps)


def _are_combined(parts: Sequence[Node], readers: Readers) -> bool:
    """Whether elementwise operators combine all slices."""
    reached: dict[Node, int] = {x: 1 << k for k, x in enumerate(parts)}
    pending, all_parts = list(parts), (1 << len(parts)) - 1
    while pending:
        x = pending.pop()
        for y in readers[x]:
            if isinstance(y.op, (Map, Cast)) and y.type.shape == x.type.shape:
                combined = reached.get(y, 0) | reached[x]
                if combined == all_parts:
                    return True
                if combined != reached.get(y, 0):
                    reached[y] = combined
                    pending.append(y)
    return False


def _compute_part(view: Node, x: Node, split: _Split, path: tuple[tuple[int, ...], ...]) -> Node:
    """Compute one slice of an elementwise chain from a slice of the weights."""
    if path:
        inner = _compute_part(view, x.inputs[path[0][0]], split, path[1:])
        operands = [
            inner if k in path[0] else slice_operand(view, x, z) if z.type.shape else z
            for k, z in enumerate(x.inputs)
        ]
        return build.apply(x.op, *operands, origin=x.origin)
    region, op, factors = view.op, x.op, list(x.inputs)
    assert isinstance(region, Slice)
    assert isinstance(op, Contract)
    y = factors[split.factor]
    starts: list[Index] = [0] * y.type.rank
    sizes = list(y.type.shape)
    starts[split.dim], sizes[split.dim] = region.starts[split.axis], region.sizes[split.axis]
    less = Slice(tuple(starts), tuple(sizes), (1,) * y.type.rank)
    factors[split.factor] = simplify_view(build.apply(less, y, origin=view.origin))
    extents = tuple(e for e in op.extents if e[0] != op.out[split.axis])
    return build.apply(replace(op, extents=extents), *factors, origin=x.origin)
