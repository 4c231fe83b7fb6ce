"""Products that are stored as they are: register tiles write where the result goes.

A product's result is an array in scratch that later nests read, whatever they make of it.  Where
one nest does nothing but store it, the tiles may write there themselves, if columns come in whole
tiles; that is known when the task starts, and the nest is left out then.

    direct = Direct(home)                 what may be stored so, and whether it is, here
    direct.place(c)                       where a product's tiles write, and their rows' distance
    direct.unless(nest, lambda: ...)      what is left to do, where it is not
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.contract import Contraction
from smelt.codegen.llvm.indexing import number
from smelt.codegen.llvm.items import Item, StoreItem
from smelt.codegen.llvm.memory import element_address
from smelt.codegen.llvm.nests import Nest, Schedule
from smelt.codegen.llvm.storage import reads
from smelt.types.affine import coefficient
from smelt.types.expr import Index, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class Direct:
    """The products of a task that are stored as they are."""

    def __init__(self, home: NestEmitter) -> None:
        self.home = home
        streamed = home.home.streaming or home.bands
        self.stores = {} if streamed else dict(stored(home.s, home.home.dtypes))
        self.nests = {id(n) for n, found in _nests(home.s, self.stores) if found}
        self.holds: Value = ir.IntType(1)(1)
        """Whether the tiles of this task write results in place."""
        if not self.stores:
            return
        b = home.b
        for c in home.s.blocked:
            if c.item in self.stores:
                (low, high), (first, last) = home.ranges[c.n], home.ranges[c.k]
                over = b.and_(b.sub(high, low), number(c.tile.columns - 1))
                whole = b.icmp_signed("==", over, number(0))
                whole = b.and_(whole, b.icmp_signed("<", first, last))
                self.holds = b.and_(self.holds, whole)

    def place(self, c: Contraction) -> tuple[Value, Value]:
        """The address of the first element of a task's product, and elements between its rows."""
        home, b = self.home, self.home.b
        base, stride = home.storage.at[c.item, 0], home.home.index(home.storage.extent(c.item, c.n))
        if c.item not in self.stores:
            return base, stride
        access = self.stores[c.item].access
        assert c.m is not None
        origin = home.index(substitute(access.offset, {c.m: 0, c.n: 0}), home.top)
        apart = home.index(coefficient(access.offset, c.m) or 0, home.top)
        low, start = (home.scratch.start(c.item, a) for a in (c.m, c.n))
        origin = b.add(b.add(origin, b.mul(low, apart)), start)
        there = element_address(b, home.home.buffers[access.buffer], origin, c.item.dtype)
        return b.select(self.holds, there, base), b.select(self.holds, apart, stride)

    def unless(self, nest: Nest, run: Callable[[], None]) -> None:
        """Runs a nest, but for one whose results are in place already."""
        if id(nest) not in self.nests:
            run()
            return
        with self.home.b.if_then(self.home.b.not_(self.holds)):
            run()


def _nests(s: Schedule, stores: dict[Item, StoreItem]) -> Iterator[tuple[Nest, bool]]:
    """Every nest, and whether it does nothing but store such products."""
    for nest in s.nests:
        other = nest.saves or nest.folds or nest.settings or nest.fixed or nest.product
        yield (
            nest,
            bool(nest.stores)
            and not other
            and all(s.value in stores and stores[s.value] is s for s in nest.stores),
        )


def stored(s: Schedule, dtypes: dict[str, Any]) -> Iterator[tuple[Item, StoreItem]]:
    """Products whose only readers are nests that store them as they are."""
    found: dict[Item, StoreItem] = {}
    for c in s.blocked:
        users = [x for x in s.phase.stores if x.value is c.item]
        plain = c.kind != "thin" and c.group is None and c.m is not None and not c.outer
        if plain and s.region(c.item) is None and len(users) == 1:
            (store,) = users
            if _lies_along(store, c) and dtypes[store.access.buffer] == c.item.dtype:
                found[c.item] = store
    while True:
        homes = [n for n, alone in _nests(s, found) if alone]
        wrong = [i for i in found if not _is_alone(s, i, homes)]
        if not wrong:
            break
        for item in wrong:
            del found[item]
    yield from found.items()


def _is_alone(s: Schedule, item: Item, homes: list[Nest]) -> bool:
    """Whether one of these nests is all that looks at an item, and nothing is made of it there."""
    readers = [n for n in s.nests if reads(n, item)]
    if len(readers) != 1 or not any(readers[0] is h for h in homes):
        return False
    return not any(item in i.args for i in readers[0].items)


def _lies_along(store: StoreItem, c: Contraction) -> bool:
    """Whether a store writes a product's rows in unit steps, as far apart as one number says."""
    offset: Index = store.access.offset
    if store.where is not None or store.access.limits or c.m is None:
        return False
    return coefficient(offset, c.n) == 1 and coefficient(offset, c.m) is not None


__all__ = ["Direct", "stored"]
