"""Cache upper bounds of the gain from joining two clusters.

An evaluated gain holds until one of the two clusters changes. When a cluster takes up a third one,
its bound grows by at most the third one's whole time. So most pairs of a large graph are evaluated
once. The bound is an estimate: more may be gained where a stream needs all of its parts, or by
another order of loops. Pairs that changed since they were evaluated are therefore evaluated again
at the end.

>>> tries = GainCache()
>>> tries.record(1, 2, -50.0)
>>> tries.record(3, 2, -70.0)
>>> tries.update_after_join(1, 30.0, {2: 10.0})
>>> tries.bound(2, 3), tries.bound(1, 2) == UNTRIED
(-40.0, True)
"""

from __future__ import annotations

from collections.abc import Mapping

UNTRIED = 1e18
"""Bound of a pair that was never evaluated."""
NEVER = -UNTRIED
"""Bound of a pair that no kernel can hold, whatever is added."""


class GainCache:
    """Bounds and last gains of pairs of clusters."""

    def __init__(self) -> None:
        self.bounds: dict[int, dict[int, float]] = {}
        """Upper bounds by cluster and other cluster; symmetric."""
        self.exact: dict[tuple[int, int], float] = {}
        """Evaluated gains of pairs, the lower number first."""
        self.last: dict[int, dict[int, float]] = {}
        """Gains at the last evaluation of a pair, or of parts of it."""

    def bound(self, a: int, b: int) -> float:
        """Return an upper bound of the gain of joining two clusters."""
        return self.bounds.get(a, {}).get(b, UNTRIED)

    def last_gain(self, a: int, b: int) -> float:
        """Return the gain when two clusters, or parts of them, were last evaluated."""
        return self.last.get(a, {}).get(b, UNTRIED)

    def record(self, a: int, b: int, gain: float) -> None:
        """Record an evaluated gain."""
        self.set_bound(a, b, gain)
        self.exact[(a, b) if a < b else (b, a)] = gain
        self.last.setdefault(a, {})[b] = gain
        self.last.setdefault(b, {})[a] = gain

    def set_bound(self, a: int, b: int, gain: float) -> None:
        """Record an upper bound."""
        self.bounds.setdefault(a, {})[b] = gain
        self.bounds.setdefault(b, {})[a] = gain

    def update_after_join(self, p: int, objective_ns: float, readers: Mapping[int, float]) -> None:
        """Update bounds after cluster `p` became a part of others.

        `objective_ns` is what `p` took, `readers` maps the clusters that took it up to their own
        times.
        """
        for c in readers:
            for third, bound in self.bounds.get(c, {}).items():
                # update a pair that grows on both sides only once
                if third != p and (third not in readers or third < c):
                    self.set_bound(third, c, bound + objective_ns)
        for third, gain in self.last.pop(p, {}).items():
            del self.last[third][p]
            for c in readers:
                if third != c and self.last.get(c, {}).get(third, 0.0) < gain:
                    self.last.setdefault(c, {})[third] = gain
                    self.last[third][c] = gain
        for third, bound in self.bounds.pop(p, {}).items():
            del self.bounds[third][p]
            for c, reader_ns in readers.items():
                if third != c:
                    self.set_bound(third, c, min(self.bound(third, c), bound + reader_ns))

    def invalidate_changed(self) -> list[int]:
        """Invalidate the bound of every pair that changed since its evaluation.

        Pairs known to be illegal keep theirs. Returns the affected clusters.
        """
        affected: dict[int, None] = {}
        for a, others in self.bounds.items():
            for b in [b for b, most in others.items() if most != NEVER]:
                if self.exact.get((a, b) if a < b else (b, a)) != others[b]:
                    others[b] = UNTRIED
                    affected[a] = affected[b] = None
        return list(affected)

    def reset(self) -> None:
        """Start over, for clusters with new numbers."""
        self.bounds.clear()
        self.exact.clear()
        self.last.clear()
