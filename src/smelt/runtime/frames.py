"""Room for the frames of Python's calls while Smelt compiles.

CPython keeps the frames of a thread in chunks of 16 KiB, asks the system for one when the last is
full, and gives it back with the first frame in it.  Where a loop happens to run at the very end of
a chunk, each of its calls maps 16 KiB of memory and unmaps it again.  How deep the caller was
decides that, so the same compilation took one second or three: planning is many small calls, deep
below PyTorch's.  A frame that is longer than a chunk gets a chunk of twice its length or so, and
what is called within finds the rest of that chunk free.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["roomy"]

P = ParamSpec("P")
T = TypeVar("T")

_WORDS = 1 << 15
"""Length of the frame that makes room, in words that nobody touches: CPython takes the next power
of two, which leaves as much again, 256 KiB, for a thousand frames."""


def roomy(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which finds room for the frames of what it calls; it takes some microseconds.

    >>> roomy(divmod)(7, 2)
    (3, 1)
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    if hasattr(call, "__code__"):  # what compiles this function need not be CPython
        call.__code__ = call.__code__.replace(co_stacksize=_WORDS)
    return wraps(function)(call)
