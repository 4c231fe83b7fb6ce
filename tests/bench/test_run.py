"""The run: workers, rounds, ratios, crashes and wrong answers, on arrays of a test's size."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import run as runner
from bench.cold import import_ns, measure_cold
from bench.process import Worker, command, pin_to_cpus, run_and_report, variables
from bench.results import (
    Cold,
    Entry,
    Results,
    Row,
    Times,
    geomean,
    quartiles,
)
from bench.run import Options, run
from bench.worker import FLOOR, LibraryWorker, save_reference
from bench.workloads import WORKLOADS

# Workers --------------------------------------------------------------------------------------


def test_library_worker_keeps_the_fastest_right_variant(tmp_path: Path) -> None:
    worker = LibraryWorker("numpy", 1, small=True)
    assert "failed" in worker.time(repeat=1, warm=0)
    save_reference(WORKLOADS["a2"], tmp_path, small=True)
    reply = worker.load(row="a2", reference=str(tmp_path))
    assert set(reply["errors"]) == {"array API", "in place"}
    assert reply["variant"] in reply["errors"]
    assert reply["failures"] == {}
    assert 0 < worker.time(repeat=3, warm=1)["ns"] < 1e9
    assert worker.record() == {"ns": None}


def test_wrong_answers_are_not_timed(tmp_path: Path) -> None:
    row = WORKLOADS["a2"]
    tmp_path.mkdir(exist_ok=True)
    np.save(tmp_path / "0.npy", row.reference(row.arrays(small=True))[0] + 1.0)
    reply = LibraryWorker("numpy", 1, small=True).load(row="a2", reference=str(tmp_path))
    assert "ns" not in reply
    assert min(reply["errors"].values()) > 1.0


def test_worker_process_answers_and_survives_a_bad_order(tmp_path: Path) -> None:
    with Worker("numpy", threads=1, small=True) as worker:
        assert worker.problem == ""
        assert (
            "KeyError" in worker.request({"do": "load", "row": "x", "reference": "."}, 60)["failed"]
        )
        assert "failed" in worker.request({"do": "explode"}, 60)
        save_reference(WORKLOADS["tiny"], tmp_path, small=True)
        order = {"do": "load", "row": "tiny", "reference": str(tmp_path)}
        assert worker.request(order, 60)["variant"] == "array API"
        assert worker.request({"do": "time", "repeat": 10, "warm": 1}, 60)["ns"] > 0
    assert not worker.alive


def test_dead_worker_is_a_finding() -> None:
    with Worker("numpy", threads=1, small=True) as worker:
        os.kill(worker._process.pid, signal.SIGKILL)
        assert "SIGKILL" in worker.request({"do": "record"}, 60)["failed"]
        assert "SIGKILL" in worker.request({"do": "record"}, 60)["failed"]


def test_hung_worker_is_ended() -> None:
    with Worker("numpy", threads=1, small=True) as worker:
        os.kill(worker._process.pid, signal.SIGSTOP)
        assert "no answer" in worker.request({"do": "record"}, seconds=0.0)["failed"]
        assert not worker.alive


def test_unusable_library_is_reported() -> None:
    with Worker("fortran", threads=1) as worker:
        assert worker.problem


def test_every_process_gets_the_same_threads(tmp_path: Path) -> None:
    settings = variables(3, tmp_path)
    assert {v for k, v in settings.items() if k.endswith("_THREADS")} == {"3"}
    assert settings["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
    assert settings["SMELT_CACHE_DIR"].startswith(str(tmp_path))
    assert "TORCHINDUCTOR_CACHE_DIR" not in variables(3, None)
    line = command(["-c", "x"], {"A": "1"})
    assert line[-2:] == ["-c", "x"]
    assert "A=1" in line


# A run ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> Results:
    names = ("a2", "chain", "tiny")
    heard: list[str] = []
    result = run(
        Options(only=names, peers=("numpy",), threads=1, quick=True, small=True), heard.append
    )
    assert heard[1:] == ["a2", "chain_64mib", "chain_1mib", "chain_64kib", "chain_1kib", "tiny"]
    return result


def test_run_times_every_chosen_row(results: Results) -> None:
    assert next(row.id for row in results.rows) == "a2"
    for row in results.rows:
        entry = row.entries["numpy"]
        assert entry.problem == ""
        assert entry.times is not None
        assert entry.times.count == 5
        assert 0 < entry.times.best <= entry.times.low <= entry.times.median <= entry.times.high
        assert entry.error is not None
        assert entry.error <= 1.0
        assert FLOOR not in row.entries
        assert (row.floor is None) == (row.id == "tiny") == (entry.over_floor is None)
    assert results.peers["numpy"] == f"numpy {np.__version__}"
    assert results.threads == 1


def test_results_round_trip(results: Results) -> None:
    text = results.to_json()
    assert Results.from_json(text) == results
    data = json.loads(text)
    assert set(data["geomeans"]) == {
        "best_peer_over_smelt",
        "best_peer_over_smelt_large",
        "smelt_over_floor_large",
    }
    with pytest.raises(ValueError, match="format"):
        Results.from_json(json.dumps({**data, "format": 99}))


def test_unknown_names_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="unknown row 'b9': choose from a1"):
        run(Options(only=("b9",)))
    with pytest.raises(ValueError, match="unknown library 'cupy': choose from numpy"):
        run(Options(peers=("cupy",)))


def test_prefix_takes_several_rows_and_an_id_only_itself() -> None:
    chosen = runner._select(("softmax", "a1"), WORKLOADS, "row")
    assert list(chosen) == ["a1", "softmax_128", "softmax_4096", "softmax_65536"]
    assert list(runner._select(("sum",), WORKLOADS, "row")) == ["sum"]
    assert runner._select((), WORKLOADS, "row") is WORKLOADS


class _Scripted:
    """A worker that answers from a script, to watch the order of a round."""

    def __init__(self, name: str, log: list[str], ns: list[float]) -> None:
        self.name, self.log, self.ns = name, log, ns

    def request(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.log.append(f"{self.name} {order['repeat']} {order['warm']}")
        return {"ns": self.ns.pop()} if self.ns else {"failed": "gone"}


def test_rounds_rotate_and_repeat_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.time, "sleep", lambda _: None)
    log: list[str] = []
    crew: Any = type("Crew", (), {})()
    crew.workers = {
        "x": _Scripted("x", log, [5.0] * 99),
        "y": _Scripted("y", log, [7.0] * 99),
        "z": _Scripted("z", log, [9.0, 9.0]),
    }
    loaded = {"x": {"ns": 1e4}, "y": {"ns": 4e8}, "z": {"ns": 1e6}, "w": {"failed": "no"}}
    samples, _ = runner._run_rounds(crew, loaded, Options())
    assert [line.split()[0] for line in log[:9]] == ["x", "y", "z", "y", "z", "x", "z", "x", "y"]
    assert "x 400 100" in log, "4 ms of calls, of which a quarter more is warm-up"
    assert "y 1 1" in log
    assert {name: len(actual) for name, actual in samples.items()} == {"x": 15, "y": 5, "z": 2}


def test_the_floor_is_timed_beside_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is slower from the fourth floor on: x, in one mode and the other, takes twice it."""
    monkeypatch.setattr(runner.time, "sleep", lambda _: None)
    log: list[str] = []
    crew: Any = type("Crew", (), {})()
    crew.workers = {
        "x": _Scripted("x", log, [8.0, 8.0, 4.0]),
        "y": _Scripted("y", log, []),
        FLOOR: _Scripted(FLOOR, log, [4.0] * 96 + [2.0] * 3),
    }
    loaded = {name: {"ns": 1e6} for name in crew.workers}
    samples, over = runner._run_rounds(crew, loaded, Options())
    assert [line.split()[0] for line in log[:6]] == [FLOOR, "x", FLOOR, "y", FLOOR, FLOOR]
    assert samples["x"] == [4.0, 8.0, 8.0]
    assert over == {"x": [2.0, 2.0, 2.0], "y": []}


def test_entries_say_why_there_is_no_time() -> None:
    wrong = {"errors": {"array API": 50.0}, "failures": {}}
    assert runner._entry(wrong, None).problem.startswith("wrong result, 50 times")
    broken = {"errors": {}, "failures": {"array API": "TypeError: no"}}
    assert runner._entry(broken, None).problem == "TypeError: no"
    assert runner._entry({"failed": "process ended: SIGSEGV"}, None).problem.endswith("SIGSEGV")
    assert runner._entry({"ns": 3.0, "variant": "v"}, None).problem == "stopped while being timed"
    good = {"ns": 3.0, "variant": "v", "error": 0.5, "first_ns": {"v": 9.0}}
    entry = runner._entry(good, quartiles([3.0]))
    assert (entry.variant, entry.error, entry.first_ns, entry.problem) == ("v", 0.5, 9.0, "")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_run_keeps_to_its_cores_and_gives_them_back() -> None:
    before = os.sched_getaffinity(0)
    with pin_to_cpus(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with pin_to_cpus(10**6):
        assert os.sched_getaffinity(0) == before


# Fresh processes ------------------------------------------------------------------------------


def test_cold_start_of_numpy_has_nothing_to_compile() -> None:
    actual = measure_cold("numpy", "tiny", 1, "array API", small=True, seconds=60)
    assert actual.problem == ""
    assert actual.empty_ns is not None
    assert actual.warm_ns is not None
    assert actual.empty_ns < 1e9


def test_cold_start_that_fails_says_so() -> None:
    actual = measure_cold("fortran", "tiny", 1, "array API", small=True, seconds=60)
    assert actual.problem
    assert actual.empty_ns is None
    assert "no answer" in measure_cold("numpy", "tiny", 1, "", small=True, seconds=0.001).problem


def test_import_time_of_smelt_is_measured() -> None:
    actual = import_ns("smelt", count=1)
    assert actual is not None
    assert 0 < actual < 20e9


# Ratios ---------------------------------------------------------------------------------------


def _row(floor: float | None, **ns: float) -> Row:
    def one(value: float) -> Times:
        return Times(value, value, value, value, 1)

    entries = {name: Entry(one(value), "v", 0.1, None) for name, value in ns.items()}
    entries["broken"] = Entry(problem="no")
    return Row("r", "row", "large", 10, 10, one(floor) if floor else None, entries)


def test_ratios_by_hand() -> None:
    row = _row(10.0, numpy=80.0, jax=40.0, smelt=20.0)
    assert row.best_peer == "jax"
    assert row.over_floor("jax") == 4.0
    assert row.over_floor("smelt") == 2.0
    assert row.over_floor("broken") is None
    assert row.best_over_smelt == 2.0
    pair = replace(row.entries["smelt"], over_floor=quartiles([1.5]))
    assert replace(row, entries={"smelt": pair}).over_floor("smelt") == 1.5
    alone = _row(None, smelt=20.0)
    assert alone.best_peer is None
    assert alone.best_over_smelt is None
    assert alone.over_floor("smelt") is None
    assert _row(10.0, numpy=80.0).best_over_smelt is None


def test_geomeans() -> None:
    assert geomean([]) is None
    assert geomean([None, None]) is None
    assert geomean([4.0]) == 4.0
    rows = [_row(10.0, numpy=40.0, smelt=10.0), _row(10.0, numpy=90.0, smelt=10.0)]
    small = replace(_row(10.0, numpy=10.0, smelt=1000.0), group="small")
    run_results = Results({}, 1, {}, {}, [*rows, small], cold={"r": {"smelt": Cold(1.0, 2.0)}})
    means = json.loads(run_results.to_json())["geomeans"]
    assert means["best_peer_over_smelt_large"] == pytest.approx(6.0)
    assert means["smelt_over_floor_large"] == pytest.approx(1.0)
    assert means["best_peer_over_smelt"] == pytest.approx((4 * 9 / 100) ** (1 / 3))
    assert Results.from_json(run_results.to_json()) == run_results


def test_quartiles_are_samples() -> None:
    assert quartiles([4.0]) == Times(4.0, 4.0, 4.0, 4.0, 1)
    samples = [float(i) for i in range(15)]
    assert quartiles(samples[::-1]) == Times(7.0, 4.0, 10.0, 0.0, 15)


def test_what_a_process_measures_is_said_as_it_comes() -> None:
    code = "print('one', flush=True); print('two'); print('[' + '1, ' * 200000 + '1]')"
    said: list[str] = []
    last = run_and_report([sys.executable, "-c", code], said.append)
    assert said == ["one", "two"]
    assert len(json.loads(last)) == 200001
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_and_report([sys.executable, "-c", "print('one'); 1 / 0"], said.append)
