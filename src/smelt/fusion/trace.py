"""Trace an operator's definition: its reads, reductions and cost, looking through views.

`define` runs with values that only record which axes they vary along. Operands that are views are
entered, so that their index maps are composed into one. No operator is known by name.

>>> from smelt.ops.reduce import Reduce
>>> from smelt.types.dtype import f32
>>> from smelt.types.tensor import TensorType
>>> x = TensorType(f32, (4, 5))
>>> facts = trace(Reduce("sum", (1,)), TensorType(f32, (4,)), ((None, x, ()),))
>>> facts.reads, facts.reduced_extents, facts.reductions
((Read(leaf=0, terms=(0, 1)),), (5,), 1)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from smelt.graph.ir import Node
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.cost import MOVE_COST, SPECIAL_COST
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import Element, Indices, Limits, ScalarOp, TensorOp, Update
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Expr, Index, atoms, axis, bounds, nonnegative, sub
from smelt.types.expr import value as position_index
from smelt.types.tensor import TensorType

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
