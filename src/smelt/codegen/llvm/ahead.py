"""Reading ahead: a task asks for what the next task will read, a block for the next block's.

Where several nests work on a row (find its mean, its variance, write it), only the first of them
waits for memory, and memory idles while the others compute.  So the first nest asks for the row
after its own.  A layer norm of rows of 4 KiB takes two thirds of the time with it.  In a stream the
last nest that reads an array, which finds it in cache, asks for the next block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir

from smelt.codegen.llvm.indexing import number
from smelt.codegen.llvm.items import Access, chain
from smelt.codegen.llvm.memory import element_address, prefetch
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Index, atoms, mul

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = Any
LINE = 64
"""Bytes of a cache line."""


def fetch_ahead(home: NestEmitter, access: Access, address: Value, dtype: DType) -> None:
    """Asks for the place that lies one task behind what a whole vector load reads here."""
    if not home.foresees:  # many streams run side by side: the processor does better alone
        return
    step = _next_task(home, access) or _next_block(home, access) or _next_run(home, access)
    if step is None:
        return
    there = element_address(home.b, address, home.home.index(step), dtype)
    for k in range(0, home.s.lanes * home.nest.wide * dtype.itemsize, LINE):
        prefetch(home.b, home.b.gep(there, [number(k)], source_etype=ir.IntType(8)))


RUNS = 4
"""Rows between what is read and what is asked for, where a task reads a piece of each row."""


def _next_run(home: NestEmitter, access: Access) -> Index | None:
    """Elements from a piece of a row to that of a later row: rows are further apart than what the
    processor foresees."""
    order = home.nest.order
    if len(order) < 2 or order[-1] not in home.s.block or home.nest.vector != order[-1]:
        return None
    step = coefficient(access.offset, order[-2])
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return mul(step, RUNS)


def _next_block(home: NestEmitter, access: Access) -> Index | None:
    """Elements from what a block of a stream reads to what the next one does, if this nest is not
    the first and is the last to read it."""
    around = chain(home.s.phase.segments[home.nest.time])
    region = next((r for r in around[::-1] if r.visits), None)
    if region is None or region.visits[-1].size in (None, 1):
        return None
    together = [n for n in home.s.nests if n.time == home.nest.time]
    readers = [n for n in together if any(i.payload == access for i in n.items)]
    if len(readers) < 2 or readers[-1] is not home.nest:
        return None
    step = coefficient(access.offset, region.visits[-1].axis)
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return mul(step, region.visits[-1].size or 1)


def _next_task(home: NestEmitter, access: Access) -> Index | None:
    """Elements from what one task reads to what the next one does, if this nest should ask."""
    later = any(n.order for n in home.s.nests[1:])
    return next_task(home, access) if later and home.nest is home.s.nests[0] else None


def next_task(home: NestEmitter, access: Access) -> Index | None:
    """Elements from what one task reads to what the next one does, where that is one number."""
    free = [g for g in home.s.phase.grid if g not in home.s.local]
    if not free:
        return None
    step = coefficient(access.offset, free[-1])
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return step
