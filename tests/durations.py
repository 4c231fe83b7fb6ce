"""Measure how long tests take, for the table that sampling and `make quick` read.

    python -m pytest -q -p tests.durations [PATH ..]    updates tests/durations.json

The time of a test is that of the processor, with processes that it started and that ended: what
else the machine does changes little. Of examples of which a part runs all count. The table has the
mean of a test's cases in seconds, and their number; tests that are not run keep their lines. It is
written without `-n` and with it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.sampling import SHARE, name_of_test

TABLE = Path(__file__).parent / "durations.json"
MIN_SECONDS = 0.05
"""Tests whose cases together take less have no line."""


@dataclass(frozen=True)
class Duration:
    """Mean seconds of a case of a test, and how many cases it has."""

    seconds: float
    cases: int


def read_table(path: Path = TABLE) -> dict[str, Duration]:
    """Return the table: test -> duration."""
    if not path.exists():
        return {}
    table = json.loads(path.read_text(encoding="utf-8"))
    return {
        f"{file}::{test}": Duration(*duration)
        for file, tests in table.items()
        for test, duration in tests.items()
    }


def write_table(table: Mapping[str, Duration], path: Path = TABLE) -> None:
    """Write the tests that take at least `MIN_SECONDS`, by file."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name, duration in sorted(table.items()):
        if duration.seconds * duration.cases >= MIN_SECONDS:
            file, _, test = name.partition("::")
            line = f"  {json.dumps(test)}: [{duration.seconds:.2g}, {duration.cases}]"
            files[file].append(line)
    parts = [
        f"{json.dumps(file)}: {{\n" + ",\n".join(lines) + "\n}" for file, lines in files.items()
    ]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


class Recorder:
    """Plugin that adds up the seconds of each test's cases."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.cases: defaultdict[str, int] = defaultdict(int)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.cases[name_of_test(item.nodeid)] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from _timed(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from _timed(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        seconds = item.stash.get(_SECONDS, 0.0) / item.stash.get(SHARE, 1.0)
        report.processor_seconds = seconds  # reports travel to the controller
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[name_of_test(report.nodeid)][report.nodeid] = report.processor_seconds
            self.cases[name_of_test(report.nodeid)] += 0

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        before = read_table()
        table = {
            name: Duration(
                sum(cases.values()) / len(cases),
                # With `-n` the controller collects nothing: what ran is known, or more is.
                self.cases[name] or max(len(cases), before.get(name, Duration(0, 0)).cases),
            )
            for name, cases in self.seconds.items()
        }
        write_table(before | table)


_SECONDS = pytest.StashKey[float]()


def _timed(item: pytest.Item) -> Iterator[None]:
    start = _processor_seconds()
    try:
        return (yield)
    finally:
        item.stash[_SECONDS] = item.stash.get(_SECONDS, 0.0) + _processor_seconds() - start


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_configure(config: pytest.Config) -> None:
    """Record."""
    config.pluginmanager.register(Recorder())
