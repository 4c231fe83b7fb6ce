"""Scratch memory that is multiplied in vain begins as zeros.

Register tiles reach beyond the last row or column of packed operands, and between the lines of
images; the sums of what lies there are never read.  What lies there was left by another kernel:
tables of small integers, and other numbers of its own, are subnormal as floating-point numbers,
with which processors take a hundred times as long.  So a kernel whose scratch is laid out otherwise
than that of the one before, in the same thread, clears its operands first.  The first word of
scratch says how it is laid out; a kernel that does not keep it writes something else there, or has
no scratch.  Where all that is multiplied in vain are lanes of one panel, these are cleared instead,
in every block (`clear_beyond`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, intrinsic, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, IndexEmitter, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.schedule.contract import Tile
from smelt.codegen.llvm.scratch.workspace import Storage
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
BIT, BYTE = ir.IntType(1), ir.IntType(8)
ODD = 0x9E3779B97F4A7C15
"""A multiplier that mixes all bits of a word (D. Knuth, TAOCP 6.4, the golden ratio's)."""


def clear_beyond(
    home: NestEmitter,
    panels: tuple[Value, DType],
    tile: Tile,
    columns: Value,
    units: Value,
    lines: Value,
) -> None:
    """Emits that the lanes without a column are cleared of the last one of `panels`, which are as
    wide as a tile and have so many units and `lines`: less than all of what may have been left."""
    b, (base, dtype) = home.b, panels
    m = LLVMMachine(b, tile.lanes, home.home.target)
    last = b.and_(columns, number(tile.columns - 1))
    start, begin = b.and_(last, number(-tile.lanes)), b.mul(b.sub(columns, last), units)

    def line(k: Value) -> None:
        row = b.add(begin, b.mul(k, number(tile.columns)))

        def put(at: Value) -> None:
            place = element_address(b, base, b.add(row, at), dtype)
            store_vector(m, place, m.const(dtype, 0), dtype, None)

        home.loop(start, number(tile.columns), tile.lanes, put)

    with b.if_then(b.icmp_signed("!=", last, number(0))):
        home.loop(number(0), lines, 1, line)


def clear(
    b: ir.IRBuilder, storage: Storage, scratch: Value, entry: IndexEmitter, sizes: Iterable[Value]
) -> None:
    """Emits that operands are cleared, if the last kernel of this thread had another layout; the
    layout follows from the storage and a call's sizes."""
    if not storage.operands:
        return
    layout = _layout(b, storage, sizes)
    places = [(storage.at[key], entry.emit(nbytes)) for key, nbytes in storage.operands.items()]
    other = b.icmp_signed("!=", b.load(scratch, typ=I64), layout)
    with b.if_then(other):
        b.store(layout, scratch)
        for at, nbytes in places:
            intrinsic(b, "llvm.memset.p0.i64", ir.VoidType(), [at, BYTE(0), nbytes, BIT(0)])


def _layout(b: ir.IRBuilder, storage: Storage, sizes: Iterable[Value]) -> Value:
    """A word for where everything lies and of what type it is."""
    arrays = [
        (part, str(offset), dtype.name) for (_, part), (offset, dtype) in storage.arrays.items()
    ]
    digest = hashlib.sha256(repr(arrays).encode()).digest()
    word: Value = number(int.from_bytes(digest[:8], "little", signed=True))
    for size in sizes:
        word = b.mul(b.xor(word, size), number(ODD - (1 << 64)))
    return word
