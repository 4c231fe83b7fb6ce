"""Cluster -> flat statements: each operator's `define` is asked for the element at a position.

Values are pulled back from the outputs: the element y[i] asks its operands for theirs, views only
change the position, values of other clusters become loads.  Equal values are built once, so that
the sum and the elementwise part of a softmax share their loads.  Axes are named after the class of
dimensions they stand for, so reductions over one dimension share one axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TypeVar

from smelt.dataclass import dataclass
from smelt.errors import VerifyError
from smelt.fusion.plan import Cluster
from smelt.fusion.range_outputs import Part, cluster_parts
from smelt.fusion.space import axis_classes, own_classes, reads, regrouped
from smelt.graph.ir import Node
from smelt.kernel.bounds import proves_inside
from smelt.kernel.ir import (
    Apply,
    Axis,
    Cast,
    Const,
    Dot,
    IndexValue,
    Let,
    Load,
    Param,
    Position,
    Reduce,
    Ref,
    Scan,
    Statement,
    Store,
    Value,
)
from smelt.lower.recursion_limit import deep
from smelt.ops.combine import BOTH, SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.create import Input
from smelt.ops.scalar import SCALARS
from smelt.ops.spec_scalar import ScalarOp
from smelt.types.dtype import DType, f64, i64
from smelt.types.expr import (
    Expr,
    Index,
    add,
    atoms,
    axes_of,
    mul,
    nonnegative,
    sizes_of,
    sub,
    substitute,
)
from smelt.types.expr import value as position_index
from smelt.types.tensor import Shape

Position_ = tuple[Index, ...]
T = TypeVar("T")
LONG = 32
"""Operators in a chain that are more than the stack should hold."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Values that join what a result is at first, at computed places, one after another."""

    how: str
    over: tuple[str, ...]
    """The axes of the values, outer to inner, which no result has."""
    places: tuple[tuple[Value, Index], ...]
    """For each leading dimension of the result, the place and the dimension's extent."""
    value: Value


@dataclass
class Definition:
    """What pulling back a cluster gives: parameters, axes and straight-line statements."""

    inputs: list[Param] = field(default_factory=list)
    outputs: list[Param] = field(default_factory=list)
    axes: dict[str, Axis] = field(default_factory=dict)
    body: list[Statement] = field(default_factory=list)
    ended: dict[tuple[Node, int], str] = field(default_factory=dict)
    """The axis that a fold ends, by its node and by place among those that end there."""
    joined: Joined | None = None
    """What joins the elements of the one result, whose store gives them their first values."""


class Operand:
    """A node of the cluster, or a parameter, as `define` reads it."""

    def __init__(self, pull: Pullback, node: Node) -> None:
        self.pull, self.node, self.type = pull, node, node.type

    def at(self, *index: Index) -> Value:
        return self.pull.element(self.node, index)


class Pullback:
    """Builds the values of one cluster (`Definer` of `smelt.ops.spec`)."""

    def __init__(self, cluster: Cluster, rounding: str) -> None:
        self.cluster = cluster
        self.rounding = rounding
        self.inside_cluster = set(cluster.nodes)
        self.out = Definition()
        self.classes = axis_classes(cluster.nodes)
        self.params: dict[Node, Param] = {}
        self.axis_class: dict[str, int] = {}
        self.own, self.beside = own_classes(cluster.nodes)
        self.axis_own: dict[str, int] = {}
        self.known: dict[Value, Ref] = {}
        self.bound: dict[str, Value] = {}
        self.memo: dict[tuple[Node, Position_, bool], Value] = {}
        self.guarded = 0
        self.ordered = False
        """Whether what an output asks for is being defined, operands first."""
        self.busy: list[set[str]] = []
        self.varying: dict[str, set[str]] = {}
        self.current: list[tuple[Node, int]] = []
        self.numbers = {node: k for k, node in enumerate(cluster.nodes)}
        self.taken: set[str] = set()
        self._name_params()

    # ---- parameters and axes -------------------------------------------------------------------

    def _name_params(self) -> None:
        for node in self.cluster.inputs:
            named = isinstance(node.op, Input)
            label = node.op.label if isinstance(node.op, Input) else f"t{len(self.params)}"
            strides = node.op.strides if isinstance(node.op, Input) else None
            name = self.fresh(label if named else f"t{len(self.params)}")
            param = Param(name, node.type.dtype, node.type.shape, strides)
            self.params[node] = param
            self.out.inputs.append(param)

    def fresh(self, wanted: str) -> str:
        """A name that nothing has yet."""
        name, k = wanted, 1
        while name in self.taken or name in SCALARS:
            k += 1
            name = f"{wanted}{k}"
        self.taken.add(name)
        return name

    def new_axis(self, extent: Index, kind: int, own: int = -1) -> Index:
        """An axis of that extent which the current position does not use: one of the same class
        (`own`: by what nodes of the cluster read of one another) if there is, else any that no node
        has beside it, else a new one."""
        used = self.busy[-1]
        free = [a for a in self.out.axes.values() if a.extent == extent and a.name not in used]
        if own >= 0 and self.beside:
            kinds = {a.name: self.axis_own[a.name] for a in free}
            alike = [a for a in free if kinds[a.name] == own]
            free = alike or [a for a in free if (kinds[a.name], own) not in self.beside]
        same = [a for a in free if self.axis_class[a.name] == kind]
        if same or free:
            found = (same or free)[0]
        else:
            is_symbol = isinstance(extent, Expr) and sizes_of(extent) == (str(extent),)
            symbol = str(extent) if is_symbol else "ijkluvwxyz"[len(self.out.axes) % 10]
            found = Axis(self.fresh(symbol), extent)
            self.out.axes[found.name] = found
            self.axis_class[found.name] = kind
            self.axis_own[found.name] = own
        return found.index

    # ---- elements ------------------------------------------------------------------------------

    def element(self, node: Node, index: Position_) -> Value:
        """The value of `node` at a position."""
        if node not in self.inside_cluster:
            return self._load(self.params[node], index)
        key = (node, index, self.guarded > 0)
        found = self.memo.get(key)
        if found is None:
            self._operands_first(node, index)
            self.busy.append(self._axes_of(index))
            self.current.append((node, self.numbers[node]))
            found = node.op.define(self, index, *(Operand(self, x) for x in node.inputs))
            found = self._rounded(node, found)
            self.current.pop()
            self.busy.pop()
            self.memo[key] = found
        return found

    def _axes_of(self, index: Position_) -> set[str]:
        """The axes of a position, those included that computed positions in it vary along."""
        names = {a.name for e in index for a in atoms(e) if a.kind == "value"}
        plain = {a for e in index for a in axes_of(e)}
        return plain.union(*(self.varying[name] for name in names))

    def _operands_first(self, node: Node, index: Position_) -> None:
        """Defines what an output will ask for, deepest first: long chains need no deep stack."""
        if self.current or self.ordered:
            return
        order: list[tuple[Node, Position_]] = []
        seen: set[tuple[Node, Position_]] = set()
        pending = [(node, index, False)]
        while pending:
            one, at, complete = pending.pop()
            if complete:
                order.append((one, at))
            elif (one, at) not in seen and (one, at, self.guarded > 0) not in self.memo:
                seen.add((one, at))
                pending.append((one, at, True))
                pending += [(x, place, False) for x, place in reversed(self._asked(one, at))]
        if len(order) > LONG:
            self.ordered = True
            for one, at in order[:-1]:
                self.element(one, at)
            self.ordered = False

    def _asked(self, node: Node, index: Position_) -> list[tuple[Node, Position_]]:
        """What a node without axes of its own reads inside the cluster."""
        own = {f"o{d}": e for d, e in enumerate(index)}
        found: list[tuple[Node, Position_]] = []
        for operand, at in reads(node):
            x = node.inputs[operand]
            names = {a for e in at for a in axes_of(e)}
            if x in self.inside_cluster and names <= own.keys():
                found.append((x, tuple(substitute(e, own) for e in at)))
        return found

    def _rounded(self, node: Node, found: Value) -> Value:
        half = node.type.dtype.compute != node.type.dtype
        if not half or node.op.is_view or self.rounding == "fast":
            return found
        bound = self._definition(found)
        if isinstance(bound, (Load, Const)) or (
            isinstance(bound, Cast) and bound.dtype == node.type.dtype
        ):
            return found
        return self.bind(Cast(found, node.type.dtype))

    def _definition(self, found: Value) -> Value:
        return self.bound.get(found.name, found) if isinstance(found, Ref) else found

    def _load(self, param: Param, index: Position_) -> Value:
        safe = all(proves_inside(e, n) for e, n in zip(index, param.shape, strict=True))
        zero = Const(False if param.dtype.kind == "bool" else 0, param.dtype.compute)
        return self.bind(Load(param.name, index, None if safe else zero))

    def bind(self, value: Value) -> Value:
        """A name for a value; equal values share it."""
        if isinstance(value, (Const, Ref)):
            return value
        found = self.known.get(value)
        if found is None:
            found = Ref(self.fresh(f"v{len(self.known)}"))
            self.known[value] = found
            self.bound[found.name] = value
            origin = self.current[-1][1] if self.current else -1
            self.out.body.append(Let(found.name, value, origin))
        return found

    # ---- the definer ---------------------------------------------------------------------------

    def apply(self, op: ScalarOp, *args: Value) -> Value:
        return self.bind(Apply(op.name, args))

    def cast(self, value: Value, dtype: DType) -> Value:
        if self.rounding == "fast":  # half types are rounded where they are stored
            dtype = dtype.compute
            if self.current[-1][0].inputs[0].type.dtype.compute == dtype:
                return value
        return self.bind(Cast(value, dtype))

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        return Const(value, dtype)

    def index(self, position: Index, dtype: DType) -> Value:
        return self.bind(IndexValue(position, dtype))

    def position(self, value: Value, extent: Index) -> Index:
        known = self.bound.get(value.name) if isinstance(value, Ref) else None
        if (
            isinstance(known, IndexValue)
            and known.dtype == i64
            and proves_inside(known.index, extent)
        ):
            return known.index
        name = self.fresh(f"p{len(self.out.body)}")
        key = Cast(value, i64)
        for statement in self.out.body:
            if isinstance(statement, Position) and (statement.value, statement.extent) == (
                key,
                extent,
            ):
                self.varying[statement.name] &= self.busy[-1]
                return position_index(statement.name, extent)
        self.out.body.append(Position(name, key, extent))
        self.varying[name] = set(self.busy[-1])
        return position_index(name, extent)

    def reduce(
        self,
        combine: Combine,
        dtype: DType,
        extents: Position_,
        body: Callable[[Position_], Value],
    ) -> Value:
        over, element = self._over(extents, body)
        if not over:
            return Const(0, dtype) if combine.positional else self.bind(Cast(element, dtype))
        if self.rounding == "exact" and combine.compensated and dtype.is_float and dtype != f64:
            # Nothing is added in the elements' own type: who is added to whom first, loops decide.
            element = self.bind(Cast(element, f64))
            return self.bind(Cast(self.bind(Reduce(combine.name, element, over, f64)), dtype))
        return self.bind(Reduce(combine.name, element, over, dtype))

    def dot(
        self, dtype: DType, extents: Position_, body: Callable[[Position_], tuple[Value, Value]]
    ) -> Value:
        over, (left, right) = self._over(extents, body)
        if not over:
            given = (x.type.dtype.compute for x in self.current[-1][0].inputs)
            factors = tuple(
                v if known == dtype.compute else self.bind(Cast(v, dtype.compute))
                for v, known in zip((left, right), given, strict=True)
            )
            return self.bind(Apply(SUM_OF_PRODUCTS[1], factors))
        exact = self.rounding == "exact"  # no short cuts that lose what is tiny
        return self.bind(Dot(left, right, over, dtype.compute if exact else dtype))

    def _over(
        self, extents: Position_, body: Callable[[Position_], T]
    ) -> tuple[tuple[str, ...], T]:
        node = self.current[-1][0]
        kinds = self._ended_classes(node, len(extents))
        axes: list[Index] = []
        for k, (extent, kind) in enumerate(zip(extents, kinds, strict=True)):
            axes.append(self.new_axis(extent, kind, self.own.get((node, f"e{k + 1}"), -1)))
            self.busy[-1].add(bare_axis(axes[-1]) or "")
        names = tuple(bare_axis(a) or "" for a in axes)
        self.out.ended.update({(node, k): name for k, name in enumerate(names)})
        element = body(tuple(axes))
        self.busy[-1].difference_update(names)
        return names, element

    def _ended_classes(self, node: Node, count: int) -> list[int]:
        """Classes of the axes that end at `node`, in order."""
        from_reads: dict[str, int] = {}
        for operand, index in reads(node):
            for d, term in enumerate(index):
                name = bare_axis(term)
                if name is not None and name.startswith("e"):
                    from_reads.setdefault(name, self.classes[node.inputs[operand], d])
        return [from_reads.get(f"e{k + 1}", -1) for k in range(count)]

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], Value],
    ) -> Value:
        along = bare_axis(at)
        if along is None:
            raise VerifyError("a running fold is read at a shifted position inside its own kernel")
        return self.bind(Scan(combine.name, body(at), along, dtype))

    def join(
        self,
        how: str,
        first: Value,
        extents: Position_,
        body: Callable[[Position_], tuple[tuple[tuple[Value, Index], ...], Value]],
    ) -> Value:
        (node, _), *readers = reversed(self.current)
        if readers or self.cluster.outputs != (node,):
            raise VerifyError(f"{node.op.name} does not end its own kernel")
        over, (places, value) = self._over(extents, body)
        wide = tuple((Cast(at, i64), extent) for at, extent in places)
        self.out.joined = Joined(how, over, wide, value)
        return first

    def inside(
        self, limits: tuple[tuple[Index, Index], ...], value: Callable[[], Value], other: Value
    ) -> Value:
        open_ends = [(e, n) for e, n in limits if not proves_inside(e, n)]
        if not open_ends:
            return value()
        self.guarded += 1
        found = value()
        self.guarded -= 1
        bound = self._definition(found)
        if isinstance(bound, Load) and isinstance(other, Const) and bound.other is not None:
            shape = next(p.shape for p in self.out.inputs if p.name == bound.param)
            own = {
                (e, n) for e, n in zip(bound.index, shape, strict=True) if not proves_inside(e, n)
            }
            if own == set(open_ends):
                return self.bind(Load(bound.param, bound.index, other))
        return self.bind(Apply("select", (self._holds(open_ends), found, other)))

    def _holds(self, limits: list[tuple[Index, Index]]) -> Value:
        """A bool value: every pair (e, n) has 0 <= e < n."""
        tests: list[Value] = []
        for e, n in limits:
            place = self.index(e, i64)
            if not nonnegative(e):
                tests.append(self.bind(Apply("ge", (place, Const(0, i64)))))
            tests.append(self.bind(Apply("lt", (place, self.index(n, i64)))))
        found = tests[0]
        for test in tests[1:]:
            found = self.bind(Apply("and", (found, test)))
        return found


def define(cluster: Cluster, rounding: str) -> Definition:
    """The flat form of a cluster: one store for each output."""
    longest = _longest(cluster)
    if longest <= LONG:
        return _define(cluster, rounding)
    with deep(longest):
        return _define(cluster, rounding)


def _longest(cluster: Cluster) -> int:
    """Operators of the longest chain, each of which reads the one before."""
    found: dict[Node, int] = {}
    for node in cluster.nodes:
        found[node] = 1 + max((found.get(x, 0) for x in node.inputs), default=0)
    return max(found.values(), default=0)


def _define(cluster: Cluster, rounding: str) -> Definition:
    pull = Pullback(cluster, rounding)
    parts = cluster_parts(cluster)
    for number, node in enumerate(cluster.outputs):
        name = "y" if len(cluster.outputs) == 1 else f"y{number}"
        shape = cluster.shape(number)
        if node in parts:
            _define_part(pull, name, node, parts[node])
            continue
        own = shape == node.type.shape
        at = _walked(pull, node, shape)
        found = pull.element(node, at if own else regrouped(shape, node.type.shape, at))
        _stored(pull, name, node, shape, at, found)
    return pull.out


def _walked(pull: Pullback, node: Node, shape: Shape) -> Position_:
    """Axes along which a result is walked under a shape."""
    own = shape == node.type.shape
    pull.busy.append(set())
    index: list[Index] = []
    for d, extent in enumerate(shape):
        if extent == 1:
            index.append(0)
            continue
        kinds = (pull.classes[node, d], pull.own[node, f"o{d}"]) if own else (-1, -1)
        index.append(pull.new_axis(extent, *kinds))
        pull.busy[-1].add(bare_axis(index[-1]) or "")
    pull.busy.pop()
    return tuple(index)


def _stored(
    pull: Pullback,
    name: str,
    node: Node,
    shape: Shape,
    at: Position_,
    found: Value,
    where: Value | None = None,
) -> None:
    name = pull.fresh(name)
    pull.out.outputs.append(Param(name, node.type.dtype, shape))
    pull.out.body.append(Store(name, at, found, where))


def _define_part(pull: Pullback, name: str, node: Node, part: Part) -> None:
    """A result that is a range of a value: stored where that is computed, as far as it goes."""
    whole = part.base.type.shape
    at = _walked(pull, part.base, whole)
    index: list[Index] = [0] * len(part.shape)
    tests: list[Value] = []
    for place, extent, (d, first, length) in zip(at, whole, part.dims, strict=True):
        if d >= 0:
            index[d] = sub(place, first)
        if not nonnegative(mul(first, -1)):
            tests.append(Apply("ge", (IndexValue(place, i64), _number(first))))
        if not nonnegative(sub(add(first, length), extent)):
            tests.append(Apply("lt", (IndexValue(place, i64), _number(add(first, length)))))
    where = None
    for test in tests:
        where = test if where is None else Apply(BOTH, (where, test))
    found = pull.element(part.base, at)
    _stored(pull, name, node, part.shape, tuple(index), found, where)


def _number(e: Index) -> Value:
    return Const(e, i64) if isinstance(e, int) else IndexValue(e, i64)
