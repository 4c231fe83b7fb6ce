"""The records behind docs/libraries.md and the table of versions in docs/torch.md."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tools import libraries, versions
from tools.libraries_cases import CASES, REASONS

ROOT = Path(__file__).parent.parent.parent
LIBRARIES = json.loads(libraries.RECORD.read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("library", libraries.PACKAGES)
def test_what_fails_is_explained(library):
    calls = LIBRARIES[library]["calls"]
    failed = {name for name, why in calls.items() if why not in libraries.WORKS}
    assert calls and failed <= REASONS.keys()


def test_reasons_are_of_calls_that_fail():
    recorded = {name: why for r in LIBRARIES.values() for name, why in r["calls"].items()}
    assert not [name for name in REASONS if recorded.get(name, "") in libraries.WORKS]


def test_a_library_that_is_installed_here_does_what_is_recorded():
    actual = {name: libraries.outcome(case) for name, case in CASES["einops"].items()}
    assert actual == LIBRARIES["einops"]["calls"]


def test_versions_that_the_project_names_were_tried():
    rows = json.loads(versions.RECORD.read_text())
    assert all(row["array"] and not any(row["models"].values()) for row in rows)
    tried = {tuple(row["python"].split(".")[:2]) for row in rows}
    named = [c.split(" :: ")[-1] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert {tuple(version.split(".")) for version in named} == tried
    oldest = {r.split(">=")[0]: r.split(">=")[1].split(",")[0] for r in PROJECT["dependencies"]}
    for package in ("numpy", "llvmlite"):
        assert any(row[package].startswith(oldest[package]) for row in rows), package
    assert any(row["torch"].startswith("2.6.") for row in rows)
