"""The native code of repeated calls in this process: loaded, its state filled in, tried out.

>>> at = runner_at()
>>> at is None or callable(at)
True
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any, Final, NamedTuple

import llvmlite
import numpy as np

from smelt import knobs
from smelt.errors import SmeltError
from smelt.imports import imported
from smelt.kernel.abi import ABI_VERSION
from smelt.runtime import native_call as code
from smelt.runtime.cache import Cache
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
from smelt.runtime.memory import Block, address_of, allocate
from smelt.runtime.native_code import generic_target

__all__ = ["Face", "Line", "install", "result_row", "runner_at"]

Array = np.ndarray[Any, Any]

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
    """A call is left to Python while `state.following` is not 0."""


class Line(bytes):
    """Addresses of a function's records: a class of its own, so that nothing else is taken for
    one."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Line:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("addresses mean nothing elsewhere")


# ---- the state, and the code ---------------------------------------------------------------------

_STATE: Final = (ctypes.c_int64 * (code.STATE_BYTES // 8))()


def _fill() -> None:
    """Fills in what no front end decides.  Raises ValueError, AttributeError."""
    table = numpy_table() or 0
    variable, scope = knobs.variable()
    found: dict[str, int] = {
        "LINE": id(Line),
        "NDARRAY": id(np.ndarray),
        "FLOAT": id(float),
        "INT": id(int),
        "TUPLE": id(tuple),
        "LIST": id(list),
        "DICT": id(dict),
        "SETTINGS": id(variable),
        "PRINTED_AT": offset_of(scope, "printed"),
        "EMPTY": id(_EMPTY),
        "NONE": id(None),
        "FOLLOWING": id(_FOLLOWING),
        "ZERO": id(0),
        "DATA_PTR": id(_DATA_PTR),
        "NEW_ARRAY": word_at(table + 8 * NEW_FROM_DESCR).value,
        "SET_BASE": word_at(table + 8 * SET_BASE).value,
    }
    _set(found | {name: function_at(symbol) for name, symbol in _FUNCTIONS.items()})


def _fill_face(face: Face, fallback: object) -> None:
    """Fills in the classes of a front end.  Raises ValueError, AttributeError."""
    found: dict[str, int] = {
        "FALLBACK": id(fallback),
        "ARRAY": id(face.array),
        "SOURCE": id(face.source),
        "LOCAL": id(face.state),
        "LINE_AT": offset_of(face.owner, "line"),
        "NODE_AT": offset_of(face.array, "node"),
    }
    found |= {name: id(kind) for name, kind in zip(_VALUES, face.values, strict=True)}
    for role, name in face.slots.items():
        (found[f"{role}_AT"],) = {offset_of(kind, name) for kind in face.values}
    _set(found)


def _set(words: Mapping[str, int]) -> None:
    for name, word in words.items():
        _STATE[code.STATE[name] // 8] = word


_EMPTY: Final[tuple[()]] = ()
_DATA_PTR: Final = sys.intern("data_ptr")
_FOLLOWING: Final = sys.intern("following")
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
    "TUPLE_GET": "PyTuple_GetItem",
    "LIST_SIZE": "PyList_Size",
    "LIST_GET": "PyList_GetItem",
    "DICT_SIZE": "PyDict_Size",
    "DICT_NEXT": "PyDict_Next",
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
    "LET_GO": "PyEval_SaveThread",
    "TAKE_BACK": "PyEval_RestoreThread",
}


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


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
            made: bytes = imported("smelt.runtime.jit").compile_ir(text, 2, cpu, "")
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

    The inputs are addresses, arrays, or objects with a method `data_ptr` that tells theirs.
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
    row = result_row((2, 3), dtype, 24, None, kept := [])
    turned = result_row((2, 3), dtype, 24, None, kept, turn=(1, 0))
    references, where = sys.getrefcount(dtype), ctypes.c_int64()
    data: Array = make(row.buffer_info()[0], ctypes.addressof(where))
    good = (
        kept != []
        and type(data) is np.ndarray
        and data.dtype is dtype
        and (data.shape, data.strides) == ((2, 3), (12, 4))
        and isinstance(data.base, Block)
        and data.base.nbytes == 24
        and data.flags.num == allocate(24).array((2, 3), dtype).flags.num
        and address_of(data) == where.value == data.base.address
        and sys.getrefcount(data) == sys.getrefcount(plain)
    )
    data[...] = 1.0
    data = make(turned.buffer_info()[0], ctypes.addressof(where))
    good = (
        good
        and (data.shape, data.strides) == ((3, 2), (4, 12))
        and data.flags.num == allocate(24).array((2, 3), dtype).T.flags.num
    )
    del data
    return good and references == sys.getrefcount(dtype)


def _makes_results(face: Face, function: int) -> bool:
    """The same of a front end's array."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(function)
    type_, plain, kept = object(), object(), list[Any]()
    row = result_row((2, 3), np.float32, 24, type_, kept)
    references, where = sys.getrefcount(type_), ctypes.c_int64()
    made = make(row.buffer_info()[0], ctypes.addressof(where))
    value = made.node
    told: dict[str, Any] = {role: getattr(value, name, None) for role, name in face.slots.items()}
    data = told.pop("DATA")
    good = (
        type(made) is face.array
        and type(value) is face.values[0]
        and data.shape == (2, 3)
        and (told.pop("OP"), told.pop("INPUTS"), told.pop("TYPE")) == (face.source, (), type_)
        and not any(told.values())
        and sys.getrefcount(made) == sys.getrefcount(plain)
    )
    del made, value, data, told
    return good and references == sys.getrefcount(type_)


# ---- results ----


def result_row(
    shape: tuple[int, ...],
    dtype: Any,
    nbytes: int,
    type_: object,
    kept: list[Any],
    ring: int = 0,
    turn: Sequence[int] | None = None,
) -> array[int]:
    """A row of a record's results; what it refers to is added to `kept`.  `ring` is the address of
    the one that keeps its blocks, 0 for none.  `turn` are which dimensions of `shape`, as memory
    holds them, the result has; None for all in order."""
    dtype = np.dtype(dtype)
    dims, steps = array("q", shape), array("q")
    if turn is not None:
        below = [dtype.itemsize * prod(shape[k + 1 :]) for k in turn]
        dims, steps = array("q", [shape[k] for k in turn]), array("q", below)
    maker = partial(_fresh, nbytes)
    kept += [dtype, dims, steps, type_, maker]
    where = dims.buffer_info()[0]
    strides = steps.buffer_info()[0] if steps else 0
    return array("q", [id(dtype), len(shape), where, id(type_), ring, id(maker), strides])


def _fresh(nbytes: int) -> Array:
    """An array on a new block: the native code takes the block, and where it is."""
    return allocate(nbytes).array((0,), np.uint8)
