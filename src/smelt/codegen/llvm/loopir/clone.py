"""Clone values with axes replaced by index expressions: the same computation at another position.

Used wherever a value is needed at other positions than its own: the image of a convolution is
packed by input position instead of by (output, tap), and a small reduction is unrolled into one
clone of its element for each position.

    Cloner(draft, user, {"u": 0}).of(item)      the item at u = 0, inserted before `user`

Also: inserting items, common subexpression elimination and dead code elimination.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from smelt.codegen.llvm.loopir.items import (
    Access,
    Clamp,
    Conversion,
    Item,
    Kind,
    Payload,
    Phase,
    Reduction,
    WindowRead,
)
from smelt.codegen.llvm.loopir.rewrite import Draft, rebuild
from smelt.ops.combine import Combine
from smelt.types.affine import dependent_axes
from smelt.types.dtype import DType, f64
from smelt.types.expr import Expr, Index, substitute
from smelt.types.expr import value as value_of

REDUCTION_KINDS = ("reduce", "dot", "scan")
"""Kinds of items that reduce or scan."""
FIXED_POSITION_KINDS = (*REDUCTION_KINDS, "state", "edge")
"""Kinds of items that exist at their own positions only, so that they cannot be computed at another
one."""


class Cloner:
    """Clones values with axes replaced, inserting the clones just before `user`.

    `at` maps axes to what replaces them.  `limits` are bounds checks that are added to cloned loads
    which vary along an axis: axis -> (index, extent).
    """

    def __init__(
        self,
        draft: Draft,
        user: Item,
        at: Mapping[str, Index],
        limits: Mapping[str, tuple[Index, Index]] | None = None,
    ) -> None:
        self.draft, self.user, self.at, self.limits = draft, user, at, limits or {}
        self.clones: dict[Item, Item] = {}
        self.names: dict[str, Index] = {}

    def of(self, item: Item) -> Item:
        """Return the clone of a value, or the value itself if nothing is replaced."""
        if not item.axes & self.at.keys():
            return item
        clone = self.clones.get(item)
        if clone is None and isinstance(item.payload, Reduction) and item.kind == "scan":
            (along,) = item.payload.over
            at = self.at.get(along)
            assert isinstance(at, int), "a scan has a value at each of its positions"
            clone = self.clones[item] = self._unroll_scan(item, item.payload.row, along, at)
        if clone is None:
            args = tuple(self.of(a) for a in item.args)
            payload = self.payload(item)
            axes = frozenset[str]().union(*(a.axes for a in args))
            if isinstance(payload, WindowRead):
                axes -= {a for a, _ in payload.at}
            elif isinstance(payload, Reduction) and item.kind != "scan":
                assert self.at.keys().isdisjoint(payload.over), "a reduction has all of its axes"
                axes -= {*payload.over}
            for e in indices(payload):
                axes |= self._axes(e)
            clone = Item(item.kind, payload, args, axes, item.dtype, item.time)
            if isinstance(payload, Clamp):
                self.draft.name_position(payload.name, clone)
            self.clones[item] = self.draft.insert(self.user, clone)
        return clone

    def _unroll_scan(self, scan: Item, row: Combine, along: str, last: int) -> Item:
        """Unroll a scan up to position `last` of its axis.

        Sums of floats are carried in float64, as in the loop.
        """
        (arg,) = scan.args
        dtype = f64 if row.wide and scan.dtype.is_float else scan.dtype
        positions = [{**self.at, along: k} for k in range(last + 1)]
        total, *terms = [
            self._cast(Cloner(self.draft, self.user, at).of(arg), dtype) for at in positions
        ]
        for term in terms:
            total = insert_before(self.draft, self.user, "apply", row.scalar, (total, term), dtype)
        return self._cast(total, scan.dtype)

    def _cast(self, item: Item, dtype: DType) -> Item:
        if item.dtype == dtype:
            return item
        return insert_before(self.draft, self.user, "cast", Conversion(dtype), (item,), dtype)

    def _axes(self, e: Index) -> frozenset[str]:
        return dependent_axes((e,), lambda name: self.draft.phase.positions[name].axes)

    def _substitute(self, e: Index) -> Index:
        return substitute(substitute(e, self.at), self.names, "value")

    def payload(self, item: Item) -> Payload:
        """Return an item's payload with axes and computed positions replaced."""
        payload = item.payload
        if isinstance(payload, Access):
            limits = [(self._substitute(e), self._substitute(n)) for e, n in payload.limits]
            limits += [pair for a, pair in self.limits.items() if a in item.axes]
            return Access(
                payload.buffer, self._substitute(payload.offset), tuple(limits), payload.other
            )
        if isinstance(payload, WindowRead):
            return WindowRead(tuple((a, self._substitute(e)) for a, e in payload.at))
        if isinstance(payload, Clamp):
            name = self._position_name(payload)
            return Clamp(name, self._substitute(payload.extent), payload.inside)
        return self._substitute(payload) if isinstance(payload, Expr) else payload

    def _position_name(self, payload: Clamp) -> str:
        name = f"{payload.name}.at"
        while name in self.draft.phase.positions:
            name += "'"
        self.names[payload.name] = value_of(name, payload.extent)
        return name


def insert_before(
    draft: Draft,
    user: Item,
    kind: Kind,
    payload: Payload,
    args: tuple[Item, ...],
    dtype: DType,
    axes: frozenset[str] | None = None,
) -> Item:
    """Insert a new item just before `user`, and return it.

    `axes` are by default those of its operands.
    """
    if axes is None:
        axes = frozenset[str]().union(*(a.axes for a in args))
    item = draft.insert(user, Item(kind, payload, args, axes, dtype, user.time))
    if dtype == f64 != user.dtype:
        draft.widen(item)
    return item


def indices(payload: Payload) -> list[Index]:
    """Return the index expressions of an item's payload."""
    if isinstance(payload, Access):
        return [payload.offset, *(e for pair in payload.limits for e in pair)]
    if isinstance(payload, WindowRead):
        return [e for _, e in payload.at]
    return [payload] if isinstance(payload, Expr) else []


def dependencies(root: Item, axes: set[str]) -> Iterator[Item]:
    """Yield `root` and its transitive arguments, if they vary along some of `axes`."""
    pending, seen = [root], {root}
    while pending:
        item = pending.pop()
        if item.axes & axes:
            yield item
            new_args = [a for a in item.args if a not in seen]
            seen.update(new_args)
            pending += new_args


def depends_on_reduction(root: Item, axes: set[str]) -> bool:
    """Return whether a value depends on a reduction along some axes.

    Scans, states of streams and bounds of blocks count too: none of them can be cloned at other
    positions.
    """
    return any(i.kind in FIXED_POSITION_KINDS for i in dependencies(root, axes))


def merge_equal_items(phase: Phase) -> Phase:
    """Merge equal items (common subexpression elimination)."""
    canonical: dict[object, Item] = {}

    def first_equal(_: Item, item: Item) -> Item:
        number = item.payload.other if isinstance(item.payload, Access) else item.payload
        exact = repr(number) if isinstance(number, float) else None  # 0.0 is not -0.0
        key = (item.kind, item.payload, exact, item.args, item.dtype, item.time, item.axes)
        return canonical.setdefault(key, item)

    merged = rebuild(phase, first_equal)
    return replace(merged, items=tuple(dict.fromkeys(merged.items)))


def prune(phase: Phase) -> Phase:
    """Remove dead items and updates of states that nothing reads."""
    while True:
        live: set[Item] = set()
        pending = phase.roots()
        while pending:
            item = pending.pop()
            if item not in live:
                live.add(item)
                pending.extend(item.args)
        read = {i.payload for i in live if i.kind == "state"}
        updates = tuple(s for s in phase.state_updates if s.state in read)
        if len(updates) == len(phase.state_updates):
            return replace(phase, items=tuple(i for i in phase.items if i in live))
        phase = replace(phase, state_updates=updates)
