"""A random program under construction: nodes, what they evaluate to, sizes, facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from tests.strategies import data

from smelt.graph import build
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Fact, Graph, Node
from smelt.ops.create import Iota, SizeOf
from smelt.ops.elementwise import Cast
from smelt.ops.spec import TensorOp, dims_at
from smelt.types.dtype import DType, f32, i32, i64
from smelt.types.expr import Index, size
from smelt.types.tensor import Shape, TensorType

Draw = Callable[[st.SearchStrategy[object]], object]

SIZES = (3, 1, 2, 5, 0, 4, 7, 8, 13, 16, 17, 31, 33, 64, 65, 67)
"""Simple first: odd, prime, powers of two and one past a vector."""
LARGEST = 1 << 14
"""Elements of one value."""


class Program(NamedTuple):
    """A graph and arrays for its inputs."""

    graph: Graph
    arrays: list[data.Array]


class Builder:
    """A program under construction: nodes, what they evaluate to, and the sizes in use."""

    def __init__(self, draw: Draw, dtypes: Sequence[DType], symbolic: bool) -> None:
        self.draw = draw
        self.dtypes = tuple(dtypes)
        self.symbolic = symbolic
        self.values: list[Node] = []
        self.inputs: list[Node] = []
        self.arrays: list[data.Array] = []
        self.results: dict[Node, data.Array] = {}
        self.sizes: dict[str, int] = {}
        self.facts: dict[Fact, None] = {}
        self.dims: list[Index] = []
        self.excluded: frozenset[str] = frozenset()
        self.flavour = str(draw(st.sampled_from(data.FLAVOURS)))

    # -- drawing

    def choose(self, options: Sequence[object]) -> object:
        return self.draw(st.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))  # type: ignore[call-overload]

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def value(self, accept: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """A value that is acceptable, recent ones first; None if there is none."""
        results = [v for v in reversed(self.values) if accept(v)]
        return results[self.number(0, min(len(results), 6) - 1)] if results else None

    # -- building

    def dim(self) -> Index:
        """A size: one in use already or a new one, a symbol or a number."""
        if self.dims and self.flag():
            return self.choose(self.dims)  # type: ignore[return-value]
        n = int(self.choose(SIZES))  # type: ignore[call-overload]
        result: Index = n
        if self.symbolic and n != 1 and self.flag():
            name = "nmkpqrst"[len(self.sizes) % 8] + ("" if len(self.sizes) < 8 else "2")
            self.sizes[name] = n
            result = size(name)
        self.dims.append(result)
        return result

    def concrete(self, shape: Shape) -> tuple[int, ...]:
        return dims_at(shape, self.sizes)

    def count(self, shape: Shape) -> int:
        return int(np.prod(self.concrete(shape), dtype=np.int64))

    def input(self, dtype: DType, shape: Shape, array: data.Array | None = None) -> Node:
        """A new input; its array is drawn unless given."""
        node = build.input(f"x{len(self.inputs)}", TensorType(dtype, shape))
        if array is None:
            seed = self.number(0, 3)
            array = data.array(dtype, self.concrete(shape), self.flavour, seed)
        self.inputs.append(node)
        self.arrays.append(array)
        self.results[node] = array
        self.values.append(node)
        return node

    def apply(self, op: TensorOp, *inputs: Node) -> Node:
        """A node without taking it into the pool of values; it is run at once."""
        node = build.apply(op, *inputs)
        operands = [self.result(x) for x in inputs]
        self.results[node] = evaluate_node(node, operands, self.sizes)
        return node

    def result(self, node: Node) -> data.Array:
        if node not in self.results:
            self.results[node] = evaluate_node(
                node, [self.result(x) for x in node.inputs], self.sizes
            )
        return self.results[node]

    def add(self, node: Node) -> Node:
        """Take a node into the pool, tamed."""
        node = self.tamed(node)
        self.values.append(node)
        return node

    def tamed(self, node: Node) -> Node:
        """The value clamped to ±8 if it is huge or not finite although the data is."""
        if not node.type.dtype.is_float or self.flavour == "special":
            return node
        result = self.result(node).astype(np.float64)
        if result.size and np.isfinite(result).all() and np.abs(result).max() < 1e4:
            return node
        if not result.size:
            return node
        low, high = (build.constant(v, node.type.dtype) for v in (-8.0, 8.0))
        clean = build.map("select", build.map("isnan", node), high, node)
        return build.map("min", build.map("max", clean, low), high)

    def cast(self, node: Node, dtype: DType) -> Node:
        """A conversion with the same result on every machine."""
        if node.type.dtype == dtype:
            return node
        if node.type.dtype.is_float and dtype.is_integer:
            low = 0.0 if dtype.kind == "uint" else -100.0
            zero, least, most = (build.constant(v, node.type.dtype) for v in (0.0, low, 100.0))
            number = build.map("select", build.map("isnan", node), zero, node)
            node = build.map("min", build.map("max", number, least), most)
        return self.apply(Cast(dtype), node)

    def fact(self, left: Index, relation: str, right: Index) -> None:
        self.facts[Fact(left, relation, right)] = None

    def source(self) -> Node:
        """A value that comes from no input: positions or a size."""
        dtype = self.choose([d for d in (f32, i64, i32) if d in self.dtypes] or [f32])
        assert isinstance(dtype, DType)
        if self.sizes and self.flag():
            return self.apply(SizeOf(size(next(iter(self.sizes))), dtype))
        shape = (self.dim(),)
        return self.apply(Iota(shape, 0, dtype))

    def finish(self) -> Program:
        """The program: what nobody reads is an output, the last value in any case."""
        read = {x for v in self.values for x in v.inputs}
        sinks = [v for v in self.values if v not in read and v not in self.inputs]
        outputs = sinks[-3:] or [self.values[-1]]
        if self.number(0, 3) == 3:
            outputs.append(self.values[self.number(0, len(self.values) - 1)])
        graph = Graph("f", tuple(self.inputs), tuple(outputs), tuple(self.facts))
        return self._bound(graph)

    def _bound(self, graph: Graph) -> Program:
        """Drops inputs that nobody reads; a size needs an input whose shape tells it."""
        used = set(graph.nodes()[len(graph.inputs) :]) | set(graph.outputs)
        read = {x for node in used for x in node.inputs} | set(graph.outputs)
        pairs = list(zip(graph.inputs, self.arrays))
        kept = [p for p in pairs if p[0] in read]
        reported = {d for node, _ in kept for d in node.type.shape}
        for name in self.sizes:
            if size(name) not in reported:
                more = next((p for p in pairs if size(name) in p[0].type.shape), None)
                if more is None:
                    self.input(f32, (size(name),))
                    more = (self.inputs[-1], self.arrays[-1])
                if more not in kept:
                    kept.append(more)
                reported |= set(more[0].type.shape)
        kept.sort(key=lambda p: self.inputs.index(p[0]))
        inputs = tuple(node for node, _ in kept)
        return Program(
            Graph(graph.name, inputs, graph.outputs, graph.facts), [array for _, array in kept]
        )
