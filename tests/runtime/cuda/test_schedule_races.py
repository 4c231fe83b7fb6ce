"""Races of schedules on the fake driver, whose clock says how long each launch takes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.cuda.fake_triton import FakeTriton
from tests.runtime.cuda.test_programs import compile_jit, run_on_device

import smelt as sm
from smelt.backend import gpu
from smelt.codegen.triton.ahead import AheadProgram
from smelt.codegen.triton.device_source import CompiledEntry
from smelt.codegen.triton.resources import Resources
from smelt.codegen.triton.select import SelectingCompiler
from smelt.device import use_compiler
from smelt.errors import DeviceKernelError
from smelt.explain.device_code import rates_of
from smelt.journal import Measured
from smelt.kernel.device_code import DeviceCode
from smelt.runtime.cache import Cache
from smelt.runtime.cuda import code as device_code
from smelt.runtime.cuda.buffer import copy_to_host
from smelt.tune import schedules
from smelt.tune.schedules import can_race


class AheadTriton(FakeTriton):
    """Compiler ahead of time whose programs the fake driver runs; `broken` ones are refused."""

    identity = "fake triton ahead 1"

    def __init__(self, broken=lambda entry: False):
        super().__init__()
        self.broken = broken

    def program(self, text, entry, arch):
        registers = 10_000 if self.broken(entry) else 32
        return AheadProgram(
            image=self(text, entry, arch).image,
            symbol=entry.symbol,
            resources=Resources(registers=registers, spills=0, shared_bytes=0, warps=entry.warps),
            static_shared_bytes=0,
            dynamic_shared_bytes=0,
            scratch_bytes=0,
            assembly="",
            ttir="",
            lanes=32,
        )

    def entry_of(self, program, entry, arch):
        return CompiledEntry(program.image, program.symbol, 32 * entry.warps, 0)


@pytest.fixture(autouse=True)
def short(tmp_path, monkeypatch):
    monkeypatch.setattr(schedules, "REPEATS", 2)
    monkeypatch.setattr(schedules, "MAX_TURNS", 2)
    with sm.config(cache_dir=str(tmp_path), verify=False):
        yield


def compiler(broken=lambda entry: False):
    return SelectingCompiler(rates_of(gpu("sm_90")), AheadTriton(broken))


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


ROWS = np.random.default_rng(3).standard_normal((3, 1500)).astype(np.float32)


def compiled(device, function=softmax, arrays=(ROWS,), used=None, fresh=True, **settings):
    """Return a program after a first call, and the code of its kernels.

    A fresh process has no code loaded.
    """
    if fresh:
        device_code._ALIVE.clear()
    with use_compiler(used or compiler()), sm.config(**settings):
        program, trace = compile_jit(function, arrays, device)
        result, *_ = run_on_device(program, trace, arrays, device)
        np.testing.assert_allclose(
            copy_to_host(result), sm.jit(function)(*arrays), rtol=1e-5, atol=1e-6
        )
    (prepared,) = program.executable._prepared.values()
    return program, [x.code for x in prepared.codes]


def warps(codes: list[DeviceCode]) -> list[int]:
    return [launch.threads // 32 for c in codes for launch in c.launches]


def test_a_candidate_that_the_clock_makes_slow_loses(fake, device):
    _, predicted = compiled(device)
    (first,) = warps(predicted)
    fake.launch_ms = lambda data: 2.0 if data["warps"] == first else 1.0
    program, raced = compiled(device, tune="race")
    assert warps(raced) != [first]
    (fact,) = program.journal.of(Measured)
    assert fact.value == pytest.approx(0.5)


def test_the_predicted_best_wins_where_others_are_slower(fake, device):
    _, predicted = compiled(device)
    (first,) = warps(predicted)
    fake.launch_ms = lambda data: 1.0 if data["warps"] == first else 1.01
    program, raced = compiled(device, tune="race")
    assert raced == predicted and not program.journal.of(Measured)


def test_later_compilations_take_the_winner_without_a_race(fake, device):
    _, predicted = compiled(device)
    fake.launch_ms = lambda data: float(data["warps"])
    _, raced = compiled(device, tune="race")
    assert min(warps(raced)) < min(warps(predicted))
    fake.launches.clear()
    for settings in ({"tune": "race"}, {"tune": "remembered"}, {}):
        used = compiler()
        _, later = compiled(device, used=used, **settings)
        assert later == raced and not used._compiler.compiled, settings
    assert len(fake.launches) == 3
    _, trusted = compiled(device, tune="off")
    assert trusted == predicted


def test_the_winner_is_found_where_only_the_race_is_stored(fake, device, monkeypatch):
    fake.launch_ms = lambda data: float(data["warps"])
    with monkeypatch.context() as patch:
        patch.setattr("smelt.device_compiler.store_code", lambda key, code: None)
        _, raced = compiled(device, tune="race")
    used = compiler()
    _, later = compiled(device, used=used)
    assert later == raced and not used._compiler.compiled


def test_a_process_that_has_the_predicted_best_takes_the_winner_too(fake, device):
    program, predicted = compiled(device)
    fake.launch_ms = lambda data: float(data["warps"])
    _, raced = compiled(device, tune="race", fresh=False)
    _, later = compiled(device, fresh=False)
    assert later == raced != predicted
    assert program.executable._prepared  # its code is still loaded


def test_a_candidate_that_the_driver_refuses_is_left_out(fake, device):
    load, loads = fake.cuModuleLoadData, []

    def refuse_third(*arguments):
        loads.append(arguments)
        return 218 if len(loads) == 3 else load(*arguments)

    fake.cuModuleLoadData = refuse_third
    _, predicted = compiled(device)
    (first,) = warps(predicted)
    fake.launch_ms = lambda data: 2.0 if data["warps"] == first else 1.0
    program, raced = compiled(device, tune="race")
    assert len(loads) > 3 and warps(raced) != [first]
    assert program.journal.of(Measured)


def test_another_model_of_a_device_has_its_own_race(fake, device, monkeypatch):
    fake.launch_ms = lambda data: float(data["warps"])
    compiled(device, tune="race")
    monkeypatch.setattr(type(device), "model", "Other GPU")
    fake.launches.clear()
    compiled(device, tune="race")
    assert len(fake.launches) > 3


def test_candidates_beyond_the_limits_do_not_race(fake, device):
    fake.launch_ms = lambda data: float(data["warps"])
    _, raced = compiled(device, tune="race", used=compiler(lambda entry: entry.warps < 4))
    assert min(warps(raced)) == 4


def test_a_candidate_with_other_numbers_loses(fake, device, monkeypatch):
    _, predicted = compiled(device)
    (first,) = warps(predicted)
    fake.launch_ms = lambda data: 2.0 if data["warps"] == first else 1.0
    monkeypatch.setattr(schedules, "agree", lambda one, other: False)
    assert compiled(device, tune="race")[1] == predicted


def test_launches_of_a_kernel_race_one_after_another(fake, device, monkeypatch):
    monkeypatch.setattr(schedules, "REPEATS", 1)
    monkeypatch.setattr(schedules, "MAX_TURNS", 1)
    x = np.random.default_rng(5).standard_normal((1, 140_000)).astype(np.float32)

    def total(x):
        return sm.sum(sm.exp(x), axis=1)

    _, predicted = compiled(device, total, (x,))
    assert len(warps(predicted)) == 2
    fake.launch_ms = lambda data: 1.0 / data["warps"]
    _, raced = compiled(device, total, (x,), tune="race")
    assert all(a >= b for a, b in zip(warps(raced), warps(predicted), strict=True))
    assert warps(raced) != warps(predicted)


def test_kernels_whose_addresses_depend_on_data_do_not_race(fake, device):
    table = np.arange(50, dtype=np.float32).reshape(10, 5)
    ids = np.array([3, 9, 0])
    fake.launch_ms = lambda data: float(data["warps"])

    def rows(table, ids):
        return sm.take(table, ids, axis=0) * 2

    program, _ = compiled(device, rows, (table, ids), tune="race")
    assert len(fake.launches) == len(program.kernels)
    assert not all(map(can_race, program.kernels))


def test_too_little_memory_for_a_race_keeps_the_predicted_best(fake, device, monkeypatch):
    _, predicted = compiled(device)
    monkeypatch.setattr(schedules, "MAX_INPUT_BYTES", 10)
    fake.launch_ms = lambda data: float(data["warps"])
    assert compiled(device, tune="race")[1] == predicted


def test_a_kernel_without_a_program_is_refused_as_without_a_race(device):
    broken = compiler(lambda entry: True)
    with pytest.raises(DeviceKernelError, match="schedule within the device's limits"):
        compiled(device, used=broken, tune="race")


def test_nothing_is_remembered_without_a_cache(fake, device):
    _, predicted = compiled(device, cache=False)
    fake.launch_ms = lambda data: float(data["warps"])
    _, raced = compiled(device, tune="race", cache=False)
    assert raced != predicted
    assert compiled(device, cache=False)[1] == predicted
    assert Cache.default().get(b"x" * 32) is None
