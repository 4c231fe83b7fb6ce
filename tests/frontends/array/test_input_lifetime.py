"""Arrays that are released while pending work reads them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import smelt as sm


@pytest.mark.parametrize("n", [4, 40_000])
@pytest.mark.parametrize("kind", ["numpy", "part", "mapped", "bytes", "dlpack"])
def test_an_array_freed_while_pending(kind: str, n: int, tmp_path: Any) -> None:
    """What is pending keeps the memory that it reads, until it has been computed."""
    wanted = np.arange(n, dtype=np.float64)
    source: Any
    if kind == "mapped":
        wanted.tofile(tmp_path / "data")
        source = np.memmap(tmp_path / "data", np.float64)
    elif kind == "bytes":
        source = np.frombuffer(wanted.tobytes())
    elif kind == "part":
        source = np.repeat(wanted, 2)[::2]
    elif kind == "dlpack":
        source = pytest.importorskip("torch").arange(n).double()
    else:
        source = wanted.copy()
    held = weakref.ref(source)
    y = sm.asarray(source) * 2 + 1
    del source
    gc.collect()
    _ = [np.full(n, np.nan) for _ in range(8)]  # takes the memory, were it free
    np.testing.assert_array_equal(y, wanted * 2 + 1)
    gc.collect()
    assert held() is None


def test_the_owner_of_a_pending_result_may_go_in_any_order() -> None:
    x = sm.asarray(np.arange(10.0))
    steps = [x]
    for _ in range(5):
        steps.append(sm.sin(steps[-1]) + 1)
    last = steps.pop()
    steps.reverse()
    while steps:
        steps.pop(len(steps) // 2)
        gc.collect()
    del x
    wanted = np.arange(10.0)
    for _ in range(5):
        wanted = np.sin(wanted) + 1
    np.testing.assert_allclose(last, wanted, rtol=1e-12)
