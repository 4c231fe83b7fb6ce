"""Keep the garbage collector off existing objects while Smelt compiles.

The compiler makes many small objects, and after every few of them Python's collector scans every
object of the process. In a process with a large library this takes longer than the compilation
itself. Objects that existed before are hardly garbage and are scanned again afterwards. New
objects mostly live until a kernel or plan is finished, so they are scanned in larger batches.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

_BATCH = 100_000
"""Allocations before the collector runs: some ten megabytes."""
_FREEZE_LOCK = Lock()
"""Held by the thread that froze the heap.

Of two threads that start at once, the second would otherwise save the enlarged threshold as the
user's. Nobody waits for this lock.
"""


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
    if _FREEZE_LOCK.locked():  # get_freeze_count would be as slow as a collection here
        gc.freeze()
        yield
        return
    if gc.get_freeze_count() or not _FREEZE_LOCK.acquire(blocking=False):
        yield
        return
    young, *older_thresholds = gc.get_threshold()
    gc.freeze()
    if young:  # 0: the user has disabled collection
        gc.set_threshold(max(young, _BATCH), *older_thresholds)
    try:
        yield
    finally:
        gc.set_threshold(young, *older_thresholds)
        gc.unfreeze()
        _FREEZE_LOCK.release()
