"""Pack the operands of a GEMM with a fused epilogue, or locate them in place.

The left operand is multiplied in place, or some rows of it are packed at a time: row by row, or in
strips of one vector of rows, position by position, where it is contiguous along its rows (whole
vectors are stored as they are read, without a transpose).  The right operand is packed once per
task, or block of k: row by row, or in panels as wide as a tile; or by the tiles that multiply it
first (`FirstUse`):

    for 32 columns:
        for the first 12 rows:   for each k of the right operand: pack its row, multiply it
        for other rows:          multiply the packed panel
        all of them:             prefetch rows of the next block

Rows of 32 columns are far apart, and hardware prefetchers follow none of them.  So tiles prefetch
the next block's rows meanwhile, in memory order, into L1.  Most are evicted to L2 before they are
read; prefetching into L2 directly is worse, since processors do not continue streams from there.  A
panel stays in L1, the sums of a block in L2.  A right operand which is computed, or contiguous
along k, is packed first, as in other blocks of k.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Self, cast

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import multiple_of_counter
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Access, Cast, Item, accesses_of
from smelt.codegen.llvm.nests.environment import Environment, PackedArray, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART
from smelt.codegen.llvm.products.microkernel import strided_rows, strip_mine_axis
from smelt.codegen.llvm.products.move_elements import clear_panel_tail, copy_elements
from smelt.codegen.llvm.products.packing import Packer, panel_offset
from smelt.codegen.llvm.products.prefetch import FRACTION
from smelt.codegen.llvm.schedule.fused_gemm import FusedGemmPlan
from smelt.codegen.llvm.schedule.operands import conversions, plain_load
from smelt.ops.cast import cast as convert
from smelt.types.dtype import DType
from smelt.types.expr import coefficient

Value = ir.Value
PACK_DEPTH = 32
"""Positions along k packed for one vector of columns after another, where each tests bounds.

Their rows stay in L1 from vector to vector.
"""
K_BLOCK_PREFETCH_ROWS, NARROW_PREFETCH_ROWS = 8, 2
"""Rows between what a block of k packs and what is prefetched into L1.

Eight of these short rows are packed before memory answers; packing evicts nothing needed sooner.
Two on processors which issue few instructions.
"""


class FusedGemmPacker(Packer):
    """Packs the operands of one GEMM with a fused epilogue."""

    def __init__(self, env: Environment, nest: Nest, c: FusedGemmPlan) -> None:
        super().__init__(env, c.item)
        self.nest, self.c, b = nest, c, self.b
        self.m = LLVMMachine(b, c.tile.lanes, env.frame.target)
        self.scalar = LLVMMachine(b, None, env.frame.target)
        self.first_row = number(0)
        """First of the rows that are packed."""
        self.left_strides: list[Value] = []
        self.depth = b.sub(*env.ranges[c.k][::-1])
        self.column, high = env.ranges[c.n]
        self.columns = b.sub(high, self.column)
        width = c.tile.columns if c.blocks_k else c.tile.lanes
        self.pitch = self._round_down(b.add(self.columns, number(width - 1)), width)
        """Elements between packed rows of the right operand, and between rows of sums."""
        self.packed_right_strides = {c.k: self.pitch, c.n: number(1)}
        left_pitch = number(c.pitch) if c.blocks_k else self.depth
        self.packed_left_strides = {c.m: left_pitch, c.k: number(1)}

    def _round_down(self, count: Value, step: int) -> Value:
        return self.b.and_(count, number(-step))

    def _kept_products(self) -> list[Self]:
        """Return the other products, whose sums are kept for the epilogue of the last one."""
        others = (n for n in self.env.s.nests if n is not self.nest and n.product is not None)
        # All products of a phase are planned alike.
        return [type(self)(self.env, n, cast(FusedGemmPlan, n.product)) for n in others]

    # ---- the left operand ------------------------------------------------------------------------

    def _locate_left(self) -> None:
        """Locate the left operand, and compute its strides along rows and k."""
        env, b, c = self.env, self.b, self.c
        self.left_contiguous_axis, self.left_dtype = "", c.item.dtype
        if not c.direct:
            self.base = env.storage.at[c.item if c.swapped else c.leader or c.item, LEFT_PART]
            step = c.tile.lanes if c.packs_transposed else 1
            self.left_strides = [self.packed_left_strides[c.m], number(step)]
            return
        if c.gathers_rows:
            self.left_strides = [number(0), number(1)]
            return
        access = plain_load(c.left)
        assert access is not None
        steps = (coefficient(access.offset, a) or 0 for a in (c.m, c.k))
        self.left_strides = [env.index(step, env.top) for step in steps]
        self.left_contiguous_axis = c.k if coefficient(access.offset, c.k) == 1 else ""
        origin = env.origin(access, self.nest.packs[0].order, env.top)
        origin = b.add(origin, b.mul(env.ranges[c.k][0], self.left_strides[1]))
        self.base = env.address(access.buffer, origin)

    def _gathered_row(self, row: Value) -> Value:
        """Return the address of a gathered row of the left operand."""
        env, c = self.env, self.c
        (access,) = accesses_of([c.left])
        place = Scope(env.top, {c.m: row, c.k: env.ranges[c.k][0]})
        at = env.index(access.offset, place)
        return env.address(access.buffer, at)

    def _pack_left(self) -> None:
        """Pack some rows of the left operand, unless they are multiplied in place."""
        c, nest = self.c, self.nest.packs[0]
        if c.direct:
            return
        access = plain_load(c.left)
        flat = access is not None and coefficient(access.offset, c.k) == 1
        if (
            access is None
            or not flat
            or coefficient(access.offset, c.m) != self.env.s.phase.axes[c.k]
        ):
            self.pack(nest)
        else:
            self._convert(nest, access)

    def _convert(self, nest: Nest, access: Access) -> None:
        """Pack rows which are only converted, and contiguous one after the other."""
        env, b, c = self.env, self.b, self.c
        low, high = env.ranges[c.m]
        dtype = env.frame.dtypes[access.buffer]
        origin = b.add(env.origin(access, nest.order, env.top), b.mul(low, self.depth))
        base = env.address(access.buffer, origin)
        types = dtype, *conversions(c.left), c.item.dtype
        to, count = self.at(LEFT_PART, number(0)), b.mul(b.sub(high, low), self.depth)
        copy_elements(env, to, base, count, c.tile.lanes, *types)

    def _pack_right(self) -> None:
        """Pack all of the right operand."""
        self.pack(self.nest.packs[1])

    def _pack(self, nest: Nest, scope: Scope) -> None:
        """Emit the nest: in blocks of k if vectors run along its outer loop."""
        run = partial(super()._pack, nest, scope)
        if nest.order[0] == nest.vector:
            strip_mine_axis(self.env, nest.order[1], PACK_DEPTH, run)
        else:
            run()

    def _zero_panel_tail(self) -> None:
        """Clear the lanes past the last column in the right operand's last panel."""
        panels = self.at(RIGHT_PART, number(0))
        clear_panel_tail(self.env, self.c, panels, self.columns, self.depth, self.depth)

    def packs_squares(self, nest: Nest) -> bool:
        """Return whether an array is packed in transposed squares, past the axes' ends."""
        return nest.packed == "right" and self.is_transposed(nest)

    def partitionable_axes(self, nest: Nest) -> Collection[str]:
        """Return the axes of a nest which may be partitioned: all but of transposed rows."""
        return () if nest.transposed and nest.packed == "left" else nest.order

    def vector_alignment(self, nest: Nest) -> int:
        """Return the multiple at which packed vectors begin; strips are full vectors of rows."""
        if nest.packed == "right":
            return self.c.tile.columns if self.c.wide else 1
        return self.c.tile.lanes if self.c.packs_transposed else 1

    def packed_array(self, nest: Nest) -> PackedArray:
        """Return where loops pack an operand."""
        b, c, is_right = self.b, self.c, nest.packed == "right"
        if c.blocks_k and c.packs_transposed and not is_right:
            row = b.sub(self.env.ranges[c.m][0], self.starts[c.m])
            packed = self.panels_of(nest, c.tile.lanes, number(c.pitch), row)
        elif c.wide and is_right:
            column = self._packed_column(b.sub(self.env.ranges[c.n][0], self.column))
            packed = self.panels_of(nest, c.tile.columns, self.depth, column)
        else:
            packed = self.rows_of(nest)
        if not c.blocks_k or (c.by_tiles and not is_right and plain_load(c.left) is not None):
            return packed
        rows = NARROW_PREFETCH_ROWS if c.issue_bound else K_BLOCK_PREFETCH_ROWS
        return replace(packed, prefetch_rows=rows, level=1)

    def _strip(self, row: Value) -> tuple[Value, Value]:
        """Return where a packed row's strip begins, and the first row of the strip."""
        first = self._round_down(row, self.c.tile.lanes)
        return self.b.mul(first, number(self.c.pitch)), first

    def _packed_offset(self, k: Value, column: Value) -> Value:
        """Return the packed position of an element of the right operand."""
        column = self._packed_column(column)
        if not self.c.wide:
            return self.b.add(self.b.mul(k, self.pitch), column)
        return panel_offset(self.b, self.c.tile.columns, self.depth, k, column)

    def _packed_column(self, column: Value) -> Value:
        """Return where a column of the task is packed."""
        return column

    def stores_whole(self, nest: Nest) -> bool:
        """Return whether vectors are stored whole, over the beginning of the next row.

        Those of the left operand are, unless rows are packed segment by segment.
        """
        return nest.packed == "left" and not self.in_parts

    def _starts(self, row: Value, count: int, *, clamped: bool = False) -> list[Value]:
        """Return the addresses of a tile's rows at the first position of the block.

        `clamped` rows in place past the end are the last row; packed ones read what follows in
        scratch.
        """
        b, c = self.b, self.c
        if c.gathers_rows or (clamped and c.direct):
            last = b.sub(self.env.ranges[c.m][1], number(1))
            rows = [b.add(row, number(i)) if i else row for i in range(count)]
            rows = [b.minimum(at, last) for at in rows] if clamped else rows
            return [self._row_in_place(at) for at in rows]
        place = row if c.direct else b.sub(row, self.first_row)
        if c.packs_transposed:
            return self._strip_starts(place, count)
        at = number(0) if c.by_tiles else b.mul(place, self.left_strides[0])
        first = element_address(b, self.base, at, self.left_dtype)
        return strided_rows(b, first, self.left_strides[0], count, self.left_dtype)

    def _row_in_place(self, row: Value) -> Value:
        """Return the address of a row of a left operand in place."""
        if self.c.gathers_rows:
            return self._gathered_row(row)
        at = self.b.mul(row, self.left_strides[0])
        return element_address(self.b, self.base, at, self.left_dtype)

    def _strip_starts(self, row: Value, count: int) -> list[Value]:
        """Return the addresses of rows packed in strips; `row` counts from the first one."""
        b, c, addresses = self.b, self.c, list[Value]()
        group = gcd(c.tile.rows, c.tile.lanes)  # rows from a multiple of it on share a strip
        for i in range(0, count, group):
            place = b.add(row, number(i))
            begin, first = self._strip(place)
            at = b.add(begin, b.sub(place, first))
            addresses += [
                element_address(b, self.base, b.add(at, number(j)), self.left_dtype)
                for j in range(min(group, count - i))
            ]
        return addresses


def apply_casts(m: LLVMMachine, value: Value, item: Item) -> Value:
    """Apply the casts between a load and `item` to a loaded value."""
    if not isinstance(item, Cast):
        return value
    (arg,) = item.args
    return convert(m, apply_casts(m, value, arg), arg.dtype, item.dtype)


UNROLL = 4
"""Positions along k per iteration of a tile's loop, in blocks of k.

The loop counter takes a tenth of the issue slots otherwise, which hyperthreads share.
"""
PREFETCH_GROUP = 4
"""Neighbouring cache lines prefetched together, which memory delivers faster."""
GROUP_BYTES = PREFETCH_GROUP * CACHE_LINE


class FirstUse:
    """Rows of a block of a right operand in place, from the task's first column.

    `base` and `later` are the addresses of this block and of what is prefetched, `row_stride` the
    elements between rows; `depth` and `later_depth` are the positions along k of both, the latter 0
    if nothing follows.  Full tiles are `full_tiles` for each panel.
    """

    def __init__(
        self,
        b: ir.IRBuilder,
        c: FusedGemmPlan,
        rows: tuple[Value, Value, Value, DType],
        columns: Value,
        full_tiles: Value,
        depths: tuple[Value, Value],
    ) -> None:
        self.b, self.c, width, (depth, later_depth) = b, c, c.tile.columns, depths
        self.base, self.later, self.row_stride, self.dtype = rows
        has_tiles = b.icmp_signed("<", number(0), full_tiles)
        self.columns = b.select(has_tiles, b.and_(columns, number(-width)), number(0))
        """Columns which tiles pack, panel by panel in the same buffer."""
        has_panels = b.icmp_signed("<", number(0), self.columns)
        self.packed_begin = b.select(has_panels, number(width), number(0))
        """Packed column at which the other columns begin, after that buffer if there is one."""
        self.full_tiles, self.tile_iterations = full_tiles, b.udiv(depth, number(UNROLL))
        across = b.udiv(b.mul(columns, number(self.dtype.itemsize)), number(GROUP_BYTES))
        self.groups_per_row = b.add(across, number(1))
        """Groups of neighbouring cache lines per row."""
        iterations = b.mul(b.mul(b.udiv(columns, number(width)), full_tiles), self.tile_iterations)
        groups = b.shl(b.mul(self.groups_per_row, later_depth), number(FRACTION))
        rate = b.add(b.udiv(groups, b.maximum(iterations, number(1))), number(1))
        has_next = b.icmp_signed("<", number(0), later_depth)
        self.rate = b.select(has_next, rate, number(0))
        """Groups to prefetch per iteration of a full tile, fixed point."""
        inverse = b.udiv(number(1 << FRACTION), self.groups_per_row)
        self.inverse_groups = b.add(inverse, number(1))
        self.is_packing: Value | None = None
        """For a full tile: whether it is the first one, which packs what it multiplies."""
        self.iterations_before: Value | None = None
        """For a full tile: loop iterations of the tiles before it."""

    def begin_tile(self, column: Value, nth: Value, is_first: Value) -> None:
        """Begin the nth full tile of a panel, whose column counts from the task's first."""
        b = self.b
        panel = b.udiv(column, number(self.c.tile.columns))
        tiles = b.add(b.mul(panel, self.full_tiles), nth)
        self.iterations_before = b.mul(tiles, self.tile_iterations)
        self.is_packing = is_first

    def end_tile(self) -> None:
        """Say that what follows is not a full tile."""
        self.iterations_before = self.is_packing = None

    def place(self, column: Value) -> Value:
        """Return where a column is packed: the current panel comes first, then the other ones."""
        b, width = self.b, self.c.tile.columns
        inside = b.and_(column, number(width - 1))
        at = b.add(b.sub(column, self.columns), self.packed_begin)
        return b.select(b.icmp_signed("<", column, self.columns), inside, at)

    def load_row(self, m: LLVMMachine, k: Value, column: Value, vectors: int) -> list[Value]:
        """Load some vectors of the row at a position in place."""
        b, vectors_read = self.b, list[Value]()
        at = b.add(multiple_of_counter(b, k, self.row_stride), column)
        for v in range(vectors):
            offset = b.add(at, number(v * self.c.tile.lanes))
            value = load_vector(
                m, element_address(b, self.base, offset, self.dtype), self.dtype, None
            )
            vectors_read.append(apply_casts(m, value, self.c.right))
        return vectors_read

    def prefetch(self, k: Value, step: int) -> None:
        """Prefetch what falls to `step` positions of a full tile, of the next block."""
        if self.iterations_before is None:
            return
        b = self.b
        nth = b.mul(b.add(self.iterations_before, b.udiv(k, number(UNROLL))), self.rate)
        nth = b.lshr(nth, number(FRACTION))
        row = b.lshr(b.mul(nth, self.inverse_groups), number(FRACTION))
        at = b.mul(b.sub(nth, b.mul(row, self.groups_per_row)), number(GROUP_BYTES))
        if step == 1:
            at = b.add(at, b.mul(b.and_(k, number(PREFETCH_GROUP - 1)), number(CACHE_LINE)))
        start = element_address(b, self.later, b.mul(row, self.row_stride), self.dtype)
        for line in range(min(step, PREFETCH_GROUP)):
            address = b.add(at, number(line * CACHE_LINE)) if line else at
            prefetch(b, b.gep(start, [address], source_etype=ir.IntType(8)), near=True)
