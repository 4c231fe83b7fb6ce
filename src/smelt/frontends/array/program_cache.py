"""Cache of pending programs by exact operators and sizes.

`smelt.frontends.array.program` computes keys by which programs with other sizes share a plan.  A
program that differs from an earlier one only in the values of arrays and numbers is not taken
apart: the structures of its results (see `structure`) find the plan, and the elements of leaves
and the numbers are found by their places in the epoch.

>>> from smelt.frontends.array.structure import end_epochs
>>> from smelt.frontends.array.value import leaf, record
>>> from smelt.ops.elementwise import Map
>>> end_epochs()
>>> a, b = (record(Map("exp"), (leaf(np.ones(3)),)) for _ in range(2))
>>> program_key((a,), STATE.epochs.current) == program_key((b,), STATE.epochs.current)
False
>>> end_epochs()
>>> c = record(Map("exp"), (leaf(np.ones(3)),))
>>> program_key((c,), STATE.epochs.current)[1] is a.structure[1]
True
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import knobs
from smelt.frontends.array.generalize import GeneralizedProgram
from smelt.frontends.array.memory import memory_order
from smelt.frontends.array.program import Program
from smelt.frontends.array.structure import Epoch, Structure, applied, is_parameter, structure_of
from smelt.frontends.array.value import STATE, Buffer, Value, sighting, size_carrier
from smelt.ops.create import Constant, Input
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.compiler.warm import CachedProgram

_LIMIT = 1024
"""Maximum programs in the cache."""
_ENTRIES_PER_KEY = 4
"""Maximum plans of one key, in case numbers alternate between plans."""

ProgramKey = tuple[Hashable, ...]


def program_key(outputs: Sequence[Value], epoch: Epoch) -> ProgramKey | None:
    """Return the key of the program that computes `outputs`: settings and structures.

    None if an output needs no operator, or if leaves cannot be read any more.
    """
    key: list[Hashable] = [knobs.fingerprint()]
    for x in outputs:
        of, structure = x.structure
        if of is not epoch or x.data is not None:
            structure = _pending_structure(x, epoch)
        if structure is None:
            return None
        key.append(structure)
    return tuple(key)


def _pending_structure(x: Any, epoch: Epoch) -> Structure | None:
    """Return the structure of a value that has none in this epoch.

    None if it is not pending, or if leaves cannot be read any more.
    """
    stack = [x]
    while stack:
        node = stack[-1]
        waiting = [
            i
            for i in node.inputs
            if i.data is None and i.structure[0] is not epoch and i.op.__class__ is not Constant
        ]
        stack += waiting
        if waiting or stack.pop().structure[0] is epoch:
            continue
        if node.data is not None or node.op.__class__ in (Constant, Input):
            return None
        seen = sighting(node.op, tuple([i.type for i in node.inputs]))
        key = (seen, *[structure_of(i, epoch) for i in node.inputs])
        if None in key:
            return None
        node.structure = (epoch, applied(key))
    return x.structure[1]


@dataclass(slots=True, eq=False)
class PlannedProgram:
    """A program with its plan, to be run on other elements and numbers."""

    lifted: GeneralizedProgram
    compiled: Compiled | CachedProgram
    sizes: tuple[int, ...]
    leaves: list[int] = field(default_factory=list)
    """Places of the leaves in the epoch; of the numbers in `numbers`."""
    numbers: list[int] = field(default_factory=list)
    orders: list[Hashable] | None = None
    """Memory orders of the leaves; None if all are C-contiguous."""
    runs: int = 0
    runner: Any = None
    """Native function that runs a record, called with its address and the inputs."""
    record: Any = None

    def takes(self, constants: Sequence[Any]) -> bool:
        """Return whether the numbers that are part of the plan are these."""
        for k, v in self.lifted.fixed_constants:  # noqa: SIM110 - a generator costs as much again
            if constants[k] != v:
                return False
        return True

    def bind(self, epoch: Epoch) -> tuple[list[Buffer], list[Any]] | None:
        """Return the leaves' elements and the numbers; None if the plan does not fit these.

        Raises ChangedError for leaves that were written.
        """
        buffers: list[Buffer] = []
        for place in self.leaves:
            reference = epoch.leaves.get(place)
            x = None if reference is None else reference()
            data = None if x is None else x.data if x.__class__ is Value else x.buffer()
            if data is None or (self.orders is None and not data.flags.c_contiguous):
                return None
            buffers.append(data)
        if self.orders is not None and [memory_order(x) for x in buffers] != self.orders:
            return None
        numbers = epoch.numbers
        constants = [numbers[place] for place in self.numbers]
        return (buffers, constants) if self.takes(constants) else None

    def inputs(self, buffers: list[Buffer], constants: Sequence[Any]) -> list[Buffer]:
        """Return what the graph reads: leaves, then numbers and carriers of sizes."""
        lifted = self.lifted
        if lifted.constant_inputs or lifted.size_inputs:
            free = lifted.graph.inputs[len(buffers) :]
            numbers = [
                np.asarray(constants[k], x.type.dtype.numpy)
                for k, x in zip(lifted.constant_inputs, free)
            ]
            carriers = [size_carrier(self.sizes[k]) for k in lifted.size_inputs]
            buffers = [*buffers, *numbers, *carriers]
        return (
            buffers if lifted.permutations is None else lifted.permutations.permute_inputs(buffers)
        )

    def run(self, buffers: list[Buffer], constants: Sequence[Any]) -> Sequence[Buffer]:
        """Return the results, and the flag of bounds checks."""
        inputs = self.inputs(buffers, constants)
        if self.record is not None:
            return self.runner(self.record.address, inputs)
        results = self.compiled.run(inputs, self.sizes)
        permutations = self.lifted.permutations
        if permutations is not None:
            return permutations.permute_results(results)
        self.runs += 1
        if self.runs == knobs.NATIVE_FROM_CALL and self.orders is None and knobs.NATIVE_CALLS.get():
            self.runner, self.record = _native(self.compiled, self.sizes, buffers)
        return results


PROGRAMS: dict[ProgramKey, list[PlannedProgram]] = {}
"""Programs by keys; several where numbers that are part of plans differ."""


def find(
    key: ProgramKey, epoch: Epoch
) -> tuple[PlannedProgram, list[Buffer], Sequence[Any]] | None:
    """Return the plan of an equal program, with the elements and numbers of this one."""
    for planned in PROGRAMS.get(key, ()):
        bound = planned.bind(epoch)
        if bound is not None and STATE.epochs.current is epoch:
            return planned, *bound
    return None


def remember(key: ProgramKey, planned: PlannedProgram, program: Program, epoch: Epoch) -> None:
    """Remember the plan of a program whose leaves have places in the epoch."""
    leaves: dict[Any, int] = {}
    for x in program.nodes:
        of, whole = x.structure
        if of is not epoch or STATE.epochs.current is not epoch:
            return
        for i, structure in zip(x.inputs, whole.key[1:], strict=True):
            if i.data is not None:  # type: ignore[attr-defined]
                if leaves.setdefault(i, structure.place) != structure.place:
                    return  # another thread read it meanwhile: the key is that of two leaves
            elif isinstance(i.op, Constant) and is_parameter(i.op):
                planned.numbers.append(structure.place)
    planned.leaves = [leaves[x] for x in program.leaves]
    orders = [memory_order(x) for x in program.buffers]
    planned.orders = orders if any(orders) else None
    if len(PROGRAMS) >= _LIMIT:
        PROGRAMS.clear()
    plans = PROGRAMS.setdefault(key, [])
    plans.insert(0, planned)
    del plans[_ENTRIES_PER_KEY:]


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
