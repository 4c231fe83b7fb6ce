"""The run time's tests keep the compiled pool in a cache of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from smelt import knobs


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SMELT_CACHE_DIR for this process and the ones that tests start."""
    place = tmp_path_factory.mktemp("runtime") / "cache"
    before = os.environ.get("SMELT_CACHE_DIR")
    os.environ["SMELT_CACHE_DIR"] = str(place)
    knobs.reset()
    yield place
    if before is None:
        del os.environ["SMELT_CACHE_DIR"]
    else:
        os.environ["SMELT_CACHE_DIR"] = before
    knobs.reset()
