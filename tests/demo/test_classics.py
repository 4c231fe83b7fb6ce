"""The classics: every file runs, computes what NumPy does, and makes a page."""

from __future__ import annotations

import json
import re
import runpy
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import smelt as sm
from demo import classics
from demo.classics.__main__ import command
from smelt.explain.data import ReportData


@pytest.fixture(scope="module")
def page():
    return classics.page()


@pytest.mark.parametrize("name", classics.NAMES)
def test_every_file_runs(name, capsys):
    runpy.run_path(str(Path(classics.__file__).with_name(f"{name}.py")), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{name}: ")


@pytest.mark.parametrize("name", classics.NAMES)
def test_every_classic_becomes_one_kernel(name):
    module = import_module(f"demo.classics.{name}")
    report = sm.explain(
        getattr(module, name), **{k: sm.asarray(v) for k, v in module.inputs().items()}
    )
    assert report.data.total.kernels == 1
    assert report.data.total.transfers < report.data.total.transfers_unfused


def test_three_becomes_seven():
    module = import_module("demo.classics.scale_relu_add")
    assert np.asarray(module.scale_relu_add(sm.asarray(module.VALUES["x"])))[0] == 7


def test_the_page_has_every_report(page):
    listed = json.loads(re.search(r'id="lessons">(.*?)</script>', page)[1])
    assert [x["name"] for x in listed] == list(classics.NAMES)
    for k, lesson in enumerate(listed):
        text = re.search(rf'id="report-{k}">(.*?)</script>', page)[1]
        data = msgspec.json.decode(text, type=ReportData, strict=True)
        assert data.page is not None and data.page.run.fused and not data.page.run.note
        assert lesson["code"].startswith(f"def {data.name}(") and "Any" not in lesson["code"]
    body = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    assert len(body.encode()) < 300_000


def test_the_command_writes_the_page(tmp_path):
    path = tmp_path / "classics.html"
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 0 and path.read_text().startswith("<!doctype html>")
