"""Plans that also serve calls larger than the first one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.fusion.formulas import MACHINE

import smelt as sm
from smelt.fusion import plan, plan_single
from smelt.fusion.bitsets import Hints
from smelt.fusion.plan_single import LARGE_CALL, larger_sizes
from smelt.fusion.predict import costs
from smelt.fusion.text import parse as parse_plan
from smelt.fusion.text import text as plan_text
from smelt.fusion.units import Units
from smelt.graph.text import parse

ROWS = """graph f(x: f32[n,d], w: f32[d]) {
  v0 = contract(x, w) {spec="i,j; j -> i"}
  v1 = contract(x, v0) {spec="i,j; i -> j"}
  v2 = contract(x, v1) {spec="i,j; j -> i"}
  v3 = contract(x, v2) {spec="i,j; i -> j"}
  return v3
}"""


@pytest.mark.parametrize(
    ("args", "hints", "grown"),
    [
        ("x: f32[n,d]", {"n": 64, "d": 64}, {"n"}),
        ("x: f32[c,n]", {"n": 640, "c": 6}, {"n"}),
        ("x: f32[n], y: f32[m]", {"n": 640, "m": 200}, {"n"}),
        ("x: f32[n,d], y: f32[m,d]", {"n": 64, "m": 40, "d": 8}, {"n", "m"}),
        ("x: f32[n,d]", {"n": 64, "d": 0}, {"n"}),
        ("x: f32[n,d]", {"n": 1, "d": 4}, set()),  # too few of anything
        ("x: f32[n,d]", {"n": 1 << 10, "d": 1 << 7}, set()),  # large already
        ("x: f32[n,d]", {"n": 64}, set()),  # not known
        ("x: f32[64,8]", {}, set()),
    ],
)
def test_what_grows(args: str, hints: dict[str, int], grown: set[str]) -> None:
    graph = parse(f"graph f({args}) {{\n  v0 = exp(x)\n  return v0\n}}")
    actual = larger_sizes(Units(graph), Hints(hints), 1 << 20)
    if not grown:
        assert actual is None
        return
    assert actual is not None
    assert {n for n in hints if actual[n] > hints[n]} == grown
    assert max(actual.values()) <= 2 * LARGE_CALL


def test_a_small_first_call_leaves_a_plan_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan for large sizes is far better there and hardly worse for the small call.

    It says for which sizes it was made.
    """
    graph, small, large = parse(ROWS), {"n": 64, "d": 20}, {"n": 1 << 16, "d": 20}
    machine = replace(MACHINE, cores=2)
    fused_plan = plan(graph, machine, None, small)
    assert fused_plan.sizes
    assert parse_plan(plan_text(fused_plan), graph).sizes == fused_plan.sizes
    monkeypatch.setattr(plan_single, "larger_sizes", lambda *_: None)
    alone = plan(graph, machine, None, small)

    def takes(built: Any, sizes: dict[str, int]) -> float:
        return sum(c.objective_ns for c in costs(built, machine, sizes))

    assert takes(fused_plan, small) < 1.3 * takes(alone, small)
    assert 1.25 * takes(fused_plan, large) < takes(alone, large)
    assert not alone.sizes


@pytest.mark.parametrize("threads", [1, 2])
def test_a_plan_for_larger_sizes_is_right_at_all(threads: int) -> None:
    rng = np.random.default_rng(0)

    def steps(x: Any, w: Any) -> Any:
        for _ in range(3):
            w = w - 0.01 * (x.T @ (x @ w) / x.shape[0])
        return w, x - sm.mean(x, axis=0)

    with sm.config(threads=threads):
        jitted = sm.jit(steps)
        for n in (64, 1, 0, 65, 127, 5000, 70001):
            x, w = rng.normal(size=(n, 20)).astype("f4"), rng.normal(size=20).astype("f4")
            got = jitted(sm.asarray(x), sm.asarray(w))
            if not n:
                assert got[1].shape == (0, 20)
                continue
            y, v = x.astype("f8"), w.astype("f8")
            for _ in range(3):
                v = v - 0.01 * (y.T @ (y @ v) / n)
            np.testing.assert_allclose(np.asarray(got[0]), v, rtol=2e-5, atol=1e-6)
            np.testing.assert_allclose(np.asarray(got[1]), y - y.mean(0), rtol=1e-5, atol=1e-6)


def test_stacked_steps_are_not_done_again_for_each_row() -> None:
    """Stacked steps are not recomputed per row.

    A vector of a step is contiguous along the columns: a row of the stack would compute it anew.
    """
    count = 24
    lines = ["v0 = add(x, 1.5:f32)", *(f"v{k} = mul(v{k - 1}, x)" for k in range(1, count))]
    lines += [f"r{k} = reshape(v{k}) {{shape=(1, n)}}" for k in range(count)]
    lines.append(f"y = concat({', '.join(f'r{k}' for k in range(count))}) {{axis=0}}")
    graph = parse("graph f(x: f32[n]) {\n" + "\n".join(lines) + "\nreturn y\n}")
    fused_plan = plan(graph, replace(MACHINE, cores=1), None, {"n": 64})
    steps = [
        sum(x.type.rank == 1 and x.op.name in ("add", "mul") for x in c.nodes)
        for c in fused_plan.clusters
    ]
    assert sum(steps) == count
    assert steps[-1] == 0
