"""Random programs through the passes: same results, same signature, a fixed point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.comparison import Judge, same_bits
from tests.strategies.effort import NIGHT, effort
from tests.strategies.graphs import Program, graphs

from smelt import knobs, passes
from smelt.backend.gpus import gpu
from smelt.graph.interp import run
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.graph.verify import verify, verify_same_signature
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.ops.contract import Contract
from smelt.ops.reduce import Reduce
from smelt.passes import PASSES, Pass
from smelt.passes.pipeline import run_steps

pytestmark = NIGHT

EXACT = [step for step in PASSES if not step.fast]


def follows_layouts(graph: Graph) -> bool:
    """Whether floats are summed in an order that follows how operands lie."""
    return any(
        isinstance(node.op, Contract)
        or (isinstance(node.op, Reduce) and node.type.dtype.is_float and not node.op.row.idempotent)
        for node in graph.nodes()
    )


def check_bits(program: Program, actual: list[object]) -> None:
    if follows_layouts(program.graph):
        assert not Judge(*program).complaint(actual)  # type: ignore[arg-type]
        return
    wanted = run(program.graph, program.arrays)
    for k, (a, b) in enumerate(zip(wanted, actual, strict=True)):
        assert same_bits(a, b), f"output {k}: {a!r} became {b!r}"  # type: ignore[arg-type]


@pytest.mark.parametrize("step", EXACT, ids=lambda step: step.name)
@effort(120)
@given(program=graphs())
def test_each_pass_keeps_every_bit(step: Pass, program: Program) -> None:
    after = step.function(program.graph)
    verify(verify_same_signature(program.graph, after))
    check_bits(program, run(after, program.arrays))


@effort(400)
@given(graphs(max_nodes=16), st.sampled_from([CPU_TILING, gpu("h100").tiling]))
def test_all_passes_keep_every_bit(program: Program, tiling: Tiling) -> None:
    with knobs.config(verify=True):
        after = passes.run(program.graph, tiling=tiling)
    check_bits(program, run(after, program.arrays))


@effort(150)
@given(graphs(max_nodes=12), st.permutations(EXACT))
def test_the_order_of_passes_does_not_matter(program: Program, order: list[Pass]) -> None:
    with knobs.config(verify=True):
        after = run_steps(run_steps(program.graph, order), order)
    check_bits(program, run(after, program.arrays))


@effort(200)
@given(graphs(max_nodes=16))
def test_passes_reach_a_fixed_point(program: Program) -> None:
    after = passes.run(program.graph)
    assert text(passes.run(after)) == text(after)


@effort(300)
@given(graphs(max_nodes=12, flavours=("counting", "uniform", "normal"), excluded=("eq", "ne")))
def test_fast_passes_differ_by_rounding_only(program: Program) -> None:
    """Equality is left out: whether two rounded numbers are equal is an accident."""
    with knobs.config(verify=True):
        after = passes.run(program.graph, rounding="fast")
    judge = Judge(program.graph, program.arrays)
    assert not judge.complaint(run(after, program.arrays)), text(after)
