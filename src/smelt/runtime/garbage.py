"""What a process holds is not looked through for garbage while Smelt compiles.

The compiler makes many small objects, and each so many of them have Python's collector look at
every object there is.  Beside a large library that takes longer than making them: half of the
planner's time in a process with PyTorch, a third of the code generator's.  What was there before
compiling begins is hardly garbage, and is looked at again afterwards.  What is made meanwhile is
mostly alive until a kernel or a plan is done, so new objects are looked at in larger lots.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

_LOT = 100_000
"""Objects that are made before the collector looks at them: some ten megabytes."""
_HIDES = Lock()
"""Held by the one who hides: of two threads that begin at once, the second would take the larger
lots for what the user has set.  Nobody waits for it."""


@contextmanager
def set_aside() -> Generator[None]:
    """Hides the objects that exist from the collector, and shows them to it again.

    Where some are hidden already, by the user or by a compilation in another thread or around this
    one, they are left as they are: showing is not done by halves.  What a compilation around this
    one has made until now is hidden with the rest: a tracer's graph is no garbage either, and would
    be looked through as soon as the next lot is full.

    >>> with set_aside():
    ...     gc.get_freeze_count() > 0
    True
    """
    if _HIDES.locked():  # counting what is hidden then takes as long as looking through it
        gc.freeze()
        yield
        return
    if gc.get_freeze_count() or not _HIDES.acquire(blocking=False):
        yield
        return
    often, *older = gc.get_threshold()
    gc.freeze()
    if often:  # nothing is looked at where the user wants it so
        gc.set_threshold(max(often, _LOT), *older)
    try:
        yield
    finally:
        gc.set_threshold(often, *older)
        gc.unfreeze()
        _HIDES.release()
