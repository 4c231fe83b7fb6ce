"""GEMV over concatenations along k: one sum for each part, and nothing is selected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.llvm.loopir.items import Apply
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.machine.target import Isa, Target
from smelt.ops.combine import CHOICE

Array = np.ndarray[Any, Any]
N, K = 37, 96
SHAPES = {
    "pairs": (N, K // 2, 1),
    "halves of groups": (N, 3, K // 6),
    "halves of rows": (N, 1, K // 2),
}
"""Of bytes with two numbers each: rows, groups, bytes of a group."""


def source(name: str, rows: str) -> str:
    return f"""graph f(x: f32[{rows},{K}], q: u8[{",".join(map(str, SHAPES[name]))}]) {{
  low = and(q, 15:u8)
  high = shr(q, 4:u8)
  c = concat(low, high) {{axis=2}}
  r = reshape(c) {{shape=({N}, {K})}}
  w = cast(r) {{dtype=f32}}
  y = contract(x, w) {{spec="m,k; n,k -> m,n"}}
  return y
}}"""


def drawn(name: str, rows: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(3)
    x = random.integers(-8, 9, (rows, K)).astype("f4")
    q = random.integers(0, 256, SHAPES[name], "u1")
    return x, q, x @ np.concatenate([q & 15, q >> 4], 2).reshape(N, K).astype("f4").T


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", SHAPES)
def test_one_row_is_summed_part_by_part(isa: Isa, name: str) -> None:
    kernel = fuse(source(name, "1"), isa)
    x, q, want = drawn(name, 1)
    for at_end in (False, True):
        (got,) = run_guarded(kernel, [x, q], at_end=at_end)
        assert np.array_equal(got, want)
    (phase,) = program(kernel.kernel).phases
    plan = schedule(phase, Target.for_isa(isa))
    assert len(plan.blocked) == 2
    assert not any(isinstance(item, Apply) and item.op == CHOICE for item in plan.phase.items)
    assert {plan.phase.axes[c.k] for c in plan.blocked} == {K // 2}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", SHAPES)
def test_any_number_of_rows(isa: str, name: str) -> None:
    kernel = fuse(source(name, "m"), isa)
    for rows in (2, 7, 16, 40):
        x, q, want = drawn(name, rows)
        (got,) = run_guarded(kernel, [x, q], at_end=True)
        assert np.array_equal(got, want), rows


def test_data_is_no_position() -> None:
    """A selection by a value stays: only positions divide k."""
    kernel = fuse(
        f"""graph f(x: f32[1,{K}], w: f32[{N},{K}]) {{
  p = gt(w, 0.0:f32)
  r = select(p, w, 0.0:f32)
  y = contract(x, r) {{spec="m,k; n,k -> m,n"}}
  return y
}}""",
        "avx512",
    )
    (phase,) = program(kernel.kernel).phases
    assert len(schedule(phase, Target.for_isa("avx512")).blocked) == 1
