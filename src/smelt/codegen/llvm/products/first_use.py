"""Pack a right operand by the tiles that multiply it first.

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

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import multiple_of_counter
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.products.fused_gemm_packing import apply_casts
from smelt.codegen.llvm.products.prefetch import FRACTION
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan
from smelt.types.dtype import DType

Value = ir.Value
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
