"""Tall products: many rows, and so few columns and summed positions that a row is soon done.

A result of few columns is as fast as memory, so what counts is what surrounds the multiply-adds:
blocks that are packed, sums that go through scratch, loops over rows of a few elements.  Here some
rows are taken at once, their sums stay in registers over all of k, and what reads them is computed
there, row by row, before it is stored; only the small right operand is packed, once in a task:

    for 8 rows i:     for k:  sums[i] += left[i, k] * packed[k, n..]
                      for i:  y[i, n..] = f(sums[i], ..)

A *wide* product has more columns, and enough rows to pay for packing: a task takes some of both.
What it packs stays in L2, in panels as wide as a tile that are read from their begin to their end.
Where the left operand has to be packed too, or too many positions are summed for one pass over all
of them, the product is *deep*: a task takes the summed positions block by block.  Of *few* rows
each panel is packed by the tile that multiplies it first
(`smelt.codegen.llvm.products.small_m`); where they are multiplied by columns that lie along the
sum, the left operand is packed, and rows and columns change places
(`smelt.codegen.llvm.products.small_m_swapped`).

Several products of the same rows and columns that are read together are taken together: the sums of
all but the last one are *kept* in scratch, those of some rows or of a whole task, and what reads
the last one's reads them there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from smelt.blocks import (
    DEEP,
    DEEP_PITCH,
    FEW_ACROSS,
    FEW_DEEP,
    FEW_PITCH,
    LONG_DEEP,
    LONG_PITCH,
    LONG_SUM,
    ROOMY_COLUMNS,
    ROOMY_DEPTH,
    ROOMY_ROWS,
    SMALL,
    TALL_BYTES,
    TALL_COLUMNS,
    TALL_DEPTH,
    TALL_ROWS,
    TALL_SINGLE,
    TALL_STAGED,
    THIN,
    TURNED_BYTES,
    TURNED_COLUMNS,
    WIDE_ACROSS,
    WIDE_COLUMNS,
    WIDE_DEPTH,
    WIDE_STAGED,
    wide_blocks,
)
from smelt.codegen.llvm.instructions.dot_product import group_of
from smelt.codegen.llvm.loopir.clone import FOLDS
from smelt.codegen.llvm.loopir.items import Access, Folding, Item, Phase
from smelt.codegen.llvm.loopir.store_ranges import stored_range
from smelt.codegen.llvm.schedule.backward_slice import cost_of, needed
from smelt.codegen.llvm.schedule.contract import Tile, stored_axis
from smelt.codegen.llvm.schedule.k_blocking import deep_blocks, few_columns
from smelt.codegen.llvm.schedule.operands import (
    lies_in_panels,
    load_of,
    panel_step,
    runs_across,
)
from smelt.dataclass import dataclass
from smelt.kernel.artifact import Form, Limits
from smelt.target import CACHE_SHARE, Target
from smelt.types.affine import coefficient
from smelt.types.dtype import f32, f64, i32
from smelt.types.expr import Index, add, axes_of, floordiv, maximum, minimum, mul, product, sub

LINED_ROWS = 49
"""Rows from which on packing lines of few columns in panels costs less than reading them again and
again as they lie: the last vectors of each in part."""
TURNED_DEPTH = 3
"""Times as many summed positions as rows from which on turning an operand costs more than that rows
and columns change places, which takes their sums through scratch."""
TURNED_SEVERAL = 96
"""Rows of several products up to which these and columns change places (measured on AVX-512: 32
rows take 0.73 of the time, 64 rows 0.89, 96 rows as much, 128 rows 1.06)."""
LONGEST = 6.0
"""Cycles a vector of what reads the sums up to which it is written out for every row of a tile, and
of what each task of few rows computes of the left operand again."""


@dataclass(frozen=True, slots=True)
class TallSkinnyPlan:
    """A product of many rows: its operands, its axes, and its tile."""

    item: Item
    left: Item
    right: Item
    m: str
    n: str
    k: str
    tile: Tile
    direct: bool
    """Whether the left operand is multiplied where it lies."""
    picked: bool
    """Whether its rows lie at computed positions there."""
    dense: bool
    """Whether every result's rows follow one another without gaps, all of each in one task."""
    late: bool
    """Whether sums go to scratch before they are read."""
    wide: bool = False
    """Whether a task takes but some of the columns, whose operand it packs in panels of a tile."""
    deep: bool = False
    """Whether a task takes the summed positions block by block, and adds its sums up in scratch."""
    few: bool = False
    """Whether all rows are taken panel by panel: too few to wait for what is packed for them."""
    across: bool = False
    """Whether the left operand is packed by vectors along its rows."""
    panels: bool = False
    """Whether the right operand lies in panels as wide as the tile already: at [n//w, k, n%w]."""
    roomy: bool = False
    """Whether a deep one that packs nothing else takes larger blocks, for which L2 has room."""
    turned: bool = False
    """Whether, of few rows, these are columns here: `m` is the axis of the result's columns."""
    tasks: int = 1
    """Tasks that a deep or turned one is cut into before each takes more."""
    kept: bool = False
    """Whether its sums stay in scratch for what reads those of the last product."""
    others: tuple[tuple[Item, str], ...] = ()
    """The other products of the same rows and columns, with the axes that they sum over."""
    narrow: bool = False
    """Whether the instructions of a deep one count that do not multiply."""
    copied: bool = False
    """Whether its left operand's rows are packed that could be multiplied where they lie: those of
    a tile may push one another out of the first cache there."""
    leader: Item | None = None
    """Of several, the first one that packs the same rows, if this one reads what that packs."""

    @property
    def by_tiles(self) -> bool:
        """Whether the rows of a tile are packed when its turn comes, and not all before."""
        return self.narrow and not (self.direct or self.across or self.others)

    @property
    def depth(self) -> int:
        """Summed positions that a deep one takes at once."""
        if self.few:
            return FEW_DEEP
        return ROOMY_DEPTH if self.roomy else LONG_DEEP if self.narrow else DEEP

    @property
    def pitch(self) -> int:
        """Elements between packed rows of them."""
        return FEW_PITCH if self.few else LONG_PITCH if self.narrow else DEEP_PITCH

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes, outer to inner."""
        return (self.m, self.n)

    @property
    def staged(self) -> int:
        """Rows that are taken together."""
        return SMALL if self.few else WIDE_STAGED if self.wide else TALL_STAGED

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of a tile, and those of the tiles for what is left over."""
        if self.few:
            return (self.tile.rows, 8, 4, 1)
        return (self.tile.rows, 4, 1) if self.wide else (self.tile.rows, 1)

    @property
    def rows(self) -> Item:
        """The operand that has the result's rows."""
        return self.right if self.turned else self.left

    outer = ()
    """Summed axes beside `k`: none."""

    def lines(self) -> Index | None:
        """Elements between rows of the right operand, which run along the columns; None if they do
        not, or are computed."""
        access = load_of(self.right)
        if access is None or access.positions or coefficient(access.offset, self.n) != 1:
            return None
        apart = coefficient(access.offset, self.k)
        return None if apart is None or axes_of(apart) else apart

    def left_order(self) -> tuple[str, ...]:
        return (self.k, self.m) if self.across else (self.m, self.k)

    def right_order(self) -> tuple[str, ...]:
        return (self.k, self.n)

    def summed(self, phase: Phase) -> Index:
        """Summed positions of all products."""
        found = phase.axes[self.k]
        for _, k in self.others:
            found = add(found, phase.axes[k])
        return found

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """Rows and columns of one task."""
        size = self.item.dtype.itemsize
        free = product(phase.axes[a] for a in phase.axes if a in self.item.axes)
        m, n = (phase.axes[a] for a in (self.m, self.n))
        depth = self.summed(phase)
        if self.turned:
            taken = few_columns(m, n, free, self.tasks, TURNED_COLUMNS)
            return {self.m: taken, self.n: SMALL}
        if self.few:
            taken = few_columns(n, m, free, self.tasks, self.tile.columns)
            most = FEW_ACROSS // (1 + len(self.others)) // self.tile.columns * self.tile.columns
            return {self.m: SMALL, self.n: minimum(taken, max(most, self.tile.columns))}
        if self.wide:
            rows, columns = (
                deep_blocks(
                    m,
                    n,
                    free,
                    size,
                    self.tile.columns,
                    self.tasks,
                    direct=self.direct,
                    roomy=self.roomy,
                    panels=self.panels,
                    products=1 + len(self.others),
                    long=self.narrow,
                )
                if self.deep
                else wide_blocks(m, n, depth, free, size, self.tile.columns)
            )
            return {self.m: rows, self.n: columns}
        # A size counts as 1 or more in expressions, and there may be no summed positions: hence 16.
        fitting = floordiv(TALL_BYTES // size, maximum(depth, 16))
        return {self.m: minimum(maximum(fitting, TALL_STAGED), TALL_ROWS), self.n: TALL_COLUMNS}


def talls(phase: Phase, target: Target, form: Form = "tall") -> tuple[TallSkinnyPlan, ...]:
    """The products of a phase, if nothing else but operators surrounds them: one, or several of the
    same rows and columns that do not read one another, the last of which all results wait for."""
    dots = [i for i in phase.items if i.kind in FOLDS]
    if phase.regions() or phase.cut or phase.settings or not all(i.kind == "dot" for i in dots):
        return ()
    found = [_tall(phase, target, form, i, dots) for i in dots]
    made = [c for c in found if c is not None]
    several = len(dots) > 1
    if len(made) != len(dots) or (several and not _alike(made, phase)):
        return ()
    last = len(made) - 1
    return (
        tuple(
            replace(
                c,
                others=tuple((o.item, o.k) for o in made if o is not c),
                kept=n < last,
                late=c.late or n < last,
                dense=c.dense and n == last,
                leader=_leader(c, made[:n]),
            )
            for n, c in enumerate(made)
        )
        if several
        else tuple(made)
    )


def _leader(c: TallSkinnyPlan, before: list[TallSkinnyPlan]) -> Item | None:
    """The first of some products that packs the rows of this one, as long as it needs them.  Deep
    ones take their blocks in turn then, which pays where packing counts."""
    if not c.few and (c.direct or not c.narrow):
        return None
    return next((o.item for o in before if (o.rows, o.k) == (c.rows, c.k)), None)


def _alike(made: list[TallSkinnyPlan], phase: Phase) -> bool:
    """Whether products have the same rows, columns and type, and none reads what another sums."""
    first, dots = made[0], {c.item for c in made}
    free = all(dots.isdisjoint(needed(phase, [c.left, c.right], ())) for c in made)
    return free and all(
        (c.m, c.n, c.item.axes, c.item.dtype, c.turned)
        == (first.m, first.n, first.item.axes, first.item.dtype, first.turned)
        for c in made
    )


def _tall(
    phase: Phase, target: Target, form: Form, item: Item, dots: list[Item]
) -> TallSkinnyPlan | None:
    """One of the products of such a phase."""
    n = stored_axis(phase)
    assert isinstance(item.payload, Folding)
    left, right = item.args if n in item.args[1].axes else item.args[::-1]
    own = [a for a in phase.axes if a in item.axes and a not in right.axes]
    if n not in right.axes or n in left.axes or len(item.payload.over) != 1:
        return None
    if not own or (form == "tall" and len(own) > 1):
        return None
    m, (k,) = own[-1], item.payload.over
    grid, apart = {*phase.grid}, [s for s in phase.stores if s.axes != item.axes]
    cut = [s for s in phase.stores if s.where]
    apart += [s for s in cut if (r := stored_range(s)) is None or r.axis != n]
    if n is None or apart or not item.axes <= grid or k in grid:
        return None
    if item.dtype not in (f32, f64, i32):
        return None
    steps = [coefficient(s.access.offset, m) for s in phase.stores]
    rows, vectors = (8, 2) if target.registers >= 32 else (8 if target.registers >= 16 else 4, 1)
    wide, lanes = form in ("wide", "deep", "few"), target.vector_bytes // item.dtype.itemsize
    if wide and target.registers >= 32:
        rows = 12  # a panel comes from L2: more rows share what is read of it
    turned = form == "few" and _runs_along(phase, right, n, k) and _goes_on(phase, left, m, k)
    turned &= not cut
    if item.axes - left.axes - {n}:  # for each of their positions rows would be packed anew
        columns = phase.axes[n]
        turned &= not isinstance(columns, int) or columns > TALL_COLUMNS
    if turned:
        left, right, m, n = right, left, n, m
    access, picked = left.payload, _is_picked(left, item, (m, n, k), phase)
    direct = picked or _lies_open(left, item, (m, k), phase)
    if form == "few" and (picked or not turned):
        direct = picked = False  # rows of a copy, a known way apart, leave registers to a tile
    if form == "deep" or turned:
        direct = direct and isinstance(access, Access) and coefficient(access.offset, k) == 1
    copied = form == "deep" and direct and not _is_held(left, m, item, rows, target)
    if copied:
        direct = picked = False
    deep, tile = form == "deep" or (form == "few" and not turned), Tile(rows, vectors, lanes)
    panels = form == "deep" and _lies_in_panels(right, item, (k, n), tile.columns, phase)
    return TallSkinnyPlan(
        item,
        left,
        right,
        m,
        n,
        k,
        tile,
        direct=direct,
        picked=picked,
        wide=wide,
        turned=turned,
        panels=panels,
        roomy=form == "deep" and direct and not panels and _has_room(target),
        dense=not wide and not cut and all(s == phase.axes[n] for s in steps),
        late=cost_of(readers(phase, dots)) > LONGEST,
        deep=deep,
        few=form == "few",
        tasks=target.tasks,
        narrow=form == "deep" and target.starts_few,
        copied=copied,
        across=deep
        and not direct
        and any(runs_across(i, k, m, lanes) for i in needed(phase, [left], ())),
    )


def tall_forms(phase: Phase, target: Target) -> Iterator[tuple[Form, Limits]]:
    """The form for few columns and summed positions, where the phase allows it: of fewer rows
    operands are multiplied as they lie."""
    found = talls(phase, target)
    if not found:
        return
    m, n, k = phase.axes[found[0].m], phase.axes[found[0].n], found[0].summed(phase)
    packed = _is_grouped(found, phase, target)
    # Reading parts of vectors costs nothing only where there are registers for masks.
    few = THIN if packed or target.registers < 32 else SMALL
    limits = (n, TALL_COLUMNS), (k, TALL_SINGLE if packed else TALL_DEPTH), (sub(few + 1, m), 0)
    if _fit(limits):
        yield "tall", limits


def few_forms(phase: Phase, target: Target) -> Iterator[tuple[Form, Limits]]:
    """The form for few rows, whose right operand is packed as it is multiplied first."""
    every = talls(phase, target, "few")
    if not every or target.registers < 32 or _is_grouped(every, phase, target):
        return
    found = every[0]
    m, n = (phase.axes[a] for a in (found.m, found.n))
    if found.turned:
        m, n = n, m
        packed = mul(m, _packed(every, phase))
        most: Limits = ((packed, TURNED_BYTES // found.item.dtype.itemsize),)
    else:  # of more there were more blocks than a block is long
        most = tuple(dict.fromkeys((phase.axes[c.k], LONG_SUM) for c in every))
    # Every task computes them again.
    cheap = cost_of(needed(phase, [c.rows for c in every], ())) <= LONGEST
    panel = max(THIN + 1, found.tile.columns)
    rows = TURNED_SEVERAL if found.turned and len(every) > 1 else SMALL
    limits = (m, rows), (sub(THIN + 1, m), 0), (sub(panel, n), 0), *most
    if _fit(limits) and cheap:
        yield "few", limits


def _packed(every: Collection[TallSkinnyPlan], phase: Phase) -> Index:
    """Summed positions of the operands that some products pack for a row."""
    found: Index = 0
    for c in every:
        found = add(found, phase.axes[c.k] if c.leader is None else 0)
    return found


def wide_forms(phase: Phase, target: Target) -> Iterator[tuple[Form, Limits]]:
    """The same for more columns or longer sums, whose operand is packed for many rows: in one pass
    over all summed positions where the left one's rows are multiplied as they lie, or else, for
    many columns, in blocks."""
    found = talls(phase, target, "deep")
    if not found or target.registers < 32 or _is_grouped(found, phase, target):
        return
    m, n = phase.axes[found[0].m], phase.axes[found[0].n]
    rows, columns = (sub(SMALL + 1, m), 0), (sub(TALL_COLUMNS + 1, n), 0)
    near = (rows, (sub(WIDE_COLUMNS, n), 0), *_in_one_pass(found, phase))
    if _has_room(target):  # one pass where panels stay in L1
        line = found[0].tile.columns * found[0].item.dtype.itemsize
        near = *near, (found[0].summed(phase), target.l1_bytes // line)
    once = _fit(near) and _lie_open(found, phase) and not any(c.panels for c in found)
    every: list[tuple[Form, Limits]] = [("wide", near)] if once else []
    if _fit((rows, columns)):
        every.append(("deep", (rows, columns)))
    # Where rows of a tile may push one another out of the first cache, copies of them are better.
    yield from every if target.ways >= found[0].tile.rows else reversed(every)


def _has_room(target: Target) -> bool:
    """Whether L2 holds what larger blocks take: the panels of one, and its sums."""
    return CACHE_SHARE * target.l2_bytes >= 4 * ROOMY_COLUMNS * (ROOMY_DEPTH + ROOMY_ROWS)


def panel_forms(phase: Phase, target: Target) -> Iterator[tuple[Form, Limits]]:
    """The wide form of fewer rows, where another one would pack its right operand as well, or do
    worse: of one that is computed, of one that is turned for sums that are not long, and of one
    that lies in short lines for rows that are not few.  The tall form where the left operand is
    packed too."""
    every = talls(phase, target, "wide")
    if len(every) != 1 or target.registers < 32 or _is_grouped(every, phase, target):
        return
    (found,) = every
    m, n, k = (phase.axes[a] for a in (found.m, found.n, found.k))
    limits = (m, SMALL), (sub(THIN + 1, m), 0), (sub(THIN + 1, n), 0)
    if not _lie_open(every, phase):
        limits = *limits, (n, TALL_COLUMNS), (k, TALL_DEPTH)
        if found.lines() is None and _fit(limits) and talls(phase, target):
            yield "tall", limits
        return
    limits = *limits, *_in_one_pass(every, phase)
    if found.lines() is not None:
        limits = *limits, (sub(LINED_ROWS, m), 0), (n, TALL_COLUMNS)
    elif runs_across(found.right, found.n, found.k):
        limits = *limits, (sub(k, mul(TURNED_DEPTH, m)), 0)
    if _fit(limits):
        yield "wide", limits


def _in_one_pass(found: Collection[TallSkinnyPlan], phase: Phase) -> Limits:
    """Up to how many summed positions, and rows of them, products are wide."""
    (first, *_), m = found, phase.axes[next(iter(found)).m]
    across = (mul(m, phase.axes[c.k]) for c in found if not (c.direct or c.copied))
    return (first.summed(phase), WIDE_DEPTH), *((e, WIDE_ACROSS) for e in dict.fromkeys(across))


def _lie_open(found: Collection[TallSkinnyPlan], phase: Phase) -> bool:
    """Whether the rows of all left operands can be multiplied as they lie."""
    return all(c.picked or c.copied or _lies_open(c.left, c.item, (c.m, c.k), phase) for c in found)


def _is_grouped(found: tuple[TallSkinnyPlan, ...], phase: Phase, target: Target) -> bool:
    """Whether factors are packed in groups, or instructions multiply matrices of them."""
    return any(
        group_of(c.item, c.left, c.right, phase.dtypes, target, matrices=True) is not None
        for c in found
    )


def _fit(limits: Limits) -> bool:
    """Whether there are sizes within some limits."""
    return not any(isinstance(e, int) and e > most for e, most in limits)


def readers(phase: Phase, products: Collection[Item]) -> list[Item]:
    """What the results are computed from, in order, from some products on."""
    roots = [s.value for s in phase.stores]
    roots += [phase.positions[name] for s in phase.stores for name in s.access.positions]
    return needed(phase, roots, products)


def _lies_open(left: Item, item: Item, axes: tuple[str, str], phase: Phase) -> bool:
    """Whether an operand is elements of an array at fixed steps along axes."""
    access = left.payload
    if left.kind != "load" or not isinstance(access, Access) or load_of(left) is None:
        return False
    if access.positions or phase.dtypes[access.buffer] != item.dtype:
        return False
    steps = [coefficient(access.offset, a) for a in axes]
    return all(s is not None and not axes_of(s) for s in steps)


def _lies_in_panels(
    right: Item, item: Item, axes: tuple[str, str], width: int, phase: Phase
) -> bool:
    """Whether an operand lies in panels that are just as wide as a tile."""
    access = load_of(right)
    if access is None or not lies_in_panels(right, item, None, axes, width, phase):
        return False
    return panel_step(access, axes[0], 1) == width


def _is_held(left: Item, m: str, item: Item, rows: int, target: Target) -> bool:
    """Whether the first cache holds a tile's rows of an operand where they lie."""
    access = left.payload
    apart = coefficient(access.offset, m) if isinstance(access, Access) else None
    nbytes = apart * item.dtype.itemsize if isinstance(apart, int) and apart else None
    return target.holds(rows, nbytes)


def _is_picked(left: Item, item: Item, axes: tuple[str, str, str], phase: Phase) -> bool:
    """Whether an operand is rows of an array, each a run at a position that is soon computed."""
    access, (_, n, k) = left.payload, axes
    if left.kind != "load" or not isinstance(access, Access) or access.limits:
        return False
    found = [phase.positions[name] for name in access.positions]
    fixed = all({n, k}.isdisjoint(i.axes) for i in found) and coefficient(access.offset, k) == 1
    made = needed(phase, found, ())
    plain = fixed and not any(i.kind in FOLDS for i in made) and cost_of(made) <= LONGEST
    return bool(found) and plain and phase.dtypes[access.buffer] == item.dtype


def _runs_along(phase: Phase, x: Item, n: str, k: str) -> bool:
    """Whether all that an operand of a product reads lies along the sum, or has but one position
    of it or of the columns `n`."""
    loads = [i for i in needed(phase, [x], ()) if i.kind == "load" and {n, k} <= i.axes]
    return bool(loads) and all(runs_across(i, n, k) for i in loads)


def _goes_on(phase: Phase, x: Item, m: str, k: str) -> bool:
    """Whether all that an operand reads goes on by one step along its rows or the sum; of rows that
    lie here and there, in pieces, each lane of a panel would look for its own element."""
    loads = [i for i in needed(phase, [x], ()) if {m, k} <= i.axes]
    offsets = [i.payload.offset for i in loads if isinstance(i.payload, Access)]
    return all(any(coefficient(e, a) is not None for a in (m, k)) for e in offsets)
