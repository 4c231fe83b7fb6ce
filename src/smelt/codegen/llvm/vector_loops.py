"""Turn the loops of a map into those that are printed: vectors, prefetches, offsets.

    each j in from .. to          each j_1 in from .. mid by 64       y[o1 + j_1 : 64] = ..
      y[n*i + j] = ..             each j_2 in mid .. to by 16         y[o1 + j_2 : 16 | prefix(..)]

A map is one nest without reductions whose arrays are read and written element by element along its
vectors; `why_not` says what else keeps its own emission.  Which passes run follows from the
schedule, and each of them is a function from loops to loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.codegen.llvm.access.prefetch import PREFETCH_ROWS
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.loops.full_unroll import is_fully_unrolled
from smelt.codegen.llvm.loops.poll import has_few_tasks
from smelt.codegen.llvm.lower_to_loop import LoweredPhase, refusal
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.loop import ir as loop
from smelt.loop.passes.align_stores import CACHE_LINE, align_stores
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.prefetch import prefetch_rows, prefetch_written
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.walk import loop_around
from smelt.ops.combine import CHOICE
from smelt.types.affine import coefficient
from smelt.types.expr import Index, minimum, mul, sub

MAX_ALIGNED_VECTORS = 4
"""Maximum vectors of a loop that computes for no longer than memory moves."""
MIN_ITERATIONS = 8
"""Minimum iterations of a loop that begins at a cache line: getting there costs one."""


def why_not(s: Schedule, *, streaming: bool) -> str:
    """Return why a phase is not printed from its loops; empty if it is."""
    if reason := refusal(s):
        return reason
    if len(s.nests) != 1 or s.phase.regions() or s.phase.cut:
        return "more than one nest"
    nest = s.nests[0]
    if nest.reductions or nest.saves or any(i.kind in ("scan", "branch") for i in nest.items):
        return "no map"
    if any(s.phase.axes[a] == 0 for a in nest.order):
        return "no elements"
    if nest.vector is None or nest.order[-1] != nest.vector or s.lanes & (s.lanes - 1):
        return "no vectors"
    if nest.transposed or nest.stages or nest.store_range or is_fully_unrolled(s, nest, nest.items):
        return "tiles, stages, ranges, or a row of a few vectors"
    if has_few_tasks(s):
        return "few tasks, which ask whether to go on"
    moving = [i for i in nest.items if nest.vector in i.axes]
    if any(i.kind in ("index", "position") for i in moving):
        return "positions along the vectors"
    if any(i.payload == CHOICE and nest.vector not in i.args[0].axes for i in moving):
        return "a choice for whole rows"
    steps = [_step(a, nest.vector) for a in _accesses(s, moving)]
    if not all(step in (0, 1) for step in steps):
        return "lanes that are apart"
    if any(a.limits for a in _accesses(s, nest.items)) or any(
        _step(x.access, nest.vector) != 1 or x.where is not None for x in nest.stores
    ):
        return "bounds checks, or stores under a condition"
    if streaming and (len(nest.stores) > 1 or not _fills_lines(s)):
        return "results that no common alignment suits"
    if streaming and len(nest.order) > 1:
        return "rows, which begin at cache lines only now and then"
    return ""


def _accesses(s: Schedule, items: Iterable[Item]) -> Iterator[Access]:
    yield from (i.payload for i in items if isinstance(i.payload, Access))
    yield from (x.access for x in s.phase.stores)


def _step(access: Access, vector: str) -> Index | None:
    return coefficient(access.offset, vector)


def _fills_lines(s: Schedule) -> bool:
    nest = s.nests[0]
    size = s.phase.dtypes[nest.stores[0].access.buffer].itemsize
    wide = s.lanes * nest.unroll * size
    return nest.unroll <= MAX_ALIGNED_VECTORS and wide % CACHE_LINE == 0


def vector_loops(s: Schedule, phase: LoweredPhase, *, streaming: bool) -> loop.Func:
    """Return the loops of a map in vectors, ready to be printed."""
    func, ((var, wide),), lanes, nest = phase.func, phase.lanes.items(), s.lanes, s.nests[0]
    row = loop_around(func.body, var)
    if streaming:
        func, aligned = align_stores(func, var, wide, MIN_ITERATIONS)
        func, var = vectorize(func, aligned.head, lanes, "masked"), aligned.other
        for step in (wide, lanes):
            func = vectorize(func, aligned.lines, step, "scalar")
        func = vectorize(func, aligned.lines, lanes, "masked")
    func = vectorize(func, var, wide, "scalar")
    func = vectorize(func, var, lanes, "masked")
    if row is not None and row.kind == "each" and nest.vector in s.block:
        # A task of a single row prefetches none: others come much later.
        count = mul(PREFETCH_ROWS, minimum(sub(s.block.get(nest.order[-2], 2), 1), 1))
        func = prefetch_rows(func, row.var, count, s.phase.axes[nest.order[-1]])
    for store in nest.stores if streaming else ():
        func = prefetch_written(func, store.access.buffer)
    return hoist_offsets(func)


__all__ = ["vector_loops", "why_not"]
