"""Bounds checks do not change the plan of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.graph.substitute_sizes import substitute_sizes

import smelt as sm
from smelt import passes
from smelt.compiler import driver
from smelt.errors import OutsideError, VerifyError
from smelt.fusion import plan
from smelt.fusion.bitsets import Hints
from smelt.fusion.checks import split_checks
from smelt.fusion.text import parse as plan_parse
from smelt.fusion.text import text as plan_text
from smelt.fusion.verify import verify
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.graph.verify import verify_same_signature
from smelt.graph.walk import rebuild, substitute_nodes
from smelt.machine.target import Target

ROWS = parse("""graph rows(x: f32[n,m], i: i64[k]) {
  v0 = add(i, 1:i64)
  v1 = gather(x, v0) {first=0}
  v2 = reduce.sum(v1) {axes=(1,)}
  v3 = ge(v0, 100:i64)
  v4 = reduce.any(v3) {axes=(0,)}
  return v2, v0; check v4
}""")
SIZES = {"n": 100, "m": 64, "k": 512}
AVX2 = Target.for_isa("avx2")
X = np.random.default_rng(0).standard_normal((100, 64), dtype=np.float32)
AT = np.arange(512) % 100


def test_text_marks_checks() -> None:
    assert text(parse(text(ROWS))) == text(ROWS)
    assert text(ROWS).endswith("return v4, v0; check v6\n}") or "; check " in text(ROWS)
    assert (len(ROWS.results), len(ROWS.check_outputs), ROWS.checks) == (2, 1, 1)
    assert replace(ROWS, checks=0) != ROWS and text(replace(ROWS, checks=0)) != text(ROWS)
    only = parse("graph f(i: bool[]) {\n  return ; check i\n}")
    assert not only.results and parse(text(only)).checks == 1


def test_passes_and_rewrites_keep_the_count() -> None:
    changed: list[Graph] = [
        rebuild(ROWS, lambda n: n if not n.inputs else type(n)(n.op, n.inputs, n.type)),
        substitute_sizes(ROWS, {"n": 7}),
        substitute_nodes(ROWS, {}),
        passes.run(ROWS),
        passes.run(ROWS, rounding="fast"),
    ]
    assert [g.checks for g in changed] == [1] * len(changed)
    with pytest.raises(VerifyError, match="checks"):
        verify_same_signature(ROWS, replace(ROWS, checks=0))


def test_rest_is_planned_as_without() -> None:
    fused_plan = plan(ROWS, AVX2, None, SIZES)
    verify(fused_plan)
    alone = plan(replace(ROWS, outputs=ROWS.results, checks=0), AVX2, None, SIZES)
    kept = [c.name for k, c in enumerate(fused_plan.clusters) if k not in fused_plan.checks]
    assert [c.nodes for c in fused_plan.clusters][: len(kept)] == [c.nodes for c in alone.clusters]
    assert [fused_plan.clusters[k].name for k in fused_plan.checks] == ["check0"]
    assert fused_plan.decisions == alone.decisions
    assert plan_text(plan_parse(plan_text(fused_plan), fused_plan.graph)) == plan_text(fused_plan)


def test_long_positions_are_looked_at_where_they_are_read() -> None:
    """Reading them once more would cost as much as what they are read for."""
    flat = parse("""graph flat(x: f32[n], i: i64[k]) {
  v0 = gather(x, i) {first=0}
  v1 = ge(i, 100:i64)
  v2 = reduce.any(v1) {axes=(0,)}
  return v0; check v2
}""")
    assert split_checks(flat, Hints({"n": 100, "k": 100_000})) is None
    fused_plan = plan(flat, AVX2, None, {"n": 100, "k": 100_000})
    assert not fused_plan.checks and len(fused_plan.clusters) == 1
    fused_plan = plan(flat, AVX2, None, {"n": 100_000, "k": 100})
    assert len(fused_plan.checks) == 1 and len(fused_plan.clusters) == 2


def test_expensive_values_are_not_computed_twice() -> None:
    """Positions behind a fold are the program's: they are looked at where they come from."""
    graph = parse("""graph f(x: f32[n,m], y: f32[k,m]) {
  v0 = reduce.sum(y) {axes=(1,)}
  v1 = cast(v0) {dtype=i64}
  v2 = gather(x, v1) {first=0}
  v3 = ge(v1, 100:i64)
  v4 = reduce.any(v3) {axes=(0,)}
  return v2; check v4
}""")
    assert split_checks(graph, Hints({"n": 10_000, "m": 64, "k": 2})) is None


@pytest.mark.parametrize("bad", [False, True])
def test_it_runs(bad: bool) -> None:
    at = AT % 99
    at[17] = 98 + bad
    compiled = driver.compile(ROWS, hints=SIZES)
    assert len(compiled.plan.checks) == 1
    sums, moved, output = compiled.run([X, at], tuple(SIZES[n] for n in compiled.size_names))
    assert bool(output) is bad
    np.testing.assert_array_equal(moved, at + 1)
    np.testing.assert_allclose(sums, X[np.minimum(at + 1, 99)].sum(1), rtol=1e-4, atol=1e-4)


def _loss(x: Any, labels: Any) -> Any:
    return sm.nn.logsumexp(x, axis=-1) - sm.take_along_axis(x, labels[:, None], axis=-1)[:, 0]


def test_a_report_counts_what_computes() -> None:
    output = sm.explain(_loss, X, AT[:100] % 64)
    with sm.config(check_positions=False):
        promised = sm.explain(_loss, X, AT[:100] % 64)
    assert [k.name for k in output.kernels] == [k.name for k in promised.kernels] == ["k0"]
    assert output.kernels[0].text == promised.kernels[0].text
    assert [k.name for k in output.checks] == ["check0"] and not promised.checks
    for field in ("operators", "kernels", "bytes", "bytes_unfused", "transfers"):
        assert getattr(output.data.total, field) == getattr(promised.data.total, field)
    assert output.data.outputs == promised.data.outputs and len(output.data.checks) == 1
    page = str(output)
    assert "became 1 kernel;" in page and "looks at positions" in page
    names = output.compiled.size_names
    assert [output.sizes[n] for n in names] == [100, 64]


def test_no_gradient_of_a_label_that_is_none() -> None:
    """An unread label is checked, although nobody reads its value."""

    def slope(x: Any, labels: Any) -> Any:
        return sm.grad(lambda x: sm.mean(_loss(x, labels)))(x)

    compiled, labels = sm.jit(slope), AT[:100] % 64
    good = np.asarray(compiled(X, labels))
    eager = np.exp(X - X.max(1, keepdims=True).astype(np.float64))
    wanted = eager / eager.sum(1, keepdims=True)
    wanted[np.arange(100), labels] -= 1
    np.testing.assert_allclose(good, wanted / 100, rtol=0, atol=1e-7)
    for bad in (64, -65):
        labels[3] = bad
        with pytest.raises(OutsideError):
            compiled(X, labels)
        with pytest.raises(OutsideError):
            np.asarray(slope(sm.asarray(X), sm.asarray(labels) * 1))


def test_donated_positions_stay_until_they_are_looked_at() -> None:
    """The check runs last: a result in the memory of what it reads would be looked at instead."""
    graph = parse("""graph f(x: f32[n,m], i: i64[k]) {
  v0 = gather(x, i) {first=0}
  v1 = reduce.sum(v0) {axes=(0,)}
  v2 = reduce.max(v1) {axes=(0,)}
  v3 = sub(v1, v2)
  v4 = exp(v3)
  v5 = reduce.sum(v4) {axes=(0,)}
  v6 = cast(v5) {dtype=i64}
  v7 = add(i, 3900:i64)
  v8 = add(v7, v6)
  v9 = ge(i, 4000:i64)
  v10 = reduce.any(v9) {axes=(0,)}
  return v8; check v10
}""")
    sizes = {"n": 4000, "m": 1000, "k": 20_000}
    fused_plan = plan(graph, AVX2, None, sizes, donated={graph.inputs[1]: None})
    verify(fused_plan)
    assert len(fused_plan.checks) == 1 and not any(s.reuses for s in fused_plan.slots)
    free = plan(
        replace(graph, outputs=graph.results, checks=0),
        AVX2,
        None,
        sizes,
        donated={graph.inputs[1]: None},
    )
    assert any(s.reuses is graph.inputs[1] for s in free.slots)
    at = np.arange(20_000) % 4000
    compiled = driver.compile(graph, hints=sizes, donate=(1,))
    inputs = [np.zeros((4000, 1000), dtype=np.float32), at]
    moved, output = compiled.run(inputs, tuple(sizes[n] for n in compiled.size_names))
    assert not bool(output)
    np.testing.assert_array_equal(moved, np.arange(20_000) % 4000 + 4900)


def test_positions_that_are_computed_count_though_nothing_is_read() -> None:
    """Many of them from one number would all be computed twice, beside one element each."""
    graph = parse("""graph f(x: f32[n], o: i64[]) {
  v0 = iota() {shape=(1000000,), axis=0, dtype=i64}
  v1 = add(v0, o)
  v2 = gather(x, v1) {first=0}
  v3 = ge(v1, 1000000:i64)
  v4 = reduce.any(v3) {axes=(0,)}
  return v2; check v4
}""")
    assert split_checks(graph, Hints({"n": 1_000_000})) is None
