"""Trace operators' definitions: reads, reductions and cost, and which dimensions are one axis.

`define` runs with values that only record which axes they vary along. Operands that are views are
entered, so that their index maps are composed into one. No operator is known by name.

Elementwise operators and broadcasting equate dimensions, permutations move them, reductions end
them. Each (node, dimension) gets a class number; equal numbers mean one axis. Views that split or
merge a dimension start a new class.

>>> from smelt.ops.reduce import Reduce
>>> from smelt.types.dtype import f32
>>> from smelt.types.tensor import TensorType
>>> x = TensorType(f32, (4, 5))
>>> facts = trace(Reduce("sum", (1,)), TensorType(f32, (4,)), ((None, x, ()),))
>>> facts.reads, facts.reduced_extents, facts.reductions
((Read(leaf=0, terms=(0, 1)),), (5,), 1)
>>> from smelt.graph import build
>>> from smelt.ops.view import Permute
>>> x = build.input("x", TensorType(f32, (4, 5)))
>>> y = build.apply(Permute((1, 0)), x)
>>> classes = axis_classes((x, y))
>>> classes[y, 0] == classes[x, 1], classes[y, 0] == classes[x, 0]
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple, TypeAlias

from smelt.graph.ir import Node
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.cost import MOVE_COST, SPECIAL_COST
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import Element, Indices, Limits, ScalarOp, TensorOp, Update
from smelt.ops.view import split_groups
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import (
    Expr,
    Index,
    add,
    atoms,
    axes_of,
    axis,
    bounds,
    floordiv,
    mod,
    mul,
    nonnegative,
    product,
    sub,
)
from smelt.types.expr import value as position_index
from smelt.types.tensor import Shape, TensorType

Axes: TypeAlias = frozenset[str]
Term: TypeAlias = int | Expr
Key: TypeAlias = tuple[Any, ...]
"""A view that is entered: (operator, type, keys of operands); a value: (None, type, ())."""

STEP_COST = 0.5
"""Cost of one multiply-add of a contraction with packed operands and sums in registers.

Costs are approximate cycles for 16 float32 elements (`ScalarOp.cost`).
"""
GUARD_COST = 1.0
"""Cost of the bounds test of a padded or concatenated element."""
NO_AXES: Axes = frozenset()


def view_key(node: Node, is_value: Callable[[Node], bool]) -> Key:
    """Return the key of a view down to nodes that are values."""
    if is_value(node):
        return (None, node.type, ())
    return (node.op, node.type, tuple([view_key(x, is_value) for x in node.inputs]))


class Read(NamedTuple):
    """A read of operand `leaf` (values are numbered in order, views entered)."""

    leaf: int
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The facts about one operator with the views in front of it."""

    reads: tuple[Read, ...] = ()
    reduced_extents: Indices = ()
    cost: float = 0.0
    """Cost of one element, or of one step of a reduction."""
    size: int = 0
    """Scalar operations, as a measure of code size."""
    reductions: int = 0
    dots: int = 0
    """Number of contractions."""
    combine: str = ""
    """The scalar operator by which it reduces or scatters."""
    guards: int = 0
    """Number of bounds tests of padded or concatenated elements."""
    positional: bool = False
    """Whether it is an arg-reduction: its result is a position."""
    scan_axis: int = -1
    """The axis of the result that a scan runs along, or -1."""
    data_positions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Data-dependent positions: name, and the axes they vary along."""
    counted_axis: int = -1
    """The axis whose positions, counted from 0, the result is; or -1."""
    first: int = 0
    """Number of leaves of the first operand, whose reads belong to a product's first factor."""
    scatter_dims: int = 0
    """For a scatter, the number of leading dimensions of the result that are indexed by data.

    Its reduced axes are those of the updates. 0 for other operators.
    """
    position_axes: tuple[int, ...] = ()
    """For each of these dimensions, the axis of the updates that its position counts, or -1."""
    specials: int = 0
    """Number of scalar functions expensive enough for a unit of their own (`SPECIAL_COST`)."""
    special_cost: float = 0.0
    """The part of `cost` that these functions take."""
    is_conversion: bool = False
    """Whether it converts one element to another type, and does nothing else."""

    @property
    def is_elementwise(self) -> bool:
        """Whether it computes elements without reducing, scanning or looking up."""
        return self.scan_axis < 0 and not (
            self.reductions or self.dots or self.scatter_dims or self.data_positions
        )


class _IndexAxes(frozenset[str]):
    """The axes of a value that is an index expression, with the expression."""

    index: Index = 0


class _Tracer:
    """A definer whose values are the sets of axes they vary along."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.reads: list[Read] = []
        self.reduced_extents: list[Index] = []
        self.cost = 0.0
        self.size = self.reductions = self.dots = self.guards = 0
        self.positional = False
        self.scatter_dims = self.casts = self.specials = 0
        self.special_cost = 0.0
        self.position_axes: tuple[int, ...] = ()
        self.combine = ""
        self.scan_axis = -1
        self.data_positions: dict[str, Axes] = {}

    def apply(self, op: ScalarOp, *args: Axes) -> Axes:
        self.cost += op.cost
        self.size += 1
        if op.cost >= SPECIAL_COST:
            self.specials += 1
            self.special_cost += op.cost
        return NO_AXES.union(*args)

    def cast(self, value: Axes, dtype: DType) -> Axes:
        self.cost += MOVE_COST
        self.size += 1
        self.casts += 1
        return value

    def constant(self, value: float | int | bool, dtype: DType) -> Axes:
        return NO_AXES

    def index(self, position: Index, dtype: DType) -> Axes:
        self.cost += MOVE_COST
        self.size += 1
        axes = _IndexAxes(self.axes(position))
        axes.index = position
        return axes

    def position(self, value: Axes, extent: Index) -> Index:
        if isinstance(value, _IndexAxes) and _within(value.index, extent):
            return value.index  # x[iota, ..] reads at the position itself
        name = f"p{len(self.data_positions)}"
        self.data_positions[name] = value
        self.size += 1
        return position_index(name, extent)

    def reduce(self, combine: Combine, dtype: DType, extents: Indices, body: Element[Axes]) -> Axes:
        self.reductions += 1
        self.combine = combine.scalar
        self.positional |= combine.positional
        self.cost += SCALARS[combine.scalar].cost
        self.size += 2
        return self._over(extents, body)

    def dot(self, dtype: DType, extents: Indices, body: Element[tuple[Axes, Axes]]) -> Axes:
        self.dots += 1
        self.combine = COMBINES[SUM_OF_PRODUCTS[0]].scalar
        self.cost += STEP_COST
        self.size += 2
        return self._over(extents, lambda j: NO_AXES.union(*body(j)))

    def _over(self, extents: Indices, body: Element[Axes]) -> Axes:
        first = self.rank + len(self.reduced_extents)
        self.reduced_extents += extents
        over = tuple(axis(f"a{first + k}", n) for k, n in enumerate(extents))
        axes = body(over)
        return axes - {f"a{first + k}" for k in range(len(extents))}

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], Axes],
    ) -> Axes:
        name = bare_axis(at)
        self.scan_axis = int(name[1:]) if name is not None else -1
        self.cost += SCALARS[combine.scalar].cost
        self.size += 2
        return body(at)

    def join(self, how: str, first: Axes, extents: Indices, body: Update[Axes]) -> Axes:
        self.reductions += 1
        self.combine = how if how in SCALARS else ""
        self.cost += SCALARS[how].cost + MOVE_COST if how in SCALARS else MOVE_COST
        self.size += 3

        def element(j: tuple[Index, ...]) -> Axes:
            targets, value = body(j)
            self.scatter_dims = len(targets)
            names = [
                bare_axis(at.index) if isinstance(at, _IndexAxes) else None for at, _ in targets
            ]
            self.position_axes = tuple(-1 if n is None else int(n[1:]) for n in names)
            return value.union(*(at for at, _ in targets))

        return first | self._over(extents, element)

    def inside(self, limits: Limits, value: Callable[[], Axes], other: Axes) -> Axes:
        self.guards += 1
        self.cost += GUARD_COST
        self.size += 1
        return value().union(other, *(self.axes(e) for e, _ in limits))

    def axes(self, e: Index) -> Axes:
        names = NO_AXES
        for atom in atoms(e):
            if atom.kind == "axis":
                names |= {atom.name}
            elif atom.kind == "value":
                names |= self.data_positions[atom.name]
        return names


class _Entered:
    """An operand: a value whose reads are recorded, or a view that is looked through."""

    def __init__(self, tracer: _Tracer, key: Key, first: int) -> None:
        self.tracer = tracer
        self.op: TensorOp | None = key[0]
        self.type: TensorType = key[1]
        self.first = first
        self.inputs: list[_Entered] = []
        for below in key[2]:
            self.inputs.append(_Entered(tracer, below, first))
            first += self.inputs[-1].leaves
        self.leaves: int = 1 if self.op is None else first - self.first

    def at(self, *index: Index) -> Axes:
        if self.op is not None:
            return self.op.define(self.tracer, index, *self.inputs)
        self.tracer.reads.append(Read(self.first, tuple(_term(e) for e in index)))
        return NO_AXES.union(*(self.tracer.axes(e) for e in index))


def _within(e: Index, extent: Index) -> bool:
    """Return whether 0 <= e < extent can be proved."""
    span = bounds(e)
    return span is not None and nonnegative(span[0]) and nonnegative(sub(sub(extent, 1), span[1]))


def is_window_term(term: Term) -> bool:
    """Return whether a term is a window: two axes that move along one dimension."""
    return isinstance(term, Expr) and len(axes_of(term)) > 1


def _term(e: Index) -> Term:
    if isinstance(e, int):
        return -1 if e == 0 else Expr((((), e),))
    name = bare_axis(e)
    return int(name[1:]) if name is not None else e


@lru_cache(maxsize=1024)
def trace(op: TensorOp, out: TensorType, operands: tuple[Key, ...]) -> Trace:
    """Return the facts about `op` with result type `out` on operands given by their keys.

    Axes are called a0, a1, ..: those of the result, then the reduced ones in order. Operators
    without a definition yield an empty trace.
    """
    if not op.fusible:
        return Trace()
    tracer = _Tracer(out.rank)
    position = tuple(0 if n == 1 else axis(f"a{k}", n) for k, n in enumerate(out.shape))
    inputs: list[_Entered] = []
    first = 0
    for key in operands:
        inputs.append(_Entered(tracer, key, first))
        first += inputs[-1].leaves
    result = op.define(tracer, position, *inputs)
    counted_axis = bare_axis(result.index) if isinstance(result, _IndexAxes) else None
    data_positions = tuple(
        (name, tuple(sorted(int(a[1:]) for a in axes)))
        for name, axes in tracer.data_positions.items()
    )
    return Trace(
        tuple(dict.fromkeys(tracer.reads)),
        tuple(tracer.reduced_extents),
        tracer.cost,
        tracer.size,
        tracer.reductions,
        tracer.dots,
        tracer.combine,
        tracer.guards,
        tracer.positional,
        tracer.scan_axis,
        data_positions,
        -1 if counted_axis is None else int(counted_axis[1:]),
        inputs[0].leaves if inputs else 0,
        tracer.scatter_dims,
        tracer.position_axes,
        tracer.specials,
        tracer.special_cost,
        tracer.casts == tracer.size == len(set(tracer.reads)) == 1,
    )


# ---- axes ----------------------------------------------------------------------------------------


Dim = tuple[Node, int]
Reads = tuple[tuple[int, tuple[Index, ...]], ...]


class _Probe(_Tracer):
    """A tracer of plain operands, with new axes for what is reduced or computed."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.indices: list[tuple[int, tuple[Index, ...]]] = []
        self.ended = 0

    def position(self, value: Axes, extent: Index) -> Index:
        return self._fresh(extent)

    def _over(self, extents: Indices, body: Element[Axes]) -> Axes:
        return body(tuple(self._fresh(e) for e in extents))

    def _fresh(self, extent: Index) -> Index:
        self.ended += 1
        return axis(f"e{self.ended}", extent)


class _ProbeOperand:
    def __init__(self, probe: _Probe, number: int, type_: TensorType) -> None:
        self.probe, self.number, self.type = probe, number, type_

    def at(self, *index: Index) -> Axes:
        self.probe.indices.append((self.number, index))
        return NO_AXES


@lru_cache(maxsize=1024)
def reads_of(op: TensorOp, out: TensorType, inputs: tuple[TensorType, ...]) -> Reads:
    """Return how `op` indexes its operands, as pairs (operand, index).

    The axes are o0, o1, .. of the output and e1, e2, .. which are reduced. Empty for operators
    without `define`.
    """
    if not op.fusible:
        return ()
    probe = _Probe(out.rank)
    position = tuple(axis(f"o{k}", n) for k, n in enumerate(out.shape))
    op.define(probe, position, *(_ProbeOperand(probe, k, t) for k, t in enumerate(inputs)))
    return tuple(probe.indices)


def reads(node: Node) -> Reads:
    """Return `reads_of` a node."""
    return reads_of(node.op, node.type, tuple(x.type for x in node.inputs))


class AxisClasses:
    """A union-find partition of dimensions."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def find(self, item: Any) -> Any:
        """Return the representative of the class of `item`."""
        parent = self._parent.setdefault(item, item)
        while parent is not self._parent[parent]:
            parent = self._parent[parent]
        self._parent[item] = parent
        return parent

    def unite(self, a: Any, b: Any) -> None:
        """Merge the classes of `a` and `b`."""
        self._parent[self.find(b)] = self.find(a)


def axis_classes(nodes: Iterable[Node]) -> dict[Dim, int]:
    """Return the class number of every dimension of the nodes and of their operands."""
    partition = AxisClasses()
    dims: dict[Dim, None] = {}
    for node in nodes:
        for d in range(node.type.rank):
            dims[node, d] = None
        first_dim: dict[str, Any] = {f"o{d}": (node, d) for d in range(node.type.rank)}
        for operand, index in reads(node):
            x = node.inputs[operand]
            for d, term in enumerate(index):
                dims[x, d] = None
                name = bare_axis(term)
                if name is not None:
                    partition.unite(first_dim.setdefault(name, (x, d)), (x, d))
    numbers: dict[Any, int] = {}
    return {dim: numbers.setdefault(partition.find(dim), len(numbers)) for dim in dims}


def inner_classes(
    nodes: Collection[Node],
) -> tuple[dict[tuple[Node, str], int], set[tuple[int, int]]]:
    """Return the class numbers of the nodes' axes, by their reads of each other.

    Axes are o0, o1, .. of a result and e1, e2, .. which are reduced. The second result holds pairs
    of classes, in both orders, that some node has as two axes of equal extent: these are different
    axes. Nodes without operands, such as the positions that a mask compares, relate no axes.
    """
    partition, inside = AxisClasses(), set(nodes)
    axes: dict[Node, dict[str, Index]] = {}
    for node in nodes:
        node_axes = axes[node] = {f"o{d}": n for d, n in enumerate(node.type.shape)}
        for operand, index in reads(node):
            x = node.inputs[operand]
            for d, term in enumerate(index):
                name = bare_axis(term)
                if name is not None:
                    node_axes.setdefault(name, x.type.shape[d])
                    if x in inside and x.inputs:
                        partition.unite((node, name), (x, f"o{d}"))
    numbers: dict[Any, int] = {}
    class_numbers: dict[tuple[Node, str], int] = {}
    distinct: set[tuple[int, int]] = set()
    for node, node_axes in axes.items():
        for name in node_axes:
            number = numbers.setdefault(partition.find((node, name)), len(numbers))
            class_numbers[node, name] = number
        distinct |= {
            (class_numbers[node, a], class_numbers[node, b])
            for a, b in permutations(node_axes, 2)
            if node_axes[a] == node_axes[b] != 1
        }
    return class_numbers, distinct


def reshape_index(walked: Shape, shape: Shape, position: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return the index in `shape` of the element at row-major `position` of `walked`.

    >>> i, j = axis("i", 6), axis("j", 4)
    >>> (
    ...     reshape_index((6, 4), (2, 3, 4), (i, j)),
    ...     reshape_index((2, 3, 4), (6, 4), (axis("g", 2), i % 3, j)),
    ... )
    ((i//3, i%3, j), (g*3 + i%3, j))
    """
    index: list[Index] = []
    start = 0
    for target, source in split_groups(shape, walked):
        part = position[start : start + len(source)]
        start += len(source)
        if target == source:
            index.extend(part)
            continue
        flat: Index = 0
        for dim, coordinate in zip(source, part, strict=True):
            flat = add(mul(flat, dim), coordinate)
        for k, dim in enumerate(target):
            inner = product(target[k + 1 :])
            coordinate = 0 if inner == 0 else floordiv(flat, inner)
            index.append(0 if dim in (0, 1) else coordinate if k == 0 else mod(coordinate, dim))
    return tuple(index)
