"""LLVM IR of the thread pool's native loop.

Running a plan must neither hold the GIL nor return to Python between chunks, and there is no
compiled extension; so the loop is written in LLVM IR, compiled once per machine and kept in the
object cache like every kernel. It has no undefined symbols: the C library functions that it calls
are stored in the pool's memory as addresses.

Protocol. A pool is a block of `POOL_BYTES` that is never freed. One call owns it at a time
(`OWNER` holds the call's token). For a parallel launch the owner writes the job's data, then
publishes the word `(epoch << 32) | (chunks begun by the owner << 16) | chunks left`. By
compare-and-swap the owner claims the first remaining chunk, a helper the last one. So from launch
to launch and from call to call each finds its own data in its caches, and where chunks get more
expensive from first to last, the most expensive are not run last. A helper that slept between
reading and claiming cannot do harm: the epoch has moved on, or no chunk is left, so its swap
fails; and job data is only rewritten while no chunk is left, hence a swap that succeeds has read
the right data. When no chunk is left the owner waits for the chunks that helpers have *begun*: a
helper that never got the CPU is not waited for.

An idle helper spins, then sleeps on a futex. A scheduler may place it on the owner's CPU although
others are idle, and the two would alternate. So it sleeps with that CPU excluded from its
affinity, and moves away at once when it finds itself there. The exclusion is lifted as soon as it
has had its effect, so that the scheduler can balance freely.

The owner looks at the clock between chunks and regularly returns `PAUSED`, so that Python can run
signal handlers; `smelt_drive` continues where it stopped while helpers carry on, and
`smelt_abandon` gives up the remaining chunks. Inside of a long chunk the kernel calls `smelt_poll`
(`smelt.runtime.poll`), which finds the run in a thread-specific value: of the owner its run block,
of a helper the same with bit 0 set. When it is time, the main thread runs signal handlers there and
then; if one raises, the exception and `RUN_ABORT` stay in the run block, all kernels of the run
return at their next poll, and `smelt_drive` returns `STOPPED`. All of that state is in
the pool, or, for a call that found the pool busy, in a private block of `RUN_RECORD_BYTES`.

>>> "define i32 @smelt_run" in ir("x86_64-pc-linux-gnu")
True
"""

from __future__ import annotations

from string import Template
from typing import Final

from smelt.runtime.native_poll import POLL
from smelt.runtime.native_threads import (
    AWAIT,
    CLOCK,
    COND_SLEEP,
    DRIVE,
    ENTRY,
    FUTEX_SLEEP,
    HELPER,
    PLACE,
    THREADS,
)

DONE: Final = 0
"""Status: everything ran and the pool is free again."""
PAUSED: Final = 1
"""Status: time for Python to handle signals; call `smelt_drive` to continue."""
BUSY: Final = 2
"""Status: another call owns the pool; nothing ran."""
SETUP: Final = 3
"""Status: the pool is owned, but needs threads or scratch before `smelt_drive`."""
STOPPED: Final = 4
"""Status: a signal handler raised inside of a kernel; the exception is in the run block."""

SYMBOLS: Final = (
    *("smelt_run", "smelt_drive", "smelt_abandon", "smelt_wake", "smelt_helper", "smelt_poll"),
)

MAX_THREADS: Final = 64
THREAD_STACK_BYTES: Final = 1 << 20
"""Stack size of a helper thread."""
SLOT_BYTES: Final = 128
"""Bytes of a helper's slot: two cache lines, to avoid false sharing."""
RUN_RECORD_BYTES: Final = 128
"""Bytes of a run block, the state of one call."""

# Byte offsets into the pool. Fields written by different threads are 128 bytes apart, since
# adjacent cache lines are prefetched in pairs (false sharing).
OFFSETS: Final = {
    "WORD": 0,  # i64 (epoch << 32) | (chunks the owner began << 16) | chunks left
    "FINISHED": 128,  # i32 chunks of this job that helpers have finished (futex)
    "WAITING": 132,  # i32 1 while the owner sleeps on FINISHED
    "JOB_FIRST": 256,  # ptr to the row of the job's first chunk
    "JOB_FRAME": 264,  # ptr to the frame
    "JOB_CPU": 272,  # i32 CPU that the owner runs on
    "JOB_LIMIT": 276,  # i32 threads that may work on the job, the owner included
    "WAKE": 384,  # i32 counts up to wake sleeping helpers (futex)
    "SLEEPERS": 388,  # i32 helpers asleep or about to be
    "OWNER": 512,  # i64 token of the owning call, 0 when free
    "ACTIVE": 640,  # i32 threads that the pool is set up for, the caller included
    "STARTED": 644,  # i32 equal to ACTIVE once the helpers were started
    "SCRATCH": 656,  # i64 bytes of scratch that every active slot has
    "SPIN": 664,  # i64 nanoseconds that an idle helper spins
    "POLL": 672,  # i64 nanoseconds between two pauses, 0 for never
    "CLOCK_GETTIME": 680,  # functions of the C library
    "SYSCALL": 688,
    "SCHED_YIELD": 696,
    "ATTR_INIT": 704,
    "ATTR_STACK": 712,
    "ATTR_DETACH": 720,
    "CREATE": 728,
    "SIGFILLSET": 736,
    "SIGMASK": 744,
    "MUTEX_LOCK": 752,
    "MUTEX_UNLOCK": 760,
    "COND_WAIT": 768,
    "COND_BROADCAST": 776,
    "GETCPU": 784,  # these three are 0 where the system has no such function
    "GETAFFINITY": 792,
    "SETAFFINITY": 800,
    "HELPER": 808,  # address of smelt_helper
    "KEY": 816,  # i64 key of the thread-specific value that smelt_poll reads, and its functions
    "GETSPECIFIC": 824,
    "SETSPECIFIC": 832,
    "SELF": 840,  # pthread_self
    "MAIN": 848,  # i64 what it answers in Python's main thread
    "ENSURE": 856,  # functions of Python: take and release the GIL, run signal handlers
    "RELEASE": 864,
    "CHECK_SIGNALS": 872,
    "FETCH": 880,
    "FORKED": 888,  # i64 1 in the child of a fork: no helper will finish what it began
    "MUTEX": 896,  # storage of a pthread mutex and a condition, where there is no futex
    "COND": 1024,
    "RUN": 1152,  # the owner's run block
    "SLOTS": 1280,
}
POOL_BYTES: Final = OFFSETS["SLOTS"] + MAX_THREADS * SLOT_BYTES

SLOT_OFFSETS: Final = {
    "SLOT_STATE": 0,  # i32 1 while a thread lives in this slot
    "SLOT_ID": 4,  # i32 its number, from 1; slot 0 is the caller's
    "SLOT_POOL": 8,  # ptr
    "SLOT_SCRATCH": 16,  # ptr
    "SLOT_CHUNKS": 24,  # i64 chunks run so far
}

RUN_OFFSETS: Final = {
    "RUN_PHASE": 0,  # i64 one of the phases below
    "RUN_LAUNCH": 8,  # i64 index of the next launch
    "RUN_ROW": 16,  # ptr to the next chunk to run or to publish
    "RUN_END": 24,  # ptr behind the launch's last chunk
    "RUN_BATCH": 32,  # i64 chunks published
    "RUN_MINE": 40,  # i64 of those, claimed by the owner
    "RUN_DEADLINE": 48,  # i64 time of the next pause, 0 when the clock was not read yet
    "RUN_SOLO": 56,  # i64 1 for a call that does not own the pool
    "RUN_SCRATCH": 64,  # ptr
    "RUN_THREADS": 72,  # i64 threads that may work on this run
    "RUN_ABORT": 80,  # i64 1 when kernels of this run are to return at their next poll
    "RUN_POOL": 88,  # ptr
    "RUN_RAISED": 96,  # 3 ptr: type, value and traceback of what a signal handler raised
}

_PHASES: Final = {"NEXT": 0, "SERIAL": 1, "PUBLISH": 2, "CLAIM": 3, "WAIT": 4}
_STATUS: Final = {"DONE": DONE, "PAUSED": PAUSED, "BUSY": BUSY, "SETUP": SETUP, "STOPPED": STOPPED}

# Spin-wait hint by architecture, which lets the sibling hyperthread run.
_ISB: Final = ("llvm.aarch64.isb", "i32", "i32 15")
_PAUSE: Final = {
    "x86_64": ("llvm.x86.sse2.pause", "", ""),
    "aarch64": _ISB,
    "arm64": _ISB,
}
_FUTEX_NUMBER: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98}


def ir(
    triple: str,
    monotonic: int = 1,
    sig_setmask: int = 2,
    detached: int = 1,
    most_chunks: int = (1 << 16) - 1,
) -> str:
    """Return the pool's module as LLVM IR for `triple`.

    The numbers are constants of the C library: `monotonic` is CLOCK_MONOTONIC, `sig_setmask`
    SIG_SETMASK and `detached` PTHREAD_CREATE_DETACHED. A launch of more than `most_chunks` is
    published in parts.
    """
    arch, _, system = triple.partition("-")
    futex = _FUTEX_NUMBER.get(arch, 0) if "linux" in system else 0
    values: dict[str, int | str] = {
        **OFFSETS,
        **SLOT_OFFSETS,
        **RUN_OFFSETS,
        **_PHASES,
        **_STATUS,
        "MONOTONIC": monotonic,
        "SIG_SETMASK": sig_setmask,
        "DETACHED": detached,
        "STACK": THREAD_STACK_BYTES,
        "MOST_CHUNKS": most_chunks,
        "SLOT_SIZE": SLOT_BYTES,
        "PAUSE": _relax(arch),
        "FUTEX": futex,
    }
    sleep = FUTEX_SLEEP if futex else COND_SLEEP
    return "\n".join(
        Template(part).substitute(values)
        for part in (CLOCK, POLL, sleep, THREADS, PLACE, HELPER, AWAIT, DRIVE, ENTRY)
    )


def _relax(arch: str) -> str:
    """Return the function `relax`, which a waiting thread calls in every spin."""
    if arch not in _PAUSE:
        return "define internal void @relax() alwaysinline { ret void }"
    name, types, arguments = _PAUSE[arch]
    body = f"{{ call void @{name}({arguments}) ret void }}"
    return f"declare void @{name}({types})\ndefine internal void @relax() alwaysinline {body}"
