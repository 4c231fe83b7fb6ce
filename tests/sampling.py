"""Draw the cases of long sweeps that `make test` runs; `make nightly` runs them whole.

Two rules choose how many cases of a test run by day. What is drawn changes with the commit, so that
a few commits see every case; the same commit draws the same ones.

- All cases of a test take at most `BUDGET_SECONDS`, by the table in `tests/durations.json`. A test
  that is not in the table runs whole.
- One emitter writes for every instruction set; what differs is how wide a vector is and whether
  lanes have masks. So of the cases on narrower sets than the widest one in `EVERY` runs, not the
  same for both. Tests that have nothing for the widest set, for it is another test's or does
  without what they see, are not thinned by this rule.

Of each test, and each instruction set, at least one case runs. The ones that are drawn cover as
many values of each parameter as they can.

A test of Hypothesis has no cases but examples: one that takes longer than `PROPERTY_SECONDS` runs
as many of them as take so long, the same ones at every commit.
"""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
SETS = "avx512", "avx2", "portable"
"""Widest first."""
EVERY = 4
BUDGET_SECONDS = 0.6
"""Seconds of one processor that the cases of a test may take together."""

PROPERTY_SECONDS = 2.0
"""Seconds of one processor that the examples of a test of Hypothesis may take."""
MIN_EXAMPLES = 5
SHARE = pytest.StashKey[float]()
"""The share of a test's examples that runs, where it is not all of them."""
_SETTINGS = "_hypothesis_internal_use_settings"


def commit_seed() -> str:
    """Return the commit of the working tree; nothing where there is no repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def put_off(
    items: Sequence[pytest.Item],
    widest: str,
    seconds: Mapping[str, float] | None = None,
    seed: str = "",
) -> list[pytest.Item]:
    """Return the cases that `make nightly` alone runs, of those that were collected.

    `seconds` maps tests to the time of a case; `seed` changes which cases are drawn.
    """
    narrower = SETS[SETS.index(widest) + 1 :] if widest in SETS else ()
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        tests.setdefault(name_of_test(item.nodeid), {}).setdefault(_isa(item), []).append(item)
    results: list[pytest.Item] = []
    for test, groups in tests.items():
        thinned = narrower if widest in groups else ()
        wanted = {isa: len(g) / (EVERY if isa in thinned else 1) for isa, g in groups.items()}
        total = sum(wanted.values()) * (seconds or {}).get(test, 0.0)
        share = min(1.0, BUDGET_SECONDS / total) if total else 1.0
        for isa, cases in groups.items():
            count = max(1, math.ceil(wanted[isa] * share - 1e-9))
            if count < len(cases):
                drawn = {id(case) for case in _draw(cases, count, isa, seed)}
                results += [case for case in cases if id(case) not in drawn]
    return results


def draw_examples(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Give long tests of Hypothesis as many examples as take `PROPERTY_SECONDS`."""
    shares: dict[Any, float] = {}
    for item in items:
        test = _property_of(item)
        if test not in shares:  # the first case of a test
            shares[test] = share = share_of_examples(item, seconds)
            if share < 1:
                chosen = getattr(test, _SETTINGS, None) or settings.default
                count = math.ceil(chosen.max_examples * share)
                setattr(test, _SETTINGS, settings(chosen, max_examples=count))
        if shares[test] < 1:
            item.stash[SHARE] = shares[test]


def share_of_examples(item: pytest.Item, seconds: Mapping[str, float]) -> float:
    """Return the share of its examples that a case runs by day.

    `seconds` maps tests to the time of a case with all examples.
    """
    test = _property_of(item)
    if test is None:
        return 1.0
    share = PROPERTY_SECONDS / max(seconds.get(name_of_test(item.nodeid), 0.0), PROPERTY_SECONDS)
    every = (getattr(test, _SETTINGS, None) or settings.default).max_examples
    return max(share, min(1.0, MIN_EXAMPLES / every))


def _property_of(item: pytest.Item) -> Any:
    """Return the function of a test of Hypothesis, None for other tests."""
    test: Any = getattr(item, "obj", None)
    is_property = getattr(test, "is_hypothesis_test", False)
    return getattr(test, "__func__", test) if is_property else None


def _draw(cases: Sequence[pytest.Item], count: int, isa: str, seed: str) -> list[pytest.Item]:
    """Draw cases that have the values of each parameter as evenly as possible."""

    def place(case: pytest.Item) -> int:
        return crc32(f"{seed} {case.nodeid.replace(isa, '') if isa else case.nodeid}".encode())

    left = sorted(cases, key=place)
    first = len(left) * SETS.index(isa) // len(SETS) if isa else 0  # others than on a wider set
    left = left[first:] + left[:first]
    used: Counter[tuple[str, int]] = Counter()
    drawn: list[pytest.Item] = []
    while len(drawn) < count:
        rarest = min(left, key=lambda case: sum(used[value] for value in _values(case)))
        left.remove(rarest)
        drawn.append(rarest)
        used.update(_values(rarest))
    return drawn


def _values(case: pytest.Item) -> list[tuple[str, int]]:
    """Return the values of a case's parameters, by number."""
    spec: Any = getattr(case, "callspec", None)
    return [*spec.indices.items()] if spec is not None else []


def name_of_test(case: str) -> str:
    """Return the test of a case, with its file: the name without parameters."""
    return case.partition("[")[0]


def _isa(item: pytest.Item) -> str:
    """Return the instruction set among a case's parameters, or an empty string."""
    spec: Any = getattr(item, "callspec", None)
    inputs = spec.params.values() if spec is not None else ()
    return next((p for p in inputs if isinstance(p, str) and p in SETS), "")
