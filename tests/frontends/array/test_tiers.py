"""NumPy computes programs until compiling is predicted to pay, with the bits of compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array import evaluate_pending, tiers, value
from smelt.frontends.array.array import Array
from smelt.frontends.array.at_once import Purse
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.value import leaf
from smelt.ops.elementwise import Map
from smelt.ops.scalar import EXACT, SCALARS


@pytest.fixture(autouse=True)
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start without accounts; list who computed each program that was pending."""
    monkeypatch.setattr(tiers, "_ACCOUNTS", {})
    monkeypatch.setattr(value, "_SIGHTINGS", {})
    monkeypatch.setattr(value, "_OPERATORS", {})
    monkeypatch.setattr(Purse, "load", Purse.load)
    for family in BINARY.values():
        monkeypatch.setattr(family, "result_types", {})
        monkeypatch.setattr(family, "number_types", {})
    programs: list[str] = []
    by_numpy = evaluate_pending.by_numpy

    def noted(program: Any, *rest: Any) -> Any:
        results = by_numpy(program)
        programs.append("fused" if results is None else "numpy")
        return results

    monkeypatch.setattr(evaluate_pending, "by_numpy", noted)
    return programs


def results(tier: str, make: Any) -> list[np.ndarray[Any, Any]]:
    with sm.config(tiers=tier), np.errstate(all="ignore"):
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
            arrays.append(Array.of(value.record(Map(name), operands)))
        except sm.errors.SmeltError:
            continue  # not for this dtype
    return arrays


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_exact_operators_have_the_bits_of_compiled_code(dtype: str, computed: list[str]) -> None:
    ours = results("fused", lambda: exact_operators(dtype))
    computed.clear()
    theirs = results("numpy", lambda: exact_operators(dtype))
    assert len(ours) > 5
    assert not computed  # nothing waits
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def moved(x: Any) -> Any:
    y = x[::-1] * 2 + 1
    y[1:] -= y[:-1]
    return [y, sm.reshape(y, (2, -1)).T + 1, sm.where(y > 0, y, 0), sm.sum(y), sm.sort(y), y[y > 0]]


@pytest.mark.parametrize("n", [200, 20_000])
def test_programs_have_the_values_of_compiled_code(n: int) -> None:
    x = sm.asarray(np.arange(float(n)) % 17, copy=True)
    ours = results("fused", lambda: moved(x))
    theirs = results("numpy", lambda: moved(x))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_results_are_memory_of_their_own() -> None:
    x = sm.asarray(np.arange(6.0), copy=True)
    with sm.config(tiers="numpy"):
        y, z = sm.reshape(x, (2, 3)), sm.flip(x)
        np.asarray(y)[...] = 9
        np.asarray(z)[...] = 7
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("n", [4, 2000])
def test_what_was_read_keeps_its_elements(n: int) -> None:
    """Writes go into memory only if nobody else can see them."""
    with sm.config(tiers="numpy"):
        x = sm.asarray(np.arange(float(n)), copy=True)
        part, row, total, same = x[1:], sm.reshape(x, (2, -1)), x + 0, +x
        memory = np.asarray(x)
        y = x * 1
        x[1] = 50
        x[sm.asarray([2, 3])] = x[:2]
        y[0] = 9
        y[1:] = y[:-1]
    assert part[0] == row[0, 1] == total[1] == 1
    assert same[1] == 1
    assert memory[1] in (1, 50)
    assert x.tolist()[:4] == [0, 50, 0, 50]
    assert y.tolist()[:4] == [9, 9, 1, 2]


def test_small_writes_copy_nothing() -> None:
    with sm.config(tiers="auto"):
        x = sm.zeros(5000)
        x[0] = 1
        memory = id(x.node.data)
        for k in range(4):
            x[k] = k
            x[k:] += 1
        assert id(x.node.data) == memory
    assert x.tolist()[:5] == [1, 2, 3, 4, 4]


def run_one(n: int) -> None:
    x = sm.asarray(np.arange(float(n)), copy=True)
    y = x * 3.0 - 1.0
    float(sm.sum(y * y - x))


def test_operators_pay_for_compiling(computed: list[str]) -> None:
    """Decisions depend on counts and sizes alone, so another process takes the same."""
    with sm.config(tiers="auto"):
        for _ in range(40):
            run_one(10)
        assert not computed  # such sizes are computed at once
        for _ in range(40):
            run_one(2_000_000)
            if "fused" in computed:
                break
        first = list(computed)
        assert first[-1] == "fused"
        run_one(10)
        assert computed == first
        run_one(2_000_000)
        assert computed == [*first, *computed[len(first) :]]
        assert {row.tier for row in tiers.tier_rows()} == {"fused", "numpy"}


def test_operators_of_one_program_are_recorded_from_the_same_time_on(computed: list[str]) -> None:
    """Each operator saves another amount; one that paid first would split its program."""
    with sm.config(tiers="auto"):
        x = sm.asarray(np.arange(2_000_000.0), copy=True)
        for _ in range(40):
            y = x * 3.0
            z = y > 9.0
            y = sm.where(z, y - 1.0, x)
            float(sm.sum(y * y))
            if computed:
                break
        rows = {row.place.split("(")[0]: row for row in tiers.tier_rows()}
    assert {name: row.paid_us for name, row in rows.items() if name in ("mul", "gt", "sub")} == (
        dict.fromkeys(("mul", "gt", "sub"), rows["mul"].paid_us)
    )
    assert len(computed) == 1


def test_large_intermediates_are_fused_at_first_sight(computed: list[str]) -> None:
    """What would take much memory is neither computed at once nor by NumPy later."""
    with sm.config(tiers="auto"):
        x = sm.arange(20_000, dtype=sm.float64)
        total = sm.sum((x[:, None] - x[None, :]) ** 2)
        assert total.node.is_pending
        assert float(total) > 0
    assert computed == ["fused"]


def test_shapes_that_change_are_not_compiled(computed: list[str]) -> None:
    with sm.config(tiers="auto"):
        x = sm.ones(3000)
        for k in range(1, 60):
            x[k:] = x[k:] * 2.0 - sm.sum(x[:k])
    assert not computed


def test_errors_are_those_of_compiled_code() -> None:
    x, at = sm.asarray([1.0, 2.0]), sm.asarray([0, 5])
    with sm.config(tiers="numpy"), pytest.raises(IndexError):
        sm.take(x, at + 0).tolist()


def test_numpy_warns_of_the_operators_that_are_written() -> None:
    with sm.config(tiers="auto"):
        x = sm.asarray([1.0, 0.0])
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            assert (1 / x).tolist() == [1, np.inf]
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            (x / x[1]).tolist()
