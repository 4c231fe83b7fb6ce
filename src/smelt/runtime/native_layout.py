"""Offsets and constants of the native code, which `make runtime-ir` writes.

The headers in `c` say what the fields are.
"""

from __future__ import annotations

from typing import Final

DIGEST: Final = "321fbb165c4d14b8f06963a2a8e60d32580e9f1e777909b8b91bc31299e651e8"
"""Compiler, sources and texts that this was made from."""

CHUNK: Final = {
    "KERNEL": 0,
    "ARGS_AT": 8,
    "BEGIN": 16,
    "END": 24,
}

LAUNCH: Final = {
    "FIRST": 0,
    "COUNT": 8,
    "FLAGS": 16,
    "UNUSED": 24,
}

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
    "MOST_CHUNKS": 672,
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
    "MUTEX": 896,
    "COND": 1024,
    "RUN": 1152,
    "SLOTS": 1280,
}

DONE: Final = 0
PAUSED: Final = 1
BUSY: Final = 2
SETUP: Final = 3

NEXT: Final = 0
ALONE: Final = 1
PUBLISH: Final = 2
CLAIM: Final = 3
WAIT: Final = 4

MAX_THREADS: Final = 64
THREAD_STACK_BYTES: Final = 1048576
APART: Final = 128

PARALLEL: Final = 1

SIZES: Final = {
    "CHUNK": 32,
    "LAUNCH": 32,
    "RUN": 80,
    "SLOT": 128,
    "POOL": 9472,
}
"""Bytes of the structs."""
