"""Operands of products over windows on their way to scratch memory, nest by nest.

Both operands are packed by ordinary nests, which may compute or turn what they pack; each element
goes to a place that is linear in its axes:

    packer.pack(nest)    runs the nest; every vector of it comes back to `put`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.input_tile import Slid
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.products.partition_loops import in_stretches, stretched
from smelt.codegen.llvm.products.tile_loops import in_squares
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.scratch.workspace import LEFT_PART, RIGHT_PART
from smelt.types.expr import Index

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class Packer:
    """Packs the operands of one product in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, item: Item) -> None:
        self.home, self.b, self.item = home, home.b, item
        self.element = item.args[0].dtype
        """The type as which packed operands lie in scratch."""
        self.image = self.element
        """That of the right one."""
        self.starts: dict[str, Value] = {}
        self.apart: dict[str, Value] = {}
        """Elements between neighbours of the packed left operand."""
        self.strides: dict[str, Value] = {}
        """The same of the right one."""
        self.parted = False
        """Whether the operand that is packed now is packed part by part."""
        self.vectors = 0
        """Vectors that a line fits in which is packed now, where they are stored whole: what they
        have beyond it is overwritten by the next line."""

    def steps(
        self, order: tuple[str, ...], extents: Iterable[Index], even: int = 0, unit: int = 1
    ) -> dict[str, Value]:
        """Elements between neighbours along each axis of a dense array; along the first `even` axes
        they are multiples of a unit, which is a power of two."""
        b, found = self.b, dict[str, Value]()
        step: Value = number(1)
        for a, n in zip(order[::-1], [self.home.home.index(n) for n in extents][::-1], strict=True):
            if len(order) - len(found) == even:
                step = b.and_(b.add(step, number(unit - 1)), number(-unit))
            found[a], step = step, b.mul(step, n)
        return found

    def reach(self, columns: Sequence[Slid], over: Sequence[str], at: Sequence[int]) -> Value:
        """How far from a result the right operand is read for one of the summed positions, `at`
        along `over`."""
        b, found = self.b, number(0)
        slid = {c.tap: c for c in columns if c.tap}
        for a, k in zip(over, at, strict=True):
            steps = [(a, k)]
            if a in slid:
                steps = [(slid[a].place, slid[a].quotient(k))]
                steps += [(slid[a].rest, slid[a].remainder(k))] if slid[a].rest else []
            for name, count in steps:
                found = b.add(found, b.mul(self.strides[name], number(count)))
        return found

    def widen(self, columns: Sequence[Slid]) -> None:
        """Sets the ranges of places: those of the task's results, and the margins."""
        ranges = self.home.ranges
        for c in columns:
            low, high = ranges[c.axis]
            ranges[c.place] = (low, self.b.add(high, number(c.margin)))

    def pack(
        self, nest: Nest, scope: Scope | None = None, starts: dict[str, Value] | None = None
    ) -> None:
        """Runs the nest that packs an operand, part by part where it is joined of parts; squares of
        it where that is turned.  What is packed begins at `starts`, if that is not where the ranges
        of the nest's axes do."""
        self.starts = starts or {a: self.home.ranges[a][0] for a in nest.order}
        inner = scope or Scope(self.home.top)
        plain = self.plain(nest)
        axes = [a for a in stretched(self.home, nest, self.unit(nest)) if a.name in plain]
        self.parted = bool(axes)
        in_stretches(self.home, axes, lambda: self._pack(nest, inner))

    def plain(self, nest: Nest) -> Collection[str]:
        """The axes of a nest that are walked within their extents, so that parts may be cut off."""
        return ()

    def unit(self, nest: Nest) -> int:
        """What vectors that a nest packs have to begin at multiples of."""
        return 1

    def _pack(self, nest: Nest, scope: Scope) -> None:
        if nest.turned:
            in_squares(self.home, nest.order, lambda: self.home.run(nest, scope))
        else:
            self.home.run(nest, scope)

    def put(self, nest: Nest, value: Value, scope: Scope) -> None:
        """Stores one vector of a packed operand at its place."""
        b, home, part = self.b, self.home, RIGHT_PART if nest.packed == "right" else LEFT_PART
        lanes = scope.lanes.count if scope.lanes is not None else None
        value = splat(b, value, lanes) if lanes else value
        store_vector(
            LLVMMachine(b, lanes, home.home.target),
            self.at(part, self.offset(nest, scope)),
            value,
            self.element if part == LEFT_PART else self.image,
            scope.lanes.mask if scope.lanes and not self.vectors else None,
        )

    def offset(self, nest: Nest, scope: Scope) -> Value:
        """Where the vector at a scope goes, in elements."""
        b, found = self.b, number(0)
        steps = self.strides if nest.packed == "right" else self.apart
        for a in nest.order:
            found = b.add(found, b.mul(b.sub(scope.axis(a), self.starts[a]), steps[a]))
        return found

    def at(self, part: int, offset: Value) -> Value:
        """The address of an element in a part of the product's scratch memory."""
        dtype = {0: self.item.dtype, RIGHT_PART: self.image}.get(part, self.element)
        return element_address(self.b, self.home.storage.at[self.item, part], offset, dtype)
