"""Random programs: their plans are well formed and mean what the graph means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE, execute
from tests.strategies.comparison import same_bits
from tests.strategies.graphs import Program, graphs

from smelt.fusion import plan, traffic
from smelt.fusion.bitsets import bits
from smelt.fusion.region import build_region, region_of
from smelt.fusion.text import text
from smelt.fusion.units import Units, is_free
from smelt.fusion.verify import verify
from smelt.graph.interp import run, solve_sizes


@settings(max_examples=150, deadline=None)
@given(graphs(max_nodes=14))
def test_plans_of_programs(program: Program):
    graph, arrays = program
    assume(all(d != 0 for node in graph.nodes() for d in node.type.shape))
    sizes = solve_sizes(graph, arrays)
    want = run(graph, arrays)
    for hints in (sizes, {}, dict.fromkeys(sizes, 1 << 12)):
        for fuse in (True, False):
            actual = verify(plan(graph, MACHINE, None, hints, fuse=fuse))
            assert text(plan(graph, MACHINE, None, hints, fuse=fuse)) == text(actual)
            for one, other in zip(execute(actual, arrays, sizes), want, strict=True):
                assert same_bits(one, other)


@settings(max_examples=80, deadline=None)
@given(graphs(max_nodes=14))
def test_traffic_of_programs(program: Program):
    graph, arrays = program
    assume(all(d != 0 for node in graph.nodes() for d in node.type.shape))
    sizes = solve_sizes(graph, arrays)
    fused_plan = plan(graph, MACHINE, None, sizes)
    apart = plan(graph, MACHINE, None, sizes, fuse=False)
    rows, alone = traffic(fused_plan, sizes), traffic(apart, sizes)
    assert sum(u for _, u in rows) == sum(u for _, u in alone) == sum(f for f, _ in alone)


@pytest.mark.parametrize("seed", range(15))
def test_regions_of_parts_agree_with_regions_of_wholes(seed: int):
    """What the search joins from summaries is what looking at the whole set finds."""
    g, graph = random_graph(seed, 60, folds=0.1)
    units = Units(graph)
    for cluster in plan(graph, MACHINE, None, g.sizes).clusters:
        region = region_of(units, cluster)
        assert region.fault is None or cluster.shapes
        again = build_region(units, region.members, region.stored)
        assert again.loads == region.loads or cluster.shapes


def test_free_nodes_are_pulled_into_every_reader():
    for seed in range(10):
        g, graph = random_graph(seed, 40)
        fused_plan = plan(graph, MACHINE, None, g.sizes)
        for cluster in fused_plan.clusters:
            assert not all(is_free(n) for n in cluster.nodes)
            for node in cluster.recomputed:
                assert not is_free(node)


def test_arrays_of_no_elements_plan_and_run():
    for seed in range(6):
        _, graph = random_graph(seed, 20)
        result = verify(plan(graph, MACHINE, None, {"n": 0, "m": 5}))
        arrays = [
            np.ones([{"n": 3, "m": 5}.get(str(d), 1) for d in x.type.shape], np.float32)
            for x in graph.inputs
        ]
        sizes = {"n": 3, "m": 5}
        for one, other in zip(execute(result, arrays, sizes), run(graph, arrays), strict=True):
            np.testing.assert_array_equal(one, other)


def test_members_of_clusters_cover_the_graph():
    for seed in range(10):
        g, graph = random_graph(seed, 40, sorts=0.1)
        units = Units(graph)
        covered = 0
        for cluster in plan(graph, MACHINE, None, g.sizes).clusters:
            covered |= region_of(units, cluster).members
        assert set(bits(covered)) == {u.number for u in units.units}
