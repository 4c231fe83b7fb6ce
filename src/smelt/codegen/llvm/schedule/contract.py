"""Plan the contractions of a phase: which are blocked GEMMs, and which operands are packed.

A usable contraction sums left[m, k] * right[k, n] for one axis m that only the left operand has and
one axis n that only the right one has; all other shared axes are fixed in a task.  Its result is a
scratch array over (m, n) that later nests read like any materialised value, so that every epilogue
fuses; its operands are packed by ordinary nests, so that every prologue fuses.

With few rows (or no m at all: a vector) the contraction is a GEMV, or a skinny GEMM: its right
operand is read in place, once, at memory bandwidth.  The number of rows is known at the call only,
so a kernel has a code variant for GEMV contractions besides the usual one.  Contractions that fit
no plan become reductions of products.

Tile and block sizes: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016;
the loops are those of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
2008.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from smelt.codegen.llvm.instructions.dot_product import (
    DotInstruction,
    choose_dot_instruction,
)
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Phase, enclosing_regions, unvarying_axes
from smelt.codegen.llvm.loopir.rewrite import Draft
from smelt.codegen.llvm.nests.contraction import (
    SKEW,
    Contraction,
    contiguous_axis,
    is_strided_load,
    renewed,
)
from smelt.codegen.llvm.nests.product_plan import Tile, in_place_tile, register_tile
from smelt.codegen.llvm.schedule.operands import (
    is_computed_along,
    is_grouped_by_row,
    is_prepacked,
    packing_scatters,
    plain_load,
)
from smelt.codegen.llvm.schedule.split_k_parts import split_k_parts
from smelt.kernel.artifact import Candidate, SizeLimits, Variant
from smelt.machine.blocks import (
    COLUMNS,
    GEMV,
    UNPACKED,
    ceiling,
    dot_instruction_block,
    thin_columns,
    tile_instruction_block,
)
from smelt.machine.target import Target
from smelt.machine.tiling import conflicting_product
from smelt.ops.combine import SUM_OF_PRODUCTS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, coefficient, mul, product


def contractions(phase: Phase, target: Target, form: Variant = "") -> dict[Item, Contraction]:
    """Plan the contractions of a phase that fit a plan."""
    return plan_contractions(Draft(phase), target, form)


def plan_contractions(draft: Draft, target: Target, form: Variant = "") -> dict[Item, Contraction]:
    """Plan the contractions of a phase; others are rewritten as reductions of products."""
    plans: dict[Item, Contraction] = {}
    pending = [i for i in draft.phase.items if isinstance(i, ssa.Dot)]
    while pending:
        item = draft.latest(pending.pop(0))
        plan = _plan(item, draft.phase, target, form, plans)
        if plan is None:
            _replace_by_reduction(item, draft)
        elif plan.vector_axis == plan.k and (parts := _parts(plan, draft)):
            pending = parts + pending
        else:
            plans[item] = plan
    while (item := _conflicting(plans, draft.phase)) is not None:
        del plans[item]
        _replace_by_reduction(item, draft)
        plans = {draft.latest(i): renewed(c, draft.latest) for i, c in plans.items()}
    return plans


def _parts(plan: Contraction, draft: Draft) -> list[ssa.Dot]:
    """Return the contractions over parts of k that replace a GEMV, if any."""
    is_dot_form = plan.is_gemv and plan.group is None
    return split_k_parts(draft, plan.item, plan.right, plan.k) if is_dot_form else []


def few_row_variants(products: Iterable[Contraction], phase: Phase) -> Iterator[Candidate]:
    """Yield the variants for few rows or columns, best first, with the limits of each."""
    packed = [c for c in products if not c.is_gemv and c.m is not None]
    if not packed:
        return
    if any(c.prepacked for c in packed):
        if all(c.prepacked for c in packed):
            limits = dict.fromkeys((phase.axes[c.axes[0]], GEMV.rows) for c in packed)
            yield Candidate("rows", tuple(limits))
        return
    small = small_limits(packed, phase)
    sides: list[tuple[Variant, dict[str, int]]] = [
        ("rows", {c.axes[0]: _gemv_rows(c.group) for c in packed}),
        ("columns", {c.n: _gemv_rows(c.group) for c in packed}),
    ]
    for form, axes in sides:
        limits = tuple((phase.axes[a], n) for a, n in axes.items())
        if small is not None and is_satisfiable((*limits, *small)):
            yield Candidate("small", tuple(dict.fromkeys((*limits, *small))))
        serves_others = any(
            _serves_other_axes(c.item, c.m, c.n, c.right if form == "rows" else c.left)
            for c in packed
        )
        if is_satisfiable(limits) and not serves_others:
            yield Candidate(form, tuple(dict.fromkeys(limits)))


def small_limits(products: Collection[Contraction], phase: Phase) -> SizeLimits | None:
    """Return the limits of small contractions, whose operands are in place; None if none are."""
    if any(c.outer or c.group or c.prepacked or c.is_gemv or c.m is None for c in products):
        return None
    limits = {a: UNPACKED.mc for c in products for a in c.axes} | {
        c.k: UNPACKED.kc for c in products
    }
    return tuple(dict.fromkeys((phase.axes[a], n) for a, n in limits.items()))


def is_satisfiable(limits: SizeLimits) -> bool:
    """Return whether any sizes are within some limits."""
    return not any(isinstance(n, int) and n > most for n, most in limits)


def as_small(c: Contraction, target: Target) -> Contraction:
    """Return the plan of the same contraction as one whose operands are in place."""
    small = replace(c, kind="small")
    in_place = small.reads_left_in_place()
    return replace(small, tile=in_place_tile(target, c.tile.lanes)) if in_place else small


def _in_cache(
    item: ssa.Dot, right: Item, axes: tuple[str | None, str, str], phase: Phase, target: Target
) -> bool:
    """Return whether a small-M contraction is always small, and its right operand stays in L1.

    Tiles then read its rows in place, sooner than rows are packed and sums go through scratch.
    """
    (m, n, k), tile = axes, in_place_tile(target, _lanes(item.dtype, target))
    sizes = [1 if a is None else phase.axes[a] for a in axes]
    rows, columns, depth = (n if isinstance(n, int) else 1 << 40 for n in sizes)
    high = tile.rows if columns > tile.lanes else 2
    fits = columns * depth * item.dtype.itemsize <= target.l1_bytes
    is_plain = m is not None and len(item.over) == 1
    return (
        is_plain
        and high <= rows <= GEMV.rows
        and fits
        and is_strided_load(right, item.dtype, (k, n), (n,))
    )


def _serves_other_axes(item: ssa.Dot, m: str | None, n: str, larger: Item) -> bool:
    """Return whether the larger operand serves further positions.

    Then packing it once beats reading it again for each of them.
    """
    return bool(item.axes - {m, n} - larger.axes)


def _conflicting(plans: dict[Item, Contraction], phase: Phase) -> ssa.Dot | None:
    """Return a contraction over an axis that tasks block for another one, or for windows."""
    axes = {c.item: (c.item.axes, {c.m, c.n}) for c in plans.values()}
    windows = {r.axis for r in phase.window_positions.values()}
    return conflicting_product(axes, {*phase.grid}, windows)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Which operand is the left one, and the axes that are theirs alone."""

    left: Item
    right: Item
    m: str | None
    n: str
    m_contiguous_pitch: int
    """Row pitch of a left operand that is computed in vectors along m; else 0."""


def _plan(
    item: ssa.Dot, phase: Phase, target: Target, form: Variant, before: Mapping[Item, Contraction]
) -> Contraction | None:
    over = item.over
    if set(phase.cut) - set(over) or any(a in phase.grid for a in over):
        return None
    tile = register_tile(target, _lanes(item.dtype, target))
    roles = _choose_roles(item, phase, target, form, before, tile)
    if roles is None:
        return None
    left, right, m, n = roles.left, roles.right, roles.m, roles.n
    ranked = [a for a in phase.axes if a in over]
    k = _longest(ranked, phase)
    matrices = m is not None
    group = choose_dot_instruction(item, left, right, phase.dtypes, target, matrices=matrices)
    panels = is_prepacked(right, item, group, (k, n), tile.columns, phase)
    if m is None and panels and group is not None:
        outer, single_row = tuple(a for a in ranked if a != k), Tile(1, tile.vectors, tile.lanes)
        return Contraction(
            item, left, right, m, n, outer, k, single_row, "small", prepacked=True, group=group
        )
    in_l1 = form in ("", "small") and group is None
    in_l1 = in_l1 and _in_cache(item, right, (m, n, k), phase, target)
    shared = m is not None and _serves_other_axes(item, m, n, right)
    few_rows = _is_few(m, phase, _gemv_rows(group)) and not (in_l1 or shared)
    if (not panels or m is None) and (form in ("rows", "columns") or few_rows):
        return _gemv(item, left, right, m, n, ranked, phase, target)
    if m is None or item.dtype.kind == "bool" or item.dtype.bits < 32:
        return None
    pitch = roles.m_contiguous_pitch or _stored_pitch(left, item, ranked[-1], tile, phase)
    access, kind = plain_load(left), "small" if in_l1 or form in ("small", "rows") else "packed"
    converts = access is not None and phase.dtypes[access.buffer] != item.dtype
    plan = Contraction(
        item,
        left,
        right,
        m,
        n,
        tuple(a for a in ranked if a != k),
        k,
        tile,
        kind,
        direct=pitch if group is None else 0,
        m_contiguous=bool(roles.m_contiguous_pitch),
        stored_pitch=0 if group is None else pitch,
        prepacked=panels,
        converts=converts and kind == "packed",
    )
    if group is not None:
        units = is_grouped_by_row(left, item, group, (m, k), phase)
        along = contiguous_axis(right, (n, k))
        plan = replace(plan, group=group, vector_axis=along, units=units)
    in_place = plan.units or (group is None and kind == "small" and plan.reads_left_in_place())
    return replace(plan, tile=in_place_tile(target, tile.lanes)) if in_place else plan


def _choose_roles(
    item: ssa.Dot,
    phase: Phase,
    target: Target,
    form: Variant,
    before: Mapping[Item, Contraction],
    tile: Tile,
) -> _Roles | None:
    """Choose the left operand: vectors run along the columns of the right one.

    These are those of the stored result, unless packing would then scatter what is computed in
    vectors, or a packed operand would serve fewer tasks.  None if both operands have more axes.
    """
    over, (left, right) = item.over, item.args
    stored = stored_axis(phase, over, item.axes)
    if stored in left.axes and stored not in right.axes:
        left, right = right, left
    fixed = unvarying_axes(phase.segments[item.time])
    barred = fixed | {a for guide, _ in phase.stream_bounds() for a in guide.axes}
    m, n = (_blocked_axis(x, y, over, phase, barred) for x, y in ((left, right), (right, left)))
    serves_fewer, pitch = False, 0
    if m is not None and n is not None and stored not in (m, n) and not _is_few(m, phase):
        serves_fewer = _serves_other_axes(item, m, n, left) > _serves_other_axes(item, m, n, right)
    swaps = (form == "columns") != serves_fewer or _is_few(n, phase) > _is_few(m, phase)
    if m is not None and n is not None:
        lane_axes = {i: c.n for i, c in before.items()}
        plain = not (swaps or form)
        if plain and choose_dot_instruction(item, left, right, phase.dtypes, target) is None:
            pitch = _m_contiguous_pitch(left, item, m, lane_axes, tile, phase)
        swaps = not pitch and (swaps or packing_scatters(left, right, m, lane_axes))
    if n is None or (m is not None and swaps):
        left, right, m, n = right, left, n, m
    if n is None or not set(over) <= left.axes & right.axes:
        return None
    if (item.axes - {m, n}) & set(phase.axes) - set(phase.grid) - fixed:
        return None
    return _Roles(left, right, m, n, pitch)


def _stored_pitch(left: Item, item: ssa.Dot, axis: str, tile: Tile, phase: Phase) -> int:
    """Return the row pitch of a left operand that is materialised block by block.

    A stream materialises it.  0 for any other operand.
    """
    if not _is_shared_value(left, item, phase) or len(item.over) > 1:
        return 0
    return _stream_pitch(left, item, axis, tile, phase)


def _is_shared_value(left: Item, item: ssa.Dot, phase: Phase) -> bool:
    """Return whether others read a contraction's left operand too."""
    others = any(left in i.args and i is not item for i in phase.items)
    return others or any(s.value is left for s in phase.state_updates)


def _stream_pitch(
    left: Item, item: ssa.Dot, axis: str, tile: Tile, phase: Phase, extent: int | None = None
) -> int:
    """Return the pitch of a stream's blocks along an axis, or of `extent`.

    `extent` is for an axis without blocks; 0 if it is None.
    """
    if not isinstance(left, ssa.Apply) or left.time != item.time:
        return 0
    visits = {
        v.axis: v.size for r in enclosing_regions(phase.segments[item.time]) for v in r.visits
    }
    size = visits.get(axis, extent)
    return 0 if size is None else -(-size // tile.columns) * tile.columns + SKEW


def _m_contiguous_pitch(
    left: Item, item: ssa.Dot, m: str, lane_axes: Mapping[Item, str], tile: Tile, phase: Phase
) -> int:
    """Return the pitch along m of a left operand computed in vectors along m.

    Packing it in rows would scatter these vectors, so a tile reads neighbouring rows from one
    vector for each k.  0 if it is packed.
    """
    if isinstance(left, ssa.Load) or not is_computed_along(left, m, lane_axes):
        return 0
    (k, *more) = item.over
    has_both = left.axes & set(phase.axes) - set(phase.grid) == {m, k}
    if more or not has_both or not _stream_pitch(left, item, k, tile, phase):
        return 0
    extent = phase.axes[m] if m not in phase.grid and _is_shared_value(left, item, phase) else None
    return _stream_pitch(left, item, m, tile, phase, extent if isinstance(extent, int) else None)


def _longest(axes: list[str], phase: Phase) -> str:
    """Return the last of the longest axes: one of symbolic extent rather than a window's few
    taps."""
    extents = {a: phase.axes[a] for a in axes}
    return max(reversed(axes), key=lambda a: e if isinstance(e := extents[a], int) else 1 << 62)


def _is_few(axis: str | None, phase: Phase, most: int = GEMV.rows) -> bool:
    """Return whether an axis has at most `most` positions for all sizes."""
    extent = 1 if axis is None else phase.axes[axis]
    return isinstance(extent, int) and extent <= most


def _gemv_rows(group: DotInstruction | None) -> int:
    """Return up to how many rows the larger operand is not packed."""
    return GEMV.rows if group is None or not group.matrix else GEMV.matrix_rows


def _lanes(dtype: DType, target: Target) -> int:
    return target.vector_bytes // dtype.itemsize


def _gemv(
    item: ssa.Dot,
    left: Item,
    right: Item,
    m: str | None,
    n: str,
    over: list[str],
    phase: Phase,
    target: Target,
) -> Contraction | None:
    """Plan a GEMV: its right operand is read along n or a reduced axis."""
    if item.dtype.kind == "bool" or item.dtype.bits < 32:
        return None
    along = contiguous_axis(right, (n, *over[::-1]))
    k = over[-1] if along == n else along
    rows = 1 if m is None else 8 if target.registers >= 32 else 4
    group = choose_dot_instruction(item, left, right, phase.dtypes, target)
    return Contraction(
        item,
        left,
        right,
        m,
        n,
        tuple(a for a in over if a != k),
        k,
        Tile(rows, 2, _lanes(item.dtype, target)),
        "gemv",
        along,
        group=group,
    )


def _blocked_axis(
    x: Item, other: Item, over: tuple[str, ...], phase: Phase, barred: set[str]
) -> str | None:
    """Return the axis of one operand alone that is blocked.

    An inner one rather than a grid axis, of which there may be several; then one that the kernel
    takes in blocks; then one with many positions.
    """
    candidates = [
        a for a in phase.axes if a in x.axes - barred and a not in other.axes and a not in over
    ]
    inner = [a for a in candidates if a not in phase.grid]
    blocked = [a for a in candidates if a in phase.blocked_axes and phase.regions()]
    long = [a for a in candidates if not _is_few(a, phase)]
    return (inner or blocked or long or candidates or [None])[-1]


def stored_axis(
    phase: Phase, over: tuple[str, ...] = (), axes: frozenset[str] = frozenset()
) -> str | None:
    """Return the stride-1 axis of the largest output.

    Prefer outputs that do not vary along the reduction axes `over` (an output that does is an
    operand stored on the side), then outputs that have all of `axes`, since other contractions of a
    kernel may be stored otherwise.
    """
    ranked = sorted(
        phase.stores, key=lambda s: (not s.axes.isdisjoint(over), not axes <= s.axes, -len(s.axes))
    )
    for s in ranked:
        for a in phase.axes:
            if a in s.axes and coefficient(s.access.offset, a) == 1:
                return next((p for p, r in phase.window_positions.items() if r.axis == a), a)
    return None


def _replace_by_reduction(item: ssa.Dot, draft: Draft) -> None:
    """Rewrite a contraction as a reduction of a product item, inserted before it."""
    axes = item.args[0].axes | item.args[1].axes
    product = ssa.Apply(item.args, axes, item.dtype, SUM_OF_PRODUCTS[1], time=item.time)
    draft.insert(item, product)
    total = ssa.Reduce((product,), item.axes, item.dtype, item.row, item.over, time=item.time)
    draft.replace(item, total)


def product_block(
    c: Contraction, phase: Phase, every: list[Contraction], target: Target
) -> tuple[Index, Index]:
    """Return the rows and columns of a contraction that one task takes."""
    if c.m is None and not c.is_gemv:
        panels = ceiling(thin_columns(phase.axes[c.n]), c.tile.columns)
        return GEMV.rows, mul(panels, c.tile.columns)
    if c.is_gemv:
        along_rows = c.vector_axis == c.n
        return GEMV.rows, thin_columns(phase.axes[c.n]) if along_rows else GEMV.dot_rows
    assert c.m is not None
    free = product(phase.axes[a] for a in phase.axes if a in c.item.axes and a in phase.grid)
    cuts_columns = all(other.n in phase.grid for other in every)
    if cuts_columns and len(every) == 1 and c.group is not None:
        if c.group.matrix:
            return tile_instruction_block(phase.axes[c.m], free)
        in_place = any(x.value is c.item for x in phase.stores)
        return dot_instruction_block(phase.axes[c.m], free, target.gemm_tasks, in_place=in_place)
    reduced = {a for i in phase.items if isinstance(i, ssa.Reduction) for a in i.over}
    rows = target.tiling.product_rows(
        phase.axes[c.m],
        phase.axes[c.n],
        free,
        c.item.dtype.itemsize,
        len(every),
        cuts_columns=cuts_columns,
        is_reduced=len(every) == 1 or any({other.m, other.n} & reduced for other in every),
    )
    return rows, COLUMNS
