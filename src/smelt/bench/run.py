"""Run the benchmark: every library in turn, the same rows, the same threads, in one run.

For each row every library checks its answer and finds its fastest variant; then rounds begin. In
a round each library is woken once, in an order that rotates, makes uncounted calls until its
caches and threads are warm, and then the counted ones. So slow seconds of a shared machine hit all
alike, and the ratios between libraries hold even where the absolute times wander. The floor, which
moves the row's compulsory bytes and computes nothing, is timed before and behind each of them: what
a library takes over it is the median of these pairs' ratios, for memory may be twice as fast in one
second as in the next.

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

from smelt.bench import cold
from smelt.bench.peers import PACKAGES, PEERS, version
from smelt.bench.process import Say, Worker, kept_to, smelt_cache
from smelt.bench.results import Cold, Entry, Results, Row, Times, quartiles
from smelt.bench.worker import FLOOR, save_reference
from smelt.bench.workloads import WORKLOADS, Workload
from smelt.dataclass import dataclass
from smelt.runtime import host, probe
from smelt.target import Target

SETTLE_SECONDS = 0.01
"""Pause before a library is woken, in which the one before it ends its busy waiting."""

LOAD_SECONDS = 600.0
CACHE = "cache"
SLOW_NS = 3e8
SLOW_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """What to run. Empty `only` and `peers` mean all; `threads` 0 means every physical core.

    `quick` takes fewer rounds and leaves out the fresh processes that time cold and warm starts.
    `small` shrinks every array to a test's size: for trying the harness, not for numbers.
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
    """The whole benchmark; raises ValueError for a row or library that does not exist.

    Libraries that are not installed, wrong answers, crashes and time-outs are findings in the
    results, not exceptions.
    """
    tell = say or _silent
    rows = _chosen(options.only, WORKLOADS, "row")
    names = list(_chosen(options.peers, PEERS, "library"))
    threads = options.threads or host.usable_host().cores
    with kept_to(threads):
        target = host.usable_host() if options.small else probe.measure()
        results = _interleaved(rows, names, threads, target, options, tell)
        return replace(results, **_fresh_processes(results, options, tell))


def _interleaved(
    rows: dict[str, Workload],
    names: list[str],
    threads: int,
    target: Target,
    options: Options,
    tell: Say,
) -> Results:
    """All rows in all libraries, warm."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        if target.measured:  # so that Smelt need not measure while it is being timed
            host.store(target, smelt_cache(Path(folder) / CACHE))
        crew = _Crew(names, threads, options, Path(folder))
        with ExitStack() as stack:
            stack.callback(crew.close)
            tell("starting " + ", ".join(names))
            crew.start()
            missing = crew.missing()
            for row in rows.values():
                tell(row.id)
                found.append(_measure_row(crew, row, options, Path(folder)))
            record = _recording(crew)
    return Results(
        machine=describe_machine(target),
        threads=threads,
        peers={name: version(name) for name in names if name not in missing},
        missing=missing,
        rows=found,
        record_ns=record,
    )


def _silent(_: str) -> None:
    return None


def _chosen(wanted: Sequence[str], table: dict[str, Any], what: str) -> dict[str, Any]:
    """The wanted part of a table, in the table's order; a prefix such as `chain` takes several."""
    if not wanted:
        return table
    for name in wanted:
        if not any(key.startswith(name) for key in table):
            raise ValueError(f"unknown {what} {name!r}: choose from {', '.join(table)}")
    exact = set(wanted) & set(table)
    prefixes = tuple(name for name in wanted if name not in exact)
    return {k: v for k, v in table.items() if k in exact or (prefixes and k.startswith(prefixes))}


def describe_machine(target: Target) -> dict[str, Any]:
    """Facts that a reader needs to judge the times."""
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


class _Crew:
    """The workers, replaced when one of them dies."""

    def __init__(self, names: list[str], threads: int, options: Options, folder: Path) -> None:
        self.names = [*names, FLOOR]
        self._threads = threads
        self._small = options.small
        self._folder = folder
        self.workers: dict[str, Worker] = {}
        self._unusable: dict[str, str] = {}

    def start(self) -> None:
        """Start every worker; note the ones whose library is not there."""
        for name in self.names:
            self._start(name)
            if self.workers[name].problem:
                self._unusable[name] = self.workers[name].problem

    def _start(self, name: str) -> None:
        self.workers[name] = Worker(name, self._threads, self._small, self._folder / CACHE)

    def revive(self) -> None:
        """Start again what died on an earlier row."""
        for name, worker in self.workers.items():
            if worker.problem and name not in self._unusable:
                worker.close()
                self._start(name)

    def missing(self) -> dict[str, str]:
        """Libraries that could not be opened, with the reason."""
        return {name: why for name, why in self._unusable.items() if name != FLOOR}

    def present(self) -> list[str]:
        """Names of the workers that can be asked."""
        return [name for name in self.names if name not in self._unusable]

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()


def _measure_row(crew: _Crew, row: Workload, options: Options, folder: Path) -> Row:
    """Load one row everywhere, then take the times in rounds."""
    crew.revive()
    reference = folder / row.id
    read, written = save_reference(row, reference, options.small)
    loaded: dict[str, dict[str, Any]] = {}
    for name in crew.present():
        order = {"do": "load", "row": row.id, "reference": str(reference)}
        if name == FLOOR:
            if not row.floor:
                continue
            order = {"do": "load", "read": read, "written": written}
        loaded[name] = crew.workers[name].ask(order, LOAD_SECONDS)
    for file in reference.iterdir():
        file.unlink()
    samples, over = _rounds(crew, loaded, options)
    times = {name: quartiles(found) for name, found in samples.items() if found}
    ratios = {name: quartiles(found) for name, found in over.items() if found}
    entries = {
        name: replace(_entry(reply, times.get(name)), over_floor=ratios.get(name))
        for name, reply in loaded.items()
        if name != FLOOR
    }
    return Row(row.id, row.title, row.group, read, written, times.get(FLOOR), entries)


Samples = dict[str, list[float]]


def _rounds(
    crew: _Crew, loaded: dict[str, dict[str, Any]], options: Options
) -> tuple[Samples, Samples]:
    """Samples of every library that answered right, one a round, in a rotating order; and how many
    times the floor each took, which is timed right before and behind it."""
    able = [name for name, reply in loaded.items() if "ns" in reply]
    samples: Samples = {name: [] for name in able}
    over: Samples = {name: [] for name in able if name != FLOOR}

    def sample(name: str, sample_ns: float) -> float | None:
        expected = max(1.0, float(loaded[name]["ns"]))
        repeat = int(min(20_000, max(1, sample_ns / expected)))
        warm = int(min(repeat, max(1, sample_ns / 4 / expected)))
        time.sleep(SETTLE_SECONDS)
        reply = crew.workers[name].ask({"do": "time", "repeat": repeat, "warm": warm}, 120.0)
        if "ns" not in reply:
            return None
        samples[name].append(float(reply["ns"]))
        return samples[name][-1]

    def floor() -> float | None:
        return sample(FLOOR, options.sample_ns / 2) if FLOOR in samples else None

    libraries = list(over)
    for number in range(options.rounds):
        turn = number % max(1, len(libraries))
        before = floor()
        for name in [*libraries[turn:], *libraries[:turn]]:
            if float(loaded[name]["ns"]) > SLOW_NS and number >= SLOW_ROUNDS:
                continue
            taken, behind = sample(name, options.sample_ns), floor()
            if taken and before and behind:
                over[name].append(2 * taken / (before + behind))
            before = behind
    return samples, over


def _entry(reply: dict[str, Any], times: Times | None) -> Entry:
    """What the table says about one library on one row."""
    failures: dict[str, str] = reply.get("failures", {})
    wrong = {label: e for label, e in reply.get("errors", {}).items() if not e <= 1.0}
    if times is None:
        reasons = [reply.get("failed", ""), *failures.values()]
        reasons += [f"wrong result, {e:.3g} times the tolerance ({k})" for k, e in wrong.items()]
        return Entry(problem=next((r for r in reasons if r), "stopped while being timed"))
    variant = str(reply["variant"])
    first = reply["first_ns"].get(variant)
    return Entry(times, variant, float(reply["error"]), first)


def _recording(crew: _Crew) -> dict[str, float]:
    """What one recorded operator costs, for the libraries that record."""
    found: dict[str, float] = {}
    for name in crew.present():
        ns = crew.workers[name].ask({"do": "record"}, 120.0).get("ns")
        if ns is not None:
            found[name] = float(ns)
    return found


def _fresh_processes(results: Results, options: Options, tell: Say) -> dict[str, Any]:
    """Import times, and cold and warm starts of the compilers, each in a process of its own."""
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
