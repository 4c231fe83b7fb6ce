"""Sums of a block of summed positions, and those of the blocks before it.

totals = with_before(m, places, dtype, totals, unless)     # what lies at `places`, added
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import load_vector
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.types.dtype import DType

Value = ir.Value
Masks: TypeAlias = Sequence[Value | None]


def with_before(
    m: LLVMMachine, places: list[Value], dtype: DType, totals: list[Value], unless: Value | None,
    masks: Masks = (),
) -> list[Value]:  # fmt: skip
    """Sums of a block with those of the blocks before it, which lie at `places`; or as they are.

    Long sums are joined of those of blocks: were each product added to the sum of all before, a
    rounding for each would be lost, and all in one direction where products have one sign.  `masks`
    are those of the places, if not all lanes are there.
    """
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


def _joined(
    m: LLVMMachine, places: list[Value], dtype: DType, totals: list[Value], masks: Masks
) -> list[Value]:  # fmt: skip
    """Sums with those at places; what begins with nothing is those."""
    known = [load_vector(m, p, dtype, mask)
             for p, mask in zip(places, masks or [None] * len(places), strict=True)]  # fmt: skip
    if all(isinstance(x, ir.Constant) for x in totals):
        return known
    return [m.add(x, y) for x, y in zip(known, totals, strict=True)]


__all__ = ["Masks", "with_before"]
