"""Isomorphic sets of units: renamed analyses and plans equal those made anew."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE, Formula
from tests.fusion.test_planning_time import Queries, encoder, powers, queries

from smelt.compiler.driver import input_size_names
from smelt.fusion import plan
from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cost import Model
from smelt.fusion.isomorphism import Isomorphism, rename_region
from smelt.fusion.region import build_region
from smelt.fusion.text import text
from smelt.fusion.units import Units
from smelt.graph.ir import Graph
from smelt.ops.index import Gather
from smelt.types.dtype import i64

__all__ = ["queries"]  # the fixture


def gathered(layers: int) -> Graph:
    """Layers that add rows of tables, which data pick, and subtract the largest of each row."""
    g = Formula()
    ids, x = g.input("ids", "n", dtype=i64), g.input("x", "n", "d")
    for k in range(layers):
        x = g.of("add", g.op(Gather(0), g.input(f"t{k}", "k", "d"), ids), x)
        x = g.of("sub", x, g.fold("max", g.of("exp", x), 1, keep=True))
    return g.graph(x)


def test_positions_that_data_decide_are_renamed_with_their_units() -> None:
    units = Units(gathered(2))
    alike = Isomorphism(units, Model(units, MACHINE, Hints(n=640, k=999, d=48)))
    one, other = ((1 << u | units.users[u], units.users[u]) for u in bits(units.gathers))
    this, that = alike.signature(*one), alike.signature(*other)
    assert this is not None and that is not None and this.form == that.form
    actual, rebuilt = (
        rename_region(build_region(units, *one), this, that),
        build_region(units, *other),
    )
    assert rebuilt.data_positions
    for field in fields(rebuilt):
        assert getattr(actual, field.name) == getattr(rebuilt, field.name), field.name


GRAPHS = {
    "picked": lambda: gathered(6),
    "encoder": lambda: encoder(2),
    "powers": powers,
    **{f"random {seed}": lambda seed=seed: random_graph(seed, 40)[1] for seed in range(4)},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_plans_are_those_without_looking_for_what_is_alike(
    name: str, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = GRAPHS[name]()
    hints = dict.fromkeys(input_size_names(graph), 512)
    actual, few = text(plan(graph, MACHINE, None, hints)), queries.looks
    monkeypatch.setattr(Isomorphism, "signature", lambda *_: None)
    assert text(plan(graph, MACHINE, None, hints)) == actual
    assert name != "picked" or 3 * few < queries.looks
