"""Convolution weights that are contiguous over all reduced axes, so that they can be transposed.

w[m,c,u,v] of a dense array:   m*C*U*V + (c*U*V + u*V + v),   one run for each m
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.operands import plain_load
from smelt.types.affine import coefficient
from smelt.types.expr import axes_of


def contiguous_filters(c: NhwcConvPlan) -> Access | None:
    """Return the load of weights that are read tap by tap, if contiguous over taps and `depth`.

    The taps may be in any order.
    """
    if c.prepacked or c.flat or c.unit != c.item.dtype:
        return None
    return contiguous_filter_load(c.left, c.n, c.depth, dict(zip(c.others, c.extents, strict=True)))


def contiguous_filter_load(
    weights: Item, n: str, depth: str, taps: Mapping[str, int]
) -> Access | None:
    """Return the load of weights if those of each position along `n` are one contiguous run.

    All `taps` (axis -> extent) of a position along `depth` in any order, and then those of the next
    one.
    """
    access = plain_load(weights)
    if access is None or access.positions:
        return None
    row = coefficient(access.offset, n)
    if row is None or axes_of(row) or coefficient(access.offset, depth) != prod(taps.values()):
        return None
    steps = [(coefficient(access.offset, a), extent) for a, extent in taps.items() if extent != 1]
    expected = 1
    while steps:
        tap = next((x for x in steps if x[0] == expected), None)
        if tap is None:
            return None
        steps.remove(tap)
        expected *= tap[1]
    return access


__all__ = ["contiguous_filter_load", "contiguous_filters"]
