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

from dataclasses import replace

from smelt.codegen.llvm.loopir.clone import renumber
from smelt.codegen.llvm.loopir.items import (
    Access,
    Conversion,
    Edge,
    Item,
    Phase,
    Reduction,
    Region,
    StateUpdate,
    StreamState,
    Visit,
    enclosing_regions,
)
from smelt.machine.blocks import STREAM_ROW_BLOCK
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f64


def block_rows(phase: Phase) -> Phase:
    """Block the rows of each stream's contractions, where that is legal and pays."""
    for region in phase.regions():
        for axis in list(phase.axes):
            parts = _classify(phase, region, axis)
            if parts is not None:
                _split_segment(phase, region, axis, parts)
                break
    return phase


@dataclass(frozen=True, slots=True)
class _SegmentItems:
    """The items of a segment by their relation to the row axis."""

    time: int
    along: set[Item]
    """What varies along the rows."""
    ended: list[Item]
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
    pairs = [i for i in inside if i.kind == "dot" and axis in i.axes and blocks & i.axes]
    if len(pairs) < 2:  # the L2 cache holds the results of a single contraction
        return None
    along = {i for i in inside if axis in i.axes}
    ended = [i for i in inside if _reduces(i, axis)]
    after = set[Item]()
    for i in inside:
        if any(a in after or a in ended for a in i.args):
            after.add(i)
    return (
        None
        if _needs_row_order(phase, time, axis, inside)
        or along & after
        or not all(_is_combinable(i) for i in ended)
        else _SegmentItems(time, along, ended, after)
    )


def _reduces(item: Item, axis: str) -> bool:
    """Return whether an item is a reduction over an axis."""
    is_reduction = isinstance(item.payload, Reduction) and item.kind in ("reduce", "dot")
    return is_reduction and axis in item.payload.over  # type: ignore[union-attr]


def _is_combinable(reduction: Item) -> bool:
    """Return whether partial results of a reduction can be combined."""
    assert isinstance(reduction.payload, Reduction)
    row = reduction.payload.row
    return not row.positional and not (row.compensated and reduction.dtype == f64)


def _needs_row_order(phase: Phase, time: int, axis: str, inside: list[Item]) -> bool:
    """Return whether something depends on the order of rows, or reads what the kernel writes."""
    if any(i.kind == "scan" and axis in _over(i) for i in inside):
        return True
    if any(isinstance(i.payload, Edge) and i.payload.axis == axis for i in phase.items):
        return True
    written = {s.access.buffer for s in phase.stores}
    return any(isinstance(i.payload, Access) and i.payload.buffer in written for i in inside)


def _over(item: Item) -> tuple[str, ...]:
    return item.payload.over if isinstance(item.payload, Reduction) else ()


def _split_segment(phase: Phase, region: Region, axis: str, parts: _SegmentItems) -> None:
    """Split a segment in three: before the row blocks, in them, and after them."""
    time, inner = parts.time, Region(region, (Visit(axis, STREAM_ROW_BLOCK),))
    phase.segments[time : time + 1] = [region, inner, region]
    inside, carried = {*parts.along, *parts.ended}, dict[Item, Item]()
    for item in phase.items:
        if item.time > time or item in parts.after:
            item.time += 2
        elif item in inside:
            item.time += 1
    for s in phase.state_updates:
        if s.time > time or (s.time == time and s.value in parts.after):
            s.time += 2
        elif s.time == time:
            s.time += 1 if axis in s.state.axes else 2
    for reduction in parts.ended:
        carried[reduction] = _carry(phase, region, reduction, time)
    for item in (i for i in phase.items if i.time > time + 1):
        item.args = tuple(carried.get(a, a) for a in item.args)
    for s in (s for s in phase.state_updates if s.time > time + 1):
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


def _carry(phase: Phase, region: Region, reduction: Item, time: int) -> Item:
    """Carry a reduction from row block to row block, and return its final value."""
    assert isinstance(reduction.payload, Reduction)
    row, result = reduction.payload.row, reduction.dtype
    if reduction.kind == "reduce" and row.wide and result.is_float:
        reduction.dtype = f64  # partial sums are not rounded, only the total is
    state = StreamState(f"swath.{reduction.number}", reduction.axes, reduction.dtype, region)
    first = Item(0, "const", row.identity(reduction.dtype), (), frozenset(), reduction.dtype, time)
    old = Item(0, "state", state, (), reduction.axes, reduction.dtype, time + 1)
    new = Item(0, "apply", row.scalar, (old, reduction), reduction.axes, reduction.dtype, time + 1)
    last = Item(0, "state", state, (), reduction.axes, reduction.dtype, time + 2)
    phase.state_updates += [StateUpdate(state, first, time), StateUpdate(state, new, time + 1)]
    phase.items += [first, old, new]
    phase.items.insert(0, last)
    if result == reduction.dtype:
        return last
    rounded = Item(0, "cast", Conversion(result), (last,), reduction.axes, result, time + 2)
    phase.items.insert(1, rounded)
    phase.widened |= {reduction, old, new, last}
    return rounded


__all__ = ["block_rows"]
