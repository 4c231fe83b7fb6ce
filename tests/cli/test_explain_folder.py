"""`smelt explain FOLDER`: an index of programs, their pages, and the one that the docs have."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from smelt import knobs
from smelt.cli import explain_folder, main
from smelt.cli.explain import _module, read_arguments

ROOT = Path(__file__).parents[2]
MODULE = '''
"""Programs."""

import smelt as sm


def softmax(x: "f32[512,n]"):
    """Softmax <of> rows."""
    return sm.nn.softmax(x, axis=1)


def wrong(x: "f32[512,4]", y: "f32[3]"):
    """Shapes that do not fit."""
    return x + y


def helper(x):
    return x


def _hidden(x: "f32[4]"):
    return x
'''


def test_a_folder_becomes_an_index_with_a_page_for_each_program(tmp_path, monkeypatch):
    monkeypatch.setenv("SMELT_CACHE", "off")
    monkeypatch.setenv("SMELT_DEVICE_CODE", "off")
    knobs.reset()
    folder, out = tmp_path / "programs", tmp_path / "pages"
    folder.mkdir()
    (folder / "rows.py").write_text(MODULE)
    command = ["explain", str(folder), "--target", "h100", "--out", str(out), "--size", "n=1000"]
    result = CliRunner().invoke(main.smelt, command)
    knobs.reset()
    assert result.exit_code == 1, result.output  # one program has an error
    page = (out / "index.html").read_text()
    assert "Softmax &lt;of&gt; rows." in page and 'href="rows.softmax.html"' in page
    assert page.count("<tr>") == 3 and "E" in page.partition("rows.wrong")[2]
    assert "def launch(" in (out / "rows.softmax.triton.py").read_text()
    assert "<html" in (out / "rows.softmax.html").read_text()
    row = next(x for x in (out / "index.md").read_text().splitlines() if "rows.softmax" in x)
    assert "| 1 kernel | nothing |" in row


def test_a_folder_needs_a_target(tmp_path):
    result = CliRunner().invoke(main.smelt, ["explain", str(tmp_path)])
    assert result.exit_code == 2 and "--target" in result.output
    command = ["explain", str(tmp_path), "--target", "h100", "--out", str(tmp_path / "x")]
    result = CliRunner().invoke(main.smelt, command)
    assert result.exit_code == 2 and "no function with types" in result.output


def test_the_index_of_the_docs_has_the_programs_of_the_examples():
    expected = [
        f"{path.stem}.{name}"
        for path in sorted((ROOT / "examples" / "kernels").glob("*.py"))
        for name, _ in explain_folder.programs(_module(path), lambda f: read_arguments(f, {}))
    ]
    page = (ROOT / "docs" / "gpu_programs.md").read_text()
    listed = re.findall(r"^\| `([a-z0-9_]+\.[a-z0-9_]+)` ", page, re.MULTILINE)
    assert listed == expected and len(expected) >= 40
    assert not re.search(r"\| E\d{3} ", page)  # each has a plan
