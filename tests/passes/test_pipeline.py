"""The runner: order, journal, verification after each step, names."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.codegen.test_math_cast import values
from tests.golden.test_golden import CASES
from tests.strategies.comparison import same_bits

from smelt import knobs, passes
from smelt.errors import UnknownNameError, VerifyError
from smelt.graph import build
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.graph.verify import verify
from smelt.journal.facts import Journal, PassRan
from smelt.ops.cast import cast_reference
from smelt.passes import PASSES, Pass, pipeline
from smelt.passes.canonicalize import can_represent, casts_compose
from smelt.passes.pipeline import Facts, run_steps
from smelt.types.dtype import COMPUTABLE, DType, f32

GRAPH = parse("""graph f(x: f32[n,m]) {
  a = neg(x)
  b = neg(a)
  c = exp(b)
  return c
}""")


def test_the_journal_records_what_ran() -> None:
    journal = Journal()
    passes.run(GRAPH, journal)
    ran = journal.of(PassRan)
    first = ran[: sum(not (step.fast or step.last) for step in PASSES)]
    assert [fact.name for fact in first if fact.name == "simplify"] == ["simplify"]
    (first,) = [fact for fact in ran if fact.name == "simplify" and fact.before != fact.after]
    assert (first.before, first.after) == (4, 2)
    assert all(fact.seconds >= 0 for fact in ran)
    assert not any("fast" in fact.name or fact.name == "precision" for fact in ran)


def test_fast_runs_one_simplifier() -> None:
    journal = Journal()
    passes.run(GRAPH, journal, "fast")
    names = {fact.name for fact in journal.of(PassRan)}
    assert {"simplify-fast", "precision"} <= names
    assert "simplify" not in names


def test_nothing_to_do_gives_the_same_graph() -> None:
    once = passes.run(GRAPH)
    assert passes.run(once) is once
    assert passes.run(once, rounding="exact") is once


def broken(graph: Graph) -> Graph:
    """A pass with a mistake: it gives something else."""
    return Graph(graph.name, graph.inputs, (build.map("isnan", *graph.inputs),))


def test_a_broken_pass_is_named_with_the_text_to_replay() -> None:
    steps = [Pass("broken", broken)]
    with knobs.config(verify=True), pytest.raises(VerifyError) as caught:
        run_steps(GRAPH, steps)
    message = str(caught.value)
    assert "after the pass broken, graph f: output 0 was f32[n,m] and is bool[n,m] now" in message
    assert "smelt opt --pass broken <<'END'\n" + text(GRAPH) in message
    with knobs.config(verify=False):
        run_steps(GRAPH, steps)


def test_names() -> None:
    assert text(passes.run_named(GRAPH, ["simplify"])) == text(passes.run(GRAPH))
    with pytest.raises(UnknownNameError, match="did you mean simplify"):
        passes.run_named(GRAPH, ["simplifi"])
    assert all(step.doc for step in PASSES)
    assert len({step.name for step in PASSES}) == len(PASSES)


@pytest.mark.parametrize("wide", COMPUTABLE, ids=lambda d: d.name)
@pytest.mark.parametrize("narrow", [d for d in COMPUTABLE if d.bits <= 16], ids=lambda d: d.name)
def test_what_a_type_holds(wide: DType, narrow: DType) -> None:
    """By all values: converting there and back gives the same bits, but for NaN."""
    from tests.rewrite.refute import every

    x = every(narrow)
    with np.errstate(all="ignore"):
        there = x.astype(wide.numpy)
        back = there.astype(narrow.numpy)
        kept = bool(np.all((back == x) | (x != x)))
        finite = x[np.isfinite(x.astype(np.float64))]
        same = bool(
            np.all(finite.astype(wide.numpy).astype(np.float64) == finite.astype(np.float64))
        )
    assert can_represent(wide, narrow) == (kept and same and (wide.is_float or not narrow.is_float))


@pytest.mark.parametrize("first", COMPUTABLE, ids=lambda d: d.name)
def test_casts_compose_where_one_cast_has_the_same_result(first: DType) -> None:
    x = values(first)
    for middle, last in itertools.product(COMPUTABLE, COMPUTABLE):
        if casts_compose(first, middle, last):
            want = cast_reference(cast_reference(x, middle), last)
            assert same_bits(cast_reference(x, last), want), f"{middle}, {last}"


def test_facts_and_origins_survive() -> None:
    graph = parse(
        "graph f(x: f32[n]) {\n require 3 <= n\n a = neg(x) b = neg(a) c = exp(b) return c }"
    )
    assert passes.run(graph).facts == graph.facts
    x = build.input("x", GRAPH.inputs[0].type)
    from smelt.python.origin import Origin

    here = Origin("user.py", 7)
    y = build.map("div", x, build.constant(2.0, f32), origin=here)
    (out,) = passes.run(Graph("g", (x,), (y,))).outputs
    assert out.op != y.op
    assert out.origin == here


def test_passes_run_until_nothing_changes() -> None:
    """Each round decides what the one before made a number: five of them here."""
    graph = parse("""graph f(x: i32[3]) {
  v0 = neg(x)
  v1 = isnan(v0)
  v2 = cast(v1) {dtype=i32}
  v3 = mul(v2, v0)
  v4 = add(v3, 1:i32)
  v5 = reduce.sum(v4) {axes=(0,)}
  v6 = cast(x) {dtype=i64}
  v7 = add(v5, v6)
  return v7
}""")
    after = passes.run(graph)
    assert "add(v0, 3:i64)" in text(after) and text(passes.run(after)) == text(after)


def test_what_passes_leave_alone_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifying a graph again after each pass that had nothing to do took 0.8 of verification."""
    graph = parse("graph f(x: f32[4]) {\n  v0 = exp(x) : f32[4]\n  return v0\n}")
    other = parse("graph f(x: f32[4]) {\n  v0 = sin(x) : f32[4]\n  return v0\n}")
    seen: list[Graph] = []

    def noted(actual: Graph) -> Graph:
        seen.append(actual)
        return verify(actual)

    monkeypatch.setattr(pipeline, "verify", noted)
    kept, changed = Pass("kept", lambda g: g), Pass("changed", lambda _: other)
    with knobs.config(verify=True):
        pipeline.run_steps(graph, [kept, kept, changed, kept, kept])
    assert [id(g) for g in seen] == [id(graph), id(other)]


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_a_pass_leaves_graphs_alone_to_which_it_does_not_apply(step: Pass) -> None:
    """By the graphs of all cases, to which other passes apply."""
    graphs = [parse(case.source) for case in CASES]
    others = [g for g in graphs if not step.applies(Facts.of(g))]
    assert all(step.function(g) is g for g in others)
    assert len(others) < len(graphs)
