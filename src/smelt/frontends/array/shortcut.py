"""Hand repeated calls of jitted functions to native code.

`Jit.__call__` finds an `ExactCall`: the recording and the sizes for arguments of certain types and
shapes.  From the second such call on, it is encoded as a record (`smelt.runtime.call_cache`), and
calls that match the record run without Python.  The following stay with Python: donated and static
arguments, Smelt arrays in `out=`, containers other than tuples, lists and dicts, recordings that
depend on values of numbers, and results that are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from smelt import knobs
from smelt.frontends.array.array import Array
from smelt.frontends.array.results import pack
from smelt.frontends.array.trace import Trace
from smelt.frontends.array.tree import LEAF
from smelt.frontends.array.value import STATE, Buffer, CopiedOperand, Foreign, Value, intern, leaf
from smelt.graph.bounds_checks import refuse_out_of_bounds
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import
from smelt.types.dtype import from_numpy

if TYPE_CHECKING:
    from smelt.runtime.call_cache import Record

_SLOTS = {
    name.upper(): name for name in ("data", "op", "inputs", "type", "origin", "scope", "sample")
}
NUMBER_TYPES = (float, int, np.float64)
"""Types that are recorded as Python numbers."""
MAX_RECORDS = 8
"""Maximum records made for one `ExactCall`, in case settings change all the time."""


@dataclass(slots=True, eq=False)
class ExactCall:
    """A call by types and shapes of its arguments: recording, sizes and native record."""

    trace: Trace
    sizes: tuple[int, ...]
    calls: int = 0
    records_made: int = 0
    """Number of records made; above `MAX_RECORDS` if no record is possible."""
    record: Record | None = None
    arrays: Sequence[Buffer | None] = ()
    """Memory of the captured arrays that the record reads."""


class Outputs(NamedTuple):
    """Arrays of `out=`, one for each result.

    `replaces` has the argument that is the same memory, -1 for none.
    """

    arrays: Sequence[Buffer] = ()
    replaces: Sequence[int] = ()


NO_OUTPUTS = Outputs()


class HasRecords(Protocol):
    """Function that has records."""

    line: bytes | None
    records: tuple[Record, ...]


def count_call(
    home: HasRecords,
    exact: ExactCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    outputs: Outputs = NO_OUTPUTS,
) -> None:
    """Count a call that Python answered and, if it repeats, make a native record.

    `leaves` are the arrays and numbers that the front end found in the arguments.  `outputs` are
    the arrays of the keyword `out`, if that is not an argument of the function.
    """
    exact.calls += 1
    if (
        exact.calls < knobs.NATIVE_FROM_CALL
        or exact.records_made > MAX_RECORDS
        or not knobs.NATIVE_CALLS.get()
    ):
        return
    captured = exact.trace.captured
    if any(x.shared and x.sample is not None for x in captured):
        return  # pending operators read this memory: each call has to check it for changes
    record, arrays = exact.record, [x.data for x in captured]
    if record is None or not record.current or not all(map(is_, arrays, exact.arrays)):
        ready = _install(type(home))
        if ready is None:
            return
        record = _record(exact, args, kwargs, leaves, outputs) if ready else None
        exact.records_made += 1 if record is not None else MAX_RECORDS + 1
        if record is None:
            return
    others = [r for r in home.records if r is not record and r is not exact.record]
    records = (record, *others[: MAX_RECORDS - 1])
    encoded = _calls().pack_records(records)
    exact.record, exact.arrays = record, arrays
    home.line = None  # first, because an interrupt may come between these assignments
    home.records = records
    home.line = encoded


@cache
def _calls() -> Any:
    """Import the native call cache on the first repeated call."""
    return fork_safe_import("smelt.runtime.call_cache")


def _install(owner: type) -> bool | None:
    """Return whether native code answers calls of a class; None: not ready yet."""
    calls = _calls()
    source = leaf(np.zeros(())).op
    owner = next(c for c in owner.__mro__ if "line" in vars(c))  # has the slot of the records
    ready: bool | None = calls.install(
        calls.FrontEndClasses(owner, Array, (Value, Foreign, CopiedOperand), _SLOTS, source, STATE)
    )
    return ready


def _record(
    exact: ExactCall,
    entries: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    outputs: Outputs,
) -> Record | None:
    """Encode a call; None if only Python can make it."""
    trace, sizes = exact.trace, exact.sizes
    calls = _calls()
    nests = calls.ArgumentTree(entries, kwargs, "out" if outputs.arrays else "")
    arguments = [_argument(x) for x in leaves]
    arguments += [(x, float, k) for x, k in zip(*outputs, strict=True)]
    leaves = [*leaves, *outputs.arrays]
    executable: Any = trace.executable.executable
    captured = [(x, x.data) for x in trace.captured]
    if (
        None in arguments
        or trace.checked_first is not None
        or [*map(id, nests.leaves)] != [*map(id, leaves)]
        or (trace.value_dependent and any(x.__class__ in NUMBER_TYPES for x in leaves))
        or not calls.can_record(executable, held=_holds_constants(trace, executable))
        or any(data.__class__ is not np.ndarray for _, data in captured)
    ):
        return None
    held = _held_arrays(trace, executable)
    if held is None:
        return None
    prepared = executable.prepared(sizes)
    has_flag = trace.bounds.flag is not None
    if len(prepared.results) != len(trace.results) + has_flag or not trace.only_outputs:
        return None
    entries = prepared.results[: len(trace.results)]
    orders = [None] * len(entries) if trace.permutations is None else trace.permutations.outputs
    types = [
        intern(from_numpy(np.dtype(d)), shape if p is None else tuple(shape[k] for k in p))
        for (_, shape, d, _, _), p in zip(entries, orders, strict=True)
    ]
    has_plain_inputs = trace.permutations is None and not trace.size_inputs
    sources = [*trace.arguments, *range(len(leaves), len(leaves) + len(captured))]
    plain = trace.single or _is_tuple(trace) or outputs.arrays
    record: Record | None = calls.write_record(
        prepared,
        [calls.Argument(*a) for a in arguments if a is not None],
        nests,
        captured,
        sources,
        [] if outputs.arrays else types,
        None if plain else partial(pack, trace),
        partial(refuse_out_of_bounds, trace.bounds.readers) if has_flag else None,
        single=trace.single,
        permutations=orders,
        locate=(lambda error, inputs: trace.locate_error(error, inputs, sizes))
        if has_plain_inputs
        else None,
        result_nests=() if plain else _result_nests(trace),
        held=held,
    )
    return record


def _holds_constants(trace: Trace, executable: Any) -> bool:
    """Return whether what a program computes once from captured values never changes."""
    is_plain = trace.permutations is None and not trace.size_inputs
    return is_plain and not any(x.shared for x in _prelude_sources(trace, executable).values())


def _prelude_sources(trace: Trace, executable: Any) -> dict[int, Value]:
    """Return the captured values that the prelude reads, by input."""
    sources = () if executable.prelude is None else executable.prelude.sources
    return {k: trace.captured[k - len(trace.arguments)] for k in sources}


def _held_arrays(trace: Trace, executable: Any) -> Sequence[Buffer] | None:
    """Return what a program computed once from captured values; None if it is not kept."""
    if executable.prelude is None:
        return ()
    values = _prelude_sources(trace, executable)
    owners, stamps = [*values.values()], (None,) * len(values)
    runs = [executable.prelude.run(owners, stamps, lambda k: values[k].data) for _ in range(2)]
    return runs[0].arrays if runs[0] is runs[1] else None


def _argument(x: Any) -> tuple[Any, ...] | None:
    kind = x.__class__
    if kind is bool:  # a constant of the recording
        return None, x
    if kind is float or kind is int:
        return None, kind
    data = x.node.data if kind is Array else x
    if data.__class__ is np.ndarray:
        return data, float
    return (None, kind) if _calls().is_scalar(kind) else None


def _result_nests(trace: Trace) -> list[Any]:
    """Return the containers of the results, inner ones first.

    Empty if Python has to build them.
    """
    nests: list[Any] = []
    count = len(trace.results)

    def walk(tree: Any, leaves: Iterator[int]) -> int:
        """Return the index of a leaf or container, -1 for None."""
        if tree == LEAF:
            return next(leaves)
        kind, type_, names, children = tree
        if kind == "none":
            return -1
        if type_ not in (tuple, list, dict):
            raise LookupError
        items = tuple([walk(child, leaves) for child in children])
        nests.append(_calls().ResultNest(type_, items, names or ()))
        return count + len(nests) - 1

    try:
        walk(trace.tree, iter(range(count)))
    except LookupError:
        return []
    return nests


def _is_tuple(trace: Trace) -> bool:
    tree: Any = trace.tree
    return tree != LEAF and tree[:3] == ("sequence", tuple, None) and set(tree[3]) == {LEAF}
