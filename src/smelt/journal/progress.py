"""Show a line of progress while a compilation takes longer than a second.

The line names the stage, counts kernels and shows the time; it is erased at the end. It appears
only if standard error is a terminal and the knob QUIET is off: logs, pipes and notebooks, whose
standard error is not a terminal, show nothing.

A thread draws the line, so that a stage that takes long does not stop the clock; compiling only
notes the stage. rich is imported by that thread, after the first second. The line has a file object
of its own, because a fork may copy a lock that the thread holds. At most one line is shown: other
threads compile silently, and a compilation within another one continues its line.

    with compiling("step"):
        stage("planning")
        finished = stage("generating code", 12)
        finished()                              # 1 of 12
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from smelt import knobs
from smelt.python.imports import fork_safe_import

DELAY_S = 1.0
"""Seconds of compiling before the line appears."""
_REFRESH_S = 0.2


class _Line:
    """The state of the line: the compiling thread writes, the drawing one reads."""

    def __init__(self, name: str, token: object) -> None:
        self.name = name
        self.token = token
        self.owner = threading.get_ident()
        self.started = monotonic()
        self.stage = ""
        self.total = 0
        self.finished: list[None] = []
        """One item per finished kernel: any thread may append."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="smelt-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Erase the line, and wait until it is erased."""
        self._done.set()
        self._thread.join()

    def text(self) -> str:
        """Return the line's text."""
        count = f" {len(self.finished)} of {self.total} kernels," if self.total else ""
        colon = ":" if count else ","
        return f"compiling {self.name}: {self.stage}{colon}{count} {self._seconds():.0f} s"

    def _seconds(self) -> float:
        return monotonic() - self.started

    def _draw(self) -> None:
        if self._done.wait(DELAY_S):
            return
        error_output = sys.__stderr__
        assert error_output is not None
        with (
            suppress(OSError, ValueError, ImportError),  # the terminal may be closed meanwhile
            open(error_output.fileno(), "w", closefd=False) as file,
        ):
            self._draw_on(file)

    def _draw_on(self, file: Any) -> None:
        console = fork_safe_import("rich.console").Console(file=file, highlight=False)
        if not console.is_terminal or console.is_dumb_terminal:
            return
        text = fork_safe_import("rich.text").Text
        live = fork_safe_import("rich.live").Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=lambda: text(self.text(), no_wrap=True, overflow="ellipsis"),
        )
        with live:
            console.show_cursor(True)  # a process that is killed must not leave it hidden
            while True:
                live.refresh()
                if self._done.wait(_REFRESH_S):
                    break


class _Shown:
    """The line of this process, if a compilation has one."""

    lock = threading.Lock()
    line: _Line | None = None


@contextmanager
def compiling(name: str) -> Generator[None]:
    """Show progress on a terminal while the block runs, if it takes long."""
    token = object()  # an interrupt may come anywhere, also before the line is returned
    try:
        _open(name, token)
        yield
    finally:
        _close(token)


def stage(name: str, total: int = 0) -> Callable[[], None]:
    """Note the current stage of this thread's compilation, and its number of kernels.

    Returns a function to call after each of them, from any thread.
    """
    line = _Shown.line
    if line is None or line.owner != threading.get_ident():
        return _ignore
    finished: list[None] = []
    line.stage, line.total, line.finished = name, total, finished
    return lambda: finished.append(None)


def _ignore() -> None:
    return None


def _open(name: str, token: object) -> None:
    if not _is_wanted():
        return
    with _Shown.lock:
        if _Shown.line is None:
            with suppress(RuntimeError):  # no thread can be started, as at the process's exit
                _Shown.line = _Line(name, token)


def _close(token: object) -> None:
    line = _Shown.line
    if line is not None and line.token is token:
        _Shown.line = None
        line.close()


def _is_wanted() -> bool:
    """Return whether standard error is the process's own terminal and QUIET is off."""
    if sys.stderr is None or sys.stderr is not sys.__stderr__ or knobs.QUIET.get():
        return False
    try:
        return os.isatty(sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def _forget() -> None:
    """In a forked child: the thread that draws does not exist there."""
    _Shown.line, _Shown.lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
