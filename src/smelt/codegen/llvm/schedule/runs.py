"""Weights of which a product over windows packs squares: all that is summed lies as one run.

w[m,c,u,v] of a dense array:   m*C*U*V + (c*U*V + u*V + v),   a run for each m
"""

from __future__ import annotations

from smelt.codegen.llvm.schedule.operands import load_of
from smelt.codegen.llvm.schedule.upright import Upright
from smelt.codegen.llvm.values.items import Access
from smelt.types.affine import coefficient
from smelt.types.expr import axes_of


def lies_in_runs(c: Upright) -> Access | None:
    """The load of weights that tiles read tap by tap, if all taps of a position along `depth` lie
    side by side, in whatever order, and so do these positions."""
    access = load_of(c.left)
    if access is None or access.positions or c.panels or c.flat or c.unit != c.item.dtype:
        return None
    row = coefficient(access.offset, c.n)
    if row is None or axes_of(row) or coefficient(access.offset, c.depth) != c.taps:
        return None
    steps = [(coefficient(access.offset, a), n)
             for a, n in zip(c.others, c.extents, strict=True) if n != 1]  # fmt: skip
    expected = 1
    while steps:
        found = next((x for x in steps if x[0] == expected), None)
        if found is None:
            return None
        steps.remove(found)
        expected *= found[1]
    return access


__all__ = ["lies_in_runs"]
