"""Measure this machine into a `Target` once, and store the figures.

The planner compares predicted nanoseconds, so its constants must be this machine's: bandwidth at
each memory level for one thread and for all, multiply-add peak, the cost of division, exponential
and gather, of fresh memory, of a native call and of LLVM. Each figure is the best of several
short runs, because any disturbance on a shared machine only makes a run slower.

The result is stored as JSON next to the object cache, under the machine's identity
(`smelt.runtime.host`); until it exists the defaults of `Target.host()` are used. They also stay
in use after measuring in the background on a busy machine: then the next process measures again
and the best of each figure is stored, until one measurement was undisturbed or TRIES were made.

    target = host.host_target()             # stored figures if there are any
    probe.start_background(done=planner.use)  # measure while the user works, once a process
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smelt.kernel.abi import PARALLEL
from smelt.runtime import probe_kernels
from smelt.runtime.host import MAX_TRIES, store, stored_attempts, usable_host
from smelt.runtime.probe_kernels import Kernels, MappedBlock, Step, map_block
from smelt.runtime.quota import available_memory
from smelt.runtime.threads import pool
from smelt.target import DEFAULT_OP_NS, LEVELS, Bandwidth, Kind, Level, Rates, Target

_SKEW = 33 * 64
"""Offset between two streams modulo 4 KiB, so that loads do not alias earlier stores."""

_KINDS: tuple[Kind, ...] = ("read", "write", "copy")
_RUNS = 4
"""Timed runs per figure, of which the best counts."""

MIN_QUIET_SHARE = 0.85
"""Least share of a processor that an undisturbed measuring thread gets."""

Progress = Callable[[str], None]


# Measuring ------------------------------------------------------------------------------------


def measure(
    target: Target | None = None, seconds: float = 2.0, say: Progress | None = None
) -> Target:
    """Return `target` (default: the host) with every figure measured, in about `seconds`.

    `say` is called with the name of each part before it begins. Raises OutOfMemory or
    RuntimeError if memory or LLVM fail.
    """
    return measure_with_share(target, seconds, say)[0]


def measure_with_share(
    target: Target | None = None, seconds: float = 2.0, say: Progress | None = None
) -> tuple[Target, float]:
    """Like `measure`, and also return the measuring thread's share of a processor.

    The share is 1 if no other thread wanted the processor.
    """
    target = target or usable_host()
    report = say or _silent
    kernels = Kernels(target)
    run_ns = seconds * 1e9 / 180
    report("memory bandwidth")
    block = map_block(_dram_bytes(target) * 2 + 4 * _SKEW)
    kernels.run("write", block.address, block.address, block.size // 4096 * 4096, 1)
    one_thread = _bandwidth(kernels, block, 1, run_ns)
    all_threads = _best_rates(_bandwidth(kernels, block, target.cores, run_ns), one_thread)
    stream = {k: _dram_rate(kernels, block, f"{k}_nt", target.cores, run_ns) for k in _KINDS[1:]}
    report("arithmetic")
    started, thread_started = time.perf_counter_ns(), time.thread_time_ns()
    op_ns = _arithmetic(kernels, run_ns)
    share = (time.thread_time_ns() - thread_started) / max(time.perf_counter_ns() - started, 1)
    report("page faults, calls and compilation")
    dispatch_ns, launch_ns = _call_ns(kernels)
    measured = replace(
        target,
        measured=True,
        one_thread=one_thread,
        all_threads=all_threads,
        nt_store_gbs=stream["write"],
        nt_copy_gbs=stream["copy"],
        **_operation_figures(target, op_ns),
        dispatch_ns=dispatch_ns,
        launch_ns=launch_ns,
        page_fault_ns_per_byte=_fault_ns_per_byte(kernels, huge=False),
        huge_fault_ns_per_byte=_fault_ns_per_byte(kernels, huge=True),
        compile_ns_per_instr=kernels.compile_ns / kernels.instructions,
    )
    return measured, min(share, 1.0)


def better_figures(a: Target, b: Target) -> Target:
    """Return the better of each figure of two measurements of one machine."""
    slower = {name: min(getattr(a, name), getattr(b, name)) for name in _NANOSECONDS}
    op_ns = {name: min(ns, b.op_ns.get(name, ns)) for name, ns in a.op_ns.items()}
    return replace(
        a,
        one_thread=_best_rates(a.one_thread, b.one_thread),
        all_threads=_best_rates(a.all_threads, b.all_threads),
        nt_store_gbs=max(a.nt_store_gbs, b.nt_store_gbs),
        nt_copy_gbs=max(a.nt_copy_gbs, b.nt_copy_gbs),
        **_operation_figures(a, op_ns),
        **slower,
    )


_NANOSECONDS = (
    "dispatch_ns",
    "launch_ns",
    "page_fault_ns_per_byte",
    "huge_fault_ns_per_byte",
    "compile_ns_per_instr",
)


def _operation_figures(target: Target, op_ns: dict[str, float]) -> dict[str, Any]:
    """Return the figures that follow from the time of each operation."""
    return {
        "op_ns": op_ns,
        "fma_gflops": 2 * target.lanes(4) / op_ns["fma"],
        "op_cost_scale": op_ns["exp"] / (probe_kernels.EXP_INSTRUCTIONS * op_ns["fma"]),
    }


def _silent(_: str) -> None:
    return None


def _dram_bytes(target: Target) -> int:
    """Return a stream size that no cache holds, within free memory."""
    free = available_memory()
    limit = min(384 << 20, (free if free is not None else 8 << 30) // 8)
    return min(max(2 * target.l3_bytes, 48 << 20), limit) & ~0xFFF


def _level_bytes(target: Target, level: Level, threads: int) -> int:
    """Return a working set per thread that fits `level` but not the level above it."""
    size = {
        "l1": target.l1_bytes // 2,
        "l2": target.l2_bytes // 2,
        "l3": min(target.l3_bytes // 2, max(6 * target.l2_bytes, target.l3_bytes // 4)) // threads,
        "dram": 2 * _dram_bytes(target) // threads,
    }[level]
    return max(1 << 13, size & ~0xFFF)


def _stream(kind: str, address: int, size: int) -> Step:
    """Return a traffic loop over `size` bytes at `address`; a copy uses two halves."""
    if not kind.startswith("copy"):
        return (kind, address, address, size)
    half = size // 2 & ~0xFFF
    return (kind, address + half + _SKEW, address, half)


def _rate(
    kernels: Kernels, block: MappedBlock, kind: str, size: int, threads: int, ns: float
) -> float:
    """Return the best GB/s of `threads` threads over `size` bytes each.

    A run takes about `ns`.
    """

    starts = [(block.address + i * (size + _SKEW)) & ~63 for i in range(threads)]
    jobs = [_stream(kind, start, size) for start in starts]
    moved = sum(job[3] * (2 if kind.startswith("copy") else 1) for job in jobs)
    trial = max(1, probe_kernels.run_parallel(kernels, jobs, 1))
    repeat = max(1, int(ns / trial))
    if repeat > 8:  # the trial includes thread start: repeat it with a longer run
        trial = max(1, probe_kernels.run_parallel(kernels, jobs, repeat))
        repeat = max(1, int(repeat * ns / trial))
    best = min(probe_kernels.run_parallel(kernels, jobs, repeat) for _ in range(_RUNS))
    return moved * repeat / max(1, best)


def _dram_rate(kernels: Kernels, block: MappedBlock, kind: str, threads: int, ns: float) -> float:
    size = _level_bytes(kernels.target, "dram", threads)
    return _rate(kernels, block, kind, size, threads, ns)


def _bandwidth(kernels: Kernels, block: MappedBlock, threads: int, ns: float) -> Bandwidth:
    rows: dict[str, Rates] = {}
    above: Rates | None = None
    for level in LEVELS:
        size = _level_bytes(kernels.target, level, threads)
        rates = {kind: _rate(kernels, block, kind, size, threads, ns) for kind in _KINDS}
        if above is not None:  # noise must not make an outer level faster than an inner one
            rates = {kind: min(rates[kind], getattr(above, kind)) for kind in _KINDS}
        above = rows[level] = Rates(**rates)
    return Bandwidth(**rows)


def _best_rates(many: Bandwidth, one: Bandwidth) -> Bandwidth:
    """Return the better rates of both; more threads are never slower, since some could idle."""
    return Bandwidth(
        **{
            level: Rates(
                **{k: max(getattr(many.at(level), k), getattr(one.at(level), k)) for k in _KINDS}
            )
            for level in LEVELS
        }
    )


def _arithmetic(kernels: Kernels, ns: float) -> dict[str, float]:
    """Return nanoseconds of one vector operation on one core, by operation."""
    table = map_block(probe_kernels.TABLE_BYTES)
    op_ns: dict[str, float] = {}
    for name in DEFAULT_OP_NS:
        trial = max(1, kernels.elapsed_ns(name, table.address, table.address, 0, 1000))
        repeat = max(1000, int(1000 * ns / 2 / trial))
        runs = [
            kernels.elapsed_ns(name, table.address, table.address, 0, repeat) for _ in range(_RUNS)
        ]
        op_ns[name] = min(runs) / repeat / probe_kernels.CHAINS
    return op_ns


def _fault_ns_per_byte(kernels: Kernels, huge: bool) -> float:
    """Measure the first touch of fresh memory: best of three blocks."""
    size = 16 << 20
    runs: list[int] = []
    for _ in range(3):
        block = map_block(size, huge)
        runs.append(kernels.elapsed_ns("touch", block.address, block.address, size, 1))
    return min(runs) / size


def _call_ns(kernels: Kernels) -> tuple[float, float]:
    """Measure a plan call with an empty kernel, and what forking adds."""
    workers = pool()
    count = max(2, workers.threads)
    address = kernels.address("nothing")
    chunks = np.array([(address, 0, i, i + 1) for i in range(count)], np.int64)
    frame = np.zeros(1, np.int64)
    figures: list[float] = []
    for flags in (0, PARALLEL):
        launches = np.array([(0, count, flags, 0)], np.int64)
        places = (chunks.ctypes.data, launches.ctypes.data, 1, frame.ctypes.data)
        figures.append(_best_call_ns(lambda at=places: workers.run_addresses(*at), 1000))
    return figures[0], max(50.0, figures[1] - figures[0])


def _best_call_ns(call: Callable[[], object], count: int) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter_ns()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter_ns() - started) / count)
    return max(1.0, best)


# Memory traffic alone: the lower bound of a benchmark ---------------------------------------------


MIN_TRIAL_BYTES = 1 << 20
"""Least bytes that a trial of store variants moves."""


class Mover:
    """Move as many bytes as a computation must, as fast as possible.

    It is the lower bound of a benchmark. `read` and `written` bytes are split among `threads`
    threads. Pairs of read and written bytes run as a copy, the rest as a read or a write; stores
    are non-temporal if that measured faster. Buffers are touched once here, outside the timing.
    """

    def __init__(self, kernels: Kernels, read: int, written: int, threads: int) -> None:
        self.kernels = kernels
        step = probe_kernels.PROBE_UNROLL * kernels.target.vector_bytes
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
        return probe_kernels.run_parallel(self.kernels, jobs, repeat) / repeat * self._scale

    def time_ns(self, repeat: int = 1) -> float:
        """Return nanoseconds of moving everything once, averaged over `repeat` runs."""
        return self._time(self._best, repeat)


def _bytes_per_thread(size: int, threads: int, step: int) -> int:
    """Return the bytes of one thread, rounded up to whole unrolled steps; zero stays zero."""
    return -(-size // (threads * step)) * step


# Background measurement --------------------------------------------------------------------------


_background: list[threading.Thread] = []
_background_lock = threading.Lock()


def start_background(
    directory: Path | None = None, done: Callable[[Target], object] | None = None
) -> threading.Thread | None:
    """Measure and store in a daemon thread, once per process; None if already started.

    `done` is called in that thread with the measured target once it can be trusted. A failing
    measurement is ignored: the default figures stay in use.
    """

    def work() -> None:
        try:
            measured, share = measure_with_share()
        except (OSError, RuntimeError, MemoryError, ValueError):
            return
        earlier = stored_attempts(directory)
        measured = measured if earlier is None else better_figures(measured, earlier.target)
        tries = 1 if earlier is None else earlier.tries + 1
        store(measured, directory, tries=MAX_TRIES if share >= MIN_QUIET_SHARE else tries)
        if done is not None and (share >= MIN_QUIET_SHARE or tries >= MAX_TRIES):
            done(measured)

    with _background_lock:
        if _background:
            return None
        thread = threading.Thread(target=work, name="smelt-probe", daemon=True)
        _background.append(thread)
    thread.start()
    return thread
