"""Rewrite the gather of one element per row of a contraction as a masked reduction.

A cross-entropy loss reads a label's logit.  If the logits come from a contraction whose rows other
reductions visit, such as those of a softmax, that gather would force all of them into memory.  The
same element is the maximum of its row once all others are masked by comparing positions: a
reduction that runs in the same pass over the row as the others.  Elementwise operators between the
contraction and the gather are applied to the gathered elements alone.
"""

from __future__ import annotations

import math

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts
from smelt.ops.contract import Contract
from smelt.ops.create import Constant, Iota
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce
from smelt.ops.view import Expand, Permute, Reshape
from smelt.passes.compose import with_rank
from smelt.types.dtype import i64
from smelt.types.expr import Index
from smelt.types.tensor import broadcast_shapes


def gather_to_reduce(graph: Graph) -> Graph:
    """Replace gathers of one element per row of a contraction by masked reductions.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         gather_to_reduce(
    ...             parse('''graph f(x: f32[n,k], w: f32[k,c], y: i64[n]) {
    ...   z = contract(x, w) {spec="n,k; k,c -> n,c"}
    ...   i = iota() {shape=(n,), axis=0, dtype=i64}
    ...   p = gather(z, i, y) {first=0}
    ...   t = reduce.max(z) {axes=(1,)}
    ...   return p, t
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,k], w: f32[k,c], y: i64[n]) {
      v0 = iota() {shape=(1, c), axis=1, dtype=i64} : i64[1,c]
      v1 = reshape(y) {shape=(n, 1)} : i64[n,1]
      v2 = eq(v0, v1) : bool[n,c]
      v3 = contract(x, w) {spec="n,k; k,c -> n,c"} : f32[n,c]
      v4 = select(v2, v3, -inf:f32) : f32[n,c]
      v5 = reduce.max(v4) {axes=(1,)} : f32[n]
      v6 = reduce.max(v3) {axes=(1,)} : f32[n]
      return v5, v6
    }
    """
    if not any(isinstance(node.op, Gather) for node in graph.nodes()):
        return graph
    counts = use_counts(graph)
    shared: set[Node] = set()
    is_logits = _IsSharedContraction(shared)

    def change(node: Node, old: Node) -> Node:
        if counts[old] > 1:
            shared.add(node)
        node = _unpermuted(node)
        gathered = _match_gather(node, shared) if isinstance(node.op, Gather) else None
        if gathered is None or not is_logits(node.inputs[0], gathered.axis):
            return node
        result = gathered.of(node.inputs[0])
        return (
            build.apply(Reshape(node.type.shape), result, origin=node.origin)
            if result.type.shape != node.type.shape
            else result
        )

    return rebuild_from(graph, change)


class _GatherAlongAxis:
    """A gather of one position along `axis` for each other position of a value.

    `position` has the rank of the value, with extent 1 along the axis.
    """

    def __init__(self, axis: int, position: Node, gather: Node, shared: set[Node]) -> None:
        self.axis = axis
        self.shared = shared
        self.position = position
        self.gather = gather
        self._cache: dict[tuple[Node, int], Node] = {}

    def of(self, x: Node, rank: int = 0) -> Node:
        """Return the gathered elements of `x`, viewed with `rank` dimensions, without the axis."""
        key = x, rank or x.type.rank
        if key not in self._cache:
            self._cache[key] = self._build(with_rank(*key))
        return self._cache[key]

    def _build(self, x: Node) -> Node:
        shape, at = x.type.shape, self.axis
        kept_shape = (*shape[:at], *shape[at + 1 :])
        if shape[at] == 1:
            return build.apply(Reshape(kept_shape), x)
        if x in self.shared and _is_scaled_contraction(x):
            return self._masked_max(x)
        if isinstance(x.op, (Map, Cast)):
            operands = (self.of(y, x.type.rank) for y in x.inputs)
            return build.apply(x.op, *operands, origin=x.origin)
        if isinstance(x.op, Expand):
            inner = self.of(x.inputs[0], x.type.rank)
            return build.apply(Expand(kept_shape), inner, origin=x.origin)
        return self._masked_max(x) if isinstance(x.op, Contract) else self._gather(x)

    def _masked_max(self, x: Node) -> Node:
        """Gather by a masked maximum: every other element of the row is -inf."""
        shape, at = x.type.shape, self.axis
        axis_shape = tuple(shape[at] if k == at else 1 for k in range(len(shape)))
        positions = build.apply(Iota(axis_shape, at, i64))
        mask = build.map("eq", positions, build.cast(self.position, i64))
        minus_infinity = build.constant(-math.inf, x.type.dtype)
        masked = build.map("select", mask, x, minus_infinity, origin=self.gather.origin)
        return build.apply(Reduce("max", (at,)), masked, origin=self.gather.origin)

    def _gather(self, x: Node) -> Node:
        """Gather from a value that is stored anyway."""
        rank = x.type.rank
        index: list[Node] = []
        for k, n in enumerate(x.type.shape):
            axis_shape = tuple(n if j == k else 1 for j in range(rank))
            index.append(self.position if k == self.axis else build.apply(Iota(axis_shape, k, i64)))
        result = build.apply(Gather(0), x, *index, origin=self.gather.origin)
        shape = result.type.shape
        return build.apply(Reshape((*shape[: self.axis], *shape[self.axis + 1 :])), result)


class _IsSharedContraction:
    """Whether a value is elementwise in a contraction that something else reads too.

    `at` is the gathered axis of the value; `seen` is true once a shared value was passed on the
    way.
    """

    def __init__(self, shared: set[Node]) -> None:
        self.shared = shared
        self._cache: dict[tuple[Node, int, bool], bool] = {}

    def __call__(self, x: Node, at: int, seen: bool = False) -> bool:
        seen = seen or x in self.shared
        key = x, at, seen
        if key not in self._cache:
            self._cache[key] = self._compute(*key)
        return self._cache[key]

    def _compute(self, x: Node, at: int, seen: bool) -> bool:
        if isinstance(x.op, Contract):
            return seen and x.type.dtype.is_float
        if not isinstance(x.op, (Map, Cast, Expand)):
            return False
        from_end = at - x.type.rank
        return any(
            y.type.rank + from_end >= 0
            and y.type.shape[from_end] != 1
            and self(y, y.type.rank + from_end, seen)
            for y in x.inputs
        )


def _is_scaled_contraction(x: Node) -> bool:
    """Whether a value is a contraction changed only by numbers.

    Its other readers compute it anyway.
    """
    while isinstance(x.op, (Map, Cast)) and x.type.dtype.is_float:
        operands = [y for y in x.inputs if any(n != 1 for n in y.type.shape)]
        if len(operands) != 1 or operands[0].type.shape != x.type.shape:
            return False
        (x,) = operands
    return isinstance(x.op, Contract) and x.type.dtype.is_float


def _unpermuted(node: Node) -> Node:
    """Gather single elements below a permutation, also behind elementwise operators."""
    op, x = node.op, node.inputs[0] if node.inputs else node
    if not isinstance(op, Gather):
        return node
    index = node.inputs[1:]
    if op.first or len(index) != x.type.rank or (perm := _inner_permutation(x)) is None:
        return node
    inverse = sorted(range(x.type.rank), key=perm.__getitem__)
    inner = _UndoPermutation(perm, inverse)(x)
    if inner is None:
        return node
    return build.apply(op, inner, *(index[k] for k in inverse), origin=node.origin)


def _inner_permutation(x: Node) -> tuple[int, ...] | None:
    """Return the permutation below elementwise operators, or None."""
    while isinstance(x.op, (Map, Cast)):
        full_shape = [y for y in x.inputs if y.type.shape == x.type.shape]
        if not full_shape:
            return None
        x = full_shape[0]
    return x.op.perm if isinstance(x.op, Permute) else None


class _UndoPermutation:
    """Rebuild values before a permutation; None where another permutation intervenes."""

    def __init__(self, perm: tuple[int, ...], places: list[int]) -> None:
        self.perm, self.places = perm, places
        self._cache: dict[Node, Node | None] = {}

    def __call__(self, x: Node) -> Node | None:
        if x not in self._cache:
            self._cache[x] = self._build(x)
        return self._cache[x]

    def _build(self, x: Node) -> Node | None:
        if isinstance(x.op, Permute) and x.op.perm == self.perm:
            return x.inputs[0]
        if isinstance(x.op, Constant):
            return x
        rank = x.type.rank
        if isinstance(x.op, (Map, Cast)) and rank == len(self.perm):
            operands = [self(y) for y in x.inputs]
            rebuilt = [y for y in operands if y is not None]
            return (
                build.apply(x.op, *rebuilt, origin=x.origin)
                if len(rebuilt) == len(operands)
                else None
            )
        if rank == len(self.perm) and sum(n != 1 for n in x.type.shape) <= 1:
            return build.apply(Permute(tuple(self.places)), x, origin=x.origin)
        return None


def _match_gather(node: Node, shared: set[Node]) -> _GatherAlongAxis | None:
    """Match a gather whose indices all count along their own axes, except one."""
    op, (x, *index) = node.op, node.inputs
    assert isinstance(op, Gather)
    middle = broadcast_shapes(*(j.type.shape for j in index))
    axis_of_index: dict[int, int] = {}
    free_indices: list[int] = []
    diagonal: int | None = None
    for k, j in enumerate(index):
        a = _counted_axis(j, x.type.shape[op.first + k], len(middle))
        if a is None:
            free_indices.append(k)
        elif a in axis_of_index.values():  # on a diagonal: the later one is a position
            free_indices.append(k)
            diagonal = op.first + next(b for b in axis_of_index if axis_of_index[b] == a)
        elif a >= 0:
            axis_of_index[k] = a
    if len(free_indices) != 1:
        return None
    (f,) = free_indices
    order = list(axis_of_index.values())
    other_extents = [n for a, n in enumerate(middle) if a not in order]
    covers_all = all(middle[a] == x.type.shape[op.first + k] for k, a in axis_of_index.items())
    if order != sorted(set(order)) or any(n != 1 for n in other_extents) or not covers_all:
        return None
    lead = len(middle) - index[f].type.rank
    index_shape = (*(1,) * lead, *index[f].type.shape)
    position_shape: list[Index] = [1] * x.type.rank
    for k, a in axis_of_index.items():
        position_shape[op.first + k] = index_shape[a]
    position = (
        build.apply(Reshape(tuple(position_shape)), index[f])
        if diagonal is None
        else build.apply(Iota(tuple(position_shape), diagonal, i64))
    )
    return _GatherAlongAxis(op.first + f, position, node, shared)


def _counted_axis(j: Node, extent: Index, rank: int) -> int | None:
    """Return the axis of the result along which an index counts all positions.

    -1 where there is only one position; None if it does not count.
    """
    if isinstance(j.op, Expand):  # broadcasting does not change an index
        j = j.inputs[0]
    if isinstance(j.op, Reshape):
        source = j.inputs[0]
        if isinstance(source.op, Iota) and source.type.rank == 1:
            axes = [a for a, n in enumerate(j.type.shape) if n != 1]
            if len(axes) == 1 and source.type.shape[0] == extent:
                return rank - j.type.rank + axes[0]
        return None
    if isinstance(j.op, Iota) and j.type.shape[j.op.axis] == extent:
        return rank - j.type.rank + j.op.axis
    return -1 if extent == 1 else None
