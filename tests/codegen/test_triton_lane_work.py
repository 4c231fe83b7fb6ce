"""What lanes compute is counted where it is computed: in cut blocks, and by instructions."""

from __future__ import annotations

from smelt.codegen.triton.device_limits import device_limits
from smelt.codegen.triton.lane_work import lane_work
from smelt.kernel.text import parse
from smelt.kernel.walk import Axes
from smelt.ops.cost import MOVE_COST
from smelt.ops.scalar import SCALARS

MASKED = """
kernel f(s: f32[m,n], keep: f32[m,n]) -> y: f32[m]
  grid m/16
  v0 = m
  stream n/16 to last(m) + 1 with v8 = -inf [m], a = 0 [m]
    v1 = n
    v2 = v1 <= v0
    v3 = s[m,n]
    v4 = select(v2, v3 * 2 + 1, -inf) if last(n) > first(m) else v3
    v8' = max(v8, max(v4 over n))
    v5 = v3 * keep[m,n]
    v6 = select(v2, v5, 0) if last(n) > first(m) else v5
    a' = a + sum(v6 over n)
  y[m] = v8 + a
"""


def test_masks_and_what_only_they_read_are_the_work_of_cut_blocks():
    every = {(x.axes, x.masked): x for x in lane_work(parse(MASKED.strip()))}
    full, cut = every[Axes("mn"), ""], every[Axes("mn"), "n"]
    multiplied, reduced = SCALARS["mul"].cost, SCALARS["max"].cost + SCALARS["add"].cost
    assert full.cost == multiplied + reduced
    chosen = 2 * SCALARS["select"].cost + SCALARS["le"].cost
    assert cut.cost == 2 * SCALARS["select"].cost + chosen + multiplied + SCALARS["add"].cost


def test_an_instruction_for_the_greater_of_two_floats_is_one():
    row = "kernel f(x: f32[r,c]) -> y: f32[r]\n  grid r\n  y[r] = max(x[r,c] over c)"
    (work,) = lane_work(parse(row))
    assert work.extreme_cost == SCALARS["max"].cost - MOVE_COST
    assert device_limits("sm_90").has_extremes and not device_limits("gfx942").has_extremes
