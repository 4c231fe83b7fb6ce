"""Run NumPy's namespace as its users do: NumPy computes until compiling pays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import smelt as sm


@pytest.fixture(autouse=True)
def _tiers() -> Iterator[None]:
    with sm.config(tiers="auto"):
        yield
