"""Poll in loops of long tasks whether their run was given up.

A loop becomes two, and the question stands between the strips:

    for strip in range(low, high, POLL_ELEMENTS / elements of a step):
        if strip > low and poll(): return
        for position in range(strip, min(strip + .., high), step): ..

Chunks of many tasks need none: the thread pool asks between them. So streams over single positions
(recurrences) have such loops, and what is computed in at most `PARTS` tasks whatever the sizes are,
as the parts of a reduction to one number. Streams over blocks have none: a call costs them vector
registers in every block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Final

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.loopir.items import Region, enclosing_regions
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.kernel.abi import POLL_SYMBOL
from smelt.machine.blocks import PARTS

Value = ir.Value
POLL_ELEMENTS: Final = 1 << 18
"""Elements between two polls: a few milliseconds, against which a poll takes no time."""
_PTR: Final = ir.PointerType()
_POLL: Final = ir.FunctionType(ir.IntType(32), [_PTR])


def stream_loop(
    env: Environment,
    region: Region,
    bounds: tuple[Value, Value],
    step: Value,
    inside: Callable[[Value], None],
) -> None:
    """Emit the loop over an outermost stream's blocks, polled where they are single positions."""
    visit = region.visits[0]
    nests = [n for n in env.s.nests if region in enclosing_regions(env.s.phase.segments[n.time])]
    extents = [_axes(env.s, n) - {visit.axis} for n in nests]
    if visit.size == 1:
        _poll(env, visit.axis, extents, bounds, step, inside)
    else:
        env.loop(*bounds, step, inside)


def is_polled(s: Schedule, nest: Nest) -> bool:
    """Return whether a nest may take long in one task: these grow with the sizes, not in number."""
    counts = [n for g in s.phase.grid if isinstance(n := s.phase.axes[g], int)]
    few = len(counts) == len(s.phase.grid) and prod(counts) <= PARTS
    if s.phase.segments[nest.time] is not None or not few:
        return False
    return _elements(s, _axes(s, nest)) >= POLL_ELEMENTS


def _elements(s: Schedule, axes: Iterable[str]) -> int:
    """Return how many positions some axes have in a task: if that is unknown, many."""
    fixed = [n for a in axes if isinstance(n := s.local.get(a), int)]
    return prod(fixed) if len(fixed) == len([*axes]) else POLL_ELEMENTS


def _axes(s: Schedule, nest: Nest) -> set[str]:
    """Return the axes over which a task's steps of a nest extend."""
    axes = set(nest.order)
    if nest.product is not None:
        axes |= {*nest.product.item.axes, nest.product.k}
    for region in enclosing_regions(s.phase.segments[nest.time]):
        axes |= {v.axis for v in region.visits}
    return axes & set(s.local)


def _poll(
    env: Environment,
    axis: str,
    steps: Iterable[set[str]],
    bounds: tuple[Value, Value],
    step: Value,
    inside: Callable[[Value], None],
) -> None:
    b, (low, high) = env.b, bounds
    elements = number(0)
    total = 0
    for axes in sorted({tuple(sorted(a)) for a in steps}):
        total += _elements(env.s, (*axes, axis))
        each = number(1)
        for a in axes:
            each = b.mul(each, b.sub(env.ranges[a][1], env.ranges[a][0]))
        elements = b.add(elements, each)
    if total < POLL_ELEMENTS:
        env.loop(low, high, step, inside)
        return
    some = b.udiv(number(POLL_ELEMENTS), b.add(b.mul(elements, step), number(1)))
    strip = b.mul(step, b.select(b.icmp_signed(">", some, number(1)), some, number(1)))

    def run_strip(start: Value) -> None:
        with b.if_then(b.icmp_signed(">", start, low), likely=False):
            leave_if_given_up(b, env.frame.done)
        end = b.add(start, strip)
        env.loop(start, b.select(b.icmp_signed("<", end, high), end, high), step, inside)

    env.loop(low, high, strip, run_strip)


def leave_if_given_up(b: ir.IRBuilder, done: ir.Block) -> None:
    """Go to `done`, where the kernel returns, if the function that it polls says so."""
    words = b.module.globals.get(POLL_SYMBOL) or ir.ExternalVariable(b.module, POLL_SYMBOL)
    function = b.load(words, typ=_PTR)
    ask, on = b.append_basic_block("poll"), b.append_basic_block("on")
    b.cbranch(b.icmp_unsigned("!=", b.ptrtoint(function, I64), number(0)), ask, on)
    b.position_at_end(ask)
    answer = b.call_at(function, _POLL, [words])
    b.cbranch(b.icmp_signed("==", answer, ir.IntType(32)(0)), on, done)
    b.position_at_end(on)
