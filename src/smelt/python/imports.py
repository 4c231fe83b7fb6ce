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
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

_LOCK: Any = threading.RLock()
_PATIENCE = 10.0
"""Seconds that a fork waits for the lock. The longest import takes one; a fork whose caller is
waited for by the lock's owner must not wait for ever."""
_HELD = threading.local()
"""Stack of the forks in progress: whether each holds the lock, and the guards that it holds."""


class _Guard(NamedTuple):
    """What has to be held during a fork; calls without arguments."""

    hold: Callable[[], object]
    release: Callable[[], object]


_GUARDS: list[_Guard] = []
_PAIRED = ("logging", "concurrent.futures.thread")
"""Modules of the standard library that hold locks of theirs during forks; see `_prepare`."""
_READY = threading.Event()
"""Whether the fork handlers of this module are registered."""


def fork_safe_import(name: str) -> Any:
    """Import and return a module by name; raise ImportError if there is none."""
    _prepare()
    with _LOCK:
        return import_module(name)


def _prepare() -> None:
    """Register the fork handlers, once, after those of `_PAIRED`.

    Handlers for `before` run in reverse order of registration. A fork that held the lock of
    `logging` while it waits here would stop an import that creates a logger, and so itself. The
    modules take too long to be imported with this one.
    """
    if _READY.is_set():
        return
    with _LOCK:
        if not _READY.is_set():
            for name in _PAIRED:
                import_module(name)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(
                    before=_hold, after_in_parent=_release, after_in_child=_release_in_child
                )
            _READY.set()


def guard_forks(hold: Callable[[], object], release: Callable[[], object]) -> None:
    """Call `hold` before every fork and `release` after it, in parent and child.

    Unlike handlers of `os.register_at_fork`, they are called in pairs even if the module that
    registers them is imported while a fork waits. What was registered last is held first.
    """
    _prepare()
    _GUARDS.append(_Guard(hold, release))


def _hold() -> None:
    """Wait for imports, then for guards, which the imports may have registered."""
    guards: list[_Guard] = []
    lock_is_held = _LOCK.acquire(timeout=_PATIENCE)
    vars(_HELD).setdefault("forks", []).append((lock_is_held, guards))
    for guard in _GUARDS[::-1]:
        guard.hold()
        guards.append(guard)


def _release() -> bool:
    """Release what the fork holds; return whether that includes the lock of imports."""
    forks = vars(_HELD).get("forks")
    if not forks:  # the handlers were registered after the fork began
        return False
    lock_is_held, guards = forks.pop()
    for guard in reversed(guards):
        guard.release()
    if lock_is_held:
        _LOCK.release()
    return bool(lock_is_held)


def _release_in_child() -> None:
    if not _release():  # the lock's owner does not exist in the child
        _LOCK._at_fork_reinit()


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call `action` with a module: now if it is imported, otherwise when it is."""
    module = sys.modules.get(name)
    if module is None:
        # No subclass of `MetaPathFinder`: `importlib.abc` imports archives and temporary files.
        finder: Any = _Finder(name, action)
        sys.meta_path.insert(0, finder)
    else:
        action(module)


class _Finder:
    """Find a module as Python does, and call `action` when it is loaded."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (f.find_spec(fullname, path, target) for f in others if hasattr(f, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = _Loader(spec.loader, self._action)
            spec.loader = loader
        return spec


class _Loader:
    def __init__(self, inner: Any, action: Callable[[ModuleType], object]) -> None:
        self._inner, self._action = inner, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._action(module)
