"""Convert nested lists of numbers and arrays to values.

>>> from smelt.frontends.array.convert import from_host
>>> value_of_lists([[1, 2], [3, 4]], from_host).type
TensorType(dtype=i64, shape=(2, 2))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, RangeError
from smelt.frontends.array.convert import usable
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.value import Value, foreign, leaf
from smelt.frontends.array.views import concat, reshape, shape_of
from smelt.types.dtype import DType

_NUMBERS = frozenset({bool, int, float})
"""Types of almost all items of lists, for which nothing else is tested."""


def value_of_lists(obj: Any, convert: Callable[[Any], Value], target: DType | None = None) -> Value:
    """Return the value of nested lists, stacked by `convert` if they hold recorded values.

    `target` is the dtype of the result, None for that of the numbers.  Raises ArgumentError for
    lists of different lengths, RangeError for a number that `target` cannot hold, DTypeError for
    elements that are not numbers.
    """
    if isinstance(obj, (list, tuple)) and _holds_values(obj):
        parts = [convert(item) for item in obj]
        parts = [reshape(p, (1, *shape_of(p))) for p in parts]
        return concat(parts, 0, "asarray")
    try:
        data = np.asarray(obj)
        if target is not None and target.is_integer and data.dtype.kind in "iufO":
            data = _exact_integers(obj, data, target)
    except RangeError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise _ragged(obj) or ArgumentError(f"asarray: {error}") from error
    data = usable(data)
    node = leaf(data) if data.base is None else foreign(data)  # an object with a buffer
    return cast(node, target) if target is not None else node


def _ragged(obj: Any) -> ArgumentError | None:
    """Return the error for nested lists of different lengths, or None if they agree."""
    level, paths = [obj], [""]
    while level:
        sizes = [len(x) if isinstance(x, (list, tuple)) else None for x in level]
        for path, size in zip(paths, sizes, strict=True):
            if size != sizes[0]:
                lengths = ["no list" if n is None else f"length {n}" for n in (sizes[0], size)]
                return ArgumentError(
                    op="asarray",
                    argument="obj",
                    value=f"lists ({lengths[0]} at obj{paths[0]}, {lengths[1]} at obj{path})",
                    expected="lists of one length at each depth",
                    hint="Fill the shorter ones up, or make an array of each and sm.concat them.",
                )
        if sizes[0] is None:
            return None
        paths = [f"{p}[{k}]" for p in paths for k in range(sizes[0])]
        level = [x for one in level for x in one]
    return None


def _exact_integers(obj: Any, default_data: Any, target: DType) -> Any:
    """Convert nested lists to the integer dtype `target` without rounding.

    `default_data` is what NumPy makes of them without a dtype, where large integers may have become
    float64.  Raises RangeError for a number that the dtype cannot hold.
    """
    failure: Exception | None = None
    try:
        with np.errstate(invalid="ignore"):
            converted = np.asarray(obj, dtype=target.numpy)
        if default_data.dtype.kind == "O" or (converted == np.trunc(default_data)).all():
            return converted  # NumPy truncated no fraction
    except (ValueError, OverflowError) as error:
        failure = error
    for item in default_data.ravel().tolist():
        number(item, target, "asarray")
    raise ArgumentError(f"asarray: {failure}") from failure


def _holds_values(obj: Any) -> bool:
    """Return whether arrays of ours, sizes or number arguments are among the items."""
    return any(
        item.__class__ not in _NUMBERS
        and (
            hasattr(item, "scope")
            or isinstance(getattr(item, "node", None), Value)
            or (isinstance(item, (list, tuple)) and _holds_values(item))
        )
        for item in obj
    )
