"""Spare the interpreter work while Smelt compiles: mapping of stack chunks, garbage collection.

CPython keeps a thread's frames in chunks of 16 KiB. It maps a new chunk when the last one is full
and unmaps it when its first frame returns. A loop that happens to run at the end of a chunk
therefore maps and unmaps memory on every call, which makes compilation time depend on the
caller's stack depth: planning makes many small calls deep below PyTorch's. A frame longer than a
chunk gets a larger chunk of its own, and the calls inside find the rest of that chunk free.

The compiler makes many small objects, and after every few of them Python's collector scans every
object of the process. In a process with a large library this takes longer than the compilation
itself. Objects that existed before are hardly garbage and are scanned again afterwards. New
objects mostly live until a kernel or plan is finished, so they are scanned in larger batches.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
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


_BATCH = 100_000
"""Allocations before the collector runs: some ten megabytes."""
_HIDING: list[object] = []
"""A token of each thread that hides objects; the first one froze the heap.

Of two threads that start at once, the second would otherwise save the enlarged threshold as the
user's. Nobody waits here. A lock would not do: a signal's handler may raise an exception between
its acquisition and the next statement, which would leave it locked.
"""


_RECOUNT = 100
"""Compilations after which objects that the user has frozen are counted again."""
_LEFT = [0]
"""Compilations that still take such objects as frozen."""


def has_frozen_objects() -> bool:
    """Return whether the user has frozen objects.

    Counting them takes as long as a collection, so what was found once is believed for `_RECOUNT`
    compilations.
    """
    if not _LEFT[0]:
        _LEFT[0] = _RECOUNT if gc.get_freeze_count() else 0
        return bool(_LEFT[0])
    _LEFT[0] -= 1
    return True


def forget_frozen_objects() -> None:
    """Count frozen objects in the next compilation."""
    _LEFT[0] = 0


@contextmanager
def hide_live_objects() -> Generator[None]:
    """Hide existing objects from the garbage collector, and show them again afterwards.

    If the user, another thread or an enclosing compilation has frozen objects, these stay frozen.
    A nested compilation also freezes what the enclosing one has made so far: a tracer's graph is
    not garbage either, and would be scanned with the next batch.

    >>> with hide_live_objects():
    ...     gc.get_freeze_count() > 0
    True
    """
    if _HIDING:  # get_freeze_count would be as slow as a collection here
        gc.freeze()
        yield
        return
    if has_frozen_objects():
        yield
        return
    token, thresholds = object(), None
    try:
        _HIDING.append(token)
        if _HIDING[0] is token:
            thresholds = gc.get_threshold()
            gc.freeze()
            if thresholds[0]:  # 0: the user has disabled collection
                gc.set_threshold(max(thresholds[0], _BATCH), *thresholds[1:])
        yield
    finally:  # an exception after any of these calls skips none of the others
        try:
            if thresholds is not None:
                gc.set_threshold(*thresholds)
        finally:
            try:
                if thresholds is not None:
                    gc.unfreeze()
            finally:
                if token in _HIDING:
                    _HIDING.remove(token)
