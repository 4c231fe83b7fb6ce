"""Add the partial sums of consecutive blocks along k.

    totals = with_before(m, places, dtype, totals, unless)     # adds the partial sums at `places`
    totals = in_runs(m, dtype, span, count, sum_run)           # sums a span run by run

Long sums are joined from sums of shorter runs.  If each product were added to the sum of all before
it, each addition would lose a rounding error, always in the same direction where products have one
sign (`docs/derivations.md`, precision).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from smelt.blocks import REGISTER_RUN
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import PTR, element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.types.dtype import DType
from smelt.types.expr import Index

Value = ir.Value
Masks: TypeAlias = Sequence[Value | None]


def add_previous_blocks(
    m: LLVMMachine,
    places: list[Value],
    dtype: DType,
    totals: list[Value],
    unless: Value | None,
    masks: Masks = (),
) -> list[Value]:
    """Return sums plus the partial sums of earlier blocks, loaded from `places`.

    Where `unless` holds (the first block) sums are returned unchanged.  `masks` apply to the loads.
    """
    b = m.builder
    if unless is None:
        return _add_stored(m, places, dtype, totals, masks)
    before = b.block
    with b.if_then(b.not_(unless)):
        sums = _add_stored(m, places, dtype, totals, masks)
        block = b.block
    merged: list[Value] = []
    for total, value in zip(totals, sums, strict=True):
        phi = b.phi(value.type)
        phi.add_incoming(total, before)
        phi.add_incoming(value, block)
        merged.append(phi)
    return merged


def fits_one_run(positions: Index, dtype: DType) -> bool:
    """Return whether so many positions may be summed in one run; integer sums are exact."""
    return not dtype.is_float or (isinstance(positions, int) and positions <= REGISTER_RUN)


def sum_in_runs(
    m: LLVMMachine,
    dtype: DType,
    span: tuple[Value, Value],
    count: int,
    sum_run: Callable[[tuple[Value, Value]], list[Value]],
    most: int = REGISTER_RUN,
) -> list[Value]:
    """Return `count` vectors of sums over a span, added up from short runs.

    `sum_run` emits the sums of a run of at most `most` positions.  Totals wait on the stack between
    runs if a run needs all registers.
    """
    b, (low, high), before = m.builder, span, m.builder.block
    in_registers = 2 * count + 4 <= m.target.registers
    places = [] if in_registers else _on_stack(m, dtype, count)
    run, more, done = map(b.append_basic_block, ("run", "more", "done"))
    b.branch(run)
    b.position_at_end(run)
    at, phis = b.phi(I64), [b.phi(m.raw_type(dtype)) for _ in range(count if in_registers else 0)]
    end = b.add(at, number(most))
    has_more = b.icmp_signed("<", end, high)
    totals = sum_run((at, b.select(has_more, end, high)))
    if in_registers:
        totals = [m.add(x, y) for x, y in zip(phis, totals, strict=True)]
    else:
        totals = add_previous_blocks(m, places, dtype, totals, b.icmp_signed("==", at, low))
    b.cbranch(has_more, more, done)
    b.position_at_end(more)
    for place, total in zip(places, totals, strict=False):
        store_vector(m, place, total, dtype, None)
    b.branch(run)
    at.add_incoming(low, before)
    at.add_incoming(end, more)
    for phi, total in zip(phis, totals, strict=False):
        phi.add_incoming(m.const(dtype, 0), before)
        phi.add_incoming(total, more)
    b.position_at_end(done)
    return totals


def _on_stack(m: LLVMMachine, dtype: DType, count: int) -> list[Value]:
    """Return stack slots for so many vectors, which LLVM cannot promote to registers."""
    b, kind = m.builder, m.raw_type(dtype)
    with b.goto_entry_block():
        place = b.alloca(ir.ArrayType(kind, count))
        place = b.asm(ir.FunctionType(PTR, [PTR]), "", "=r,0", [place], False)
    return [element_address(b, place, number(k * kind.count), dtype) for k in range(count)]


def _add_stored(
    m: LLVMMachine, places: list[Value], dtype: DType, totals: list[Value], masks: Masks
) -> list[Value]:
    """Return sums plus those at `places`; constants are initial zeros and add nothing."""
    earlier = [
        load_vector(m, p, dtype, mask)
        for p, mask in zip(places, masks or [None] * len(places), strict=True)
    ]
    if all(isinstance(x, ir.Constant) for x in totals):
        return earlier
    return [m.add(x, y) for x, y in zip(earlier, totals, strict=True)]


__all__ = ["Masks", "add_previous_blocks", "fits_one_run", "sum_in_runs"]
