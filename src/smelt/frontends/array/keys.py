"""Convert keys of `x[key]` to hashable keys of caches, and back.

>>> hashable_key((0, slice(1, None), ..., None)), hashable_key([0, 1])
((0, (1, None, None), Ellipsis, None), None)
>>> restore_key((0, (1, None, None)))
(0, slice(1, None, None))
"""

from __future__ import annotations

from typing import Any

__all__ = ["ARRAY", "OTHER", "hashable_item", "hashable_key", "restore_key"]

ARRAY = "array"
"""Marks an array among the items of a key."""
OTHER = object()
"""Marks an item that is no plain integer, slice, None or Ellipsis."""


def hashable_key(key: Any) -> tuple[Any, ...] | None:
    """Return a key of plain integers, slices, None and Ellipsis as a hashable tuple.

    None for keys with other items.
    """
    items = tuple([hashable_item(item) for item in (key if key.__class__ is tuple else (key,))])
    return None if OTHER in items else items


def restore_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Restore the key that `hashable_key` converted."""
    return tuple([slice(*i) if i.__class__ is tuple else i for i in key])


def hashable_item(item: Any) -> Any:
    """Return a hashable item of a key: a slice as a tuple, `OTHER` if unsupported."""
    if item.__class__ is int or item is None or item is Ellipsis:
        return item
    if item.__class__ is slice:
        bounds = (item.start, item.stop, item.step)
        if all(b is None or b.__class__ is int for b in bounds):
            return bounds
    return OTHER
