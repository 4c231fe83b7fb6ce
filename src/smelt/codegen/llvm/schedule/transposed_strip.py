"""Transpose an operand strip by strip where its layout would require gathers.

A mask or a bias (`b[n,m]`, read together with scores of `m, n`) would be gathered, with one cache
line for each lane.  So the nest takes some rows at a time, as many as a cache line has elements;
before them all columns of these rows are transposed, tile by tile, into a strip in scratch, which
is read like any other rows:

    for 16 rows:  transpose b[n,16 of m] for all n;  for each row:  scores + strip

Cache lines are read whole, once for each nest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Item, Load, Scan
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.schedule.task_tiling import is_gather
from smelt.types.dtype import DType
from smelt.types.expr import Index, add, coefficient, floordiv, maximum, mul


def strip_loads(
    nest: Nest, materialised: Collection[Item], local: Mapping[str, Index], lanes: int
) -> list[Item]:
    """Return the loads of a nest to transpose in strips.

    They gather along its vectors and are contiguous along its rows.  None unless the nest works row
    by row, and a task may have as many rows as there are lanes.
    """
    if len(nest.order) < 2 or nest.vector != nest.order[-1]:
        return []
    if nest.stores or nest.state_updates or nest.scalars:  # epilogue stores read each element once
        return []
    row, rows = nest.order[-2], local[nest.order[-2]]
    is_row_by_row = all(
        row in f.axes and f in materialised and nest.in_registers(f) for f in nest.reductions
    )
    if not is_row_by_row or (isinstance(rows, int) and rows < lanes):
        return []
    if any(isinstance(i, Scan) for i in nest.items):
        return []
    return [i for i in nest.items if is_gather(i, nest.vector) and _is_contiguous_along(i, row)]


def _is_contiguous_along(item: Item, row: str) -> bool:
    return isinstance(item, Load) and coefficient(item.access.offset, row) == 1


def strip_rows(dtype: DType, lanes: int) -> int:
    """Return the rows of a strip: full transposition tiles, and full cache lines."""
    return max(CACHE_LINE // dtype.itemsize, lanes)


def _pitch(columns: Index, lanes: int) -> Index:
    """Return the elements between rows of a strip.

    Full transposition tiles and a vector more, since rows at power-of-two distances share cache
    sets.
    """
    return mul(floordiv(add(columns, 2 * lanes - 1), lanes), lanes)


def pitches(s: Schedule) -> dict[Item, Index]:
    """Return the row pitch of each load's strip, for the widest nest that reads it."""
    pitch_of: dict[Item, Index] = {}
    for nest in (n for n in s.nests if n.strips):
        for item in nest.transposed:
            span = s.span(s.region(item), nest.order[-1])
            pitch_of[item] = maximum(pitch_of.get(item, 0), _pitch(span, s.lanes))
    return pitch_of


# ---- emission ------------------------------------------------------------------------------------


def for_each_strip(env: Environment, nest: Nest, inside: Callable[[], None]) -> None:
    """Run a nest for each strip of its rows: meanwhile the range of the row axis is the strip."""
    b, row = env.b, nest.order[-2]
    rows = min(strip_rows(i.dtype, env.s.lanes) for i in nest.transposed)
    low, high = env.ranges[row]

    def run_strip(first: ir.Value) -> None:
        end = b.add(first, number(rows))
        end = b.select(b.icmp_signed("<", end, high), end, high)
        with env.narrowed({row: (first, end)}):
            inside()

    env.loop(low, high, rows, run_strip)
