"""Generalise a pending program with concrete sizes to a graph for all sizes.

Every size of 2 or more, in leaves and in the attributes of views, becomes a symbol.  Type inference
runs once more over the operators, and where one needs sizes to be equal they are unified under a
guard, as in a recording by `jit`.  How an attribute depends on the leaves' sizes was not recorded:
it is guessed, with the help of the numbers of earlier programs with the same skeleton.  A wrong
guess costs one more compilation, never a wrong result: guards are checked before a plan is used.

    y = sm.reshape(x, (6, 4))        # x: f64[2,3,4]
    reshape(x) {shape=(n0*n1, n2)}   # for all n0, n1, n2, and n3 == n0*n1, n4 == n2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from smelt.errors import ShapeError
from smelt.frontends.array import engine
from smelt.frontends.array.engine import Permutations
from smelt.frontends.array.memory import dense_axis_order, layout
from smelt.frontends.array.program import Program, replace_numbers
from smelt.frontends.array.sizes import Sizes, rebuild_node
from smelt.frontends.array.structure import is_parameter
from smelt.frontends.array.value import Value
from smelt.graph import build, walk
from smelt.graph.bounds_checks import BoundsChecks, collect_bounds_checks, refuse_out_of_bounds
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.walk import input_size_names
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Map
from smelt.ops.index import Gather, Scatter
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Pad, Reshape, Slice, Window, split_groups
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_
from smelt.types.expr import Index, product, size, sizes_of, sub
from smelt.types.tensor import Shape, TensorType

Types = list[TensorType]
Op = Any


@dataclass(frozen=True, slots=True)
class GeneralizedProgram:
    """Graph over size symbols, and the condition for programs that it computes."""

    graph: Graph
    match: Callable[..., tuple[int, ...] | None]
    """match(*numbers) -> values of the graph's sizes, or None for a program it does not fit."""
    fixed_constants: tuple[tuple[int, float], ...]
    """Constants that are part of the graph: index and value."""
    constant_inputs: tuple[int, ...]
    """Indices of the constants that are inputs of the graph, after the leaves."""
    size_inputs: tuple[int, ...]
    """Indices of the sizes that no leaf has; shapes of unread inputs pass them."""
    hints: dict[str, int]
    bounds: BoundsChecks
    """Bounds checks of positions; if they depend on data, the graph's last result is a flag."""
    permutations: Permutations | None = None
    """Permutations of leaves and results; None if all are in the graph's order."""


def generalize(
    program: Program, moved: frozenset[int] | None, varying: frozenset[int], guess: bool = True
) -> GeneralizedProgram:
    """Return a graph for `program` and programs with the same skeleton.

    Args:
        program: the program.
        moved: indices of numbers that have changed between programs with this skeleton; None for
            the first program.
        varying: indices of constants that have changed.
        guess: whether changed numbers may be related to others of equal value; otherwise only an
            operator that needs it makes them equal.
    """
    return _Generalizer(program, moved, varying, guess).result()


class _Generalizer:
    def __init__(
        self, program: Program, moved: frozenset[int] | None, varying: frozenset[int], guess: bool
    ) -> None:
        self.program = program
        self.moved = moved
        self.guess = guess
        self.varying = varying
        self.sizes = Sizes()
        self.own: list[str] | None = None
        """Symbols of the leaves, which the graph may use; None until all have one."""
        self.types: dict[Node, TensorType] = {}
        self.ops: dict[Node, TensorOp] = {}
        self.places = iter(range(len(program.numbers)))
        self.place_of: dict[str, int] = {}

    # First pass: symbols for all numbers, unified where operators need it

    def number(self, n: int) -> Index:
        """Create the symbol of the next number."""
        index = next(self.places)
        name = f"n{index}"
        self.place_of[name] = index
        if self.own is not None:
            self.sizes.replaceable.add(name)
        return self.sizes.symbol(n, name)

    def result(self) -> GeneralizedProgram:
        program, sizes = self.program, self.sizes
        for x in program.leaves:
            shape = tuple(self.number(n) if n >= 2 else n for n in _ints(x.type.shape))
            self.types[x] = TensorType(x.type.dtype, shape)
        self.own = list(sizes.hints)
        for x in program.nodes:
            self._infer_node(x)
        for name in [n for n in sizes.hints if n in sizes.replaceable]:
            self._eliminate(name)
        return self._finish()

    def _type(self, x: Node) -> TensorType:
        inferred = self.types.get(x)
        return self.sizes.type(x.type if inferred is None else inferred)

    def _infer_node(self, x: Value) -> None:
        op: Op = replace(x.op, **self._fields(x.op)) if self._fields else x.op
        types = [self._type(i) for i in x.inputs]
        rule = _RULES.get(type(op))
        if rule is not None:
            rule(self, x, op, types)
        try:
            self.types[x] = self._infer(x, op)
        except ShapeError:  # a type rule that `_RULES` does not cover: concrete sizes always fit
            for d in (d for t in types for d in t.shape):
                self.sizes.pin(d)
            for d in (d for field in replace_numbers(x.op, _same) for d in getattr(op, field)):
                self.sizes.pin(d)
            self.types[x] = self._infer(x, op)
        self.ops[x] = op

    def _fields(self, op: TensorOp) -> dict[str, Any]:
        return replace_numbers(op, self.number)

    def _infer(self, x: Value, op: TensorOp) -> TensorType:
        canonical = replace(
            op,
            **{name: self.sizes.shape(getattr(op, name)) for name in replace_numbers(x.op, _same)},
        )
        return canonical.infer(*(self._type(i) for i in x.inputs))

    # Guesses of relations between numbers

    def stays(self, d: Index) -> bool:
        """Return whether a size was the same number in all of several programs."""
        return self.moved is not None and not self.moves(d)

    def moves(self, d: Index) -> bool:
        """Return whether a size had another value in an earlier program."""
        return self.moved is not None and any(
            self.place_of.get(name, -1) in self.moved for name in sizes_of(d)
        )

    def twin(self, d: Index, among: Sequence[Index] = ()) -> Index | None:
        """Return a leaf's size with the same value that changed, or stayed, like `d`."""
        value = self.sizes.hint(d)
        for other in among or [size(name) for name in self.own or ()]:
            if self.sizes.hint(other) == value and self.stays(other) == self.stays(d):
                return other
        return None

    def _eliminate(self, name: str) -> None:
        """Express an attribute's size that no operator unified: by a leaf's size, or a number."""
        d = self.sizes.canon(size(name))
        attribute_sizes = [n for n in sizes_of(d) if n in self.sizes.replaceable]
        if d != size(name) or not attribute_sizes:
            if attribute_sizes:
                for n in attribute_sizes:
                    self._eliminate(n)
            return
        other = self.twin(d) if self.guess and not self.stays(d) else None
        if other is not None:
            self.sizes.same(d, other)
        elif not self.moves(d):
            self.sizes.pin(d)

    # Second pass: the graph

    def _finish(self) -> GeneralizedProgram:
        program, sizes = self.program, self.sizes
        nodes: dict[Node, Node] = {}
        for k, x in enumerate(program.leaves):
            assert x.data is not None
            strides = layout(program.buffers[k])
            nodes[x] = build.input(f"x{k}", sizes.type(self.types[x]), strides, x.origin)
        inputs = [nodes[x] for x in program.leaves]
        constants = _Constants(program, self.varying)
        for x in program.nodes:
            operands = tuple(constants.next(i) if _is_constant(i) else nodes[i] for i in x.inputs)
            node = Node(self.ops[x], operands, x.type, x.origin)
            nodes[x] = rebuild_node(sizes, node, {i: i for i in operands})
        outputs = tuple(constants.next(x) if _is_constant(x) else nodes[x] for x in program.outputs)
        checks = collect_bounds_checks(outputs, trusted=lambda at, _: isinstance(at.op, Input))
        if not all(sizes.holds(0, "<=", room) for room in checks.sizes):
            refuse_out_of_bounds(checks.readers)
        flags = () if checks.flag is None else (checks.flag,)
        graph = Graph("lazy", (*inputs, *constants.inputs), (*outputs, *flags), checks=len(flags))
        orders = [dense_axis_order(data) for data in program.buffers]
        graph, permutations = engine.choose_input_layouts(
            graph, [*orders, *[None] * len(constants.inputs)]
        )
        names_in_shapes = set(input_size_names(graph))
        other_names = [n for n in walk.all_size_names(graph) if n not in names_in_shapes]
        size_inputs = [build.input(n, TensorType(bool_, (size(n),)), (0,)) for n in other_names]
        graph = replace(graph, inputs=(*graph.inputs, *size_inputs))
        names = input_size_names(graph)
        parameters = ", ".join(f"n{k}" for k in range(len(program.numbers)))
        return GeneralizedProgram(
            graph,
            sizes.matcher(parameters, names),
            tuple(constants.fixed),
            tuple(constants.free),
            tuple(names.index(n) for n in other_names),
            {name: sizes.hints[name] for name in names},
            checks,
            permutations,
        )


class _Constants:
    """Constants of a program, use by use: numbers of the graph or inputs."""

    def __init__(self, program: Program, varying: frozenset[int]) -> None:
        self.place = -1
        self.varying = varying
        self.inputs: list[Node] = []
        self.fixed: list[tuple[int, float]] = []
        self.free: list[int] = []

    def next(self, x: Node) -> Node:
        op = x.op
        assert isinstance(op, Constant)
        if not is_parameter(op):
            return x
        self.place += 1
        if self.place not in self.varying:
            self.fixed.append((self.place, op.value))
            return x
        self.free.append(self.place)
        self.inputs.append(build.input(f"c{self.place}", x.type))
        return self.inputs[-1]


def _is_constant(x: Any) -> bool:
    return isinstance(x.op, Constant) and x.data is None


def _same(n: int) -> int:
    return n


def _ints(shape: Shape) -> Iterator[int]:
    for d in shape:
        assert isinstance(d, int)
        yield d


# Equalities of sizes that operators need


def _scatter(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    lift.sizes.broadcast("scatter", *types[2:])
    middle = max(len(t.shape) for t in types[2:])
    for d, t in zip(types[1].shape[middle:], types[0].shape[len(types) - 2 :], strict=True):
        lift.sizes.same(d, t)


def _concat(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    for t in types[1:]:
        for a, (d, e) in enumerate(zip(types[0].shape, t.shape, strict=True)):
            if a != op.axis:
                lift.sizes.same(d, e)


def _contract(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    sizes_by_axis: dict[str, Index] = {}
    for terms, t in zip((op.left, op.right), types, strict=True):
        for term, d in zip(terms, t.shape, strict=True):
            name = bare_axis(term)
            if name is not None:
                lift.sizes.same(sizes_by_axis.setdefault(name, d), d)


def _expand(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    source = types[0].shape
    for d, goal in zip(source, op.shape[len(op.shape) - len(source) :], strict=True):
        if d != 1:
            lift.sizes.same(d, goal)


def _reshape(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    before = x.inputs[0].type.shape
    after = x.type.shape
    if any(d == 0 for d in after):
        return
    s = t = 0
    for old, new in split_groups(before, after):
        source, target = types[0].shape[s : s + len(old)], op.shape[t : t + len(new)]
        s, t = s + len(old), t + len(new)
        _unify_group(lift, list(source), list(target))


def _unify_group(lift: _Generalizer, source: list[Index], target: list[Index]) -> None:
    """Unify sizes whose products are equal on both sides.

    Equal sizes are unified in order; one of the others is solved for.
    """
    sizes = lift.sizes
    if len(target) > 1:
        for goal in list(target):
            twin = (
                None
                if isinstance(goal, int)
                else lift.twin(goal, [d for d in source if not isinstance(d, int)] or [0])
            )
            if twin is not None:
                sizes.same(goal, twin)
                source.remove(twin)
                target.remove(goal)
    symbols = [d for d in target if not isinstance(d, int)]
    if len(symbols) > 1:
        dependent = next((d for d in symbols if lift.moves(d)), None)
        for d in symbols:
            other = lift.twin(d) if d is not dependent and not lift.stays(d) else None
            if other is not None:
                sizes.same(d, other)
        unmatched = [
            d
            for d in symbols
            if (not isinstance(sizes.canon(d), int) and lift.twin(d) is None) or d is dependent
        ]
        dependent = (
            dependent if dependent is not None else (unmatched[0] if unmatched else symbols[0])
        )
        for d in unmatched:
            if d is not dependent:
                sizes.pin(d)
        sizes.divisible(product(source), product(d for d in symbols if d is not dependent))
    if target or source:
        sizes.same(product(target), product(source))


def _slice(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    sizes = lift.sizes
    for dim, start, count, step in zip(types[0].shape, op.starts, op.sizes, op.steps, strict=True):
        n, length = sizes.hint(dim), sizes.hint(count)
        if isinstance(dim, int) or not length:
            continue
        if length == n and abs(step) == 1:  # the whole dimension, possibly reversed
            sizes.same(count, dim)
            if step < 0:
                sizes.same(start, sub(dim, 1))
        elif step == 1 and (lift.guess or not (lift.moves(start) or lift.moves(count))):
            _guess_range(lift, dim, start, count)


def _guess_range(lift: _Generalizer, dim: Index, start: Index, count: Index) -> None:
    """Guess whether a slice is `x[a:]`, `x[:-b]`, `x[-c:]` or `x[a:b]`."""
    sizes = lift.sizes
    n, first, length = (sizes.hint(d) for d in (dim, start, count))
    if first + length == n and not (lift.stays(count) and lift.moves(dim)):
        if first <= length or lift.moves(count):
            sizes.pin(start)
            sizes.same(count, sub(dim, first))
        else:
            sizes.pin(count)
            sizes.same(start, sub(dim, length))
    elif lift.moves(count) or (lift.moved is None and first + length > n // 2):
        sizes.pin(start)
        twin = lift.twin(count) if n - length > 2 else None
        sizes.same(count, twin if twin is not None else sub(dim, n - length))


def _pad(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    for d in (*op.low, *op.high):
        if not lift.moves(d):
            lift.sizes.pin(d)


def _window(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    dim = types[0].shape[op.axis]
    for n in [size(name) for name in sizes_of(dim)]:
        lift.sizes.prepare_stride(n, op.step)
    lift.sizes.prepare_stride(dim, op.step)


def _loop(lift: _Generalizer, x: Value, op: Op, types: Types) -> None:
    for expected, actual in zip(op.operand_types, types, strict=True):
        for d, e in zip(expected.shape, actual.shape, strict=True):
            lift.sizes.same(d, e)


_RULES: dict[type[TensorOp], Callable[[_Generalizer, Value, Any, Types], object]] = {
    Map: lambda lift, x, op, types: lift.sizes.broadcast(op.name, *types),
    Gather: lambda lift, x, op, types: lift.sizes.broadcast("gather", *types[1:]),
    Scatter: _scatter,
    Concat: _concat,
    Contract: _contract,
    Expand: _expand,
    Reshape: _reshape,
    Slice: _slice,
    Pad: _pad,
    Window: _window,
    Loop: _loop,
}
