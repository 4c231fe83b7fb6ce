"""Emit a small-M GEMM for a right operand stored along k, with swapped operands.

Weights of layers are stored so (N x K).  Packing them into panels, which transposes them, would
cost a third of the products with few rows.  Instead C^T is computed: vectors run along the few rows
of the result, and elements of the right operand are broadcast from where they are stored:

    pack the left operand in panels: of 32 rows, position by position
    for 48 columns:
        for 12 of them, for 32 rows:   sums[column] += right[column, k] * panel[k, rows]
                                       transposed in registers, to scratch
        for each row:                  epilogue of its 48 sums

The right operand's rows for the next 12 columns are prefetched meanwhile; each is read once, to its
end.  Rows of other types are converted just before they are multiplied, and stay in L1.  A
remainder of columns repeats the last one; the extra sums are not used.

The tile is a separate function because its sums take nearly all registers: within the surrounding
loops LLVM would keep their values in registers, and spill the sums.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_vector,
    prefetch,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import step_address
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.transpose import transpose
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.nest_loops import NestBody
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.products.fused_gemm_packing import FusedGemmPacker
from smelt.codegen.llvm.products.microkernel import (
    broadcast_each,
    for_each_column_tile,
    multiply_add,
    outline_function,
    rank_one_update,
    sum_in_runs,
    unrolled_reduction,
)
from smelt.codegen.llvm.products.prefetch import FRACTION
from smelt.codegen.llvm.schedule.fused_gemm import FusedGemmPlan
from smelt.machine.blocks import SMALL_M_SWAPPED
from smelt.machine.target import Target
from smelt.types.dtype import i8

Value = ir.Value
PTR = ir.PointerType()
TILE_TYPE = ir.FunctionType(ir.VoidType(), [PTR, PTR, PTR, I64, I64, I64, PTR, I64, I64])
"""Type of the tile function.

Arguments: sums, panel, first line, bytes between lines, number of lines, positions along k; the
first line to prefetch, where this tile's share begins, and the prefetch rate per iteration, both in
pairs of cache lines (fixed point).
"""
SWAPPED_UNROLL = 2
"""Positions along k per loop iteration."""
COLUMN_PAIR = 2
"""Cache lines prefetched per iteration, of neighbouring columns."""


class SmallMSwappedGemm(FusedGemmPacker):
    """Emits one small-M product with swapped operands, in the task of `env`.

    `m` is the axis of the result's columns, `n` that of its rows; the left operand is the one
    stored along k.
    """

    def __init__(self, env: Environment, nest: Nest, c: FusedGemmPlan) -> None:
        super().__init__(env, nest, c)
        self.rate = number(0)
        self.others = list[Self]()
        """Other products whose sums the same epilogue reads."""
        self.first_column = number(0)
        """First column of the current column block."""

    def run(self) -> None:
        """Emit all columns of this task, some at a time, for all products emitted together."""
        env, b, c = self.env, self.b, self.c
        if c.keeps_sums:  # the last product whose sums one epilogue reads runs all of them
            return
        self.others = self._kept_products()
        products = [*self.others, self]
        low, high = env.ranges[c.m]
        for product in products:
            with env.within(products=product):
                product._prepare()

        def column_block(at: Value) -> None:
            end = b.minimum(b.add(at, number(SMALL_M_SWAPPED.columns)), high)
            for product in products:
                with env.within(products=product):
                    env.loop(at, end, c.tile.rows, partial(product._columns, at, end))
            self._epilogue_rows(at, end)

        env.loop(low, high, SMALL_M_SWAPPED.columns, column_block)

    def _prepare(self) -> None:
        """Emit what precedes all columns."""
        if self.c.leader is None:  # otherwise that product has packed the same rows
            self._zero_panel_tail()
            self._pack_right()
        self._locate_left()
        self.rate = self._prefetch_rate()

    def _prefetch_rate(self) -> Value:
        """Return how many pairs of cache lines an iteration of a tile prefetches, fixed point.

        At this rate the next columns are fetched while the current ones are multiplied.
        """
        b, c = self.b, self.c
        size = number(c.item.dtype.itemsize)
        cache_lines = b.add(b.udiv(b.mul(self.depth, size), number(CACHE_LINE)), number(1))
        pairs = b.mul(cache_lines, number(-(-c.tile.rows // COLUMN_PAIR) << FRACTION))
        panels = b.add(b.udiv(self.columns, number(c.tile.columns)), number(1))
        iterations = b.mul(panels, b.add(b.udiv(self.depth, number(SWAPPED_UNROLL)), number(1)))
        return b.udiv(pairs, iterations)

    # ---- tiles -----------------------------------------------------------------------------------

    def _columns(self, first: Value, end: Value, row: Value) -> None:
        """Emit all rows for the columns of a tile: convert these if needed, and multiply."""
        b, c, env = self.b, self.c, self.env
        self.first_column, self.first_row = first, row
        following = b.minimum(b.add(row, number(c.tile.rows)), end)
        with env.narrowed({c.m: (row, following)}):
            self._pack_left()
        for_each_column_tile(env, c.tile, self.columns, lambda at, n: self._tile_at(row, at, n))

    def _tile_at(self, row: Value, at: Value, vectors: int) -> None:
        """Call the tile function; its sums are stored row by row."""
        b, c = self.b, self.c
        size, (_, end) = number(self.left_dtype.itemsize), self.env.ranges[c.m]
        panels = b.udiv(at, number(c.tile.columns))
        before = b.mul(panels, b.udiv(self.depth, number(SWAPPED_UNROLL)))
        function = tile_function(b.module, c, vectors, self.env.frame.target)
        args = [self._sum_address(at, row), self._panel_of(at), self._column_address(row)]
        args += [b.mul(self.left_strides[0], size), b.sub(end, row), self.depth]
        args += [self._column_address(b.add(row, number(c.tile.rows)))]
        b.call(function, [*args, b.mul(before, self.rate), self.rate])

    def _panel_of(self, row: Value) -> Value:
        at, item = self._packed_offset(number(0), row), self.c.leader or self.c.item
        return element_address(self.b, self.env.storage.at[item, RIGHT_PART], at, item.dtype)

    def _column_address(self, row: Value) -> Value:
        """Return the address of a column's elements, in place or converted."""
        b, nth = self.b, row if self.c.direct else self.b.sub(row, self.first_row)
        return element_address(b, self.base, b.mul(nth, self.left_strides[0]), self.left_dtype)

    # ---- what reads the sums ---------------------------------------------------------------------

    def _sum_address(self, row: Value, column: Value) -> Value:
        """Return the address of a sum in scratch; `row` counts from the task's first."""
        b = self.b
        at = b.add(b.mul(row, number(SMALL_M_SWAPPED.pitch)), b.sub(column, self.first_column))
        return self.at(SUMS_PART, at)

    def _epilogue_rows(self, low: Value, high: Value) -> None:
        env, c, lanes, products = self.env, self.c, self.c.tile.lanes, (*self.others, self)
        body = NestBody(env, self.nest, lanes, [product.c.item for product in products])
        first, last = env.ranges[c.n]

        def epilogue_row(row: Value) -> None:
            nth = self.b.sub(row, first)
            sums: dict[Item, Value] = {x.c.item: x._sum_address(nth, number(0)) for x in products}
            body.put_all(row, (low, high), sums)

        env.loop(first, last, 1, epilogue_row)


def tile_function(module: ir.Module, c: FusedGemmPlan, vectors: int, target: Target) -> ir.Function:
    """Return the function of a tile with so many vectors of rows.

    It prefetches later lines where they are read in place.
    """
    name = f"transposed.{c.item.dtype}.{c.tile.rows}x{vectors}.{'asks' if c.direct else 'packed'}"
    return outline_function(module, name, TILE_TYPE, lambda f: _Tile(f, c, vectors, target).fill())


class _Tile:
    """Emits sums[r, column] = sum of lines[column, k] * panel[k, r], stored by rows."""

    def __init__(self, f: ir.Function, c: FusedGemmPlan, vectors: int, target: Target) -> None:
        self.f, self.c, self.vectors = f, c, vectors
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)

    def fill(self) -> None:
        """Emit the function's body."""
        b, c, dtype, starts = self.b, self.c, self.c.item.dtype, self._starts()
        zeros = [self.m.const(dtype, 0)] * (c.tile.rows * self.vectors)

        def step_at(k: Value, sums: list[Value], nth: int) -> list[Value]:
            return self._step(starts, k, nth, sums)

        def run(span: tuple[Value, Value]) -> list[Value]:
            return unrolled_reduction(b, span, SWAPPED_UNROLL, step_at, zeros)

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
            addresses.append(element_address(b, first, at, i8))
        return addresses

    def _step(self, starts: list[Value], k: Value, nth: int, sums: list[Value]) -> list[Value]:
        """Return the sums with the products of position k + nth."""
        b, dtype, lanes = self.b, self.c.item.dtype, self.c.tile.lanes
        if nth == 0 and self.c.direct:
            self._prefetch(k)
        step = number(self.c.tile.columns)
        panel_row = step_address(b, self.f.args[1], k, step, dtype)
        offsets = (number(nth * self.c.tile.columns + v * lanes) for v in range(self.vectors))
        rows = (element_address(b, panel_row, at, dtype) for at in offsets)
        across = [load_vector(self.m, row, dtype, None) for row in rows]
        firsts = (element_address(b, start, k, dtype) for start in starts)
        places = (element_address(b, first, number(nth), dtype) for first in firsts)
        left = broadcast_each(self.m, places, dtype)
        return rank_one_update(multiply_add(self.m, self.c.item), left, across, sums)

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
            prefetch(b, element_address(b, later, at, i8))
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
                    to = element_address(b, self.f.args[0], at, dtype)
                    store_vector(self.m, to, row, dtype, None)
