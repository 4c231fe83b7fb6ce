"""Plans of a GPU on disk: a warm start plans, prints and compiles nothing, and reports the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.compiler.device import compile_for_device, use_compiler
from smelt.compiler.device_compiler import gpu_of_device, plan_for_device
from smelt.graph.text import parse
from smelt.journal.facts import CacheHit, CacheMiss, Journal
from smelt.kernel.device_code import SchedulingCompiler
from smelt.runtime.cache import Cache
from smelt.runtime.cuda import code as device_code
from smelt.runtime.cuda.driver import system_driver, use_library

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import ctypes, json, sys
import numpy as np
import smelt as sm
from tests.runtime.cuda.fake_driver import FakeDriver
from smelt.runtime.cuda.driver import use_library

CALLED = []

class Engine:
    identity, has_streams, has_tables = "stand-in 1", True, False
    def prepare(self, kernel, sizes):
        from smelt.codegen.nvptx.source import ThreadCompiler
        CALLED.append(kernel.name)
        return ThreadCompiler().prepare(kernel, sizes)

import smelt.compiler.device as device

def store(place, *rest):
    ctypes.c_uint64.from_address(place).value = 7

fake = FakeDriver()
fake.modules[7] = {}
fake.cuModuleLoadDataEx = fake.cuModuleGetFunction = store  # PTX is not executed here
fake.functions[7] = {}
fake.cuLaunchKernel = lambda *arguments: fake.launches.append(arguments[1:5])
with use_library(fake), device.use_compiler(Engine()):
    x = sm.asarray(np.ones((6, 50), np.float32), device="cuda:0")
    f = sm.jit(lambda x: sm.sum(sm.exp(x), axis=1) * 2)
    f(x)
    ((recording,),) = f.device_recordings.values()
    before = sorted(sys.modules)
    launches = [list(map(int, x)) for x in fake.launches]
    plan = str(recording.program.plan)
print(json.dumps({"modules": before, "launches": launches, "plan": plan, "called": CALLED}))
"""


def run(folder):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "SMELT_CACHE_DIR": str(folder)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_warm_start_imports_no_compiler_and_reports_the_same(tmp_path):
    cold, warm = run(tmp_path), run(tmp_path)
    assert cold["called"] and not warm["called"]
    assert warm["launches"] == cold["launches"] and len(cold["launches"]) >= 1
    assert warm["plan"] == cold["plan"]
    for name in ("triton", "torch", "torch._inductor", "torch._dynamo"):
        assert name not in warm["modules"], name
    for name in ("smelt.compiler.device_compiler", "smelt.fusion.search", "smelt.codegen.triton"):
        assert name in cold["modules"] and name not in warm["modules"], name


@pytest.fixture(autouse=True)
def compiler(tmp_path):
    with sm.config(cache_dir=str(tmp_path), verify=False):
        yield


def test_a_stored_plan_has_the_steps_of_its_loops(fake):
    def scan(xs, w, h):
        return sm.scan(lambda h, x: (sm.tanh(h @ w + x), h), h, xs)

    random = np.random.default_rng(1)
    arrays = [random.standard_normal(s).astype(np.float32) for s in ((4, 3, 8), (8, 8), (3, 8))]
    wanted = sm.jit(scan)(*arrays)
    compiled_entries = []
    for _ in range(2):
        engine = FakeTriton()
        device_code._ALIVE.clear()
        with use_compiler(engine):
            results = sm.jit(scan)(*[sm.asarray(a, device="cuda:0") for a in arrays])
        for y, w in zip(results, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(y.to_device("cpu")), w, 1e-5, 1e-5)
        compiled_entries.append(len(engine.compiled))
        del results, y
    assert compiled_entries[0] and not compiled_entries[1]


def graph(operator="exp"):
    return parse(f"""
graph f(x: f32[n,50]) {{
  v0 = {operator}(x) : f32[n,50]
  v1 = reduce.sum(v0) {{axes=(1,)}} : f32[n]
  return v1
}}
""")


def compiled(device, *, engine=None, source=None, **settings):
    journal = Journal()
    with use_compiler(engine or FakeTriton()), sm.config(**settings):
        program = compile_for_device(source or graph(), {"n": 6}, device, journal)
        program.executable.prepared((6,))
    return program, journal


@pytest.mark.parametrize("arch", [90, 86, 120, 103])
def test_plans_follow_the_processors_of_the_card(arch):
    for processors in (132, 16):
        fake = FakeDriver(arch=arch)
        fake.figures[16] = processors
        with use_library(fake):
            device = system_driver().device(0)
            _, journal = compiled(device)
            assert journal.of(CacheMiss)
            planned = plan_for_device(graph(), {"n": 6}, gpu_of_device(device), None, Journal())
        assert (planned.gpu.arch, planned.gpu.processors) == (f"sm_{arch}", processors)
        assert isinstance(planned.compiler, SchedulingCompiler)


def test_what_decides_a_plan_is_part_of_its_key(fake, device, monkeypatch):
    engine = FakeTriton()
    compiled(device, engine=engine)
    device_code._ALIVE.clear()
    _, journal = compiled(device, engine=engine)
    assert len(engine.compiled) == 1 and len(journal.of(CacheHit)) == 2  # the plan and its code

    class Newer(FakeTriton):
        identity = "fake triton 2"

    for change in ({"engine": Newer()}, {"rounding": "exact"}, {"source": graph("tanh")}):
        _, journal = compiled(device, **change)
        assert journal.of(CacheMiss), change
    _, journal = compiled(device, cache=False)
    assert all(hit.place == "memory" for hit in journal.of(CacheHit))
    monkeypatch.setattr(device, "arch", "sm_80")
    _, journal = compiled(device)
    assert journal.of(CacheMiss)


def test_other_sizes_of_a_stored_plan_are_compiled_when_they_are_called(fake, device):
    compiled(device)
    engine = FakeTriton()
    program, _ = compiled(device, engine=engine)
    assert not engine.compiled
    with use_compiler(engine):
        program.executable.prepared((100_000,))
    assert program.plan is not None


def test_a_damaged_plan_is_made_again(fake, device, tmp_path, monkeypatch):
    compiled(device)
    damaged = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-3])
    monkeypatch.setattr(Cache, "_defaults", {})  # what a process keeps in memory
    assert len(damaged) >= 3  # the plan, its code, and the code's name
    program, journal = compiled(device)
    assert journal.of(CacheMiss) and program.plan is not None
    assert np.prod(program.executable.prepared((6,)).rows[0][1:4]) > 0
