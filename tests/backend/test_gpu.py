"""The facts and the cost model of GPUs: signs, orders and limits, without a device."""

from __future__ import annotations

import json

import pytest

from smelt.backend import Backend, Gpu, Machine, backend_of, generator_of, register
from smelt.backend.gpus import GPUS, gpu
from smelt.codegen.build import CpuBackend
from smelt.codegen.gpu_backend import GpuBackend
from smelt.errors import ArgumentError, InternalError
from smelt.kernel.text import parse
from smelt.machine.target import Target
from smelt.types.dtype import bf16, f16, f32, f64, i8, i64

DEVICES = sorted({g.key for g in GPUS.values()})
ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Gpu:
    return gpu(request.param)


def test_every_architecture_has_a_device():
    assert {g.arch for g in GPUS.values()} == {*ARCHITECTURES}
    assert all(GPUS[name].arch == name for name in ARCHITECTURES)
    assert gpu("H100") is gpu("sm_90")


def test_an_unknown_device_is_an_error_that_lists_them():
    with pytest.raises(ArgumentError, match="mi300x"):
        gpu("sm_12")


def test_rates_follow_from_processors_lanes_and_clock(device: Gpu):
    peak = 2 * device.processors * device.lanes * device.clock_ghz
    assert device.vector_gflops == pytest.approx(peak, rel=0.15)
    assert device.memory_gbs < device.cache_gbs
    assert device.cache_bytes < device.memory_bytes
    assert device.warp_size in (32, 64) and device.special_per_clock < device.lanes


def test_rates_of_products_are_ordered_by_type(device: Gpu):
    ns = [device.product_ns(t, t) for t in (i8, f16, f32, f64)]
    assert ns == sorted(ns) and ns[1] < ns[2]
    assert device.product_ns(bf16, bf16) == ns[1]
    for half, terms in ((bf16, 3), (f16, 5)):
        mixed = device.product_ns(f32, half)
        assert ns[1] < mixed == pytest.approx(min(terms * ns[1], ns[2]))
    assert device.product_ns(f32, i8) == ns[2]


def test_unconfirmed_figures_are_figures(device: Gpu):
    assert all(isinstance(getattr(device, name), int | float) for name in device.unconfirmed)


def test_wide_elements_are_no_faster(device: Gpu):
    assert device.element_ns(1, f32) < device.element_ns(1, f64)
    assert device.element_ns(1, f32) < device.element_ns(1, i64)


def test_a_value_of_the_cache_is_read_faster(device: Gpu):
    assert device.level(device.cache_bytes // 2) == "l2"
    assert device.level(device.cache_bytes) == "dram"
    assert device.transfer_ns(1 << 20, 0, "l2") < device.transfer_ns(1 << 20, 0)


def test_parts_fill_the_processors(device: Gpu):
    tiling = device.tiling
    assert tiling.min_tasks == tiling.max_parts == 2 * device.processors
    assert tiling.split_parts(1 << 30) == tiling.reduction_parts(1 << 30, 1) == tiling.max_parts
    assert tiling.split_parts(1) == 1 and tiling.rows_per_task(7) == 1
    assert Target.for_isa("avx2").tiling.min_tasks == 8


def test_streams_are_split_into_as_many_parts_as_processors_take(device: Gpu):
    tiling, processors = device.tiling, device.processors
    assert tiling.splits_stream([1], 100) and not tiling.splits_stream([processors], 100)
    assert not tiling.splits_stream([1], 2)
    for tasks in (1, 3, processors // 2):
        parts = tiling.stream_parts(1 << 20, tasks)
        assert processors - tasks < parts * tasks <= processors
        assert tiling.stream_parts(2, tasks) == 2
    assert Target.for_isa("avx2").tiling.stream_parts(1 << 20, 3) == 1 << 20


def test_facts_are_json_and_the_fingerprint_is_the_architecture(device: Gpu):
    assert json.loads(device.to_json())["key"] == device.key
    same = [g.fingerprint() == device.fingerprint() for g in GPUS.values()]
    assert same == [g.arch == device.arch for g in GPUS.values()]


def test_machines_and_back_ends_meet_the_protocols(device: Gpu):
    machines: list[Machine] = [Target.for_isa("avx512"), device]
    backends: list[Backend] = [CpuBackend(), GpuBackend()]
    for backend in backends:
        register(backend)
    assert [backend_of(m).name for m in machines] == [b.name for b in backends]
    for machine, backend in zip(machines, backends, strict=True):
        assert backend.serves(machine) and not backend.serves(machines[backend is backends[0]])
        assert [machine.level_bytes(level) is None for level in machine.levels][-1]
        assert machine.with_cache(1 << 20).cache_bytes == 1 << 20


def test_back_ends_print_kernels_in_their_languages():
    kernel = parse("kernel double(x: f32[n]) -> y: f32[n]\n  grid n/4096\n  y[n] = x[n] * 2\n")
    cpu, device = Target.for_isa("avx2"), gpu("a100")
    assert "define" in CpuBackend().text(kernel, "llvm", cpu, None)
    assert "@triton.jit" in GpuBackend().text(kernel, "triton", device, {"n": 1000})
    with pytest.raises(ArgumentError, match="triton"):
        GpuBackend().text(kernel, "llvm", device, None)


def test_only_the_cpu_has_a_code_generator():
    register(CpuBackend())
    register(GpuBackend())
    cpu = Target.for_isa("avx2")
    kernel = parse("kernel double(x: f32[n]) -> y: f32[n]\n  grid n/4096\n  y[n] = x[n] * 2\n")
    generator = generator_of(cpu)
    (variant, _), *_ = generator.schedule(kernel, cpu, {"n": 1000}) or (("", ()),)
    ((artifact, seconds),) = generator.compile([(kernel, variant)], cpu)
    assert len(artifact.code) > 0 and seconds > 0
    with pytest.raises(InternalError, match="H100"):
        generator_of(gpu("h100"))
