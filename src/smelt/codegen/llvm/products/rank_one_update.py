"""Emit one position of a register tile: a rank-one update of its sums.

    sums[i, v] += left[i] * right[v]        broadcasts of the left operand, vectors of the right one

Every microkernel is a loop over such updates; they differ in where operands are, in what they
prefetch and in where sums go (F. Van Zee and R. van de Geijn, "BLIS: A Framework for Rapidly
Instantiating BLAS Functionality", 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.dot_product import BF16_DOT, DotInstruction, dot_step
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Item, KPair

__all__ = ["MultiplyAdd", "fma_step", "multiply_add", "rank_one_update"]

Value = ir.Value
MultiplyAdd = Callable[[Value, Value, Value], Value]
"""Returns a*b + c of three vectors."""


def rank_one_update(
    step: MultiplyAdd, left: Iterable[Value], right: Sequence[Value], sums: Sequence[Value]
) -> list[Value]:
    """Return a tile's sums, row by row, with the products of one position.

    `left` yields a broadcast for each row.  A generator emits it just before its use, which keeps
    registers free.
    """
    vectors = len(right)
    return [
        step(value, x, sums[i * vectors + v])
        for i, value in enumerate(left)
        for v, x in enumerate(right)
    ]


def multiply_add(m: LLVMMachine, item: Item, group: DotInstruction | None = None) -> MultiplyAdd:
    """Return how a contraction multiplies and adds: by a dot-product instruction if in groups."""
    if group is not None:
        return lambda a, b, c: dot_step(m, group, a, b, c)
    return lambda a, b, c: fma_step(m, a, b, c, item)


def fma_step(m: LLVMMachine, a: Value, b: Value, c: Value, item: Item) -> Value:
    """Return a*b + c, fused if the processor can (software would cost a call).

    With units, add the dot product of the units `a` and `b` to c.
    """
    if isinstance(item.args[0], KPair) or item.args[0].dtype != item.dtype:
        return dot_step(m, BF16_DOT, a, b, c)
    if item.dtype.is_float and m.target.has_fma:
        return m.fma(a, b, c)
    return m.add(m.mul(a, b), c)
