"""Clone values with axes replaced by index expressions: the same computation at another position.

Used wherever a value is needed at other positions than its own: the image of a convolution is
packed by input position instead of by (output, tap), and a small reduction is unrolled into one
clone of its element for each position.

    Cloner(draft, user, {"u": 0}).of(item)      the item at u = 0, inserted before `user`

Also: inserting items, common subexpression elimination, dead code elimination, and the backward
slice of values with its cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Phase
from smelt.codegen.llvm.loopir.rewrite import Draft, rebuild
from smelt.ops.scalar import SCALARS
from smelt.types.affine import dependent_axes
from smelt.types.dtype import DType, f64
from smelt.types.expr import Index, substitute
from smelt.types.expr import value as value_of


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
        if clone is None and isinstance(item, ssa.Scan):
            (along,) = item.over
            at = self.at.get(along)
            assert isinstance(at, int), "a scan has a value at each of its positions"
            clone = self.clones[item] = self._unroll_scan(item, along, at)
        if clone is None:
            args = tuple(self.of(a) for a in item.args)
            changed = self.changed(item)
            axes = ssa.union_of_axes(args)
            if isinstance(changed, ssa.WindowRead):
                axes -= {a for a, _ in changed.at}
            axes = axes.union(*map(self._axes, changed.indices))
            if isinstance(changed, ssa.Reduction):
                assert self.at.keys().isdisjoint(changed.over), "a reduction has all of its axes"
                axes -= {*changed.over}
            clone = replace(changed, args=args, axes=axes)
            if isinstance(clone, ssa.Position):
                self.draft.name_position(clone.name, clone)
            self.clones[item] = self.draft.insert(self.user, clone)
        return clone

    def _unroll_scan(self, scan: ssa.Scan, along: str, last: int) -> Item:
        """Unroll a scan up to position `last` of its axis.

        Sums of floats are carried in float64, as in the loop.
        """
        (arg,), row = scan.args, scan.row
        dtype = f64 if row.wide and scan.dtype.is_float else scan.dtype
        positions = [{**self.at, along: k} for k in range(last + 1)]
        total, *terms = [
            self._cast(Cloner(self.draft, self.user, at).of(arg), dtype) for at in positions
        ]
        for term in terms:
            total = insert_before(
                self.draft, self.user, ssa.apply(row.scalar, (total, term), dtype)
            )
        return self._cast(total, scan.dtype)

    def _cast(self, item: Item, dtype: DType) -> Item:
        if item.dtype == dtype:
            return item
        return insert_before(self.draft, self.user, ssa.cast(item, dtype))

    def _axes(self, e: Index) -> frozenset[str]:
        return dependent_axes((e,), lambda name: self.draft.phase.positions[name].axes)

    def _substitute(self, e: Index) -> Index:
        return substitute(substitute(e, self.at), self.names, "value")

    def changed(self, item: Item) -> Item:
        """Return an item with axes and computed positions replaced, of the same operands."""
        changed = item.map_indices(self._substitute)
        if isinstance(changed, ssa.Load):
            limits = [pair for a, pair in self.limits.items() if a in item.axes]
            access = replace(changed.access, limits=(*changed.access.limits, *limits))
            return replace(changed, access=access)
        if isinstance(changed, ssa.Position):
            return replace(changed, name=self._position_name(changed))
        return changed

    def _position_name(self, position: ssa.Position) -> str:
        name = f"{position.name}.at"
        while name in self.draft.phase.positions:
            name += "'"
        self.names[position.name] = value_of(name, position.extent)
        return name


def insert_before(draft: Draft, user: Item, item: Item) -> Item:
    """Insert a new item just before `user`, in its segment, and return it."""
    item = draft.insert(user, replace(item, time=user.time))
    if item.dtype == f64 != user.dtype:
        draft.widen(item)
    return item


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
    return any(
        isinstance(i, (ssa.Reduction, ssa.StateRead, ssa.BlockEdge))
        for i in dependencies(root, axes)
    )


def merge_equal_items(phase: Phase) -> Phase:
    """Merge equal items (common subexpression elimination)."""
    canonical: dict[object, Item] = {}

    def first_equal(_: Item, item: Item) -> Item:
        return canonical.setdefault(item.key, item)

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
        read = {i.state for i in live if isinstance(i, ssa.StateRead)}
        updates = tuple(s for s in phase.state_updates if s.state in read)
        if len(updates) == len(phase.state_updates):
            return replace(phase, items=tuple(i for i in phase.items if i in live))
        phase = replace(phase, state_updates=updates)


def backward_slice(phase: Phase, roots: list[Item], ends: Collection[Item]) -> list[Item]:
    """Return what some values depend on, in order; the slice stops at `ends`."""
    slice_items, pending = set[Item](), list(roots)
    while pending:
        item = pending.pop()
        if item not in slice_items:
            slice_items.add(item)
            position_names = item.access.positions if isinstance(item, ssa.Load) else ()
            pending += [phase.positions[name] for name in position_names]
            pending += () if item in ends else item.args
    return [i for i in phase.items if i in slice_items]


def cost_of(items: list[Item]) -> float:
    """Return the cycles for one vector of the scalar operators among items."""
    return sum(SCALARS[i.op].cost for i in items if isinstance(i, ssa.Apply))
