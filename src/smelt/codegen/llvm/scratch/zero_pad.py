"""Clear scratch which register tiles read past the packed operands.

Tiles reach past the last row or column of packed operands, and between the rows of images; the sums
of what is stored there are never used.  But it was left by another kernel: tables of small
integers, for instance, are subnormal as floating-point numbers, which processors multiply a hundred
times slower.  So a kernel whose scratch layout differs from that of the previous kernel in the same
thread clears its operands first.  The first word of scratch identifies the layout; a kernel without
such operands writes something else there, or has no scratch.  Where only lanes of one panel are
concerned, these are cleared in every block instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import intrinsic
from smelt.codegen.llvm.instructions.indexing import I64, IndexEmitter, number
from smelt.codegen.llvm.nests.storage import Storage

Value = ir.Value
BIT, BYTE = ir.IntType(1), ir.IntType(8)
MIX_MULTIPLIER = 0x9E3779B97F4A7C15
"""Multiplier which mixes all bits of a word (D. Knuth, TAOCP 6.4, golden ratio)."""


def zero_operands(
    b: ir.IRBuilder, storage: Storage, scratch: Value, entry: IndexEmitter, sizes: Iterable[Value]
) -> None:
    """Emit clearing of the operands, if the thread's last kernel had another layout.

    The layout is identified by the storage and a call's sizes.
    """
    if not storage.operands:
        return
    layout = _layout(b, storage, sizes)
    places = [(storage.at[key], entry.emit(nbytes)) for key, nbytes in storage.operands.items()]
    is_other = b.icmp_signed("!=", b.load(scratch, typ=I64), layout)
    with b.if_then(is_other):
        b.store(layout, scratch)
        for at, nbytes in places:
            intrinsic(b, "llvm.memset.p0.i64", ir.VoidType(), [at, BYTE(0), nbytes, BIT(0)])


def _layout(b: ir.IRBuilder, storage: Storage, sizes: Iterable[Value]) -> Value:
    """Return a word which identifies the offsets and types of all arrays."""
    arrays = [
        (part, str(offset), dtype.name) for (_, part), (offset, dtype) in storage.arrays.items()
    ]
    digest = hashlib.sha256(repr(arrays).encode()).digest()
    word: Value = number(int.from_bytes(digest[:8], "little", signed=True))
    for size in sizes:
        word = b.mul(b.xor(word, size), number(MIX_MULTIPLIER - (1 << 64)))
    return word
