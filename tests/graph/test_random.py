"""Random programs: text round trips, verification, the interpreter's checks."""

from __future__ import annotations

from hypothesis import given
from tests.graph.substitute_sizes import substitute_sizes
from tests.strategies.comparison import same_bits
from tests.strategies.effort import NIGHT, effort
from tests.strategies.graphs import Program, graphs

from smelt.graph.interp import run, solve_sizes
from smelt.graph.text import parse, text
from smelt.graph.verify import verify
from smelt.graph.walk import all_size_names, rebuild, use_counts, users

pytestmark = NIGHT

SETTINGS = effort(250)


@SETTINGS
@given(graphs())
def test_text_round_trip(program: Program) -> None:
    graph, arrays = program
    printed = text(verify(graph))
    again = parse(printed)
    assert text(verify(again)) == printed
    for a, b in zip(run(graph, arrays), run(again, arrays), strict=True):
        assert same_bits(a, b)


@SETTINGS
@given(graphs())
def test_types_may_be_left_out(program: Program) -> None:
    printed = text(program.graph)
    short = "\n".join(
        line.rpartition(" : ")[0] if " = " in line else line for line in printed.split("\n")
    )
    assert text(parse(short)) == printed


@SETTINGS
@given(graphs())
def test_walkers_agree(program: Program) -> None:
    graph = program.graph
    assert rebuild(graph, lambda node: node) is graph
    actual, counts = users(graph), use_counts(graph)
    for node in graph.nodes():
        outputs = sum(1 for out in graph.outputs if out is node)
        assert counts[node] == len(actual[node]) + outputs


@SETTINGS
@given(graphs())
def test_known_sizes_give_the_same_results(program: Program) -> None:
    graph, arrays = program
    values = solve_sizes(graph, arrays)
    fixed = substitute_sizes(graph, values)
    assert not all_size_names(verify(fixed))
    for a, b in zip(run(graph, arrays), run(fixed, arrays), strict=True):
        assert same_bits(a, b)
