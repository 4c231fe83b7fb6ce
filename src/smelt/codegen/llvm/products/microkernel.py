"""The loop of a register tile: the sums after all summed positions of a block.

Where few instructions start in a cycle, two multiply-adds and what feeds them take all of these:
what the loop counts, and addresses beyond one for each operand, come on top.  There a whole tile of
packed panels takes several positions in a round, and asks for its panel a little ahead: one that is
as large as the first cache is read from the second by every tile (heads over a vocabulary take 0.89
of the time, of which the loop is four fifths).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
    load_vector,
    prefetch,
)
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.counting import abreast, count_on, counted, stepped, times
from smelt.codegen.llvm.instructions.dot_product import step
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access
from smelt.codegen.llvm.products.gemv import fma_step
from smelt.codegen.llvm.products.prefetch_panel import Part
from smelt.codegen.llvm.products.prefetch_tile import TileAhead
from smelt.codegen.llvm.products.tile_loops import rounds
from smelt.codegen.llvm.schedule.contract import Contraction
from smelt.dataclass import dataclass
from smelt.types.dtype import DType, i8

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
FAR = 8192
"""Bytes between what few rows multiply of panels and what is asked for: the processor guesses no
further than to the end of a page."""
PANEL_FAR = 1024
"""The same of panels in the second cache, which are asked for into the first."""
TOGETHER = 4
"""Positions that a round takes where few instructions start in a cycle."""


@dataclass
class Place:
    """Where an operand lies: element (i, k) or (k, column) at origin + first*a + second*b."""

    base: Any
    origin: Value
    steps: tuple[Value, Value]
    dtype: DType
    packed: bool
    panels: tuple[Access, Scope] | None = None
    """Of a right operand that lies in panels: where, and what is known there."""
    unit: DType | None = None  # what is read there, if not an element; k counts units
    later: Value | None = None
    """Elements to the same place in the next task, where that is small and worth asking for."""


class Microkernel:
    """A tile's sums in registers, of operands at known places."""

    home: NestEmitter
    b: ir.IRBuilder
    c: Contraction
    left: Place
    right: Place
    ahead: TileAhead
    first: Value
    depth: Value
    """The summed position that the block begins at, and the one behind its last."""

    def asks_far(self) -> Value | None:
        """Bytes from what a tile multiplies of the right operand to what it asks memory for."""
        b, c, target = self.b, self.c, self.home.home.target
        if c.deep:
            return number(FAR)
        if c.kind != "packed" or c.panels or not target.starts_few:
            return None
        fill = target.l1_bytes // (c.tile.columns * c.unit.itemsize)
        fills = b.icmp_signed(">=", self.depth, number(fill))
        return b.select(fills, number(PANEL_FAR), number(0))

    far: Value | None
    """The same of the block at hand."""

    def multiplied(
        self,
        m: LLVMMachine,
        starts: list[Value],
        line: Value,
        begin: list[Value],
        across: tuple[int, Value | None],
        asks: tuple[tuple[Value, Value] | None, Part | None],
    ) -> list[Value]:
        """What begins as `begin` with all products of a tile: of rows from `starts` on and a line
        of the right operand, so many vectors `across` of which the last one may be masked.  Asks
        for the rows and the part of a panel that follow."""
        b, (rows, part) = self.b, asks
        height = len(begin) // across[0]

        def one(k: Value, totals: list[Value], nth: int) -> list[Value]:
            self.ahead.panel(part, k)
            vectors = self._across(m, self._line_at(line, k, nth), *across)
            return self._step(m, self._rows_at(starts, k, nth, height), vectors, totals)

        if rows or part or not self._is_dense(len(begin)):
            return self._one_by_one(begin, rows, one)
        count = b.sub(self.depth, self.first)
        whole = b.sub(self.depth, b.and_(count, number(TOGETHER - 1)))
        found = rounds(b, (self.first, whole), TOGETHER, one, begin)
        return rounds(b, (whole, self.depth), 1, one, found)

    def _is_dense(self, vectors: int) -> bool:
        """Whether a tile of so many vectors of sums takes all slots for instructions, and steps
        along the sum are known."""
        c, target = self.c, self.home.home.target
        full = vectors == c.tile.rows * c.tile.vectors and c.kind == "packed"
        steps = self.right.steps[0], self.left.steps[1]
        return full and target.starts_few and all(isinstance(x, ir.Constant) for x in steps)

    def _one_by_one(
        self,
        begin: list[Value],
        rows: tuple[Value, Value] | None,
        one: Callable[[Value, list[Value], int], list[Value]],
    ) -> list[Value]:
        """The loop that takes a position in each round, of which there is one at least."""
        b = self.b
        before = b.block
        loop, done = b.append_basic_block("tile"), b.append_basic_block("tiled")
        b.branch(loop)
        b.position_at_end(loop)
        k = counted(b, self.first, number(1), before)
        totals = [b.phi(x.type) for x in begin]
        if rows is not None:
            (asked := b.phi(rows[0].type)).add_incoming(rows[0], before)
            prefetch(b, asked)
            asked.add_incoming(b.gep(asked, [rows[1]], source_etype=ir.IntType(8)), loop)
        following = one(k, [*totals], 0)
        after = count_on(b, k)
        for phi, first, value in zip(totals, begin, following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, loop)
        b.cbranch(b.icmp_signed("<", after, self.depth), loop, done)
        b.position_at_end(done)
        return following

    def ask(self, place: Place, address: Value, lines: int) -> None:
        """Has the processor fetch what the next task reads where this one reads an address."""
        if place.later is None:
            return
        there = element_address(self.b, address, place.later, place.dtype)
        for line in range(lines):
            prefetch(self.b, element_address(self.b, there, number(line * LINE), i8))

    def _line_at(self, line: Value, k: Value, nth: int) -> Value:
        """The right operand's line at the nth position after the kth: it begins at 0."""
        b, place = self.b, self.right
        at = stepped(b, line, k, place.steps[0], memory_type(place.dtype))
        far = b.mul(number(nth), place.steps[0])
        return element_address(b, at, far, place.dtype) if nth else at

    def _across(
        self, m: LLVMMachine, first: Value, vectors: int, mask: Value | None
    ) -> list[Value]:
        """One line of the right operand, from its address on."""
        b, place = self.b, self.right
        self.ask(place, first, vectors)
        if self.far is not None:
            for v in range(vectors):
                at = b.gep(first, [b.add(self.far, number(v * LINE))], source_etype=ir.IntType(8))
                prefetch(b, at, near=True)
        steps = [number(v * self.c.tile.lanes) for v in range(vectors)]
        masks = [*[None] * (vectors - 1), None if place.packed else mask]
        return [
            load_vector(m, element_address(b, first, step, place.dtype), place.dtype, part)
            for step, part in zip(steps, masks, strict=True)
        ]

    def _rows_at(self, starts: list[Value], k: Value, nth: int, height: int) -> list[Value]:
        """Where a tile's rows are at the nth position after the kth."""
        b, place = self.b, self.left
        unit = place.unit or place.dtype
        if place.packed:
            at = element_address(b, starts[0], times(b, k, place.steps[1]), unit)
            rows = (number(i * self.c.steps[0]) for i in range(height))
            found = [element_address(b, at, row, unit) for row in rows]
        else:
            apart = place.steps[0], memory_type(place.dtype)
            found = abreast(b, starts, apart, k, place.steps[1], memory_type(unit))
        far = b.mul(number(nth), place.steps[1])
        return [element_address(b, at, far, unit) for at in found] if nth else found

    def _step(
        self, m: LLVMMachine, rows: list[Value], across: list[Value], totals: list[Value]
    ) -> list[Value]:
        """The sums after one more summed position."""
        b, place = self.b, self.left
        scalar = LLVMMachine(b, None, self.home.home.target)
        found: list[Value] = []
        for i, at in enumerate(rows):
            one = load_scalar(scalar, at, place.unit or place.dtype, None)
            one = splat(b, one, self.c.tile.lanes)
            for v, line in enumerate(across):
                total = totals[i * len(across) + v]
                more = (
                    fma_step(m, one, line, total, self.c.item)
                    if self.c.group is None
                    else step(m, self.c.group, one, line, total)
                )
                found.append(more)
        return found


__all__ = ["Microkernel", "Place"]
