"""Cluster dependencies stay right as clusters merge, against fresh path searches."""

from __future__ import annotations

import random

from smelt.fusion.bitsets import SHIFT_ABOVE, UNPACK_ABOVE, bits
from smelt.fusion.state import Reach


def paths(successors: dict[int, int]) -> dict[int, int]:
    """For each cluster, all that a path leads to."""
    results: dict[int, int] = {}
    for start in successors:
        seen, pending = 0, [start]
        while pending:
            for s in bits(successors[pending.pop()]):
                if not seen >> s & 1:
                    seen |= 1 << s
                    pending.append(s)
        results[start] = seen
    return results


def joined(successors: dict[int, int], a: int, b: int) -> dict[int, int]:
    """The graph in which `a` is a part of `b`."""
    both = (successors[a] | successors[b]) & ~(1 << a | 1 << b)
    moved = {c: s & ~(1 << a) | 1 << b if s >> a & 1 else s for c, s in successors.items()}
    return {c: both if c == b else s for c, s in moved.items() if c != a}


def test_successors_are_right_after_every_merge() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        count = 24
        successors = {
            c: sum(1 << s for s in range(c + 1, count) if rng.random() < 0.12)
            for c in rng.sample(range(count), count)
        }
        reach = Reach(successors)
        while True:
            live = sum(1 << c for c in successors)
            after = paths(successors)
            for c in successors:
                assert reach.after[c] & live == after[c]
                assert reach.before[c] & live == sum(1 << d for d in after if after[d] >> c & 1)
            pairs = [
                (a, b)
                for a in successors
                for b in successors
                if a != b
                and not reach.between(a, b, successors[a])
                and not reach.between(b, a, successors[b])
            ]
            if not pairs:
                break
            a, b = rng.choice(pairs)
            successors = joined(successors, a, b)
            reach.join(a, b)


def test_numbers_of_large_sets() -> None:
    rng = random.Random(1)
    assert bits(0) == ()
    for size in (1, 40, UNPACK_ABOVE, SHIFT_ABOVE, 5000):
        for start in (0, SHIFT_ABOVE, SHIFT_ABOVE + 1, 3000):
            for most in (3, UNPACK_ABOVE - 1, UNPACK_ABOVE + 1, 400):
                numbers = sorted({size - 1, *rng.sample(range(size), min(size, most))})
                mask = sum(1 << n for n in numbers) << start
                assert bits(mask) == tuple(start + n for n in numbers)
