"""Notice calls that contradict the machine's figures, and have the figures measured again.

A call cannot write its results faster than memory takes them. If calls do so again and again, then
the machine was busy when its memory was measured, and its plans avoid traffic that is cheap. Only
results that no cache holds are compared, in calls that take milliseconds.

>>> noted = []
>>> contradictions = Contradictions(lambda: noted.append("again"))
>>> for _ in range(MAX_CONTRADICTIONS):
...     contradictions.note(floor_ns=2e6, ns=1e6)
>>> noted
['again']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt import knobs
from smelt.machine.target import Target
from smelt.runtime.host import host, measure_again

MAX_CONTRADICTIONS = 32
"""Calls in succession that contradict the figures before these are measured again."""
MAX_FLOOR_SHARE = 0.75
"""Share of the floor that a call must undercut: figures spread, and clocks are not exact."""
_MIN_BYTES = 96 << 20
_CACHES = 4
"""Times as large as the last-level cache that compared results are; a virtual machine may have more
of that cache than it sees."""


class Contradictions:
    """Counts successive calls that are faster than the figures allow."""

    def __init__(self, again: Callable[[], object]) -> None:
        self._again = again
        self._count = 0

    def note(self, floor_ns: float, ns: float) -> None:
        """Note a call's time beside the least time that the figures allow."""
        self._count = self._count + 1 if ns < MAX_FLOOR_SHARE * floor_ns else 0
        if self._count >= MAX_CONTRADICTIONS:
            self._count = 0
            self._again()


CONTRADICTIONS = Contradictions(measure_again)
"""Those of this process."""


def floor_ns(nbytes: Sequence[int], target: Target | None = None) -> float:
    """Return the least time, in ns, of writing results by the machine's figures.

    Zero if nothing can be said: figures are assumed, or caches may hold the results.
    """
    written = sum(nbytes)
    if written < _MIN_BYTES or knobs.PROBE.get() == "off":
        return 0.0
    target = host() if target is None else target
    if not target.measured or written < _CACHES * target.l3_bytes:
        return 0.0
    return (written - target.l3_bytes) / max(target.all_threads.dram.write, target.nt_store_gbs)
