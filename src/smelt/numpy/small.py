"""Leave small arrays to NumPy: functions of them return NumPy's own arrays.

An operator that is recorded costs several times what NumPy takes for ten elements, and NumPy's call
costs what about a thousand elements cost, so fusion has nothing to gain on small arrays.  Functions
of `smelt.numpy` whose array arguments are not larger than `SMELT_SMALL_ELEMENTS` of float64 are
therefore NumPy's, and so are their results, unless these are larger: then they become ours.

Small arrays are `numpy.ndarray` itself.  A class of ours that holds NumPy's array costs 1.5 times
NumPy's operator in Python at least, four times for `a[i]`, and a subclass of ndarray 2.6 times.
NumPy's own costs nothing, and values, dtypes, warnings, errors, views and scalars are NumPy's
without a rule of ours.  Where a small array meets one of ours, `Array.__array_ufunc__` records the
operator, on a copy of the small one.  `isinstance(x, np.ndarray)` is true for both.

Recordings (`sm.jit`, `sm.grad`) are left alone: within them every array is recorded.

>>> former = set_limit(4)
>>> is_small((np.ones(3), 2.0), {}), is_small((np.ones(5), 2.0), {}), set_limit(former)
(True, False, 4)
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from typing import Any, Final

import numpy as np

from smelt.frontends.array.array import Array
from smelt.frontends.array.operators import Operators, hand_out
from smelt.frontends.array.value import STATE, set_small_elements
from smelt.knobs import SMALL_ELEMENTS

limit: int = 0
"""Bytes of the largest array that is left to NumPy; 0 if none is."""
_ELEMENT: Final = 8
"""Bytes of an element of float64: the limit is said in such elements."""


def set_limit(elements: int) -> int:
    """Set the float64 elements of the largest array left to NumPy; return the former number."""
    global limit
    former, limit = limit // _ELEMENT, _ELEMENT * elements
    set_small_elements(elements)
    return former


set_limit(SMALL_ELEMENTS.get())

_signature_default: Any = inspect.signature(np.sum).parameters["keepdims"].default
"""NumPy's mark of an argument that was not passed."""
NUMBERS: Final = frozenset((int, float, bool, complex, *np.sctypeDict.values()))
_PLAIN: Final = NUMBERS | {
    *(str, bytes, type(None), type, slice, type(Ellipsis), range, type(_signature_default)),
    *(types.FunctionType, types.BuiltinFunctionType, types.LambdaType, np.ufunc),
    *{type(np.dtype(x)) for x in np.sctypeDict.values()},
}
"""Classes of arguments that NumPy takes as they are."""


def is_plain() -> bool:
    """Return whether this thread neither records nor differentiates."""
    return limit > 0 and not STATE.following


def is_small(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call is left to NumPy."""
    if not limit or (kwargs and not all(map(_fits, kwargs.values()))):
        return False
    return all(map(_fits, args)) and is_plain()


def _fits(x: Any) -> bool:
    kind = x.__class__
    if kind is np.ndarray:
        return x.nbytes <= limit or x.dtype.char not in _OUR_CHARACTERS
    if kind in _PLAIN:
        return True
    if kind is list or kind is tuple:
        kinds = set(map(type, x))
        return kinds <= _PLAIN or all(map(_fits, x))
    if isinstance(x, (np.ndarray, np.void)):  # NumPy's subclasses
        return True
    random = sys.modules.get("numpy.random")  # which NumPy imports on first use
    return random is not None and isinstance(x, random.Generator)


_OUR_CHARACTERS: Final = "?bBhHiIlLqQefdFD"


def finish(result: Any, convert: Callable[[Any], Any], args: Sequence[Any]) -> Any:
    """Return a result of NumPy; `convert` makes large arrays ours, but no views of args."""
    kind = result.__class__
    if kind is np.ndarray:
        is_ours = result.nbytes > limit and result.dtype.char in _OUR_CHARACTERS
        return convert(result) if is_ours and not _shares(result, args) else result
    if kind is tuple or kind is list:
        return kind([finish(x, convert, args) for x in result])
    return result


def _shares(result: Any, args: Sequence[Any]) -> bool:
    for x in args:
        if isinstance(x, (list, tuple)):
            if _shares(result, x):
                return True
        elif isinstance(x, np.ndarray) and np.may_share_memory(result, x):
            return True
    return False


def _of_shape(shape: Any = None, *rest: Any, **named: Any) -> int:
    if shape.__class__ is int:
        return shape
    shape = named.get("shape", shape)
    return prod(shape) if isinstance(shape, (tuple, list)) else int(shape)


def _span(*args: Any, **named: Any) -> int:
    if len(args) == 1:
        return args[0]
    numbers = [named.get(n) for n in ("start", "stop", "step") if n in named]
    start, stop, step = [*args, *numbers, None, None, None][:3]
    if stop is None:
        start, stop = 0, start
    assert start is not None and stop is not None
    return int(abs((stop - start) / (step or 1))) + 1


def _square(N: Any, M: Any = None, *rest: Any, **named: Any) -> int:
    columns = named.get("m", M)
    return N * (N if columns is None else columns)


def _samples(start: Any, stop: Any, num: Any = 50, *rest: Any, **named: Any) -> int:
    return num * max(np.size(start), np.size(stop))


SIZES: Final[dict[str, Callable[..., int]]] = {
    **dict.fromkeys(("zeros", "ones", "empty", "full", "indices"), _of_shape),
    **dict.fromkeys(("eye", "identity", "tri"), _square),
    **dict.fromkeys(("linspace", "logspace", "geomspace"), _samples),
    **dict.fromkeys(
        ("bartlett", "blackman", "hamming", "hanning", "kaiser"), lambda n, *_, **__: int(n)
    ),
    **dict.fromkeys(("tril_indices", "triu_indices", "diag_indices"), lambda n, *_, **__: n * n),
    "arange": _span,
    "fromfunction": lambda function, shape, **named: _of_shape(shape),
}
"""Function that creates arrays -> the elements of its result, by its arguments."""


def own_results(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a function's result with NumPy's arrays in place of small ones of ours."""
    if not limit or STATE.following:
        return result
    return hand_out(result, (*args, *kwargs.values()))


def or_numpy(
    name: str, theirs: Callable[..., Any], convert: Callable[[Any], Any], ours: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `ours`, with NumPy's function for small arguments and results."""
    elements = SIZES.get(name)
    array, plain, fits, state = np.ndarray, _PLAIN, _fits, STATE

    @wraps(ours)
    def function(*args: Any, **kwargs: Any) -> Any:
        for x in args:  # without calls: their time is what small arrays would take
            kind = x.__class__
            if kind is array and x.nbytes <= limit:
                continue
            if kind not in plain and not fits(x):
                x = None
                break
        else:
            if limit and not state.following and (not kwargs or all(map(fits, kwargs.values()))):
                if elements is None or not is_large(args, kwargs):
                    result = theirs(*args, **kwargs)
                    kind = result.__class__
                    if (kind is array and result.nbytes > limit) or kind is tuple or kind is list:
                        return finish(result, convert, (*args, *kwargs.values()))
                    return result
        result = ours(*args, **kwargs)
        if not isinstance(result, Operators):
            return own_results(result, args, kwargs)
        if not limit or state.following or not result.is_small:
            return result
        arguments = [id(y) for y in (*args, *kwargs.values())]
        x = None
        del args, kwargs  # an operand that only this call holds is not stored
        return result if id(result) in arguments else result.handed_out()

    def is_large(args: Any, kwargs: Any) -> bool:
        try:
            assert elements is not None
            return _ELEMENT * elements(*args, **kwargs) > limit
        except (TypeError, ValueError, ZeroDivisionError, OverflowError):
            return False  # NumPy's function raises its error

    return function


class _Both(type):
    """Class of `ndarray`: instances are arrays of ours and of NumPy."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (Array, np.ndarray))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (Array, np.ndarray))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return np.ndarray(*args, **kwargs)


class ndarray(Array, metaclass=_Both):  # noqa: N801 - NumPy's name
    """The arrays of this namespace: Smelt's, and NumPy's where they are small."""

    __slots__ = ()
