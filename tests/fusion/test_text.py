"""Plans print, parse back to themselves, and say where their text is wrong."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE, Formula
from tests.strategies.graphs import Program, graphs

from smelt.errors import GraphTextError, PlanTextError
from smelt.fusion import plan
from smelt.fusion.text import parse, text
from smelt.fusion.verify import verify


def softmax_of_groups():
    g = Formula(n=8, h=14, w=14)
    x = g.input("x", "n", 64, "h", "w")
    groups = g.reshape(x, "n", 8, 8, "h", "w")
    y = g.reshape(g.normalised(groups, 2, 3, 4), "n", 64, "h", "w")
    return g, y, g.sort(g.of("exp", y))


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(seed: int):
    g, graph = random_graph(seed, 40, sorts=0.1)
    for fuse in (True, False):
        fused_plan = plan(graph, MACHINE, None, g.sizes, fuse=fuse)
        printed = text(fused_plan)
        again = verify(parse(printed, graph))
        assert text(again) == printed
        for one, other in zip(fused_plan.clusters, again.clusters, strict=True):
            assert (one.nodes, one.inputs, one.outputs) == (
                other.nodes,
                other.inputs,
                other.outputs,
            )
        assert again.launches == fused_plan.launches


@settings(max_examples=40, deadline=None)
@given(graphs(max_nodes=10))
def test_round_trip_of_any_program(program: Program):
    assume(all(d != 0 for node in program.graph.nodes() for d in node.type.shape))
    fused_plan = plan(program.graph, MACHINE, None, {})
    printed = text(fused_plan, graph=True)
    assert text(parse(printed), graph=True) == printed


def test_shapes_and_copies_are_printed():
    g, y, z = softmax_of_groups()
    fused_plan = g.plan(y, z)
    assert " walks [n,8,8,h,w]" in text(fused_plan)
    assert text(parse(text(fused_plan), fused_plan.graph)) == text(fused_plan)


def test_bytes_are_a_comment():
    g, y, _ = softmax_of_groups()
    fused_plan = g.plan(y)
    printed = text(fused_plan, g.sizes)
    moved = 2 * 4 * 8 * 64 * 14 * 14
    assert f"# {moved} B moved (apart: " in printed
    assert text(parse(printed, fused_plan.graph)) == text(fused_plan)


GRAPH = """graph f(x: f32[n]) {
  v0 = exp(x) : f32[n]
  v1 = log(v0) : f32[n]
  return v1
}
"""
GOOD = "plan f {\n  0: k0(x) -> v1 = v0 v1\n  v1 @ out: n*4 bytes, k0 to k0\n}"


@pytest.mark.parametrize(
    ("wrong", "line", "expected"),
    [
        (GOOD.replace("plan f", "plan g"), 6, "`plan f {`"),
        (GOOD.replace("v0 v1", "v0 v9"), 7, "not v9"),
        (GOOD.replace("k0(x) ->", "k0(x)"), 7, "a cluster"),
        (GOOD.replace("0: k0", "1: k0"), 7, "step 0"),
        (GOOD.replace("n*4", "n*"), 8, "an expression"),
        (GOOD.replace("k0 to k0", "k0 to k1"), 8, "stand above"),
        (GOOD.replace("@ out", "@ over v0"), 8, "a buffer"),
        (GOOD[:-1], 8, "`}`"),
    ],
)
def test_faults_name_their_line(wrong: str, line: int, expected: str):
    assert parse(GRAPH + GOOD)
    with pytest.raises(PlanTextError) as caught:
        parse(GRAPH + wrong)
    assert expected in str(caught.value)
    assert caught.value.line in (line, line + 1)


def test_a_plan_without_its_graph_is_refused():
    with pytest.raises(PlanTextError, match="graph"):
        parse(GOOD)
    with pytest.raises(GraphTextError):
        parse("graph f(\n}\n" + GOOD)
