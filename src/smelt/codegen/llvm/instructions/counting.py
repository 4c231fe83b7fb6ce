"""Emit loop counters, with strength-reduced multiples and addresses.

LLVM's loop strength reduction is off (`smelt.packages.llvm`).  The loops of register tiles, where a
multiplication per iteration would cost, do it themselves:

    k = start_counter(b, low, step, before)     at the head of the loop, entered from `before`
    multiple_of_counter(b, k, factor)           anywhere in it: a multiple of k
    step_address(b, first, k, step, dtype)      an address, advanced by the loop
    row_addresses(b, starts, row_stride, k, step, dtype)   addresses of rows at a known stride
    after = advance_counter(b, k)               at its end
    emit_loop(b, low, high, step, inside)       a loop without such variables

Factors, steps and first addresses must be available before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.types.dtype import DType

Value = ir.Value
ROWS_PER_BASE = 6
"""Rows addressed from one register plus multiples of the row stride."""


class LoopCounter(ir.Phi):
    """A loop counter: first value, step, and the blocks before and at the loop's head.

    `derived` holds the derived induction variables: each value here, and how the next one follows.
    """

    __slots__ = ("before", "body", "derived", "low", "step")
    before: ir.Block
    body: ir.Block
    low: Value
    step: Value
    derived: dict[str, tuple[ir.Phi, Callable[[Value], Value]]]

    def start(self, low: Value, step: Value, before: ir.Block, body: ir.Block) -> None:
        """Begin at `low`, coming from the block `before`."""
        self.add_incoming(low, before)
        self.low, self.step, self.before, self.body = low, step, before, body
        self.derived = {}

    def derive(self, key: str, phi: ir.Phi, following: Callable[[Value], Value]) -> ir.Phi:
        """Add a derived induction variable, and return it."""
        self.derived[key] = phi, following
        return phi


def start_counter(b: ir.IRBuilder, low: Value, step: Value, before: ir.Block) -> LoopCounter:
    """Start a counter in the current block, the loop's head."""
    k = b.phi(I64, LoopCounter)
    k.start(low, step, before, b.block)
    return k


def multiple_of_counter(b: ir.IRBuilder, k: Value, factor: Value) -> Value:
    """Return a multiple of a loop counter, or of any number."""
    if not isinstance(k, LoopCounter):
        return b.mul(k, factor)
    if factor.ref == "1":
        return k
    if factor.ref not in k.derived:
        with b.goto_block(k.before):
            first, step = b.mul(k.low, factor), b.mul(k.step, factor)
        return k.derive(factor.ref, _phi(b, k, first), lambda value: b.add(value, step))
    return k.derived[factor.ref][0]


def step_address(b: ir.IRBuilder, first: Value, k: Value, step: Value, dtype: DType) -> Value:
    """Return the address k steps after `first`, a step being `step` elements of a type.

    It takes one register, where a multiple of the counter takes two.
    """
    kind = memory_type(dtype)
    if not isinstance(k, LoopCounter):
        return b.gep(first, [b.mul(k, step)], source_etype=kind)
    key = f"{first.ref} {step.ref} {kind.text}"
    if key not in k.derived:
        with b.goto_block(k.before):
            begin = b.gep(first, [b.mul(k.low, step)], source_etype=kind)
            increment = b.mul(k.step, step)
        return k.derive(
            key, _phi(b, k, begin), lambda value: b.gep(value, [increment], source_etype=kind)
        )
    return k.derived[key][0]


def row_addresses(
    b: ir.IRBuilder,
    starts: Sequence[Value],
    row_stride: tuple[Value, DType],
    k: Value,
    step: Value,
    dtype: DType,
) -> list[Value]:
    """Return the addresses k steps after the starts of rows, at a uniform row stride.

    A dozen addresses exceed the registers; each one spilled would be reloaded in every iteration.
    `row_stride` is a number of elements and their type.
    """
    size, unit = row_stride[0], memory_type(row_stride[1])
    with b.goto_block(k.before) if isinstance(k, LoopCounter) else nullcontext():
        offsets = [b.mul(size, I64(i)) for i in range(min(ROWS_PER_BASE, len(starts)))]
    addresses: list[Value] = []
    for i in range(0, len(starts), ROWS_PER_BASE):
        first = step_address(b, starts[i], k, step, dtype)
        row_offsets = offsets[1 : len(starts) - i]
        addresses += [first, *(b.gep(first, [x], source_etype=unit) for x in row_offsets)]
    return addresses


def emit_loop(
    b: ir.IRBuilder, low: Value, high: Value, step: int | Value, inside: Callable[[Value], None]
) -> None:
    """for position in range(low, high, step)"""
    step = number(step) if isinstance(step, int) else step
    enters = b.icmp_signed("<", low, high)
    if ir.is_false(enters):
        return
    if ir.is_false(b.icmp_signed("<", b.add(low, step), high)):
        with nullcontext() if ir.is_true(enters) else b.if_then(enters):
            inside(low)
        return
    body, done = b.append_basic_block("loop"), b.append_basic_block("next")
    before = b.block
    b.cbranch(enters, body, done)
    b.position_at_end(body)
    (position := b.phi(I64)).add_incoming(low, before)
    inside(position)
    after = b.add(position, step)
    position.add_incoming(after, b.block)
    b.cbranch(b.icmp_signed("<", after, high), body, done)
    b.position_at_end(done)


def _phi(b: ir.IRBuilder, k: LoopCounter, first: Value) -> ir.Phi:
    with b.goto_block(k.body, first=True):
        phi = b.phi(first.type)
    phi.add_incoming(first, k.before)
    return phi


def advance_counter(b: ir.IRBuilder, k: LoopCounter) -> Value:
    """Advance a counter and its derived variables, at the end of the loop."""
    after = b.add(k, k.step)
    k.add_incoming(after, b.block)
    for phi, following in k.derived.values():
        phi.add_incoming(following(phi), b.block)
    return after
