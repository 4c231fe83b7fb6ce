"""Number the values of a graph and compose the index maps between them.

Views and sources (constants, positions, sizes) are free: they are inlined into their readers. What
remains are the graph's inputs and the *units*, the operators that compute. An edge says at which
position a unit reads another value, in terms of the unit's own axes: those of its result, then
those that it reduces.

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

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from smelt.fusion.trace import Read, Term, Trace, trace, view_key
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.walk import reachable
from smelt.ops.combine import ROUNDING_OPERATORS
from smelt.ops.create import Input
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_
from smelt.types.expr import Expr, Index, add, axes_of, axis, coefficient, mul, product

if TYPE_CHECKING:
    from smelt.fusion.range_outputs import RangeOutput
    from smelt.fusion.region import Region

MAX_TESTS, PACKED_READS = 200, 20
"""Maximum bounds tests per element of a view, over all its readers, before it becomes a unit.

The second value is how often each test counts where a contraction packs the view; elsewhere rows
are tested at their ends only.
"""
AT_ZERO = -1
"""The term of a dimension of extent 1, which is read at position 0."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A read of value number `producer`, with one term for each of its dimensions.

    A term is the number of one of the reader's axes if the read follows that axis exactly,
    `AT_ZERO` if the position is 0, else an index expression over the axes a0, a1, ..
    """

    producer: int
    terms: tuple[Term, ...]
    simple: bool
    """No term is an expression."""
    same: bool = False
    """Whether it reads the reader's own position in every dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """An operator that computes, or a view that must be stored."""

    number: int
    node: Node
    rank: int
    axes: tuple[int, ...]
    """Extents (numbers in `Units.extents`) of the result's axes, then of the reduced axes."""
    edges: tuple[Edge, ...]
    trace: Trace
    is_library: bool
    """Whether it runs as a library call instead of a generated kernel."""
    is_reduction: bool = False
    scan_axis: int = -1
    """The result's axis that a scan runs along; -1 for other operators."""
    factors: tuple[tuple[Edge, ...], ...] = ()
    """For a contraction, the reads of each factor: several if a factor combines several values."""

    @property
    def is_scatter(self) -> bool:
        """Return whether it scatters: it writes at data-dependent positions, and ends a kernel."""
        return self.trace.scatter_dims > 0

    @property
    def reduced_extents(self) -> tuple[int, ...]:
        """Return the extents of the reduced axes."""
        return self.axes[self.rank :]


def is_free(node: Node) -> bool:
    """Return whether a node costs nothing and is inlined into its readers."""
    return (node.op.is_view or node.op.is_source) and not isinstance(node.op, Input)


DOT_CODE = 100
"""Code size of a contraction, in scalar operations.

It covers tiles of several widths, remainders at every edge, and packing. A kernel with a dozen of
them takes LLVM about a second.
"""


def is_contraction(node: Node) -> bool:
    """Return whether an operator multiplies and sums, according to its definition."""
    return node.op.fusible and trace_of(node).dots > 0


def is_library(node: Node) -> bool:
    """Return whether a node becomes a library call instead of a part of a kernel."""
    return not isinstance(node.op, Input) and not node.op.fusible


def trace_of(node: Node) -> Trace:
    """Return the trace of a node's definition, not looking through views."""
    return trace(node.op, node.type, tuple((None, x.type, ()) for x in node.inputs))


class Units:
    """The values of a graph by number: inputs first, then units, operands before readers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order = {node: k for k, node in enumerate(graph.nodes())}
        self.inputs = tuple(node for node in self.order if isinstance(node.op, Input))
        materialized = {node for node in graph.outputs if not isinstance(node.op, Input)}
        for node in self.order:
            if is_library(node):
                materialized.update(x for x in node.inputs if _is_stored_for(node, x))
        self.materialized_views = _views_to_materialize(graph)
        """Views that are not free: they are units, which a plan stores or recomputes."""
        self.values: list[Node] = list(self.inputs)
        self.values += [
            node
            for node in self.order
            if not isinstance(node.op, Input) and (node in materialized or self._is_leaf(node))
        ]
        self.number = {node: k for k, node in enumerate(self.values)}
        self.written = materialized
        self.extents: list[Index] = []
        self._extent_numbers: dict[Index, int] = {}
        self._volumes: dict[int, Index] = {}
        self._pulled: dict[int, tuple[Node, ...]] = {}
        self.reshaped_positions: dict[tuple[object, ...], tuple[Term, ...]] = {}
        """Positions of units that are iterated over under another shape (cache of regions)."""
        self.composed_positions: dict[tuple[object, ...], tuple[Term, ...]] = {}
        """Index expressions of edges at positions (cache of regions)."""
        self.view_sources: dict[tuple[Node, tuple[Index, ...]], tuple[Node, tuple[Index, ...]]] = {}
        """Elements of views, and the elements of the viewed values (cache)."""
        self.masks: dict[tuple[Term, ...], int] = {}
        """The axes that positions depend on (cache of regions)."""
        self.expression_positions: set[tuple[Term, ...]] = set()
        """Positions with index expressions (cache of regions)."""
        self.one = self.extent_number(1)
        self.units = [self._unit(node) for node in self.values[len(self.inputs) :]]
        padded = [*self.units[:1] * len(self.inputs), *self.units]
        self.unit: Callable[[int], Unit] = padded.__getitem__  # of a value's number
        self.users = [0] * len(self.values)
        for unit, edge in ((u, e) for u in self.units for e in u.edges):
            self.users[edge.producer] |= 1 << unit.number
        self.strided_inputs = {
            k
            for k, node in enumerate(self.inputs)
            if isinstance(node.op, Input) and node.op.strides is not None
        }
        """Inputs with strides: their rows may be apart in memory."""
        self.constants = {
            k
            for k, node in enumerate(self.inputs)
            if isinstance(node.op, Input) and node.op.constant
        }
        """Inputs with the same elements in every call."""
        self.operands = [0] * len(self.inputs)
        """For each value, the values that it reads."""
        self.operands += [sum({1 << e.producer for e in u.edges}) for u in self.units]
        self.reductions = sum(
            1 << u.number for u in self.units if u.is_reduction or u.scan_axis >= 0
        )
        """Units that reduce or scan."""
        self.repeated_extents = sum(1 << u.number for u in self.units if self._is_square(u))
        """Units with two axes of equal extent."""
        self.scatters = sum(1 << u.number for u in self.units if u.is_scatter)
        """Units that write at data-dependent positions."""
        self.all_values = (1 << len(self.values)) - 1
        self.calls = sum(1 << u.number for u in self.units if u.is_library)
        traces = [u.trace for u in self.units]
        self.size = [0.0] * len(self.inputs)
        self.size += [t.size + t.cost + DOT_CODE * t.dots for t in traces]
        results = (n for n in graph.outputs if not isinstance(n.op, Input))
        self.outputs = sum({1 << self.number[n] for n in results})

    @cached_property
    def region_cache(self) -> dict[tuple[int, int], Region]:
        """Regions of sets of units; searches at other sizes share them."""
        return {}

    @cached_property
    def stream_cache(self) -> dict[tuple[object, ...], object]:
        """Cache of `smelt.fusion.stream_axes`."""
        return {}

    @cached_property
    def axis_links(self) -> list[tuple[tuple[int, tuple[tuple[int, int], ...]], ...]]:
        """Return for each unit its operands with the dimensions that are one axis.

        A dimension is numbered 32 * value + dimension.
        """
        links: list[tuple[tuple[int, tuple[tuple[int, int], ...]], ...]] = [()] * len(self.inputs)
        for unit in self.units:
            first = unit.number * 32
            pairs = [
                [
                    (first + t, e.producer * 32 + d)
                    for d, t in enumerate(e.terms)
                    if isinstance(t, int) and t >= 0
                ]
                for e in unit.edges
            ]
            links.append(
                tuple([(e.producer, tuple(p)) for e, p in zip(unit.edges, pairs, strict=True)])
            )
        return links

    @cached_property
    def gathers(self) -> int:
        """Units that read at data-dependent positions."""
        return sum(1 << u.number for u in self.units if u.trace.data_positions)

    @cached_property
    def ordered(self) -> int:
        """Units whose rounding depends on the order in which they add or multiply elements."""
        return sum(
            1 << u.number
            for u in self.units
            if u.trace.combine in ROUNDING_OPERATORS and u.node.type.dtype.is_float
        )

    @cached_property
    def views(self) -> int:
        """Views that are units because they are stored."""
        return sum(1 << u.number for u in self.units if u.node.op.is_view)

    @cached_property
    def ranges(self) -> dict[int, RangeOutput | None]:
        """Return the range of each view that is one (cache of regions)."""
        return {}

    @cached_property
    def conditions(self) -> frozenset[int]:
        """Return the values of boolean type."""
        return frozenset(v for v, node in enumerate(self.values) if node.type.dtype == bool_)

    def _is_square(self, unit: Unit) -> bool:
        long = [e for e in unit.axes if e != self.one]
        return len(set(long)) < len(long) and not unit.is_library

    def is_unit(self, node: Node) -> bool:
        """Return whether a node is computed or stored by itself, not inlined."""
        return self.number.get(node, -1) >= len(self.inputs)

    def regroups(self, a: int, b: int) -> bool:
        """Return whether two values have as many elements under different shapes."""
        first, second = self.values[a].type.shape, self.values[b].type.shape
        return first != second and self._volume(a) == self._volume(b)

    def _volume(self, v: int) -> Index:
        elements = self._volumes.get(v)
        if elements is None:
            elements = self._volumes[v] = self.values[v].type.elements
        return elements

    def _unit(self, node: Node) -> Unit:
        number = self.number[node]
        library = is_library(node)
        if library:
            leaves = dict.fromkeys(self._leaves_of_call(node))
            edges = tuple(Edge(self.number[x], (), True) for x in leaves)
            axes = tuple(map(self.extent_number, node.type.shape))
            return Unit(number, node, len(axes), axes, edges, Trace(), True)
        keys = tuple(view_key(x, self._is_leaf) for x in node.inputs)
        traced = trace(node.op, node.type, keys)
        leaves_in_order = [leaf for x in node.inputs for leaf in self._leaves(x)]
        extents = node.type.shape + traced.reduced_extents
        edges = [
            self._edge(read, leaves_in_order[read.leaf], extents, node.type.rank)
            for read in traced.reads
        ]
        factors: list[list[Edge]] = [[], []] if traced.dots else []
        for read, edge in zip(traced.reads if traced.dots else (), edges, strict=False):
            factors[read.leaf >= traced.first].append(edge)
        axes = tuple(map(self.extent_number, extents))
        return Unit(
            number,
            node,
            node.type.rank,
            axes,
            tuple(dict.fromkeys(edges)),
            traced,
            False,
            bool(traced.reduced_extents),
            traced.scan_axis,
            tuple(map(tuple, factors)),
        )

    def extent_number(self, e: Index) -> int:
        """Return the number of an extent in `extents`."""
        number = self._extent_numbers.get(e)
        if number is None:
            number = self._extent_numbers[e] = len(self.extents)
            self.extents.append(e)
        return number

    def _edge(self, read: Read, leaf: Node, extents: tuple[Index, ...], rank: int) -> Edge:
        terms = tuple(
            to_axis_number(term, dim, extents)
            for term, dim in zip(read.terms, leaf.type.shape, strict=True)
        )
        same = rank == len(terms) and all(t == k for k, t in enumerate(terms))
        return Edge(self.number[leaf], terms, all(isinstance(t, int) for t in terms), same)

    def _is_leaf(self, node: Node) -> bool:
        """Return whether readers see `node` as a value instead of looking through it."""
        return not is_free(node) or node in self.materialized_views

    def _leaves(self, node: Node) -> Iterator[Node]:
        if self._is_leaf(node):
            yield node
        else:
            for x in node.inputs:
                yield from self._leaves(x)

    def _leaves_of_call(self, node: Node) -> Iterator[Node]:
        """Iterate over the operands of a library call, which reads memory.

        They are values, strided views of values, or views that are stored for it.
        """
        for x in node.inputs:
            if x in self.number and _is_stored_for(node, x):
                yield x
            else:
                yield from self._leaves(x)

    def pulled(self, number: int) -> tuple[Node, ...]:
        """Return the free nodes that a unit looks through, in execution order."""
        nodes = self._pulled.get(number)
        if nodes is not None:
            return nodes
        unit = self.unit(number)
        stop = {self.values[e.producer] for e in unit.edges} if unit.is_library else set[Node]()

        def operands(node: Node) -> list[Node]:
            return [x for x in node.inputs if not self._is_leaf(x) and x not in stop]

        free_nodes = reachable(operands(unit.node), operands)
        nodes = self._pulled[number] = tuple(sorted(free_nodes, key=self.order.__getitem__))
        return nodes


def _views_to_materialize(graph: Graph) -> frozenset[Node]:
    """Return views whose bounds tests would be repeated too often by their readers.

    A test decides which operand an element of a concatenated or padded array comes from. A padded
    image may be a concatenation of concatenations, with dozens of tests per element: it is cheaper
    to store it once for a convolution. Such a view becomes a unit; the search decides whether it is
    stored.
    """
    nodes = [x for x in graph.nodes() if x.op.fusible]
    if not any(is_free(x) and trace_of(x).guards for x in nodes):
        return frozenset()
    tests: dict[Node, int] = {}
    for node in nodes:
        if is_free(node):
            traced = trace_of(node)
            tests[node] = traced.guards + sum(tests.get(x, 0) for x in _operands_read(node, traced))
    reads: dict[Node, int] = {}
    views: set[Node] = set()
    for node in reversed(nodes):
        traced, reads_here = trace_of(node), 1
        if is_free(node) and node not in graph.outputs:
            reads_here = reads.get(node, 0)
            if traced.guards and reads_here > 1 and reads_here * tests[node] >= MAX_TESTS:
                views.add(node)
                reads_here = 1
        elif traced.dots:
            reads_here = 2 * PACKED_READS  # each element is read for several results
        for x in _operands_read(node, traced):
            reads[x] = reads.get(x, 0) + reads_here
    return frozenset(views)


def _operands_read(node: Node, traced: Trace) -> Iterator[Node]:
    return (node.inputs[read.leaf] for read in traced.reads)


def to_axis_number(term: Term, dim: Index, extents: tuple[Index, ...]) -> Term:
    """Return a term as an axis number if it follows a full axis exactly."""
    if isinstance(term, int) and term >= 0 and extents[term] != dim:
        return axis(f"a{term}", extents[term])
    return term


def _is_stored_for(call: Node, operand: Node) -> bool:
    """Return whether a view is stored for the call or loop that reads it."""
    return is_free(operand) and (isinstance(call.op, Loop) or not _is_strided(operand))


def _is_strided(node: Node) -> bool:
    """Return whether a view of one value can be expressed by strides."""
    keys = tuple(view_key(x, lambda y: not is_free(y)) for x in node.inputs)
    reads = trace(node.op, node.type, keys)
    if reads.guards or len(reads.reads) != 1:
        return not reads.reads
    (read,) = reads.reads
    leaf = _only_leaf(node)
    offset: Index = 0
    for d, term in enumerate(read.terms):
        place = (
            0
            if term == AT_ZERO
            else axis(f"a{term}", node.type.shape[term])
            if isinstance(term, int)
            else term
        )
        offset = add(offset, mul(place, product(leaf.type.shape[d + 1 :])))
    names = axes_of(offset) if isinstance(offset, Expr) else ()
    return all(coefficient(offset, name) is not None for name in names)


def _only_leaf(node: Node) -> Node:
    while is_free(node):
        node = next(x for x in node.inputs)
    return node
