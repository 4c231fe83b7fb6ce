"""Races between plans: which decisions are flipped, who wins, what is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.compiler import driver, warm
from smelt.graph.text import parse
from smelt.journal.facts import Decision, Journal, LibraryProduct, Measured
from smelt.runtime import code
from smelt.runtime.cache import Cache
from smelt.runtime.host import machine_id
from smelt.tune import race
from smelt.tune.arrays import agree
from smelt.tune.memory import Program, recall, remember
from smelt.tune.race import close_calls, compare

GRAPH = parse("""graph f(x: f32[n,m]) {
  v0 = exp(x)
  v1 = reduce.sum(v0) {axes=(1,)}
  v2 = sin(v0)
  return v1, v2
}""")
SIZES = {"n": 64, "m": 256}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    code.forget()
    with knobs.config(cache_dir=str(tmp_path / "cache"), threads=1, probe="off", verify=False):
        yield tmp_path / "cache"


@pytest.fixture
def unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision is a close one."""
    monkeypatch.setattr(race, "UNSURE_FRACTION", 1.0)


def kernels(c: driver.Compiled | warm.CachedProgram) -> int:
    return len(c.plan.clusters)


def raced(ratio: float, monkeypatch: pytest.MonkeyPatch) -> driver.Compiled:
    """The program compiled where every plan but the first takes `ratio` of the time."""
    monkeypatch.setattr(race, "compare", lambda one, other, ends: ratio)
    with knobs.config(tune="race"):
        return driver.compile(GRAPH, hints=SIZES, journal=Journal())


def test_a_faster_plan_wins_and_is_remembered(
    monkeypatch: pytest.MonkeyPatch, unsure: None
) -> None:
    with knobs.config(tune="off"):
        first = kernels(driver.compile(GRAPH, hints=SIZES))
    actual = raced(0.5, monkeypatch)
    assert kernels(actual) > first == 1
    assert [m.unit for m in actual.journal.of(Measured)] == ["of the time"] * len(
        actual.journal.of(Measured)
    )
    monkeypatch.setattr(Cache, "_defaults", {})
    assert kernels(driver.compile(GRAPH, hints=SIZES)) == kernels(actual)
    assert kernels(driver.compile(GRAPH, hints={"n": 65, "m": 300})) == kernels(actual)
    assert kernels(driver.compile(GRAPH, hints={"n": 9000, "m": 300})) == first
    with knobs.config(tune="off"):
        assert kernels(driver.compile(GRAPH, hints=SIZES)) == first
    with knobs.config(cache=False):
        assert kernels(driver.compile(GRAPH, hints=SIZES)) == first


def test_a_slower_plan_loses(monkeypatch: pytest.MonkeyPatch, unsure: None) -> None:
    assert kernels(raced(0.99, monkeypatch)) == 1
    with knobs.config(tune="race"):
        actual = recall(Program(GRAPH, SIZES), machine_id(driver.host()))
    assert actual == {"must_fuse": (), "never_fuse": ()}, "that nothing is better counts too"


def test_other_numbers_are_no_win(
    monkeypatch: pytest.MonkeyPatch, unsure: None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(race, "agree", lambda one, other: False)
    assert kernels(raced(0.1, monkeypatch)) == 1
    assert "other numbers" in caplog.text


def test_wishes_of_the_user_stay(monkeypatch: pytest.MonkeyPatch, unsure: None) -> None:
    with knobs.config(never_fuse="exp+sum"):
        result = raced(0.5, monkeypatch)
    named = [{n.op.name for n in c.nodes} for c in result.plan.clusters]
    assert not any({"exp", "sum"} <= names for names in named)


def test_the_results_are_right_after_a_real_race(unsure: None) -> None:
    x = np.random.default_rng(0).standard_normal((50, 300)).astype("f4")

    def f(x: Any) -> Any:
        return sm.sum(sm.exp(x), axis=1), sm.sin(sm.exp(x))

    with knobs.config(tune="race", tune_seconds=1):
        total, wave = sm.jit(f)(x)
    assert np.allclose(total, np.exp(x.astype("f8")).sum(1), rtol=1e-5)
    assert np.allclose(wave, np.sin(np.exp(x.astype("f8"))), atol=1e-5)


def test_a_raced_plan_is_found_by_the_next_process(
    monkeypatch: pytest.MonkeyPatch, unsure: None
) -> None:
    """Though the model's own plan was stored before."""
    assert kernels(warm.compile(GRAPH, hints=SIZES)) == 1
    monkeypatch.setattr(race, "compare", lambda one, other, ends: 0.5)
    with knobs.config(tune="race"):
        actual = kernels(warm.compile(GRAPH, hints=SIZES))
    assert actual > 1
    code.forget()
    monkeypatch.setattr(Cache, "_defaults", {})
    for how in ("remembered", "race"):
        with knobs.config(tune=how):
            again = warm.compile(GRAPH, hints=SIZES)
            assert isinstance(again, warm.CachedProgram) and kernels(again) == actual
    with knobs.config(tune="off"):
        assert kernels(warm.compile(GRAPH, hints=SIZES)) == 1


PRODUCT = parse("""graph f(x: f32[n,300], w: f32[200,300], b: f32[200]) {
  v0 = contract(x, w) {spec="m,k; j,k -> m,j"}
  v1 = add(v0, b)
  return v1
}""")


def test_a_library_is_raced_in_the_whole_program_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calls(**settings: Any) -> int:
        with knobs.config(**settings):
            c = driver.compile(PRODUCT, hints={"n": 100}, journal=Journal())
        return sum(cluster.is_extern for cluster in c.plan.clusters)

    usable = driver.usable_library
    monkeypatch.setattr(
        driver, "usable_library", lambda target: replace(usable(target), may_run=True)
    )
    monkeypatch.setattr(race, "compare", lambda one, other, ends: 0.5)
    with knobs.config(tune="race"):
        c = driver.compile(PRODUCT, hints={"n": 100}, journal=Journal())
    measured = [m for m in c.journal.of(Measured) if "NumPy" in m.what]
    assert [(m.what, m.value) for m in measured] == [("products by NumPy: always", 0.5)]
    assert [d.reason for d in c.journal.of(LibraryProduct)] == ["setting"]
    assert calls() == calls(tune="race") == 1
    assert calls(tune="off") == 0 == calls(library_products="never")


def test_a_library_that_loses_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "compare", lambda one, other, ends: 1.5)
    with knobs.config(tune="race"):
        c = driver.compile(PRODUCT, hints={"n": 100}, journal=Journal())
        assert recall(Program(PRODUCT, {"n": 100}), machine_id(driver.host())) == {
            "must_fuse": (),
            "never_fuse": (),
        }
    assert not any(cluster.is_extern for cluster in c.plan.clusters)


def test_the_users_own_choice_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "compare", lambda one, other, ends: 0.5)
    with knobs.config(tune="race", library_products="never"):
        c = driver.compile(PRODUCT, hints={"n": 100}, journal=Journal())
    assert not any(cluster.is_extern for cluster in c.plan.clusters)


def decision(verdict: Any, fused: float | None, split: float | None) -> Decision:
    return Decision("a", "b", verdict, "saves-traffic", fused_ns=fused, split_ns=split)


@pytest.mark.parametrize(
    ("inputs", "wish"),
    [
        (decision("fused", 100.0, 105.0), "never_fuse"),
        (decision("split", 105.0, 100.0), "must_fuse"),
        (decision("fused", 100.0, 200.0), None),
        (decision("split", None, 100.0), None),
    ],
)
def test_only_close_decisions_are_flipped(inputs: Decision, wish: str | None) -> None:
    assert [f.wish for f in close_calls([inputs])] == ([wish] if wish else [])


def test_turns_end_with_the_clock() -> None:
    calls: list[int] = []
    compare(lambda: calls.append(1), lambda: calls.append(2), ends=0.0)
    assert len(calls) == 2 + 2 * 3


def test_a_damaged_memory_is_no_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = Program(GRAPH, SIZES), "a machine"
    remember(*question, {"must_fuse": (), "never_fuse": (("a", "b"),)}, 2.0)
    assert recall(*question) == {"must_fuse": (), "never_fuse": (("a", "b"),)}
    monkeypatch.setattr(Cache, "_defaults", {})
    (file,) = [f for f in folder.iterdir() if f.is_file()]
    file.write_bytes(file.read_bytes()[:-5])
    assert recall(*question) is None


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0000002], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([1.0, np.nan], [1.0, np.nan], True),
        ([1.0, np.inf], [1.0, -np.inf], False),
        ([1.0, np.nan], [1.0, 2.0], False),
        ([], [], True),
    ],
)
def test_numbers_agree_but_for_rounding(a: list[float], b: list[float], same: bool) -> None:
    one, other = (np.array(x, "f4") for x in (a, b))
    assert agree(one, other) is same
    assert agree(np.arange(3), np.arange(3)) and not agree(np.arange(3), np.arange(3) + 1)
