"""Examples of the gallery run, and every section of the catalogue has one."""

from __future__ import annotations

import runpy
import sys

import pytest
from tests.docs.pages import ROOT
from tests.explain.gpu_reports import collect_programs

FOLDER = ROOT / "examples" / "gallery"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.name != "charts.py")


def test_there_is_an_example_of_every_section():
    assert {path.name[:2] for path in EXAMPLES} >= {f"{letter}_" for letter in "abcdefgh"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_draw_and_are_explained_for_gpus(path, monkeypatch):
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot as plt

    explain_for_gpus = collect_programs(monkeypatch)
    monkeypatch.syspath_prepend(str(FOLDER))
    plt.close("all")
    try:
        runpy.run_path(str(path))
        assert plt.get_fignums() and explain_for_gpus()
    finally:
        plt.close("all")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["images", "norm", "train"])
def test_programs_run_and_are_explained_for_gpus(name, monkeypatch):
    explain_for_gpus = collect_programs(monkeypatch)
    path = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert explain_for_gpus()
