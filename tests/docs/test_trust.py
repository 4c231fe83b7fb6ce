"""The table of docs/trust.md: its figures name tests that exist, its values come from the file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.trust import FILE, measured
from tools import trust
from tools.trust import FIGURES, Figure

NAMES = [figure.name for figure in FIGURES]


def test_there_is_a_row_for_each_figure() -> None:
    assert len(NAMES) == len(set(NAMES)) == 33
    assert len(trust.table().splitlines()) == 2 + len(NAMES)


@pytest.mark.parametrize("figure", FIGURES, ids=NAMES)
def test_a_figure_names_tests_that_exist_or_says_why_not(figure: Figure) -> None:
    assert figure.tests or figure.unmeasured
    for test in figure.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), test


def test_stored_values_are_of_figures_and_none_failed() -> None:
    values = trust.stored()
    assert set(values) <= set(NAMES)
    assert len(values) >= 20
    for name, value in values.items():
        assert value["failed"] == 0 and value["passed"] > 0, name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", value["date"]), name


def test_rows_show_what_is_stored(tmp_path: Path) -> None:
    value = {"passed": 1234, "failed": 1, "expected": 2, "skipped": 3, "date": "2026-01-31"}
    path = tmp_path / "trust.json"
    path.write_text(json.dumps({"kills": {**value, "numbers": {"seconds": 0.25}}}))
    rows = trust.table(path).splitlines()
    (row,) = [row for row in rows if "1,234" in row]
    assert "1,234 passed, **1 failed**, 2 listed exceptions, 3 skipped; seconds: 0.25" in row
    assert "| 2026-01-31 |" in row and "`runtime/test_compile_processes.py`" in row
    assert sum("not run yet" in row for row in rows) == sum(
        not f.unmeasured and f.name not in ("kills", "opinfo") for f in FIGURES
    )
    assert sum("not measured, because" in row for row in rows) == sum(
        bool(f.unmeasured) or f.marks == "nightly" for f in FIGURES
    )


def test_the_command_runs_tests_and_stores_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = tmp_path / "test_one.py"
    test.write_text(
        "import pytest\nfrom tests.trust import measured\n"
        "def test_a(): measured('a number', 7.5)\n"
        "@pytest.mark.xfail\ndef test_b(): assert 0\n"
    )
    monkeypatch.setattr(trust, "STORED", tmp_path / "trust.json")
    monkeypatch.setattr(trust, "FIGURES", (Figure("one", "a", "b", (str(test),)),))
    monkeypatch.setattr(trust.stored, "__defaults__", (tmp_path / "trust.json",))
    assert trust.main(["two"]) == 2
    assert trust.main([]) == 0
    (value,) = trust.stored().values()
    assert (value["passed"], value["failed"], value["expected"]) == (1, 0, 1)
    assert value["numbers"] == {"a number": 7.5}


def test_numbers_are_kept_only_where_they_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FILE, raising=False)
    measured("a", 1)
    monkeypatch.setenv(FILE, str(tmp_path / "values"))
    measured("b", 2)
    assert (tmp_path / "values").read_text() == '["b", 2]\n'
