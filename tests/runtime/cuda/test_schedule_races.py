"""Races of schedules and plans on the fake driver, whose clock says how long each launch takes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.cuda.fake_triton import FakeTriton
from tests.runtime.cuda.test_programs import compile_jit, run_on_device

import smelt as sm
from smelt.backend.gpus import gpu
from smelt.codegen.triton.ahead import AheadProgram
from smelt.codegen.triton.device_source import CompiledEntry
from smelt.codegen.triton.resources import Resources
from smelt.codegen.triton.select import SelectingCompiler
from smelt.compiler.device import use_compiler
from smelt.errors import DeviceKernelError, DeviceMemoryError
from smelt.journal.facts import Measured
from smelt.kernel.device_code import DeviceCode
from smelt.runtime.cache import Cache
from smelt.runtime.cuda import code as device_code
from smelt.runtime.cuda.buffer import copy_to_host
from smelt.tune import device_plans, race, schedules
from smelt.tune.scheduled_gpu import rates_of


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
        patch.setattr("smelt.compiler.device_compiler.store_code", lambda key, code: None)
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
    load, loads = fake.cuModuleLoadDataEx, []

    def refuse_third(*arguments):
        loads.append(arguments)
        return 218 if len(loads) == 3 else load(*arguments)

    fake.cuModuleLoadDataEx = refuse_third
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


IDS = np.random.default_rng(7).integers(0, 10, 40)
TABLE = np.random.default_rng(6).standard_normal((10, 33)).astype(np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda table, ids: sm.take(table, ids, axis=0) * 2,
        lambda table, ids: sm.astype(table, sm.int32).at[ids].add(3),
        lambda table, ids: table[sm.concat([ids] * 50), 0],
    ],
    ids=["rows", "atomics", "elements"],
)
def test_kernels_whose_addresses_depend_on_data_race(fake, device, function):
    arrays = TABLE, IDS
    with sm.config(check_positions=False):
        check_race(fake, device, function, arrays)


def check_race(fake, device, function, arrays):
    """Check that another schedule than the predicted one wins where the clock says so."""
    _, predicted = compiled(device, function, arrays)
    fake.launch_ms = lambda data: 2.0 if data["warps"] in warps(predicted) else 1.0
    program, raced = compiled(device, function, arrays, tune="race")
    assert not {*warps(raced)} & {*warps(predicted)} and program.journal.of(Measured)


def test_made_up_indices_are_all_those_of_the_shortest_axis(device, monkeypatch):
    seen = {}
    make = schedules.random_array

    def spy(tensor, sizes, seed, extent=None):
        seen[seed] = make(tensor, sizes, seed, extent)
        return seen[seed]

    monkeypatch.setattr(schedules, "random_array", spy)
    ids = np.arange(500) % 30

    def f(table, ids, n):
        return table[ids // 2 * 2, 0] * sm.astype(n, sm.float32)

    table = np.ones((90, 40), np.float32)
    program, _ = compiled(device, f, (table, ids, ids), tune="race", cache=False)
    kernel = program.kernels[0]
    sizes = {"n0": 90, "n1": 40, "n2": 500, "n3": 500}
    (name,) = schedules.index_extents(kernel, sizes)
    assert schedules.index_extents(kernel, sizes) == {name: 90} and name == "ids"
    by_name = dict(zip((p.name for p in kernel.inputs), seen.values(), strict=True))
    assert by_name["ids"].min() == 0 and 80 < by_name["ids"].max() < 90
    assert by_name["n"].max() < 8


# --- plans ------------------------------------------------------------------------------------


def two_results(x):
    e = sm.exp(x)
    return sm.sum(e, axis=1), sm.sin(e)


@pytest.fixture
def unsure(monkeypatch):
    """Every decision is a close one, and a turn is short."""
    monkeypatch.setattr(race, "UNSURE_FRACTION", 1.0)
    monkeypatch.setattr(device_plans, "MAX_TURNS", 2)
    monkeypatch.setattr(device_plans, "CALLS", 1)


def fused_takes(milliseconds):
    """Return a clock by which a kernel that computes both results takes so long, others 1 ms."""

    def launch_ms(data):
        is_fused = "tl.sum" in data["text"] and "sin" in data["symbol"] + data["text"]
        return milliseconds if is_fused else 1.0

    return launch_ms


def kernel_count(program):
    return len(program.recipe.steps)


def plan_of(device, **settings):
    with use_compiler(compiler()), sm.config(**settings):
        program, trace = compile_jit(two_results, (ROWS,), device)
        results = run_on_device(program, trace, (ROWS,), device)
    for y, w in zip(results, two_results(sm.asarray(ROWS)), strict=True):
        np.testing.assert_allclose(copy_to_host(y), np.asarray(w), 1e-5, 1e-6)
    return program


def test_a_plan_that_is_faster_on_the_device_wins_and_is_remembered(fake, device, unsure):
    assert kernel_count(plan_of(device)) == 1
    fake.launch_ms = fused_takes(9.0)
    program = plan_of(device, tune="race")
    assert kernel_count(program) == 2
    facts = [m for m in program.journal.of(Measured) if " apart" in m.what]
    assert facts and facts[0].value == pytest.approx(2 / 9)
    fake.launches.clear()
    for settings in ({}, {"tune": "race"}, {"tune": "remembered"}):
        device_code._ALIVE.clear()
        assert kernel_count(plan_of(device, **settings)) == 2
    assert len(fake.launches) == 2 * 3
    assert kernel_count(plan_of(device, tune="off")) == 1
    assert kernel_count(plan_of(device, cache=False)) == 1


def test_a_plan_that_is_not_clearly_faster_loses(fake, device, unsure):
    fake.launch_ms = fused_takes(2.01)
    assert kernel_count(plan_of(device, tune="race")) == 1
    fake.launch_ms = fused_takes(9.0)
    assert kernel_count(plan_of(device, tune="race")) == 1  # that is remembered, too


def test_plans_with_other_numbers_or_without_memory_lose(fake, device, unsure, monkeypatch, caplog):
    fake.launch_ms = fused_takes(9.0)
    with monkeypatch.context() as patch:
        patch.setattr(race, "agree", lambda one, other: False)
        assert kernel_count(plan_of(device, tune="race", cache=False)) == 1
    assert "gives other numbers" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(race, "MAX_INPUT_BYTES", 10)
        assert kernel_count(plan_of(device, tune="race", cache=False)) == 1
    fake.synchronize()
    fake.capacity = fake.used + ROWS.nbytes * 3 // 2
    with pytest.raises(DeviceMemoryError):
        plan_of(device, tune="race", cache=False)  # the call itself, after no race
    assert "are not raced" in caplog.text


def test_a_loop_whose_steps_data_decides_does_not_race(fake, device, unsure):
    def f(x):
        doubled = sm.while_loop(lambda h: sm.sum(h) < 100, lambda h: h * 2, x)
        return sm.sum(sm.exp(doubled), axis=0), sm.sin(sm.exp(doubled))

    x = np.ones((4, 50), np.float32)
    with use_compiler(compiler()), sm.config(tune="race", cache=False):
        program, trace = compile_jit(f, (x,), device)
        assert not fake.launches and not program.journal.of(Measured)
        run_on_device(program, trace, (x,), device)


def test_wishes_of_the_user_stay_in_a_race(fake, device, unsure):
    fake.launch_ms = fused_takes(9.0)
    program = plan_of(device, tune="race", never_fuse="exp+sum", cache=False)
    named = [{n.op.name for n in c.nodes} for c in program.plan.clusters]
    assert not any({"exp", "sum"} <= names for names in named)


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
