"""Factors of a product by twos: neighbours along a summed axis as one number of 32 bits.

Instructions that multiply pairs of short numbers want them side by side.  Where a product's
operands are packed place by place, and windows slide over them, the summed axis becomes one of
pairs before anything else is decided; what is packed then are numbers like others:

    sum over c of a[m,c] * b[c,n]    is    sum over c.2 of the dot products of
                                           unit(a[m, c.2*2], a[m, c.2*2 + 1]) and
                                           unit(b[c.2*2, n], b[c.2*2 + 1, n])

Where a pair lies in memory as it is, its unit is a plain load: a second name of the array, `alias`,
says that its elements are units.  What is beyond an odd number of positions counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm.loopir.clone import Cloner, put_before
from smelt.codegen.llvm.loopir.input_tile import fresh
from smelt.codegen.llvm.loopir.items import Access, Converting, Item, Phase
from smelt.types.dtype import DType, i32, i64
from smelt.types.expr import add, axis, floordiv, mod, mul, sub


def united(
    phase: Phase, user: Item, operands: tuple[Item, Item], name: str, short: DType
) -> tuple[tuple[Item, Item], str]:
    """Both operands of a product by twos along an axis of theirs, rounded to a `short` type if they
    were not, and the axis of their units."""
    (first, second), along = units_of(phase, user, operands, name, short)
    return (first, second), along


def units_of(
    phase: Phase, user: Item, operands: Sequence[Item], name: str, short: DType
) -> tuple[list[Item], str]:
    """The same of any operands."""
    along = fresh(phase, f"{name}.2", floordiv(add(phase.axes[name], 1), 2))
    return _united(phase, user, operands, (name, along), short), along


def _united(
    phase: Phase, user: Item, operands: Sequence[Item], names: tuple[str, str], short: DType
) -> list[Item]:
    (name, along), extent = names, phase.axes[names[0]]
    at = mul(2, axis(along, phase.axes[along]))
    ends = {} if mod(extent, 2) == 0 else {name: (add(at, 1), extent)}
    found: list[Item] = []
    for x in operands:
        pair = [
            Cloner(phase, user, {name: at}).of(x),
            Cloner(phase, user, {name: add(at, 1)}, ends).of(x),
        ]
        unit = _lying(phase, user, pair, short)
        if unit is None:
            pair = [_rounded(phase, user, y, short) for y in pair]
            if ends and x.kind != "load":  # what is computed of nothing may be any number
                pair += [put_before(phase, user, "index", e, (), i64) for e in ends[name]]
                pair[2].axes = frozenset({along})
            unit = put_before(phase, user, "unit", 0, tuple(pair), i32)
        found.append(unit)
    return found


def _rounded(phase: Phase, user: Item, x: Item, short: DType) -> Item:
    """A number as one of the short type, which loads and conversions give."""
    payload = x.payload
    if isinstance(payload, Access) or (isinstance(payload, Converting) and payload.dtype == short):
        return x
    return put_before(phase, user, "cast", Converting(short), (x,), x.dtype)


def _lying(phase: Phase, user: Item, pair: list[Item], short: DType) -> Item | None:
    """The load of a unit that lies in memory as it is."""
    one, other = (x.payload for x in pair)
    if not isinstance(one, Access) or not isinstance(other, Access) or one.positions:
        return None
    side_by_side = sub(other.offset, one.offset) == 1 and mod(one.offset, 2) == 0
    if not side_by_side or one.limits != other.limits or phase.dtypes[one.buffer] != short:
        return None
    name = f"{one.buffer}.units"
    phase.aliases[name] = one.buffer
    phase.dtypes[name] = i32
    access = Access(name, floordiv(one.offset, 2), one.limits)
    unit = put_before(phase, user, "load", access, (), i32)
    unit.axes = pair[0].axes
    return unit


def lying_pair(unit: Item) -> tuple[Access, Access] | None:
    """The loads of a unit's numbers, if they lie side by side in memory."""
    if unit.kind != "unit" or len(unit.args) != 2:
        return None
    first, second = (x.payload for x in unit.args)
    if not isinstance(first, Access) or not isinstance(second, Access) or first.positions:
        return None
    return (first, second) if sub(second.offset, first.offset) == 1 else None


__all__ = ["lying_pair", "united", "units_of"]
