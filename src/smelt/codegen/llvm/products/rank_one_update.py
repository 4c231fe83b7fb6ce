"""Emit one position of a register tile: a rank-one update of its sums.

    sums[i, v] += left[i] * right[v]        broadcasts of the left operand, vectors of the right one

Every microkernel is a loop over such updates; they differ in where operands are, in what they
prefetch and in where sums go (F. Van Zee and R. van de Geijn, "BLIS: A Framework for Rapidly
Instantiating BLAS Functionality", 2015).

Some dot-product instructions multiply two rows by two columns.  A register then holds a square of
four sums, of rows i and i + 1 and columns j and j + 1; each factor holds two units along k of two
rows, or of two columns.  That is twice the products of a dot product of one unit in every lane.
Squares are made of rows of sums before the loop, and rows of squares after it, by the same
shuffles.

    rows      r0 r1 r2 r3      squares   r0 r1 s0 s1
              s0 s1 s2 s3                r2 r3 s2 s3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.dot_product import (
    BF16_DOT,
    DotInstruction,
    dot_step,
    square_step,
)
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers
from smelt.codegen.llvm.loopir.items import Item, KPair

Value = ir.Value
_I64 = ir.IntType(64)
_HALVES = (lane_numbers([0, 1, 4, 5]), lane_numbers([2, 3, 6, 7]))
_UNITS = (lane_numbers([0, 4, 1, 5]), lane_numbers([2, 6, 3, 7]))
MultiplyAdd = Callable[[Value, Value, Value], Value]
"""Returns a*b + c of three vectors."""


def rank_one_update(
    step: MultiplyAdd, left: Iterable[Value], right: Sequence[Value], sums: Sequence[Value]
) -> list[Value]:
    """Return a tile's sums, row by row, with the products of one position.

    `left` yields a broadcast for each row.  A generator emits it just before its use, which keeps
    registers free.
    """
    vectors = len(right)
    return [
        step(value, x, sums[i * vectors + v])
        for i, value in enumerate(left)
        for v, x in enumerate(right)
    ]


def multiply_add(m: LLVMMachine, item: Item, group: DotInstruction | None = None) -> MultiplyAdd:
    """Return how a contraction multiplies and adds: by a dot-product instruction if in groups."""
    if group is not None:
        return lambda a, b, c: dot_step(m, group, a, b, c)
    return lambda a, b, c: fma_step(m, a, b, c, item)


def fma_step(m: LLVMMachine, a: Value, b: Value, c: Value, item: Item) -> Value:
    """Return a*b + c, fused if the processor can (software would cost a call).

    With units, add the dot product of the units `a` and `b` to c.
    """
    if isinstance(item.args[0], KPair) or item.args[0].dtype != item.dtype:
        return dot_step(m, BF16_DOT, a, b, c)
    if item.dtype.is_float and m.target.has_fma:
        return m.fma(a, b, c)
    return m.add(m.mul(a, b), c)


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
