"""Distinguish what a signal's handler raises from errors of the code that it interrupts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from types import CodeType, TracebackType
from typing import Any


def raised_by_signal_handler(error: BaseException | None) -> bool:
    """Return whether a signal's handler raised an error, or the error that caused it.

    Handlers run in the middle of other code: a timeout that raises an `Exception` there is the
    user's, and no reason for that code to try something else.
    """
    codes = set(_handler_codes())
    while codes and error is not None:
        if any(frame.tb_frame.f_code in codes for frame in _frames(error.__traceback__)):
            return True
        error = error.__cause__
    return False


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _handler_codes() -> Iterator[CodeType]:
    """Yield the code of handlers that are written in Python."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func  # pyright: ignore[reportUnknownMemberType]
        if callable(handler) and not isinstance(handler, signal.Handlers):
            function: Any = getattr(handler, "__func__", handler)
            code = getattr(function, "__code__", None)
            if code is None:  # an object that can be called
                code = getattr(type(handler).__call__, "__code__", None)
            if code is not None:
                yield code
