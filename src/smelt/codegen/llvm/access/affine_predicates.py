"""Comparisons of positions as affine predicates: a gap that is >= 0 exactly where they hold.

    j <= i   <=>   i - j >= 0         i - j < 256   <=>   255 - i + j >= 0

Along a vector such a gap grows or falls by 1 from lane to lane, so that one number says from or up
to which lane it holds: this number is compared with the lane numbers, which are short, instead of
comparing two vectors of 64-bit positions (strength reduction).
"""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.loopir.items import Apply, Const, IndexValue, Item
from smelt.kernel.bounds import COMPARISONS
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import i64
from smelt.types.expr import Index, add, mul, sub

Value = ir.Value
FAR = 1 << 40
"""Largest constant: sums of it and of positions never overflow 64 bits."""
I32 = ir.IntType(32)


def gap_of(item: Item) -> Index | None:
    """Return the gap of a comparison of positions: what is >= 0 exactly where it holds."""
    if not isinstance(item, Apply) or item.op not in COMPARISONS or len(item.args) != 2:
        return None
    left, right = map(_affine_index, item.args)
    if left is None or right is None:
        return None
    sign, shift = COMPARISONS[item.op]
    return add(mul(sub(left, right), sign), shift)


def _affine_index(item: Item) -> Index | None:
    """Convert an integer item to an affine index expression of positions.

    None if it is not affine.
    """
    if item.dtype != i64:
        return None
    if isinstance(item, Const) and isinstance(item.value, int):
        return item.value if abs(item.value) <= FAR else None
    if isinstance(item, IndexValue):
        return item.index
    if not isinstance(item, Apply) or not SCALARS[item.op].linear:
        return None
    total: Index = 0
    for a, k in zip(item.args, SCALARS[item.op].linear, strict=True):
        part = _affine_index(a)
        if part is None:
            return None
        total = add(total, mul(part, k))
    return total
