"""Sums of a block of summed positions, and those of the blocks before it.

totals = with_before(m, places, dtype, totals, unless)     # what lies at `places`, added
totals = in_runs(m, dtype, span, count, one)               # of all of a span: `one` gives a run's

Sums are joined of those of blocks: were each product added to the sum of all before, a rounding for
each would be lost, and all in one direction where products have one sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from smelt.blocks import HELD_RUN
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import PTR, element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.types.dtype import DType
from smelt.types.expr import Index

Value = ir.Value
Masks: TypeAlias = Sequence[Value | None]


def with_before(
    m: LLVMMachine,
    places: list[Value],
    dtype: DType,
    totals: list[Value],
    unless: Value | None,
    masks: Masks = (),
) -> list[Value]:
    """Sums of a block with those of the blocks before it, which lie at `places`; or as they are.
    `masks` are those of the places, if not all lanes are there."""
    b = m.builder
    if unless is None:
        return _joined(m, places, dtype, totals, masks)
    before = b.block
    with b.if_then(b.not_(unless)):
        sums = _joined(m, places, dtype, totals, masks)
        block = b.block
    found: list[Value] = []
    for total, value in zip(totals, sums, strict=True):
        met = b.phi(value.type)
        met.add_incoming(total, before)
        met.add_incoming(value, block)
        found.append(met)
    return found


def is_short(positions: Index, dtype: DType) -> bool:
    """Whether so many summed positions are one run, if need be: sums of integers are exact."""
    return not dtype.is_float or (isinstance(positions, int) and positions <= HELD_RUN)


def in_runs(
    m: LLVMMachine,
    dtype: DType,
    span: tuple[Value, Value],
    count: int,
    one: Callable[[tuple[Value, Value]], list[Value]],
    most: int = HELD_RUN,
) -> list[Value]:
    """So many vectors of sums over a span of positions, joined of those that `one` gives of runs of
    `most`.  They wait on the stack between runs if these take all registers."""
    b, (low, high), before = m.builder, span, m.builder.block
    few = 2 * count + 4 <= m.target.registers
    places = [] if few else _on_stack(m, dtype, count)
    run, more, done = map(b.append_basic_block, ("run", "more", "done"))
    b.branch(run)
    b.position_at_end(run)
    at, known = b.phi(I64), [b.phi(m.raw_type(dtype)) for _ in range(count if few else 0)]
    end = b.add(at, number(most))
    again = b.icmp_signed("<", end, high)
    totals = one((at, b.select(again, end, high)))
    if few:
        totals = [m.add(x, y) for x, y in zip(known, totals, strict=True)]
    else:
        totals = with_before(m, places, dtype, totals, b.icmp_signed("==", at, low))
    b.cbranch(again, more, done)
    b.position_at_end(more)
    for place, total in zip(places, totals, strict=False):
        store_vector(m, place, total, dtype, None)
    b.branch(run)
    at.add_incoming(low, before)
    at.add_incoming(end, more)
    for phi, total in zip(known, totals, strict=False):
        phi.add_incoming(m.const(dtype, 0), before)
        phi.add_incoming(total, more)
    b.position_at_end(done)
    return totals


def _on_stack(m: LLVMMachine, dtype: DType, count: int) -> list[Value]:
    """Room for so many registers, which LLVM does not replace by registers."""
    b, kind = m.builder, m.raw_type(dtype)
    with b.goto_entry_block():
        place = b.alloca(ir.ArrayType(kind, count))
        place = b.asm(ir.FunctionType(PTR, [PTR]), "", "=r,0", [place], False)
    return [element_address(b, place, number(k * kind.count), dtype) for k in range(count)]


def _joined(
    m: LLVMMachine, places: list[Value], dtype: DType, totals: list[Value], masks: Masks
) -> list[Value]:
    """Sums with those at places; what begins with nothing is those."""
    known = [
        load_vector(m, p, dtype, mask)
        for p, mask in zip(places, masks or [None] * len(places), strict=True)
    ]
    if all(isinstance(x, ir.Constant) for x in totals):
        return known
    return [m.add(x, y) for x, y in zip(known, totals, strict=True)]


__all__ = ["Masks", "in_runs", "is_short", "with_before"]
