"""Products that are stored as they are: register tiles write where the results go.

A product's result is an array in scratch that later nests read, whatever they make of it.  Where
one nest does nothing but store it, the tiles may write there themselves, if columns come in whole
tiles; that is known when the task starts, and the nest is left out then.  Where ranges of its
columns go to arrays of their own, that is also if all of a task's columns lie in one of them.

    direct = Direct(home)                 what may be stored so, and whether it is, here
    direct.place(c)                       where a product's tiles write, and their rows' distance
    direct.places(c)                      the same of rows that are places of an image
    direct.last(c)                        where the last sums go that are rounded as they are stored
    direct.unless(nest, lambda: ...)      what is left to do, where it is not
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Item, StoreItem
from smelt.codegen.llvm.loopir.store_ranges import stored_range
from smelt.codegen.llvm.loops.split_store_ranges import ends
from smelt.codegen.llvm.products.tile_sums import Last
from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule
from smelt.codegen.llvm.schedule.contract import Contraction
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import HEIGHTS, DepthwisePlan
from smelt.codegen.llvm.schedule.lanes import lane_of
from smelt.codegen.llvm.scratch.workspace import SUMS_PART, reads
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Index, axes_of, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
Tiled: TypeAlias = Contraction | NhwcConvPlan | DepthwisePlan
Stores: TypeAlias = dict[Item, tuple[StoreItem, ...]]
"""Products with the stores that write them as they are."""


class Direct:
    """The products of a task that are stored as they are."""

    def __init__(self, home: NestEmitter) -> None:
        self.home = home
        streamed = home.home.streaming or home.bands
        self.stores = {} if streamed else dict(stored(home.s, home.home.dtypes))
        self.nests = {id(n) for n, found in _nests(home.s, self.stores) if found}
        self.short = {
            item
            for item, found in self.stores.items()
            if home.home.dtypes[found[0].access.buffer] != item.dtype
        }
        """Those that are rounded as they are stored: until then their sums are in scratch."""
        self.holds: Value = ir.IntType(1)(1)
        """Whether the tiles of this task write results in place."""
        if not self.stores:
            return
        for c in home.s.products.values():
            if c.item in self.stores:
                assert isinstance(c, Tiled)
                self.holds = home.b.and_(self.holds, self._is_whole(c))
                if len(self.stores[c.item]) > 1:
                    self.holds = home.b.and_(self.holds, self._is_inside(c))

    def _is_whole(self, c: Tiled) -> Value:
        """Whether this task's results of a product are whole tiles, and nothing beside them."""
        b, ranges = self.home.b, self.home.ranges
        if isinstance(c, NhwcConvPlan) and c.across:
            return ir.IntType(1)(1)  # squares of sums are cut at any place
        low, high = ranges[c.n]
        over = b.and_(b.sub(high, low), number(c.tile.columns - 1))
        whole = b.icmp_signed("==", over, number(0))
        if isinstance(c, DepthwisePlan):
            first, last = ranges[c.tall.axis]
            return b.and_(whole, b.icmp_signed(">=", b.sub(last, first), number(HEIGHTS[-1])))
        if isinstance(c, Contraction):
            first, last = ranges[c.k]
            some = b.icmp_signed("<", first, last)
            return some if c.masks_columns() else b.and_(whole, some)
        one = b.icmp_signed("==", over, number(c.tile.lanes))  # the last columns are one vector
        whole, line = b.or_(whole, one), c.columns[-1].axis
        known, (first, last) = self.home.s.local[line], ranges[line]
        if not isinstance(known, int):
            return whole
        return b.and_(whole, b.icmp_signed("==", b.sub(last, first), number(known)))

    def _is_inside(self, c: Tiled) -> Value:
        """Whether this task's columns lie in the range of one of a product's results."""
        b, found = self.home.b, ir.IntType(1)(0)
        for store in self.stores[c.item]:
            found = b.or_(found, self._holds_all(c, store))
        return found

    def _holds_all(self, c: Tiled, store: StoreItem) -> Value:
        """Whether this task's columns lie in the range of a result."""
        b, (low, high) = self.home.b, self.home.ranges[c.n]
        within = stored_range(store)
        assert within is not None
        first, stop = ends(self.home, within)
        begins = b.icmp_signed("<=", first, low)
        return begins if stop is None else b.and_(begins, b.icmp_signed("<=", high, stop))

    def place(self, c: Contraction) -> tuple[Value, Value]:
        """The address of the first element of a task's product, and elements between its rows."""
        stride = self.home.home.index(self.home.storage.extent(c.item, c.n))
        base, apart = self._place(c, _rows(c), [stride])
        return base, apart[0]

    def places(self, c: NhwcConvPlan | DepthwisePlan) -> tuple[Value, list[Value]]:
        """The address of the first element of a task's product, and elements between neighbours
        along each axis of its rows."""
        home, strides = self.home, list[Value]()
        step = home.home.index(home.storage.extent(c.item, c.n))
        for a in _rows(c)[::-1]:
            strides.insert(0, step)
            step = home.b.mul(step, home.home.index(home.storage.extent(c.item, a)))
        if isinstance(c, NhwcConvPlan) and c.across:
            return home.storage.at[c.item, SUMS_PART], strides
        return self._place(c, _rows(c), strides)

    def turned(self, c: NhwcConvPlan) -> tuple[Value, dict[str, Value]]:
        """Where squares of a product's sums go, and elements between neighbours along each axis."""
        home, apart, step = self.home, dict[str, Value](), number(1)
        for a in reversed(c.axes):
            apart[a], step = step, home.b.mul(step, home.home.index(home.storage.extent(c.item, a)))
        order = [*_rows(c), c.n]
        base, steps = self._place(c, _rows(c), [apart[a] for a in order[:-1]])
        if c.item in self.stores:
            (access,) = (s.access for s in self.stores[c.item])
            there = home.home.index(coefficient(access.offset, c.n) or 0)
            apart[c.n] = home.b.select(self.holds, there, apart[c.n])
        return base, apart | dict(zip(order[:-1], steps, strict=True))

    def is_run(self, c: NhwcConvPlan) -> bool:
        """Whether the lines of a product's results go on where others end, wherever they go."""
        if c.item not in self.stores or len(c.columns) < 2:
            return len(c.columns) > 1
        offset, (outer, line) = self.stores[c.item][0].access.offset, c.axes[-2:]
        return coefficient(offset, outer) == self.home.s.local[line]

    def last(self, c: Tiled) -> Last | None:
        """Where a product's sums go that are rounded as they are stored, once all are added."""
        if c.item not in self.short:
            return None
        return Last(*self._there(c, _rows(c)), self._dtype(c), self.holds)

    def _place(
        self, c: Tiled, rows: Sequence[str], strides: list[Value]
    ) -> tuple[Value, list[Value]]:
        """Where a product is written, whose rows are so far apart in scratch."""
        b, base = self.home.b, self.home.storage.at[c.item, 0]
        if c.item not in self.stores or c.item in self.short:
            return base, strides
        there, apart = self._there(c, rows)
        both = zip(apart, strides, strict=True)
        return b.select(self.holds, there, base), [b.select(self.holds, x, y) for x, y in both]

    def _there(self, c: Tiled, rows: Sequence[str]) -> tuple[Value, list[Value]]:
        """The address of a task's first result, and elements between its rows: of several ranges
        where that one goes which the task's columns lie in."""
        b, (one, *others) = self.home.b, self.stores[c.item]
        base, apart = self._at(c, rows, one)
        for store in others:
            here, (there, steps) = self._holds_all(c, store), self._at(c, rows, store)
            base = b.select(here, there, base)
            apart = [b.select(here, x, y) for x, y in zip(steps, apart, strict=True)]
        return base, apart

    def _at(self, c: Tiled, rows: Sequence[str], store: StoreItem) -> tuple[Value, list[Value]]:
        """The same of one store."""
        home, b, access = self.home, self.home.b, store.access
        origin = home.index(substitute(access.offset, dict.fromkeys((*rows, c.n), 0)), home.top)
        apart = [home.index(coefficient(access.offset, a) or 0, home.top) for a in rows]
        for a, step in zip(rows, apart, strict=True):
            origin = b.add(origin, b.mul(home.scratch.start(c.item, a), step))
        column, start = coefficient(access.offset, c.n), home.scratch.start(c.item, c.n)
        if column != 1:
            start = b.mul(start, home.index(column or 0, home.top))
        origin = b.add(origin, start)
        return element_address(b, home.home.buffers[access.buffer], origin, self._dtype(c)), apart

    def _dtype(self, c: Tiled) -> DType:
        """The type that a product is stored as."""
        return self.home.home.dtypes[self.stores[c.item][0].access.buffer]

    def unless(self, nest: Nest, run: Callable[[], None]) -> None:
        """Runs a nest, but for one whose results are in place already."""
        if id(nest) not in self.nests:
            run()
            return
        with self.home.b.if_then(self.home.b.not_(self.holds)):
            run()


def _nests(s: Schedule, stores: Stores) -> Iterator[tuple[Nest, bool]]:
    """Every nest, and whether it does nothing but store such products."""
    for nest in s.nests:
        other = nest.saves or nest.folds or nest.settings or nest.fixed or nest.product
        yield (
            nest,
            bool(nest.stores)
            and not other
            and all(_is_among(x, stores.get(x.value, ())) for x in nest.stores),
        )


def _is_among(store: StoreItem, stores: Sequence[StoreItem]) -> bool:
    """Whether a nest's store is one of those of a product, or does what it does in its range."""
    return any(x.access == store.access for x in stores)


def stored(s: Schedule, dtypes: dict[str, Any]) -> Iterator[tuple[Item, tuple[StoreItem, ...]]]:
    """Products whose only readers are nests that store them as they are, with these stores: several
    where ranges of their columns are results of their own."""
    found: Stores = {}
    for c in s.products.values():
        if not isinstance(c, Tiled):
            continue
        users = [x for x in s.phase.stores if x.value is c.item]
        if not users or not _is_plain(c, s) or s.region(c.item) is not None:
            continue
        types = {dtypes[x.access.buffer] for x in users}
        if (
            len(types) == 1
            and _are_one_or_ranges(users, c)
            and all(_lies_along(x, c) and _is_written(c, *types) for x in users)
        ):
            found[c.item] = tuple(users)
    while True:
        homes = [n for n, alone in _nests(s, found) if alone]
        wrong = [i for i in found if not _is_alone(s, i, homes)]
        if not wrong:
            break
        for item in wrong:
            del found[item]
    yield from found.items()


def _are_one_or_ranges(stores: Sequence[StoreItem], c: Tiled) -> bool:
    """Whether there is one store of a product, or its columns are cut into ranges that each go
    somewhere else: no element is stored twice."""
    if len(stores) == 1:
        return stores[0].where is None
    found = [stored_range(x) for x in stores]
    if isinstance(c, NhwcConvPlan) or any(r is None or r.axis != c.n for r in found):
        return False
    known = sorted((r for r in found if r is not None), key=lambda r: r.stop is None)
    starts = {r.first for r in known}
    # One begins at 0, one has no end, and each of the others begins where one stops.
    stops = {r.stop for r in known if r.stop is not None}
    return len(starts) == len(stores) and starts == stops | {0} and known[-1].stop is None


def _rows(c: Tiled) -> tuple[str, ...]:
    """The axes of a product's rows, outer to inner."""
    if isinstance(c, DepthwisePlan):
        return tuple(x.axis for x in c.columns[:-1])
    if isinstance(c, NhwcConvPlan):
        return tuple(x.axis for x in c.columns)
    return () if c.m is None else (c.m,)


def _is_plain(c: Tiled, s: Schedule) -> bool:
    """Whether a product's tiles have rows that are as far apart as one number says, all of them
    rows of the result."""
    if isinstance(c, DepthwisePlan):
        return c.lines is None
    if isinstance(c, NhwcConvPlan):
        return c.ends_lines(s.local[c.columns[-1].axis])
    return c.kind != "thin" and c.m is not None and not c.outer


def _is_written(c: Tiled, dtype: DType) -> bool:
    """Whether tiles write sums as a type: their own, or one that they are rounded to."""
    if isinstance(c, NhwcConvPlan) and c.across:
        return dtype == c.item.dtype
    matrix = isinstance(c, Contraction) and c.group is not None and c.group.matrix
    return dtype == c.item.dtype or (
        dtype.is_float and dtype.compute == c.item.dtype and not matrix
    )


def _is_alone(s: Schedule, item: Item, homes: list[Nest]) -> bool:
    """Whether these nests are all that look at an item, and nothing is made of it there."""
    readers = [n for n in s.nests if reads(n, item)]
    if not readers or not all(any(n is h for h in homes) for n in readers):
        return False
    return not any(item in i.args for n in readers for i in n.items)


def _lies_along(store: StoreItem, c: Tiled) -> bool:
    """Whether a store writes a product's rows in unit steps, as far apart as one number says, and
    each of them once."""
    offset: Index = store.access.offset
    several = not c.item.axes.issuperset(axes_of(offset))
    if store.access.limits or several:
        return False
    steps = [coefficient(offset, a) for a in (*_rows(c), c.n)]
    return coefficient(offset, lane_of(c)) == 1 and None not in steps


__all__ = ["Direct", "stored"]
