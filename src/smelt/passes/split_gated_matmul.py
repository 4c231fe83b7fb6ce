"""Split matmuls of gated units (SwiGLU) into one matmul per half of the weights.

A gated layer keeps the weights of both halves in one array.  Its result is sliced in two and
combined elementwise: each element of the output reads two elements that are far apart in the
matmul, which therefore must be stored.  With a matmul per slice of the weights, both elements are
in registers together, and neither is stored.

    h = x @ w; silu(h[:, :n]) * h[:, n:]  ->  silu(x @ w[:, :n]) * (x @ w[:, n:])

Reshapes may stand between the matmul and its slices, as PyTorch's linear layers have around rows,
where a range of the reshaped dimensions is one of the matmul's.

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

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import input_size_names, rebuild_from, users
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.elementwise import Cast, Map
from smelt.ops.spec import TensorOp
from smelt.ops.view import Reshape, Slice, split_groups
from smelt.passes.compose import simplify_view
from smelt.passes.views import slice_operand
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, add, evaluate, mul, product, sub

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
    """Operand positions on the way to the matmul, from the last operator back."""


def _elementwise_chain(matmul: Node, readers: Readers, outputs: set[Node]) -> list[Node]:
    """Return a matmul, elementwise operators and reshapes up to a value that only slices read.

    An empty list if there is none.
    """
    chain, x = [matmul], matmul
    while x not in outputs and readers[x]:
        if all(isinstance(y.op, Slice) for y in readers[x]):
            return chain
        first, *others = dict.fromkeys(readers[x])
        if not others and isinstance(first.op, Reshape):
            chain.append(x := first)
            continue
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
    regions = [region for x in parts if (region := _region_of_matmul(x.op, chain)) is not None]
    sliced_axes = {
        a
        for region in regions
        for a, n in enumerate(shape)
        if (region.starts[a], region.sizes[a], region.steps[a]) != (0, n, 1)
    }
    if (
        len(regions) < len(parts)
        or len(sliced_axes) != 1
        or any(step != 1 for region in regions for step in region.steps)
    ):
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
    itemsize = chain[0].inputs[factor[0]].type.dtype.itemsize
    row_count = prod(_extent(n, sizes) for n in rows)
    if not tiling.splits_gated_product(row_count, columns, itemsize):
        return None
    if not _are_disjoint(regions, a) or not _are_combined(parts, readers):
        return None
    path = [tuple(k for k, z in enumerate(y.inputs) if z is x) for x, y in pairwise(chain)]
    return _Split(a, factor[0], names[factor[0]].index(op.out[a]), tuple(path[::-1]))


def _region_of_matmul(op: TensorOp, chain: Sequence[Node]) -> Slice | None:
    assert isinstance(op, Slice)
    region: Slice | None = op
    for y in reversed(chain):
        if isinstance(y.op, Reshape) and region is not None:
            region = _before_reshape(region, y)
    return region


def _before_reshape(region: Slice, reshaped: Node) -> Slice | None:
    """Return the region that a reshape turns into `region`, or None.

    A range of several dimensions is one of the dimension that they divide where those inside of
    the outermost with several elements are whole.
    """
    if any(step != 1 for step in region.steps):
        return None
    starts: list[Index] = []
    sizes: list[Index] = []
    first = 0
    for source, target in split_groups(reshaped.inputs[0].type.shape, reshaped.type.shape):
        ends = first + len(target)
        ranges = list(zip(region.starts[first:ends], region.sizes[first:ends], target, strict=True))
        first = ends
        if all((start, size) == (0, n) for start, size, n in ranges):
            starts += [0] * len(source)
            sizes += source
        elif len(source) == 1 and _is_contiguous(ranges):
            offset: Index = 0
            for start, _, n in ranges:
                offset = add(mul(offset, n), start)
            starts.append(offset)
            sizes.append(product(size for _, size, _ in ranges))
        else:
            return None
    return Slice(tuple(starts), tuple(sizes), (1,) * len(starts))


def _is_contiguous(ranges: Sequence[tuple[Index, Index, Index]]) -> bool:
    """Whether elements of ranges (start, size, extent) are neighbours in row-major order."""
    outer = next((k for k, (_, size, _) in enumerate(ranges) if size != 1), len(ranges))
    return all((start, size) == (0, n) for start, size, n in ranges[outer + 1 :])


def _extent(n: Index, at: Sizes) -> int:
    return n if isinstance(n, int) else int(evaluate(n, at))


def _are_disjoint(regions: Sequence[Slice], a: int) -> bool:
    static = [region for region in regions if isinstance(region.starts[a], int)]
    symbolic = [region for region in regions if not isinstance(region.starts[a], int)]
    order = [*sorted(static, key=lambda region: int(region.starts[a])), *symbolic]  # type: ignore[arg-type]
    gaps = [sub(y.starts[a], add(x.starts[a], x.sizes[a])) for x, y in pairwise(order)]
    return all(isinstance(gap, int) and gap >= 0 for gap in gaps)


def _are_combined(parts: Sequence[Node], readers: Readers) -> bool:
    """Whether elementwise operators, of slices as they are or reshaped, combine all of them."""
    reached: dict[Node, int] = {x: 1 << k for k, x in enumerate(parts)}
    pending, all_parts = list(parts), (1 << len(parts)) - 1
    while pending:
        x = pending.pop()
        for y in readers[x]:
            is_elementwise = isinstance(y.op, (Map, Cast)) and y.type.shape == x.type.shape
            if is_elementwise or isinstance(y.op, Reshape):
                combined = reached.get(y, 0) | reached[x]
                if combined == all_parts:
                    return True
                if combined != reached.get(y, 0):
                    reached[y] = combined
                    pending.append(y)
    return False


def _compute_part(view: Node, x: Node, split: _Split, path: tuple[tuple[int, ...], ...]) -> Node:
    """Compute one slice of a chain of operators from a slice of the weights."""
    if isinstance(x.op, Reshape):
        assert isinstance(view.op, Slice)
        region = _before_reshape(view.op, x)
        assert region is not None
        part = build.apply(region, x.inputs[0], origin=view.origin)
        inner = _compute_part(part, x.inputs[0], split, path[1:])
        return simplify_view(build.apply(Reshape(view.op.sizes), inner, origin=x.origin))
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
