"""Pack filters stored as OIHW into panels, by register transposes.

Weights w[m,c,u,v] are one contiguous run for each m: all taps of a channel, then those of the next.
Tiles read panels in which m is contiguous:

    memory    w[m]     c0t0 c0t1 .. c0t8 c1t0 ..      as many runs as a vector has lanes
    scratch   t0       c0: m m m .., c1: m m m .., ..      then t1, and so on

Full vectors of neighbouring runs are read and transposed in registers.  A table holds the panel row
of each position of a run.  One panel at a time is packed, just before its tiles, so that it is
still in a near cache.  Runs are too short for hardware prefetchers, so those of the next panel are
prefetched before these tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, lanes_before_end, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Cast
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RUNS_PART
from smelt.codegen.llvm.products.tall_skinny_packing import apply_casts
from smelt.codegen.llvm.products.tile_loops import outline_function, reduction_loop
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan, contiguous_filters
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.machine.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, i64
from smelt.types.expr import substitute

Value = ir.Value
PTR = ir.PointerType()
PACK_TYPE = ir.FunctionType(ir.VoidType(), [PTR, PTR, I64, I64, I64, PTR, PTR])
"""Type of the packing function.

Arguments: the panel's vector of columns, the first run, elements between runs, number of runs,
positions of each, the table, and the first run which is packed next.
"""


class TransposedFilterPacker:
    """Packs the weights of one product, panel by panel."""

    def __init__(self, env: Environment, nest: Nest, c: NhwcConvPlan) -> None:
        self.env, self.b, self.c = env, env.b, c
        access = contiguous_filters(c)
        assert access is not None
        self.dtype, self.base = env.frame.dtypes[access.buffer], env.frame.buffers[access.buffer]
        top = env.open(nest, Scope(env.top))
        zeros = dict.fromkeys((c.n, c.depth, *c.others), 0)
        self.origin = env.index(substitute(access.offset, zeros), top)
        self.run_stride = env.index(coefficient(access.offset, c.n) or 0, top)
        self._fill_table([coefficient(access.offset, a) for a in c.others])

    def _fill_table(self, steps: Sequence[object]) -> None:
        """Store the panel offset of each position of a run."""
        b, c = self.b, self.c
        taps = [0] * c.taps
        for tap in range(c.taps):
            offset, index = 0, tap
            for step, extent in zip(steps[::-1], c.extents[::-1], strict=True):
                position, index = index % extent, index // extent
                # An axis without stride has extent 1.
                offset += position * step if isinstance(step, int) else 0
            taps[offset] = tap

        def channel(k: Value) -> None:
            first, panel_row = b.mul(k, number(c.taps)), b.mul(k, number(c.tile.columns))
            for offset, tap in enumerate(taps):
                to = element_address(b, self._table(), b.add(first, number(offset)), i64)
                b.store(b.add(panel_row, number(tap * c.block * c.tile.columns)), to)

        self.env.loop(number(0), number(c.block), 1, channel)

    def _table(self) -> Value:
        return self.env.storage.at[self.c.item, RUNS_PART]

    def pack(self, column: Value, vectors: int) -> None:
        """Pack the panel of the task's columns from one on, for the current channel block."""
        b, c, env, lanes = self.b, self.c, self.env, self.c.tile.lanes
        (first, last), (low, high) = env.ranges[c.n], env.ranges[c.depth]
        length = b.mul(b.sub(high, low), number(c.taps))
        n, after = b.add(first, column), b.add(first, b.add(column, number(vectors * lanes)))
        is_last = b.icmp_signed(">=", after, last)
        later = self._run(b.select(is_last, first, after), b.select(is_last, high, low))
        function = pack_function(b.module, c, self.dtype, env.frame.target)
        for v in range(vectors):
            begin, panel = self._run(n, low), env.storage.at[c.item, LEFT_PART]
            n = b.add(n, number(lanes))
            to = element_address(b, panel, number(v * lanes), c.unit)
            following = self._run(n, low) if v + 1 < vectors else later
            left = b.sub(last, b.sub(n, number(lanes)))
            args = [to, begin, self.run_stride, left, length, self._table(), following]
            b.call(function, args)

    def _run(self, n: Value, k: Value) -> Value:
        """Return the address of a column's run, from a channel on."""
        b = self.b
        at = b.add(self.origin, b.add(b.mul(n, self.run_stride), b.mul(k, number(self.c.taps))))
        return element_address(b, self.base, at, self.dtype)


def pack_function(module: ir.Module, c: NhwcConvPlan, dtype: DType, target: Target) -> ir.Function:
    """Return the function which packs a vector's runs, shared within a module."""
    types = [dtype]
    item = c.left
    while isinstance(item, Cast):
        types.insert(1, item.dtype)
        item = item.args[0]
    name = f"squares.{'.'.join(map(str, types))}.{c.tile.lanes}"
    return outline_function(module, name, PACK_TYPE, lambda f: _Pack(f, c, dtype, target).fill())


class _Pack:
    def __init__(self, f: ir.Function, c: NhwcConvPlan, dtype: DType, target: Target) -> None:
        self.f, self.c, self.dtype = f, c, dtype
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)

    def fill(self) -> None:
        """Emit the function's body."""
        b, lanes = self.b, self.c.tile.lanes
        _, first, run_stride, rows, length, *_ = self.f.args
        last = b.sub(rows, number(1))
        begins: list[Value] = [first]
        for i in range(1, lanes):  # runs past the end repeat the last one
            row = b.select(b.icmp_signed("<", last, number(i)), last, number(i))
            begins.append(element_address(b, first, b.mul(row, run_stride), self.dtype))
        side = number(lanes)
        end = b.sub(length, side)

        def tile(nth: Value, *_: object) -> list[Value]:
            at = b.mul(nth, side)
            at = b.select(b.icmp_signed("<", at, end), at, end)
            self._transpose_tile(begins, at, None)  # the last tile overlaps the one before
            return []

        with b.if_else(b.icmp_signed(">=", length, side)) as (then, otherwise):
            with then:
                count = b.udiv(b.add(length, number(lanes - 1)), side)
                reduction_loop(b, (number(0), count), 1, tile, [])
            with otherwise:
                mask = lanes_before_end(b, length, lanes)
                self._transpose_tile(begins, number(0), mask)
        b.ret_void()

    def _transpose_tile(self, begins: Sequence[Value], at: Value, mask: Value | None) -> None:
        """Transpose as many positions of the runs as there are runs."""
        b, c, (to, _, run_stride, _, _, table, later) = self.b, self.c, self.f.args
        rows: list[Value] = []
        for i, begin in enumerate(begins):
            raw = load_vector(self.m, element_address(b, begin, at, self.dtype), self.dtype, mask)
            prefetch_offset = b.add(at, b.mul(run_stride, number(i)))
            prefetch(b, element_address(b, later, prefetch_offset, self.dtype))
            rows.append(apply_casts(self.m, raw, c.left))
        for k, column in enumerate(transpose(b, rows)):
            entry = element_address(b, table, b.add(at, number(k)), i64)
            place = element_address(b, to, b.load(entry, typ=I64), c.unit)
            store_vector(self.m, place, column, c.unit, None)


__all__ = ["TransposedFilterPacker", "pack_function"]
