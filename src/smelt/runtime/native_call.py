"""Load and verify the native code of recorded calls (`c/call.c`) in this process.

>>> at = address_runner()
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

import numpy as np

from smelt import knobs
from smelt.errors import SmeltError
from smelt.runtime import native_layout as layout
from smelt.runtime.code import Loaded, load
from smelt.runtime.interpreter import (
    NEW_FROM_DESCR,
    SET_BASE,
    c_function,
    function_at,
    is_supported,
    numpy_table,
    offset_of,
    word_at,
)
from smelt.runtime.memory import Block, address_of, allocate
from smelt.runtime.native import native_object, native_source

Array = np.ndarray[Any, Any]

_SYMBOLS: Final = ("smelt_bind", "smelt_call", "smelt_at", "smelt_array", "smelt_result")
_FASTCALL, _KEYWORDS = 0x80, 0x80 | 0x02
"""METH_FASTCALL, without and with METH_KEYWORDS."""


class FrontEndClasses(NamedTuple):
    """Front-end classes that native calls read and create."""

    owner: type
    """Class whose instances are called; its slot `line` holds the packed records."""
    array: type
    """Class of arguments and results; its slot `node` holds a value."""
    values: tuple[type, type, type]
    """Classes of values; only memory of the first class is never written by others."""
    slots: Mapping[str, str]
    """Slots of a value, for "DATA", "OP", "INPUTS", "TYPE", "ORIGIN" and "SCOPE"."""
    source: object
    """Operator of a result's value."""
    state: object
    """Object with a counter `following`: while it is not 0, calls are left to Python.

    So are calls with `out=` while its list `pending` or its weak set `sampled` has members.
    """


class RecordList(bytes):
    """Addresses of a function's records; a distinct class, so nothing else is mistaken for it."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordList:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("addresses mean nothing elsewhere")


# ---- the state, and the code ---------------------------------------------------------------------

_STATE: Final = (ctypes.c_int64 * (layout.SIZES["STATE"] // 8))()


def _fill() -> None:
    """Fill in state that does not depend on a front end.

    Raises ValueError, AttributeError.
    """
    table = numpy_table() or 0
    variable, scope = knobs.context_variable()
    words: dict[str, int] = {
        "LINE": id(RecordList),
        "NDARRAY": id(np.ndarray),
        "FLOAT": id(float),
        "INT": id(int),
        "TUPLE": id(tuple),
        "LIST": id(list),
        "DICT": id(dict),
        "STRING": id(str),
        "SETTINGS": id(variable),
        "PRINTED_AT": offset_of(scope, "printed"),
        "EMPTY": id(_EMPTY),
        "NONE": id(None),
        "FOLLOWING": id(_FOLLOWING),
        "PENDING": id(_PENDING),
        "SAMPLED": id(_SAMPLED),
        "MEMBERS": id(_MEMBERS),
        "ZERO": id(0),
        "DATA_PTR": id(_DATA_PTR),
        "NEW_ARRAY": word_at(table + 8 * NEW_FROM_DESCR).value,
        "SET_BASE": word_at(table + 8 * SET_BASE).value,
    }
    _set(words | {name: function_at(symbol) for name, symbol in _FUNCTIONS.items()})


def _fill_face(face: FrontEndClasses, fallback: object) -> None:
    """Fill in the classes of a front end.

    Raises ValueError, AttributeError.
    """
    words: dict[str, int] = {
        "FALLBACK": id(fallback),
        "ARRAY": id(face.array),
        "SOURCE": id(face.source),
        "LOCAL": id(face.state),
        "LINE_AT": offset_of(face.owner, "line"),
        "NODE_AT": offset_of(face.array, "node"),
    }
    words |= {name: id(kind) for name, kind in zip(_VALUES, face.values, strict=True)}
    for role, name in face.slots.items():
        (words[f"{role}_AT"],) = {offset_of(kind, name) for kind in face.values}
    _set(words)


def _set(words: Mapping[str, int]) -> None:
    for name, word in words.items():
        _STATE[layout.STATE[name] // 8] = word


_EMPTY: Final[tuple[()]] = ()
_DATA_PTR: Final = sys.intern("data_ptr")
_FOLLOWING: Final = sys.intern("following")
_PENDING: Final = sys.intern("pending")
_SAMPLED: Final = sys.intern("sampled")
_MEMBERS: Final = sys.intern("data")
"""Name of the set that a `weakref.WeakSet` keeps its members in."""
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
    "SET_SIZE": "PySet_Size",
    "STRING_COMPARE": "PyUnicode_Compare",
    "LIST_NEW": "PyList_New",
    "LIST_SET": "PyList_SetItem",
    "DICT_NEW": "PyDict_New",
    "DICT_SET": "PyDict_SetItem",
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
    "CLEAR": "PyErr_Clear",
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
def _load_verified() -> Loaded | None:
    """Load the native code; None if unusable.

    The code is tested before use and never unloaded.
    """
    if not is_supported():
        return None
    try:
        loaded = load(native_object("repeated calls", native_source("call")), _SYMBOLS)
        _fill()
    except (AttributeError, ImportError, KeyError, OSError, RuntimeError, ValueError, SmeltError):
        return None
    bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.address("smelt_bind"))
    bind(ctypes.addressof(_STATE))
    _keep_forever(loaded)
    return loaded if _array_test_passes(loaded.address("smelt_array")) else None


def _keep_forever(x: object) -> None:
    """Leak a reference: calls may be in progress until the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))


_INSTALLED: Final[dict[type, bool | None]] = {}


def install(face: FrontEndClasses) -> bool | None:
    """Give the class `face.owner` a native `__call__` with a fallback to the Python one.

    Returns False, having changed nothing, if that is impossible in this process, and None while
    another thread is installing. There is one such class in a process.
    """
    token: Any = object()
    if _INSTALLED.setdefault(face.owner, token) is not token:  # one atomic step, and no lock
        outcome = _INSTALLED[face.owner]
        return outcome if outcome.__class__ is bool else None
    _INSTALLED[face.owner] = outcome_here = _install(face)
    return outcome_here


def _install(face: FrontEndClasses) -> bool:
    loaded = _load_verified()
    if loaded is None:
        return False
    fallback = face.owner.__call__
    try:
        _fill_face(face, fallback)
    except (AttributeError, ValueError):
        return False
    if not _result_test_passes(face, loaded.address("smelt_result")):
        return False
    method = _MethodDef(b"__call__", loaded.address("smelt_call"), _KEYWORDS, None)
    _keep_forever((face, fallback, method))
    describe = c_function("PyDescr_NewMethod", ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    face.owner.__call__ = describe(face.owner, ctypes.addressof(method))
    return True


@cache
def address_runner() -> Callable[[int, Sequence[Any]], tuple[Any, ...]] | None:
    """Return at(record.address, inputs), which runs a record of calls; None if unavailable.

    The inputs are addresses, arrays, or objects with a method `data_ptr` returning theirs.
    """
    loaded = _load_verified()
    if loaded is None:
        return None
    method = _MethodDef(b"at", loaded.address("smelt_at"), _FASTCALL, None)
    _keep_forever(method)
    make = c_function("PyCFunction_NewEx", ctypes.py_object, *[ctypes.c_void_p] * 3)
    return make(ctypes.addressof(method), None, None)


def _array_test_passes(function: int) -> bool:
    """Return whether arrays made by the native code equal those of Python."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(function)
    dtype, plain = np.dtype(np.float32), object()
    row = result_row((2, 3), dtype, 24, None, row_references := [])
    transposed = result_row((2, 3), dtype, 24, None, row_references, permutation=(1, 0))
    references, address = sys.getrefcount(dtype), ctypes.c_int64()
    data: Array = make(row.buffer_info()[0], ctypes.addressof(address))
    good = (
        row_references != []
        and type(data) is np.ndarray
        and data.dtype is dtype
        and (data.shape, data.strides) == ((2, 3), (12, 4))
        and isinstance(data.base, Block)
        and data.base.nbytes == 24
        and data.flags.num == allocate(24).array((2, 3), dtype).flags.num
        and address_of(data) == address.value == data.base.address
        and sys.getrefcount(data) == sys.getrefcount(plain)
    )
    data[...] = 1.0
    data = make(transposed.buffer_info()[0], ctypes.addressof(address))
    good = (
        good
        and (data.shape, data.strides) == ((3, 2), (4, 12))
        and data.flags.num == allocate(24).array((2, 3), dtype).T.flags.num
    )
    del data
    return good and references == sys.getrefcount(dtype)


def _result_test_passes(face: FrontEndClasses, function: int) -> bool:
    """Return whether front-end arrays made by the native code are correct."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(function)
    type_, plain, row_references = object(), object(), list[Any]()
    row = result_row((2, 3), np.float32, 24, type_, row_references)
    references, address = sys.getrefcount(type_), ctypes.c_int64()
    result = make(row.buffer_info()[0], ctypes.addressof(address))
    value = result.node
    slots: dict[str, Any] = {role: getattr(value, name, None) for role, name in face.slots.items()}
    data = slots.pop("DATA")
    good = (
        type(result) is face.array
        and type(value) is face.values[0]
        and data.shape == (2, 3)
        and (slots.pop("OP"), slots.pop("INPUTS"), slots.pop("TYPE")) == (face.source, (), type_)
        and not any(slots.values())
        and sys.getrefcount(result) == sys.getrefcount(plain)
    )
    del result, value, data, slots
    return good and references == sys.getrefcount(type_)


# ---- results ----


def result_row(
    shape: tuple[int, ...],
    dtype: Any,
    nbytes: int,
    type_: object,
    references: list[Any],
    ring: int = 0,
    permutation: Sequence[int] | None = None,
) -> array[int]:
    """Return a row of a record's results; objects it refers to are added to `references`.

    `ring` is the address of the ring for its blocks, 0 for none. `permutation` lists the
    dimensions of `shape` (as stored) that the result has, None for all in order.
    """
    dtype = np.dtype(dtype)
    dims, steps = array("q", shape), array("q")
    if permutation is not None:
        byte_steps = [dtype.itemsize * prod(shape[k + 1 :]) for k in permutation]
        dims, steps = array("q", [shape[k] for k in permutation]), array("q", byte_steps)
    maker = partial(_allocate_array, nbytes)
    references += [dtype, dims, steps, type_, maker]
    dims_address = dims.buffer_info()[0]
    strides = steps.buffer_info()[0] if steps else 0
    return array("q", [id(dtype), len(shape), dims_address, id(type_), ring, id(maker), strides])


def _allocate_array(nbytes: int) -> Array:
    """Return an array on a new block; native code takes the block and its address."""
    return allocate(nbytes).array((0,), np.uint8)
