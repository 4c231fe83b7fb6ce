"""Sorting and set functions of the array API standard, through NumPy but for many short rows.

>>> import smelt as sm
>>> x = sm.asarray([3, 1, 3])
>>> sort(x), unique_values(x)
(Array([1, 3, 3]), Array([1, 3]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.library import call
from smelt.frontends.array.networks import is_short, placed, put_in_order
from smelt.frontends.array.searching import known
from smelt.frontends.array.value import Buffer, leaf
from smelt.frontends.array.views import axis_of
from smelt.types.dtype import from_numpy

__all__ = ["argsort", "sort", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


def _ordered(
    what: str, network: Callable[..., Array], x: Any, axis: int, descending: bool, stable: bool
) -> Array:
    node = value(x, what)
    if not node.type.shape:
        raise ShapeError(op=what, operands=node.told, reason="it has no dimensions")
    place = axis_of(axis, node.type.rank, what)
    if is_short(node, place):
        return network(node, place, descending=bool(descending))
    return Array.of(call(what, node, axis=place, descending=bool(descending), stable=bool(stable)))


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements in order along `axis`; NaN after all numbers (before, if descending).

    Many rows of up to 16 elements (8 along the last axis, unless `stack` made it) are sorted by
    kernels, which fuse with what is around them.

    Raises ShapeError for rank 0, AxisError.
    """
    return _ordered("sort", put_in_order, x, axis, descending, stable)


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Positions that bring the elements in order along `axis`, int64.  As `sort`.

    Raises ShapeError for rank 0, AxisError.
    """
    return _ordered("argsort", placed, x, axis, descending, stable)


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Array
    inverse_indices: Array


def _unique(x: Any, what: str, *more: str) -> list[Array]:
    """The different elements, and what `more` asks NumPy for; every NaN is a value of its own."""
    data = known(x, what)
    wide = data.astype(np.float32) if data.dtype.kind == "V" else data
    wanted: dict[str, Any] = {f"return_{name}": True for name in more}
    found: Any = np.unique(wide, equal_nan=False, **wanted)
    values, *rest = found if more else (found,)
    out = [_array(values.astype(data.dtype))]
    for name, places in zip(more, rest, strict=True):
        places = places.reshape(data.shape) if name == "inverse" else places
        out.append(_array(places.astype(np.int64)))
    return out


def _array(data: Buffer) -> Array:
    assert from_numpy(data.dtype)
    return Array.of(leaf(np.ascontiguousarray(data) if data.ndim else data))


def unique_all(x: Any, /) -> UniqueAll:
    """The different elements in order, where each is first, which one each element is, how many.

    Raises TracerError inside `jit`: the shape depends on values.
    """
    return UniqueAll(*_unique(x, "unique_all", "index", "inverse", "counts"))


def unique_counts(x: Any, /) -> UniqueCounts:
    """The different elements in order, and how many there are of each.  As `unique_all`."""
    return UniqueCounts(*_unique(x, "unique_counts", "counts"))


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The different elements in order, and which of them each element is.  As `unique_all`."""
    return UniqueInverse(*_unique(x, "unique_inverse", "inverse"))


def unique_values(x: Any, /) -> Array:
    """The different elements in order.  As `unique_all`."""
    return _unique(x, "unique_values")[0]
