"""Products over windows: contractions whose one operand has several axes, slid over by others.

out[m, y, x] = sum over c, u, v of left[m, c, u, v] * right[c, y*s + u*d, x*s + v*d]: a convolution
in whatever layout, or a product whose columns are walked by two axes.  The right operand is packed
once for each *place* y*s + u*d that is reached, not once for each pair of y and u: the axis of its
places replaces a pair of axes.  Where s > 1 places are numbered by quotient and remainder, so that
neighbouring columns always lie side by side.  Packing is an ordinary nest: margins become masks,
and whatever is computed from an image is computed while it is packed.

Columns y, x are numbered y*pitch + x with the packed rows' pitch, so that the columns of one
register tile are always consecutive; those between the rows are computed in vain and never read.

The test for a pair looks at index expressions alone: nothing changes when y moves by d while u
moves back by s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod

from smelt.blocks import WINDOW_ROWS, ceiling, window_columns
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.dot_product import group_of
from smelt.codegen.llvm.loopir.clone import folds, renumber
from smelt.codegen.llvm.loopir.input_tile import (
    NO_AXIS,
    Slid,
    along_lines,
    flattened,
    in_lines,
    packed_order,
    place_extents,
    placed,
    sliding,
)
from smelt.codegen.llvm.loopir.items import Folding, Item, Phase
from smelt.codegen.llvm.loopir.pack_k_pairs import united, units_of
from smelt.codegen.llvm.schedule.contract import SKEW, Tile, stored_axis, tile_of
from smelt.codegen.llvm.schedule.conv_layout import Sides, choose_conv_layout
from smelt.codegen.llvm.schedule.conv_nhwc import (
    FEW,
    NhwcConvPlan,
    ends_lines,
    in_panels,
    lines_of,
    upright_tile,
)
from smelt.codegen.llvm.schedule.operands import (
    Dealt,
    lies_in_panels,
    lies_open,
    load_of,
    runs_along,
    shares_lines,
)
from smelt.dataclass import dataclass
from smelt.kernel.artifact import Form
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, f32, f64
from smelt.types.expr import Index, add, axes_of, floordiv, maximum, mul, product, substitute

DEPTH = 400
"""Taps of one position that are summed in one block at most, for which scratch has room."""
BLOCK = 256
"""Summed positions of a block of several such: what a tile reads of the right operand stays in L1
for the next one."""
PITCH = DEPTH + SKEW
"""Elements between rows of the packed left operand."""


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """A product over windows: its operands as they are packed, and its axes."""

    item: Item
    left: Item
    right: Item
    m: str
    columns: tuple[Slid, ...]
    """One or two axes, outer to inner."""
    depth: str
    """The summed axis that is cut into blocks; none if it has no name."""
    others: tuple[str, ...]
    """The other summed axes, all of them of a known extent, in the order of `flat`."""
    extents: tuple[int, ...]
    flat: str
    """The axis over `depth` and `others` along which the left operand is packed."""
    tile: Tile
    lies: bool = False
    """Whether rows of the left operand follow their summed positions in memory."""
    dealt: Dealt | None = None
    """Where its elements lie, if they can be told apart by row and summed position."""

    @property
    def unit(self) -> DType:
        """The type as which packed operands lie in scratch: that of their elements, or of pairs."""
        return self.item.args[0].dtype

    @property
    def apart_taps(self) -> bool:
        """Whether the left operand is packed tap by tap: pairs of its elements along `depth` lie as
        far apart as there are taps."""
        return self.unit != self.item.dtype and bool(self.others)

    @property
    def taps(self) -> int:
        """Summed positions for each one along `depth`."""
        return prod(self.extents)

    @property
    def block(self) -> int:
        """Positions along `depth` that are packed together."""
        return max(BLOCK // self.taps, 1)

    @property
    def n(self) -> str:
        """The axis that vectors run along."""
        return self.columns[-1].axis

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        return (self.m, *(c.axis for c in self.columns))

    @property
    def outer(self) -> tuple[str, ...]:
        """All axes that end here but `k`, which there is none of."""
        return self.summed

    @property
    def k(self) -> str:
        """No axis is packed by itself."""
        return NO_AXIS

    @property
    def fewer(self) -> int:
        """Rows of the tile for what whole ones leave: enough sums to hide the latency of
        multiply-adds, and two of them replace a whole one that leaves few rows."""
        return max(2 * self.tile.rows // 3, 1)

    @property
    def even(self) -> int:
        """Rows of which whole tiles take any multiple that is not less than `fewer`: the left
        operand is read where it lies then."""
        return gcd(self.tile.rows, self.fewer)

    def reads_left(self, rows: Index, local: Index) -> bool:
        """Whether no task packs the left operand, if each takes `local` of so many rows."""
        if not isinstance(rows, int) or not isinstance(local, int) or not (self.lies or self.dealt):
            return False
        counts = (local, rows % local or local)
        return all(n % self.even == 0 and n >= self.fewer for n in counts)

    @property
    def summed(self) -> tuple[str, ...]:
        """All axes that end here."""
        return (*((self.depth,) if self.depth else ()), *self.others)

    def left_order(self) -> tuple[str, ...]:
        """Loops of the nest that packs the left operand."""
        return (self.m, self.depth, self.flat) if self.apart_taps else (self.m, self.flat)

    def right_order(self) -> tuple[str, ...]:
        """Loops of the nest that packs the right operand, which are its axes in memory too."""
        return packed_order(self.columns, self.summed)

    def pitch(self, extent: Index) -> Index:
        """Elements between rows of columns: a row's places."""
        return add(extent, self.columns[-1].margin)

    @property
    def apart(self) -> int:
        """The first axes of the packed right operand, along which neighbours lie whole vectors
        apart: vectors that lie across lines of a cache take two reads."""
        taps = {c.tap for c in self.columns}
        return sum(a not in taps for a in self.summed)

    def room(self, local: dict[str, Index]) -> Index:
        """Elements of the packed right operand."""
        sizes = self.packed(local)
        lanes, own = self.tile.lanes, product(sizes[self.apart :])
        return mul(product(sizes[: self.apart]), mul(ceiling(own, lanes), lanes))

    def packed(self, local: dict[str, Index]) -> list[Index]:
        """Extents of the packed right operand along `right_order`."""
        sizes: dict[str, Index] = dict(zip(self.others, self.extents, strict=True))
        sizes |= {self.depth: self.block, **place_extents(self.columns, local)}
        return [sizes[a] for a in self.right_order()]

    def extent(self, axis_: str, local: Index, inner: Index) -> Index:
        """Positions in scratch along an axis of the result: room for whole register tiles.

        `local` is a task's extent along it, `inner` that along the axis of vectors.
        """
        if axis_ == self.m:
            return mul(ceiling(local, self.tile.rows), self.tile.rows)
        if len(self.columns) == 1:
            return mul(ceiling(local, self.tile.columns), self.tile.columns)
        pitch = self.pitch(inner)
        if axis_ == self.n:
            return pitch
        margin = next(c.margin for c in self.columns if c.axis == axis_)
        outer = axis_ == self.columns[0].axis
        return add(local, ceiling(self.tile.columns, pitch) if outer else margin)

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """How the grid is cut into tasks."""
        found: dict[str, Index] = {self.m: WINDOW_ROWS}
        most = window_columns(self.item.dtype.itemsize)
        *outer, inner = (c.axis for c in self.columns)
        pieces = ceiling(phase.axes[inner], most)
        found[inner] = ceiling(phase.axes[inner], maximum(pieces, 1)) if outer else most
        taken = self.pitch(found[inner])
        for a in reversed(outer):
            rows = maximum(floordiv(most, taken), 1)
            pieces = ceiling(phase.axes[a], rows)
            found[a] = ceiling(phase.axes[a], pieces)
            taken = mul(taken, found[a])
        return {a: n for a, n in found.items() if a in phase.grid}


def beside(item: Item, left: Item, columns: Iterable[Slid], phase: Phase) -> list[str]:
    """Axes of the result that the right operand has beside its columns: images of a batch."""
    own = item.axes - left.axes - {k.axis for k in columns}
    return [a for a in phase.axes if a in own and a in phase.grid]


def windowed(
    phase: Phase, target: Target, form: Form = ""
) -> dict[Item, ConvPlan] | dict[Item, NhwcConvPlan]:
    """The products over windows of a phase, whose operands are rewritten for packing.

    All of them have the same columns, so that one task serves all; one may read another's result.
    """
    found: dict[Item, ConvPlan] = {}
    dots = [i for i in phase.items if i.kind == "dot"]
    plans = [window_plan(i, phase, form) for i in dots]
    if any(plans):  # ordinary products beside them have the same columns
        plans = [p or window_plan(i, phase, form, ordinary=True) for i, p in zip(dots, plans)]
    if not plans or any(p is None for p in plans):
        return found
    known = [p for p in plans if p is not None]
    if any(p.lies_in_panels(target) for p in known):
        return found
    columns = [c.axis for c in known[0].columns]
    blocked = {*columns, *(p.m for p in known)} & {*phase.grid}
    if any(
        [c.axis for c in p.columns] != columns or p.item.axes & blocked - {p.m, *columns}
        for p in known
    ):
        return found
    if all(p.stands_upright() for p in known):
        alone = len(known) == 1
        return {u.item: u for u in (p.upright(target, alone=alone) for p in known)}
    sides = choose_conv_layout(known[0], target, form) if len(known) == 1 else None
    if sides is not None:
        made = known[0].upright(target, alone=False, sides=sides)
        return {made.item: made}
    for plan in known:
        made = plan.rewritten(target)
        found[made.item] = made
    return found


@dataclass(slots=True)
class WindowPlan:
    """What has been found out about a contraction before anything is rewritten."""

    item: Item
    left: Item
    right: Item
    phase: Phase
    m: str
    columns: list[Slid]
    depth: str
    others: tuple[str, ...]
    flat: str = ""

    def settle(self, form: Form) -> None:
        """Leaves columns whose taps are packed one by one, and takes a batch among them."""
        if form == "narrow":
            self.columns[-1] = Slid(self.columns[-1].axis, self.columns[-1].axis)
        if form == "tiny":
            own = {a for a in self.item.axes - self.left.axes if a in self.phase.grid}
            names = [a for a in self.phase.axes if a in own or a in {c.axis for c in self.columns}]
            self.columns = [Slid(a, a) for a in names[-3:]]

    def lies_in_panels(self, target: Target) -> bool:
        """Whether the right operand has been packed already, along the last columns."""
        wide = tile_of(target, target.vector_bytes // self.item.dtype.itemsize).columns
        axes = (self.depth, self.columns[-1].axis)
        return lies_in_panels(self.right, self.item, None, axes, wide, self.phase)

    def stands_upright(self) -> bool:
        """Whether results lie along the weights' axis, and the image along the summed one."""
        lying = runs_along(self.right, (*(c.axis for c in self.columns), self.depth))
        return self.m == stored_axis(self.phase) and bool(self.depth) and lying == self.depth

    def has_patches(self) -> bool:
        """Whether it stands upright, and its weights lie along taps: an ordinary product would pack
        them one tap after the other, and jump."""
        lying = runs_along(self.left, (self.m, self.depth, *self.others))
        return lying not in (self.m, self.depth) and self.stands_upright()

    def _pair(self, target: Target) -> None:
        """Takes short numbers by twos along `depth`, where the processor multiplies pairs."""
        group = group_of(self.item, self.left, self.right, self.phase.dtypes, target)
        held = any(folds(x, {self.depth}) for x in (self.left, self.right))
        if group is None or held or not self.depth:
            return
        operands = self.left, self.right
        operands, self.depth = united(self.phase, self.item, operands, self.depth, group.dtype)
        self.left, self.right = operands

    def _pair_lines(self, target: Target) -> int:
        """Takes the weights of few channels by twos along the line of a window, where channels are
        no whole pairs but lie side by side along it; gives the pairs of such a line."""
        group = group_of(self.item, self.left, self.right, self.phase.dtypes, target)
        last, channels = self.columns[-1], self.phase.axes.get(self.depth)
        odd = isinstance(channels, int) and channels % 2 == 1 and channels <= FEW
        if group is None or not odd or not last.tap or last.dilation != 1:
            return 0
        if folds(self.left, {last.tap, self.depth}) or folds(self.right, {last.axis, self.depth}):
            return 0
        left, line = flattened(self.phase, self.item, self.left, [last.tap, self.depth])
        (left,), along = units_of(self.phase, self.item, (left,), line, group.dtype)
        self.others = tuple(a for a in self.others if a != last.tap)
        self.left, self.flat = flattened(self.phase, self.item, left, [*self.others, along])
        return _number(self.phase.axes[along])

    def _join_images(self) -> None:
        """Takes images of a batch among the columns: a task packs its weights once for them."""
        last, batch = self.columns[-1], beside(self.item, self.left, self.columns, self.phase)
        if batch and not self.phase.places and ends_lines(self.phase.axes[last.axis], last):
            self.columns.insert(0, Slid(batch[-1], batch[-1]))

    def upright(
        self, target: Target, *, alone: bool, sides: Sides = (False, False)
    ) -> NhwcConvPlan:
        """The product with rows of places; its image's items are added to the phase, of which it
        may be the one product.  Squares are turned on some `sides`: of the image, of results."""
        pairs = self._pair_lines(target)
        if not pairs:
            self._pair(target)
        extents = tuple(_number(self.phase.axes[a]) for a in self.others)
        depth, line = self.phase.axes[self.depth], ""
        lanes = target.vector_bytes // self.item.dtype.itemsize
        tile, over = upright_tile(target, lanes, odd=pairs > 0), (self.depth, self.others)
        panels = in_panels(self.left, self.item, over, self.m, tile.columns, self.phase)
        few = depth if isinstance(depth, int) and 0 < depth <= FEW else 0
        if few and folds(self.right, {self.columns[-1].axis, self.depth}):
            few = 0  # a fold has a value for each place, not for what lies there
        if alone and not (panels or few):  # weights of a few channels are soon packed
            self._join_images()
        *outer, last = self.columns
        lines = lines_of(self.right, outer[-1], self.others) if outer else None
        if few:
            right = placed(self.phase, self.item, self.right, outer)
            if sides[0]:
                right, line, last = along_lines(self.phase, self.item, right, last)
            else:
                right, line, last = in_lines(self.phase, self.item, right, last, self.depth, few)
            self.columns = [*outer, last]
        else:
            right = placed(self.phase, self.item, self.right, self.columns)
        left, flat = self.left, ""
        if pairs:
            flat = self.flat
        elif few and not panels:
            left, flat = flattened(self.phase, self.item, left, [*self.others, self.depth])
        self.item.args = (left, right)
        renumber(self.phase)
        return NhwcConvPlan(
            self.item,
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
            image_across=sides[0],
            across=sides[1],
        )

    def rewritten(self, target: Target) -> ConvPlan:
        """The product; its operands' items are added to the phase."""
        self._pair(target)
        extents = tuple(_number(self.phase.axes[a]) for a in self.others)
        summed = [*([self.depth] if self.depth else []), *self.others]
        lanes = target.vector_bytes // self.item.dtype.itemsize
        tile = tile_of(target, lanes)
        dealt = self._dealt(summed, tile)
        taps = self.left.dtype != self.item.dtype and self.others
        left, flat = flattened(self.phase, self.item, self.left, self.others if taps else summed)
        right = placed(self.phase, self.item, self.right, self.columns)
        self.item.args = (left, right)
        renumber(self.phase)
        access = load_of(left)
        lies = (
            access is not None
            and not taps
            and lies_open(left, left.dtype, (self.m, flat), (flat,))
            and self.phase.dtypes[access.buffer] == left.dtype
        )
        return ConvPlan(
            self.item,
            left,
            right,
            self.m,
            tuple(self.columns),
            self.depth,
            self.others,
            extents,
            flat,
            tile,
            lies,
            None if lies else dealt,
        )

    def _dealt(self, summed: Sequence[str], tile: Tile) -> Dealt | None:
        """How the left operand lies, if each axis has a step of its own and neighbours share lines
        that stay in the first cache: weights whose rows are read backwards, or across."""
        access, axes = load_of(self.left), (self.m, *summed)
        if access is None or access.positions or self.left.kind == "cast":
            return None
        steps = [coefficient(access.offset, a) for a in axes]
        if any(n is None or axes_of(n) for n in steps):
            return None
        line = LINE // self.item.dtype.itemsize
        if not shares_lines(steps, [tile.rows, *(self.phase.axes[a] for a in summed)], line):
            return None
        if self.phase.dtypes[access.buffer] != self.left.dtype or {*axes} & {*self.phase.cut}:
            return None
        start = substitute(access.offset, dict.fromkeys(axes, 0))
        return Dealt(access.buffer, start, steps[0] or 0, tuple(n or 0 for n in steps[1:]))


def window_plan(
    item: Item, phase: Phase, form: Form, *, ordinary: bool = False
) -> WindowPlan | None:
    """How a contraction could be a product over windows, or None; also where nothing slides, if
    `ordinary`."""
    assert isinstance(item.payload, Folding)
    over = item.payload.over
    if item.dtype not in (f32, f64) or phase.cut or any(a in phase.grid for a in over):
        return None
    for left, right in (item.args, item.args[::-1]):
        summed = [a for a in phase.axes if a in over]
        made = _sided(item, left, right, summed, phase, ordinary=ordinary)
        if made is not None:
            made.settle(form)
            return made
    return None


def _sided(
    item: Item, left: Item, right: Item, over: list[str], phase: Phase, *, ordinary: bool
) -> WindowPlan | None:
    """The plan for one choice of sides: the right operand is the one that is slid over."""
    rows = [a for a in phase.axes if a in left.axes - right.axes and a not in over]
    columns = [a for a in phase.axes if a in right.axes - left.axes and a not in over]
    if not rows or not columns or not set(over) <= left.axes & right.axes:
        return None
    inside = [a for a in phase.axes if a not in phase.grid]
    taken = columns[-2:]
    if len(rows) > 1 or (item.axes - {rows[0], *taken}) & set(inside):
        return None
    slid = [sliding(a, right, over, phase) for a in taken]
    blocked = len(taken) == 1 or (taken[-1] != stored_axis(phase) and not {*taken} <= {*inside})
    if len({c.tap for c in slid if c.tap}) < len([c for c in slid if c.tap]):
        return None
    free = [a for a in over if a not in {c.tap for c in slid}]
    depth = next((a for a in free if not isinstance(phase.axes[a], int)), (free or [NO_AXIS])[0])
    if not _fits(over, depth, phase) and not blocked and len(columns) > 2:
        # What each tap reads is packed by itself, and taps are cut: an ordinary product would pack
        # the left operand again for every line.
        slid = [Slid(c.axis, c.axis) for c in slid]
        depth = max(over, key=lambda a: _number(phase.axes[a]))
    others = [a for a in over if a != depth]
    if not _fits(over, depth, phase):
        return None
    replaced = {a for c in slid if c.tap for a in (c.axis, c.tap)}
    if folds(left, set(over) if len(over) > 1 else set()) or folds(right, replaced):
        return None
    made = WindowPlan(item, left, right, phase, rows[0], slid, depth, tuple(others))
    usual = ordinary or not blocked or any(c.tap for c in slid)
    return made if usual or made.has_patches() else None


def _fits(over: Sequence[str], depth: str, phase: Phase) -> bool:
    """Whether all summed axes but `depth` are known, and few positions."""
    sizes = [phase.axes[a] for a in over if a != depth]
    return all(isinstance(n, int) for n in sizes) and prod(map(_number, sizes)) <= DEPTH


def _number(e: Index) -> int:
    return e if isinstance(e, int) else DEPTH + 1
