"""The forms of products over windows for short lines: margins between these are a large part of all
columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.codegen.llvm.loopir.items import Phase
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan, beside
from smelt.kernel.artifact import Form, Limits

NARROW = 64
"""Columns of a line for which it is packed once for each tap of the windows along it."""
TINY = 10
"""Lines, and columns of each, for which what every tap reads is packed by itself, and images that
share weights are packed together: one alone is no whole number of vectors."""
MANY = 32
"""Rows of a product from which packing an operand more than once costs little."""


def line_forms(phase: Phase, products: Iterable[object]) -> Iterator[tuple[Form, Limits]]:
    """The forms for short lines, where margins between them are a large part of all columns: what
    each tap of a line reads is packed by itself, so that there are no margins."""
    slid = [c for c in products if isinstance(c, ConvPlan)]
    few = any(_has_few_rows(c, phase) for c in slid)
    if few or not any(k.tap for c in slid for k in c.columns):
        return
    sides = dict.fromkeys(phase.axes[k.axis] for k in slid[0].columns)
    batched = all(beside(c.item, c.left, c.columns, phase) for c in slid)
    batched &= len(slid[0].columns) == 2
    if batched and not any(isinstance(n, int) and n > TINY for n in sides):
        yield "tiny", tuple((n, TINY) for n in sides)
    line = phase.axes[slid[0].n]
    if not isinstance(line, int) or line <= NARROW:
        yield "narrow", ((line, NARROW),)


def _has_few_rows(c: ConvPlan, phase: Phase) -> bool:
    """Whether a packed element meets few rows: by number, or since groups have their own."""
    rows = phase.axes[c.m]
    groups = c.left.axes & c.right.axes & c.item.axes
    return bool(groups) or (isinstance(rows, int) and rows < MANY)


__all__ = ["NARROW", "TINY", "line_forms"]
