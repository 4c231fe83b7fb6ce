"""Gathered values are stored once in rows instead of gathered again by each reader."""

from __future__ import annotations

from tests.fusion.formulas import Formula

from smelt.fusion.operand_cost import gathered_reads
from smelt.fusion.plan import Plan
from smelt.fusion.region import region_of
from smelt.fusion.units import Units
from smelt.ops.index import Gather
from smelt.types.dtype import i64


def planned(width: int, rows: int = 1024, columns: int = 26) -> tuple[Plan, int]:
    """Plan products of gathered table rows concatenated to numbers.

    Return the plan, and how many kernels read the table.
    """
    f = Formula()
    ids, dense = f.input("ids", rows, columns, dtype=i64), f.input("dense", rows, 13)
    table = f.input("table", 26000, width)
    picked = f.reshape(f.op(Gather(0), table, ids), rows, columns * width)
    x = whole = f.concat(1, dense, picked)
    n = columns * width + 13
    for k in range(2):
        x = f.of("add", f.of("mul", whole, f.matmul(x, f.input(f"w{k}", n, n))), x)
    plan = f.plan(x)
    return plan, sum(table in c.inputs for c in plan.clusters)


def test_rows_that_are_cut_otherwise_are_read_in_lines_once() -> None:
    """Thirteen columns in front: no vector of the joined rows lies in one row of the table."""
    plan, readers = planned(16)
    assert readers == 1
    units = Units(plan.graph)
    regions = [region_of(units, c) for c in plan.clusters]
    assert not any(axes for r in regions for axes in gathered_reads(r))
