"""The catalogue's own tools: they notice what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from tests.catalogue import test_a_elementwise, test_b_reductions, test_c_contractions
from tests.catalogue.array_passes import reads
from tests.catalogue.harness import MACHINE, differ, expected, inputs, sketch
from tests.catalogue.rounding import tolerances
from tests.catalogue.rows import Row, draw, many_sizes, small, varied

from smelt.kernel.text import parse

ROWS = (*test_a_elementwise.ROWS, *test_b_reductions.ROWS, *test_c_contractions.ROWS)


@pytest.mark.parametrize("wrong", [r for r in ROWS if r.id[:2] in ("A1", "B1", "B4", "B8", "C2")])
def test_results_that_are_slightly_wrong_are_noticed(wrong: Row) -> None:
    row = wrong
    program = sketch(row)
    arrays = draw(row, small(row, 3))
    arguments = inputs(program.recorded, arrays)
    at = {n: small(row, 3)[n] for n in row.sizes}
    allowed = tolerances(program.recorded.graph, arguments, program.sizes(at))
    (want,) = expected(row, arrays)[:1]
    scale = np.abs(want[np.isfinite(want)]).max()
    wrong = (want + 1e-3 * scale).astype(np.float32)
    assert differ(want, wrong, allowed[0])
    assert not differ(want, want.astype(np.float32), allowed[0])


def test_a_wrong_shape_and_a_lost_number_are_noticed() -> None:
    want = np.zeros((3, 4))
    assert "shape" in differ(want, np.zeros((4, 3), np.float32), want)
    assert "at (1, 2)" in differ(want, np.where(np.arange(12).reshape(3, 4) == 6, np.nan, 0), want)


@pytest.mark.parametrize(("columns", "times"), [(4096, 1), (1 << 22, 3)])
def test_passes_are_counted_where_no_cache_holds_a_row(columns: int, times: int) -> None:
    kernel = parse(
        "kernel k(x: f32[r,c]) -> y: f32[r,c]\n  grid r\n  t = x[r,c]\n  m = max(t over c)\n"
        "  e = t - m\n  s = sum(e over c)\n  y[r,c] = e - s"
    )
    assert reads(kernel, MACHINE, {"r": 8, "c": columns}) == {"x": times}


def test_sizes_take_odd_prime_and_one_past_a_tile() -> None:
    row = ROWS[0]
    seen = {n for sizes in many_sizes(row) for n in sizes.values()}
    assert {7, 17, 33, 65, 2049} <= seen
    assert set(varied(row)) == {"r", "c"}
