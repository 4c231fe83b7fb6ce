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
from functools import partial
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
from smelt.runtime.loader import load
from smelt.runtime.memory import RING_BLOCKS, RING_LIMIT, STOCK, Block, Slab, address_of, allocate
from smelt.runtime.native_code import generic_target
from smelt.runtime.threads import pool

__all__ = ["Face", "Record", "can_run", "install", "is_possible", "line", "record"]

Array = np.ndarray[Any, Any]

LOCKED_NS: Final = 20_000.0
"""Predicted time up to which kernels run with the interpreter lock held: letting it go and taking
it again costs a tenth of that, and nobody waits longer for it than for a slow Python function."""
MOST_FRAME_WORDS: Final = 1024
MOST_RECORDS: Final = 8
"""Of one function, those used last."""

_VERSIONS: Final = ((3, 11), (3, 14))
_METHOD: Final = 0x80 | 0x02
"""METH_FASTCALL | METH_KEYWORDS"""
_NEW_FROM_DESCR, _SET_BASE, _NDARRAY, _ABI = 94, 282, 2, 0
"""Places in NumPy's table of functions, part of its stable binary interface."""

_word = ctypes.c_int64.from_address


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


# ---- what is checked before anything is used -----------------------------------------------------


def is_possible() -> bool:
    """Whether this interpreter and this NumPy are laid out as the native code takes them to be."""
    try:
        return _interpreter_is_known() and _arrays_are_known() and _numpy_table() is not None
    except (AttributeError, ImportError, ValueError):
        return False


def _interpreter_is_known() -> bool:
    locked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    low, high = _VERSIONS
    sample = bytes(range(40, 60))
    return (
        sys.implementation.name == "cpython"
        and low <= sys.version_info[:2] <= high
        and locked()
        and sys.maxsize > 1 << 32
        and sys.byteorder == "little"
        and object.__basicsize__ == 16  # more in builds that count or trace otherwise
        and not hasattr(sys, "getobjects")
        and ctypes.string_at(id(sample) + code.BYTES_AT, 20) == sample
        and _references_are_known()
        and all(_word(id(x) + code.OBJECT["KIND"]).value == id(type(x)) for x in (1, "a", object()))
    )


def _references_are_known() -> bool:
    x = object()
    count = ctypes.c_int32.from_address(id(x) + code.OBJECT["REFERENCES"])
    before = count.value
    others = [x, x]
    told = sys.getrefcount(x) - count.value  # 1 where the call's argument counts
    return count.value == before + len(others) and told in (0, 1)


def _arrays_are_known() -> bool:
    base = np.zeros((3, 4, 5), np.int16)
    samples = [base, base[:, ::2], base.T, base[1, 1, 1:1], np.zeros(()), base.view(">i2")]
    samples += [np.asfortranarray(base[0]), np.broadcast_to(base[0], (2, 4, 5))]
    return all(_is_known(a) for a in samples)


def _is_known(a: Array) -> bool:
    """Whether an array's fields are where they are looked for.  What is no pointer, or known by
    other means, is compared before a pointer is followed."""

    def at(name: str) -> int:
        return _word(id(a) + code.NDARRAY[name]).value

    def half(name: str) -> int:
        return ctypes.c_int32.from_address(id(a) + code.NDARRAY[name]).value

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(_word(at(name) + 8 * k).value for k in range(a.ndim))

    return (
        np.ndarray.__basicsize__ >= max(code.NDARRAY.values()) + 8
        and half("ND_RANK") == a.ndim
        and half("ND_FLAGS") & 0xFFFF == a.flags.num & 0xFFFF
        and at("ND_DATA") == a.__array_interface__["data"][0]
        and at("ND_DESCR") == id(a.dtype)
        and at("ND_BASE") == (0 if a.base is None else id(a.base))
        and numbers("ND_DIMS") == a.shape
        and numbers("ND_STRIDES") == a.strides
    )


def _numpy_table() -> int | None:
    """Where NumPy keeps its functions; None for another version of its interface."""
    capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
    pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = pointer(capsule, None)
    if not table or _word(table + 8 * _NDARRAY).value != id(np.ndarray):
        return None
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(_word(table + 8 * _ABI).value)()
    return int(table) if version >> 24 == 2 else None


def _api(name: str, *types: Any) -> Callable[..., Any]:
    """A function of CPython under types of our own: those of `ctypes.pythonapi` are shared."""
    return ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))


def _function(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _offset(kind: Any, name: str) -> int:
    """Where the instances of a class keep a slot.  Raises ValueError if that cannot be told."""
    x, mark = kind.__new__(kind), object()
    setattr(x, name, mark)
    places = range(16, kind.__basicsize__, 8)
    (found,) = [k for k in places if _word(id(x) + k).value == id(mark)]
    return found


# ---- the state, and the code ---------------------------------------------------------------------

_STATE: Final = (ctypes.c_int64 * (code.STATE_BYTES // 8))()


def _fill(face: Face, fallback: object) -> list[Any]:
    """Fills in the state; gives what it refers to.  Raises ValueError, AttributeError."""
    table = _numpy_table() or 0
    variable, scope = knobs.variable()
    empty: tuple[()] = ()
    found: dict[str, int] = {
        "FALLBACK": id(fallback), "BYTES": id(bytes), "NDARRAY": id(np.ndarray),
        "ARRAY": id(face.array), "FLOAT": id(float), "INT": id(int),
        "SETTINGS": id(variable), "PRINTED_AT": _offset(scope, "printed"),
        "LINE_AT": _offset(face.owner, "line"), "NODE_AT": _offset(face.array, "node"),
        "SOURCE": id(face.source), "EMPTY": id(empty), "NONE": id(None),
        "LOCAL": id(face.state), "TAPES": id(_TAPES), "ZERO": id(0),
        "NEW_ARRAY": _word(table + 8 * _NEW_FROM_DESCR).value,
        "SET_BASE": _word(table + 8 * _SET_BASE).value,
    }  # fmt: skip
    found |= {name: id(kind) for name, kind in zip(_VALUES, face.values, strict=True)}
    for role, name in face.slots.items():
        (found[f"{role}_AT"],) = {_offset(kind, name) for kind in face.values}
    found |= {name: _function(symbol) for name, symbol in _FUNCTIONS.items()}
    for name, at in code.STATE.items():
        _STATE[at // 8] = found[name]
    return [fallback, face, variable, scope, empty]


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


def _loaded() -> Any:
    """The native code, from the object cache or compiled now; it is never unloaded."""
    triple, cpu = generic_target()
    text = code.ir()
    key = f"smelt call 1 {(ABI_VERSION, triple, cpu, llvmlite.__version__, text)}".encode()
    store = Cache.default()
    entry = store.get(key)
    if entry is None:
        made: bytes = import_module("smelt.runtime.jit").compile_ir(text, 2, cpu, "")
        store.put(key, {"what": "repeated calls"}, made)
    else:
        made = entry.code
    return load(made, code.SYMBOLS)


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
    if not is_possible():
        return False
    try:
        loaded = _loaded()
        kept = _fill(face, face.owner.__call__)
    except (AttributeError, KeyError, OSError, ValueError, SmeltError):
        return False
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.address("smelt_bind"))(ctypes.addressof(_STATE))
    if not _makes_results(face, loaded.address("smelt_result")):
        return False
    method = _MethodDef(b"__call__", loaded.address("smelt_call"), _METHOD, None)
    kept += [loaded, method]
    # Calls may be in progress until the process ends: a reference that is never given back.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    describe = _api("PyDescr_NewMethod", ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    face.owner.__call__ = describe(face.owner, ctypes.addressof(method))
    return True


def _makes_results(face: Face, function: int) -> bool:
    """Whether the native code makes a result that is what Python would have made."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(function)
    dtype, kept = np.dtype(np.float32), list[Any]()
    type_ = object()
    row = _result_row((2, 3), dtype, 24, type_, kept, ring=False)
    references = sys.getrefcount(dtype), sys.getrefcount(type_)
    where = ctypes.c_int64()
    made = make(row.buffer_info()[0], ctypes.addressof(where))
    value = made.node
    data: Array = getattr(value, face.slots["DATA"])
    plain = object()
    told = {role: getattr(value, name) for role, name in face.slots.items() if role != "DATA"}
    good = (
        type(made) is face.array and type(value) is face.values[0] and type(data) is np.ndarray
        and data.shape == (2, 3) and data.dtype is dtype and isinstance(data.base, Block)
        and data.flags.num == allocate(24).array((2, 3), dtype).flags.num
        and address_of(data) == where.value == data.base.address
        and told == {"OP": face.source, "INPUTS": (), "TYPE": type_, "ORIGIN": None, "SCOPE": None}
        and sys.getrefcount(made) == sys.getrefcount(plain)
    )  # fmt: skip
    data[...] = 1.0
    del made, value, data, told
    return good and references == (sys.getrefcount(dtype), sys.getrefcount(type_))


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
    p = prepared
    places = len(arguments) + len(captured) + len(p.results)
    if (
        len(arguments) > code.MOST_ARGUMENTS or places > code.MOST_PLACES
        or len(p.frame) > MOST_FRAME_WORDS
        or any(s.call is not None for s in p.segments) or len(p.segments) > 1
        or any(over >= 0 for *_, over in p.results)
    ):  # fmt: skip
        return None
    kept: list[Any] = [p, pack, types, captured]
    arrays = [a.example for a in arguments] + [a for _, a in captured]
    scope, printed = _settings()
    frame, patches = _frame(p, arrays, sources)
    rings = knobs.POOL_LIMIT.get() >= 2 * RING_LIMIT * RING_BLOCKS
    results = array("q")
    for (_, shape, dtype, nbytes, _), type_ in zip(p.results, types, strict=True):
        results += _result_row(shape, dtype, nbytes, type_, kept, ring=rings)
    arena = array("q")
    if p.arena_bytes:
        arena = _result_row((), np.dtype(np.uint8), p.arena_bytes, None, kept, ring=rings)
    words = dict.fromkeys(code.RECORD, 0)
    words |= {
        "COUNT": len(arguments), "SCOPE": id(scope), "PRINTED": id(printed),
        "CAPTURED_COUNT": len(captured), "RESULT_COUNT": len(p.results),
        "FRAME_WORDS": len(frame), "PATCH_COUNT": len(patches) // 3, "ARENA_COUNT": len(p.arena),
        "SINGLE": single, "PACK": 0 if pack is None else id(pack),
    }  # fmt: skip
    tables = {
        "ARGUMENTS": _argument_rows(arguments, kept),
        "CAPTURED": array("q", [w for v, a in captured for w in (id(v), id(a))]),
        "RESULTS": results, "FRAME": frame, "PATCHES": patches, "ARENA": arena,
        "ARENA_PATCHES": array("q", [w for pair in p.arena for w in pair]),
    }  # fmt: skip
    words |= {name: t.buffer_info()[0] if t else 0 for name, t in tables.items()}
    words |= _way_to_run(p, kept)
    kept += tables.values()
    made = array("q", [words[name] for name in code.RECORD])
    found = Record(made, kept)
    made[code.RECORD["OWNER"] // 8] = id(found)
    return found


def _frame(
    p: Prepared, arrays: Sequence[Array | None], sources: Sequence[int]
) -> tuple[array[int], array[int]]:
    """The kernels' arguments with strides, which are fixed, and where addresses go."""
    frame = p.frame[:]
    for slot, source, d in p.strides:
        data = arrays[sources[source]]
        frame[slot] = 0 if data is None else data.strides[d] // data.itemsize
    patches = array("q")
    for slot, source, offset in p.addresses:
        first = source - len(sources)
        patches.extend((slot, sources[source] if first < 0 else len(arrays) + first, offset))
    return frame, patches


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
