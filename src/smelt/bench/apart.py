"""Fused kernels beside their own operators apart: a kernel that loses was joined by mistake.

    smelt bench --apart              # the table
    python -m smelt.bench.apart      # its rows as JSON, from this process

A row is a kernel of the plan that Smelt chooses for a program, alone with its operands.  The same
operators are compiled in other ways: each as a kernel of its own, and cut in two programs at one
value, which the first stores and the second reads, each with the plan that is best for it.  Cuts
are at folds, at what folds read, and at what several operators read; results are checked to agree.
All ways stand in one process and take turns; the best of the rounds counts, in processor time.
Results and what lies between are in memory that was written before; what is constant in a program
is an operand here.  The ratio is the fastest other way's time over the fused kernel's: it should
be above 0.95.  A library call and a single operator are no rows.
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
from smelt import driver, knobs, lower
from smelt.bench import around, losses
from smelt.bench.namespaces import smelt_namespace
from smelt.bench.parts import Cut, cuts, program_of
from smelt.bench.process import Say, announced, command, heard, kept_to, silent, variables
from smelt.bench.results import geomean
from smelt.bench.sheet import sheet
from smelt.bench.table import Table, duration, ratio
from smelt.bench.workloads import WORKLOADS
from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.frontends.array.evaluate_pending import realise
from smelt.fusion.plan import Cluster
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import size_names, sizes
from smelt.tune.arrays import agree
from smelt.types.dtype import bool_
from smelt.types.expr import size
from smelt.types.tensor import TensorType

Array = np.ndarray[Any, Any]
Code = Callable[..., Any]
Sizes = Mapping[str, int]
ROUNDS, LEAST_S, MOST_S = 5, 0.004, 8.0
AIMS = {"best / fused": 0.95}
"""The least that columns of the page are to say."""
"""Turns of all ways, the time of one at least, and seconds after which there are no more turns."""
CUTS = 12
"""Places at most at which a kernel is cut."""
HOPELESS = 1.5
"""How many times as long as the kernel a way may take at first to be measured further."""
BAR = 0.95
"""The ratio below which a kernel had better not have been fused."""
ALONE = "each alone"


@dataclass(frozen=True)
class Timed:
    """Nanoseconds of one kernel, and of its operators in other ways by name."""

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
        """How many times as long as the kernel that one takes."""
        return self.apart[self.best] / self.fused


class Step:
    """A compiled program on its operands; calls write over the results of the first one."""

    def __init__(
        self, graph: Graph, arrays: Sequence[Array], at: Sizes, settings: Mapping[str, Any] = {}
    ) -> None:
        known = set(size_names(graph))
        untold = [n for n in sizes(graph) if n not in known]
        tellers = [
            build.input(f"t{k}", TensorType(bool_, (size(n),))) for k, n in enumerate(untold)
        ]
        self.arrays = [*arrays, *(np.zeros(at[n], np.bool_) for n in untold)]
        graph = Graph(graph.name, (*graph.inputs, *tellers), graph.outputs, graph.facts)
        with knobs.config(check_positions=False, constants=0, tune="off", **settings):
            self.program = driver.compile(graph, hints=at)
        self.sizes = tuple(at[n] for n in self.program.size_names)
        self.results = self.program.run(self.arrays, self.sizes)

    def __call__(self) -> None:
        self.program.run(self.arrays, self.sizes, self.results)


@dataclass(frozen=True)
class Contest:
    """A kernel, and the ways to run its operators: programs one after another."""

    title: str
    operators: str
    fused: Step
    ways: dict[str, tuple[Step, ...]]

    def measure(self, rounds: int = ROUNDS) -> Timed:
        """The best times of all on one thread, over rounds in which they take turns."""
        with knobs.config(threads=1):
            return self._raced(rounds)

    def _raced(self, rounds: int) -> Timed:
        known = {"": (self.fused,), **self.ways}
        best = {name: min(_seconds(steps, 1) for _ in range(2)) for name, steps in known.items()}
        near = {n: steps for n, steps in known.items() if best[n] <= HOPELESS * best[""]}
        times = {n: max(1, int(LEAST_S / max(best[n], 1e-7))) for n in near}
        ends = time.perf_counter() + MOST_S
        for _ in range(rounds):
            for name, steps in near.items():
                best[name] = min(best[name], _seconds(steps, times[name]))
            if time.perf_counter() > ends:
                break
        found = {name: s * 1e9 for name, s in best.items()}
        return Timed(self.title, self.operators, found.pop(""), found)


def _seconds(steps: Sequence[Step], times: int) -> float:
    """Processor time of one run of all steps."""
    started = time.thread_time()
    for _ in range(times):
        for step in steps:
            step()
    return (time.thread_time() - started) / times


# ---- from programs to contests -------------------------------------------------------------------


def recorded(code: Code, arrays: Sequence[Array]) -> tuple[Graph, list[Array], dict[str, int]]:
    """A function's graph, the arrays that are its inputs, and its sizes."""
    trace = sm.jit(code).lower(*arrays).trace
    found = [arrays[k] for k in trace.arguments] + [realise(x) for x in trace.captured]
    graph = trace.graph
    return Graph(graph.name, graph.inputs, graph.results, graph.facts), found, dict(trace.hints)


def contests(
    title: str, graph: Graph, arrays: Sequence[Array], at: Sizes, most: int = CUTS
) -> Iterator[Contest]:
    """The kernels of a graph's plan that hold several operators, each kind once.

    Raises AssertionError where two ways give other numbers.
    """
    with knobs.config(check_positions=False, constants=0, tune="off"):
        plan = driver.compile(graph, hints=at).plan
    kernels = [c for c in plan.clusters if not c.is_extern and len(_operators(c)) > 1]
    values = _values(plan.graph, arrays, at, [n for c in kernels for n in c.inputs])
    seen: set[object] = set()
    for cluster in kernels:
        kind = cluster if cluster.body is not None else lower.spelled(cluster)
        if kind in seen:
            continue
        seen.add(kind)
        whole, sources = program_of(cluster, plan.graph)
        given = [values[n] for n in sources]
        fused = Step(whole, given, at)
        if len(fused.program.plan.clusters) > 1:  # others around it had made it one
            fused = Step(whole, given, at, {"must_fuse": (("*", "*"),)})
        if len(fused.program.plan.clusters) == 1:
            ways = dict(_ways(whole, given, at, most, fused.results))
            yield Contest(title, " ".join(_operators(cluster)), fused, ways)


def _operators(cluster: Cluster) -> list[str]:
    """What a kernel computes, views left out."""
    return [n.op.name for n in cluster.nodes if n.inputs and not n.op.is_view]


def _values(
    graph: Graph, arrays: Sequence[Array], at: Sizes, wanted: Sequence[Node]
) -> dict[Node, Array]:
    """Values of a graph whose inputs are known."""
    found: dict[Node, Array] = dict(zip(graph.inputs, arrays, strict=True))
    rest = tuple(dict.fromkeys(n for n in wanted if n not in found))
    if rest:
        step = Step(Graph("values", graph.inputs, rest, graph.facts), arrays, at)
        found |= dict(zip(rest, step.results, strict=True))
    return found


def _ways(
    whole: Graph, given: list[Array], at: Sizes, most: int, wanted: list[Array]
) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """The other ways to compute a kernel's results, which are known."""
    apart = Step(whole, given, at, {"fuse": False})
    check(ALONE, wanted, apart.results, given)
    yield ALONE, (apart,)
    for number, cut in zip(range(most), cuts(whole), strict=False):
        try:
            steps = _cut(cut, given, at)
        except SmeltError:  # such as what no library call is made of
            continue
        got = [steps[part].results[place] for part, place in cut.gives]
        name = f"cut at {cut.at} {number}"
        check(name, wanted, got, given)
        yield name, steps


def _cut(cut: Cut, given: list[Array], at: Sizes) -> tuple[Step, Step]:
    first = Step(cut.graphs[0], [given[k] for k in cut.given], at)
    reads = [given[k] if outside else first.results[k] for outside, k in cut.reads]
    return first, Step(cut.graphs[1], reads, at)


def check(name: str, wanted: list[Array], got: list[Array], given: Sequence[Array]) -> None:
    """Raises AssertionError where two ways differ by more than orders of sums do.  A sum in double
    precision of what was rounded to the operands' type is no better than that."""
    floats = [x.dtype for x in given if x.dtype.kind == "f"]
    least = min(floats, key=lambda t: t.itemsize, default=None)

    def rounded(x: Array) -> Array:
        wider = least is not None and x.dtype.kind == "f" and x.dtype.itemsize > least.itemsize
        return x.astype(least) if wider else x

    if not all(map(agree, map(rounded, wanted), map(rounded, got))):
        raise AssertionError(f"{name} gives other numbers")


# ---- the table -----------------------------------------------------------------------------------


def _layers(x: Any, *rest: Any) -> Any:
    """Layers with a bias each, a rectifier between."""
    half = len(rest) // 2
    for k, (w, b) in enumerate(zip(rest[:half], rest[half:], strict=True)):
        x = x @ w + b if k == half - 1 else sm.maximum(x @ w + b, 0)
    return x


def _drawn(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(s) / s[-1] ** 0.5).astype(np.float32) for s in shapes]


def _network(rows: int, *widths: int) -> list[Array]:
    pairs = list(pairwise(widths))
    return _drawn((rows, widths[0]), *pairs, *((n,) for _, n in pairs))


def cases() -> Iterator[tuple[str, Code, Callable[[], Sequence[Array]]]]:
    """The programs of the table: title, function, and what draws its arguments."""
    for row in WORKLOADS.values():
        if row.group in ("large", "cache"):
            yield row.title, partial(row.call, smelt_namespace(sm)), row.arrays
    for case in around.CASES:
        yield case.title, partial(case.code, smelt_namespace(sm)), partial(around.operands, case)
    for name, title in losses.TITLES.items():
        yield title, losses.of_smelt(name), partial(losses.operands, name)
    for rows, *widths in ((65536, 64, 64, 64, 64), (8192, 784, 100, 10), (16384, 128, 32, 128)):
        title = f"layers of {'-'.join(map(str, widths))}, {rows} rows"
        yield title, _layers, partial(_network, rows, *widths)
    low_rank = partial(_drawn, (4096, 128), (128, 8), (8, 128), (4096, 128))
    yield "low-rank update, 4096×128", lambda x, a, b, y: y + (x @ a) @ b, low_rank
    three = partial(_drawn, (8192, 384), *[(384, 384)] * 3)
    yield "three products of 8192×384", lambda x, q, k, v: (x @ q, x @ k, x @ v), three


def run(quick: bool = False, say: Say = silent) -> list[Timed]:
    """All rows, in a process with one thread."""
    line = command(["-m", "smelt.bench.apart", *["quick"] * quick], variables(1, None, "now"))
    with kept_to(1):
        found = heard(line, say)
    return [Timed(**row) for row in json.loads(found)]


def table(found: list[Timed]) -> Table:
    """For each kernel its time, the ratio of all operators alone and of the fastest way, and what
    that way is."""
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
        for t in found
    ]
    alone = geomean(t.apart.get(ALONE, 0.0) / t.fused for t in found)
    mean = ("geometric mean", "", "", ratio(alone), ratio(geomean(t.ratio for t in found)), "")
    return Table("Fused kernels and their operators apart", headers, (*rows, mean))


def to_json(found: list[Timed]) -> str:
    """The times as JSON: a list of rows with title, operators and nanoseconds by way."""
    return json.dumps([asdict(t) for t in found], indent=1)


def write(found: list[Timed], folder: Path) -> Path:
    """Writes the table as a page of the documentation; its path."""
    path = folder / "apart.md"
    title = "Kernels and their operators apart"
    text = sheet(title, "apart", __doc__, table(found), aims=AIMS)
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    most, rounds = (2, 2) if "quick" in sys.argv else (CUTS, ROUNDS)
    every = [
        asdict(contest.measure(rounds))
        for title, code, draw in cases()
        for contest in announced(contests(title, *recorded(code, draw()), most))
    ]
    sys.stdout.write(json.dumps(every) + "\n")
