"""Stores in a range of an axis: nests that walk that range alone, vectors that have some of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.access.nontemporal import prefetch_for_write
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Item, StoreItem
from smelt.codegen.llvm.loopir.store_ranges import Range, stored_range
from smelt.dataclass import dataclass
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """Where stores of ranges go whose columns are known to lie in one of them."""

    stores: Sequence[StoreItem]
    line: ir.Value
    """The address where column 0 of the present row would be."""
    apart: ir.Value
    """Elements between rows."""
    dtype: DType


def in_range(home: NestEmitter, within: Range, run: Callable[[], None]) -> None:
    """Emits by `run` what a nest does between the ends of a range, if the task has any of it."""
    b, kept = home.b, dict(home.ranges)
    low, high = kept[within.axis]
    first, stop = ends(home, within)
    low = b.select(b.icmp_signed("<", low, first), first, low)
    if stop is not None:
        high = b.select(b.icmp_signed("<", stop, high), stop, high)
    home.ranges[within.axis] = low, high
    with b.if_then(b.icmp_signed("<", low, high)):
        run()
    home.ranges = kept


def stored_in_range(home: NestEmitter, s: StoreItem, scope: Scope) -> bool:
    """Stores those lanes of a vector that lie in the range of a store, if it has one along them:
    nothing is done for others than the few vectors that have some."""
    for aim in home.aims:
        if any(s is x for x in aim.stores):
            if s is aim.stores[0]:
                _put(home, aim, home.get(s.value, scope, True), scope)
            return True
    b, lanes, within = home.b, scope.lanes, stored_range(s)
    if lanes is None or within is None or within.axis != lanes.axis:
        return False
    first, stop = ends(home, within)
    some = b.icmp_signed("<", first, b.add(lanes.base, number(lanes.count)))
    if stop is not None:
        some = b.and_(some, b.icmp_signed("<", lanes.base, stop))
    with b.if_then(some):
        at = iota(lanes.count)
        mask = b.icmp_signed(">=", at, splat(b, b.sub(first, lanes.base), lanes.count))
        if stop is not None:
            low = splat(b, b.sub(stop, lanes.base), lanes.count)
            mask = b.and_(mask, b.icmp_signed("<", at, low))
        inner = Scope(scope, lanes=lanes)  # what is computed here is known nowhere else
        home.put(s, home.get(s.value, inner, True), mask, inner)
    return True


def of_single_ranges(home: NestEmitter, scope: Scope) -> frozenset[Item]:
    """What nothing but one store of a range asks for: it is computed for vectors that have some."""
    lanes, nest = scope.lanes, home.nest
    ranged = [
        s
        for s in nest.stores
        if s.where is not None
        and lanes is not None
        and (r := stored_range(s)) is not None
        and r.axis == lanes.axis
    ]
    if not ranged:
        return frozenset()
    every = Counter(i for s in nest.stores for i in _behind(home, [s.value]))
    others = _behind(
        home,
        [
            *nest.saves,
            *nest.fixed,
            *(a for f in nest.folds for a in f.args),
            *(setting.value for setting in nest.settings),
            *(s.where for s in nest.stores if s.where is not None and s not in ranged),
            *(i for i in home.items if i.kind == "scan"),  # what vectors before it add up to
        ],
    )
    alone = [i for s in ranged for i in _behind(home, [s.value]) if every[i] == 1]
    return frozenset(alone).difference(others)


def _behind(home: NestEmitter, roots: Iterable[Item]) -> set[Item]:
    """What values of a nest are made of in it."""
    found, pending = set[Item](), [*roots]
    while pending:
        item = pending.pop()
        if item in home.here and item not in found:
            found.add(item)
            pending += item.args
    return found


def ends(home: NestEmitter, within: Range) -> tuple[ir.Value, ir.Value | None]:
    """Where a range begins and where it stops; None for the axis' end."""
    first = home.home.index(within.first) if within.first != 0 else number(0)
    return first, None if within.stop is None else home.home.index(within.stop)


def _put(home: NestEmitter, aim: Aim, value: ir.Value, scope: Scope) -> None:
    """Stores a vector in the range that its columns lie in."""
    assert scope.lanes is not None
    address = element_address(home.b, aim.line, scope.lanes.base, aim.dtype)
    if home.claims and scope.lanes.mask is None:
        prefetch_for_write(home, address, aim.dtype, scope.lanes.count)
    store_vector(
        home.machine(scope, True), address, value, aim.dtype, scope.lanes.mask, bypass=home.bypass
    )
