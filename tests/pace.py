"""Bounds on times that hold on a processor of any speed.

What is bounded is mostly the interpreter's work, for which an older processor takes two or three
times as long: a bound in seconds would say more about the machine than about the program.
"""

from __future__ import annotations

import time
import timeit

# One call of a Python function on the processor for which the bounds were set.
CALL = 16e-9
# A machine on which it takes longer still is busy, or its clock stands still: no bound would fail.
MOST = 4.0


def pace() -> float:
    """How many times as long as there the interpreter takes here and now, from 1 to `MOST`.

    Measured in the thread's own time and of many short turns, as the bounds are.
    """
    turns = timeit.repeat(
        "f(1)", "def f(x): return x", timer=time.thread_time, number=2_000, repeat=50
    )
    return min(max(1.0, min(turns) / 2_000 / CALL), MOST)
