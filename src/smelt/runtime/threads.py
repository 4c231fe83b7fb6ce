"""The process's thread pool: one native call runs all launches of a plan.

The calling thread always works; helper threads are started at the first parallel launch, take
chunks dynamically and sleep when idle. The interpreter lock is released meanwhile. A second
Python thread that calls while the pool is taken runs its launches alone, without waiting. The
pool never cuts or merges chunks, so results are the same bits for every number of threads.

A call returns to Python every `POLL_MS` so that Ctrl-C and other signal handlers run; if one of
them raises, chunks that nobody has begun are given up, and the exception leaves `run` only after
the last begun chunk has finished: no thread touches the call's memory any more.

>>> import numpy as np
>>> pool().run(np.empty((0, 4), np.int64), np.empty((0, 4), np.int64), np.zeros(1, np.int64))
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import itertools
import os
import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt import knobs
from smelt.errors import UnsupportedError
from smelt.runtime import native
from smelt.runtime.memory import Slab, check_room
from smelt.runtime.native_code import NativeCode, native_code
from smelt.runtime.quota import MOST_THREADS, Budget, cpu_budget

if TYPE_CHECKING:
    import numpy.typing as npt

POLL_MS: Final = 50
"""A running call lets Python's signal handlers run this often."""

_MIN_SCRATCH: Final = 64 << 10
_NEVER: Final = 2**63 - 1
_BASE_SETTINGS: Final = contextvars.Context()
_C: Final = ctypes.CDLL(None)

_FUNCTIONS: Final = {
    "CLOCK_GETTIME": "clock_gettime",
    "SYSCALL": "syscall",
    "SCHED_YIELD": "sched_yield",
    "ATTR_INIT": "pthread_attr_init",
    "ATTR_STACK": "pthread_attr_setstacksize",
    "ATTR_DETACH": "pthread_attr_setdetachstate",
    "CREATE": "pthread_create",
    "SIGFILLSET": "sigfillset",
    "SIGMASK": "pthread_sigmask",
    "MUTEX_LOCK": "pthread_mutex_lock",
    "MUTEX_UNLOCK": "pthread_mutex_unlock",
    "COND_WAIT": "pthread_cond_wait",
    "COND_BROADCAST": "pthread_cond_broadcast",
    "GETCPU": "sched_getcpu",
    "GETAFFINITY": "sched_getaffinity",
    "SETAFFINITY": "sched_setaffinity",
}


class _State:
    """One pool's memory. A forked child gets a new one; memory of an old one is never freed."""

    def __init__(self, code: NativeCode, spin_us: int) -> None:
        slab = Slab(native.POOL_BYTES)
        self.address = slab.address
        # A reference that is never given back: helpers look here until the process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(slab))
        self.scratch: list[Slab] = []
        for name, symbol in _FUNCTIONS.items():
            function = getattr(_C, symbol, None)  # the last three are Linux's
            if function is not None:
                self.word(name).value = ctypes.cast(function, ctypes.c_void_p).value or 0
        _C.pthread_mutex_init(ctypes.c_void_p(self.address + native.OFFSETS["MUTEX"]), None)
        _C.pthread_cond_init(ctypes.c_void_p(self.address + native.OFFSETS["COND"]), None)
        self.word("HELPER").value = code.helper
        self.word("SPIN").value = spin_us * 1000
        self.word("POLL").value = POLL_MS * 1_000_000

    def word(self, name: str) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + native.OFFSETS[name])

    def half(self, name: str) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.address + native.OFFSETS[name])

    def run_word(self, name: str) -> ctypes.c_int64:
        offset = native.OFFSETS["RUN"] + native.RUN_OFFSETS[name]
        return ctypes.c_int64.from_address(self.address + offset)

    def slot(self, number: int, name: str) -> ctypes.c_int64:
        base = self.address + native.OFFSETS["SLOTS"] + number * native.SLOT_BYTES
        return ctypes.c_int64.from_address(base + native.SLOT_OFFSETS[name])


class Pool:
    """Threads that run plans. One per process: see `pool`.

    A run uses as many threads as the knob `threads` says in the calling context: a number given
    by `config(threads=...)` is taken literally (up to 64), one from the environment and `auto`
    are held below affinity and container quota. `budget` is that limit with its source.
    """

    def __init__(self, code: NativeCode | None = None) -> None:
        """`code` replaces the native loop that suits this machine (another way of sleeping)."""
        wish, wished_by = _wish()
        self.budget: Budget = cpu_budget(wish, wished_by)
        self._limits = {0: self.budget.threads}
        if wished_by == knobs.THREADS.env and wish is not None:
            self._limits[wish] = self.budget.threads
        self._spin_us = knobs.SPIN_US.get()
        self._code = code or native_code()
        self._native_run = self._code.run
        self._tokens = itertools.count(1)
        self._alone_scratch = threading.local()
        self._state = _State(self._code, self._spin_us)

    @property
    def threads(self) -> int:
        """Threads that a parallel launch uses in this context, the caller included."""
        return min(_Ceiling.threads, self.wished)

    @property
    def wished(self) -> int:
        """The same, whatever all runs of the process are held to for the time being."""
        wanted = knobs.THREADS.get()
        return self._limits.get(wanted, wanted)

    def run(
        self,
        chunks: npt.NDArray[np.int64],
        launches: npt.NDArray[np.int64],
        frame: npt.NDArray[np.int64],
        scratch_bytes: int = 0,
    ) -> None:
        """Run all launches in order (tables as in `smelt.kernel.abi`); returns when all is done.

        The tables are trusted. Raises `OutOfMemory` before anything runs if a thread cannot have
        `scratch_bytes`, and what a signal handler raises: then a part of the work was done.
        """
        self.run_addresses(
            chunks.ctypes.data,
            launches.ctypes.data,
            len(launches),
            frame.ctypes.data,
            scratch_bytes,
        )

    def run_addresses(
        self, chunks: int, launches: int, count: int, frame: int, scratch_bytes: int = 0
    ) -> None:
        """As `run`, with the addresses of the three arrays and the number of launches.

        The caller keeps the arrays, and what the kernels use, alive in its own frame.
        """
        token = next(self._tokens)
        state = self._state
        try:
            status = self._native_run(
                state.address, chunks, launches, count, frame, scratch_bytes, self.threads, token
            )
            if status:
                self._finish(state, status, (chunks, launches, count, frame), scratch_bytes)
        except BaseException:
            # The interrupt may have come just after the call was over: then this does nothing.
            # In a child forked meanwhile there are no helpers to wait for. Another interrupt
            # cannot come before the native call, only after it: no Python code runs in between.
            if state is self._state:
                self._code.abandon(state.address, token)
            raise

    def _finish(
        self, state: _State, status: int, call: tuple[int, int, int, int], scratch_bytes: int
    ) -> None:
        """Go on with a run that did not finish in one native call."""
        if status == native.BUSY:
            self._alone(state, call, scratch_bytes)
            return
        if status == native.SETUP:
            self._set_up(state, scratch_bytes)
        self._drive(state, state.address + native.OFFSETS["RUN"], call)

    def _drive(self, state: _State, run: int, call: tuple[int, int, int, int]) -> None:
        """Continue until done; between two native calls Python runs pending signal handlers."""
        drive = self._code.drive
        while drive(state.address, run, *call) == native.PAUSED:
            if state is not self._state:
                raise UnsupportedError("a signal handler forked, and its child goes on with a run")
            if threading.current_thread() is not threading.main_thread():
                # Signal handlers run in the main thread only: no further pauses for this one.
                deadline = run + native.RUN_OFFSETS["RUN_DEADLINE"]
                ctypes.c_int64.from_address(deadline).value = _NEVER

    def _set_up(self, state: _State, scratch_bytes: int) -> None:
        """Man the pool and give every thread its scratch. The caller owns the pool."""
        threads = max(state.run_word("RUN_THREADS").value, state.half("ACTIVE").value)
        have = state.word("SCRATCH").value
        need = max(scratch_bytes, have, _MIN_SCRATCH)
        if need > have or threads > len(state.scratch):
            check_room(need * threads)
            kept = state.scratch if need == have else []
            slabs = [*kept, *(Slab(need) for _ in range(threads - len(kept)))]
            # An interrupt may come between any two steps: with 0 bytes nobody uses what is here.
            state.word("SCRATCH").value = 0
            state.scratch = slabs
            for number, slab in enumerate(slabs):
                state.slot(number, "SLOT_SCRATCH").value = slab.address
            state.run_word("RUN_SCRATCH").value = slabs[0].address
            state.word("SCRATCH").value = slabs[0].nbytes
        if state.half("ACTIVE").value != threads:
            state.half("ACTIVE").value = threads
            state.half("STARTED").value = 0

    def _alone(self, state: _State, call: tuple[int, int, int, int], scratch_bytes: int) -> None:
        """Run everything in this thread: the pool works for another one."""
        run = (ctypes.c_int64 * (native.RUN_BYTES // 8))()
        slab = self._borrow(scratch_bytes)
        run[native.RUN_OFFSETS["RUN_SOLO"] // 8] = 1
        run[native.RUN_OFFSETS["RUN_SCRATCH"] // 8] = slab.address
        try:
            self._drive(state, ctypes.addressof(run), call)
        finally:
            self._alone_scratch.slab = slab

    def _borrow(self, nbytes: int) -> Slab:
        """This thread's own scratch, taken out so that a nested run finds none and makes one."""
        slab = getattr(self._alone_scratch, "slab", None)
        self._alone_scratch.slab = None
        if slab is None or slab.nbytes < nbytes:
            slab = Slab(max(nbytes, _MIN_SCRATCH))
        return slab

    def chunks_by_helper(self) -> list[int]:
        """Chunks that each helper thread has run since the pool was made (statistics)."""
        count = self._state.half("ACTIVE").value
        return [self._state.slot(number, "SLOT_CHUNKS").value for number in range(1, count)]

    def after_fork(self) -> None:
        """In a forked child: a fresh pool without helpers. Old memory is left alone."""
        self._alone_scratch = threading.local()
        self._state = _State(self._code, self._spin_us)

    def stop(self) -> None:
        """Send all helpers home; the next parallel launch starts new ones."""
        self._state.half("ACTIVE").value = 1
        self._code.wake(self._state.address)


class _Ceiling:
    """The most threads of any run of this process, whatever its context wishes."""

    threads: int = MOST_THREADS


def usual() -> int:
    """Threads of a run whose context wishes nothing; starts no pool."""
    return min(cpu_budget(*_wish()).threads, _Ceiling.threads)


def limit(threads: int) -> None:
    """Holds all runs of this process to so many threads, until told another number.  Exactly as
    many as a run usually has is no limit: that is how a limit ends."""
    free = threads == cpu_budget(*_wish()).threads
    _Ceiling.threads = MOST_THREADS if free else max(threads, 1)


def _wish() -> tuple[int | None, str]:
    """The user's number of threads in the environment, and the name of its variable."""
    wanted = _BASE_SETTINGS.copy().run(knobs.THREADS.get)
    if wanted:
        return wanted, knobs.THREADS.env
    # OpenMP's variable may list a number for each nesting level.
    first = (knobs.foreign("OMP_NUM_THREADS") or "").partition(",")[0].strip()
    return (int(first) if first.isdigit() and int(first) > 0 else None), "OMP_NUM_THREADS"


class _Process:
    """The process's pool, made when it is first asked for."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.lock = threading.RLock()

    def get(self) -> Pool:
        with self.lock:
            if self.pool is None:
                made = Pool()
                atexit.register(made.stop)
                # Never freed: daemon threads may be inside a run when the interpreter ends.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
                self.pool = made
            return self.pool

    def after_fork(self) -> None:
        self.lock = threading.RLock()
        if self.pool is not None:
            self.pool.after_fork()


_PROCESS: Final = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.after_fork)


def pool() -> Pool:
    """The process's thread pool; it is made, without threads yet, at the first call."""
    return _PROCESS.pool or _PROCESS.get()
