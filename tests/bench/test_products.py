"""The table of products: right results, a valid lower bound, and its cells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench import around
from bench.products import (
    PEERS,
    Case,
    ProductTimes,
    calls,
    floor_ns,
    measure,
    operands,
    page,
    table,
)
from smelt.compiler import driver
from smelt.machine.target import Target
from smelt.types.dtype import bf16, f32, i8

SMALL = (
    Case("square", (24, 40), (40, 24)),
    Case("turned", (3, 40), (24, 40), True),
    Case("vector", (24, 40), (40,)),
    Case("batch", (5, 8, 16), (5, 16, 8)),
    Case("in turn", (24, 40), (32, 40), True, operand_count=3),
    Case("bfloat16", (24, 40), (40, 32), dtype=bf16),
    Case("int8", (24, 40), (40, 32), dtype=i8),
    Case("bfloat16 constant", (24, 40), (200, 40), True, True, bf16),
    Case("int8 constant", (24, 40), (40, 200), False, True, i8),
)


def host(actual: Any) -> Any:
    """An array of NumPy; torch's bfloat16 has none, so that its values are given in float32."""
    is_half = hasattr(actual, "bfloat16") and "bfloat16" in str(actual.dtype)
    return np.asarray(actual.float() if is_half else actual)


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.title)
def test_every_library_computes_the_same_product(case: Case) -> None:
    peers, (x, ys) = calls(case), operands(case)
    assert ("numpy" in peers) == (case.dtype == f32)
    assert {"smelt"} <= set(peers) <= set(PEERS)
    close = 2**-6 if case.dtype == bf16 else 1e-4
    for y in (*ys, ys[0]):  # in turn, and once more from the first one on
        right = y.astype("f8")
        wanted = x.astype("f8") @ (np.swapaxes(right, -1, -2) if case.right_transposed else right)
        for name, call in peers.items():
            value = host(call()).astype("f8")
            assert np.allclose(value, wanted, rtol=close, atol=close), name


@pytest.mark.parametrize("case", around.CASES, ids=lambda c: c.title)
def test_what_stands_around_is_the_same_everywhere(case: around.FusedProduct) -> None:
    """Run at a sixteenth of the sizes.

    Heads would not divide smaller ones; Inductor compiles another form of the same module.
    """
    peers = tuple(p for p in around.PEERS if p != "inductor")
    actual = {n: call() for n, call in around.calls(smaller(case), peers).items()}
    assert {"smelt", "numpy"} <= set(actual) <= set(peers)
    wanted = listed(actual["numpy"])
    for name, value in actual.items():
        close = 2e-2 if case.int8 and name == "torch" else 1e-4  # it rounds products of int8
        for got, want in zip(listed(value), wanted, strict=True):
            assert np.allclose(got, want, rtol=close, atol=close), name


def smaller(case: around.FusedProduct) -> around.FusedProduct:
    """A case with every size of over 16 divided by 16."""

    def less(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n // 16 if n > 16 else n for n in shape)

    weights = tuple(map(less, case.weights))
    return replace(case, x=less(case.x), weights=weights)


def listed(value: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(v) for v in (value if isinstance(value, tuple) else (value,))]


def test_floor_of_what_stands_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that multiplies int8 weights faster than it reads them."""
    monkeypatch.setattr(driver, "host", lambda: Target.for_isa("avx512"))
    block, short = around.CASES[1], around.CASES[-1]
    assert block.flops == 2 * 2 * 512 * 768 * 3072
    assert around.floor_ns(block) == block.flops / driver.host().fma_gflops
    assert around.floor_ns(short) > short.flops / driver.host().fma_gflops


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
    rows = table([ProductTimes("a", 50.0, {"smelt": 100.0, "numpy": 250.0, "torch": 150.0})]).rows
    assert rows == (("a", "100 ns", "250 ns", "150 ns", "50.0 ns", "1.50", "50 %"),)
    assert "| a | 100 ns |" in page([ProductTimes("a", 50.0, {"smelt": 100.0})])
