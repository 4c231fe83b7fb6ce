"""Emit streams: loops over the blocks of an axis around the nests of a region's segments.

Inside a block the axis has the block's range, so that everything else is emitted as if the axis
were that short; an axis that is visited one position at a time is a scalar there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import takewhile
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Region, Visit, enclosing_regions
from smelt.codegen.llvm.loops.poll import stream_loop
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.schedule.mask_ranges import emit_ranges

Value = ir.Value
BOUND_ALIGNMENT = 64
"""Alignment in positions of the sub-range of an axis that a block visits: vectors, tiles and panels
begin there."""


def run_segments(env: Environment, region: Region | None = None, at: int = 0) -> int:
    """Emit a region's segments from `at` on; return the first segment after the region."""
    segments = env.s.phase.segments
    while at < len(segments):
        inner = segments[at]
        if inner is region:
            for nest in env.s.nests:
                if nest.time == at:
                    env.run(nest)
            at += 1
        elif inner is not None and inner.parent is region:
            at = _stream(env, inner, at)
        else:
            return at
    return at


def _stream(env: Environment, region: Region, at: int) -> int:
    """Emit all blocks of a stream; return the first segment after it.

    Its own first segment is `at`.
    """

    def inside(depth: int) -> None:
        if depth == len(region.visits):
            run_segments(env, region, at)
        else:
            _visit(env, region, region.visits[depth], lambda: inside(depth + 1))

    with env.within(top=Scope(env.top)):
        if region.where is not None:
            with env.b.if_then(env.top.value(region.where)), _bounded(env, region):
                inside(0)
        else:
            with _bounded(env, region):
                inside(0)
    segments = env.s.phase.segments[at:]  # no code is emitted for a loop that never runs
    return at + sum(1 for _ in takewhile(lambda s: region in enclosing_regions(s), segments))


def _bounded(env: Environment, region: Region) -> AbstractContextManager[None]:
    """Narrow axes to the bounds of the current block, aligned to vector groups."""
    ranges = dict[str, tuple[Value, Value]]()
    for visit in region.bounds:
        first, _ = env.ranges[visit.axis]
        low, stop = _span(env, visit)
        before = env.b.and_(env.b.sub(low, first), number(-BOUND_ALIGNMENT))
        ranges[visit.axis] = env.b.add(first, before), stop
    return env.narrowed(ranges)


def _visit(env: Environment, region: Region, visit: Visit, inside: Any) -> None:
    """Emit a loop over the blocks of one axis."""
    b = env.b
    low, stop = _span(env, visit)
    size = b.sub(stop, low) if visit.size is None else number(visit.size)
    aligned = visit.size in (None, 1) or visit.start is None
    begin = low if aligned else _block_of(env, visit, low)

    def block(at: Value) -> None:
        block_start = at
        if visit.size == 1:
            env.top.bind(visit.axis, at)
        end = stop if visit.size is None else b.minimum(b.add(at, size), stop)
        at = at if aligned else b.maximum(at, low)
        starts = {**env.starts, (region, visit.axis): at}
        steps = {**env.steps, visit: (block_start, begin)}
        with env.narrowed({visit.axis: (at, end)}), env.within(starts=starts, steps=steps):
            for row_groups in env.row_groups:
                if row_groups.groups.visit is visit:
                    emit_ranges(env, row_groups)
            inside()

    if region.parent is None and visit is region.visits[0]:
        stream_loop(env, region, (begin, stop), size, block)
    else:
        env.loop(begin, stop, size, block)


def _first(env: Environment, visit: Visit) -> Value:
    """Return where the first block of an axis begins."""
    low, _ = env.ranges[visit.axis]
    return env.b.add(low, number(visit.first)) if visit.first else low


def _block_of(env: Environment, visit: Visit, at: Value) -> Value:
    """Return the start of the block that contains a position."""
    b = env.b
    return b.sub(at, b.srem(b.sub(at, _first(env, visit)), number(visit.size or 1)))


def _span(env: Environment, visit: Visit) -> tuple[Value, Value]:
    """Return where the blocks of an axis begin and end in this task."""
    b = env.b
    _, stop = env.ranges[visit.axis]
    low = _first(env, visit)
    first, last = low, stop
    if visit.start is not None:
        low = b.minimum(b.maximum(env.top.value(visit.start), first), last)
    if visit.stop is not None:
        stop = b.minimum(b.maximum(env.top.value(visit.stop), low), last)
    if visit.part is None:
        return low, stop
    name, count = visit.part
    unit = number(visit.size or 1)
    blocks = _ceil(b, b.sub(last, first), unit)
    each = b.mul(_ceil(b, blocks, env.frame.index(count)), unit)
    begin = b.add(first, b.mul(env.top.axis(name), each))
    return b.maximum(low, begin), b.minimum(b.add(begin, each), stop)


def _ceil(b: Any, a: Value, by: Value) -> Value:
    return b.sdiv(b.add(a, b.sub(by, number(1))), by)
