"""Which cases on narrower vectors than the processor's widest are for the night.

One emitter writes for every instruction set; what differs is how wide a vector is and whether lanes
have masks.  So all cases of a test run on the widest set; of those on each of the others one in
three does, not the same for both, and the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

SETS = "avx512", "avx2", "portable"
"""Widest first."""
EVERY = 3


def put_off(items: Sequence[pytest.Item], widest: str) -> list[pytest.Item]:
    """The cases that `make nightly` alone runs, of those that were collected."""
    narrower = SETS[SETS.index(widest) + 1 :] if widest in SETS else ()
    seen: Counter[tuple[str, str]] = Counter()
    found: list[pytest.Item] = []
    for item in items:
        drawn: Any = getattr(item, "callspec", None)
        given = drawn.params.values() if drawn is not None else ()
        isa = next((p for p in given if isinstance(p, str) and p in narrower), None)
        if isa is None:
            continue
        where = item.nodeid.partition("[")[0], isa
        at = seen[where]
        seen[where] += 1
        if at and (at + narrower.index(isa)) % EVERY:
            found.append(item)
    return found
