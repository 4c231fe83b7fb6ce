"""The measurements of a GPU, dry, with the fake driver."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from bench import gpu, gpu_command, gpu_layers, gpu_programs, gpu_torch
from bench import gpu_sections as sections
from bench.gpu_command import main, prepare
from bench.gpu_sections import Settings, Task
from bench.gpu_tasks import Timer, random_arrays
from smelt.compiler.device import use_compiler
from smelt.runtime.cuda import code
from smelt.runtime.cuda.driver import system_driver, use_library

ROOT = Path(__file__).parents[2]
PRINTED = ("norm backward", "few rows")
"""Programs whose printed files `make test` runs in Triton's interpreter; all others at night."""


@pytest.fixture(autouse=True)
def on_fake_driver():
    fake = FakeDriver()
    with use_library(fake), use_compiler(FakeTriton()), sm.config(cache=False):
        yield fake
        fake.synchronize()


def test_a_run_writes_every_section_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    path = tmp_path / "gpu.json"
    command = ["--gpu", "--small", "--one-process", "--out", str(path)]
    some = ("map", "columns", "rms_norm", "many arrays", "gather", "histogram")
    only(monkeypatch, *some)
    assert main([*command, "--section", "machine", "--section", "correct"]) == 0
    first = json.loads(path.read_text())
    assert list(first) == ["machine", "correct"]
    assert [r["ok"] for r in first["correct"]["rows"]] == [True] * len(some)
    assert main(command) == 0
    second = json.loads(path.read_text())
    assert list(second) == list(sections.SECTIONS)
    assert second["machine"] == first["machine"]  # not measured again
    assert [(r["name"], r["ok"]) for r in second["layers"]["rows"]] == [("runtime map", True)]
    rates = [r for name in ("rows", "products", "attention") for r in second[name]["rows"]]
    assert all("ms" in r and ("gb_s" in r or "tflop_s" in r) for r in rates)
    assert "rows: 4 rows, 0 failed" in capsys.readouterr().out


def test_what_a_timed_run_finds_in_the_caches_is_not_its_own(on_fake_driver):
    """Caches are filled before every timed run, and the clock begins behind that."""
    device = system_driver().device(0)
    settings = Settings(Path("gpu.json"), is_small=True)
    timer = Timer(device, settings)
    assert timer.ms(lambda: on_fake_driver.calls.append("work")) >= 0
    calls = on_fake_driver.calls[-40:]
    timed = [c for c in calls if c in ("cuMemsetD32Async", "cuEventRecord", "work")]
    run = ["cuMemsetD32Async", "cuEventRecord", "work", "cuEventRecord"]
    assert timed == ["work", *run * settings.runs]


SHAPES = {"softmax": (6, 40), "rms_norm": (6, 40), "linear_gelu": (6, 8, 10)}
SHAPES |= {"attention": (1, 2, 128, 16), "flex_attention": (1, 2, 128, 16)}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("program", SHAPES)
def test_torch_s_programs_compute_what_ours_do(program):
    torch = pytest.importorskip("torch")
    function, shapes = gpu_torch._torch_program(torch, program, SHAPES[program], "cpu")
    arrays = random_arrays([tuple(s) for s in shapes])
    ours = getattr(gpu_programs, program.removeprefix("flex_"))
    theirs = function(*map(torch.from_numpy, arrays))
    np.testing.assert_allclose(theirs.numpy(), np.asarray(sm.jit(ours)(*arrays)), 1e-4, 1e-4)


def test_compiled_models_are_compared_with_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(gpu_torch, "torch_of", lambda settings: torch)
    (row,) = gpu_torch._compare_training("cpu", Settings(Path("gpu.json")))
    assert row["ok"] and row["error"] < 1e-5


# ---- layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, p in gpu_layers.LAYERED.items() if p.torch])
def test_torch_s_layer_computes_what_ours_does(name):
    torch = pytest.importorskip("torch")
    program = gpu_layers.LAYERED[name]
    tensors = gpu_layers._tensors(torch, program.arrays(program.small), "cpu")
    theirs = gpu_layers.torch_work(torch, program, tensors)
    if name == "convolution":
        row = gpu_layers._error(program, lambda: theirs().permute(0, 2, 3, 1))
    else:
        row = gpu_layers._error(program, theirs)
    assert row["error"] <= 2 * program.tolerance, row  # both round


@pytest.mark.parametrize(
    "name",
    [n if n in PRINTED else pytest.param(n, marks=pytest.mark.nightly) for n in gpu_layers.LAYERED],
)
def test_the_printed_layer_computes_what_ours_does(name):
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "tests.bench.layers_in_interpreter", name]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    completed = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert completed.returncode == 0, completed.stderr[-2000:]
    assert completed.stdout == f"{name} is right\n"


def test_layers_are_tasks_of_their_own_with_predicted_times(monkeypatch):
    torch = pytest.importorskip("torch")
    program = gpu_layers.LAYERED["softmax 4096"]._replace(small=((3, 40),), large=((64, 4096),))
    monkeypatch.setattr(gpu_layers, "LAYERED", {"softmax": program})
    monkeypatch.setattr(gpu_layers, "torch_of", lambda settings: torch)
    monkeypatch.setattr(gpu_layers, "has_triton", lambda: True)
    device, settings = system_driver().device(0), Settings(Path("gpu.json"), is_small=True)
    names = [t.name for t in gpu_layers.layers(device, Settings(Path("gpu.json")))]
    assert names == ["torch softmax", "printed softmax", "runtime softmax"]
    x = torch.from_numpy(program.arrays(program.small)[0])
    right = lambda: [torch.softmax(x, 1)]  # noqa: E731
    for result, ok in ((right, True), (lambda: [torch.softmax(x, 0)], False)):
        monkeypatch.setattr(gpu_layers, "_printed", lambda *_, result=result: result)
        (row,) = gpu_layers._by_triton("softmax", program, device, settings)
        assert row["ok"] == ok and row["layer"] == "printed"
    large = Settings(Path("gpu.json"), is_dry=True)
    (row,) = gpu_layers._by_runtime("softmax", program, device, large)
    assert row["predicted_ms"] > 0 and row["gb_s"] > 0 and row["host_us"] > 0


def test_a_machine_without_a_device_says_so(tmp_path, capsys):
    with use_library(FakeDriver(devices=0)):
        status = main(["--gpu", "--out", str(tmp_path / "gpu.json")])
    assert status == gpu_command.NO_DEVICE
    assert "Nothing was measured" in capsys.readouterr().out
    assert not (tmp_path / "gpu.json").exists()


@pytest.mark.parametrize(("value", "ok"), [(1.0, True), (1.1, False), (np.nan, False)])
def test_results_agree_in_every_element(value, ok):
    x = np.ones(3)
    row = gpu_torch._agreement("x", [np.full(3, value), x], [x, x], 1e-3)
    assert row["ok"] == ok and not np.isnan(row["error"])


def only(monkeypatch, *names):
    """Compare these programs alone, and none that LLVM prints."""
    monkeypatch.setattr(sections, "CORRECT", {k: sections.CORRECT[k] for k in names})
    monkeypatch.setattr(sections, "WITHOUT_TRITON", ())
    monkeypatch.setattr(gpu_layers, "LAYERED", {"map": gpu_layers.LAYERED["map"]})


def one_section(monkeypatch, *tasks):
    """Let a run have one section of these tasks."""
    monkeypatch.setattr(gpu, "SECTIONS", {"machine": lambda device, settings: iter(tasks)})


def test_a_section_that_fails_is_run_again(tmp_path, monkeypatch):
    def fails(device, settings):
        raise RuntimeError("no luck")

    settings = Settings(tmp_path / "gpu.json", only=("machine",), is_small=True)
    monkeypatch.setattr(gpu, "SECTIONS", {"machine": fails})
    assert "no luck" in gpu.run(settings, lambda line: None)["machine"]["failed"]
    one_section(monkeypatch, Task("x", lambda: [{"name": "x"}]))
    assert gpu.run(settings, lambda line: None)["machine"]["rows"] == [{"name": "x"}]


def test_no_task_begins_after_the_time(tmp_path, monkeypatch):
    lines: list[str] = []
    settings = Settings(tmp_path / "gpu.json", budget_s=-1.0, is_small=True)
    assert gpu.run(settings, lines.append) == {}
    assert lines[0].startswith("machine: not begun")
    clock = itertools.chain([0.0, 1.0, 2.0, 3.0, 4.0], itertools.repeat(99.0))
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: next(clock))
    one_section(monkeypatch, *(Task(n, lambda n=n: [{"name": n}]) for n in "ab"))
    settings = Settings(tmp_path / "other.json", budget_s=10.0)
    results = gpu.run(settings, lines.append)
    assert results["machine"]["done"] == ["a"] and "complete" not in results["machine"]
    assert lines[-1].startswith("machine: stopped")


def test_a_run_goes_on_behind_a_task_that_ends_the_context(tmp_path, monkeypatch, on_fake_driver):
    def fails():
        on_fake_driver.lost = 700
        raise RuntimeError("an illegal address")

    one_section(
        monkeypatch,
        Task("first", lambda: [{"name": "first"}]),
        Task("bad", fails),
        Task("last", lambda: [{"name": "last"}]),
    )
    settings = Settings(tmp_path / "gpu.json")
    with pytest.raises(gpu.DeviceLostError):
        gpu.run(settings, lambda line: None)
    on_fake_driver.lost = 0  # another process
    rows = gpu.run(settings, lambda line: None)["machine"]["rows"]
    assert [r["name"] for r in rows] == ["first", "bad", "last"]
    assert "illegal address" in rows[1]["failed"]


PROCESS = """
import json, sys, time
from pathlib import Path
path = Path(sys.argv[1])
results = json.loads(path.read_text()) if path.exists() else {"machine": {"rows": [], "done": []}}
entry = results["machine"]
if lost := entry.pop("running", None):
    entry["done"].append(lost)
    entry["rows"].append({"name": lost, "failed": "its process ended"})
for task in "abc":
    if task in entry["done"]:
        continue
    path.write_text(json.dumps({"machine": entry | {"running": task}}))
    if task == "b":
        time.sleep(60) if sys.argv[2] == "hangs" else sys.exit(3)
    entry["done"].append(task)
    entry["rows"].append({"name": task})
path.write_text(json.dumps(results))
"""
"""What `run` does to the results file, without what takes a process long to import."""


@pytest.mark.parametrize("act", ["hangs", "dies"])
def test_another_process_goes_on_where_one_ends_or_hangs(tmp_path, monkeypatch, act):
    monkeypatch.setattr(gpu, "TASK_SECONDS", 2.0)
    path, lines = tmp_path / "gpu.json", list[str]()
    command = [sys.executable, "-c", PROCESS, str(path), act]
    rows = gpu.supervise(command, Settings(path), lines.append)["machine"]["rows"]
    assert [r["name"] for r in rows] == ["a", "b", "c"]
    assert "its process ended" in rows[1]["failed"] and len(lines) == 1


def test_each_section_is_prepared_by_a_process_of_its_own(capfd):
    command = [
        sys.executable,
        "-c",
        "import sys; sys.stdout.write(' '.join(sys.argv[1:]) + chr(10)); sys.exit('b' in sys.argv)",
    ]
    assert prepare([*command, "--small", "--section", "a", "--section", "b"], ["a", "b"]) == 1
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == ["--small --section a", "--small --section b"]


def test_a_process_that_does_not_begin_is_not_started_again(tmp_path):
    lines: list[str] = []
    command = [sys.executable, "-c", "raise SystemExit(9)"]
    assert gpu.supervise(command, Settings(tmp_path / "gpu.json"), lines.append) == {}
    assert len(lines) == 1 and "before its first task" in lines[0]


def test_an_unknown_section_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no section 'x'"):
        gpu.run(Settings(tmp_path / "gpu.json", only=("x",)))


def test_a_wrong_result_fails_the_command(tmp_path, monkeypatch, capsys):
    only(monkeypatch, "map")
    wrong = sections.CORRECT["map"]._replace(tolerance=-1.0)
    monkeypatch.setattr(sections, "CORRECT", {"map": wrong})
    arguments = [
        "--gpu",
        "--small",
        "--one-process",
        "--section",
        "correct",
        "--out",
        str(tmp_path / "gpu.json"),
    ]
    assert main(arguments) == 1
    assert "wrong or failed: map" in capsys.readouterr().out


def test_what_a_run_needs_is_compiled_without_a_device(tmp_path, monkeypatch):
    """A run on the device that was prepared for compiles nothing that it times."""
    engine = FakeTriton()
    only(monkeypatch, "map", "many arrays")
    common = ["--gpu", "--small", "--one-process", "--out", str(tmp_path / "gpu.json")]
    settings = {"cache": True, "cache_dir": str(tmp_path / "cache"), "verify": False}
    with use_compiler(engine), sm.config(**settings):
        assert main([*common, "--prepare", "sm_90"]) == 0
        assert engine.compiled and {arch for _, arch in engine.compiled} == {"sm_90"}
        assert not (tmp_path / "gpu.json").exists()
        engine.compiled.clear()
        code._ALIVE.clear()
        assert main(common) == 0
    assert not engine.compiled
