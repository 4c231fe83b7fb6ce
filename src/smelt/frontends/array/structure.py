"""Number what pending operators read, and give equal programs one structure while recording.

An *epoch* is the time between two flushes of a thread.  Leaves and ordinary numbers are numbered in
the order in which its operators first read them.  A `Structure` says how a value is computed from
these: an operator applied to structures.  Equal ones are one object, found by a single look-up when
an operator is recorded, so the structures of a program's results are its key.  Nothing has to be
walked when it is flushed, and what differs among equal programs, the elements of leaves and the
numbers, is found by its place in the epoch.

A value whose elements become known is a leaf for later readers, so every epoch ends then, in all
threads (`end_epochs`).  What stays pending gets a structure in the next epoch.  The table is
bounded: a structure that is forgotten is another object when it recurs, never a wrong one.

A loop that is not jitted is computed in parts. Parts that begin and end with whole iterations are
one program, which is compiled once; parts that are cut anywhere are as many programs. The loop is
found by the instructions that recorded its operators.

>>> find_loop("ab" + "cdde" * 3 + "c", least=8, longest=6)
Loop(start=2, period=4)
>>> find_loop("abcdefgh", least=4, longest=6) is None
True
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from smelt.frontends.array.memory import memory_order
from smelt.ops.create import Constant
from smelt.types.dtype import number_text

_LIMIT = 1 << 15
"""Maximum structures that are found again."""


class Structure:
    """How a pending value is computed; equal structures of one epoch are the same object.

    `key` is the operator with the types of its operands, then their structures.  Leaves and numbers
    have a `place` in the epoch.
    """

    __slots__ = ("key", "place")

    def __init__(self, key: tuple[Any, ...], place: int = -1) -> None:
        self.key = key
        self.place = place


class Epoch:
    """Leaves and numbers that the operators recorded between two flushes read, by place."""

    __slots__ = ("leaves", "numbers", "places")

    def __init__(self) -> None:
        self.places = itertools.count()
        self.leaves: dict[int, weakref.ref[Any]] = {}
        """Weak: a leaf that no pending value reads may be written in place, or freed."""
        self.numbers: dict[int, Any] = {}


class Epochs:
    """The present epoch of a thread."""

    __slots__ = ("__weakref__", "current")

    def __init__(self) -> None:
        self.current = Epoch()
        _THREADS.append(weakref.ref(self, _THREADS.remove))


_THREADS: Final[list[weakref.ref[Epochs]]] = []
STRUCTURES: Final[dict[tuple[Any, ...], Structure]] = {}
"""Structures by what identifies them; `applied` adds those of operators."""
_NUMBER: Final = Epoch()
"""Epoch of ordinary numbers, which have another place at each use."""
_NUMBERS: Final[dict[str, dict[int, Structure]]] = {}
"""Structures of numbers by dtype and place."""
_LITERAL: Final = Epoch()
"""Epoch of constants that are part of a program."""


def end_epochs() -> None:
    """Begin a new epoch in every thread: elements are about to be known or lost."""
    for reference in [*_THREADS]:
        epochs = reference()
        if epochs is not None:
            ended, epochs.current = epochs.current, Epoch()
            ended.leaves.clear()


def applied(key: tuple[Any, ...]) -> Structure:
    """Return the structure of an operator, with its operands' types, applied to structures."""
    structure = STRUCTURES.get(key)
    return note(key, Structure(key)) if structure is None else structure


def note(key: tuple[Any, ...], structure: Structure) -> Structure:
    """Add a structure to the table, which forgets all when it is full."""
    if len(STRUCTURES) >= _LIMIT:
        STRUCTURES.clear()
    STRUCTURES[key] = structure
    return structure


def structure_of(x: Any, epoch: Epoch) -> Structure | None:
    """Return the structure of a leaf or number, or of a value with one."""
    of, structure = x.structure
    if of is epoch or of is _LITERAL:
        return structure
    if of is _NUMBER:
        place = next(epoch.places)
        epoch.numbers[place] = x.op.value
        return structure.get(place) or structure.setdefault(place, Structure((), place))
    data = x.data
    if data is not None:
        place = next(epoch.places)
        epoch.leaves[place] = weakref.ref(x)
        type = x.type  # kept alive by the structure, since the entry holds its identity
        entry = (id(type), place, None if data.flags.c_contiguous else memory_order(data))
        structure = STRUCTURES.get(entry) or note(entry, Structure((type,), place))
        x.structure = (epoch, structure)
        return structure
    return _constant(x, epoch) if x.op.__class__ is Constant else None


def _constant(x: Any, epoch: Epoch) -> Structure | None:
    """Return the structure of a constant's first use."""
    op = x.op
    if is_parameter(op):
        x.structure = (_NUMBER, _NUMBERS.setdefault(op.dtype.name, {}))
        return structure_of(x, epoch)
    literal = applied((op.value.__class__, number_text(op.value), op.dtype.name))
    x.structure = (_LITERAL, literal)
    return literal


_AS_LITERALS = {0.0, 1.0, -1.0, 2.0, 0.5}
"""Numbers that affect the generated code (x*1, x^2) and belong to a program's key."""


def is_parameter(op: Constant) -> bool:
    """Return whether a constant is an ordinary number, which may become an input."""
    value = op.value
    if isinstance(value, bool) or value in _AS_LITERALS:
        return False
    return not isinstance(value, float) or math.isfinite(value)


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
