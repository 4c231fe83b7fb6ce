"""LLVM IR of a repeated call: arguments compared with a record, memory, the kernels, the results.

A Python function that does this costs several microseconds, more than a small kernel; there is no
compiled extension to do it in, so it is generated like everything else.  What it reads of CPython's
and NumPy's objects is plain: the type of an object, the fields of an array that NumPy's C API makes
public, slots of our own classes.  `smelt.runtime.call_cache` checks every offset in the running
process before it lets this code loose, and fills in the tables below.

The rules that keep it safe.  It runs with the interpreter lock held, but for kernels that take long
(those of one thread may let it go); every object that it uses is
either owned by the record, which it holds, or held by itself, before anything is called that might
run Python code.  It compares first and changes nothing until a record fits; whatever does not fit
is left to the Python function.  It has no undefined symbols: functions of CPython and NumPy stand
in the state as addresses.

>>> "define ptr @smelt_call" in ir()
True
"""

from __future__ import annotations

from string import Template
from typing import Final

from smelt.runtime.memory import RING_BLOCKS
from smelt.runtime.native_call_entry import AT, CALL
from smelt.runtime.native_call_match import ARGUMENTS, MATCH, NESTS, OBJECTS
from smelt.runtime.native_call_run import ANSWER, MEMORY, RUN

SYMBOLS: Final = ("smelt_bind", "smelt_call", "smelt_at", "smelt_array", "smelt_result")

MOST_ARGUMENTS: Final = 64
MOST_PLACES: Final = 1024
"""Arguments, captured arrays and results together."""

_STATE_WORDS: Final = (
    # an attribute that must be 0; the Python function; types that are compared by identity
    *(
        "LOCAL",
        "FOLLOWING",
        "ZERO",
        "FALLBACK",
        "LINE",
        "NDARRAY",
        "ARRAY",
        "VALUE",
        "FOREIGN",
        "WATCHED",
    ),
    *("FLOAT", "INT", "TUPLE", "LIST", "DICT", "SETTINGS"),
    # offsets of slots
    *("LINE_AT", "PRINTED_AT", "NODE_AT", "DATA_AT", "OP_AT", "INPUTS_AT", "TYPE_AT"),
    *("ORIGIN_AT", "SCOPE_AT", "SAMPLE_AT"),
    # what every result's value has in common
    *("SOURCE", "EMPTY", "NONE"),
    # functions of CPython and NumPy
    *("INCREF", "DECREF", "CONTEXT_GET", "GET_ATTRIBUTE", "VECTORCALL", "CALL", "CALL_ONE"),
    *("TUPLE_NEW", "TUPLE_SET", "TUPLE_SIZE", "TUPLE_GET", "LIST_SIZE", "LIST_GET"),
    *("DICT_SIZE", "DICT_NEXT", "LENGTH", "ITEM", "METHOD", "DATA_PTR"),
    *("NEW_ARRAY", "SET_BASE", "ALLOC", "AS_DOUBLE", "AS_LONG", "FROM_LONG"),
    *("MALLOC", "FREE", "NO_MEMORY", "LET_GO", "TAKE_BACK"),
)
STATE: Final = {name: 8 * k for k, name in enumerate(_STATE_WORDS)}
STATE_BYTES: Final = 8 * len(_STATE_WORDS)

_RECORD_WORDS: Final = (
    "OWNER",  # what keeps all of this alive
    "COUNT",  # arguments: arrays and numbers, wherever they stand
    "POSITIONAL",  # what is given by place, and names of the rest, and how many
    "NAMES",
    "NAME_COUNT",
    "NESTS",  # rows of containers, and how many
    "NEST_COUNT",
    "SCOPE",  # the settings in force, and their text
    "PRINTED",
    "ARGUMENTS",  # rows of arguments
    "CAPTURED",  # rows of captured arrays, and how many
    "CAPTURED_COUNT",
    "RESULTS",  # rows of results, and how many
    "RESULT_COUNT",
    "FRAME",  # the kernels' arguments as words; addresses are written into a copy
    "FRAME_WORDS",
    "PATCHES",  # triples (word of the frame, place, offset), and how many
    "PATCH_COUNT",
    "ARENA",  # a row of results for memory between kernels, or 0
    "ARENA_PATCHES",  # pairs (word of the frame, offset), and how many
    "ARENA_COUNT",
    "CHUNKS",  # rows of the chunk table to run right here, and how many
    "CHUNK_COUNT",
    "SCRATCH",
    "UNLOCKED",  # whether the lock is let go for them; then their scratch is so far into the arena
    "RUNNER",  # runner(address of the frame), where that is not right here; or 0
    "PACK",  # pack(tuple of results); or 0 for the tuple itself
    "WRAP",  # wrap(array) for each result; or 0 for arrays of ours
    "SINGLE",  # whether the only result is returned as it is
    "REFUSE",  # refuse() raises, where a byte behind the results is set that is none itself; or 0
)
RECORD: Final = {name: 8 * k for k, name in enumerate(_RECORD_WORDS)}

ARGUMENT_WORDS: Final = 7
"""kind, descr (or type of a scalar, or the very object), flags, rank, dimensions, strides (0:
contiguous), item"""
CAPTURED_WORDS: Final = 2 + ARGUMENT_WORDS
"""value, array, and what that must still be, as an argument's row"""
KIND_ARRAY, KIND_FLOAT, KIND_INT, KIND_SCALAR, KIND_SAME = 0, 1, 2, 3, 4
NEST_WORDS: Final = 5
"""kind, item, how many items it holds, the first of them, keys"""
NEST_TUPLE, NEST_LIST, NEST_DICT, NEST_NONE = 0, 1, 2, 3
MOST_ITEMS: Final = 256
"""What a call is given, and what that holds, all counted."""
READABLE: Final = 0x101
"""NumPy's flags C_CONTIGUOUS and ALIGNED."""

RESULT_WORDS: Final = 7
"""descr, rank, dimensions, type, ring (0: none), maker of fresh memory, strides (0: contiguous)"""

# CPython 3.11 to 3.14 with the interpreter lock, and NumPy 2: checked when this is loaded.
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
SCALAR_AT: Final = 16
"""Where NumPy's scalars have their value."""
_CARRAY: Final = 0x501
"""NumPy's flags C_CONTIGUOUS, ALIGNED and WRITEABLE."""


def ir() -> str:
    """The module as text, for any machine."""
    values: dict[str, int] = {
        **STATE,
        **RECORD,
        **OBJECT,
        **NDARRAY,
        "BYTES_AT": BYTES_AT,
        "CARRAY": _CARRAY,
        "READABLE": READABLE,
        "ARGUMENT_BYTES": 8 * ARGUMENT_WORDS,
        "NEST_BYTES": 8 * NEST_WORDS,
        "CAPTURED_BYTES": 8 * CAPTURED_WORDS,
        "MOST_ITEMS": MOST_ITEMS,
        "NEST_TUPLE": NEST_TUPLE,
        "NEST_LIST": NEST_LIST,
        "NEST_DICT": NEST_DICT,
        "NEST_NONE": NEST_NONE,
        "RESULT_BYTES": 8 * RESULT_WORDS,
        "RING_BLOCKS": RING_BLOCKS,
        "MOST_ARGUMENTS": MOST_ARGUMENTS,
        "KIND_ARRAY": KIND_ARRAY,
        "KIND_FLOAT": KIND_FLOAT,
        "KIND_INT": KIND_INT,
        "KIND_SCALAR": KIND_SCALAR,
        "KIND_SAME": KIND_SAME,
        "SCALAR_AT": SCALAR_AT,
    }
    parts = (OBJECTS, MATCH, NESTS, ARGUMENTS, MEMORY, RUN, ANSWER, CALL, AT)
    return "\n".join(Template(part).substitute(values) for part in parts)
