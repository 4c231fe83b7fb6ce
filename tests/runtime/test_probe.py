"""Measuring: the loops do what their names say, the figures are sane, storing them is safe."""

from __future__ import annotations

import ctypes
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from smelt import knobs
from smelt.machine.target import LEVELS, Target
from smelt.runtime import contradictions, figures, host, probe
from smelt.runtime.figures import Sample
from smelt.runtime.probe import (
    ARITHMETIC,
    CHAINS,
    PROBE_UNROLL,
    TRAFFIC,
    Kernels,
    map_block,
    module_text,
    run_parallel,
)

HOST = Target.host()


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(HOST)


@pytest.fixture(scope="module")
def measured() -> Target:
    return probe.measure(seconds=0.3)


def _view(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


# The loops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable", "neon"])
def test_module_compiles_for_every_instruction_set(isa: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = Target.for_isa(isa)  # type: ignore[arg-type]
    module = llvm.parse_assembly(module_text(target))
    module.verify()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_string
    )
    text = machine.emit_assembly(module)
    for name in (*TRAFFIC, *ARITHMETIC):
        assert f"smelt_probe_{name}:" in text


@pytest.mark.skipif(HOST.isa != "avx512", reason="names of AVX-512 instructions")
def test_loops_use_the_whole_vector_and_the_right_instructions() -> None:
    module = llvm.parse_assembly(module_text(HOST))
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(HOST.triple).create_target_machine(
        cpu=HOST.cpu, features=HOST.feature_string
    )
    parts = machine.emit_assembly(module).split("smelt_probe_")
    body = {part.split(":", 1)[0]: part for part in parts}
    assert body["copy_nt"].count("vmovntps") + body["copy_nt"].count("vmovntdq") >= PROBE_UNROLL
    assert "sfence" in body["copy_nt"]
    assert "vmovnt" not in body["copy"]
    assert body["write"].count("zmm") >= PROBE_UNROLL
    assert body["fma"].count("vfmadd") >= CHAINS
    assert "rsp" not in body["fma"], "a spill would measure the stack"
    assert body["gather"].count("vgatherdps") >= CHAINS


@pytest.mark.parametrize("kind", ["copy", "copy_nt"])
@pytest.mark.parametrize("steps", [1, 3])
def test_copy_copies_so_many_bytes_and_no_more(kernels: Kernels, kind: str, steps: int) -> None:
    size = steps * PROBE_UNROLL * HOST.vector_bytes
    block = map_block(2 * size + 4096)
    source, target = _view(block.address, size), _view(block.address + size, size + 64)
    source[:] = np.arange(size) % 251
    target[:] = 7
    kernels.run(kind, block.address + size, block.address, size, 2)
    assert np.array_equal(target[:size], source)
    assert (target[size:] == 7).all()


@pytest.mark.parametrize("kind", ["write", "write_nt"])
def test_write_fills_so_many_bytes_and_no_more(kernels: Kernels, kind: str) -> None:
    size = 2 * PROBE_UNROLL * HOST.vector_bytes
    block = map_block(size + 4096)
    seen = _view(block.address, size + 64)
    seen[:] = 7
    kernels.run(kind, block.address, 0, size, 1)
    assert (seen[:size] != 7).all()
    assert (seen[size:] == 7).all()


def test_read_leaves_memory_alone(kernels: Kernels) -> None:
    size = 4 * PROBE_UNROLL * HOST.vector_bytes
    block = map_block(size)
    seen = _view(block.address, size)
    seen[:] = np.arange(size) % 13
    before = seen.copy()
    kernels.run("read", 0, block.address, size, 3)
    assert np.array_equal(seen, before)


def test_touch_writes_one_byte_a_page(kernels: Kernels) -> None:
    block = map_block(3 * 4096)
    kernels.run("touch", block.address, 0, 3 * 4096, 1)
    seen = _view(block.address, 3 * 4096)
    assert np.flatnonzero(seen).tolist() == [0, 4096, 8192]


def test_sequence_runs_its_rows_in_order(kernels: Kernels) -> None:
    size = PROBE_UNROLL * HOST.vector_bytes
    block = map_block(3 * size)
    at = block.address
    table = kernels.table([("write", at, 0, size), ("copy", at + size, at, size)])
    kernels.run("sequence", 0, ctypes.addressof(table), 2, 3)
    seen = _view(at, 3 * size)
    assert np.array_equal(seen[:size], seen[size : 2 * size])
    assert seen[:size].any()
    assert not seen[2 * size :].any()


@pytest.mark.clock
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_time_grows_with_the_count(kernels: Kernels, name: str) -> None:
    table = map_block(1 << 14)

    def best(repeat: int) -> int:
        at = table.address
        return min(kernels.elapsed_ns(name, at, at, 0, repeat) for _ in range(5))

    assert best(40_000) > 4 * best(2_000)


def test_threads_overlap(kernels: Kernels) -> None:
    block = map_block(1 << 16)
    jobs = [("write", block.address + i * 32768, 0, 32768) for i in range(2)]
    assert run_parallel(kernels, jobs, 10) > 0
    assert run_parallel(kernels, jobs[:1], 10) > 0


# The figures ----------------------------------------------------------------------------------


def test_measured_target_is_whole_and_keeps_the_identity(measured: Target) -> None:
    measured.check()
    assert measured.measured
    assert measured.fingerprint() == HOST.fingerprint()
    assert Target.from_json(measured.to_json()) == measured


def test_measured_rates_are_ordered(measured: Target) -> None:
    for side in (measured.one_thread, measured.all_threads):
        for kind in ("read", "write", "copy"):
            figures = [getattr(side.at(level), kind) for level in LEVELS]
            assert figures == sorted(figures, reverse=True)
    for level in LEVELS:
        one, many = measured.one_thread.at(level), measured.all_threads.at(level)
        assert many.read >= one.read
        assert many.copy >= one.copy


@pytest.mark.clock
def test_measured_figures_are_physically_possible(measured: Target) -> None:
    assert 0.1 < measured.one_thread.dram.read < 2000
    assert 0.5 < measured.fma_gflops < 5000
    assert measured.op_ns["div"] > measured.op_ns["fma"] * 0.9
    assert measured.op_ns["exp"] > measured.op_ns["fma"]
    assert 0.2 < measured.op_cost_scale < 20
    assert 50 < measured.dispatch_ns < 1e6
    assert 50 <= measured.launch_ns < 1e8
    assert measured.page_fault_ns_per_byte < 100
    assert 100 < measured.compile_ns_per_instr < 1e7


def test_say_hears_the_parts() -> None:
    heard: list[str] = []
    probe.measure(seconds=0.02, say=heard.append)
    assert heard == [part.title for part in probe.PARTS]


def test_the_parts_measure_every_figure_once() -> None:
    assert sorted(name for part in probe.PARTS for name in part.names) == sorted(figures.NAMES)
    bench = probe.Bench(HOST, seconds=0.02)
    for part in probe.PARTS:
        samples = part.run(bench)
        assert tuple(samples) == part.names
        assert all(s.value > 0 and 0 <= s.share <= 1 for s in samples.values())


# Keeping --------------------------------------------------------------------------------------


def _mine() -> Target:
    return replace(host.usable_host(), measured=True, launch_ns=1234.0)


def test_store_then_load(tmp_path: Path) -> None:
    place = tmp_path / "new" / "cache"
    assert host.load(place) is None
    path = host.store(_mine(), place)
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert host.load(place) == _mine() == host.host_target(place)
    assert [p.name for p in place.iterdir()] == [path.name]


def test_host_target_assumes_until_measured(tmp_path: Path) -> None:
    assert host.host_target(tmp_path / "none") == host.usable_host()
    assert not (tmp_path / "none").exists()


def test_figures_of_another_machine_are_not_used(tmp_path: Path) -> None:
    other = replace(_mine(), l2_bytes=12345)
    host.store(other, tmp_path)
    assert host.load(tmp_path) is None
    mine = tmp_path / host.file_name(_mine())
    (tmp_path / host.file_name(other)).rename(mine)
    assert host.load(tmp_path) is None


def test_a_damaged_file_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = host.store(_mine(), tmp_path)
    assert path is not None
    good = path.read_text()
    record = json.loads(good)
    record["target"]["fma_gflops"] = -1
    samples = {**json.loads(good), "samples": {"dispatch_ns": [[1.0, 2.0]]}}
    for bad in (
        "",
        "{",
        "[]",
        "null",
        good[:-20],
        "9" * 100_000,
        json.dumps(record),
        json.dumps(samples),
        "[" * 60_000,
    ):
        path.write_text(bad)
        assert host.load(tmp_path) is None
    for change in (
        {"format": 0},
        {"machine": "x"},
        {"target": None},
        {"samples": {"speed": []}},
        {"samples": 7},
        {"until": None},
    ):
        path.write_text(json.dumps({**json.loads(good), **change}))
        assert host.load(tmp_path) is None
    path.write_text(good)
    assert host.load(tmp_path) == _mine()
    assert host.store(_mine(), tmp_path) == path  # a damaged file is replaced


def test_assumed_figures_are_not_taken_for_measured(tmp_path: Path) -> None:
    host.store(host.usable_host(), tmp_path)
    assert host.load(tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes")
def test_unsafe_folders_are_not_used(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert host.store(_mine(), shared) is None
    assert list(shared.iterdir()) == []
    private = tmp_path / "private"
    real = host.store(_mine(), private)
    assert real is not None
    elsewhere = tmp_path / "elsewhere.json"
    real.rename(elsewhere)
    real.symlink_to(elsewhere)
    assert host.load(private) is None
    link = tmp_path / "link"
    link.symlink_to(private)
    assert host.store(_mine(), link) is None
    a_file = tmp_path / "file"
    a_file.write_text("")
    assert host.store(_mine(), a_file) is None


# In the background: a machine and a clock that are scripted -----------------------------------


class Machine:
    """A machine whose parts measure what it says, at its time, and processes that measure it."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.monkeypatch = place, monkeypatch
        self.now, self.share, self.slowness = 1e9, 1.0, 1.0
        self.ran: list[str] = []
        self.dies_at: int | None = None
        parts = tuple(
            probe.Part(p.title, p.names, lambda _, p=p: self._run(p)) for p in probe.PARTS
        )
        monkeypatch.setattr(probe, "PARTS", parts)
        monkeypatch.setattr(time, "time", lambda: self.now)

    def _run(self, part: probe.Part) -> dict[str, Sample]:
        if self.dies_at is not None and len(self.ran) >= self.dies_at:
            raise MemoryError  # nothing of the process after this is stored
        self.ran.append(part.title)
        self.now += 0.1
        slower = {name: name in figures._RATES for name in part.names}
        return {
            name: Sample(10 / self.slowness if rate else 10 * self.slowness, self.share, self.now)
            for name, rate in slower.items()
        }

    def process(self) -> list[Target]:
        """What a new process is targets that measures in the background."""
        self.ran = []
        self.monkeypatch.setattr(probe, "_background", [])
        targets: list[Target] = []
        thread = probe.start_background(self.place, targets.append)
        assert thread is not None
        thread.join(60)
        return targets


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "cache", monkeypatch)


def test_a_quiet_machine_is_measured_twice_in_one_process(machine: Machine) -> None:
    (target,) = machine.process()
    assert machine.ran == [p.title for p in probe.PARTS] * 2
    assert host.load(machine.place) == target
    assert target.nt_copy_gbs == target.all_threads.dram.read == 10
    assert probe.start_background(machine.place) is None, "once a process"
    assert machine.process() == [target]
    assert machine.ran == [], "never again"


def test_processes_that_end_early_leave_what_they_measured(machine: Machine) -> None:
    count = len(probe.PARTS)
    for process in range(6):
        machine.dies_at = 5
        targets = machine.process()
        assert len(machine.ran) == min(5, 2 * count - 5 * process)
        assert bool(targets) == (process == 5)
        assert (host.load(machine.place) is not None) == bool(targets)


def test_a_busy_machine_is_measured_again_when_some_time_has_passed(machine: Machine) -> None:
    machine.share, machine.slowness = 0.4, 3.0
    assert machine.process() == []
    assert machine.ran == [p.title for p in probe.PARTS], "one try: the next would be as bad"
    machine.now += 10
    assert machine.process() == []
    assert machine.ran == []
    machine.now += figures.APART_S
    machine.share, machine.slowness = 1.0, 1.0
    (target,) = machine.process()
    assert machine.ran == [p.title for p in probe.PARTS] * 2
    assert target.dispatch_ns == target.nt_copy_gbs == 10


def test_quiet_tries_that_disagree_are_repeated(machine: Machine) -> None:
    """Another machine's memory traffic does not show in the processor time of this one."""
    machine.slowness = 2.0
    machine.dies_at = len(probe.PARTS)
    assert machine.process() == []
    machine.dies_at, machine.slowness = None, 1.0
    (target,) = machine.process()
    assert target.nt_copy_gbs == 10
    samples = host.stored_samples(machine.place)
    assert {len(tries) for tries in samples.values()} == {3}
    assert figures.largest_spread(samples)[1] == 0


def test_a_machine_that_is_always_busy_is_believed_at_last(machine: Machine) -> None:
    machine.share = 0.5
    for attempt in range(1, figures.MAX_TRIES):
        machine.slowness = float(attempt)
        assert machine.process() == []
        assert host.load(machine.place) is None
        machine.now += figures.APART_S
    machine.slowness = 9.0
    (target,) = machine.process()
    assert target == host.load(machine.place)
    assert target.dispatch_ns == target.nt_copy_gbs == 10


def test_one_disturbed_part_is_repeated_alone(machine: Machine) -> None:
    measure = machine._run

    def disturbed(part: probe.Part) -> dict[str, Sample]:
        machine.share = 0.3 if part.title == "calls" else 1.0
        return measure(part)

    machine._run = disturbed  # type: ignore[method-assign]
    assert machine.process() == []
    machine.now += figures.APART_S
    machine._run = measure  # type: ignore[method-assign]
    machine.share = 1.0
    assert len(machine.process()) == 1
    assert machine.ran == ["calls", "calls"]


def test_figures_expire_but_stay_in_force_meanwhile(machine: Machine) -> None:
    (old,) = machine.process()
    machine.now += figures.EXPIRY_S + 1
    record = host.load_record(machine.place)
    assert record is not None
    assert record.until < machine.now
    machine.slowness, machine.dies_at = 4.0, 5
    assert machine.process() == []
    assert host.load(machine.place) == old
    machine.dies_at = None
    (new,) = machine.process()
    assert host.load(machine.place) == new
    assert new.dispatch_ns == 4 * old.dispatch_ns


def test_figures_that_hardly_change_leave_plans_alone(machine: Machine) -> None:
    (old,) = machine.process()
    machine.now += figures.EXPIRY_S + 1
    machine.slowness = 1.1
    machine.process()
    assert host.load(machine.place) == old
    record = host.load_record(machine.place)
    assert record is not None
    assert record.until > machine.now


def test_renewed_figures_are_measured_again(machine: Machine) -> None:
    machine.slowness = 2.0
    (old,) = machine.process()
    host.renew(machine.place)
    assert host.load(machine.place) == old
    machine.slowness = 1.0
    (new,) = machine.process()
    assert new.nt_copy_gbs == 2 * old.nt_copy_gbs
    assert host.load(machine.place) == new


def test_a_failing_measurement_stays_silent(machine: Machine) -> None:
    machine.dies_at = 0
    assert machine.process() == []
    assert not machine.place.exists()


def test_a_host_is_measured_in_the_background_until_it_is_known(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(probe, "start_background", lambda **_: started.append(True))
    with knobs.config(cache_dir=machine.place, probe="auto", target="auto"):
        host._host.cache_clear()
        assert not host.host().measured
        assert started == [True]
        host.store(_mine())
        host._host.cache_clear()
        assert host.host() == _mine()
        assert started == [True]
        machine.now += figures.EXPIRY_S + 1
        host._host.cache_clear()
        assert host.host() == _mine(), "old figures are better than assumed ones"
        assert started == [True, True]
        with knobs.config(probe="off"):
            host._host.cache_clear()
            assert host.host() == _mine()
            assert started == [True, True]
    host._host.cache_clear()


# Quietness: a clock that is scripted ------------------------------------------------------------


@pytest.mark.parametrize("busy", [0.0, 0.5, 0.75])
def test_the_share_of_a_processor_is_cpu_time_over_wall_time(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, busy: float
) -> None:
    clock = {"wall": 0, "thread": 0}

    def run(*_: int) -> int:
        clock["wall"] += 1000
        clock["thread"] += round(1000 * (1 - busy))
        return 0

    monkeypatch.setattr(probe, "wall_ns", lambda: clock["wall"])
    monkeypatch.setattr(probe, "thread_ns", lambda: clock["thread"])
    monkeypatch.setitem(kernels._functions, "fma", run)
    timed = kernels.timed("fma", 0, 0, 0, 1)
    assert timed == (round(1000 * (1 - busy)), 1 - busy)
    sample = Sample(1.0, timed.share, 0.0)
    assert sample.is_quiet == (busy < 0.15)


# Calls that contradict the figures --------------------------------------------------------------


def test_only_many_calls_in_succession_contradict() -> None:
    targets: list[str] = []
    c = contradictions.Contradictions(lambda: targets.append("again"))
    for _ in range(3):
        for _ in range(contradictions.MAX_CONTRADICTIONS - 1):
            c.note(10.0, 5.0)
        c.note(10.0, 9.0)
    assert not targets
    for _ in range(contradictions.MAX_CONTRADICTIONS):
        c.note(10.0, 5.0)
    assert targets == ["again"]


def test_only_results_beyond_caches_have_a_floor() -> None:
    target = replace(_mine(), nt_store_gbs=20.0)
    large = max(1 << 30, 8 * target.l3_bytes)
    with knobs.config(probe="auto"):
        least = contradictions.floor_ns([large // 2, large // 2], target)
        assert 0 < least < large / 20.0
        assert contradictions.floor_ns([large], replace(target, measured=False)) == 0
        assert contradictions.floor_ns([target.l3_bytes], target) == 0
        assert contradictions.floor_ns([], target) == 0
    with knobs.config(probe="off"):
        assert contradictions.floor_ns([large], target) == 0


def test_contradicted_figures_are_measured_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with knobs.config(cache_dir=machine.place, probe="auto", target="auto"):
        monkeypatch.setattr(probe, "_background", [])
        machine.slowness = 2.0
        first = probe.start_background()
        assert first is not None
        first.join(60)
        slow = host.load()
        machine.slowness = 1.0
        host.measure_again()
        probe._background[-1].join(60)
        fast = host.load()
    assert slow is not None
    assert fast is not None
    assert fast.nt_copy_gbs == 2 * slow.nt_copy_gbs
    host._host.cache_clear()
