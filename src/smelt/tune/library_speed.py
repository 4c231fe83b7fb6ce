"""Measure a library's products against ours: one of each shape class and type.

The whole program is timed, from call to result, alternating, since a machine's speed varies: that
includes handing over from one pool of threads to the other. `smelt doctor --probe` measures all
classes; in the background, a process measures those of its own programs, once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from time import perf_counter, perf_counter_ns

from smelt import knobs
from smelt.errors import SmeltError
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.machine.target import Target
from smelt.ops.library_product import DTYPES, Provider, limited_threads, using
from smelt.runtime import library_figures
from smelt.runtime.figures import AGREEMENT
from smelt.runtime.library_figures import Figures
from smelt.runtime.probe import TRIES_AT_ONCE, wait_for_background
from smelt.runtime.threads import default_threads
from smelt.tune.arrays import random_array
from smelt.tune.race import HostContender

Build = Callable[[Graph], HostContender]

PROGRAMS: Mapping[str, str] = {
    **{
        name: f"""graph product(x: DTYPE[{m},{k}], w: DTYPE[{k},{n}]) {{
          v0 = contract(x, w) {{spec="m,k; k,n -> m,n"}}
          return v0
        }}"""
        for name, m, n, k in (
            ("large", 512, 512, 512),
            ("one row", 1, 2048, 2048),
            ("few rows", 4, 1024, 1024),
            ("skinny", 4096, 64, 64),
        )
    },
    "batch": """graph products(x: DTYPE[96,64,64], w: DTYPE[96,64,64]) {
      v0 = contract(x, w) {spec="b,m,k; b,k,n -> b,m,n"}
      return v0
    }""",
    "convolution": """graph convolution(x: DTYPE[4,64,28,28], w: DTYPE[64,64,3,3]) {
      v0 = pad(x) {low=(0,0,1,1), high=(0,0,1,1), value=0.0}
      v1 = window(v0) {axis=2, extent=3, step=1, dilation=1}
      v2 = window(v1) {axis=3, extent=3, step=1, dilation=1}
      v3 = contract(v2, w) {spec="b,c,x,y,u,v; o,c,u,v -> b,o,x,y"}
      return v3
    }""",
}
"""The program that stands for each class, of a few milliseconds; the type is filled in."""
MIN_RUNS, MAX_RUNS = 4, 12
"""Alternations of a product, whatever the time, and with time left."""
SECONDS = 1.5
"""Time in which all products are measured, without their compilation."""


def measure_products(build: Build, target: Target, library: Provider) -> Figures:
    """Return the times of products, ours and a library's, by number of threads.

    `build` compiles a graph under the settings in force.
    """
    by_threads: dict[str, dict[str, tuple[float, float]]] = {}
    cases = [
        f"{name} {d.name}"
        for d in DTYPES
        for name in PROGRAMS
        if name != "convolution" or library.convolve is not None
    ]
    counts = [target.cores]
    if target.cores > 1 and library.get_threads() is not None:
        counts.append(1)
    share = SECONDS / (len(cases) * len(counts))
    for threads in counts:
        rows = by_threads[str(threads)] = {}
        with (
            using(library),
            limited_threads(library, threads),
            knobs.config(threads=threads, library_products="never", tune="off"),
        ):
            for name in cases:
                times = _Race(build, _program(name)).times(share)
                if times is not None:
                    rows[name] = times
    return {library.name: by_threads}


_measured: set[str] = set()
_lock = threading.Lock()


def start_background(
    build: Build, target: Target, library: Provider, names: Sequence[str]
) -> threading.Thread | None:
    """Measure classes of products, with types, that are not settled, in a daemon thread.

    Each is tried twice a process, all others in between, with the threads of a call: a library set
    to others is not measured, since that setting is the user's. A failing measurement is ignored.
    None if nothing is due.
    """
    threads = knobs.THREADS.get() or default_threads()
    prefix = f"{library.name} {threads} "
    figures = library_figures.load(target).get(library.name, {}).get(str(threads), {})
    tries = library_figures.tries(target)
    with _lock:
        due = [
            name
            for name in names
            if prefix + name not in _measured
            and name not in figures
            and len(tries.get(prefix + name, ())) < library_figures.MAX_TRIES
        ]
        if not due or library.get_threads() not in (None, threads):
            return None
        _measured.update(prefix + name for name in due)

    def work() -> None:
        wait_for_background()
        with using(library), knobs.config(library_products="never", tune="off"):
            try:
                races = {name: _Race(build, _program(name)) for name in due}
                for _ in range(TRIES_AT_ONCE):
                    for name, race in races.items():
                        if (times := race.times(SECONDS / len(PROGRAMS))) is not None:
                            library_figures.add_try(target, library.name, threads, name, times)
            except (SmeltError, OSError, RuntimeError, MemoryError):
                return

    run = copy_context().run  # the settings in force name the directory
    thread = threading.Thread(target=run, args=(work,), name="smelt-library-probe", daemon=True)
    thread.start()
    return thread


def _program(name: str) -> Graph:
    """Return the program of a class with a type, such as `large f32`."""
    shape, _, dtype = name.rpartition(" ")
    return parse(PROGRAMS[shape].replace("DTYPE", dtype))


class _Race:
    """Our product and the library's, compiled, with arrays for them."""

    def __init__(self, build: Build, graph: Graph) -> None:
        ours = build(graph)
        with knobs.config(library_products="always"):
            self.contenders = ours, build(graph)
        self.arrays = [random_array(x.type, {}, number) for number, x in enumerate(graph.inputs)]

    def times(self, seconds: float) -> tuple[float, float] | None:
        """Return the best nanoseconds of our product and of the library's.

        None if the two best runs of a side do not confirm one another: a busy machine may make
        either look many times slower than it is.
        """
        times: tuple[list[float], list[float]] = [], []
        end = perf_counter() + seconds
        for number in range(MAX_RUNS):
            for side, contender in zip(times, self.contenders, strict=True):
                start = perf_counter_ns()
                contender.run(self.arrays, ())
                side.append(max(perf_counter_ns() - start, 1))
            if number + 1 >= MIN_RUNS and perf_counter() > end:
                break
        return confirmed(*times)


def confirmed(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """Return the best time of each side if its second best is close.

    >>> confirmed([5.0, 2.0, 2.1], [1.0, 1.1, 9.0]), confirmed([5.0, 2.0, 9.0], [1.0, 1.1, 9.0])
    ((2.0, 1.0), None)
    """
    best: list[float] = []
    for times in (ours, other):
        first, second = sorted(times)[:2]
        if second > first * (1 + AGREEMENT):
            return None
        best.append(first)
    return best[0], best[1]
