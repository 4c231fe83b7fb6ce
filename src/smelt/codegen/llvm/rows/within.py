"""A nest that walks the range of an axis alone in which its stores write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.schedule.ranges import Range

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter


def in_range(home: NestEmitter, within: Range, run: Callable[[], None]) -> None:
    """Emits by `run` what a nest does between the ends of a range, if the task has any of it."""
    b, kept = home.b, dict(home.ranges)
    low, high = kept[within.axis]
    first, stop = ends(home, within)
    low = b.select(b.icmp_signed("<", low, first), first, low)
    if stop is not None:
        high = b.select(b.icmp_signed("<", stop, high), stop, high)
    home.ranges[within.axis] = low, high
    with b.if_then(b.icmp_signed("<", low, high)):
        run()
    home.ranges = kept


def ends(home: NestEmitter, within: Range) -> tuple[ir.Value, ir.Value | None]:
    """Where a range begins and where it stops; None for the axis' end."""
    first = home.home.index(within.first) if within.first != 0 else number(0)
    return first, None if within.stop is None else home.home.index(within.stop)
