"""Assign axis roles: which axes are `grid`, which stay `tile`, which are split.

An axis is `grid` if every output has it and no reduction ends it: its positions are independent.
If too few positions are independent, the largest reduction axis is split over the grid and its
partial results are merged in fixed order, so the result does not depend on the thread count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from smelt.fusion.iteration_space import IterationSpace, Step
from smelt.kernel import ir
from smelt.kernel.block_reduction import accumulated, row_of
from smelt.kernel.walk import (
    axes_of_body,
    axes_of_index,
    axes_of_value,
    bindings_of,
    joined_axes,
    live,
    refs,
)
from smelt.lower.argreduce import argreduce_states
from smelt.lower.define import Definition
from smelt.machine.tiling import Tiling
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f64
from smelt.types.expr import Index, axes_of, evaluate, product

ELEMENTWISE_BLOCK = 4096
"""Grid block size of the innermost axis of elementwise kernels; back ends choose their own."""


@dataclass
class AxisFacts:
    """Axes of every bound name, and the axes that reductions end."""

    axes: Mapping[str, frozenset[str]]
    reduced: set[str]


def analyse(body: Sequence[ir.Statement]) -> AxisFacts:
    """Return the axes of each name in straight-line statements."""
    bound = (s.value for s in body if isinstance(s, ir.Let))
    return AxisFacts(axes_of_body(tuple(body)), {a for v in bound for a in joined_axes(v)})


def assign(name: str, d: Definition, hints: Mapping[str, int], tiling: Tiling) -> ir.Kernel:
    """Build the kernel of a definition, giving every axis its role."""
    d.body = live(d.body)
    facts = analyse(d.body)
    grid = independent_axes(d, facts)
    space = space_of(d, facts, grid, hints, tiling)
    axes, split = [*d.axes.values()], _split_axis(d, facts, space)
    if split >= 0:
        rows = rows_per_step(d, space, split)
        if dots := d.bound(ir.Dot):
            tasks = _product_tasks(dots[0], d, facts, space)
            parts = tiling.split_k_parts(axes[split].extent, tasks)
        else:
            parts = space.parts(split, rows)
        return _split_kernel(name, d, facts, grid, axes[split], rows, parts)
    column_axis = _column_reduction_axis(d, space)
    if column_axis >= 0 and rows_per_step(d, space, column_axis):
        return _split_kernel(name, d, facts, grid, axes[column_axis], tiling.short_rows, 1)
    lanes = -1 if d.bound(ir.Dot) else space.lane_axis()
    blocks = tuple(_blocks(grid, d, facts, None if lanes < 0 else axes[lanes], space))
    return ir.Kernel(name, tuple(d.inputs), tuple(d.outputs), tuple(axes), blocks, tuple(d.body))


def independent_axes(d: Definition, facts: AxisFacts) -> list[ir.Axis]:
    """Return the axes whose positions are independent of each other."""
    common = frozenset(d.axes)
    for s in d.body:
        if isinstance(s, ir.Store):
            common &= axes_of_index(s.index, facts.axes)
    reductions = [
        s for s in d.body if isinstance(s, ir.Let) and isinstance(s.value, (ir.Reduce, ir.Dot))
    ]
    contractions = [s for s in reductions if isinstance(s.value, ir.Dot)]
    for s in contractions or reductions:  # or they would be recomputed along axes they lack
        common &= facts.axes[s.name] | set(s.value.over)  # type: ignore[union-attr]
    return [a for a in d.axes.values() if a.name in common and a.name not in facts.reduced]


def space_of(
    d: Definition,
    facts: AxisFacts,
    grid: Sequence[ir.Axis],
    hints: Mapping[str, int],
    tiling: Tiling,
) -> IterationSpace:
    """Return the iteration space of a definition, whose axes are numbered in order."""
    mask, extents = _mask_of(d), [a.extent for a in d.axes.values()]

    def volume(axes: int) -> int:
        return estimate_size(product(n for k, n in enumerate(extents) if axes >> k & 1), hints)

    return IterationSpace(
        tiling,
        volume,
        [k for k, a in enumerate(d.axes.values()) if a in grid],
        [
            [None if isinstance(e, int) else mask(axes_of(e)) for e in load.index]
            for load in d.bound(ir.Load)
        ],
        [*_steps(d, facts)],
        extents,
        mask(facts.reduced),
    )


def rows_per_step(d: Definition, space: IterationSpace, split: int) -> int | None:
    """Return how many positions of a split axis a step takes; None for all."""
    return None if d.bound(ir.Dot, ir.Scan) else space.rows_per_step(split)


def _column_reduction_axis(d: Definition, space: IterationSpace) -> int:
    """Return the single axis that all reductions end in one pass; -1 for none."""
    inside = [(k, name) for k, name in enumerate(d.axes) if k not in space.grid]
    over = {f.over for f in d.bound(ir.Reduce)}
    if len(inside) != 1 or over != {(inside[0][1],)}:
        return -1
    return inside[0][0] if space.one_pass() >> inside[0][0] & 1 else -1


def _blocks(
    grid: list[ir.Axis],
    d: Definition,
    facts: AxisFacts,
    lanes: ir.Axis | None,
    space: IterationSpace,
) -> list[ir.Block]:
    """Choose grid blocks: 1 per axis, except the innermost one or the lane axis.

    The innermost grid axis gets a larger block if the kernel has no other axes, or if it is the
    innermost axis of all and there are reductions. The axis that vectors run along is blocked so
    that its rows stay in cache.
    """
    if lanes is not None:
        rows = _rows_in_cache(space, [*d.axes].index(lanes.name))
        return [ir.Block(a.name, rows if a == lanes else 1) for a in grid]
    blocks = [ir.Block(a.name, 1) for a in grid]
    inner_free = len(d.axes) == len(grid)
    columns = grid and facts.reduced and grid[-1].name == list(d.axes)[-1]
    if blocks and (inner_free or columns):
        blocks[-1] = ir.Block(
            grid[-1].name, ELEMENTWISE_BLOCK if inner_free else ELEMENTWISE_BLOCK // 4
        )
    return blocks


def _rows_in_cache(space: IterationSpace, lanes: int) -> int:
    """Return how many rows to process together with one row per lane.

    Their data is read again for every inner position, so it must stay in the L1 cache.
    """
    fit = space.tiling.row_bytes // 2 // max(space.inner_elements(lanes), 1)
    rows = max(1 << fit.bit_length() - 1 if fit else 0, space.tiling.min_lane_rows)
    return min(rows, ELEMENTWISE_BLOCK // 4)


def estimate_size(e: Index, hints: Mapping[str, int]) -> int:
    """Evaluate an expression over sizes at the first call's sizes; guess 1024 if unknown."""
    try:
        return int(evaluate(e, hints))
    except KeyError:
        return 1 << 10


def _split_axis(d: Definition, facts: AxisFacts, space: IterationSpace) -> int:
    """Return the axis to split, or -1: the grid is too small, and one pass suffices."""
    reductions = d.bound(ir.Reduce, ir.Dot)
    if not reductions or d.bound(ir.Scan):
        return -1
    if any(isinstance(f, ir.Dot) for f in reductions):
        return _split_product(d, facts, space) if len(reductions) == 1 else -1
    return space.split()


def _split_product(d: Definition, facts: AxisFacts, space: IterationSpace) -> int:
    """Return the contraction's longest reduction axis if it is long and output tiles are few."""
    dot, tiling = d.bound(ir.Dot)[0], space.tiling
    summed = [k for k, name in enumerate(d.axes) if name in dot.over]
    longest = max(summed, key=lambda k: space.volume(1 << k))
    long = space.volume(1 << longest) >= tiling.min_split_k
    few = _product_tasks(dot, d, facts, space) < tiling.min_product_tasks
    return longest if long and few and space.one_pass() >> longest & 1 else -1


def _product_tasks(dot: ir.Dot, d: Definition, facts: AxisFacts, space: IterationSpace) -> int:
    """Return the tiles of a contraction's results."""
    left, right = (axes_of_value(v, facts.axes) for v in (dot.left, dot.right))
    tasks, names = 1, [*d.axes]
    for k in space.grid:
        n = space.volume(1 << k)
        tasks *= n if names[k] in left & right else -(-n // space.tiling.product_columns)
    return tasks


def _steps(d: Definition, facts: AxisFacts) -> Iterator[Step]:
    """Yield the values and stores of a definition.

    Parts of a positional reduction can be merged if their axis is counted first.
    """
    mask = _mask_of(d)
    for s in d.body:
        if isinstance(s, ir.Store):
            yield Step(None, refs(s), mask(axes_of_index(s.index, facts.axes)))
        elif isinstance(s, (ir.Let, ir.Position)):
            axes, over, merged = mask(facts.axes[s.name].union(joined_axes(s.value))), (), ()
            compensated = False
            if isinstance(f := s.value, (ir.Reduce, ir.Dot)):
                over, merged = f.over, f.over[:1] if _is_positional(f) else f.over
                compensated = isinstance(f, ir.Reduce) and f.dtype == f64
            yield Step(s.name, refs(s), axes, mask(over), mask(merged), compensated)


def _mask_of(d: Definition) -> Callable[[Iterable[str]], int]:
    """Return a function for sets of axes as bit masks, numbered in order."""
    bits = {name: 1 << k for k, name in enumerate(d.axes)}
    return lambda axes: sum(bits[a] for a in {*axes} if a in bits)


def _is_positional(reduction: ir.Reduce | ir.Dot) -> bool:
    return row_of(reduction).positional


def _reduces(value: ir.Value, axis: str) -> bool:
    return isinstance(value, (ir.Reduce, ir.Dot)) and axis in value.over


def _split_kernel(
    name: str,
    d: Definition,
    facts: AxisFacts,
    grid: list[ir.Axis],
    axis: ir.Axis,
    rows: int | None,
    parts: Index,
) -> ir.Kernel:
    """Build a kernel whose reductions over `axis` are states of a stream over its parts.

    A visit takes a whole part, or `rows` positions.
    """
    states: list[ir.State] = []
    inside: list[ir.Statement] = []
    after: list[ir.Statement] = []
    late: set[str] = set()
    for s in d.body:
        if (
            isinstance(s, ir.Let)
            and isinstance(reduction := s.value, (ir.Reduce, ir.Dot))
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
        elif isinstance(s, (ir.Let, ir.Position, ir.Store)) and any(n in late for n in refs(s)):
            after.append(s)
            if isinstance(s, (ir.Let, ir.Position)):
                late.add(s.name)
        elif isinstance(s, ir.Store) and axis.name not in axes_of_index(s.index, facts.axes):
            after.append(s)
        else:
            inside.append(s)
    after = [*bindings_of(inside, after), *after]
    inside = live(inside)
    names = ("p", "part", *(f"p{k}" for k in range(len(d.axes))))
    part = next(name for name in names if name not in d.axes)
    stream = ir.Stream((ir.Block(axis.name, rows, None, part),), tuple(states), tuple(inside))
    body = (stream, ir.Merge(part, tuple(s.name for s in states)), *after)
    blocks = (*(ir.Block(a.name, 1) for a in grid), ir.Split(part, axis.name, parts))
    return ir.Kernel(name, tuple(d.inputs), tuple(d.outputs), tuple(d.axes.values()), blocks, body)
