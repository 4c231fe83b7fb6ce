"""The operators of rounds for a block of rows: a graph of their own, whose inputs are blocks.

z = x @ w.T    ->    z: f32[rows,c] = x[rows] @ w.T
sum(dz)        ->    so_far + sum(dz), where so_far is 0 in the first round
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
from smelt.ops.combine import BEGINS, CHOICE, COMBINES, SAME, SUM_OF_PRODUCTS
from smelt.ops.create import Constant, Input
from smelt.types.dtype import i64
from smelt.types.expr import Expr
from smelt.types.tensor import TensorType

__all__ = ["NotCut", "Part", "Rows"]

ADDED = COMBINES[SUM_OF_PRODUCTS[0]].scalar


@dataclass(frozen=True, slots=True)
class Part:
    """A value that rounds read or make, and the axis along which it is cut (or WHOLE)."""

    node: Node
    inner: Node
    axis: int
    combine: str = ""
    """For a whole result, the scalar operator that joins what rounds make of it; `given` is then
    the body's input for what there is so far."""
    given: Node | None = None


class NotCut(Exception):
    """The rows of a value cannot be cut along an axis: says why, as part of a sentence."""


class Cuts(Protocol):
    """Who knows along which axes values are cut."""

    @property
    def axis(self) -> Mapping[Node, int]:
        """The members, and which axis of theirs is cut."""
        ...

    @property
    def order(self) -> Mapping[Node, int]:
        """The place of each node of the whole graph."""
        ...

    @property
    def rows(self) -> Expr:
        """The rows of a block."""
        ...

    def cut(self, node: Node, place: int) -> int:
        """Along which axis the rounds of a node cut one of its operands."""
        ...

    def trace(self, node: Node) -> Trace:
        """What a node reads and folds."""
        ...


class Rows:
    """The members again, for a block of rows."""

    def __init__(self, home: Cuts) -> None:
        self.home = home
        self.new: dict[Node, Node] = {}
        self.reads: dict[tuple[Node, int], Part] = {}
        self.start: Part | None = None

    def add(self, node: Node) -> None:
        home = self.home
        axis = home.axis[node]
        inputs = tuple(self._operand(node, k, x) for k, x in enumerate(node.inputs))
        cut = WHOLE < axis < node.type.rank
        wanted = self._type(node.type, axis) if cut else node.type
        op = shaped(node.op, node.type, wanted) if cut else node.op
        made = build.apply(op, *inputs, origin=node.origin)
        if made.type != wanted:
            raise NotCut(f"{node.op.name} has no form for a block of rows")
        self.new[node] = made

    def _type(self, old: TensorType, axis: int) -> TensorType:
        return TensorType(old.dtype, (*old.shape[:axis], self.home.rows, *old.shape[axis + 1 :]))

    def _operand(self, node: Node, place: int, x: Node) -> Node:
        """A member, a number, or an input of the body."""
        if x in self.new:
            return self.new[x]
        if isinstance(x.op, Constant):
            return x
        if not x.inputs and not isinstance(x.op, Input):
            return self._source(x, self.home.cut(node, place))
        cut = self.home.cut(node, place)
        key = x, cut
        found = self.reads.get(key)
        if found is None:
            kind = x.type if cut == WHOLE else self._type(x.type, cut)
            strides = x.op.strides if isinstance(x.op, Input) else None
            if cut > 0 and strides is None:
                last = len(kind.shape) - 1
                strides = tuple(1 if d == last else None for d in range(last + 1))
            inner = build.input(f"r{len(self.reads)}", kind, strides)
            found = self.reads[key] = Part(x, inner, cut)
        return found.inner

    def _source(self, x: Node, cut: int) -> Node:
        """What counts positions, from where the round begins."""
        counts = self.home.trace(x).counts
        if cut == WHOLE:
            return x
        wanted = self._type(x.type, cut)
        local = build.apply(shaped(x.op, x.type, wanted), origin=x.origin)
        if local.type != wanted or counts < 0:
            raise NotCut(f"{x.op.name} has no form for a block of rows")
        if counts != cut:
            return local
        return build.map(ADDED, local, build.cast(self._start(x), x.type.dtype), origin=x.origin)

    def _start(self, wanted: Node) -> Node:
        """The number of the round's first row, wanted for a value."""
        if self.start is None:
            start = build.input("start", TensorType(i64))
            self.start = self.reads[wanted, FIRST_ROW] = Part(wanted, start, FIRST_ROW)
        return self.start.inner

    def result(self, node: Node, combine: str) -> Part:
        """A result of the body: rows of one, or what there is so far with this round's part."""
        axis, made = self.home.axis[node], self.new[node]
        if axis < node.type.rank:
            return Part(node, made, axis)
        given = build.input(f"so_far{len(self.reads)}_{self.home.order[node]}", node.type)
        nothing = build.constant(BEGINS[combine](node.type.dtype), node.type.dtype)
        begins = build.map(SAME, self._start(node), build.constant(0, i64))
        so_far = build.map(CHOICE, begins, nothing, given)
        return Part(node, build.map(combine, so_far, made), WHOLE, combine, given)


def shaped(op: Any, old: TensorType, new: TensorType) -> Any:
    """An operator whose fields that are its result's shape say another one."""
    found = {f.name: new.shape for f in fields(op) if getattr(op, f.name) == old.shape}
    return replace(op, **found) if found else op
