"""Call NumPy's compiled code for small arrays, without the Python functions around it.

The commonest calls of functions that NumPy has written in Python: these do what theirs do for plain
arguments, in the same order, so that the results have the same bits, and cost half the time.

>>> SHORT["diff"](np.array([1, 4, 9])), SHORT["roll"](np.arange(4), 1)
(array([3, 5]), array([3, 0, 1, 2]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final

import numpy as np

_ALL = slice(None)


def _reduction(ufunc: Any, *options: Any) -> Callable[[Any], Any]:
    reduce = ufunc.reduce
    return lambda x: reduce(x, None, *options)


def _diff(x: Any) -> Any:
    is_plain = x.ndim == 1 and x.dtype.kind != "b"
    return x[1:] - x[:-1] if is_plain else np.diff(x)


def _sort(x: Any) -> Any:
    if not x.ndim:
        return np.sort(x)
    x = x.copy("K")
    x.sort()
    return x


def _stack(arrays: Sequence[Any]) -> Any:
    first = arrays[0].shape
    for x in arrays:
        if x.shape != first:
            return np.stack(arrays)
    return np.concatenate([x[None] for x in arrays])


def _roll(x: Any, shift: Any, axis: Any = None) -> Any:
    """Return an array rolled along its only axis, or along `axis`."""
    at: Any = 0 if axis is None and x.ndim == 1 else axis
    is_plain = shift.__class__ is int and at.__class__ is int and x.size
    if not is_plain or not -x.ndim <= at < x.ndim:
        return np.roll(x, shift, axis)
    axis = at
    size = x.shape[axis]
    shift %= size
    before = (_ALL,) * (axis % x.ndim)
    result = np.empty_like(x)
    result[(*before, slice(shift, None))] = x[(*before, slice(None, size - shift))]
    result[(*before, slice(None, shift))] = x[(*before, slice(size - shift, None))]
    return result


SHORT: Final[dict[str, Callable[..., Any]]] = {
    "sum": _reduction(np.add),
    "prod": _reduction(np.multiply),
    **dict.fromkeys(("max", "amax"), _reduction(np.maximum)),
    **dict.fromkeys(("min", "amin"), _reduction(np.minimum)),
    "all": _reduction(np.logical_and, bool),
    "any": _reduction(np.logical_or, bool),
    **{name: methodcaller(name) for name in ("mean", "std", "var", "argmax", "argmin", "argsort")},
    **{name: methodcaller(name) for name in ("cumsum", "cumprod", "transpose", "nonzero")},
    "clip": lambda x, low, high: x.clip(low, high),
    "diff": _diff,
    "outer": lambda x, y: np.multiply(x.ravel()[:, None], y.ravel()[None, :]),
    "roll": _roll,
    "sort": _sort,
    "stack": _stack,
}
"""Function -> one for a small array, arrays of a pair, or arrays to join, and numbers."""
