"""Cache of pending programs by exact operators and sizes.

`smelt.frontends.array.program` computes keys by which programs with other sizes share a plan.  A
program that differs from an earlier one only in the values of arrays and numbers needs less
analysis: its types and operators, in order, find the earlier run, which is repeated, by native code
if possible.

>>> a, b = (record(Map("exp"), (leaf(np.ones(3)),)) for _ in range(2))
>>> program_key((a,)).key == program_key((b,)).key
True
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smelt import knobs
from smelt.frontends.array.generalize import GeneralizedProgram
from smelt.frontends.array.program import Program, is_parameter
from smelt.frontends.array.value import Buffer, Map, Value, leaf, record, size_carrier
from smelt.ops.create import Constant, Input
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.compiler.warm import CachedProgram

__all__ = [
    "PROGRAMS",
    "CachedRun",
    "Map",
    "ProgramKey",
    "count_run",
    "leaf",
    "program_key",
    "record",
]

_LIMIT = 1024
"""Maximum programs in the cache."""
_ENTRIES_PER_KEY = 4
"""Maximum entries made for one key, in case numbers alternate between plans."""


class ProgramKey(NamedTuple):
    """Key of a program, and the data that differ among programs with this key."""

    key: tuple[Hashable, ...]
    buffers: list[Buffer]
    """Elements of the leaves, in order."""
    constants: list[Any]
    """Ordinary numbers, once for each use as an operand."""
    order: dict[Value, int]
    """Leaves and operators, operands first, with their positions."""


def program_key(outputs: Sequence[Value]) -> ProgramKey | None:
    """Return the key of the program that computes `outputs`.

    Leaves and operators are in the order of `Program`.  None if memory is not C-contiguous or an
    output needs no operator.  Raises DonatedError and ChangedError for leaves that cannot be read
    any more.
    """
    order: dict[Any, int] = {}
    key: list[Hashable] = [knobs.fingerprint()]
    buffers: list[Buffer] = []
    constants: list[Any] = []
    stack: list[Any] = list(reversed(outputs))
    while stack:
        x = stack[-1]
        if x in order:
            stack.pop()
            continue
        op = x.op
        kind = op.__class__
        if x.data is not None or kind is Constant or kind is Input:
            return None
        part: list[Hashable] = [op.scalar if kind is Map else op]
        numbers: list[Any] = []
        for i in x.inputs:
            position = order.get(i)
            if position is not None:
                part.append(position)
                continue
            data = i.data
            if data is not None:
                data = data if i.__class__ is Value else i.buffer()
                if not data.flags.c_contiguous:
                    return None
                buffers.append(data)
                key.append(id(i.type))
                part.append(len(order))
                order[i] = len(order)
            elif i.op.__class__ is not Constant:
                stack.append(i)
                break
            elif is_parameter(i.op):
                numbers.append(i.op.value)
                part.append(i.op.dtype.name)
            else:
                part.append((id(i),))
        else:
            order[x] = len(order)
            key += part
            constants += numbers
            stack.pop()
    key.append(tuple([order[x] for x in outputs]))
    return ProgramKey(tuple(key), buffers, constants, order)


@dataclass(slots=True, eq=False)
class CachedRun:
    """Plan and inputs of a program that was run, to be run again."""

    lifted: GeneralizedProgram
    compiled: Compiled | CachedProgram
    sizes: tuple[int, ...]
    size_inputs: list[Buffer]
    """Inputs that are never read: their shapes pass sizes."""
    types: list[Any]
    """Dtypes of the inputs that are numbers."""
    key_objects: list[object]
    """Objects whose identities are part of the key, kept alive."""
    runner: Any = None
    """Native function that runs a record, called with its address and the inputs."""
    record: Any = None

    def run(self, buffers: list[Buffer], constants: Sequence[Any]) -> Sequence[Buffer] | None:
        """Return the results and the flag of bounds checks; None if other constants are fixed."""
        for k, v in self.lifted.fixed_constants:
            if constants[k] != v:
                return None
        if self.types:
            free = zip(self.lifted.constant_inputs, self.types, strict=True)
            buffers = buffers + [np.asarray(constants[k], t) for k, t in free]
        if self.size_inputs:
            buffers = buffers + self.size_inputs
        if self.record is None:
            return self.compiled.run(buffers, self.sizes)
        return self.runner(self.record.address, buffers)


@dataclass(slots=True, eq=False)
class _Entry:
    """Entry of the cache: number of runs, and the repeatable run if there is one."""

    repeat: CachedRun | None = None
    made: int = 0
    calls: int = 0


PROGRAMS: dict[Hashable, _Entry] = {}
"""Entries by keys."""


def find(spelled: ProgramKey) -> CachedRun | None:
    """Return the run of an equal program, if it is remembered."""
    entry = PROGRAMS.get(spelled.key)
    return None if entry is None else entry.repeat


def count_run(
    spelled: ProgramKey,
    program: Program,
    lifted: GeneralizedProgram,
    compiled: Compiled | CachedProgram,
    sizes: tuple[int, ...],
) -> None:
    """Count a run of a program; cache how to repeat it once it recurs."""
    entry = PROGRAMS.get(spelled.key)
    if entry is None:
        if len(PROGRAMS) >= _LIMIT:
            PROGRAMS.clear()
        entry = PROGRAMS[spelled.key] = _Entry()
    entry.calls += 1
    if entry.calls < knobs.NATIVE_FROM_CALL or entry.made >= _ENTRIES_PER_KEY:
        return
    entry.made += 1
    nodes = [x for x in spelled.order if x.data is None]
    if (
        lifted.permutations is not None
        or nodes != program.nodes
        or [*map(id, spelled.buffers)] != [*map(id, program.buffers)]
    ):
        return
    first = len(program.buffers)
    inputs = lifted.graph.inputs[first : first + len(lifted.constant_inputs)]
    cached = CachedRun(
        lifted,
        compiled,
        sizes,
        [size_carrier(sizes[k]) for k in lifted.size_inputs],
        [x.type.dtype.numpy for x in inputs],
        _key_objects(spelled.order),
    )
    if knobs.NATIVE_CALLS.get():
        cached.runner, cached.record = _native(compiled, sizes, program.buffers)
    entry.repeat = cached


def _key_objects(order: Iterable[Value]) -> list[object]:
    """Return the objects whose identities are part of a key."""
    types: list[object] = [x.type for x in order if x.data is not None]
    return types + [i for x in order for i in x.inputs if isinstance(i.op, Constant)]


def _native(
    compiled: Compiled | CachedProgram, sizes: tuple[int, ...], buffers: Sequence[Buffer]
) -> tuple[Any, Any]:
    """Return the native function that runs records, and a record of such runs.

    Both are None if only Python can make the call.
    """
    executable: Any = compiled.executable
    at = _calls().address_runner()
    if at is None or not _calls().can_record(executable):
        return None, None
    prepared = executable.prepared(sizes)
    if len(prepared.results) != len(executable.outputs):
        return None, None
    strides = {
        (k, d): buffers[k].strides[d] // buffers[k].itemsize
        for _, k, d in prepared.strides
        if k < len(buffers)
    }
    record = _calls().record_by_address(executable, sizes, _unchanged, strides)
    return (None, None) if record is None else (at, record)


def _unchanged(x: Buffer) -> Buffer:
    """Return a result of a record as it is."""
    return x


@cache
def _calls() -> Any:
    """Import the native call cache on the first repeated program."""
    return fork_safe_import("smelt.runtime.call_cache")
