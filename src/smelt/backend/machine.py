"""The facts about a machine that the planner, lowering and reports may ask for.

>>> from smelt.backend.gpus import gpu
>>> from smelt.machine.target import Target
>>> machines: list[Machine] = [Target.for_isa("avx2"), gpu("h100")]
>>> [m.levels for m in machines]
[('l1', 'l2', 'l3', 'dram'), ('l2', 'dram')]
"""

from __future__ import annotations

from typing import Protocol, Self

from smelt.machine.target import Kind, Level
from smelt.machine.tiling import Tiling

__all__ = ["Kind", "Level", "Machine"]


class Machine(Protocol):
    """A machine that kernels are planned for; it need not be the one that runs.

    Sizes are bytes, rates GB/s (bytes per ns), times nanoseconds.
    """

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    @property
    def threads(self) -> int:
        """Processors that share a kernel: cores of a CPU, multiprocessors of a GPU."""
        ...

    @property
    def vector_bytes(self) -> int:
        """Bytes of what one instruction computes: a vector, or a warp's float32 lanes."""
        ...

    @property
    def architecture(self) -> str:
        """The instruction set."""
        ...

    @property
    def measured(self) -> bool:
        """Whether the rates were measured on this machine."""
        ...

    @property
    def planning(self) -> Self:
        """The machine with the figures that plans are made by."""
        ...

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels of memory with a rate of their own, from the smallest."""
        ...

    @property
    def tiling(self) -> Tiling:
        """Blocks and parts of kernels."""
        ...

    @property
    def fast_bytes(self) -> int:
        """Memory near the arithmetic for the values of one task."""
        ...

    @property
    def cache_bytes(self) -> int:
        """The largest cache, which holds values from one kernel to the next."""
        ...

    @property
    def chunk_bytes(self) -> int | None:
        """Bytes above which values between kernels are worth chunks of rows.

        None if they are only under a limit of memory.
        """
        ...

    @property
    def dispatch_ns(self) -> float:
        """Time of one call from Python."""
        ...

    @property
    def launch_ns(self) -> float:
        """Time to start a kernel on all processors."""
        ...

    @property
    def peak_gflops(self) -> float:
        """Float32 operations per nanosecond of all processors, without matrix units."""
        ...

    def level_bytes(self, level: Level) -> int | None:
        """Return the bytes of a level; None for main memory."""
        ...

    def with_cache(self, nbytes: int) -> Self:
        """Return the same machine with another size of its largest cache."""
        ...

    def is_near(self, nbytes: int) -> bool:
        """Return whether the memory near one task's arithmetic keeps so many bytes of it."""
        ...

    def level(self, footprint: int, threads: int = 1) -> Level:
        """Return the smallest level that keeps `footprint` bytes between two uses."""
        ...

    def bandwidth(self, level: Level, kind: Kind, threads: int | None = None) -> float:
        """Return the rate of a level for some threads together (default: all)."""
        ...

    def transfer_ns(
        self, read: int, written: int, level: Level = "dram", threads: int | None = None
    ) -> float:
        """Return the least time for moving `read` and `written` bytes."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of everything that decides which machine code is valid."""
        ...
