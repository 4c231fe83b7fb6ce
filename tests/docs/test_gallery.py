"""Examples of the gallery run, and every section of the catalogue has one."""

from __future__ import annotations

import runpy

import pytest
from tests.docs.pages import ROOT

FOLDER = ROOT / "examples" / "gallery"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.name != "charts.py")


def test_there_is_an_example_of_every_section():
    assert {path.name[:2] for path in EXAMPLES} >= {f"{letter}_" for letter in "abcdefgh"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_draw(path, monkeypatch):
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot as plt

    monkeypatch.syspath_prepend(str(FOLDER))
    plt.close("all")
    try:
        runpy.run_path(str(path))
        assert plt.get_fignums()
    finally:
        plt.close("all")
