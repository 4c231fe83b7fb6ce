"""Random inputs for running a program, and comparison of results.

>>> from smelt.types.dtype import f32
>>> random_array(TensorType(f32, (2, 3)), {}, 0).shape
(2, 3)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from smelt.ops.spec import dims_at
from smelt.runtime.memory import check_room
from smelt.types.dtype import f64
from smelt.types.tensor import TensorType, check_bytes

Array = np.ndarray[Any, Any]

ROUNDINGS = {2: 2.0**-3, 4: 2.0**-11}
"""Tolerance relative to the largest value for `agree`, by bytes per element."""


def random_array(
    tensor: TensorType, sizes: Mapping[str, int], seed: int, extent: int | None = None
) -> Array:
    """Return a random array of a type, the same for the same seed.

    Floats are standard normal; integers are small, so that they are valid indices in most arrays,
    or with `extent` all indices of an axis of so many elements.
    Raises OverflowSizeError or OutOfMemory for an array that is too large.
    """
    shape = dims_at(tensor.shape, sizes)
    check_bytes(TensorType(f64, shape))
    check_room(prod(shape) * f64.itemsize)  # random numbers are float64 at first
    rng = np.random.default_rng(seed)
    if tensor.dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if tensor.dtype.kind == "complex":
        pairs = rng.standard_normal((*shape, 2)) @ np.array([1, 1j])
        return np.asarray(pairs).astype(tensor.dtype.numpy)
    if not tensor.dtype.is_float:
        if extent is None:
            extent = min([8, *(n for n in sizes.values() if n > 0)])
        end = min(max(extent, 1), int(np.iinfo(tensor.dtype.numpy).max))
        return rng.integers(0, end, shape).astype(tensor.dtype.numpy)
    return np.asarray(rng.standard_normal(shape)).astype(tensor.dtype.numpy)


def agree(one: Array, other: Array) -> bool:
    """Return whether two plans gave the same numbers up to the order of sums.

    Detects wrong code, not rounding: how much two orders of a sum may differ depends on
    cancellation between its terms, which is unknown here, so thousands of roundings of the largest
    value are allowed.
    """
    if one.dtype.kind in "biu":
        return bool(np.array_equal(one, other))
    with np.errstate(invalid="ignore"):  # converting a signaling NaN warns
        wide, near = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(wide[~finite], near[~finite], equal_nan=True):
        return False
    a, b = wide[finite], near[finite]
    if not a.size:
        return True
    allowed = ROUNDINGS.get(one.dtype.itemsize, 2.0**-40) * float(np.abs(a).max())
    return float(np.abs(a - b).max()) <= allowed
