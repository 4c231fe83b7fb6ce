"""Choose which cases on narrower vectors than the widest are left to the night.

One emitter writes for every instruction set; what differs is how wide a vector is and whether lanes
have masks.  So all cases of a test run on the widest set; of those on each of the others one in
four does, not the same for both, and the first.  Tests that have nothing for the widest set, for
it is another test's or does without what they see, run whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

SETS = "avx512", "avx2", "portable"
"""Widest first."""
EVERY = 4


def put_off(items: Sequence[pytest.Item], widest: str) -> list[pytest.Item]:
    """The cases that `make nightly` alone runs, of those that were collected."""
    narrower = SETS[SETS.index(widest) + 1 :] if widest in SETS else ()
    cases = [(item, _test(item), _isa(item)) for item in items]
    whole = {test for _, test, isa in cases if isa == widest}
    begun: set[tuple[str, str]] = set()
    results: list[pytest.Item] = []
    for item, test, isa in cases:
        if isa not in narrower or test not in whole:
            continue
        first = (test, isa) not in begun
        begun.add((test, isa))
        # By name: one in four of those in order is always the same type where there are four.
        drawn = crc32(item.nodeid.replace(isa, "").encode()) + narrower.index(isa)
        if not first and drawn % EVERY:
            results.append(item)
    return results


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _isa(item: pytest.Item) -> str:
    """The instruction set among what a case is given; nothing where there is none."""
    drawn: Any = getattr(item, "callspec", None)
    inputs = drawn.params.values() if drawn is not None else ()
    return next((p for p in inputs if isinstance(p, str) and p in SETS), "")
