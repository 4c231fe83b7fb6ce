"""Run one library in a process of its own, on orders from standard input.

Orders are JSON objects, one per line.

Separate processes keep the comparison fair: no library's threads, allocator or imports affect
another's, a crash costs one library one row, and while one is timed the others sleep in a read.
What a library prints goes to standard error; only replies go to standard output.

    {"do": "load", "row": "a2", "reference": "/tmp/x/a2"}   -> variants, errors, first-call times
    {"do": "time", "repeat": 10, "warm": 2}                 -> nanoseconds per call
    {"do": "record"}                                        -> nanoseconds per operator
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bench.mover import Mover
from bench.peers import Unavailable, Variant, configure_process, open_peer
from bench.workloads import WORKLOADS, Workload
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.runtime.probe import Kernels

Reply = dict[str, Any]

FLOOR = "floor"
"""The name of the worker that moves the row's bytes and computes nothing."""


def save_reference(row: Workload, folder: Path, small: bool) -> tuple[int, int]:
    """Write the float64 result for the workers to compare with; return the traffic in bytes."""
    arrays = row.arrays(small)
    outputs = row.reference(arrays)
    folder.mkdir(parents=True, exist_ok=True)
    for i, output in enumerate(outputs):
        np.save(folder / f"{i}.npy", output)
    return row.traffic(arrays, outputs)


def _load_reference(folder: Path) -> list[Any]:
    return [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]


def mean_ns(call: Callable[[], Any], repeat: int) -> float:
    """Return the mean ns of `repeat` calls; each result is dropped before the next."""
    started = time.perf_counter_ns()
    for _ in range(repeat):
        call()
    return (time.perf_counter_ns() - started) / repeat


@dataclass
class _Measured:
    """A variant after its first calls."""

    variant: Variant
    first_ns: float
    error: float
    ns: float = float("inf")


class LibraryWorker:
    """Runs rows in one library and answers orders."""

    def __init__(self, name: str, threads: int, small: bool) -> None:
        self._peer = open_peer(name, threads)
        self._small = small
        self._call: Callable[[], Any] | None = None

    def load(self, row: str, reference: str, **_: Any) -> Reply:
        """Run every variant once, check it, time the correct ones and keep the fastest."""
        self._call = None
        gc.collect()
        work = WORKLOADS[row]
        arrays = work.arrays(self._small)
        want = _load_reference(Path(reference))
        tries: list[_Measured] = []
        failures: dict[str, str] = {}
        for variant in self._peer.variants(work, arrays):
            try:
                tries.append(self._measure(work, variant, want))
            except Exception as error:  # noqa: BLE001 - a library's failure is a row of the table
                failures[variant.label] = f"{type(error).__name__}: {error}"[:300]
        right = [t for t in tries if t.error <= 1.0]
        reply: Reply = {
            "failures": failures,
            "errors": {t.variant.label: t.error for t in tries},
            "first_ns": {t.variant.label: t.first_ns for t in tries},
        }
        if right:
            best = min(right, key=lambda t: t.ns)
            self._call = best.variant.call
            reply |= {"variant": best.variant.label, "ns": best.ns, "error": best.error}
        return reply

    def _measure(self, work: Workload, variant: Variant, want: list[Any]) -> _Measured:
        started = time.perf_counter_ns()
        result = variant.call()
        first = time.perf_counter_ns() - started
        measured = _Measured(variant, first, work.check(variant.fetch(result), want))
        del result
        if measured.error <= 1.0:
            variant.call()
            measured.ns = mean_ns(variant.call, 1)
            repeat = int(min(1000, max(1, 5e6 / measured.ns)))
            measured.ns = min(mean_ns(variant.call, repeat) for _ in range(3))
        return measured

    def time(self, repeat: int, warm: int, **_: Any) -> Reply:
        """Make `warm` calls that do not count, then return the mean of `repeat` calls."""
        if self._call is None:
            return {"failed": "nothing loaded"}
        for _i in range(warm):
            self._call()
        return {"ns": mean_ns(self._call, repeat)}

    def record(self, **_: Any) -> Reply:
        """Return the cost of recording an operator; null for a library that does not record."""
        return {"ns": self._peer.record_ns()}


class FloorWorker:
    """Moves a row's compulsory bytes with all threads: a lower bound for any library."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._kernels = Kernels(Target.host())
        self._mover: Mover | None = None

    def load(self, read: int, written: int, **_: Any) -> Reply:
        """Prepare buffers for so many bytes read and written."""
        self._mover = None
        self._mover = Mover(self._kernels, read, written, self._threads)
        once = min(self._mover.time_ns(repeat) for repeat in (1, 10, 1000 if read < 1 << 20 else 3))
        return {"variant": "copy loop", "ns": once, "error": 0.0, "first_ns": {}, "failures": {}}

    def time(self, repeat: int, warm: int, **_: Any) -> Reply:
        """Return the mean nanoseconds of `repeat` runs in native code."""
        if self._mover is None:
            return {"failed": "nothing loaded"}
        if warm:
            self._mover.time_ns(warm)
        return {"ns": self._mover.time_ns(repeat)}

    def record(self, **_: Any) -> Reply:
        """Return null: the floor records nothing."""
        return {"ns": None}


def serve(worker: LibraryWorker | FloorWorker, orders: TextIO, replies: TextIO) -> None:
    """Answer orders until the input ends; reply to a failed order with its reason."""
    for line in orders:
        order = json.loads(line)
        try:
            reply = getattr(worker, order.pop("do"))(**order)
        except Exception as error:  # noqa: BLE001 - reported, and the worker lives on
            reply = {"failed": f"{type(error).__name__}: {error}"[:300]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main(arguments: list[str]) -> None:
    """Open the library, report readiness, and serve; the arguments are name, threads, size."""
    name, threads, small = arguments
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with replies
    try:
        worker: LibraryWorker | FloorWorker
        if name == FLOOR:
            worker = FloorWorker(int(threads))
        else:
            configure_process(name)
            worker = LibraryWorker(name, int(threads), small == "small")
    except Unavailable as reason:
        replies.write(json.dumps({"failed": str(reason)}) + "\n")
        replies.flush()
        return
    replies.write(json.dumps({"ready": name}) + "\n")
    replies.flush()
    serve(worker, sys.stdin, replies)


if __name__ == "__main__":
    main(sys.argv[1:])
