"""Flatten a cluster: pull values back from the outputs to straight-line statements.

Each operator's `define` computes one element at a position. The element y[i] requests the
elements it needs from its operands; views only change the position, and values of other clusters
become loads. Equal values are built once, so the sum and the elementwise part of a softmax share
their loads. Axes are named after the class of dimensions they stand for, so reductions over one
dimension share one axis.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import field
from threading import Lock
from typing import TypeVar

from smelt.errors import VerifyError
from smelt.fusion.plan import Cluster
from smelt.fusion.range_outputs import RangeOutput, cluster_parts
from smelt.fusion.trace import axis_classes, inner_classes, reads, reshape_index
from smelt.graph.ir import Node
from smelt.kernel import ir
from smelt.kernel.bounds import proves_inside
from smelt.kernel.canonical import numbered_name
from smelt.ops.combine import BOTH, SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.create import Input
from smelt.ops.spec import Element, Indices, Limits, ScalarOp, Update
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64, i64
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axes_of,
    mul,
    nonnegative,
    sub,
    substitute,
    symbol_of,
)
from smelt.types.expr import value as position_index
from smelt.types.tensor import Shape

_FRAMES = 8
"""Maximum calls per operator: its element, its operands, and the body of a reduction."""
_lock = Lock()
_inside: list[int] = []
"""Limits found on entry by the threads inside."""


@contextmanager
def raise_recursion_limit(operators: int) -> Generator[None, None, None]:
    """Raise the recursion limit for a chain of `operators` above the current depth.

    The limit is global to all threads, so the last one to leave restores the first one's.
    """
    with _lock:
        limit = sys.getrecursionlimit()
        _inside.append(limit)
        sys.setrecursionlimit(max(limit, _inside[0] + operators * _FRAMES))
    try:
        yield
    finally:
        with _lock:
            first = _inside[0]
            _inside.pop()
            if not _inside:
                sys.setrecursionlimit(first)


T = TypeVar("T")
LONG_CHAIN = 32
"""Longest operator chain that is defined by plain recursion."""


@dataclass(frozen=True, slots=True)
class ScatterReduce:
    """Scatter-reduce: values combined in order with an initial result at computed positions."""

    join: str
    """Scalar operator that combines, or `put`."""
    over: tuple[str, ...]
    """Axes of the values, outer to inner; no result has them."""
    positions: tuple[tuple[ir.Value, Index], ...]
    """Position and dimension extent for each leading dimension of the result."""
    value: ir.Value


@dataclass
class Definition:
    """Flattened cluster: parameters, axes and straight-line statements."""

    inputs: list[ir.Param] = field(default_factory=list)
    outputs: list[ir.Param] = field(default_factory=list)
    axes: dict[str, ir.Axis] = field(default_factory=dict)
    body: list[ir.Statement] = field(default_factory=list)
    reduced_axes: dict[tuple[Node, int], str] = field(default_factory=dict)
    """Axis that a reduction ends, by its node and index among the node's reduction axes."""
    scatter: ScatterReduce | None = None
    """Scatter-reduce into the single result, whose store gives the initial values."""

    def bound(self, *kinds: type[T]) -> list[T]:
        """Return the bound values of some kinds, in order."""
        return [s.value for s in self.body if isinstance(s, ir.Let) and isinstance(s.value, kinds)]


class Operand:
    """Node of the cluster, or a parameter, as `define` reads it."""

    def __init__(self, pull: Pullback, node: Node) -> None:
        self.pull, self.node, self.type = pull, node, node.type

    def at(self, *index: Index) -> ir.Value:
        return self.pull.element(self.node, index)


class Pullback:
    """Builds the values of one cluster; implements `Definer` of `smelt.ops.spec`."""

    def __init__(self, cluster: Cluster, rounding: str) -> None:
        self.cluster = cluster
        self.rounding = rounding
        self.inside_cluster = set(cluster.nodes)
        self.out = Definition()
        self.classes = axis_classes(cluster.nodes)
        self.params: dict[Node, ir.Param] = {}
        self.axis_class: dict[str, int] = {}
        self.space_classes, self.used_together = inner_classes(cluster.nodes)
        self.axis_space_class: dict[str, int] = {}
        self.value_names: dict[ir.Value, ir.Ref] = {}
        self.definitions: dict[str, ir.Value] = {}
        self.memo: dict[tuple[Node, Indices, bool], ir.Value] = {}
        self.guard_depth = 0
        self.defining_operands = False
        """Whether operands of an output are being defined in topological order."""
        self.used_axes: list[set[str]] = []
        self.position_axes: dict[str, set[str]] = {}
        self.node_stack: list[tuple[Node, int]] = []
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
            param = ir.Param(name, node.type.dtype, node.type.shape, strides)
            self.params[node] = param
            self.out.inputs.append(param)

    def fresh(self, base: str) -> str:
        """Return a name not used yet."""
        return numbered_name(base, self.taken)

    def new_axis(self, extent: Index, kind: int, space_class: int = -1) -> Index:
        """Pick an axis of this extent that the current position does not use.

        Prefer one of the same iteration-space class, then any axis that no node uses together
        with that class, each time first one of the same dimension class `kind`; otherwise create
        one.
        """
        used = self.used_axes[-1]
        free = [a for a in self.out.axes.values() if a.extent == extent and a.name not in used]
        if space_class >= 0 and self.used_together:
            kinds = {a.name: self.axis_space_class[a.name] for a in free}
            same_class = [a for a in free if kinds[a.name] == space_class]
            free = same_class or [
                a for a in free if (kinds[a.name], space_class) not in self.used_together
            ]
        same = [a for a in free if self.axis_class[a.name] == kind]
        if same or free:
            chosen = (same or free)[0]
        else:
            symbol = symbol_of(extent) or "ijkluvwxyz"[len(self.out.axes) % 10]
            chosen = ir.Axis(self.fresh(symbol), extent)
            self.out.axes[chosen.name] = chosen
            self.axis_class[chosen.name] = kind
            self.axis_space_class[chosen.name] = space_class
        return chosen.index

    # ---- elements ------------------------------------------------------------------------------

    def element(self, node: Node, index: Indices) -> ir.Value:
        """Return the value of `node` at a position."""
        if node not in self.inside_cluster:
            return self._load(self.params[node], index)
        key = (node, index, self.guard_depth > 0)
        value = self.memo.get(key)
        if value is None:
            self._operands_first(node, index)
            self.used_axes.append(self._axes_of(index))
            self.node_stack.append((node, self.numbers[node]))
            value = node.op.define(self, index, *(Operand(self, x) for x in node.inputs))
            value = self._rounded(node, value)
            self.node_stack.pop()
            self.used_axes.pop()
            self.memo[key] = value
        return value

    def _axes_of(self, index: Indices) -> set[str]:
        """Return the axes of a position, including those its computed positions vary along."""
        names = {a.name for e in index for a in atoms(e) if a.kind == "value"}
        plain = {a for e in index for a in axes_of(e)}
        return plain.union(*(self.position_axes[name] for name in names))

    def _operands_first(self, node: Node, index: Indices) -> None:
        """Define the operands of an output, deepest first, to avoid deep recursion."""
        if self.node_stack or self.defining_operands:
            return
        order: list[tuple[Node, Indices]] = []
        seen: set[tuple[Node, Indices]] = set()
        pending = [(node, index, False)]
        while pending:
            current, at, operands_done = pending.pop()
            if operands_done:
                order.append((current, at))
            elif (current, at) not in seen and (current, at, self.guard_depth > 0) not in self.memo:
                seen.add((current, at))
                pending.append((current, at, True))
                pending += [
                    (x, place, False) for x, place in reversed(self._reads_inside(current, at))
                ]
        if len(order) > LONG_CHAIN:
            self.defining_operands = True
            for current, at in order[:-1]:
                self.element(current, at)
            self.defining_operands = False

    def _reads_inside(self, node: Node, index: Indices) -> list[tuple[Node, Indices]]:
        """Return what a node without reduction axes reads inside the cluster."""
        axes = {f"o{d}": e for d, e in enumerate(index)}
        elements: list[tuple[Node, Indices]] = []
        for operand, at in reads(node):
            x = node.inputs[operand]
            names = {a for e in at for a in axes_of(e)}
            if x in self.inside_cluster and names <= axes.keys():
                elements.append((x, tuple(substitute(e, axes) for e in at)))
        return elements

    def _rounded(self, node: Node, value: ir.Value) -> ir.Value:
        half = node.type.dtype.compute != node.type.dtype
        if not half or node.op.is_view or self.rounding == "fast":
            return value
        bound = self._definition(value)
        if isinstance(bound, (ir.Load, ir.Const)) or (
            isinstance(bound, ir.Cast) and bound.dtype == node.type.dtype
        ):
            return value
        return self.bind(ir.Cast(value, node.type.dtype))

    def _definition(self, value: ir.Value) -> ir.Value:
        return self.definitions.get(value.name, value) if isinstance(value, ir.Ref) else value

    def _load(self, param: ir.Param, index: Indices) -> ir.Value:
        safe = all(proves_inside(e, n) for e, n in zip(index, param.shape, strict=True))
        zero = ir.Const(False if param.dtype.kind == "bool" else 0, param.dtype.compute)
        return self.bind(ir.Load(param.name, index, None if safe else zero))

    def bind(self, value: ir.Value) -> ir.Value:
        """Return a name for a value; equal values share it."""
        if isinstance(value, (ir.Const, ir.Ref)):
            return value
        ref = self.value_names.get(value)
        if ref is None:
            ref = ir.Ref(self.fresh(f"v{len(self.value_names)}"))
            self.value_names[value] = ref
            self.definitions[ref.name] = value
            origin = self.node_stack[-1][1] if self.node_stack else -1
            self.out.body.append(ir.Let(ref.name, value, origin))
        return ref

    # ---- Definer interface ---------------------------------------------------------------------

    def apply(self, op: ScalarOp, *args: ir.Value) -> ir.Value:
        return self.bind(ir.Apply(op.name, args))

    def cast(self, value: ir.Value, dtype: DType) -> ir.Value:
        if self.rounding == "fast":  # round half types at stores only
            dtype = dtype.compute
            if self.node_stack[-1][0].inputs[0].type.dtype.compute == dtype:
                return value
        return self.bind(ir.Cast(value, dtype))

    def constant(self, value: float | int | bool, dtype: DType) -> ir.Value:
        return ir.Const(value, dtype)

    def index(self, position: Index, dtype: DType) -> ir.Value:
        return self.bind(ir.IndexValue(position, dtype))

    def position(self, value: ir.Value, extent: Index) -> Index:
        definition = self.definitions.get(value.name) if isinstance(value, ir.Ref) else None
        if (
            isinstance(definition, ir.IndexValue)
            and definition.dtype == i64
            and proves_inside(definition.index, extent)
        ):
            return definition.index
        name = self.fresh(f"p{len(self.out.body)}")
        key = ir.Cast(value, i64)
        for statement in self.out.body:
            if isinstance(statement, ir.Position) and (statement.value, statement.extent) == (
                key,
                extent,
            ):
                self.position_axes[statement.name] &= self.used_axes[-1]
                return position_index(statement.name, extent)
        self.out.body.append(ir.Position(name, key, extent))
        self.position_axes[name] = set(self.used_axes[-1])
        return position_index(name, extent)

    def reduce(
        self, combine: Combine, dtype: DType, extents: Indices, body: Element[ir.Value]
    ) -> ir.Value:
        over, element = self._reduced(extents, body)
        if not over:
            return ir.Const(0, dtype) if combine.positional else self.bind(ir.Cast(element, dtype))
        if self.rounding == "exact" and combine.compensated and dtype.is_float and dtype != f64:
            # Accumulate in float64: the loops decide the order of additions.
            element = self.bind(ir.Cast(element, f64))
            return self.bind(ir.Cast(self.bind(ir.Reduce(combine.name, element, over, f64)), dtype))
        return self.bind(ir.Reduce(combine.name, element, over, dtype))

    def dot(
        self, dtype: DType, extents: Indices, body: Element[tuple[ir.Value, ir.Value]]
    ) -> ir.Value:
        over, (left, right) = self._reduced(extents, body)
        if not over:
            operand_dtypes = (x.type.dtype.compute for x in self.node_stack[-1][0].inputs)
            factors = tuple(
                v if operand_dtype == dtype.compute else self.bind(ir.Cast(v, dtype.compute))
                for v, operand_dtype in zip((left, right), operand_dtypes, strict=True)
            )
            return self.bind(ir.Apply(SUM_OF_PRODUCTS[1], factors))
        exact = self.rounding == "exact"  # no shortcuts that lose small terms
        return self.bind(ir.Dot(left, right, over, dtype.compute if exact else dtype))

    def _reduced(self, extents: Indices, body: Element[T]) -> tuple[tuple[str, ...], T]:
        node = self.node_stack[-1][0]
        kinds = self._reduction_classes(node, len(extents))
        axes: list[Index] = []
        for k, (extent, kind) in enumerate(zip(extents, kinds, strict=True)):
            axes.append(
                self.new_axis(extent, kind, self.space_classes.get((node, f"e{k + 1}"), -1))
            )
            self.used_axes[-1].add(bare_axis(axes[-1]) or "")
        names = tuple(bare_axis(a) or "" for a in axes)
        self.out.reduced_axes.update({(node, k): name for k, name in enumerate(names)})
        element = body(tuple(axes))
        self.used_axes[-1].difference_update(names)
        return names, element

    def _reduction_classes(self, node: Node, count: int) -> list[int]:
        """Return the dimension classes of the axes that `node` reduces, in order."""
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
        body: Callable[[Index], ir.Value],
    ) -> ir.Value:
        along = bare_axis(at)
        if along is None:
            raise VerifyError("a scan is read at a shifted position inside its own kernel")
        return self.bind(ir.Scan(combine.name, body(at), along, dtype))

    def join(self, how: str, first: ir.Value, extents: Indices, body: Update[ir.Value]) -> ir.Value:
        (node, _), *readers = reversed(self.node_stack)
        if readers or self.cluster.outputs != (node,):
            raise VerifyError(f"{node.op.name} does not end its own kernel")
        over, (places, value) = self._reduced(extents, body)
        positions = tuple((ir.Cast(at, i64), extent) for at, extent in places)
        self.out.scatter = ScatterReduce(how, over, positions, value)
        return first

    def inside(self, limits: Limits, value: Callable[[], ir.Value], other: ir.Value) -> ir.Value:
        open_ends = [(e, n) for e, n in limits if not proves_inside(e, n)]
        if not open_ends:
            return value()
        self.guard_depth += 1
        guarded_value = value()
        self.guard_depth -= 1
        bound = self._definition(guarded_value)
        if isinstance(bound, ir.Load) and isinstance(other, ir.Const) and bound.other is not None:
            shape = next(p.shape for p in self.out.inputs if p.name == bound.param)
            unproven = {
                (e, n) for e, n in zip(bound.index, shape, strict=True) if not proves_inside(e, n)
            }
            if unproven == set(open_ends):
                return self.bind(ir.Load(bound.param, bound.index, other))
        return self.bind(ir.Apply("select", (self._in_bounds(open_ends), guarded_value, other)))

    def _in_bounds(self, limits: list[tuple[Index, Index]]) -> ir.Value:
        """Return a bool value: 0 <= e < n for every pair (e, n)."""
        tests: list[ir.Value] = []
        for e, n in limits:
            position = self.index(e, i64)
            if not nonnegative(e):
                tests.append(self.bind(ir.Apply("ge", (position, ir.Const(0, i64)))))
            tests.append(self.bind(ir.Apply("lt", (position, self.index(n, i64)))))
        condition = tests[0]
        for test in tests[1:]:
            condition = self.bind(ir.Apply("and", (condition, test)))
        return condition


def define(cluster: Cluster, rounding: str) -> Definition:
    """Flatten a cluster, with one store per output."""
    longest = _longest_chain(cluster)
    if longest <= LONG_CHAIN:
        return _define(cluster, rounding)
    with raise_recursion_limit(longest):
        return _define(cluster, rounding)


def _longest_chain(cluster: Cluster) -> int:
    """Return the number of operators in the longest dependency chain."""
    depths: dict[Node, int] = {}
    for node in cluster.nodes:
        depths[node] = 1 + max((depths.get(x, 0) for x in node.inputs), default=0)
    return max(depths.values(), default=0)


def _define(cluster: Cluster, rounding: str) -> Definition:
    pull = Pullback(cluster, rounding)
    parts = cluster_parts(cluster) if any(n.op.is_view for n in cluster.outputs) else {}
    for number, node in enumerate(cluster.outputs):
        name = "y" if len(cluster.outputs) == 1 else f"y{number}"
        shape = cluster.shape(number)
        if node in parts:
            _define_range(pull, name, node, parts[node])
            continue
        same_shape = shape == node.type.shape
        at = _output_index(pull, node, shape)
        value = pull.element(node, at if same_shape else reshape_index(shape, node.type.shape, at))
        _add_store(pull, name, node, shape, at, value)
    return pull.out


def _output_index(pull: Pullback, node: Node, shape: Shape) -> Indices:
    """Return the axes that index a result stored under `shape`."""
    same_shape = shape == node.type.shape
    pull.used_axes.append(set())
    index: list[Index] = []
    for d, extent in enumerate(shape):
        if extent == 1:
            index.append(0)
            continue
        kinds = (
            (pull.classes[node, d], pull.space_classes[node, f"o{d}"]) if same_shape else (-1, -1)
        )
        index.append(pull.new_axis(extent, *kinds))
        pull.used_axes[-1].add(bare_axis(index[-1]) or "")
    pull.used_axes.pop()
    return tuple(index)


def _add_store(
    pull: Pullback,
    name: str,
    node: Node,
    shape: Shape,
    at: Indices,
    value: ir.Value,
    where: ir.Value | None = None,
) -> None:
    name = pull.fresh(name)
    pull.out.outputs.append(ir.Param(name, node.type.dtype, shape))
    pull.out.body.append(ir.Store(name, at, value, where))


def _define_range(pull: Pullback, name: str, node: Node, part: RangeOutput) -> None:
    """Store an output that is a slice of a value, where the value is computed."""
    base_shape = part.base.type.shape
    at = _output_index(pull, part.base, base_shape)
    index: list[Index] = [0] * len(part.shape)
    tests: list[ir.Value] = []
    for position, extent, (d, first, length) in zip(at, base_shape, part.dims, strict=True):
        if d >= 0:
            index[d] = sub(position, first)
        if not nonnegative(mul(first, -1)):
            tests.append(ir.Apply("ge", (ir.IndexValue(position, i64), _index_value(first))))
        if not nonnegative(sub(add(first, length), extent)):
            tests.append(
                ir.Apply("lt", (ir.IndexValue(position, i64), _index_value(add(first, length))))
            )
    where = None
    for test in tests:
        where = test if where is None else ir.Apply(BOTH, (where, test))
    value = pull.element(part.base, at)
    _add_store(pull, name, node, part.shape, tuple(index), value, where)


def _index_value(e: Index) -> ir.Value:
    return ir.Const(e, i64) if isinstance(e, int) else ir.IndexValue(e, i64)
