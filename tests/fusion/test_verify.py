"""Plans that are wrong in one way each are refused with that way's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.fusion.formulas import Formula

from smelt.errors import VerifyError
from smelt.fusion import Cluster, Plan
from smelt.fusion.verify import verify


def valid_plan() -> Plan:
    """exp, log | sort | abs, and neg of x beside the first."""
    g = Formula(n=100, m=100)
    x = g.input("x", "n", "m")
    s = g.sort(g.of("log", g.of("exp", x)))
    return g.plan(g.of("add", g.of("abs", s), s), g.sort(g.of("neg", x)))


def with_cluster(plan: Plan, k: int, **changes: Any) -> Plan:
    clusters: list[Cluster] = list(plan.clusters)
    clusters[k] = replace(clusters[k], **changes)
    return replace(plan, clusters=tuple(clusters))


def refused(plan: Plan) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(plan)
    return str(caught.value)


def test_the_plan_itself_is_fine():
    assert verify(valid_plan()).clusters


def test_launches_list_every_cluster():
    plan = valid_plan()
    assert "do not list" in refused(replace(plan, launches=plan.launches[:-1]))
    assert "do not list" in refused(replace(plan, launches=plan.launches[::-1]))


def test_calls_start_alone():
    plan = valid_plan()
    everything = (tuple(range(len(plan.clusters))),)
    assert "together" in refused(replace(plan, launches=everything))


def test_values_are_written_before_they_are_read():
    plan = valid_plan()
    order = plan.clusters[::-1]
    assert "before it is written" in refused(replace(plan, clusters=order))


def test_values_are_written_once():
    plan = valid_plan()
    k = next(k for k, c in enumerate(plan.clusters) if len(c.nodes) > 1)
    c = plan.clusters[k]
    assert "twice" in refused(with_cluster(plan, k, outputs=(*c.outputs, *c.outputs)))


def test_results_are_written():
    plan = valid_plan()
    last = plan.clusters[-1]
    kept = tuple(n for n in last.nodes if n not in last.outputs)
    text = refused(with_cluster(plan, len(plan.clusters) - 1, outputs=kept))
    assert "nobody" in text or "never written" in text


def test_operands_are_there():
    plan = valid_plan()
    k = next(k for k, c in enumerate(plan.clusters) if len(c.nodes) > 1)
    nodes = plan.clusters[k].nodes
    assert "not there" in refused(with_cluster(plan, k, nodes=nodes[1:]))
    assert "not there" in refused(with_cluster(plan, k, nodes=nodes[::-1]))


def test_nothing_is_computed_or_read_for_nobody():
    plan = valid_plan()
    k = next(k for k, c in enumerate(plan.clusters) if len(c.nodes) > 1)
    c = plan.clusters[k]
    assert "for nobody" in refused(with_cluster(plan, k, outputs=c.nodes[:1]))
    more = (*c.inputs, *(x for x in plan.graph.inputs if x not in c.inputs))
    extra = next(n for d in plan.clusters for n in d.outputs if n not in c.nodes)
    if len(more) == len(c.inputs):
        last = len(plan.clusters) - 1
        more = (*plan.clusters[last].inputs, *plan.graph.inputs, extra)
        more = tuple(n for n in dict.fromkeys(more) if n not in plan.clusters[last].nodes)
        assert "for nothing" in refused(with_cluster(plan, last, inputs=more))


def test_copies_are_marked():
    plan = valid_plan()
    c = plan.clusters[0]
    assert "marked wrongly" in refused(with_cluster(plan, 0, recomputed=c.nodes))


def test_buffers_are_complete_and_long_enough():
    plan = valid_plan()
    assert "one buffer" in refused(replace(plan, slots=plan.slots[1:]))
    first = next(s for s in plan.slots if s.offset is not None)
    rest = tuple(s for s in plan.slots if s is not first)
    assert "too early" in refused(replace(plan, slots=(replace(first, last=first.first), *rest)))
    assert "not its own" in refused(replace(plan, slots=(replace(first, offset=None), *rest)))


def test_buffers_do_not_overlap():
    plan = valid_plan()
    slots = tuple(
        s if s.offset is None else replace(s, offset=0, reuses=None, within=None)
        for s in plan.slots
    )
    assert "overlap" in refused(replace(plan, slots=slots))


def test_buffers_in_results_end_before_those_are_written():
    plan = valid_plan()
    result = next(s for s in plan.slots if s.offset is None)
    guest = next(s for s in plan.slots if s.offset is not None and s.within is None)
    rest = tuple(s for s in plan.slots if s is not guest)
    moved = replace(guest, within=result.node, offset=0, reuses=None)
    assert "where a result is written" in refused(replace(plan, slots=(moved, *rest)))


def test_one_shape_for_each_result():
    plan = valid_plan()
    assert "one shape" in refused(with_cluster(plan, 0, shapes=((), (), ())))
