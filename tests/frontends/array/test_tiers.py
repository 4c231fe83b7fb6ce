"""NumPy computes programs until compiling is predicted to pay, with the bits of compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array import evaluate_pending, tiers
from smelt.frontends.array.array import Array
from smelt.frontends.array.value import leaf
from smelt.ops.elementwise import Map
from smelt.ops.scalar import EXACT, SCALARS


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start without accounts; list who computed each program."""
    monkeypatch.setattr(tiers, "_ACCOUNTS", {})
    computed: list[str] = []
    by_numpy = evaluate_pending.by_numpy

    def noted(program: Any) -> Any:
        results = by_numpy(program)
        computed.append("fused" if results is None else "numpy")
        return results

    monkeypatch.setattr(evaluate_pending, "by_numpy", noted)
    return computed


def results(tier: str, make: Any) -> list[np.ndarray[Any, Any]]:
    with sm.config(tiers=tier):
        return [np.array(x) for x in make()]


def exact_operators(dtype: str) -> list[Any]:
    """Return every exact scalar operator that takes a dtype, applied to ordinary numbers."""
    r = np.random.default_rng(3)
    data = [np.asarray(r.standard_normal(257) * 9).astype(dtype) for _ in range(3)]
    if data[0].dtype.kind == "i":
        data = [np.where(x == 0, 1, x).astype(dtype) for x in data]
    arrays: list[Any] = []
    for name in sorted(EXACT):
        operands = tuple(leaf(x.copy()) for x in data[: SCALARS[name].arity])
        try:
            arrays.append(Array.of(tiers.record(Map(name), operands)))
        except sm.errors.SmeltError:
            continue  # not for this dtype
    return arrays


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_exact_operators_have_the_bits_of_compiled_code(dtype: str, accounts: list[str]) -> None:
    ours = results("fused", lambda: exact_operators(dtype))
    accounts.clear()
    theirs = results("numpy", lambda: exact_operators(dtype))
    assert len(ours) > 5
    assert set(accounts) == {"numpy"}
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def moved(x: Any) -> Any:
    y = x[::-1] * 2 + 1
    y[1:] -= y[:-1]
    return [y, sm.reshape(y, (2, -1)).T + 1, sm.where(y > 0, y, 0), sm.sum(y), sm.sort(y), y[y > 0]]


def test_programs_have_the_values_of_compiled_code(accounts: list[str]) -> None:
    x = sm.asarray(np.arange(200.0) % 17, copy=True)
    ours = results("fused", lambda: moved(x))
    accounts.clear()
    theirs = results("numpy", lambda: moved(x))
    assert "numpy" in accounts
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_results_are_memory_of_their_own() -> None:
    x = sm.asarray(np.arange(6.0), copy=True)
    with sm.config(tiers="numpy"):
        y, z = sm.reshape(x, (2, 3)), sm.flip(x)
        np.asarray(y)[...] = 9
        np.asarray(z)[...] = 7
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def run_one(n: int) -> None:
    x = sm.asarray(np.arange(float(n)), copy=True)
    y = x * 3.0 - 1.0
    float(sm.sum(y * y - x))


def test_the_account_pays_for_compiling(accounts: list[str]) -> None:
    """Decisions depend on counts and sizes alone, so another process takes the same."""
    with sm.config(tiers="auto"):
        for _ in range(4):
            run_one(10)
        assert set(accounts) == {"numpy"}
        accounts.clear()
        for _ in range(40):
            run_one(2_000_000)
            if accounts[-1] == "fused":
                break
        first = list(accounts)
        assert first[-1] == "fused"
        assert len(first) > tiers.RUNS_BEFORE
        run_one(10)
        assert accounts[-1] == "numpy"  # compiled code does not pay at this size
        rows = tiers.tier_rows()
        assert [r.tier for r in rows] == ["fused"]
        tiers._ACCOUNTS.clear()  # pyright: ignore[reportPrivateUsage]
        accounts.clear()
        for _ in range(4):
            run_one(10)
        accounts.clear()
        for _ in first:
            run_one(2_000_000)
        assert accounts == first[: len(accounts)]


def test_functions_with_other_last_bits_are_compiled_at_once(accounts: list[str]) -> None:
    with sm.config(tiers="auto"):
        float(sm.sum(sm.exp(sm.ones(5))))
    assert accounts == ["fused"]
    assert "last bits" in tiers.tier_rows()[0].reason


def test_errors_are_those_of_compiled_code() -> None:
    x, at = sm.asarray([1.0, 2.0]), sm.asarray([0, 5])
    with sm.config(tiers="numpy"), pytest.raises(IndexError):
        sm.take(x, at + 0).tolist()
