"""LLVM in a process of several threads: one at a time, and forks and the process's end wait for it.

LLVM's tables are the process's. A child of a fork inherits its lock as it stands, and a thread that
is inside LLVM while the process takes these tables down crashes on them, which is what a thread
that measures or compiles in the background would do to a short script. So a fork waits until no
thread is inside, and the interpreter's end does and lets no other thread in again.

Importing this module imports LLVM, which takes tens of milliseconds: a warm process gets by without
it. What only writes LLVM's text (`codegen.llvm.ir`) does not need it.

>>> with alone():
...     llvm.get_process_triple() != ""
True
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

import llvmlite.binding as llvm
from llvmlite.binding import ffi, newpassmanagers

__all__ = ["alone", "beside", "llvm", "newpassmanagers"]

P = ParamSpec("P")
T = TypeVar("T")

# llvmlite serialises its calls with a reentrant lock of its own, which it does not show.
_LOCK: Any = getattr(ffi.lib, "_lock", None) or threading.RLock()


def alone() -> Any:
    """The lock around LLVM, to be held over several calls: `with alone(): ...`. Reentrant."""
    return _LOCK


@contextmanager
def beside() -> Generator[Callable[..., Callable[[], Any]]]:
    """A thread for calls of LLVM, which holds Python's lock for none of its work: what it gives
    makes a call there, one after another, and gives what waits for the result.

    Where a process can have no further thread, as at its end, whoever waits makes the call.

    >>> with beside() as call:
    ...     waits = [call(pow, 2, k) for k in range(3)]
    ...     [wait() for wait in waits]
    [1, 2, 4]
    """
    pool = ThreadPoolExecutor(1, "smelt-llvm")

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


def _release() -> None:
    _LOCK.__exit__(None, None, None)


atexit.register(_hold)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)
