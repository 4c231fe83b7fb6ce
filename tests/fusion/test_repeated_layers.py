"""Graphs of equal layers, planned by two of them, get the plan of the whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import reduce

import numpy as np
import pytest
from tests.fusion.formulas import MACHINE, Formula, execute

from smelt.fusion import plan, repeated_layers
from smelt.fusion.plan import Plan
from smelt.fusion.repeated_layers import Layers
from smelt.fusion.state import State
from smelt.fusion.text import text
from smelt.fusion.verify import verify
from smelt.graph.interp import run
from smelt.graph.ir import Graph, Node
from smelt.journal.facts import Journal

Layer = Callable[[Formula, list[Node], Node], list[Node]]


def drawn(seed: int) -> tuple[Formula, Layer, int]:
    """Some layer: maps, folds of rows and columns, products with arrays of its own, values that are
    shared by all layers, one or two that are handed on; and how many layers there are."""
    r = random.Random(seed)
    g = Formula(n=r.choice((64, 1000)), m=r.choice((48, 640)))
    steps = [(r.random(), r.random(), r.random()) for _ in range(r.randint(4, 14))]
    carried, products = r.randint(1, 2), r.choice((0.0, 0.15, 0.3))

    def layer(g: Formula, before: list[Node], shared: Node) -> list[Node]:
        values = [*before, shared]
        for kind, first, second in steps:
            a = values[-1 - int(first * min(len(values), 4))]
            b = values[-1 - int(second * len(values))]
            if kind < products:
                w = g.input(f"w{len(g.inputs)}", "m", "m")
                values.append(g.matmul(a, w))
            elif kind < products + 0.15:
                values.append(g.of("sub", b, g.fold("sum", a, int(second * 2), keep=True)))
            elif kind < products + 0.4:
                values.append(g.of(("tanh", "exp", "square")[int(second * 3)], a))
            elif kind < products + 0.5:
                values.append(g.of("mul", a, g.input(f"w{len(g.inputs)}", "m")))
            else:
                values.append(g.of(("add", "mul", "max")[int(first * 3)], a, b))
        return [g.of("add", values[-1], before[0]), values[-2]][:carried]

    return g, layer, r.randint(9, 14)


def deep(seed: int) -> tuple[Formula, Graph]:
    """The layers in a row, with something in front of them and behind."""
    g, layer, count = drawn(seed)
    r = random.Random(seed)
    x, y = g.input("x", "n", "m"), g.input("y", "n", "m")
    shared = g.of("exp", g.of("abs", y)) if r.random() < 0.7 else y
    values = [g.of("exp", x), g.of("neg", x)][: 1 + seed % 2] * 2
    for _ in range(count):
        values = (layer(g, values, shared) * 2)[:2]
    outputs = [g.of("tanh", values[0])]
    if r.random() < 0.3:
        outputs.append(g.fold("max", values[1], 1, keep=True))
    return g, g.graph(*outputs)


@contextmanager
def as_a_whole() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_layers, "MIN_COPIES", 1 << 30)
        yield


def planned(graph: Graph, g: Formula) -> tuple[Plan, Plan, int]:
    """The plan, that of the graph as a whole, and how often layers were left out."""
    times: list[bool] = []
    expanded = Layers.expand
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Layers,
            "expand",
            lambda *a: (result := expanded(*a), times.append(result is not None))[0],
        )
        result = plan(graph, MACHINE, Journal(), g.sizes)
    with as_a_whole():
        return verify(result), plan(graph, MACHINE, Journal(), g.sizes), sum(times)


def fused(actual: Plan) -> set[tuple[str, str, str]]:
    return {(d.a, d.b, d.reason) for d in actual.decisions if d.verdict == "fused"}


@pytest.mark.parametrize("seed", [8, 38, 40, 48, 51, 61, 67, 119, 120, 132, 150, 236, 277])
def test_equal_layers_get_the_plan_of_the_whole(seed: int) -> None:
    """Kernels, launches, memory and the reasons of all that is fused."""
    g, graph = deep(seed)
    fused_plan, whole, times = planned(graph, g)
    assert times
    assert text(fused_plan) == text(whole)
    assert fused(fused_plan) == fused(whole)


@pytest.mark.parametrize("seed", range(400, 410))
def test_layers_that_run_together_get_it_too(seed: int) -> None:
    g, graph = deep(seed)
    fused_plan, whole, _ = planned(graph, g)
    assert text(fused_plan) == text(whole)


def test_a_plan_of_layers_computes_what_the_graph_says() -> None:
    g, graph = deep(61)
    g.sizes = {"n": 5, "m": 7}
    fused_plan, _, times = planned(graph, g)
    assert times
    r = np.random.default_rng(0)
    arrays = [
        r.uniform(-0.3, 0.3, [g.sizes[str(d)] for d in x.type.shape]).astype(np.float32)
        for x in graph.inputs
    ]
    for one, other in zip(execute(fused_plan, arrays, g.sizes), run(graph, arrays), strict=True):
        np.testing.assert_array_equal(one, other)


def products(g: Formula, x: Node, count: int) -> list[Node]:
    """What each of some layers gives: a product, an activation, and the sum with what came in."""
    results = [x]
    for k in range(count):
        y = g.of("tanh", g.matmul(results[-1], g.input(f"w{k}", "m", "m")))
        y = g.of("mul", g.of("exp", y), g.of("square", y))
        results.append(
            g.of("add", results[-1], g.of("neg", g.matmul(y, g.input(f"u{k}", "m", "m"))))
        )
    return results[1:]


Behind = Callable[[Formula, list[Node]], tuple[Node, ...]]
BEHIND: dict[str, tuple[Behind, bool]] = {
    "last": (lambda g, ys: (ys[-1],), True),
    "each": (lambda g, ys: (*ys,), True),
    "most": (lambda g, ys: (*ys[2:],), True),
    "few": (lambda g, ys: (*ys[:6], *ys[7:]), False),
    "another": (lambda g, ys: (ys[-1], ys[6]), False),
    "summed": (lambda g, ys: (reduce(lambda a, b: g.of("add", a, b), ys),), False),
    "again": (lambda g, ys: (g.matmul(ys[-1], g.inputs[9]),), False),
}
"""What is returned of twelve layers, and whether most of them can be left out."""


@pytest.mark.parametrize("name", BEHIND)
def test_what_is_read_outside_keeps_layers(name: str) -> None:
    behind, left_out = BEHIND[name]
    g = Formula(n=256, m=128)
    x = g.input("x", "n", "m")
    graph = g.graph(*behind(g, products(g, x, 12)))
    fused_plan, whole, times = planned(graph, g)
    assert (times > 0) == left_out
    assert text(fused_plan) == text(whole)


@pytest.mark.parametrize("apart", [1, 2])
def test_arrays_may_be_shared_with_the_next_layer(apart: int) -> None:
    """Backward layers share inputs and outputs with their neighbours."""
    g = Formula(n=256, m=128)
    y, *kept = (g.input(f"x{k}", "n", "m") for k in range(15))
    for one, other in zip(kept, kept[apart:], strict=False):
        w = g.input(f"w{len(g.inputs)}", "m", "m")
        y = g.of("mul", g.matmul(y, w), g.of("sub", g.of("exp", one), g.of("square", other)))
        y = g.of("sub", y, g.fold("sum", y, 1, keep=True))
    fused_plan, whole, times = planned(g.graph(y), g)
    assert (times > 0) == (apart == 1)
    assert text(fused_plan) == text(whole)


def test_two_stacks_of_layers_are_left_out_one_within_the_other() -> None:
    g = Formula(n=512, m=128)
    x = g.input("x", "n", "m")
    (y,) = products(g, x, 9)[-1:]
    for k in range(9):
        y = g.of("sub", y, g.of("exp", g.matmul(g.softmax(y), g.input(f"v{k}", "m", "m"))))
    fused_plan, whole, times = planned(g.graph(y), g)
    assert times == 2
    assert text(fused_plan) == text(whole)


def test_layers_beyond_the_least_number_are_not_queried() -> None:
    queries: list[int] = []
    for count in (8, 24):
        g = Formula(n=256, m=128)
        graph = g.graph(products(g, g.input("x", "n", "m"), count)[-1])
        with pytest.MonkeyPatch.context() as patch:
            judge, result = State.evaluate, list[None]()
            patch.setattr(
                State, "evaluate", lambda *a, f=judge, k=result: (k.append(None), f(*a))[1]
            )
            plan(graph, MACHINE, Journal(), g.sizes)
        queries.append(len(result))
    assert queries[0] == queries[1]
