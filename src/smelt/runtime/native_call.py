"""LLVM IR of a recorded call: match arguments, allocate, run kernels, build results.

In Python this takes several microseconds, more than a small kernel, and there is no compiled
extension, so it is generated like everything else. It reads only simple parts of CPython's and
NumPy's objects: the type of an object, the array fields that NumPy's C API makes public, slots of
Smelt's own classes. `smelt.runtime.call_cache` checks every offset in the running process before
it enables this code, and fills in the tables below.

Safety rules. It runs with the GIL held, except for long-running kernels of one thread, which may
release it. Every object that it uses is either owned by the record, which it references, or
referenced by itself, before anything is called that might run Python code. It compares first and
changes nothing until a record matches; a call that matches no record is left to the Python
function. It has no undefined symbols: functions of CPython and NumPy are stored in the state as
addresses.

>>> "define ptr @smelt_call" in ir()
True
"""

from __future__ import annotations

from string import Template
from typing import Final

from smelt.runtime.memory import RING_BLOCKS
from smelt.runtime.native_call_entry import AT, CALL
from smelt.runtime.native_call_match import ARGUMENTS, MATCH, NESTS, OBJECTS, OUTS
from smelt.runtime.native_call_run import ANSWER, BUILD, MEMORY, RUN

SYMBOLS: Final = ("smelt_bind", "smelt_call", "smelt_at", "smelt_array", "smelt_result")

STACK_BYTES: Final = 4096
"""Most bytes that a call takes from the stack; a call that needs more takes heap memory."""

_STATE_WORDS: Final = (
    # an attribute that must be 0; the Python function; types compared by identity
    *(
        "LOCAL",
        "FOLLOWING",
        "PENDING",
        "SAMPLED",
        "MEMBERS",
        "ZERO",
        "FALLBACK",
        "LINE",
        "NDARRAY",
        "ARRAY",
        "VALUE",
        "FOREIGN",
        "WATCHED",
    ),
    *("FLOAT", "INT", "TUPLE", "LIST", "DICT", "STRING", "SETTINGS"),
    # offsets of slots
    *("LINE_AT", "PRINTED_AT", "NODE_AT", "DATA_AT", "OP_AT", "INPUTS_AT", "TYPE_AT"),
    *("ORIGIN_AT", "SCOPE_AT", "SAMPLE_AT"),
    # fields that all results' values share
    *("SOURCE", "EMPTY", "NONE"),
    # functions of CPython and NumPy
    *("INCREF", "DECREF", "CONTEXT_GET", "GET_ATTRIBUTE", "VECTORCALL", "CALL", "CALL_ONE"),
    *("TUPLE_NEW", "TUPLE_SET", "TUPLE_SIZE", "TUPLE_GET", "LIST_SIZE", "LIST_GET", "SET_SIZE"),
    *("STRING_COMPARE", "LIST_NEW", "LIST_SET", "DICT_NEW", "DICT_SET"),
    *("DICT_SIZE", "DICT_NEXT", "LENGTH", "ITEM", "METHOD", "DATA_PTR"),
    *("NEW_ARRAY", "SET_BASE", "ALLOC", "AS_DOUBLE", "AS_LONG", "FROM_LONG"),
    *("MALLOC", "FREE", "NO_MEMORY", "CLEAR", "LET_GO", "TAKE_BACK"),
)
STATE: Final = {name: 8 * k for k, name in enumerate(_STATE_WORDS)}
"""Byte offsets into the process-wide state that the native code reads."""
STATE_BYTES: Final = 8 * len(_STATE_WORDS)

_RECORD_WORDS: Final = (
    "OWNER",  # the record object, which keeps all of this alive
    "COUNT",  # arguments: arrays and numbers, at any nesting
    "POSITIONAL",  # number of positional arguments, names of the rest, and their number
    "NAMES",
    "NAME_COUNT",
    "NESTS",  # rows of containers, and their number
    "NEST_COUNT",
    "SCOPE",  # the settings in force, and their text
    "PRINTED",
    "ARGUMENTS",  # rows of arguments
    "OUT",  # one more than the item that is `out=`, or 0
    "OUT_COUNT",  # number of its arrays, which are the last arguments
    "CAPTURED",  # rows of captured arrays, and their number
    "CAPTURED_COUNT",
    "RESULTS",  # rows of results, and their number
    "RESULT_COUNT",
    "RESULT_NESTS",  # rows of containers of results, inner ones first, and their number
    "RESULT_NEST_COUNT",
    "ROOM",  # bytes of a call's memory: arrays, numbers, addresses, frame
    "FRAME_AT",  # offset of the frame in it
    "FRAME",  # the kernels' arguments as words; addresses are written into a copy
    "FRAME_WORDS",
    "PATCHES",  # triples (word of the frame, place, offset), and their number
    "PATCH_COUNT",
    "ARENA",  # a row of results for memory between kernels, or 0
    "ARENA_PATCHES",  # pairs (word of the frame, offset), and their number
    "ARENA_COUNT",
    "CHUNKS",  # rows of the chunk table to run inline, and their number
    "CHUNK_COUNT",
    "SCRATCH",
    "UNLOCKED",  # whether they run without the GIL; then SCRATCH is an offset into the arena
    "RUNNER",  # runner(address of the frame), if chunks do not run inline; or 0
    "PACK",  # pack(tuple of results); or 0 for the tuple itself
    "WRAP",  # wrap(array) for each result; or 0 for Smelt's arrays
    "SINGLE",  # whether the only result is returned as it is
    "REFUSE",  # refuse() raises if the hidden flag result is true; or 0
)
RECORD: Final = {name: 8 * k for k, name in enumerate(_RECORD_WORDS)}
"""Byte offsets into a record."""

ARGUMENT_WORDS: Final = 10
"""Words of an argument's row.

Kind, descr (or type of a scalar, or the object itself), flags, rank, dimensions, strides (0:
contiguous), item, first and last byte relative to the elements, argument whose memory it is (-1:
its own).
"""
CAPTURED_WORDS: Final = 2 + ARGUMENT_WORDS
"""Words of a captured array's row.

Value, array, and what the array must still be, as an argument's row.
"""
KIND_ARRAY, KIND_FLOAT, KIND_INT, KIND_SCALAR, KIND_SAME, KIND_OUT = 0, 1, 2, 3, 4, 5
NEST_WORDS: Final = 5
"""Words of a container's row.

Kind, item, number of items it holds, the first of them, keys.
"""
NEST_TUPLE, NEST_LIST, NEST_DICT, NEST_NONE = 0, 1, 2, 3
RESULT_NEST_WORDS: Final = 4
"""Words of a row of a container of results.

Kind, number of items, index of each (-1: None), keys. Indices count the results, then the rows.
"""
READABLE: Final = 0x101
"""NumPy's flags C_CONTIGUOUS and ALIGNED."""
WRITEABLE: Final = 0x400
"""NumPy's flag WRITEABLE."""

RESULT_WORDS: Final = 7
"""Words of a result's row.

Descr, rank, dimensions, type, ring (0: none), allocator of fresh memory, strides (0: contiguous).
"""

# CPython 3.11 to 3.14 with the GIL, and NumPy 2: checked when the code is loaded.
OBJECT: Final = {"REFERENCES": 0, "KIND": 8}
NDARRAY: Final = {
    "ND_DATA": 16,
    "ND_RANK": 24,
    "ND_DIMS": 32,
    "ND_STRIDES": 40,
    "ND_BASE": 48,
    "ND_DESCR": 56,
    "ND_FLAGS": 64,
}
BYTES_AT: Final = 32
"""Offset of the content of a bytes object."""
SCALAR_AT: Final = 16
"""Offset of the value in NumPy's scalars."""
_CARRAY: Final = 0x501
"""NumPy's flags C_CONTIGUOUS, ALIGNED and WRITEABLE."""


def ir() -> str:
    """Return the module as text, for any machine."""
    values: dict[str, int] = {
        **STATE,
        **RECORD,
        **OBJECT,
        **NDARRAY,
        "BYTES_AT": BYTES_AT,
        "CARRAY": _CARRAY,
        "READABLE": READABLE,
        "WRITEABLE": WRITEABLE,
        "ARGUMENT_BYTES": 8 * ARGUMENT_WORDS,
        "NEST_BYTES": 8 * NEST_WORDS,
        "CAPTURED_BYTES": 8 * CAPTURED_WORDS,
        "RESULT_NEST_BYTES": 8 * RESULT_NEST_WORDS,
        "NEST_TUPLE": NEST_TUPLE,
        "NEST_LIST": NEST_LIST,
        "NEST_DICT": NEST_DICT,
        "NEST_NONE": NEST_NONE,
        "RESULT_BYTES": 8 * RESULT_WORDS,
        "RING_BLOCKS": RING_BLOCKS,
        "STACK_BYTES": STACK_BYTES,
        "KIND_ARRAY": KIND_ARRAY,
        "KIND_FLOAT": KIND_FLOAT,
        "KIND_INT": KIND_INT,
        "KIND_SCALAR": KIND_SCALAR,
        "KIND_SAME": KIND_SAME,
        "KIND_OUT": KIND_OUT,
        "SCALAR_AT": SCALAR_AT,
    }
    parts = (OBJECTS, MATCH, NESTS, ARGUMENTS, OUTS, MEMORY, RUN, BUILD, ANSWER, CALL, AT)
    return "\n".join(Template(part).substitute(values) for part in parts)
