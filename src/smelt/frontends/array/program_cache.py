"""Pending programs that were run before, operator for operator and size for size.

`smelt.frontends.array.program` spells a program so that others of its kind find its plan.  One that
is the same in everything but the values of its arrays and numbers need not be taken apart so far:
types and operators in their order find what ran, which runs again, by native code if it can.

>>> a, b = (record(Map("exp"), (leaf(np.ones(3)),)) for _ in range(2))
>>> spell((a,)).key == spell((b,)).key
True
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.frontends.array.generalize import Lifted
from smelt.frontends.array.program import Program, is_free
from smelt.frontends.array.value import Buffer, Map, Value, leaf, record, teller
from smelt.imports import imported
from smelt.ops.create import Constant, Input

if TYPE_CHECKING:
    from smelt.driver import Compiled
    from smelt.warm import Found

__all__ = ["KNOWN", "Map", "Repeat", "Spelled", "leaf", "notice", "record", "spell"]

_LIMIT = 1024
_MOST_MADE = 4
"""Repeats made for one key: numbers that alternate between two plans are not worth more."""


class Spelled(NamedTuple):
    """A program as the key of a table, and what differs among programs with one key."""

    key: tuple[Hashable, ...]
    buffers: list[Buffer]
    """The elements of the leaves, in order."""
    constants: list[Any]
    """Ordinary numbers, as often as they are operands."""
    order: dict[Value, int]
    """Leaves and operators, operands first."""


def spell(outputs: Sequence[Value]) -> Spelled | None:
    """The program of these pending values, its leaves and operators in the order of `Program`; None
    where memory is in another order than rows.

    Raises DonatedError and ChangedError for leaves that cannot be read any more.
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
            place = order.get(i)
            if place is not None:
                part.append(place)
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
            elif is_free(i.op):
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
    return Spelled(tuple(key), buffers, constants, order)


@dataclass(slots=True, eq=False)
class Repeat:
    """What a program ran, to be run again."""

    lifted: Lifted
    compiled: Compiled | Found
    sizes: tuple[int, ...]
    told: list[Buffer]
    """Inputs that nobody reads: their shapes tell sizes."""
    types: list[Any]
    """Of the inputs that are numbers."""
    kept: list[object]
    at: Any = None
    """Runs the record, given its address and the inputs."""
    record: Any = None

    def run(self, buffers: list[Buffer], constants: Sequence[Any]) -> Sequence[Buffer] | None:
        """The results, and what its checks found; None if it is for other numbers."""
        for k, v in self.lifted.fixed:
            if constants[k] != v:
                return None
        if self.types:
            free = zip(self.lifted.free, self.types, strict=True)
            buffers = buffers + [np.asarray(constants[k], t) for k, t in free]
        if self.told:
            buffers = buffers + self.told
        if self.record is None:
            return self.compiled.run(buffers, self.sizes)
        return self.at(self.record.address, buffers)


@dataclass(slots=True, eq=False)
class _Known:
    """What is known of a key."""

    repeat: Repeat | None = None
    made: int = 0
    calls: int = 0


KNOWN: dict[Hashable, _Known] = {}
"""What was run, by keys."""


def find(spelled: Spelled) -> Repeat | None:
    """What an equal program ran, if it is worth knowing."""
    known = KNOWN.get(spelled.key)
    return None if known is None else known.repeat


def notice(
    spelled: Spelled,
    program: Program,
    lifted: Lifted,
    compiled: Compiled | Found,
    sizes: tuple[int, ...],
) -> None:
    """A program was run in the long way: from the second time on, what ran is remembered."""
    known = KNOWN.get(spelled.key)
    if known is None:
        if len(KNOWN) >= _LIMIT:
            KNOWN.clear()
        known = KNOWN[spelled.key] = _Known()
    known.calls += 1
    if known.calls < knobs.NATIVE_FROM_CALL or known.made >= _MOST_MADE:
        return
    known.made += 1
    nodes = [x for x in spelled.order if x.data is None]
    if (
        lifted.turns is not None
        or nodes != program.nodes
        or [*map(id, spelled.buffers)] != [*map(id, program.buffers)]
    ):
        return
    first = len(program.buffers)
    inputs = lifted.graph.inputs[first : first + len(lifted.free)]
    made = Repeat(
        lifted,
        compiled,
        sizes,
        [teller(sizes[k]) for k in lifted.told],
        [x.type.dtype.numpy for x in inputs],
        _kept(spelled.order),
    )
    if knobs.NATIVE_CALLS.get():
        made.at, made.record = _native(compiled, sizes, program.buffers)
    known.repeat = made


def _kept(order: Iterable[Value]) -> list[object]:
    """What a key knows by identity."""
    types: list[object] = [x.type for x in order if x.data is not None]
    return types + [i for x in order for i in x.inputs if isinstance(i.op, Constant)]


def _native(
    compiled: Compiled | Found, sizes: tuple[int, ...], buffers: Sequence[Buffer]
) -> tuple[Any, Any]:
    """What runs records, and a record of such calls; None twice if only Python can make them."""
    executable: Any = compiled.executable
    at = _calls().runner_at()
    if at is None or not _calls().can_run(executable):
        return None, None
    prepared = executable.prepared(sizes)
    if len(prepared.results) != len(executable.outputs):
        return None, None
    told = {
        (k, d): buffers[k].strides[d] // buffers[k].itemsize
        for _, k, d in prepared.strides
        if k < len(buffers)
    }
    record = _calls().record_at(executable, sizes, _given, told)
    return (None, None) if record is None else (at, record)


def _given(x: Buffer) -> Buffer:
    """What a record gives is taken as it is."""
    return x


@cache
def _calls() -> Any:
    """The run time's part, imported by the first repeated program."""
    return imported("smelt.runtime.call_cache")
