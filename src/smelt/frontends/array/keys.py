"""Keys of `x[key]` as something that can be hashed, by which what was recorded is known again.

>>> frozen((0, slice(1, None), ..., None)), frozen([0, 1])
((0, (1, None, None), Ellipsis, None), None)
>>> thawed((0, (1, None, None)))
(0, slice(1, None, None))
"""

from __future__ import annotations

from typing import Any

__all__ = ["ARRAY", "OTHER", "frozen", "frozen_item", "thawed"]

ARRAY = "array"
"""Stands for an array among the items of a key."""
OTHER = object()
"""Stands for an item that is no plain integer, slice, None or Ellipsis."""


def frozen(key: Any) -> tuple[Any, ...] | None:
    """A key of plain integers, slices, None and Ellipsis as something that can be hashed; None for
    any other."""
    items = tuple([frozen_item(item) for item in (key if key.__class__ is tuple else (key,))])
    return None if OTHER in items else items


def thawed(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `frozen` was given."""
    return tuple([slice(*i) if i.__class__ is tuple else i for i in key])


def frozen_item(item: Any) -> Any:
    """An item of a key as something that can be hashed; a slice as a tuple."""
    if item.__class__ is int or item is None or item is Ellipsis:
        return item
    if item.__class__ is slice:
        bounds = (item.start, item.stop, item.step)
        if all(b is None or b.__class__ is int for b in bounds):
            return bounds
    return OTHER
