"""Plan depthwise convolutions: sums over windows whose weights are shared by whole result rows.

out[c, y, x] = sum over u, v of weights[c, u, v] * x[c, y*s + u*d, x*s + v*d], in any layout.  No
axis belongs to the weights alone, so there is no block of rows as in a GEMM; what is reused is an
input row, by all results whose windows reach it.  The input is packed once for each position
(`smelt.codegen.llvm.loopir.input_tile`), padding included, and a column of results is accumulated
in registers (a sliding window):

    for each v:   for each row of the packed input:   for each u that leads to a result:
                      results[row - u] += weights[u, v] * positions[row, x + v]

Vectors run along the axis that results are contiguous along.  If windows slide along it, a weight
is broadcast; if the weights have it too (channels last), they are vectors as well.  Short rows do
not fill vectors, and the overhead of each row dominates: a variant for them transposes input and
results (`smelt.codegen.llvm.loopir.strided_input`), so that vectors run along the channels there
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import cast

from smelt.codegen.llvm.access.permute_gather import can_permute, can_permute_one
from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.clone import Cloner, depends_on_reduction
from smelt.codegen.llvm.loopir.input_tile import (
    NO_AXIS,
    WindowAxis,
    find_window_axis,
    flatten_reduction,
    index_by_position,
    packed_order,
)
from smelt.codegen.llvm.loopir.items import Dot, Item, Phase
from smelt.codegen.llvm.loopir.merge_small_groups import find_mixing_axis, merge_groups
from smelt.codegen.llvm.loopir.rewrite import Draft
from smelt.codegen.llvm.loopir.strided_input import StridedRows, rows_in_place, transposable_rows
from smelt.codegen.llvm.nests.contraction import renewed
from smelt.codegen.llvm.nests.product_plan import (
    IN_PLACE,
    LEFT_PART,
    RIGHT_PART,
    SUMS_PART,
    TABLE_PART,
    Driver,
    PackedPlan,
    PlanDefaults,
    PlanNotes,
    ScratchArray,
    Tile,
    TileStores,
    Variants,
)
from smelt.codegen.llvm.schedule.contract import stored_axis
from smelt.kernel.artifact import Variant
from smelt.machine.blocks import ceiling, window_columns
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32, f64, i64
from smelt.types.expr import Index, add, axis, floordiv, maximum, minimum, mod, mul, product

TILE_HEIGHTS = (14, 7, 4)
"""Heights of register tiles: results accumulated at once, besides as many weights.

Enough independent sums to hide the latency of multiply-adds (two pipes of four cycles).  The last
one may go past the end of the results.
"""
MAX_TILE_TAPS = 32
"""Maximum reduced positions along the tile's axis, since they are unrolled."""
MAX_WINDOW_TAPS = 1024
"""Maximum reduced positions in all."""
PACKED_INPUT_BYTES = 1 << 17
"""Bytes of the packed input of a task, approximately: a share of L2."""
SHARED_ROWS = 8
"""Divisor of that room for the tile's axis, if other columns share a task with it."""
TASK_VECTORS = 4
"""Vectors of a task along a vector axis that no window slides along."""
RUN_BYTES = 1024
"""Bytes along that axis if the input is read in place: long runs, and enough tasks for all
threads."""
TRANSPOSED_VARIANT = "transposed"
"""The variant that transposes input and results."""
MAX_GROUP_CHANNELS = 16
"""Maximum channels of a group for several groups to share a vector."""
MAX_TRANSPOSED_ROW = 32
"""Longest result row for which the transposed variant is used."""


@dataclass(frozen=True, slots=True)
class DepthwisePlan(PlanDefaults):
    """Plan of a depthwise convolution: its operands as they are packed, and its axes."""

    item: Dot
    left: Item
    """The weights, along `flat` and perhaps `n`."""
    right: Item
    columns: tuple[WindowAxis, ...]
    """Result axes that are packed together, outer to inner; vectors run along the last one."""
    tile_axis: WindowAxis
    """The column of which several positions are accumulated in registers."""
    over: tuple[str, ...]
    """The reduced axes, in the order of `flat`."""
    extents: tuple[int, ...]
    flat: str
    tile: Tile
    transpose_axis: str = ""
    """The axis along which vectors may run after a transposition."""
    transposed_rows: StridedRows | None = None
    """The input rows that are transposed: vectors run across them then."""
    rows_in_place: StridedRows | None = None
    """The input rows that are read in place: nothing of them is packed."""
    mixing_axis: str = NO_AXIS
    """A reduced axis over the lanes of a group: tiles permute these."""
    group: int = 1
    """Lanes of such a group."""
    fused_lanes: int = 0
    """Most lanes of a row if it is computed by a pointwise convolution's packer; else 0.

    See `smelt.codegen.llvm.schedule.depthwise_separable`.
    """
    m = None
    """No axis is the weights' own."""
    k = ""
    """No reduced axis is packed by itself."""

    @property
    def n(self) -> str:
        """The vector axis where results are read."""
        return self.columns[-1 if self.transposed_rows is None else -2].axis

    @property
    def lane(self) -> str:
        """The vector axis of a register tile."""
        return self.columns[-1].axis

    def notes(self) -> PlanNotes:
        """Return the policies of this plan in words."""
        rows = ", ".join(c.axis for c in self.columns)
        image = IN_PLACE if self.rows_in_place else "packed with its padding"
        image += ", by transposes" * (self.transposed_rows is not None)
        weights = "in registers along the tile's axis"
        return PlanNotes(f"{rows} over {', '.join(self.over)}", weights, image, "in registers")

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes of rows, outermost first."""
        return tuple(c.axis for c in self.columns[:-1])

    @property
    def driver(self) -> Driver:
        """The loops around its register tiles."""
        return "depthwise_fused" if self.fused_lanes else "depthwise"

    @property
    def transposes_sums(self) -> bool:
        """Whether results are transposed when all sums are done."""
        return self.transposed_rows is not None

    def arrays(self, phase: Phase, local: Mapping[str, Index]) -> Iterator[ScratchArray]:
        """Yield the arrays in scratch: weights, the input, a table of taps, sums to transpose."""
        channels = self.scratch_extent(self.lane, local) if self.has_lane_weights else 1
        dtype = self.item.dtype
        yield ScratchArray(LEFT_PART, mul(product(self.extents), channels), dtype)
        yield ScratchArray(RIGHT_PART, self.room(local), dtype)
        yield ScratchArray(TABLE_PART, 4 * len(self.taps), i64)
        if self.transposed_rows is not None:
            yield ScratchArray(SUMS_PART, self.sums(local), dtype)

    def variants(self, phase: Phase, plans: Sequence[PackedPlan]) -> Variants:
        """Yield the transposing variant, unless convolutions are fused into another product."""
        if not self.fused_lanes:
            yield from transposed_variants(phase, cast(Sequence[DepthwisePlan], plans))

    def tile_stores(self, local: Mapping[str, Index]) -> TileStores | None:
        """Return how tiles may store results directly: unless they are transposed first."""
        if self.transposed_rows is not None:
            return None
        return TileStores(at_least=(self.tile_axis.axis, TILE_HEIGHTS[-1]))

    @property
    def outer(self) -> tuple[str, ...]:
        """All reduced axes."""
        return self.over

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        if self.transposed_rows is not None:
            return (self.lane, *(c.axis for c in self.columns[:-1]))
        return tuple(c.axis for c in self.columns)

    @property
    def taps(self) -> list[list[int]]:
        """Indices in `flat` of all taps.

        One list along the tile's axis for each position of the other reduced axes.
        """
        tile_dim = self.over.index(self.tile_axis.tap)
        step = prod(self.extents[tile_dim + 1 :])
        span = step * self.extents[tile_dim]
        first = [k for k in range(prod(self.extents)) if k % span < step]
        return [[k + u * step for u in range(self.tile_axis.taps)] for k in first]

    @property
    def has_lane_weights(self) -> bool:
        """Whether the weights differ between lanes."""
        return self.lane in self.left.axes

    def left_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the weights."""
        return (self.flat, self.lane) if self.has_lane_weights else (self.flat,)

    def right_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the input: its axes in scratch too."""
        return packed_order(self.columns, [a for a in self.over if a != self.mixing_axis])

    def packed(self, local: Mapping[str, Index]) -> list[Index]:
        """Return the extents of the packed input along `right_order`."""
        sizes: dict[str, Index] = dict(zip(self.over, self.extents, strict=True))
        for c in self.columns:
            more = c.halo + (TILE_HEIGHTS[-1] - 1 if c is self.tile_axis else 0)
            sizes |= {c.remainder_axis: c.step, c.position_axis: add(local[c.axis], more)}
        return [sizes[a] for a in self.right_order()]

    def room(self, local: Mapping[str, Index]) -> Index:
        """Return the elements of the packed input.

        A tile more where rows are transposed; one row of zeros where they are read in place.
        """
        if self.rows_in_place is not None:
            return self.scratch_extent(self.lane, local)
        transpose_tile = 0 if self.transposed_rows is None else self.tile.lanes * self.tile.lanes
        return add(product(self.packed(local)), transpose_tile)

    def sums(self, local: Mapping[str, Index]) -> Index:
        """Return the elements of accumulators that are transposed later.

        The lowest register tiles go past the last row, and transposed tiles are square.
        """
        positions = product(local[c.axis] for c in self.columns[:-1])
        return mul(add(positions, self.tile.lanes + TILE_HEIGHTS[-1]), self.tile.lanes)

    def scratch_extent(self, axis: str, local: Mapping[str, Index]) -> Index:
        """Return the scratch extent along an axis of the result: room for full tiles."""
        extent = local[axis]
        if axis == self.lane:
            lanes = minimum(extent, self.fused_lanes) if self.fused_lanes else extent
            return mul(ceiling(lanes, self.tile.lanes), self.tile.lanes)
        if self.fused_lanes and axis != self.tile_axis.axis:
            return 1
        is_tall = axis == self.tile_axis.axis and self.transposed_rows is None
        return add(extent, TILE_HEIGHTS[-1] - 1) if is_tall else extent

    def heights(self) -> tuple[int, ...]:
        """Return the heights of the register tiles, the highest first."""
        return tuple(h for h in TILE_HEIGHTS if h <= self.tile.rows)

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """Return the task blocks: grid axis -> positions."""
        if self.fused_lanes:
            return {}
        itemsize = self.item.dtype.itemsize
        *others, inner = self.columns
        room = PACKED_INPUT_BYTES // itemsize
        max_positions = window_columns(itemsize) if inner.tap else TASK_VECTORS * self.tile.lanes
        if self.transposed_rows is not None:
            max_positions = self.tile.lanes
        if self.rows_in_place is not None:
            return self._blocks_in_place(phase, max(RUN_BYTES // itemsize, self.tile.lanes))
        block_of: dict[str, Index] = {}
        positions: Index = 1
        for c in (inner, self.tile_axis, *(c for c in others[::-1] if c is not self.tile_axis)):
            if c is not inner:
                fitting = floordiv(
                    room // (1 if len(others) == 1 or c is not self.tile_axis else SHARED_ROWS),
                    maximum(positions, 1),
                )
                max_positions = maximum(
                    fitting, max(self.tile.rows if c is self.tile_axis else 0, 2 * c.taps)
                )
            extent = phase.axes[c.axis]
            is_even = c is not inner or inner.tap
            block_of[c.axis] = (
                ceiling(extent, maximum(ceiling(extent, max_positions), 1))
                if is_even
                else max_positions
            )
            if self.transposed_rows is not None and c is self.tile_axis:
                block_of[c.axis] = extent  # consecutive rows are one contiguous run later
            positions = mul(positions, add(block_of[c.axis], c.halo))
        return {a: n for a, n in block_of.items() if a in phase.grid}

    def _blocks_in_place(self, phase: Phase, max_lanes: int) -> dict[str, Index]:
        """Return the task blocks if nothing is packed: what a task keeps are its results."""
        block_of: dict[str, Index] = {self.lane: max_lanes}
        positions = minimum(max_lanes, maximum(phase.axes[self.lane], 1))
        for c in (self.tile_axis, *(c for c in self.columns[-2::-1] if c is not self.tile_axis)):
            extent = phase.axes[c.axis]
            min_positions = self.tile.rows if c is self.tile_axis else 1
            fitting = maximum(
                floordiv(PACKED_INPUT_BYTES // self.item.dtype.itemsize, positions), min_positions
            )
            block_of[c.axis] = ceiling(extent, maximum(ceiling(extent, fitting), 1))
            positions = maximum(mul(positions, block_of[c.axis]), 1)
        return {a: n for a, n in block_of.items() if a in phase.grid}


def plan_depthwise(
    phase: Phase, target: Target, form: Variant = ""
) -> tuple[Phase, dict[Item, DepthwisePlan]]:
    """Plan the depthwise convolutions of a phase, and rewrite their operands for packing.

    Returns the rewritten phase.  No plans unless all of its contractions are depthwise
    convolutions with the same columns.
    """
    dots = [i for i in phase.items if isinstance(i, Dot)]
    if phase.cut or phase.regions() or not dots:
        return phase, {}
    lanes = target.vector_bytes // dots[0].dtype.itemsize
    stored = stored_axis(phase)
    may_merge = can_permute(target, lanes) or _can_share(
        phase.axes.get(stored or ""), target, lanes
    )
    if may_merge and all(_has_small_groups(i, phase) for i in dots):
        paired = any(
            choose_dot_instruction(i, i.args[0], i.args[1], phase.dtypes, target) for i in dots
        )
        # If pairs are multiplied, groups that fill half a vector are as fast unmerged.
        phase = merge_groups(phase, dots, stored, lanes // 2 if paired else lanes) or phase
    draft = Draft(phase)
    plans = [_find_windows(i, draft) for i in phase.items if isinstance(i, Dot)]
    windows = [p for p in plans if p is not None]
    if len(windows) < len(plans) or len({tuple(c.axis for c in p.columns) for p in windows}) > 1:
        return phase, {}
    rewritten = [p.rewritten(target, form) for p in windows]
    return draft.phase, {c.item: c for c in (renewed(c, draft.latest) for c in rewritten)}


def _can_share(group: Index | None, target: Target, lanes: int) -> bool:
    """Return whether groups of so many channels fill vectors, and may read lanes apart.

    A group that fills a vector reads one channel for all lanes.
    """
    if not isinstance(group, int) or group < 1 or lanes % group:
        return False
    return group == lanes or can_permute_one(target, lanes)


def transposed_variants(phase: Phase, plans: Sequence[DepthwisePlan]) -> Variants:
    """Yield the transposing variant for short rows, if each convolution allows it."""
    if (
        not plans
        or not all(c.transpose_axis for c in plans)
        or len({c.transpose_axis for c in plans}) > 1
    ):
        return
    row_length = phase.axes[plans[0].n]
    if not isinstance(row_length, int) or row_length <= MAX_TRANSPOSED_ROW:
        lanes = plans[0].tile.lanes  # no more than half of which may be empty
        yield (
            TRANSPOSED_VARIANT,
            (
                (row_length, MAX_TRANSPOSED_ROW),
                (mul(phase.axes[plans[0].transpose_axis], -1), -lanes // 2),
            ),
        )


@dataclass(slots=True)
class _DepthwiseWindows:
    """The operands and axes of a depthwise convolution, before anything is rewritten."""

    item: Dot
    left: Item
    right: Item
    draft: Draft
    columns: list[WindowAxis]
    tall: int
    over: tuple[str, ...]

    @property
    def phase(self) -> Phase:
        """The phase, as it has been rewritten until now."""
        return self.draft.phase

    def is_whole(self, target: Target) -> bool:
        """Return whether vectors are full, or partial ones cost nothing."""
        lanes = target.vector_bytes // self.item.dtype.itemsize
        is_free = target.facts.masked_memory == "every"
        return is_free or mod(self.phase.axes[self.columns[-1].axis], lanes) == 0

    def rewritten(self, target: Target, form: Variant) -> DepthwisePlan:
        """Return the plan; items of its operands are added to the phase."""
        latest = self.draft.latest
        self.item, self.left, self.right = latest(self.item), latest(self.left), latest(self.right)
        transpose_axis, lines = transposable_rows(
            self.phase, self.left, self.right, self.columns
        ) or (
            "",
            None,
        )
        if form == TRANSPOSED_VARIANT and lines is not None:
            self.columns.append(WindowAxis(transpose_axis, transpose_axis))
        else:
            lines = None
        extents = tuple(_constant_or_many(self.phase.axes[a]) for a in self.over)
        left, flat = flatten_reduction(self.draft, self.item, self.left, self.over)
        n, lanes = self.columns[-1].axis, target.vector_bytes // self.item.dtype.itemsize
        mixing_axis, group = NO_AXIS, 1
        if n in self.left.axes and lines is None:
            mixing_axis, group = find_mixing_axis(self.phase, self.right, n, self.over)
        right = self.right
        if mixing_axis and _can_share(group, target, lanes):
            lane_in_group = mod(axis(n, self.phase.axes[n]), group)
            right = Cloner(self.draft, self.item, {mixing_axis: lane_in_group}).of(right)
        else:
            mixing_axis, group = NO_AXIS, 1
        # Permuted lanes read the input so often that it is packed contiguously.
        may_read_in_place = lines is None and mixing_axis == NO_AXIS and self.is_whole(target)
        in_place = rows_in_place(self.phase, right, self.columns) if may_read_in_place else None
        right = index_by_position(self.draft, self.item, right, self.columns)
        item = self.draft.replace(self.item, replace(self.item, args=(left, right)))
        rows = next((h for h in TILE_HEIGHTS if 2 * h <= target.registers), TILE_HEIGHTS[-1])
        tall = -2 if lines is not None else self.tall
        return DepthwisePlan(
            item,
            left,
            right,
            tuple(self.columns),
            self.columns[tall],
            self.over,
            extents,
            flat,
            Tile(rows, 1, lanes),
            transpose_axis,
            lines,
            in_place,
            mixing_axis,
            group,
        )


def plan_depthwise_in_place(
    item: Dot, draft: Draft, target: Target, n: str
) -> _DepthwiseWindows | None:
    """Plan a depthwise convolution that reads rows in place, in vectors along `n`.

    None if that is impossible.
    """
    windows, phase = _find_windows(item, draft, n), draft.phase
    if windows is None or not windows.is_whole(target) or windows.columns[-1].axis != n:
        return None
    unmixed = find_mixing_axis(phase, windows.right, n, windows.over) == (NO_AXIS, 1)
    return (
        windows
        if unmixed and rows_in_place(phase, windows.right, windows.columns) is not None
        else None
    )


def _reduced_axes(item: Dot, phase: Phase) -> list[str]:
    """Return the reduced axes of a possible depthwise convolution; empty if it is none."""
    over = [a for a in phase.axes if a in item.over]
    usual = item.dtype in (f32, f64) and not any(a in phase.grid for a in over)
    return (
        over
        if usual and 0 < prod(_constant_or_many(phase.axes[a]) for a in over) <= MAX_WINDOW_TAPS
        else []
    )


def _has_small_groups(item: Dot, phase: Phase) -> bool:
    """Return whether windows slide over an operand that has few channels at each position."""
    over = _reduced_axes(item, phase)
    if any(depends_on_reduction(x, {*x.axes}) for x in item.args):
        return False
    slid = {find_window_axis(a, x, over, phase).tap for x in item.args for a in item.axes} - {
        NO_AXIS
    }
    return (
        bool(slid)
        and prod(_constant_or_many(phase.axes[a]) for a in over if a not in slid)
        <= MAX_GROUP_CHANNELS
    )


def _find_windows(item: Dot, draft: Draft, n: str | None = None) -> _DepthwiseWindows | None:
    """Find how a contraction is a depthwise convolution, or return None.

    Its vectors run along `n`, or else along the axis that results are contiguous along.
    """
    phase = draft.phase
    over = _reduced_axes(item, phase)
    n = n or stored_axis(phase, tuple(over))  # stores of weights may have reduced axes
    for left, right in (item.args, item.args[::-1]) if over and n else ():
        windows = _plan_for_sides(item, left, right, over, draft, n)
        if windows is not None:
            return windows
    return None


def _plan_for_sides(
    item: Dot, left: Item, right: Item, over: list[str], draft: Draft, n: str | None
) -> _DepthwiseWindows | None:
    """Find the windows for one choice of operands: they slide over the right one."""
    phase, weight_axes = draft.phase, left.axes - {*over}
    if not weight_axes <= right.axes or not {*over} <= left.axes & right.axes:
        return None
    free = [a for a in phase.axes if a in right.axes - left.axes and a not in over]
    slid = [c for c in (find_window_axis(a, right, over, phase) for a in free) if c.tap]
    if n is None or n not in right.axes or n in over:
        return None
    columns = sorted(slid, key=lambda c: c.axis == n)
    tall = [k for k, c in enumerate(columns) if c.axis != n and c.taps <= MAX_TILE_TAPS]
    if not tall or len({c.tap for c in columns}) < len(columns):
        return None
    if columns[-1].axis != n:
        columns.append(WindowAxis(n, n))
    inside = {a for a in phase.axes if a not in phase.grid}
    replaced = {a for c in columns if c.tap for a in (c.axis, c.tap)}
    if item.axes & inside - {c.axis for c in columns} or depends_on_reduction(right, replaced):
        return None
    if depends_on_reduction(left, {*over}):
        return None
    return _DepthwiseWindows(item, left, right, draft, columns, tall[-1], tuple(over))


def _constant_or_many(e: Index) -> int:
    return e if isinstance(e, int) else MAX_WINDOW_TAPS + 1
