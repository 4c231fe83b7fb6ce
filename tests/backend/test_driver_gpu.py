"""GPUs that no table lists: their figures from what a driver reports, against published ones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.cuda.fake_driver import FakeDriver

import smelt as sm
from smelt.backend.driver_gpu import gpu_of_driver
from smelt.backend.gpus import GPUS
from smelt.codegen.triton.device_limits import device_limits
from smelt.runtime.cuda.driver import use_library
from smelt.tune.scheduled_gpu import rates_of
from smelt.types.dtype import bf16, f16, f32

MIB = 1 << 20
CARDS: dict[str, tuple[str, tuple[int, ...], tuple[float, float, float]]] = {
    # name: architecture; processors, MHz, memory MHz, bus bits, MiB of L2, double ratio;
    # published GB/s, and Tflop/s of float32 and of dense float16 products
    "Tesla T4": ("sm_75", (40, 1590, 5001, 256, 4, 32), (320, 8.1, 0)),
    "NVIDIA H100 PCIe": ("sm_90", (114, 1755, 1593, 5120, 50, 2), (2039, 51, 756)),
    "NVIDIA H20": ("sm_90", (78, 1980, 3201, 5120, 60, 2), (4000, 40, 148)),
    "NVIDIA H200": ("sm_90", (132, 1980, 3201, 6144, 60, 2), (4800, 67, 989)),
    "NVIDIA A100-SXM4-40GB": ("sm_80", (108, 1410, 1215, 5120, 40, 2), (1555, 19.5, 312)),
    "NVIDIA L4": ("sm_89", (58, 2040, 6251, 192, 48, 64), (300, 30.3, 121)),
    "NVIDIA A10": ("sm_86", (72, 1695, 6251, 384, 6, 32), (600, 31.2, 125)),
    "NVIDIA GeForce RTX 3090": ("sm_86", (82, 1695, 9751, 384, 6, 32), (936, 35.6, 71)),
    "NVIDIA GeForce RTX 4090": ("sm_89", (128, 2520, 10501, 384, 72, 64), (1008, 82.6, 165)),
    "NVIDIA GeForce RTX 5090": ("sm_120", (170, 2407, 14001, 512, 96, 64), (1792, 104.8, 209)),
    "NVIDIA B300": ("sm_103", (148, 1920, 3996, 8192, 126, 64), (8000, 75, 2250)),
    "NVIDIA GB10": ("sm_121", (48, 2418, 0, 0, 24, 64), (273, 30, 125)),
}
UNPUBLISHED = {("NVIDIA H20", 1), ("NVIDIA GB10", 0)}
"""The clock of an H20's published rate is not its highest; a GB10 reports no memory clock."""


def facts(card: str) -> dict[str, int]:
    processors, clock, memory, bus, cache, ratio = CARDS[card][1]
    return {
        "processors": processors,
        "clock_khz": clock * 1000,
        "memory_khz": memory * 1000,
        "bus_bits": bus,
        "cache_bytes": cache * MIB,
        "double_ratio": ratio,
    }


@pytest.mark.parametrize("card", CARDS)
def test_a_card_has_its_published_rates(card: str):
    gpu = gpu_of_driver(card, CARDS[card][0], facts(card))
    rates = (gpu.memory_gbs, gpu.vector_gflops / 1e3, dict(gpu.matrix_gflops).get("f16", 0) / 1e3)
    for k, (rate, published) in enumerate(zip(rates, CARDS[card][2], strict=True)):
        if (card, k) not in UNPUBLISHED:
            assert rate == pytest.approx(published, rel=0.1), k
    assert gpu.processors == CARDS[card][1][0] and gpu.arch == CARDS[card][0]
    assert 0 < gpu.memory_gbs < gpu.cache_gbs
    assert rates_of(gpu).limits is device_limits(gpu.arch)


@pytest.mark.parametrize("key", ["a100", "4090", "5090", "h100", "h200", "b200"])
def test_a_listed_card_is_the_same_from_its_driver(key: str):
    listed = GPUS[key]
    reported = {"processors": listed.processors, "clock_khz": round(listed.clock_ghz * 1e6)}
    reported |= {"memory_khz": round(listed.memory_gbs * 1e6 / 1024 * 8 / 2), "bus_bits": 1024}
    gpu = gpu_of_driver(listed.name, listed.arch, reported)
    for field in ("memory_gbs", "cache_gbs", "vector_gflops", "clock_ghz", "lanes", "shared_bytes"):
        assert getattr(gpu, field) == pytest.approx(getattr(listed, field), rel=0.1), field
    pairs: Any = zip(gpu.matrix_gflops, listed.matrix_gflops, strict=True)
    for (name, rate), (same, published) in pairs:
        assert name == same and rate == pytest.approx(published, rel=0.01)


def test_a_5090_is_listed_with_the_figures_of_its_driver():
    name = "NVIDIA GeForce RTX 5090"
    gpu, listed = gpu_of_driver(name, "sm_120", facts(name)), GPUS["sm_120"]
    assert gpu.memory_gbs == pytest.approx(listed.memory_gbs, rel=0.001)
    assert dict(gpu.matrix_gflops) == pytest.approx(dict(listed.matrix_gflops), rel=0.001)
    same = ("processors", "clock_ghz", "lanes", "shared_bytes", "cache_bytes", "has_tensor_copies")
    assert all(getattr(gpu, f) == getattr(listed, f) for f in same)


def test_turing_multiplies_on_its_lanes():
    """Triton's compiler does not use its matrix units."""
    t4 = gpu_of_driver("Tesla T4", "sm_75", facts("Tesla T4"))
    assert not t4.matrix_gflops
    pairs = [(f16, f16), (bf16, bf16), (f32, f16), (f32, bf16), (f32, f32)]
    assert len({t4.product_ns(*pair) for pair in pairs}) == 1
    rates = rates_of(t4)
    assert not rates.has_matrix_units and rates.tf32_tflops == 0


@pytest.mark.parametrize("card", ["NVIDIA A10", "NVIDIA B300", "NVIDIA GB10", "Tesla T4"])
def test_a_card_that_no_table_lists_has_plans_of_its_own(card: str):
    processors, clock, memory, bus, cache, ratio = CARDS[card][1]
    driver = FakeDriver(arch=int(CARDS[card][0].removeprefix("sm_")), memory=24 << 30)
    driver.model = card
    numbers = processors, clock * 1000, memory * 1000, bus, cache * MIB, ratio
    driver.figures = dict(zip((16, 13, 36, 37, 38, 87), numbers, strict=True))
    specs = [sm.spec("f16[4,8,1024,64]")] * 3
    with use_library(driver), sm.config(device_code=False, cache=False, rounding="fast"):
        report = sm.explain(sm.nn.attention, *specs, target="cuda:0")
    assert report.data.device.processors == processors
    assert len(report.kernels) == 1  # no scores are stored
    products = 4 * 4 * 8 * 1024**2 * 64
    fastest = max(report.data.device.tensor_tflops, report.data.device.float32_tflops)
    assert report.data.total.predicted_ns > products / (fastest * 1e3)


def test_rates_that_a_maker_limits_are_those_it_publishes():
    """An H20 has an H100's processors, but not their matrix units' rate."""
    h20 = gpu_of_driver("NVIDIA H20", "sm_90", facts("NVIDIA H20"))
    assert dict(h20.matrix_gflops)["tf32"] == 74_000


def test_a_driver_that_reports_nothing_leaves_the_architecture_s_listed_card():
    gpu, listed = gpu_of_driver("unknown", "sm_90", {"memory_khz": 0}), GPUS["h100"]
    assert (gpu.processors, gpu.memory_gbs) == (listed.processors, listed.memory_gbs)


def test_a_slice_has_its_part_of_the_memory_s_rate():
    name = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    reported = {"processors": 14, "memory_khz": 1_593_000, "bus_bits": 5120}
    gpu = gpu_of_driver(name, "sm_80", {**reported, "cache_bytes": 5 * MIB})
    assert gpu.memory_gbs == pytest.approx(GPUS["a100"].memory_gbs / 8)


@pytest.mark.parametrize(
    ("arch", "same"), [("sm_70", "sm_75"), ("sm_103", "sm_100"), ("sm_121", "sm_120")]
)
def test_an_architecture_without_limits_has_those_of_the_newest_older_one(arch: str, same: str):
    assert device_limits(arch) is device_limits(same)
    with pytest.raises(KeyError):
        device_limits("gfx90a")
