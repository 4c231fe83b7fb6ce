"""Repeated calls as native code: an interpreter's work done once, then written down as a record.

A `Record` says what a call must look like (types, sizes and order in memory of its arguments, the
settings in force) and what it does (the kernels' arguments as words, where addresses go, what the
results are).  `smelt.runtime.native_call` compares and runs it in a fraction of a microsecond;
whatever fits no record goes the way of Python, which stays the truth.

Nothing of this is used before the running interpreter has been looked at: CPython with its lock,
NumPy 2, every offset compared with what the public interfaces say, a result made and taken apart.
What differs in any of them turns it off.

>>> isinstance(is_possible(), bool)
True
"""

from __future__ import annotations

import ctypes
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from smelt import knobs
from smelt.runtime import native_call as code
from smelt.runtime.executable import Executable, Prepared
from smelt.runtime.interpreter import is_possible
from smelt.runtime.library_calls import Tell, among
from smelt.runtime.memory import RING_BLOCKS, RING_LIMIT, STOCK, Slab, size_class
from smelt.runtime.native_call_code import Face, Line, install, result_row, runner_at
from smelt.runtime.threads import pool

__all__ = [
    "Face",
    "Nests",
    "Record",
    "can_run",
    "install",
    "is_possible",
    "is_scalar",
    "line",
    "record",
    "record_at",
    "runner_at",
]

Array = np.ndarray[Any, Any]

LOCKED_NS: Final = 20_000.0
"""Predicted time up to which kernels run with the interpreter lock held: letting it go and taking
it again costs a tenth of that, and nobody waits longer for it than for a slow Python function."""
SOLO_NS: Final = 1_000_000.0
"""Predicted time up to which kernels that one thread runs are run apart from the pool, whose part
of a call is microseconds: a signal is handled no sooner than they end."""
MOST_FRAME_WORDS: Final = 1024


class Record:
    """One call written down: `address` is where its words are."""

    __slots__ = ("_kept", "_settings", "address")

    def __init__(self, words: array[int], kept: Sequence[Any]) -> None:
        """`kept` is all that the words refer to."""
        self.address = words.buffer_info()[0]
        self._settings = _settings()
        self._kept = (words, *kept)

    @property
    def current(self) -> bool:
        """Whether it is for the settings in force."""
        return all(a is b for a, b in zip(self._settings, _settings(), strict=True))

    def __deepcopy__(self, memo: dict[int, Any]) -> Record:
        return self


def _settings() -> tuple[object, str]:
    """What tells the settings in force, by identity."""
    return knobs.variable()[0].get(), knobs.fingerprint()


class Nests:
    """How the arguments of a call stand in its containers.

    The items of a call are what is given by place, then by name, then what each container holds,
    container after container.  `places` are those of the arguments among them, in the order in
    which `leaves` has them; `rows` are kind, item, length, first item and keys of the containers.
    """

    def __init__(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.positional, self.names = len(given), tuple(named)
        self.leaves: list[Any] = []
        self.places: list[int] = []
        self.rows: list[tuple[int, int, int, int, tuple[Any, ...]]] = []
        self._items = [*given, *named.values()]
        order = {name: len(given) + k for k, name in enumerate(named)}
        for place in (*range(len(given)), *(order[name] for name in sorted(named))):
            self._walk(place)

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self._items)

    def _walk(self, place: int) -> None:
        x = self._items[place]
        kind = _NESTS.get(type(x))
        if kind is None:
            self.leaves.append(x)
            self.places.append(place)
            return
        first = len(self._items)
        held: Any = () if x is None else x
        keys = tuple(held) if kind == code.NEST_DICT else ()
        self._items += held.values() if kind == code.NEST_DICT else held
        self.rows.append((kind, place, len(held), first, keys))
        for k in range(len(held)):
            self._walk(first + k)


_NESTS: Final[Mapping[type, int]] = {
    tuple: code.NEST_TUPLE,
    list: code.NEST_LIST,
    dict: code.NEST_DICT,
    type(None): code.NEST_NONE,
}


class Argument(NamedTuple):
    """What an argument must be: an array like this one, a number or a scalar of this type, or this
    truth value."""

    example: Array | None
    number: type | bool = float


# ---- records -------------------------------------------------------------------------------------


@cache
def is_scalar(kind: type) -> bool:
    """Whether native code can read scalars of one of NumPy's types, or of types beside them."""
    if not issubclass(kind, np.generic) or kind.__basicsize__ < code.SCALAR_AT + 8:
        return False
    one = np.asarray(probe := kind(1))
    return (
        one.dtype.type is kind
        and one.itemsize <= 8
        and (ctypes.string_at(id(probe) + code.SCALAR_AT, one.itemsize) == one.tobytes())
    )


def can_run(executable: object) -> bool:
    """Whether calls of what a compiled graph runs as may be written down at all."""
    return type(executable) is Executable and executable.prelude is None


def line(records: Sequence[Record]) -> bytes:
    """What a function's slot holds: its records, those used last first.  The caller keeps them."""
    return Line(array("q", [len(records), *(r.address for r in records)]).tobytes())


def record(
    prepared: Prepared,
    arguments: Sequence[Argument],
    nests: Nests,
    captured: Sequence[tuple[object, Array]],
    sources: Sequence[int],
    types: Sequence[object],
    pack: Callable[[tuple[Any, ...]], Any] | None,
    refuse: Callable[[], NoReturn] | None = None,
    *,
    single: bool,
    turns: Sequence[tuple[int, ...] | None],
    tell: Tell | None = None,
) -> Record | None:
    """Write a call down; None for one that only Python can make.

    `captured` are further inputs, as values and their elements; input k of the plan is argument
    `sources[k]`, or beyond them a captured one.  `types` are those of the results; `single` gives
    the only one as it is, `pack` makes of the tuple of results what is returned.  `turns` are which
    dimensions of what the plan writes each result has, None for all as they are.  With `refuse` the
    plan has one result more, a truth value that nobody is given: where it is true, `refuse` raises.
    A plan that calls libraries can be written down where `tell` says what becomes of errors.
    """
    arrays = [a.example for a in arguments] + [a for _, a in captured]
    places = [*sources, *range(len(arrays), len(arrays) + len(prepared.results))]
    runner, inputs = None, [x for k in sources if (x := arrays[k]) is not None]
    if tell is not None and len(inputs) == len(sources) and _calls_libraries(prepared):
        prepared, runner = among(prepared, inputs, tell)
    if (
        len(arguments) > code.MOST_ARGUMENTS
        or nests.count > code.MOST_ITEMS
        or not _is_simple(prepared, len(places), runner)
        or any(over >= 0 for *_, over in prepared.results)
    ):
        return None
    # and no arguments
    kept: list[Any] = [prepared, pack, refuse, captured, nests.names, nests.rows]
    scope, printed = _settings()
    frame = prepared.frame[:]
    for slot, source, d in prepared.strides:  # which are as they were, or the record does not fit
        data = arrays[sources[source]]
        frame[slot] = 0 if data is None else data.strides[d] // data.itemsize
    return _written(
        prepared,
        kept,
        frame,
        places,
        types,
        {
            "COUNT": len(arguments),
            "SCOPE": id(scope),
            "PRINTED": id(printed),
            "CAPTURED_COUNT": len(captured),
            "SINGLE": single,
            "PACK": 0 if pack is None else id(pack),
            "POSITIONAL": nests.positional,
            "REFUSE": 0 if refuse is None else id(refuse),
            "NAME_COUNT": len(nests.names),
            "NEST_COUNT": len(nests.rows),
        },
        {
            "ARGUMENTS": _argument_rows(arguments, nests.places, kept),
            "NAMES": array("q", map(id, nests.names)),
            "NESTS": _nest_rows(nests, kept),
            "CAPTURED": _captured_rows(captured, kept),
        },
        turns,
        runner,
    )


def record_at(
    executable: Executable,
    sizes: tuple[int, ...],
    wrap: Callable[[Array], Any],
    strides: Mapping[tuple[int, int], int] = {},
) -> Record | None:
    """A call whose inputs are told by their addresses, those of the prelude's results behind them;
    `wrap` makes of an array what is returned.  `strides` are those that the plan asks for, by input
    and dimension, in elements.  None if only Python can make it."""
    if type(executable) is not Executable:
        return None
    prepared = executable.prepared(sizes)
    inputs, held = (sum(v.place == p for v in executable.values) for p in ("input", "held"))
    count, fresh = inputs + held, 0
    places = [*range(inputs)]
    for *_, over in prepared.results:
        places.append(over if over >= 0 else count + fresh)
        fresh += over < 0
    places += range(inputs, count)
    told = all((source, d) in strides for _, source, d in prepared.strides)
    if not told or not _is_simple(prepared, len(places)):
        return None
    frame = prepared.frame[:]
    for slot, source, d in prepared.strides:
        frame[slot] = strides[source, d]
    words = {"COUNT": count, "WRAP": id(wrap)}
    return _written(prepared, [prepared, wrap], frame, places, [None] * fresh, words, {})


def _is_simple(p: Prepared, places: int, runner: object = None) -> bool:
    """Whether a call runs kernels only, or else has something that runs it."""
    plain = len(p.segments) <= 1 and not _calls_libraries(p)
    return (
        places <= code.MOST_PLACES
        and len(p.frame) <= MOST_FRAME_WORDS
        and (plain or runner is not None)
    )


def _calls_libraries(p: Prepared) -> bool:
    return any(s.call is not None for s in p.segments)


def _written(
    p: Prepared,
    kept: list[Any],
    frame: array[int],
    places: Sequence[int],
    types: Sequence[object],
    words: Mapping[str, int],
    tables: Mapping[str, array[int]],
    turns: Sequence[tuple[int, ...] | None] = (),
    runner: Callable[[int], None] | None = None,
) -> Record:
    """`words` and `tables` with what follows from sizes alone; `places` say where the addresses
    stand that the plan asks for, `runner` runs it given the frame's address."""
    ring = _rings()
    results = array("q")
    given = p.results[:-1] if words.get("REFUSE") else p.results
    fresh = [(r[1:4], p) for r, p in zip(given, turns or [None] * len(given)) if r[-1] < 0]
    for ((shape, dtype, nbytes), turn), type_ in zip(fresh, types, strict=True):
        results += result_row(shape, dtype, nbytes, type_, kept, ring(nbytes), turn)
    way = _way_to_run(p, kept, runner)
    arena, arena_bytes = array("q"), p.arena_bytes
    if way.get("UNLOCKED"):  # other calls may run meanwhile: this one has scratch of its own
        arena_bytes = way["SCRATCH"] + p.scratch
    if arena_bytes:
        arena = result_row((), np.uint8, arena_bytes, None, kept, ring(arena_bytes))
    patches = array("q")
    for slot, source, offset in p.addresses:
        patches.extend((slot, places[source], offset))
    all_tables = {
        **tables,
        "RESULTS": results,
        "FRAME": frame,
        "PATCHES": patches,
        "ARENA": arena,
        "ARENA_PATCHES": array("q", [w for pair in p.arena for w in pair]),
    }
    all_words = {
        **dict.fromkeys(code.RECORD, 0),
        **words,
        "RESULT_COUNT": len(fresh),
        "FRAME_WORDS": len(frame),
        "PATCH_COUNT": len(patches) // 3,
        "ARENA_COUNT": len(p.arena),
        **{name: t.buffer_info()[0] if t else 0 for name, t in all_tables.items()},
        **way,
    }
    made = array("q", [all_words[name] for name in code.RECORD])
    found = Record(made, [*kept, *all_tables.values()])
    made[code.RECORD["OWNER"] // 8] = id(found)
    return found


def _rings() -> Callable[[int], int]:
    """What tells the ring for each of a call's blocks, one after another, by their bytes."""
    if knobs.POOL_LIMIT.get() < 2 * RING_LIMIT * RING_BLOCKS:
        return lambda _: 0
    taken = Counter[int]()

    def ring(nbytes: int) -> int:
        capacity = size_class(nbytes)
        taken[capacity] += 1
        return STOCK.ring(nbytes, taken[capacity] - 1)

    return ring


def _nest_rows(nests: Nests, kept: list[Any]) -> array[int]:
    rows = array("q")
    for kind, item, count, first, keys in nests.rows:
        table = array("q", map(id, keys))
        kept.append(table)
        rows.extend((kind, item, count, first, table.buffer_info()[0] if keys else 0))
    return rows


_NUMBERS: Final[Mapping[object, int]] = {float: code.KIND_FLOAT, int: code.KIND_INT}


def _argument_rows(
    arguments: Sequence[Argument], places: Sequence[int], kept: list[Any]
) -> array[int]:
    rows = array("q")
    for a, place in zip(arguments, places, strict=True):
        if a.example is None:
            is_type = isinstance(a.number, type)
            kind = _NUMBERS.get(a.number, code.KIND_SCALAR) if is_type else code.KIND_SAME
            kept.append(a.number)
            rows.extend((kind, id(a.number), 0, 0, 0, 0, place))
        else:
            rows.extend(_array_row(a.example, place, kept))
    return rows


def _array_row(data: Array, place: int, kept: list[Any]) -> tuple[int, ...]:
    dims, strides = array("q", data.shape), array("q", data.strides)
    flags = data.flags.num & code.READABLE
    kept += [data.dtype, dims, strides]
    return (
        code.KIND_ARRAY,
        id(data.dtype),
        flags,
        data.ndim,
        dims.buffer_info()[0],
        0 if flags & 1 else strides.buffer_info()[0],
        place,
    )


def _captured_rows(captured: Sequence[tuple[object, Array]], kept: list[Any]) -> array[int]:
    rows = array("q")
    for value, data in captured:
        rows.extend((id(value), id(data), *_array_row(data, 0, kept)))
    return rows


def _way_to_run(
    p: Prepared, kept: list[Any], runner: Callable[[int], None] | None
) -> dict[str, int]:
    """The chunks, to be run where the call is, if need be with the interpreter lock let go; or the
    function that lets the pool run them."""
    if not p.segments:
        return {}
    if runner is not None:
        kept.append(runner)
        return {"RUNNER": id(runner)}
    (s,) = p.segments
    if p.work > SOLO_NS or (p.parallel and pool().wished > 1):
        runner = partial(_run, s.chunks, s.launches, s.count, p.scratch)
        kept.append(runner)
        return {"RUNNER": id(runner)}
    here = {"CHUNKS": s.chunks, "CHUNK_COUNT": len(s.tables[0])}
    if p.work > LOCKED_NS:
        return {**here, "UNLOCKED": 1, "SCRATCH": -(-p.arena_bytes // 64) * 64}
    scratch = _scratch(p.scratch)
    kept.append(scratch)
    return {**here, "SCRATCH": scratch.address}


def _run(chunks: int, launches: int, count: int, scratch: int, frame: int) -> None:
    pool().run_addresses(chunks, launches, count, frame, scratch)


class _Scratch:
    """Memory for the kernels' intermediates; whoever holds the interpreter lock may use it."""

    slab: Slab | None = None


def _scratch(nbytes: int) -> Slab:
    slab = _Scratch.slab
    if slab is None or slab.nbytes < nbytes:
        slab = _Scratch.slab = Slab(nbytes)
    return slab
