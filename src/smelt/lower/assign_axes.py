"""Assign axis roles: which axes are `grid`, which stay `tile`, which are split.

An axis is `grid` if every output has it and no reduction ends it: its positions are independent.
If too few positions are independent, the largest reduction axis is split over the grid and its
partial results are merged in fixed order, so the result does not depend on the thread count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.kernel.axes import axes_of_body, axes_of_index, axes_of_value
from smelt.kernel.block_reduction import accumulated, row_of
from smelt.kernel.ir import (
    Axis,
    Block,
    Dot,
    Kernel,
    Let,
    Load,
    Merge,
    Position,
    Reduce,
    Scan,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Value,
)
from smelt.kernel.walk import bindings_of, joined_axes, live, refs
from smelt.lower.argreduce import argreduce_states
from smelt.lower.define import Definition
from smelt.machine.tiling import ReducedAxis, Tiling, split_axis
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f64
from smelt.types.expr import Index, axes_of, evaluate, mul, product

ELEMENTWISE_BLOCK = 4096
"""Grid block size of the innermost axis of elementwise kernels; back ends choose their own."""


@dataclass
class AxisFacts:
    """Axes of every bound name, and the axes that reductions end."""

    axes: Mapping[str, frozenset[str]]
    reduced: set[str]


def analyse(body: Sequence[Statement]) -> AxisFacts:
    """Return the axes of each name in straight-line statements."""
    bound = (s.value for s in body if isinstance(s, Let))
    return AxisFacts(axes_of_body(tuple(body)), {a for v in bound for a in joined_axes(v)})


def assign(name: str, d: Definition, hints: Mapping[str, int], tiling: Tiling) -> Kernel:
    """Build the kernel of a definition, giving every axis its role."""
    d.body = live(d.body)
    facts = analyse(d.body)
    grid = independent_axes(d, facts)
    split = _split_axis(d, facts, grid, hints, tiling)
    if split is not None:
        rows = rows_per_step(d, split, facts, hints, tiling)
        parts = _split_k_parts(d, facts, grid, split, hints, tiling)
        return _split_kernel(name, d, facts, grid, split, rows, tiling, parts)
    column_axis = _column_reduction_axis(d, facts, grid)
    if column_axis is not None and rows_per_step(d, column_axis, facts, hints, tiling):
        return _split_kernel(name, d, facts, grid, column_axis, tiling.short_rows, tiling, parts=1)
    lanes = _lane_axis(d, grid, facts, hints, tiling)
    blocks = tuple(_blocks(grid, d, facts, lanes, hints, tiling))
    return Kernel(
        name, tuple(d.inputs), tuple(d.outputs), tuple(d.axes.values()), blocks, tuple(d.body)
    )


def independent_axes(d: Definition, facts: AxisFacts) -> list[Axis]:
    """Return the axes whose positions are independent of each other."""
    common = frozenset(d.axes)
    for s in d.body:
        if isinstance(s, Store):
            common &= axes_of_index(s.index, facts.axes)
    reductions = [s for s in d.body if isinstance(s, Let) and isinstance(s.value, (Reduce, Dot))]
    contractions = [s for s in reductions if isinstance(s.value, Dot)]
    for s in contractions or reductions:  # or they would be recomputed along axes they lack
        common &= facts.axes[s.name] | set(s.value.over)  # type: ignore[union-attr]
    return [a for a in d.axes.values() if a.name in common and a.name not in facts.reduced]


def _lane_axis(
    d: Definition,
    grid: list[Axis],
    facts: AxisFacts,
    hints: Mapping[str, int],
    tiling: Tiling,
) -> Axis | None:
    """Return the grid axis to vectorise across short rows (one row per lane), or None."""
    least = tiling.min_lane_rows
    long = [a for a in grid if estimate_size(a.extent, hints) >= least]
    return long[-1] if long and _short_rows(d, long[-1], facts, hints, tiling, grid) else None


def _short_rows(
    d: Definition,
    lanes: Axis,
    facts: AxisFacts,
    hints: Mapping[str, int],
    tiling: Tiling,
    grid: Sequence[Axis] = (),
) -> bool:
    """Return whether rows are short and many, so that each lane takes a row.

    A row is an axis that reductions end, or one of a few results.
    """
    if not d.bound(Reduce, Scan) or d.bound(Dot):
        return False
    rows = fastest_axes(d)
    if not rows or lanes.name in rows or not rows <= facts.reduced | {a.name for a in grid}:
        return False
    if estimate_size(lanes.extent, hints) < tiling.min_lane_rows:
        return False
    if rows <= facts.reduced and _inner_elements(d, lanes, hints) > tiling.short_run:
        return False
    return all(estimate_size(d.axes[name].extent, hints) <= tiling.short_row for name in rows)


def rows_per_step(
    d: Definition, split: Axis, facts: AxisFacts, hints: Mapping[str, int], tiling: Tiling
) -> int | None:
    """Return how many positions of a split axis to process per step.

    None means a whole part. Otherwise vectors run along the split axis: either each lane first
    reduces a short row of its own, or there are few columns to reduce. Not for float64 sums after
    a row reduction: they carry their errors along the whole part.
    """
    reductions = d.bound(Reduce)
    split_reductions = [f for f in reductions if split.name in f.over]
    rows = len(split_reductions) < len(reductions)
    if any(f.over != (split.name,) or (rows and f.dtype == f64) for f in split_reductions):
        return None
    applies = _short_rows if rows else _few_columns
    return tiling.short_rows if applies(d, split, facts, hints, tiling) else None


def _column_reduction_axis(d: Definition, facts: AxisFacts, grid: list[Axis]) -> Axis | None:
    """Return the single axis that all reductions end in one pass, or None."""
    over = {f.over for f in d.bound(Reduce)}
    inside = [a for a in d.axes.values() if a not in grid]
    if over != {tuple(a.name for a in inside)} or len(inside) != 1:
        return None
    return inside[0] if _single_pass(d, facts, inside[0].name) else None


def _few_columns(
    d: Definition, reduced: Axis, facts: AxisFacts, hints: Mapping[str, int], tiling: Tiling
) -> bool:
    """Return whether columns are too few to fill vectors, and reduced rows many."""
    if d.bound(Dot, Scan):
        return False
    columns = _inner_axes(d, reduced.name)
    rows = estimate_size(reduced.extent, hints)
    if not columns or columns & facts.reduced or rows < tiling.min_lane_rows:
        return False
    count = estimate_size(product(d.axes[name].extent for name in columns), hints)
    return count <= tiling.few_columns


def _inner_axes(d: Definition, axis: str) -> set[str]:
    """Return the axes that arrays vary along at inner dimensions after `axis`."""
    inner: set[str] = set()
    for load in d.bound(Load):
        along = [axes_of(e) for e in load.index]
        first = next((k for k, axes in enumerate(along) if axis in axes), len(along))
        inner.update(name for axes in along[first:] for name in axes if name != axis)
    return inner


def _blocks(
    grid: list[Axis],
    d: Definition,
    facts: AxisFacts,
    lanes: Axis | None,
    hints: Mapping[str, int],
    tiling: Tiling,
) -> list[Block]:
    """Choose grid blocks: 1 per axis, except the innermost one or the lane axis.

    The innermost grid axis gets a larger block if the kernel has no other axes, or if it is the
    innermost axis of all and there are reductions. The axis that vectors run along is blocked so
    that its rows stay in cache.
    """
    if lanes is not None:
        rows = _rows_in_cache(d, lanes, hints, tiling)
        return [Block(a.name, rows if a == lanes else 1) for a in grid]
    blocks = [Block(a.name, 1) for a in grid]
    inner_free = len(d.axes) == len(grid)
    columns = grid and facts.reduced and grid[-1].name == list(d.axes)[-1]
    if blocks and (inner_free or columns):
        blocks[-1] = Block(
            grid[-1].name, ELEMENTWISE_BLOCK if inner_free else ELEMENTWISE_BLOCK // 4
        )
    return blocks


def _rows_in_cache(d: Definition, lanes: Axis, hints: Mapping[str, int], tiling: Tiling) -> int:
    """Return how many rows to process together with one row per lane.

    Their data is read again for every inner position, so it must stay in the L1 cache.
    """
    fit = tiling.row_bytes // 2 // max(_inner_elements(d, lanes, hints), 1)
    rows = max(1 << fit.bit_length() - 1 if fit else 0, tiling.min_lane_rows)
    return min(rows, ELEMENTWISE_BLOCK // 4)


def _inner_elements(d: Definition, lanes: Axis, hints: Mapping[str, int]) -> int:
    """Return the number of array elements per position of an axis."""
    return estimate_size(product(d.axes[name].extent for name in _inner_axes(d, lanes.name)), hints)


def estimate_size(e: Index, hints: Mapping[str, int]) -> int:
    """Evaluate an expression over sizes at the first call's sizes; guess 1024 if unknown."""
    try:
        return int(evaluate(e, hints))
    except KeyError:
        return 1 << 10


def _split_axis(
    d: Definition,
    facts: AxisFacts,
    grid: list[Axis],
    hints: Mapping[str, int],
    tiling: Tiling,
) -> Axis | None:
    """Return the axis to split if the grid is too small and one pass suffices."""
    reductions = d.bound(Reduce, Dot)
    if not reductions or d.bound(Scan):
        return None
    if any(isinstance(f, Dot) for f in reductions):
        return _split_product(d, facts, grid, hints, tiling) if len(reductions) == 1 else None
    shared = set(reductions[0].over).union(*(f.over for f in reductions))
    candidates = [a for a in d.axes.values() if a.name in shared and _single_pass(d, facts, a.name)]
    if not candidates:
        return None
    contiguous = fastest_axes(d)
    sizes = [estimate_size(a.extent, hints) for a in candidates]
    axes = [
        ReducedAxis(n, _memory_depth(d, a), a.name in contiguous)
        for n, a in zip(sizes, candidates, strict=True)
    ]
    best = candidates[split_axis(axes, tiling)]
    work = mul(best.extent, _elements_per_position(d, facts, grid, best))
    positions = estimate_size(product(a.extent for a in grid), hints)
    if estimate_size(work, hints) * max(positions, 1) < tiling.split_elements:
        return None
    columns = [estimate_size(a.extent, hints) for a in grid if a.name in contiguous]
    # Vectors run along one of these columns, and a task processes a block of it.
    width = tiling.reduction_columns(len(reductions))
    tasks = [positions // max(n, 1) * -(-n // width) for n in columns] or [positions]
    least_rows = 2 * tiling.min_part_rows if _is_column_by_column(d, best) else 1
    rows = estimate_size(best.extent, hints)
    too_few_tasks = max(tasks) < tiling.min_tasks and rows >= least_rows
    return best if too_few_tasks else None


def _is_column_by_column(d: Definition, axis: Axis) -> bool:
    """Return whether each part produces one result per column, and nothing else is reduced.

    Parts of few rows would then write and read back as much as they reduce.
    """
    reductions = d.bound(Reduce, Dot)
    return axis.name not in fastest_axes(d) and all(f.over == (axis.name,) for f in reductions)


def _split_product(
    d: Definition,
    facts: AxisFacts,
    grid: list[Axis],
    hints: Mapping[str, int],
    tiling: Tiling,
) -> Axis | None:
    """Return the contraction's longest reduction axis if it is long and output tiles are few."""
    dot = d.bound(Dot)[0]
    summed = [a for a in d.axes.values() if a.name in dot.over]
    longest = max(summed, key=lambda a: estimate_size(a.extent, hints))
    tasks = _product_tasks(dot, facts, grid, hints, tiling)
    long = estimate_size(longest.extent, hints) >= tiling.min_split_k
    few = tasks < tiling.min_product_tasks
    return longest if long and few and _single_pass(d, facts, longest.name) else None


def _product_tasks(
    dot: Dot, facts: AxisFacts, grid: Sequence[Axis], hints: Mapping[str, int], tiling: Tiling
) -> int:
    """Return the tiles of a contraction's results."""
    left, right = (axes_of_value(v, facts.axes) for v in (dot.left, dot.right))
    tasks = 1
    for a in grid:
        n = estimate_size(a.extent, hints)
        tasks *= n if a.name in left & right else -(-n // tiling.product_columns)
    return tasks


def _split_k_parts(
    d: Definition,
    facts: AxisFacts,
    grid: Sequence[Axis],
    axis: Axis,
    hints: Mapping[str, int],
    tiling: Tiling,
) -> Index | None:
    """Return the parts of a contraction's split axis; None for other reductions."""
    dots = d.bound(Dot)
    if not dots:
        return None
    tasks = _product_tasks(dots[0], facts, grid, hints, tiling)
    return tiling.split_k_parts(axis.extent, tasks)


def _memory_depth(d: Definition, a: Axis) -> int:
    """Return the smallest dimension index at which loads vary along an axis; 0 is slowest."""
    dims = [k for load in d.bound(Load) for k, e in enumerate(load.index) if a.name in axes_of(e)]
    return min(dims, default=0)


def fastest_axes(d: Definition) -> set[str]:
    """Return the axes of the last dimension of the arrays of highest rank.

    Arrays of lower rank (one number per row, say) do not decide how rows are read.
    """
    varying = [[e for e in load.index if not isinstance(e, int)] for load in d.bound(Load)]
    rank = max(map(len, varying), default=0)
    return {a for index in varying if rank and len(index) == rank for a in axes_of(index[-1])}


def _single_pass(d: Definition, facts: AxisFacts, axis: str) -> bool:
    """Return whether nothing along `axis` waits for a reduction over it.

    The reductions must also be mergeable, so that one pass over parts of the axis suffices.
    """
    late: set[str] = set()
    for s in d.body:
        if isinstance(s, (Let, Position)):
            names = refs(s)
            waits = any(n in late for n in names)
            if isinstance(s, Let) and isinstance(s.value, (Reduce, Dot)) and axis in s.value.over:
                if waits or not _parts_merge(s.value, axis):
                    return False
                late.add(s.name)
            elif waits:
                if axis in facts.axes[s.name] or _reduces(s.value, axis):
                    return False
                late.add(s.name)
        elif isinstance(s, Store):
            waits = any(n in late for n in refs(s))
            if waits and axis in axes_of_index(s.index, facts.axes):
                return False
    return True


def _parts_merge(reduction: Reduce | Dot, axis: str) -> bool:
    """Return whether results of parts of an axis can be merged.

    Positional reductions can if the axis is counted first.
    """
    return not _is_positional(reduction) or reduction.over[0] == axis


def _is_positional(reduction: Reduce | Dot) -> bool:
    return row_of(reduction).positional


def _reduces(value: Value, axis: str) -> bool:
    return isinstance(value, (Reduce, Dot)) and axis in value.over


def _split_kernel(
    name: str,
    d: Definition,
    facts: AxisFacts,
    grid: list[Axis],
    axis: Axis,
    rows: int | None,
    tiling: Tiling,
    parts: Index | None = None,
) -> Kernel:
    """Build a kernel whose reductions over `axis` are states of a stream over its parts.

    A visit takes a whole part, or `rows` positions.
    """
    states: list[State] = []
    inside: list[Statement] = []
    after: list[Statement] = []
    late: set[str] = set()
    for s in d.body:
        if (
            isinstance(s, Let)
            and isinstance(reduction := s.value, (Reduce, Dot))
            and _reduces(reduction, axis.name)
        ):
            late.add(s.name)
            axes = tuple(sorted(facts.axes[s.name] - {a.name for a in grid}))
            if _is_positional(reduction):
                (best_state, position_state), steps = argreduce_states(d, s, axis, axes)
                states += [best_state, position_state]
                inside += steps
                continue
            state, update = accumulated(s.name, reduction, axes)
            states.append(state)
            inside.append(update)
        elif isinstance(s, (Let, Position, Store)) and any(n in late for n in refs(s)):
            after.append(s)
            if isinstance(s, (Let, Position)):
                late.add(s.name)
        elif isinstance(s, Store) and axis.name not in axes_of_index(s.index, facts.axes):
            after.append(s)
        else:
            inside.append(s)
    after = [*bindings_of(inside, after), *after]
    inside = live(inside)
    if parts is None:
        parts = part_count(d, facts, grid, axis, rows, tiling)
    names = ("p", "part", *(f"p{k}" for k in range(len(d.axes))))
    part = next(name for name in names if name not in d.axes)
    stream = Stream((Block(axis.name, rows, None, part),), tuple(states), tuple(inside))
    body = (stream, Merge(part, tuple(s.name for s in states)), *after)
    blocks = (*(Block(a.name, 1) for a in grid), Split(part, axis.name, parts))
    return Kernel(name, tuple(d.inputs), tuple(d.outputs), tuple(d.axes.values()), blocks, body)


def part_count(
    d: Definition,
    facts: AxisFacts,
    grid: Sequence[Axis],
    axis: Axis,
    rows: int | None,
    tiling: Tiling,
) -> Index:
    """Return the number of parts of a split axis.

    Parts get enough rows where they have results for many columns, else enough elements.
    """
    columns = any(a.name in fastest_axes(d) for a in grid) or _is_column_by_column(d, axis)
    if columns:
        return tiling.split_parts(axis.extent, max(rows or 1, tiling.min_part_rows))
    return tiling.reduction_parts(axis.extent, _elements_per_position(d, facts, grid, axis))


def _elements_per_position(
    d: Definition, facts: AxisFacts, grid: Sequence[Axis], axis: Axis
) -> Index:
    """Return how many elements are visited at a position of a reduction axis.

    Axes of other statements do not count: the sums of several arrays have nothing in common.
    """
    visited: set[str] = set()
    for s in d.body:
        if isinstance(s, (Let, Position)):
            over = s.value.over if isinstance(s.value, (Reduce, Dot)) else ()
            axes = facts.axes[s.name].union(over)
            visited |= axes if axis.name in axes else set()
    others = {a.name for a in grid} | {axis.name}
    return product(a.extent for a in d.axes.values() if a.name in visited - others)
