"""Strips of rows, where what a nest reads beside products lies along its rows.

A mask or a bias that lies the other way round (`b[n,m]` beside scores of `m, n`) would be gathered,
a line of memory for each lane.  So the nest takes some rows at a time, as many as a line of memory
has elements; before them all columns of these lines are turned, square by square, into a strip in
scratch, from which rows are read like any others:

    for 16 rows:  turn b[n,16 of m] for all n;  for each row:  scores + strip

Lines of memory are read whole, once for each nest that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.schedule.task_tiling import gathers
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Index, add, floordiv, maximum, mul

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule


def across_strips(
    nest: Nest, kept: Collection[Item], local: Mapping[str, Index], lanes: int
) -> list[Item]:
    """The loads of a nest that gather along its vectors and lie along its rows, if all that it does
    is done row by row and a task may have as many rows as there are lanes."""
    if len(nest.order) < 2 or nest.vector != nest.order[-1]:
        return []
    if nest.stores or nest.settings or nest.fixed:  # what is stored after a product is met once
        return []
    row, rows = nest.order[-2], local[nest.order[-2]]
    apart = all(row in f.axes and f in kept and nest.in_registers(f) for f in nest.folds)
    if not apart or (isinstance(rows, int) and rows < lanes):
        return []
    if any(i.kind == "scan" for i in nest.items):
        return []
    return [i for i in nest.items if gathers(i, nest.vector) and _lies_along(i, row)]


def _lies_along(item: Item, row: str) -> bool:
    access = item.payload
    return isinstance(access, Access) and coefficient(access.offset, row) == 1


def strip_rows(dtype: DType, lanes: int) -> int:
    """Rows of a strip: of whole squares, and of whole lines of memory."""
    return max(LINE // dtype.itemsize, lanes)


def _pitch(columns: Index, lanes: int) -> Index:
    """Elements from one row of a strip to the next: whole squares, and a vector more, since rows a
    power of two apart share a cache's sets."""
    return mul(floordiv(add(columns, 2 * lanes - 1), lanes), lanes)


def pitches(s: Schedule) -> dict[Item, Index]:
    """How far apart the rows of each load's strip are, for the widest nest that reads it."""
    found: dict[Item, Index] = {}
    for nest in (n for n in s.nests if n.strips):
        for item in nest.turned:
            span = s.span(s.region(item), nest.order[-1])
            found[item] = maximum(found.get(item, 0), _pitch(span, s.lanes))
    return found


# ---- emission ------------------------------------------------------------------------------------


def in_strips(home: NestEmitter, nest: Nest, inside: Callable[[], None]) -> None:
    """Runs a nest for each strip of its rows, which are the range then, or once where it reads
    nothing that is turned in strips."""
    if not nest.strips:
        inside()
        return
    b, row, kept = home.b, nest.order[-2], dict(home.ranges)
    rows = min(strip_rows(i.dtype, home.s.lanes) for i in nest.turned)
    low, high = kept[row]

    def one(first: ir.Value) -> None:
        end = b.add(first, number(rows))
        home.ranges[row] = first, b.select(b.icmp_signed("<", end, high), end, high)
        inside()

    home.loop(low, high, rows, one)
    home.ranges = kept


__all__ = ["across_strips", "in_strips", "pitches", "strip_rows"]
