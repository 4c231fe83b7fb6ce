"""A part of a graph that runs in rounds over a few rows at a time, its values being too large.

The way back through a large head needs every logit, and that of attention every score.  They
need not all be there at once: rows do not wait for one another, but for sums over them.  So the
operators around the large values become a graph of their own for a block of rows, which is run
block after block; results with rows are written block by block, results without are carried along
and added to.  What stands before and behind is planned as ever.

    before    what rounds read and that is no input                 once
    body      z = x[rows] @ w.T, its loss, dx[rows], dw + dz.T @ x  for each block of rows
    after     loss / n                                              once

This is the chunking of rows that memory-efficient losses do by hand (P. Hsu et al., "Liger Kernel",
2024), here for whatever operators stand around a value that no cache holds.  An axis of rows is
found by asking each operator's definition where it reads; an operator that mixes rows otherwise
than by a sum, a product or a largest element stands outside, or nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from smelt.blocks import FIRST_ROW, ROUND_ROWS, WHOLE
from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.rows import NotCut, Part, Rows
from smelt.fusion.state import SMALL
from smelt.fusion.trace import Trace
from smelt.fusion.trace import trace as traced
from smelt.fusion.units import is_free
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import renew, sizes, users
from smelt.ops.combine import BEGINS, COMBINES
from smelt.ops.create import Constant, Input
from smelt.types.expr import Expr, Index, add, axes_of, size
from smelt.types.tensor import TensorType

_MIXES = "{} mixes rows"
MOST_EARLY, MOST_AGAIN = 6, 2
"""Folds over all rows that are made before rounds at most, and products that are made twice for
them: of a network whose layers each take moments of all rows, all would be."""
_ROUNDS = {row.scalar for row in COMBINES.values() if row.wide}
"""The scalar operators whose rounding adds up in a fold."""


@dataclass(frozen=True, slots=True)
class InRounds:
    """A graph taken apart.  All parts have its sizes; the body also has `rows`."""

    before: Graph
    """Its results are what rounds and `after` read that is no input."""
    body: Graph
    after: Graph
    """Its inputs are those of the whole graph, then `handed`."""
    reads: tuple[Part, ...]
    makes: tuple[Part, ...]
    handed: tuple[Node, ...]
    members: tuple[Node, ...]
    """What stands in rounds, in order, with the constants and positions that it reads."""
    of: Mapping[Node, Node]
    """The nodes of the whole graph, by those of `body` and `after` that stand for them."""
    extent: Index
    rows: str
    row_bytes: Index
    """Bytes of large values for one row."""
    again: bool = False
    """Whether rounds make again what folds over all rows were made of before."""


class Narrow(NotCut):
    """Rounds would add to sums that are stored in a type narrower than they are summed in."""

    def __init__(self, sums: Sequence[Node]) -> None:
        super().__init__("sums of sums would be rounded to half types in between")
        self.sums = frozenset(sums)


class _Waits(NotCut):
    """Some of the rounds read what is folded over the rows of all: `folds`, which have to be made
    before the rounds begin."""

    def __init__(self, how: str, folds: AbstractSet[Node]) -> None:
        super().__init__(how)
        self.folds = folds


def split(
    graph: Graph, large: Sequence[Node], hints: Mapping[str, int], least: int
) -> InRounds | None:
    """The graph with the operators around its `large` values in rounds, the largest of them first;
    None if nothing is summed over rows and more than a little is made of them: then nothing waits
    for all of them, and other schedules serve as well.  `least` are the bytes of a large value.

    Rows are those of the outermost axis that lets itself be cut into small blocks; of one along
    which folds of all rows would have to be made before, only where there is no other.  Raises
    NotCut if none does.
    """
    refused = NotCut("it has no rows")
    for waits in (False, True):
        idle = False
        for axis in (a for a, n in enumerate(large[0].type.shape) if n != 1):
            try:
                found = _split(graph, large, axis, Hints(hints), least, waits=waits)
            except Narrow:
                raise
            except NotCut as how:
                refused = how if str(refused) == "it has no rows" else refused
                continue
            if found is not None:
                return found
            idle = True
        if idle:
            return None
    raise refused


def _split(
    graph: Graph, large: Sequence[Node], axis: int, hints: Hints, least: int, *, waits: bool
) -> InRounds | None:
    early, readers = frozenset[Node](), users(graph)
    while True:
        if len(early) > MOST_EARLY:
            raise NotCut("too many sums of all rows would have to be made before")
        try:
            found = _Rounds(graph, readers, hints, least, early).run(large[0], axis, large)
            break
        except _Waits as how:
            if not waits or how.folds <= early:  # made before already, and still waited for
                raise
            early |= how.folds
        except SmeltError as error:
            raise NotCut("an operator has no form for a block of rows") from error
    if at_hints(found.row_bytes, hints) > least * 3 // 4:
        raise NotCut("a single row is too large")
    if at_hints(found.extent, hints) <= ROUND_ROWS:
        raise NotCut("it has few rows")
    made = sum(at_hints(p.node.type.nbytes, hints) for p in found.makes)
    if not any(p.combine for p in found.makes) and made * SMALL > least:
        return None
    return found


class _Rounds:
    """Grows a set of nodes around a large value until only small values cross its border."""

    def __init__(
        self,
        graph: Graph,
        readers: Mapping[Node, list[Node]],
        hints: Hints,
        least: int,
        early: AbstractSet[Node],
    ) -> None:
        self.graph, self.readers, self.hints, self.least = graph, readers, hints, least
        self.early = early
        """Folds over rows that are made before, of what the rounds make again."""
        self.ahead = {n for fold in early for n in Graph(graph.name, graph.inputs, (fold,)).nodes()}
        """All that is computed for them."""
        self.order = {n: k for k, n in enumerate(graph.nodes())}
        self.axis: dict[Node, int] = {}
        """The members, and which axis of theirs is cut: of the result, or beyond its rank one that
        a fold ends; WHOLE for views of what is not cut."""
        self.pending: list[Node] = []

    def run(self, seed: Node, axis: int, large: Iterable[Node]) -> InRounds:
        self.extent = seed.type.shape[axis]
        self.elements = at_hints(seed.type.elements, self.hints)
        self._add(seed, axis)
        self._grow()
        self._close()
        for node in self.axis:
            self._check(node)
        if sum(self.trace(n).dots > 0 for n in self.ahead & self.axis.keys()) > MOST_AGAIN:
            raise NotCut("too many products would be made twice")
        return self._parts([n for n in large if n in self.axis])

    # ---- growing -------------------------------------------------------------------------------

    def trace(self, node: Node) -> Trace:
        return traced(node.op, node.type, tuple((None, x.type, ()) for x in node.inputs))

    def _add(self, node: Node, axis: int) -> None:
        known = self.axis.get(node)
        if known is None:
            if not node.op.fusible or isinstance(node.op, (Input, Constant)):
                raise NotCut(f"{node.op.name} is one call for all rows")
            found = self.trace(node)
            if found.joins and not (axis >= node.type.rank and _begins(node, found.combine)):
                raise NotCut(f"{node.op.name} writes rows in no order")
            self.axis[node] = axis
            self.pending.append(node)
        elif known != axis:
            raise NotCut(f"{node.op.name} would be cut along two axes")

    def _is_large(self, node: Node) -> bool:
        """Whether a value is made in rounds: truth values of a large one's elements are too."""
        kind = node.type
        many = at_hints(kind.nbytes, self.hints) > self.least or (
            self.extent in kind.shape and at_hints(kind.elements, self.hints) >= self.elements
        )
        return many and not isinstance(node.op, Input)

    def _grow(self) -> None:
        while self.pending:
            node = self.pending.pop()
            axis = self.axis[node]
            for place, x in enumerate(node.inputs):
                cut = self.cut(node, place)
                if not x.inputs:
                    continue  # a source of the graph's, or what counts positions
                wide = cut != WHOLE and (self._is_large(x) or self._widens(x))
                own = not self._is_done(node) or cut == WHOLE  # rows, or what is joined to
                if (x.op.is_view and own) or wide:
                    self._add(x, cut)
            if axis >= node.type.rank and node not in self.graph.outputs:
                after = self.readers[node]
                for reader in after if all(r.op.is_view for r in after) else ():
                    self._add(reader, reader.type.rank)  # written as it is read
            if WHOLE < axis < node.type.rank and self._is_large(node):
                for reader in self.readers[node]:
                    if reader not in self.early:
                        self._add(reader, self._seen(reader, node, axis))

    def _widens(self, node: Node) -> bool:
        """Whether a node maps what it reads to something larger."""
        found = self.trace(node)
        stored = [x for x in node.inputs if x.inputs or isinstance(x.op, Input)]
        read = sum(at_hints(x.type.nbytes, self.hints) for x in stored)
        return (
            not found.folds
            and not found.dots
            and found.along < 0
            and node.op.fusible
            and read < at_hints(node.type.nbytes, self.hints)
        )

    def cut(self, node: Node, place: int) -> int:
        """Along which axis the rounds of a node cut one of its operands."""
        axis = self.axis[node]
        found: set[int] = set()
        for read in self.trace(node).reads:
            if read.leaf == place and axis != WHOLE:
                at = [k for k, t in enumerate(read.terms) if t == axis]
                if len(at) > 1 or any(
                    isinstance(t, Expr) and f"a{axis}" in axes_of(t) for t in read.terms
                ):
                    raise NotCut(_MIXES.format(node.op.name))
                found.update(at or [WHOLE])
        if len(found) > 1:
            raise NotCut(f"{node.op.name} reads it along two axes")
        return found.pop() if found else WHOLE

    def _seen(self, reader: Node, node: Node, axis: int) -> int:
        """Which axis of a reader an operand's axis is."""
        places = {k for k, x in enumerate(reader.inputs) if x is node}
        found = {r.terms[axis] for r in self.trace(reader).reads if r.leaf in places}
        if len(found) != 1 or not isinstance(t := found.pop(), int) or t < 0:
            raise NotCut(_MIXES.format(reader.op.name))
        return t

    def _close(self) -> None:
        """Takes up what stands between members."""
        reaching: set[Node] = set()
        for node in sorted(self.order, key=self.order.__getitem__, reverse=True):
            if any(r in self.axis or r in reaching for r in self.readers[node]):
                reaching.add(node)
        after: set[Node] = set()
        for node in self.order:
            waits = [x for x in node.inputs if x in after or self._is_done(x)]
            if (self._is_done(node) and node.op.is_view) or node in self.early:
                continue
            rows = [
                x
                for x in node.inputs
                if x in self.axis
                and not self._is_done(x)
                and self.axis[x] != WHOLE
                and not self._is_seen(x)
            ]
            if waits and (node in self.axis or node in reaching):
                how = f"{node.op.name} needs {waits[0].op.name} of all rows"
                raise _Waits(how, self._awaited(waits))
            if node in self.axis:
                continue
            if waits:
                after.add(node)
            elif rows and node in reaching:
                self._add(node, self._seen(node, rows[0], self.axis[rows[0]]))
                self._grow()
            elif rows:
                after.add(node)

    def _awaited(self, nodes: Iterable[Node]) -> AbstractSet[Node]:
        """The folds over rows that nodes behind the rounds are made of."""
        found: set[Node] = set()
        seen, pending = {*nodes}, [*nodes]
        while pending:
            node = pending.pop()
            if self._is_done(node) and not node.op.is_view:
                found.add(node)
                continue
            more = [x for x in node.inputs if x not in seen and (x in self.axis or x not in found)]
            seen.update(more)
            pending += more
        return found

    def _is_seen(self, node: Node) -> bool:
        """Whether a member is a view of what no round makes: others see it without rounds."""
        while node in self.axis and node.op.is_view:
            node, *_ = node.inputs
        return node not in self.axis

    def _is_done(self, node: Node) -> bool:
        """Whether a node is complete only after the last round."""
        return self.axis.get(node, WHOLE) >= node.type.rank

    def _check(self, node: Node) -> None:
        """All operands of a member are read in its own rows."""
        found = self.trace(node)
        axis = self.axis[node]
        if axis >= node.type.rank and node.op.is_view:
            return
        if axis >= node.type.rank and (found.positional or not found.combine):
            raise NotCut(f"parts of {node.op.name} cannot be joined")
        if found.along == axis != WHOLE:
            raise NotCut(_MIXES.format(node.op.name))
        if WHOLE < axis < node.type.rank and node.type.shape[axis] != self.extent:
            raise NotCut(f"{node.op.name} has other rows")
        for place, x in enumerate(node.inputs):
            if x in self.axis and self.axis[x] != self.cut(node, place):
                raise NotCut(_MIXES.format(node.op.name))

    # ---- the parts -----------------------------------------------------------------------------

    def _parts(self, large: Iterable[Node]) -> InRounds:
        rows = "rows"
        while rows in sizes(self.graph):
            rows += "_"
        self.rows = size(rows)
        made = Rows(self)
        members = sorted(self.axis, key=self.order.__getitem__)
        results = set(self.graph.outputs)
        inside = self.axis.keys() | self.ahead
        outside = [
            n for n in members if n in results or any(r not in inside for r in self.readers[n])
        ]
        outside = [n for n in outside if self.axis[n] != WHOLE and not self._is_seen(n)]
        self._leave(members, outside)
        if narrow := [n for n in map(self._fold, outside) if self._is_narrow(n)]:
            raise Narrow(narrow)
        if any(n not in self.axis for n in large):
            raise NotCut("no result of its rows needs it")
        for node in filter(self.axis.__contains__, members):
            made.add(node)
        makes = tuple(made.result(n, self.trace(self._fold(n)).combine) for n in outside)
        reads = tuple(made.reads.values())
        inputs = (*(p.inner for p in reads), *(p.given for p in makes if p.given is not None))
        body = Graph(self.graph.name, inputs, tuple(p.inner for p in makes))
        return self._around(body, reads, makes, made.new, rows, self._row_bytes(large))

    def _leave(self, members: Sequence[Node], outside: Iterable[Node]) -> None:
        """Leaves out what nothing needs that rounds make: views that others see without them."""
        wanted = set(outside)
        for node in reversed(members):
            if node in wanted:
                wanted.update(node.inputs)
            else:
                del self.axis[node]

    def _fold(self, node: Node) -> Node:
        """The fold that a result is, or a view of; a result with rows itself."""
        while node.op.is_view and self._is_done(node):
            (node,) = node.inputs
        return node

    def _is_narrow(self, node: Node) -> bool:
        """Whether it is a sum over rows in a type that sums are not made in."""
        rounds = self.trace(node).combine in _ROUNDS and self._is_done(node)
        return rounds and node.type.dtype.compute != node.type.dtype

    def _row_bytes(self, large: Iterable[Node]) -> Index:
        """Bytes that a row has of the large values; sums over rows have none, and are added to."""
        total: Index = 0
        for n in large:
            shape, axis = list(n.type.shape), self.axis[n]
            if WHOLE < axis < n.type.rank:
                shape[axis] = 1
                total = add(total, TensorType(n.type.dtype, tuple(shape)).nbytes)
        return total

    def _around(
        self,
        body: Graph,
        reads: tuple[Part, ...],
        makes: tuple[Part, ...],
        inner: Mapping[Node, Node],
        rows: str,
        row_bytes: Index,
    ) -> InRounds:
        graph = self.graph
        if any(isinstance(n.op, Constant) for n in graph.outputs):
            raise NotCut("a result is a constant")
        ours = {p.node for p in makes}
        late: dict[Node, None] = {}
        for node in self.order:
            behind = any(x in late or x in ours for x in node.inputs)
            if behind and node not in self.axis and node not in self.ahead:
                late[node] = None
        for node in reversed(self.order):
            if (
                node not in self.axis
                and is_free(node)
                and any(r in late for r in self.readers[node])
            ):
                late[node] = None  # whoever reads a view has it
        late = dict.fromkeys(n for n in self.order if n in late)
        read = (p.node for p in reads if p.axis != FIRST_ROW)
        early = dict.fromkeys(n for n in read if not isinstance(n.op, Input))
        for node in (*late, *graph.outputs):
            for x in node.inputs if node in late else (node,):
                if x not in late and x not in ours and not isinstance(x.op, (Input, Constant)):
                    early[x] = None
        if any(is_free(n) and n not in graph.outputs for n in early):
            raise NotCut("rounds would read a view that nobody writes")
        before = Graph(graph.name, graph.inputs, tuple(early), graph.facts)
        handed = tuple(dict.fromkeys(x for n in late for x in n.inputs if x in ours or x in early))
        new: dict[Node, Node] = {x: x for x in graph.inputs}
        for k, x in enumerate(handed):
            new[x] = build.input(f"given{k}", x.type)
        for n in late:
            new[n] = renew(n, tuple(new.get(x, x) for x in n.inputs))
        wanted = tuple(dict.fromkeys(n for n in graph.outputs if n in late))
        after = Graph(
            graph.name, (*graph.inputs, *(new[x] for x in handed)), tuple(new[n] for n in wanted)
        )
        of = {made: n for n, made in (*inner.items(), *((n, new[n]) for n in (*handed, *late)))}
        of |= {p.inner: p.node for p in (*reads, *makes)}
        of |= {p.given: p.node for p in makes if p.given is not None}
        return InRounds(
            before,
            body,
            after,
            reads,
            makes,
            handed,
            self._with_sources(reads),
            of,
            self.extent,
            rows,
            row_bytes,
            not self.ahead.isdisjoint(self.axis),
        )

    def _with_sources(self, reads: tuple[Part, ...]) -> tuple[Node, ...]:
        """The members, and what counts positions or is a constant among their operands."""
        read = {p.node for p in reads if p.axis != FIRST_ROW}
        found = set(self.axis)
        found |= {x for n in self.axis for x in n.inputs if not x.inputs and x not in read}
        return tuple(sorted(found, key=self.order.__getitem__))


def _begins(node: Node, combine: str) -> bool:
    """Whether a node joins values to what changes none of them: each round may begin with it."""
    first = node.inputs[0]
    while first.op.is_view:
        (first,) = first.inputs
    row = BEGINS.get(combine)
    return (
        row is not None
        and isinstance(first.op, Constant)
        and first.op.value == row(node.type.dtype)
    )


def block(part: InRounds, hints: Mapping[str, int], budget: int) -> int:
    """Rows of one round whose large values fit a budget of bytes; as even as may be."""
    return rows_within(at_hints(part.row_bytes, Hints(hints)), 1, budget)


def rows_within(nbytes: int, rows: int, budget: int) -> int:
    """Rows that fit a budget where so many of them take `nbytes`: whole register tiles if there are
    several.

    >>> rows_within(1000, 10, 9900), rows_within(1000, 10, 480), rows_within(1000, 10, 10)
    (96, 4, 1)
    """
    fit = max(budget * rows // max(nbytes, 1), 1)
    return fit // ROUND_ROWS * ROUND_ROWS if fit > ROUND_ROWS else fit


__all__ = ["InRounds", "NotCut", "Part", "block", "rows_within", "split"]
