"""No set of units takes less than the least that is told of it, in one kernel or in several."""

from __future__ import annotations

import pytest
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE

from smelt import passes
from smelt.fusion import plan
from smelt.fusion.along import is_masked
from smelt.fusion.cost import Model
from smelt.fusion.least import Bounds
from smelt.fusion.legal import Wishes
from smelt.fusion.sets import Hints
from smelt.fusion.state import State
from smelt.fusion.units import Units
from smelt.graph.text import parse
from smelt.journal import Journal


@pytest.mark.parametrize("block", range(4))
def test_no_kernel_takes_less(block: int) -> None:
    """Neighbours of random graphs, each alone and both as one kernel."""
    pairs = 0
    for seed in range(40 * block, 40 * block + 40):
        g, graph = random_graph(seed, 8 + seed % 4, results=2)
        units = Units(passes.run(graph, Journal(), "eager"))
        model = Model(units, MACHINE, Hints(g.sizes))
        state, bounds = State(units, model, Wishes(units, (), ())), Bounds(model)
        for unit in units.units:
            if unit.is_library or unit.joins:
                continue
            one = state.judge(1 << unit.number, 1 << unit.number)
            assert one.cost is not None
            moved = state.moved_alone(unit.number)
            assert moved <= one.cost.moved
            if all(e.same for e in unit.edges):
                assert moved == one.cost.moved
            least = bounds.alone(one.region, 1)
            assert least <= one.cost.burden * (1 + 1e-9)
            assert bounds.alone(one.region, 2) > least
            for p in (e.producer for e in unit.edges if e.producer >= len(units.inputs)):
                other = state.judge(1 << p, 1 << p)
                both = state.judge(1 << p | 1 << unit.number, 1 << unit.number)
                if both.cost is None or is_masked(model, both.region):
                    continue
                least = bounds.both(one.region, other.region, 1 << unit.number, 1)
                assert least <= both.cost.burden * (1 + 1e-9)
                if not units.outputs >> p & 1:
                    assert other.cost is not None
                    apart = one.cost.burden + other.cost.burden
                    least = bounds.alone(both.region, 2, 1 << p)
                    assert bounds.alone(both.region, 2) <= least <= apart * (1 + 1e-9)
                pairs += 1
    assert pairs > 50


@pytest.mark.parametrize("n", [0, 1, 64, 4096])
def test_results_that_share_a_value_may_be_taken_apart(n: int) -> None:
    """Regions that are joined of flat ones know the places of results only."""
    graph = parse("""graph f(x: f32[n,m]) {
        v0 = exp(x) v1 = neg(v0) v2 = permute(v0) {perm=(1,0)} return v1, v2
    }""")
    found = plan(graph, MACHINE, None, {"n": n, "m": 16})
    assert sum(len(c.outputs) for c in found.clusters) >= 2
