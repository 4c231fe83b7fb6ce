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
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import llvmlite
import numpy as np

from smelt import knobs
from smelt.errors import SmeltError
from smelt.kernel.abi import ABI_VERSION
from smelt.runtime import native_call as code
from smelt.runtime.cache import Cache
from smelt.runtime.executable import Executable, Prepared
from smelt.runtime.interpreter import (
    NEW_FROM_DESCR,
    SET_BASE,
    api,
    function_at,
    is_possible,
    numpy_table,
    offset_of,
    word_at,
)
from smelt.runtime.loader import Loaded, load
from smelt.runtime.memory import RING_BLOCKS, RING_LIMIT, STOCK, Block, Slab, address_of, allocate
from smelt.runtime.native_code import generic_target
from smelt.runtime.threads import pool

__all__ = [
    "Face",
    "Record",
    "can_run",
    "install",
    "is_possible",
    "line",
    "record",
    "record_at",
    "runner_at",
]

Array = np.ndarray[Any, Any]

LOCKED_NS: Final = 20_000.0
"""Predicted time up to which kernels run with the interpreter lock held: letting it go and taking
it again costs a tenth of that, and nobody waits longer for it than for a slow Python function."""
FROM_CALL: Final = 2
"""Nothing is loaded or written down for calls that do not repeat."""
MOST_FRAME_WORDS: Final = 1024

_FASTCALL, _KEYWORDS = 0x80, 0x80 | 0x02
"""METH_FASTCALL, without and with METH_KEYWORDS."""


class Face(NamedTuple):
    """The classes of a front end, as far as calls read and make them."""

    owner: type
    """Its instances are called; the slot `line` of one holds what `line` makes of its records."""
    array: type
    """An argument or a result; its slot `node` holds a value."""
    values: tuple[type, type, type]
    """Values; only those of the first class have memory that nobody else may write to."""
    slots: Mapping[str, str]
    """A value's slots for "DATA", "OP", "INPUTS", "TYPE", "ORIGIN" and "SCOPE"."""
    source: object
    """The operator of a result's value."""
    state: object
    """A call is left to Python while `state.tapes` is not 0."""


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


class Argument(NamedTuple):
    """What an argument must be: an array like this one, or a number of this type."""

    example: Array | None
    number: type = float


# ---- the state, and the code ---------------------------------------------------------------------

_STATE: Final = (ctypes.c_int64 * (code.STATE_BYTES // 8))()


def _fill() -> None:
    """Fills in what no front end decides.  Raises ValueError, AttributeError."""
    table = numpy_table() or 0
    variable, scope = knobs.variable()
    found: dict[str, int] = {
        "BYTES": id(bytes), "NDARRAY": id(np.ndarray), "FLOAT": id(float), "INT": id(int),
        "SETTINGS": id(variable), "PRINTED_AT": offset_of(scope, "printed"),
        "EMPTY": id(_EMPTY), "NONE": id(None), "TAPES": id(_TAPES), "ZERO": id(0),
        "DATA_PTR": id(_DATA_PTR),
        "NEW_ARRAY": word_at(table + 8 * NEW_FROM_DESCR).value,
        "SET_BASE": word_at(table + 8 * SET_BASE).value,
    }  # fmt: skip
    _set(found | {name: function_at(symbol) for name, symbol in _FUNCTIONS.items()})


def _fill_face(face: Face, fallback: object) -> None:
    """Fills in the classes of a front end.  Raises ValueError, AttributeError."""
    found: dict[str, int] = {
        "FALLBACK": id(fallback), "ARRAY": id(face.array), "SOURCE": id(face.source),
        "LOCAL": id(face.state), "LINE_AT": offset_of(face.owner, "line"),
        "NODE_AT": offset_of(face.array, "node"),
    }  # fmt: skip
    found |= {name: id(kind) for name, kind in zip(_VALUES, face.values, strict=True)}
    for role, name in face.slots.items():
        (found[f"{role}_AT"],) = {offset_of(kind, name) for kind in face.values}
    _set(found)


def _set(words: Mapping[str, int]) -> None:
    for name, word in words.items():
        _STATE[code.STATE[name] // 8] = word


_EMPTY: Final[tuple[()]] = ()
_DATA_PTR: Final = sys.intern("data_ptr")
_TAPES: Final = sys.intern("tapes")
_VALUES: Final = ("VALUE", "FOREIGN", "WATCHED")
_FUNCTIONS: Final = {
    "INCREF": "Py_IncRef",
    "DECREF": "Py_DecRef",
    "CONTEXT_GET": "PyContextVar_Get",
    "GET_ATTRIBUTE": "PyObject_GetAttr",
    "VECTORCALL": "PyObject_Vectorcall",
    "CALL": "PyObject_CallNoArgs",
    "CALL_ONE": "PyObject_CallOneArg",
    "TUPLE_NEW": "PyTuple_New",
    "TUPLE_SET": "PyTuple_SetItem",
    "TUPLE_SIZE": "PyTuple_Size",
    "LENGTH": "PySequence_Size",
    "ITEM": "PySequence_GetItem",
    "METHOD": "PyObject_VectorcallMethod",
    "ALLOC": "PyType_GenericAlloc",
    "AS_DOUBLE": "PyFloat_AsDouble",
    "AS_LONG": "PyLong_AsLongLongAndOverflow",
    "FROM_LONG": "PyLong_FromLongLong",
    "MALLOC": "PyMem_Malloc",
    "FREE": "PyMem_Free",
    "NO_MEMORY": "PyErr_NoMemory",
}


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


@cache
def _loaded() -> Loaded | None:
    """The native code, from the object cache or compiled now, tried out; it is never unloaded.
    None where it cannot be used."""
    if not is_possible():
        return None
    triple, cpu = generic_target()
    text = code.ir()
    key = f"smelt call 1 {(ABI_VERSION, triple, cpu, llvmlite.__version__, text)}".encode()
    store = Cache.default()
    entry = store.get(key)
    try:
        if entry is None:
            made: bytes = import_module("smelt.runtime.jit").compile_ir(text, 2, cpu, "")
            store.put(key, {"what": "repeated calls"}, made)
        else:
            made = entry.code
        found = load(made, code.SYMBOLS)
        _fill()
    except (AttributeError, KeyError, OSError, RuntimeError, ValueError, SmeltError):
        return None
    bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found.address("smelt_bind"))
    bind(ctypes.addressof(_STATE))
    _forever(found)
    return found if _makes_arrays(found.address("smelt_array")) else None


def _forever(x: object) -> None:
    """A reference that is never given back: calls may be in progress until the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))


_INSTALLED: Final[dict[type, bool | None]] = {}


def install(face: Face) -> bool | None:
    """Give the class `face.owner` a native `__call__`, which leaves to the Python one what fits no
    record; False, and nothing done, where that is not possible in this process, None while another
    thread is at it.

    There is one such class in a process.
    """
    token: Any = object()
    if _INSTALLED.setdefault(face.owner, token) is not token:  # one atomic step, and no lock
        known = _INSTALLED[face.owner]
        return known if known.__class__ is bool else None
    _INSTALLED[face.owner] = done = _install(face)
    return done


def _install(face: Face) -> bool:
    loaded = _loaded()
    if loaded is None:
        return False
    fallback = face.owner.__call__
    try:
        _fill_face(face, fallback)
    except (AttributeError, ValueError):
        return False
    if not _makes_results(face, loaded.address("smelt_result")):
        return False
    method = _MethodDef(b"__call__", loaded.address("smelt_call"), _KEYWORDS, None)
    _forever((face, fallback, method))
    describe = api("PyDescr_NewMethod", ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    face.owner.__call__ = describe(face.owner, ctypes.addressof(method))
    return True


@cache
def runner_at() -> Callable[[int, Sequence[Any]], tuple[Any, ...]] | None:
    """at(record.address, inputs): runs a record of `record_at`; None where that is not possible.

    The inputs are addresses, or objects with a method `data_ptr` that tells theirs.
    """
    loaded = _loaded()
    if loaded is None:
        return None
    method = _MethodDef(b"at", loaded.address("smelt_at"), _FASTCALL, None)
    _forever(method)
    make = api("PyCFunction_NewEx", ctypes.py_object, *[ctypes.c_void_p] * 3)
    return make(ctypes.addressof(method), None, None)


def _makes_arrays(function: int) -> bool:
    """Whether an array that the native code makes is as one of Python."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(function)
    dtype, plain = np.dtype(np.float32), object()
    row = _result_row((2, 3), dtype, 24, None, kept := [], ring=False)
    references, where = sys.getrefcount(dtype), ctypes.c_int64()
    data: Array = make(row.buffer_info()[0], ctypes.addressof(where))
    good = (
        kept != [] and type(data) is np.ndarray and data.dtype is dtype
        and (data.shape, data.strides) == ((2, 3), (12, 4))
        and isinstance(data.base, Block) and data.base.nbytes == 24
        and data.flags.num == allocate(24).array((2, 3), dtype).flags.num
        and address_of(data) == where.value == data.base.address
        and sys.getrefcount(data) == sys.getrefcount(plain)
    )  # fmt: skip
    data[...] = 1.0
    del data
    return good and references == sys.getrefcount(dtype)


def _makes_results(face: Face, function: int) -> bool:
    """The same of a front end's array."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(function)
    type_, plain, kept = object(), object(), list[Any]()
    row = _result_row((2, 3), np.float32, 24, type_, kept, ring=False)
    references, where = sys.getrefcount(type_), ctypes.c_int64()
    made = make(row.buffer_info()[0], ctypes.addressof(where))
    value = made.node
    told = {role: getattr(value, name) for role, name in face.slots.items()}
    data = told.pop("DATA")
    good = (
        type(made) is face.array and type(value) is face.values[0] and data.shape == (2, 3)
        and told == {"OP": face.source, "INPUTS": (), "TYPE": type_, "ORIGIN": None, "SCOPE": None}
        and sys.getrefcount(made) == sys.getrefcount(plain)
    )  # fmt: skip
    del made, value, data, told
    return good and references == sys.getrefcount(type_)


# ---- records -------------------------------------------------------------------------------------


def can_run(executable: object) -> bool:
    """Whether calls of what a compiled graph runs as may be written down at all."""
    return type(executable) is Executable and executable.prelude is None


def line(records: Sequence[Record]) -> bytes:
    """What a function's slot holds: its records, those used last first.  The caller keeps them."""
    return array("q", [len(records), *(r.address for r in records)]).tobytes()


def record(
    prepared: Prepared,
    arguments: Sequence[Argument],
    captured: Sequence[tuple[object, Array]],
    sources: Sequence[int],
    types: Sequence[object],
    pack: Callable[[tuple[Any, ...]], Any] | None,
    *,
    single: bool,
) -> Record | None:
    """Write a call down; None for one that only Python can make.

    `captured` are further inputs, as values and their elements; input k of the plan is argument
    `sources[k]`, or beyond them a captured one.  `types` are those of the results; `single` gives
    the only one as it is, `pack` makes of the tuple of results what is returned.
    """
    arrays = [a.example for a in arguments] + [a for _, a in captured]
    places = [*sources, *range(len(arrays), len(arrays) + len(prepared.results))]
    if len(arguments) > code.MOST_ARGUMENTS or not _is_simple(prepared, len(places)):
        return None
    kept: list[Any] = [prepared, pack, captured]
    scope, printed = _settings()
    frame = prepared.frame[:]
    for slot, source, d in prepared.strides:  # which are as they were, or the record does not fit
        data = arrays[sources[source]]
        frame[slot] = 0 if data is None else data.strides[d] // data.itemsize
    return _written(
        prepared, kept, frame, places, types,
        {
            "COUNT": len(arguments), "SCOPE": id(scope), "PRINTED": id(printed),
            "CAPTURED_COUNT": len(captured), "SINGLE": single,
            "PACK": 0 if pack is None else id(pack),
        },
        {
            "ARGUMENTS": _argument_rows(arguments, kept),
            "CAPTURED": array("q", [w for v, a in captured for w in (id(v), id(a))]),
        },
    )  # fmt: skip


def record_at(
    executable: Executable, sizes: tuple[int, ...], wrap: Callable[[Array], Any]
) -> Record | None:
    """A call whose inputs are told by their addresses, those of the prelude's results behind them;
    `wrap` makes of an array what is returned.  None if only Python can make it."""
    if type(executable) is not Executable:
        return None
    prepared = executable.prepared(sizes)
    inputs, held = (sum(v.place == p for v in executable.values) for p in ("input", "held"))
    count, results = inputs + held, len(prepared.results)
    places = [*range(inputs), *range(count, count + results), *range(inputs, count)]
    if prepared.strides or not _is_simple(prepared, len(places)):
        return None
    words = {"COUNT": count, "WRAP": id(wrap)}
    return _written(
        prepared, [prepared, wrap], prepared.frame[:], places, [None] * results, words, {}
    )


def _is_simple(p: Prepared, places: int) -> bool:
    """Whether a call runs kernels only, each result in memory of its own."""
    return (
        places <= code.MOST_PLACES and len(p.frame) <= MOST_FRAME_WORDS and len(p.segments) <= 1
        and all(s.call is None for s in p.segments)
        and all(over < 0 for *_, over in p.results)
    )  # fmt: skip


def _written(
    p: Prepared, kept: list[Any], frame: array[int], places: Sequence[int],
    types: Sequence[object], words: Mapping[str, int], tables: Mapping[str, array[int]],
) -> Record:  # fmt: skip
    """`words` and `tables` with what follows from sizes alone; `places` say where the addresses
    stand that the plan asks for."""
    rings = knobs.POOL_LIMIT.get() >= 2 * RING_LIMIT * RING_BLOCKS
    results = array("q")
    for (_, shape, dtype, nbytes, _), type_ in zip(p.results, types, strict=True):
        results += _result_row(shape, dtype, nbytes, type_, kept, ring=rings)
    arena = array("q")
    if p.arena_bytes:
        arena = _result_row((), np.uint8, p.arena_bytes, None, kept, ring=rings)
    patches = array("q")
    for slot, source, offset in p.addresses:
        patches.extend((slot, places[source], offset))
    all_tables = {
        **tables, "RESULTS": results, "FRAME": frame, "PATCHES": patches, "ARENA": arena,
        "ARENA_PATCHES": array("q", [w for pair in p.arena for w in pair]),
    }  # fmt: skip
    all_words = {
        **dict.fromkeys(code.RECORD, 0), **words,
        "RESULT_COUNT": len(p.results), "FRAME_WORDS": len(frame),
        "PATCH_COUNT": len(patches) // 3, "ARENA_COUNT": len(p.arena),
        **{name: t.buffer_info()[0] if t else 0 for name, t in all_tables.items()},
        **_way_to_run(p, kept),
    }  # fmt: skip
    made = array("q", [all_words[name] for name in code.RECORD])
    found = Record(made, [*kept, *all_tables.values()])
    made[code.RECORD["OWNER"] // 8] = id(found)
    return found


def _argument_rows(arguments: Sequence[Argument], kept: list[Any]) -> array[int]:
    rows = array("q")
    for a in arguments:
        data = a.example
        if data is None:
            kind = code.KIND_FLOAT if a.number is float else code.KIND_INT
            rows.extend((kind, 0, 0, 0, 0, 0))
            continue
        dims, strides = array("q", data.shape), array("q", data.strides)
        flags = data.flags.num & code.READABLE
        kept += [data.dtype, dims, strides]
        rows.extend((
            code.KIND_ARRAY, id(data.dtype), flags, data.ndim, dims.buffer_info()[0],
            0 if flags & 1 else strides.buffer_info()[0],
        ))  # fmt: skip
    return rows


def _result_row(
    shape: tuple[int, ...], dtype: Any, nbytes: int, type_: object, kept: list[Any], *, ring: bool
) -> array[int]:
    dtype = np.dtype(dtype)
    dims = array("q", shape)
    maker = partial(_fresh, nbytes)
    kept += [dtype, dims, type_, maker]
    at = STOCK.ring(nbytes) if ring else 0
    where = dims.buffer_info()[0]
    return array("q", [id(dtype), len(shape), where, id(type_), at, id(maker)])


def _fresh(nbytes: int) -> Array:
    """An array on a new block: the native code takes the block, and where it is."""
    return allocate(nbytes).array((0,), np.uint8)


def _way_to_run(p: Prepared, kept: list[Any]) -> dict[str, int]:
    """The chunks, to be run where the call is; or the function that lets the pool run them."""
    if not p.segments:
        return {}
    (s,) = p.segments
    if p.work > LOCKED_NS or p.parallel:
        runner = partial(_run, s.chunks, s.launches, s.count, p.scratch)
        kept.append(runner)
        return {"RUNNER": id(runner)}
    scratch = _scratch(p.scratch)
    kept.append(scratch)
    chunks = s.tables[0]
    return {"CHUNKS": s.chunks, "CHUNK_COUNT": len(chunks), "SCRATCH": scratch.address}


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
