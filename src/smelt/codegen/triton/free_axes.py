"""Find the axes that a value varies along."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.kernel.ir import Dot, Extreme, IndexValue, Load, Partial, Reduce, Ref, Value
from smelt.kernel.walk import children, positions_of
from smelt.types.expr import Index, axes_of

__all__ = ["axes_of_value"]

Axes = frozenset[str]


def axes_of_value(value: Value, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a value; `names` has those of bound names."""
    inside = Axes().union(*(axes_of_value(c, names) for c in children(value)))
    match value:
        case Ref(name=name):
            return names.get(name, Axes())
        case Load(index=index):
            return inside.union(*(axes_of_index(e, names) for e in index))
        case IndexValue(index=index):
            return axes_of_index(index, names)
        case Reduce(over=over) | Dot(over=over):
            return inside - set(over)
        case Partial() | Extreme():
            return Axes()
        case _:
            return inside


def axes_of_index(e: Index, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of an index expression, also through computed positions."""
    return Axes(axes_of(e)).union(*(names.get(p, Axes()) for p in positions_of(e)))
