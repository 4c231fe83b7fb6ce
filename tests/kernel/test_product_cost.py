"""Predicted cycles of products: positive, growing with sizes, and what a call is selected by."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.llvm.single_kernel import fuse
from tests.codegen.llvm.test_contractions import matrices

from smelt.codegen.build import code_variants, described
from smelt.kernel.artifact import (
    Candidate,
    ProductCost,
    Variants,
    competing_candidates,
    cost_parts,
    product_cycles,
    select_candidate,
    select_variant,
    tile_steps,
)
from smelt.machine.target import Isa, Target
from smelt.types.json_data import from_data, to_data

ISAS: tuple[Isa, ...] = ("avx512", "avx2", "portable", "neon")
SPECS = ("m,k; k,n -> m,n", "m,k; n,k -> m,n", "k,m; k,n -> m,n", "b,m,k; b,k,n -> b,m,n")
SIZES = st.fixed_dictionaries(
    {
        "b": st.integers(1, 20),
        "m": st.integers(1, 3000),
        "n": st.integers(1, 3000),
        "k": st.integers(1, 5000),
    }
)


def variants_of(spec: str, isa: Isa) -> Variants:
    return code_variants(fuse(matrices("f32", spec), "portable").kernel, Target.for_isa(isa))


VARIANTS = {(spec, isa): variants_of(spec, isa) for spec in SPECS for isa in ISAS}


@given(sizes=SIZES, key=st.sampled_from([*VARIANTS]))
def test_the_least_predicted_time_is_selected(sizes: dict[str, int], key: tuple[str, Isa]) -> None:
    variants = VARIANTS[key]
    chosen, competing = select_candidate(variants, sizes), competing_candidates(variants, sizes)
    assert chosen.variant == select_variant(variants, sizes)
    if chosen.costs:
        assert chosen in competing and competing[-1].variant == ""
        least = min(product_cycles(c.costs, sizes) for c in competing)
        assert product_cycles(chosen.costs, sizes) == least
    else:
        assert min(sizes["m"], sizes["n"]) <= 16


@given(sizes=SIZES, key=st.sampled_from([*VARIANTS]), axis=st.sampled_from("bmnk"))
def test_costs_are_positive_and_grow_with_work(
    sizes: dict[str, int], key: tuple[str, Isa], axis: str
) -> None:
    """Twice the size takes no less; one more row may, if fewer tiles take more of them."""
    spec, _ = key
    larger = {**sizes, axis: 2 * sizes[axis]}
    for c in VARIANTS[key]:
        for cost in c.costs:
            parts = cost_parts(cost, sizes)
            assert all(n >= 0 for n in parts.values()) and parts["multiply-adds"] > 0
        if c.costs and axis in spec:
            assert product_cycles(c.costs, larger) >= product_cycles(c.costs, sizes)


@given(rows=st.integers(0, 500), heights=st.sampled_from([(12, 4, 1), (8, 4, 2, 1), (6, 2, 1)]))
def test_tiles_take_every_row_once(rows: int, heights: tuple[int, ...]) -> None:
    assert sum(h * count for h, count in tile_steps(rows, heights)) == rows
    ((height, count),) = tile_steps(rows, heights[:1])
    assert 0 <= height * count - rows < height


@pytest.mark.parametrize("key", [*VARIANTS])
def test_costs_survive_their_data(key: tuple[str, Isa]) -> None:
    for c in VARIANTS[key]:
        for cost in c.costs:
            assert from_data(ProductCost, json.loads(json.dumps(to_data(cost)))) == cost


def test_a_variant_with_limits_alone_goes_before() -> None:
    cheap = ProductCost(1, 1, 1, heights=(1,))
    few, slow, fast = (
        Candidate("few", ((3, 2),)),
        Candidate("slow", (), (cheap, cheap)),
        Candidate("", (), (cheap,)),
    )
    assert select_variant((few, slow, fast), {}) == ""
    assert select_variant((few._replace(limits=()), slow, fast), {}) == "few"
    assert select_variant((slow,), {}) == "slow" and select_variant((few,), {}) == ""


def test_rows_a_page_apart_are_not_read_in_place() -> None:
    sizes = {"m": 100, "n": 1024, "k": 300}
    for n, evicted in ((1024, True), (1008, False)):
        (in_place,) = (c for c in VARIANTS[SPECS[0], "avx512"] if c.variant == "small" and c.costs)
        waits = cost_parts(in_place.costs[0], {**sizes, "n": n})["operands in place"]
        assert (waits > 0) == evicted


@pytest.mark.parametrize("isa", ISAS)
def test_predictions_are_printed_with_what_they_are_spent_on(isa: Isa) -> None:
    kernel, sizes = (
        fuse(matrices("f32", SPECS[0]), "portable").kernel,
        {"m": 300, "n": 300, "k": 200},
    )
    target = Target.for_isa(isa)
    text = described(kernel, target, sizes)
    _, _, predictions = text.partition("predicted thousands of cycles\n")
    lines = predictions.splitlines()
    names = [line.split()[0] for line in lines]
    chosen = select_variant(code_variants(kernel, target), sizes)
    assert names[0] == (chosen or "usual") and {"panels", "usual", "small"} <= {*names}
    totals = [float(line.split()[1].rstrip(":")) for line in lines]
    assert totals == sorted(totals) and all("multiply-adds" in line for line in lines)
