"""Run the command for the suite of the array API standard on a small suite."""

from __future__ import annotations

import json

import pytest
from tools import array_api_suite as suite

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--max-examples", type=int)
"""
TESTS = """
import os
from importlib import import_module

import pytest

xp = import_module(os.environ["ARRAY_API_TESTS_MODULE"])


@pytest.mark.parametrize("n", [1, 2])
def test_both_pass(n):
    assert float(xp.sum(xp.ones(n))) == n


def test_only_numpy_passes():
    assert xp.__name__ == "numpy"


def test_nobody_passes():
    assert False
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "array_api_tests"
    folder.mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (folder / "test_small.py").write_text(TESTS)
    return tmp_path


def test_failures_that_numpy_does_not_have_are_reported(checkout, capsys):
    results = checkout / "results.json"
    assert suite.main([str(checkout)], results) == 1
    assert "2 of 3 tests pass" in capsys.readouterr().out
    failed = "array_api_tests/test_small.py::test_only_numpy_passes"
    assert json.loads(results.read_text())["failures"] == {failed: ""}
    report = suite.report(results)
    assert "passes 2 (66.7 %)" in report
    assert f"| `{failed}` | not known yet |" in report


def test_expected_failures_have_reasons(checkout, monkeypatch):
    failures = checkout / "failures.txt"
    failed = "array_api_tests/test_small.py::test_only_numpy_passes"
    failures.write_text(f"# a comment\n{failed}  # the reason\n")
    reasons = suite.expected_failures(failures)
    assert reasons == {failed: "the reason"}
    failures.write_text(f"{failed}\n")
    with pytest.raises(ValueError, match="no reason"):
        suite.expected_failures(failures)
    monkeypatch.setattr(suite, "expected_failures", lambda: reasons)
    assert suite.main([str(checkout)], checkout / "results.json") == 0


def test_a_folder_without_the_suite_is_refused(tmp_path, capsys):
    assert suite.main([str(tmp_path)], tmp_path / "results.json") == 2
    assert "no clone" in capsys.readouterr().err
    (tmp_path / "array_api_tests").mkdir()
    with pytest.raises(RuntimeError, match=r"no tests were found|did not run"):
        suite.run_suite(tmp_path, "numpy")
    assert "has not been run" in suite.report(tmp_path / "none.json")


def test_the_list_of_failures_can_be_read():
    assert all(suite.expected_failures().values())
