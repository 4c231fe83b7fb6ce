"""Measure a library's products against ours: one of each shape class and type.

The whole program is timed, from call to result, alternating, since a machine's speed varies: that
includes handing over from one pool of threads to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, perf_counter_ns

from smelt import knobs
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.ops.library_product import DTYPES, Provider, limited_threads, using
from smelt.runtime.figures import AGREEMENT
from smelt.runtime.library_figures import Figures
from smelt.target import Target
from smelt.tune.arrays import random_array
from smelt.tune.race import HostContender

__all__ = ["PROGRAMS", "measure_products"]

Build = Callable[[Graph], HostContender]

PROGRAMS: Mapping[str, str] = {
    **{
        name: f"""graph product(x: DTYPE[{m},{k}], w: DTYPE[{k},{n}]) {{
          v0 = contract(x, w) {{spec="m,k; k,n -> m,n"}}
          return v0
        }}"""
        for name, m, n, k in (
            ("large", 512, 512, 512),
            ("few rows", 4, 1024, 1024),
            ("skinny", 4096, 64, 64),
        )
    },
    "convolution": """graph convolution(x: DTYPE[4,64,28,28], w: DTYPE[64,64,3,3]) {
      v0 = pad(x) {low=(0,0,1,1), high=(0,0,1,1), value=0.0}
      v1 = window(v0) {axis=2, extent=3, step=1, dilation=1}
      v2 = window(v1) {axis=3, extent=3, step=1, dilation=1}
      v3 = contract(v2, w) {spec="b,c,x,y,u,v; o,c,u,v -> b,o,x,y"}
      return v3
    }""",
}
"""The program that stands for each class, of a few milliseconds; the type is filled in."""
LEAST_RUNS, MOST_RUNS = 4, 12
"""Alternations of a product, whatever the time, and with time left."""
SECONDS = 1.5
"""Time in which all products are measured, without their compilation."""


def measure_products(build: Build, target: Target, library: Provider) -> Figures:
    """Return the times of products, ours and a library's, by number of threads.

    `build` compiles a graph under the settings in force.
    """
    by_threads: dict[str, dict[str, tuple[float, float]]] = {}
    cases = {
        f"{name} {d.name}": program.replace("DTYPE", d.name)
        for d in DTYPES
        for name, program in PROGRAMS.items()
        if name != "convolution" or library.convolve is not None
    }
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
            for name, program in cases.items():
                times = _times(build, parse(program), share)
                if times is not None:
                    rows[name] = times
    return {library.name: by_threads}


def _times(build: Build, graph: Graph, seconds: float) -> tuple[float, float] | None:
    """Return the best nanoseconds of our product and of the library's.

    None if the two best runs of a side do not confirm one another: a busy machine may make either
    look many times slower than it is.
    """
    ours = build(graph)
    with knobs.config(library_products="always"):
        other = build(graph)
    arrays = [random_array(x.type, {}, number) for number, x in enumerate(graph.inputs)]
    times: tuple[list[float], list[float]] = [], []
    end = perf_counter() + seconds
    for number in range(MOST_RUNS):
        for side, contender in zip(times, (ours, other), strict=True):
            start = perf_counter_ns()
            contender.run(arrays, ())
            side.append(max(perf_counter_ns() - start, 1))
        if number + 1 >= LEAST_RUNS and perf_counter() > end:
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
