"""Unroll the columns of short result rows: a vector for each, stored interleaved.

If all of a row needs the same value (its sum, the coordinates of a point), or its columns are far
apart in what is read, a loop over the few columns would recompute it for each, and store with a
stride.  Unrolled, vectors run along the rows, and full vectors are stored:

    y[n,j] = x[j,n]    is    y[3*n] = x[0,n], y[3*n + 1] = x[1,n], y[3*n + 2] = x[2,n]

The columns of short rows that are read are unrolled too, if results are contiguous along the rows:
y[j,n] = x[n,j]; and so are the few rows of a result that have a costly value in common.  A
concatenation along such an axis is replaced by the one part at each position
(`smelt.codegen.llvm.loops.fold_selects`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product as positions
from math import inf, prod

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Access, Item, Phase, StoreItem
from smelt.codegen.llvm.loopir.rewrite import Cloner, Draft, merge_equal_items, prune
from smelt.codegen.llvm.loops.collapse_short_rows import MAP_KINDS
from smelt.codegen.llvm.loops.fold_selects import selected_side
from smelt.graph.walk import reachable
from smelt.loop.passes.group_loads import FARTHEST_STEP, is_dense
from smelt.machine.blocks import UNROLL_RESULTS
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import f64
from smelt.types.expr import Index, coefficient, constant_term, substitute

MIN_LANE_ROWS = 128
"""Minimum rows for vectors to run along them: two vectors of bytes."""
MAX_COLUMN_ITEMS = 200
"""Maximum items that the columns become."""
MAX_REPEATED_CYCLES = 5.0
"""Maximum cycles for one vector of what columns have in common that a one-vector row repeats in
each lane.

A division, but no function.
"""

NEARLY_FULL_COLUMNS, MAX_FULL_ROW_CYCLES = 12, 40.0
"""Threshold on columns: a longer row is a nearly full vector of its own.

It remains one if what columns have in common takes up to `MAX_FULL_ROW_CYCLES` cycles for one
vector: about the cost of picking columns out of rows.
"""

MIN_LANES_PER_COLUMN = 8
"""Rows with so many times fewer columns than lanes are unrolled even if loads are strided.

Gathering their elements costs less than as many nearly empty vectors.
"""


def shares_costly(phase: Phase) -> bool:
    """Return whether columns of short rows share a costly value.

    A collapsed run over all of them (`smelt.codegen.llvm.loops.collapse_short_rows`) would compute
    it again in each lane.
    """
    short = {a for s in phase.stores for a in _short_row_axes(phase, s)}
    if short:
        return _shared_cycles(phase, short) > MAX_REPEATED_CYCLES
    rows = {_row_of(phase, s) for s in phase.stores}
    return len(rows) == 1 and None not in rows and bool(_shared_row_axis(phase))


def unroll_columns(phase: Phase, lanes: int) -> Phase | None:
    """Unroll the columns of short result rows, or return None where that does not pay."""
    rows = {_row_of(phase, s) for s in phase.stores}
    if len(rows) != 1 or (row := rows.pop()) is None:
        return None
    columns = [_short_row_axes(phase, s) for s in phase.stores]
    read_axes = [] if any(columns) else _shared_row_axis(phase) or _short_axis_of_loads(phase, row)
    if read_axes:
        columns = [read_axes] * len(phase.stores)
    short = dict.fromkeys(a for axes in columns for a in axes)
    if any({*short} & s.axes != {*axes} for s, axes in zip(phase.stores, columns, strict=True)):
        return None
    count = prod(n for a in short if isinstance(n := phase.axes[a], int))
    length = phase.axes[row]
    is_short = isinstance(length, int) and length < 2 * lanes
    is_near = _has_near_loads(phase, row, [*short]) or (
        MIN_LANES_PER_COLUMN * count <= lanes and _has_strides(phase, row)
    )
    max_shared = MAX_REPEATED_CYCLES if count <= NEARLY_FULL_COLUMNS else MAX_FULL_ROW_CYCLES
    is_cheap = _shared_cycles(phase, {*short}) <= (max_shared if count <= lanes else 0.0)
    fills_vectors = (
        count >= (lanes if read_axes else _min_full_columns(phase, row, lanes)) and is_cheap
    )
    blocked = not all(_can_unroll_scan(i, {*short}) for i in phase.items if isinstance(i, ssa.Scan))
    if (
        not short
        or is_short
        or not is_near
        or fills_vectors
        or blocked
        or _count_items(phase, [*short]) > MAX_COLUMN_ITEMS
    ):
        return None
    draft = Draft(phase)
    stores = tuple(
        x
        for s, axes in zip(phase.stores, columns, strict=True)
        for x in _column_stores(draft, s, axes)
    )
    unrolled = replace(
        draft.phase,
        stores=stores,
        axes={a: n for a, n in phase.axes.items() if a not in short},
        grid=tuple(a for a in phase.grid if a not in short),
        lanes=row,
    )
    return prune(merge_equal_items(unrolled))


def _min_full_columns(phase: Phase, row: str, lanes: int) -> int:
    """Return the columns from which a row is a vector of its own.

    Lanes, or half of them if rows are read in place: their columns are picked out of as many
    vectors as a row has columns.
    """
    loads = [i.access.offset for i in phase.items if isinstance(i, ssa.Load)]
    steps = [coefficient(e, row) for e in loads]
    strided = any(isinstance(s, int) and s > FARTHEST_STEP for s in steps)
    return lanes // 2 if strided else lanes


def _shared_cycles(phase: Phase, short: set[str]) -> float:
    """Return the cycles for one vector of what columns have in common.

    Infinite if each column needs the scan of all before it.
    """
    if any(isinstance(i, ssa.Scan) for i in phase.items):
        return inf
    common = (i.op for i in phase.items if isinstance(i, ssa.Apply) and not i.axes & short)
    return sum(SCALARS[op].cost for op in common)


def _can_unroll_scan(scan: ssa.Scan, short: set[str]) -> bool:
    """Return whether a scan runs along columns and is not compensated (a sum of doubles)."""
    careful = scan.row.compensated and scan.dtype == f64
    return {*scan.over} <= short and not careful


def short_row(phase: Phase) -> str | None:
    """Return the axis of short stored rows whose reductions will be unrolled.

    None if there is none.  Vectors run along the rows once the reductions are unrolled.
    """
    reductions = [i for i in phase.items if isinstance(i, ssa.Reduction)]
    over = {f.over for f in reductions}
    rows = {_row_of(phase, s) for s in phase.stores}
    columns = {tuple(_short_row_axes(phase, s)) for s in phase.stores}
    plain = all(isinstance(i, (*MAP_KINDS, ssa.Reduce)) for i in phase.items)
    if len(rows) != 1 or len(over) != 1 or columns != over or not plain:
        return None
    (row,), (reduced_axes,) = rows, over
    plain = not (phase.regions() or phase.cut or phase.window_positions or phase.state_updates)
    if len(reduced_axes) != 1 or row is None or not plain:
        return None
    n, length = phase.axes[reduced_axes[0]], phase.axes[row]
    varying = sum(reduced_axes[0] in i.axes for i in phase.items)
    is_short = isinstance(length, int) and length < MIN_LANE_ROWS
    if (
        is_short
        or not isinstance(n, int)
        or n * varying > MAX_COLUMN_ITEMS
        or not _has_near_loads(phase, row, reduced_axes)
    ):
        return None
    return reduced_axes[0]


def _has_near_loads(phase: Phase, row: str, short: Sequence[str]) -> bool:
    """Return whether loads have short strides along a row, or form dense interleaved groups.

    Once the columns of short rows are unrolled (`smelt.codegen.llvm.access.interleaved_loads`).
    """
    offsets_of: dict[tuple[str, int], set[int]] = {}
    for access in [i.access for i in phase.items if isinstance(i, ssa.Load)]:
        step, *others = (coefficient(access.offset, a) for a in (row, *short))
        if not isinstance(step, int):
            return False
        if abs(step) <= FARTHEST_STEP:
            continue
        counts = [phase.axes[a] for a in short]
        constant_strides = [
            (k, n)
            for k, n in zip(others, counts, strict=True)
            if isinstance(k, int) and isinstance(n, int)
        ]
        if step < 0 or access.limits or len(constant_strides) < len(counts):
            return False
        offsets = offsets_of.setdefault((access.buffer, step), set())
        for at in positions(*(range(n) for _, n in constant_strides)):
            offset = sum(k * x for (k, _), x in zip(constant_strides, at, strict=True))
            offsets.add((offset + constant_term(access.offset)) % step)
    return all(is_dense(step, len(offsets)) for (_, step), offsets in offsets_of.items())


def _has_strides(phase: Phase, row: str) -> bool:
    """Return whether all loads have a stride along a row, however long."""
    loads = (i.access.offset for i in phase.items if isinstance(i, ssa.Load))
    return all(coefficient(e, row) is not None for e in loads)


def _short_row_axes(phase: Phase, s: StoreItem) -> list[str]:
    """Return the axes of a store's short rows, outer to inner."""
    axes: list[str] = []
    length = 1
    while True:
        following = [
            a
            for a in s.axes
            if coefficient(s.access.offset, a) == length and a not in axes and phase.axes[a] != 1
        ]
        n = phase.axes[following[0]] if len(following) == 1 else None
        if not isinstance(n, int) or length * n > UNROLL_RESULTS or n == 0:
            return axes
        axes = [*following, *axes]
        length *= n


def _short_axis_of_loads(phase: Phase, row: str) -> list[str]:
    """Return the axis of short rows that are read while results are contiguous along `row`.

    Their columns are an interleaved group, which is read together
    (`smelt.codegen.llvm.access.interleaved_loads`).
    """
    loads = [i.access.offset for i in phase.items if isinstance(i, ssa.Load)]
    for a in phase.grid:
        n = phase.axes[a]
        if (
            a != row
            and isinstance(n, int)
            and 1 < n <= UNROLL_RESULTS
            and any(coefficient(e, a) == 1 and coefficient(e, row) == n for e in loads)
        ):
            return [a]
    return []


def _shared_row_axis(phase: Phase) -> list[str]:
    """Return a short grid axis of results that share a costly value along it.

    As a list, empty if there is none.
    """
    common = set(phase.grid).intersection(*(s.axes for s in phase.stores))
    for a in phase.grid:
        n = phase.axes[a]
        is_few = a in common and isinstance(n, int) and 1 < n <= UNROLL_RESULTS
        if is_few and MAX_REPEATED_CYCLES < _shared_cycles(phase, {a}) < inf:
            return [a]
    return []


def _row_of(phase: Phase, s: StoreItem) -> str | None:
    """Return the axis along which the short rows of a store are contiguous."""
    short = _short_row_axes(phase, s)
    length = prod(n for a in short if isinstance(n := phase.axes[a], int))
    rows = [
        a
        for a in phase.grid
        if a in s.axes and a not in short and coefficient(s.access.offset, a) == length
    ]
    return rows[0] if len(rows) == 1 and not s.where else None


def _column_stores(draft: Draft, s: StoreItem, short: Sequence[str]) -> list[StoreItem]:
    stores: list[StoreItem] = []
    for position in _all_positions(draft.phase, short):
        value = _ColumnCloner(draft, s.value, position).of(s.value)
        access = Access(s.access.buffer, substitute(s.access.offset, position))
        stores.append(StoreItem(access, value, None, s.axes - {*short}, s.time))
    return stores


class _ColumnCloner(Cloner):
    """Clones what a column needs: of selections by position the selected side."""

    def of(self, item: Item) -> Item:
        return super().of(selected_side(item, self.at))


def _all_positions(phase: Phase, short: Sequence[str]) -> list[dict[str, Index]]:
    counts = [range(n) for a in short if isinstance(n := phase.axes[a], int)]
    return [dict(zip(short, at, strict=True)) for at in positions(*counts)]


def _count_items(phase: Phase, short: Sequence[str]) -> int:
    """Return how many items the columns become, counting no further than the maximum."""
    count = 0
    for position in _all_positions(phase, short):
        count += len({i for s in phase.stores for i in _dependencies_at(s.value, position)})
        if count > MAX_COLUMN_ITEMS:
            break
    return count


def _dependencies_at(root: Item, at: Mapping[str, Index]) -> Iterator[Item]:
    """Yield what a value depends on at some positions, if it varies along their axes."""

    def chosen(items: Iterable[Item]) -> Iterable[Item]:
        return (i for i in (selected_side(i, at) for i in items) if i.axes & at.keys())

    return reachable(chosen([root]), lambda item: chosen(item.args))
