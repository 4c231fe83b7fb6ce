"""Graphs to plan: array formulas in primitives, built node by node.

g = Formula(n=4096, m=1024)
x = g.input("x", "n", "m")
plan = g.plan(g.softmax(x))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.fusion import Plan, is_library, plan, traffic
from smelt.fusion.verify import verify
from smelt.graph import build
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Graph, Node
from smelt.journal.facts import Decision
from smelt.machine.target import Target
from smelt.ops.contract import Contract
from smelt.ops.create import Iota, SizeOf
from smelt.ops.extern import EXTERNS, Extern, ExternRow, register
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Slice
from smelt.types.dtype import DType, f32, i64
from smelt.types.expr import Index, evaluate, size
from smelt.types.tensor import TensorType

Array = np.ndarray[Any, Any]
MACHINE = Target.for_isa("avx512", cores=2)

if "test_sorted" not in EXTERNS:
    register(ExternRow("test_sorted", "sorted along the last axis", lambda x: x, np.sort))


class Formula:
    """Builds one graph; keyword arguments are its sizes at the first call."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.inputs: list[Node] = []

    # ---- values --------------------------------------------------------------------------------

    def dim(self, d: str | Index) -> Index:
        return size(d) if isinstance(d, str) else d

    def input(self, label: str, *shape: str | Index, dtype: DType = f32) -> Node:
        node = build.input(label, TensorType(dtype, tuple(map(self.dim, shape))))
        self.inputs.append(node)
        return node

    def of(self, name: str, *xs: Node | float) -> Node:
        """A scalar operator; numbers become constants of the first operand's type."""
        dtype = next(x.type.dtype for x in xs if isinstance(x, Node))
        return build.map(
            name, *(x if isinstance(x, Node) else build.constant(x, dtype) for x in xs)
        )

    def op(self, op: TensorOp, *xs: Node) -> Node:
        return build.apply(op, *xs)

    def permute(self, x: Node, *perm: int) -> Node:
        return self.op(Permute(perm), x)

    def reshape(self, x: Node, *shape: str | Index) -> Node:
        return self.op(Reshape(tuple(map(self.dim, shape))), x)

    def expand(self, x: Node, *shape: str | Index) -> Node:
        return self.op(Expand(tuple(map(self.dim, shape))), x)

    def flip(self, x: Node, *axes: int) -> Node:
        return self.op(Flip(axes), x)

    def concat(self, axis: int, *xs: Node) -> Node:
        return self.op(Concat(axis), *xs)

    def pad(self, x: Node, low: Sequence[int], high: Sequence[int], value: float = 0.0) -> Node:
        return self.op(Pad(tuple(low), tuple(high), value), x)

    def cut(self, x: Node, axis: int, start: Index, length: Index, step: int = 1) -> Node:
        starts = tuple(start if a == axis else 0 for a in range(x.type.rank))
        sizes = tuple(length if a == axis else d for a, d in enumerate(x.type.shape))
        steps = tuple(step if a == axis else 1 for a in range(x.type.rank))
        return self.op(Slice(starts, sizes, steps), x)

    def fold(self, name: str, x: Node, *axes: int, keep: bool = False) -> Node:
        result = self.op(Reduce(name, axes), x)
        if not keep:
            return result
        return self.reshape(result, *(1 if a in axes else d for a, d in enumerate(x.type.shape)))

    def scan(self, name: str, x: Node, axis: int) -> Node:
        return self.op(Scan(name, axis), x)

    def matmul(self, x: Node, w: Node) -> Node:
        return self.op(Contract.parse("m,k; k,n -> m,n"), x, w)

    def sort(self, x: Node) -> Node:
        return self.op(Extern("test_sorted"), x)

    def gather(self, x: Node, *index: Node, first: int = 0) -> Node:
        return self.op(Gather(first), x, *index)

    def iota(self, *shape: str | Index, axis: int = 0, dtype: DType = i64) -> Node:
        return self.op(Iota(tuple(map(self.dim, shape)), axis, dtype))

    # ---- composites ----------------------------------------------------------------------------

    def mean(self, x: Node, *axes: int, keep: bool = False) -> Node:
        count: Index = 1
        for a in axes:
            count = count * x.type.shape[a]
        return self.of(
            "div", self.fold("sum", x, *axes, keep=keep), self.op(SizeOf(count, x.type.dtype))
        )

    def softmax(self, x: Node, axis: int = 1) -> Node:
        grown = self.of("exp", self.of("sub", x, self.fold("max", x, axis, keep=True)))
        return self.of("div", grown, self.fold("sum", grown, axis, keep=True))

    def logsumexp(self, x: Node, axis: int = 1) -> Node:
        top = self.fold("max", x, axis, keep=True)
        total = self.fold("sum", self.of("exp", self.of("sub", x, top)), axis, keep=True)
        return self.of("add", self.of("log", total), top)

    def centred(self, x: Node, *axes: int) -> tuple[Node, Node]:
        """x less its mean, and the variance."""
        d = self.of("sub", x, self.mean(x, *axes, keep=True))
        return d, self.mean(self.of("mul", d, d), *axes, keep=True)

    def normalised(self, x: Node, *axes: int) -> Node:
        d, variance = self.centred(x, *axes)
        return self.of("mul", d, self.of("rsqrt", self.of("add", variance, 1e-5)))

    def silu(self, x: Node) -> Node:
        return self.of(
            "mul", x, self.of("reciprocal", self.of("add", self.of("exp", self.of("neg", x)), 1.0))
        )

    # ---- plans ---------------------------------------------------------------------------------

    def graph(self, *outputs: Node, name: str = "f") -> Graph:
        return Graph(name, tuple(self.inputs), outputs)

    def plan(self, *outputs: Node, target: Target = MACHINE, **options: Any) -> Plan:
        """The verified plan of the values."""
        return verify(plan(self.graph(*outputs), target, None, self.sizes, **options))

    def bytes(self, actual: Plan) -> tuple[int, int]:
        """Bytes moved with and without fusion."""
        rows = traffic(actual, self.sizes)
        return sum(a for a, _ in rows), sum(b for _, b in rows)


def kernels(actual: Plan) -> int:
    """Clusters that are kernels."""
    return len(actual.clusters) - calls(actual)


def calls(actual: Plan) -> int:
    """Clusters that are library calls."""
    return sum(any(is_library(n) for n in c.nodes) for c in actual.clusters)


def reasons(actual: Plan, verdict: str) -> set[str]:
    return {d.reason for d in actual.decisions if d.verdict == verdict}


def between(actual: Plan, a: str, b: str) -> list[Decision]:
    """Decisions about two operators by name."""
    return [d for d in actual.decisions if (d.details["a_op"], d.details["b_op"]) == (a, b)]


def execute(
    actual: Plan, arrays: Sequence[Array], sizes: Mapping[str, int], arena: Array | None = None
) -> list[Array]:
    """Runs a plan cluster by cluster: a cluster sees its inputs, and leaves its outputs.

    With `arena`, bytes, values between clusters live where the plan puts them, and nowhere else:
    there, or in the memory of results.
    """
    memory: dict[Node, Array] = dict(zip(actual.graph.inputs, arrays, strict=True))
    slots = {slot.node: slot for slot in actual.slots}
    hosts = {
        s.within: np.empty(int(evaluate(s.within.type.nbytes, sizes)), np.uint8)
        for s in actual.slots
        if s.within is not None
    }
    for cluster in actual.clusters:
        values = {node: memory[node] for node in cluster.inputs}
        for node in cluster.nodes:
            values[node] = evaluate_node(node, [values[x] for x in node.inputs], sizes)
        for node in cluster.outputs:
            offset = slots[node].offset
            home = hosts.get(node if offset is None else slots[node].within, arena)
            if arena is None or home is None or (offset is None and home is arena):
                memory[node] = values[node]
                continue
            start = 0 if offset is None else int(evaluate(offset, sizes))
            part = home[start : start + values[node].nbytes].view(values[node].dtype)
            part[...] = np.ascontiguousarray(values[node]).reshape(-1)
            memory[node] = part.reshape(values[node].shape)
    return [memory[node] for node in actual.graph.outputs]
