"""No set of units takes less time than its lower bound, in any number of kernels."""

from __future__ import annotations

import pytest
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE

from smelt import passes
from smelt.fusion import plan
from smelt.fusion.bitsets import Hints
from smelt.fusion.cost import Model
from smelt.fusion.cost_model import Bounds
from smelt.fusion.legal import FusionConstraints
from smelt.fusion.state import State
from smelt.fusion.units import Units
from smelt.graph.text import parse
from smelt.journal.facts import Journal


@pytest.mark.parametrize("block", range(4))
def test_no_kernel_takes_less(block: int) -> None:
    """Neighbours of random graphs, each alone and both as one kernel."""
    pairs = 0
    for seed in range(40 * block, 40 * block + 40):
        g, graph = random_graph(seed, 8 + seed % 4, results=2)
        units = Units(passes.run(graph, Journal(), "eager"))
        model = Model(units, MACHINE, Hints(g.sizes))
        state, bounds = State(units, model, FusionConstraints(units, (), ())), Bounds(model)
        for unit in units.units:
            if unit.is_library or unit.is_scatter:
                continue
            one = state.evaluate(1 << unit.number, 1 << unit.number)
            assert one.cost is not None
            moved = model.unfused_bytes(unit.number)
            assert moved <= one.cost.moved
            if all(e.same for e in unit.edges):
                assert moved == one.cost.moved
            least = bounds.single(one.region, 1)
            assert least <= one.cost.objective_ns * (1 + 1e-9)
            assert bounds.single(one.region, 2) > least
            for p in (e.producer for e in unit.edges if e.producer >= len(units.inputs)):
                other = state.evaluate(1 << p, 1 << p)
                both = state.evaluate(1 << p | 1 << unit.number, 1 << unit.number)
                if both.cost is None or model.is_masked(both.region):
                    continue
                least = bounds.pair(one.region, other.region, 1 << unit.number, 1)
                assert least <= both.cost.objective_ns * (1 + 1e-9)
                if not units.outputs >> p & 1:
                    assert other.cost is not None
                    apart = one.cost.objective_ns + other.cost.objective_ns
                    least = bounds.single(both.region, 2, 1 << p)
                    assert bounds.single(both.region, 2) <= least <= apart * (1 + 1e-9)
                pairs += 1
    assert pairs > 50


PLACES = [f"{{shape=(m,n), axis={a}, dtype=i64}}" for a in (0, 1)]
MASKS = {
    "given": ("mask: bool[m,n]", "vm = not(mask)"),
    "of data": ("y: f32[m,n]", "vm = gt(y, 0.0:f32)"),
    "of positions": ("", f"vi = iota() {PLACES[0]} vj = iota() {PLACES[1]} vm = lt(vi, vj)"),
}


@pytest.mark.parametrize("sizes", [(256, 128, 64), (512, 512, 64), (2048, 300, 32), (33, 5000, 8)])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_leave_no_less(mask: str, sizes: tuple[int, int, int]) -> None:
    """Attention with all that its mask may rule out: most is done that positions do not decide."""
    more, condition = MASKS[mask]
    more = more and f", {more}"
    units = Units(
        passes.run(
            parse(f"""graph f(q: f32[m,d], k: f32[n,d], v: f32[n,d]{more}) {{
        s = contract(q, k) {{spec="m,d; n,d -> m,n"}}
        {condition}
        t = select(vm, -inf:f32, s)
        a = reduce.max(t) {{axes=(1,)}} b = reshape(a) {{shape=(m,1)}}
        c = sub(t, b) e = exp(c) z = reduce.sum(e) {{axes=(1,)}} w = reshape(z) {{shape=(m,1)}}
        p = div(e, w) o = contract(p, v) {{spec="m,n; n,d -> m,d"}}
        return o
    }}"""),
            Journal(),
            "eager",
        )
    )
    model = Model(units, MACHINE, Hints(zip("mnd", sizes, strict=True)))
    state, bounds = State(units, model, FusionConstraints(units, (), ())), Bounds(model)
    members = sum(1 << u.number for u in units.units)
    whole = state.evaluate(members, units.outputs)
    assert whole.cost is not None
    least = bounds.single(whole.region, 1)
    assert least <= whole.cost.objective_ns * (1 + 1e-9)
    products = sum(
        model.step_ns[u.number] * model.elements[u.number] * model.extents[u.reduced_extents[0]]
        for u in units.units
        if u.trace.dots
    )
    assert (least > 0.7 * products / model.cores) == (mask != "of positions")


@pytest.mark.parametrize("n", [0, 1, 64, 4096])
def test_results_that_share_a_value_may_be_taken_apart(n: int) -> None:
    """Regions that are joined of flat ones know the places of results only."""
    graph = parse("""graph f(x: f32[n,m]) {
        v0 = exp(x) v1 = neg(v0) v2 = permute(v0) {perm=(1,0)} return v1, v2
    }""")
    fused_plan = plan(graph, MACHINE, None, {"n": n, "m": 16})
    assert sum(len(c.outputs) for c in fused_plan.clusters) >= 2
