"""The page about the planner: its rows and its text."""

from __future__ import annotations

import pytest
from tools import planner


def test_rows_are_those_of_the_catalogue() -> None:
    names = [row.id for row in planner.rows()]
    assert len(names) > 80
    assert {row.id[0] for row in planner.rows()} == set("ABCDFGH")
    assert [row.id for row in planner.rows(["B4 r"])] == ["B4 rows"]


def test_slower_rows_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"B4 rows": (1e6, 3e6), "B4 columns": (2e6, 1e6), "B4 log": (1.04e6, 1e6)}
    monkeypatch.setattr(planner, "timed", lambda row: times[row.id])
    said: list[str] = []
    page = planner.catalogue(list(times), said.append)
    assert set(said) == set(times)
    first, *_ = page.splitlines()
    assert first.endswith("operator by operator: B4 columns (2.00).")
    assert "| B4 columns | 2.00 ms | 1.00 ms | 0.50 |\n| B4 log |" in page


def test_plans_of_graphs_are_compared_with_the_best_ones() -> None:
    actual = planner.ratios(6)
    assert len(actual) >= 4
    assert all(0.9 < r <= 1.25 for r in actual)
