"""Find the loop that a program is in, by the instructions that recorded its operators.

A loop that is not jitted is computed in parts. Parts that begin and end with whole iterations are
one program, which is compiled once; parts that are cut anywhere are as many programs.

>>> find_loop("ab" + "cdde" * 3 + "c", least=8, longest=6)
Loop(start=2, period=4)
>>> find_loop("abcdefgh", least=4, longest=6) is None
True
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple


class Loop(NamedTuple):
    """Where a loop's first whole iteration starts, and the number of operators of an iteration."""

    start: int
    period: int

    def iterations(self, count: int) -> int:
        """Return the number of iterations that begin within `count` operators, at least one."""
        return max(1, -(-(count - self.start) // self.period))

    def end(self, iterations: int) -> int:
        """Return the number of operators until the end of so many iterations."""
        return self.start + iterations * self.period

    def since(self, place: int) -> Loop:
        """Return the loop with places counted from `place`, from its first iteration after that."""
        skipped = max(0, -(-(place - self.start) // self.period))
        return Loop(self.start + skipped * self.period - place, self.period)


def find_loop(instructions: Sequence[Hashable], least: int, longest: int) -> Loop | None:
    """Return the loop that the end of a sequence of instructions is in.

    It is the one that covers most of them: an inner loop repeats less of the sequence than the loop
    around it. None if none covers `least` of them, with at most `longest` in an iteration.
    """
    count = len(instructions)
    best, covered = 0, least - 1
    for period in range(1, min(longest, count - 1) + 1):
        at = count - 1 - period
        while at >= 0 and instructions[at] == instructions[at + period]:
            at -= 1
        length = count - 1 - at
        is_repeated = length - period >= min(period, max(_REPEATED, period // 2))
        if is_repeated and length > covered:
            best, covered = period, length
    return Loop(count - covered, best) if best else None


_REPEATED = 16
"""Operators that an iteration must repeat of the one before it, unless it is shorter."""


def values_before(outputs: Sequence[Any], place: dict[int, int], start: int) -> tuple[Any, ...]:
    """Return the pending values recorded before place `start` that are outputs or read later.

    `place` numbers values by the identity of their origin. What has no place belongs to the value
    that reads it; constants are left to their readers.
    """
    earlier: dict[Any, None] = {}
    kept, seen, stack = set(outputs), set(outputs), [*outputs]
    while stack:
        node = stack.pop()
        if node.data is not None or not (node.inputs or node in kept):
            continue
        if place.get(id(node.origin), start) < start:
            earlier[node] = None
            continue
        fresh = [x for x in node.inputs if x not in seen]
        seen.update(fresh)
        stack += fresh
    return tuple(earlier)
