"""Modules that are imported when they are first needed, and whole in a child that is forked then.

A child has the memory of the moment: a module that another thread was importing is half there, and
Python's lock on it has an owner that does not exist, so that the child's own import waits for ever.
(Workers that load data are forked while a model is compiled.)  A fork waits until what this module
imports is whole.

>>> imported("math").sqrt(4.0)
2.0
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import Any

__all__ = ["imported"]

_LOCK: Any = threading.RLock()
_PATIENCE = 10.0
"""Seconds that a fork waits.  The longest import takes one; a fork that somebody waits for who has
the lock must not wait for ever."""
_HELD = threading.local()
"""Whether the forks in progress have the lock; others may begin meanwhile that do not get it."""


def imported(name: str) -> Any:
    """A module by its name.  Raises ImportError."""
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
    else:  # whoever has it is not there
        _LOCK._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release_in_child)
