"""Lower PyTorch's loops and branches, which take functions, to the loop operator.

    scan(step, init, xs, constants)             # a Loop over the slices of xs
    while_loop(cond, body, init, constants)     # a Loop that runs while its first carry is true
    cond(pred, yes, no, operands)               # both, if they are cheap; else one that runs once
    associative scan(combine, xs, constants)    # a Scan, or a Loop in the order of the slices

A function with an operator that has no row is left to PyTorch with the call around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row
from smelt.frontends.torch.value import V, iota, number, select
from smelt.graph import build
from smelt.graph.ir import Graph
from smelt.graph.loop import Loop
from smelt.graph.loop_bodies import checked_body, is_cheap_branch, run_if
from smelt.graph.walk import all_size_names
from smelt.ops.create import Constant
from smelt.ops.elementwise import Map
from smelt.ops.view import Flip
from smelt.types.dtype import bool_, i64
from smelt.types.expr import size
from smelt.types.tensor import Shape, TensorType

if TYPE_CHECKING:
    from smelt.frontends.torch.subgraph import Subgraph

Operands = Sequence[Any]
"""Tensors as values, numbers as indices."""


def _scan(c: Call, step: Subgraph, init: Operands, xs: Operands, constants: Operands) -> list[V]:
    """Lower `scan`: last carries, then stacked results."""
    carry, sequences = _tensors(init), _tensors(xs)
    if not sequences:
        raise UnsupportedError("a scan without sequences")
    reverse = all(x.node.op == Flip((0,)) for x in sequences)
    if reverse:
        sequences = [V(x.node.inputs[0], x.origin) for x in sequences]
    outer = _Operands(constants)
    befores = [_input(f"c{k}", x.type, c) for k, x in enumerate(carry)]
    slices = [_input(f"x{k}", TensorType(x.dtype, x.shape[1:]), c) for k, x in enumerate(sequences)]
    results = _present(step.apply([*befores, *slices, *outer.inside]))
    after = _next_carry(c, results[: len(carry)], befores)
    graph = outer.graph("step", [*befores, *slices], [*after, *results[len(carry) :]])
    length = sequences[0].shape[:1]
    values = _run_loop(c, graph, step, carry, sequences, outer.read(graph), length, reverse=reverse)
    if not reverse:
        return values
    return [*values[: len(carry)], *(x.flip(0) for x in values[len(carry) :])]


def _while_loop(
    c: Call, goes_on: Subgraph, step: Subgraph, init: Operands, constants: Operands
) -> list[V]:
    """Lower `while_loop`: last carries. Its first carry of ours is the condition."""
    carry, outer = _tensors(init), _Operands(constants)
    first = _condition(_present(goes_on.apply([*carry, *constants]))[0])
    c.reads += goes_on.reads
    goes_on.reads.clear()
    go = _input("go", TensorType(bool_), c)
    befores = [_input(f"c{k}", x.type, c) for k, x in enumerate(carry)]
    after = _next_carry(c, _present(step.apply([*befores, *outer.inside])), befores)
    following = _condition(_present(goes_on.apply([*after, *outer.inside]))[0])
    step.in_bounds |= goes_on.in_bounds
    step.reads += goes_on.reads
    graph = outer.graph("step", [go, *befores], [following, *after])
    return _run_loop(c, graph, step, [first, *carry], (), outer.read(graph), ())[1:]


def _cond(c: Call, pred: Any, yes: Subgraph, no: Subgraph, operands: Operands) -> list[V | None]:
    """Lower `cond`: results of the branch that is taken."""
    if not isinstance(pred, V):
        raise UnsupportedError("a condition that is not a tensor")
    condition, outer = _condition(pred), _Operands(operands)
    results = [f.apply(outer.inside) for f in (yes, no)]
    if any((a is None) != (b is None) for a, b in zip(*results, strict=True)):
        raise UnsupportedError("branches with different results")
    present = [k for k, x in enumerate(results[0]) if x is not None]
    shapes = [c.sizes.shape(c.out[k].shape) for k in present]

    def spelled(values: Sequence[V | None]) -> list[V]:
        pairs = zip(_present([values[k] for k in present]), shapes, strict=True)
        return [c.sizes.respell(x, shape) for x, shape in pairs]

    graphs = [outer.graph("branch", (), spelled(r)) for r in results]
    if all(map(is_cheap_branch, graphs)):
        pairs = zip(*(spelled(f.apply(operands)) for f in (yes, no)), strict=True)
        taken = [select(condition.expand(a.shape), a, b) for a, b in pairs]
    else:
        taken = [number(0, x.dtype, c.origin).expand(x.shape) for x in spelled(results[0])]
        opposite = condition.map("not")
        for test, f, graph in ((condition, yes, graphs[0]), (opposite, no, graphs[1])):
            taken = _run_branch(c, test, f, graph, taken, outer.read(graph))
    values: list[V | None] = [None] * len(results[0])
    for k, value in zip(present, taken, strict=True):
        values[k] = value
    return values


def _run_branch(
    c: Call, test: V, f: Subgraph, graph: Graph, values: Sequence[V], operands: Sequence[V]
) -> list[V]:
    names = all_size_names(graph)
    graph = Graph(graph.name, graph.inputs, graph.outputs)
    loop, extra = run_if(graph, names, tuple(map(size, names)), f.in_bounds, f.reads)
    zeros = [number(0, i64)] * extra
    nodes = [x.node for x in (test, *values, *zeros, *operands)]
    return [
        V(build.apply(replace(loop, which=k), *nodes, origin=c.origin), c.origin)
        for k in range(1, 1 + len(values))
    ]


def _associative_scan(c: Call, combine: Subgraph, xs: Operands, constants: Operands) -> list[V]:
    """Lower an associative scan along the first dimension.

    One operator that has a scan becomes that; any other function combines in order, which needs no
    assumption about it.
    """
    sequences, outer = _tensors(xs), _Operands(constants)
    befores, slices = (
        [_input(f"{side}{k}", TensorType(x.dtype, x.shape[1:]), c) for k, x in enumerate(sequences)]
        for side in "cx"
    )
    results = _present(combine.apply([*befores, *slices, *outer.inside]))
    running = _scan_operator(results, befores, slices)
    if running is not None:
        return [sequences[0].scan(running, 0).cast(sequences[0].dtype)]
    length = sequences[0].shape[:1]
    position = _input("t", TensorType(i64), c)
    is_first = position.map("eq", 0)
    after = [
        select(is_first.expand(x.shape), x, y)
        for x, y in zip(slices, _next_carry(c, results, befores), strict=True)
    ]
    graph = outer.graph("step", [*befores, *slices, position], [*after, *after])
    first = [number(0, x.dtype, c.origin).expand(x.shape[1:]) for x in sequences]
    moving = [*sequences, iota(length, 0, i64, c.origin)]
    values = _run_loop(c, graph, combine, first, moving, outer.read(graph), length)
    return values[len(sequences) :]


_SCANS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""Scalar operator -> the scan of it."""


def _scan_operator(results: Sequence[V], left: Sequence[V], right: Sequence[V]) -> str | None:
    """Return the scan that a function of two values amounts to, or None."""
    if len(results) != 1:
        return None
    node = results[0].node
    operands = {left[0].node, right[0].node}
    is_one = isinstance(node.op, Map) and {*node.inputs} == operands and len(operands) == 2
    return _SCANS.get(node.op.scalar) if is_one and isinstance(node.op, Map) else None


# ---- operands and results ------------------------------------------------------------------------


class _Operands:
    """Operands of a function from around it: tensors become inputs of its graph.

    Numbers and constants stay as they are.
    """

    def __init__(self, operands: Operands) -> None:
        self._outside: list[V] = []
        self._inputs: list[V] = []
        self.inside: list[Any] = []
        """What the function gets."""
        for x in operands:
            if not isinstance(x, V) or isinstance(x.node.op, Constant):
                self.inside.append(x)
                continue
            self._outside.append(x)
            self._inputs.append(V(build.input(f"k{len(self._inputs)}", x.type)))
            self.inside.append(self._inputs[-1])

    def graph(self, name: str, first: Sequence[V], outputs: Sequence[V]) -> Graph:
        """Return the graph of a function, with those inputs from around it that it reads."""
        results = tuple(x.node for x in outputs)
        read = set(Graph(name, (), results).nodes())
        inputs = [*first, *(x for x in self._inputs if x.node in read)]
        return Graph(name, tuple(x.node for x in inputs), results)

    def read(self, graph: Graph) -> list[V]:
        """Return the outside values that a graph reads, in the order of its inputs."""
        inputs = set(graph.inputs)
        return [x for x, y in zip(self._outside, self._inputs, strict=True) if y.node in inputs]


def _run_loop(
    c: Call,
    graph: Graph,
    step: Subgraph,
    carry: Sequence[V],
    sequences: Sequence[V],
    constants: Sequence[V],
    length: Shape,
    *,
    reverse: bool = False,
) -> list[V]:
    """Run a loop of a graph; return the last carries, then the stacked results."""
    count = len(carry)
    body, extra = checked_body(graph, count, step.in_bounds, step.reads)
    names = all_size_names(body.graph)
    sizes = tuple(map(size, names))
    loop = Loop(count + extra, len(sequences), length, reverse, 0, names, sizes, body)
    zeros = [number(0, i64)] * extra
    nodes = [x.node for x in (*carry, *zeros, *sequences, *constants)]
    return [
        V(build.apply(replace(loop, which=k), *nodes, origin=c.origin), c.origin)
        for k in range(loop.results)
        if not count <= k < count + extra
    ]


def _input(label: str, kind: TensorType, c: Call) -> V:
    return V(build.input(label, kind), c.origin)


def _tensors(operands: Operands) -> list[V]:
    for x in operands:
        if not isinstance(x, V):
            raise UnsupportedError("a number that a loop carries")
    return list(operands)


def _present(results: Sequence[V | None]) -> list[V]:
    values = [x for x in results if x is not None]
    if len(values) != len(results):
        raise UnsupportedError("a step with a result that is not a tensor")
    return values


def _next_carry(c: Call, after: Sequence[V], before: Sequence[V]) -> list[V]:
    """Return the next carries with the sizes of those before them."""
    if [x.dtype for x in after] != [x.dtype for x in before]:
        raise UnsupportedError("a step that returns another carry")
    return [c.sizes.respell(x, y.shape) for x, y in zip(after, before, strict=True)]


def _condition(x: V) -> V:
    if x.dtype != bool_ or any(n != 1 for n in x.shape):
        raise UnsupportedError(f"a condition of type {x.type}")
    return x.reshape() if x.rank else x


ROWS = (
    Row("scan", _scan),
    Row("while_loop", _while_loop),
    Row("cond", _cond),
    Row("associative_scan", _associative_scan),
)
"""Rows of operators that take functions."""
