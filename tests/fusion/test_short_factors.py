"""Products of short integers are priced by the instructions that the kernel's code has for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.fusion.bitsets import Hints
from smelt.fusion.cost import WORD_DOT_FACTOR, Model
from smelt.fusion.region import build_region
from smelt.fusion.short_factors import converting_units
from smelt.fusion.units import Units
from smelt.graph.text import parse
from smelt.target import Target

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
    assert converting_units(units, units.unit(4)) == 0b1100


@pytest.mark.parametrize("pair", [("i8", "i64"), ("u16", "i8"), ("f32", "i8"), ("i64", "i64")])
def test_factors_that_need_more_bits_are_not_short(pair: tuple[str, str]) -> None:
    units = units_of(*pair)
    assert converting_units(units, units.unit(4)) is None


@pytest.mark.parametrize(("isa", "faster"), [("avx512", True), ("avx2", True), ("neon", False)])
def test_a_product_is_faster_where_it_sees_both_conversions(isa: Any, faster: bool) -> None:
    model = Model(units_of("i8", "i8"), Target.for_isa(isa), HINTS)
    costs = [
        model.cost(build_region(model.units, members, 0b10000)).arithmetic
        for members in (0b11100, 0b10100, 0b10000)
    ]
    ratio = costs[2] / costs[0]
    assert abs(costs[1] / costs[2] - 1) < 0.1
    assert ratio > 0.9 * WORD_DOT_FACTOR if faster else ratio < 1.1


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("size", [64, 300, 1024, 4096])
def test_quantised_products_store_no_wide_operand(isa: Any, size: int) -> None:
    def code(x: Any, w: Any) -> Any:
        return sm.astype(x, sm.int32) @ sm.astype(w, sm.int32)

    x, w = np.empty((size, 512), np.int8), np.empty((512, size), np.int8)
    with sm.config(target=isa):
        assert len(sm.explain(code, x, w).kernels) == 1
