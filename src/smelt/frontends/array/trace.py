"""Record a function once: from symbolic arguments to a graph with guards.

A `Trace` is the result of a recording: the graph, the source of each input (argument or captured
array), the structure of the results, and `match`, a function from the sizes of a call to the values
of the graph's size symbols, or None if a guard fails.  In reports and messages sizes have the names
that the function gives them: `n, d = x.shape` names the dimensions `n` and `d`.  Graphs keep the
sizes' own names, which are part of the cache's key.

"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, cast

from smelt.errors import ArgumentError, SmeltError, StructureError
from smelt.frontends.array import engine
from smelt.frontends.array.aliasing import own
from smelt.frontends.array.array import Array
from smelt.frontends.array.convert import from_host, is_foreign_array
from smelt.frontends.array.engine import Permutations, compile_graph, raise_out_of_bounds
from smelt.frontends.array.memory import Buffer, dense_axis_order, layout, memory_order
from smelt.frontends.array.number import Number, Scalar, Size
from smelt.frontends.array.numpy_hints import missing_attribute
from smelt.frontends.array.scope import Scope
from smelt.frontends.array.sizes import facts, rebuild_node
from smelt.frontends.array.tree import LEAF, Tree, flatten
from smelt.frontends.array.value import STATE, Value, follow, intern, size_carrier
from smelt.graph import build
from smelt.graph.bounds_checks import BoundsChecks, collect_bounds_checks, refuse_out_of_bounds
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.walk import all_size_names, input_size_names, map_indices, map_type
from smelt.knobs.steer import RECORDING
from smelt.ops.create import Constant, Input
from smelt.ops.extern import Extern
from smelt.ops.index import Gather, Scatter
from smelt.python.dataclass import dataclass, replace
from smelt.python.imports import fork_safe_import
from smelt.python.origin import Origin
from smelt.runtime.compile_scope import with_frame_room
from smelt.types.dtype import DType, bool_, from_numpy
from smelt.types.expr import Index, evaluate, product, size, sizes_of, text
from smelt.types.formula import Formula, Guard
from smelt.types.tensor import Shape, TensorType, shape_text

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.compiler.warm import CachedProgram
    from smelt.fusion.plan import Donate


class Spec:
    """Shape and dtype of an argument without elements; dimensions may name sizes."""

    __slots__ = ("dtype", "shape")  # no dataclass, which would be flattened as a container

    def __init__(self, shape: Shape, dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError with the nearest name."""
        raise missing_attribute("a spec", name, type(self))

    def __repr__(self) -> str:
        return f"spec({str(self)!r})"

    def __str__(self) -> str:
        return f"{self.dtype.name}[{shape_text(self.shape)}]"


@dataclass(frozen=True, slots=True)
class Argument:
    """Leaf of the arguments: an array's memory, a Python number, or a spec."""

    data: Buffer | None = None
    number: float | None = None
    spec: Spec | None = None

    @property
    def is_static(self) -> bool:
        """Return whether the argument is a constant of the recording: a bool or a huge integer.

        Integers beyond 64 bits are left to each operator, like numbers in the code.
        """
        n = self.number
        return isinstance(n, bool) or (isinstance(n, int) and not -(2**63) <= n < 2**63)

    @property
    def signature(self) -> Hashable:
        """The key of the argument: recordings with another key need not be tried.

        Sizes of 2 or more are not part of it.
        """
        data = self.data
        if data is None:
            return (type(self.number), self.number) if self.is_static else type(self.number)
        return data.dtype, tuple(n if n < 2 else -1 for n in data.shape), memory_order(data)


@dataclass(frozen=True, slots=True)
class Result:
    """Source of a leaf of the result."""

    kind: str
    """One of graph (an output), argument, captured, plain (a Python number), size."""
    position: int = 0
    """Index of the output or argument."""
    value: Any = None


_NOTHING = BoundsChecks()


@dataclass(slots=True)
class Trace:
    """Recording of a function: graph, guards, structure of the results, compiled form."""

    graph: Graph
    arguments: tuple[int, ...]
    """For each leading input of the graph, the leaf of the arguments."""
    captured: tuple[Value, ...]
    """Arrays of the remaining inputs."""
    results: tuple[Result, ...]
    tree: Tree
    match: Formula
    """match(*all dimensions, *all numbers) -> values of the graph's sizes, or None."""
    guards: tuple[Guard, ...]
    hints: dict[str, int]
    """Sizes of the call that was recorded."""
    donate: Donate
    """Inputs of the graph whose memory a run may overwrite, some by one result only."""
    leaves: int
    """Number of leaves of the arguments."""
    result_sizes: Formula | None = None
    value_dependent: bool = False
    """Whether the value of a number argument affects more than elements."""
    size_inputs: tuple[int, ...] = ()
    """Indices of the sizes that are number arguments; shapes of unread inputs pass them."""
    bounds: BoundsChecks = _NOTHING
    """Bounds checks; if one depends on data, the graph's last result is a flag."""
    permutations: Permutations | None = None
    """Permutations of inputs and results; None if all are in the graph's order."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters of `match`."""
    shape_reads: tuple[tuple[Origin, Shape], ...] = ()
    """Where the function read which shape; see `smelt.graph.source_names.size_names`."""
    number_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parameters of numbers, by the names of these as sizes."""
    only_outputs: bool = field(init=False)
    """Whether all results are the outputs of the graph, in order."""
    reads_all_leaves: bool = field(init=False)
    """Whether all leaves of the arguments are inputs of the graph, in order."""
    single: bool = field(init=False)
    """Whether the result is one array that the graph computes."""
    compiled: Compiled | CachedProgram | None = None
    overwriting_traces: dict[Donate, Trace] = field(default_factory=dict)
    """Variants of the recording, compiled for calls whose results replace inputs."""
    checked_first: Trace | None = None
    """The bounds checks that depend on data, if they have to pass before anything is written."""

    def __post_init__(self) -> None:
        self.reads_all_leaves = self.arguments == tuple(range(self.leaves))
        self.single = self.tree == LEAF and self.results[0].kind == "graph"
        self.only_outputs = all(
            r.kind == "graph" and r.position == k for k, r in enumerate(self.results)
        )

    @property
    def executable(self) -> Compiled | CachedProgram:
        """Compiled graph; it is compiled on first use."""
        if self.compiled is None:
            self.compiled = compile_graph(self.graph, self.hints, self.donate)
        return self.compiled

    def for_overwriting(self, pairs: tuple[tuple[int, int], ...]) -> Trace:
        """Return a variant for calls in which results replace inputs, as pairs (input, result).

        A run that fails leaves inputs as they are: checks that read less than is replaced are then
        a run of their own before. Returns itself if that does not suffice.
        """
        variant = self.overwriting_traces.get(pairs)
        if variant is None:
            first = None if self.bounds.flag is None else self._checks()
            may_fail = any(isinstance(x.op, Extern) for x in self.graph.nodes())
            if first is not None:
                replaced = sum(self._elements(self.graph.inputs[k]) for k, _ in pairs)
                nodes = Graph("read", (), first.graph.outputs).nodes()
                read = [x for x in nodes if isinstance(x.op, Input)]
                may_fail |= sum(map(self._elements, read)) > replaced
            graph = self.graph
            variant = self
            if not may_fail:
                variant = replace(
                    self,
                    graph=replace(graph, outputs=graph.results, checks=0),
                    bounds=replace(self.bounds, flag=None),
                    donate=pairs,
                    compiled=None,
                    overwriting_traces={},
                    checked_first=first,
                )
            self.overwriting_traces[pairs] = variant
        return variant

    def _checks(self) -> Trace:
        graph = replace(self.graph, outputs=self.graph.check_outputs)
        return replace(self, graph=graph, donate=(), compiled=None, overwriting_traces={})

    def _elements(self, node: Node) -> int:
        """Return the number of elements at the sizes of the recorded call."""
        return evaluate(product(node.type.shape), self.hints)

    def source_size_names(self, dims: Sequence[Index] = ()) -> dict[str, str]:
        """Return names that the function gives to the graph's sizes, by their own names.

        `dims` are dimensions of the arguments as their author writes them, whose names come first.
        """
        taken = [x.op.label for x in self.graph.inputs if isinstance(x.op, Input)]
        names = {
            parameter: str(d) for parameter, d in zip(self.parameters, dims) if d == size(str(d))
        }
        numbers = {**self.number_names, **names}
        module = fork_safe_import("smelt.graph.source_names")  # for reports only
        return cast(
            "dict[str, str]", module.size_names(self.hints, self.shape_reads, taken, numbers)
        )

    def complete(self, buffers: list[Buffer], sizes: tuple[int, ...]) -> list[Buffer]:
        """Return all inputs of the graph, with those that carry sizes."""
        if self.permutations is not None:
            buffers = self.permutations.permute_inputs(buffers)
        return [*buffers, *(size_carrier(sizes[k]) for k in self.size_inputs)]

    def run(
        self,
        buffers: list[Buffer],
        sizes: tuple[int, ...],
        out: Sequence[Buffer | None] | None = None,
    ) -> list[Buffer]:
        """Run the graph on these inputs; see `Compiled.run`.

        What depends on captured arrays only is computed once, if no other code may write to them.
        Raises OutsideError for a position out of bounds.
        """
        permutations = self.permutations
        check = self.checked_first
        if check is not None and check._run(buffers, sizes, None)[0]:
            raise_out_of_bounds(check.bounds, check.graph.inputs, check.complete(buffers, sizes))
        try:
            if permutations is not None:
                out = None if out is None else permutations.permute_outputs(out)
                return permutations.permute_results(self._run(buffers, sizes, out))
            results = self._run(buffers, sizes, out)
        except engine.RUN_ERRORS as error:
            self.locate_error(error, [] if self.donate else self.complete(buffers, sizes), sizes)
            raise
        if self.bounds.flag is not None and results.pop():
            raise_out_of_bounds(self.bounds, self.graph.inputs, self.complete(buffers, sizes))
        return results

    def locate_error(self, error: SmeltError, inputs: list[Buffer], sizes: tuple[int, ...]) -> None:
        """Set the program line that the error of a run is about.

        `inputs` and `sizes` are those of the run.
        """
        values = dict(zip(input_size_names(self.graph), sizes))
        engine.locate_error(error, self.graph, inputs, values, self.executable, sizes)

    def _run(
        self, buffers: list[Buffer], sizes: tuple[int, ...], out: Sequence[Buffer | None] | None
    ) -> list[Buffer]:
        compiled = self.executable
        if self.size_inputs or self.permutations is not None:
            buffers = self.complete(buffers, sizes)
        prelude = compiled.executable.prelude
        if prelude is None:
            return compiled.run(buffers, sizes, out)
        first = len(self.arguments)
        owners = [self.captured[k - first] for k in prelude.sources]
        if any(x.shared for x in owners):
            return compiled.run(buffers, sizes, out)
        stamps = (None,) * len(owners)
        return compiled.run(buffers, sizes, out, prelude.run(owners, stamps, buffers.__getitem__))


@with_frame_room
def record_call(
    name: str,
    labels: Sequence[str],
    arguments: Sequence[Argument],
    call: Callable[[list[Any]], Any],
    donate: tuple[int, ...] = (),
    *,
    keeps_order: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> Trace:
    """Record `call`, a function of the symbolic leaves that are named `labels`.

    With `permutations` results get the memory order of the arguments, if these agree.
    `sizes` are likely values of the sizes that specs name.
    """
    start = perf_counter()
    scope = Scope(name)
    outer, STATE.scope = STATE.scope, scope
    recording = RECORDING.set(True)
    follow(1)
    try:
        _name_sizes(scope, arguments, sizes or {})
        placed: set[str] = set()
        leaves = [_leaf(scope, placed, *pair) for pair in zip(labels, arguments, strict=True)]
        returned, tree = flatten(
            call([_user_argument(scope, a, x) for a, x in zip(arguments, leaves)])
        )
        results, outputs = _results(scope, leaves, returned)
        del returned  # drop references before checking what outlives the recording
        scope.check_unwritten()
        scope.check_replacements()
        orders = [
            None if a.data is None or not keeps_order else dense_axis_order(a.data)
            for a in arguments
        ]
        trace = _finish(scope, leaves, results, outputs, tree, donate, orders)
    finally:
        STATE.scope = outer
        RECORDING.reset(recording)
        follow(-1)
        scope.close()
    engine.reporting().report_traced(trace, perf_counter() - start)
    return trace


def _leaf(scope: Scope, placed: set[str], label: str, argument: Argument) -> Value:
    if argument.spec is not None:
        shape = tuple(_spec_dimension(scope, d, placed) for d in argument.spec.shape)
        return scope.input(label, intern(argument.spec.dtype, shape), None)
    if argument.is_static:  # a constant; nothing refers to this node
        return Value(Constant(False, bool_), (), intern(bool_, ()))
    if argument.number is not None:
        return scope.scalar(label, argument.number)
    data = argument.data
    assert data is not None
    shape = tuple(n if n < 2 else scope.symbol(n) for n in data.shape)
    return scope.input(label, intern(from_numpy(data.dtype), shape), layout(data))


SIZE_HINTS = (5040, 2520, 7560, 1680, 10080, 3360, 840, 15120)
"""Hints for named sizes, whose values no call has given yet; each has many divisors."""


def _name_sizes(scope: Scope, arguments: Sequence[Argument], sizes: Mapping[str, int]) -> None:
    """Create symbols for the sizes that specs name; raise ArgumentError for undetermined ones."""
    dims = [d for a in arguments if a.spec is not None for d in a.spec.shape]
    for name in dict.fromkeys(name for d in dims for name in sizes_of(d)):
        if size(name) not in dims:
            raise ArgumentError(
                op="lower",
                argument="a spec",
                value=f"the size {name}",
                expected="each size to be a dimension by itself somewhere",
            )
        default = SIZE_HINTS[len(scope.hints) % len(SIZE_HINTS)]
        scope.symbol(max(sizes.get(name, default), 2), name)  # a size of 1 has no symbol


def _spec_dimension(scope: Scope, d: Index, placed: set[str]) -> Index:
    """Return the symbol for a dimension of an array spec.

    `placed` are the sizes that have a dimension of their own.
    """
    if isinstance(d, int):
        return d
    (name, *_) = sizes_of(d)
    if d == size(name) and name not in placed:
        placed.add(name)
        return d
    symbol = scope.symbol(scope.hint(d))
    scope.same(d, symbol)
    return symbol


def _user_argument(scope: Scope, argument: Argument, leaf: Value) -> Any:
    if argument.is_static:
        return argument.number
    if argument.number is not None:
        return Scalar(leaf, argument.number, scope)
    array = Array.of(leaf)
    own(array).memory.argument_of = scope
    return array


def _results(
    scope: Scope, leaves: list[Value], returned: list[Any]
) -> tuple[list[Result], list[Value]]:
    """Return the source of each result leaf, and the outputs of the graph."""
    results: list[Result] = []
    outputs: dict[Value, int] = {}
    leaf_positions = {x: k for k, x in enumerate(leaves)}
    for leaf in returned:
        if isinstance(leaf, Size):
            results.append(Result("size", value=scope.canon(leaf.expr)))
            continue
        node = _result_node(leaf)
        if node is None:
            results.append(Result("plain", value=leaf))
        elif node.scope is None and node not in scope.volatile_values:
            results.append(Result("captured", value=node))
        elif node in leaf_positions and node not in scope.scalars:
            results.append(Result("argument", leaf_positions[node]))
        else:
            node = scope.capture(node) if node in scope.volatile_values else node
            scope.check(node)
            results.append(Result("graph", outputs.setdefault(node, len(outputs))))
    return results, list(outputs)


def _result_node(leaf: Any) -> Value | None:
    if isinstance(leaf, Array):
        return leaf.node
    if isinstance(leaf, Number):
        return leaf.node(leaf.dtype)
    if isinstance(leaf, (bool, int, float, complex, str, bytes)):
        return None
    if is_foreign_array(leaf):
        return from_host(leaf)
    raise StructureError(where="the result", type=type(leaf).__name__)


def _finish(
    scope: Scope,
    leaves: list[Value],
    results: list[Result],
    outputs: list[Value],
    tree: Tree,
    donate: tuple[int, ...],
    orders: Sequence[tuple[int, ...] | None],
) -> Trace:
    order: list[Any] = list(Graph("walk", (), tuple(outputs)).nodes())
    sources = [*leaves, *scope.captured.values()]
    used = _needed_inputs(scope, sources, order)
    labels = _labels([op.label for k in used if isinstance(op := sources[k].op, Input)])
    rebuilt: dict[Node, Node] = {}
    for k, label in zip(used, labels, strict=True):
        rebuilt[sources[k]] = _input(scope, sources[k], label)
    for x in order:
        if x not in rebuilt:
            rebuilt[x] = rebuild_node(scope, x, rebuilt)
    inputs = tuple(rebuilt[sources[k]] for k in used)
    results_of_graph = tuple(rebuilt[x] for x in outputs)
    checks = _bounds_checks(scope, results_of_graph)
    flags = () if checks.flag is None else (checks.flag,)
    graph = Graph(scope.name, inputs, (*results_of_graph, *flags), checks=len(flags))
    input_orders = tuple(orders[k] if k < len(leaves) else None for k in used)
    graph, permutations = engine.choose_input_layouts(graph, input_orders)
    names_in_shapes = input_size_names(graph)
    other_names = [name for name in all_size_names(graph) if name not in names_in_shapes]
    size_inputs = tuple(
        build.input(label, TensorType(bool_, (size(name),)), (0,))
        for name, label in zip(other_names, _labels(other_names, labels), strict=True)
    )
    graph = replace(graph, inputs=(*graph.inputs, *size_inputs))
    names = (*names_in_shapes, *other_names)
    graph = replace(graph, facts=facts(scope, names))
    arguments = tuple(k for k in used if k < len(leaves))
    captured = list(scope.captured)
    returned_arguments = {r.position for r in results if r.kind == "argument"}
    donated = tuple(
        arguments.index(k) for k in donate if k in arguments and k not in returned_arguments
    )
    return Trace(
        graph,
        arguments,
        tuple(captured[k - len(leaves)] for k in used if k >= len(leaves)),
        tuple(results),
        tree,
        _matcher(scope, leaves, names),
        tuple(scope.guards),
        {n: scope.hints[n] for n in names},
        donated,
        len(leaves),
        _sizer(scope, leaves, results),
        bool(scope.pinned_scalars or scope.ranges or scope.negated_sizes or scope.conditions),
        tuple(names.index(n) for n in other_names),
        checks,
        permutations,
        tuple(_parameters(scope, leaves).split(", ")),
        tuple((origin, scope.shape(shape)) for origin, shape in scope.shape_reads),
        {name: x.op.label for x, (name, _) in scope.scalars.items() if isinstance(x.op, Input)},
    )


def _bounds_checks(scope: Scope, outputs: tuple[Node, ...]) -> BoundsChecks:
    """Return the bounds checks of positions; those on sizes become guards now.

    Positions in constant captured arrays were checked when they were recorded.
    """
    if Graph("", (), outputs).kinds().isdisjoint((Gather, Loop, Scatter)):
        return BoundsChecks()
    checks = collect_bounds_checks(
        outputs,
        trusted=lambda _, plain: isinstance(plain.op, Input) and plain.op.constant,
        guard=lambda room: scope.holds(0, "<=", room),
    )
    if not all(scope.holds(0, "<=", room) for room in checks.sizes):
        refuse_out_of_bounds(checks.readers)
    return checks


def _needed_inputs(scope: Scope, sources: list[Value], order: list[Any]) -> list[int]:
    """Return inputs that are read, or whose shapes determine a needed size."""
    read = set(order)
    used = [x in read for x in sources]
    determined = {
        name
        for x, yes in zip(sources, used)
        if yes
        for d in scope.shape(x.type.shape)
        for name in sizes_of(d)
    }
    needed = {n for x in order for n in _sizes_in(scope, x)}
    for k, x in enumerate(sources):
        names = {n for d in scope.shape(x.type.shape) for n in sizes_of(d)}
        if not used[k] and names & (needed - determined):
            used[k] = True
            determined |= names
    return [k for k, yes in enumerate(used) if yes]


def _sizes_in(scope: Scope, x: Node) -> set[str]:
    names: set[str] = set()

    def note(e: Index) -> Index:
        names.update(sizes_of(scope.canon(e)))
        return e

    map_type(x.type, note)
    map_indices(x.op, note)
    return names


_INVALID = re.compile(r"\W+")


def _labels(names: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Make names valid in the text form, unique, and different from `others`."""
    taken = set(others)
    labels: list[str] = []
    for name in names:
        label = _INVALID.sub("_", name)
        if not label[:1].isidentifier():
            label = f"x{label}" if label[:1].isdigit() else f"x_{label}"
        plain, count = label, 1
        while label in taken:
            count += 1
            label = f"{plain}_{count}"
        taken.add(label)
        labels.append(label)
    return labels


def _input(scope: Scope, x: Value, label: str) -> Node:
    op = x.op
    assert isinstance(op, Input)
    return build.input(label, scope.type(x.type), op.strides, x.origin, constant=op.constant)


def _parameters(scope: Scope, leaves: list[Value]) -> str:
    """Return parameter names `n0, _1, k0` for all dimensions and numbers of the arguments."""
    dims = [d for x in leaves for d in x.type.shape]
    names = [text(d) if sizes_of(d) else f"_{k}" for k, d in enumerate(dims)]
    names += [name for name, _ in scope.scalars.values()]
    return ", ".join(names)


def _matcher(scope: Scope, leaves: list[Value], names: tuple[str, ...]) -> Formula:
    conditions = [f"{name} == {value!r}" for name, value in scope.pinned_scalars.items()]
    conditions += [f"{low} <= {name} <= {high}" for name, (low, high) in scope.ranges.items()]
    conditions += [f"{opposite} > 1" for opposite in scope.negated_sizes.values()]
    return scope.matcher(_parameters(scope, leaves), names, conditions, tuple(scope.conditions))


def _sizer(scope: Scope, leaves: list[Value], results: list[Result]) -> Formula | None:
    """Return a formula from the dimensions of a call to the sizes that are results."""
    exprs = [r.value for r in results if r.kind == "size"]
    if not exprs:
        return None
    values = "".join(f"{scope.source(e)}, " for e in exprs)
    body = ", ".join([*scope.negated_sizes.values(), f"({values})"])
    return Formula(_parameters(scope, leaves), f"({body},)[-1]")
