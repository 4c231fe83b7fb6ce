"""Planning costs in machine-independent units: queries of the model.

A set of units is looked at and priced once for all sets that look alike, so that the layers of a
network cost little more than one of them.  Times are generous: they catch what got out of hand.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import pytest
from tests.catalogue.test_h_refusals import ladder
from tests.fusion.formulas import MACHINE
from tests.pace import pace

import smelt as sm
from demo import minilm
from smelt import passes
from smelt.compiler import driver
from smelt.fusion import plan, plan_single, region, state, stream_axes
from smelt.fusion.cost import Model
from smelt.fusion.units import Units
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.graph.text import text as to_text
from smelt.journal.facts import Journal
from smelt.runtime.compile_scope import hide_live_objects


def recorded(f: Callable[..., Any], *arrays: Any) -> Graph:
    """The graph of a function after its passes."""
    return passes.run(sm.jit(f).lower(*arrays).trace.graph, Journal(), "eager")


def encoder(layers: int = 6) -> Graph:
    """The network of the demo: attention, norms and a masked mean."""
    weights = minilm.random_weights(hidden=24, layers=layers, vocabulary=30, positions=16, seed=1)
    names = list(weights)

    def encode(ids: Any, mask: Any, *arrays: Any) -> Any:
        return minilm.encode(sm, dict(zip(names, arrays, strict=True)), ids, mask, heads=2)

    ids = np.zeros((4, 8), np.int64)
    return recorded(encode, ids, ids > 0, *(np.asarray(weights[n], np.float32) for n in names))


def perceptron(layers: int = 50) -> Graph:
    """Products and activations; every weight has sizes of its own."""

    def run(x: Any, *weights: Any) -> Any:
        for w, b in zip(weights[::2], weights[1::2], strict=True):
            x = sm.maximum(x @ w + b, 0.0)
        return x

    w, b = np.zeros((8, 8), np.float32), np.zeros(8, np.float32)
    return recorded(run, w, *(x for _ in range(layers) for x in (w, b)))


def chain(length: int = 1000) -> Graph:
    """One operator after the other."""

    def run(x: Any, y: Any) -> Any:
        for k in range(length):
            x = x + y if k % 2 else x * 0.5
        return x

    x = np.zeros((3, 4), np.float32)
    return recorded(run, x, x)


def rungs() -> Graph:
    """500 operators in a row that read 60 arrays."""
    return recorded(lambda *xs: ladder(sm, *xs), *(np.zeros(8, np.float32) for _ in range(60)))


def powers() -> Graph:
    """The power iteration of a spectral norm: short sums, each of which reads all of the last."""
    return passes.run(
        parse("""graph powers(w: f32[48,64], u: f32[64], x: f32[100,64]) {
      v0 = contract(w, u) {spec="m,k; k -> m"} : f32[48]
      v1 = tanh(v0) : f32[48]
      v2 = contract(w, v1) {spec="k,m; k -> m"} : f32[64]
      v3 = tanh(v2) : f32[64]
      v4 = contract(w, v3) {spec="m,k; k -> m"} : f32[48]
      v5 = contract(v1, v4) {spec="k; k -> "} : f32[]
      v6 = div(w, v5) : f32[48,64]
      v7 = contract(x, v6) {spec="m,k; n,k -> m,n"} : f32[100,48]
      return v3, v1, v7
    }"""),
        Journal(),
        "eager",
    )


def updates(count: int = 60) -> Graph:
    """Update many parameters by one rule."""

    def run(*arrays: Any) -> Any:
        triples = zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True)
        return [w - 0.1 * (0.9 * m + g) / (sm.sqrt(g * g) + 1e-6) for w, m, g in triples]

    x = np.zeros((5, 6), np.float32)
    return recorded(run, *(x for _ in range(3 * count)))


def integration(steps: int = 16) -> Graph:
    """An equation integrated step by step, its state's two columns each computed of both."""

    def slope(y: Any, k: Any) -> Any:
        return sm.stack([y[:, 1], -k * sm.sin(y[:, 0]) - 0.1 * y[:, 1]], axis=-1)

    def run(y: Any, k: Any) -> Any:
        for _ in range(steps):
            a = slope(y, k)
            b = slope(y + 0.005 * a, k)
            c = slope(y + 0.005 * b, k)
            y = y + 0.01 / 6 * (a + 2 * b + 2 * c + slope(y + 0.01 * c, k))
        return y

    return recorded(run, np.zeros((1000, 2), np.float32), np.zeros(1000, np.float32))


@dataclass
class Queries:
    """How often the planner looked at a set of units, and how often it priced one."""

    looks: int = 0
    prices: int = 0


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Queries:
    result = Queries()
    look, cost = state.build_region, Model.cost

    def counted_look(*args: Any) -> Any:
        result.looks += 1
        return look(*args)

    def counted_cost(*args: Any) -> Any:
        result.prices += 1
        return cost(*args)

    monkeypatch.setattr(state, "build_region", counted_look)
    monkeypatch.setattr(Model, "cost", counted_cost)
    return result


GRAPHS = {
    "encoder": (encoder, 1.0, 0.8),
    "one layer": (lambda: encoder(1), 2.9, 2.3),
    "perceptron": (perceptron, 0.12, 0.12),
    "chain": (chain, 0.05, 0.05),
    "ladder": (rungs, 0.3, 0.5),
    "updates": (updates, 0.1, 0.1),
    "powers": (powers, 3.5, 3.5),
    "integration": (integration, 0.3, 0.3),
}
"""For each graph, the most sets that may be looked at and priced for each operator."""


@pytest.mark.parametrize("name", GRAPHS)
def test_few_queries_are_made_for_each_operator(name: str, queries: Queries) -> None:
    make, looks, prices = GRAPHS[name]
    graph = make()
    hints = dict.fromkeys(driver.input_size_names(graph), 512)
    count = len(Units(graph).units)
    with hide_live_objects():  # as the driver plans: what other tests hold is not looked through
        plan(graph, MACHINE, Journal(), hints)
    looked, priced = queries.looks / count, queries.prices / count
    print(f"{name}: {count} units, {looked:.2f} looks, {priced:.2f} prices")
    assert queries.looks <= looks * count
    assert queries.prices <= prices * count


@pytest.mark.clock
@pytest.mark.parametrize("name", GRAPHS)
def test_planning_an_operator_takes_little_time(name: str) -> None:
    graph = GRAPHS[name][0]()
    hints = dict.fromkeys(driver.input_size_names(graph), 512)
    with hide_live_objects():
        start = process_time()
        plan(graph, MACHINE, Journal(), hints)
        spent = process_time() - start
    count = len(Units(graph).units)
    print(f"{name}: {spent / count * 1e6:.0f} us for each of {count} units")
    assert spent / count < 10e-3 * pace()  # a first stream is derived with nothing cached


def masked(length: int) -> Graph:
    """Attention that sees what came before."""

    def run(q: Any, k: Any, v: Any) -> Any:
        scores = q @ sm.matrix_transpose(k)
        places = sm.arange(scores.shape[-1])
        seen = places <= sm.expand_dims(places, axis=1)
        return sm.nn.softmax(sm.where(seen, scores, -sm.inf), axis=-1) @ v

    return recorded(run, *(np.zeros((4, length, 32), np.float32) for _ in range(3)))


def test_a_stream_is_derived_once_for_all_sizes() -> None:
    """A small first call has kernels looked for at larger sizes too, of the same operators."""
    queries: list[tuple[int, int, int]] = []
    collect = stream_axes.collect

    def counted(units: Any, region: Any, a: int, rounding: str) -> Any:
        queries.append((region.members, region.stored, a))
        return collect(units, region, a, rounding)

    graph = masked(64)
    hints = dict.fromkeys(driver.input_size_names(graph), 64)
    actual: list[int] = []
    for most in (plan_single.SMALL_CALL, 0):  # both sizes, the first call's alone
        queries.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream_axes, "collect", counted)
            patch.setattr(plan_single, "SMALL_CALL", most)
            plan(graph, MACHINE, Journal(), hints)
        assert len(queries) == len(set(queries))
        actual.append(len(queries))
    assert actual[0] >= actual[1] > 0


_WITHOUT = """
import sys
from smelt.compiler import driver
from smelt.fusion import plan
from smelt.graph.text import parse
from smelt.graph.text import text as to_text
from smelt.machine.target import Target
graph = parse(sys.stdin.read())
plan(graph, Target.for_isa("avx512"), None, dict.fromkeys(driver.input_size_names(graph), 512))
print([name for name in ("numpy.ma", "numpy.random") if name in sys.modules])
"""


def test_planning_imports_nothing_of_numpy() -> None:
    """Which takes as long as planning attention."""
    line = [sys.executable, "-c", _WITHOUT]
    done = subprocess.run(
        line, input=to_text(masked(64)), text=True, capture_output=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_more_layers_make_no_more_queries() -> None:
    """Questions grow much less than the number of equal layers."""
    actual: list[int] = []
    for layers in (4, 12):
        with pytest.MonkeyPatch.context() as patch:
            prices: list[None] = []
            cost = Model.cost
            patch.setattr(Model, "cost", lambda *a, p=prices, c=cost: (p.append(None), c(*a))[1])
            graph = encoder(layers)
            plan(graph, MACHINE, Journal(), dict.fromkeys(driver.input_size_names(graph), 512))
            actual.append(len(prices))
    assert actual[1] <= actual[0] * 1.75


def test_more_loop_steps_make_no_more_queries() -> None:
    """Planning queries do not grow with equal loop steps.

    Long clusters look like one another too; an operator that is read at many positions is rewritten
    once for each.
    """
    queries: list[int] = []
    for steps in (8, 16):
        with pytest.MonkeyPatch.context() as patch:
            looks: list[None] = []
            rewritten: list[None] = []
            look, rebuild = state.build_region, region.map_variables
            patch.setattr(
                state, "build_region", lambda *a, k=looks, f=look: (k.append(None), f(*a))[1]
            )
            patch.setattr(
                region,
                "map_variables",
                lambda *a, k=rewritten, f=rebuild: (k.append(None), f(*a))[1],
            )
            graph = integration(steps)
            plan(graph, MACHINE, Journal(), dict.fromkeys(driver.input_size_names(graph), 512))
            print(steps, len(looks), len(rewritten))
            assert len(rewritten) <= 40 * steps
            queries.append(len(looks))
    assert queries[1] <= queries[0] * 1.25 + 8


def transport(steps: int) -> Graph:
    """Rows and columns normalised in turn: each kernel reads what the last one has summed."""

    def run(x: Any) -> Any:
        for _ in range(steps):
            x = x / sm.sum(x, axis=1, keepdims=True)
            x = x / sm.sum(x, axis=0, keepdims=True)
        return x

    return recorded(run, np.ones((8, 8), np.float32))


def softened(steps: int) -> Graph:
    """Chain log-softmax steps: each reads all of one matrix, through the last step."""

    def run(c: Any) -> Any:
        u = v = sm.zeros((8,), dtype=sm.float32)
        for _ in range(steps):
            u = -sm.nn.logsumexp(v[None, :] - c, axis=1)
            v = -sm.nn.logsumexp(u[:, None] - c, axis=0)
        return u, v

    return recorded(run, np.ones((8, 8), np.float32))


def recurrence(steps: int) -> Graph:
    """A state that is carried along, summed up in every step: one kernel that grows."""

    def run(x: Any, a: Any, b: Any) -> Any:
        h, result = x[:, 0, None] * b, list[Any]()
        for t in range(steps):
            h = sm.exp(x[:, t, None] * a) * h + x[:, t, None] * b
            result.append(sm.sum(h * b, axis=-1))
        return sm.stack(result, axis=1)

    x = np.zeros((8, steps), np.float32)
    return recorded(run, x, np.zeros(6, np.float32), np.zeros(6, np.float32))


def tangled(steps: int) -> Graph:
    """Maps, and folds of rows, columns and everything, in no order that repeats."""
    choices = random.Random(1)

    def run(x: Any, y: Any) -> Any:
        values = [x, y]
        for _ in range(steps):
            v, w = values[-1], choices.choice(values[-5:])
            match choices.randrange(10):
                case 0:
                    v = v / (sm.sum(sm.abs(v), axis=-1, keepdims=True) + 1.0)
                case 1:
                    v = v - sm.mean(v, axis=0)
                case 2:
                    v = v * sm.max(v) * 0.01
                case 3 | 4 | 5:
                    v = sm.tanh(w)
                case _:
                    v = v + w
            values.append(v)
        return values[-1], values[-2]

    x = np.ones((8, 8), np.float32)
    return recorded(run, x, x)


GROWING = {
    "transport": (transport, 30),
    "softened": (softened, 30),
    "recurrence": (recurrence, 24),
    "tangled": (tangled, 100),
    "integration": (integration, 8),
    "encoder": (encoder, 4),
}
"""Programs, and how many steps the shorter one has."""


@pytest.mark.parametrize("name", GROWING)
def test_work_grows_with_the_graph(name: str) -> None:
    """Planning work per operator hardly grows with the program.

    Counted are the units of all sets that are looked at, and the terms of all streams that are
    derived.
    """
    make, length = GROWING[name]
    actual: list[float] = []
    for graph in (make(length), make(2 * length)):
        with pytest.MonkeyPatch.context() as patch:
            work: list[int] = []
            look, collect = state.build_region, stream_axes.collect

            def counted(units: Any, members: int, *args: Any, k: Any = work, f: Any = look) -> Any:
                k.append(members.bit_count())
                return f(units, members, *args)

            def counted_terms(*args: Any, k: Any = work, f: Any = collect) -> Any:
                built = f(*args)
                k.append(len(built.terms.interned))
                return built

            patch.setattr(state, "build_region", counted)
            patch.setattr(stream_axes, "collect", counted_terms)
            plan(graph, MACHINE, Journal(), dict.fromkeys(driver.input_size_names(graph), 512))
            actual.append(sum(work) / len(Units(graph).units))
    print(f"{name}: {actual[0]:.1f}, then {actual[1]:.1f} for each operator")
    assert actual[1] <= 1.35 * actual[0] + 2
