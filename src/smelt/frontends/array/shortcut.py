"""Calls of jitted functions that were made before, handed to native code.

The Python way of `Jit.__call__` finds an `Exact`: the recording and the sizes that arguments of
these types and shapes lead to.  From the second such call on, what it does is written down as a
record (`smelt.runtime.call_cache`), and calls that fit it need no Python any more.  Donated and
static arguments, `out=`, containers of other kinds than tuples, lists and dicts, recordings that
look at numbers and results that are arguments stay with Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.frontends.array.array import Array
from smelt.frontends.array.results import pack
from smelt.frontends.array.trace import Trace
from smelt.frontends.array.tree import LEAF
from smelt.frontends.array.value import STATE, Buffer, Foreign, Value, Watched, intern, leaf
from smelt.graph.bounds_checks import refused
from smelt.imports import imported
from smelt.types.dtype import from_numpy

if TYPE_CHECKING:
    from smelt.runtime.call_cache import Record

__all__ = ["Exact", "Remembering", "notice"]

_SLOTS = {
    name.upper(): name for name in ("data", "op", "inputs", "type", "origin", "scope", "sample")
}
NUMBERS = (float, int, np.float64)
"""What is recorded as a Python number."""
MOST_RECORDS = 8
"""Made for one `Exact`: settings that change all the time are not worth more."""


@dataclass(slots=True, eq=False)
class Exact:
    """What arguments of certain types and shapes lead to."""

    trace: Trace
    sizes: tuple[int, ...]
    calls: int = 0
    made: int = 0
    """Records made so far; too many once it is known that none is possible."""
    record: Record | None = None
    arrays: Sequence[Buffer | None] = ()
    """The memory of captured arrays that the record reads."""


class Remembering(Protocol):
    """A function with records."""

    line: bytes | None
    records: tuple[Record, ...]


def notice(
    home: Remembering,
    found: Exact,
    given: tuple[Any, ...],
    named: dict[str, Any],
    leaves: Sequence[Any],
) -> None:
    """A call with these arguments was answered by Python: let native code answer the next one.
    `leaves` are what the front end has found in them."""
    found.calls += 1
    if (
        found.calls < knobs.NATIVE_FROM_CALL
        or found.made > MOST_RECORDS
        or not knobs.NATIVE_CALLS.get()
    ):
        return
    captured = found.trace.captured
    if any(x.shared and x.sample is not None for x in captured):
        return  # something pending waits: such calls look whether it must be told of a change
    made, arrays = found.record, [x.data for x in captured]
    if made is None or not made.current or not all(map(is_, arrays, found.arrays)):
        ready = _install(type(home))
        if ready is None:
            return
        made = _record(found, given, named, leaves) if ready else None
        found.made += 1 if made is not None else MOST_RECORDS + 1
        if made is None:
            return
    others = [r for r in home.records if r is not made and r is not found.record]
    records = (made, *others[: MOST_RECORDS - 1])
    line = _calls().line(records)
    found.record, found.arrays = made, arrays
    home.line = None  # an interrupt may come between any two of these
    home.records = records
    home.line = line


@cache
def _calls() -> Any:
    """The run time's part, imported by the first repeated call."""
    return imported("smelt.runtime.call_cache")


def _install(owner: type) -> bool | None:
    """Whether calls of a class of functions are native now; None: not yet."""
    calls = _calls()
    source = leaf(np.zeros(())).op
    ready: bool | None = calls.install(
        calls.Face(owner, Array, (Value, Foreign, Watched), _SLOTS, source, STATE)
    )
    return ready


def _record(
    found: Exact, given: tuple[Any, ...], named: dict[str, Any], leaves: Sequence[Any]
) -> Record | None:
    """The call written down; None if only Python can make it."""
    trace, sizes = found.trace, found.sizes
    calls = _calls()
    nests = calls.Nests(given, named)
    arguments = [_argument(x) for x in leaves]
    executable: Any = trace.executable.executable
    captured = [(x, x.data) for x in trace.captured]
    if (
        None in arguments
        or [*map(id, nests.leaves)] != [*map(id, leaves)]
        or (trace.fixed and any(x.__class__ in NUMBERS for x in leaves))
        or not calls.can_run(executable)
        or any(data.__class__ is not np.ndarray for _, data in captured)
    ):
        return None
    prepared = executable.prepared(sizes)
    looks = trace.looks.flag is not None
    if len(prepared.results) != len(trace.results) + looks or not trace.plain:
        return None
    given = prepared.results[: len(trace.results)]
    turns = [None] * len(given) if trace.turns is None else trace.turns.outputs
    types = [
        intern(from_numpy(np.dtype(d)), shape if p is None else tuple(shape[k] for k in p))
        for (_, shape, d, _, _), p in zip(given, turns, strict=True)
    ]
    plain = trace.turns is None and not trace.told
    sources = [*trace.arguments, *range(len(leaves), len(leaves) + len(captured))]
    made: Record | None = calls.record(
        prepared,
        [calls.Argument(*a) for a in arguments if a is not None],
        nests,
        captured,
        sources,
        types,
        None if trace.single or _is_tuple(trace) else partial(pack, trace),
        partial(refused, trace.looks.readers) if looks else None,
        single=trace.single,
        turns=turns,
        tell=partial(_tell, trace, sizes) if plain else None,
    )
    return made


def _tell(trace: Trace, sizes: tuple[int, ...], error: SmeltError, given: list[Buffer]) -> None:
    trace.tell(error, given, sizes)


def _argument(x: Any) -> tuple[Buffer | None, type | bool] | None:
    kind = x.__class__
    if kind is bool:  # a part of the recording, as a constant would be
        return None, x
    if kind is float or kind is int:
        return None, kind
    data = x.node.data if kind is Array else x
    if data.__class__ is np.ndarray:
        return data, float
    return (None, kind) if _calls().is_scalar(kind) else None


def _is_tuple(trace: Trace) -> bool:
    tree: Any = trace.tree
    return tree != LEAF and tree[:3] == ("sequence", tuple, None) and set(tree[3]) == {LEAF}
