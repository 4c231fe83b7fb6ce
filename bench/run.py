"""Run the benchmark: all libraries round-robin, with equal rows and threads.

For each row every library checks its result and finds its fastest variant; then rounds begin. In a
round each library runs once, in a rotating order, with uncounted calls until its caches and threads
are warm, and then the counted ones. So slow periods of a shared machine affect all libraries alike,
and the ratios between libraries are stable even where the absolute times are not. The floor, which
moves the row's compulsory bytes and computes nothing, is timed before and after each of them: a
library's ratio to the floor is the median of these pairs' ratios, since memory bandwidth may vary
by a factor of two within seconds.

    results = run(Options(only=("a1", "softmax_4096"), quick=True))
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import cold
from bench.peers import PACKAGES, PEERS, version
from bench.process import Say, Worker, pin_to_cpus, smelt_cache
from bench.results import Cold, Entry, Results, Row, Times, quartiles
from bench.worker import FLOOR, save_reference
from bench.workloads import WORKLOADS, Workload
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.runtime import host, probe

SETTLE_SECONDS = 0.01
"""Pause before a library runs, in which the previous one ends its busy waiting."""

LOAD_SECONDS = 600.0
CACHE = "cache"
SLOW_NS = 3e8
SLOW_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """Options of a run.

    Empty `only` and `peers` mean all; `threads` 0 means every physical core.

    `quick` takes fewer rounds and skips the fresh processes that time cold and warm starts. `small`
    shrinks every array to a test's size: for testing the harness, not for numbers.
    """

    only: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    threads: int = 0
    quick: bool = False
    small: bool = False
    cold: bool = True

    @property
    def rounds(self) -> int:
        return 5 if self.quick else 15

    @property
    def sample_ns(self) -> float:
        return 1e6 if self.quick else 4e6


def run(options: Options, say: Say | None = None) -> Results:
    """Run the benchmark; raise ValueError for a row or library that does not exist.

    Missing libraries, wrong results, crashes and time-outs are recorded in the results, not raised.
    """
    tell = say or _silent
    rows = _select(options.only, WORKLOADS, "row")
    names = list(_select(options.peers, PEERS, "library"))
    threads = options.threads or host.usable_host().cores
    with pin_to_cpus(threads):
        target = host.usable_host() if options.small else probe.measure()
        results = _measure_rows(rows, names, threads, target, options, tell)
        return replace(results, **_measure_starts(results, options, tell))


def _measure_rows(
    rows: dict[str, Workload],
    names: list[str],
    threads: int,
    target: Target,
    options: Options,
    tell: Say,
) -> Results:
    """Measure all rows in all libraries, warm."""
    measured: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        if target.measured:  # so that Smelt does not measure while it is being timed
            host.store(target, smelt_cache(Path(folder) / CACHE))
        workers = _Workers(names, threads, options, Path(folder))
        with ExitStack() as stack:
            stack.callback(workers.close)
            tell("starting " + ", ".join(names))
            workers.start()
            missing = workers.missing()
            for row in rows.values():
                tell(row.id)
                measured.append(_measure_row(workers, row, options, Path(folder)))
            record = _record_ns(workers)
    return Results(
        machine=describe_machine(target),
        threads=threads,
        peers={name: version(name) for name in names if name not in missing},
        missing=missing,
        rows=measured,
        record_ns=record,
    )


def _silent(_: str) -> None:
    return None


def _select(names: Sequence[str], table: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the wanted part of a table, in its order; a prefix selects several."""
    if not names:
        return table
    for name in names:
        if not any(key.startswith(name) for key in table):
            raise ValueError(f"unknown {what} {name!r}: choose from {', '.join(table)}")
    exact = set(names) & set(table)
    prefixes = tuple(name for name in names if name not in exact)
    return {k: v for k, v in table.items() if k in exact or (prefixes and k.startswith(prefixes))}


def describe_machine(target: Target) -> dict[str, Any]:
    """Return facts about the machine that readers need to judge the times."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "cpu": target.name,
        "isa": target.isa,
        "cores": target.cores,
        "l1_bytes": target.l1_bytes,
        "l2_bytes": target.l2_bytes,
        "l3_bytes": target.l3_bytes,
        "measured": target.measured,
        "dram_read_gbs": target.bandwidth("dram", "read"),
        "dram_copy_gbs": max(target.bandwidth("dram", "copy"), target.nt_copy_gbs),
        "fma_gflops": target.fma_gflops,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(load, 2),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


class _Workers:
    """The worker processes, restarted when one of them dies."""

    def __init__(self, names: list[str], threads: int, options: Options, folder: Path) -> None:
        self.names = [*names, FLOOR]
        self._threads = threads
        self._small = options.small
        self._folder = folder
        self.workers: dict[str, Worker] = {}
        self._unusable: dict[str, str] = {}

    def start(self) -> None:
        """Start every worker; note those whose library is missing."""
        for name in self.names:
            self._start(name)
            if self.workers[name].problem:
                self._unusable[name] = self.workers[name].problem

    def _start(self, name: str) -> None:
        self.workers[name] = Worker(name, self._threads, self._small, self._folder / CACHE)

    def revive(self) -> None:
        """Restart the workers that died on an earlier row."""
        for name, worker in self.workers.items():
            if worker.problem and name not in self._unusable:
                worker.close()
                self._start(name)

    def missing(self) -> dict[str, str]:
        """Return the libraries that could not be opened, with the reason."""
        return {name: why for name, why in self._unusable.items() if name != FLOOR}

    def present(self) -> list[str]:
        """Return the names of the workers that can run."""
        return [name for name in self.names if name not in self._unusable]

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()


def _measure_row(workers: _Workers, row: Workload, options: Options, folder: Path) -> Row:
    """Load one row in every library, then take times in rounds."""
    workers.revive()
    reference = folder / row.id
    read, written = save_reference(row, reference, options.small)
    loaded: dict[str, dict[str, Any]] = {}
    for name in workers.present():
        order = {"do": "load", "row": row.id, "reference": str(reference)}
        if name == FLOOR:
            if not row.floor:
                continue
            order = {"do": "load", "read": read, "written": written}
        loaded[name] = workers.workers[name].request(order, LOAD_SECONDS)
    for file in reference.iterdir():
        file.unlink()
    samples, over = _run_rounds(workers, loaded, options)
    times = {name: quartiles(values) for name, values in samples.items() if values}
    ratios = {name: quartiles(values) for name, values in over.items() if values}
    entries = {
        name: replace(_entry(reply, times.get(name)), over_floor=ratios.get(name))
        for name, reply in loaded.items()
        if name != FLOOR
    }
    return Row(row.id, row.title, row.group, read, written, times.get(FLOOR), entries)


Samples = dict[str, list[float]]


def _run_rounds(
    workers: _Workers, loaded: dict[str, dict[str, Any]], options: Options
) -> tuple[Samples, Samples]:
    """Return samples of every library with a correct result, and their ratios to the floor.

    There is one sample per round, in a rotating order; the floor is timed right before and after
    each.
    """
    measurable = [name for name, reply in loaded.items() if "ns" in reply]
    samples: Samples = {name: [] for name in measurable}
    over: Samples = {name: [] for name in measurable if name != FLOOR}

    def sample(name: str, sample_ns: float) -> float | None:
        expected = max(1.0, float(loaded[name]["ns"]))
        repeat = int(min(20_000, max(1, sample_ns / expected)))
        warm = int(min(repeat, max(1, sample_ns / 4 / expected)))
        time.sleep(SETTLE_SECONDS)
        reply = workers.workers[name].request({"do": "time", "repeat": repeat, "warm": warm}, 120.0)
        if "ns" not in reply:
            return None
        samples[name].append(float(reply["ns"]))
        return samples[name][-1]

    def floor() -> float | None:
        return sample(FLOOR, options.sample_ns / 2) if FLOOR in samples else None

    libraries = list(over)
    for number in range(options.rounds):
        offset = number % max(1, len(libraries))
        before = floor()
        for name in [*libraries[offset:], *libraries[:offset]]:
            if float(loaded[name]["ns"]) > SLOW_NS and number >= SLOW_ROUNDS:
                continue
            library_ns, after = sample(name, options.sample_ns), floor()
            if library_ns and before and after:
                over[name].append(2 * library_ns / (before + after))
            before = after
    return samples, over


def _entry(reply: dict[str, Any], times: Times | None) -> Entry:
    """Return the results of one library on one row."""
    failures: dict[str, str] = reply.get("failures", {})
    wrong = {label: e for label, e in reply.get("errors", {}).items() if not e <= 1.0}
    if times is None:
        reasons = [reply.get("failed", ""), *failures.values()]
        reasons += [f"wrong result, {e:.3g} times the tolerance ({k})" for k, e in wrong.items()]
        return Entry(problem=next((r for r in reasons if r), "stopped while being timed"))
    variant = str(reply["variant"])
    first = reply["first_ns"].get(variant)
    return Entry(times, variant, float(reply["error"]), first)


def _record_ns(workers: _Workers) -> dict[str, float]:
    """Return the ns of recording one operator, for the libraries that record."""
    ns_by_name: dict[str, float] = {}
    for name in workers.present():
        ns = workers.workers[name].request({"do": "record"}, 120.0).get("ns")
        if ns is not None:
            ns_by_name[name] = float(ns)
    return ns_by_name


def _measure_starts(results: Results, options: Options, tell: Say) -> dict[str, Any]:
    """Measure imports, cold and warm starts, each in a process of its own."""
    if options.quick or not options.cold:
        return {}
    imports: dict[str, float] = {}
    for name in cold.IMPORTS:
        if name not in results.missing and name in {p for n in results.peers for p in PACKAGES[n]}:
            ns = cold.import_ns(name)
            if ns is not None:
                imports[name] = ns
    starts: dict[str, dict[str, Cold]] = {}
    for row in results.rows:
        for name in ("inductor", "jax", "smelt"):
            entry = row.entries.get(name)
            if entry is not None and entry.times is not None:
                tell(f"{row.id}: fresh process, {name}")
                label = entry.variant
                starts.setdefault(row.id, {})[name] = cold.measure_cold(
                    name, row.id, results.threads, label, options.small
                )
    return {"import_ns": imports, "cold": starts}
