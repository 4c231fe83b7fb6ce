"""Compare the plans for a processor with AVX2 with those for AVX-512.

The rows say what plans are for `harness.MACHINE`. A machine with half the lanes and half the
registers has the same caches, so that nearly every plan is the same: what differs stands in `OTHER`
with the reason, and a plan that changes has to be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from tests.catalogue import test_e_weights as weights
from tests.catalogue.harness import Counts, PlannedRow, count, same, sketch
from tests.catalogue.rows import Row

import smelt as sm
from smelt.machine.target import Target

AVX2 = Target.for_isa("avx2")
MODULES = (
    *("a_elementwise", "b_reductions", "c_contractions", "d_convolutions"),
    *("f_losses", "g_training", "h_refusals"),
)
PLANS: dict[str, tuple[Row, str]] = {
    f"{name[0]}: {row.id} {dtype}": (row, dtype)
    for name in MODULES
    for row in import_module(f"tests.catalogue.test_{name}").ROWS
    for dtype in ("f32", *row.dtypes)
}
OTHER: dict[str, Mapping[str, Any]] = {
    # Moments in one pass are carried in double precision, with half as many in a vector: the one
    # pass takes 1.7 times as long as two over half of an image's channel, and 1.4 times (bfloat16)
    # or as long (float32) as two over columns.
    "b: B3 training long f32": {"sweeps": 3},
    **{f"b: B5 columns {t}": {"sweeps": 2} for t in ("f32", "bf16", "f16")},
    # exp and the rounding of every result are not computed twice: storing what half types round to
    # takes 1/1.4 to 1/1.9 of the time of computing it again.
    **{
        f"b: B4 {rows} {t}": stored
        for t in ("bf16", "f16")
        for rows, stored in {
            "columns": {
                "kernels": 2,
                "launches": 2,
                "stored": ("exp", "reduce.sum"),
                "fused": 268_451_840,
                "sweeps": 2,
            },
            "middle": {"kernels": 2, "launches": 2, "stored": ("exp",), "fused": 536_870_912},
            "long": {"stored": ("exp", "reduce.sum"), "fused": 1_073_741_856},
        }.items()
    },
    # The logits' gradient is not computed while a product packs it: the same bytes and time.
    "g: F2 f32": {"kernels": 8},
    # The loss comes with the gradient: one kernel less.
    "g: G1 cross-entropy f32": {"kernels": 1, "launches": 1, "stored": (), "fused": 268_500_996},
}
"""Plan -> what is not as with AVX-512."""
MEAN_SHAPES = "[600,5]", "[2001,5]", "[2001,2]"


@pytest.mark.parametrize("plan", PLANS)
def test_plans_are_those_of_avx512_but_for_a_few(plan: str) -> None:
    row, dtype = PLANS[plan]
    same(_planned(row, dtype, AVX2), replace(count(sketch(row, dtype)), **OTHER.get(plan, {})))


def test_every_other_plan_is_one_of_a_row() -> None:
    assert set(OTHER) <= set(PLANS)


@pytest.mark.parametrize("weight", list(weights.WEIGHTS)[:-1])
@pytest.mark.parametrize("case", ["masked", "plain", "little memory"])
def test_weights_divided_by_their_sum(weight: str, case: str) -> None:
    """Plain weights that take an exponential are stored, unless memory counts."""
    specs = [sm.spec("f32[4,1024,64]")] * 3
    limit = 4 * 1024 * 64 * 4 * 2 if case == "little memory" else None
    with sm.config(target="avx2", max_extra_memory=limit):
        report = sm.explain(weights.attention(weight, case == "masked"), *specs)
    stored = report.data.memory.temp >= 4 * 1024 * 1024 * 4
    kernels = 2 if case == "plain" and weight not in {"relu", "square"} else 1
    assert (len(report.kernels), weights.streams(report)) == (kernels, int(kernels == 1))
    assert stored == (kernels == 2)


@pytest.mark.parametrize(("distance", "bell", "mean"), weights.WAYS)
def test_means_weighed_by_distance(distance: str, bell: str, mean: str) -> None:
    def code(x: Any, t: Any, y: Any) -> Any:
        w = weights.BELLS[bell](sm, weights.DISTANCES[distance](sm, x, t))
        return weights.MEANS[mean](sm, w, y)

    letter = "f64" if distance == "norm" or bell == "rational" else "f32"
    with sm.config(target="avx2"):
        report = sm.explain(code, *(sm.spec(f"{letter}{d}") for d in MEAN_SHAPES))
    # one kernel of the box takes 1.2 to 1.4 of the time of three: its 600 rows busy one core
    most = 3 if bell == "box" else 1 + (distance == "product")
    assert len(report.kernels) <= most


def _planned(row: Row, dtype: str, machine: Target) -> Counts:
    built: PlannedRow = sketch(row, dtype, machine=machine)
    return count(built)
