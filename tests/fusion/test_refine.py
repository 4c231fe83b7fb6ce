"""Refinement splits kernels without making cycles, and wastes no query."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE

from smelt import passes
from smelt.fusion import plan
from smelt.fusion.bitsets import Hints
from smelt.fusion.plan import Plan
from smelt.fusion.predict import costs
from smelt.fusion.refine import Move, Refinement
from smelt.fusion.region import Region
from smelt.fusion.state import Verdict
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal


def tangled(seed: int) -> tuple[Graph, dict[str, int]]:
    """A random graph with more operators than are planned by trying everything."""
    g, graph = random_graph(seed, 12 + seed % 30, results=2)
    return passes.run(graph, Journal(), "eager"), g.sizes


def _key(members: int, stored: int) -> Verdict:
    result = Verdict(Region(members, stored))
    result.key = members, stored
    return result


def test_cycles_follow_from_what_clusters_read_and_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cycle detection agrees with running the kernels one after the other."""
    reported: list[bool] = []
    is_circle = Refinement._creates_cycle  # pyright: ignore[reportPrivateUsage]

    def compared(self: Any, c: int, n: int, joined: Any, left: Any) -> bool:
        actual = is_circle(self, c, n, joined, left)
        move = Move(0.0, (c, n), (_key(*joined), _key(*left)))
        assert actual != self._is_acyclic(move)
        reported.append(actual)
        return actual

    monkeypatch.setattr(Refinement, "_creates_cycle", compared)
    for seed in (*range(40), 52, 55):
        graph, sizes = tangled(seed)
        plan(graph, MACHINE, None, sizes)
    assert sum(reported) > 100
    assert len(reported) - sum(reported) > 100


@pytest.mark.parametrize("seed", [9, 17, 23, 26, 41])
def test_the_best_way_that_is_chosen_can_be_taken(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    is_acyclic = Refinement._is_acyclic  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(
        Refinement, "_is_acyclic", lambda *a: (taken.append(is_acyclic(*a)), taken[-1])[1]
    )
    graph, sizes = tangled(seed)
    plan(graph, MACHINE, None, sizes)
    assert all(taken)


def _burden(actual: Plan, sizes: dict[str, int]) -> float:
    return sum(c.objective_ns for c in costs(actual, MACHINE, Hints(sizes)))


def test_the_next_best_way_is_taken_where_the_best_one_would_be_a_circle() -> None:
    graph, sizes = tangled(23)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refinement, "_creates_cycle", lambda *_: False)
        before = plan(graph, MACHINE, None, sizes)
    fused_plan = plan(graph, MACHINE, None, sizes)
    assert _burden(fused_plan, sizes) < _burden(before, sizes)
