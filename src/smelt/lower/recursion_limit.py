"""Room on the stack for long chains of operators: Python's limit is raised while they are defined.

What a fold reads is known by position only when its axes are, so a chain of folds (sums of rows and
of columns in turn, as Sinkhorn's) is defined by calls inside of calls, some for each operator.
They are calls of Python's own, which take no room on the system's stack; the limit is there to find
those that never end, and these end with the chain.

>>> with deep(1000):
...     sys.getrecursionlimit() >= 1000
True
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

__all__ = ["deep"]

_FRAMES = 8
"""Calls for an operator at most: of its element, its operands, and the body of a fold."""
_lock = Lock()
_inside: list[int] = []
"""The limits that were found, by those who are inside now."""


@contextmanager
def deep(operators: int) -> Generator[None, None, None]:
    """Room for a chain of so many operators beyond where the caller stands.

    The limit is that of all threads, so the last one to leave puts the first one's back.
    """
    with _lock:
        found = sys.getrecursionlimit()
        _inside.append(found)
        sys.setrecursionlimit(max(found, _inside[0] + operators * _FRAMES))
    try:
        yield
    finally:
        with _lock:
            first = _inside[0]
            _inside.pop()
            if not _inside:
                sys.setrecursionlimit(first)
