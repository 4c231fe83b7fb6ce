"""Stable argsort of rows of NumPy arrays, faster than NumPy's.

NumPy's stable sort merges, one comparison at a time; integers it sorts with vector instructions, an
order of magnitude faster.  So an element's key and its position are packed in one 64-bit integer,
the position in the lower bits: no two are equal, and in sorted order they hold the positions.
Of float64 the leading bits are packed, and the few elements that agree in them are sorted by all
bits afterwards.  Where many elements agree, or integers do not fit, the elements are sorted
unstably, and then the positions of equal elements, keyed by the number of their run.

>>> stable_argsort(np.asarray([[2.0, 1.0, 2.0, np.nan, -0.0, 0.0]]), descending=False)
array([[4, 5, 1, 0, 2, 3]])
>>> stable_argsort(np.asarray([[2, 1, 2, 3]], np.int32), descending=True)
array([[3, 0, 2, 1]])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.frontends.array.value import Buffer

SMALL_ROW, SMALL_TOTAL = 64, 2048
"""Thresholds on elements of a row, and of all rows: merging is faster below them."""
BLOCK_ELEMENTS = 1 << 16
"""Elements whose keys are made at a time, so that they stay in cache."""
TIE_SAMPLE = 256
"""Elements that are looked at to see whether many are equal."""
FEW_TIES = 64
"""Minimum elements for each that agrees with the next one in its leading bits."""
KEY_BITS = 63
"""Bits for a key and a position, without the sign bit."""
FEW_ELEMENTS, FEW_DOUBLES = 1 << 14, 1 << 17
"""Thresholds on elements, and float64: NumPy's unstable sort is faster below them."""


def is_faster_packed(x: Buffer, axis: int) -> bool:
    """Return whether a stable sort is faster than NumPy's unstable one: few elements are equal."""
    fewest = FEW_DOUBLES if x.dtype == np.float64 else FEW_ELEMENTS
    is_long = x.ndim > 0 and x.shape[axis] >= SMALL_ROW and x.size >= fewest
    return is_long and x.itemsize >= 4 and x.dtype.kind in "fiu" and not has_many_ties(x)


def argsort_into(out: Buffer, x: Buffer, axis: int, descending: bool) -> None:
    """Write the positions, int64, that sort elements along `axis` stably into `out`.

    NaN counts as the largest element, and every NaN as equal.
    """
    count = x.shape[axis]
    if count < SMALL_ROW or x.size < SMALL_TOTAL:
        out[...] = _argsort_by_merging(x, axis, descending)
        return
    rows, into = (np.moveaxis(a, axis, -1) for a in (x, out))
    flat, targets = rows.reshape(-1, count), into.reshape(-1, count)
    step = max(BLOCK_ELEMENTS // count, 1)
    for first in range(0, len(flat), step):
        targets[first : first + step] = stable_argsort(flat[first : first + step], descending)
    if not np.may_share_memory(targets, into):  # `reshape` copied: the axis is not the last
        into[...] = targets.reshape(into.shape)


def stable_argsort(x: Buffer, descending: bool) -> Buffer:
    """Return the positions, int64, that sort each row of a matrix stably."""
    count = x.shape[-1]
    bits = max(count - 1, 1).bit_length()
    if x.itemsize < 4 or 2 * bits > KEY_BITS:
        return _argsort_by_merging(x, -1, descending)
    keys = _keys(x, KEY_BITS - bits)
    if keys is None:
        order = None
        if x.dtype.kind == "f" and not has_many_ties(x):
            order = _argsort_by_prefix(x, bits, descending)
        return _argsort_by_runs(x, bits, descending) if order is None else order
    if descending:
        np.invert(keys, out=keys)
    return _sort_packed(keys, bits)


def _argsort_by_merging(x: Buffer, axis: int, descending: bool) -> Buffer:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return x.shape[axis] - 1 - backwards


def _keys(x: Buffer, bits: int) -> Buffer | None:
    """Return integers of `bits` bits and a sign in the elements' order; None if impossible."""
    if x.dtype.kind == "f":
        return _float_keys(x) if x.itemsize == 4 and bits >= 31 else None
    if x.itemsize == 4:
        return x.astype(np.int64) if bits >= 32 else None
    low, high = x.min(), x.max()
    if (int(high) - int(low)).bit_length() > bits:
        return None
    return (x - low).astype(np.int64)


def _float_keys(x: Buffer) -> Buffer:
    """Return integer keys of float32: bits of negative numbers inverted, except the sign.

    Both zeros get one key, and so does every NaN.
    """
    raw = (x + np.float32(0)).view(np.int32)
    mask = raw >> 31
    mask &= 0x7FFFFFFF
    raw ^= mask
    is_nan = np.isnan(x)
    if is_nan.any():
        raw[is_nan] = np.iinfo(np.int32).max
    return raw.astype(np.int64)


def has_many_ties(x: Buffer) -> bool:
    """Return whether many of a sample of the elements are equal."""
    flat = x.reshape(-1)
    sample = flat[:: max(flat.size // TIE_SAMPLE, 1)]
    return np.unique(sample).size < sample.size * 3 // 4


def _argsort_by_prefix(x: Buffer, bits: int, descending: bool) -> Buffer | None:
    """Sort float64 by leading bits and positions, then what agrees in them by all bits.

    None if too many elements agree.
    """
    values = _ordered_bits(x)
    if descending:
        np.invert(values, out=values)
    low, count = (1 << bits) - 1, x.shape[-1]
    keys: Buffer = values & ~low
    keys |= np.arange(count)
    keys.sort(axis=-1)
    agree = (keys[:, 1:] ^ keys[:, :-1]).view(np.uint64) <= low
    rows, columns = np.nonzero(agree)
    if rows.size * FEW_TIES > x.size:
        return None
    keys &= low
    if rows.size:
        _sort_ties(keys.reshape(-1), values.reshape(-1), rows * count + columns, count)
    return keys


def _ordered_bits(x: Buffer) -> Buffer:
    """Return int64 in the order of float64: bits of negative numbers inverted, except the sign.

    Both zeros get one integer, and so does every NaN.
    """
    raw: Buffer = (x + 0.0).view(np.int64)
    mask = raw >> 63
    mask &= np.iinfo(np.int64).max
    raw ^= mask
    is_nan = np.isnan(x)
    if is_nan.any():
        raw[is_nan] = np.iinfo(np.int64).max
    return raw


def _sort_ties(order: Buffer, values: Buffer, ties: Buffer, count: int) -> None:
    """Sort positions in `order` by value, then position, within each run of ties.

    `ties` are the places in `order`, of rows of `count` elements, whose next one is in their run.
    """
    starts = ties[np.concatenate([[True], np.diff(ties) > 1])]
    places = np.union1d(ties, ties + 1)
    run = np.searchsorted(starts, places, side="right")
    positions = order[places]
    sorted_ = np.lexsort((positions, values[places // count * count + positions], run))
    order[places] = positions[sorted_]


def _sort_packed(keys: Buffer, bits: int) -> Buffer:
    """Pack keys with positions, sort, and return the positions, in the memory of the keys."""
    keys <<= bits
    keys |= np.arange(keys.shape[-1])
    keys.sort(axis=-1)
    keys &= (1 << bits) - 1
    return keys


def _argsort_by_runs(x: Buffer, bits: int, descending: bool) -> Buffer:
    """Sort unstably, then sort the positions within each run of equal elements."""
    order: Buffer = np.argsort(x, axis=-1)
    if descending:
        order = np.ascontiguousarray(order[:, ::-1])
    ordered: Buffer = np.take_along_axis(x, order, -1)
    before, after = ordered[:, :-1], ordered[:, 1:]
    differs: Any = before != after
    if x.dtype.kind == "f":
        differs &= ~(np.isnan(before) & np.isnan(after))
    if differs.all():
        return order
    runs = np.zeros(x.shape, np.int64)
    np.cumsum(differs, axis=-1, out=runs[:, 1:])
    runs <<= bits
    order |= runs
    order.sort(axis=-1)
    order &= (1 << bits) - 1
    return order
