"""Multiply two rows by two columns with one dot-product instruction.

A register holds a square of four sums, of rows i and i + 1 and columns j and j + 1; each factor
holds two units along k of two rows, or of two columns.  That is twice the products of a dot product
of one unit in every lane.  Squares are made of rows of sums before the loop, and rows of squares
after it, by the same shuffles.

    rows      r0 r1 r2 r3      squares   r0 r1 s0 s1
              s0 s1 s2 s3                r2 r3 s2 s3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.dot_product import DotInstruction, square_step
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers

__all__ = ["exchange_halves", "interleave_positions", "pair_rows", "square_update"]

Value = ir.Value
_I64 = ir.IntType(64)
_HALVES = (lane_numbers([0, 1, 4, 5]), lane_numbers([2, 3, 6, 7]))
_UNITS = (lane_numbers([0, 4, 1, 5]), lane_numbers([2, 6, 3, 7]))


def exchange_halves(b: ir.IRBuilder, sums: Sequence[Value], vectors: int) -> list[Value]:
    """Return squares of two rows each for rows of `vectors` sums, or rows for squares."""
    changed = list(sums)
    for first in range(0, len(sums), 2 * vectors):
        for v in range(first, first + vectors):
            pair = sums[v], sums[v + vectors]
            changed[v], changed[v + vectors] = (b.shuffle_vector(*pair, x) for x in _HALVES)
    return changed


def interleave_positions(
    b: ir.IRBuilder, here: Sequence[Value], next_: Sequence[Value]
) -> list[tuple[Value, Value]]:
    """Return for each vector of columns its units at two positions, two columns a register."""
    return [
        (b.shuffle_vector(x, y, _UNITS[0]), b.shuffle_vector(x, y, _UNITS[1]))
        for x, y in zip(here, next_, strict=True)
    ]


def pair_rows(b: ir.IRBuilder, rows: Sequence[Value], align: int) -> Iterable[Value]:
    """Load two units of each of two rows, from the rows' addresses."""
    kind = ir.VectorType(_I64, 2)
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        pair: Value = ir.Constant(kind, ir.Undefined)
        for lane, row in enumerate((first, second)):
            units = b.load(row, align=align, typ=_I64)
            pair = b.insert_element(pair, units, ir.IntType(32)(lane))
        yield pair


def square_update(
    m: LLVMMachine,
    group: DotInstruction,
    left: Iterable[Value],
    right: Sequence[tuple[Value, Value]],
    squares: Sequence[Value],
) -> list[Value]:
    """Return a tile's squares with the products of two positions along k."""
    vectors, updated = len(right), list(squares)
    for pair, rows in enumerate(left):
        for v, columns in enumerate(right):
            for half in (0, 1):
                at = (2 * pair + half) * vectors + v
                updated[at] = square_step(m, group, rows, columns[half], squares[at])
    return updated
