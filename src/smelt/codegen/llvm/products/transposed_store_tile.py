"""Emit the microkernel of a GEMM with swapped operands, which stores transposed sums.

    sums[r, column] = sum over k of lines[column, k] * panel[k, r]       12 columns, 16 or 32 rows r

It is a separate function because its sums take nearly all registers: within the surrounding loops
LLVM would keep their values in registers, and spill the sums.
"""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
    load_vector,
    prefetch,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import step_address
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.codegen.llvm.products.rank_one_update import multiply_add, rank_one_update
from smelt.codegen.llvm.products.tile_loops import outline_function, reduction_loop
from smelt.codegen.llvm.products.tile_sums import sum_in_runs
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.machine.blocks import SMALL_M_SWAPPED
from smelt.machine.target import Target

Value = ir.Value
SWAPPED_UNROLL = 2
"""Positions along k per loop iteration."""
COLUMN_PAIR = 2
"""Cache lines prefetched per iteration, of neighbouring columns."""
FRACTION = 16
"""Fraction bits of the prefetch rate."""

PTR = ir.PointerType()
TILE_TYPE = ir.FunctionType(ir.VoidType(), [PTR, PTR, PTR, I64, I64, I64, PTR, I64, I64])
"""Type of the tile function.

Arguments: sums, panel, first line, bytes between lines, number of lines, positions along k; the
first line to prefetch, where this tile's share begins, and the prefetch rate per iteration, both in
pairs of cache lines (fixed point).
"""


def tile_function(module: ir.Module, c: FusedGemmPlan, vectors: int, target: Target) -> ir.Function:
    """Return the function of a tile with so many vectors of rows.

    It prefetches later lines where they are read in place.
    """
    name = f"transposed.{c.item.dtype}.{c.tile.rows}x{vectors}.{'asks' if c.direct else 'packed'}"
    return outline_function(module, name, TILE_TYPE, lambda f: _Tile(f, c, vectors, target).fill())


class _Tile:
    def __init__(self, f: ir.Function, c: FusedGemmPlan, vectors: int, target: Target) -> None:
        self.f, self.c, self.vectors = f, c, vectors
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)

    def fill(self) -> None:
        """Emit the function's body."""
        b, c, dtype, starts = self.b, self.c, self.c.item.dtype, self._starts()
        zeros = [self.m.const(dtype, 0)] * (c.tile.rows * self.vectors)

        def run(span: tuple[Value, Value]) -> list[Value]:
            done = b.and_(span[1], number(-SWAPPED_UNROLL))
            sums = reduction_loop(
                b,
                (span[0], done),
                SWAPPED_UNROLL,
                lambda k, sums, nth: self._step(starts, k, nth, sums),
                zeros,
            )
            return reduction_loop(
                b, (done, span[1]), 1, lambda k, sums, _: self._step(starts, k, 0, sums), sums
            )

        full_span, count = (number(0), self.f.args[5]), len(zeros)
        self._store(
            sum_in_runs(self.m, dtype, full_span, count, run) if dtype.is_float else run(full_span)
        )
        b.ret_void()

    def _starts(self) -> list[Value]:
        """Return the addresses of lines; those past the end repeat the last one."""
        b, (_, _, first, line_bytes, count, *_) = self.b, self.f.args
        last, addresses = b.sub(count, number(1)), list[Value]([first])
        for i in range(1, self.c.tile.rows):
            inside = b.icmp_signed("<", number(i), last)
            at = b.mul(b.select(inside, number(i), last), line_bytes)
            addresses.append(b.gep(first, [at], source_etype=ir.IntType(8)))
        return addresses

    def _step(self, starts: list[Value], k: Value, nth: int, sums: list[Value]) -> list[Value]:
        """Return the sums with the products of position k + nth."""
        b, dtype, lanes = self.b, self.c.item.dtype, self.c.tile.lanes
        if nth == 0 and self.c.direct:
            self._prefetch(k)
        step = number(self.c.tile.columns)
        panel_row = step_address(b, self.f.args[1], k, step, memory_type(dtype))
        across = [
            load_vector(self.m, element_address(b, panel_row, number(at), dtype), dtype, None)
            for v in range(self.vectors)
            for at in [nth * self.c.tile.columns + v * lanes]
        ]

        def broadcast(start: Value) -> Value:
            at = element_address(b, element_address(b, start, k, dtype), number(nth), dtype)
            return splat(b, load_scalar(self.scalar, at, dtype, None), lanes)

        step_left = (broadcast(start) for start in starts)
        return rank_one_update(multiply_add(self.m, self.c.item), step_left, across, sums)

    def _prefetch(self, k: Value) -> None:
        """Prefetch some lines of the next columns."""
        b, (line_bytes, later, before, rate) = self.b, (self.f.args[3], *self.f.args[6:])
        pairs = -(-self.c.tile.rows // COLUMN_PAIR)
        nth = b.add(before, b.mul(b.udiv(k, number(SWAPPED_UNROLL)), rate))
        nth = b.lshr(nth, number(FRACTION))
        nth_line = b.udiv(nth, number(pairs))
        column = b.mul(b.sub(nth, b.mul(nth_line, number(pairs))), number(COLUMN_PAIR))
        at = b.add(b.mul(column, line_bytes), b.mul(nth_line, number(CACHE_LINE)))
        for _ in range(COLUMN_PAIR):
            prefetch(b, b.gep(later, [at], source_etype=ir.IntType(8)))
            at = b.add(at, line_bytes)

    def _store(self, sums: list[Value]) -> None:
        """Store the sums transposed, so that those of a row are contiguous."""
        b, lanes, dtype = self.b, self.c.tile.lanes, self.c.item.dtype
        undefined = ir.Constant(sums[0].type, ir.Undefined)
        for v in range(self.vectors):
            columns = sums[v :: self.vectors]
            columns += [undefined] * (-len(columns) % lanes)
            for first in range(0, len(columns), lanes):
                for lane, row in enumerate(transpose(b, columns[first : first + lanes])):
                    at = number((v * lanes + lane) * SMALL_M_SWAPPED.pitch + first)
                    store_vector(
                        self.m, element_address(b, self.f.args[0], at, dtype), row, dtype, None
                    )


__all__ = ["COLUMN_PAIR", "FRACTION", "SWAPPED_UNROLL", "tile_function"]
