"""Graphs of equal layers: planned by two of them, they get the plan that they get as a whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.fusion.formulas import MACHINE, Formula

from smelt.fusion import layers, plan
from smelt.fusion.layers import Layers
from smelt.fusion.plan import Plan
from smelt.fusion.predict import costs
from smelt.fusion.sets import Hints
from smelt.fusion.text import text
from smelt.fusion.verify import verify
from smelt.graph.ir import Graph, Node
from smelt.journal import Journal

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
def as_a_whole() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "LEAST_COPIES", 1 << 30)
        yield
