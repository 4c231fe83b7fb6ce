"""Plan convolutions in any layout as implicit GEMMs with an input indexed by position.

out[m, y, x] = sum over c, u, v of left[m, c, u, v] * right[c, y*s + u*d, x*s + v*d]: a convolution,
or a contraction whose columns are walked by two axes.  The right operand is packed once for each
input position y*s + u*d instead of once for each pair (y, u) as by im2col
(`smelt.codegen.llvm.loopir.input_tile`).  If s > 1, positions are split into quotient and
remainder, so that neighbouring columns are always contiguous.  Packing is an ordinary nest: padding
becomes masks, and whatever is computed from an image is computed while it is packed.

Columns y, x are numbered y*pitch + x with the pitch of packed rows, so that the columns of one
register tile are always consecutive; those between rows are computed in vain and never read.

This module finds the windows, chooses between the channels-first plan (`ConvPlan`) and the
channels-last one (`smelt.codegen.llvm.schedule.conv_nhwc`), and rewrites the operands for packing.
Operands of a channels-first convolution are transposed to channels last, tile by tile while they
are packed, unless every task would have to gather the weights: the microkernel then computes no
padding columns, and weights may be prepacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import TypeAlias, cast

from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.input_tile import (
    NO_AXIS,
    WindowAxis,
    find_window_axis,
    flatten_reduction,
    flatten_row,
    index_by_position,
    packed_extents,
    packed_order,
)
from smelt.codegen.llvm.loopir.items import Cast, Dot, Item, Phase
from smelt.codegen.llvm.loopir.pack_k_pairs import pack_operand_pair, pack_pairs
from smelt.codegen.llvm.loopir.rewrite import Draft, depends_on_reduction
from smelt.codegen.llvm.nests.contraction import SKEW, contiguous_axis, is_strided_load
from smelt.codegen.llvm.nests.product_plan import (
    IN_PLACE,
    LEFT_PART,
    RIGHT_PART,
    TABLE_PART,
    Driver,
    PackedPlan,
    PlanDefaults,
    PlanNotes,
    ScratchArray,
    Tile,
    Variants,
    register_tile,
)
from smelt.codegen.llvm.schedule.contract import stored_axis
from smelt.codegen.llvm.schedule.conv_nhwc import (
    MAX_FEW_CHANNELS,
    TASK_CHANNELS,
    NhwcConvPlan,
    are_weights_prepacked,
    contiguous_filter_load,
    find_image_rows,
    nhwc_tile,
    tiles_end_with_rows,
)
from smelt.codegen.llvm.schedule.operands import (
    StridedOperand,
    is_prepacked,
    plain_load,
    shares_cache_lines,
)
from smelt.kernel.artifact import Variant
from smelt.machine.blocks import ROWS, WINDOW_ROWS, ceiling, window_columns
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32, f64, i64
from smelt.types.expr import (
    Index,
    add,
    axes_of,
    coefficient,
    floordiv,
    maximum,
    mul,
    product,
    substitute,
)

MAX_NARROW_ROW = 64
"""Longest row (columns) that is packed once for each tap of the windows along it."""
MIN_VARIANT_ROWS = 32
"""Minimum rows of a convolution (output channels) for repeated packing to cost little."""


def small_image_variants(phase: Phase, slid: Sequence[ConvPlan]) -> Variants:
    """Yield the variant in which what each tap of a row reads is packed separately.

    There are no padding columns between rows then.
    """
    few = any(_has_few_rows(c, phase) for c in slid)
    if few or not any(k.tap for c in slid for k in c.columns):
        return
    line = phase.axes[slid[0].n]
    if not isinstance(line, int) or line <= MAX_NARROW_ROW:
        yield "narrow", ((line, MAX_NARROW_ROW),)


def _has_few_rows(c: ConvPlan, phase: Phase) -> bool:
    """Return whether few rows meet each packed element: by number, or in groups."""
    rows = phase.axes[c.m]
    groups = c.left.axes & c.right.axes & c.item.axes
    return bool(groups) or (isinstance(rows, int) and rows < MIN_VARIANT_ROWS)


MAX_TAPS = 400
"""Maximum taps of one position that are summed in one block, for which scratch has room."""
BLOCK_POSITIONS = 256
"""Reduced positions of a block of several input channels: what a tile reads of the right operand
stays in L1 for the next one."""
LEFT_PITCH = MAX_TAPS + SKEW
"""Elements between rows of the packed left operand."""


@dataclass(frozen=True, slots=True)
class ConvPlan(PlanDefaults):
    """Plan of a channels-first convolution: its operands as they are packed, and its axes."""

    item: Dot
    left: Item
    right: Item
    m: str
    columns: tuple[WindowAxis, ...]
    """One or two axes, outer to inner."""
    depth: str
    """The reduced axis that is cut into blocks (input channels); "" if there is none."""
    others: tuple[str, ...]
    """The other reduced axes, all of constant extent, in the order of `flat`."""
    extents: tuple[int, ...]
    flat: str
    """The axis over `depth` and `others` along which the left operand is packed."""
    tile: Tile
    is_left_contiguous: bool = False
    """Whether rows of the left operand are contiguous over their reduced positions."""
    strided_left: StridedOperand | None = None
    """The left operand's strides, if each reduced axis has one."""
    k = NO_AXIS
    """No axis is packed by itself."""

    @property
    def driver(self) -> Driver:
        """The loops around its register tiles."""
        return "nchw"

    def notes(self) -> PlanNotes:
        """Return the policies of this plan in words."""
        columns = ", ".join(c.axis for c in self.columns)
        axes = f"{self.m} x {columns} over {', '.join(a for a in (self.depth, *self.others) if a)}"
        in_place = self.is_left_contiguous or self.strided_left is not None
        weights = IN_PLACE if in_place else "packed in rows"
        image = "pixels packed once, found by a table of positions"
        return PlanNotes(axes, weights, image, f"in scratch between blocks of {self.block}")

    @property
    def has_plain_columns(self) -> bool:
        """Whether columns are along several axes, but without windows."""
        return not any(c.tap for c in self.columns)

    def variants(self, phase: Phase, plans: Sequence[PackedPlan]) -> Variants:
        """Yield the variants for small images."""
        return small_image_variants(phase, cast(Sequence[ConvPlan], plans))

    def arrays(self, phase: Phase, local: Mapping[str, Index]) -> Iterator[ScratchArray]:
        """Yield the arrays in scratch: both operands, and a table of positions."""
        packs_left = not self.reads_left(phase.axes[self.m], local[self.m])
        weights = mul(self.scratch_extent(self.m, local), LEFT_PITCH)
        yield ScratchArray(LEFT_PART, weights, self.unit, packs_left)
        pixels = mul(ceiling(product(self.packed(local)), self.tile.lanes), self.tile.lanes)
        yield ScratchArray(RIGHT_PART, pixels, self.unit)
        yield ScratchArray(TABLE_PART, MAX_TAPS * 3 + 1 if self.strided_left else MAX_TAPS, i64)

    @property
    def packs_by_tap(self) -> bool:
        """Whether the left operand is packed tap by tap.

        Elements of a pair along `depth` are as far apart as there are taps.
        """
        return self.unit != self.item.dtype and bool(self.others)

    @property
    def taps(self) -> int:
        """Reduced positions for each one along `depth`."""
        return prod(self.extents)

    @property
    def block(self) -> int:
        """Positions along `depth` that are packed together."""
        return max(BLOCK_POSITIONS // self.taps, 1)

    @property
    def n(self) -> str:
        """The vector axis."""
        return self.columns[-1].axis

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        return (self.m, *(c.axis for c in self.columns))

    @property
    def outer(self) -> tuple[str, ...]:
        """All reduced axes, since there is no `k`."""
        return self.summed

    @property
    def tail_rows(self) -> int:
        """Rows of the tile for a remainder: enough accumulators to hide the latency of
        multiply-adds.

        Two of these tiles replace a full one and a small remainder.
        """
        return max(2 * self.tile.rows // 3, 1)

    @property
    def even(self) -> int:
        """The number whose multiples, from `tail_rows` on, full tiles cover without a tail.

        For such a row count the left operand is read in place.
        """
        return gcd(self.tile.rows, self.tail_rows)

    def reads_left(self, rows: Index, local: Index) -> bool:
        """Return whether no task packs the left operand, if each takes `local` of `rows` rows."""
        if (
            not isinstance(rows, int)
            or not isinstance(local, int)
            or not (self.is_left_contiguous or self.strided_left)
        ):
            return False
        counts = (local, rows % local or local)
        return all(n % self.even == 0 and n >= self.tail_rows for n in counts)

    @property
    def summed(self) -> tuple[str, ...]:
        """All reduced axes."""
        return (*((self.depth,) if self.depth else ()), *self.others)

    def left_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the left operand."""
        return (self.m, self.depth, self.flat) if self.packs_by_tap else (self.m, self.flat)

    def right_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the right operand: its axes in scratch too."""
        return packed_order(self.columns, self.summed)

    def pitch(self, extent: Index) -> Index:
        """Return the elements between rows of columns: a row's input positions."""
        return add(extent, self.columns[-1].halo)

    def packed(self, local: Mapping[str, Index]) -> list[Index]:
        """Return the extents of the packed right operand along `right_order`."""
        sizes: dict[str, Index] = dict(zip(self.others, self.extents, strict=True))
        sizes |= {self.depth: self.block, **packed_extents(self.columns, local)}
        return [sizes[a] for a in self.right_order()]

    def scratch_extent(self, axis: str, local: Mapping[str, Index]) -> Index:
        """Return the scratch extent along an axis of the result: room for full register tiles."""
        if axis == self.m:
            return mul(ceiling(local[axis], self.tile.rows), self.tile.rows)
        if len(self.columns) == 1:
            return mul(ceiling(local[axis], self.tile.columns), self.tile.columns)
        pitch = self.pitch(local[self.n])
        return pitch if axis == self.n else add(local[axis], ceiling(self.tile.columns, pitch))

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """Return the task blocks: grid axis -> positions."""
        blocks: dict[str, Index] = {self.m: WINDOW_ROWS}
        max_columns = window_columns(self.item.dtype.itemsize)
        *outer, inner = (c.axis for c in self.columns)
        pieces = ceiling(phase.axes[inner], max_columns)
        blocks[inner] = ceiling(phase.axes[inner], maximum(pieces, 1)) if outer else max_columns
        positions = self.pitch(blocks[inner])
        for a in reversed(outer):
            rows = maximum(floordiv(max_columns, positions), 1)
            pieces = ceiling(phase.axes[a], rows)
            blocks[a] = ceiling(phase.axes[a], pieces)
            positions = mul(positions, blocks[a])
        return {a: n for a, n in blocks.items() if a in phase.grid}


def plan_convolutions(
    draft: Draft, target: Target, form: Variant = ""
) -> dict[Item, ConvPlan] | dict[Item, NhwcConvPlan]:
    """Plan the convolutions of a phase, and rewrite their operands for packing.

    All of them have the same columns, so that one task serves all; one may read another's result.
    Empty if some contraction fits no plan.
    """
    conv_plans: dict[Item, ConvPlan] = {}
    phase = draft.phase
    dots = [i for i in phase.items if isinstance(i, Dot)]
    plans = [window_plan(i, draft, form) for i in dots]
    if any(plans):  # plain contractions among them have the same columns
        plans = [p or window_plan(i, draft, form, ordinary=True) for i, p in zip(dots, plans)]
    if not plans or any(p is None for p in plans):
        return conv_plans
    window_plans = [p for p in plans if p is not None]
    if any(p.lies_in_panels(target) for p in window_plans):
        return conv_plans
    columns = [c.axis for c in window_plans[0].columns]
    blocked = {*columns, *(p.m for p in window_plans)} & {*phase.grid}
    if any(
        [c.axis for c in p.columns] != columns or p.item.axes & blocked - {p.m, *columns}
        for p in window_plans
    ):
        return conv_plans
    if all(p.is_nhwc() for p in window_plans):
        is_only = len(window_plans) == 1
        return {u.item: u for u in (p.plan_nhwc(target, alone=is_only) for p in window_plans)}
    sides = choose_conv_layout(window_plans[0], target, form) if len(window_plans) == 1 else None
    if sides is not None:
        conv = window_plans[0].plan_nhwc(target, alone=False, sides=sides)
        return {conv.item: conv}
    for plan in window_plans:
        conv = plan.plan_nchw(target)
        conv_plans[conv.item] = conv
    return conv_plans


@dataclass(slots=True)
class WindowPlan:
    """The operands and axes of a contraction over windows, before anything is rewritten."""

    item: Dot
    left: Item
    right: Item
    draft: Draft
    m: str
    columns: list[WindowAxis]
    depth: str
    others: tuple[str, ...]
    flat: str = ""

    @property
    def phase(self) -> Phase:
        """The phase, as it has been rewritten until now."""
        return self.draft.phase

    def renew(self) -> None:
        """Follow what has become of the operands as others were rewritten."""
        latest = self.draft.latest
        self.item, self.left, self.right = latest(self.item), latest(self.left), latest(self.right)

    def settle(self, form: Variant) -> None:
        """Adapt the columns to a variant: "narrow" packs the taps along a row one by one."""
        if form == "narrow":
            self.columns[-1] = WindowAxis(self.columns[-1].axis, self.columns[-1].axis)

    def lies_in_panels(self, target: Target) -> bool:
        """Return whether the right operand is prepacked along the last column."""
        wide = register_tile(target, target.vector_bytes // self.item.dtype.itemsize).columns
        axes = (self.depth, self.columns[-1].axis)
        return is_prepacked(self.right, self.item, None, axes, wide, self.phase)

    def is_nhwc(self) -> bool:
        """Return whether the layout is channels last, for both results and image."""
        image_axis = contiguous_axis(self.right, (*(c.axis for c in self.columns), self.depth))
        return self.m == stored_axis(self.phase) and bool(self.depth) and image_axis == self.depth

    def has_patches(self) -> bool:
        """Return whether it is channels last, with weights contiguous along taps.

        A plain contraction would pack them one tap after another, with large strides.
        """
        weights_axis = contiguous_axis(self.left, (self.m, self.depth, *self.others))
        return weights_axis not in (self.m, self.depth) and self.is_nhwc()

    def _pair_channels(self, target: Target) -> None:
        """Pack short numbers in pairs along `depth`, if there is a dot-product instruction."""
        group = choose_dot_instruction(self.item, self.left, self.right, self.phase.dtypes, target)
        reduced = any(depends_on_reduction(x, {self.depth}) for x in (self.left, self.right))
        if group is None or reduced or not self.depth:
            return
        operands = self.left, self.right
        operands, self.depth = pack_operand_pair(
            self.draft, self.item, operands, self.depth, group.dtype
        )
        self.left, self.right = operands

    def _pair_rows(self, target: Target) -> int:
        """Pack the weights of few channels in pairs along a window's row.

        For an odd number of channels that are contiguous along the row.  Returns the pairs of a
        row, or 0.
        """
        group = choose_dot_instruction(self.item, self.left, self.right, self.phase.dtypes, target)
        last, channels = self.columns[-1], self.phase.axes.get(self.depth)
        odd = isinstance(channels, int) and channels % 2 == 1 and channels <= MAX_FEW_CHANNELS
        if group is None or not odd or not last.tap or last.dilation != 1:
            return 0
        if depends_on_reduction(self.left, {last.tap, self.depth}) or depends_on_reduction(
            self.right, {last.axis, self.depth}
        ):
            return 0
        left, line = flatten_reduction(self.draft, self.item, self.left, [last.tap, self.depth])
        (left,), along = pack_pairs(self.draft, self.item, (left,), line, group.dtype)
        self.others = tuple(a for a in self.others if a != last.tap)
        self.left, self.flat = flatten_reduction(self.draft, self.item, left, [*self.others, along])
        return _constant_or_many(self.phase.axes[along])

    def _add_batch_column(self) -> None:
        """Add a batch axis to the columns, to pack weights once for several images."""
        last, replaced = self.columns[-1], self.left.axes | {k.axis for k in self.columns}
        free = self.item.axes & {*self.phase.grid} - replaced
        batch = [a for a in self.phase.axes if a in free]
        if (
            batch
            and not self.phase.window_positions
            and tiles_end_with_rows(self.phase.axes[last.axis], last)
        ):
            self.columns.insert(0, WindowAxis(batch[-1], batch[-1]))

    def plan_nhwc(
        self, target: Target, *, alone: bool, sides: Sides = (False, False)
    ) -> NhwcConvPlan:
        """Return the channels-last plan; items of its operands are added to the phase.

        `alone`: it may be the only contraction of the phase.  `sides`: whether the image, and
        whether the results are transposed.
        """
        self.renew()
        pairs = self._pair_rows(target)
        if not pairs:
            self._pair_channels(target)
        extents = tuple(_constant_or_many(self.phase.axes[a]) for a in self.others)
        depth, line = self.phase.axes[self.depth], ""
        lanes = target.vector_bytes // self.item.dtype.itemsize
        tile, over = nhwc_tile(target, lanes, odd=pairs > 0), (self.depth, self.others)
        panels = are_weights_prepacked(self.left, self.item, over, self.m, tile.columns, self.phase)
        few = depth if isinstance(depth, int) and 0 < depth <= MAX_FEW_CHANNELS else 0
        if few and depends_on_reduction(self.right, {self.columns[-1].axis, self.depth}):
            few = 0  # a reduction has a value for each position, not for each channel of one
        if alone and not (panels or few):  # packing the weights of few channels costs little
            self._add_batch_column()
        *outer, last = self.columns
        lines = find_image_rows(self.right, outer[-1], self.others) if outer else None
        if few:
            right = index_by_position(self.draft, self.item, self.right, outer)
            if sides[0]:
                right, line, last = flatten_row(self.draft, self.item, right, last)
            else:
                right, line, last = flatten_row(self.draft, self.item, right, last, self.depth, few)
            self.columns = [*outer, last]
        else:
            right = index_by_position(self.draft, self.item, self.right, self.columns)
        left, flat = self.left, ""
        if pairs:
            flat = self.flat
        elif few and not panels:
            left, flat = flatten_reduction(self.draft, self.item, left, [*self.others, self.depth])
        item = self.draft.replace(self.item, replace(self.item, args=(left, right)))
        return NhwcConvPlan(
            item,
            left,
            right,
            self.m,
            tuple(self.columns),
            self.depth,
            self.others,
            extents,
            tile,
            panels,
            few,
            line,
            flat,
            lines,
            pairs,
            transposes_image=sides[0],
            transposes_result=sides[1],
        )

    def plan_nchw(self, target: Target) -> ConvPlan:
        """Return the channels-first plan; items of its operands are added to the phase."""
        self.renew()
        self._pair_channels(target)
        extents = tuple(_constant_or_many(self.phase.axes[a]) for a in self.others)
        summed = [*([self.depth] if self.depth else []), *self.others]
        lanes = target.vector_bytes // self.item.dtype.itemsize
        tile = register_tile(target, lanes)
        dealt = self._left_strides(summed, tile)
        taps = self.left.dtype != self.item.dtype and self.others
        left, flat = flatten_reduction(
            self.draft, self.item, self.left, self.others if taps else summed
        )
        right = index_by_position(self.draft, self.item, self.right, self.columns)
        item = self.draft.replace(self.item, replace(self.item, args=(left, right)))
        access = plain_load(left)
        is_contiguous = (
            access is not None
            and not taps
            and is_strided_load(left, left.dtype, (self.m, flat), (flat,))
            and self.phase.dtypes[access.buffer] == left.dtype
        )
        return ConvPlan(
            item,
            left,
            right,
            self.m,
            tuple(self.columns),
            self.depth,
            self.others,
            extents,
            flat,
            tile,
            is_contiguous,
            None if is_contiguous else dealt,
        )

    def _left_strides(self, summed: Sequence[str], tile: Tile) -> StridedOperand | None:
        """Return the strides of the left operand, if it can be read in place.

        Each axis must have its own stride, and neighbours must share cache lines that stay in L1:
        weights whose rows are read backwards, or transposed.
        """
        access, axes = plain_load(self.left), (self.m, *summed)
        if access is None or access.positions or isinstance(self.left, Cast):
            return None
        steps = [coefficient(access.offset, a) for a in axes]
        if any(n is None or axes_of(n) for n in steps):
            return None
        line = CACHE_LINE // self.item.dtype.itemsize
        if not shares_cache_lines(steps, [tile.rows, *(self.phase.axes[a] for a in summed)], line):
            return None
        if self.phase.dtypes[access.buffer] != self.left.dtype or {*axes} & {*self.phase.cut}:
            return None
        start = substitute(access.offset, dict.fromkeys(axes, 0))
        return StridedOperand(access.buffer, start, steps[0] or 0, tuple(n or 0 for n in steps[1:]))


def window_plan(
    item: Dot, draft: Draft, form: Variant, *, ordinary: bool = False
) -> WindowPlan | None:
    """Find a contraction's windows, or return None.

    Also if nothing slides, where `ordinary` is set.
    """
    phase, over = draft.phase, item.over
    if item.dtype not in (f32, f64) or phase.cut or any(a in phase.grid for a in over):
        return None
    for left, right in (item.args, item.args[::-1]):
        summed = [a for a in phase.axes if a in over]
        plan = _plan_for_sides(item, left, right, summed, draft, ordinary=ordinary)
        if plan is not None:
            plan.settle(form)
            return plan
    return None


def _plan_for_sides(
    item: Dot, left: Item, right: Item, over: list[str], draft: Draft, *, ordinary: bool
) -> WindowPlan | None:
    """Plan a contraction whose right operand is the one that windows slide over."""
    phase = draft.phase
    rows = [a for a in phase.axes if a in left.axes - right.axes and a not in over]
    columns = [a for a in phase.axes if a in right.axes - left.axes and a not in over]
    if not rows or not columns or not set(over) <= left.axes & right.axes:
        return None
    inside = [a for a in phase.axes if a not in phase.grid]
    column_axes = columns[-2:]
    if len(rows) > 1 or (item.axes - {rows[0], *column_axes}) & set(inside):
        return None
    has_taps = any(isinstance(phase.axes[a], int) for a in over)
    slid = [
        find_window_axis(a, right, over, phase) if has_taps else WindowAxis(a, a)
        for a in column_axes
    ]
    blocked = len(column_axes) == 1 or (
        column_axes[-1] != stored_axis(phase) and not {*column_axes} <= {*inside}
    )
    if len({c.tap for c in slid if c.tap}) < len([c for c in slid if c.tap]):
        return None
    free = [a for a in over if a not in {c.tap for c in slid}]
    depth = next((a for a in free if not isinstance(phase.axes[a], int)), (free or [NO_AXIS])[0])
    slides = any(c.tap for c in slid)
    # A plain contraction would pack the left operand again for every row of columns.
    has_rows = len(columns) > 2 and (not blocked or _has_short_rows(column_axes, phase))
    if not _has_few_taps(over, depth, phase) and has_rows and not (blocked and slides):
        # What each tap reads is packed separately, and taps are blocked.
        slid = [WindowAxis(c.axis, c.axis) for c in slid]
        depth = max(over, key=lambda a: _constant_or_many(phase.axes[a]))
    others = [a for a in over if a != depth]
    if not _has_few_taps(over, depth, phase):
        return None
    replaced = {a for c in slid if c.tap for a in (c.axis, c.tap)}
    if depends_on_reduction(left, set(over) if len(over) > 1 else set()) or depends_on_reduction(
        right, replaced
    ):
        return None
    plan = WindowPlan(item, left, right, draft, rows[0], slid, depth, tuple(others))
    usual = ordinary or not blocked or slides or has_rows
    return plan if usual or plan.has_patches() else None


def _has_short_rows(columns: Sequence[str], phase: Phase) -> bool:
    """Return whether rows of columns are shorter than those of a product's task."""
    return all(_constant_or_many(phase.axes[a]) < ROWS for a in columns)


def _has_few_taps(over: Sequence[str], depth: str, phase: Phase) -> bool:
    """Return whether all reduced axes but `depth` are constant, with few positions."""
    sizes = [phase.axes[a] for a in over if a != depth]
    return (
        all(isinstance(n, int) for n in sizes) and prod(map(_constant_or_many, sizes)) <= MAX_TAPS
    )


def _constant_or_many(e: Index) -> int:
    return e if isinstance(e, int) else MAX_TAPS + 1


# ---- layout --------------------------------------------------------------------------------------


TRANSPOSE_FMAS = 10
"""Multiply-adds that take as long as transposing one element and storing it again."""


MAX_TRANSPOSE_SHARE = 0.1
"""Largest transposition cost, as a share of the multiply-adds, that the channels-last plan makes up
for."""


NHWC_VARIANT = "nhwc"
"""The variant that assumes prepacked weights, to see whether prepacking would pay."""


Sides: TypeAlias = tuple[bool, bool]
"""Whether the image is transposed, and whether the results are."""


def choose_conv_layout(plan: WindowPlan, target: Target, form: str) -> Sides | None:
    """Return which of image and results to transpose for a channels-last plan.

    None if the convolution stays channels first.  It must be the only contraction of its phase.
    """
    phase, last = plan.phase, plan.columns[-1]
    if not plan.depth or phase.window_positions or phase.regions() or plan.item.dtype != f32:
        return None
    if not {*plan.others} <= {c.tap for c in plan.columns}:
        return None  # each tap's positions are packed separately, with taps along the row last
    if choose_dot_instruction(plan.item, plan.left, plan.right, phase.dtypes, target) is not None:
        return None
    in_channels, out_channels = phase.axes[plan.depth], phase.axes[plan.m]
    if not isinstance(in_channels, int) or not isinstance(out_channels, int):
        return None
    image_axis = contiguous_axis(plan.right, (last.axis, last.tap or last.axis, plan.depth))
    stored = stored_axis(phase)
    if stored not in (plan.m, last.axis):
        return None
    image, result = image_axis != plan.depth, stored != plan.m
    over = plan.depth, plan.others
    width = nhwc_tile(target, target.vector_bytes // 4, odd=False).columns
    prepacked = are_weights_prepacked(plan.left, plan.item, over, plan.m, width, phase)
    extents = {a: n for a in plan.others if isinstance(n := phase.axes[a], int)}
    contiguous = (
        in_channels > MAX_FEW_CHANNELS
        and contiguous_filter_load(plan.left, plan.m, plan.depth, extents) is not None
    )
    if not (prepacked or contiguous or form == NHWC_VARIANT or 0 < in_channels <= MAX_FEW_CHANNELS):
        return None  # packing strided weights costs too much, unless channels are few
    taps = prod(extents.values())
    phases = prod(c.step for c in plan.columns)
    transposed_elements = (
        in_channels * phases * -(-out_channels // TASK_CHANNELS) * image + out_channels * result
    )
    return (
        (image, result)
        if transposed_elements * TRANSPOSE_FMAS
        < MAX_TRANSPOSE_SHARE * in_channels * out_channels * taps
        else None
    )
