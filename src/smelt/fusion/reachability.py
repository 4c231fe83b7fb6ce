"""Track which clusters depend on which, as bit sets, to keep the cluster graph acyclic.

Two clusters may be joined unless a path leads from one to the other through a third: the joined
kernel would wait for itself. It is not enough that every cluster is convex by itself.

>>> chain = Reach({0: 0b010, 1: 0b100, 2: 0})
>>> chain.between(0, 2, chain.after[0]), chain.between(0, 1, chain.after[0])
(2, 0)
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.bitsets import bits


class Reach:
    """Ancestors and descendants of clusters, by number, updated as clusters join."""

    def __init__(self, successors: Mapping[int, int]) -> None:
        """Build from the set of readers of each cluster."""
        self.after: dict[int, int] = dict.fromkeys(successors, 0)
        self.before: dict[int, int] = dict.fromkeys(successors, 0)
        order = _readers_first(successors)
        for c in order:
            for s in bits(successors[c]):
                self.after[c] |= self.after[s] | 1 << s
        for c in reversed(order):
            for s in bits(successors[c]):
                self.before[s] |= self.before[c] | 1 << c

    def between(self, a: int, b: int, successors: int) -> int:
        """Return the clusters that read `a` and that `b` depends on.

        A joined kernel would wait for these.
        """
        return successors & self.before[b] & ~(1 << a)

    def join(self, a: int, b: int) -> None:
        """Make `a` a part of `b`; the number `a` is not used any more.

        Clusters that precede or follow both already know what the other one brings. In a chain of
        clusters that is nearly all of them, so only the others are updated.
        """
        of_a, of_b = (self.after[a], self.before[a]), (self.after[b], self.before[b])
        after = (of_a[0] | of_b[0]) & ~(1 << a | 1 << b)
        before = (of_a[1] | of_b[1]) & ~(1 << a | 1 << b)
        this = 1 << b
        for c in bits(before & (of_a[1] ^ of_b[1])):
            if c in self.after:
                self.after[c] |= after | this
        for c in bits(after & (of_a[0] ^ of_b[0])):
            if c in self.before:
                self.before[c] |= before | this
        self.after[b], self.before[b] = after, before
        self.drop(a)

    def drop(self, a: int) -> None:
        """Remove `a`, which was copied into all its readers."""
        del self.after[a], self.before[a]


def topological_order(successors: Mapping[int, int]) -> list[int]:
    """Return the clusters in topological order, each before its readers."""
    return _readers_first(successors)[::-1]


def _readers_first(successors: Mapping[int, int]) -> list[int]:
    order: list[int] = []
    done = 0
    for start in successors:
        stack = [start]
        while stack:
            c = stack[-1]
            unfinished = [s for s in bits(successors[c]) if not done >> s & 1]
            if unfinished and not done >> c & 1:
                stack += unfinished
                continue
            stack.pop()
            if not done >> c & 1:
                done |= 1 << c
                order.append(c)
    return order
