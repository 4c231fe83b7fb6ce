"""Pack neighbours along a reduced axis in pairs, for dot-product instructions.

Instructions that multiply pairs of short numbers (bf16, int16) want them in one 32-bit lane.  If
the operands of a convolution are packed by position, the reduced axis becomes one of pairs before
anything else is decided; packed pairs then are elements like others:

    sum over c of a[m,c] * b[c,n]    is    sum over c.2 of the dot products of
                                           unit(a[m, c.2*2], a[m, c.2*2 + 1]) and
                                           unit(b[c.2*2, n], b[c.2*2 + 1, n])

A pair that is contiguous and aligned in memory is a plain load through a second name of the array
(an alias with 32-bit elements).  An odd last position is paired with 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Access, Item, fixed_loads
from smelt.codegen.llvm.loopir.rewrite import Cloner, Draft, insert_before
from smelt.types.dtype import DType, i32, i64
from smelt.types.expr import add, axis, floordiv, mod, mul, sub


def pack_operand_pair(
    draft: Draft, user: Item, operands: tuple[Item, Item], name: str, short: DType
) -> tuple[tuple[Item, Item], str]:
    """Pack both operands of a contraction in pairs along the reduced axis `name`.

    Returns them with the axis of pairs.  They are rounded to the `short` type if they were not.
    """
    (first, second), along = pack_pairs(draft, user, operands, name, short)
    return (first, second), along


def pack_pairs(
    draft: Draft, user: Item, operands: Sequence[Item], name: str, short: DType
) -> tuple[list[Item], str]:
    """Pack operands in pairs along an axis, and return the axis of pairs."""
    along = draft.add_axis(f"{name}.2", floordiv(add(draft.axes[name], 1), 2))
    return _pack(draft, user, operands, (name, along), short), along


def _pack(
    draft: Draft, user: Item, operands: Sequence[Item], names: tuple[str, str], short: DType
) -> list[Item]:
    """Pack operands in pairs; `names` are the axis and the axis of pairs."""
    (name, along), extent = names, draft.axes[names[0]]
    at = mul(2, axis(along, draft.axes[along]))
    ends = {} if mod(extent, 2) == 0 else {name: (add(at, 1), extent)}
    units: list[Item] = []
    for x in operands:
        pair = [
            Cloner(draft, user, {name: at}).of(x),
            Cloner(draft, user, {name: add(at, 1)}, ends).of(x),
        ]
        unit = _load_pair(draft, user, pair, short)
        if unit is None:
            pair = [_round(draft, user, y, short) for y in pair]
            if ends and not isinstance(
                x, ssa.Load
            ):  # a value computed out of bounds may be anything
                end, stop = ends[name]
                for axes, e in ((frozenset({along}), end), (frozenset[str](), stop)):
                    pair.append(insert_before(draft, user, ssa.IndexValue((), axes, i64, e)))
            unit = insert_before(draft, user, ssa.KPair(tuple(pair), ssa.union_of_axes(pair), i32))
        units.append(unit)
    return units


def _round(draft: Draft, user: Item, x: Item, short: DType) -> Item:
    """Round an operand to the `short` type, by a cast inserted before its user.

    Loads and conversions to that type stay as they are.
    """
    if isinstance(x, ssa.Load) or (isinstance(x, ssa.Cast) and x.to == short):
        return x
    return insert_before(draft, user, ssa.Cast((x,), x.axes, x.dtype, short))


def _load_pair(draft: Draft, user: Item, pair: list[Item], short: DType) -> Item | None:
    """Return a load of a pair that is contiguous and aligned in memory, or None."""
    accesses = fixed_loads(pair)
    if accesses is None:
        return None
    first, second = accesses
    side_by_side = sub(second.offset, first.offset) == 1 and mod(first.offset, 2) == 0
    if (
        not side_by_side
        or first.limits != second.limits
        or draft.phase.dtypes[first.buffer] != short
    ):
        return None
    name = f"{first.buffer}.units"
    draft.alias(name, first.buffer, i32)
    access = Access(name, floordiv(first.offset, 2), first.limits)
    return insert_before(draft, user, ssa.Load((), pair[0].axes, i32, access))
