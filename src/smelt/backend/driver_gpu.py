"""Derive a GPU's figures from what its driver reports.

Cards of one architecture differ in processors, clocks, memory and caches, which the driver knows;
what a processor does per cycle belongs to the architecture. So a card that no table lists (H100
PCIe, H20, L4, RTX 3090, B300, a slice of a GPU) is planned with its own figures.

>>> l4 = gpu_of_driver("NVIDIA L4", "sm_89", {"processors": 58, "clock_khz": 2_040_000})
>>> l4.processors, round(l4.vector_gflops), round(dict(l4.matrix_gflops)["bf16"])
(58, 30290, 121160)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.backend.gpu import Gpu
from smelt.backend.gpus import GPUS
from smelt.python.dataclass import dataclass

_GIGA, _KILO = 1e9, 1e3
_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class _Processor:
    """What a processor of an architecture does per cycle, and a similar listed GPU.

    The CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", and the white
    papers of the architectures; figures of an integrated GPU are for cards without a report.
    """

    like: str
    """Key of the GPU whose figures stand for what neither this table nor a driver states."""
    matrix_flops: int
    """Floating-point operations of matrix units on half types, dense, summed in float32."""
    shared_kib: int
    lanes: int = 128
    double_lanes: int = 2
    has_tensor_copies: bool = False
    special: int = 16
    integer_ratio: int = 2
    """Operations on 8-bit integers by those on half types."""
    matrix_types: tuple[str, ...] = ("f16", "bf16", "i8", "u8", "tf32")
    """Types that matrix units multiply; others are computed on the vector lanes."""


_PROCESSORS = {
    # Triton uses Turing's matrix units no more (triton-lang/triton#5066)
    75: _Processor("4090", 0, 64, lanes=64, matrix_types=()),
    80: _Processor("a100", 2048, 164, lanes=64, double_lanes=32),
    86: _Processor("4090", 1024, 100),
    87: _Processor("4090", 2048, 164),
    89: _Processor("4090", 1024, 100),
    90: _Processor("h100", 4096, 228, double_lanes=64, has_tensor_copies=True),
    100: _Processor("b200", 7736, 228, double_lanes=64, has_tensor_copies=True),
    # Blackwell Ultra: twice the special functions, few float64 and integer operations
    103: _Processor("b200", 7736, 228, has_tensor_copies=True, special=32, integer_ratio=1),
    110: _Processor("b200", 7736, 228, has_tensor_copies=True),
    120: _Processor("5090", 1024, 100, has_tensor_copies=True),
    121: _Processor("4090", 1024, 100, has_tensor_copies=True),
}


_LIMITED_GFLOPS = {"NVIDIA H20": 148_000.0, "NVIDIA L20": 119_500.0}
"""Published rates of half types below those of a card's processors, which no driver reports."""


def gpu_of_driver(name: str, arch: str, facts: Mapping[str, int]) -> Gpu:
    """Return a GPU with the figures that its driver reports.

    What is missing or 0 is unknown.
    `facts` has processors, clock_khz, memory_khz, bus_bits, memory_bytes, cache_bytes,
    shared_bytes (of a processor), registers (of a processor, 32 bits) and double_ratio (float32
    operations by float64 ones). An unknown architecture is taken as the newest older one.
    """
    number = int(arch.removeprefix("sm_"))
    one = _PROCESSORS[max((n for n in _PROCESSORS if n <= number), default=min(_PROCESSORS))]
    like = GPUS[one.like]
    reported = {k: v for k, v in facts.items() if v > 0}
    processors = reported.get("processors", like.processors)
    # Drivers state the highest clock; peaks of server cards are published at the boost clock.
    clock = reported.get("clock_khz", like.clock_ghz * 1e6) / 1e6
    clock = min(clock, like.clock_ghz) if like.arch == arch else clock
    cycles = processors * clock
    double_lanes = one.lanes / reported["double_ratio"] if "double_ratio" in reported else 0
    # GeForce sums products of half types in float32 at half the rate of the other cards.
    half = one.matrix_flops * cycles / (2 if "GeForce" in name else 1)
    half = min(half, _LIMITED_GFLOPS.get(name, half))
    integer = half * one.integer_ratio * (2 if "GeForce" in name else 1)
    rates = {"f16": half, "bf16": half, "i8": integer, "u8": integer, "tf32": half / 2}
    return replace(
        like,
        key=name,
        name=name,
        arch=arch,
        processors=processors,
        clock_ghz=clock,
        lanes=one.lanes,
        registers_bytes=4 * reported.get("registers", like.registers_bytes // 4),
        shared_bytes=reported.get("shared_bytes", one.shared_kib * _KIB),
        cache_bytes=reported.get("cache_bytes", like.cache_bytes),
        cache_gbs=like.cache_gbs * cycles / (like.processors * like.clock_ghz),
        memory_bytes=reported.get("memory_bytes", like.memory_bytes),
        memory_gbs=_memory_gbs(like, processors, reported, is_slice=" MIG " in name),
        vector_gflops=2 * one.lanes * cycles,
        double_gflops=2 * (double_lanes or one.double_lanes) * cycles,
        matrix_gflops=tuple((t, rates[t]) for t in one.matrix_types),
        has_tensor_copies=one.has_tensor_copies,
        special_per_clock=one.special,
        unconfirmed=("cache_gbs", "matrix_gflops"),
    )


def _memory_gbs(
    like: Gpu, processors: int, reported: Mapping[str, int], *, is_slice: bool
) -> float:
    """Return the rate of a memory that moves data twice per cycle.

    Without a report each processor has the share of the listed GPU. A slice has at most the part
    of its GPU's rate that it has of the cache, since both are divided alike.
    """
    if {"memory_khz", "bus_bits"} <= reported.keys():
        rate = 2 * reported["memory_khz"] * _KILO * reported["bus_bits"] / 8 / _GIGA
    else:
        rate = like.memory_gbs * min(processors / like.processors, 1.0)
    if is_slice and "cache_bytes" in reported:
        rate = min(rate, like.memory_gbs * min(reported["cache_bytes"] / like.cache_bytes, 1.0))
    return rate
