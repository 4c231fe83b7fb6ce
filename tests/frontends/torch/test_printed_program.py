"""Plans launched by Triton on torch's tensors: in its interpreter, and for the device of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import smelt as sm
from smelt.errors import UnsupportedError
from smelt.packages.installed import has_triton

torch = pytest.importorskip("torch")

from smelt.frontends.torch.printed_program import printed_program  # noqa: E402

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not has_triton(), reason="printed files are Triton's"),
]


def test_printed_files_compute_what_the_cpu_does_in_the_interpreter():
    command = [sys.executable, "-m", "tests.frontends.torch.printed_in_interpreter"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    completed = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, env=environment
    )
    assert completed.returncode == 0, completed.stderr[-2000:]
    names = "softmax mlp attention gradient scan attention gradient"
    assert completed.stdout.split() == names.split()


H20 = {"name": "NVIDIA H20", "major": 9, "minor": 0, "multi_processor_count": 78}
MI300X = {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-"}


@pytest.mark.parametrize(
    ("properties", "hip", "arch", "processors"),
    [(H20, None, "sm_90", 78), (MI300X, "6.4", "gfx942", 304)],
)
def test_the_device_of_torch_decides_the_plan(monkeypatch, properties, hip, arch, processors):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties)
    )
    trace = sm.jit(sm.exp).lower(sm.spec("f32[100]")).trace
    program = printed_program(trace.graph, trace.hints, torch.device("cuda", 0))
    assert (program.gpu.arch, program.gpu.processors) == (arch, processors)


def test_what_the_runtime_drives_is_refused():
    def scan(xs, w, h):
        return sm.scan(lambda h, x: (sm.tanh(sm.flip(h, axis=1) @ w + x), h), h, xs)

    specs = [sm.spec(s) for s in ("f32[4,3,8]", "f32[8,8]", "f32[3,8]")]
    trace = sm.jit(scan).lower(*specs).trace
    with pytest.raises(UnsupportedError, match="device_launch"):
        printed_program(trace.graph, trace.hints, torch.device("cpu"))
