"""Emit AMX register tiles: 16 x 16 units of 32 bits, multiplied by one instruction.

A product whose factors go in units of 32 bits (`smelt.codegen.llvm.instructions.dot_product`) has
its left operand in rows of units and its right one in panels, rows of units as wide as the tile:
the layout AMX needs.  Tile registers have as many rows, and bytes per row, as were configured; so
remainders of rows or of k are multiplied exactly, and nothing past them is read.

    rows 0..31:  sums 0 1    left 4    right 6 7
                      2 3         5

A band of rows meets all panels before the next band: its units stay in L1, while the panels, which
are contiguous, are streamed from L2 by loads with a T1 locality hint (`tileloaddt1`).

Configuring takes as long as two dozen products, and clears all tiles.  So the remainder of units is
added in a second pass over the sums.

Source: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3 (AMX).
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import PTR, element_address, fit_cache_lines, intrinsic
from smelt.codegen.llvm.instructions.counting import emit_loop
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.products.microkernel import outline_function
from smelt.machine.blocks import COLUMNS as MOST
from smelt.types.dtype import i8, i32, i64

Value = ir.Value
SIDE = 16
"""Rows of a tile, and units per row."""
TILES_PER_SIDE = 2
"""Tiles of sums side by side, and one below the other."""
PANEL_COLUMNS = TILES_PER_SIDE * SIDE
"""Columns of a panel."""
LINE, PAGE = 64, 4096
"""Bytes of a cache line, and of one way of L1."""
SUMS, LEFT, RIGHT = 0, 4, 6
"""First tile register of the sums, the left and the right operand."""
BIT, BYTE, I16, VOID = ir.IntType(1), ir.IntType(8), ir.IntType(16), ir.VoidType()
TYPE = ir.FunctionType(VOID, [PTR, I64, PTR, I64, PTR, PTR, I64, I64, I64, I64, BIT])


def multiply(b: ir.IRBuilder, instruction: str, operands: list[Value]) -> None:
    """Emit sums[rows, 32 * panels] += left[rows, units] * right[panels, units, 32].

    Units have 32 bits.  `operands` are: address of the sums, bytes between their rows; address of
    the left operand, bytes between its rows; address of the right operand, address of a table of
    each panel's byte offset, bytes between rows of a panel; numbers of panels, rows and units; and
    whether sums are stored instead of added to.
    """
    function = outline_function(
        b.module, f"tile.{instruction}", TYPE, lambda f: _Tiles(f, instruction).fill()
    )
    b.call(function, operands)


def panel_offsets(
    env: Environment, column: Value, end: Value, place: Callable[[Value], Value]
) -> tuple[Value, Value]:
    """Return a table of `place(column)`, the byte offset of each panel, and the panels' number."""
    b = env.b
    with b.goto_entry_block():
        table = b.alloca(ir.VectorType(I64, MOST // PANEL_COLUMNS))

    def panel(at: Value) -> None:
        nth = b.udiv(b.sub(at, column), number(PANEL_COLUMNS))
        b.store(place(at), element_address(b, table, nth, i64), align=i64.itemsize)

    env.loop(column, end, PANEL_COLUMNS, panel)
    return table, b.udiv(
        b.add(b.sub(end, column), number(PANEL_COLUMNS - 1)), number(PANEL_COLUMNS)
    )


def rows_load_well(b: ir.IRBuilder, first: Value, row_bytes: Value) -> Value:
    """Return whether tiles load rows in place as fast as packed rows (i1).

    Each row of a tile must be one cache line, and neighbouring rows must not map to the same few
    cache sets.
    """
    aligned = fit_cache_lines(b, first, row_bytes, LINE)
    return b.and_(aligned, b.icmp_signed("!=", b.and_(row_bytes, number(PAGE - 1)), number(0)))


class _Tiles:
    """Emits the body of the function for one instruction."""

    def __init__(self, f: ir.Function, instruction: str) -> None:
        self.f, self.instruction = f, instruction
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.sums, self.sums_stride, self.left, self.left_stride = f.args[:4]
        self.right, self.places, self.right_stride = f.args[4:7]
        self.panels, self.rows, self.units, self.fresh = f.args[7:]

    def fill(self) -> None:
        """Emit full steps of units, then the remainder."""
        b, kind = self.b, ir.VectorType(BYTE, 64)
        self.config = b.alloca(kind)
        b.store(ir.Constant(kind, None), self.config, align=1)
        self._write_config(0, 1, BYTE)  # palette 1, the only one
        for tile in range(SUMS, LEFT):
            self._write_config(16 + 2 * tile, 4 * SIDE, I16)
        for tile in range(RIGHT, RIGHT + TILES_PER_SIDE):
            self._write_config(16 + 2 * tile, 4 * SIDE, I16)
        remainder = b.and_(self.units, number(SIDE - 1))
        full_units = b.sub(self.units, remainder)
        with b.if_then(b.icmp_signed(">", full_units, number(0))):
            self._pass_over_rows(number(0), full_units, number(SIDE), self.fresh)
        with b.if_then(b.icmp_signed(">", remainder, number(0))):
            first = b.and_(self.fresh, b.icmp_signed("==", full_units, number(0)))
            self._pass_over_rows(full_units, self.units, remainder, first)
        intrinsic(b, "llvm.x86.tilerelease", VOID, [])
        b.ret_void()

    def _write_config(self, at: int, value: Value | int, kind: ir.IntType) -> None:
        """Write a number into the tile configuration."""
        b = self.b
        value = kind(value) if isinstance(value, int) else b.trunc(value, kind)
        b.store(value, element_address(b, self.config, number(at), i8), align=1)

    def _pass_over_rows(self, low: Value, high: Value, step: Value, fresh: Value) -> None:
        """Emit all rows, with the units from `low` to `high`, `step` at a time."""
        b = self.b
        for tile in range(LEFT, RIGHT):
            self._write_config(16 + 2 * tile, b.mul(step, number(4)), I16)
        for tile in range(RIGHT, RIGHT + TILES_PER_SIDE):
            self._write_config(48 + tile, step, BYTE)
        high_rows = number(TILES_PER_SIDE * SIDE)
        remainder = b.urem(self.rows, high_rows)
        full_rows = b.sub(self.rows, remainder)
        with b.if_then(b.icmp_signed(">", full_rows, number(0))):
            self._configure(number(SIDE), number(SIDE))
            emit_loop(
                b,
                number(0),
                full_rows,
                high_rows,
                lambda row: self._band(row, TILES_PER_SIDE, low, high, step, fresh),
            )
        with b.if_then(b.icmp_signed(">", remainder, number(SIDE))):
            self._configure(number(SIDE), b.sub(remainder, number(SIDE)))
            self._band(full_rows, TILES_PER_SIDE, low, high, step, fresh)
        is_single = b.icmp_signed("<=", remainder, number(SIDE))
        with b.if_then(b.and_(is_single, b.icmp_signed(">", remainder, number(0)))):
            self._configure(remainder, number(SIDE))
            self._band(full_rows, 1, low, high, step, fresh)

    def _configure(self, first: Value, second: Value) -> None:
        """Configure how many rows the upper and the lower tiles have."""
        for k, rows in enumerate((first, second)):
            self._write_config(48 + LEFT + k, rows, BYTE)
            for j in range(TILES_PER_SIDE):
                self._write_config(48 + SUMS + TILES_PER_SIDE * k + j, rows, BYTE)
        intrinsic(self.b, "llvm.x86.ldtilecfg", VOID, [self.config])

    def _band(
        self, row: Value, high: int, low: Value, end: Value, step: Value, fresh: Value
    ) -> None:
        """Emit `high` tiles one below the other, with all panels and units of the pass."""
        b = self.b
        tile_rows = [b.add(row, number(SIDE * i)) for i in range(high)]

        def panel(nth: Value) -> None:
            column = b.mul(nth, number(PANEL_COLUMNS))
            sums = [
                self._place(self.sums, self.sums_stride, line, b.add(column, number(SIDE * j)))
                for line in tile_rows
                for j in range(TILES_PER_SIDE)
            ]
            place = element_address(b, self.places, nth, i64)
            right = element_address(b, self.right, b.load(place, typ=I64), i8)
            self._begin(sums, fresh)
            emit_loop(b, low, end, step, lambda unit: self._step(tile_rows, right, unit))
            for k, at in enumerate(sums):
                intrinsic(b, "llvm.x86.tilestored64", VOID, [BYTE(SUMS + k), at, self.sums_stride])

        emit_loop(b, number(0), self.panels, number(1), panel)

    def _begin(self, sums: list[Value], fresh: Value) -> None:
        """Load or clear the sums at some addresses, before a pass."""

        def clear() -> None:
            for k in range(len(sums)):
                intrinsic(self.b, "llvm.x86.tilezero", VOID, [BYTE(SUMS + k)])

        def load() -> None:
            for k, place in enumerate(sums):
                self._load(SUMS + k, place, self.sums_stride)

        self.b.either(fresh, clear, load)

    def _step(self, tile_rows: list[Value], right: Value, unit: Value) -> None:
        """Add the products of one step of units.

        Tile loads are emitted just before their use: they take half as long as tile products.
        """
        b = self.b
        for i, tile_row in enumerate(tile_rows):
            at = self._place(self.left, self.left_stride, tile_row, unit)
            self._load(LEFT + i, at, self.left_stride)
            for j in range(TILES_PER_SIDE):
                if i == 0:
                    at = self._place(right, self.right_stride, unit, number(SIDE * j))
                    self._load(RIGHT + j, at, self.right_stride, once=True)
                tiles = [BYTE(SUMS + TILES_PER_SIDE * i + j), BYTE(LEFT + i), BYTE(RIGHT + j)]
                intrinsic(b, f"llvm.x86.{self.instruction}", VOID, tiles)

    def _load(self, tile: int, place: Value, row_bytes: Value, once: bool = False) -> None:
        """Load a tile; `once`: without displacing what stays in L1."""
        name = "tileloaddt164" if once else "tileloadd64"
        intrinsic(self.b, f"llvm.x86.{name}", VOID, [BYTE(tile), place, row_bytes])

    def _place(self, base: Value, row_bytes: Value, row: Value, unit: Value) -> Value:
        b = self.b
        row_address = element_address(b, base, b.mul(row, row_bytes), i8)
        return element_address(b, row_address, unit, i32)
