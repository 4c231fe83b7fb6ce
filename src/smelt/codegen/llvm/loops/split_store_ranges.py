"""Emit stores to a range of an axis without testing every element.

Either a nest walks only the range, or overlapping vectors cover it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, iota, number, splat
from smelt.codegen.llvm.loopir.items import Item, StoreItem
from smelt.codegen.llvm.loopir.store_ranges import InPlaceUpdate, Range, stored_range
from smelt.codegen.llvm.nests.environment import Environment, Scope


def run_in_range(env: Environment, within: Range, run: Callable[[], None]) -> None:
    """Run a nest over the overlap of a task with a range of an axis.

    `run` emits the nest; it is skipped if they do not overlap.
    """
    _run_in_ranges(env, [within], None, run)


def run_in_place(env: Environment, update: InPlaceUpdate, run: Callable[[], None]) -> None:
    """Run a nest, in place only where it changes something.

    `run` emits the nest.  The call decides whether results take the memory of their sources.
    """
    b = env.b
    apart: ir.Value | None = None
    for names in update.arrays:
        source, destination = (b.ptrtoint(env.frame.buffers[n], I64) for n in names)
        differs = b.icmp_signed("!=", source, destination)
        apart = differs if apart is None else b.or_(apart, differs)
    assert apart is not None
    if update.is_copy:
        with b.if_then(apart):
            run()
        return
    _run_in_ranges(env, update.ranges, apart, run)


def _run_in_ranges(
    env: Environment, ranges: Iterable[Range], always: ir.Value | None, run: Callable[[], None]
) -> None:
    """Run a nest over the overlap with ranges, or over everything if `always`."""
    b, outer, inner = env.b, env.ranges, dict(env.ranges)
    overlaps: ir.Value | None = None
    for within in ranges:
        first, stop = range_ends(env, within)
        if within.axis not in outer:  # the task has one position
            at = env.top.axis(within.axis)
            low, high = at, b.add(at, number(1))
        else:
            low, high = outer[within.axis]
        start = b.select(b.icmp_signed("<", low, first), first, low)
        end = high if stop is None else b.select(b.icmp_signed("<", stop, high), stop, high)
        if always is not None:
            start, end = b.select(always, low, start), b.select(always, high, end)
        if within.axis in outer:
            inner[within.axis] = start, end
        one = b.icmp_signed("<", start, end)
        overlaps = one if overlaps is None else b.and_(overlaps, one)
    assert overlaps is not None
    with b.if_then(overlaps), env.within(ranges=inner):
        run()


def store_in_range(env: Environment, s: StoreItem, scope: Scope) -> bool:
    """Store those lanes of a vector that are inside a store's range.

    Only the few vectors that overlap the range do anything.  Returns whether the store has such a
    range.
    """
    b, lanes, within = env.b, scope.lanes, stored_range(s)
    if lanes is None or within is None or within.axis != lanes.axis:
        return False
    first, stop = range_ends(env, within)
    overlaps = b.icmp_signed("<", first, b.add(lanes.base, number(lanes.count)))
    if stop is not None:
        overlaps = b.and_(overlaps, b.icmp_signed("<", lanes.base, stop))
    with b.if_then(overlaps):
        lane_numbers = iota(lanes.count)
        mask = b.icmp_signed(">=", lane_numbers, splat(b, b.sub(first, lanes.base), lanes.count))
        if stop is not None:
            stop_lane = splat(b, b.sub(stop, lanes.base), lanes.count)
            mask = b.and_(mask, b.icmp_signed("<", lane_numbers, stop_lane))
        inner = Scope(scope, lanes=lanes)  # values computed here are not available elsewhere
        env.put(s, env.get(s.value, inner, True), mask, inner)
    return True


def single_range_items(env: Environment, scope: Scope) -> frozenset[Item]:
    """Return the items that only one range store needs: computed if a vector overlaps it."""
    lanes, nest = scope.lanes, env.nest
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
    users = Counter(i for s in nest.stores for i in _dependencies(env, [s.value]))
    needed_otherwise = _dependencies(
        env,
        [
            *nest.saves,
            *nest.scalars,
            *(a for f in nest.reductions for a in f.args),
            *(setting.value for setting in nest.state_updates),
            *(s.where for s in nest.stores if s.where is not None and s not in ranged),
        ],
    )
    single_use = [i for s in ranged for i in _dependencies(env, [s.value]) if users[i] == 1]
    return frozenset(single_use).difference(needed_otherwise)


def _dependencies(env: Environment, roots: Iterable[Item]) -> set[Item]:
    """Return what values depend on within the current nest."""
    items, pending = set[Item](), [*roots]
    while pending:
        item = pending.pop()
        if item in env.live_items and item not in items:
            items.add(item)
            pending += item.args
    return items


def range_ends(env: Environment, within: Range) -> tuple[ir.Value, ir.Value | None]:
    """Return where a range begins and where it stops (None: the axis' end)."""
    first = env.frame.index(within.first) if within.first != 0 else number(0)
    return first, None if within.stop is None else env.frame.index(within.stop)
