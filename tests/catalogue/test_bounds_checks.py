"""Bounds checks of gather positions change no kernel of the catalogue."""

from __future__ import annotations

import pytest
from tests.catalogue import (
    test_b_reductions,
    test_c_contractions,
    test_f_losses,
    test_g_training,
    test_h_refusals,
)
from tests.catalogue.harness import PlannedRow, sketch
from tests.catalogue.rows import Row

from smelt import knobs
from smelt.kernel.text_print import text

MODULES = (test_b_reductions, test_c_contractions, test_f_losses, test_g_training, test_h_refusals)
READING = [r for module in MODULES for r in module.ROWS if any("i64" in str(x) for x in r.inputs)]


def shown(built: PlannedRow) -> list[str]:
    """The kernels that compute, as text."""
    plan, kernels = built.sketch.plan, built.sketch.kernels
    return ["" if k is None else text(k) for n, k in enumerate(kernels) if n not in plan.checks]


@pytest.mark.parametrize("reading", READING, ids=lambda r: r.id.replace(" ", "_"))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_kernels_are_those_of_positions_that_are_promised(reading: Row, dtype: str) -> None:
    promised = shown(sketch(reading, dtype))
    with knobs.config(check_positions=True):
        program = sketch(reading, dtype)
    assert program.sketch.graph.checks == len(program.sketch.plan.checks) == 1
    assert shown(program) == promised


def test_there_are_rows_that_read() -> None:
    assert len(READING) >= 8
