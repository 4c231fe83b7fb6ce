"""Short sums of products that are not contractions are unrolled along the results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.codegen.llvm.loopir.items import Dot
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.unroll_small_reductions import unroll_short_dots
from smelt.kernel.text import parse
from smelt.machine.target import Target

STATES = """kernel states(s: f32[32,96,12], c: f32[64,12]) -> y: f32[96,64]
  axis i in 96, j in 64, k in 12
  grid i, j
  v = dot(s[j//2,i,k], c[j,k] over k)
  y[i,j] = v
"""


def test_vectors_run_along_an_axis_that_is_left() -> None:
    """Vectors run along a remaining axis.

    What was unrolled keeps the axis of the sum, which no loop walks any more.
    """
    nests = schedule(program(parse(STATES)).phases[0], Target.host())
    assert {n.vector for n in nests.nests} <= {"i", "j"}
    assert nests.block  # not one result for each task


PICKED = """kernel picked(s: f32[32,{k}], c: f32[{k}], at: i64[64]) -> y: f32[64]
  axis j in 64, k in {k}
  grid j
  {place}
  v = dot(s[{row},k], c[k] over k)
  y[j] = v
"""


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("j//2", "u = at[j]"),
        ("p", "u = at[j]\n  p = position(u, 32)"),
    ],
)
def test_rows_that_are_found_are_rows_too(row: str, place: str) -> None:
    """Where a row stands may be no multiple of the result's position, or be read from memory."""
    for k, left in ((12, False), (16, True), (64, True)):
        (phase,) = program(parse(PICKED.format(k=k, row=row, place=place))).phases
        phase = unroll_short_dots(phase)
        assert any(isinstance(i, Dot) for i in phase.items) == left


@pytest.mark.parametrize("rows", [1, 5, 17])
@pytest.mark.parametrize("steps", [2, 6, 34])
@pytest.mark.parametrize("states", [1, 3, 16, 64])
def test_states_seen_by_pairs_of_steps(rows: int, steps: int, states: int) -> None:
    rng = np.random.default_rng(states)
    s = rng.standard_normal((steps // 2, rows, states)).astype("f4")
    c = rng.standard_normal((steps, states)).astype("f4")

    @sm.jit
    def seen(s: Any, c: Any) -> Any:
        twice = sm.reshape(
            sm.broadcast_to(s[:, None], (steps // 2, 2, rows, states)), (steps, rows, states)
        )
        return sm.matmul(twice, c[:, :, None])[:, :, 0].T

    wanted = np.einsum("jik,jk->ij", np.repeat(s, 2, axis=0).astype("f8"), c.astype("f8"))
    most = np.einsum("jik,jk->ij", np.abs(np.repeat(s, 2, axis=0)), np.abs(c))
    close = np.abs(np.asarray(seen(s, c)) - wanted) <= most * (states + 1) * 2.0**-24
    assert close.all()
