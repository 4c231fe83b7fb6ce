"""Bands of rows: within a block of a stream, some rows see less of it than all rows of a task do.

Where a stream starts and stops is told for all rows of a task: from what the first one sees to
what the last one does.  The more rows, the fewer times blocks are packed, and the more is computed
that a mask rules out.  So a task takes many rows, but what is done row by row with the positions of
a block (products, folds, exponentials) is done for a band of rows at a time, between the positions
that the same ends tell for these rows:

    stream n/512 from first(m) - 255 to last(m) + 1        # m: 192 rows
      pack k[n,d], v[n,d]
      for 24 rows:  scores, their maximum, weights, weights times values  of  n in what they see

Outside of that part nothing is taken up, as outside of what is visited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Edge, Folding, Item, Phase, Region, Visit, chain
from smelt.codegen.llvm.schedule.contract import Contraction
from smelt.dataclass import dataclass
from smelt.ops.combine import EXTREMES

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule

Value = ir.Value
BAND = 24
"""Rows of a band: whole register tiles, whether of 4, 6, 8 or 12 rows."""
FINE = 12
"""The same for sums over what they see: it is told for so many rows, and joined for a band."""
MATRIX_BAND, MATRIX_FINE = 32, 16
"""Both where instructions multiply matrices: two tiles one below the other, and one."""


@dataclass(frozen=True, eq=False)
class Bands:
    """The bands of a region: of which axis, what of which other one they see, and in what groups of
    positions; the nests that are run for each, and those that tell the ends again."""

    region: Region
    rows: str
    columns: str
    group: int
    size: int
    """Rows of a band."""
    fine: int
    """Rows of which it is told exactly what they see, for sums over that."""
    most: int
    """Bands at most."""
    nests: frozenset[Nest]
    products: tuple[Contraction, ...]
    guides: tuple[Nest, ...]

    @property
    def visit(self) -> Visit:
        """How the region walks the columns."""
        return self.region.visits[-1]

    def takes(self, c: Contraction) -> bool:
        """Whether a contraction has such rows and columns, or sums over such columns."""
        return c in self.products

    def sums(self, c: Contraction) -> bool:
        """Whether it sums over such columns."""
        return c in self.products and c.k == self.columns


# ---- which there are -----------------------------------------------------------------------------


def follows(bound: Item | None, rows: Collection[str]) -> bool:
    """Whether an end of a stream depends on which rows a task has."""
    return any(_tells(i, rows) for i in _cone(bound))


def is_searched(bound: Item | None, columns: str) -> bool:
    """Whether an end of a stream along columns is found by looking at what is known of each."""
    folds = (i.payload for i in _cone(bound) if isinstance(i.payload, Folding))
    return any(columns in f.over for f in folds)


def _tells(item: Item, rows: Collection[str]) -> bool:
    match item.payload:
        case Edge(axis=name):
            return name in rows
        case Folding(over=over):
            return not set(over).isdisjoint(rows)
        case _:
            return False


def _cone(item: Item | None) -> set[Item]:
    pending = [] if item is None else [item]
    seen = set(pending)
    while pending:
        fresh = [a for a in pending.pop().args if a not in seen]
        seen.update(fresh)
        pending += fresh
    return seen


def rows_in_bands(phase: Phase, products: Iterable[Contraction]) -> Iterator[tuple[Region, str]]:
    """The streams whose blocks may be taken in bands, and of which axis."""
    every = list(products)
    for region in phase.regions():
        if not region.visits:
            continue
        v = region.visits[-1]
        own = [c for c in every if region in chain(phase.segments[c.item.time])]
        over = [c for c in own if v.axis in (c.n, c.k)]
        rows = {c.m for c in over}
        if len(rows) != 1 or v.part is not None or v.size in (None, 1):
            continue
        (m,) = rows
        plain = all(
            not (c.thin or c.outer or c.panels or c.down)
            and not (c.group is not None and c.group.moved)
            for c in over
        )
        told = _cone(v.start) | _cone(v.stop)
        if m in phase.grid and plain and any(_tells(i, [m]) for i in told) and _may_be_finer(told):
            yield region, m


def _may_be_finer(told: set[Item]) -> bool:
    """Whether ends may be told for fewer rows than a task has: if they follow from positions and
    from the least and most of arrays, not from what all rows of the task have come to."""
    folds = (i.payload for i in told if isinstance(i.payload, Folding))
    return all(i.kind != "state" for i in told) and all(f.row.name in EXTREMES for f in folds)


def bands_of(s: Schedule) -> list[Bands]:
    """The bands of a schedule's streams."""
    found: list[Bands] = []
    for region, m in rows_in_bands(s.phase, s.blocked):
        n, most = region.visits[-1].axis, s.block.get(m)
        inside = [
            x
            for nest in s.nests
            for x in (nest, *nest.packs)
            if region in chain(s.phase.segments[nest.time])
        ]
        over = [x for x in inside if {m, n} <= set(x.order)]
        banded = frozenset(x for x in over if _is_plain(x, m, n, s))
        if not isinstance(most, int) or any(_reads(x, m, n, s) for x in over if x not in banded):
            continue
        group = max(c.tile.columns for c in s.blocked)
        visit = region.visits[-1]
        guides = _guides(s, visit)
        if guides is None:
            continue
        products = tuple(
            c for c in s.blocked if region in chain(s.region(c.item)) and n in (c.n, c.k)
        )
        size, fine = band_rows(products)
        found.append(
            Bands(region, m, n, group, size, fine, -(-most // size), banded, products, guides)
        )
    return found


def band_rows(products: Iterable[Contraction]) -> tuple[int, int]:
    """Rows of a band: in whole groups of what they see, and exactly."""
    matrices = any(c.group is not None and c.group.matrix for c in products)
    return (MATRIX_BAND, MATRIX_FINE) if matrices else (BAND, FINE)


def _is_plain(nest: Nest, m: str, n: str, s: Schedule) -> bool:
    """Whether a nest computes along columns what is known for each row apart."""
    if nest.stores or nest.settings or nest.fixed or nest.product is not None:
        return False
    if nest.turned and not nest.strips:
        return False
    if nest.order.index(m) > nest.order.index(n) or any(i.kind == "scan" for i in nest.items):
        return False
    return all(m in f.axes and f in s.kept and nest.in_registers(f) for f in nest.folds)


def _reads(nest: Nest, m: str, n: str, s: Schedule) -> bool:
    """Whether a nest reads what bands have left out."""
    used = {a for i in (*nest.items, *nest.folds) for a in i.args} | {*nest.saves, *nest.fixed}
    used |= {x for t in nest.stores for x in (t.value, t.where) if x is not None}
    return any({m, n} <= set(s.kept.get(i, ())) for i in used)


def _guides(s: Schedule, visit: Visit) -> tuple[Nest, ...] | None:
    """The nests that tell where a visit starts and stops; None if they do more than that."""
    ends = {e for e in (visit.start, visit.stop) if e is not None}
    cone = _cone(visit.start) | _cone(visit.stop)
    found = [x for x in s.nests if not (ends.isdisjoint(x.fixed) and cone.isdisjoint(x.folds))]
    for nest in found:  # what is kept along rows or columns is kept again, as it was
        if nest.stores or nest.settings or nest.packs or any(f in s.kept for f in nest.folds):
            return None
    return tuple(found)


# ---- emission ------------------------------------------------------------------------------------


class BandEmitter:
    """The bands of the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, bands: Bands) -> None:
        self.home, self.bands = home, bands
        size, fine = bands.size, bands.fine
        with home.b.goto_entry_block():
            self.tables = {
                (rows, exact): home.b.alloca(I64, number(2 * bands.most * size // rows))
                for rows, exact in ((size, False), (fine, True))
            }

    def tell(self) -> None:
        """What each band sees of the present block: in whole groups, and exactly."""
        home, b, bands = self.home, self.home.b, self.bands
        top, ranges = home.top, dict(home.ranges)
        low, high = ranges[bands.columns]
        stale = _cone(bands.visit.start) | _cone(bands.visit.stop)

        def fine(k: Value) -> None:
            home.ranges[bands.rows] = _band(b, k, ranges[bands.rows], bands.fine)
            home.top = _flat(top, stale)
            for nest in bands.guides:
                home.run(nest)
            start, stop = low, high
            if bands.visit.start is not None:
                start = _greater(b, home.top.value(bands.visit.start), low)
            if bands.visit.stop is not None:
                stop = _lesser(b, home.top.value(bands.visit.stop), high)
            none = b.icmp_signed(">=", start, stop)
            start, stop = b.select(none, high, start), b.select(none, low, stop)
            self._put(k, bands.fine, start, stop, exact=True)

        def whole(k: Value) -> None:
            start, stop, first = high, low, b.mul(k, number(bands.size // bands.fine))
            for n in range(bands.size // bands.fine):
                part = _lesser(b, b.add(first, number(n)), last)
                start = _lesser(b, start, self._told(part, bands.fine, 0, exact=True))
                stop = _greater(b, stop, self._told(part, bands.fine, 1, exact=True))
            start = b.add(low, b.and_(b.sub(start, low), number(-bands.group)))
            far = b.add(b.sub(stop, low), number(bands.group - 1))
            stop = _lesser(b, b.add(low, b.and_(far, number(-bands.group))), high)
            self._put(k, bands.size, start, stop)

        count = _count(b, ranges[bands.rows], bands.fine)
        home.loop(number(0), count, 1, fine)
        last = b.sub(count, number(1))
        home.loop(number(0), _count(b, ranges[bands.rows], bands.size), 1, whole)
        home.top, home.ranges = top, ranges

    def each(self, nest: Nest, inside: Callable[[], None]) -> None:
        """Runs a nest for each band, whose rows and columns are the ranges then.  Where a band sees
        none of the columns, what is folded over them is told."""
        home, ranges, bands = self.home, dict(self.home.ranges), self.bands

        def one(k: Value) -> None:
            home.ranges[bands.rows] = _band(home.b, k, ranges[bands.rows], size)
            seen = home.ranges[bands.columns] = self._seen(k, size, ranges[bands.columns])
            if not _ends(nest, bands.columns):
                inside()
                return
            with home.b.if_else(home.b.icmp_signed("<", *seen)) as (some, none):
                with some:
                    inside()
                with none:
                    home.folds.of_nothing(nest)

        size = bands.size
        home.loop(number(0), _count(home.b, ranges[bands.rows], size), 1, one)
        home.ranges = ranges

    def over(
        self,
        rows: Value,
        columns: tuple[Value, Value],
        exact: bool,
        inside: Callable[[tuple[Value, Value], tuple[Value, Value], Value], None],
    ) -> None:
        """The bands of so many rows: their first and what follows the last, which of the columns
        they see (whole groups, or exactly), and whether they see none before these."""
        b, size = self.home.b, self.bands.fine if exact else self.bands.size

        def one(k: Value) -> None:
            begins = self._told(k, size, 0, exact=exact)
            inside(
                _band(b, k, (number(0), rows), size),
                self._seen(k, size, columns, exact=exact),
                b.icmp_signed(">=", begins, columns[0]),
            )

        self.home.loop(number(0), _count(b, (number(0), rows), size), 1, one)

    def _seen(
        self, k: Value, rows: int, columns: tuple[Value, Value], *, exact: bool = False
    ) -> tuple[Value, Value]:
        """What a band sees of some columns; nothing ends where it begins."""
        b, (low, high) = self.home.b, columns
        start, stop = (self._told(k, rows, side, exact=exact) for side in (0, 1))
        start = _lesser(b, _greater(b, start, low), high)
        return start, _greater(b, _lesser(b, stop, high), start)

    def _put(self, k: Value, rows: int, start: Value, stop: Value, *, exact: bool = False) -> None:
        for side, end in enumerate((start, stop)):
            self.home.b.store(end, self._place(k, rows, side, exact))

    def _told(self, k: Value, rows: int, side: int, *, exact: bool) -> Value:
        return self.home.b.load(self._place(k, rows, side, exact), typ=I64)

    def _place(self, k: Value, rows: int, side: int, exact: bool) -> Value:
        b = self.home.b
        at = b.add(b.mul(k, number(2)), number(side))
        return b.gep(self.tables[rows, exact], [at], source_etype=I64)


def _count(b: ir.IRBuilder, rows: tuple[Value, Value], size: int) -> Value:
    return b.sdiv(b.add(b.sub(rows[1], rows[0]), number(size - 1)), number(size))


def _band(b: ir.IRBuilder, k: Value, rows: tuple[Value, Value], size: int) -> tuple[Value, Value]:
    first = b.add(rows[0], b.mul(k, number(size)))
    return first, _lesser(b, b.add(first, number(size)), rows[1])


def for_each_band(every: Iterable[BandEmitter], nest: Nest, inside: Callable[[], None]) -> None:
    """Runs a nest for each of its bands, or once where it has none."""
    own = next((x for x in every if nest in x.bands.nests), None)
    if own is None:
        inside()
    else:
        own.each(nest, inside)


def _ends(nest: Nest, columns: str) -> bool:
    """Whether a nest does no more than fold, for each row, and keep what there is of columns."""
    folded = (f.payload for f in nest.folds if isinstance(f.payload, Folding))
    whole = all(f.over == (columns,) and not f.row.positional for f in folded)
    more = nest.stores or nest.settings or nest.fixed
    kept = all(columns in i.axes for i in nest.saves)
    return len(nest.order) == 2 and whole and kept and not more


def _flat(scope: Scope | None, stale: set[Item]) -> Scope:
    """What is known in a scope and around it, without some items."""
    found = Scope()
    while scope is not None:
        found.axes = scope.axes | found.axes
        found.values = {i: v for i, v in scope.values.items() if i not in stale} | found.values
        found.offsets = scope.offsets | found.offsets
        scope = scope.parent
    return found


def _lesser(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    return b.select(b.icmp_signed("<", x, y), x, y)


def _greater(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    return b.select(b.icmp_signed(">", x, y), x, y)


__all__ = [
    "BandEmitter",
    "Bands",
    "bands_of",
    "follows",
    "for_each_band",
    "is_searched",
    "rows_in_bands",
]
