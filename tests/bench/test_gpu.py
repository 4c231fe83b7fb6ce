"""The measurements of a GPU, dry, with the fake driver."""

from __future__ import annotations

import json

import pytest
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.bench import gpu
from smelt.bench.__main__ import main
from smelt.device import use_compiler
from smelt.runtime.cuda import code
from smelt.runtime.cuda.driver import use_library


@pytest.fixture(autouse=True)
def on_fake_driver():
    fake = FakeDriver()
    with use_library(fake), use_compiler(FakeTriton()), sm.config(cache=False):
        yield fake
        fake.synchronize()


def test_a_run_writes_every_section_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    path = tmp_path / "gpu.json"
    command = ["--gpu", "--small", "--out", str(path)]
    small = {k: gpu.CORRECT[k] for k in ("map", "columns", "rms_norm")}
    monkeypatch.setattr(gpu, "CORRECT", small)
    assert main([*command, "--section", "machine", "--section", "correct"]) == 0
    first = json.loads(path.read_text())
    assert list(first) == ["machine", "correct"]
    assert [r["ok"] for r in first["correct"]["rows"]] == [True] * 3
    assert main(command) == 0
    second = json.loads(path.read_text())
    assert list(second) == list(gpu.SECTIONS)
    assert second["machine"] == first["machine"]  # not measured again
    rates = [r for name in ("rows", "products", "attention") for r in second[name]["rows"]]
    assert all("ms" in r and ("gb_s" in r or "tflop_s" in r) for r in rates)
    assert "rows: 4 rows, 0 failed" in capsys.readouterr().out


def test_a_section_that_fails_is_run_again(tmp_path, monkeypatch):
    def fails(device, settings):
        raise RuntimeError("no luck")

    settings = gpu.Settings(tmp_path / "gpu.json", only=("machine",), is_small=True)
    monkeypatch.setattr(gpu, "SECTIONS", {"machine": fails})
    assert "no luck" in gpu.run(settings, lambda line: None)["machine"]["failed"]
    monkeypatch.setattr(gpu, "SECTIONS", {"machine": lambda device, settings: [{"name": "x"}]})
    assert gpu.run(settings, lambda line: None)["machine"]["rows"] == [{"name": "x"}]


def test_no_section_begins_after_the_time(tmp_path, monkeypatch):
    lines: list[str] = []
    settings = gpu.Settings(tmp_path / "gpu.json", budget_s=-1.0, is_small=True)
    assert gpu.run(settings, lines.append) == {}
    assert lines[0].startswith("machine: not begun")


def test_an_unknown_section_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no section 'x'"):
        gpu.run(gpu.Settings(tmp_path / "gpu.json", only=("x",)))


def test_a_wrong_result_fails_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "CORRECT", {"map": gpu.CORRECT["map"]})
    monkeypatch.setattr(gpu, "TOLERANCE", -1.0)
    arguments = ["--gpu", "--small", "--section", "correct", "--out", str(tmp_path / "gpu.json")]
    assert main(arguments) == 1
    assert "wrong or failed: map" in capsys.readouterr().out


def test_what_a_run_needs_is_compiled_without_a_device(tmp_path, monkeypatch):
    """A run on the device that was prepared for compiles nothing that it times."""
    engine = FakeTriton()
    monkeypatch.setattr(gpu, "CORRECT", {"map": gpu.CORRECT["map"]})
    sections = [x for name in gpu.SECTIONS if name != "correct" for x in ("--section", name)]
    common = ["--gpu", "--small", *sections, "--out", str(tmp_path / "gpu.json")]
    settings = {"cache": True, "cache_dir": str(tmp_path / "cache"), "verify": False}
    with use_compiler(engine), sm.config(**settings):
        assert main([*common, "--prepare", "sm_90"]) == 0
        assert engine.compiled and {arch for _, arch in engine.compiled} == {"sm_90"}
        assert not (tmp_path / "gpu.json").exists()
        engine.compiled.clear()
        code._ALIVE.clear()
        assert main(common) == 0
    assert not engine.compiled
