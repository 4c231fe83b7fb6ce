"""Evaluate pending operators: live arrays become the outputs of a compiled graph.

A program that was run before with the same sizes finds its plan at once.  A program that differs
from an earlier one only in sizes or constants uses that one's plan if its guards hold (see
`smelt.frontends.array.generalize`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet, ref

import numpy as np

from smelt.errors import (
    ChangedError,
    DonatedError,
    ExternError,
    FusionError,
    OutsideError,
    SmeltError,
    raised_by_signal_handler,
)
from smelt.frontends.array.at_once import PREDICTED, is_view, view_of, viewed
from smelt.frontends.array.engine import (
    COMPILER_ERRORS,
    RUN_ERRORS,
    compile_graph,
    locate_error,
    raise_out_of_bounds,
    reporting,
)
from smelt.frontends.array.generalize import GeneralizedProgram, generalize
from smelt.frontends.array.program import Program, operands_first
from smelt.frontends.array.program_cache import PlannedProgram, find, program_key, remember
from smelt.frontends.array.structure import Loop, end_epochs, find_loop, values_before
from smelt.frontends.array.tiers import by_numpy
from smelt.frontends.array.value import (
    STATE,
    Buffer,
    Foreign,
    Value,
    is_at_once,
    present_value,
    size_carrier,
)
from smelt.graph.bounds_checks import BoundsChecks
from smelt.graph.walk import input_size_names
from smelt.knobs import fingerprint
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import View
from smelt.python.dataclass import dataclass
from smelt.python.origin import Origin

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.compiler.warm import CachedProgram

_FAMILIES_LIMIT = 2048
"""Maximum families of programs that are remembered."""
_PLANS_LIMIT = 16
"""Maximum plans of one family."""
_GUESSES = 3
"""Number of plans of a family that guess how its numbers are related; later ones do not."""


@dataclass(slots=True)
class Family:
    """Programs with one skeleton: their plans and the history of their numbers."""

    plans: list[tuple[GeneralizedProgram, Compiled | CachedProgram]] = field(default_factory=list)
    numbers: tuple[int, ...] = ()
    """Numbers and constants of the previous program."""
    constants: tuple[float, ...] = ()
    changed_numbers: set[int] = field(default_factory=set)
    """Indices of numbers, and in `changed_constants` of constants, that have changed."""
    changed_constants: set[int] = field(default_factory=set)

    def find(self, program: Program) -> PlannedProgram | None:
        """Return the oldest plan whose guards hold for this program, None if there is none.

        The oldest, so that a program keeps its plan and its bits when others are added.
        """
        for lifted, compiled in self.plans:
            sizes = lifted.match(*program.numbers)
            planned = None if sizes is None else PlannedProgram(lifted, compiled, sizes)
            if planned is not None and planned.takes(program.constants):
                return planned
        return None

    def learn(self, program: Program) -> None:
        """Note which numbers and constants have changed."""
        if self.plans:
            self.changed_numbers |= _changed(program.numbers, self.numbers)
            self.changed_constants |= _changed(program.constants, self.constants)
        self.numbers, self.constants = program.numbers, program.constants

    def add(self, program: Program) -> PlannedProgram:
        """Compile a plan for this program and similar ones."""
        first = not self.plans
        self.learn(program)
        moved = None if first else frozenset(self.changed_numbers)
        lifted = generalize(
            program, moved, frozenset(self.changed_constants), len(self.plans) < _GUESSES
        )
        compiled = compile_graph(lifted.graph, lifted.hints)
        self.plans.append((lifted, compiled))
        del self.plans[:-_PLANS_LIMIT]
        sizes = lifted.match(*program.numbers)
        assert sizes is not None, "a plan does not fit the program it was made for"
        return PlannedProgram(lifted, compiled, sizes)


def _changed(a: tuple[Any, ...], b: tuple[Any, ...]) -> set[int]:
    return {k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}


_PERMANENT = (ChangedError, DonatedError, ExternError, OutsideError, *COMPILER_ERRORS)
"""Errors that would occur again, so that the result fails permanently."""
_NO_CHECKS = BoundsChecks()
_FAMILIES: dict[Hashable, Family] = {}


def waiting_value(reference: ref[Any]) -> Value | None:
    """Return the value of an array if the array is alive and its value waits.

    Most arrays of a chain are dead: callers ask that first, which is faster than this function.
    """
    node = present_value(reference())
    return node if node is not None and node.is_pending else None


def evaluate(value: Value, others: bool = True) -> Buffer:
    """Return the elements of a value, computing everything that is pending in this thread.

    Without `others`, other values wait, except for those that `_stored` tells.

    Raises DonatedError, ChangedError, OutsideError, and the errors of a run.
    """
    try:
        data = value.buffer()
    except ChangedError:
        if STATE.scope is None and not STATE.tapes:
            # pending readers of the old elements fail; they raise ChangedError if read
            _flush((), () if value.data is None else (value.data,)).clear()
        data = value.current_buffer()
    if data is None and is_at_once() and is_view(value):
        copied = view_of(value)
        assert copied is not None
        data = np.array(copied, order="C")
        value.set_elements(data)
    if data is None:
        flush(value, others=others)
        data = value.buffer()
        assert data is not None
    return data


def written_elements(value: Value) -> Buffer:
    """Return the elements to write into memory at once; a view's are not copied."""
    data = view_of(value)
    return evaluate(value) if data is None else data


def flush(*values: Value, others: bool = True) -> None:
    """Compute `values` and every pending value of this thread that an array still holds.

    Without `others`, other values wait, except for those that `_stored` tells.

    Raises the errors of `values`.  Other values that cannot be computed raise their error when they
    are read.
    """
    errors = _flush(values, (), others)
    try:
        for x in values:
            if x in errors:
                raise errors[x]
            x.buffer()
    finally:
        errors.clear()  # errors refer to frames, and these to `errors`: arrays would stay alive


def flush_readers(*memory: Buffer) -> None:
    """Compute every pending value of this thread before `memory` is written.

    Raises the error of a value that reads this memory and stays pending.
    """
    if not (STATE.pending or STATE.sampled) and STATE.trail_start == len(STATE.trail):
        return  # computed just now
    errors = _flush((), memory)
    try:
        for x in errors:
            if _reads(x, memory):
                raise errors[x]
    finally:
        errors.clear()  # as in `flush`


def _flush(
    values: tuple[Value, ...], memory: tuple[Buffer, ...], others: bool = True
) -> dict[Value, Exception]:
    """Compute values and what is pending; return the errors of what stays pending.

    While a function is recorded, what it would record again rather than capture stays pending.
    A pending value that has such an error is computed again only if it is one of `values` or reads
    `memory`: other reads do not wait for another failure.
    """
    pending, STATE.pending = STATE.pending, []
    STATE.cut_by, STATE.cut_from = 0, None
    STATE.trail_start = len(STATE.trail)
    if STATE.trail_start > 2 * _TRAIL_LIMIT:
        _shorten_trail(STATE.trail_start)
    if STATE.loop is not None and STATE.loop[0].start:
        STATE.loop = Loop(0, STATE.loop[0].period), STATE.loop[1]
    outputs: Iterable[Value] = values
    behind: list[Value] = []
    if pending:
        scope, waits = STATE.scope, _waiting_values(pending, memory)
        if not others:
            waits, behind = _stored(values, tuple(waits))
        if scope is not None and not memory:
            waits = [x for x in waits if not scope.is_recomputed(x)]
        outputs = dict.fromkeys((*values, *waits))
    sampled: WeakSet[Foreign] | None = None
    if STATE.sampled and not STATE.tapes:  # derivatives will read the old elements
        sampled, STATE.sampled = STATE.sampled, WeakSet()
    errors: dict[Value, Exception] = {}
    try:
        if outputs:
            _compute_each(tuple(outputs), errors, behind)
            STATE.passed.update([x for x in behind if x.data is None])
    finally:
        waiting = [r for r in pending if r() is not None and waiting_value(r) is not None]
        STATE.pending = waiting + STATE.pending
        if sampled:
            held = [x for r in waiting if (x := waiting_value(r)) is not None]
            _forget(sampled, [*held, *[x for x in values if x.is_pending]])
    if errors:
        STATE.deferred.update(errors)
    return errors


def _waiting_values(pending: Sequence[ref[Any]], memory: tuple[Buffer, ...]) -> Iterable[Value]:
    """Return the values that arrays wait for, in the order of their last writes.

    The first part of a loop has the order of its other parts then.  Views of computed arrays, and
    of those that are computed now, wait for their readers, unless `memory` is to be written.
    """
    values: dict[Value, None] = {}
    leave_views = not memory and is_at_once()
    for reference in reversed(pending):
        node = None if reference() is None else waiting_value(reference)
        if node is None or (leave_views and is_view(node)):
            continue
        if node not in STATE.deferred or (memory and _reads(node, memory)):
            values[node] = None
    if leave_views:
        for node in [*values]:
            source = viewed(node)
            if source is not node and source in values:
                del values[node]
    return reversed(values)


def _stored(values: tuple[Value, ...], waits: tuple[Value, ...]) -> tuple[list[Value], list[Value]]:
    """Return the waiting values to compute along with small ones, and others that these need.

    What a reader computes again in less time than writing and reading it takes stays virtual, until
    a second small value needs it.
    """
    needed = {x for v in values for x in _upstream(v) if x.data is None and x.inputs}
    costly = {x for x in needed if not isinstance(x.op, (Map, Cast, View))}
    for x in operands_first(waits) if costly else ():
        if x.data is None and not costly.isdisjoint(x.inputs):
            costly.add(x)
    behind = needed.intersection(waits) - costly
    virtual = {x for x in behind if not (x in STATE.passed or _pays_to_store(x))}
    stored = [x for x in waits if x in costly or (x in needed and x not in virtual)]
    return stored, [x for x in waits if x in virtual]


def _pays_to_store(value: Value) -> bool:
    """Return whether storing and reading a value is faster than computing it again."""
    reads, cycles = 0, 0.0
    nbytes: Any = value.type.nbytes
    stored = PREDICTED.move(2 * nbytes)
    visited: set[Any] = {value}
    stack: list[Any] = [value]
    while stack:
        x = stack.pop()
        if x.data is not None:
            reads += x.data.nbytes
            continue
        if isinstance(x.op, Map):
            cycles += x.op.row.cost * nbytes / PREDICTED.vector_bytes
        if stored < PREDICTED.move(reads) + cycles * PREDICTED.cycle:
            return True  # more operators only cost more
        fresh = [i for i in x.inputs if i not in visited]
        stack += fresh
        visited.update(fresh)
    return stored < PREDICTED.move(reads) + cycles * PREDICTED.cycle


def _forget(sampled: WeakSet[Foreign], waiting: Sequence[Value]) -> None:
    """Forget elements that were remembered to detect writes, except for what waits for them."""
    needed = {x for value in waiting for x in _upstream(value)}
    for x in sampled:
        if x in needed:
            STATE.sampled.add(x)
        elif isinstance(x, Foreign):  # another thread may have donated it meanwhile
            x.forget_sample()


def _reads(value: Value, memory: tuple[Buffer, ...]) -> bool:
    """Return whether a pending value may read any of this memory."""
    data = [x.data for x in _upstream(value) if x.data is not None]
    return any(np.may_share_memory(x, m) for x in data for m in memory)


def _upstream(value: Value) -> set[Any]:
    """Return a pending value, what it is computed from, and the arrays that this reads."""
    visited: set[Any] = {value}
    stack: list[Any] = [value]
    while stack:
        x = stack.pop()
        fresh = [i for i in x.inputs if i not in visited] if x.data is None else []
        stack += fresh
        visited.update(fresh)
    return visited


def _compute_each(
    outputs: tuple[Value, ...], errors: dict[Value, Exception], behind: Sequence[Value] = ()
) -> None:
    """Compute as many outputs as possible, in smaller parts after failures.

    Values `behind` the outputs get their elements where NumPy computes them on the way.

    An output with a permanent error fails for good, since the memory that it reads may be written
    from now on.  Other failures are added to `errors`: the outputs may succeed later, with more
    memory or under other settings.
    """
    try:
        _run(outputs, behind)
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        parts = _parts(outputs, error)
        if len(parts) == 1:
            if isinstance(error, _PERMANENT):
                outputs[0].fail(error)
            else:
                errors.update(dict.fromkeys(outputs, error))
            return
    else:
        return
    for part in parts:
        if pending := tuple([x for x in part if x.is_pending]):
            _compute_each(pending, errors)


def _parts(outputs: tuple[Value, ...], error: Exception) -> list[tuple[Value, ...]]:
    """Return the parts of a program to compute separately after an error.

    A demand to fuse concerns operators that are connected, so only unrelated outputs are separated
    for it.  Otherwise the outputs are bisected.
    """
    if not isinstance(error, FusionError):
        half = len(outputs) // 2
        return [part for part in (outputs[:half], outputs[half:]) if part]
    groups: list[tuple[tuple[Value, ...], set[Any]]] = []
    for output in outputs:
        members = (output,)
        operators = {x for x in _upstream(output) if x.data is None and x.inputs}
        connected = [g for g in groups if not operators.isdisjoint(g[1])]
        groups = [g for g in groups if operators.isdisjoint(g[1])]
        for others, theirs in connected:
            members, operators = others + members, operators | theirs
        groups.append((members, operators))
    return [members for members, _ in groups]


def flush_if_many(limit: int) -> None:
    """Compute pending values if arrays that are held wait for `limit` operators.

    Arrays that nothing refers to any more are dropped, so that a loop that drops its results costs
    nothing.  A loop is cut between iterations, or else at one instruction of its body, up to
    `limit` operators later: its parts are the same program then, which is compiled once.
    """
    if STATE.loop is not None and _is_at_loop():
        return
    if STATE.cut_by:
        _flush_at_cut(limit)
        return
    alive = [r for r in STATE.pending if r() is not None and waiting_value(r) is not None]
    waiting: set[Any] = set()
    counts_views = not is_at_once()
    stack: list[Any] = [
        x for r in alive if (x := waiting_value(r)) is not None and (counts_views or not is_view(x))
    ]
    while stack:
        node = stack.pop()
        if node.data is None and node not in waiting:
            waiting.add(node)
            stack.extend(node.inputs)
    STATE.pending = alive
    _shorten_trail(STATE.trail_start)
    if len(waiting) >= limit:
        STATE.cut_by = len(STATE.pending) + limit
        _flush_at_cut(limit)
    else:
        least = 16 if counts_views else max(16, len(alive))  # views may wait for long
        STATE.review_at = len(alive) + max(limit - len(waiting), least)


_TRAIL_LIMIT = 256
"""Maximum operators in which a loop is looked for."""


def _shorten_trail(start: int) -> None:
    """Forget old operators; those from `start` on are pending."""
    removed = max(0, len(STATE.trail) - _TRAIL_LIMIT)
    del STATE.trail[:removed]
    STATE.trail_start = max(0, start - removed)


def _flush_at_cut(limit: int) -> None:
    """Flush at the end of an iteration, or at the instruction of the last cut.

    A cut is where a loop's recorded operators were flushed last.  If the program comes back to the
    first instruction seen since then, or does not reach the cut for a while, the cut belongs to
    another loop: flush here, and from now on.
    """
    here = _instruction(STATE.trail[-1]) if STATE.trail else None
    count = len(STATE.pending)
    is_known = here is not None and here in (STATE.cut_at, STATE.cut_from)
    if not is_known and STATE.cut_at is not None and count < STATE.cut_by:
        STATE.cut_from = STATE.cut_from or here
        STATE.review_at = count + 1
        return
    if _find_loop(limit) and _is_at_loop():
        return
    STATE.cut_at = here
    flush()
    STATE.review_at = len(STATE.pending) + limit


def _find_loop(limit: int) -> bool:
    """Return whether the program is in a loop, and note how to cut it.

    A part has about `limit` operators: what was recorded before belongs to the start.
    """
    instructions = [_instruction(x) for x in STATE.trail]
    pending = len(instructions) - STATE.trail_start
    loop = find_loop(instructions, max(2, pending // 2), limit)
    if loop is None:
        return False
    STATE.cut_at = instructions[loop.start + loop.period - 1]
    first = STATE.trail[loop.start]
    loop = loop.since(STATE.trail_start)
    begun = loop.iterations(pending)
    iterations = min(begun, -(-limit // loop.period))
    STATE.loop = Loop(loop.end(begun - iterations), loop.period), iterations
    reporting().report_loop(loop.period, iterations, first)
    return True


def _instruction(origin: Origin | None) -> tuple[int, int] | None:
    return None if origin is None else origin.instruction


def _is_at_loop() -> bool:
    """Flush if the iterations of the loop that belong together have ended.

    Returns False, and forgets the loop, if the program has left it.
    """
    assert STATE.loop is not None
    loop, iterations = STATE.loop
    missing = STATE.trail_start + loop.end(iterations) - len(STATE.trail)
    if missing > 0:
        STATE.review_at = len(STATE.pending) + missing
        return True
    if missing < 0 or _instruction(STATE.trail[-1]) != STATE.cut_at:
        STATE.loop = None
        return False
    _flush_before(loop.start)
    flush()
    STATE.review_at = len(STATE.pending) + iterations * loop.period
    return True


def _flush_before(start: int) -> None:
    """Compute what a loop reads from before it.

    Its first part is then like the others."""
    if start == 0 or STATE.tapes or STATE.sampled:
        return
    place: dict[int, int] = {}
    for k, origin in enumerate(STATE.trail[STATE.trail_start :]):
        place.setdefault(id(origin), k)
    values = [x for r in STATE.pending if r() is not None and (x := waiting_value(r)) is not None]
    outputs = tuple(dict.fromkeys(x for x in values if x not in STATE.deferred))
    errors: dict[Value, Exception] = {}
    try:
        if earlier := values_before(outputs, place, start):
            _compute_each(earlier, errors)
        STATE.deferred.update(errors)
    finally:
        errors.clear()  # as in `flush`


def _run(outputs: tuple[Value, ...], behind: Sequence[Value] = ()) -> None:
    epoch = STATE.epochs.current
    key = program_key(outputs, epoch)
    bound = None if key is None else find(key, epoch)
    results: Sequence[Buffer] | None = None
    checks = _NO_CHECKS
    if bound is not None:
        planned, buffers, constants = bound
        results, checks = _run_planned(planned, buffers, constants, outputs), planned.lifted.bounds
    else:
        program = Program(outputs)
        results = by_numpy(program, behind)
        if results is None:
            planned = _plan(program)
            results = _run_planned(planned, program.buffers, program.constants, outputs)
            checks = planned.lifted.bounds
            if key is not None:
                remember(key, planned, program, epoch)
        else:
            outputs = (*outputs, *behind)
    if checks.flag is not None and results[-1]:
        _raise_outside(Program(outputs))
    for node, data in zip(outputs, results, strict=False):
        node.data = data
    end_epochs()  # before operands are dropped, whose memory may be written then
    for node in outputs:
        if STATE.tapes:
            STATE.retained.append(node)
        elif STATE.scope is None or node not in STATE.scope.volatile_values:
            node.inputs = ()


def _run_planned(
    planned: PlannedProgram,
    buffers: list[Buffer],
    constants: Sequence[Any],
    outputs: tuple[Value, ...],
) -> Sequence[Buffer]:
    try:
        return planned.run(buffers, constants)
    except RUN_ERRORS as error:
        _locate_error(error, Program(outputs), planned)
        raise


def _plan(program: Program) -> PlannedProgram:
    """Return a program with a cached or new plan."""
    if len(_FAMILIES) > _FAMILIES_LIMIT:
        _FAMILIES.clear()
    family = _FAMILIES.setdefault((program.skeleton, fingerprint()), Family())
    return family.find(program) or family.add(program)


def plan_pending(
    *values: Value,
) -> tuple[Compiled | CachedProgram, tuple[int, ...], list[Buffer]] | None:
    """Return the plan of what is pending behind values, with its sizes and inputs.

    It is compiled, not run; None if no value is pending. Raises DonatedError, ChangedError, and
    the errors of compilation.
    """
    pending = [x for x in values if x.is_pending]
    if not pending:
        return None
    program = Program(pending)
    planned = _plan(program)
    inputs = planned.inputs(program.buffers, program.constants)
    return planned.compiled, planned.sizes, inputs


def _locate_error(error: SmeltError, program: Program, planned: PlannedProgram) -> None:
    """Set the line of the program that an error is about."""
    exact, arrays, sizes_here = _exact_graph(program)
    locate_error(
        error,
        exact.graph,
        arrays,
        dict(zip(input_size_names(exact.graph), sizes_here)),
        planned.compiled,
        planned.sizes,
    )


def _exact_graph(program: Program) -> tuple[GeneralizedProgram, list[Buffer], tuple[int, ...]]:
    """Return the graph of exactly this program, its inputs and sizes.

    The plan may have been made for an earlier program with other lines.
    """
    exact = generalize(program, None, frozenset())
    sizes = exact.match(*program.numbers) or ()
    arrays = (
        program.buffers
        if exact.permutations is None
        else exact.permutations.permute_inputs(program.buffers)
    )
    return exact, [*arrays, *[size_carrier(sizes[k]) for k in exact.size_inputs]], sizes


def _raise_outside(program: Program) -> NoReturn:
    """Raise OutsideError, which names the position that is out of bounds."""
    exact, arrays, _ = _exact_graph(program)
    raise_out_of_bounds(exact.bounds, exact.graph.inputs, arrays)
