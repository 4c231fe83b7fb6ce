"""What joining two clusters can gain at most, where they were tried before.

A try's gain holds until one of the two changes; where that takes up a third cluster, it is taken
to gain at most that one's whole time more.  So most pairs of a large graph are not tried again.  It
may gain more than that where a stream is only possible with all of its parts, and now and then by
the way in which rows are visited: what has changed since it was tried is tried again in the end.

>>> tries = Tries()
>>> tries.tried(1, 2, -50.0)
>>> tries.tried(3, 2, -70.0)
>>> tries.joined(1, 30.0, {2: 10.0})
>>> tries.most(2, 3), tries.most(1, 2) == UNTRIED
(-40.0, True)
"""

from __future__ import annotations

from collections.abc import Mapping

UNTRIED = 1e18
"""What two clusters may gain that nobody has tried."""
NEVER = -UNTRIED
"""What they gain where no kernel holds both, whatever they take up."""


class Tries:
    """The pairs of clusters that were tried."""

    def __init__(self) -> None:
        self.gains: dict[int, dict[int, float]] = {}
        """For each cluster, those that it was tried with: known to both of them."""
        self.exact: dict[tuple[int, int], float] = {}
        """What pairs gained when they were tried last, the lower number first."""
        self.last: dict[int, dict[int, float]] = {}
        """What they gained when they, or parts of them, were tried last."""

    def most(self, a: int, b: int) -> float:
        """What two clusters can gain at most."""
        return self.gains.get(a, {}).get(b, UNTRIED)

    def guess(self, a: int, b: int) -> float:
        """What two clusters gained when they or parts of them were tried last."""
        return self.last.get(a, {}).get(b, UNTRIED)

    def tried(self, a: int, b: int, gain: float) -> None:
        """Remembers a try."""
        self.note(a, b, gain)
        self.exact[(a, b) if a < b else (b, a)] = gain
        self.last.setdefault(a, {})[b] = gain
        self.last.setdefault(b, {})[a] = gain

    def note(self, a: int, b: int, gain: float) -> None:
        """Remembers what two clusters can gain at most."""
        self.gains.setdefault(a, {})[b] = gain
        self.gains.setdefault(b, {})[a] = gain

    def joined(self, p: int, burden: float, grown: Mapping[int, float]) -> None:
        """A cluster that took `burden` is now a part of those that have `grown`, whose own times
        were these."""
        for c in grown:
            for third, most in self.gains.get(c, {}).items():
                if third != p and (third not in grown or third < c):  # both of them grow once
                    self.note(third, c, most + burden)
        for third, gain in self.last.pop(p, {}).items():
            del self.last[third][p]
            for c in grown:
                if third != c and self.last.get(c, {}).get(third, 0.0) < gain:
                    self.last.setdefault(c, {})[third] = gain
                    self.last[third][c] = gain
        for third, most in self.gains.pop(p, {}).items():
            del self.gains[third][p]
            for c, own in grown.items():
                if third != c:
                    self.note(third, c, min(self.most(third, c), most + own))

    def renew(self) -> list[int]:
        """Forgets what pairs can gain at most that have changed since they were tried, but for
        those that no kernel holds; returns the clusters of the others."""
        found: dict[int, None] = {}
        for a, others in self.gains.items():
            for b in [b for b, most in others.items() if most != NEVER]:
                if self.exact.get((a, b) if a < b else (b, a)) != others[b]:
                    others[b] = UNTRIED
                    found[a] = found[b] = None
        return list(found)

    def forget(self) -> None:
        """Begins again, with clusters of other numbers."""
        self.gains.clear()
        self.exact.clear()
        self.last.clear()
