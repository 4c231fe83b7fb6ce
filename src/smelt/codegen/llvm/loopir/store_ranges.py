"""Find stores that cover only a range of an axis.

A contraction whose slices are separate results has such stores.  `y[i, n - a] = v where (n >= a) &
(n < b)` tests every element; a nest that walks from `a` to `b` alone tests nothing, and a task
whose columns are inside one range lets its tiles write there.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.codegen.llvm.loopir.items import Item, StoreItem
from smelt.dataclass import dataclass
from smelt.ops.combine import BOTH
from smelt.ops.contract import bare_axis
from smelt.types.expr import Expr, Index, axes_of, maximum, minimum


@dataclass(frozen=True, slots=True)
class Range:
    """Positions of an axis from `first` up to `stop` (None: its end)."""

    axis: str
    first: Index
    stop: Index | None


def stored_range(store: StoreItem) -> Range | None:
    """Return the range of one axis to which a store's condition is equivalent, or None."""
    if store.where is None:
        return None
    name, first, stop = "", 0, None
    for test in _tests(store.where):
        bound = _bound(test)
        if bound is None or name not in ("", bound[0]):
            return None
        name, below, limit = bound
        if below:
            stop = limit if stop is None else minimum(stop, limit)
        else:
            first = maximum(first, limit)
    return Range(name, first, stop)


def _tests(item: Item) -> Iterator[Item]:
    """Yield the terms of a conjunction."""
    if item.kind == "apply" and item.payload == BOTH:
        for a in item.args:
            yield from _tests(a)
    else:
        yield item


def _bound(test: Item) -> tuple[str, bool, Index] | None:
    """Return the bound that a test sets: axis, whether from above, limit."""
    if test.kind != "apply" or test.payload not in ("lt", "ge"):
        return None
    left, right = (_index(a) for a in test.args)
    name = bare_axis(left) if isinstance(left, Expr) else None
    if name is None or right is None or _varies(right):
        return None
    return name, test.payload == "lt", right


def _varies(e: Index) -> bool:
    return isinstance(e, Expr) and bool(axes_of(e))


def _index(item: Item) -> Index | None:
    """Return an item as an index expression, if it is one."""
    if item.kind in ("index", "const") and isinstance(item.payload, (int, Expr)):
        return item.payload
    return None
