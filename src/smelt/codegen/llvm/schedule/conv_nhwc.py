"""Plan a channels-last (NHWC) convolution as an implicit GEMM.

out[y, x, m] = sum over u, v, c of image[y*s + u*d, x*s + v*d, c] * weights[u, v, c, m].  Vectors
run along m, so the image provides one number broadcast to all lanes, and the rows of a register
tile are positions of the image (`smelt.codegen.llvm.loopir.input_tile`), contiguous in scratch with
their channels in array order: both operands and the results are read and written in long runs.

Tiles end where image rows do.  Each row is cut into as few, equally high tiles as possible; rows of
unknown length into tiles of even height, after one of odd height if need be, so that there need not
be tiles of every height.  If rows are known to be very short, or have no padding, the positions y,
x are numbered y*pitch + x with the pitch of packed rows; positions between rows are computed in
vain and never read.

Few channels (colours) have no loop of their own: each image row is packed as one run over positions
and channels, the weights as one run over all taps and channels, and a table has the offset of each
of these (indirect convolution; Dukhan, "The Indirect Convolution Algorithm", 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from smelt.codegen.llvm.loopir.input_tile import (
    WindowAxis,
    packed_extents,
    packed_order,
    positions_per_block,
)
from smelt.codegen.llvm.loopir.items import Access, Cast, Dot, Item, Load, Phase, contiguous_pair
from smelt.codegen.llvm.nests.contraction import SKEW
from smelt.codegen.llvm.nests.product_plan import (
    LEFT_PART,
    RIGHT_PART,
    RUNS_PART,
    SUMS_PART,
    TABLE_PART,
    Driver,
    PanelOperand,
    PlanDefaults,
    PlanNotes,
    ScratchArray,
    Tile,
    TileStores,
    packed_panels,
)
from smelt.codegen.llvm.schedule.depthwise import TILE_HEIGHTS
from smelt.codegen.llvm.schedule.operands import is_prepacked, plain_load
from smelt.machine.blocks import (
    FUSED_DEPTHWISE_PIXELS,
    FUSED_DEPTHWISE_TASKS,
    ceiling,
    window_columns,
)
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, i64
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axes_of,
    axis,
    coefficient,
    floordiv,
    maximum,
    minimum,
    mul,
    product,
    substitute,
)

K_BLOCK = 400
"""Maximum reduced positions of one K block."""
FUSED_K_BLOCK = 128
"""The same if a depthwise convolution is fused: panels, and the rows that it leaves, stay in L1."""
MAX_FEW_CHANNELS = 4
"""Maximum channels that share one loop with the taps: a loop of their own costs more than it
multiplies."""
MIN_ROW_LENGTH = 4
"""Shortest row of known length for tiles to end with it: fewer accumulators would wait for each
other."""
BATCH_TASK_FACTOR = 2
"""Factor on a task's positions if it takes several images, for which it packs weights once."""
MIN_BATCH_TASKS = 4
"""Minimum tasks that a batch is cut into where one could take more images."""
TASK_CHANNELS = 128
"""Output channels of a position that a task takes: their weights stay in L2."""


def tiles_end_with_rows(line: Index, c: WindowAxis) -> bool:
    """Return whether tiles end with rows of this length.

    Rows of unknown length along which no window slides have no gap between them.
    """
    return line >= MIN_ROW_LENGTH if isinstance(line, int) else c.halo > 0


def nhwc_tile(target: Target, lanes: int, *, odd: bool) -> Tile:
    """Return the register tile: two vectors wide, as high as the registers allow.

    Besides two vectors and a broadcast, and a mask if pairs may end with `odd` numbers.
    """
    free = target.registers - (6 if odd else 3)
    return Tile(max(free // 4 * 2, 2), 2, lanes)


@dataclass(frozen=True, slots=True)
class ImageRows:
    """The rows of an image that exist: 0 <= y*step + u*dilation + start < count.

    For a result row y and a tap u; all others are zero padding.
    """

    start: Index
    count: Index


def find_image_rows(image: Item, c: WindowAxis, others: tuple[str, ...]) -> ImageRows | None:
    """Return which image rows exist that the windows of an axis reach.

    None unless all others are zero, and the taps of a row are adjacent among all taps.
    """
    while isinstance(image, Cast):
        (image,) = image.args
    if others[:1] != (c.tap,) or image.args or not isinstance(image, Load):
        return None
    access = image.access
    for e, n in access.limits if access.gives_zero else ():
        start = substitute(e, {c.axis: 0, c.tap: 0})
        steps = coefficient(e, c.axis), coefficient(e, c.tap)
        constant = all(a.kind == "size" for x in (start, n) for a in atoms(x))
        if steps == (c.step, c.dilation) and constant:
            return ImageRows(start, n)
    return None


def are_weights_prepacked(
    weights: Item, item: Item, over: tuple[str, tuple[str, ...]], m: str, width: int, phase: Phase
) -> bool:
    """Return whether weights are stored in panels of `width`.

    A row of a panel must be one position along the first of the reduced axes `over`, and the
    distance between taps a number.
    """
    depth, others = over
    if not is_prepacked(weights, item, None, (depth, m), width, phase):
        return False
    access = plain_load(weights)
    assert access is not None
    tap_strides = [coefficient(access.offset, a) for a in others]
    return (
        coefficient(access.offset, depth) == width
        and panel_pitch(access, m, width) is not None
        and not any(a is None or axes_of(a) for a in tap_strides)
    )


def panel_pitch(access: Access, m: str, width: int) -> Index | None:
    """Return the elements between panels of `width` positions along `m`, if a number."""
    pitch = coefficient(substitute(access.offset, {m: mul(width, axis(m, 1 << 40))}), m)
    return None if pitch is None or axes_of(pitch) else pitch


@dataclass(frozen=True, slots=True)
class NhwcConvPlan(PlanDefaults):
    """Plan of a channels-last convolution: its operands as they are packed, and its axes."""

    item: Dot
    left: Item
    """The weights."""
    right: Item
    n: str
    """The weights' own axis (output channels), along which vectors run."""
    columns: tuple[WindowAxis, ...]
    """One or two position axes, outer to inner; a batch axis before them."""
    depth: str
    """The reduced axis along which the image is contiguous (input channels); it is cut into
    blocks."""
    others: tuple[str, ...]
    """The other reduced axes, all of constant extent: the taps."""
    extents: tuple[int, ...]
    tile: Tile
    prepacked: bool = False
    """Whether the weights are stored in panels as wide as the tile: at [.., m//w, c, m%w]."""
    few_channels: int = 0
    """Number of channels if at most `MAX_FEW_CHANNELS` (colours): all reduced positions are one
    loop then."""
    row_axis: str = ""
    """The axis along a row of such an image, over its positions and channels."""
    flat: str = ""
    """The axis over all reduced positions, along which the weights of such an image are packed."""
    image_rows: ImageRows | None = None
    """Which image rows exist, if taps on other rows may be skipped."""
    pairs: int = 0
    """Pairs of short numbers in a window's row, if pairs may begin at any number.

    The image is packed as it is then, and its taps along the row are none of `others`.
    """
    fuses_depthwise: bool = False
    """Whether its image is computed by depthwise convolutions, row by row
    (`depthwise_separable`)."""
    transposes_image: bool = False
    """Whether the image is contiguous along its rows, so that it is transposed while it is
    packed."""
    transposes_result: bool = False
    """Whether the results are, so that the accumulators are transposed when all sums are done."""
    m = None
    """Rows are positions along several axes."""

    @property
    def driver(self) -> Driver:
        """The loops around its register tiles."""
        return "nhwc"

    def notes(self) -> PlanNotes:
        """Return the policies of this plan in words."""
        rows = ", ".join(c.axis for c in self.columns)
        axes = f"{rows} x {self.n} over {', '.join(a for a in (*self.others, self.depth) if a)}"
        image = "pixels packed once, found by a table of taps"
        image += ", by transposes" * self.transposes_image
        weights = "in panels already" if self.prepacked else packed_panels(self.tile.columns)
        sums = f"in scratch between blocks of {self.block} channels"
        sums += ", transposed when done" * self.transposes_result
        return PlanNotes(axes, image, weights, sums)

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes of pixels, outermost first."""
        return tuple(c.axis for c in self.columns)

    @property
    def result_axis(self) -> str:
        """The axis along which the result is contiguous in scratch."""
        return self.axes[-1]

    @property
    def has_plain_columns(self) -> bool:
        """Whether columns are along several axes, but without windows."""
        return not any(c.tap for c in self.columns)

    @property
    def transposes_sums(self) -> bool:
        """Whether results are transposed when all sums are done."""
        return self.transposes_result

    def arrays(self, phase: Phase, local: Mapping[str, Index]) -> Iterator[ScratchArray]:
        """Yield the arrays in scratch: both operands, a table of taps, sums to transpose."""
        weights, pixels = self.room(local)
        if contiguous_filters(self) is not None:  # one panel at a time
            weights = self.taps * self.block * self.tile.columns
            yield ScratchArray(RUNS_PART, self.taps * self.block, i64)
        yield ScratchArray(LEFT_PART, weights, self.unit)
        yield ScratchArray(RIGHT_PART, pixels, self.image)
        yield ScratchArray(TABLE_PART, 3 * self.steps, i64)
        if self.transposes_result:
            places = product(self.scratch_extent(x.axis, local) for x in self.columns)
            columns = self.scratch_extent(self.n, local)
            sums = mul(add(places, self.tile.lanes), columns)
            yield ScratchArray(SUMS_PART, sums, self.item.dtype)

    def tile_stores(self, local: Mapping[str, Index]) -> TileStores | None:
        """Return how tiles may store results directly: if they end with rows."""
        line = self.columns[-1].axis
        length = local[line]
        if not self.tiles_end_with_rows(length):
            return None
        if self.transposes_result:  # transposed tiles of sums are cut anywhere
            return TileStores(rounds=False, in_ranges=False, columns="masked")
        exactly = (line, length) if isinstance(length, int) else None
        return TileStores(in_ranges=False, columns="full or one vector", exactly=exactly)

    def panel_operand(self) -> PanelOperand | None:
        """Return the weights."""
        return PanelOperand(
            self.left,
            tuple(sorted(self.item.axes - {self.n})),
            is_transposed=contiguous_filters(self) is not None,
            is_prepacked=self.prepacked,
        )

    @property
    def image(self) -> DType:
        """The element type of the packed image."""
        return bf16 if self.pairs else self.unit

    @property
    def has_odd_end(self) -> bool:
        """Whether the last pair of a window's row holds one number of the window only."""
        return bool(self.pairs) and self.few_channels * self.columns[-1].taps % 2 == 1

    @property
    def k(self) -> str:
        """The reduced axis that is packed by itself."""
        return self.depth

    @property
    def outer(self) -> tuple[str, ...]:
        """The other reduced axes."""
        return (*self.others, self.columns[-1].tap) if self.pairs else self.others

    @property
    def taps(self) -> int:
        """Reduced positions for each one along `depth`."""
        return prod(self.extents)

    @property
    def block(self) -> int:
        """Positions along `depth` that are packed together."""
        most = FUSED_K_BLOCK if self.fuses_depthwise else K_BLOCK
        return self.pairs or self.few_channels or positions_per_block(self.taps, most)

    @property
    def pitch(self) -> int:
        """Elements between neighbouring positions in scratch."""
        return self.few_channels * self.columns[-1].step if self.few_channels else self.block + SKEW

    @property
    def steps(self) -> int:
        """Iterations of a tile's outer loop; a table has the image offset of each."""
        return self.taps * (self.pairs or self.few_channels or 1)

    def weights(self) -> tuple[Access, Index]:
        """Return the access of prepacked weights, and the elements between panels."""
        access = plain_load(self.left)
        assert access is not None
        return access, panel_pitch(access, self.n, self.tile.columns) or 0

    @property
    def prefetches_weights(self) -> bool:
        """Whether tiles prefetch the next panel of weights."""
        return self.prepacked and not self.few_channels

    @property
    def tail_rows(self) -> int:
        """Rows of the tile for a remainder of rows."""
        return max(2 * self.tile.rows // 3, 1)

    def tiles_end_with_rows(self, line: Index) -> bool:
        """Return whether tiles end with a row of this length."""
        return tiles_end_with_rows(line, self.columns[-1])

    def heights(self, line: Index) -> tuple[int, ...]:
        """Return the tile heights that cover a row of this length, the higher ones first.

        Empty if the length is not known, or tiles go on from row to row.
        """
        if not isinstance(line, int) or not self.tiles_end_with_rows(line):
            return ()
        count = -(-line // self.tile.rows)
        low, more = divmod(line, count)
        return (low + 1,) * more + (low,) * (count - more)

    @property
    def odd(self) -> int:
        """Rows of the tile that makes the rest of a row of unknown length even."""
        return self.tile.rows // 2 | 1

    @property
    def all_heights(self) -> tuple[int, ...]:
        """Heights of all tiles for rows of unknown length, the lower ones first."""
        return tuple(sorted({1, self.odd, *range(2, self.tile.rows + 1, 2)}))

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        columns = tuple(c.axis for c in self.columns)
        return (self.n, *columns) if self.transposes_result else (*columns, self.n)

    @property
    def transposes_weights(self) -> bool:
        """Whether pairs of weights are contiguous along the reduction, so that they are
        transposed."""
        pair = contiguous_pair(self.left)
        along = pair is not None and coefficient(pair[0].offset, self.depth) == 2
        return along and not self.flat

    def left_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the weights.

        Those of one tap at a time, or of all taps for few channels.
        """
        order = (self.flat or self.depth, self.n)
        return order[::-1] if self.transposes_weights else order

    def right_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the image."""
        axes = self.packed_axes()
        if not self.transposes_image:
            return axes
        *outer, last = axes if self.few_channels else axes[:-1]
        return (*outer, self.depth, last)

    def packed_axes(self) -> tuple[str, ...]:
        """Return the packed image's axes in scratch, outer to inner."""
        if self.few_channels:
            others = [a for a in self.others if a != self.columns[-1].tap]
            return (*packed_order(self.columns[:-1], others), self.row_axis)
        return (*packed_order(self.columns, self.others), self.depth)

    def packed(self, local: Mapping[str, Index]) -> list[Index]:
        """Return the extents of the packed image along `packed_axes`."""
        sizes: dict[str, Index] = dict(zip(self.others, self.extents, strict=True))
        sizes |= {self.depth: self.pitch, **packed_extents(self.columns, local)}
        if self.few_channels:
            last = self.columns[-1]
            sizes[self.row_axis] = mul(add(local[last.axis], last.halo), self.pitch)
        return [sizes[a] for a in self.packed_axes()]

    def room(self, local: Mapping[str, Index]) -> tuple[Index, Index]:
        """Return the elements of the packed weights, and of the packed image.

        Tiles may read past the image: rows that are computed in vain.
        """
        columns = self.scratch_extent(self.n, local)
        overruns = not self.tiles_end_with_rows(local[self.columns[-1].axis])
        # The lowest depthwise tiles go past the end of a row.
        overrun_rows = TILE_HEIGHTS[-1] if self.fuses_depthwise else 0
        padding = mul(self.tile.rows if overruns else overrun_rows, self.pitch)
        padding = add(
            padding, 1 if self.has_odd_end else self.tile.lanes * self.pitch * self.transposes_image
        )
        weights = 0 if self.prepacked else mul(self.taps * self.block, columns)
        return weights, add(product(self.packed(local)), padding)

    def scratch_extent(self, axis: str, local: Mapping[str, Index]) -> Index:
        """Return the scratch extent along an axis of the result: room for full register tiles."""
        extent, inner = local[axis], self.columns[-1]
        if axis == self.n:
            return mul(ceiling(extent, self.tile.columns), self.tile.columns)
        if self.tiles_end_with_rows(local[inner.axis]):
            return extent
        pitch = add(local[inner.axis], inner.halo)
        if len(self.columns) == 1:
            return add(pitch, self.tile.rows)
        return pitch if axis == inner.axis else add(extent, ceiling(self.tile.rows, pitch))

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """Return the task blocks: grid axis -> positions."""
        max_positions = window_columns(self.item.dtype.itemsize)
        blocks: dict[str, Index] = {self.n: minimum(phase.axes[self.n], TASK_CHANNELS)}
        positions: Index = 1
        for c in self.columns[:-3:-1]:
            rows = maximum(floordiv(max_positions, maximum(positions, 1)), 1)
            extent = phase.axes[c.axis]
            pieces = maximum(ceiling(extent, rows), 1)
            if self.fuses_depthwise and c is not self.columns[-1]:
                fused_pieces = floordiv(mul(extent, maximum(positions, 1)), FUSED_DEPTHWISE_PIXELS)
                pieces = maximum(pieces, minimum(fused_pieces, FUSED_DEPTHWISE_TASKS))
            blocks[c.axis] = ceiling(extent, pieces)
            positions = mul(positions, add(blocks[c.axis], c.halo))
        for c in self.columns[:-2]:
            blocks[c.axis] = self._images_per_task(
                phase.axes, c.axis, BATCH_TASK_FACTOR * max_positions
            )
        return {a: n for a, n in blocks.items() if a in phase.grid}

    def _images_per_task(self, sizes: Mapping[str, Index], batch: str, most: int) -> Index:
        """Return how many images of a batch a task takes, if enough tasks remain."""
        each = product(add(sizes[c.axis], c.halo) for c in self.columns[1:])
        width, tasks = sizes[self.n], MIN_BATCH_TASKS
        if isinstance(width, int) and width > 0:
            tasks = ceiling(MIN_BATCH_TASKS, ceiling(width, TASK_CHANNELS))
        fitting = minimum(floordiv(most, maximum(each, 1)), ceiling(sizes[batch], tasks))
        return maximum(fitting, 1)


def contiguous_filters(c: NhwcConvPlan) -> Access | None:
    """Return the load of a plan's filters if contiguous over taps and `depth`.

    Else None.  These filters are read tap by tap.  The taps may be in any order.
    """
    if c.prepacked or c.flat or c.unit != c.item.dtype:
        return None
    return contiguous_filter_load(c.left, c.n, c.depth, dict(zip(c.others, c.extents, strict=True)))


def contiguous_filter_load(
    weights: Item, n: str, depth: str, taps: Mapping[str, int]
) -> Access | None:
    """Return the load of weights if each filter is one contiguous run.

    A filter is a position along `n`.  It holds all `taps` (axis -> extent) of a position along
    `depth`, in any order, and then those of the next position.
    """
    access = plain_load(weights)
    if access is None or access.positions:
        return None
    row = coefficient(access.offset, n)
    if row is None or axes_of(row) or coefficient(access.offset, depth) != prod(taps.values()):
        return None
    steps = [(coefficient(access.offset, a), extent) for a, extent in taps.items() if extent != 1]
    expected = 1
    while steps:
        tap = next((x for x in steps if x[0] == expected), None)
        if tap is None:
            return None
        steps.remove(tap)
        expected *= tap[1]
    return access
