"""Constant-fold selections whose condition is known at given positions.

A concatenation is a selection for each part; an unrolled column is in one of them:

    y[n,j] = select(j < 1, a[n], select(j < 2, b[n], c[n]))    at j = 1:    y[n,1] = b[n]
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.loopir.items import Apply, Item
from smelt.ops.combine import CHOICE
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import bool_
from smelt.types.expr import Index, substitute


def selected_side(item: Item, at: Mapping[str, Index]) -> Item:
    """Return what a value is at some positions: itself, or the selected side."""
    while isinstance(item, Apply) and item.op == CHOICE:
        condition, *sides = item.args
        holds = _truth(condition, at)
        if holds is None:
            break
        item = sides[0] if holds else sides[1]
    return item


def _truth(item: Item, at: Mapping[str, Index]) -> bool | None:
    """Return whether a comparison of positions, or a combination, holds; None if unknown."""
    gap = gap_of(item)
    if gap is not None:
        value = substitute(gap, at)
        return value >= 0 if isinstance(value, int) else None
    if not isinstance(item, Apply):
        return None
    if any(a.dtype != bool_ for a in item.args):
        return None
    parts = [_truth(a, at) for a in item.args]
    if None in parts:
        return None
    return bool(SCALARS[item.op].numpy(*map(np.bool_, parts)))
