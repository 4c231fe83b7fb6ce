"""Measure this machine into a `Target`, in several tries, and store the figures.

The planner compares predicted nanoseconds, so its constants must be this machine's: bandwidth at
each memory level for one thread and for all, multiply-add peak, the cost of division, exponential
and gather, of fresh memory, of a native call and of LLVM. What else a shared machine does makes a
run slower, so each figure is the best of tries that are apart from each other, and processor time
is compared with wall time to tell quiet tries (`smelt.runtime.figures` decides what to trust).

Samples are stored as JSON next to the object cache, under the machine's identity
(`smelt.runtime.host`), after each part of the measurement: a process that ends meanwhile leaves
what it measured to the next one. Until all figures are settled the defaults of `Target.host()` are
used, and reports say that speeds are assumed.

    target = host.host_target()             # stored figures if there are any
    probe.start_background(done=planner.use)  # measure while the user works, once a process
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from smelt.kernel.abi import PARALLEL
from smelt.machine.target import DEFAULT_OP_NS, LEVELS, Level, Target
from smelt.runtime import figures, probe_kernels
from smelt.runtime.figures import Sample, Samples
from smelt.runtime.host import store_samples, stored_samples, usable_host
from smelt.runtime.probe_kernels import Kernels, MappedBlock, Run, Step, map_block
from smelt.runtime.quota import available_memory
from smelt.runtime.threads import pool

_SKEW = 33 * 64
"""Offset between two streams modulo 4 KiB, so that loads do not alias earlier stores."""

_KINDS = ("read", "write", "copy")
_RUNS = 3
"""Timed runs per figure and try, of which the best counts."""
TRIES_AT_ONCE = 2
"""Tries of a figure in one process: the parts are measured one after another, then once more."""

Progress = Callable[[str], None]


# Measuring ------------------------------------------------------------------------------------


def measure(
    target: Target | None = None, seconds: float = 2.0, say: Progress | None = None
) -> Target:
    """Return `target` (default: the host) with every figure measured, in about `seconds`.

    `say` is called with the name of each part before it begins. Raises OutOfMemory or
    RuntimeError if memory or LLVM fail.
    """
    target = target or usable_host()
    measured = figures.target_of(target, measure_samples(target, seconds, say))
    assert measured is not None
    return measured


def measure_samples(
    target: Target | None = None, seconds: float = 2.0, say: Progress | None = None
) -> Samples:
    """Like `measure`, but return the tries of every figure, with their quietness."""
    bench = Bench(target or usable_host(), seconds)
    samples: Samples = {}
    for number in range(TRIES_AT_ONCE):
        for part in PARTS:
            if say is not None and number == 0:
                say(part.title)
            samples = figures.add_samples(samples, part.run(bench))
    return samples


class Bench:
    """What the parts of a measurement share: loops and memory, made when first needed."""

    def __init__(self, target: Target, seconds: float = 2.0) -> None:
        self.target = target
        self.run_ns = seconds * 1e9 / (180 * TRIES_AT_ONCE)
        """Nanoseconds of one run."""

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self.target)

    def block(self, level: Level) -> MappedBlock:
        """Return memory for streams at a level, already touched."""
        return self._far_block if level == "dram" else self._near_block

    @cached_property
    def _near_block(self) -> MappedBlock:
        levels: tuple[Level, ...] = ("l1", "l2", "l3")
        counts = (1, self.target.cores)
        sizes = (n * (_level_bytes(self.target, x, n) + _SKEW) for x in levels for n in counts)
        return self._touched(max(sizes) + 2 * _SKEW)

    @cached_property
    def _far_block(self) -> MappedBlock:
        return self._touched(_dram_bytes(self.target) * 2 + (4 + self.target.cores) * _SKEW)

    def _touched(self, size: int) -> MappedBlock:
        block = map_block(size)
        self.kernels.run("write", block.address, block.address, block.size // 4096 * 4096, 1)
        return block


class Part(NamedTuple):
    """Figures that are measured together."""

    title: str
    names: tuple[str, ...]
    run: Callable[[Bench], dict[str, Sample]]


def _sample(value: float, share: float) -> Sample:
    return Sample(value, share, time.time())


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


def _rate(bench: Bench, kind: str, level: Level, threads: int) -> Sample:
    """Return the best GB/s of `threads` threads on a memory level."""
    size, block = _level_bytes(bench.target, level, threads), bench.block(level)
    starts = [(block.address + i * (size + _SKEW)) & ~63 for i in range(threads)]
    jobs = [_stream(kind, start, size) for start in starts]
    moved = sum(job[3] * (2 if kind.startswith("copy") else 1) for job in jobs)
    kernels = bench.kernels
    trial = max(1, probe_kernels.run_parallel(kernels, jobs, 1))
    repeat = max(1, int(bench.run_ns / trial))
    if repeat > 8:  # the trial includes thread start: repeat it with a longer run
        trial = max(1, probe_kernels.run_parallel(kernels, jobs, repeat))
        repeat = max(1, int(repeat * bench.run_ns / trial))
    best = min(probe_kernels.timed_parallel(kernels, jobs, repeat) for _ in range(_RUNS))
    return _sample(moved * repeat / max(1, best.ns), best.share)


def _bandwidth(bench: Bench, side: str, level: Level) -> dict[str, Sample]:
    """Measure the rates of a memory level, with one thread or with all."""
    threads = 1 if side == "one_thread" else bench.target.cores
    return {f"{side}.{level}.{kind}": _rate(bench, kind, level, threads) for kind in _KINDS}


def _nontemporal(bench: Bench) -> dict[str, Sample]:
    """Measure non-temporal stores in main memory with all threads."""
    names = zip(figures.NONTEMPORAL, ("write_nt", "copy_nt"), strict=True)
    return {name: _rate(bench, kind, "dram", bench.target.cores) for name, kind in names}


def _arithmetic(bench: Bench) -> dict[str, Sample]:
    """Measure the nanoseconds of one vector operation on one core, by operation."""
    kernels, table = bench.kernels, map_block(probe_kernels.TABLE_BYTES)
    samples: dict[str, Sample] = {}
    for name in DEFAULT_OP_NS:
        at = table.address
        trial = max(1, kernels.elapsed_ns(name, at, at, 0, 1000))
        repeat = max(1000, int(1000 * bench.run_ns / 2 / trial))
        best = min(kernels.timed(name, at, at, 0, repeat) for _ in range(_RUNS))
        ns = best.ns / repeat / probe_kernels.CHAINS
        samples[f"op_ns.{name}"] = _sample(ns, best.share)
    return samples


def _faults(bench: Bench) -> dict[str, Sample]:
    """Measure the first touch of fresh memory, in small pages and in huge ones."""
    names = zip(figures.FAULTS, (False, True), strict=True)
    return {name: _fault_ns_per_byte(bench.kernels, huge) for name, huge in names}


def _fault_ns_per_byte(kernels: Kernels, huge: bool) -> Sample:
    size = 16 << 20
    runs: list[Run] = []
    for _ in range(_RUNS):
        block = map_block(size, huge)
        runs.append(kernels.timed("touch", block.address, block.address, size, 1))
    best = min(runs)
    return _sample(best.ns / size, best.share)


def _compilation(bench: Bench) -> dict[str, Sample]:
    """Measure LLVM on the loops of the measurement itself."""
    kernels = Kernels(bench.target)
    ns = kernels.compile_ns / kernels.instructions
    return {"compile_ns_per_instr": _sample(ns, kernels.compile_share)}


def _calls(bench: Bench) -> dict[str, Sample]:
    """Measure a plan call with an empty kernel, and what forking adds."""
    workers = pool()
    count = max(2, workers.threads)
    address = bench.kernels.address("nothing")
    chunks = np.array([(address, 0, i, i + 1) for i in range(count)], np.int64)
    frame = np.zeros(1, np.int64)
    runs: list[Run] = []
    for flags in (0, PARALLEL):
        launches = np.array([(0, count, flags, 0)], np.int64)
        places = (chunks.ctypes.data, launches.ctypes.data, 1, frame.ctypes.data)
        runs.append(_best_calls(lambda at=places: workers.run_addresses(*at), _CALLS))
    alone, forked = (max(1.0, run.ns / _CALLS) for run in runs)
    share = runs[0].share  # a launch waits for its helpers
    return {
        "dispatch_ns": _sample(alone, share),
        "launch_ns": _sample(max(50.0, forked - alone), share),
    }


_CALLS = 1000
"""Calls of one run."""


def _best_calls(call: Callable[[], object], count: int) -> Run:
    runs: list[Run] = []
    for _ in range(5):
        started, busy = probe_kernels.wall_ns(), probe_kernels.thread_ns()
        for _ in range(count):
            call()
        ns, busy = probe_kernels.wall_ns() - started, probe_kernels.thread_ns() - busy
        runs.append(Run(ns, min(busy / max(ns, 1), 1.0)))
    return min(runs)


def _bandwidth_part(side: str, level: Level) -> Part:
    names = tuple(f"{side}.{level}.{kind}" for kind in _KINDS)
    threads = "one thread" if side == "one_thread" else "all threads"
    return Part(
        f"bandwidth of {level.upper()}, {threads}",
        names,
        lambda bench: _bandwidth(bench, side, level),
    )


PARTS: tuple[Part, ...] = (
    Part("arithmetic", figures.OPERATIONS, _arithmetic),
    *(_bandwidth_part(s, level) for s in ("one_thread", "all_threads") for level in LEVELS),
    Part("non-temporal stores", figures.NONTEMPORAL, _nontemporal),
    Part("calls", figures.CALLS, _calls),
    Part("page faults", figures.FAULTS, _faults),
    Part("compilation", figures.COMPILATION, _compilation),
)
"""The parts of a measurement, each some tens of milliseconds, the cheapest to prepare first."""


# Background measurement --------------------------------------------------------------------------


_background: list[threading.Thread] = []
_background_lock = threading.Lock()


def start_background(
    directory: Path | None = None,
    done: Callable[[Target], object] | None = None,
    *,
    again: bool = False,
) -> threading.Thread | None:
    """Measure and store in a daemon thread, once per process; None if already started.

    `done` is called in that thread with the measured target once all figures are settled. A failing
    measurement is ignored: the figures in force stay in use. `again` starts another measurement
    if the first one has ended.
    """

    def work() -> None:
        try:
            measured = measure_due(directory)
        except (OSError, RuntimeError, MemoryError, ValueError):
            return
        if measured is not None and done is not None:
            done(measured)

    with _background_lock:
        if _background and not (again and not _background[-1].is_alive()):
            return None
        run = copy_context().run  # the settings in force name the directory
        thread = threading.Thread(target=run, args=(work,), name="smelt-probe", daemon=True)
        _background.append(thread)
    thread.start()
    return thread


def wait_for_background() -> None:
    """Wait until no measurement runs: two at once would disturb each other."""
    with _background_lock:
        threads = tuple(_background)
    for thread in threads:
        thread.join()


def measure_due(directory: Path | None = None, seconds: float = 2.0) -> Target | None:
    """Try the figures that are due, and store each part.

    Return the target once all are settled.

    Samples that other processes stored meanwhile count.
    """
    bench = Bench(usable_host(), seconds)
    taken: Samples = {}
    for number in range(TRIES_AT_ONCE):
        for part in PARTS:
            samples = figures.merge(stored_samples(directory), taken)
            now = time.time()
            tried = len(taken.get(part.names[0], ()))
            if tried > number or not any(
                figures.is_due(name, samples.get(name, ()), now) for name in part.names
            ):
                continue
            taken = figures.add_samples(taken, part.run(bench))
            store_samples(figures.merge(stored_samples(directory), taken), directory)
    samples = figures.merge(stored_samples(directory), taken)
    if not figures.all_settled(samples):
        return None
    store_samples(samples, directory)
    return figures.target_of(bench.target, samples)
