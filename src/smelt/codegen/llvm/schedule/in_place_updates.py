"""Find what a nest need not visit if it updates an array in place.

    y[i,j] = select(i == 3, u[j], x[i,j])

If y takes the memory of x, all rows but one are there already.  The call decides whether it does.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.codegen.llvm.loopir.items import Apply, Item, Load, Phase, Scan, StoreItem
from smelt.codegen.llvm.loopir.store_ranges import InPlaceUpdate, Range, implied_ranges
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.types.expr import Expr, atoms, maximum, minimum


def find_in_place_update(nest: Nest, schedule: Schedule) -> InPlaceUpdate | None:
    """Return what a nest changes of the arrays that it updates, or None."""
    phase = schedule.phase
    is_map = not (nest.reductions or nest.saves or nest.state_updates or nest.scalars)
    if not is_map or not nest.stores or schedule.products:
        return None
    if any(isinstance(i, Scan) for i in nest.items):
        return None
    updates = [_update_of(s, phase) for s in nest.stores]
    first = updates[0]
    if first is None or any(u is None or u.ranges != first.ranges for u in updates):
        return None
    if first.is_copy and not (len(updates) == 1 and _is_rewritten(nest.stores[0], phase)):
        return None
    return InPlaceUpdate(
        tuple(pair for u in updates if u is not None for pair in u.arrays),
        first.ranges,
        first.is_copy,
    )


def _is_rewritten(store: StoreItem, phase: Phase) -> bool:
    """Whether another store writes the same result: otherwise a copy is not an update."""
    return any(o.access.buffer == store.access.buffer and o is not store for o in phase.stores)


def _update_of(store: StoreItem, phase: Phase) -> InPlaceUpdate | None:
    if store.where is not None:
        return None
    *conditions, old = _cases(store.value)
    if not isinstance(old, Load) or old.access.limits:
        return None
    source = old.access
    same_elements = (
        source.offset == store.access.offset
        and phase.dtypes[source.buffer] == phase.dtypes[store.access.buffer]
    )
    if not same_elements:
        return None
    arrays = ((source.buffer, store.access.buffer),)
    if not conditions:
        return InPlaceUpdate(arrays, (), is_copy=True)
    ranges = tuple(r for r in _hull([implied_ranges(c) for c in conditions]) if _is_known(r))
    return InPlaceUpdate(arrays, ranges) if ranges else None


def _is_known(r: Range) -> bool:
    """Whether the ends of a range depend on sizes alone."""
    ends = (e for e in (r.first, r.stop) if isinstance(e, Expr))
    return all(a.kind != "value" for e in ends for a in atoms(e))


def _cases(value: Item) -> Iterator[Item]:
    """Yield the conditions of nested selects, and last what is selected if none holds."""
    while isinstance(value, Apply) and value.op == "select":
        condition, _, value = value.args
        yield condition
    yield value


def _hull(boxes: list[dict[str, Range]]) -> tuple[Range, ...]:
    """Return the ranges that contain all boxes, each given by its ranges of axes."""
    hull = boxes[0]
    for box in boxes[1:]:
        hull = {
            a: Range(
                a,
                minimum(r.first, box[a].first),
                None if (stop := box[a].stop) is None or r.stop is None else maximum(r.stop, stop),
            )
            for a, r in hull.items()
            if a in box
        }
    return tuple(hull.values())
