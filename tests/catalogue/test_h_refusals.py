"""Section H: fission and refusals, what must not happen."""

from __future__ import annotations

import numpy as np
import pytest
from tests.catalogue.harness import EveryRow, PlannedRow, make, sketch
from tests.catalogue.rows import Row, draw

import smelt as sm
from smelt import knobs
from smelt.frontends.array import evaluate_pending
from smelt.fusion.legal import MAX_CODE_SIZE, MAX_OPERANDS
from smelt.fusion.units import Units
from smelt.kernel.ir import Split
from smelt.kernel.text import text
from smelt.types.expr import evaluate, sizes_of

LINE = {"n": 1 << 26}


# ---- H1 ----------------------------------------------------------------------------------------


def norm(xp, x):
    return xp.sqrt(xp.sum(x * x))


def extremes(xp, x):
    return xp.max(x), xp.min(x), xp.sum(x)


def extremes_otherwise(xp, t):
    total, least = xp.sum(t), -xp.max(-t)
    return xp.max(t), least, total


# ---- H2 ----------------------------------------------------------------------------------------


def expensive(xp, x):
    return xp.tanh(xp.exp(xp.sin(x)))


def cheap(xp, x):
    return x * 2 + 1


def rows_of(f):
    """A producer whose rows three tables of places pick, many of them more than once."""

    def code(xp, x, i, j, k):
        a = f(xp, x)
        return xp.take(a, i, axis=0) + 1, xp.take(a, j, axis=0) * 2, -xp.take(a, k, axis=0)

    return code


def one_by_one(f):
    """Spell the program so that each reader recomputes the producer."""

    def code(xp, x, i, j, k):
        third = -xp.take(f(xp, x), k, axis=0)
        first = 1 + xp.take(f(xp, x), i, axis=0)
        second = xp.take(f(xp, x), j, axis=0)
        return first, second + second, third

    return code


# ---- H3 ----------------------------------------------------------------------------------------


def fan(xp, xs):
    """Many arrays become one."""
    total = xs[0]
    for k, x in enumerate(xs):
        v = xp.sqrt(xp.abs(x * (k + 1) + 0.5)) - x
        total = total + xp.tanh(v) * x * 0.125
    return total


def waist(xp, *xs):
    """60 inputs, 500 scalar operators, one place where a single array crosses."""
    return fan(xp, xs[:30]) * fan(xp, xs[30:])


def ladder(xp, *xs):
    """500 operators in a row, each of 60 arrays read again and again."""
    total = xs[0]
    for k in range(250):
        x = xs[k % 60]
        total = xp.maximum(total * 0.5, x) if k % 2 else total - x
    return total


# ---- H5 ----------------------------------------------------------------------------------------


def sorted_between(xp, x):
    return xp.exp(-xp.abs(xp.sort(x * 2 + 1, axis=1) - 1)) * 3


def sorted_between_otherwise(xp, t):
    s = xp.sort(1 + (t + t), axis=-1)
    return 3 * xp.exp(-xp.abs(-1 + s))


def argsort_between(xp, x):
    return xp.argsort(-x * 2, axis=1, stable=True) * 3 + 1


MANY = tuple(["T[n]"] * 60)
PICKS = ("T[r,c]", "i64[i] < r", "i64[j] < r", "i64[k] < r")
PICKED = {"r": 8192, "c": 4096, "i": 8000, "j": 7000, "k": 9000}
ROWS = (
    Row("H1 sum", lambda xp, x: xp.sum(x), ("T[n]",), LINE, fused="s*(n + 1)",
        unfused="s*(n + 1)", also=(lambda xp, t: xp.sum(xp.reshape(t, (1, -1))),)),
    Row("H1 norm", norm, ("T[n]",), LINE, fused="s*(n + 1)", unfused="s*(3*n + 3)",
        also=(lambda xp, t: xp.sum(t**2) ** 0.5,)),
    Row("H1 extremes", extremes, ("T[n]",), LINE, fused="s*(n + 3)", unfused="s*(3*n + 3)",
        also=(extremes_otherwise,)),
    Row("H1 argmax", lambda xp, x: xp.argmax(x), ("T[n]",), LINE, fused="s*n + 8",
        unfused="s*n + 8", also=(lambda xp, t: xp.argmin(-t),)),
    Row("H2 dear", rows_of(expensive), PICKS, PICKED,
        fused="s*c*(3*r + i + j + k) + 8*(i + j + k)",
        unfused="s*c*(7*r + 4*i + 4*j + 3*k) + 58*(i + j + k)", kernels=2, sweeps=3,
        stored=("tanh",), bounded=True, also=(one_by_one(expensive),)),
    Row("H2 cheap", rows_of(cheap), PICKS, PICKED,
        fused="s*c*(r + i + j + k) + 8*(i + j + k)",
        unfused="s*c*(5*r + 4*i + 4*j + 3*k) + 58*(i + j + k)", sweeps=3,
        bounded=True, also=(one_by_one(cheap),)),
    Row("H3 waist", waist, MANY, {"n": 1 << 22}, fused="s*67*n", unfused="s*1259*n", kernels=4,
        launches=3, stored=("add",) * 3, dtypes=(), layouts=()),
    Row("H3 ladder", ladder, MANY, {"n": 1 << 22}, fused="s*61*n", unfused="s*999*n", dtypes=(),
        layouts=()),
    Row("H5 sort", sorted_between, ("T[r,c]",), {"r": 8192, "c": 4096}, fused="s*6*r*c",
        unfused="s*16*r*c", kernels=2, calls=1, stored=("add", "extern.sort"),
        also=(sorted_between_otherwise,),
        fixed=("c",)),  # kernels sort short rows (frontends/array/test_sorting_networks.py)
    Row("H5 argsort", argsort_between, ("T[r,c]",), {"r": 8192, "c": 4096},
        fused="(3*s + 24)*r*c", unfused="60*r*c",
        also=(lambda xp, t: 1 + 3 * xp.argsort(-(t + t), axis=-1, stable=True),), kernels=2,
        calls=1, stored=("mul", "extern.argsort"), fixed=("c",)),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section H."""


# ---- beyond the counts -------------------------------------------------------------------------


def row(name: str) -> Row:
    return next(r for r in ROWS if r.id == name)


def kernels_of(built: PlannedRow):
    return [k for k in built.sketch.kernels if k is not None]


@pytest.mark.parametrize(
    "name",
    ["H1 sum", "H1 norm", "H1 extremes", "H1 argmax"],
)
def test_one_long_row_is_split_over_the_grid(name: str) -> None:
    (kernel,) = kernels_of(sketch(row(name)))
    (split,) = [g for g in kernel.grid if isinstance(g, Split)]
    (n,) = sizes_of(split.parts)
    assert [evaluate(split.parts, {n: rows}) for rows in (1, 1 << 16, 1 << 19)] == [1, 64, 64]


@pytest.mark.parametrize("name", ["H1 sum", "H1 norm", "H1 extremes", "H1 argmax"])
def test_parts_merge_in_an_order_that_threads_do_not_change(name: str) -> None:
    program = make(row(name))
    for n in (100_003, 1 << 19):
        arrays = draw(row(name), {"n": n})
        with knobs.config(threads=1):
            alone = program.run(arrays)
        for threads in (2, 3):
            with knobs.config(threads=threads):
                for _ in range(3):
                    again = program.run(arrays)
                    assert [a.tobytes() for a in again] == [a.tobytes() for a in alone]


def test_expensive_producers_are_stored_and_cheap_ones_recomputed() -> None:
    """Three gathers pick from 512 columns at a time, which rest in the third-level cache."""

    def computing(name: str, operator: str) -> list[tuple[str, ...]]:
        """What the kernels that compute an operator write."""
        clusters = sketch(row(name)).sketch.plan.clusters
        return [
            tuple(n.op.name for n in c.outputs)
            for c in clusters
            if operator in [n.op.name for n in c.nodes]
        ]

    assert computing("H2 dear", "exp") == [("tanh",)]
    assert computing("H2 cheap", "gather") == [("add", "mul", "neg")]
    (kernel,) = kernels_of(sketch(row("H2 cheap")))
    assert text(kernel).count(" + 1\n") == 3 + 1  # f once at each place, and one reader's own


def test_five_hundred_operators_are_cut_where_one_array_crosses() -> None:
    program = sketch(row("H3 waist")).sketch
    units = Units(program.graph)
    assert len(units.units) >= 500
    crossing = [
        n for c in program.plan.clusters for n in c.outputs if n not in program.graph.outputs
    ]
    assert len(crossing) == len(program.plan.clusters) - 1
    for c in program.plan.clusters:
        assert len(c.inputs) + len(c.outputs) <= MAX_OPERANDS
        size = sum(units.size[units.number[n]] for n in c.nodes if n in units.number)
        assert size <= MAX_CODE_SIZE


def test_a_set_function_outside_jit_lets_both_sides_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    whole = evaluate_pending.compile_graph

    def compile_graph(*args, **kwargs):
        plans.append(whole(*args, **kwargs).plan)
        return whole(*args, **kwargs)

    monkeypatch.setattr(evaluate_pending, "compile_graph", compile_graph)
    x = np.round(np.random.default_rng(0).standard_normal((31, 70)).astype(np.float32), 1)
    values = sm.unique_values(sm.asarray(x) * 2 + 1)
    actual = np.asarray(sm.exp(values - 1) * 3)
    np.testing.assert_allclose(actual, np.exp(np.unique(x * 2 + 1) - 1) * 3, rtol=1e-6)
    assert [len(p.clusters) for p in plans] == [1, 1]
