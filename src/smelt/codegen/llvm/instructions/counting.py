"""What a loop counts, and multiples of it that are counted on beside it.

LLVM is not asked to step addresses (`smelt.llvm`), so the loops of tiles, where a multiplication in
each round would count, do it themselves:

    k = counted(b, low, step, before)   at the head of the loop, which is entered from `before`
    times(b, k, factor)                 anywhere in it: a sum, of which the loop adds the next part
    stepped(b, first, k, step, kind)    the same of addresses
    abreast(b, starts, apart, k, step, kind)    of rows that lie a known way apart
    after = count_on(b, k)              at its end

Factors, steps and first addresses are known before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64

Value = ir.Value
TOGETHER = 6
"""Rows that are addressed from one register and a multiple of what they lie apart."""


class Counted(ir.Phi):
    """A position, with its first value, its step, where the loop is entered from and begins, and
    what is counted beside it: the value here, and how the next one follows."""

    __slots__ = ("before", "beside", "body", "low", "step")
    before: ir.Block
    body: ir.Block
    low: Value
    step: Value
    beside: dict[str, tuple[ir.Phi, Callable[[Value], Value]]]


def counted(b: ir.IRBuilder, low: Value, step: Value, before: ir.Block) -> Counted:
    """The position of a loop whose first block the builder is in."""
    k = b.phi(I64, Counted)
    k.add_incoming(low, before)
    k.low, k.step, k.before, k.body, k.beside = low, step, before, b.block, {}
    return k


def times(b: ir.IRBuilder, k: Value, factor: Value) -> Value:
    """A multiple of a position, or of any number."""
    if not isinstance(k, Counted):
        return b.mul(k, factor)
    if factor.ref == "1":
        return k
    if factor.ref not in k.beside:
        with b.goto_block(k.before):
            first, step = b.mul(k.low, factor), b.mul(k.step, factor)
        k.beside[factor.ref] = _phi(b, k, first), lambda found: b.add(found, step)
    return k.beside[factor.ref][0]


def stepped(b: ir.IRBuilder, first: Value, k: Value, step: Value, kind: ir.Type) -> Value:
    """The address so many steps behind a first one, which is known before the loop, a step being
    elements of a type: it takes one register, where a multiple of the position takes two."""
    if not isinstance(k, Counted):
        return b.gep(first, [b.mul(k, step)], source_etype=kind)
    key = f"{first.ref} {step.ref} {kind.text}"
    if key not in k.beside:
        with b.goto_block(k.before):
            begin = b.gep(first, [b.mul(k.low, step)], source_etype=kind)
            far = b.mul(k.step, step)
        k.beside[key] = _phi(b, k, begin), lambda found: b.gep(found, [far], source_etype=kind)
    return k.beside[key][0]


def abreast(
    b: ir.IRBuilder,
    starts: Sequence[Value],
    apart: tuple[Value, ir.Type],
    k: Value,
    step: Value,
    kind: ir.Type,
) -> list[Value]:
    """The addresses so many steps behind those at which rows begin, each `apart` from the one
    before: so many elements of a type.  A dozen addresses are more than there are registers, and
    each that waits on the stack is loaded in every round, beside what is multiplied."""
    size, unit = apart
    with b.goto_block(k.before) if isinstance(k, Counted) else nullcontext():
        far = [b.mul(size, I64(i)) for i in range(min(TOGETHER, len(starts)))]
    found: list[Value] = []
    for i in range(0, len(starts), TOGETHER):
        first = stepped(b, starts[i], k, step, kind)
        more = far[1 : len(starts) - i]
        found += [first, *(b.gep(first, [x], source_etype=unit) for x in more)]
    return found


def _phi(b: ir.IRBuilder, k: Counted, first: Value) -> ir.Phi:
    with b.goto_block(k.body, first=True):
        phi = b.phi(first.type)
    phi.add_incoming(first, k.before)
    return phi


def count_on(b: ir.IRBuilder, k: Counted) -> Value:
    """The next position, at the end of the loop."""
    after = b.add(k, k.step)
    k.add_incoming(after, b.block)
    for phi, following in k.beside.values():
        phi.add_incoming(following(phi), b.block)
    return after


__all__ = ["Counted", "abreast", "count_on", "counted", "stepped", "times"]
