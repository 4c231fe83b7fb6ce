"""Contractions of a phase: which are blocked, along which axes, and which operands are packed.

A usable contraction sums left[m, k] * right[k, n] for one axis m that only the left operand has and
one axis n that only the right one has; whatever else they share is fixed in a task.  Its result is
a scratch array over (m, n) that later nests read like any kept value, so everything after it fuses;
its operands are packed by ordinary nests, so everything before it fuses.  Where there are few rows
(or there is no m at all: a vector) the contraction is *thin*: its right operand is read as it lies,
once, at the speed of memory.  How many rows there are is known at the call, so a kernel has a
*form* for thin products beside the usual one.  Other contractions become plain folds of products.

Tile and block sizes: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from smelt.blocks import (
    COLUMNS,
    DEPTH,
    MATRIX_DEPTH,
    NEAR,
    SMALL,
    SMALL_DEPTH,
    THIN,
    THIN_COLUMNS,
    THIN_DEPTH,
    THIN_LINES,
    THIN_LONG,
    THIN_MATRIX,
    THIN_ROWS,
    beside_rows,
    grouped_block,
    matrix_block,
    product_rows,
    whole_rows,
)
from smelt.codegen.llvm.instructions.dot_product import WORDS, Group, group_of
from smelt.codegen.llvm.loopir.items import Folding, Item, Phase, chain, still_axes
from smelt.codegen.llvm.schedule.operand_roles import lies_along, scatters
from smelt.codegen.llvm.schedule.operands import (
    lies_in_panels,
    lies_in_units,
    lies_open,
    load_of,
    runs_along,
)
from smelt.dataclass import dataclass
from smelt.kernel.artifact import Form, Limits
from smelt.ops.combine import SUM_OF_PRODUCTS
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, i32
from smelt.types.expr import Index, mul, product

SKEW = 16
"""Elements between rows of a packed left block beyond its depth, against cache sets that repeat."""
THIN_SKEW = 528
"""The same for a thin one, whose rows are all multiplied piece by piece: 256 positions of 16 rows
fall on different sets of a first cache with 64 of them."""

Kind = Literal["packed", "small", "thin"]


@dataclass(frozen=True, slots=True)
class Tile:
    """The register tile: `rows` by `vectors` of `lanes` columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True, slots=True)
class Contraction:
    """A usable contraction: item, its operands in order, its axes, and its tile."""

    item: Item
    left: Item
    right: Item
    m: str | None
    """None where the left operand has no axis of its own: only thin ones allow that."""
    n: str
    outer: tuple[str, ...]
    k: str
    tile: Tile
    kind: Kind = "packed"
    along: str = ""
    """Of a thin one or one of groups: the axis that vectors of the right operand run along."""
    direct: int = 0
    """Where others want the left operand too: it lies in scratch, rows this far apart, and is
    multiplied there."""
    down: bool = False
    """Whether such an operand lies along m rather than along k."""
    held: int = 0
    """The same where factors go in groups: it lies in scratch, and is packed from there."""
    panels: bool = False
    """Whether the right operand lies in panels as wide as the tile already: at [n//w, k, n%w]."""
    group: Group | None = None
    """Where factors are packed in units of several: how."""
    converts: bool = False
    """Whether the left operand lies in another type, which not every tile is to convert again."""
    units: bool = False
    """Whether the left operand's rows are such units as they lie, but for a last one in part."""

    @property
    def unit(self) -> DType:
        """The type as which packed operands lie in scratch."""
        return self.item.dtype if self.group is None else i32

    @property
    def together(self) -> int:
        """Summed positions of one step of a tile."""
        return 1 if self.group is None else self.group.count

    @property
    def thin(self) -> bool:
        """Whether the right operand is read once, in its own order."""
        return self.kind == "thin"

    @property
    def depth(self) -> int:
        """Summed positions for which the left operand is packed at once."""
        if self.thin and self.m is None:
            return THIN_LONG * self.together
        return (THIN_DEPTH if self.thin or self.deep else self.packed_units) * self.together

    @property
    def packed_units(self) -> int:
        """Units along the sum that panels in scratch have room for."""
        return MATRIX_DEPTH if self.group is not None and self.group.matrix else DEPTH

    @property
    def pitch(self) -> int:
        """Units between packed rows of the left operand."""
        skew = THIN_SKEW if self.thin else SKEW
        return self.direct or self.depth // self.together + skew

    @property
    def steps(self) -> tuple[int, int]:
        """Units from one row to the next in the left operand in scratch, and along k."""
        return (1, self.pitch) if self.down else (self.pitch, 1)

    @property
    def left_axes(self) -> tuple[str, ...]:
        """The left operand's axes in scratch, where that is multiplied as it lies."""
        axes = (self.k,) if self.m is None else (self.m, self.k)
        return axes[::-1] if self.down else axes

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes in scratch, outer to inner."""
        return (self.n,) if self.m is None else (self.m, self.n)

    def reads_left(self) -> bool:
        """Whether the left operand is read as it lies: its rows run along k, or it is small."""
        axes = (self.m or "", self.k)
        plain = not self.thin and self.group is None and not self.converts
        return plain and lies_open(self.left, self.item.dtype, axes, axes[self.kind != "small" :])

    def reads_lines(self) -> bool:
        """Whether the right operand of a thin product lies in plain lines along n."""
        open_ = lies_open(self.right, self.item.dtype, (self.k, self.n), (self.n,))
        return self.thin and self.along == self.n and self.group is None and open_

    def reads_right(self) -> bool:
        """Whether the right operand is read as it lies by tiles."""
        axes = (self.k, self.n)
        plain = self.kind == "small" and self.group is None
        lies = plain and lies_open(self.right, self.item.dtype, axes, axes[1:])
        return self.panels or lies

    def masks_columns(self) -> bool:
        """Whether tiles tell apart which of their columns there are."""
        return self.reads_right() and not self.panels

    def is_whole(self, positions: Index) -> bool:
        """Whether so many summed positions are one block: few, of which nothing is packed."""
        few = not isinstance(positions, int) or positions <= SMALL_DEPTH
        return few and self.kind == "small" and self.masks_columns() and self.reads_left()

    def lies_in_rows(self) -> bool:
        """Whether the right operand lies in plain rows, which are not packed if they are short."""
        plain = self.kind == "packed" and self.group is None and not (self.panels or self.down)
        return plain and lies_open(self.right, self.item.dtype, (self.k, self.n), (self.n,))

    @property
    def deep(self) -> bool:
        """Whether the few rows at hand are multiplied panel by panel, each one read to its end."""
        return self.panels and self.kind == "small"


def tile_of(target: Target, lanes: int) -> Tile:
    """Two vectors wide and as high as the registers allow beside two vectors and a broadcast."""
    return Tile(12 if target.registers >= 32 else 6 if target.registers >= 16 else 2, 2, lanes)


def _open_tile(target: Target, lanes: int) -> Tile:
    """The same where rows lie apart, so that each takes an address: as high as hides the latency of
    multiply-adds (two pipes of four cycles), or twice that where there are registers."""
    return Tile(8 if target.registers >= 32 else 4 if target.registers >= 16 else 2, 2, lanes)


def short_tiles(target: Target, lanes: int) -> tuple[Tile, ...]:
    """Tiles as wide as short lines of a thin product's right operand, the narrower one first: their
    sums take half of the registers."""
    sums = target.registers // 2
    return tuple(Tile(sums // vectors, vectors, lanes) for vectors in (sums // 4, sums // 2))


def contractions(phase: Phase, target: Target, form: Form = "") -> dict[Item, Contraction]:
    """The usable contractions of a phase; the others are rewritten as folds of products."""
    found: dict[Item, Contraction] = {}
    for item in [i for i in phase.items if i.kind == "dot"]:
        made = _usable(item, phase, target, form, found)
        if made is None:
            _as_fold(item, phase)
        else:
            found[item] = made
    while (item := _misfit(found, phase)) is not None:
        del found[item]
        _as_fold(item, phase)
    return found


def forms(phase: Phase, products: Iterable[Contraction]) -> Iterator[tuple[Form, Limits]]:
    """The forms that serve this phase better, best first, each where its limits hold."""
    packed = [c for c in products if not c.thin and c.m is not None]
    if not packed:
        return
    if any(c.panels for c in packed):
        if all(c.panels for c in packed):
            yield "rows", tuple(dict.fromkeys((phase.axes[c.axes[0]], THIN) for c in packed))
        return
    few = {a: SMALL for c in packed for a in c.axes} | {c.k: SMALL_DEPTH for c in packed}
    sides: list[tuple[Form, dict[str, int]]] = [
        ("small", few),
        ("rows", {c.axes[0]: _thin_up_to(c.group) for c in packed}),
        ("columns", {c.n: _thin_up_to(c.group) for c in packed}),
    ]
    for form, axes in sides:
        limits = tuple((phase.axes[a], n) for a, n in axes.items())
        never = any(isinstance(n, int) and n > most for n, most in limits)
        never |= form != "small" and any(
            _is_shared(c.item, c.m, c.n, c.right if form == "rows" else c.left) for c in packed
        )
        if not never and not (form == "small" and any(c.outer or c.group for c in packed)):
            yield form, tuple(dict.fromkeys(limits))


def near_forms(
    phase: Phase, products: Iterable[Contraction], usual: Iterable[tuple[Form, Limits]]
) -> Iterator[tuple[Form, Limits]]:
    """The form for small products where what they read again stays near: better than any that packs
    it once, which each of a batch would do anew."""
    operands = [(mul(phase.axes[c.k], phase.axes[c.n]), NEAR) for c in products if c.m is not None]
    for form, limits in usual:
        if form == "small":
            yield form, (*limits, *dict.fromkeys(operands))


def _is_near(
    item: Item, right: Item, axes: tuple[str | None, str, str], phase: Phase, target: Target
) -> bool:
    """Whether a product of few rows is small for all sizes, and its right operand lies in lines
    that stay in the first cache: tiles that are as high as others meet them sooner than packed rows
    and sums in scratch do, and so do any of lines of one vector."""
    (m, n, k), tile = axes, _open_tile(target, _lanes(item.dtype, target))
    assert isinstance(item.payload, Folding)
    sizes = [1 if a is None else phase.axes[a] for a in axes]
    rows, columns, depth = (n if isinstance(n, int) else 1 << 40 for n in sizes)
    high = tile.rows if columns > tile.lanes else 2
    near = columns * depth * item.dtype.itemsize <= target.l1_bytes
    alone = m is not None and len(item.payload.over) == 1
    return alone and high <= rows <= THIN and near and lies_open(right, item.dtype, (k, n), (n,))


def _is_shared(item: Item, m: str | None, n: str, larger: Item) -> bool:
    """Whether the larger operand serves further positions: then it had better be packed once than
    read again for each of them."""
    return bool(item.axes - {m, n} - larger.axes)


def _misfit(found: dict[Item, Contraction], phase: Phase) -> Item | None:
    """A contraction over an axis that tasks take in blocks for the sake of another one, or of
    windows that reach the same places."""
    blocked = {a for c in found.values() for a in (c.m, c.n) if a in phase.grid}
    blocked |= {r.axis for r in phase.places.values() if r.axis in phase.grid}
    return next((c.item for c in found.values() if c.item.axes & blocked - {c.m, c.n}), None)


def _usable(
    item: Item, phase: Phase, target: Target, form: Form, before: Mapping[Item, Contraction]
) -> Contraction | None:
    assert isinstance(item.payload, Folding)
    over = item.payload.over
    left, right = item.args
    if set(phase.cut) - set(over) or any(a in phase.grid for a in over):
        return None
    stored = stored_axis(phase, over, item.axes)
    if stored in left.axes and stored not in right.axes:
        left, right = right, left
    still = still_axes(phase.segments[item.time])
    barred = still | {a for guide, _ in phase.guides() for a in guide.axes}
    m, n = (_own_axis(x, y, over, phase, barred) for x, y in ((left, right), (right, left)))
    both = m is not None and n is not None
    fewer = False  # than it could: tasks that what is packed serves
    if m is not None and n is not None and stored not in (m, n) and not _is_few(m, phase):
        fewer = _is_shared(item, m, n, left) > _is_shared(item, m, n, right)
    swaps = (form == "columns") != fewer or _is_few(n, phase) > _is_few(m, phase)
    across = {i: c.n for i, c in before.items()}
    tile, down = tile_of(target, _lanes(item.dtype, target)), 0
    if (
        m is not None
        and n is not None
        and not (swaps or form)
        and group_of(item, left, right, phase.dtypes, target) is None
    ):
        down = _down(left, item, m, across, tile, phase)
    if n is None or (both and not down and (swaps or scatters(left, right, m, across))):
        left, right, m, n = right, left, n, m
    if n is None or not set(over) <= left.axes & right.axes:
        return None
    if (item.axes - {m, n}) & set(phase.axes) - set(phase.grid) - still:
        return None
    ranked = [a for a in phase.axes if a in over]
    shared = m is not None and _is_shared(item, m, n, right)
    k = _longest(ranked, phase)
    pitch = down or _pitch(left, item, ranked[-1], tile, phase)
    group = group_of(item, left, right, phase.dtypes, target, matrices=True)
    direct = pitch if group is None else 0
    panels = m is not None and lies_in_panels(right, item, group, (k, n), tile.columns, phase)
    near = (
        group is None and form in ("", "small") and _is_near(item, right, (m, n, k), phase, target)
    )
    few = _is_few(m, phase, _thin_up_to(group)) and not near
    if not panels and (form in ("rows", "columns") or (few and not shared)):
        return _thin(item, left, right, m, n, ranked, phase, target)
    if m is None or item.dtype.kind == "bool" or item.dtype.bits < 32:
        return None
    access, kind = load_of(left), "small" if near or form in ("small", "rows") else "packed"
    converts = access is not None and phase.dtypes[access.buffer] != item.dtype
    made = Contraction(
        item,
        left,
        right,
        m,
        n,
        tuple(a for a in ranked if a != k),
        k,
        tile,
        kind,
        direct=direct,
        down=bool(down),
        held=pitch - direct,
        panels=panels,
        converts=converts and kind == "packed",
    )
    if group is not None:
        units = lies_in_units(left, item, group, (m, k), phase)
        return replace(
            made,
            group=group,
            along=runs_along(right, (n, k)),
            units=units,
            tile=_open_tile(target, tile.lanes) if units else tile,
        )
    few = made.kind == "small" and made.reads_left()
    return replace(made, tile=_open_tile(target, tile.lanes)) if few else made


def _pitch(left: Item, item: Item, axis: str, tile: Tile, phase: Phase) -> int:
    """Elements between rows along an axis of a left operand that is kept for others in blocks of a
    stream; 0 where it is packed."""
    assert isinstance(item.payload, Folding)
    if not _is_wanted(left, item, phase) or len(item.payload.over) > 1:
        return 0
    return _pitch_along(left, item, axis, tile, phase)


def _is_wanted(left: Item, item: Item, phase: Phase) -> bool:
    """Whether others want a product's left operand too."""
    others = any(left in i.args and i is not item for i in phase.items)
    return others or any(s.value is left for s in phase.settings)


def _pitch_along(
    left: Item, item: Item, axis: str, tile: Tile, phase: Phase, whole: int | None = None
) -> int:
    """The same of blocks along an axis, or of `whole` of it where it is in no blocks."""
    if left.kind != "apply" or left.time != item.time:
        return 0
    visits = {v.axis: v.size for r in chain(phase.segments[item.time]) for v in r.visits}
    size = visits.get(axis, whole)
    return 0 if size is None else -(-size // tile.columns) * tile.columns + SKEW


def _down(
    left: Item, item: Item, m: str, across: Mapping[Item, str], tile: Tile, phase: Phase
) -> int:
    """The same along m, where vectors of the operand lie along that as they are computed, so that
    packing it in rows would scatter them: a tile takes neighbours from one line for each k."""
    if left.kind == "load" or not lies_along(left, m, across):
        return 0
    assert isinstance(item.payload, Folding)
    (k, *more) = item.payload.over
    alike = left.axes & set(phase.axes) - set(phase.grid) == {m, k}
    if more or not alike or not _pitch_along(left, item, k, tile, phase):
        return 0
    whole = phase.axes[m] if m not in phase.grid and _is_wanted(left, item, phase) else None
    return _pitch_along(left, item, m, tile, phase, whole if isinstance(whole, int) else None)


def _longest(axes: list[str], phase: Phase) -> str:
    """The last of the longest axes: one whose length is open rather than a window's few taps."""
    extents = {a: phase.axes[a] for a in axes}
    return max(reversed(axes), key=lambda a: e if isinstance(e := extents[a], int) else 1 << 62)


def _is_few(axis: str | None, phase: Phase, most: int = THIN) -> bool:
    """Whether an axis has few positions for all sizes."""
    extent = 1 if axis is None else phase.axes[axis]
    return isinstance(extent, int) and extent <= most


def _thin_up_to(group: Group | None) -> int:
    """Rows up to which the larger operand is not packed."""
    return THIN if group is None or not group.matrix else THIN_MATRIX


def _lanes(dtype: DType, target: Target) -> int:
    return target.vector_bytes // dtype.itemsize


def _thin(
    item: Item,
    left: Item,
    right: Item,
    m: str | None,
    n: str,
    over: list[str],
    phase: Phase,
    target: Target,
) -> Contraction | None:
    """The contraction whose right operand is read in its own order, along n or a summed axis."""
    if item.dtype.kind == "bool" or item.dtype.bits < 32:
        return None
    along = runs_along(right, (n, *over[::-1]))
    k = over[-1] if along == n else along
    rows = 1 if m is None else 8 if target.registers >= 32 else 4
    group = group_of(item, left, right, phase.dtypes, target)
    if group is not None and group.moved:
        group = WORDS  # no sums of columns to make up for
    return Contraction(
        item,
        left,
        right,
        m,
        n,
        tuple(a for a in over if a != k),
        k,
        Tile(rows, 2, _lanes(item.dtype, target)),
        "thin",
        along,
        group=group,
    )


def _own_axis(
    x: Item, other: Item, over: tuple[str, ...], phase: Phase, barred: set[str]
) -> str | None:
    """The axis of one operand alone that is blocked: an inner one rather than a grid one, of which
    there may be several; rather one that the kernel takes in blocks, then one with many positions.
    """
    own = [a for a in phase.axes if a in x.axes - barred and a not in other.axes and a not in over]
    inner = [a for a in own if a not in phase.grid]
    taken = [a for a in own if a in phase.taken and phase.regions()]
    many = [a for a in own if not _is_few(a, phase)]
    return (inner or taken or many or own or [None])[-1]


def stored_axis(
    phase: Phase, over: tuple[str, ...] = (), axes: frozenset[str] = frozenset()
) -> str | None:
    """The axis along which the largest results are stored in unit steps: those of what is summed
    `over` some axes rather than an operand, which has these axes; first those along all of `axes`,
    since other products of a kernel may be stored otherwise."""
    ranked = sorted(
        phase.stores, key=lambda s: (not s.axes.isdisjoint(over), not axes <= s.axes, -len(s.axes))
    )
    for s in ranked:
        for a in phase.axes:
            if a in s.axes and coefficient(s.access.offset, a) == 1:
                return next((p for p, r in phase.places.items() if r.axis == a), a)
    return None


def _as_fold(item: Item, phase: Phase) -> None:
    """item = fold of a product item that takes a place just before it."""
    at = phase.items.index(item)
    axes = item.args[0].axes | item.args[1].axes
    product = Item(at, "apply", SUM_OF_PRODUCTS[1], item.args, axes, item.dtype, item.time)
    phase.items.insert(at, product)
    item.kind, item.args = "fold", (product,)
    for number, other in enumerate(phase.items):
        other.number = number


def product_block(
    c: Contraction, phase: Phase, every: list[Contraction], target: Target
) -> tuple[Index, Index]:
    """Rows and columns that one task takes of a contraction among all of the phase's."""
    if c.thin:
        return THIN_ROWS, THIN_COLUMNS if c.along == c.n else THIN_LINES
    free = product(phase.axes[a] for a in phase.axes if a in c.item.axes and a in phase.grid)
    if all(other.n in phase.grid for other in every):
        if len(every) == 1 and c.group is not None and c.m is not None:
            if c.group.matrix:
                return matrix_block(phase.axes[c.m], free)
            in_place = any(x.value is c.item for x in phase.stores)
            return grouped_block(phase.axes[c.m], free, target.tasks, in_place=in_place)
        return product_rows(free, c.item.dtype.itemsize, len(every)), COLUMNS
    folded = {a for i in phase.items if isinstance(i.payload, Folding) for a in i.payload.over}
    if len(every) > 1 and not any({other.m, other.n} & folded for other in every):
        return beside_rows(free, c.item.dtype.itemsize), COLUMNS
    return whole_rows(free, phase.axes[c.n], c.item.dtype.itemsize, len(every)), COLUMNS


def packing_axes(c: Contraction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Loop orders of the nests that pack the left and the right operand."""
    return (c.k,) if c.m is None else (c.m, c.k), (c.k, c.n) if c.along != c.k else (c.n, c.k)
