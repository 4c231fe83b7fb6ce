"""Which clusters depend on which, as bit sets: the test that keeps the graph of clusters acyclic.

Two clusters may be joined unless a path leads from one to the other through a third: the joined
kernel would wait for itself.  That every cluster is convex by itself is not enough.

>>> chain = Reach({0: 0b010, 1: 0b100, 2: 0})
>>> chain.between(0, 2, chain.after[0]), chain.between(0, 1, chain.after[0])
(2, 0)
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.bitsets import bits


class Reach:
    """Ancestors and descendants of clusters, by number, kept up to date as clusters join."""

    def __init__(self, successors: Mapping[int, int]) -> None:
        """`successors`: for each cluster, in some order, the set of those that read it."""
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
        """Clusters that read `a` and that `b` depends on: what a joined kernel would wait for."""
        return successors & self.before[b] & ~(1 << a)

    def join(self, a: int, b: int) -> None:
        """`a` becomes a part of `b`.  The number `a` is not used any more.

        What led to both, or came of both, knows all that the other one brings: in a row of clusters
        that is nearly everything."""
        one, other = (self.after[a], self.before[a]), (self.after[b], self.before[b])
        after = (one[0] | other[0]) & ~(1 << a | 1 << b)
        before = (one[1] | other[1]) & ~(1 << a | 1 << b)
        own = 1 << b
        for c in bits(before & (one[1] ^ other[1])):
            if c in self.after:
                self.after[c] |= after | own
        for c in bits(after & (one[0] ^ other[0])):
            if c in self.before:
                self.before[c] |= before | own
        self.after[b], self.before[b] = after, before
        self.drop(a)

    def drop(self, a: int) -> None:
        """`a` was copied into all that read it."""
        del self.after[a], self.before[a]


def in_order(successors: Mapping[int, int]) -> list[int]:
    """The clusters in a row, each before those that read it."""
    return _readers_first(successors)[::-1]


def _readers_first(successors: Mapping[int, int]) -> list[int]:
    order: list[int] = []
    done = 0
    for start in successors:
        stack = [start]
        while stack:
            c = stack[-1]
            waits = [s for s in bits(successors[c]) if not done >> s & 1]
            if waits and not done >> c & 1:
                stack += waits
                continue
            stack.pop()
            if not done >> c & 1:
                done |= 1 << c
                order.append(c)
    return order
