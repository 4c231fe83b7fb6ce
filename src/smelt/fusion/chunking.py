"""Split a graph around large values into chunks of rows.

The backward pass through a large classifier needs every logit, that of attention every score. They
need not exist all at once: rows are independent except for sums over them. So the operators around
the large values become a graph of their own for a block of rows, which runs chunk after chunk.
Results with rows are stored block by block; results without are accumulated. What comes before and
after is planned as usual.

    before    what chunks read and that is not an input                 once
    body      z = x[rows] @ w.T, its loss, dx[rows], dw + dz.T @ x  for each block of rows
    after     loss / n                                              once

This is the row chunking that memory-efficient losses do by hand (P. Hsu et al., "Liger Kernel",
2024), here for whatever operators surround a value that no cache holds. The row axis is found by
evaluating where each operator's definition reads. An operator that mixes rows other than by a sum,
product, maximum or minimum stays outside, or nothing is chunked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from typing import Any, Protocol

from smelt.errors import SmeltError
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.state import SMALL_RATIO
from smelt.fusion.trace import Trace
from smelt.fusion.units import is_free, trace_of
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import all_size_names, users, with_inputs
from smelt.kernel.chunks import FIRST_ROW, WHOLE
from smelt.ops.combine import (
    CHOICE,
    COMBINES,
    EQUAL,
    ROUNDING_OPERATORS,
    SCALAR_IDENTITIES,
    SUM_OF_PRODUCTS,
)
from smelt.ops.create import Constant, Input
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i64
from smelt.types.expr import Expr, Index, add, axes_of, size
from smelt.types.tensor import TensorType

ADDED = COMBINES[SUM_OF_PRODUCTS[0]].scalar


@dataclass(frozen=True, slots=True)
class ChunkedValue:
    """A value that chunks read or produce, and its cut axis (or WHOLE)."""

    node: Node
    inner: Node
    axis: int
    combine: str = ""
    """For an accumulated result, the scalar operator that merges a chunk's part into it.

    `accumulator` is then the body's input for the value so far.
    """
    accumulator: Node | None = None


class CannotChunk(Exception):
    """The rows of a value cannot be cut along an axis.

    The text is the reason, as a clause.
    """


class ChunkAxes(Protocol):
    """The axes along which values are cut, and other facts that `Rows` needs."""

    @property
    def axis(self) -> Mapping[Node, int]:
        """Return the members, with the axis along which each is cut."""
        ...

    @property
    def order(self) -> Mapping[Node, int]:
        """Return the index of each node of the full graph."""
        ...

    @property
    def rows(self) -> Expr:
        """Return the size of a block of rows."""
        ...

    def cut(self, node: Node, operand_index: int) -> int:
        """Return the axis along which the chunks of a node cut one of its operands."""
        ...

    def trace(self, node: Node) -> Trace:
        """Return the reads and reductions of a node."""
        ...


class Rows:
    """Rebuilds the members for a block of rows."""

    def __init__(self, home: ChunkAxes) -> None:
        self.home = home
        self.new: dict[Node, Node] = {}
        self.reads: dict[tuple[Node, int], ChunkedValue] = {}
        self.start: ChunkedValue | None = None

    def add(self, node: Node) -> None:
        home = self.home
        axis = home.axis[node]
        inputs = tuple(self._operand(node, k, x) for k, x in enumerate(node.inputs))
        is_cut = WHOLE < axis < node.type.rank
        block_type = self._type(node.type, axis) if is_cut else node.type
        op = with_shape(node.op, node.type, block_type) if is_cut else node.op
        rebuilt = build.apply(op, *inputs, origin=node.origin)
        if rebuilt.type != block_type:
            raise CannotChunk(f"{node.op.name} has no form for a block of rows")
        self.new[node] = rebuilt

    def _type(self, old: TensorType, axis: int) -> TensorType:
        return TensorType(old.dtype, (*old.shape[:axis], self.home.rows, *old.shape[axis + 1 :]))

    def _operand(self, node: Node, operand_index: int, x: Node) -> Node:
        """Return a rebuilt member, a constant, or an input of the body."""
        if x in self.new:
            return self.new[x]
        if isinstance(x.op, Constant):
            return x
        if not x.inputs and not isinstance(x.op, Input):
            return self._source(x, self.home.cut(node, operand_index))
        cut = self.home.cut(node, operand_index)
        key = x, cut
        part = self.reads.get(key)
        if part is None:
            block_type = x.type if cut == WHOLE else self._type(x.type, cut)
            strides = x.op.strides if isinstance(x.op, Input) else None
            if cut > 0 and strides is None:
                last = len(block_type.shape) - 1
                strides = tuple(1 if d == last else None for d in range(last + 1))
            inner = build.input(f"r{len(self.reads)}", block_type, strides)
            part = self.reads[key] = ChunkedValue(x, inner, cut)
        return part.inner

    def _source(self, x: Node, cut: int) -> Node:
        """Return positions, counted from the start of the chunk."""
        counts = self.home.trace(x).counted_axis
        if cut == WHOLE:
            return x
        block_type = self._type(x.type, cut)
        block = build.apply(with_shape(x.op, x.type, block_type), origin=x.origin)
        if block.type != block_type or counts < 0:
            raise CannotChunk(f"{x.op.name} has no form for a block of rows")
        if counts != cut:
            return block
        return build.map(ADDED, block, build.cast(self._start(x), x.type.dtype), origin=x.origin)

    def _start(self, reader: Node) -> Node:
        """Return the number of the chunk's first row, as an input of the body."""
        if self.start is None:
            start = build.input("start", TensorType(i64))
            self.start = self.reads[reader, FIRST_ROW] = ChunkedValue(reader, start, FIRST_ROW)
        return self.start.inner

    def result(self, node: Node, combine: str) -> ChunkedValue:
        """Return a result of the body: a block of rows, or the updated accumulator."""
        axis, rebuilt = self.home.axis[node], self.new[node]
        if axis < node.type.rank:
            return ChunkedValue(node, rebuilt, axis)
        accumulator = build.input(f"so_far{len(self.reads)}_{self.home.order[node]}", node.type)
        identity = build.constant(SCALAR_IDENTITIES[combine](node.type.dtype), node.type.dtype)
        is_first = build.map(EQUAL, self._start(node), build.constant(0, i64))
        so_far = build.map(CHOICE, is_first, identity, accumulator)
        return ChunkedValue(node, build.map(combine, so_far, rebuilt), WHOLE, combine, accumulator)


def with_shape(op: Any, old: TensorType, new: TensorType) -> Any:
    """Return an operator with the fields that hold its result's shape replaced."""
    new_fields = {f.name: new.shape for f in fields(op) if getattr(op, f.name) == old.shape}
    return replace(op, **new_fields) if new_fields else op


_MIXES = "{} mixes rows"
MAX_EARLY, MAX_AGAIN = 6, 2
"""Maximum reductions over all rows that are computed before the chunks.

The second value limits the contractions computed twice for them. Networks whose layers each need
moments of all rows are not chunked.
"""


@dataclass(frozen=True, slots=True)
class ChunkedGraph:
    """A graph split for chunking. All parts have its sizes; the body also has `rows`."""

    before: Graph
    """Computes what chunks and `after` read other than inputs of the graph."""
    body: Graph
    after: Graph
    """Its inputs are those of the full graph, then values that it is handed."""
    reads: tuple[ChunkedValue, ...]
    written: tuple[ChunkedValue, ...]
    members: tuple[Node, ...]
    """The nodes that run in chunks, in order, with the constants and positions they read."""
    of: Mapping[Node, Node]
    """The nodes of the full graph by the nodes of `body` and `after` that compute them."""
    extent: Index
    rows: str
    row_bytes: Index
    """Bytes of large values per row."""
    recomputes: bool = False
    """Whether chunks recompute what reductions over all rows were computed from."""
    axis: int = 0
    """The axis of the largest value that is cut."""


class NarrowSums(CannotChunk):
    """Chunks would accumulate into sums of a narrower type than they are summed in."""

    def __init__(self, sums: Sequence[Node]) -> None:
        super().__init__("sums of sums would be rounded to half types in between")
        self.sums = frozenset(sums)


class _NeedsAllRows(CannotChunk):
    """Chunks read reductions over all rows: `reductions` would have to be computed before."""

    def __init__(self, how: str, reductions: AbstractSet[Node]) -> None:
        super().__init__(how)
        self.reductions = reductions


class _ReadsWholeSums(_NeedsAllRows):
    """Sums of all rows, or operators whose rows wait, are read by rows."""


def chunk_graph(
    graph: Graph,
    large: Sequence[Node],
    hints: Mapping[str, int],
    least: int,
    multiple: int,
    axes: Iterable[int] | None = None,
    *,
    saves_memory: bool = False,
) -> ChunkedGraph | None:
    """Split the graph so that the operators around its `large` values run in chunks.

    `large` starts with the largest value; `least` is the size in bytes of a large value; chunks
    have a `multiple` of rows. Rows are those of the outermost axis, of `axes` if passed, that can
    be cut into small blocks. An axis along which reductions over all rows have to be computed
    before is used only if there is no other. Returns None if nothing is summed over rows and the
    results are not small: then nothing waits for all rows, and other schedules serve as well,
    unless memory is what chunks are for (`saves_memory`). Raises CannotChunk if no axis can be cut.
    """
    refusal = CannotChunk("it has no rows")
    shape = large[0].type.shape
    every = [a for a in (range(len(shape)) if axes is None else axes) if shape[a] != 1]
    for may_precompute in (False, True):
        not_worth = False
        for axis in every:
            try:
                chunked = _split_along(
                    graph,
                    large,
                    axis,
                    Hints(hints),
                    least,
                    multiple,
                    may_precompute=may_precompute,
                    saves_memory=saves_memory,
                )
            except NarrowSums:
                raise
            except CannotChunk as reason:
                refusal = reason if str(refusal) == "it has no rows" else refusal
                continue
            if chunked is not None:
                return chunked
            not_worth = True
        if not_worth and not may_precompute:
            return None
    raise refusal


def _split_along(
    graph: Graph,
    large: Sequence[Node],
    axis: int,
    hints: Hints,
    least: int,
    multiple: int,
    *,
    may_precompute: bool,
    saves_memory: bool,
) -> ChunkedGraph | None:
    early, readers = frozenset[Node](), users(graph)
    while True:
        if len(early) > MAX_EARLY:
            raise CannotChunk("too many sums of all rows would have to be made before")
        try:
            grower = _ChunkGrower(graph, readers, hints, least, early)
            chunked = grower.run(large[0], axis, large)
            more = early | (grower.sums_beside_early() if early and saves_memory else early)
            if more == early or len(more) > MAX_EARLY:
                break
            early = more
        except _NeedsAllRows as reason:
            # computed before already, and still needed
            is_dear = isinstance(reason, _ReadsWholeSums) and not saves_memory
            if not may_precompute or is_dear or reason.reductions <= early:
                raise
            early |= reason.reductions
        except SmeltError as error:
            raise CannotChunk("an operator has no form for a block of rows") from error
    if at_hints(chunked.row_bytes, hints) > least * 3 // 4:
        raise CannotChunk("a single row is too large")
    if at_hints(chunked.extent, hints) <= multiple:
        raise CannotChunk("it has few rows")
    result_bytes = sum(at_hints(p.node.type.nbytes, hints) for p in chunked.written)
    is_summed = saves_memory or any(p.combine for p in chunked.written)
    if not is_summed and result_bytes * SMALL_RATIO > least:
        return None
    return chunked


class _ChunkGrower:
    """Grows a set of nodes around a large value until its border is small."""

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
        """Reductions over rows that are computed before, from what the chunks recompute."""
        self.ahead = {
            n for reduction in early for n in Graph(graph.name, graph.inputs, (reduction,)).nodes()
        }
        """Everything that is computed for `early`."""
        self.order = {n: k for k, n in enumerate(graph.nodes())}
        self.axis: dict[Node, int] = {}
        """The members, with the axis that is cut.

        That of the result, or beyond its rank one that a reduction reduces; WHOLE for views of what
        is not cut.
        """
        self.pending: list[Node] = []

    def run(self, seed: Node, axis: int, large: Iterable[Node]) -> ChunkedGraph:
        self.extent, self.seed_axis = seed.type.shape[axis], axis
        self.elements = at_hints(seed.type.elements, self.hints)
        self._add(seed, axis)
        self._grow()
        self._add_between()
        for node in self.axis:
            self._check(node)
        if sum(self.trace(n).dots > 0 for n in self.ahead & self.axis.keys()) > MAX_AGAIN:
            raise CannotChunk("too many products would be made twice")
        return self._build_parts([n for n in large if n in self.axis])

    # ---- growing -------------------------------------------------------------------------------

    def trace(self, node: Node) -> Trace:
        return trace_of(node)

    def _add(self, node: Node, axis: int) -> None:
        known_axis = self.axis.get(node)
        if known_axis is None:
            if not node.op.fusible or isinstance(node.op, (Input, Constant)):
                raise CannotChunk(f"{node.op.name} is one call for all rows")
            traced = self.trace(node)
            if traced.scatter_dims and not (
                axis >= node.type.rank and _starts_from_identity(node, traced.combine)
            ):
                raise CannotChunk(f"{node.op.name} writes rows in no order")
            self.axis[node] = axis
            self.pending.append(node)
        elif known_axis != axis:
            if WHOLE in (known_axis, axis) and max(known_axis, axis) >= node.type.rank:
                reason = f"{node.op.name} of sums of all rows is read by rows"
                raise _ReadsWholeSums(reason, {_without_views(node)})
            raise CannotChunk(f"{node.op.name} would be cut along two axes")

    def _is_large(self, node: Node) -> bool:
        """Return whether a value is computed in chunks.

        Large values are, and masks with as many elements.
        """
        value_type = node.type
        is_large = at_hints(value_type.nbytes, self.hints) > self.least or (
            self.extent in value_type.shape
            and at_hints(value_type.elements, self.hints) >= self.elements
        )
        return is_large and not isinstance(node.op, Input)

    def _grow(self) -> None:
        while self.pending:
            node = self.pending.pop()
            axis = self.axis[node]
            for operand_index, x in enumerate(node.inputs):
                cut = self.cut(node, operand_index)
                if not x.inputs:
                    continue  # an input, a constant or positions
                grows = cut != WHOLE and (self._is_large(x) or self._widens(x))
                # rows, or the destination of a scatter
                follows = not self._is_accumulated(node) or cut == WHOLE
                if (x.op.is_view and follows) or grows:
                    self._add(x, cut)
            if axis >= node.type.rank and node not in self.graph.outputs:
                readers = self.readers[node]
                for reader in readers if all(map(self._moves_elements, readers)) else ():
                    self._add(reader, reader.type.rank)  # stored in the shape that it is read in
            if WHOLE < axis < node.type.rank and self._is_large(node):
                for reader in self.readers[node]:
                    if reader not in self.early:
                        self._add(reader, self._axis_in_reader(reader, node, axis))

    def _moves_elements(self, node: Node) -> bool:
        """Return whether a node is a view without elements of its own, such as padding.

        Those would be merged chunk after chunk like parts of a reduction.
        """
        return node.op.is_view and not self.trace(node).guards

    def _widens(self, node: Node) -> bool:
        """Return whether a node is elementwise with a result larger than its operands."""
        traced = self.trace(node)
        operands = [x for x in node.inputs if x.inputs or isinstance(x.op, Input)]
        read_bytes = sum(at_hints(x.type.nbytes, self.hints) for x in operands)
        return (
            not traced.reductions
            and not traced.dots
            and traced.scan_axis < 0
            and node.op.fusible
            and read_bytes < at_hints(node.type.nbytes, self.hints)
        )

    def cut(self, node: Node, operand_index: int) -> int:
        """Return the axis along which the chunks of a node cut one of its operands."""
        axis = self.axis[node]
        axes: set[int] = set()
        for read in self.trace(node).reads:
            if read.leaf == operand_index and axis != WHOLE:
                dimensions = [k for k, t in enumerate(read.terms) if t == axis]
                if len(dimensions) > 1 or any(
                    isinstance(t, Expr) and f"a{axis}" in axes_of(t) for t in read.terms
                ):
                    raise CannotChunk(_MIXES.format(node.op.name))
                axes.update(dimensions or [WHOLE])
        if len(axes) > 1:
            raise CannotChunk(f"{node.op.name} reads it along two axes")
        return axes.pop() if axes else WHOLE

    def _axis_in_reader(self, reader: Node, node: Node, axis: int) -> int:
        """Return which axis of a reader an operand's axis is."""
        operands = {k for k, x in enumerate(reader.inputs) if x is node}
        terms = {r.terms[axis] for r in self.trace(reader).reads if r.leaf in operands}
        if len(terms) != 1 or not isinstance(t := terms.pop(), int) or t < 0:
            raise CannotChunk(_MIXES.format(reader.op.name))
        return t

    def _add_between(self) -> None:
        reaching: set[Node] = set()
        for node in sorted(self.order, key=self.order.__getitem__, reverse=True):
            if any(r in self.axis or r in reaching for r in self.readers[node]):
                reaching.add(node)
        after: set[Node] = set()
        for node in self.order:
            unfinished = [x for x in node.inputs if x in after or self._is_accumulated(x)]
            if (self._is_accumulated(node) and node.op.is_view) or node in self.early:
                continue
            with_rows = [
                x
                for x in node.inputs
                if x in self.axis
                and not self._is_accumulated(x)
                and self.axis[x] != WHOLE
                and not self._is_outside_view(x)
            ]
            if unfinished and (node in self.axis or node in reaching):
                reason = f"{node.op.name} needs {unfinished[0].op.name} of all rows"
                raise _NeedsAllRows(reason, self._reductions_needed(unfinished))
            if node in self.axis:
                continue
            if unfinished:
                after.add(node)
            elif with_rows and node in reaching:
                self._add(node, self._axis_in_reader(node, with_rows[0], self.axis[with_rows[0]]))
                self._grow()
            elif with_rows:
                after.add(node)

    def _reductions_needed(self, nodes: Iterable[Node]) -> AbstractSet[Node]:
        """Return the reductions over rows that nodes after the chunks depend on."""
        reductions: set[Node] = set()
        seen, pending = {*nodes}, [*nodes]
        while pending:
            node = pending.pop()
            if self._is_accumulated(node) and not node.op.is_view:
                reductions.add(node)
                continue
            operands = [
                x for x in node.inputs if x not in seen and (x in self.axis or x not in reductions)
            ]
            seen.update(operands)
            pending += operands
        return reductions

    def sums_beside_early(self) -> AbstractSet[Node]:
        """Return other reductions over rows of what is computed before for `early`.

        The pass that reduces those has their operands, which chunks would store to reduce them.
        """
        waiting: set[Node] = set()
        result: set[Node] = set()
        for node in self.order:
            is_new = node in self.axis and node not in self.ahead
            multiplies = is_new and self.trace(node).dots > 0
            if node in self.early or multiplies or not waiting.isdisjoint(node.inputs):
                waiting.add(node)
            elif self._is_accumulated(node) and not node.op.is_view:
                result.add(node)
        return result

    def _is_outside_view(self, node: Node) -> bool:
        """Return whether a member is a view of a value that no chunk computes.

        Readers outside can have it without chunks.
        """
        while node in self.axis and node.op.is_view:
            node, *_ = node.inputs
        return node not in self.axis

    def _is_accumulated(self, node: Node) -> bool:
        """Return whether a node is complete only after the last chunk."""
        return self.axis.get(node, WHOLE) >= node.type.rank

    def _check(self, node: Node) -> None:
        """Check that all operands of a member are read in its own rows. Raises CannotChunk."""
        traced = self.trace(node)
        axis = self.axis[node]
        if axis >= node.type.rank and node.op.is_view:
            return
        if axis >= node.type.rank and (traced.positional or not traced.combine):
            raise CannotChunk(f"parts of {node.op.name} cannot be joined")
        if traced.scan_axis == axis != WHOLE:
            raise CannotChunk(_MIXES.format(node.op.name))
        if WHOLE < axis < node.type.rank and node.type.shape[axis] != self.extent:
            raise CannotChunk(f"{node.op.name} has other rows")
        for operand_index, x in enumerate(node.inputs):
            if x in self.axis and self.axis[x] != self.cut(node, operand_index):
                raise CannotChunk(_MIXES.format(node.op.name))

    # ---- the parts -----------------------------------------------------------------------------

    def _build_parts(self, large: Iterable[Node]) -> ChunkedGraph:
        rows = "rows"
        while rows in all_size_names(self.graph):
            rows += "_"
        self.rows = size(rows)
        rows_graph = Rows(self)
        members = sorted(self.axis, key=self.order.__getitem__)
        results = set(self.graph.outputs)
        internal = self.axis.keys() | self.ahead
        stored = [
            n for n in members if n in results or any(r not in internal for r in self.readers[n])
        ]
        stored = [n for n in stored if self.axis[n] != WHOLE and not self._is_outside_view(n)]
        self._drop_unneeded(members, stored)
        if narrow_sums := [n for n in map(self._reduction_of, stored) if self._is_narrow(n)]:
            raise NarrowSums(narrow_sums)
        if any(n not in self.axis for n in large):
            raise CannotChunk("no result of its rows needs it")
        for node in filter(self.axis.__contains__, members):
            rows_graph.add(node)
        makes = tuple(
            rows_graph.result(n, self.trace(self._reduction_of(n)).combine) for n in stored
        )
        reads = tuple(rows_graph.reads.values())
        inputs = (
            *(p.inner for p in reads),
            *(p.accumulator for p in makes if p.accumulator is not None),
        )
        body = Graph(self.graph.name, inputs, tuple(p.inner for p in makes))
        return self._assemble(body, reads, makes, rows_graph.new, rows, self._row_bytes(large))

    def _drop_unneeded(self, members: Sequence[Node], stored: Iterable[Node]) -> None:
        """Remove members that no stored member needs.

        They are views that readers outside have themselves.
        """
        needed = set(stored)
        for node in reversed(members):
            if node in needed:
                needed.update(node.inputs)
            else:
                del self.axis[node]

    def _reduction_of(self, node: Node) -> Node:
        """Return the reduction that a result is or views; a result with rows itself."""
        while node.op.is_view and self._is_accumulated(node):
            (node,) = node.inputs
        return node

    def _is_narrow(self, node: Node) -> bool:
        """Return whether a node is a sum over rows in a narrower type."""
        is_sum = self.trace(node).combine in ROUNDING_OPERATORS and self._is_accumulated(node)
        return is_sum and node.type.dtype.compute != node.type.dtype

    def _row_bytes(self, large: Iterable[Node]) -> Index:
        """Return the bytes per row of the large values; accumulated sums have none."""
        row_bytes: Index = 0
        for n in large:
            shape, axis = list(n.type.shape), self.axis[n]
            if WHOLE < axis < n.type.rank:
                shape[axis] = 1
                row_bytes = add(row_bytes, TensorType(n.type.dtype, tuple(shape)).nbytes)
        return row_bytes

    def _assemble(
        self,
        body: Graph,
        reads: tuple[ChunkedValue, ...],
        makes: tuple[ChunkedValue, ...],
        inner: Mapping[Node, Node],
        rows: str,
        row_bytes: Index,
    ) -> ChunkedGraph:
        graph = self.graph
        if any(isinstance(n.op, Constant) for n in graph.outputs):
            raise CannotChunk("a result is a constant")
        chunk_results = {p.node for p in makes}
        after_nodes: dict[Node, None] = {}
        for node in self.order:
            depends = any(x in after_nodes or x in chunk_results for x in node.inputs)
            if depends and node not in self.axis and node not in self.ahead:
                after_nodes[node] = None
        for node in reversed(self.order):
            if (
                node not in self.axis
                and is_free(node)
                and any(r in after_nodes for r in self.readers[node])
            ):
                after_nodes[node] = None  # a view goes to its reader
        after_nodes = dict.fromkeys(n for n in self.order if n in after_nodes)
        loaded = (p.node for p in reads if p.axis != FIRST_ROW)
        before_nodes = dict.fromkeys(n for n in loaded if not isinstance(n.op, Input))
        for node in (*after_nodes, *graph.outputs):
            for x in node.inputs if node in after_nodes else (node,):
                if (
                    x not in after_nodes
                    and x not in chunk_results
                    and not isinstance(x.op, (Input, Constant))
                ):
                    before_nodes[x] = None
        if any(is_free(n) and n not in graph.outputs for n in before_nodes):
            raise CannotChunk("rounds would read a view that nobody writes")
        before = Graph(graph.name, graph.inputs, tuple(before_nodes), graph.facts)
        handed = tuple(
            dict.fromkeys(
                x for n in after_nodes for x in n.inputs if x in chunk_results or x in before_nodes
            )
        )
        new: dict[Node, Node] = {x: x for x in graph.inputs}
        for k, x in enumerate(handed):
            new[x] = build.input(f"given{k}", x.type)
        for n in after_nodes:
            new[n] = with_inputs(n, tuple(new.get(x, x) for x in n.inputs))
        results = tuple(dict.fromkeys(n for n in graph.outputs if n in after_nodes))
        after = Graph(
            graph.name, (*graph.inputs, *(new[x] for x in handed)), tuple(new[n] for n in results)
        )
        of = {
            clone: n
            for n, clone in (*inner.items(), *((n, new[n]) for n in (*handed, *after_nodes)))
        }
        of |= {p.inner: p.node for p in (*reads, *makes) if p.axis != FIRST_ROW}
        of |= {p.accumulator: p.node for p in makes if p.accumulator is not None}
        return ChunkedGraph(
            before,
            body,
            after,
            reads,
            makes,
            self._with_sources(reads),
            of,
            self.extent,
            rows,
            row_bytes,
            not self.ahead.isdisjoint(self.axis),
            self.seed_axis,
        )

    def _with_sources(self, reads: tuple[ChunkedValue, ...]) -> tuple[Node, ...]:
        """Return the members, with the constants and positions among their operands."""
        loaded = {p.node for p in reads if p.axis != FIRST_ROW}
        nodes = set(self.axis)
        nodes |= {x for n in self.axis for x in n.inputs if not x.inputs and x not in loaded}
        return tuple(sorted(nodes, key=self.order.__getitem__))


def _without_views(node: Node) -> Node:
    """Return the node that views are views of."""
    while node.op.is_view:
        (node,) = node.inputs
    return node


def _starts_from_identity(node: Node, combine: str) -> bool:
    """Return whether a node scatters into the identity of its operator.

    Then each chunk may start from that value.
    """
    first = _without_views(node.inputs[0])
    row = SCALAR_IDENTITIES.get(combine)
    return (
        row is not None
        and isinstance(first.op, Constant)
        and first.op.value == row(node.type.dtype)
    )


def chunk_rows(part: ChunkedGraph, hints: Mapping[str, int], budget: int, multiple: int) -> int:
    """Return the rows of a chunk whose large values fit a budget of bytes."""
    return rows_that_fit(at_hints(part.row_bytes, Hints(hints)), 1, budget, multiple)


def rows_that_fit(nbytes: int, rows: int, budget: int, multiple: int) -> int:
    """Return the rows that fit a budget of bytes where `rows` of them take `nbytes`.

    Rounded down to a multiple if there are more, which fills whole tiles.

    >>> [rows_that_fit(1000, 10, budget, 48) for budget in (9900, 480, 10)]
    [96, 4, 1]
    """
    rows_fitting = max(budget * rows // max(nbytes, 1), 1)
    return rows_fitting // multiple * multiple if rows_fitting > multiple else rows_fitting
