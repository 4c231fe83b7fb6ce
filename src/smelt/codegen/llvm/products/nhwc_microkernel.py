"""Emit microkernels of NHWC convolutions as separate functions, which have all registers.

function = tile_function(module, c, tile, target, short)
b.call_at(function, tile_type(c, short), args)         calls any tile of a product
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector
from smelt.codegen.llvm.instructions.counting import step_address
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.codegen.llvm.nests.register_tile import Tile
from smelt.codegen.llvm.products.prefetch import PREFETCH_TYPES, prefetch_all, prefetch_at
from smelt.codegen.llvm.products.rank_one_update import multiply_add, rank_one_update
from smelt.codegen.llvm.products.tile_loops import outline_function, reduction_loop
from smelt.codegen.llvm.products.tile_sums import TileTarget, add_previous_blocks, store_tile
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.machine.target import Target
from smelt.types.dtype import DType, i64

Value = ir.Value
BIT, I32 = ir.IntType(1), ir.IntType(32)
ENTRY_WORDS = 3
"""Words per entry of the indirection table: input offset, weight offset, pair mask."""
PTR = ir.PointerType()
BASE_ARGS = [PTR, I64, PTR, PTR, PTR, I64, BIT, I64, I64]
ROUNDED_ARGS = [PTR, I64, BIT]
"""Arguments for rounded final sums: address, row stride, and whether to use them."""


def tile_function(
    module: ir.Module, c: NhwcConvPlan, tile: Tile, target: Target, short: DType | None
) -> ir.Function:
    """Return the function of a register tile; its final sums may be stored as `short`."""
    name = f"nhwc.{c.unit}.{c.item.dtype}.{tile.rows}x{tile.columns}.{c.taps}x{c.block}"
    name += f".{c.few_channels}"
    name += (
        f".{c.pitch}"
        + (f".{c.pairs}.{c.has_odd_end}" if c.pairs else "")
        + ".asks" * c.prefetches_weights
    )
    name += f".{short}" if short is not None else ""
    return outline_function(
        module, name, tile_type(c, short), lambda f: _Tile(f, c, tile, target).fill(short)
    )


def tile_type(c: NhwcConvPlan, short: DType | None) -> ir.FunctionType:
    """Return the function type which all tiles of a product share."""
    args = [
        *BASE_ARGS,
        *(PREFETCH_TYPES if c.prefetches_weights else ()),
        *(ROUNDED_ARGS if short is not None else ()),
    ]
    return ir.FunctionType(ir.VoidType(), args)


class _Tile:
    """Emits the tile of an indirect GEMM.

    sums[i, v] += image[table[t, 0] + i*pitch + k] * panel[table[t, 1] + k*columns + v], over all
    taps t and all k < depth.
    """

    def __init__(self, f: ir.Function, c: NhwcConvPlan, tile: Tile, target: Target) -> None:
        self.f, self.c, self.tile = f, c, tile
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)

    def fill(self, short: DType | None) -> None:
        """Emit the function's body."""
        b, f, dtype = self.b, self.f, self.c.item.dtype
        to, stride, self.image, self.panel, table, depth, fresh, low, high, *spot = f.args
        self.table, self.depth = table, depth
        self.prefetch_base = self.panel
        if self.c.prefetches_weights:
            self.prefetch_base, self.rate, *spot = spot
        places = TileTarget(to, stride, dtype).addresses(b, self.tile)
        if self.c.prefetches_weights and self.c.image_rows is not None:
            for left in ((number(0), low), (high, number(self.c.steps))):
                reduction_loop(b, left, 1, lambda t, *_: self._prefetch_tap(table, t, depth), [])
        zeros = [self.m.const(dtype, 0)] * len(places)
        totals = reduction_loop(b, (low, high), 1, lambda t, sums, _: self._tap(t, sums), [*zeros])
        totals = add_previous_blocks(self.m, places, dtype, totals, fresh)
        last = None if short is None else (spot[2], TileTarget(spot[0], spot[1], short))
        store_tile(self.m, self.c, self.tile, totals, places, last=last)
        b.ret_void()

    def _prefetch_tap(self, table: Value, tap: Value, depth: Value) -> list[Value]:
        """Prefetch this tile's share of a tap which it skips."""
        b = self.b
        place = element_address(b, table, b.add(b.mul(tap, number(ENTRY_WORDS)), number(1)), i64)
        begin = element_address(b, self.prefetch_base, b.load(place, typ=I64), self.c.unit)
        prefetch_all(b, begin, self.rate, depth)
        return []

    def _tap(self, tap: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums after all channels of one tap."""
        b, c = self.b, self.c
        entries = element_address(b, self.table, b.mul(tap, number(ENTRY_WORDS)), i64)
        pixel, weights, counts = (
            b.load(element_address(b, entries, number(k), i64), typ=I64) for k in range(ENTRY_WORDS)
        )
        if c.has_odd_end:  # else LLVM masks scalars, then broadcasts the result
            kind = ir.VectorType(I32, self.tile.lanes)
            counts = splat(b, b.trunc(counts, I32), self.tile.lanes)
            self.counts = b.asm(ir.FunctionType(kind, [kind]), "", "=v,0", [counts], False)
        image = element_address(b, self.image, pixel, c.image)
        panel = element_address(b, self.panel, weights, c.unit)
        if c.few_channels:
            return self._step(image, panel, number(0), sums)
        columns, kind = number(c.tile.columns), memory_type(c.unit)
        later = element_address(b, self.prefetch_base, weights, c.unit)

        def channel(k: Value, sums: list[Value], _: int) -> list[Value]:
            if c.prefetches_weights:
                prefetch_at(b, later, self.rate, k)
            return self._step(image, step_address(b, panel, k, columns, kind), k, sums)

        return reduction_loop(b, (number(0), self.depth), 1, channel, [*sums])

    def _broadcast(self, place: Value) -> Value:
        """Broadcast an input number, or a pair of which one may be masked."""
        b, c, lanes = self.b, self.c, self.tile.lanes
        if not c.pairs:
            return splat(b, load_scalar(self.scalar, place, c.unit, None), lanes)
        pair = splat(b, b.load(place, align=c.image.itemsize, typ=I32), lanes)
        return b.and_(pair, self.counts) if c.has_odd_end else pair

    def _step(
        self, input_address: Value, weights: Value, k: Value, sums: Sequence[Value]
    ) -> list[Value]:
        """Return the sums after channel k, whose weights are at an address."""
        b, c, tile, dtype = self.b, self.c, self.tile, self.c.unit
        across = [
            load_vector(
                self.m, element_address(b, weights, number(v * tile.lanes), dtype), dtype, None
            )
            for v in range(tile.vectors)
        ]
        first = element_address(b, input_address, k, c.image)
        pixels = (
            self._broadcast(element_address(b, first, number(i * c.pitch), c.image))
            for i in range(tile.rows)
        )
        return rank_one_update(multiply_add(self.m, c.item), pixels, across, sums)
