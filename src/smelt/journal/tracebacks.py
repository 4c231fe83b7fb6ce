"""Hide Smelt's own frames in the traceback of an error that the user's program made.

A traceback then ends at the user's line. `SMELT_TRACEBACK=full` shows all frames, and so does an
error of Smelt's own (`InternalError`). Frames are removed where a recording ends and where Python
or IPython prints, so calls that succeed cost nothing.

>>> from smelt.errors import ShapeError
>>> def fail():
...     raise ShapeError("shapes differ")
>>> try:
...     fail()
... except ShapeError as error:
...     hide_frames(error)
...     print([frame.f_code.co_name for frame in _frames(error.__traceback__)])
['<module>', 'fail']
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Iterator
from inspect import signature
from types import FrameType, TracebackType
from typing import Any

from smelt import knobs
from smelt.errors import Coded, InternalError, nearest
from smelt.python.origin import is_package_file


def hide_frames(error: BaseException) -> None:
    """Remove Smelt's frames from an error's traceback, its causes' and its members'.

    Only of an error that says what the user did wrong, and one that the user's code raised: other
    errors stay as they are.
    """
    if knobs.TRACEBACK.get() == "full":
        return
    if not _is_users(error):
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        pending += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]
        current.__traceback__ = _without_ours(current.__traceback__)


def _is_users(error: BaseException) -> bool:
    """Return whether an error is the user's to understand."""
    if isinstance(error, Coded):
        return not isinstance(error, InternalError)
    if isinstance(error, AttributeError) and error.name is not None:
        return True
    frames = list(_frames(error.__traceback__))
    return bool(frames) and not is_package_file(frames[-1].f_code.co_filename)


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without Smelt's frames; None if it has no others."""
    entries: list[TracebackType] = []
    while traceback is not None:
        if not is_package_file(traceback.tb_frame.f_code.co_filename):
            entries.append(traceback)
        traceback = traceback.tb_next
    result = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def install_hooks() -> None:
    """Hide frames where Python prints an error that nobody caught, in threads and IPython too.

    What was there before prints the error.
    """
    before, before_in_thread = sys.excepthook, threading.excepthook

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        before(kind, error, _shown(error, traceback))

    def thread_hook(args: Any) -> None:
        shown = _shown(args.exc_value, args.exc_traceback)
        values = args.exc_type, args.exc_value, shown, args.thread
        before_in_thread(threading.ExceptHookArgs(values))

    sys.excepthook, threading.excepthook = hook, thread_hook
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and not getattr(shell, "custom_exceptions", True):
        shell.set_custom_exc((Coded, AttributeError, TypeError), _show_in_shell)


def _shown(error: Any, traceback: Any) -> Any:
    """Return the traceback to print of an error."""
    if not isinstance(error, BaseException):
        return traceback
    error.__traceback__ = traceback
    hide_frames(error)
    if isinstance(error, TypeError):
        _explain_keyword(error)
    return error.__traceback__


_KEYWORD = re.compile(r"(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'$")


def _explain_keyword(error: TypeError) -> None:
    """Suggest the nearest parameter for an unknown keyword of a function of Smelt's.

    The call is the user's, so frames of functions that wrap Smelt's are hidden.
    """
    match = _KEYWORD.match(str(error))
    users = _without_ours(error.__traceback__)
    if match is None or users is None:
        return
    frame = [*_frames(users)][-1]
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    for path in re.findall(r"[^\W\d][\w.]*(?=\()", line):
        first, *rest = path.split(".")
        function: Any = {**frame.f_globals, **frame.f_locals}.get(first)
        for part in rest:
            function = getattr(function, part, None)
        is_ours = str(getattr(function, "__module__", "")).startswith("smelt")
        if is_ours and path.rpartition(".")[2] == match[1]:
            if knobs.TRACEBACK.get() != "full":
                error.__traceback__ = users
            if close := nearest(match[2], list(signature(function).parameters)):
                error.add_note(f"Did you mean {close!r}?")
            return


def _show_in_shell(
    shell: Any, kind: Any, error: Any, traceback: Any, tb_offset: int | None = None
) -> None:
    shell.showtraceback((kind, error, _shown(error, traceback)), tb_offset=tb_offset)
