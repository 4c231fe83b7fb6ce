"""Register tiles of AMX: sixteen rows of sixteen units, multiplied by one instruction.

A product whose factors go in units of 32 bits (`smelt.codegen.llvm.instructions.dot_product`) has
its left operand in rows of units and its right one in panels, lines of units as wide as the tile:
just what AMX wants.  Its tiles are registers of their own with as many rows, and as many bytes a
row, as was said when they were configured; so what is left over at the end of rows or of summed
positions is multiplied as exactly as the rest, and nothing beyond it is read.

    rows 0..31:  sums 0 1    left 4    right 6 7
                      2 3         5

A band of rows meets all panels before the next one does: so few units are multiplied at once that
it stays in the first cache, while panels, which are runs of memory, come from the second.  Told so
(a load "t1" does not keep what it reads near), 768 units of a tile take 1.35 times as long as the
products alone; with a panel that stays and bands that pass by, 1.7 times.

Configuring takes as long as two dozen products.  It clears all tiles, so the units left over are
added in a second sweep over the sums.

Source: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3 (AMX).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smelt.blocks import COLUMNS as MOST
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import PTR, element_address, intrinsic, lie_in_lines
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.products.tile_loops import outline_function
from smelt.types.dtype import i8, i32, i64

if TYPE_CHECKING:
    from collections.abc import Generator

    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
SIDE = 16
"""Rows of a tile, and units of a row."""
WIDE = 2
"""Tiles of sums abreast, and one below the other."""
COLUMNS = WIDE * SIDE
"""Columns of the panels that are read."""
LINE, PAGE = 64, 4096
"""Bytes of a line, and of what a first cache has in each of its ways."""
SUMS, LEFT, RIGHT = 0, 4, 6
"""The first registers of each kind."""
BIT, BYTE, SHORT, VOID = ir.IntType(1), ir.IntType(8), ir.IntType(16), ir.VoidType()
TYPE = ir.FunctionType(VOID, [PTR, I64, PTR, I64, PTR, PTR, I64, I64, I64, I64, BIT])


def multiply(b: ir.IRBuilder, instruction: str, operands: list[Value]) -> None:
    """sums[rows, 32 * panels] += left[rows, units] * right[panels, units, 32] in units of 32 bits.

    `operands` are the address of the sums and the bytes between their rows, the same of the left
    operand, the address of the right one, that of the bytes from there to each panel, and those
    between its lines, how many panels, rows and units there are, and whether sums are stored
    instead of added to."""
    function = outline_function(
        b.module, f"tile.{instruction}", TYPE, lambda f: _Tiles(f, instruction).fill()
    )
    b.call(function, operands)


def panel_places(
    home: NestEmitter, column: Value, end: Value, place: Callable[[Value], Value]
) -> tuple[Value, Value]:
    """A table of `place(at)`, the bytes before each panel of some columns; how many these are."""
    b = home.b
    with b.goto_entry_block():
        table = b.alloca(ir.VectorType(I64, MOST // COLUMNS))

    def panel(at: Value) -> None:
        nth = b.udiv(b.sub(at, column), number(COLUMNS))
        b.store(place(at), element_address(b, table, nth, i64), align=i64.itemsize)

    home.loop(column, end, COLUMNS, panel)
    return table, b.udiv(b.add(b.sub(end, column), number(COLUMNS - 1)), number(COLUMNS))


def loads_well(b: ir.IRBuilder, first: Value, apart: Value) -> Value:
    """Whether tiles had better be loaded from rows where they lie, so many bytes apart, than from
    packed ones: each row of a tile is one line of a cache, and neighbouring rows are not all in the
    same few sets of it."""
    whole = lie_in_lines(b, first, apart, LINE)
    return b.and_(whole, b.icmp_signed("!=", b.and_(apart, number(PAGE - 1)), number(0)))


class _Tiles:
    """The body of the function for one instruction."""

    def __init__(self, f: ir.Function, instruction: str) -> None:
        self.f, self.instruction = f, instruction
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.sums, self.sums_apart, self.left, self.left_apart = f.args[:4]
        self.right, self.places, self.right_apart = f.args[4:7]
        self.panels, self.rows, self.units, self.fresh = f.args[7:]

    def fill(self) -> None:
        """Whole steps of units, then those that are left over."""
        b, kind = self.b, ir.VectorType(BYTE, 64)
        self.told = b.alloca(kind)
        b.store(ir.Constant(kind, None), self.told, align=1)
        self._put(0, 1, BYTE)  # the one palette that there is
        for tile in range(SUMS, LEFT):
            self._put(16 + 2 * tile, 4 * SIDE, SHORT)
        for tile in range(RIGHT, RIGHT + WIDE):
            self._put(16 + 2 * tile, 4 * SIDE, SHORT)
        over = b.and_(self.units, number(SIDE - 1))
        whole = b.sub(self.units, over)
        with self._if(b.icmp_signed(">", whole, number(0))):
            self._sweep(number(0), whole, number(SIDE), self.fresh)
        with self._if(b.icmp_signed(">", over, number(0))):
            first = b.and_(self.fresh, b.icmp_signed("==", whole, number(0)))
            self._sweep(whole, self.units, over, first)
        intrinsic(b, "llvm.x86.tilerelease", VOID, [])
        b.ret_void()

    def _put(self, at: int, value: Value | int, kind: ir.IntType) -> None:
        """Writes a number into the configuration."""
        b = self.b
        value = kind(value) if isinstance(value, int) else b.trunc(value, kind)
        b.store(value, element_address(b, self.told, number(at), i8), align=1)

    @contextmanager
    def _if(self, condition: Value) -> Generator[None]:
        b = self.b
        inside, done = self.f.append_basic_block("some"), self.f.append_basic_block("done")
        b.cbranch(condition, inside, done)
        b.position_at_end(inside)
        yield
        b.branch(done)
        b.position_at_end(done)

    def _loop(self, low: Value, high: Value, step: Value, inside: Callable[[Value], None]) -> None:
        """`inside` of each position from `low` on, of which there is one at least."""
        b, before = self.b, self.b.block
        body, done = self.f.append_basic_block("loop"), self.f.append_basic_block("next")
        b.branch(body)
        b.position_at_end(body)
        at = b.phi(I64)
        at.add_incoming(low, before)
        inside(at)
        after = b.add(at, step)
        at.add_incoming(after, b.block)
        b.cbranch(b.icmp_signed("<", after, high), body, done)
        b.position_at_end(done)

    def _sweep(self, low: Value, high: Value, step: Value, fresh: Value) -> None:
        """All rows, with the units from `low` to `high`, `step` at once."""
        b = self.b
        for tile in range(LEFT, RIGHT):
            self._put(16 + 2 * tile, b.mul(step, number(4)), SHORT)
        for tile in range(RIGHT, RIGHT + WIDE):
            self._put(48 + tile, step, BYTE)
        high_rows = number(WIDE * SIDE)
        over = b.urem(self.rows, high_rows)
        whole = b.sub(self.rows, over)
        with self._if(b.icmp_signed(">", whole, number(0))):
            self._configure(number(SIDE), number(SIDE))
            self._loop(
                number(0),
                whole,
                high_rows,
                lambda row: self._band(row, WIDE, low, high, step, fresh),
            )
        with self._if(b.icmp_signed(">", over, number(SIDE))):
            self._configure(number(SIDE), b.sub(over, number(SIDE)))
            self._band(whole, WIDE, low, high, step, fresh)
        few = b.icmp_signed("<=", over, number(SIDE))
        with self._if(b.and_(few, b.icmp_signed(">", over, number(0)))):
            self._configure(over, number(SIDE))
            self._band(whole, 1, low, high, step, fresh)

    def _configure(self, first: Value, second: Value) -> None:
        """Says how many rows the upper and the lower tiles have."""
        for k, rows in enumerate((first, second)):
            self._put(48 + LEFT + k, rows, BYTE)
            for j in range(WIDE):
                self._put(48 + SUMS + WIDE * k + j, rows, BYTE)
        intrinsic(self.b, "llvm.x86.ldtilecfg", VOID, [self.told])

    def _band(
        self, row: Value, high: int, low: Value, end: Value, step: Value, fresh: Value
    ) -> None:
        """So many tiles one below the other from a row on, with all units of a sweep and all
        panels."""
        b = self.b
        lines = [b.add(row, number(SIDE * i)) for i in range(high)]

        def panel(nth: Value) -> None:
            column = b.mul(nth, number(COLUMNS))
            sums = [
                self._place(self.sums, self.sums_apart, line, b.add(column, number(SIDE * j)))
                for line in lines
                for j in range(WIDE)
            ]
            place = element_address(b, self.places, nth, i64)
            right = element_address(b, self.right, b.load(place, typ=I64), i8)
            self._begin(sums, fresh)
            self._loop(low, end, step, lambda unit: self._step(lines, right, unit))
            for k, at in enumerate(sums):
                intrinsic(b, "llvm.x86.tilestored64", VOID, [BYTE(SUMS + k), at, self.sums_apart])

        self._loop(number(0), self.panels, number(1), panel)

    def _begin(self, sums: list[Value], fresh: Value) -> None:
        """Sums at some addresses as they are before a sweep."""
        b = self.b
        clear, add, go = map(self.f.append_basic_block, ("clear", "add", "go"))
        b.cbranch(fresh, clear, add)
        b.position_at_end(clear)
        for k in range(len(sums)):
            intrinsic(b, "llvm.x86.tilezero", VOID, [BYTE(SUMS + k)])
        b.branch(go)
        b.position_at_end(add)
        for k, place in enumerate(sums):
            self._load(SUMS + k, place, self.sums_apart)
        b.branch(go)
        b.position_at_end(go)

    def _step(self, lines: list[Value], right: Value, unit: Value) -> None:
        """Adds the products of so many units from one on.  Loads of what a tile needs stand just
        before it: they take half as long as tiles do."""
        b = self.b
        for i, line in enumerate(lines):
            at = self._place(self.left, self.left_apart, line, unit)
            self._load(LEFT + i, at, self.left_apart)
            for j in range(WIDE):
                if i == 0:
                    at = self._place(right, self.right_apart, unit, number(SIDE * j))
                    self._load(RIGHT + j, at, self.right_apart, once=True)
                tiles = [BYTE(SUMS + WIDE * i + j), BYTE(LEFT + i), BYTE(RIGHT + j)]
                intrinsic(b, f"llvm.x86.{self.instruction}", VOID, tiles)

    def _load(self, tile: int, place: Value, apart: Value, once: bool = False) -> None:
        """What is read once for a band had better not push out of the first cache what is not."""
        name = "tileloaddt164" if once else "tileloadd64"
        intrinsic(self.b, f"llvm.x86.{name}", VOID, [BYTE(tile), place, apart])

    def _place(self, base: Value, apart: Value, row: Value, unit: Value) -> Value:
        """The address of a unit in a row."""
        b = self.b
        line = element_address(b, base, b.mul(row, apart), i8)
        return element_address(b, line, unit, i32)


__all__ = ["COLUMNS", "loads_well", "multiply", "panel_places"]
