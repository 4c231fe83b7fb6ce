"""Random graphs of operators over one or two shapes, larger than the strategies' programs."""

from __future__ import annotations

import random

from tests.fusion.formulas import Formula

from smelt.graph.ir import Graph, Node
from smelt.types.expr import add

UNARY = ("exp", "abs", "square", "neg", "erf")
BINARY = ("add", "mul", "sub", "max")


def random_graph(
    seed: int,
    operators: int,
    *,
    folds: float = 0.15,
    sorts: float = 0.0,
    cuts: float = 0.0,
    results: int = 3,
) -> tuple[Formula, Graph]:
    """Draw a graph of about `operators` operators.

    `folds`, `sorts` and `cuts` of them are broadcast sums, library calls, and library calls on a
    slice that is padded again.
    """
    r = random.Random(seed)
    g = Formula(n=r.choice((64, 1000, 4096)), m=r.choice((64, 777, 2048)))
    values = [g.input(f"x{k}", "n", "m") for k in range(r.randint(1, 4))]
    values.append(g.input("row", "m"))

    def recent() -> Node:
        return values[-1 - min(int(r.expovariate(0.3)), len(values) - 1)]

    while len(values) < operators:
        a, b, kind = recent(), recent(), r.random()
        if kind < folds and a.type.rank == 2:
            axis = r.randint(0, 1)
            folded = g.fold(r.choice(("sum", "max")), a, axis, keep=True)
            values.append(g.of("sub", b if b.type.rank == 2 else a, folded))
        elif kind < folds + sorts and a.type.rank == 2:
            values.append(g.sort(a))
        elif kind < folds + sorts + cuts and a.type.rank == 2:
            low, high = r.randint(0, 2), r.randint(1, 2)
            inner = g.sort(g.cut(a, 1, low, add(g.dim("m"), -low - high)))
            values.append(g.pad(g.of("exp", inner), (0, low), (0, high)))
        elif kind < 0.5:
            values.append(g.of(r.choice(UNARY), a))
        else:
            values.append(g.of(r.choice(BINARY), a, b))
    read = {x for v in values for x in v.inputs}
    ends = [v for v in values if v not in read and v.inputs]
    chosen = ends[-results:] or [g.of("exp", values[0])]
    return g, g.graph(*chosen)
