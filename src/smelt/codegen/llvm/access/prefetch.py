"""Software prefetch: a task prefetches what the next task reads, a block what the next block reads.

If several nests work on a row (compute its mean, its variance, write it), only the first of them
would wait for memory, and memory would idle while the others compute.  So every nest prefetches a
share of the next row, larger the longer it computes, into L1 however long the row is: hardware
prefetchers continue from lines that were prefetched to L1, not from those prefetched to L2.  In a
stream the last nest that reads an array, which finds it in cache, prefetches the next block.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import depth_terms
from smelt.codegen.llvm.loopir.items import Access, Load, Operation, accesses_of, enclosing_regions
from smelt.codegen.llvm.nests.environment import Environment, RowShare
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.ops.scalar import SCALARS
from smelt.types.expr import Atom, Index, add, atoms, axis, coefficient, floordiv, mul, product

Value = ir.Value
PACK_PREFETCH_ROWS = 4
"""Rows between what packing reads and what it prefetches."""
CACHE_LINE = 64
"""Bytes of a cache line."""
MIN_PREFETCH_SHARE = 0.4
"""Minimum spare time of a nest that prefetches, relative to the nest that has most."""
LINE_STORED = 4.0
"""Cycles for which storing a cache line keeps memory busy."""


PREFETCH_BYTES = 4096
"""Distance of prefetches in bytes: a page, since no hardware prefetcher crosses one."""


def is_run(s: Schedule, nest: Nest, access: Access, *, masked: bool) -> bool:
    """Return whether a nest without shares streams through an array."""
    reductions = bool(nest.reductions) and not nest.stores and not nest.saves
    if not (reductions or masked) or s.products or not nest.order:
        return False
    if access.limits or any(a.kind == "value" for a in atoms(access.offset)):
        return False
    if next(n for n in s.nests if access in accesses_of(n.items)) is not nest:
        return False  # what an earlier nest has read is in cache
    parts = {number for number, _ in s.phase.cut.values()}
    outer_axes = [a for a in s.phase.grid if a not in s.local and a not in parts]
    visits = [v for r in enclosing_regions(s.phase.segments[nest.time]) for v in r.visits]
    outer_axes += [v.axis for v in visits if v.size == 1] + [*nest.order[:-1]]
    row = s.phase.axes[nest.order[-1]]
    return coefficient(access.offset, outer_axes[-1]) == row if outer_axes else not masked


PREFETCH_ROWS = 4
"""Rows between what is read and what is prefetched, if a task reads a piece of each row."""


def next_block(s: Schedule, nest: Nest, access: Access) -> Index | None:
    """Return the elements between what a stream's block and the next one read.

    None unless the nest is the last to read it, but not the first.
    """
    regions = enclosing_regions(s.phase.segments[nest.time])
    region = next((r for r in regions[::-1] if r.visits), None)
    if region is None or region.visits[-1].size in (None, 1):
        return None
    concurrent = [n for n in s.nests if n.time == nest.time]
    readers = [n for n in concurrent if access in accesses_of(n.items)]
    if len(readers) < 2 or readers[-1] is not nest:
        return None
    step = coefficient(access.offset, region.visits[-1].axis)
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return mul(step, region.visits[-1].size or 1)


def next_task(env: Environment, access: Access) -> Index | None:
    """Return the elements between what a task and the next one read, if a number."""
    free = [g for g in env.s.phase.grid if g not in env.s.local]
    if not free:
        return None
    step = coefficient(access.offset, free[-1])
    if step is None or step == 0 or any(a.kind == "axis" for a in atoms(step)):
        return None
    return step


# ---- the next row --------------------------------------------------------------------------------


def assign_row_shares(s: Schedule) -> dict[Nest, list[RowShare]]:
    """Assign each nest the parts of the next task's row that it prefetches.

    Only nests that walk one and the same row take part, each for a share in proportion to what it
    computes meanwhile, so that memory is busy from the first nest to the last.
    """
    task = _task_axis(s)
    # Nests over the results of a row's reductions alone take no time.
    nests = [n for n in s.nests if n.order not in ((), (task,))]
    row = nests[0].vector if nests else None
    if len(nests) < 2 or task is None or row is None or row in s.block:
        return {}
    if len({n.time for n in nests}) > 1:
        return {}
    orders = {n.order for n in nests}  # all with the loop over rows, or all without
    if len(orders) > 1 or any(n.product for n in nests) or row in s.phase.cut:
        return {}
    axes = _row_axes(nests[0], task)
    if axes[-1:] != (row,) or len(axes) > 2:
        return {}
    rows = dict.fromkeys(
        i.access
        for n in nests
        for i in n.items
        if isinstance(i, Load) and _steps_on(i.access, task, axes, s)
    )
    begin = Fraction(0)
    shares_of: dict[Nest, list[RowShare]] = {}
    first, *others = [spare_cycles(n) for n in nests]
    # The first nest also loads the row from L2 into L1.
    for nest, share in zip(nests, _eighths([first / 2, *others]), strict=True):
        shares_of[nest] = [RowShare(access, begin, share) for access in rows if share]
        begin += share
    return shares_of


def _task_axis(s: Schedule) -> str | None:
    """Return the axis along which consecutive tasks are neighbours, with full rows."""
    regions = s.phase.regions()
    if regions:
        visits = [v for r in regions for v in r.visits]
        return visits[0].axis if len(visits) == 1 and visits[0].size == 1 else None
    axes = [g for g in s.phase.grid if g not in s.local or g in s.block]
    return axes[-1] if axes else None


def _eighths(weights: list[float]) -> list[Fraction]:
    """Return eighths in proportion to weights, without small ones; they add up to 1."""
    large = [w if w >= MIN_PREFETCH_SHARE * max(weights) else 0.0 for w in weights]
    ends = [round(8 * sum(large[: k + 1]) / sum(large)) for k in range(len(large))]
    return [Fraction(b - a, 8) for a, b in zip([0, *ends], ends, strict=False)]


def _row_axes(nest: Nest, task: str) -> tuple[str, ...]:
    """Return the axes along which a nest walks a row."""
    return nest.order[1:] if nest.order[:1] == (task,) else nest.order


def _steps_on(access: Access, task: str, axes: tuple[str, ...], s: Schedule) -> bool:
    """Return whether neighbouring tasks read neighbouring contiguous rows."""
    step = coefficient(access.offset, task)
    is_strided = step is not None and step != 0 and not any(a.kind == "axis" for a in atoms(step))
    is_static = not any(a.kind == "value" for a in atoms(access.offset))
    steps = [coefficient(access.offset, a) for a in axes]
    return (
        is_strided
        and is_static
        and steps == [*(s.phase.axes[a] for a in axes[1:]), 1]
        and not access.limits
    )


def spare_cycles(nest: Nest) -> float:
    """Estimate the cycles per vector during which a nest computes and memory is idle."""
    inner = [i for i in nest.items if nest.vector in i.axes]
    work = sum(SCALARS[i.op].cost for i in inner if isinstance(i, Operation))
    return max(
        work + len(inner) / 2 + 2 * len(nest.reductions) - LINE_STORED * len(nest.stores), 1.0
    )


def share_start(s: Schedule, nest: Nest, ask: RowShare) -> tuple[Index, Index]:
    """Return where a share of a row begins, and what precedes its inner axis.

    Both are offsets of the current row and of positions of the outer axes of a row.
    """
    task = _task_axis(s)
    assert task is not None
    axes = _row_axes(nest, task)
    row_atoms = {Atom("axis", a) for a in axes}
    row_part = depth_terms(ask.access.offset, lambda a: int(a in row_atoms), 2)[0]
    row_elements = product(s.phase.axes[a] for a in axes)
    skipped = floordiv(mul(row_elements, ask.begin.numerator), ask.begin.denominator)
    step = mul(coefficient(ask.access.offset, task) or 0, s.block.get(task, 1))
    before: Index = 0
    for outer, inner in pairwise(axes):
        before = mul(axis(outer, s.phase.axes[outer]), s.phase.axes[inner])
    return add(add(row_part, step), skipped), before
