"""Sorting and set functions of the array API standard.

Many short rows are sorted by compiled sorting networks (`networks`); everything else by NumPy, as
an extern call.

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
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.library import call
from smelt.frontends.array.networks import is_short, network_argsort, network_sort
from smelt.frontends.array.searching import concrete_elements
from smelt.frontends.array.value import Buffer, leaf
from smelt.frontends.array.views import axis_of
from smelt.types.dtype import from_numpy


def _ordered(
    what: str, network: Callable[..., Array], x: Any, axis: int, descending: bool, stable: bool
) -> Array:
    node = value(x, what)
    if not node.type.shape:
        raise ShapeError(op=what, operands=node.type_text, reason="it has no dimensions")
    dim = axis_of(axis, node.type.rank, what)
    if is_short(node, dim):
        return network(node, dim, descending=bool(descending))
    return Array.of(call(what, node, axis=dim, descending=bool(descending), stable=bool(stable)))


@takes_complex
def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Sort the elements along `axis`; NaN comes after all numbers (before, if descending).

    Many rows of up to 16 elements (8 along the last axis, unless `stack` made it) are sorted by
    compiled networks, which fuse with their neighbours; others by NumPy.

    Raises ShapeError for rank 0, AxisError.
    """
    return _ordered("sort", network_sort, x, axis, descending, stable)


@takes_complex
def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Return the positions that sort the elements along `axis`, int64.

    Order and execution as in `sort`.  Raises ShapeError for rank 0, AxisError.
    """
    return _ordered("argsort", network_argsort, x, axis, descending, stable)


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


def _unique(x: Any, what: str, *more: str) -> list[Array]:
    """Return the unique elements and what `more` requests from NumPy.

    `more` holds names of NumPy's `return_...` flags.  Every NaN is unique.
    """
    data = concrete_elements(x, what)
    upcast = data.astype(np.float32) if data.dtype.kind == "V" else data
    flags: dict[str, Any] = {f"return_{name}": True for name in more}
    results: Any = np.unique(upcast, equal_nan=False, **flags)
    values, *rest = results if more else (results,)
    out = [_array(values.astype(data.dtype))]
    for name, indices in zip(more, rest, strict=True):
        indices = indices.reshape(data.shape) if name == "inverse" else indices
        out.append(_array(indices.astype(np.int64)))
    return out


def _array(data: Buffer) -> Array:
    assert from_numpy(data.dtype)
    return Array.of(leaf(np.ascontiguousarray(data) if data.ndim else data))


@takes_complex
def unique_all(x: Any, /) -> UniqueAll:
    """Return the unique elements in order, with first positions, inverse and counts.

    `indices` are the first positions in the flattened array, `inverse_indices` has the shape of
    `x`; all are int64.  Raises TracerError inside `jit`: the shape depends on values.
    """
    return UniqueAll(*_unique(x, "unique_all", "index", "inverse", "counts"))


@takes_complex
def unique_counts(x: Any, /) -> UniqueCounts:
    """Return the unique elements in order and how often each occurs, int64.

    Raises TracerError inside `jit`: the shape depends on values.
    """
    return UniqueCounts(*_unique(x, "unique_counts", "counts"))


@takes_complex
def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return the unique elements in order and, for each element, its position among them.

    `inverse_indices` has the shape of `x`, int64.  Raises TracerError inside `jit`: the shape
    depends on values.
    """
    return UniqueInverse(*_unique(x, "unique_inverse", "inverse"))


@takes_complex
def unique_values(x: Any, /) -> Array:
    """Return the unique elements in order.

    Raises TracerError inside `jit`: the shape depends on values.
    """
    return _unique(x, "unique_values")[0]
