"""Positions that put elements in order, equal ones as they came, for rows of NumPy arrays.

NumPy keeps equal elements apart by merging, one comparison at a time; integers it sorts by whole
vectors, twenty times as fast.  So a key of an element and its position become one integer, the
position in its lower bits: no two are equal, and sorted they hold the positions in order.  Where
both do not fit into 64 bits, elements are ordered as they are, and positions of equal ones after
that, beside the number of the run that they stand in.

>>> stable_places(np.asarray([[2.0, 1.0, 2.0, np.nan, -0.0, 0.0]]), descending=False)
array([[4, 5, 1, 0, 2, 3]])
>>> stable_places(np.asarray([[2, 1, 2, 3]], np.int32), descending=True)
array([[3, 0, 2, 1]])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.frontends.array.value import Buffer

__all__ = ["places_into", "stable_places"]

FEW, FEW_IN_ALL = 64, 2048
"""Elements of a row, and of all rows, up to which merging is the faster."""
AT_ONCE = 1 << 16
"""Elements whose keys are made at once, as far as rows are shorter: they stay in a cache."""
HELD = 63
"""Bits of a number and what stands in front of it."""


def places_into(found: Buffer, x: Buffer, axis: int, descending: bool) -> None:
    """Writes the positions, int64, that bring elements in order along `axis`; NaN counts as the
    greatest of all, and every NaN as equal."""
    count = x.shape[axis]
    if count < FEW or x.size < FEW_IN_ALL:
        found[...] = _merged(x, axis, descending)
        return
    rows, into = (np.moveaxis(a, axis, -1) for a in (x, found))
    flat, wanted = rows.reshape(-1, count), into.reshape(-1, count)
    step = max(AT_ONCE // count, 1)
    for first in range(0, len(flat), step):
        wanted[first : first + step] = stable_places(flat[first : first + step], descending)
    if not np.may_share_memory(wanted, into):  # the axis is not the last: `reshape` has made a copy
        into[...] = wanted.reshape(into.shape)


def stable_places(x: Buffer, descending: bool) -> Buffer:
    """The positions for each row of a matrix, int64."""
    count = x.shape[-1]
    bits = max(count - 1, 1).bit_length()
    if x.itemsize < 4 or 2 * bits > HELD:
        return _merged(x, -1, descending)
    keys = _keys(x, HELD - bits)
    if keys is None:
        return _repaired(x, bits, descending)
    if descending:
        np.invert(keys, out=keys)
    return _in_order(keys, bits)


def _merged(x: Buffer, axis: int, descending: bool) -> Buffer:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return x.shape[axis] - 1 - backwards


def _keys(x: Buffer, bits: int) -> Buffer | None:
    """Integers in the order of the elements, equal where they are, that take `bits` bits and a
    sign; None where there are none."""
    if x.dtype.kind == "f":
        return _of_floats(x) if x.itemsize == 4 and bits >= 31 else None
    if x.itemsize == 4:
        return x.astype(np.int64) if bits >= 32 else None
    low, high = x.min(), x.max()
    if (int(high) - int(low)).bit_length() > bits:
        return None
    return (x - low).astype(np.int64)


def _of_floats(x: Buffer) -> Buffer:
    """Of negative numbers all bits but the sign are turned; both zeros are one, and so is NaN."""
    raw = (x + np.float32(0)).view(np.int32)
    turned = raw >> 31
    turned &= 0x7FFFFFFF
    raw ^= turned
    unknown = np.isnan(x)
    if unknown.any():
        raw[unknown] = np.iinfo(np.int32).max
    return raw.astype(np.int64)


def _in_order(keys: Buffer, bits: int) -> Buffer:
    """The positions in the order of the keys, whose place they take."""
    keys <<= bits
    keys |= np.arange(keys.shape[-1])
    keys.sort(axis=-1)
    keys &= (1 << bits) - 1
    return keys


def _repaired(x: Buffer, bits: int, descending: bool) -> Buffer:
    """Any positions in order, those of equal elements sorted after that."""
    found: Buffer = np.argsort(x, axis=-1)
    if descending:
        found = np.ascontiguousarray(found[:, ::-1])
    ordered: Buffer = np.take_along_axis(x, found, -1)
    before, after = ordered[:, :-1], ordered[:, 1:]
    differs: Any = before != after
    if x.dtype.kind == "f":
        differs &= ~(np.isnan(before) & np.isnan(after))
    if differs.all():
        return found
    runs = np.zeros(x.shape, np.int64)
    np.cumsum(differs, axis=-1, out=runs[:, 1:])
    runs <<= bits
    found |= runs
    found.sort(axis=-1)
    found &= (1 << bits) - 1
    return found
