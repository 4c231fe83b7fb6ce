"""Raise Python's recursion limit while long operator chains are defined.

The operands of a reduction are known by position only once its axes are, so a chain of reductions
(alternating row and column sums as in Sinkhorn normalisation) is defined by nested calls, a few
per operator. These are pure Python calls, which do not use the C stack. The limit only guards
against endless recursion, and these calls end with the chain.

>>> with raise_recursion_limit(1000):
...     sys.getrecursionlimit() >= 1000
True
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

_FRAMES = 8
"""Maximum calls per operator: its element, its operands, and the body of a reduction."""
_lock = Lock()
_inside: list[int] = []
"""Limits found on entry by the threads inside."""


@contextmanager
def raise_recursion_limit(operators: int) -> Generator[None, None, None]:
    """Raise the recursion limit for a chain of `operators` above the current depth.

    The limit is global to all threads, so the last one to leave restores the first one's.
    """
    with _lock:
        limit = sys.getrecursionlimit()
        _inside.append(limit)
        sys.setrecursionlimit(max(limit, _inside[0] + operators * _FRAMES))
    try:
        yield
    finally:
        with _lock:
            first = _inside[0]
            _inside.pop()
            if not _inside:
                sys.setrecursionlimit(first)
