"""Offsets and constants of the native code, which `make runtime-ir` writes.

The headers in `c` say what the fields are.
"""

from __future__ import annotations

from typing import Final

DIGEST: Final = "3760b5c7acf1bef8747cd704d48ffc80806ad27991c4b4082949707b3fa854bd"
"""Compiler, sources and texts that this was made from."""

OBJECT: Final = {
    "REFERENCES": 0,
    "UNUSED": 4,
    "TYPE": 8,
}

NDARRAY: Final = {
    "OBJECT": 0,
    "DATA": 16,
    "RANK": 24,
    "DIMS": 32,
    "STRIDES": 40,
    "BASE": 48,
    "DESCR": 56,
    "FLAGS": 64,
}

BYTES: Final = {
    "OBJECT": 0,
    "SIZE": 16,
    "HASH": 24,
    "CONTENT": 32,
}

SCALAR: Final = {
    "OBJECT": 0,
    "VALUE": 16,
}

STATE: Final = {
    "LOCAL": 0,
    "FOLLOWING": 8,
    "PENDING": 16,
    "SAMPLED": 24,
    "MEMBERS": 32,
    "ZERO": 40,
    "FALLBACK": 48,
    "LINE": 56,
    "NDARRAY": 64,
    "ARRAY": 72,
    "VALUE": 80,
    "FOREIGN": 88,
    "WATCHED": 96,
    "FLOAT": 104,
    "INT": 112,
    "TUPLE": 120,
    "LIST": 128,
    "DICT": 136,
    "STRING": 144,
    "SETTINGS": 152,
    "LINE_AT": 160,
    "PRINTED_AT": 168,
    "NODE_AT": 176,
    "DATA_AT": 184,
    "OP_AT": 192,
    "INPUTS_AT": 200,
    "TYPE_AT": 208,
    "ORIGIN_AT": 216,
    "SCOPE_AT": 224,
    "SAMPLE_AT": 232,
    "SOURCE": 240,
    "EMPTY": 248,
    "NONE": 256,
    "DATA_PTR": 264,
    "INCREF": 272,
    "DECREF": 280,
    "CONTEXT_GET": 288,
    "GET_ATTRIBUTE": 296,
    "VECTORCALL": 304,
    "CALL": 312,
    "CALL_ONE": 320,
    "TUPLE_NEW": 328,
    "TUPLE_SET": 336,
    "TUPLE_SIZE": 344,
    "TUPLE_GET": 352,
    "LIST_SIZE": 360,
    "LIST_GET": 368,
    "SET_SIZE": 376,
    "STRING_COMPARE": 384,
    "LIST_NEW": 392,
    "LIST_SET": 400,
    "DICT_NEW": 408,
    "DICT_SET": 416,
    "DICT_SIZE": 424,
    "DICT_NEXT": 432,
    "LENGTH": 440,
    "ITEM": 448,
    "METHOD": 456,
    "NEW_ARRAY": 464,
    "SET_BASE": 472,
    "ALLOC": 480,
    "AS_DOUBLE": 488,
    "AS_LONG": 496,
    "FROM_LONG": 504,
    "MALLOC": 512,
    "FREE": 520,
    "NO_MEMORY": 528,
    "CLEAR": 536,
    "LET_GO": 544,
    "TAKE_BACK": 552,
}

RING: Final = {
    "NEXT": 0,
    "ENTRIES": 8,
}

RECORD: Final = {
    "OWNER": 0,
    "COUNT": 8,
    "POSITIONAL": 16,
    "NAMES": 24,
    "NAME_COUNT": 32,
    "NESTS": 40,
    "NEST_COUNT": 48,
    "SCOPE": 56,
    "PRINTED": 64,
    "ARGUMENTS": 72,
    "OUT": 80,
    "OUT_COUNT": 88,
    "CAPTURED": 96,
    "CAPTURED_COUNT": 104,
    "RESULTS": 112,
    "RESULT_COUNT": 120,
    "RESULT_NESTS": 128,
    "RESULT_NEST_COUNT": 136,
    "ROOM": 144,
    "FRAME_AT": 152,
    "FRAME": 160,
    "FRAME_WORDS": 168,
    "PATCHES": 176,
    "PATCH_COUNT": 184,
    "ARENA": 192,
    "ARENA_PATCHES": 200,
    "ARENA_COUNT": 208,
    "CHUNKS": 216,
    "CHUNK_COUNT": 224,
    "SCRATCH": 232,
    "UNLOCKED": 240,
    "RUNNER": 248,
    "PACK": 256,
    "WRAP": 264,
    "SINGLE": 272,
    "REFUSE": 280,
}

READABLE: Final = 257
WRITEABLE: Final = 1024
CARRAY: Final = 1281

KIND_ARRAY: Final = 0
KIND_FLOAT: Final = 1
KIND_INT: Final = 2
KIND_SCALAR: Final = 3
KIND_SAME: Final = 4
KIND_OUT: Final = 5

NEST_TUPLE: Final = 0
NEST_LIST: Final = 1
NEST_DICT: Final = 2
NEST_NONE: Final = 3

RING_BLOCKS: Final = 8
STACK_BYTES: Final = 4096

DEVICE_LAUNCH: Final = {
    "FUNCTION": 0,
    "X": 8,
    "Y": 16,
    "Z": 24,
    "THREADS": 32,
    "SHARED": 40,
    "FIRST": 48,
    "ARGUMENTS": 56,
}

DEVICE_CALL: Final = {
    "CUCTXGETCURRENT": 0,
    "CUCTXPUSHCURRENT_V2": 8,
    "CUCTXPOPCURRENT_V2": 16,
    "CUSTREAMISCAPTURING": 24,
    "CUMEMALLOCASYNC": 32,
    "CUMEMFREEASYNC": 40,
    "CULAUNCHKERNEL": 48,
    "CUGRAPHLAUNCH": 56,
    "CONTEXT": 64,
    "ROWS": 72,
    "LAUNCHES": 80,
    "FRAME": 88,
    "FRAME_WORDS": 96,
    "MAX_ARGUMENTS": 104,
    "PATCHES": 112,
    "PATCH_COUNT": 120,
    "BLOCKS": 128,
    "BLOCK_COUNT": 136,
    "FIRST_BLOCK": 144,
    "HAS_ARENA": 152,
}

DECLINED: Final = -1

LIB_TABLES: Final = {
    "PROGRAMS": 0,
    "PROGRAM_COUNT": 8,
    "VERSION": 16,
    "FUTEX": 24,
    "GETAFFINITY": 32,
    "SETAFFINITY": 40,
    "SPIN": 48,
}

LIB_PROGRAM: Final = {
    "NAME": 0,
    "TEXT": 8,
    "RECORDINGS": 16,
    "RECORDING_COUNT": 24,
    "ARGUMENT_COUNT": 32,
    "RESULT_COUNT": 40,
    "CALLER_ARGUMENT_COUNT": 48,
    "CALLER_RESULT_COUNT": 56,
    "ARGUMENT_PARTS": 64,
    "RESULT_PARTS": 72,
    "PARAMETER_COUNT": 80,
    "NODE_COUNT": 88,
}

LIB_RECORDING: Final = {
    "ARGUMENTS": 0,
    "NODES": 8,
    "MATCH_END": 16,
    "ACCEPTED": 24,
    "RESULTS": 32,
    "PLANS": 40,
    "PLAN_COUNT": 48,
}

LIB_ARGUMENT: Final = {
    "DTYPE": 0,
    "ITEMSIZE": 8,
    "RANK": 16,
    "DIMS": 24,
    "IS_NUMBER": 32,
}

LIB_RESULT: Final = {
    "KIND": 0,
    "SOURCE": 8,
    "DTYPE": 16,
    "ITEMSIZE": 24,
    "RANK": 32,
    "DIMS": 40,
}

LIB_PLAN: Final = {
    "FEATURES": 0,
    "SIZES": 8,
    "SIZE_COUNT": 16,
    "END": 24,
    "BODY": 32,
    "PART_COUNT": 40,
    "PLACE_COUNT": 48,
    "FLAG": 56,
}

LIB_BODY: Final = {
    "VALUES": 0,
    "GROUPS": 8,
    "GROUP_COUNT": 16,
    "ARENA": 24,
    "WRITTEN": 32,
    "PLACES": 40,
    "INPUT_COUNT": 48,
}

LIB_VALUE: Final = {
    "PLACE": 0,
    "NUMBER": 8,
    "OFFSET": 16,
}

LIB_GROUP: Final = {
    "KERNELS": 0,
    "KERNEL_COUNT": 8,
    "PART": 16,
    "REPEAT": 24,
}

LIB_REPEAT: Final = {
    "BODY": 0,
    "LAST_BODY": 8,
    "STEPS": 16,
    "RUNS_ONCE": 24,
    "IS_REVERSE": 32,
    "NBYTES": 40,
    "INPUTS": 48,
    "INPUT_COUNT": 56,
    "RESULTS": 64,
    "RESULT_COUNT": 72,
    "CARRY_COUNT": 80,
}

LIB_INPUT: Final = {
    "VALUE": 0,
    "DISTANCE": 8,
}

LIB_STEP_RESULT: Final = {
    "VALUE": 0,
    "DISTANCE": 8,
    "HISTORY": 16,
    "SOURCE": 24,
    "OWN": 32,
    "NBYTES": 40,
    "LAST_NBYTES": 48,
    "RUNS": 56,
    "PITCH": 64,
    "IDENTITY": 72,
    "ITEMSIZE": 80,
}

LIB_KERNEL: Final = {
    "CHOSEN": 0,
    "VARIANTS": 8,
}

LIB_VARIANT: Final = {
    "WORDS": 0,
    "WORD_COUNT": 8,
    "PARTIALS": 16,
    "PARTIAL_COUNT": 24,
    "FUNCTIONS": 32,
    "FUNCTION_COUNT": 40,
}

LIB_WORD: Final = {
    "KIND": 0,
    "OF": 8,
}

LIB_FUNCTION: Final = {
    "CODE": 0,
    "TASKS": 8,
    "SCRATCH": 16,
    "CYCLES": 24,
}

LIB_NODE: Final = {
    "OP": 0,
    "A": 8,
    "B": 16,
    "C": 24,
}

LIB_COMPUTED: Final = 0
LIB_OF_ARGUMENT: Final = 1
LIB_OF_RESULT: Final = 2
LIB_OF_CONSTANT: Final = 3
LIB_OF_NODE: Final = 4

LIB_IN_ARGUMENT: Final = 0
LIB_IN_CONSTANT: Final = 1
LIB_IN_RESULT: Final = 2
LIB_IN_ARENA: Final = 3
LIB_WITHIN: Final = 4
LIB_NOWHERE: Final = 5

LIB_ADDRESS: Final = 0
LIB_WORKSPACE: Final = 1
LIB_NUMBER: Final = 2

LIB_CONSTANT_OF: Final = 0
LIB_PARAMETER: Final = 1
LIB_ADD: Final = 2
LIB_SUB: Final = 3
LIB_MUL: Final = 4
LIB_DIV: Final = 5
LIB_MOD: Final = 6
LIB_GCD: Final = 7
LIB_EQ: Final = 8
LIB_LT: Final = 9
LIB_LE: Final = 10
LIB_SELECT: Final = 11
LIB_TO_FLOAT: Final = 12
LIB_FLOAT_ADD: Final = 13
LIB_FLOAT_SUB: Final = 14
LIB_FLOAT_MUL: Final = 15
LIB_FLOAT_DIV: Final = 16
LIB_FLOAT_LT: Final = 17
LIB_FLOAT_LE: Final = 18

SMELT_MAX_RANK: Final = 8
SMELT_TEXT_BYTES: Final = 508

SMELT_BOOL: Final = 0
SMELT_I8: Final = 1
SMELT_I16: Final = 2
SMELT_I32: Final = 3
SMELT_I64: Final = 4
SMELT_U8: Final = 5
SMELT_U16: Final = 6
SMELT_U32: Final = 7
SMELT_U64: Final = 8
SMELT_F16: Final = 9
SMELT_BF16: Final = 10
SMELT_F32: Final = 11
SMELT_F64: Final = 12
SMELT_C64: Final = 13
SMELT_C128: Final = 14

SMELT_OK: Final = 0
SMELT_ERROR_ARGUMENT: Final = 1
SMELT_ERROR_TYPE: Final = 2
SMELT_ERROR_SIZE: Final = 3
SMELT_ERROR_BOUNDS: Final = 4
SMELT_ERROR_MEMORY: Final = 5
SMELT_ERROR_MACHINE: Final = 6
SMELT_ERROR_NAME: Final = 7

RUN: Final = {
    "PHASE": 0,
    "LAUNCH": 8,
    "ROW": 16,
    "END": 24,
    "BATCH": 32,
    "MINE": 40,
    "DEADLINE": 48,
    "SOLO": 56,
    "SCRATCH": 64,
    "THREADS": 72,
    "ABORT": 80,
    "POOL": 88,
    "RAISED": 96,
}

SLOT: Final = {
    "STATE": 0,
    "ID": 4,
    "POOL": 8,
    "SCRATCH": 16,
    "CHUNKS": 24,
}

POOL: Final = {
    "WORD": 0,
    "FINISHED": 128,
    "WAITING": 132,
    "JOB_FIRST": 256,
    "JOB_FRAME": 264,
    "JOB_CPU": 272,
    "JOB_LIMIT": 276,
    "WAKE": 384,
    "SLEEPERS": 388,
    "OWNER": 512,
    "ACTIVE": 640,
    "STARTED": 644,
    "SCRATCH": 648,
    "SPIN": 656,
    "POLL": 664,
    "MAX_CHUNKS": 672,
    "HELPER": 680,
    "FUTEX": 688,
    "MONOTONIC": 696,
    "SIG_SETMASK": 704,
    "DETACHED": 712,
    "CLOCK_GETTIME": 720,
    "SYSCALL": 728,
    "SCHED_YIELD": 736,
    "ATTR_INIT": 744,
    "ATTR_STACK": 752,
    "ATTR_DETACH": 760,
    "CREATE": 768,
    "SIGFILLSET": 776,
    "SIGMASK": 784,
    "MUTEX_LOCK": 792,
    "MUTEX_UNLOCK": 800,
    "COND_WAIT": 808,
    "COND_BROADCAST": 816,
    "GETCPU": 824,
    "GETAFFINITY": 832,
    "SETAFFINITY": 840,
    "KEY": 848,
    "GETSPECIFIC": 856,
    "SETSPECIFIC": 864,
    "SELF": 872,
    "MAIN": 880,
    "ENSURE": 888,
    "RELEASE": 896,
    "CHECK_SIGNALS": 904,
    "FETCH": 912,
    "FORKED": 920,
    "MUTEX": 1024,
    "COND": 1152,
    "RUN": 1280,
    "SLOTS": 1408,
}

DONE: Final = 0
PAUSED: Final = 1
BUSY: Final = 2
SETUP: Final = 3
STOPPED: Final = 4

PARALLEL: Final = 1

SIZES: Final = {
    "OBJECT": 16,
    "NDARRAY": 72,
    "BYTES": 32,
    "SCALAR": 24,
    "STATE": 560,
    "RING": 136,
    "RECORD": 288,
    "DEVICE_LAUNCH": 64,
    "DEVICE_CALL": 160,
    "LIB_TABLES": 56,
    "LIB_PROGRAM": 96,
    "LIB_RECORDING": 56,
    "LIB_ARGUMENT": 40,
    "LIB_RESULT": 48,
    "LIB_PLAN": 64,
    "LIB_BODY": 56,
    "LIB_VALUE": 24,
    "LIB_GROUP": 32,
    "LIB_REPEAT": 88,
    "LIB_INPUT": 16,
    "LIB_STEP_RESULT": 88,
    "LIB_KERNEL": 16,
    "LIB_VARIANT": 48,
    "LIB_WORD": 16,
    "LIB_FUNCTION": 32,
    "LIB_NODE": 32,
    "RUN": 120,
    "SLOT": 128,
    "POOL": 9600,
}
"""Bytes of the structs."""
