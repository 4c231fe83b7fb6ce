"""Measuring: the loops do what their names say, the figures are sane, storing them is safe."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from smelt.runtime import host, probe
from smelt.runtime.probe_kernels import (
    ARITHMETIC,
    CHAINS,
    PROBE_UNROLL,
    TRAFFIC,
    Kernels,
    map_block,
    module_text,
    run_parallel,
)
from smelt.target import LEVELS, Target

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
    assert len(heard) == 3


# Moving bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "written"),
    [(1 << 20, 1 << 20), (3 << 20, 1 << 20), (0, 1 << 16), (1 << 16, 0), (8, 8)],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_mover_takes_time_for_any_mix(
    kernels: Kernels, read: int, written: int, threads: int
) -> None:
    mover = probe.Mover(kernels, read, written, threads)
    assert 0 < mover.time_ns(3) < 1e9


def test_mover_time_follows_the_bytes(kernels: Kernels) -> None:
    def best(size: int) -> float:
        mover = probe.Mover(kernels, size, size, 1)
        return min(mover.time_ns(20) for _ in range(7))

    assert best(4 << 20) > 2 * best(1 << 20)


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
    for bad in ("", "{", "[]", "null", good[:-20], "9" * 100_000, json.dumps(record), "[" * 60_000):
        path.write_text(bad)
        assert host.load(tmp_path) is None
    for change in ({"format": 0}, {"machine": "x"}, {"target": None}):
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


def test_background_measures_once_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_background", [])
    monkeypatch.setattr(probe, "measure_with_share", lambda: (_mine(), 1.0))
    reported: list[Target] = []
    finished = threading.Event()

    def done(target: Target) -> None:
        reported.append(target)
        finished.set()

    thread = probe.start_background(tmp_path, done)
    assert thread is not None
    assert thread.daemon
    assert finished.wait(30)
    thread.join(30)
    assert reported == [_mine()]
    assert host.load(tmp_path) == _mine()
    assert probe.start_background(tmp_path, done) is None


def test_a_failing_measurement_stays_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> tuple[Target, float]:
        raise MemoryError

    monkeypatch.setattr(probe, "_background", [])
    monkeypatch.setattr(probe, "measure_with_share", fail)
    thread = probe.start_background(tmp_path)
    assert thread is not None
    thread.join(30)
    assert list(tmp_path.iterdir()) == []


def _in_background(
    place: Path, monkeypatch: pytest.MonkeyPatch, actual: Target, share: float
) -> list[Target]:
    """What a process is told that measures this with so much of a processor."""
    monkeypatch.setattr(probe, "_background", [])
    monkeypatch.setattr(probe, "measure_with_share", lambda: (actual, share))
    reported: list[Target] = []
    thread = probe.start_background(place, reported.append)
    assert thread is not None
    thread.join(30)
    return reported


def test_a_busy_machine_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {name: 3 * ns for name, ns in _mine().op_ns.items()}
    disturbed = replace(_mine(), op_ns=slow, dispatch_ns=9 * _mine().dispatch_ns)
    assert _in_background(tmp_path, monkeypatch, disturbed, 0.4) == []
    assert host.load(tmp_path) is None
    assert _in_background(tmp_path, monkeypatch, _mine(), 1.0) == [host.load(tmp_path)]
    actual = host.load(tmp_path)
    assert actual is not None
    assert actual.op_ns == _mine().op_ns
    assert actual.dispatch_ns == _mine().dispatch_ns


def test_a_machine_that_is_always_busy_is_believed_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in range(1, host.MAX_TRIES):
        one = replace(_mine(), dispatch_ns=1000.0 / attempt, nt_copy_gbs=float(attempt))
        assert _in_background(tmp_path, monkeypatch, one, 0.5) == []
    (actual,) = _in_background(tmp_path, monkeypatch, _mine(), 0.5)
    assert actual == host.load(tmp_path)
    assert actual.dispatch_ns == min(_mine().dispatch_ns, 1000.0 / (host.MAX_TRIES - 1))
    assert actual.nt_copy_gbs == max(_mine().nt_copy_gbs, host.MAX_TRIES - 1.0)


def test_the_better_of_each_figure_stays(measured: Target) -> None:
    worse = replace(
        measured,
        op_ns={name: 2 * ns for name, ns in measured.op_ns.items()},
        all_threads=measured.one_thread,
        launch_ns=2 * measured.launch_ns,
    )
    assert probe.better_figures(worse, measured) == probe.better_figures(measured, worse)
    assert probe.better_figures(measured, worse).op_ns == measured.op_ns
    assert probe.better_figures(measured, worse).launch_ns == measured.launch_ns
