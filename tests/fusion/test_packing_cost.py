"""Packing costs: fusions in which every task would pack whole operands are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.fusion.formulas import MACHINE, Formula

import smelt as sm
from smelt.fusion.bitsets import Hints
from smelt.fusion.cost import Model
from smelt.fusion.operand_cost import (
    SHARED_BYTES,
    Operand,
    packing_ns,
    prepacked_ns,
    staged_ns,
)
from smelt.fusion.region import build_region
from smelt.fusion.streams import cheapest_stream
from smelt.fusion.units import Units, is_contraction
from smelt.graph.text import parse
from smelt.machine.target import Rates

STEPS, LANES = 10**8, MACHINE.vector_bytes // 4
ROWS, COLUMNS = Operand(1024, 1e8, is_contiguous=True), Operand(1024, 1e8, is_contiguous=False)


def price(one: Operand, other: Operand, depth: int = 1024, itemsize: int = 4) -> float:
    return packing_ns(MACHINE, (one, other), depth, STEPS, itemsize)


def test_k_contiguous_and_in_place_operands_are_not_packed() -> None:
    both = price(COLUMNS, COLUMNS)
    assert price(ROWS, COLUMNS) == price(COLUMNS, ROWS) == price(ROWS, ROWS) == both / 2
    built = replace(COLUMNS, is_computed=True)
    assert price(built, COLUMNS) == both / 2
    assert price(built, built) == 0.0


def test_few_rows_and_small_products_pack_nothing() -> None:
    assert price(Operand(16, 1e8, False), COLUMNS) == 0.0
    assert price(Operand(17, 1e8, False), COLUMNS) > 0.0
    small = Operand(192, 1e8, False)
    assert price(small, small, 384) == 0.0
    assert price(small, small, 385) > 0.0


def test_packing_takes_longer_where_operands_rest_further_away() -> None:
    l1, l2, l3 = (price(COLUMNS, COLUMNS, depth) for depth in (4, 64, 1024))
    assert l1 < l2 < l3


def test_blocks_of_the_usual_heights_are_not_charged_for() -> None:
    """Of half as many elements of twice the size."""
    for itemsize in (4, 8):
        usual = Operand(1024, STEPS * itemsize / SHARED_BYTES, False)
        assert price(usual, usual, itemsize=itemsize) == 0.0
        assert (
            price(
                usual, replace(usual, packed_elements=2 * usual.packed_elements), itemsize=itemsize
            )
            > 0.0
        )


def test_packing_all_of_an_operand_once_is_not_charged_for() -> None:
    few, once = (
        Operand(48, 0.0, is_contiguous=False),
        Operand(1024, STEPS / 48, is_contiguous=False),
    )
    assert price(few, once) == 0.0
    assert price(few, replace(once, packed_elements=2 * once.packed_elements)) > 0.0


def test_few_rows_pack_on_the_way_only_in_a_kernel_of_their_own() -> None:
    few, once = (
        Operand(64, 0.0, is_contiguous=False),
        Operand(1024, STEPS / 64, is_contiguous=False),
    )
    assert packing_ns(MACHINE, (few, once), 1024, STEPS, 4) == 0.0
    beside = packing_ns(MACHINE, (few, once), 1024, STEPS, 4, alone=False)
    assert beside > 0.05 * once.packed_elements
    many = Operand(193, 0.0, is_contiguous=False), Operand(1024, STEPS / 193, is_contiguous=False)
    assert packing_ns(MACHINE, many, 1024, STEPS, 4, alone=False) == 0.0


def test_gradients_of_a_small_batch_stand_alone() -> None:
    """Of 32 rows: neither do that of the weights and the hidden one share a kernel for the operand
    that both read, nor is the latter's sum over rows found where that is made."""
    f = Formula()
    g, h, w = f.input("g", 32, 512), f.input("h", 32, 512), f.input("w", 512, 512)
    whole = f.of("mul", h, f.of("erf", h))
    inner = f.of("mul", f.matmul(g, w), f.of("exp", f.of("mul", h, h)))
    weights = f.matmul(f.permute(g, 1, 0), whole)
    plan = f.plan(inner, weights, f.fold("sum", inner, 0, keep=True))
    assert sorted(sum(map(is_contraction, c.nodes)) for c in plan.clusters) == [0, 1, 1]


FAR = replace(
    MACHINE,
    l2_bytes=2 << 20,
    fma_gflops=248.0,
    one_thread=replace(MACHINE.one_thread, l3=Rates(30, 30, 30), dram=Rates(17, 11, 17)),
    all_threads=replace(MACHINE.all_threads, l3=Rates(30, 56, 30), dram=Rates(19, 12, 17)),
)
"""A machine with memory so slow that little is gained by storing anything."""


def test_products_of_a_backward_pass_stand_alone() -> None:
    """The gradients of two layers with an activation between, of the hidden values and both
    weights: in one kernel each task would take 48 hidden columns, and pack all rows for them."""
    f = Formula()
    x, g = (f.reshape(f.input(name, 4, 256, 768), 1024, 768) for name in "xg")
    h, w = f.input("h", 1024, 3072), f.input("w", 768, 3072)
    whole = f.of("add", f.of("erf", f.of("mul", h, 0.70710677)), 1.0)
    steep = f.of("mul", h, f.of("exp", f.of("mul", f.of("mul", h, h), -0.5)))
    inner = f.of("mul", f.matmul(g, w), f.of("add", whole, steep))
    first = f.matmul(f.permute(inner, 1, 0), x)
    second = f.matmul(f.permute(g, 1, 0), f.of("mul", h, whole))
    plan = f.plan(inner, first, second, f.fold("sum", inner, 0, keep=True), target=FAR)
    assert [sum(map(is_contraction, c.nodes)) for c in plan.clusters].count(1) == 3


def _kernels(widths: tuple[int, ...], rows: int) -> int:
    """Kernels of a chain of products."""

    def chain(x: Any, weights: Any) -> Any:
        for w in weights:
            x = x @ w
        return x

    specs = [sm.spec(f"f32[{a},{b}]") for a, b in pairwise(widths)]
    compiled = sm.jit(chain).lower(sm.spec(f"f32[{rows},{widths[0]}]"), specs).compile()
    return compiled.as_text("plan").count(": k")


def test_the_few_sums_of_a_chain_go_from_kernel_to_kernel() -> None:
    """A tile that is a quarter full takes longer than storing them."""
    assert _kernels((128, 8, 128), 4096) == 2


def test_sums_of_a_chain_are_charged_for_by_the_vector_and_for_lanes_without_a_column() -> None:
    whole = staged_ns(MACHINE, 1e6, 2 * LANES, 64, 4)
    assert 0.0 < whole == staged_ns(MACHINE, 1e6, 4 * LANES, 1024, 4)
    assert staged_ns(MACHINE, 1e6, 2 * LANES, 64, 8) == 2 * whole
    assert staged_ns(MACHINE, 1e6, LANES, 64, 4) > whole


def test_a_stream_pays_for_packing_constants_in_each_call() -> None:
    """Other kernels read them as packed before all calls."""

    def predicted_ns(constant: str) -> float:
        graph = parse(f"""graph f(x: f32[n,300], w: f32[256,300]{constant}, v: f32[40,256]) {{
  a = contract(x, w) {{spec="m,k; n,k -> m,n"}}
  b = erf(a)
  y = contract(b, v) {{spec="m,k; n,k -> m,n"}}
  return y
}}""")
        units = Units(graph)
        region = build_region(units, sum(1 << u.number for u in units.units), units.outputs)
        cost = cheapest_stream(Model(units, MACHINE, Hints(n=200)), region, beyond=False)
        assert cost is not None
        return cost.arithmetic

    saved_ns = prepacked_ns(MACHINE, 4 * 256 * 300, 200) / MACHINE.cores
    difference_ns = predicted_ns(" constant") - predicted_ns("")
    assert difference_ns == pytest.approx(saved_ns, rel=1e-3)
