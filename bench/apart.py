"""Compare fused kernels with their operators unfused: a kernel that loses should not be fused.

    python -m bench --apart              # the table
    python -m bench.apart      # its rows as JSON, from this process

A row is a kernel of the plan that Smelt chooses for a program, run alone on its operands.  The same
operators are compiled in other ways: each as a kernel of its own, and split into two programs at
one value, which the first stores and the second reads, each with its best plan.  Splits are at
reductions, at what reductions read, and at what several operators read; results are checked to
agree.  All ways run in one process, round-robin; the best of the rounds counts, in processor time.
Results and intermediates are in memory that was written before; constants of a program are operands
here.  The ratio is the fastest other way's time over the fused kernel's: it should be above 0.95.
Library calls and single operators have no rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm
from bench import around, losses
from bench.namespaces import smelt_namespace
from bench.parts import Cut, cuts, program_of
from bench.process import (
    Say,
    announce,
    command,
    ignore_progress,
    pin_to_cpus,
    run_and_report,
    variables,
)
from bench.results import geomean
from bench.sheet import sheet
from bench.table import Table, duration, ratio
from bench.workloads import WORKLOADS
from smelt import knobs, lower
from smelt.compiler import driver
from smelt.errors import SmeltError
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.fusion.plan import Cluster
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import all_size_names, input_size_names
from smelt.python.dataclass import dataclass
from smelt.tune.arrays import agree
from smelt.types.dtype import bool_
from smelt.types.expr import size
from smelt.types.tensor import TensorType

Array = np.ndarray[Any, Any]
Code = Callable[..., Any]
Sizes = Mapping[str, int]
ROUNDS, MIN_S, MAX_S = 5, 0.004, 8.0
"""Rounds of all ways, minimum seconds of a way per round, and seconds after which rounds end."""
AIMS = {"best / fused": 0.95}
"""Minimum that columns of the page should reach."""
CUTS = 12
"""Maximum values at which a kernel is split."""
GIVE_UP_RATIO = 1.5
"""Ratio of a way's first time to the kernel's above which it is not measured further."""
BAR = 0.95
"""Ratio below which a kernel should not have been fused."""
ALONE = "each alone"


@dataclass(frozen=True)
class KernelTimes:
    """Nanoseconds of a kernel, and of its operators in other ways by name."""

    title: str
    operators: str
    fused: float
    apart: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest of the other ways."""
        return min(self.apart, key=self.apart.__getitem__)

    @property
    def ratio(self) -> float:
        """Time of the fastest other way over the kernel's."""
        return self.apart[self.best] / self.fused


class Step:
    """A compiled program with its operands; calls overwrite the results of the first one."""

    def __init__(
        self, graph: Graph, arrays: Sequence[Array], at: Sizes, settings: Mapping[str, Any] = {}
    ) -> None:
        determined = set(input_size_names(graph))
        undetermined = [n for n in all_size_names(graph) if n not in determined]
        size_inputs = [
            build.input(f"t{k}", TensorType(bool_, (size(n),))) for k, n in enumerate(undetermined)
        ]
        self.arrays = [*arrays, *(np.zeros(at[n], np.bool_) for n in undetermined)]
        graph = Graph(graph.name, (*graph.inputs, *size_inputs), graph.outputs, graph.facts)
        with knobs.config(check_positions=False, constants=0, tune="off", **settings):
            self.program = driver.compile(graph, hints=at)
        self.sizes = tuple(at[n] for n in self.program.size_names)
        self.results = self.program.run(self.arrays, self.sizes)

    def __call__(self) -> None:
        self.program.run(self.arrays, self.sizes, self.results)


@dataclass(frozen=True)
class Contest:
    """A kernel and the other ways to run its operators, each a sequence of programs."""

    title: str
    operators: str
    fused: Step
    ways: dict[str, tuple[Step, ...]]

    def measure(self, rounds: int = ROUNDS) -> KernelTimes:
        """Return the best times of all ways on one thread, over alternating rounds."""
        with knobs.config(threads=1):
            return self._measure_rounds(rounds)

    def _measure_rounds(self, rounds: int) -> KernelTimes:
        all_ways = {"": (self.fused,), **self.ways}
        best = {name: min(_seconds(steps, 1) for _ in range(2)) for name, steps in all_ways.items()}
        competitive = {
            n: steps for n, steps in all_ways.items() if best[n] <= GIVE_UP_RATIO * best[""]
        }
        repeats = {n: max(1, int(MIN_S / max(best[n], 1e-7))) for n in competitive}
        ends = time.perf_counter() + MAX_S
        for _ in range(rounds):
            for name, steps in competitive.items():
                best[name] = min(best[name], _seconds(steps, repeats[name]))
            if time.perf_counter() > ends:
                break
        nanoseconds = {name: s * 1e9 for name, s in best.items()}
        return KernelTimes(self.title, self.operators, nanoseconds.pop(""), nanoseconds)


def _seconds(steps: Sequence[Step], times: int) -> float:
    """Return the processor time of one run of all steps."""
    started = time.thread_time()
    for _ in range(times):
        for step in steps:
            step()
    return (time.thread_time() - started) / times


# ---- kernels of programs -------------------------------------------------------------------------


def recorded(code: Code, arrays: Sequence[Array]) -> tuple[Graph, list[Array], dict[str, int]]:
    """Return a function's graph, its input arrays, and its sizes."""
    trace = sm.jit(code).lower(*arrays).trace
    inputs = [arrays[k] for k in trace.arguments] + [evaluate(x) for x in trace.captured]
    graph = trace.graph
    return Graph(graph.name, graph.inputs, graph.results, graph.facts), inputs, dict(trace.hints)


def contests(
    title: str, graph: Graph, arrays: Sequence[Array], at: Sizes, most: int = CUTS
) -> Iterator[Contest]:
    """Yield the kernels of a graph's plan that have several operators, each kind once.

    Raises AssertionError if two ways give different numbers.
    """
    with knobs.config(check_positions=False, constants=0, tune="off"):
        plan = driver.compile(graph, hints=at).plan
    kernels = [c for c in plan.clusters if not c.is_extern and len(_operators(c)) > 1]
    values = _values(plan.graph, arrays, at, [n for c in kernels for n in c.inputs])
    seen: set[object] = set()
    for cluster in kernels:
        kind = cluster if cluster.body is not None else lower.cluster_signature(cluster)
        if kind in seen:
            continue
        seen.add(kind)
        kernel_graph, sources = program_of(cluster, plan.graph)
        operands = [values[n] for n in sources]
        fused = Step(kernel_graph, operands, at)
        if len(fused.program.plan.clusters) > 1:  # fused only because of its neighbours
            fused = Step(kernel_graph, operands, at, {"must_fuse": (("*", "*"),)})
        if len(fused.program.plan.clusters) == 1:
            ways = dict(_other_ways(kernel_graph, operands, at, most, fused.results))
            yield Contest(title, " ".join(_operators(cluster)), fused, ways)


def _operators(cluster: Cluster) -> list[str]:
    """Return the operators that a kernel computes, without views."""
    return [n.op.name for n in cluster.nodes if n.inputs and not n.op.is_view]


def _values(
    graph: Graph, arrays: Sequence[Array], at: Sizes, nodes: Sequence[Node]
) -> dict[Node, Array]:
    """Return values of a graph with known inputs."""
    known_values: dict[Node, Array] = dict(zip(graph.inputs, arrays, strict=True))
    rest = tuple(dict.fromkeys(n for n in nodes if n not in known_values))
    if rest:
        step = Step(Graph("values", graph.inputs, rest, graph.facts), arrays, at)
        known_values |= dict(zip(rest, step.results, strict=True))
    return known_values


def _other_ways(
    kernel_graph: Graph, operands: list[Array], at: Sizes, most: int, expected: list[Array]
) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """Yield the other ways to compute a kernel's results, which are given for comparison."""
    unfused = Step(kernel_graph, operands, at, {"fuse": False})
    check(ALONE, expected, unfused.results, operands)
    yield ALONE, (unfused,)
    for number, cut in zip(range(most), cuts(kernel_graph), strict=False):
        try:
            steps = _split_steps(cut, operands, at)
        except SmeltError:  # such as a part that no library call can compute
            continue
        got = [steps[part].results[place] for part, place in cut.output_sources]
        name = f"cut at {cut.at} {number}"
        check(name, expected, got, operands)
        yield name, steps


def _split_steps(cut: Cut, operands: list[Array], at: Sizes) -> tuple[Step, Step]:
    first = Step(cut.graphs[0], [operands[k] for k in cut.first_inputs], at)
    reads = [operands[k] if outside else first.results[k] for outside, k in cut.reads]
    return first, Step(cut.graphs[1], reads, at)


def check(name: str, expected: list[Array], got: list[Array], operands: Sequence[Array]) -> None:
    """Raise AssertionError if two ways differ by more than the order of sums explains.

    A sum in double precision of values rounded to the operands' type is no more accurate than that
    type.
    """
    floats = [x.dtype for x in operands if x.dtype.kind == "f"]
    least = min(floats, key=lambda t: t.itemsize, default=None)

    def rounded(x: Array) -> Array:
        wider = least is not None and x.dtype.kind == "f" and x.dtype.itemsize > least.itemsize
        return x.astype(least) if wider else x

    if not all(map(agree, map(rounded, expected), map(rounded, got))):
        raise AssertionError(f"{name} gives other numbers")


# ---- programs and table --------------------------------------------------------------------------


def _layers(x: Any, *rest: Any) -> Any:
    """Apply linear layers with bias, and ReLU between them."""
    half = len(rest) // 2
    for k, (w, b) in enumerate(zip(rest[:half], rest[half:], strict=True)):
        x = x @ w + b if k == half - 1 else sm.maximum(x @ w + b, 0)
    return x


def _draw_arrays(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(s) / s[-1] ** 0.5).astype(np.float32) for s in shapes]


def _draw_layers(rows: int, *widths: int) -> list[Array]:
    pairs = list(pairwise(widths))
    return _draw_arrays((rows, widths[0]), *pairs, *((n,) for _, n in pairs))


def cases() -> Iterator[tuple[str, Code, Callable[[], Sequence[Array]]]]:
    """Yield the programs of the table: title, function, and a function that draws its arguments."""
    for row in WORKLOADS.values():
        if row.group in ("large", "cache"):
            yield row.title, partial(row.call, smelt_namespace(sm)), row.arrays
    for case in around.CASES:
        yield case.title, partial(case.code, smelt_namespace(sm)), partial(around.operands, case)
    for name, title in losses.TITLES.items():
        yield title, losses.smelt_call(name), partial(losses.operands, name)
    for rows, *widths in ((65536, 64, 64, 64, 64), (8192, 784, 100, 10), (16384, 128, 32, 128)):
        title = f"layers of {'-'.join(map(str, widths))}, {rows} rows"
        yield title, _layers, partial(_draw_layers, rows, *widths)
    low_rank = partial(_draw_arrays, (4096, 128), (128, 8), (8, 128), (4096, 128))
    yield "low-rank update, 4096×128", lambda x, a, b, y: y + (x @ a) @ b, low_rank
    three = partial(_draw_arrays, (8192, 384), *[(384, 384)] * 3)
    yield "three products of 8192×384", lambda x, q, k, v: (x @ q, x @ k, x @ v), three


def run(quick: bool = False, say: Say = ignore_progress) -> list[KernelTimes]:
    """Measure all rows, in a process with one thread."""
    line = command(["-m", "bench.apart", *["quick"] * quick], variables(1, None, "now"))
    with pin_to_cpus(1):
        output = run_and_report(line, say)
    return [KernelTimes(**row) for row in json.loads(output)]


def table(measured: list[KernelTimes]) -> Table:
    """Return the table of kernels: time, and ratios of the other ways."""
    headers = ("program", "operators", "fused", "each alone / fused", "best / fused", "best")
    rows = [
        (
            t.title,
            str(len(t.operators.split())),
            duration(t.fused),
            ratio(t.apart.get(ALONE, 0.0) / t.fused),
            ratio(t.ratio),
            t.best.rstrip(" 0123456789"),
        )
        for t in measured
    ]
    alone = geomean(t.apart.get(ALONE, 0.0) / t.fused for t in measured)
    mean = ("geometric mean", "", "", ratio(alone), ratio(geomean(t.ratio for t in measured)), "")
    return Table("Fused kernels and their operators apart", headers, (*rows, mean))


def to_json(measured: list[KernelTimes]) -> str:
    """Return the times as a JSON list of rows, with nanoseconds by way."""
    return json.dumps([asdict(t) for t in measured], indent=1)


def write(measured: list[KernelTimes], folder: Path) -> Path:
    """Write the table as a page of the documentation; return its path."""
    path = folder / "apart.md"
    title = "Kernels and their operators apart"
    text = sheet(title, "apart", __doc__, table(measured), aims=AIMS)
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    most, rounds = (2, 2) if "quick" in sys.argv else (CUTS, ROUNDS)
    every = [
        asdict(contest.measure(rounds))
        for title, code, draw in cases()
        for contest in announce(contests(title, *recorded(code, draw()), most))
    ]
    sys.stdout.write(json.dumps(every) + "\n")
