"""Emit horizontal sums: over the lanes of a vector, or of several at once.

across(m, x)            the sum of one vector's lanes
together(m, vectors)    the sums of as many vectors as there are lanes, one per lane
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers

Value = ir.Value


def sum_each(m: LLVMMachine, totals: Sequence[Value]) -> Value:
    """Sum the lanes of each vector, by adding neighbouring lanes."""
    b, lanes = m.builder, m.lanes or 1
    picks = [lane_numbers(list(range(parity, 2 * lanes, 2))) for parity in (0, 1)]
    while len(totals) > 1:
        pairs = zip(totals[::2], totals[1::2], strict=True)
        totals = [m.add(*(b.shuffle_vector(x, y, p) for p in picks)) for x, y in pairs]
    return totals[0]


def sum_lanes(m: LLVMMachine, total: Value) -> Value:
    """Sum the lanes of a vector, adding halves to halves."""
    b, lanes = m.builder, m.lanes or 1
    while lanes > 1:
        lanes //= 2
        undefined = ir.Constant(total.type, ir.Undefined)
        first, second = (lane_numbers(list(range(at, at + lanes))) for at in (0, lanes))
        total = m.add(
            b.shuffle_vector(total, undefined, first), b.shuffle_vector(total, undefined, second)
        )
    return b.extract_element(total, ir.Constant(ir.IntType(32), 0))


__all__ = ["sum_each", "sum_lanes"]
