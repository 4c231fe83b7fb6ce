"""Cache the smallest and the largest element of integer arrays.

Positions are checked before they are used, and the ids of segments determine how many there are.
Programs use the same positions many times; each pass over them takes as long as the use itself.

>>> import numpy as np
>>> from smelt.frontends.array.value import leaf
>>> x = leaf(np.asarray([3, -1, 2]))
>>> range_of_elements(x, x.data)
(-1, 3)
"""

from __future__ import annotations

from smelt.frontends.array.value import RANGES, Buffer, Value

_FEW = 256
"""Maximum elements for which a pass takes no longer than a look into the cache."""


def range_of_elements(x: Value, data: Buffer) -> tuple[int, int]:
    """Return the smallest and the largest element of a value with elements `data`."""
    is_cached = data.size > _FEW and not x.shared
    ends = RANGES.get(x) if is_cached else None
    if ends is None:
        ends = int(data.min()), int(data.max())
        if is_cached:
            RANGES[x] = ends
    return ends
