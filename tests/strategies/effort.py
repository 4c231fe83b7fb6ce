"""Set how many examples property tests run: `make nightly` runs many more."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
FACTOR = 25
NIGHT = [pytest.mark.nightly] if NIGHTLY else []
"""Marks for a module of such tests, so that `-m nightly` selects them in the nightly form."""


def effort(examples: int) -> settings:
    """Settings for a property: the same programs at every run, but for the nightly form."""
    return settings(
        max_examples=examples * FACTOR if NIGHTLY else examples,
        deadline=None,
        derandomize=not NIGHTLY,
        database=None,
    )


def start(part: int) -> int:
    """The seed of a part of a test: always the same, but for the nightly form."""
    return random.SystemRandom().randrange(1 << 30) if NIGHTLY else part
