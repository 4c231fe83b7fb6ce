"""Swaths: the whole rows that a block of a stream has are taken a few at a time.

Where rows of keys are streamed, each block of them meets all rows of queries, and what is computed
for each pair goes from nest to nest: a product, a difference, an exponential, the products that
take it.  All pairs of a block at once are more than the nearest caches hold.  So the rows are
visited inside of the block, and what a block sums over all of them is carried from swath to swath:

    stream l/128                    stream l/128
      s = dot(q[i], k[l])             stream i/192 with sum = 0 [l]
      w = exp(s - m[i])       ->        s = dot(q[i], k[l])
      y[l] = dot(w, g[i] over i)        w = exp(s - m[i])
                                        sum' = sum + dot(w, g[i] over i)
                                      y[l] = sum

Nothing may be asked of such a sum before the last swath, and nothing but sums and other commutative
folds ends the rows.  States along the rows move on swath by swath, as nobody else reads them.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.blocks import SWATH
from smelt.codegen.llvm.loopir.clone import renumber
from smelt.codegen.llvm.loopir.items import (
    Access,
    Carried,
    Converting,
    Edge,
    Folding,
    Item,
    Phase,
    Region,
    Setting,
    Visit,
    chain,
)
from smelt.dataclass import dataclass
from smelt.types.dtype import f64


def in_swaths(phase: Phase) -> Phase:
    """Visits the rows of each stream's products in swaths, where that may be."""
    for region in phase.regions():
        for axis in list(phase.axes):
            found = _parts(phase, region, axis)
            if found is not None:
                _visit(phase, region, axis, found)
                break
    return phase


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is known of a segment: what varies along the rows, what ends them, what follows."""

    time: int
    along: set[Item]
    ended: list[Item]
    after: set[Item]


def _parts(phase: Phase, region: Region, axis: str) -> _Parts | None:
    """The parts of a region's segment, if its rows may be visited in swaths and products gain."""
    times = [t for t, r in enumerate(phase.segments) if r is region]
    extent = phase.axes[axis]
    around = chain(region)
    taken = {v.axis for r in around for v in r.visits}
    barred = {*phase.grid, *phase.cut, *phase.places, *taken}
    if len(times) != 1 or any(r is not None and r.parent is region for r in phase.segments):
        return None
    if axis in barred or (isinstance(extent, int) and extent <= SWATH):
        return None
    (time,) = times
    inside = [i for i in phase.items if i.time == time]
    blocks = {v.axis for r in around for v in r.visits if v.size not in (None, 1)}
    pairs = [i for i in inside if i.kind == "dot" and axis in i.axes and blocks & i.axes]
    if len(pairs) < 2:  # the second cache holds what one product makes
        return None
    along = {i for i in inside if axis in i.axes}
    ended = [i for i in inside if _ends(i, axis)]
    after = set[Item]()
    for i in inside:
        if any(a in after or a in ended for a in i.args):
            after.add(i)
    return (
        None
        if _is_kept_whole(phase, time, axis, inside)
        or along & after
        or not all(_joins(i) for i in ended)
        else _Parts(time, along, ended, after)
    )


def _ends(item: Item, axis: str) -> bool:
    """Whether a fold ends an axis that its operands have."""
    own = isinstance(item.payload, Folding) and item.kind in ("fold", "dot")
    return own and axis in item.payload.over  # type: ignore[union-attr]


def _joins(fold: Item) -> bool:
    """Whether what parts of the rows are folded to can be joined."""
    assert isinstance(fold.payload, Folding)
    row = fold.payload.row
    return not row.positional and not (row.compensated and fold.dtype == f64)


def _is_kept_whole(phase: Phase, time: int, axis: str, inside: list[Item]) -> bool:
    """Whether something asks for the order of rows, or reads what the kernel writes."""
    if any(i.kind == "scan" and axis in _over(i) for i in inside):
        return True
    if any(isinstance(i.payload, Edge) and i.payload.axis == axis for i in phase.items):
        return True
    written = {s.access.buffer for s in phase.stores}
    return any(isinstance(i.payload, Access) and i.payload.buffer in written for i in inside)


def _over(item: Item) -> tuple[str, ...]:
    return item.payload.over if isinstance(item.payload, Folding) else ()


def _visit(phase: Phase, region: Region, axis: str, parts: _Parts) -> None:
    """Makes three segments of one: before the swaths, in them, and after them."""
    time, swaths = parts.time, Region(region, (Visit(axis, SWATH),))
    phase.segments[time : time + 1] = [region, swaths, region]
    inside, carried = {*parts.along, *parts.ended}, dict[Item, Item]()
    for item in phase.items:
        if item.time > time or item in parts.after:
            item.time += 2
        elif item in inside:
            item.time += 1
    for s in phase.settings:
        if s.time > time or (s.time == time and s.value in parts.after):
            s.time += 2
        elif s.time == time:
            s.time += 1 if axis in s.state.axes else 2
    for fold in parts.ended:
        carried[fold] = _carry(phase, region, fold, time)
    for item in (i for i in phase.items if i.time > time + 1):
        item.args = tuple(carried.get(a, a) for a in item.args)
    for s in (s for s in phase.settings if s.time > time + 1):
        s.value = carried.get(s.value, s.value)
    phase.stores = [
        replace(
            s,
            value=carried.get(s.value, s.value),
            where=s.where and carried.get(s.where, s.where),
            time=s.time + (0 if s.time < time else 1 if s.time == time and axis in s.axes else 2),
        )
        for s in phase.stores
    ]
    phase.items.sort(key=lambda i: i.time)
    renumber(phase)


def _carry(phase: Phase, region: Region, fold: Item, time: int) -> Item:
    """Carries a fold from swath to swath; what it is after the last one."""
    assert isinstance(fold.payload, Folding)
    row, result = fold.payload.row, fold.dtype
    if fold.kind == "fold" and row.wide and result.is_float:
        fold.dtype = f64  # a part is rounded once, with the whole
    state = Carried(f"swath.{fold.number}", fold.axes, fold.dtype, region)
    first = Item(0, "const", row.identity(fold.dtype), (), frozenset(), fold.dtype, time)
    old = Item(0, "state", state, (), fold.axes, fold.dtype, time + 1)
    new = Item(0, "apply", row.scalar, (old, fold), fold.axes, fold.dtype, time + 1)
    last = Item(0, "state", state, (), fold.axes, fold.dtype, time + 2)
    phase.settings += [Setting(state, first, time), Setting(state, new, time + 1)]
    phase.items += [first, old, new]
    phase.items.insert(0, last)
    if result == fold.dtype:
        return last
    found = Item(0, "cast", Converting(result), (last,), fold.axes, result, time + 2)
    phase.items.insert(1, found)
    phase.carried |= {fold, old, new, last}
    return found


__all__ = ["in_swaths"]
