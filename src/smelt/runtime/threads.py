"""Thread pool of the process: one native call runs all launches of a plan.

The calling thread always works; helper threads are started at the first parallel launch, take
chunks dynamically and sleep when idle. The GIL is released meanwhile. A second Python thread that
calls while the pool is busy runs its launches alone, without waiting. The pool never splits or
merges chunks, so results are bitwise equal for any number of threads.

Every `POLL_MS` Ctrl-C and other signal handlers run: between chunks a call returns to Python, and
in a long chunk the kernel asks for them. If one of them raises, chunks not yet begun are
abandoned, and the exception leaves `run` only after the last begun chunk has returned, when no
thread touches the call's memory any more.

>>> import numpy as np
>>> pool().run(np.empty((0, 4), np.int64), np.empty((0, 4), np.int64), np.zeros(1, np.int64))
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import knobs
from smelt.errors import UnsupportedError
from smelt.packages.c_library import C_LIBRARY, function_address
from smelt.packages.version import __version__
from smelt.runtime import native_layout as layout
from smelt.runtime.elf import thread_key
from smelt.runtime.host import MAX_POOL_THREADS, Budget, cpu_budget
from smelt.runtime.memory import Slab, check_room
from smelt.runtime.native import NativeCode, native_code, system_constants

if TYPE_CHECKING:
    import numpy.typing as npt

POLL_MS: Final = 50
"""Interval in ms at which a running call lets Python's signal handlers run."""

_MIN_SCRATCH: Final = 64 << 10
"""Minimum scratch per thread, in bytes."""
_NEVER: Final = 2**63 - 1
_BASE_SETTINGS: Final = contextvars.Context()
"""Empty context, in which knobs show environment settings only."""

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
    "GETSPECIFIC": "pthread_getspecific",
    "SETSPECIFIC": "pthread_setspecific",
    "SELF": "pthread_self",
    "ENSURE": "PyGILState_Ensure",
    "RELEASE": "PyGILState_Release",
    "CHECK_SIGNALS": "PyErr_CheckSignals",
    "FETCH": "PyErr_Fetch",
}
_RESTORE: Final = ctypes.PYFUNCTYPE(None, *(ctypes.c_void_p,) * 3)(
    ("PyErr_Restore", ctypes.pythonapi)
)
"""Raises an exception of which type, value and traceback are given; takes their references."""


class _State:
    """Memory of one pool, never freed; a forked child gets a new one."""

    def __init__(self, code: NativeCode, spin_us: int, constants: Mapping[str, int]) -> None:
        slab = Slab(layout.SIZES["POOL"])
        self.address = slab.address
        # Leak a reference: helpers read this memory until the process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(slab))
        self.scratch: list[Slab] = []
        for name, symbol in _FUNCTIONS.items():
            self.word(name).value = function_address(symbol)  # of affinity on Linux only
        for name, number in constants.items():
            self.word(name).value = number
        C_LIBRARY.pthread_mutex_init(ctypes.c_void_p(self.address + layout.POOL["MUTEX"]), None)
        C_LIBRARY.pthread_cond_init(ctypes.c_void_p(self.address + layout.POOL["COND"]), None)
        self.word("HELPER").value = code.helper
        self.word("SPIN").value = spin_us * 1000
        self.word("POLL").value = POLL_MS * 1_000_000
        self.word("KEY").value = thread_key()
        self.word("MAIN").value = threading.main_thread().ident or 0
        self.run_word("POOL").value = slab.address

    def word(self, name: str) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + layout.POOL[name])

    def half(self, name: str) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.address + layout.POOL[name])

    def run_word(self, name: str) -> ctypes.c_int64:
        offset = layout.POOL["RUN"] + layout.RUN[name]
        return ctypes.c_int64.from_address(self.address + offset)

    def slot(self, number: int, name: str) -> ctypes.c_int64:
        base = self.address + layout.POOL["SLOTS"] + number * layout.SIZES["SLOT"]
        return ctypes.c_int64.from_address(base + layout.SLOT[name])


class Pool:
    """Threads that run plans; one per process, see `pool`.

    A run uses as many threads as the knob `threads` says in the calling context. A number set by
    `config(threads=...)` is taken literally (up to 64); one from the environment and `auto` are
    limited by affinity and container quota. `budget` is that limit with its source.
    """

    def __init__(self, **constants: int) -> None:
        """Create a pool; `constants` replace some of this system's.

        Tests pass those of another way of sleeping.
        """
        requested, requested_by = _requested_threads()
        self.budget: Budget = cpu_budget(requested, requested_by)
        self._limits = {0: self.budget.threads}
        if requested_by == knobs.THREADS.env and requested is not None:
            self._limits[requested] = self.budget.threads
        self._spin_us = knobs.SPIN_US.get()
        self._code = native_code()
        self._constants = {**system_constants(), **constants}
        self._native_run = self._code.run
        self._tokens = itertools.count(1)
        self._alone_scratch = threading.local()
        self._state = _State(self._code, self._spin_us, self._constants)

    @property
    def threads(self) -> int:
        """Threads that a parallel launch uses in this context, the caller included."""
        return min(_ProcessLimit.threads, self.requested_threads)

    @property
    def requested_threads(self) -> int:
        """Threads requested in this context, ignoring the process-wide limit."""
        requested = knobs.THREADS.get()
        return self._limits.get(requested, requested)

    def run(
        self,
        chunks: npt.NDArray[np.int64],
        launches: npt.NDArray[np.int64],
        frame: npt.NDArray[np.int64],
        scratch_bytes: int = 0,
    ) -> None:
        """Run all launches in order and return when all are done.

        The tables are as in `smelt.kernel.abi` and trusted. Raises `OutOfMemory` before anything
        runs if a thread cannot have `scratch_bytes`, and whatever a signal handler raises, when
        part of the work is done.
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
        """Like `run`, with the addresses of the three arrays and the number of launches.

        The caller keeps the arrays, and everything the kernels use, alive.
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
            # If the interrupt came just after the call finished, this does nothing. A child forked
            # meanwhile has no helpers to wait for. No Python code runs before the native call,
            # so another interrupt can only come after it.
            if state is self._state:
                self._code.abandon(state.address, token)
            raise

    def _finish(
        self, state: _State, status: int, call: tuple[int, int, int, int], scratch_bytes: int
    ) -> None:
        """Continue a run that did not finish in one native call."""
        if status == layout.BUSY:
            self._run_alone(state, call, scratch_bytes)
            return
        run = state.address + layout.POOL["RUN"]
        if status == layout.SETUP:
            self._set_up(state, scratch_bytes)
            status = layout.PAUSED
        self._drive(state, run, call, status)

    def _drive(
        self, state: _State, run: int, call: tuple[int, int, int, int], status: int = layout.PAUSED
    ) -> None:
        """Continue until done; between native calls Python runs pending signal handlers.

        Raises what a handler raised inside of a kernel.
        """
        drive = self._code.drive
        while status:
            if state is not self._state:
                raise UnsupportedError("a signal handler forked, and its child goes on with a run")
            if status == layout.STOPPED:
                raised = run + layout.RUN["RAISED"]
                _RESTORE(*(ctypes.c_void_p.from_address(raised + 8 * k) for k in range(3)))
            status = drive(state.address, run, *call)
            if status == layout.PAUSED and (
                threading.current_thread() is not threading.main_thread()
            ):
                # Signal handlers run in the main thread only, so never pause this one again.
                deadline = run + layout.RUN["DEADLINE"]
                ctypes.c_int64.from_address(deadline).value = _NEVER

    def _set_up(self, state: _State, scratch_bytes: int) -> None:
        """Set the pool's thread count and scratch; the caller owns the pool."""
        threads = max(state.run_word("THREADS").value, state.half("ACTIVE").value)
        available = state.word("SCRATCH").value
        needed = max(scratch_bytes, available, _MIN_SCRATCH)
        if needed > available or threads > len(state.scratch):
            check_room(needed * threads)
            reused = state.scratch if needed == available else []
            slabs = [*reused, *(Slab(needed) for _ in range(threads - len(reused)))]
            # An interrupt may come between any two steps: a size of 0 keeps the scratch unused.
            state.word("SCRATCH").value = 0
            state.scratch = slabs
            for number, slab in enumerate(slabs):
                state.slot(number, "SCRATCH").value = slab.address
            state.run_word("SCRATCH").value = slabs[0].address
            state.word("SCRATCH").value = slabs[0].nbytes
        if state.half("ACTIVE").value != threads:
            state.half("ACTIVE").value = threads
            state.half("STARTED").value = 0

    def _run_alone(
        self, state: _State, call: tuple[int, int, int, int], scratch_bytes: int
    ) -> None:
        """Run everything in this thread, because another call owns the pool."""
        run = (ctypes.c_int64 * (layout.SIZES["RUN"] // 8))()
        slab = self._take_scratch(scratch_bytes)
        run[layout.RUN["SOLO"] // 8] = 1
        run[layout.RUN["SCRATCH"] // 8] = slab.address
        run[layout.RUN["POOL"] // 8] = state.address
        try:
            self._drive(state, ctypes.addressof(run), call)
        finally:
            self._alone_scratch.slab = slab

    def _take_scratch(self, nbytes: int) -> Slab:
        """Take this thread's scratch; a nested run finds none and allocates its own."""
        slab = getattr(self._alone_scratch, "slab", None)
        self._alone_scratch.slab = None
        if slab is None or slab.nbytes < nbytes:
            slab = Slab(max(nbytes, _MIN_SCRATCH))
        return slab

    def chunks_by_helper(self) -> list[int]:
        """Return the chunks each helper thread has run since the pool was made (statistics)."""
        count = self._state.half("ACTIVE").value
        return [self._state.slot(number, "CHUNKS").value for number in range(1, count)]

    def after_fork(self) -> None:
        """Reset to a pool without helpers in a forked child; stop the old one's run."""
        self._state.word("FORKED").value = 1
        self._alone_scratch = threading.local()
        self._state = _State(self._code, self._spin_us, self._constants)

    def stop(self) -> None:
        """Stop all helpers; the next parallel launch starts new ones."""
        self._state.half("ACTIVE").value = 1
        self._code.wake(self._state.address)


class _ProcessLimit:
    """Process-wide limit of the threads of any run."""

    threads: int = MAX_POOL_THREADS


def default_threads() -> int:
    """Return the default number of threads of a run; starts no pool."""
    return min(cpu_budget(*_requested_threads()).threads, _ProcessLimit.threads)


def limit_threads(threads: int) -> None:
    """Limit all runs of this process to `threads`, until called with another number.

    Passing exactly the default number of threads removes the limit.
    """
    is_default = threads == cpu_budget(*_requested_threads()).threads
    _ProcessLimit.threads = MAX_POOL_THREADS if is_default else max(threads, 1)


def _requested_threads() -> tuple[int | None, str]:
    """Return the number of threads set in the environment, and the variable's name."""
    requested = _BASE_SETTINGS.copy().run(knobs.THREADS.get)
    if requested:
        return requested, knobs.THREADS.env
    # OpenMP's variable may list a number for each nesting level.
    first = (knobs.foreign("OMP_NUM_THREADS") or "").partition(",")[0].strip()
    return (int(first) if first.isdigit() and int(first) > 0 else None), "OMP_NUM_THREADS"


class _Process:
    """Holder of the process's pool, created on first use."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.lock = threading.RLock()

    def get(self) -> Pool:
        with self.lock:
            if self.pool is None:
                pool = Pool()
                atexit.register(pool.stop)
                # Never freed: daemon threads may be inside a run when the interpreter exits.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
                self.pool = pool
            return self.pool

    def after_fork(self) -> None:
        self.lock = threading.RLock()
        if self.pool is not None:
            self.pool.after_fork()


_PROCESS: Final = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.after_fork)


def pool() -> Pool:
    """Return the process's thread pool, created without threads at the first call."""
    return _PROCESS.pool or _PROCESS.get()


# ---- the package threadpoolctl ------------------------------------------------------------------

_CARRIER = "_multiarray_umath"
"""Prefix of the file name of NumPy's shared library."""


class _Registered:
    """Module that the controller was registered with."""

    module: Any = None


def register_controller() -> None:
    """Let the package `threadpoolctl`, if imported, control Smelt's threads like those of BLAS.

    It finds thread pools by the files of shared libraries, but Smelt's pool is machine code in
    memory. So a controller is registered for a library that is always loaded, NumPy's own; it
    reports Smelt's pool and nothing else.
    """
    module = sys.modules.get("threadpoolctl")
    if module is None or module is _Registered.module:
        return
    _Registered.module = module
    if hasattr(module, "register") and hasattr(module, "LibController"):  # since version 3.2
        module.register(_controller(module.LibController))


def _controller(parent: Any) -> Any:
    """Return the controller's class with the methods that `LibController` expects."""

    def set_additional_attributes(self: Any) -> None:
        self.prefix, self.filepath = "smelt", str(Path(__file__).parent.parent)

    members: dict[str, Any] = {
        "__doc__": "Controller of Smelt's thread pool.",
        "user_api": "smelt",
        "internal_api": "smelt",
        "filename_prefixes": (_CARRIER,),
        "get_num_threads": lambda self: default_threads(),
        "set_num_threads": lambda self, num_threads: limit_threads(num_threads),
        "get_version": lambda self: __version__,
        "set_additional_attributes": set_additional_attributes,
    }
    return type("SmeltController", (parent,), members)
