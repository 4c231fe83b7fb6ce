"""Emit a blocked GEMM: pack blocks of both operands and run register tiles over them.

The loops are those of K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008.  For each block of k:

- The left operand (M x K) is read in place where it is a plain array whose rows are contiguous
  along k.  Otherwise its block is packed into scratch row by row.  Rows of short numbers which end
  within a 32-bit unit of a dot-product instruction are packed only for the block which holds their
  end.

- The right operand (K x N) is packed into panels as wide as the register tile, unless the product
  is small.

- Register tiles accumulate into the scratch array of the result
  (`smelt.codegen.llvm.products.macrokernel`).

Both packings are ordinary loop nests, which may compute, gather, convert or transpose what they
pack.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.access.prefetch import PACK_PREFETCH_ROWS
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment, PackedArray, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART, Tile, short_row_tiles
from smelt.codegen.llvm.products.gemv import Gemv
from smelt.codegen.llvm.products.macrokernel import Macrokernel
from smelt.codegen.llvm.products.microkernel import strip_mine_axis
from smelt.codegen.llvm.products.move_elements import clear_elements, clear_panel_tail
from smelt.codegen.llvm.products.pack_rows import VnniPacker
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.scratch.workspace import MAX_RESIDENT_BLOCKS, needs_run_sums, repeat_visits
from smelt.machine.blocks import COLUMNS, DEPTH, MATRIX_STEP
from smelt.python.dataclass import dataclass

Value = ir.Value


@dataclass(frozen=True, slots=True)
class Panels:
    """Packed blocks of a right operand in scratch: all blocks, or the current one.

    `resident` says whether all of them stay in scratch, one after the other (i1).
    """

    resident: Value
    first_k: Value
    first_column: Value
    """First column of the task; `first_k` is its first position along k."""
    k_stride: Value
    """Elements between the panels of consecutive positions along k."""


class BlockedGemm(Packer):
    """Emits the blocked contractions of the task that `env` is emitting."""

    def __init__(self, env: Environment, nest: Nest, c: Contraction) -> None:
        super().__init__(env, c.item)
        self.nest, self.c = nest, c
        self.element = self.image = c.item.dtype if c.group is None else c.group.dtype
        *rows, k = nest.packs[0].order
        row_stride = number(c.pitch * c.group_size)
        self.packed_left_strides = {**dict.fromkeys(rows, row_stride), k: number(1)}
        self.right_base: Value = number(0)
        """Where the current block's panels of the right operand begin."""

    def run(self) -> None:
        """Emit the complete contraction of this task, into its scratch array."""
        c = self.c
        self.is_first_block: Value | None = None
        self.is_last_block: Value | None = None
        packed = not (c.direct or c.reads_left_in_place())
        self.panels: Panels | None = None
        self.left_is_packed = self._is_packed(c.left) if packed else None
        self.right_is_packed = (
            None if c.is_gemv or c.reads_right_in_place() else self._is_packed(c.right)
        )
        scope = Scope(self.env.top)
        if c.outer:
            self._clear()
            self._outer_loops(0, scope)
            return
        low, high = self.env.ranges[c.k]
        if c.is_single_block(self.env.s.span(self.env.s.region(c.item), c.k)):
            with self.b.if_else(self.b.icmp_signed("<", low, high)) as (has_k, is_empty):
                with has_k:
                    self.is_first_block = self.is_last_block = ir.IntType(1)(1)
                    self._k_block(scope)
                with is_empty:
                    self._clear()
            return
        if c.is_gemv:
            self._clear()
        else:
            with self.b.if_then(self.b.icmp_signed(">=", low, high)):
                self._clear()

        def k_block() -> None:
            start, end = self.env.ranges[c.k]
            self.is_first_block = self.b.icmp_signed("==", start, low)
            self.is_last_block = self.b.icmp_signed("==", end, high)
            self._k_block(scope)

        self._k_blocks(k_block)

    def _clear(self) -> None:
        c, env = self.c, self.env
        count = env.frame.index(env.storage.rows(c))
        count = self.b.mul(count, env.extent(c.item, c.n))
        clear_elements(env, self.at(0, number(0)), count, env.s.lanes, c.item.dtype)

    def _outer_loops(self, depth: int, scope: Scope) -> None:
        """Emit loops over all reduction axes but the last."""
        c = self.c
        if depth < len(c.outer):
            name = c.outer[depth]
            low, high = self.env.ranges[name]
            self.env.loop(
                low,
                high,
                1,
                lambda at: self._outer_loops(depth + 1, Scope(scope, {name: at})),
            )
            return
        self._k_blocks(lambda: self._k_block(scope))

    def _k_blocks(self, inside: Callable[[], None]) -> None:
        """Emit `inside` for blocks of the last reduction axis.

        Blocks which are summed separately end at fixed multiples wherever a task's range starts:
        otherwise the result's rounding would depend on how the range is split.
        """
        c = self.c
        # Blocks of matrix instructions continue the sums of the block before them.
        matrix = c.group is not None and bool(c.group.matrix)
        at_fixed = self.env.s.region(c.item) is not None and needs_run_sums(c, self.env.s)
        strip_mine_axis(
            self.env, c.k, self._block_depth(), inside, at_multiples=at_fixed and not matrix
        )

    def _block_depth(self) -> int | Value:
        """Return how many positions along k a block has.

        For matrix instructions (AMX) the blocks are of nearly equal size and whole tiles, since
        sums go to memory and back between blocks; a range somewhat longer than a block stays in
        one.
        """
        c = self.c
        if c.is_gemv or c.group is None or not c.group.matrix:
            return c.depth
        b, (low, high), step = self.b, self.env.ranges[c.k], MATRIX_STEP * c.group_size
        steps = b.udiv(b.add(b.sub(high, low), number(step - 1)), number(step))
        fits_block = b.icmp_signed("<=", steps, number(c.depth // step))
        more_blocks = b.udiv(b.sub(steps, number(1)), number(DEPTH // MATRIX_STEP))
        blocks = b.select(fits_block, number(1), b.add(more_blocks, number(1)))
        each = b.udiv(b.add(steps, b.sub(blocks, number(1))), blocks)
        return b.mul(each, number(step))

    def _k_block(self, scope: Scope) -> None:
        """Emit one block of k: pack the left operand, then pack and multiply column blocks."""
        c = self.c
        nest = self.nest
        left, right = nest.packs
        tiles = None if c.is_gemv else Macrokernel(self.env, c, left, scope)
        if tiles is not None and tiles.left_in_place is not None:
            with self.b.if_then(self.b.not_(tiles.left_in_place)):
                self._pack_unless(self.left_is_packed, lambda: self._pack_left(scope))
        elif not (c.direct or c.reads_left_in_place()):
            self._pack_unless(self.left_is_packed, lambda: self._pack_left(scope))
        if tiles is None:
            self._skinny_block(scope)
            return

        def columns() -> None:
            if self.panels is not None:
                tiles.read_panels(self._right_panels())
            if c.reads_right_in_place():
                tiles.open_right(right, scope)
            elif c.group is not None:
                packer = VnniPacker(self.env, c, right, scope)
                self._pack_unless(self.right_is_packed, packer.run)
            elif c.is_right_in_rows():
                with self.b.if_then(self.b.not_(tiles.choose_right_in_place(right, scope))):
                    self._pack_unless(self.right_is_packed, lambda: self._pack_block(right, scope))
            else:
                self._pack_unless(self.right_is_packed, lambda: self._pack_block(right, scope))
            if c.group is not None and c.group.left_offset:
                tiles.sum_columns()
            tiles.run(self.is_first_block, last=self.is_last_block)

        strip_mine_axis(self.env, c.n, COLUMNS, columns)

    def _is_packed(self, operand: Item) -> Value | None:
        """Return whether an earlier iteration of a stream has packed this operand completely (i1).

        That is so where all its blocks fit in scratch and its value does not depend on the stream's
        iterations.  None where it never is.
        """
        c = self.c
        b, env = self.b, self.env
        visits = repeat_visits(c, operand, env.s)
        if not visits:
            return None
        low, high = env.ranges[c.k]
        if operand is c.right and c.group is None:
            self.panels = panels = self._panels()
            packed = panels.resident
        else:
            packed = b.icmp_signed("<=", b.sub(high, low), number(c.depth))
            if operand is c.right:
                low, high = env.ranges[c.n]
                packed = b.and_(packed, b.icmp_signed("<=", b.sub(high, low), number(COLUMNS)))
        for v in visits:
            packed = b.and_(packed, b.icmp_signed("!=", *env.steps[v]))
        return packed

    def _panels(self) -> Panels:
        """Return where the blocks of the right operand are kept.

        All blocks but the last must be full for that: a range which begins between multiples of the
        block size has a shorter first block.
        """
        c = self.c
        b, (low, high), (first, last) = self.b, self.env.ranges[c.k], self.env.ranges[c.n]
        full_blocks = b.icmp_signed("==", b.and_(low, number(c.depth - 1)), number(0))
        k_blocks, column_blocks = (
            b.udiv(b.add(b.sub(end, begin), number(size - 1)), number(size))
            for begin, end, size in ((low, high, c.depth), (first, last, COLUMNS))
        )
        fits = b.icmp_signed("<=", b.mul(k_blocks, column_blocks), number(MAX_RESIDENT_BLOCKS))
        return Panels(b.and_(full_blocks, fits), low, first, b.mul(column_blocks, number(COLUMNS)))

    def _right_panels(self) -> Value:
        """Return the address of the current block's right panels."""
        c = self.c
        b, base, panels = self.b, self.env.storage.at[c.item, RIGHT_PART], self.panels
        if panels is None:
            return base
        k, n = (self.env.ranges[a][0] for a in (c.k, c.n))
        before = b.add(
            b.mul(b.sub(k, panels.first_k), panels.k_stride),
            b.mul(b.sub(n, panels.first_column), number(c.packed_units)),
        )
        return element_address(b, base, b.select(panels.resident, before, number(0)), c.unit)

    def _pack_unless(self, packed: Value | None, pack: Callable[[], None]) -> None:
        """Emit `pack` where the operand is not packed yet."""
        if packed is None:
            pack()
            return
        with self.b.if_then(self.b.not_(packed)):
            pack()

    def _pack_left(self, scope: Scope) -> None:
        c = self.c
        nest = self.nest
        if c.is_gemv:
            Gemv(self.env, c, nest.packs[1], scope).zero_row_ends()
        self._pack_block(nest.packs[0], scope)

    def _skinny_block(self, scope: Scope) -> None:
        """Emit one block of a GEMV or skinny product.

        Rows of the right operand which are only a few vectors long are multiplied by a register
        tile, whose sums stay in registers for the complete block.
        """
        c = self.c
        left, right = self.nest.packs

        def tiles(tile: Tile) -> None:
            macrokernel = Macrokernel(self.env, c, left, scope)
            macrokernel.open_right(right, scope)
            macrokernel.run(None, tile)

        def choose_shape(shapes: tuple[Tile, ...]) -> None:
            if not shapes:
                Gemv(self.env, c, right, scope).run(self.is_first_block)
                return
            low, high = self.env.ranges[c.n]
            fits = self.b.icmp_signed("<=", self.b.sub(high, low), number(shapes[0].columns))
            self.b.either(fits, lambda: tiles(shapes[0]), lambda: choose_shape(shapes[1:]))

        choose_shape(
            short_row_tiles(self.env.frame.target, c.tile.lanes) if c.reads_right_rows() else ()
        )

    def _pack_block(self, pack: Nest, scope: Scope) -> None:
        """Pack one operand's current block; concatenations are packed part by part."""
        c, b, env = self.c, self.b, self.env
        if pack.packed == "right":
            self.right_base = self._right_panels()
            if c.group is None:
                columns, depth = (b.sub(*env.ranges[a][::-1]) for a in (c.n, c.k))
                units = number(c.packed_units)
                clear_panel_tail(env, c, self.right_base, columns, units, depth)
        self.pack(pack, scope)

    def partitionable_axes(self, nest: Nest) -> Collection[str]:
        """Return the axes of a nest which may be partitioned: all."""
        return nest.order

    def vector_alignment(self, nest: Nest) -> int:
        """Return the multiple at which vectors of a packing nest must begin."""
        plain = nest.packed == "left" and self.c.group is None
        return 1 if plain else self.c.tile.columns

    def packs_squares(self, nest: Nest) -> bool:
        """Return whether an array is packed in transposed squares, past the axes' ends."""
        return self.is_transposed(nest)

    def packed_array(self, nest: Nest) -> PackedArray:
        """Return where loops pack an operand."""
        packed = self.rows_of(nest)
        if nest.packed == "right":
            c, units = self.c, number(self.c.packed_units)
            column = self.b.sub(self.env.ranges[c.n][0], self.starts[c.n])
            packed = self.panels_of(nest, c.tile.columns, units, column)
        return replace(packed, prefetch_rows=PACK_PREFETCH_ROWS, group=self.c.group)

    def stores_whole(self, nest: Nest) -> bool:
        """Return whether vectors are stored whole: groups are, with zeros past the last factor."""
        return self.c.group is not None

    def at(self, part: int, offset: Value) -> Value:
        """Return the address of an element in a part of the product's scratch memory."""
        if part == RIGHT_PART:
            return element_address(self.b, self.right_base, offset, self.image)
        return super().at(part, offset)
