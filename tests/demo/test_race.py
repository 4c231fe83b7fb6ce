"""The race: turns, failures, agreement, and that memory is an engine's own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demo import engines, facts, memory, race, tokenise, weights
from demo.engines import Engine

BATCHES = tokenise.make_batches([[101, 7, 102], [101, 102], [101, 5, 6, 102]])


class Stand:
    """A worker in this process, which notes what it was told."""

    log: list[tuple[str, str]]

    def __init__(self, engine, batches):
        self.engine = engine

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Stand.log.append((self.engine.name, "ended"))

    def command(self, what, progress=None):
        Stand.log.append((self.engine.name, what))
        if (self.engine.name, what) in {("bad", "turn"), ("mute", "describe")}:
            raise race.EngineFailedError("broke")
        return {
            "first_seconds": 2.0,
            "seconds": 0.5 * len(Stand.log),
            "peak": 9,
            "resident": 4,
            "facts": facts.Facts(kernels=1)._asdict(),
        }

    def embeddings(self):
        return np.eye(3, dtype=np.float32) * (-1 if self.engine.name == "wrong" else 1)


def engine(name, absent=None):
    return Engine(name, name.title(), lambda: absent, lambda _: None)


@pytest.fixture
def stand(monkeypatch):
    Stand.log = []
    monkeypatch.setattr(race, "Worker", Stand)
    return Stand


def test_engines_take_turns(stand):
    race.run([engine("a"), engine("b")], BATCHES, turns=2)
    reported = [entry for entry in stand.log if entry[1] != "ended"]
    steps = ["start", "turn", "turn", "finish", "describe"]
    assert reported == [(name, step) for step in steps for name in ("a", "b")]
    assert [entry for entry in stand.log if entry[1] == "ended"] == [("b", "ended"), ("a", "ended")]


def test_the_best_turn_counts(stand):
    (result,) = race.run([engine("a")], BATCHES, turns=2)
    assert result.speed(10) == 10 / min(result.turns)
    assert (result.peak, result.resident, result.facts.kernels) == (9, 4, 1)


def test_a_failing_engine_does_not_stop_the_others(stand):
    good, bad = race.run([engine("good"), engine("bad")], BATCHES)
    assert bad.failed == "broke"
    assert bad.embeddings is None
    assert bad.speed(3) is None
    assert not bad.agrees
    assert good.failed is None
    assert len(good.turns) == 2


def test_what_was_computed_outlives_a_report_that_fails(stand):
    (mute,) = race.run([engine("mute")], BATCHES)
    assert mute.failed == "broke"
    assert mute.embeddings is not None
    (mute,) = race.run([engine("mute")], BATCHES, describe=False)
    assert mute.failed is None


def test_an_absent_engine_has_no_numbers(stand):
    _, absent = race.run([engine("a"), engine("b", "not built")], BATCHES)
    assert absent.absent == "not built"
    assert absent.speed(3) is absent.peak is absent.first_seconds is absent.agreement is None
    assert ("b", "start") not in stand.log


def test_disagreement_is_seen(stand):
    _, same, wrong = race.run([engine("a"), engine("b"), engine("wrong")], BATCHES)
    assert same.agrees
    assert same.agreement == 1.0
    assert wrong.agreement == -1.0
    assert not wrong.agrees


def test_nan_is_no_agreement():
    spoilt = np.eye(2, dtype=np.float32)
    spoilt[0, 0] = np.nan
    assert np.isnan(race.least_cosine(spoilt, np.eye(2, dtype=np.float32)))
    result = race.Result("a", "A", agreement=float("nan"))
    assert not result.agrees


def test_the_childs_exception_reaches_the_parent():
    requested = pytest.raises(race.EngineFailedError, match="no engine is called 'nonesuch'")
    with race.Worker(engine("nonesuch"), BATCHES) as worker, requested:
        worker.command("start")


def test_a_child_that_dies_is_reported():
    with race.Worker(engine("numpy"), BATCHES) as worker:
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(race.EngineFailedError, match="ended with status -9"):
            worker.command("start")


@pytest.mark.skipif(bool(weights.missing()), reason="needs the extra `demo`")
def test_numpy_in_a_process_of_its_own():
    heard = []
    (result,) = race.run(
        [engines.by_name("numpy")],
        BATCHES,
        turns=1,
        progress=lambda title, texts: heard.append((title, texts)),
    )
    assert result.failed is None
    assert sum(texts for _, texts in heard) == 3
    assert result.embeddings.shape == (3, 384)
    assert result.peak >= result.resident > 0
    running = engines.by_name("numpy").start(weights.load())
    for batch in BATCHES:
        here = running.encode(batch.ids, batch.mask)
        np.testing.assert_allclose(result.embeddings[list(batch.rows)], here, atol=1e-6)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's counters")
def test_a_peak_can_be_forgotten():
    large = np.ones(64 << 20, dtype=np.uint8)
    held = memory.peak_bytes()
    assert held >= memory.resident_bytes() > large.nbytes
    del large
    assert memory.reset_peak()
    assert memory.peak_bytes() < held - (32 << 20)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's counters")
def test_a_large_parents_peak_is_not_the_childs():
    large = np.ones(256 << 20, dtype=np.uint8)
    folder = Path(memory.__file__).parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    code += "import memory; print(memory.peak_bytes())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True)
    assert int(done.stdout) < large.nbytes / 2


def test_a_peer_runs_without_smelts_own_init(tmp_path):
    (tmp_path / "smelt").mkdir()
    (tmp_path / "smelt" / "__init__.py").write_text("raise SystemExit('init was run')")
    code = race._BOOT.replace("serve(name, work)", "print(name, work)")
    folders = [str(tmp_path), str(Path(race.__file__).parents[1])]
    boot = [sys.executable, "-P", "-c", code, "numpy", "here", *folders]
    done = subprocess.run(boot, capture_output=True, text=True, check=False)
    assert done.stdout == "numpy here\n", done.stderr
