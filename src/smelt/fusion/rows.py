"""Rebuild the nodes of a chunk as a graph whose inputs are blocks of rows.

z = x @ w.T    ->    z: f32[rows,c] = x[rows] @ w.T
sum(dz)        ->    so_far + sum(dz), where so_far is 0 in the first chunk
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from smelt.blocks import FIRST_ROW, WHOLE
from smelt.dataclass import dataclass
from smelt.fusion.trace import Trace
from smelt.graph import build
from smelt.graph.ir import Node
from smelt.ops.combine import CHOICE, COMBINES, EQUAL, SCALAR_IDENTITIES, SUM_OF_PRODUCTS
from smelt.ops.create import Constant, Input
from smelt.types.dtype import i64
from smelt.types.expr import Expr
from smelt.types.tensor import TensorType

__all__ = ["CannotChunk", "ChunkedValue", "Rows"]

ADDED = COMBINES[SUM_OF_PRODUCTS[0]].scalar


@dataclass(frozen=True, slots=True)
class ChunkedValue:
    """A value that chunks read or produce, and its cut axis (or WHOLE)."""

    node: Node
    inner: Node
    axis: int
    combine: str = ""
    """For an accumulated result, the scalar operator that merges a chunk's part into it.

    `accumulator` is then the body's input for the value so far.
    """
    accumulator: Node | None = None


class CannotChunk(Exception):
    """The rows of a value cannot be cut along an axis.

    The text is the reason, as a clause.
    """


class ChunkAxes(Protocol):
    """The axes along which values are cut, and other facts that `Rows` needs."""

    @property
    def axis(self) -> Mapping[Node, int]:
        """Return the members, with the axis along which each is cut."""
        ...

    @property
    def order(self) -> Mapping[Node, int]:
        """Return the index of each node of the full graph."""
        ...

    @property
    def rows(self) -> Expr:
        """Return the size of a block of rows."""
        ...

    def cut(self, node: Node, operand_index: int) -> int:
        """Return the axis along which the chunks of a node cut one of its operands."""
        ...

    def trace(self, node: Node) -> Trace:
        """Return the reads and reductions of a node."""
        ...


class Rows:
    """Rebuilds the members for a block of rows."""

    def __init__(self, home: ChunkAxes) -> None:
        self.home = home
        self.new: dict[Node, Node] = {}
        self.reads: dict[tuple[Node, int], ChunkedValue] = {}
        self.start: ChunkedValue | None = None

    def add(self, node: Node) -> None:
        home = self.home
        axis = home.axis[node]
        inputs = tuple(self._operand(node, k, x) for k, x in enumerate(node.inputs))
        is_cut = WHOLE < axis < node.type.rank
        block_type = self._type(node.type, axis) if is_cut else node.type
        op = with_shape(node.op, node.type, block_type) if is_cut else node.op
        rebuilt = build.apply(op, *inputs, origin=node.origin)
        if rebuilt.type != block_type:
            raise CannotChunk(f"{node.op.name} has no form for a block of rows")
        self.new[node] = rebuilt

    def _type(self, old: TensorType, axis: int) -> TensorType:
        return TensorType(old.dtype, (*old.shape[:axis], self.home.rows, *old.shape[axis + 1 :]))

    def _operand(self, node: Node, operand_index: int, x: Node) -> Node:
        """Return a rebuilt member, a constant, or an input of the body."""
        if x in self.new:
            return self.new[x]
        if isinstance(x.op, Constant):
            return x
        if not x.inputs and not isinstance(x.op, Input):
            return self._source(x, self.home.cut(node, operand_index))
        cut = self.home.cut(node, operand_index)
        key = x, cut
        part = self.reads.get(key)
        if part is None:
            block_type = x.type if cut == WHOLE else self._type(x.type, cut)
            strides = x.op.strides if isinstance(x.op, Input) else None
            if cut > 0 and strides is None:
                last = len(block_type.shape) - 1
                strides = tuple(1 if d == last else None for d in range(last + 1))
            inner = build.input(f"r{len(self.reads)}", block_type, strides)
            part = self.reads[key] = ChunkedValue(x, inner, cut)
        return part.inner

    def _source(self, x: Node, cut: int) -> Node:
        """Return positions, counted from the start of the chunk."""
        counts = self.home.trace(x).counted_axis
        if cut == WHOLE:
            return x
        block_type = self._type(x.type, cut)
        block = build.apply(with_shape(x.op, x.type, block_type), origin=x.origin)
        if block.type != block_type or counts < 0:
            raise CannotChunk(f"{x.op.name} has no form for a block of rows")
        if counts != cut:
            return block
        return build.map(ADDED, block, build.cast(self._start(x), x.type.dtype), origin=x.origin)

    def _start(self, reader: Node) -> Node:
        """Return the number of the chunk's first row, as an input of the body."""
        if self.start is None:
            start = build.input("start", TensorType(i64))
            self.start = self.reads[reader, FIRST_ROW] = ChunkedValue(reader, start, FIRST_ROW)
        return self.start.inner

    def result(self, node: Node, combine: str) -> ChunkedValue:
        """Return a result of the body: a block of rows, or the updated accumulator."""
        axis, rebuilt = self.home.axis[node], self.new[node]
        if axis < node.type.rank:
            return ChunkedValue(node, rebuilt, axis)
        accumulator = build.input(f"so_far{len(self.reads)}_{self.home.order[node]}", node.type)
        identity = build.constant(SCALAR_IDENTITIES[combine](node.type.dtype), node.type.dtype)
        is_first = build.map(EQUAL, self._start(node), build.constant(0, i64))
        so_far = build.map(CHOICE, is_first, identity, accumulator)
        return ChunkedValue(node, build.map(combine, so_far, rebuilt), WHOLE, combine, accumulator)


def with_shape(op: Any, old: TensorType, new: TensorType) -> Any:
    """Return an operator with the fields that hold its result's shape replaced."""
    new_fields = {f.name: new.shape for f in fields(op) if getattr(op, f.name) == old.shape}
    return replace(op, **new_fields) if new_fields else op
