"""Stencils: sums over windows in which one factor is the same for whole lines of results.

out[c, y, x] = sum over u, v of weights[c, u, v] * x[c, y*s + u*d, x*s + v*d]: a depthwise
convolution in whatever layout.  No axis belongs to the weights alone, so there is no block of rows
as in a product; what is used again is a line of the operand that windows slide over, by all results
whose windows reach it.  It is packed once for each place (`smelt.codegen.llvm.loopir.input_tile`),
margins included, and a column of results is held in registers:

    for each v:   for each line of the packed operand:   for each u that leads to a result:
                      results[line - u] += weights[u, v] * places[line, x + v]

Vectors run along the axis that results are stored along.  Where that is slid over, a weight fills
all lanes; where the weights have it too (channels last), they are vectors as well.  Short lines
fill no vectors, and what is done once a line is most of the work: in a form for them operand and
results are turned (`smelt.codegen.llvm.loopir.strided_input`), and vectors run across lines there
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from smelt.blocks import ceiling, window_columns
from smelt.codegen.llvm.access.permute_gather import can_pick
from smelt.codegen.llvm.instructions.dot_product import group_of
from smelt.codegen.llvm.loopir.clone import Cloner, folds, renumber
from smelt.codegen.llvm.loopir.input_tile import (
    NO_AXIS,
    Slid,
    flattened,
    packed_order,
    placed,
    sliding,
)
from smelt.codegen.llvm.loopir.items import Folding, Item, Phase
from smelt.codegen.llvm.loopir.merge_small_groups import join_groups, mixed
from smelt.codegen.llvm.loopir.strided_input import Lines, lying, turnable
from smelt.codegen.llvm.schedule.contract import Tile, stored_axis
from smelt.dataclass import dataclass
from smelt.kernel.artifact import Form, Limits
from smelt.target import Target
from smelt.types.dtype import DType, f32, f64
from smelt.types.expr import Index, add, axis, floordiv, maximum, minimum, mod, mul, product

HEIGHTS = (14, 7, 4)
"""Results that are held in registers: independent sums enough to hide the latency of multiply-adds
(two pipes of four cycles), beside as many weights.  The last one may go beyond what is asked."""
TAPS = 32
"""Summed positions along the axis that is held in registers, at most: they are written out."""
MOST = 1024
"""Summed positions at most."""
PLACES = 1 << 17
"""Bytes of the packed operand of one task, more or less: a share of L2."""
LINES = 8
"""Lines that this is enough for, where a task has several."""
TOGETHER = 4
"""Vectors of a task where no window slides along them."""
RUN_BYTES = 1024
"""Bytes of them where they are read in place: long runs, and tasks enough for threads."""
TURNED = "turned"
"""The form in which lines are turned."""
GROUP = 16
"""Channels of a group at most of which several share a vector."""
SHORT_LINE = 32
"""Results of a line up to which that is faster."""


@dataclass(frozen=True, slots=True)
class DepthwisePlan:
    """A sum over windows: its operands as they are packed, and its axes."""

    item: Item
    left: Item
    """The weights, along `flat` and perhaps `n`."""
    right: Item
    columns: tuple[Slid, ...]
    """Axes of results that are packed together, outer to inner; vectors run along the last one."""
    tall: Slid
    """The one of which several positions are held in registers."""
    over: tuple[str, ...]
    """The summed axes, in the order of `flat`."""
    extents: tuple[int, ...]
    flat: str
    tile: Tile
    across: str = ""
    """The axis beside all that windows slide over along which lines may be turned."""
    lines: Lines | None = None
    """Where the lines lie that are turned: vectors run across them then."""
    lies: Lines | None = None
    """Where the lines lie that are read in place: nothing is packed of them."""
    mixed: str = NO_AXIS
    """A summed axis whose positions are lanes of one group: tiles mix them."""
    group: int = 1
    """Lanes of such a group."""
    within: int = 0
    """Lanes at most of the one line that a product has of it while it packs what is made of that;
    0 where it stands by itself (`smelt.codegen.llvm.schedule.depthwise_separable`)."""

    @property
    def n(self) -> str:
        """The axis that vectors run along where results are read."""
        return self.columns[-1 if self.lines is None else -2].axis

    @property
    def lane(self) -> str:
        """The axis that vectors of a register tile run along."""
        return self.columns[-1].axis

    @property
    def unit(self) -> DType:
        """The type as which packed operands lie in scratch."""
        return self.item.dtype

    @property
    def m(self) -> None:
        """No axis is the weights' own."""

    @property
    def k(self) -> str:
        """No summed axis is packed by itself."""
        return ""

    @property
    def outer(self) -> tuple[str, ...]:
        """All axes that end here."""
        return self.over

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        if self.lines is not None:
            return (self.lane, *(c.axis for c in self.columns[:-1]))
        return tuple(c.axis for c in self.columns)

    @property
    def taps(self) -> list[list[int]]:
        """Places in `flat` of all summed positions, one list for each along all axes but the
        tile's."""
        tall = self.over.index(self.tall.tap)
        step = prod(self.extents[tall + 1 :])
        whole = step * self.extents[tall]
        first = [k for k in range(prod(self.extents)) if k % whole < step]
        return [[k + u * step for u in range(self.tall.taps)] for k in first]

    @property
    def shared(self) -> bool:
        """Whether the weights differ from lane to lane."""
        return self.lane in self.left.axes

    def left_order(self) -> tuple[str, ...]:
        """Loops of the nest that packs the weights."""
        return (self.flat, self.lane) if self.shared else (self.flat,)

    def right_order(self) -> tuple[str, ...]:
        """Loops of the nest that packs the other operand, which are its axes in memory too."""
        return packed_order(self.columns, [a for a in self.over if a != self.mixed])

    def packed(self, local: dict[str, Index]) -> list[Index]:
        """Extents of the packed operand along `right_order`."""
        sizes: dict[str, Index] = dict(zip(self.over, self.extents, strict=True))
        for c in self.columns:
            more = c.margin + (HEIGHTS[-1] - 1 if c is self.tall else 0)
            sizes |= {c.rest: c.step, c.place: add(local[c.axis], more)}
        return [sizes[a] for a in self.right_order()]

    def room(self, local: dict[str, Index]) -> Index:
        """Elements of the packed operand: where lines are turned a square more, for what nobody
        reads; zeros of a line where they are read in place."""
        if self.lies is not None:
            return self.extent(self.lane, local[self.lane])
        more = 0 if self.lines is None else self.tile.lanes * self.tile.lanes
        return add(product(self.packed(local)), more)

    def sums(self, local: dict[str, Index]) -> Index:
        """Elements of sums that are turned later: the lowest tiles go beyond the last line, and
        squares are as high as wide."""
        places = product(local[c.axis] for c in self.columns[:-1])
        return mul(add(places, self.tile.lanes + HEIGHTS[-1]), self.tile.lanes)

    def extent(self, axis: str, local: Index) -> Index:
        """Positions in scratch along an axis of the result: room for whole tiles."""
        if axis == self.lane:
            most = minimum(local, self.within) if self.within else local
            return mul(ceiling(most, self.tile.lanes), self.tile.lanes)
        if self.within and axis != self.tall.axis:
            return 1
        if self.lines is not None:
            return local
        return add(local, HEIGHTS[-1] - 1) if axis == self.tall.axis else local

    def heights(self) -> tuple[int, ...]:
        """Heights of the register tiles, the highest first."""
        return tuple(h for h in HEIGHTS if h <= self.tile.rows)

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """How the grid is cut into tasks."""
        if self.within:
            return {}
        itemsize = self.item.dtype.itemsize
        *others, inner = self.columns
        room = PLACES // itemsize
        most = window_columns(itemsize) if inner.tap else TOGETHER * self.tile.lanes
        if self.lines is not None:
            most = self.tile.lanes
        if self.lies is not None:
            return self._in_place(phase, max(RUN_BYTES // itemsize, self.tile.lanes))
        found: dict[str, Index] = {}
        taken: Index = 1
        for c in (inner, self.tall, *(c for c in others[::-1] if c is not self.tall)):
            if c is not inner:
                fitting = floordiv(
                    room // (1 if len(others) == 1 or c is not self.tall else LINES),
                    maximum(taken, 1),
                )
                most = maximum(fitting, max(self.tile.rows if c is self.tall else 0, 2 * c.taps))
            whole = phase.axes[c.axis]
            even = c is not inner or inner.tap
            found[c.axis] = ceiling(whole, maximum(ceiling(whole, most), 1)) if even else most
            if self.lines is not None and c is self.tall:
                found[c.axis] = whole  # lines that follow one another are one run later
            taken = mul(taken, add(found[c.axis], c.margin))
        return {a: n for a, n in found.items() if a in phase.grid}

    def _in_place(self, phase: Phase, most: int) -> dict[str, Index]:
        """The same where nothing is packed: what a task holds are its results."""
        found: dict[str, Index] = {self.lane: most}
        taken = minimum(most, maximum(phase.axes[self.lane], 1))
        for c in (self.tall, *(c for c in self.columns[-2::-1] if c is not self.tall)):
            whole = phase.axes[c.axis]
            least = self.tile.rows if c is self.tall else 1
            fitting = maximum(floordiv(PLACES // self.item.dtype.itemsize, taken), least)
            found[c.axis] = ceiling(whole, maximum(ceiling(whole, fitting), 1))
            taken = maximum(mul(taken, found[c.axis]), 1)
        return {a: n for a, n in found.items() if a in phase.grid}


def stencils(phase: Phase, target: Target, form: Form = "") -> dict[Item, DepthwisePlan]:
    """The stencils of a phase, whose operands are rewritten for packing, if all of its products are
    stencils with the same columns."""
    dots = [i for i in phase.items if i.kind == "dot"]
    if phase.cut or phase.regions() or not dots:
        return {}
    lanes = target.vector_bytes // dots[0].dtype.itemsize
    if can_pick(target, lanes) and all(_in_groups(i, phase) for i in dots):
        paired = any(group_of(i, i.args[0], i.args[1], phase.dtypes, target) for i in dots)
        # Pairs of short numbers take as much less time where a group fills a vector.
        join_groups(phase, dots, stored_axis(phase), lanes // 2 if paired else lanes)
    plans = [_plan(i, phase) for i in dots]
    known = [p for p in plans if p is not None]
    if len(known) < len(plans) or len({tuple(c.axis for c in p.columns) for p in known}) > 1:
        return {}
    return {p.item: p.rewritten(target, form) for p in known}


def turned_forms(phase: Phase, products: Iterable[object]) -> Iterator[tuple[Form, Limits]]:
    """The form for lines so short that they are turned, where each of the products can be."""
    known = [c for c in products if isinstance(c, DepthwisePlan)]
    if not known or not all(c.across for c in known) or len({c.across for c in known}) > 1:
        return
    line = phase.axes[known[0].n]
    if not isinstance(line, int) or line <= SHORT_LINE:
        lanes = known[0].tile.lanes  # of which no more than half are to be empty
        yield TURNED, ((line, SHORT_LINE), (mul(phase.axes[known[0].across], -1), -lanes // 2))


@dataclass(slots=True)
class _Plan:
    """What has been found out about a contraction before anything is rewritten."""

    item: Item
    left: Item
    right: Item
    phase: Phase
    columns: list[Slid]
    tall: int
    over: tuple[str, ...]

    def is_whole(self, target: Target) -> bool:
        """Whether vectors along the lanes are whole, or lanes beyond the last cost nothing."""
        lanes = target.vector_bytes // self.item.dtype.itemsize
        return target.isa == "avx512" or mod(self.phase.axes[self.columns[-1].axis], lanes) == 0

    def rewritten(self, target: Target, form: Form) -> DepthwisePlan:
        """The stencil; its operands' items are added to the phase."""
        across, lines = turnable(self.phase, self.left, self.right, self.columns) or ("", None)
        if form == TURNED and lines is not None:
            self.columns.append(Slid(across, across))
        else:
            lines = None
        extents = tuple(_number(self.phase.axes[a]) for a in self.over)
        left, flat = flattened(self.phase, self.item, self.left, self.over)
        n, lanes = self.columns[-1].axis, target.vector_bytes // self.item.dtype.itemsize
        inner, group = NO_AXIS, 1
        if can_pick(target, lanes) and n in self.left.axes and lines is None:
            inner, group = mixed(self.phase, self.right, n, self.over)
        right = self.right
        if inner and lanes % group == 0:
            turn = mod(axis(n, self.phase.axes[n]), group)
            right = Cloner(self.phase, self.item, {inner: turn}).of(right)
        else:
            inner, group = NO_AXIS, 1
        # What lanes take by turns is read so often that it had better lie side by side.
        once = lines is None and inner == NO_AXIS and self.is_whole(target)
        lies = lying(self.phase, right, self.columns) if once else None
        right = placed(self.phase, self.item, right, self.columns)
        self.item.args = (left, right)
        renumber(self.phase)
        rows = next((h for h in HEIGHTS if 2 * h <= target.registers), HEIGHTS[-1])
        tall = -2 if lines is not None else self.tall
        return DepthwisePlan(
            self.item,
            left,
            right,
            tuple(self.columns),
            self.columns[tall],
            self.over,
            extents,
            flat,
            Tile(rows, 1, lanes),
            across,
            lines,
            lies,
            inner,
            group,
        )


def stencil_of(item: Item, phase: Phase, target: Target, n: str) -> _Plan | None:
    """How a contraction is a stencil whose vectors run along `n` over lines that are read where
    they lie, if it is one."""
    found = _plan(item, phase, n)
    if found is None or not found.is_whole(target) or found.columns[-1].axis != n:
        return None
    plain = mixed(phase, found.right, n, found.over) == (NO_AXIS, 1)
    return found if plain and lying(phase, found.right, found.columns) is not None else None


def _over(item: Item, phase: Phase) -> list[str]:
    """The summed axes of a contraction that may be a stencil; none if it is none for sure."""
    assert isinstance(item.payload, Folding)
    over = [a for a in phase.axes if a in item.payload.over]
    usual = item.dtype in (f32, f64) and not any(a in phase.grid for a in over)
    return over if usual and 0 < prod(_number(phase.axes[a]) for a in over) <= MOST else []


def _in_groups(item: Item, phase: Phase) -> bool:
    """Whether windows slide over an operand of a product, which has few numbers at each place."""
    over = _over(item, phase)
    if any(folds(x, {*x.axes}) for x in item.args):
        return False
    slid = {sliding(a, x, over, phase).tap for x in item.args for a in item.axes} - {NO_AXIS}
    return bool(slid) and prod(_number(phase.axes[a]) for a in over if a not in slid) <= GROUP


def _plan(item: Item, phase: Phase, n: str | None = None) -> _Plan | None:
    """How a contraction could be a stencil, or None; its vectors run along `n`, or else as results
    are stored."""
    over = _over(item, phase)
    n = n or stored_axis(phase, tuple(over))  # others may be of the weights, along what ends here
    for left, right in (item.args, item.args[::-1]) if over and n else ():
        made = _sided(item, left, right, over, phase, n)
        if made is not None:
            return made
    return None


def _sided(
    item: Item, left: Item, right: Item, over: list[str], phase: Phase, n: str | None
) -> _Plan | None:
    """The plan for one choice of sides: the right operand is the one that is slid over."""
    own = left.axes - {*over}
    if not own <= right.axes or not {*over} <= left.axes & right.axes:
        return None
    free = [a for a in phase.axes if a in right.axes - left.axes and a not in over]
    slid = [c for c in (sliding(a, right, over, phase) for a in free) if c.tap]
    if n is None or n not in right.axes or n in over:
        return None
    columns = sorted(slid, key=lambda c: c.axis == n)
    tall = [k for k, c in enumerate(columns) if c.axis != n and c.taps <= TAPS]
    if not tall or len({c.tap for c in columns}) < len(columns):
        return None
    if columns[-1].axis != n:
        columns.append(Slid(n, n))
    inside = {a for a in phase.axes if a not in phase.grid}
    replaced = {a for c in columns if c.tap for a in (c.axis, c.tap)}
    if item.axes & inside - {c.axis for c in columns} or folds(right, replaced):
        return None
    if folds(left, {*over}):
        return None
    return _Plan(item, left, right, phase, columns, tall[-1], tuple(over))


def _number(e: Index) -> int:
    return e if isinstance(e, int) else MOST + 1


__all__ = ["TURNED", "DepthwisePlan", "stencil_of", "stencils", "turned_forms"]
