"""Copies of values with axes replaced by index expressions: the same computation at other places.

A product over windows packs its image along places instead of columns; a short fold is written out
as its element at each position.

    Cloner(phase, user, {"u": 0}).of(item)      the item at u = 0, just before `user`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from smelt.codegen.llvm.loopir.items import (
    Access,
    Clamping,
    Converting,
    Folding,
    Item,
    Kind,
    Payload,
    Peek,
    Phase,
)
from smelt.ops.combine import Combine
from smelt.types.affine import axes_through
from smelt.types.dtype import DType, f64
from smelt.types.expr import Expr, Index, substitute
from smelt.types.expr import value as value_of

FOLDS = ("fold", "dot", "scan")
HELD = (*FOLDS, "state", "edge")
"""What has a value for each position of its own, so that it cannot be computed at another one."""


class Cloner:
    """Copies of values with axes replaced, added to the phase just before `user`.  `limits` are
    tests that loads get which vary along an axis."""

    def __init__(
        self,
        phase: Phase,
        user: Item,
        at: Mapping[str, Index],
        limits: Mapping[str, tuple[Index, Index]] | None = None,
    ) -> None:
        self.phase, self.user, self.at, self.limits = phase, user, at, limits or {}
        self.known: dict[Item, Item] = {}
        self.names: dict[str, Index] = {}

    def of(self, item: Item) -> Item:
        """The copy of a value; itself where nothing in it is replaced."""
        if not item.axes & self.at.keys():
            return item
        found = self.known.get(item)
        if found is None and isinstance(item.payload, Folding) and item.kind == "scan":
            (along,) = item.payload.over
            at = self.at.get(along)
            assert isinstance(at, int), "a running fold has a value for each position of its own"
            found = self.known[item] = self._running(item, item.payload.row, along, at)
        if found is None:
            args = tuple(self.of(a) for a in item.args)
            payload = self._payload(item)
            axes = frozenset[str]().union(*(a.axes for a in args))
            if isinstance(payload, Peek):
                axes -= {a for a, _ in payload.at}
            elif isinstance(payload, Folding) and item.kind != "scan":
                assert self.at.keys().isdisjoint(payload.over), "a fold has all of its axes"
                axes -= {*payload.over}
            for e in indices(payload):
                axes |= self._axes(e)
            found = Item(0, item.kind, payload, args, axes, item.dtype, item.time)
            if isinstance(payload, Clamping):
                self.phase.positions[payload.name] = found
            self.phase.items.insert(self.phase.items.index(self.user), found)
            self.known[item] = found
        return found

    def _running(self, scan: Item, row: Combine, along: str, last: int) -> Item:
        """A running fold at a position of its axis: all up to there, one after the other.  Floats
        are carried in double precision where errors add up."""
        (arg,) = scan.args
        wide = f64 if row.wide and scan.dtype.is_float else scan.dtype
        places = [{**self.at, along: k} for k in range(last + 1)]
        first, *more = [
            self._converted(Cloner(self.phase, self.user, at).of(arg), wide) for at in places
        ]
        for term in more:
            first = put_before(self.phase, self.user, "apply", row.scalar, (first, term), wide)
        return self._converted(first, scan.dtype)

    def _converted(self, item: Item, dtype: DType) -> Item:
        if item.dtype == dtype:
            return item
        return put_before(self.phase, self.user, "cast", Converting(dtype), (item,), dtype)

    def _axes(self, e: Index) -> frozenset[str]:
        return axes_through((e,), lambda name: self.phase.positions[name].axes)

    def _put(self, e: Index) -> Index:
        return substitute(substitute(e, self.at), self.names, "value")

    def _payload(self, item: Item) -> Payload:
        payload = item.payload
        if isinstance(payload, Access):
            limits = [(self._put(e), self._put(n)) for e, n in payload.limits]
            limits += [pair for a, pair in self.limits.items() if a in item.axes]
            return Access(payload.buffer, self._put(payload.offset), tuple(limits), payload.other)
        if isinstance(payload, Peek):
            return Peek(tuple((a, self._put(e)) for a, e in payload.at))
        if isinstance(payload, Clamping):
            name = self._position_name(payload)
            return Clamping(name, self._put(payload.extent), payload.inside)
        return self._put(payload) if isinstance(payload, Expr) else payload

    def _position_name(self, payload: Clamping) -> str:
        name = f"{payload.name}.at"
        while name in self.phase.positions:
            name += "'"
        self.names[payload.name] = value_of(name, payload.extent)
        return name


def put_before(
    phase: Phase, user: Item, kind: Kind, payload: Payload, args: tuple[Item, ...], dtype: DType
) -> Item:
    """A new item just before `user`."""
    axes = frozenset[str]().union(*(a.axes for a in args))
    found = Item(0, kind, payload, args, axes, dtype, user.time)
    phase.items.insert(phase.items.index(user), found)
    if dtype == f64 != user.dtype:
        phase.carried.add(found)
    return found


def indices(payload: Payload) -> list[Index]:
    """The index expressions of an item."""
    if isinstance(payload, Access):
        return [payload.offset, *(e for pair in payload.limits for e in pair)]
    if isinstance(payload, Peek):
        return [e for _, e in payload.at]
    return [payload] if isinstance(payload, Expr) else []


def reached(root: Item, axes: set[str]) -> Iterator[Item]:
    """What a value is computed from, as far as it varies along some of these axes."""
    pending, seen = [root], {root}
    while pending:
        item = pending.pop()
        if item.axes & axes:
            yield item
            fresh = [a for a in item.args if a not in seen]
            seen.update(fresh)
            pending += fresh


def folds(root: Item, axes: set[str]) -> bool:
    """Whether a fold, or a state that one is carried in, stands between a value and the memory that
    it reads along some axes."""
    return any(i.kind in HELD for i in reached(root, axes))


def join_equal(phase: Phase) -> None:
    """Makes items one that say the same: what one column computes is what another did."""
    known: dict[object, Item] = {}
    one: dict[Item, Item] = {}
    for item in phase.items:
        item.args = tuple(one.get(a, a) for a in item.args)
        number = item.payload.other if isinstance(item.payload, Access) else item.payload
        exact = repr(number) if isinstance(number, float) else None  # 0.0 is not -0.0
        key = (item.kind, item.payload, exact, item.args, item.dtype, item.time, item.axes)
        one[item] = known.setdefault(key, item)
    phase.stores[:] = [
        replace(s, value=one[s.value], where=s.where and one[s.where]) for s in phase.stores
    ]
    phase.items[:] = [i for i in phase.items if one[i] is i]


def renumber(phase: Phase) -> None:
    """Gives items their places in the phase as numbers."""
    for number, item in enumerate(phase.items):
        item.number = number


def prune(phase: Phase) -> Phase:
    """Drops items that no root needs, settings of states that nobody reads, and renumbers."""
    while True:
        wanted: set[Item] = set()
        pending = phase.roots()
        while pending:
            item = pending.pop()
            if item not in wanted:
                wanted.add(item)
                pending.extend(item.args)
        read = {i.payload for i in wanted if i.kind == "state"}
        kept = [s for s in phase.settings if s.state in read]
        if len(kept) == len(phase.settings):
            break
        phase.settings = kept
    phase.items = [i for i in phase.items if i in wanted]
    renumber(phase)
    return phase
