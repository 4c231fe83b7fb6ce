"""The table of products: right answers, a floor that is one, and what its cells say."""

from __future__ import annotations

import numpy as np
import pytest

from smelt import driver
from smelt.bench.products import PEERS, Case, Timed, calls, floor_ns, measure, page, table

SMALL = (
    Case("square", (24, 40), (40, 24)),
    Case("turned", (3, 40), (24, 40), True),
    Case("vector", (24, 40), (40,)),
    Case("batch", (5, 8, 16), (5, 16, 8)),
)


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.title)
def test_every_library_computes_the_same_product(case: Case) -> None:
    found = {name: np.asarray(call()) for name, call in calls(case).items()}
    assert {"smelt", "numpy"} <= set(found) <= set(PEERS)
    for name, value in found.items():
        assert np.allclose(value, found["numpy"], rtol=1e-4, atol=1e-4), name


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
