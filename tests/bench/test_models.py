"""The table of models: what is measured, and how it is shown."""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import replace

import pytest

from bench import cases, first, models
from bench.cases import CASES, model_and_inputs
from bench.first import SIZES, FirstCall, measure_first
from smelt import knobs


def row(name, eager, smelt):
    result = FirstCall(2.0, 1.04, (0.52, 0.01), (0.06, 0.0), 0.51)
    return models.Row(
        name,
        {"eager": eager, "smelt": smelt},
        {"smelt": result},
        {"eager": 4.0, "smelt": 3.0},
        1e-6,
        7,
        1,
    )


def test_the_page_has_every_model_and_the_geometric_mean():
    page = models.page([row("bert", 40.0, 10.0), row("vit", 9.0, 9.0)])
    assert "| model | eager | smelt | over eager |\n" in page
    assert "| bert | 40.00 | 10.00 | 4.00x |\n" in page
    assert "| model | smelt cold | smelt warm | smelt saved |\n" in page
    assert "| bert | 2.0 | 1.0 | 0.5 |\n" in page
    assert "| bert | 0.5, 0.0 | 60 |\n" in page
    assert "| bert | 7 | 1 | 4.0 | 3.0 |\n" in page
    assert "Geometric mean of the gain: eager 2.00x.\n" in page


def test_a_peer_that_failed_is_a_dash_and_no_part_of_the_mean():
    failed = models.Row(
        "gpt2",
        {"eager": math.nan, "smelt": 2.0},
        {"smelt": FirstCall()},
        {"smelt": 3.0},
        1e-6,
        7,
        1,
    )
    page = models.page([row("bert", 40.0, 10.0), failed])
    assert "| gpt2 | – | 2.00 | – |\n" in page
    assert "| gpt2 | – | – | – |\n" in page  # the first call
    assert page.count("| gpt2 | – | – |\n") == 1  # other sizes
    assert "| gpt2 | 7 | 1 | – | 3.0 |\n" in page
    assert "Geometric mean of the gain: eager 4.00x.\n" in page


def test_what_was_not_measured_has_no_table():
    measured = replace(row("bert", 40.0, 10.0), first={})
    page = models.page([measured])
    assert "## The first call" not in page and "## Other sizes" not in page
    assert "threads" not in page
    measured = replace(measured, elapsed_ms={"eager": 12.0, "smelt": 3.0})
    page = models.page([measured], 2)
    assert "## A call on 2 threads\n" in page
    assert "| bert | 12.00 | 3.00 | 4.00x |\n" in page
    assert "| bert | 40.00 | 10.00 | 4.00x |\n" in page


def test_calls_on_more_threads_are_timed_by_the_clock_on_the_wall():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    with models._threads(torch, 1):
        assert torch.get_num_threads() == 1 and knobs.THREADS.get() == 1
    assert torch.get_num_threads() == before
    times = models._times({"a": lambda: time.sleep(0.005)}, time.perf_counter, statistics.median)
    assert times["a"] >= 5.0


def test_calls_are_measured_in_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    times = models._times(calls)
    assert set(times) == {"a", "b"}
    assert order == ["a", "a", "b", "b"] * models.ROUNDS
    assert all(math.isfinite(t) for t in times.values())


def test_an_unknown_model_is_an_error():
    pytest.importorskip("torch")
    with pytest.raises(KeyError):
        models.run(["nothing"])


def test_cases_can_be_built_and_called():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    for name in ("distilbert", "minilm", "diffusion"):
        try:
            model, inputs = model_and_inputs(torch, CASES[name])
        except (ImportError, FileNotFoundError) as error:
            pytest.skip(f"{name}: {error}")
        with torch.no_grad():
            assert torch.utils._pytree.tree_leaves(model(**inputs))[0].isfinite().all()
    assert {case.inputs for case in CASES.values()} == set(cases._INPUTS)


def test_later_calls_have_other_sizes():
    for case in CASES.values():
        one, other = case.sizes(1), case.sizes(2)
        assert case.sizes(0) == case.shape
        for a, n in enumerate(case.shape):
            different = len({n, one[a], other[a]}) == 3
            assert different == (a in case.free)


def test_a_first_call_that_fails_is_not_a_time():
    actual = measure_first("smelt", "nothing")
    assert math.isnan(actual.cold) and math.isnan(actual.warm)


def test_what_was_measured_before_a_process_was_stopped_counts():
    code = "import time; print('{\"seconds\": 2.5}', flush=True); time.sleep(60)"
    said, failed = first._run_lines([sys.executable, "-c", code], 5.0)
    assert said == [{"seconds": 2.5}] and "timed out" in failed
    assert first._run_lines([sys.executable, "-c", "raise ValueError(7)"], 60.0)[1].endswith("7")
    assert first._run_lines([sys.executable, "-c", "print('{}')"], 60.0) == ([{}], "")


@pytest.mark.nightly
def test_a_model_is_measured():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (actual,) = models.run(["distilbert"], ("eager", "smelt"), threads=2)
    assert set(actual.elapsed_ms) == {"eager", "smelt"} and min(actual.elapsed_ms.values()) > 0
    assert actual.error < 1e-4
    assert actual.kernels > 0
    assert actual.ms["smelt"] > 0
    assert actual.first["smelt"].cold > actual.first["smelt"].warm > actual.first["smelt"].saved > 0
    assert set(actual.first) == {"smelt"}
    assert len(actual.first["smelt"].further) == len(actual.first["smelt"].own) == SIZES
    assert actual.first["smelt"].own[-1] == 0  # by then it is known that both sizes vary
    assert actual.peak["eager"] > 0 and actual.peak["smelt"] > 0
