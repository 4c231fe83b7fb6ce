"""Fixtures of the runtime for GPUs: every test has a fake driver of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.runtime.cuda.fake_driver import FakeDriver

from smelt.runtime.cuda.driver import Device, system_driver, use_library


@pytest.fixture(autouse=True, scope="module")
def older_objects_are_left_alone() -> Iterator[None]:
    """Fixtures collect garbage after each test, which would walk all that a long run keeps."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    """A fake driver, whose queues are empty and without failures at the end."""
    driver = FakeDriver()
    with use_library(driver):
        yield driver
        gc.collect()
        driver.synchronize()


@pytest.fixture
def device(fake: FakeDriver) -> Device:
    """The fake driver's first device."""
    return system_driver().device(0)
