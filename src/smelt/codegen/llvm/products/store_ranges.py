"""Tiles whose columns go to ranges: which range they lie in is asked once, not vector by vector.

Where results are ranges of a product's columns, nearly every tile lies in one of them.  Its rows
then begin at one address and lie one distance apart, chosen by comparing where its columns begin
and end; vectors are stored there as if there were one result.  Of a tile that lies in several, or
in none, the sums go to the stack, and a loop over its vectors asks for each range.

    into = IntoRanges(home, c.n, rows_apart)    the ranges of the nest that is open
    aimed = into.aimed(column, end, top)        whether columns lie in one of them, and in which
    into.in_one(aimed, row, count, line)        emits what reads the sums of a tile that does
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item, StoreItem
from smelt.codegen.llvm.loopir.store_ranges import Range, stored_range
from smelt.codegen.llvm.loops.split_store_ranges import Aim, ends
from smelt.dataclass import dataclass
from smelt.types.affine import coefficient

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
Ranges = list[tuple[StoreItem, Range]]


@dataclass(frozen=True, slots=True, eq=False)
class Aimed:
    """Where some columns go."""

    inside: Value
    """Whether they lie in one range of each value, and touch no other of it."""
    aims: list[Aim]
    """For each value its range then, from row 0 on."""


class IntoRanges:
    """The stores of ranges of the nest that `home` has open, along the columns of a product whose
    rows lie so far apart in each result."""

    def __init__(self, home: NestEmitter, axis: str, apart: Mapping[Access, Value]) -> None:
        self.home, self.axis, self.apart = home, axis, apart
        found: dict[tuple[Item, str], Ranges] = {}
        for s in home.nest.stores:
            within = stored_range(s)
            if within is not None and within.axis == axis and self._lies_along(s):
                dtype = home.home.dtypes[s.access.buffer]
                found.setdefault((s.value, dtype.name), []).append((s, within))
        self.groups = [group for group in found.values() if len(group) > 1]
        """Ranges of one value each: all that goes to results of one type."""
        self.ends = {within: ends(home, within) for group in self.groups for _, within in group}

    def _lies_along(self, store: StoreItem) -> bool:
        """Whether rows of a result are lines of memory, as far apart as one number says."""
        access = store.access
        return (
            access in self.apart
            and not access.limits
            and coefficient(access.offset, self.axis) == 1
        )

    @property
    def accesses(self) -> set[Access]:
        """What needs no address of its own where a tile lies in one range."""
        return {s.access for group in self.groups for s, _ in group}

    def inside(self, low: Value, high: Value) -> Value:
        """Whether columns lie in one range of each value and touch no other of it."""
        b, found = self.home.b, ir.IntType(1)(1)
        for group in self.groups:
            once, clear = ir.IntType(1)(0), ir.IntType(1)(1)
            for _, within in group:
                here = self._holds(within, low, high)
                beside = self._misses(within, low, high)
                clear = b.and_(clear, b.or_(beside, b.and_(here, b.not_(once))))
                once = b.or_(once, here)
            found = b.and_(found, b.and_(once, clear))
        return found

    def _holds(self, within: Range, low: Value, high: Value) -> Value:
        b, (first, stop) = self.home.b, self.ends[within]
        begins = b.icmp_signed("<=", first, low)
        return begins if stop is None else b.and_(begins, b.icmp_signed("<=", high, stop))

    def _misses(self, within: Range, low: Value, high: Value) -> Value:
        b, (first, stop) = self.home.b, self.ends[within]
        before = b.icmp_signed("<=", high, first)
        return before if stop is None else b.or_(before, b.icmp_signed("<=", stop, low))

    def aimed(self, low: Value, high: Value, top: Scope) -> Aimed:
        """Where columns go if they lie in one range of each value; `top` is what is known before
        all rows."""
        aims = [self._aim(group, low, high, top) for group in self.groups]
        return Aimed(self.inside(low, high), aims)

    def _aim(self, group: Ranges, low: Value, high: Value, top: Scope) -> Aim:
        b, found = self.home.b, list[tuple[Value, Value]]()
        dtype = self.home.home.dtypes[group[0][0].access.buffer]
        for store, _ in group:
            base = self.home.home.buffers[store.access.buffer]
            first = element_address(b, base, top.offset(store.access), dtype)
            found.append((first, self.apart[store.access]))
        first, apart = found[0]
        for (_, within), (other, far) in zip(group[1:], found[1:], strict=True):
            here = self._holds(within, low, high)
            first, apart = b.select(here, other, first), b.select(here, far, apart)
        return Aim([store for store, _ in group], first, apart, dtype)

    def in_one(self, aimed: Aimed, row: Value, count: int, run: Callable[[int], None]) -> None:
        """Emits by `run` what reads the sums of each of `count` rows, from one on, of columns that
        lie in one range of each value."""
        home, b, kept = self.home, self.home.b, self.home.accesses
        home.accesses = [a for a in kept if a not in self.accesses]
        firsts = [
            element_address(b, aim.line, b.mul(row, aim.apart), aim.dtype) for aim in aimed.aims
        ]
        for i in range(count):
            home.aims = [
                replace(aim, line=element_address(b, x, b.mul(number(i), aim.apart), aim.dtype))
                for aim, x in zip(aimed.aims, firsts, strict=True)
            ]
            run(i)
        home.aims, home.accesses = [], kept


__all__ = ["Aimed", "IntoRanges"]
