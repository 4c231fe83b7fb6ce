"""What tests of the PyTorch front end start from: nothing traced before, nothing falling back."""

from __future__ import annotations

import pytest

from smelt import knobs


@pytest.fixture
def fresh():
    """The test traces anew."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def strict(fresh):
    """It traces anew, and a graph that falls back is a failure."""
    with knobs.config(strict=True):
        yield
