"""Emit the inner loop of a GEMM register tile (the microkernel).

On processors which issue few instructions per cycle, two multiply-adds and their operands take all
issue slots; the loop counter and additional address registers come on top.  There a full tile over
packed panels is unrolled along k, and prefetches its panel a little ahead: a panel as large as L1
is read from L2 by every tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
    load_vector,
    prefetch,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import (
    advance_counter,
    multiple_of_counter,
    row_addresses,
    start_counter,
    step_address,
)
from smelt.codegen.llvm.instructions.dot_product import has_square_step
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.products.prefetch import PanelShare, TilePrefetcher
from smelt.codegen.llvm.products.rank_one_update import multiply_add, rank_one_update
from smelt.codegen.llvm.products.square_dot import (
    exchange_halves,
    interleave_positions,
    pair_rows,
    square_update,
)
from smelt.codegen.llvm.products.tile_loops import reduction_loop
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i8

Value = ir.Value
DEEP_PREFETCH_BYTES = 8192
"""Bytes between what few rows multiply of a panel and what they prefetch.

Hardware prefetchers stop at the end of a page.
"""
L1_PREFETCH_BYTES = 1024
"""Bytes of a panel in L2 between what a tile multiplies and what it prefetches."""
CHAINS, CHAINED_VECTORS = 4, 2
"""Sums for each accumulator of a tile of a single row, and most vectors of such a tile.

More vectors have multiply-adds enough in flight, and read one row of the operand at a time.
"""
UNROLL = 4
"""Positions along k per loop iteration, on processors which issue few instructions."""


@dataclass(frozen=True)
class OperandLayout:
    """Layout of an operand: element (a, b) is at origin + a*steps[0] + b*steps[1]."""

    base: Any
    origin: Value
    steps: tuple[Value, Value]
    dtype: DType
    packed: bool
    panels: tuple[Access, Scope] | None = None
    """For a right operand prepacked in panels: its access and scope."""
    unit: DType | None = None  # type of a unit if k counts units rather than elements
    next_task_step: Value | None = None
    """Elements from here to the next task's operand, if small enough to prefetch."""


class Microkernel:
    """Keeps a tile's sums in registers while it walks operands at known addresses."""

    env: Environment
    b: ir.IRBuilder
    c: Contraction
    left: OperandLayout
    right: OperandLayout
    prefetcher: TilePrefetcher
    first_k: Value
    end_k: Value
    """The block's first position along k is `first_k`; its end is `end_k`."""

    def prefetch_distance(self) -> Value | None:
        """Return the prefetch distance of the right operand in bytes, or None."""
        b, c, target = self.b, self.c, self.env.frame.target
        if c.by_panels:
            return number(DEEP_PREFETCH_BYTES)
        if c.kind != "packed" or c.prepacked or not target.is_issue_bound:
            return None
        fill = target.l1_bytes // (c.tile.columns * c.unit.itemsize)
        fills = b.icmp_signed(">=", self.end_k, number(fill))
        return b.select(fills, number(L1_PREFETCH_BYTES), number(0))

    prefetch_bytes: Value | None
    """Prefetch distance of the current block in bytes."""

    def accumulate(
        self,
        m: LLVMMachine,
        starts: list[Value],
        right_row: Value,
        begin: list[Value],
        across: tuple[int, Value | None],
        prefetches: tuple[tuple[Value, Value] | None, PanelShare | None],
    ) -> list[Value]:
        """Return the sums `begin` after all products of a tile.

        `starts` are the rows' addresses in the left operand, `right_row` is the right operand's
        first row.  `across` is the number of vectors and the last one's mask.  `prefetches` are the
        rows which follow (address and step) and a part of the next panel.
        """
        b, (rows, part) = self.b, prefetches
        height = len(begin) // across[0]

        def step_at(k: Value, totals: list[Value], nth: int) -> list[Value]:
            self.prefetcher.prefetch_panel(part, k)
            vectors = self._load_right_row(m, self._right_row_at(right_row, k, nth), *across)
            return self._step(m, self._rows_at(starts, k, nth, height), vectors, totals)

        if self._has_squares(m, height):
            sums = self._square_loop(m, starts, right_row, begin, across, prefetches)
            odd = b.and_(b.sub(self.end_k, self.first_k), number(1))
            return reduction_loop(b, (b.sub(self.end_k, odd), self.end_k), 1, step_at, sums)
        chains = self._chains(len(begin))
        if chains > 1 and not (rows or part):
            return self._interleaved_loop(m, begin, chains, step_at)
        if rows or part or not self._is_dense(len(begin)):
            return self._simple_loop(begin, rows, step_at)
        count = b.sub(self.end_k, self.first_k)
        unrolled_end = b.sub(self.end_k, b.and_(count, number(UNROLL - 1)))
        sums = reduction_loop(b, (self.first_k, unrolled_end), UNROLL, step_at, begin)
        return reduction_loop(b, (unrolled_end, self.end_k), 1, step_at, sums)

    def _has_squares(self, m: LLVMMachine, height: int) -> bool:
        """Return whether one instruction multiplies two rows and two columns at two positions."""
        c, place = self.c, self.left
        step = c.steps[1] if place.packed else place.steps[1].ref
        adjacent = str(step) == "1" and height > 1
        return adjacent and c.group is not None and has_square_step(m.target, c.group)

    def _square_loop(
        self,
        m: LLVMMachine,
        starts: list[Value],
        right_row: Value,
        begin: list[Value],
        across: tuple[int, Value | None],
        prefetches: tuple[tuple[Value, Value] | None, PanelShare | None],
    ) -> list[Value]:
        """Return the sums `begin` after all pairs of positions; see `accumulate`."""
        b, group, (rows, part), vectors = self.b, self.c.group, prefetches, across[0]
        height = len(begin) // vectors
        padding = begin[-vectors:] if height % 2 else []  # the last row twice
        assert group is not None

        def pair_at(k: Value, squares: list[Value], nth: int) -> list[Value]:
            if nth:
                return squares
            self.prefetcher.prefetch_panel(part, k)
            if rows is not None:
                ahead = b.mul(b.sub(k, self.first_k), rows[1])
                prefetch(b, b.gep(rows[0], [ahead], source_etype=ir.IntType(8)))
            here, next_ = (
                self._load_right_row(m, self._right_row_at(right_row, k, i), *across)
                for i in (0, 1)
            )
            addresses = self._rows_at(starts, k, 0, height)
            left = pair_rows(b, [*addresses, *addresses[-1:]][: height + height % 2], 1)
            return square_update(m, group, left, interleave_positions(b, here, next_), squares)

        odd = b.and_(b.sub(self.end_k, self.first_k), number(1))
        squares = exchange_halves(b, [*begin, *padding], vectors)
        span = self.first_k, b.sub(self.end_k, odd)
        squares = reduction_loop(b, span, 2, pair_at, squares)
        return exchange_halves(b, squares, vectors)[: len(begin)]

    def _chains(self, vectors: int) -> int:
        """Return the number of sums for each accumulator of a tile.

        A chain of multiply-adds waits for each; a single row has no other rows to fill the time.
        """
        if self.c.m is not None:
            return 1
        return CHAINS if vectors <= CHAINED_VECTORS else 1

    def _interleaved_loop(
        self,
        m: LLVMMachine,
        begin: list[Value],
        chains: int,
        step_at: Callable[[Value, list[Value], int], list[Value]],
    ) -> list[Value]:
        """Emit the loop with interleaved sums: position k + nth goes to number `nth`."""
        b, size = self.b, len(begin)
        end = b.sub(self.end_k, b.srem(b.sub(self.end_k, self.first_k), number(chains)))
        zero = m.const(self.c.item.dtype, 0)

        def one(k: Value, sums: list[Value], nth: int) -> list[Value]:
            first = nth * size
            following = step_at(k, sums[first : first + size], nth)
            return [*sums[:first], *following, *sums[first + size :]]

        start = [*begin, *[zero] * (size * (chains - 1))]
        sums = reduction_loop(b, (self.first_k, end), chains, one, start)
        while len(sums) > size:
            half = len(sums) // 2
            sums = [m.add(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
        return reduction_loop(b, (end, self.end_k), 1, step_at, sums)

    def _is_dense(self, vectors: int) -> bool:
        """Return whether a tile of so many accumulators fills all issue slots."""
        c, target = self.c, self.env.frame.target
        full = vectors == c.tile.rows * c.tile.vectors and c.kind == "packed"
        steps = self.right.steps[0], self.left.steps[1]
        return full and target.is_issue_bound and all(isinstance(x, ir.Constant) for x in steps)

    def _simple_loop(
        self,
        begin: list[Value],
        rows: tuple[Value, Value] | None,
        step_at: Callable[[Value, list[Value], int], list[Value]],
    ) -> list[Value]:
        """Emit the loop with one position per iteration; the range must not be empty."""
        b = self.b
        before = b.block
        loop, done = b.append_basic_block("tile"), b.append_basic_block("tiled")
        b.branch(loop)
        b.position_at_end(loop)
        k = start_counter(b, self.first_k, number(1), before)
        totals = [b.phi(x.type) for x in begin]
        addresses = list[tuple[ir.Phi, Value]]()
        if rows is not None:
            (address := b.phi(rows[0].type)).add_incoming(rows[0], before)
            prefetch(b, address)
            addresses = [(address, b.gep(address, [rows[1]], source_etype=ir.IntType(8)))]
        following = step_at(k, [*totals], 0)
        after, latch = advance_counter(b, k), b.block
        for address, advanced in addresses:
            address.add_incoming(advanced, latch)
        for phi, first, value in zip(totals, begin, following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, latch)
        b.cbranch(b.icmp_signed("<", after, self.end_k), loop, done)
        b.position_at_end(done)
        return following

    def prefetch_next_task(self, place: OperandLayout, address: Value, lines: int) -> None:
        """Prefetch what the next task reads at the counterpart of an address."""
        if place.next_task_step is None:
            return
        next_address = element_address(self.b, address, place.next_task_step, place.dtype)
        for nth_line in range(lines):
            prefetch(
                self.b, element_address(self.b, next_address, number(nth_line * CACHE_LINE), i8)
            )

    def _right_row_at(self, first_row: Value, k: Value, nth: int) -> Value:
        """Return the address of the right operand's row at position k + nth.

        `first_row` is the row at k = 0.
        """
        b, place = self.b, self.right
        at = step_address(b, first_row, k, place.steps[0], memory_type(place.dtype))
        offset = b.mul(number(nth), place.steps[0])
        return element_address(b, at, offset, place.dtype) if nth else at

    def _load_right_row(
        self, m: LLVMMachine, first: Value, vectors: int, mask: Value | None
    ) -> list[Value]:
        b, place = self.b, self.right
        self.prefetch_next_task(place, first, vectors)
        if self.prefetch_bytes is not None:
            for v in range(vectors):
                at = b.gep(
                    first,
                    [b.add(self.prefetch_bytes, number(v * CACHE_LINE))],
                    source_etype=ir.IntType(8),
                )
                prefetch(b, at, near=True)
        steps = [number(v * self.c.tile.lanes) for v in range(vectors)]
        masks = [*[None] * (vectors - 1), None if place.packed else mask]
        return [
            load_vector(m, element_address(b, first, step, place.dtype), place.dtype, part)
            for step, part in zip(steps, masks, strict=True)
        ]

    def _rows_at(self, starts: list[Value], k: Value, nth: int, height: int) -> list[Value]:
        """Return addresses of a tile's rows at position k + nth."""
        b, place = self.b, self.left
        unit = place.unit or place.dtype
        if place.packed:
            at = element_address(b, starts[0], multiple_of_counter(b, k, place.steps[1]), unit)
            rows = (number(i * self.c.steps[0]) for i in range(height))
            addresses = [element_address(b, at, row, unit) for row in rows]
        else:
            row_stride = place.steps[0], memory_type(place.dtype)
            addresses = row_addresses(b, starts, row_stride, k, place.steps[1], memory_type(unit))
        offset = b.mul(number(nth), place.steps[1])
        return [element_address(b, at, offset, unit) for at in addresses] if nth else addresses

    def _step(
        self, m: LLVMMachine, rows: list[Value], across: list[Value], totals: list[Value]
    ) -> list[Value]:
        """Return the sums after one more position along k."""
        b, place, lanes = self.b, self.left, self.c.tile.lanes
        scalar = LLVMMachine(b, None, self.env.frame.target)
        unit = place.unit or place.dtype
        left = (splat(b, load_scalar(scalar, at, unit, None), lanes) for at in rows)
        return rank_one_update(multiply_add(m, self.c.item, self.c.group), left, across, totals)


__all__ = ["Microkernel", "OperandLayout"]
