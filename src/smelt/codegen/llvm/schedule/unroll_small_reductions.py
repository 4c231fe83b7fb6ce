"""Unroll reductions over small windows: a pooling becomes an elementwise operator.

A window is walked by two axes that move along one dimension, the result's and the reduced one.  In
a loop, its few steps would have lanes and masks of their own; unrolled, vectors run along the
results and every step is one load.

    max over u, v of x[2*i + u, 2*j + v]    is    max(max(x[2*i, 2*j], x[2*i, 2*j + 1]), ..)

A short contraction without an axis that only one factor has, for which there is no better plan, is
unrolled too:

    dot(x[i + u], w[u] over u)    is    x[i]*w[0] + x[i + 1]*w[1] + ..

Sums are carried in float64, as in loops; sums of doubles, which would have to be compensated, are
not unrolled.
"""

from __future__ import annotations

from functools import partial
from itertools import product as positions
from math import prod

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Phase, cut_axes
from smelt.codegen.llvm.loopir.rewrite import (
    Cloner,
    Draft,
    dependencies,
    depends_on_reduction,
    insert_before,
    prune,
)
from smelt.codegen.llvm.loops.unroll_columns import short_row
from smelt.codegen.llvm.schedule.fused_gemm import MAX_EPILOGUE_CYCLES, epilogue_items
from smelt.ops.combine import CHOICE, COMBINES, SUM_OF_PRODUCTS, TIES_BEST, Combine
from smelt.ops.contract import UNROLL_STRIDED_TERMS, UNROLL_TERMS
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bool_, f32, f64, i32
from smelt.types.expr import Index, coefficient, mul

MAX_UNROLLED_WINDOW = 25
"""Maximum elements of an unrolled window: 5 by 5."""
SHORT_ROWS, SHORT_PAIRS = 10, 8
"""Maximum elements of an unrolled short row if only its reduction is stored.

SHORT_PAIRS if rows of several arrays are read: each element is picked out of as many vectors as a
row has elements.  Longer rows are vectors of their own (`smelt.codegen.llvm.loops.batched_reduce`).
"""
MAX_UNROLLED_PHASE_ITEMS = 200
"""Maximum items that a reduction becomes."""
MAX_PRODUCT_ITEMS = 1024
"""Maximum items that a short contraction becomes: nested sums would multiply."""
MAX_BATCH_POSITIONS = 64
"""Maximum positions of each contraction of a batch for vectors to hold several of them."""
MAX_TINY_TERMS = 8
"""Maximum products of a sum in such a batch, each of which has to be gathered."""
MAX_SLIM_COLUMNS, MIN_SLIM_ROWS = 4, 128
"""Maximum columns and fewest rows of a contraction whose vectors run along its rows.

For columns that are stored contiguously; `MAX_TINY_TERMS` columns if they are reduced again (in a
small network).
"""
MAX_WINDOW_STRIDE = 3
"""Largest stride between neighbouring windows, so that loads share cache lines."""


def unroll_small_windows(phase: Phase) -> Phase:
    """Unroll reductions over small windows into trees of their scalar operator."""
    row, draft = short_row(phase), Draft(phase)
    for original in [i for i in phase.items if isinstance(i, ssa.Reduce)]:
        reduction = draft.latest(original)
        if _is_small_window(draft.phase, reduction, row):
            draft.replace(reduction, _unrolled(draft, reduction))
    return draft.phase


def _is_small_window(phase: Phase, reduction: ssa.Reduce, row: str | None) -> bool:
    """Return whether to unroll a reduction.

    `row` is the axis of short rows whose columns will be unrolled, if any.
    """
    over, (arg, *edges) = set(reduction.over), reduction.args
    bound = cut_axes(phase.segments[reduction.time]) | phase.cut.keys()
    if edges or over & bound or not _is_reorderable(reduction):
        return False
    count = 1
    for a in over:
        extent = phase.axes[a]
        count *= extent if isinstance(extent, int) else MAX_UNROLLED_WINDOW + 1
    varying = list(dependencies(arg, over))
    if (
        not 1 <= count <= MAX_UNROLLED_WINDOW
        or count * len(varying) > MAX_UNROLLED_PHASE_ITEMS
        or depends_on_reduction(arg, over)
    ):
        return False
    differ = (i for i in varying if i.axes & reduction.axes)  # what all results share is not a row
    loads = [i.access.offset for i in differ if isinstance(i, ssa.Load)]
    if any(isinstance(i, ssa.WindowRead) for i in varying):  # other loads are cheap besides
        return True
    stored_axes = frozenset[str]().union(*(s.axes for s in phase.stores))
    is_row_reduced = (
        over == {row} or not over & stored_axes or bool(set(reduction.axes) - stored_axes)
    )
    max_length = SHORT_ROWS if len(loads) == 1 else SHORT_PAIRS
    return bool(loads) and all(
        _is_window(x, over, set(reduction.axes))
        or (is_row_reduced and _are_adjacent_rows(x, phase, reduction.over, max_length))
        for x in loads
    )


def _is_reorderable(reduction: ssa.Reduce) -> bool:
    """Return whether terms may be combined in any order.

    Nothing rounds, or it does so in float64.
    """
    row, source = reduction.row, reduction.args[0].dtype
    return row.idempotent or (row.wide and (source == f32 or source.is_integer))


def _is_window(offset: Index, over: set[str], result_axes: set[str]) -> bool:
    """Return whether neighbouring results read neighbouring elements, or contiguous rows.

    With steps of the reduction between: along axes of their own, or whole rows of results' elements
    where these are contiguous.
    """
    steps = [coefficient(offset, a) for a in result_axes]
    has_near_results = any(isinstance(s, int) and 1 <= s <= MAX_WINDOW_STRIDE for s in steps)
    if has_near_results and any(coefficient(offset, a) == 1 for a in over):
        return True
    between = [coefficient(offset, a) for a in over]
    return 1 in steps and all(
        t is not None and any(mul(t, k) in steps for k in range(1, MAX_WINDOW_STRIDE + 1))
        for t in between
    )


def _are_adjacent_rows(offset: Index, phase: Phase, over: tuple[str, ...], most: int) -> bool:
    """Return whether the reduced elements are short rows without gaps between them.

    They are read as a group of interleaved loads then
    (`smelt.codegen.llvm.access.interleaved_loads`), by vectors along the rows.
    """
    length, inside = 1, set[str]()
    while True:
        following = [
            a for a, n in phase.axes.items() if n != 1 and coefficient(offset, a) == length
        ]
        if len(following) != 1:
            return False
        n = phase.axes[following[0]]
        if {*over} <= inside:
            return length <= most
        if not isinstance(n, int) or not 0 < length * n <= most:
            return False
        inside.add(following[0])
        length *= n


def _unrolled(draft: Draft, reduction: ssa.Reduce) -> Item:
    """Return the tree of its scalar operator that a reduction becomes."""
    (arg,) = reduction.args
    counts = [n for a in reduction.over if isinstance(n := draft.axes[a], int)]
    terms = [
        Cloner(draft, reduction, dict(zip(reduction.over, at, strict=True))).of(arg)
        for at in positions(*map(range, counts))
    ]
    row, axes, dtype, time = reduction.row, reduction.axes, reduction.dtype, reduction.time
    if row.positional:
        best = _position_of_best(draft, reduction, row, terms)
        return ssa.Cast((best,), axes, dtype, dtype, time=time)
    if row.idempotent:
        args = _combine_in_pairs(draft, reduction, row.scalar, terms, reduction.dtype)
        both = args * 2 if len(terms) == 1 else args  # idempotent
        return ssa.Apply(both, axes, dtype, row.scalar, time=time)
    wide = f64 if arg.dtype == f32 else reduction.dtype
    if wide != arg.dtype:
        terms = [insert_before(draft, reduction, ssa.cast(t, wide)) for t in terms]
    if len(terms) > 1:
        pair = _combine_in_pairs(draft, reduction, row.scalar, terms, wide)
        terms = [_apply(draft, reduction, row.scalar, pair, wide)]
    start = row.identity(wide)
    if wide.is_float and start == 0:  # as in loops, a sum of -0 is 0
        zero = insert_before(draft, reduction, ssa.Const((), ssa.NO_AXES, wide, start))
        terms = [_apply(draft, reduction, row.scalar, (terms[0], zero), wide)]
    return ssa.Cast(tuple(terms), axes, dtype, dtype, time=time)


def _position_of_best(draft: Draft, reduction: Item, row: Combine, terms: list[Item]) -> Item:
    """Return the position of the best term: the first of equals, or the first NaN.

    Of two terms, the later one wins if it is better.
    """
    make = partial(_apply, draft, reduction)
    _, equal, differs = TIES_BEST
    candidates = [
        (t, insert_before(draft, reduction, ssa.Const((), ssa.NO_AXES, i32, k)))
        for k, t in enumerate(terms)
    ]
    while len(candidates) > 1:
        pairs: list[tuple[Item, Item]] = []
        for (a, at_a), (b, at_b) in zip(candidates[::2], candidates[1::2], strict=False):
            better = make(row.scalar, (b, a), bool_)
            if a.dtype.is_float:
                nan, is_number = make(differs, (b, b), bool_), make(equal, (a, a), bool_)
                better = make(CHOICE, (nan, is_number, better), bool_)
            pairs.append(
                (make(CHOICE, (better, b, a), a.dtype), make(CHOICE, (better, at_b, at_a), i32))
            )
        candidates = [*pairs, *candidates[2 * len(pairs) :]]
    return candidates[0][1]


def unroll_short_dots(phase: Phase) -> Phase:
    """Unroll short contractions into trees of scalar operators."""
    draft = Draft(phase)
    for original in [i for i in phase.items if isinstance(i, ssa.Dot)]:
        dot = draft.latest(original)
        if _is_short_sum(draft.phase, dot):
            draft.replace(dot, _unrolled_dot(draft, dot))
    return prune(draft.phase)


def _is_short_sum(phase: Phase, dot: ssa.Dot) -> bool:
    """Return whether to unroll a contraction."""
    over = {*dot.over}
    left, right = (a.axes - over for a in dot.args)
    sizes = [n for a in over if isinstance(n := phase.axes[a], int)]
    bound = cut_axes(phase.segments[dot.time]) | phase.cut.keys() | {*phase.grid}
    if (
        len(sizes) < len(over)
        or over & bound
        or any(depends_on_reduction(a, over) for a in dot.args)
    ):
        return False
    if not 0 < prod(sizes) <= UNROLL_TERMS or not (
        left <= right
        or right <= left
        or _is_tiny(phase, dot, prod(sizes), left ^ right)
        or _is_slim(phase, dot, prod(sizes), (left - right, right - left))
    ):
        return False
    terms, loads = prod(sizes), [i for a in dot.args for i in dependencies(a, over)]
    return terms * len(loads) <= MAX_PRODUCT_ITEMS and (
        terms <= UNROLL_STRIDED_TERMS
        or not any(_is_strided_load(i, dot.axes - over) for i in loads)
    )


def _is_strided_load(item: Item, result_axes: frozenset[str]) -> bool:
    """Return whether a load that differs between results has no contiguous result axis."""
    if not isinstance(item, ssa.Load):
        return False
    steps = [coefficient(item.access.offset, a) for a in item.axes & result_axes]
    return bool(steps) and 1 not in steps


def _is_tiny(phase: Phase, dot: Item, terms: int, unshared_axes: frozenset[str]) -> bool:
    """Return whether contractions of a batch are so small that vectors hold several of them.

    The axes of one operand have few positions in all, so that no tile would be filled.
    """
    extents = [phase.axes[a] for a in unshared_axes]
    constant = [n for n in extents if isinstance(n, int)]
    batch = dot.axes - unshared_axes
    return (
        len(constant) == len(extents)
        and prod(constant) <= MAX_BATCH_POSITIONS
        and terms <= MAX_TINY_TERMS
        and bool(batch)
    )


def _is_slim(
    phase: Phase, dot: Item, terms: int, unshared_axes: tuple[frozenset[str], frozenset[str]]
) -> bool:
    """Return whether many rows meet few columns of few elements (colours, points in space).

    And the rows are computed, or a function reads the results: vectors along a row are nearly
    empty, those along the rows hold one column each.  Rows that are multiplied in place have a tile
    instead.
    """
    if terms > MAX_TINY_TERMS or dot.dtype.itemsize > f32.itemsize:
        return False
    stored = frozenset[str]().union(*(s.axes for s in phase.stores))
    after = (i.op for i in epilogue_items(phase, [dot]) if isinstance(i, ssa.Apply))
    is_costly = sum(SCALARS[op].cost for op in after) > MAX_EPILOGUE_CYCLES
    for (column_axes, row_axes), rows in zip(
        (unshared_axes, unshared_axes[::-1]), dot.args[::-1], strict=True
    ):
        max_columns = MAX_TINY_TERMS if column_axes.isdisjoint(stored) else MAX_SLIM_COLUMNS
        columns = prod(
            n if isinstance(n := phase.axes[a], int) else max_columns + 1 for a in column_axes
        )
        constant = [n for a in row_axes if isinstance(n := phase.axes[a], int)]
        has_many_rows = len(constant) < len(row_axes) or prod(constant) >= MIN_SLIM_ROWS
        if (
            columns <= max_columns
            and row_axes
            and has_many_rows
            and (is_costly or not isinstance(rows, ssa.Load))
        ):
            return True
    return False


def _unrolled_dot(draft: Draft, dot: ssa.Dot) -> Item:
    """Return the sum of its products that a contraction becomes, added in pairs."""
    times, plus = SUM_OF_PRODUCTS[1], COMBINES[SUM_OF_PRODUCTS[0]].scalar
    over = dot.over
    terms: list[Item] = []
    for at in positions(*(range(n) for a in over if isinstance(n := draft.axes[a], int))):
        clone = Cloner(draft, dot, dict(zip(over, at, strict=True)))
        terms.append(_apply(draft, dot, times, tuple(map(clone.of, dot.args)), dot.dtype))
    args = _combine_in_pairs(draft, dot, plus, terms, dot.dtype)
    if len(terms) == 1:
        return ssa.Apply(terms[0].args, dot.axes, dot.dtype, times, time=dot.time)
    return ssa.Apply(args, dot.axes, dot.dtype, plus, time=dot.time)


def _combine_in_pairs(
    draft: Draft, user: Item, scalar: str, terms: list[Item], dtype: DType
) -> tuple[Item, ...]:
    """Combine terms in pairs until two are left, or the only one."""
    while len(terms) > 2:
        pairs = [
            _apply(draft, user, scalar, two, dtype)
            for two in zip(terms[::2], terms[1::2], strict=False)
        ]
        terms = [*pairs, *terms[2 * len(pairs) :]]
    return tuple(terms)


def _apply(draft: Draft, user: Item, name: str, args: tuple[Item, ...], dtype: DType) -> Item:
    return insert_before(draft, user, ssa.apply(name, args, dtype))
