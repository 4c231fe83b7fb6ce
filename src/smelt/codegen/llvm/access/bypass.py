"""Stores past the caches: results too large for them do not push out what is still needed.

Whole aligned lines are written so, and nothing else; that is known when the loop starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.ahead import LINE
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.values.items import Access

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


def main_loop(
    home: NestEmitter, low: Value, step: int, walk: Callable[[], None], scope: Scope
) -> None:
    """The loop that `walk` emits, over whole vectors from `low` on; where whole lines are stored
    and it pays, a twin that bypasses the caches."""
    b, stores = home.b, _streamed(home, step)
    if not stores:
        walk()
        return
    misaligned: Value = number(0)
    for access in stores:
        base, dtype = home.home.buffers[access.buffer], home.home.dtypes[access.buffer]
        first = b.add(scope.offset(access), low)
        address = b.ptrtoint(element_address(b, base, first, dtype), I64)
        misaligned = b.or_(misaligned, b.and_(address, number(LINE - 1)))
    with b.if_else(b.icmp_signed("==", misaligned, number(0))) as (aligned, otherwise):
        with aligned:
            home.bypass = True
            walk()
            home.bypass = False
        with otherwise:
            walk()


def _streamed(home: NestEmitter, step: int) -> list[Access]:
    """Accesses of stores that write whole cache lines here, if this variant bypasses caches."""
    found = [s.access for s in home.nest.stores if s.where is None]
    whole = all(
        step * home.home.dtypes[a.buffer].itemsize % LINE == 0
        and home.step(a, home.nest.vector or "") == 1
        for a in found
    )
    return found if home.home.streaming and whole and not home.nest.folds else []


__all__ = ["main_loop"]
