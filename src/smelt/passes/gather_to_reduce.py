"""One element of each row, read at a computed position, becomes a fold of that row.

A label's logit is read where the label says.  If the logits come of a contraction whose rows other
folds visit, such as those of a softmax, that read would force all of them into memory.  The same
element is the largest of its row once all others are set aside by a comparison of positions, a fold
like any other, which the visit that makes the row takes along.  What is elementwise between the
contraction and the read is computed for the picked elements alone.
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
from smelt.passes.compose import lifted
from smelt.types.dtype import i64
from smelt.types.expr import Index
from smelt.types.tensor import broadcast_shapes


def picks(graph: Graph) -> Graph:
    """Reads of one element for each row of a contraction become folds of the rows.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         picks(
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
    made = _Made(shared)

    def change(node: Node, old: Node) -> Node:
        if counts[old] > 1:
            shared.add(node)
        node = _unpermuted(node)
        pick = _pick(node, shared) if isinstance(node.op, Gather) else None
        if pick is None or not made(node.inputs[0], pick.axis):
            return node
        kept = pick.of(node.inputs[0])
        return (
            build.apply(Reshape(node.type.shape), kept, origin=node.origin)
            if kept.type.shape != node.type.shape
            else kept
        )

    return rebuild_from(graph, change)


class _Pick:
    """One position along `axis` for each of the other positions of a value.

    `position` is of the value's rank, with extent 1 along the axis."""

    def __init__(self, axis: int, position: Node, gather: Node, shared: set[Node]) -> None:
        self.axis = axis
        self.shared = shared
        self.position = position
        self.gather = gather
        self._known: dict[tuple[Node, int], Node] = {}

    def of(self, x: Node, rank: int = 0) -> Node:
        """The picked elements of a value that is seen as one of the gathered one's rank, without
        the axis."""
        key = x, rank or x.type.rank
        if key not in self._known:
            self._known[key] = self._of(lifted(*key))
        return self._known[key]

    def _of(self, x: Node) -> Node:
        shape, at = x.type.shape, self.axis
        rest = (*shape[:at], *shape[at + 1 :])
        if shape[at] == 1:
            return build.apply(Reshape(rest), x)
        if x in self.shared and _is_scaled(x):
            return self._hit(x)
        if isinstance(x.op, (Map, Cast)):
            operands = (self.of(y, x.type.rank) for y in x.inputs)
            return build.apply(x.op, *operands, origin=x.origin)
        if isinstance(x.op, Expand):
            inner = self.of(x.inputs[0], x.type.rank)
            return build.apply(Expand(rest), inner, origin=x.origin)
        return self._hit(x) if isinstance(x.op, Contract) else self._read(x)

    def _hit(self, x: Node) -> Node:
        """All others of the row set aside."""
        shape, at = x.type.shape, self.axis
        line = tuple(shape[at] if k == at else 1 for k in range(len(shape)))
        places = build.apply(Iota(line, at, i64))
        hit = build.map("eq", places, build.cast(self.position, i64))
        none = build.constant(-math.inf, x.type.dtype)
        row = build.map("select", hit, x, none, origin=self.gather.origin)
        return build.apply(Reduce("max", (at,)), row, origin=self.gather.origin)

    def _read(self, x: Node) -> Node:
        """A value that is stored anyway is read at the position."""
        rank = x.type.rank
        index: list[Node] = []
        for k, n in enumerate(x.type.shape):
            line = tuple(n if j == k else 1 for j in range(rank))
            index.append(self.position if k == self.axis else build.apply(Iota(line, k, i64)))
        found = build.apply(Gather(0), x, *index, origin=self.gather.origin)
        shape = found.type.shape
        return build.apply(Reshape((*shape[: self.axis], *shape[self.axis + 1 :])), found)


class _Made:
    """Whether values are elementwise in a contraction that others read too."""

    def __init__(self, shared: set[Node]) -> None:
        self.shared = shared
        self._known: dict[tuple[Node, int, bool], bool] = {}

    def __call__(self, x: Node, at: int, seen: bool = False) -> bool:
        seen = seen or x in self.shared
        key = x, at, seen
        if key not in self._known:
            self._known[key] = self._look(*key)
        return self._known[key]

    def _look(self, x: Node, at: int, seen: bool) -> bool:
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


def _is_scaled(x: Node) -> bool:
    """Whether a value is a contraction's but for what numbers do to it: its other readers make it
    anyway."""
    while isinstance(x.op, (Map, Cast)) and x.type.dtype.is_float:
        wide = [y for y in x.inputs if any(n != 1 for n in y.type.shape)]
        if len(wide) != 1 or wide[0].type.shape != x.type.shape:
            return False
        (x,) = wide
    return isinstance(x.op, Contract) and x.type.dtype.is_float


def _unpermuted(node: Node) -> Node:
    """A read of single elements asks what was permuted, with its indices in that order, also where
    elementwise operators stand between."""
    op, x = node.op, node.inputs[0] if node.inputs else node
    if not isinstance(op, Gather):
        return node
    index = node.inputs[1:]
    if op.first or len(index) != x.type.rank or (perm := _turned(x)) is None:
        return node
    places = sorted(range(x.type.rank), key=perm.__getitem__)
    inner = _TurnedBack(perm, places)(x)
    if inner is None:
        return node
    return build.apply(op, inner, *(index[k] for k in places), origin=node.origin)


def _turned(x: Node) -> tuple[int, ...] | None:
    """How what elementwise operators make a value of was permuted, if it was."""
    while isinstance(x.op, (Map, Cast)):
        same = [y for y in x.inputs if y.type.shape == x.type.shape]
        if not same:
            return None
        x = same[0]
    return x.op.perm if isinstance(x.op, Permute) else None


class _TurnedBack:
    """Values before their permutation; None where another one than that is in it."""

    def __init__(self, perm: tuple[int, ...], places: list[int]) -> None:
        self.perm, self.places = perm, places
        self._known: dict[Node, Node | None] = {}

    def __call__(self, x: Node) -> Node | None:
        if x not in self._known:
            self._known[x] = self._of(x)
        return self._known[x]

    def _of(self, x: Node) -> Node | None:
        if isinstance(x.op, Permute) and x.op.perm == self.perm:
            return x.inputs[0]
        if isinstance(x.op, Constant):
            return x
        rank = x.type.rank
        if isinstance(x.op, (Map, Cast)) and rank == len(self.perm):
            made = [self(y) for y in x.inputs]
            known = [y for y in made if y is not None]
            return build.apply(x.op, *known, origin=x.origin) if len(known) == len(made) else None
        if rank == len(self.perm) and sum(n != 1 for n in x.type.shape) <= 1:
            return build.apply(Permute(tuple(self.places)), x, origin=x.origin)
        return None


def _pick(node: Node, shared: set[Node]) -> _Pick | None:
    """What a gather picks, if all its indices but one count along axes of their own."""
    op, (x, *index) = node.op, node.inputs
    assert isinstance(op, Gather)
    middle = broadcast_shapes(*(j.type.shape for j in index))
    along: dict[int, int] = {}
    free: list[int] = []
    diagonal: int | None = None
    for k, j in enumerate(index):
        a = _counted(j, x.type.shape[op.first + k], len(middle))
        if a is None:
            free.append(k)
        elif a in along.values():  # on a diagonal: the later one is a position
            free.append(k)
            diagonal = op.first + next(b for b in along if along[b] == a)
        elif a >= 0:
            along[k] = a
    if len(free) != 1:
        return None
    (f,) = free
    order = list(along.values())
    others = [n for a, n in enumerate(middle) if a not in order]
    whole = all(middle[a] == x.type.shape[op.first + k] for k, a in along.items())
    if order != sorted(set(order)) or any(n != 1 for n in others) or not whole:
        return None
    lead = len(middle) - index[f].type.rank
    own = (*(1,) * lead, *index[f].type.shape)
    line: list[Index] = [1] * x.type.rank
    for k, a in along.items():
        line[op.first + k] = own[a]
    position = (
        build.apply(Reshape(tuple(line)), index[f])
        if diagonal is None
        else build.apply(Iota(tuple(line), diagonal, i64))
    )
    return _Pick(op.first + f, position, node, shared)


def _counted(j: Node, extent: Index, rank: int) -> int | None:
    """Along which axis of the result an index counts all positions of its own; -1 where there is
    only one position, None if it does not count."""
    if isinstance(j.op, Expand):  # an index that was broadcast says the same
        j = j.inputs[0]
    if isinstance(j.op, Reshape):
        source = j.inputs[0]
        if isinstance(source.op, Iota) and source.type.rank == 1:
            places = [a for a, n in enumerate(j.type.shape) if n != 1]
            if len(places) == 1 and source.type.shape[0] == extent:
                return rank - j.type.rank + places[0]
        return None
    if isinstance(j.op, Iota) and j.type.shape[j.op.axis] == extent:
        return rank - j.type.rank + j.op.axis
    return -1 if extent == 1 else None
