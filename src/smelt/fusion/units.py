"""The graph as the planner sees it: numbered values, and edges that look through views.

Views and sources (constants, positions, sizes) are free: they are pulled into whoever reads them.
What is left are *units*, the operators that compute, and the graph's inputs.  An edge says at which
position a unit reads another value, in terms of the unit's own axes: those of its result, then
those that end in it.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,4], b: f32[4]) {
...   v0 = permute(x) {perm=(1, 0)}
...   v1 = exp(v0)
...   v2 = reduce.sum(v1) {axes=(1,)}
...   return v2
... }''')
>>> units = Units(graph)
>>> [str(unit.node.op.name) for unit in units.units], [e.terms for e in units.unit(3).edges]
(['exp', 'reduce.sum'], [(0, 1)])
>>> [e.terms for e in units.unit(2).edges]
[(1, 0)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from smelt.dataclass import dataclass
from smelt.fusion.trace import Read, Term, Trace, trace
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input
from smelt.types.affine import coefficient
from smelt.types.dtype import bool_
from smelt.types.expr import Expr, Index, add, axes_of, axis, mul, product

if TYPE_CHECKING:
    from smelt.fusion.range_outputs import Part
    from smelt.fusion.region import Region

TESTS, PACKED = 200, 20
"""Tests of positions for one element of a view, by all who read it, from which on it is a unit; and
against how many of them each counts where products pack what is read: elsewhere rows are tested at
their ends alone."""
STILL = -1
"""The term of a dimension that is read at one place (it has extent 1)."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A read of value number `producer`, one term for each of its dimensions.

    A term is the number of one of the reader's axes where the read follows that axis exactly,
    `STILL` where the position is 0, and an index expression over the axes a0, a1, .. otherwise.
    """

    producer: int
    terms: tuple[Term, ...]
    simple: bool
    """No term is an expression."""
    same: bool = False
    """The reader's own position, dimension by dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """An operator that computes, or a view that must be written."""

    number: int
    node: Node
    rank: int
    axes: tuple[int, ...]
    """Extents (numbers in `Units.extents`) of the result's axes, then of those that end here."""
    edges: tuple[Edge, ...]
    trace: Trace
    is_library: bool
    """Runs as one call outside the compiler's own kernels."""
    is_fold: bool = False
    along: int = -1
    """The result's axis that a scan runs along; -1 for anything else."""
    factors: tuple[tuple[Edge, ...], ...] = ()
    """Of a product, the reads of either factor: several where it is put together."""

    @property
    def joins(self) -> bool:
        """Whether it writes at places that depend on data: it ends a kernel."""
        return self.trace.joins > 0

    @property
    def ended(self) -> tuple[int, ...]:
        """Extents of the axes that end here."""
        return self.axes[self.rank :]


def is_free(node: Node) -> bool:
    """Costs nothing and is pulled into whoever reads it."""
    return (node.op.is_view or node.op.is_source) and not isinstance(node.op, Input)


DOT_CODE = 100
"""Scalar operations that the code of one product is as long as: tiles of several widths, what is
left over at every edge, and packing.  A dozen of them are a kernel that LLVM takes a second for."""


def is_contraction(node: Node) -> bool:
    """Whether an operator multiplies and sums: found by asking its definition."""
    return node.op.fusible and trace_of(node).dots > 0


def is_library(node: Node) -> bool:
    """Whether a node becomes one library call instead of a part of a kernel."""
    return not isinstance(node.op, Input) and not node.op.fusible


def trace_of(node: Node) -> Trace:
    """What the definition of a node reads, through no view."""
    return trace(node.op, node.type, tuple((None, x.type, ()) for x in node.inputs))


class Units:
    """The values of a graph by number: inputs first, then units, operands before readers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order = {node: k for k, node in enumerate(graph.nodes())}
        self.inputs = tuple(node for node in self.order if isinstance(node.op, Input))
        written = {node for node in graph.outputs if not isinstance(node.op, Input)}
        for node in self.order:
            if is_library(node):
                written.update(x for x in node.inputs if is_free(x) and not _is_strided(x))
        self.tested = _often_tested(graph)
        """Views that are no longer free: they are units, which a plan stores or computes again."""
        self.values: list[Node] = list(self.inputs)
        self.values += [
            node
            for node in self.order
            if not isinstance(node.op, Input) and (node in written or self._is_leaf(node))
        ]
        self.number = {node: k for k, node in enumerate(self.values)}
        self.written = written
        self.extents: list[Index] = []
        self._extent_numbers: dict[Index, int] = {}
        self._volumes: dict[int, Index] = {}
        self._pulled: dict[int, tuple[Node, ...]] = {}
        self.regrouped: dict[tuple[object, ...], tuple[Term, ...]] = {}
        """Places of units that are walked under another shape, as regions have found them."""
        self.rewritten: dict[tuple[object, ...], tuple[Term, ...]] = {}
        """Index expressions of edges at places, as regions have found them."""
        self.behind: dict[tuple[Node, tuple[Index, ...]], tuple[Node, tuple[Index, ...]]] = {}
        """Elements of views, and the elements that they are."""
        self.masks: dict[tuple[Term, ...], int] = {}
        """The axes that places depend on, as regions have found them."""
        self.expressed: set[tuple[Term, ...]] = set()
        """Places with index expressions, as regions have found them."""
        self.one = self.extent_number(1)
        self.units = [self._unit(node) for node in self.values[len(self.inputs) :]]
        known = [*self.units[:1] * len(self.inputs), *self.units]
        self.unit: Callable[[int], Unit] = known.__getitem__  # of a value's number
        self.users = [0] * len(self.values)
        for unit, edge in ((u, e) for u in self.units for e in u.edges):
            self.users[edge.producer] |= 1 << unit.number
        self.loose = {
            k
            for k, node in enumerate(self.inputs)
            if isinstance(node.op, Input) and node.op.strides is not None
        }
        """Inputs whose rows need not follow one another."""
        self.operands = [0] * len(self.inputs)
        """For each value, the values that it reads."""
        self.operands += [sum({1 << e.producer for e in u.edges}) for u in self.units]
        self.folds = sum(1 << u.number for u in self.units if u.is_fold or u.along >= 0)
        """Units that fold or scan."""
        self.square = sum(1 << u.number for u in self.units if self._is_square(u))
        """Units with two axes of one extent."""
        self.joined = sum(1 << u.number for u in self.units if u.joins)
        """Units that write at places which depend on data."""
        self.everything = (1 << len(self.values)) - 1
        self.calls = sum(1 << u.number for u in self.units if u.is_library)
        traces = [u.trace for u in self.units]
        self.size = [0.0] * len(self.inputs)
        self.size += [t.size + t.cost + DOT_CODE * t.dots for t in traces]
        results = (n for n in graph.outputs if not isinstance(n.op, Input))
        self.outputs = sum({1 << self.number[n] for n in results})

    @cached_property
    def looked(self) -> dict[tuple[int, int], tuple[Region, Mapping[int, tuple[int, ...]] | None]]:
        """Sets of units as regions, with the shapes that their results are walked under: a search
        at other sizes finds them here."""
        return {}

    @cached_property
    def derived(self) -> dict[tuple[object, ...], object]:
        """What streams compute, as `smelt.fusion.derived_stream` has found it."""
        return {}

    @cached_property
    def ties(self) -> list[tuple[tuple[int, tuple[tuple[int, int], ...]], ...]]:
        """For each unit the values that it reads, and the dimensions of either that are one axis:
        32 numbers for each value."""
        found: list[tuple[tuple[int, tuple[tuple[int, int], ...]], ...]] = [()] * len(self.inputs)
        for unit in self.units:
            own = unit.number * 32
            pairs = [
                [
                    (own + t, e.producer * 32 + d)
                    for d, t in enumerate(e.terms)
                    if isinstance(t, int) and t >= 0
                ]
                for e in unit.edges
            ]
            found.append(
                tuple([(e.producer, tuple(p)) for e, p in zip(unit.edges, pairs, strict=True)])
            )
        return found

    @cached_property
    def picked(self) -> int:
        """Units that read at positions which data decide."""
        return sum(1 << u.number for u in self.units if u.trace.picks)

    @cached_property
    def views(self) -> int:
        """Views that are units, as somebody wants them written."""
        return sum(1 << u.number for u in self.units if u.node.op.is_view)

    @cached_property
    def ranges(self) -> dict[int, Part | None]:
        """Views that are ranges of a value, or none, as regions have found them."""
        return {}

    @cached_property
    def conditions(self) -> frozenset[int]:
        """The values that are conditions."""
        return frozenset(v for v, node in enumerate(self.values) if node.type.dtype == bool_)

    def _is_square(self, unit: Unit) -> bool:
        long = [e for e in unit.axes if e != self.one]
        return len(set(long)) < len(long) and not unit.is_library

    def is_unit(self, node: Node) -> bool:
        """Whether a node is computed (or written) by itself, not looked through."""
        return self.number.get(node, -1) >= len(self.inputs)

    def regroups(self, a: int, b: int) -> bool:
        """Whether two values have as many elements under different shapes."""
        one, other = self.values[a].type.shape, self.values[b].type.shape
        return one != other and self._volume(a) == self._volume(b)

    def _volume(self, v: int) -> Index:
        found = self._volumes.get(v)
        if found is None:
            found = self._volumes[v] = self.values[v].type.elements
        return found

    def _unit(self, node: Node) -> Unit:
        number = self.number[node]
        library = is_library(node)
        if library:
            leaves = dict.fromkeys(self._leaves_of_call(node))
            edges = tuple(Edge(self.number[x], (), True) for x in leaves)
            axes = tuple(map(self.extent_number, node.type.shape))
            return Unit(number, node, len(axes), axes, edges, Trace(), True)
        keys = tuple(self._key(x) for x in node.inputs)
        found = trace(node.op, node.type, keys)
        leaves_in_order = [leaf for x in node.inputs for leaf in self._leaves(x)]
        extents = node.type.shape + found.ended
        edges = [
            self._edge(read, leaves_in_order[read.leaf], extents, node.type.rank)
            for read in found.reads
        ]
        factors: list[list[Edge]] = [[], []] if found.dots else []
        for read, edge in zip(found.reads if found.dots else (), edges, strict=False):
            factors[read.leaf >= found.first].append(edge)
        axes = tuple(map(self.extent_number, extents))
        return Unit(
            number,
            node,
            node.type.rank,
            axes,
            tuple(dict.fromkeys(edges)),
            found,
            False,
            bool(found.ended),
            found.along,
            tuple(map(tuple, factors)),
        )

    def extent_number(self, e: Index) -> int:
        """The number in `extents` of an extent."""
        found = self._extent_numbers.get(e)
        if found is None:
            found = self._extent_numbers[e] = len(self.extents)
            self.extents.append(e)
        return found

    def _edge(self, read: Read, leaf: Node, extents: tuple[Index, ...], rank: int) -> Edge:
        terms = tuple(
            follow(term, dim, extents)
            for term, dim in zip(read.terms, leaf.type.shape, strict=True)
        )
        same = rank == len(terms) and all(t == k for k, t in enumerate(terms))
        return Edge(self.number[leaf], terms, all(isinstance(t, int) for t in terms), same)

    def _is_leaf(self, node: Node) -> bool:
        """Whether readers see `node` as a value instead of looking through it."""
        return not is_free(node) or node in self.tested

    def _key(self, node: Node) -> tuple[object, ...]:
        if self._is_leaf(node):
            return (None, node.type, ())
        return (node.op, node.type, tuple(self._key(x) for x in node.inputs))

    def _leaves(self, node: Node) -> Iterator[Node]:
        if self._is_leaf(node):
            yield node
        else:
            for x in node.inputs:
                yield from self._leaves(x)

    def _leaves_of_call(self, node: Node) -> Iterator[Node]:
        """A library call reads memory: its operands are values, strided views of them, or views
        that somebody writes for it."""
        for x in node.inputs:
            if x in self.number and is_free(x) and not _is_strided(x):
                yield x
            else:
                yield from self._leaves(x)

    def pulled(self, number: int) -> tuple[Node, ...]:
        """The free nodes that a unit looks through, in execution order."""
        known = self._pulled.get(number)
        if known is not None:
            return known
        found: dict[Node, None] = {}
        unit = self.unit(number)
        stack = list(unit.node.inputs)
        stop = {self.values[e.producer] for e in unit.edges} if unit.is_library else set[Node]()
        while stack:
            node = stack.pop()
            if not self._is_leaf(node) and node not in found and node not in stop:
                found[node] = None
                stack.extend(node.inputs)
        known = self._pulled[number] = tuple(sorted(found, key=self.order.__getitem__))
        return known


def _often_tested(graph: Graph) -> frozenset[Node]:
    """Views that would be tested for every reader anew, and too often for that.

    A test decides whether an element of a joined or padded array is this or that operand's.  A
    picture with a margin is a join of joins, dozens of tests an element: read by a convolution, it
    is cheaper to write once.  Such a view is a unit, and whether it is stored a decision.
    """
    nodes = [x for x in graph.nodes() if x.op.fusible]
    if not any(is_free(x) and trace_of(x).guards for x in nodes):
        return frozenset()
    tests: dict[Node, int] = {}
    for node in nodes:
        if is_free(node):
            own = trace_of(node)
            tests[node] = own.guards + sum(tests.get(x, 0) for x in _read(node, own))
    reads: dict[Node, int] = {}
    found: set[Node] = set()
    for node in reversed(nodes):
        own, times = trace_of(node), 1
        if is_free(node) and node not in graph.outputs:
            times = reads.get(node, 0)
            if own.guards and times > 1 and times * tests[node] >= TESTS:
                found.add(node)
                times = 1
        elif own.dots:
            times = 2 * PACKED  # an element is read for several results
        for x in _read(node, own):
            reads[x] = reads.get(x, 0) + times
    return frozenset(found)


def _read(node: Node, own: Trace) -> Iterator[Node]:
    """The operands of a node, once for every place that it reads them at."""
    return (node.inputs[read.leaf] for read in own.reads)


def follow(term: Term, dim: Index, extents: tuple[Index, ...]) -> Term:
    """A term as an axis number, if it follows an axis of exactly the dimension's extent."""
    if isinstance(term, int) and term >= 0 and extents[term] != dim:
        return axis(f"a{term}", extents[term])
    return term


def _is_strided(node: Node) -> bool:
    """Whether a view of one value is a matter of strides, as a library wants it."""
    reads = trace(node.op, node.type, _keys_below(node))
    if reads.guards or len(reads.reads) != 1:
        return not reads.reads
    (read,) = reads.reads
    leaf = _only_leaf(node)
    offset: Index = 0
    for d, term in enumerate(read.terms):
        place = (
            0
            if term == STILL
            else axis(f"a{term}", node.type.shape[term])
            if isinstance(term, int)
            else term
        )
        offset = add(offset, mul(place, product(leaf.type.shape[d + 1 :])))
    names = axes_of(offset) if isinstance(offset, Expr) else ()
    return all(coefficient(offset, name) is not None for name in names)


def _keys_below(node: Node) -> tuple[tuple[object, ...], ...]:
    def key(x: Node) -> tuple[object, ...]:
        if not is_free(x):
            return (None, x.type, ())
        return (x.op, x.type, tuple(key(y) for y in x.inputs))

    return tuple(key(x) for x in node.inputs)


def _only_leaf(node: Node) -> Node:
    while is_free(node):
        node = next(x for x in node.inputs)
    return node
