"""Know what a program of an architecture may use: registers, shared memory, warps.

>>> limits = device_limits("sm_90")
>>> limits.shared_bytes, limits.programs(warps=8, registers=128, shared_bytes=100_000)
(232448, 2)
"""

from __future__ import annotations

from typing import Final, Literal

from smelt.python.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """Limits of a program, and what the programs of one processor share.

    A processor has four partitions, each with a quarter of its registers and warps. Registers are
    32-bit words of all lanes; a warp gets a multiple of `register_granule` of them.
    """

    lanes: int = 32
    """Threads of a warp."""
    registers: int = 65536
    """Registers of a processor."""
    register_granule: int = 256
    lane_registers: int = 255
    """Most registers of a thread."""
    shared_bytes: int
    """Most shared memory of a program."""
    processor_shared_bytes: int
    reserved_bytes: int = 1024
    """Shared memory that the system takes per program."""
    warps: int
    """Most warps of a processor."""
    stages_in_registers: int = 0
    """Stages of a loop whose blocks wait in registers for their place in shared memory."""
    has_tensor_copies: bool = False
    """Whether a descriptor of an array in memory lets one thread copy a block of it."""
    specialised: Literal["", "nested", "flattened"] = ""
    """Loops of persistent products that the compiler divides among warps for copies and products.

    A nested loop over blocks has two groups of a program's warps for products."""
    asynchronous_rows: int = 0
    """Minimum rows of a tile whose products read shared memory behind the next ones; 0: never."""
    whole_store_bytes: int = 8
    """Minimum bytes of an element for results of products to pass shared memory as a whole."""
    has_extremes: bool = False
    """Whether an instruction yields the greater or lesser of two floats and keeps NaN."""
    program_warps: int = 32
    most_programs: int
    """Most programs of a processor at a time."""

    def programs(self, *, warps: int, registers: int, shared_bytes: int) -> int:
        """Return how many programs with these needs a processor runs at a time."""
        counts = [self.most_programs, self.warps // warps]
        if registers:
            granule = self.register_granule
            one = -(-registers * self.lanes // granule) * granule
            counts.append(self.registers // 4 // one * 4 // warps)
        if shared_bytes:
            counts.append(self.processor_shared_bytes // (shared_bytes + self.reserved_bytes))
        return max(min(counts), 0)

    def occupancy(self, *, warps: int, registers: int, shared_bytes: int) -> float:
        """Return the part of a processor's warps that run at a time, 0 to 1."""
        count = self.programs(warps=warps, registers=registers, shared_bytes=shared_bytes)
        return count * warps / self.warps


def _nvidia(
    shared_kib: int,
    warps: int,
    most_programs: int,
    *,
    has_tensor_copies: bool = False,
    specialised: Literal["", "nested", "flattened"] = "",
    asynchronous_rows: int = 0,
    whole_store_bytes: int = 8,
    stages_in_registers: int = 0,
) -> DeviceLimits:
    return DeviceLimits(
        asynchronous_rows=asynchronous_rows,
        whole_store_bytes=whole_store_bytes,
        stages_in_registers=stages_in_registers,
        has_tensor_copies=has_tensor_copies,
        specialised=specialised,
        shared_bytes=(shared_kib - 1) << 10,
        processor_shared_bytes=shared_kib << 10,
        warps=warps,
        most_programs=most_programs,
        has_extremes=not stages_in_registers,
    )


def _amd(shared_kib: int) -> DeviceLimits:
    return DeviceLimits(
        lanes=64,
        registers=4 * 512 * 64,
        register_granule=8 * 64,
        lane_registers=512,
        shared_bytes=shared_kib << 10,
        processor_shared_bytes=shared_kib << 10,
        reserved_bytes=0,
        stages_in_registers=1,
        warps=32,
        program_warps=16,
        most_programs=32,
    )


# CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"; AMD's
# CDNA 3 and CDNA 4 instruction set references, chapter "Program organization".
_LIMITS: Final = {
    "sm_75": _nvidia(64, 32, 16, stages_in_registers=1),
    "sm_80": _nvidia(164, 64, 32),
    "sm_86": _nvidia(100, 48, 16),
    "sm_87": _nvidia(164, 48, 16),
    "sm_89": _nvidia(100, 48, 24),
    "sm_90": _nvidia(
        228,
        64,
        32,
        has_tensor_copies=True,
        specialised="nested",
        asynchronous_rows=64,
        whole_store_bytes=4,
    ),
    "sm_100": _nvidia(
        228, 64, 32, has_tensor_copies=True, specialised="flattened", asynchronous_rows=64
    ),
    "sm_110": _nvidia(228, 48, 24, has_tensor_copies=True, asynchronous_rows=64),
    "sm_120": _nvidia(100, 48, 24, has_tensor_copies=True),
    "gfx942": _amd(64),
    "gfx950": _amd(160),
}


def device_limits(arch: str) -> DeviceLimits:
    """Return the limits of an architecture; NVIDIA's have those of the newest older one.

    Raises KeyError for an unknown architecture of AMD.
    """
    if arch in _LIMITS or not arch.startswith("sm_"):
        return _LIMITS[arch]
    listed = sorted(int(a[3:]) for a in _LIMITS if a.startswith("sm_"))
    older = [n for n in listed if n <= int(arch[3:])]
    return _LIMITS[f"sm_{older[-1] if older else listed[0]}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """A device as schedules are compared on it: limits of programs and published rates."""

    arch: str
    limits: DeviceLimits
    processors: int
    gbytes_per_second: float
    cache_gbytes_per_second: float
    """Of the cache that all processors share."""
    cache_bytes: int
    launch_ns: float
    """Between the starts of two launches."""
    tensor_tflops: float
    """Of products of half types; 0 without matrix units."""
    tf32_tflops: float
    """Of products of float32 rounded to tf32; 0 without matrix units for them."""
    matrix_share: float
    """Part of the rates of matrix units that programs with the largest tiles reach."""
    float32_tflops: float
    float64_tflops: float
    special_ns: float
    """Of one exponential or root, with the units of every processor busy."""

    @property
    def has_matrix_units(self) -> bool:
        """Whether programs multiply on matrix units; else float32 lanes do."""
        return self.tensor_tflops > 0
