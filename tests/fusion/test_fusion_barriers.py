"""Products that no kernel holds together, decided by the edges alone."""

from __future__ import annotations

from itertools import product

import pytest
from tests.fusion.formulas import MACHINE

from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cost import Model
from smelt.fusion.legal import CROSSING, FusionConstraints
from smelt.fusion.state import State
from smelt.fusion.units import Units
from smelt.graph.text import parse

READS = {
    "heads": ("v2 = reshape(v1) {shape=(n, 4, 32)}", "n,h,d; d,e -> n,h,e", 32, 3, True),
    "one head": ("v2 = reshape(v1) {shape=(n, 1, 128)}", "n,h,d; d,e -> n,h,e", 128, 3, False),
    "all heads": ("v2 = reshape(v1) {shape=(n, 4, 32)}", "n,h,d; d,e -> n,e", 32, 2, True),
    "rows": ("v2 = reshape(v1) {shape=(n*128,)}", "k; k,e -> e", "n*128", 1, True),
    "windows": (
        "v2 = window(v1) {axis=1, extent=32, step=2, dilation=1}",
        "n,x,d; d,e -> n,x,e",
        32,
        3,
        True,
    ),
    "a part": (
        "v2 = slice(v1) {starts=(0, 5), sizes=(n, 40), steps=(1, 3)}",
        "n,d; d,e -> n,e",
        40,
        2,
        True,
    ),
    "all": ("v2 = permute(v1) {perm=(1, 0)}", "d,n; d,e -> n,e", 128, 2, False),
}
"""How a second product reads a first one: the view, what is multiplied, the factor's rows, the
result's rank, and whether the edge tells that no kernel holds both."""
BEHIND = ("map", "largest", "sums", "first")
"""What is made of the second one."""


def behind(kind: str, rank: int) -> str:
    at, ones = max(rank - 2, 0), (1,) * rank
    if kind == "first":
        place = f"v4 = slice(v3) {{starts={(0,) * rank}, sizes={ones}, steps={ones}}}"
        return place + "\n v5 = exp(v4)\n return v5, v1"
    built = {
        "map": "exp(v3)",
        "largest": "reduce.max(v3) {axes=(0,)}",
        "sums": f"reduce.sum(v3) {{axes=({at},)}}",
    }[kind]
    return f"v4 = {built}\n return v4, v1"


@pytest.mark.parametrize("kind", BEHIND)
@pytest.mark.parametrize("read", READS)
def test_no_region_of_both_is_a_kernel(read: str, kind: str) -> None:
    """All sets of units; where the edges say nothing, regions decide."""
    view, spec, rows, rank, expected = READS[read]
    units = Units(
        parse(f"""graph f(x: f32[n,99], y: f32[99,128], w: f32[{rows},2]) {{
      v0 = contract(x, y) {{spec="n,k; k,d -> n,d"}}
      v1 = neg(v0)
      {view}
      v3 = contract(v2, w) {{spec="{spec}"}}
      {behind(kind, rank)}
    }}""")
    )
    state = State(units, Model(units, MACHINE, Hints(n=640)), FusionConstraints(units, (), ()))
    numbers = [u.number for u in units.units]
    barred = 0
    for chosen in product((0, 1), repeat=len(numbers)):
        members = sum(1 << u for u, taken in zip(numbers, chosen, strict=True) if taken)
        if state.barriers.product(members) < 0:
            continue
        barred += 1
        stored = sum(
            1 << u for u in bits(members) if units.users[u] & ~members or units.outputs >> u & 1
        )
        region = state._region(members, stored, ())  # type: ignore[reportPrivateUsage]
        assert region.fault == CROSSING
        actual = state.evaluate(members, stored)
        assert actual.is_final and actual.refusal is not None
        assert actual.refusal.reason == "read-elsewhere"
    windowed = read == "windows" and kind in ("largest", "sums")  # which folds may look through
    assert bool(barred) == expected or windowed
