"""How many examples a property test runs: `make nightly` runs many more, and random ones."""

from __future__ import annotations

import os

from hypothesis import settings

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
FACTOR = 25


def effort(examples: int) -> settings:
    """Settings for a property: the same programs at every run, but for the nightly form."""
    return settings(
        max_examples=examples * FACTOR if NIGHTLY else examples,
        deadline=None,
        derandomize=not NIGHTLY,
        database=None,
    )
