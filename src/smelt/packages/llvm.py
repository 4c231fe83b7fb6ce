"""LLVM in a multithreaded process: locking, parallel code generation, forks and process exit.

LLVM's global tables belong to the process. A child of a fork inherits its lock in whatever state it
is, and a thread that is inside LLVM while the process destroys these tables crashes, which a
background thread that measures or compiles would do to a short script. So a fork waits until no
thread is inside; process exit waits too, and admits no thread afterwards.

llvmlite holds one lock for all calls. LLVM itself needs less: threads may work in parallel, each on
modules of its own context and with its own target machine. So the two calls that take nearly all of
the time, optimisation passes and machine code, run without that lock; they are counted, and a fork
or process exit, which hold the lock, wait until none is running.

Importing this module imports LLVM, which takes tens of milliseconds: a process with a warm cache
does not import it. Code that only writes LLVM's text (`codegen.llvm.ir`) does not need it.

>>> with llvm_lock():
...     llvm.get_process_triple() != ""
True
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from smelt.errors import OutOfMemory
from smelt.python.imports import guard_forks

_ROOM = 192 << 20
"""Bytes of address space that LLVM's library or one compilation may take. LLVM ends the process
where it gets no memory."""


def _check_room() -> None:
    """Raise OutOfMemory if the address space, for instance by RLIMIT_AS, is too short for LLVM."""
    try:
        mmap.mmap(-1, _ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        message = f"{_ROOM:,} bytes of address space are needed to compile (see `ulimit -v`)"
        raise OutOfMemory(message) from error


try:
    import llvmlite.binding as llvm
    from llvmlite.binding import ffi, newpassmanagers
except OSError:
    _check_room()
    raise

__all__ = [
    "llvm",
    "llvm_lock",
    "machine_code",
    "newpassmanagers",
    "parse_module",
    "run_passes",
    "worker_threads",
]

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = (
    # Loop strength reduction: our loops step their pointers already
    # (`codegen.llvm.instructions.counting`), and the pass is slow.
    "-disable-lsr",
)
"""Command-line options of LLVM, which takes each once per process."""

_check_room()
if "smelt_options" not in ffi.__dict__:
    for _option in _OPTIONS:
        llvm.set_option("smelt", _option)
    ffi.__dict__["smelt_options"] = True

# llvmlite serialises its calls with a reentrant lock that is not part of its API.
_LOCK: Any = getattr(ffi.lib, "_lock", None) or threading.RLock()


def llvm_lock() -> Any:
    """Return the reentrant lock around LLVM, to hold over several calls: `with alone(): ...`."""
    return _LOCK


class _UnlockedCalls:
    """Counts the threads that are inside LLVM without the lock."""

    def __init__(self) -> None:
        self.inside = set[object]()
        self.changed = threading.Condition()

    def call(self, name: str, *args: Any) -> Any:
        """Call an LLVM function by name, on data that no other thread uses."""
        function: Any = getattr(ffi.lib, name)
        unlocked = getattr(function, "_cfn", None)
        if unlocked is None:  # a release of llvmlite without the attribute: one thread at a time
            return function(*args)
        _check_room()
        token = object()
        try:  # an interrupt may come anywhere, and a fork must not wait for a thread that left
            with _LOCK, self.changed:
                self.inside.add(token)
            return unlocked(*args)
        finally:
            with self.changed:
                self.inside.discard(token)
                self.changed.notify_all()

    def wait(self) -> None:
        """Wait until no thread is inside; the caller holds the lock, so that none enters."""
        with self.changed:
            self.changed.wait_for(lambda: not self.inside)


_UNLOCKED = _UnlockedCalls()


def parse_module(text: str, triple: str, data_layout: str) -> Any:
    """Parse a module in a context of its own, for a target."""
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple = triple
    module.data_layout = data_layout
    return module


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """Run passes over a module, in parallel with other threads.

    The module's context must be used by this thread alone, as must the builder's target machine.
    """
    _UNLOCKED.call("LLVMPY_RunNewModulePassManager", passes, module, builder)


def machine_code(machine: Any, module: Any) -> bytes:
    """Compile a module to an object file, in parallel with other threads.

    The same conditions hold as for `run_passes`. Raises RuntimeError with LLVM's message.
    """
    with ffi.OutputString() as error:
        buffer = _UNLOCKED.call("LLVMPY_TargetMachineEmitToMemory", machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        size = ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@contextmanager
def worker_threads(threads: int = 1) -> Generator[Callable[..., Callable[[], Any]]]:
    """Provide threads for LLVM calls, which release Python's lock.

    Yields a function that starts a call on a thread and returns a function that waits for its
    result. Calls start in order. Where the process can start no thread, as at its exit, the waiting
    function makes the call.

    >>> with worker_threads() as call:
    ...     waits = [call(pow, 2, k) for k in range(3)]
    ...     [wait() for wait in waits]
    [1, 2, 4]
    """
    pool = ThreadPoolExecutor(threads, "smelt-llvm")

    def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
        try:
            return pool.submit(function, *args, **kwargs).result
        except RuntimeError:
            return partial(function, *args, **kwargs)

    try:
        yield call
    finally:
        pool.shutdown(cancel_futures=True)


def _hold() -> None:
    _LOCK.__enter__()
    _UNLOCKED.wait()


def _release() -> None:
    _LOCK.__exit__(None, None, None)


atexit.register(_hold)
guard_forks(_hold, _release)
