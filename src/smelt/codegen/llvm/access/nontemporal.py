"""Stores past the caches: results too large for them do not push out what is still needed.

Whole aligned lines are written so, and nothing else; that is known when the loop starts.  Where
results begin within a line, as NumPy's large arrays do, what lies before the next one is written
apart: maps into such arrays take 0.8 of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, prefetch
from smelt.codegen.llvm.access.prefetch import LINE, RUN_AHEAD
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Expr

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
LEAST_TURNS = 8
"""Turns of a loop from which on it may begin at the next line: what is written apart takes one."""
FEW_VECTORS = 4
"""Vectors that go through a loop together unless its operators are one long chain."""


def main_loop(
    home: NestEmitter, low: Value, step: int, walk: Callable[[], None], scope: Scope
) -> None:
    """The loop that `walk` emits, over whole vectors from `low` on; where whole lines are stored
    and it pays, a twin that bypasses the caches."""
    b, stores = home.b, _streamed(home, step)
    if not stores:
        walk()
        return
    misaligned: Value = number(0)
    for address in _addresses(home, stores, low, scope):
        misaligned = b.or_(misaligned, b.and_(address, number(LINE - 1)))
    with b.if_else(b.icmp_signed("==", misaligned, number(0))) as (aligned, otherwise):
        with aligned:
            _past(home, walk)
        with otherwise:
            _claiming(home, walk)


Loop = Callable[[Value, Value], None]
"""Emits a loop from one position to another."""


def align_peel(
    home: NestEmitter,
    reach: tuple[Value, Value],
    step: int,
    loops: tuple[Loop, Callable[[Value, Value, bool], None]],
    scope: Scope,
) -> Value:
    """The same within a reach, by a loop over whole wide vectors, which are `step` long; where it
    ends.  The twin begins with the next line where all stores are as far from it: what lies before
    is left to the second loop, over vectors with or without a mask of their end."""
    b, stores, (low, high), (walk, singly) = home.b, _streamed(home, step), reach, loops

    def whole(start: Value, of: int = step) -> Value:
        return b.add(start, b.and_(b.sub(high, start), number(-of)))

    if not stores or _is_long(home) or not _shifts(home, stores):
        middle = whole(low)
        main_loop(home, low, step, lambda: walk(low, middle), scope)
        return middle
    first, *others = _addresses(home, stores, low, scope)
    size = home.home.dtypes[stores[0].buffer].itemsize
    missing = b.and_(b.sub(number(0), first), number(LINE - 1))
    apart: Value = b.and_(first, number(size - 1))
    for address in others:
        apart = b.or_(apart, b.and_(b.xor(first, address), number(LINE - 1)))
    long = b.icmp_signed(">=", b.sub(high, low), number(LEAST_TURNS * step))
    pays = b.or_(long, b.icmp_signed("==", missing, number(0)))
    together = b.and_(pays, b.icmp_signed("==", apart, number(0)))
    with b.if_else(together) as (yes, no):
        with yes:
            start = b.add(low, b.lshr(missing, number(size.bit_length() - 1)))
            start = b.select(b.icmp_signed("<", start, high), start, high)
            singly(low, start, True)
            middle = whole(start)
            ended = whole(middle, home.s.lanes)
            _past(home, lambda: walk(start, middle))
            _past(home, lambda: singly(middle, ended, False))
            past = b.block
        with no:
            middle = whole(low)
            _claiming(home, lambda: walk(low, middle))
            usual = b.block
    end = b.phi(I64)
    end.add_incoming(ended, past)
    end.add_incoming(middle, usual)
    return end


def _past(home: NestEmitter, walk: Callable[[], None]) -> None:
    home.bypass = True
    walk()
    home.bypass = False


def _is_long(home: NestEmitter) -> bool:
    """Whether a body computes for longer than memory moves: more loops around it cost registers
    (`atan2` and `pow` take 1.1 times as long)."""
    return bool(home.nest.stages) or home.nest.wide > FEW_VECTORS


def _claiming(home: NestEmitter, walk: Callable[[], None]) -> None:
    home.claims = not _is_long(home)
    walk()
    home.claims = False


def prefetch_for_write(home: NestEmitter, address: Value, dtype: DType, lanes: int) -> None:
    """Asks for the lines that a store of so many lanes takes a page later: caches have none of a
    large result, and stores across lines wait for two (softmax of short rows takes 0.8 of the
    time)."""
    for k in range(0, lanes * dtype.itemsize, LINE):
        there = home.b.gep(address, [number(RUN_AHEAD + k)], source_etype=ir.IntType(8))
        prefetch(home.b, there, near=True, written=True)


def _addresses(
    home: NestEmitter, stores: list[Access], low: Value, scope: Scope
) -> Iterator[Value]:
    """Where stores begin, as numbers."""
    b = home.b
    for access in stores:
        base, dtype = home.home.buffers[access.buffer], home.home.dtypes[access.buffer]
        first = b.add(scope.offset(access), low)
        yield b.ptrtoint(element_address(b, base, first, dtype), I64)


def _shifts(home: NestEmitter, stores: list[Access]) -> bool:
    """Whether the loop may begin anywhere: wherever its vectors do, their lanes read whole vectors,
    tell where they are by one number and are rounded alike; and results that lie equally far from
    a line's beginning stay so, being of one size."""
    axis = home.nest.vector or ""
    sizes = {home.home.dtypes[a.buffer].itemsize for a in stores}
    steps = [
        None if home.vector_position(a.offset) else coefficient(a.offset, axis)
        for a in home.accesses
    ]
    asked = [i.payload for i in home.items if i.kind == "index" and isinstance(i.payload, Expr)]
    asked += [e for a in home.accesses for e, _ in a.limits]
    plain = all(isinstance(step, int) and 0 <= step <= 1 for step in steps)
    plain &= all(coefficient(e, axis) is not None for e in asked)
    return plain and len(sizes) == 1 and all(i.kind != "scan" for i in home.items)


def _streamed(home: NestEmitter, step: int) -> list[Access]:
    """Accesses of stores that write whole cache lines here, if this variant bypasses caches."""
    found = [s.access for s in home.nest.stores if s.where is None]
    whole = all(
        step * home.home.dtypes[a.buffer].itemsize % LINE == 0
        and home.step(a, home.nest.vector or "") == 1
        for a in found
    )
    return found if home.home.streaming and whole and not home.nest.folds else []


__all__ = ["align_peel", "main_loop", "prefetch_for_write"]
