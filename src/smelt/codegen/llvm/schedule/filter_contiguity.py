"""Weights of which a product over windows packs squares: all that is summed lies as one run.

w[m,c,u,v] of a dense array:   m*C*U*V + (c*U*V + u*V + v),   a run for each m
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.operands import load_of
from smelt.types.affine import coefficient
from smelt.types.expr import axes_of


def lies_in_runs(c: NhwcConvPlan) -> Access | None:
    """The load of weights that tiles read tap by tap, if all taps of a position along `depth` lie
    side by side, in whatever order, and so do these positions."""
    if c.panels or c.flat or c.unit != c.item.dtype:
        return None
    return run_of(c.left, c.n, c.depth, dict(zip(c.others, c.extents, strict=True)))


def run_of(weights: Item, n: str, depth: str, taps: Mapping[str, int]) -> Access | None:
    """The load of weights, if those of a position along `n` lie as one run: all `taps`, of known
    extents, of a position along `depth`, and then those of the next one."""
    access = load_of(weights)
    if access is None or access.positions:
        return None
    row = coefficient(access.offset, n)
    if row is None or axes_of(row) or coefficient(access.offset, depth) != prod(taps.values()):
        return None
    steps = [(coefficient(access.offset, a), extent) for a, extent in taps.items() if extent != 1]
    expected = 1
    while steps:
        found = next((x for x in steps if x[0] == expected), None)
        if found is None:
            return None
        steps.remove(found)
        expected *= found[1]
    return access


__all__ = ["lies_in_runs", "run_of"]
