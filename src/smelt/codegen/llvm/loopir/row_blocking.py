"""Block the rows inside each block of a stream, for the L2 cache (loop tiling).

Where rows of keys are streamed, each block of them is paired with all rows of queries, and what is
computed for each pair goes from nest to nest: a contraction, a difference, an exponential, the
contractions that read it.  All pairs of a block at once exceed the L1 and L2 caches.  So the rows
are visited in blocks inside of the stream's block, and sums over all rows are carried from row
block to row block:

    stream l/128                    stream l/128
      s = dot(q[i], k[l])             stream i/192 with sum = 0 [l]
      w = exp(s - m[i])       ->        s = dot(q[i], k[l])
      y[l] = dot(w, g[i] over i)        w = exp(s - m[i])
                                        sum' = sum + dot(w, g[i] over i)
                                      y[l] = sum

Nothing may read such a sum before the last row block, and nothing but sums and other commutative
reductions may reduce the rows.  States along the rows are updated row block by row block, as
nothing else reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import (
    Item,
    Phase,
    Region,
    StateUpdate,
    StreamState,
    Visit,
    enclosing_regions,
)
from smelt.codegen.llvm.loopir.rewrite import rebuild
from smelt.machine.blocks import STREAM_ROW_BLOCK
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64


def block_rows(phase: Phase) -> Phase:
    """Block the rows of each stream's contractions, where that is legal and pays."""
    regions, number = phase.regions(), 0
    while number < len(regions):
        region = regions[number]
        classified = ((axis, _classify(phase, region, axis)) for axis in phase.axes)
        axis, parts = next((x for x in classified if x[1] is not None), ("", None))
        if parts is not None:
            phase = _split_segment(phase, region, axis, parts)
            regions, number = phase.regions(), number + 1  # the row blocks are a region too
        number += 1
    return phase


@dataclass(frozen=True, slots=True)
class _SegmentItems:
    """The items of a segment by their relation to the row axis."""

    time: int
    along: set[Item]
    """What varies along the rows."""
    ended: Sequence[Item]
    """Reductions of the rows."""
    after: set[Item]
    """What depends on these reductions."""


def _classify(phase: Phase, region: Region, axis: str) -> _SegmentItems | None:
    """Classify the items of a region's segment for row blocking.

    None if its rows are not blocked.
    """
    times = [t for t, r in enumerate(phase.segments) if r is region]
    extent = phase.axes[axis]
    regions = enclosing_regions(region)
    visited = {v.axis for r in regions for v in r.visits}
    barred = {*phase.grid, *phase.cut, *phase.window_positions, *visited}
    if len(times) != 1 or any(r is not None and r.parent is region for r in phase.segments):
        return None
    if axis in barred or (isinstance(extent, int) and extent <= STREAM_ROW_BLOCK):
        return None
    (time,) = times
    inside = [i for i in phase.items if i.time == time]
    blocks = {v.axis for r in regions for v in r.visits if v.size not in (None, 1)}
    pairs = [i for i in inside if isinstance(i, ssa.Dot) and axis in i.axes and blocks & i.axes]
    if len(pairs) < 2:  # the L2 cache holds the results of a single contraction
        return None
    along = {i for i in inside if axis in i.axes}
    ended = [i for i in inside if isinstance(i, (ssa.Reduce, ssa.Dot)) and axis in i.over]
    after = set[Item]()
    for i in inside:
        if any(a in after or a in ended for a in i.args):
            after.add(i)
    return (
        None
        if _needs_row_order(phase, axis, inside)
        or along & after
        or not all(_is_combinable(i) for i in ended)
        else _SegmentItems(time, along, ended, after)
    )


def _is_combinable(reduction: ssa.Reduction) -> bool:
    """Return whether partial results of a reduction can be combined."""
    row = reduction.row
    return not row.positional and not (row.compensated and reduction.dtype == f64)


def _needs_row_order(phase: Phase, axis: str, inside: list[Item]) -> bool:
    """Return whether something depends on the order of rows, or reads what the kernel writes."""
    if any(isinstance(i, ssa.Scan) and axis in i.over for i in inside):
        return True
    if any(isinstance(i, ssa.BlockEdge) and i.axis == axis for i in phase.items):
        return True
    written = {s.access.buffer for s in phase.stores}
    return any(isinstance(i, ssa.Load) and i.access.buffer in written for i in inside)


@dataclass(frozen=True, slots=True)
class _Carried:
    """A reduction that is carried from row block to row block.

    `last` has the items of its final value, of which the last one is read.
    """

    first: Item
    old: Item
    new: Item
    last: tuple[Item, ...]
    updates: tuple[StateUpdate, StateUpdate]


def _split_segment(phase: Phase, region: Region, axis: str, parts: _SegmentItems) -> Phase:
    """Split a segment in three: before the row blocks, in them, and after them."""
    time, inner = parts.time, Region(region, (Visit(axis, STREAM_ROW_BLOCK),))
    segments = (*phase.segments[:time], region, inner, region, *phase.segments[time + 1 :])
    inside, carried = {*parts.along, *parts.ended}, dict[Item, _Carried]()

    def final(item: Item) -> Item:
        return carried[item].last[-1] if item in carried else item

    def moved(before: Item, item: Item) -> Item:
        after = item.time > time or before in parts.after
        at = item.time + (2 if after else before in inside)
        if at > time + 1:
            return replace(item, time=at, args=tuple(map(final, item.args)))
        item = item if at == item.time else replace(item, time=at)
        if isinstance(item, ssa.Reduction) and before in parts.ended:
            sums = item
            if isinstance(item, ssa.Reduce) and item.row.wide and item.dtype.is_float:
                sums = replace(item, dtype=f64)  # partial sums are not rounded, only the total is
            name = f"swath.{phase.items.index(before)}"
            carried[sums] = _carry(sums, item.dtype, name, region, time)
            return sums
        return item

    late = {s: s.time > time or s.value in parts.after for s in phase.state_updates}
    moved_phase = rebuild(replace(phase, segments=segments), moved)
    updates = list[StateUpdate]()
    for before, s in zip(phase.state_updates, moved_phase.state_updates, strict=True):
        if s.time >= time and (late[before] or axis not in s.state.axes):
            updates.append(replace(s, value=final(s.value), time=s.time + 2))
        else:
            updates.append(replace(s, time=s.time + 1) if s.time == time else s)
    stores = tuple(
        replace(
            s,
            value=final(s.value),
            where=s.where and final(s.where),
            time=s.time + (0 if s.time < time else 1 if s.time == time and axis in s.axes else 2),
        )
        for s in moved_phase.stores
    )
    chains = [*carried.values()]
    items = [
        *(i for c in reversed(chains) for i in c.last),
        *moved_phase.items,
        *(i for c in chains for i in (c.first, c.old, c.new)),
    ]
    widened = {
        i for s, c in carried.items() if len(c.last) > 1 for i in (s, c.old, c.new, c.last[0])
    }
    return replace(
        moved_phase,
        items=tuple(sorted(items, key=lambda i: i.time)),
        stores=stores,
        state_updates=(*updates, *(u for c in chains for u in c.updates)),
        widened=moved_phase.widened | widened,
    )


def _carry(sums: ssa.Reduction, result: DType, name: str, region: Region, time: int) -> _Carried:
    """Carry a reduction from row block to row block, and round the last to `result`."""
    row, axes, dtype = sums.row, sums.axes, sums.dtype
    state = StreamState(name, axes, dtype, region)
    first = ssa.Const((), frozenset(), dtype, row.identity(dtype), time=time)
    old = ssa.StateRead((), axes, dtype, state, time=time + 1)
    new = ssa.Apply((old, sums), axes, dtype, row.scalar, time=time + 1)
    last = ssa.StateRead((), axes, dtype, state, time=time + 2)
    rounded = ssa.Cast((last,), axes, result, result, time=time + 2)
    updates = StateUpdate(state, first, time), StateUpdate(state, new, time + 1)
    return _Carried(first, old, new, (last,) if result == dtype else (last, rounded), updates)
