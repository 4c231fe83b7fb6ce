"""`smelt explain FOLDER`: an index of programs and their pages."""

from __future__ import annotations

from click.testing import CliRunner

from smelt import knobs
from smelt.cli import main

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
