"""Call NumPy's function directly for the commonest small arguments, with as few steps as possible.

NumPy's functions of ten elements take as long as three Python functions that do nothing.  So every
function of the namespace begins with the tests that its commonest small calls need, and leaves
other arguments to the general one (`small.or_numpy`), which decides the same for all arguments.
While any thread records, the general functions are asked: they know which thread it is.

Of what NumPy has written in Python, `SHORT` does what theirs does for plain arguments, in the same
order, so that the results have the same bits, and costs half the time.

>>> former = small.set_limit(4)
>>> exp = direct("exp", Ufunc("exp", None))
>>> exp(np.zeros(2)), exp.nin, small.set_limit(former)
(array([1., 1.]), 1, 4)
>>> SHORT["diff"](np.array([1, 4, 9])), SHORT["roll"](np.arange(4), 1)
(array([3, 5]), array([3, 0, 1, 2]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from operator import methodcaller
from typing import Any, Final

import numpy as np

from smelt.frontends.array.value import RECORDINGS
from smelt.numpy import small
from smelt.numpy.library import as_ours
from smelt.numpy.small import NUMBERS
from smelt.numpy.ufunc import Ufunc

Function = Callable[..., Any]
_ndarray = np.ndarray


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


class _Ufuncs(type):
    """Class of `ufunc`: its instances are the functions that `direct` makes of a `Ufunc`."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(getattr(instance, "__wrapped__", instance), (Ufunc, np.ufunc))


class ufunc(metaclass=_Ufuncs):  # noqa: N801 - NumPy's name
    """The elementwise functions of this namespace."""


def direct(name: str, general: Any) -> Function:
    """Return a function of the namespace that begins with the tests of its commonest calls."""
    theirs: Any = getattr(np, name)
    if isinstance(general, Ufunc):
        make = {(1, 1): _unary, (2, 1): _binary}.get((general.nin, general.nout), _general)
        function = make(theirs, general)
        _describe(function, general)
        return function
    form: Any = _FORMS.get(name, _of_array)
    if form is _general:
        return general
    short: Any = SHORT.get(name, theirs)
    if form is _of_array:
        return wraps(general)(_of_array(theirs, general, short))
    return wraps(general)(form(short, general))


def of_methods(function: Any) -> Function:
    """Return what a method of arrays calls: the function without its tests for small arguments."""
    general = function.__wrapped__
    return getattr(general, "__wrapped__", general)


def _describe(function: Any, general: Ufunc) -> None:
    """Give a function the attributes and methods of NumPy's."""
    wraps(general, updated=())(function)
    for name in ("nin", "nout", "nargs", "identity", "signature", "types"):
        setattr(function, name, getattr(general, name))
    for name in ("reduce", "accumulate", "outer", "reduceat", "at"):
        setattr(function, name, getattr(general, name))


def _general(theirs: Function, general: Function) -> Function:
    def function(*args: Any, **kwargs: Any) -> Any:
        return general(*args, **kwargs)

    return function


def _unary(theirs: Function, general: Function) -> Function:
    """Return an elementwise function of one array, whose result has as many elements."""

    def function(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return general(x, *args, **kwargs)
        if x.__class__ is _ndarray and 0 < x.nbytes <= small.limit and not RECORDINGS:
            return theirs(x)
        return general(x)

    return function


def _binary(theirs: Function, general: Function) -> Function:
    """Return an elementwise function of two arrays, or of an array and a number."""

    def function(x: Any, y: Any, /, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return general(x, y, *args, **kwargs)
        if x.__class__ is _ndarray and 0 < x.nbytes <= small.limit and not RECORDINGS:
            kind = y.__class__
            if 0 < y.nbytes <= small.limit if kind is _ndarray else kind in NUMBERS:
                result = theirs(x, y)
                if result.__class__ is _ndarray and result.nbytes > small.limit:
                    return as_ours(result)
                return result
        return general(x, y)

    return function


def _of_array(theirs: Function, general: Function, short: Function) -> Function:
    """Return a function of an array, and perhaps of an integer or several."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and args and not RECORDINGS:
            x = args[0]
            if x.__class__ is _ndarray and 0 < x.nbytes <= small.limit:
                if len(args) == 1:
                    return _finished(short(x), args)
                if len(args) == 2 and _is_integers(args[1]):
                    return _finished(theirs(*args), args)
            if len(args) == 1:
                passed = [x]
                del x, args  # an operand that only the call holds is not stored
                return general(passed.pop())
        elif len(args) == 1 and kwargs and not RECORDINGS:
            x = args[0]
            if x.__class__ is _ndarray and 0 < x.nbytes <= small.limit:
                if NUMBERS.issuperset(map(type, kwargs.values())):
                    return _finished(theirs(x, **kwargs), args)
            del x
        return general(*args, **kwargs)

    return function


def _with_numbers(theirs: Function, general: Function) -> Function:
    def function(*args: Any, **kwargs: Any) -> Any:
        if 1 < len(args) < 4 and (not kwargs or [*kwargs] == ["axis"]) and not RECORDINGS:
            x, *rest = args
            if x.__class__ is _ndarray and 0 < x.nbytes <= small.limit:
                if NUMBERS.issuperset(map(type, (*rest, *kwargs.values()))):
                    return _finished(theirs(*args, **kwargs), args)
        return general(*args, **kwargs)

    return function


def _is_integers(x: Any) -> bool:
    return x.__class__ is int or (x.__class__ is tuple and x and x[0].__class__ is int)


def _finished(result: Any, args: tuple[Any, ...]) -> Any:
    kind = result.__class__
    if kind is _ndarray:
        if result.nbytes <= small.limit:
            return result
    elif kind is not tuple and kind is not list:
        return result
    return small.finish(result, as_ours, args)


def _of_pair(theirs: Function, general: Function) -> Function:
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 2 and not kwargs and not RECORDINGS:
            x, y = args
            if x.__class__ is _ndarray and y.__class__ is _ndarray:
                if 0 < x.nbytes <= small.limit and 0 < y.nbytes <= small.limit:
                    return _finished(theirs(x, y), args)
            passed = [x, y]
            del x, y, args  # operands that only the call holds are not stored
            return general(passed.pop(0), passed.pop())
        return general(*args, **kwargs)

    return function


def _of_arrays(theirs: Function, general: Function) -> Function:
    """Return a function that joins arrays, which are in a tuple or list."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and not RECORDINGS:
            arrays = args[0]
            if arrays.__class__ is tuple or arrays.__class__ is list:
                nbytes = 0
                for x in arrays:
                    if x.__class__ is not _ndarray:
                        break
                    nbytes += x.nbytes
                else:
                    if 0 < nbytes <= small.limit:
                        return theirs(arrays)
        return general(*args, **kwargs)

    return function


def _of_list(theirs: Function, general: Function) -> Function:
    """Return a function that takes a list of numbers, or an array."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and not RECORDINGS:
            x = args[0]
            if x.__class__ is _ndarray:
                if 0 < x.nbytes <= small.limit:
                    return theirs(x)
            elif (
                x.__class__ is list and 0 < 8 * len(x) <= small.limit and x[0].__class__ in NUMBERS
            ):
                return theirs(x)
        return general(*args, **kwargs)

    return function


def _of_size(theirs: Function, general: Function) -> Function:
    """Return a function that creates an array of a size, or of rows and columns."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if args and not kwargs and not RECORDINGS:
            size = args[0]
            if size.__class__ is tuple and len(size) == 2:
                rows, columns = size
                size = rows * columns if rows.__class__ is columns.__class__ is int else 0
            if size.__class__ is int and 0 < 8 * size <= small.limit:
                if len(args) == 1 or (len(args) == 2 and args[1].__class__ in NUMBERS):
                    return theirs(*args)
        return general(*args, **kwargs)

    return function


def _of_count(theirs: Function, general: Function) -> Function:
    """Return a function that creates so many numbers."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and not RECORDINGS:
            if args[0].__class__ is int and 0 < 8 * args[0] <= small.limit:
                return theirs(args[0])
        return general(*args, **kwargs)

    return function


def _of_ends(theirs: Function, general: Function) -> Function:
    """Return a function that creates numbers between two ends."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 3 and not kwargs and not RECORDINGS:
            start, stop, count = args
            if start.__class__ in NUMBERS and stop.__class__ in NUMBERS:
                if count.__class__ is int and 0 < 8 * count <= small.limit:
                    return theirs(start, stop, count)
        return general(*args, **kwargs)

    return function


_FORMS: Final[dict[str, Callable[[Function, Function], Function]]] = {
    **dict.fromkeys(small.SIZES, _general),
    **dict.fromkeys(("clip", "roll"), _with_numbers),
    **dict.fromkeys(("zeros", "ones", "empty", "full"), _of_size),
    "arange": _of_count,
    **dict.fromkeys(("linspace", "logspace", "geomspace"), _of_ends),
    **dict.fromkeys(("array", "asarray", "asanyarray", "atleast_1d", "copy"), _of_list),
    **dict.fromkeys(("concatenate", "stack", "hstack", "vstack", "column_stack"), _of_arrays),
    **dict.fromkeys(
        ("dot", "outer", "inner", "vdot", "cross", "array_equal", "allclose"), _of_pair
    ),
}
"""Function -> the form of its commonest calls; others take an array first."""
