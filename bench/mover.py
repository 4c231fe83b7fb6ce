"""Memory traffic alone: the lower bound of a benchmark."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from smelt.runtime.probe import PROBE_UNROLL, Kernels, Step, map_block, run_parallel

_SKEW = 33 * 64
"""Offset between two streams modulo 4 KiB, so that loads do not alias earlier stores."""

MIN_TRIAL_BYTES = 1 << 20
"""Minimum bytes that a trial of store variants moves."""


class Mover:
    """Move as many bytes as a computation must, as fast as possible.

    It is the lower bound of a benchmark. `read` and `written` bytes are split among `threads`
    threads. Pairs of read and written bytes run as a copy, the rest as a read or a write; stores
    are non-temporal if that measured faster. Buffers are touched once here, outside the timing.
    """

    def __init__(self, kernels: Kernels, read: int, written: int, threads: int) -> None:
        self.kernels = kernels
        step = PROBE_UNROLL * kernels.target.vector_bytes
        paired = min(read, written)
        self._shares = {
            "copy": _bytes_per_thread(paired, threads, step),
            "read": _bytes_per_thread(read - paired, threads, step),
            "write": _bytes_per_thread(written - paired, threads, step),
        }
        thread_bytes = (
            2 * self._shares["copy"] + self._shares["read"] + self._shares["write"]
        ) & ~63
        self._block = map_block((thread_bytes + 8 * _SKEW) * threads)
        kernels.run("write", self._block.address, 0, self._block.size & ~0xFFF, 1)
        self._scale = (read + written) / (thread_bytes * threads)
        starts = [self._block.address + i * (thread_bytes + 8 * _SKEW) for i in range(threads)]
        self._tables: list[Any] = []
        cached = [self._job(start, "") for start in starts]
        nontemporal = [self._job(start, "_nt") for start in starts]
        repeats = max(
            3, MIN_TRIAL_BYTES // max(thread_bytes, 1)
        )  # a few runs of a small size measure only noise
        trials = [
            min(self._time(jobs, repeats) for _ in range(3)) for jobs in (cached, nontemporal)
        ]
        self._best = nontemporal if trials[1] < trials[0] else cached

    def _job(self, at: int, nt: str) -> Step:
        steps: list[Step] = []
        if copied := self._shares["copy"]:
            steps.append((f"copy{nt}", at + copied + _SKEW, at, copied))
            at += 2 * (copied + _SKEW)
        for kind in ("read", "write"):
            if size := self._shares[kind]:
                steps.append((kind + nt * (kind == "write"), at, at, size))
                at += size + _SKEW
        table = self.kernels.table(steps)
        self._tables.append(table)  # must outlive the job: native code reads it
        return ("sequence", 0, ctypes.addressof(table), len(steps))

    def _time(self, jobs: Sequence[Step], repeat: int) -> float:
        return run_parallel(self.kernels, jobs, repeat) / repeat * self._scale

    def time_ns(self, repeat: int = 1) -> float:
        """Return nanoseconds of moving everything once, averaged over `repeat` runs."""
        return self._time(self._best, repeat)


def _bytes_per_thread(size: int, threads: int, step: int) -> int:
    """Return the bytes of one thread, rounded up to whole unrolled steps; zero stays zero."""
    return -(-size // (threads * step)) * step
