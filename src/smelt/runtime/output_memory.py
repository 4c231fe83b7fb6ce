"""Choose the memory of results that the caller passed arrays for (`out=`).

>>> out, copies = np.zeros(4)[::2], []
>>> result = result_array(out, (2,), np.dtype(np.float64), False, copies)
>>> result is out, copies[0][0] is out
(False, True)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import OutArgumentError
from smelt.runtime.memory import allocate

Array = np.ndarray[Any, Any]


def result_array(
    out: Array,
    shape: tuple[int, ...],
    dtype: Any,
    overlaps: bool,
    copies: list[tuple[Array, Array]],
) -> Array:
    """Return where to write the result that the caller wants in `out`.

    That is `out` itself, or temporary memory if `out` is not contiguous or `overlaps` an input or
    another result; `copies` collects the copies to make at the end. Raises OutArgumentError for
    another shape or type, and for a read-only array.
    """
    if out.shape != shape or out.dtype != dtype:
        raise OutArgumentError(
            f"out is {out.dtype}{list(out.shape)}, the result {dtype}{list(shape)}"
        )
    if not out.flags.writeable:
        raise OutArgumentError("out is read-only")
    if out.flags.c_contiguous and not overlaps:
        return out
    temporary: Array = allocate(out.nbytes).array(shape, dtype)
    copies.append((out, temporary))
    return temporary
