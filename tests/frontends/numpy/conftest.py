"""Run NumPy's namespace as its users do: NumPy computes until compiling pays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import smelt as sm
import smelt.numpy as np
from smelt.numpy.library import FAULT


@pytest.fixture(autouse=True)
def _tiers() -> Iterator[None]:
    with sm.config(tiers="auto"):
        yield
    faults = [c for c in np.library_calls() if c.reason.startswith(FAULT)]
    np.library_calls(clear=bool(faults))
    assert not faults, "NumPy has computed what ours failed to record"
