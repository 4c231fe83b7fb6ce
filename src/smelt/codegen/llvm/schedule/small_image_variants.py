"""Variants of convolutions for small images, where padding is a large part of all columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.codegen.llvm.loopir.items import Phase
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan, batch_axes
from smelt.kernel.artifact import SizeLimits, Variant

MAX_NARROW_ROW = 64
"""Longest row (columns) that is packed once for each tap of the windows along it."""
MAX_TINY_IMAGE = 10
"""Most rows, and columns of each, of images for which what every tap reads is packed separately.

Images that share weights are packed together then: one alone does not fill vectors.
"""
MIN_VARIANT_ROWS = 32
"""Rows of a convolution (output channels) from which packing an operand repeatedly costs little."""


def small_image_variants(
    phase: Phase, products: Iterable[object]
) -> Iterator[tuple[Variant, SizeLimits]]:
    """Yield the variants in which what each tap of a row reads is packed separately.

    There are no padding columns between rows then.
    """
    slid = [c for c in products if isinstance(c, ConvPlan)]
    few = any(_has_few_rows(c, phase) for c in slid)
    if few or not any(k.tap for c in slid for k in c.columns):
        return
    sides = dict.fromkeys(phase.axes[k.axis] for k in slid[0].columns)
    batched = all(batch_axes(c.item, c.left, c.columns, phase) for c in slid)
    batched &= len(slid[0].columns) == 2
    if batched and not any(isinstance(n, int) and n > MAX_TINY_IMAGE for n in sides):
        yield "tiny", tuple((n, MAX_TINY_IMAGE) for n in sides)
    line = phase.axes[slid[0].n]
    if not isinstance(line, int) or line <= MAX_NARROW_ROW:
        yield "narrow", ((line, MAX_NARROW_ROW),)


def _has_few_rows(c: ConvPlan, phase: Phase) -> bool:
    """Return whether few rows meet each packed element: by number, or in groups."""
    rows = phase.axes[c.m]
    groups = c.left.axes & c.right.axes & c.item.axes
    return bool(groups) or (isinstance(rows, int) and rows < MIN_VARIANT_ROWS)


__all__ = ["MAX_NARROW_ROW", "MAX_TINY_IMAGE", "small_image_variants"]
