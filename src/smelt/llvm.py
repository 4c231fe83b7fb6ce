"""LLVM in a process of several threads: what takes long is done side by side, the rest one at a
time, and forks and the process's end wait for it.

LLVM's tables are the process's. A child of a fork inherits its lock as it stands, and a thread that
is inside LLVM while the process takes these tables down crashes on them, which is what a thread
that measures or compiles in the background would do to a short script. So a fork waits until no
thread is inside, and the interpreter's end does and lets no other thread in again.

llvmlite holds one lock for all calls. LLVM itself asks for less: threads may work at once, each on
modules of a context and with a target machine of its own. So the two calls that take nearly all of
its time, passes and machine code, leave that lock (`apart`); they are counted, and a fork or the
end, which hold it, wait until none is inside.

Importing this module imports LLVM, which takes tens of milliseconds: a warm process gets by without
it. What only writes LLVM's text (`codegen.llvm.ir`) does not need it.

>>> with alone():
...     llvm.get_process_triple() != ""
True
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

import llvmlite.binding as llvm
from llvmlite.binding import ffi, newpassmanagers

__all__ = ["alone", "beside", "llvm", "machine_code", "newpassmanagers", "run_passes"]

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = (
    # NewGVN, the one pass that shares common values of those that llvmlite shows, may take values
    # for one another for good and then find that they are not, where it looks through phis: an
    # assertion, which ends the process.  What it shares by that is 0.03 % of our code.
    "-enable-phi-of-ops=false",
    # Loops of tiles step what is worth it (`codegen.llvm.instructions.counting`).  Looking for more
    # took a quarter of LLVM's time, and code was no faster for it on the whole.
    "-disable-lsr",
)
"""LLVM takes an option once, for the whole process."""

if "smelt_options" not in ffi.__dict__:
    for _option in _OPTIONS:
        llvm.set_option("smelt", _option)
    ffi.__dict__["smelt_options"] = True

# llvmlite serialises its calls with a reentrant lock of its own, which it does not show.
_LOCK: Any = getattr(ffi.lib, "_lock", None) or threading.RLock()


def alone() -> Any:
    """The lock around LLVM, to be held over several calls: `with alone(): ...`. Reentrant."""
    return _LOCK


class _Apart:
    """The threads that are inside LLVM without the lock."""

    def __init__(self) -> None:
        self.inside = set[object]()
        self.changed = threading.Condition()

    def call(self, name: str, *args: Any) -> Any:
        """LLVM's function of a name, on what no other thread touches."""
        function: Any = getattr(ffi.lib, name)
        bare = getattr(function, "_cfn", None)
        if bare is None:  # a release of llvmlite that hides it: one thread at a time
            return function(*args)
        here = object()
        try:  # an interrupt may come anywhere, and a fork must not wait for who has left
            with _LOCK, self.changed:
                self.inside.add(here)
            return bare(*args)
        finally:
            with self.changed:
                self.inside.discard(here)
                self.changed.notify_all()

    def wait(self) -> None:
        """Waits until none is inside; for who holds the lock, so that none comes in."""
        with self.changed:
            self.changed.wait_for(lambda: not self.inside)


_APART = _Apart()


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """Runs passes over a module, beside other threads: its context must be its own, and the
    builder's target machine this thread's."""
    _APART.call("LLVMPY_RunNewModulePassManager", passes, module, builder)


def machine_code(machine: Any, module: Any) -> bytes:
    """A module as an object file, beside other threads as `run_passes`.  Raises RuntimeError with
    LLVM's message."""
    with ffi.OutputString() as error:
        found = _APART.call("LLVMPY_TargetMachineEmitToMemory", machine, module, 1, error)
        if not found:
            raise RuntimeError(str(error))
    try:
        size = ffi.lib.LLVMPY_GetBufferSize(found)
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(found), size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(found)


@contextmanager
def beside(threads: int = 1) -> Generator[Callable[..., Callable[[], Any]]]:
    """Threads for calls of LLVM, which holds Python's lock for none of its work: what it gives
    makes a call there, in order of calls, and gives what waits for the result.

    Where a process can have no further thread, as at its end, whoever waits makes the call.

    >>> with beside() as call:
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
    _APART.wait()


def _release() -> None:
    _LOCK.__exit__(None, None, None)


atexit.register(_hold)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)
