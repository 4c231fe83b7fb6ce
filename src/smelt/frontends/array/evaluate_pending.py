"""Evaluate pending operators: live arrays become the outputs of a compiled graph.

A program that was run before with the same sizes finds its plan at once.  A program that differs
from an earlier one only in sizes or constants uses that one's plan if its guards hold (see
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
"""Most programs, with sizes and constants, whose plans are remembered."""
_FAMILIES_LIMIT = 2048
"""Most families of programs that are remembered."""
_PLANS_LIMIT = 16
"""Most plans of one family."""
_GUESSES = 3
"""Number of plans of a family that guess how its numbers are related; later ones do not."""


@dataclass(slots=True)
class Family:
    """Programs with one skeleton: their plans and the history of their numbers."""

    plans: list[tuple[Lifted, Compiled | Found]] = field(default_factory=list)
    numbers: tuple[int, ...] = ()
    """Numbers and constants of the previous program."""
    constants: tuple[float, ...] = ()
    moved: set[int] = field(default_factory=set)
    """Indices of numbers, and in `varying` of constants, that have changed."""
    varying: set[int] = field(default_factory=set)

    def find(self, program: Program) -> tuple[Lifted, Compiled | Found, tuple[int, ...]] | None:
        """Return the plan whose guards hold for this program, None if there is none."""
        for lifted, compiled in self.plans:
            sizes = lifted.match(*program.numbers)
            if sizes is not None and all(program.constants[k] == v for k, v in lifted.fixed):
                return lifted, compiled, sizes
        return None

    def learn(self, program: Program) -> None:
        """Note which numbers and constants have changed."""
        if self.plans:
            self.moved |= _changed(program.numbers, self.numbers)
            self.varying |= _changed(program.constants, self.constants)
        self.numbers, self.constants = program.numbers, program.constants

    def add(self, program: Program) -> tuple[Lifted, Compiled | Found, tuple[int, ...]]:
        """Compile a plan for this program and similar ones."""
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


def _changed(a: tuple[Any, ...], b: tuple[Any, ...]) -> set[int]:
    return {k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}


_PERMANENT = (ChangedError, DonatedError, ExternError, OutsideError, *MISTAKES)
"""Errors that would occur again, so that the result fails permanently."""
_NOTHING = Looks()
_SEEN: dict[Hashable, tuple[Lifted, Compiled | Found, tuple[int, ...]]] = {}
_FAMILIES: dict[Hashable, Family] = {}


def realise(value: Value) -> Buffer:
    """Return the elements of a value, computing everything that is pending in this thread.

    Raises DonatedError, ChangedError, OutsideError, and the errors of a run.
    """
    try:
        data = value.buffer()
    except ChangedError:
        if STATE.scope is None and not STATE.tapes:
            flush()  # pending readers of the old elements fail; they raise ChangedError if read
        data = value.now()
    if data is None:
        flush(value)
        data = value.buffer()
        assert data is not None
    return data


def flush(*values: Value) -> None:
    """Compute `values` and every pending value of this thread that an array still holds.

    Raises the errors of `values`.  Other values that cannot be computed raise their error when they
    are read.  Without `values`, OutOfMemory is raised here: the caller may write next to memory
    that such values still have to read.
    """
    pending, STATE.pending = STATE.pending, []
    outputs: dict[Value, None] = dict.fromkeys(values)
    for reference in pending:
        array = reference()
        if array is not None and array.node.waits:
            outputs[array.node] = None
    sampled: WeakSet[Foreign] | None = None
    if STATE.sampled and not STATE.tapes:  # derivatives will read the old elements
        sampled, STATE.sampled = STATE.sampled, WeakSet()
    out_of_memory: dict[Value, OutOfMemory] = {}
    done = False
    try:
        if outputs:
            out_of_memory = _compute_each(tuple(outputs))
        done = not out_of_memory
    finally:
        if done:
            for x in sampled or ():
                if isinstance(x, Foreign):  # another thread may have donated it meanwhile
                    x.seen()
        else:  # some values are still pending, and need the samples that detect changes
            waiting = [r for r in pending if (a := r()) is not None and a.node.waits]
            STATE.pending = waiting + STATE.pending
            STATE.sampled |= sampled or WeakSet()
    for x in values or out_of_memory:
        if x in out_of_memory:
            raise out_of_memory[x]
        x.buffer()


def _compute_each(outputs: tuple[Value, ...]) -> dict[Value, OutOfMemory]:
    """Compute as many outputs as possible, bisecting after failures.

    An output with a permanent error fails for good, since the memory that it reads may be written
    from now on.  Returns outputs that ran out of memory and may succeed later.
    """
    try:
        _run(outputs)
    except _PERMANENT as error:
        if len(outputs) == 1:
            outputs[0].fail(error)
            return {}
    except OutOfMemory as error:
        if len(outputs) == 1:
            return {outputs[0]: error}
    else:
        return {}
    out_of_memory: dict[Value, OutOfMemory] = {}
    half = len(outputs) // 2
    for part in (outputs[:half], outputs[half:]):
        if pending := tuple([x for x in part if x.waits]):
            out_of_memory |= _compute_each(pending)
    return out_of_memory


def review(limit: int) -> None:
    """Compute pending values if arrays that are held wait for `limit` operators.

    Arrays that nothing refers to any more are dropped, so that a loop that drops its results costs
    nothing.
    """
    alive = [r for r in STATE.pending if (a := r()) is not None and a.node.waits]
    waiting: set[Value] = set()
    stack = [a.node for r in alive if (a := r()) is not None]
    while stack:
        node = stack.pop()
        if node.data is None and node not in waiting:
            waiting.add(node)
            stack.extend(node.inputs)
    STATE.pending = alive
    if len(waiting) >= limit:
        flush()
        waiting.clear()
    STATE.due = len(STATE.pending) + max(limit - len(waiting), 16)


def _run(outputs: tuple[Value, ...]) -> None:
    spelled = spell(outputs)
    cached = None if spelled is None else find(spelled)
    results: Sequence[Buffer] | None = None
    if cached is not None and spelled is not None:
        try:
            results = cached.run(spelled.buffers, spelled.constants)
        except FAILURES as error:
            _locate_error(error, Program(outputs), cached.compiled, cached.sizes)
            raise
    checks = _NOTHING if cached is None else cached.lifted.looks
    if results is None:
        results, checks = _compile_and_run(Program(outputs), spelled)
    if checks.flag is not None and results[-1]:
        _raise_outside(Program(outputs))
    for node, data in zip(outputs, results, strict=False):
        node.data = data
        if STATE.tapes:
            STATE.kept.append(node)
        elif STATE.scope is None or node not in STATE.scope.changing:
            node.inputs = ()


def _compile_and_run(program: Program, spelled: Spelled | None) -> tuple[Sequence[Buffer], Looks]:
    """Run a program by a known or new plan; return the results and its bounds checks."""
    settings = fingerprint()
    key = (program.skeleton, program.numbers, program.constants, settings)
    plan = _SEEN.get(key)
    if plan is None:
        if len(_SEEN) > _SEEN_LIMIT:
            _SEEN.clear()
        if len(_FAMILIES) > _FAMILIES_LIMIT:
            _FAMILIES.clear()
        family = _FAMILIES.setdefault((program.skeleton, settings), Family())
        plan = _SEEN[key] = family.find(program) or family.add(program)
    lifted, compiled, sizes = plan
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
        _locate_error(error, program, compiled, sizes)
        raise
    if spelled is not None:
        notice(spelled, program, lifted, compiled, sizes)
    return results, lifted.looks


def _locate_error(
    error: SmeltError, program: Program, compiled: Compiled | Found, sizes: tuple[int, ...]
) -> None:
    """Set the line of the program that an error is about."""
    exact, arrays, sizes_here = _exact_graph(program)
    blame(
        error, exact.graph, arrays, dict(zip(size_names(exact.graph), sizes_here)), compiled, sizes
    )


def _exact_graph(program: Program) -> tuple[Lifted, list[Buffer], tuple[int, ...]]:
    """Return the graph of exactly this program, its inputs and sizes.

    The plan may have been made for an earlier program with other lines.
    """
    exact = lift(program, None, frozenset())
    sizes = exact.match(*program.numbers) or ()
    arrays = program.buffers if exact.turns is None else exact.turns.read(program.buffers)
    return exact, [*arrays, *[teller(sizes[k]) for k in exact.told]], sizes


def _raise_outside(program: Program) -> NoReturn:
    """Raise OutsideError, which names the position that is out of bounds."""
    exact, arrays, _ = _exact_graph(program)
    outside(exact.looks, exact.graph.inputs, arrays)
