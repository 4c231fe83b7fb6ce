"""Imports of optional or heavy modules on first use, safe against concurrent forks.

A forked child has a snapshot of memory: a module that another thread was importing is incomplete
there, and Python's import lock has an owner that does not exist, so that the child's own import
waits for ever. (Workers that load data are forked while a model is compiled.) A fork therefore
waits until the imports of this module have finished.

>>> fork_safe_import("math").sqrt(4.0)
2.0
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import Any

__all__ = ["fork_safe_import"]

_LOCK: Any = threading.RLock()
_PATIENCE = 10.0
"""Seconds that a fork waits for the lock. The longest import takes one; a fork whose caller is
waited for by the lock's owner must not wait for ever."""
_HELD = threading.local()
"""Per fork in progress, whether it holds the lock; several may overlap."""


def fork_safe_import(name: str) -> Any:
    """Import and return a module by name; raise ImportError if there is none."""
    with _LOCK:
        return import_module(name)


def _hold() -> None:
    vars(_HELD).setdefault("forks", []).append(_LOCK.acquire(timeout=_PATIENCE))


def _release() -> None:
    if _HELD.forks.pop():
        _LOCK.release()


def _release_in_child() -> None:
    if _HELD.forks.pop():
        _LOCK.release()
    else:  # the lock's owner does not exist in the child
        _LOCK._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release_in_child)
