"""What lies far apart for the lanes of a vector, read once for all rows that have the same of it.

Scales and zero points of groups of a weight, and numbers that are packed several to a byte along
the sum, are the same elements for several positions of it.  Where vectors run across the sum their
lanes are gathered, which takes as long as twenty other instructions; so what was gathered stays,
and is gathered anew only where it lies elsewhere:

    s[j,k//128]    lanes along j, row after row k: gathered once for 128 rows

All lanes are a known way apart, so that two vectors are the same where their first lanes are.

    home.held = hold(home, k)               # before a loop over k, whatever is inside of it
    read_held(home, item, scope, m, read)   # inside
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, is_repeated, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.dataclass import dataclass
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
NOWHERE = -(1 << 62)
"""An offset that no element has."""


@dataclass(frozen=True, slots=True)
class Held:
    """Vectors of one load, by their number of lanes: where they are kept, and their offsets."""

    vectors: Mapping[int, tuple[Value, Value]]
    low: Value | None
    """The position of the first of several; None where there is one."""


def hold(home: NestEmitter, row: str, side: int = 0) -> dict[Item, Held]:
    """The loads of a nest whose vectors several rows share, of which there are several side by side
    in a square of a `side`; nothing of them is known yet."""
    b, found, lanes, v = home.b, dict[Item, Held](), home.s.lanes, home.nest.vector or ""
    many = {n: max(side // n, 1) for n in {lanes, lanes * home.nest.wide}}
    for item in home.items:
        if item in home.nest.turned or not _is_shared(home, item, row):
            continue
        vectors = dict[int, tuple[Value, Value]]()
        for count, places in sorted(many.items()):
            kind = LLVMMachine(b, count, home.home.target).register_type(item.dtype)
            with b.goto_entry_block():
                place, offset = (b.alloca(t, size=number(places)) for t in (kind, I64))
            vectors[count] = place, offset
            for k in range(places):
                b.store(I64(NOWHERE), _nth(b, offset, number(k), I64))
        found[item] = Held(vectors, home.ranges[v][0] if side else None)
    return found


def _is_shared(home: NestEmitter, item: Item, row: str) -> bool:
    """Whether lanes of a load lie apart, and neighbours among rows have the same ones."""
    access, v = item.payload, home.nest.vector
    if not isinstance(access, Access) or item.kind != "load" or v is None:
        return False
    dtype = home.home.dtypes[access.buffer]
    return (
        not access.limits
        and _is_whole(dtype, item.dtype)
        and v in item.axes
        and is_repeated(access.offset, row)
        and home.step(access, v) not in (None, 0, 1)
    )


def _is_whole(stored: DType, dtype: DType) -> bool:
    """Whether elements are in registers as they are in memory."""
    return stored == dtype == dtype.compute and dtype.kind != "bool"


def read_held(
    home: NestEmitter, item: Item, scope: Scope, m: LLVMMachine, read: Callable[[], Value]
) -> Value:
    """A vector of such a load, which is read unless it is there."""
    b, access, lanes = home.b, item.payload, scope.lanes
    assert isinstance(access, Access)
    assert lanes is not None
    if lanes.mask is not None or lanes.count not in home.held[item].vectors:
        return read()
    held, kind = home.held[item], m.register_type(item.dtype)
    place, offset = held.vectors[lanes.count]
    if held.low is not None:
        nth = b.udiv(b.sub(lanes.base, held.low), number(lanes.count))
        place, offset = _nth(b, place, nth, kind), _nth(b, offset, nth, I64)
    now = scope.offset(access)
    with b.if_then(b.icmp_signed("!=", now, b.load(offset, typ=I64))):
        b.store(read(), place)
        b.store(now, offset)
    return b.load(place, typ=kind)


def _nth(b: ir.IRBuilder, first: Value, nth: Value, kind: ir.Type) -> Value:
    return b.gep(first, [nth], source_etype=kind)


__all__ = ["Held", "hold", "read_held"]
