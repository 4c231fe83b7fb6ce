"""What a loop counts, and multiples of it that are counted on beside it.

LLVM is not asked to step addresses (`smelt.llvm`), so the loops of tiles, where a multiplication in
each round would count, do it themselves:

    k = counted(b, low, step, before)   at the head of the loop, which is entered from `before`
    times(b, k, factor)                 anywhere in it: a sum, of which the loop adds the next part
    after = count_on(b, k)              at its end

A factor is known before the loop.
"""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64

Value = ir.Value


class Counted(ir.Phi):
    """A position, with its first value, its step, where the loop is entered from and begins, and
    by factors its multiples with their steps."""

    __slots__ = ("before", "body", "low", "multiples", "step")
    before: ir.Block
    body: ir.Block
    low: Value
    step: Value
    multiples: dict[str, tuple[ir.Phi, Value]]


def counted(b: ir.IRBuilder, low: Value, step: Value, before: ir.Block) -> Counted:
    """The position of a loop whose first block the builder is in."""
    k = b.phi(I64, Counted)
    k.add_incoming(low, before)
    k.low, k.step, k.before, k.body, k.multiples = low, step, before, b.block, {}
    return k


def times(b: ir.IRBuilder, k: Value, factor: Value) -> Value:
    """A multiple of a position, or of any number."""
    if not isinstance(k, Counted):
        return b.mul(k, factor)
    if factor.ref == "1":
        return k
    found = k.multiples.get(factor.ref)
    if found is None:
        with b.goto_block(k.before):
            first, step = b.mul(k.low, factor), b.mul(k.step, factor)
        with b.goto_block(k.body, first=True):
            phi = b.phi(I64)
        phi.add_incoming(first, k.before)
        found = k.multiples[factor.ref] = phi, step
    return found[0]


def count_on(b: ir.IRBuilder, k: Counted) -> Value:
    """The next position, at the end of the loop."""
    after = b.add(k, k.step)
    k.add_incoming(after, b.block)
    for phi, step in k.multiples.values():
        phi.add_incoming(b.add(phi, step), b.block)
    return after


__all__ = ["Counted", "count_on", "counted", "times"]
