"""LLVM in a process of several threads: one at a time, and forks and the process's end wait for it.

LLVM's tables are the process's. A child of a fork inherits its lock as it stands, and a thread that
is inside LLVM while the process takes these tables down crashes on them, which is what a thread
that measures or compiles in the background would do to a short script. So a fork waits until no
thread is inside, and the interpreter's end does and lets no other thread in again.

Importing this module imports LLVM, which takes tens of milliseconds: a warm process gets by without
it. What only writes LLVM's text (`llvmlite.ir`) does not need it.

>>> with alone():
...     llvm.get_process_triple() != ""
True
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi, newpassmanagers

__all__ = ["alone", "llvm", "newpassmanagers"]

# llvmlite serialises its calls with a reentrant lock of its own, which it does not show.
_LOCK: Any = getattr(ffi.lib, "_lock", None) or threading.RLock()


def alone() -> Any:
    """The lock around LLVM, to be held over several calls: `with alone(): ...`. Reentrant."""
    return _LOCK


def _hold() -> None:
    _LOCK.__enter__()


def _release() -> None:
    _LOCK.__exit__(None, None, None)


atexit.register(_hold)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)
