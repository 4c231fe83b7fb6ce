"""Emit nests that store a range of an axis, which walk only the range."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.loopir.store_ranges import InPlaceUpdate, Range
from smelt.codegen.llvm.nests.environment import Environment


def run_in_range(env: Environment, within: Range, run: Callable[[], None]) -> None:
    """Run a nest over the overlap of a task with a range of an axis.

    `run` emits the nest; it is skipped if they do not overlap.
    """
    _run_in_ranges(env, [within], None, run)


def run_in_place(env: Environment, update: InPlaceUpdate, run: Callable[[], None]) -> None:
    """Run a nest, in place only where it changes something.

    `run` emits the nest.  The call decides whether results take the memory of their sources.
    """
    b = env.b
    apart: ir.Value | None = None
    for names in update.arrays:
        source, destination = (b.ptrtoint(env.frame.buffers[n], I64) for n in names)
        differs = b.icmp_signed("!=", source, destination)
        apart = differs if apart is None else b.or_(apart, differs)
    assert apart is not None
    if update.is_copy:
        with b.if_then(apart):
            run()
        return
    _run_in_ranges(env, update.ranges, apart, run)


def _run_in_ranges(
    env: Environment, ranges: Iterable[Range], always: ir.Value | None, run: Callable[[], None]
) -> None:
    """Run a nest over the overlap with ranges, or over everything if `always`."""
    b, outer, inner = env.b, env.ranges, dict(env.ranges)
    overlaps: ir.Value | None = None
    for within in ranges:
        first, stop = range_ends(env, within)
        if within.axis not in outer:  # the task has one position
            at = env.top.axis(within.axis)
            low, high = at, b.add(at, number(1))
        else:
            low, high = outer[within.axis]
        start = b.select(b.icmp_signed("<", low, first), first, low)
        end = high if stop is None else b.select(b.icmp_signed("<", stop, high), stop, high)
        if always is not None:
            start, end = b.select(always, low, start), b.select(always, high, end)
        if within.axis in outer:
            inner[within.axis] = start, end
        one = b.icmp_signed("<", start, end)
        overlaps = one if overlaps is None else b.and_(overlaps, one)
    assert overlaps is not None
    with b.if_then(overlaps), env.within(ranges=inner):
        run()


def range_ends(env: Environment, within: Range) -> tuple[ir.Value, ir.Value | None]:
    """Return where a range begins and where it stops (None: the axis' end)."""
    first = env.frame.index(within.first) if within.first != 0 else number(0)
    return first, None if within.stop is None else env.frame.index(within.stop)
