"""GPUs by name and architecture, with the figures that their makers publish.

Rates are peaks for dense operands; the cost model takes shares of them. What no maker's document
states is named in `unconfirmed`. Shared memory, registers
and special functions per processor are those of the CUDA C++ Programming Guide (tables "Technical
Specifications per Compute Capability" and "Throughput of Native Arithmetic Instructions") and of
ROCm's "AMD GPU specifications".

>>> gpu("sm_90").name, gpu("H200").memory_gbs
('NVIDIA H100 SXM', 4800.0)
"""

from __future__ import annotations

from dataclasses import replace

from smelt.backend.gpu import Gpu
from smelt.errors import ArgumentError

KIB, MIB, GB = 1 << 10, 1 << 20, 10**9


def _matrix(half: float, integer: float, tf32: float = 0.0) -> tuple[tuple[str, float], ...]:
    """Return the rates of matrix units in Gflop/s, for half types, 8-bit integers and tf32."""
    rates = ("f16", half), ("bf16", half), ("i8", integer), ("u8", integer), ("tf32", tf32)
    return tuple((name, rate) for name, rate in rates if rate)


# NVIDIA H100 data sheet (SXM) and Hopper white paper; Chips and Cheese, "Nvidia's H100: Funny
# L2, and Tons of Bandwidth", measure less than the peak of 5120 bytes of L2 per cycle
_H100 = Gpu(
    key="h100",
    name="NVIDIA H100 SXM",
    arch="sm_90",
    processors=132,
    clock_ghz=1.83,
    lanes=128,
    warp_size=32,
    registers_bytes=256 * KIB,
    shared_bytes=228 * KIB,
    cache_bytes=50 * MIB,
    cache_gbs=8986.0,
    memory_bytes=80 * GB,
    memory_gbs=3350.0,
    vector_gflops=67_000.0,
    double_gflops=34_000.0,
    matrix_gflops=_matrix(989_000.0, 1_979_000.0, 494_500.0),
    has_tensor_copies=True,
    unconfirmed=("cache_gbs",),
)

_TABLE = (
    # NVIDIA A100 data sheet (80 GB SXM); Ampere white paper: 5120 bytes of L2 per cycle. cuBLAS
    # multiplies bfloat16 at about 250 of 312 Tflop/s
    Gpu(
        key="a100",
        name="NVIDIA A100 SXM 80 GB",
        arch="sm_80",
        processors=108,
        clock_ghz=1.41,
        lanes=64,
        warp_size=32,
        registers_bytes=256 * KIB,
        shared_bytes=164 * KIB,
        cache_bytes=40 * MIB,
        cache_gbs=7219.0,
        memory_bytes=80 * GB,
        memory_gbs=2039.0,
        vector_gflops=19_500.0,
        double_gflops=9_700.0,
        matrix_gflops=_matrix(312_000.0, 624_000.0, 156_000.0),
        matrix_share=0.8,
    ),
    # NVIDIA Ada white paper, appendix "GeForce RTX 4090"; float16 with float32 accumulation. L2 at
    # 5 TB/s is the order that Chips and Cheese measure
    Gpu(
        key="4090",
        name="NVIDIA GeForce RTX 4090",
        arch="sm_89",
        processors=128,
        clock_ghz=2.52,
        lanes=128,
        warp_size=32,
        registers_bytes=256 * KIB,
        shared_bytes=100 * KIB,
        cache_bytes=72 * MIB,
        cache_gbs=5000.0,
        memory_bytes=24 * GB,
        memory_gbs=1008.0,
        vector_gflops=82_600.0,
        double_gflops=1_290.0,
        matrix_gflops=_matrix(165_200.0, 660_600.0, 82_600.0),
        unconfirmed=("cache_gbs",),
    ),
    _H100,
    # NVIDIA H200 data sheet: an H100 with other memory
    replace(_H100, key="h200", name="NVIDIA H200 SXM", memory_bytes=141 * GB, memory_gbs=4800.0),
    # NVIDIA Blackwell architecture technical brief (HGX B200) and Blackwell Tuning Guide; the rate
    # of L2 is not published: as for H100, per cycle. Memory is "up to 8 TB/s"; the bus width and
    # clock that the driver reports give 7672 GB/s (pytorch/ao, pull request 4002)
    Gpu(
        key="b200",
        name="NVIDIA B200",
        arch="sm_100",
        processors=148,
        clock_ghz=1.965,
        lanes=128,
        warp_size=32,
        registers_bytes=256 * KIB,
        shared_bytes=228 * KIB,
        cache_bytes=126 * MIB,
        cache_gbs=10_060.0,
        memory_bytes=180 * GB,
        memory_gbs=7672.0,
        vector_gflops=75_000.0,
        double_gflops=37_000.0,
        matrix_gflops=_matrix(2_250_000.0, 4_500_000.0, 1_120_000.0),
        has_tensor_copies=True,
        unconfirmed=("cache_gbs", "memory_gbs"),
    ),
    # NVIDIA RTX Blackwell GPU architecture white paper, appendix "GeForce RTX 5090"; float16 with
    # float32 accumulation. The rate of L2 is not published: as for the RTX 4090, per cycle
    Gpu(
        key="5090",
        name="NVIDIA GeForce RTX 5090",
        arch="sm_120",
        processors=170,
        clock_ghz=2.407,
        lanes=128,
        warp_size=32,
        registers_bytes=256 * KIB,
        shared_bytes=100 * KIB,
        cache_bytes=96 * MIB,
        cache_gbs=6343.0,
        memory_bytes=32 * GB,
        memory_gbs=1792.0,
        vector_gflops=104_800.0,
        double_gflops=1_640.0,
        matrix_gflops=_matrix(209_500.0, 838_000.0, 104_800.0),
        has_tensor_copies=True,
        unconfirmed=("cache_gbs",),
    ),
    # AMD Instinct MI300X data sheet and CDNA 3 white paper; the cache is the Infinity Cache. AMD
    # measures 4.3 TB/s of its 5.3, and 45 % of the matrix units' peak
    Gpu(
        key="mi300x",
        name="AMD Instinct MI300X",
        arch="gfx942",
        processors=304,
        clock_ghz=2.1,
        lanes=128,
        warp_size=64,
        registers_bytes=512 * KIB,
        shared_bytes=64 * KIB,
        cache_bytes=256 * MIB,
        cache_gbs=17_200.0,
        memory_bytes=192 * GB,
        memory_gbs=5300.0,
        memory_share=0.81,
        vector_gflops=163_400.0,
        double_gflops=81_700.0,
        matrix_gflops=_matrix(1_307_400.0, 2_614_900.0, 653_700.0),
        matrix_share=0.46,
    ),
    # AMD Instinct MI355X data sheet; the cache as in the MI300X
    Gpu(
        key="mi355x",
        name="AMD Instinct MI355X",
        arch="gfx950",
        processors=256,
        clock_ghz=2.4,
        lanes=128,
        warp_size=64,
        registers_bytes=512 * KIB,
        shared_bytes=160 * KIB,
        cache_bytes=256 * MIB,
        cache_gbs=17_200.0,
        memory_bytes=288 * GB,
        memory_gbs=8000.0,
        memory_share=0.81,
        vector_gflops=157_300.0,
        double_gflops=78_600.0,
        matrix_gflops=_matrix(2_516_600.0, 5_033_200.0),
        matrix_share=0.46,
        unconfirmed=("cache_gbs",),
    ),
)
GPUS = {g.key: g for g in _TABLE} | {g.arch: g for g in reversed(_TABLE)}
"""Every GPU by its name; an architecture stands for its first GPU."""


def gpu(name: str, also: tuple[str, ...] = ()) -> Gpu:
    """Return the GPU of a name or an architecture; raise ArgumentError for an unknown one.

    The message lists `also`, which are names that the caller knows.
    """
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise ArgumentError(
            op="explain",
            argument="target",
            value=name,
            expected=f"one of {', '.join((*GPUS, *also))}",
        ) from None
