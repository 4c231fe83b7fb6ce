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
import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from smelt.errors import SmeltError
from smelt.kernel.abi import ABI_VERSION
from smelt.runtime import native
from smelt.runtime.cache import Cache
from smelt.runtime.loader import Loaded, compile_ir, load
from smelt.runtime.memory import Slab
from smelt.runtime.quota import Budget, cpu_budget

POLL_MS: Final = 50
"""A running call lets Python's signal handlers run this often."""

SPIN_US: Final = 50
"""How long an idle helper looks for work before it sleeps, unless SMELT_SPIN_US says else."""

_MIN_SCRATCH: Final = 64 << 10
_C = ctypes.CDLL(None)


class ForkedError(SmeltError):
    """A signal handler forked in the middle of a run and the child came back to finish it."""


class _Code:
    """The compiled loop: typed entry points. Never unloaded, helpers may be inside it."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        word, size = ctypes.c_void_p, ctypes.c_int64
        at = loaded.address
        self.run = ctypes.CFUNCTYPE(ctypes.c_int, word, word, word, size, word, size, size)(
            at("smelt_run")
        )
        self.drive = ctypes.CFUNCTYPE(ctypes.c_int, word, word, word, word, size, word)(
            at("smelt_drive")
        )
        self.abandon = ctypes.CFUNCTYPE(None, word, size)(at("smelt_abandon"))
        self.wake = ctypes.CFUNCTYPE(None, word)(at("smelt_wake"))
        self.helper = at("smelt_helper")


def _native_code() -> _Code:
    """The pool's loop for this machine, from the object cache or compiled now."""
    triple = llvm.get_process_triple()
    detached = 2 if sys.platform == "darwin" else 1
    monotonic = int(getattr(time, "CLOCK_MONOTONIC", 1))
    text = native.ir(triple, monotonic, int(signal.SIG_SETMASK), detached)
    cpu = {"x86_64": "x86-64"}.get(triple.partition("-")[0], "generic")
    identity = (ABI_VERSION, triple, cpu, llvm.llvm_version_info, text)
    key = f"smelt pool {identity}".encode()
    cache = Cache.default()
    entry = cache.get(key)
    if entry is None:
        code = compile_ir(text, 2, cpu, "")
        cache.put(key, {"what": "thread pool"}, code)
    else:
        code = entry.code
    loaded = load(code, native.SYMBOLS)
    # One reference that is never given back: helpers run this code until the process ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    return _Code(loaded)


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
}


class _State:
    """One pool's memory. A forked child gets a new one; memory of an old one is never freed."""

    def __init__(self, code: _Code, threads: int, spin_us: int) -> None:
        self.slab = Slab(native.POOL_BYTES)
        self.address = self.slab.address
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.slab))
        self.scratch: list[Slab] = []
        for name, symbol in _FUNCTIONS.items():
            function = ctypes.cast(getattr(_C, symbol), ctypes.c_void_p).value
            self.word(name).value = function or 0
        _C.pthread_mutex_init(ctypes.c_void_p(self.address + native.OFFSETS["MUTEX"]), None)
        _C.pthread_cond_init(ctypes.c_void_p(self.address + native.OFFSETS["COND"]), None)
        self.word("HELPER").value = code.helper
        self.word("SPIN").value = spin_us * 1000
        self.word("POLL").value = POLL_MS * 1_000_000
        self.half("WANTED").value = threads

    def word(self, name: str) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + native.OFFSETS[name])

    def half(self, name: str) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.address + native.OFFSETS[name])

    def slot(self, number: int, name: str) -> ctypes.c_int64:
        base = self.address + native.OFFSETS["SLOTS"] + number * native.SLOT_BYTES
        return ctypes.c_int64.from_address(base + native.SLOT_OFFSETS[name])


class Pool:
    """Threads that run plans. One per process: see `pool`."""

    def __init__(self, threads: int | None = None, spin_us: int = SPIN_US) -> None:
        """`threads` (the caller included) is by default what `cpu_budget` allows."""
        self.budget = cpu_budget(*_wanted_threads()) if threads is None else _explicit(threads)
        self._spin_us = spin_us
        self._code = _native_code()
        self._tokens = itertools.count(1)
        self._solo_scratch = threading.local()
        self._state = _State(self._code, self.budget.threads, spin_us)
        self._bind()

    def _bind(self) -> None:
        self._native_run = self._code.run
        self._address = self._state.address

    @property
    def threads(self) -> int:
        """Threads that a parallel launch may use, the caller included."""
        return int(self._state.half("WANTED").value)

    def set_threads(self, threads: int) -> None:
        """Use so many threads from the next call on (1 to 64); more than CPUs is allowed."""
        self.budget = _explicit(threads)
        self._state.half("WANTED").value = self.budget.threads

    def run(
        self,
        chunks: npt.NDArray[np.int64],
        launches: npt.NDArray[np.int64],
        frame: npt.NDArray[np.int64],
        scratch_bytes: int = 0,
    ) -> None:
        """Run all launches in order (tables as in `smelt.kernel.abi`); returns when all is done.

        The tables are trusted. Raises `OutOfMemory` before anything runs if a thread cannot have
        `scratch_bytes`, and what a signal handler raises.
        """
        self.run_addresses(
            chunks.ctypes.data, launches.ctypes.data, len(launches), frame.ctypes.data,
            scratch_bytes,
        )  # fmt: skip

    def run_addresses(
        self, chunks: int, launches: int, count: int, frame: int, scratch_bytes: int = 0
    ) -> None:
        """As `run`, with the addresses of the three arrays and the number of launches."""
        token = next(self._tokens)
        state = self._state
        try:
            status = self._native_run(
                self._address, chunks, launches, count, frame, scratch_bytes, token
            )
            if status:
                self._finish(state, status, chunks, launches, count, frame, scratch_bytes)
        except BaseException:
            # The interrupt may have come just after the call was over: then this does nothing.
            _surely(self._code.abandon, state.address, token)
            raise

    def _finish(
        self,
        state: _State,
        status: int,
        chunks: int,
        launches: int,
        count: int,
        frame: int,
        scratch_bytes: int,
    ) -> None:
        """Go on with a run that did not finish in one native call."""
        run = state.address + native.OFFSETS["RUN"]
        if status == native.BUSY:
            self._alone(state, chunks, launches, count, frame, scratch_bytes)
            return
        if status == native.SETUP:
            self._set_up(state, scratch_bytes)
        elif threading.current_thread() is not threading.main_thread():
            # Only the main thread runs signal handlers.
            pass
        drive = self._code.drive
        while drive(state.address, run, chunks, launches, count, frame) == native.PAUSED:
            if state is not self._state:
                raise ForkedError("a signal handler forked during a run; the child cannot end it")

    def _set_up(self, state: _State, scratch_bytes: int) -> None:
        """Man the pool and give every thread its scratch. The caller owns the pool."""
        threads = int(state.half("WANTED").value)
        have = int(state.word("SCRATCH").value)
        need = max(scratch_bytes, have, _MIN_SCRATCH)
        if need > have or threads > len(state.scratch):
            keep = state.scratch if need == have else []
            slabs = [*keep, *(Slab(need) for _ in range(threads - len(keep)))]
            for number, slab in enumerate(slabs):
                state.slot(number, "SLOT_SCRATCH").value = slab.address
            state.scratch = slabs
            state.word("SCRATCH").value = slabs[0].nbytes
            scratch = state.address + native.OFFSETS["RUN"] + native.RUN_OFFSETS["RUN_SCRATCH"]
            ctypes.c_int64.from_address(scratch).value = slabs[0].address
        if state.half("ACTIVE").value != threads:
            state.half("ACTIVE").value = threads
            state.half("STARTED").value = 0
            self._code.wake(state.address)

    def _alone(
        self, state: _State, chunks: int, launches: int, count: int, frame: int, scratch_bytes: int
    ) -> None:
        """Run everything in this thread: the pool works for another one."""
        run = (ctypes.c_int64 * (native.RUN_BYTES // 8))()
        slab = self._borrow(scratch_bytes)
        run[native.RUN_OFFSETS["RUN_SOLO"] // 8] = 1
        run[native.RUN_OFFSETS["RUN_SCRATCH"] // 8] = slab.address
        try:
            drive, at = self._code.drive, ctypes.addressof(run)
            while drive(state.address, at, chunks, launches, count, frame) == native.PAUSED:
                pass
        finally:
            self._solo_scratch.slab = slab

    def _borrow(self, nbytes: int) -> Slab:
        """This thread's own scratch, taken out so that a nested run finds none and makes one."""
        slab = getattr(self._solo_scratch, "slab", None)
        self._solo_scratch.slab = None
        if slab is None or slab.nbytes < nbytes:
            slab = Slab(max(nbytes, _MIN_SCRATCH))
        return slab

    def chunks_by_thread(self) -> list[int]:
        """Chunks that each helper has run since the pool was made (statistics)."""
        return [self._state.slot(n, "SLOT_CHUNKS").value for n in range(1, native.MAX_THREADS)]

    def after_fork(self) -> None:
        """In a forked child: a fresh pool without helpers. Old memory is left alone."""
        threads = self.threads
        self._solo_scratch = threading.local()
        self._state = _State(self._code, threads, self._spin_us)
        self._bind()

    def stop(self) -> None:
        """Send all helpers home; the next parallel launch starts new ones."""
        self._state.half("ACTIVE").value = 1
        self._code.wake(self._state.address)


def _surely(call: Any, *arguments: int) -> None:
    """Make a native call even if signal handlers keep raising."""
    while True:
        try:
            call(*arguments)
        except BaseException:  # noqa: BLE001, S112 - the first exception is on its way
            continue
        return


def _explicit(threads: int) -> Budget:
    if not 1 <= threads <= native.MAX_THREADS:
        raise ValueError(f"{threads} threads: a pool has 1 to {native.MAX_THREADS}")
    return Budget(threads, "set_threads")


def _wanted_threads() -> tuple[int | None, str]:
    """The user's number of threads and the name of the variable it came from."""
    for name in ("SMELT_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first), name
    return None, ""


class _Process:
    """The process's pool, made when it is first asked for."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.lock = threading.Lock()

    def get(self) -> Pool:
        with self.lock:
            if self.pool is None:
                self.pool = Pool()
                atexit.register(self.pool.stop)
            return self.pool

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        if self.pool is not None:
            self.pool.after_fork()


_PROCESS: Final = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.after_fork)


def pool() -> Pool:
    """The process's thread pool; it is made, without threads yet, at the first call."""
    return _PROCESS.pool or _PROCESS.get()
