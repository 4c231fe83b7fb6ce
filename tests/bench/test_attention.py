"""The table of attention: right answers, a floor that counts visible pairs, and its cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.attention import arithmetic_ns, measure, page
from bench.attention_cases import CASES, Case, documents, visited_pairs
from bench.attention_peers import PEERS, calls
from bench.products import ProductTimes
from smelt.compiler import driver
from smelt.types.dtype import bf16, f32

WIDE = 2 * driver.host().vector_bytes // 4
SMALL = (
    *(Case(v, 40, dim=8, heads=2) for v in dict.fromkeys(case.variant for case in CASES)),
    Case("plain", 33, dim=8, heads=6, group=3),
    Case("plain", 70, dim=8, heads=2, queries=1),
    Case("causal", 40, dim=8, heads=2, dtype=bf16),
)


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.title)
def test_every_library_computes_the_same(case: Case) -> None:
    _agree(case, ("smelt", "torch", "jax"))


@pytest.mark.nightly
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.title)
def test_compiled_peers_compute_the_same(case: Case) -> None:
    _agree(case, ("smelt", "inductor", "flex"))


def _agree(case: Case, peers: tuple[str, ...]) -> None:
    actual = {name: _wide(call()) for name, call in calls(case, peers).items()}
    assert "smelt" in actual and set(actual) <= set(PEERS)
    for name, value in actual.items():
        atol = 1e-5 if case.dtype == f32 else 2.0**-6  # torch rounds the weights, too
        assert np.allclose(value.reshape(-1), actual["smelt"].reshape(-1), atol=atol), name


def _wide(result: Any) -> np.ndarray[Any, Any]:
    is_torch = hasattr(result, "float")  # NumPy knows no bfloat16 of torch's
    return np.asarray(result.float() if is_torch else result).astype(np.float32)


def test_pairs_are_those_that_a_mask_leaves() -> None:
    assert Case("plain", 10).pairs == 100
    assert Case("causal", 10).pairs == 55
    assert Case("window", 1000).pairs == 256 * 1000 - 256 * 255 // 2
    lengths = np.bincount(documents(200))
    assert Case("documents", 200).pairs == (lengths**2).sum() and lengths.sum() == 200


def test_visited_pairs_are_whole_tiles_of_row_bands() -> None:
    assert visited_pairs(Case("plain", 10), 32) == 100
    assert visited_pairs(Case("causal", 24), 32) == (24 * 24 + 12 * 12 + 12 * 24) / 2
    for case in (Case("window", 700), Case("documents", 700), Case("causal", 700)):
        assert case.pairs < visited_pairs(case, 16) < visited_pairs(case, 32) < 700 * 700


def test_floor_is_arithmetic_or_memory() -> None:
    case = Case("causal", 2048)
    assert arithmetic_ns(case) == 4 * 12 * case.pairs * 64 / driver.host().fma_gflops
    one = Case("plain", 2048, heads=2, queries=1)
    assert measure(one, rounds=1, peers=()).floor > arithmetic_ns(one)


def test_times_and_their_page() -> None:
    timed = measure(SMALL[0], rounds=1, peers=("smelt",))
    assert set(timed.times) == {"smelt"} and timed.times["smelt"] > 0
    text = page([ProductTimes("a", 50.0, {"smelt": 100.0, "torch": 250.0})])
    assert "| a | 100 ns | 250 ns | 50.0 ns | 2.50 | 50 % | – |" in text
    done = Case("causal", 128)
    share = f"{50 * visited_pairs(done, WIDE) / done.pairs:.0f} %"
    text = page([ProductTimes(done.title, 50.0, {"smelt": 100.0, "torch": 250.0})])
    assert f"| 2.50 | 50 % | {share} |" in text
