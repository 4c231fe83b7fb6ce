"""Running what is pending: live arrays become the outputs of a graph, equal programs share a plan.

A program that was run before, sizes and all, finds its plan at once.  One that differs from an
earlier program only in sizes or in constants finds the plan of that one, if its guards hold (see
`smelt.frontends.array.generalize`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import (
    ChangedError,
    DonatedError,
    ExternError,
    OutOfMemory,
    OutsideError,
    SmeltError,
)
from smelt.frontends.array.engine import (
    FAILURES,
    MISTAKES,
    blame,
    compile_graph,
    outside,
    size_names,
)
from smelt.frontends.array.generalize import Lifted, lift
from smelt.frontends.array.program import Program
from smelt.frontends.array.program_cache import Spelled, find, notice, spell
from smelt.frontends.array.value import STATE, Buffer, Foreign, Value, teller
from smelt.graph.bounds_checks import Looks
from smelt.knobs import fingerprint

if TYPE_CHECKING:
    from smelt.driver import Compiled
    from smelt.warm import Found

__all__ = ["flush", "realise"]

_SEEN_LIMIT = 2048
_FAMILIES_LIMIT = 2048
_PLANS_LIMIT = 16
_GUESSES = 3
"""Plans of a family that guess how its numbers hang together; the next one does not."""


@dataclass(slots=True)
class Family:
    """Programs with one skeleton: their plans, and what is known of their numbers."""

    plans: list[tuple[Lifted, Compiled | Found]] = field(default_factory=list)
    numbers: tuple[int, ...] = ()
    constants: tuple[float, ...] = ()
    moved: set[int] = field(default_factory=set)
    varying: set[int] = field(default_factory=set)

    def find(self, program: Program) -> tuple[Lifted, Compiled | Found, tuple[int, ...]] | None:
        """The plan whose guards hold for this program."""
        for lifted, compiled in self.plans:
            sizes = lifted.match(*program.numbers)
            if sizes is not None and all(program.constants[k] == v for k, v in lifted.fixed):
                return lifted, compiled, sizes
        return None

    def learn(self, program: Program) -> None:
        """Note which numbers and constants are not the same as ever."""
        if self.plans:
            self.moved |= _differ(program.numbers, self.numbers)
            self.varying |= _differ(program.constants, self.constants)
        self.numbers, self.constants = program.numbers, program.constants

    def add(self, program: Program) -> tuple[Lifted, Compiled | Found, tuple[int, ...]]:
        """A new plan for this program and its like."""
        first = not self.plans
        self.learn(program)
        moved = None if first else frozenset(self.moved)
        lifted = lift(program, moved, frozenset(self.varying), len(self.plans) < _GUESSES)
        compiled = compile_graph(lifted.graph, lifted.hints)
        self.plans.insert(0, (lifted, compiled))
        del self.plans[_PLANS_LIMIT:]
        sizes = lifted.match(*program.numbers)
        assert sizes is not None, "a plan does not fit the program it was made for"
        return lifted, compiled, sizes


def _differ(a: tuple[Any, ...], b: tuple[Any, ...]) -> set[int]:
    return {k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}


_FOR_GOOD = (ChangedError, DonatedError, ExternError, OutsideError, *MISTAKES)
"""What a result fails with that would fail again."""
_NOTHING = Looks()
_SEEN: dict[Hashable, tuple[Lifted, Compiled | Found, tuple[int, ...]]] = {}
_FAMILIES: dict[Hashable, Family] = {}


def realise(value: Value) -> Buffer:
    """The elements of a value, computing everything that is pending in this thread.

    Raises DonatedError, ChangedError, OutsideError, and what running raises.
    """
    try:
        data = value.buffer()
    except ChangedError:
        if STATE.scope is None and not STATE.tapes:
            flush()  # what was to read the elements of before says so, to who reads it
        data = value.now()  # what still waits remembers what was there
    if data is None:
        flush(value)
        data = value.buffer()
        assert data is not None
    return data


def flush(*wanted: Value) -> None:
    """Compute `wanted` and every pending value of this thread that an array still holds.

    Raises what keeps `wanted` from being computed.  Others that cannot be say so when they are
    read, but for want of memory, which is told here where nothing is wanted: memory that the caller
    may write to next would still be read.
    """
    pending, STATE.pending = STATE.pending, []
    outputs: dict[Value, None] = dict.fromkeys(wanted)
    for reference in pending:
        array = reference()
        if array is not None and array.node.waits:
            outputs[array.node] = None
    sampled: WeakSet[Foreign] | None = None
    if STATE.sampled and not STATE.tapes:  # derivatives will read what was there
        sampled, STATE.sampled = STATE.sampled, WeakSet()
    late: dict[Value, OutOfMemory] = {}
    done = False
    try:
        if outputs:
            late = _settle(tuple(outputs))
        done = not late
    finally:
        if done:
            for x in sampled or ():
                if isinstance(x, Foreign):  # and was not given away meanwhile, by another thread
                    x.seen()
        else:  # something waits as before, and so does what tells of changes
            waiting = [r for r in pending if (a := r()) is not None and a.node.waits]
            STATE.pending = waiting + STATE.pending
            STATE.sampled |= sampled or WeakSet()
    for x in wanted or late:
        if x in late:
            raise late[x]
        x.buffer()


def _settle(outputs: tuple[Value, ...]) -> dict[Value, OutOfMemory]:
    """Compute all that can be.  What cannot, for a mistake in its own lines, says so for good:
    what it reads may be written from now on.  Given back is what may find room later."""
    try:
        _run(outputs)
    except _FOR_GOOD as error:
        if len(outputs) == 1:
            outputs[0].fail(error)
            return {}
    except OutOfMemory as error:
        if len(outputs) == 1:
            return {outputs[0]: error}
    else:
        return {}
    late: dict[Value, OutOfMemory] = {}
    half = len(outputs) // 2
    for part in (outputs[:half], outputs[half:]):
        if left := tuple([x for x in part if x.waits]):
            late |= _settle(left)
    return late


def review(limit: int) -> None:
    """Compute what is pending if arrays that somebody holds wait for `limit` operators.

    What nobody holds any more is forgotten, so that a loop that drops its results costs nothing.
    """
    held = [r for r in STATE.pending if (a := r()) is not None and a.node.waits]
    seen: set[Value] = set()
    stack = [a.node for r in held if (a := r()) is not None]
    while stack:
        node = stack.pop()
        if node.data is None and node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
    STATE.pending = held
    if len(seen) >= limit:
        flush()
        seen.clear()
    STATE.due = len(STATE.pending) + max(limit - len(seen), 16)


def _run(outputs: tuple[Value, ...]) -> None:
    spelled = spell(outputs)
    repeat = None if spelled is None else find(spelled)
    results: Sequence[Buffer] | None = None
    if repeat is not None and spelled is not None:
        try:
            results = repeat.run(spelled.buffers, spelled.constants)
        except FAILURES as error:
            _tell(error, Program(outputs), repeat.compiled, repeat.sizes)
            raise
    looks = _NOTHING if repeat is None else repeat.lifted.looks
    if results is None:
        results, looks = _found(Program(outputs), spelled)
    if looks.flag is not None and results[-1]:
        _outside(Program(outputs))
    for node, data in zip(outputs, results, strict=False):
        node.data = data
        if STATE.tapes:
            STATE.kept.append(node)
        elif STATE.scope is None or node not in STATE.scope.changing:
            node.inputs = ()


def _found(program: Program, spelled: Spelled | None) -> tuple[Sequence[Buffer], Looks]:
    """What a program computes, and what it asks of positions; its plan is found or made."""
    settings = fingerprint()
    key = (program.skeleton, program.numbers, program.constants, settings)
    found = _SEEN.get(key)
    if found is None:
        if len(_SEEN) > _SEEN_LIMIT:
            _SEEN.clear()
        if len(_FAMILIES) > _FAMILIES_LIMIT:
            _FAMILIES.clear()
        family = _FAMILIES.setdefault((program.skeleton, settings), Family())
        found = _SEEN[key] = family.find(program) or family.add(program)
    lifted, compiled, sizes = found
    buffers = program.buffers
    if lifted.free or lifted.told:
        free = lifted.graph.inputs[len(buffers) :]
        buffers = (
            buffers
            + [
                np.asarray(program.constants[k], x.type.dtype.numpy)
                for k, x in zip(lifted.free, free)
            ]
            + [teller(sizes[k]) for k in lifted.told]
        )
    try:
        if lifted.turns is not None:
            results = lifted.turns.written(compiled.run(lifted.turns.read(buffers), sizes))
        else:
            results = compiled.run(buffers, sizes)
    except FAILURES as error:
        _tell(error, program, compiled, sizes)
        raise
    if spelled is not None:
        notice(spelled, program, lifted, compiled, sizes)
    return results, lifted.looks


def _tell(
    error: SmeltError, program: Program, compiled: Compiled | Found, sizes: tuple[int, ...]
) -> None:
    """Tell an error which line it is about."""
    own, arrays, known = _own(program)
    blame(error, own.graph, arrays, dict(zip(size_names(own.graph), known)), compiled, sizes)


def _own(program: Program) -> tuple[Lifted, list[Buffer], tuple[int, ...]]:
    """The program's own graph, its inputs and sizes.  The plan may have been made for an earlier
    program, of other lines."""
    own = lift(program, None, frozenset())
    sizes = own.match(*program.numbers) or ()
    arrays = program.buffers if own.turns is None else own.turns.read(program.buffers)
    return own, [*arrays, *[teller(sizes[k]) for k in own.told]], sizes


def _outside(program: Program) -> NoReturn:
    """Raises OutsideError."""
    own, arrays, _ = _own(program)
    outside(own.looks, own.graph.inputs, arrays)
