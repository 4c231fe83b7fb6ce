"""Record repeated calls so that native code runs them without the Python interpreter.

A `Record` holds what a call must look like (types, sizes and memory layout of its arguments, the
settings in force) and what it does (the kernels' arguments as words, where addresses go, what the
results are). `c/call.c` matches and runs it in less than a microsecond; a call
that matches no record takes the Python path, which is authoritative.

Nothing of this is used before the running interpreter was checked: CPython with the GIL, NumPy 2,
every offset compared with what public interfaces report, a result created and taken apart. Any
mismatch turns it off.

>>> isinstance(is_supported(), bool)
True
"""

from __future__ import annotations

import ctypes
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from smelt import knobs
from smelt.runtime import native_layout as layout
from smelt.runtime.contradictions import CONTRADICTIONS, floor_ns
from smelt.runtime.executable import Executable, Prepared
from smelt.runtime.interpreter import is_supported
from smelt.runtime.library_calls import LocateError, with_library_calls
from smelt.runtime.memory import (
    RING_LIMIT,
    STOCK,
    Slab,
    address_of,
    size_class,
)
from smelt.runtime.native_call import (
    FrontEndClasses,
    RecordList,
    address_runner,
    install,
    result_row,
)
from smelt.runtime.threads import pool

__all__ = [
    "ArgumentTree",
    "FrontEndClasses",
    "Record",
    "ResultNest",
    "address_runner",
    "can_record",
    "install",
    "is_scalar",
    "is_supported",
    "pack_records",
    "record_by_address",
    "write_record",
]

Array = np.ndarray[Any, Any]

MAX_LOCKED_NS: Final = 20_000.0
"""Maximum predicted time of kernels that run with the GIL held, in ns.

Releasing and retaking it costs about a tenth of that, and other threads wait no longer than for a
slow Python function.
"""
MAX_OUT_COMPARISONS: Final = 1 << 14
"""Maximum pairs of arrays that a recorded call with `out=` tests for shared memory.

Each test takes about 2 ns; Python finds overlaps in logarithmic time.
"""
MAX_SOLO_NS: Final = 1_000_000.0
"""Maximum predicted time of single-threaded kernels without the pool, in ns.

The pool adds microseconds to a call; signals are handled only after the kernels finish.
"""


class Record:
    """Recorded call; `address` is where its words are stored."""

    __slots__ = ("_kept", "_settings", "address")

    def __init__(self, words: array[int], kept: Sequence[Any]) -> None:
        """Store the words; `kept` holds everything that they point to."""
        self.address = words.buffer_info()[0]
        self._settings = _settings()
        self._kept = (words, *kept)

    @property
    def current(self) -> bool:
        """Whether the record is for the settings in force."""
        return all(a is b for a, b in zip(self._settings, _settings(), strict=True))

    def __deepcopy__(self, memo: dict[int, Any]) -> Record:
        return self


def _settings() -> tuple[object, str]:
    """Return objects whose identities determine the settings in force."""
    return knobs.context_variable()[0].get(), knobs.fingerprint()


class ArgumentTree:
    """Position of a call's arguments inside its containers (tuples, lists, dicts).

    The items of a call are its positional arguments, then its keyword arguments, then the content
    of each container, container by container. `places` are the items that are arguments, in the
    order of `leaves`; `rows` hold kind, item, length, first item and keys of the containers.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], last: str = "") -> None:
        """Find the arguments; those of the keyword `last` come after all others."""
        self.positional, self.names = len(args), tuple(kwargs)
        self.leaves: list[Any] = []
        self.places: list[int] = []
        self.rows: list[tuple[int, int, int, int, tuple[Any, ...]]] = []
        self._items = [*args, *kwargs.values()]
        order = {name: len(args) + k for k, name in enumerate(kwargs)}
        names = sorted(kwargs, key=lambda name: (name == last, name))
        self.last = order.get(last, -1)
        """Item that the keyword `last` passes, -1 for none."""
        for place in (*range(len(args)), *(order[name] for name in names)):
            self._walk(place)

    @property
    def count(self) -> int:
        """Number of items."""
        return len(self._items)

    def _walk(self, place: int) -> None:
        x = self._items[place]
        kind = _NEST_KINDS.get(type(x))
        if kind is None:
            self.leaves.append(x)
            self.places.append(place)
            return
        first = len(self._items)
        content: Any = () if x is None else x
        keys = tuple(content) if kind == layout.NEST_DICT else ()
        self._items += content.values() if kind == layout.NEST_DICT else content
        self.rows.append((kind, place, len(content), first, keys))
        for k in range(len(content)):
            self._walk(first + k)


_NEST_KINDS: Final[Mapping[type, int]] = {
    tuple: layout.NEST_TUPLE,
    list: layout.NEST_LIST,
    dict: layout.NEST_DICT,
    type(None): layout.NEST_NONE,
}


class ResultNest(NamedTuple):
    """A tuple, list or dict of results.

    `items` index the results, then the nests; -1 is None.
    """

    kind: type
    items: tuple[int, ...]
    keys: tuple[Any, ...] = ()


class Argument(NamedTuple):
    """Requirement on an argument: an array like `example`, or a number.

    `number` is a Python or NumPy scalar type, or a truth value that must be identical. `replaces`
    marks an array of `out=`: the argument that is the same memory, -1 for none.
    """

    example: Array | None
    number: type | bool = float
    replaces: int | None = None


# ---- records -------------------------------------------------------------------------------------


@cache
def is_scalar(kind: type) -> bool:
    """Return whether native code can read scalars of this NumPy (or compatible) type."""
    offset = layout.SCALAR["VALUE"]
    if not issubclass(kind, np.generic) or kind.__basicsize__ < offset + 8:
        return False
    array = np.asarray(probe := kind(1))
    return (
        array.dtype.type is kind
        and array.itemsize <= 8
        and ctypes.string_at(id(probe) + offset, array.itemsize) == array.tobytes()
    )


def can_record(executable: object, *, held: bool = False) -> bool:
    """Return whether calls can be recorded at all; `held` if the prelude's results never change."""
    return type(executable) is Executable and (held or executable.prelude is None)


def pack_records(records: Sequence[Record]) -> bytes:
    """Pack a function's records, most recently used first; the caller keeps them alive."""
    return RecordList(array("q", [len(records), *(r.address for r in records)]).tobytes())


def write_record(
    prepared: Prepared,
    arguments: Sequence[Argument],
    nests: ArgumentTree,
    captured: Sequence[tuple[object, Array]],
    sources: Sequence[int],
    types: Sequence[object],
    pack: Callable[[tuple[Any, ...]], Any] | None,
    refuse: Callable[[], NoReturn] | None = None,
    *,
    single: bool,
    permutations: Sequence[tuple[int, ...] | None],
    locate: LocateError | None = None,
    result_nests: Sequence[ResultNest] = (),
    held: Sequence[Array] = (),
) -> Record | None:
    """Record a call; return None for one that only Python can make.

    Input k of the plan is argument `sources[k]`, or beyond the arguments a captured input;
    `captured` pairs each such value with its elements. `types` are the results' types. `single`
    returns the only result as it is; `pack` makes the return value from the tuple of results, and
    `result_nests` describe it, inner containers first, if native code can make it.
    `permutations` list the dimensions of the written array that each result has; None is the order
    of that array. With `refuse` the plan has an additional truth-value result, not returned: if it
    is true, `refuse` raises. A plan with library calls can be recorded only with `locate`, which
    locates their errors. The last arguments may be the arrays of `out=`, one for each result.
    `held` are the results of the plan's prelude, the same for each call of the record.
    """
    arrays = [a.example for a in arguments] + [a for _, a in captured]
    outs = [k for k, a in enumerate(arguments) if a.replaces is not None]
    if not _outs_fit(prepared, arguments, sources, outs, len(arrays)):
        return None
    places = [*sources, *outs, *range(len(arrays), len(arrays) + len(prepared.results) - len(outs))]
    runner, inputs = None, [x for k in sources if (x := arrays[k]) is not None]
    if locate is not None and len(inputs) == len(sources) and _calls_libraries(prepared):
        prepared, runner = with_library_calls(prepared, inputs, locate)
    if not _is_simple(prepared, runner):
        return None

    references: list[Any] = [prepared, pack, refuse, captured, nests.names, nests.rows, held]
    scope, printed = _settings()
    frame = prepared.frame[:]
    for slot, source, d in prepared.strides:  # equal at every call that matches the record
        data = arrays[sources[source]]
        frame[slot] = 0 if data is None else data.strides[d] // data.itemsize
    return _build_record(
        prepared,
        references,
        frame,
        places,
        types,
        {
            "COUNT": len(arguments),
            "OUT": nests.last + 1 if outs else 0,
            "OUT_COUNT": len(outs),
            "SCOPE": id(scope),
            "PRINTED": id(printed),
            "CAPTURED_COUNT": len(captured),
            "SINGLE": single,
            "PACK": 0 if pack is None else id(pack),
            "POSITIONAL": nests.positional,
            "REFUSE": 0 if refuse is None else id(refuse),
            "NAME_COUNT": len(nests.names),
            "NEST_COUNT": len(nests.rows),
            "RESULT_NEST_COUNT": len(result_nests),
        },
        {
            "ARGUMENTS": _argument_rows(arguments, nests.places, references),
            "NAMES": array("q", map(id, nests.names)),
            "NESTS": _nest_rows(nests, references),
            "CAPTURED": _captured_rows(captured, references),
            "RESULT_NESTS": _result_nest_rows(result_nests, references),
        },
        permutations,
        runner,
        nests.count,
        [address_of(x) for x in held],
    )


def record_by_address(
    executable: Executable,
    sizes: tuple[int, ...],
    wrap: Callable[[Array], Any],
    strides: Mapping[tuple[int, int], int] = {},
) -> Record | None:
    """Record a call on addresses; return None if only Python can make it.

    Addresses of the prelude's results follow those of the inputs. `wrap` makes the return value
    from an array. `strides` are the strides that the plan reads, in elements, by input and
    dimension.
    """
    if type(executable) is not Executable:
        return None
    prepared = executable.prepared(sizes)
    inputs, prelude_count = (
        sum(v.place == p for v in executable.values) for p in ("input", "held")
    )
    count, fresh = inputs + prelude_count, 0
    places = [*range(inputs)]
    for *_, over in prepared.results:
        places.append(over if over >= 0 else count + fresh)
        fresh += over < 0
    places += range(inputs, count)
    strides_given = all((source, d) in strides for _, source, d in prepared.strides)
    if not strides_given or not _is_simple(prepared):
        return None
    frame = prepared.frame[:]
    for slot, source, d in prepared.strides:
        frame[slot] = strides[source, d]
    words = {"COUNT": count, "WRAP": id(wrap)}
    return _build_record(prepared, [prepared, wrap], frame, places, [None] * fresh, words, {})


def _outs_fit(
    p: Prepared, arguments: Sequence[Argument], sources: Sequence[int], outs: list[int], count: int
) -> bool:
    """Return whether results can be written where they belong: `outs`, or else new memory.

    A result that replaces an input needs an array of `out=` that is this input.
    """
    replaced = [sources[over] if over >= 0 else -1 for *_, over in p.results]
    if not outs:
        return all(k < 0 for k in replaced)
    is_last = outs == [*range(len(arguments) - len(outs), len(arguments))]
    if not is_last or len(outs) * count > MAX_OUT_COMPARISONS:
        return False
    for k, replaces in zip(outs, replaced):
        a = arguments[k]
        read = a.replaces if a.replaces in sources else -1  # others may be overwritten
        contiguous = a.example is not None and a.example.flags.carray
        if read != replaces or not contiguous:
            return False
    return True


def _is_simple(p: Prepared, runner: object = None) -> bool:
    """Return whether a call runs kernels only, or has a function that runs it."""
    return runner is not None or (len(p.segments) <= 1 and not _calls_libraries(p))


def _calls_libraries(p: Prepared) -> bool:
    return any(s.call is not None for s in p.segments)


def _build_record(
    p: Prepared,
    references: list[Any],
    frame: array[int],
    places: Sequence[int],
    types: Sequence[object],
    words: Mapping[str, int],
    tables: Mapping[str, array[int]],
    permutations: Sequence[tuple[int, ...] | None] = (),
    runner: Callable[[int], None] | None = None,
    items: int = 0,
    held: Sequence[int] = (),
) -> Record:
    """Build a record from `words` and `tables`, adding what follows from sizes.

    `places` are the sources of the addresses that the plan reads, before those of `held`, which are
    the same in every call; `runner` runs the call, given the frame's address; `items` counts the
    arguments and the content of their containers.
    """
    ring = _ring_assigner()
    results = array("q")
    returned = p.results[:-1] if words.get("REFUSE") else p.results
    if words.get("OUT"):
        returned = []
    orders = permutations or [None] * len(returned)
    fresh = [(r[1:4], order) for r, order in zip(returned, orders) if r[-1] < 0]
    for ((shape, dtype, nbytes), permutation), type_ in zip(fresh, types, strict=True):
        results += result_row(shape, dtype, nbytes, type_, references, ring(nbytes), permutation)
    run_words = _run_words(p, references, runner)
    arena, arena_bytes = array("q"), p.arena_bytes
    if run_words.get("UNLOCKED"):  # other calls may run concurrently: use private scratch
        arena_bytes = run_words["SCRATCH"] + p.scratch
    if arena_bytes:
        arena = result_row((), np.uint8, arena_bytes, None, references, ring(arena_bytes))
    patches = array("q")
    for slot, source, offset in p.addresses:
        if source < len(places):
            patches.extend((slot, places[source], offset))
        else:
            frame[slot] = held[source - len(places)] + offset
    all_tables = {
        **tables,
        "RESULTS": results,
        "FRAME": frame,
        "PATCHES": patches,
        "ARENA": arena,
        "ARENA_PATCHES": array("q", [w for pair in p.arena for w in pair]),
    }
    leaves = 16 * words["COUNT"]  # arrays and numbers; the items are gone when addresses come
    addresses = words["COUNT"] + words.get("CAPTURED_COUNT", 0) + len(fresh) + 1
    frame_at = -(-(leaves + 8 * addresses) // 64) * 64
    all_words = {
        **dict.fromkeys(layout.RECORD, 0),
        "FRAME_AT": frame_at,
        "ROOM": max(frame_at + 8 * len(frame), leaves + 8 * items),
        **words,
        "RESULT_COUNT": len(fresh),
        "FRAME_WORDS": len(frame),
        "PATCH_COUNT": len(patches) // 3,
        "ARENA_COUNT": len(p.arena),
        **{name: t.buffer_info()[0] if t else 0 for name, t in all_tables.items()},
        **run_words,
    }
    record_words = array("q", [all_words[name] for name in layout.RECORD])
    record = Record(record_words, [*references, *all_tables.values()])
    record_words[layout.RECORD["OWNER"] // 8] = id(record)
    return record


def _ring_assigner() -> Callable[[int], int]:
    """Return a function that assigns a ring to each of a call's blocks, by bytes."""
    if knobs.POOL_LIMIT.get() < 2 * RING_LIMIT * layout.RING_BLOCKS:
        return lambda _: 0
    counts = Counter[int]()

    def ring(nbytes: int) -> int:
        capacity = size_class(nbytes)
        counts[capacity] += 1
        return STOCK.ring(nbytes, counts[capacity] - 1)

    return ring


def _nest_rows(nests: ArgumentTree, references: list[Any]) -> array[int]:
    rows = array("q")
    for kind, item, count, first, keys in nests.rows:
        table = array("q", map(id, keys))
        references.append(table)
        rows.extend((kind, item, count, first, table.buffer_info()[0] if keys else 0))
    return rows


def _result_nest_rows(nests: Sequence[ResultNest], references: list[Any]) -> array[int]:
    rows = array("q")
    for kind, items, keys in nests:
        item_table, key_table = array("q", items), array("q", map(id, keys))
        references += [keys, item_table, key_table]
        addresses = [t.buffer_info()[0] if t else 0 for t in (item_table, key_table)]
        rows.extend((_NEST_KINDS[kind], len(items), *addresses))
    return rows


_NUMBERS: Final[Mapping[object, int]] = {float: layout.KIND_FLOAT, int: layout.KIND_INT}


def _argument_rows(
    arguments: Sequence[Argument], places: Sequence[int], references: list[Any]
) -> array[int]:
    rows = array("q")
    for a, place in zip(arguments, places, strict=True):
        if a.example is None:
            is_type = isinstance(a.number, type)
            kind = _NUMBERS.get(a.number, layout.KIND_SCALAR) if is_type else layout.KIND_SAME
            references.append(a.number)
            rows.extend((kind, id(a.number), 0, 0, 0, 0, place, 0, 0, -1))
        else:
            rows.extend(_array_row(a.example, place, references, a.replaces))
    return rows


def _array_row(
    data: Array, place: int, references: list[Any], replaces: int | None = None
) -> tuple[int, ...]:
    dims, strides = array("q", data.shape), array("q", data.strides)
    flags = data.flags.num & layout.READABLE
    references += [data.dtype, dims, strides]
    low, high = np.lib.array_utils.byte_bounds(data) if data.size else (0, 0)
    start = address_of(data) if data.size else 0
    return (
        layout.KIND_ARRAY if replaces is None else layout.KIND_OUT,
        id(data.dtype),
        flags,
        data.ndim,
        dims.buffer_info()[0],
        0 if flags & 1 else strides.buffer_info()[0],
        place,
        low - start,
        high - start,
        -1 if replaces is None else replaces,
    )


def _captured_rows(captured: Sequence[tuple[object, Array]], references: list[Any]) -> array[int]:
    rows = array("q")
    for value, data in captured:
        rows.extend((id(value), id(data), *_array_row(data, 0, references)))
    return rows


def _run_words(
    p: Prepared, references: list[Any], runner: Callable[[int], None] | None
) -> dict[str, int]:
    """Return the record's words for running: chunks inline, or a function using the pool."""
    if not p.segments:
        return {}
    if runner is not None:
        references.append(runner)
        return {"RUNNER": id(runner)}
    (s,) = p.segments
    if p.work > MAX_SOLO_NS or (p.parallel and pool().requested_threads > 1):
        runner = partial(_run, s.chunks, s.launches, s.count, p.scratch)
        if floor := floor_ns([nbytes for *_, nbytes, _ in p.results]):
            runner = partial(_run_noted, runner, floor)
        references.append(runner)
        return {"RUNNER": id(runner)}
    inline = {"CHUNKS": s.chunks, "CHUNK_COUNT": len(s.tables[0])}
    if p.work > MAX_LOCKED_NS:
        return {**inline, "UNLOCKED": 1, "SCRATCH": -(-p.arena_bytes // 64) * 64}
    scratch = _scratch(p.scratch)
    references.append(scratch)
    return {**inline, "SCRATCH": scratch.address}


def _run(chunks: int, launches: int, count: int, scratch: int, frame: int) -> None:
    pool().run_addresses(chunks, launches, count, frame, scratch)


def _run_noted(run: Callable[[int], None], floor: float, frame: int) -> None:
    start = perf_counter_ns()
    run(frame)
    CONTRADICTIONS.note(floor, perf_counter_ns() - start)


class _Scratch:
    """Shared memory for kernels' intermediates; the holder of the GIL may use it."""

    slab: Slab | None = None


def _scratch(nbytes: int) -> Slab:
    slab = _Scratch.slab
    if slab is None or slab.nbytes < nbytes:
        slab = _Scratch.slab = Slab(nbytes)
    return slab
