"""Find loops that a recording has unrolled: lines whose operators occur again and again.

A Python loop is recorded step by step. The report says so where that is worth another way of
writing it: `sm.scan` and `sm.fori_loop` record a step once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from smelt.graph.ir import Node
from smelt.python.origin import Origin

MIN_STEPS = 16
"""Minimum steps of a loop that is reported: layers of a model are fewer."""
MIN_OPERATORS = 128
"""Minimum operators of all its steps; fewer take little time to compile."""


class Repeats(NamedTuple):
    """A loop that was unrolled."""

    copies: int
    """Number of steps, as most lines of the loop have been recorded."""
    operators: int
    """Operators of all steps."""
    origin: Origin
    """The first of its lines."""


def find_repeats(nodes: Sequence[Node]) -> Repeats | None:
    """Return the largest loop whose steps the nodes are, or None.

    Steps are counted by their lines: those of one function that occur equally often, but for a
    first or last step that differs, belong to one loop.
    """
    lines: dict[tuple[str, str, int], list[Node]] = {}
    for node in nodes:
        origin = node.origin
        # A traced operator of another front end has a module: its loops are not ours to rewrite.
        if node.inputs and origin is not None and origin.known and not hasattr(origin, "module"):
            lines.setdefault((origin.file, origin.function, origin.line), []).append(node)
    loops: dict[tuple[str, str, int], list[Node]] = {}
    for (file, function, _), group in sorted(lines.items()):
        copies = _copies(group)
        if copies < MIN_STEPS:
            continue
        near = [n for n in (copies - 1, copies, copies + 1) if (file, function, n) in loops]
        loops.setdefault((file, function, near[0] if near else copies), []).extend(group)
    if not loops:
        return None
    (_, _, copies), largest = max(loops.items(), key=lambda item: len(item[1]))
    origin = largest[0].origin
    if len(largest) < MIN_OPERATORS or origin is None:
        return None
    return Repeats(copies, len(largest), origin)


def _copies(nodes: Sequence[Node]) -> int:
    """Return how often a line was recorded: as often as its rarest repeated operator."""
    counts = Counter((x.op.name, x.origin and x.origin.place.column) for x in nodes)
    return min((n for n in counts.values() if n > 1), default=1)
