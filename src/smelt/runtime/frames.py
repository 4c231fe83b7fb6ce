"""Avoid repeated mapping of interpreter stack chunks while Smelt compiles.

CPython keeps a thread's frames in chunks of 16 KiB. It maps a new chunk when the last one is full
and unmaps it when its first frame returns. A loop that happens to run at the end of a chunk
therefore maps and unmaps memory on every call, which makes compilation time depend on the
caller's stack depth: planning makes many small calls deep below PyTorch's. A frame longer than a
chunk gets a larger chunk of its own, and the calls inside find the rest of that chunk free.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_WORDS = 1 << 15
"""Length in words of the frame that makes room, never touched.

CPython allocates the next power of two, which leaves as much again: 256 KiB for a thousand
frames.
"""


def with_frame_room(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to reserve stack chunk space for the calls it makes.

    >>> with_frame_room(divmod)(7, 2)
    (3, 1)
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    if hasattr(call, "__code__"):  # compiled by something other than CPython (Cython, say)
        call.__code__ = call.__code__.replace(co_stacksize=_WORDS)
    return wraps(function)(call)
