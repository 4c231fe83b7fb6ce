"""Find stores that cover only a range of an axis.

A contraction whose slices are separate results has such stores.  `y[i, n - a] = v where (n >= a) &
(n < b)` tests every element; a nest that walks from `a` to `b` alone tests nothing, and a task
whose columns are inside one range lets its tiles write there.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.codegen.llvm.loopir.items import Apply, Item, StoreItem, index_of
from smelt.ops.combine import BOTH
from smelt.ops.contract import bare_axis
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, add, axes_of, maximum, minimum


@dataclass(frozen=True, slots=True)
class Range:
    """Positions of an axis from `first` up to `stop` (None: its end)."""

    axis: str
    first: Index
    stop: Index | None


@dataclass(frozen=True, slots=True)
class InPlaceUpdate:
    """Ranges outside of which each of the `destinations` gets the elements of its source again."""

    arrays: tuple[tuple[str, str], ...]
    """Source and destination buffers."""
    ranges: tuple[Range, ...]
    """The positions that get new elements; all others are copied. None at all: `is_copy`."""
    is_copy: bool = False


def stored_range(store: StoreItem) -> Range | None:
    """Return the range of one axis to which a store's condition is equivalent, or None."""
    if store.where is None:
        return None
    if not all(map(_bounds, _tests(store.where))):
        return None
    ranges = [*implied_ranges(store.where).values()]
    return ranges[0] if len(ranges) == 1 else None


def implied_ranges(condition: Item) -> dict[str, Range]:
    """Return the ranges of axes that a condition implies, by axis."""
    ranges: dict[str, Range] = {}
    for test in _tests(condition):
        for name, below, limit in _bounds(test):
            r = ranges.get(name, Range(name, 0, None))
            if below:
                r = Range(name, r.first, limit if r.stop is None else minimum(r.stop, limit))
            else:
                r = Range(name, maximum(r.first, limit), r.stop)
            ranges[name] = r
    return ranges


def _tests(item: Item) -> Iterator[Item]:
    """Yield the terms of a conjunction."""
    if isinstance(item, Apply) and item.op == BOTH:
        for a in item.args:
            yield from _tests(a)
    else:
        yield item


def _bounds(test: Item) -> list[tuple[str, bool, Index]]:
    """Return the bounds that a test is equivalent to: axis, whether from above, limit."""
    if not isinstance(test, Apply) or test.op not in ("lt", "ge", "eq"):
        return []
    left, right = (index_of(a) for a in test.args)
    name = bare_axis(left) if isinstance(left, Expr) else None
    if name is None or right is None or _varies(right):
        return []
    bounds: list[tuple[str, bool, Index]] = []
    if test.op != "lt":
        bounds.append((name, False, right))
    if test.op != "ge":
        bounds.append((name, True, add(right, 1) if test.op == "eq" else right))
    return bounds


def _varies(e: Index) -> bool:
    return isinstance(e, Expr) and bool(axes_of(e))
