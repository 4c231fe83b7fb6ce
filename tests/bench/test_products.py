"""The table of products: right answers, a floor that is one, and what its cells say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt import driver
from smelt.bench.products import (
    PEERS,
    Case,
    Timed,
    calls,
    floor_ns,
    measure,
    operands,
    page,
    table,
)
from smelt.types.dtype import bf16, f32, i8

SMALL = (
    Case("square", (24, 40), (40, 24)),
    Case("turned", (3, 40), (24, 40), True),
    Case("vector", (24, 40), (40,)),
    Case("batch", (5, 8, 16), (5, 16, 8)),
    Case("bfloat16", (24, 40), (40, 32), dtype=bf16),
    Case("int8", (24, 40), (40, 32), dtype=i8),
    Case("bfloat16 constant", (24, 40), (200, 40), True, True, bf16),
    Case("int8 constant", (24, 40), (40, 200), False, True, i8),
)


def host(found: Any) -> Any:
    """An array of NumPy; torch's bfloat16 has none, so that its values are given in float32."""
    is_half = hasattr(found, "bfloat16") and "bfloat16" in str(found.dtype)
    return np.asarray(found.float() if is_half else found)


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.title)
def test_every_library_computes_the_same_product(case: Case) -> None:
    found = {name: host(call()) for name, call in calls(case).items()}
    assert ("numpy" in found) == (case.dtype == f32)
    assert {"smelt"} <= set(found) <= set(PEERS)
    x, y = (a.astype("f8") for a in operands(case))
    wanted = x @ (np.swapaxes(y, -1, -2) if case.turned else y)
    close = 2**-6 if case.dtype == bf16 else 1e-4
    for name, value in found.items():
        assert np.allclose(value.astype("f8"), wanted, rtol=close, atol=close), name


def test_floor_is_arithmetic_or_memory() -> None:
    assert SMALL[0].flops == 2 * 24 * 40 * 24
    assert SMALL[1].flops == 2 * 3 * 40 * 24
    assert SMALL[2].flops == 2 * 24 * 40
    assert SMALL[3].flops == 2 * 5 * 8 * 16 * 8
    large, thin = Case("", (2048, 2048), (2048, 2048)), Case("", (1, 4096), (4096, 4096))
    assert floor_ns(large) == large.flops / driver.host().fma_gflops
    assert floor_ns(thin) > thin.flops / driver.host().fma_gflops


def test_times_and_their_table() -> None:
    timed = measure(SMALL[0], rounds=1, peers=("smelt", "numpy"))
    assert set(timed.times) == {"smelt", "numpy"}
    assert all(ns > 0 for ns in timed.times.values())
    rows = table([Timed("a", 50.0, {"smelt": 100.0, "numpy": 250.0, "torch": 150.0})]).rows
    assert rows == (("a", "100 ns", "250 ns", "150 ns", "50.0 ns", "1.50", "50 %"),)
    assert "| a | 100 ns |" in page([Timed("a", 50.0, {"smelt": 100.0})])
