"""Where results go that the caller wants in arrays of their own (`out=`).

>>> out, copies = np.zeros(4)[::2], []
>>> made = target(out, (2,), np.dtype(np.float64), (), copies)
>>> made is out, copies[0][0] is out
(False, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.errors import OutArgumentError
from smelt.runtime.memory import allocate

__all__ = ["target"]

Array = np.ndarray[Any, Any]


def target(
    given: Array,
    shape: tuple[int, ...],
    dtype: Any,
    others: Sequence[Array],
    copies: list[tuple[Array, Array]],
) -> Array:
    """Where a result goes that the caller wants in `given`: there, or in memory of its own
    where `given` overlaps an input or another result, copied at the end.

    Raises OutArgumentError for another shape or type, and for what is read-only.
    """
    if given.shape != shape or given.dtype != dtype:
        raise OutArgumentError(
            f"out is {given.dtype}{list(given.shape)}, the result {dtype}{list(shape)}"
        )
    if not given.flags.writeable:
        raise OutArgumentError("out is read-only")
    if given.flags.c_contiguous and not any(np.may_share_memory(given, a) for a in others):
        return given
    temporary: Array = allocate(given.nbytes).array(shape, dtype)
    copies.append((given, temporary))
    return temporary
