"""Products of short integers are priced by the instructions that the kernel's code has for them."""

from __future__ import annotations

from typing import Any

import pytest

import smelt as sm
from smelt.fusion.bitsets import Hints
from smelt.fusion.contraction_cost import converting_units
from smelt.fusion.cost import Model
from smelt.fusion.region import build_region
from smelt.fusion.units import Units
from smelt.graph.text import parse
from smelt.machine.target import Target
from smelt.types.dtype import i8, i16, u8

TEXT = """graph f(x: {left}[m,k], w: {right}[k,n]) {{
  v0 = cast(x) {{dtype=i32}}
  v1 = cast(w) {{dtype=i32}}
  v2 = contract(v0, v1) {{spec="m,k; k,n -> m,n"}}
  return v2
}}"""
SHORT = ("i8", "u8", "i16")
HINTS = Hints(m=512, n=512, k=512)


def units_of(left: str, right: str) -> Units:
    return Units(parse(TEXT.format(left=left, right=right)))


@pytest.mark.parametrize("left", SHORT)
@pytest.mark.parametrize("right", SHORT)
def test_both_conversions_have_to_be_in_the_kernel(left: str, right: str) -> None:
    units = units_of(left, right)
    assert converting_units(units, units.unit(4), (i16,)) == 0b1100
    bytes_only = "i16" not in (left, right)
    assert converting_units(units, units.unit(4), (i8, u8)) == (0b1100 if bytes_only else None)


@pytest.mark.parametrize("pair", [("i8", "i64"), ("u16", "i8"), ("f32", "i8"), ("i64", "i64")])
def test_factors_that_need_more_bits_are_not_short(pair: tuple[str, str]) -> None:
    units = units_of(*pair)
    assert converting_units(units, units.unit(4), (i16,)) is None


@pytest.mark.parametrize(
    ("isa", "pair", "factor"),
    [("avx512", "i8 i8", 2), ("avx2", "i8 i8", 2), ("neon", "i8 u8", 4), ("neon", "i16 i16", 1)],
)
def test_a_product_is_faster_where_it_sees_both_conversions(
    isa: Any, pair: str, factor: int
) -> None:
    """By pairs of 16-bit integers; where only bytes have an instruction, by fours of these."""
    model = Model(units_of(*pair.split()), Target.for_isa(isa), HINTS)
    costs = [
        model.cost(build_region(model.units, members, 0b10000)).arithmetic
        for members in (0b11100, 0b10100, 0b10000)
    ]
    ratio = costs[2] / costs[0]
    assert abs(costs[1] / costs[2] - 1) < 0.1
    assert 0.9 * factor < ratio < 1.1 * factor


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable", "neon"])
@pytest.mark.parametrize("size", [64, 300, 1024, 4096])
def test_quantised_products_store_no_wide_operand(isa: Any, size: int) -> None:
    def code(x: Any, w: Any) -> Any:
        return sm.astype(x, sm.int32) @ sm.astype(w, sm.int32)

    x, w = sm.spec((size, 512), sm.int8), sm.spec((512, size), sm.int8)
    with sm.config(target=isa):
        assert len(sm.explain(code, x, w).kernels) == 1
