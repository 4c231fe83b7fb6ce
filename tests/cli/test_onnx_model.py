"""`smelt run`, `smelt explain` and `smelt bench` of an ONNX model written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.onnx.build import model, node, port

import smelt as sm
from smelt.cli.main import smelt


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [node("Add", ["x", "x"], ["a"]), node("Softmax", ["a"], ["y"])]
    file = tmp_path / "tiny.onnx"
    file.write_bytes(model(nodes, [port("x", np.float32, ["rows", 4])], [port("y")]))
    return file


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(smelt, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_run_takes_sizes_and_arrays(path: Path, tmp_path: Path) -> None:
    assert "y  f32[3, 4]" in output_of("run", str(path), "--size", "rows=3")
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "x.npy", array)
    folder = tmp_path / "results"
    shown = output_of(
        "run", str(path), "--input", f"x={tmp_path / 'x.npy'}", "--save", str(folder), "--json"
    )
    assert json.loads(shown)["outputs"][0]["type"] == "f32[2, 4]"
    e = np.exp(2 * array - (2 * array).max(1, keepdims=True))
    assert np.allclose(np.load(folder / "y.npy"), e / e.sum(1, keepdims=True), atol=1e-6)


def test_names_that_the_model_lacks_are_refused(path: Path) -> None:
    result = CliRunner().invoke(smelt, ["run", str(path), "--size", "columns=3"])
    assert result.exit_code == 2 and "the model has no 'columns'; it has x, rows" in result.output


def test_explain_reports_the_program(path: Path) -> None:
    assert "1 kernel" in output_of("explain", str(path), "--predict", "--level", "1")
    assert "h100" in output_of("explain", str(path), "--target", "h100", "--level", "1").lower()


def test_bench_races_what_is_installed(path: Path) -> None:
    assert "smelt        median" in output_of("bench", str(path), "--quick", "--threads", "1")


def test_save_writes_a_program_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.smelt"
    output_of("save", str(path), "--size", "rows=8", "-o", str(file))
    y = sm.load(file)(np.ones((3, 4), np.float32))["y"]
    assert np.allclose(np.asarray(y), 0.25)
    arguments = ["save", str(path), "--arg", "x=f32[3,4]", "-o", str(tmp_path / "other.smelt")]
    refused = CliRunner().invoke(smelt, arguments)
    assert refused.exit_code == 2 and "an ONNX model says its types" in refused.output
    arguments = ["save", str(tmp_path / "none.onnx"), "-o", str(file)]
    missing = CliRunner().invoke(smelt, arguments)
    assert missing.exit_code != 0 and "none.onnx" in missing.output
