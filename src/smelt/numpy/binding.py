"""Bind NumPy's arguments to functions of ours: names, `out`, options without effect.

A function of ours may take fewer arguments than NumPy's, or by other names.  What it cannot take,
and elements of dtypes that only NumPy has, go to NumPy's function, counted with the reason.

>>> import numpy as np
>>> from smelt.frontends.array import elementwise
>>> f = bound("sqrt", elementwise.sqrt, np.sqrt)
>>> f(4.0), f([1.0, 4.0], where=True)
(Array(2.), Array([1., 2.]))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper, wraps
from typing import Any

from smelt.errors import DTypeError, SmeltError, TracerError, UnsupportedError
from smelt.frontends.array.methods import as_view
from smelt.frontends.array.numpy_calls import array, is_default, store
from smelt.numpy.library import (
    LibraryOnly,
    as_ours,
    call,
    call_at_once,
    foreign_elements,
    signature_of,
    takes,
    type_of_other_library,
)
from smelt.numpy.small import or_numpy

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "order": (None, "C", "K", "A"),
    "subok": (True, False),
    "casting": ("same_kind",),
    "like": (None,),
    "dtype": (None,),
    "where": (True,),
    "copy": (True, None),
    "keepdims": (False,),
    "device": (None, "cpu"),
}
"""Options -> values that change nothing, where a function of ours does not have the option."""


def of_arrays(
    function: Callable[..., Any], count: int = 1, *, view: str | None = None, more: bool = True
) -> Any:
    """Return a function of ours whose first arguments by position may be lists and numbers.

    With `view` the result is a view of the first where NumPy's is (see `as_view`).  NumPy gets
    further arguments by position unless there may be `more`.
    """

    @wraps(function, assigned=("__name__", "__qualname__", "__doc__"))
    def run(*args: Any, **options: Any) -> Any:
        if len(args) > count and not more:
            raise LibraryOnly("arguments by position that only NumPy may take")
        arrays = [array(x) for x in args[:count]]
        result = function(*arrays, *args[count:], **options)
        return result if view is None else as_view(arrays[0], result, view)

    return run


def bound(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> Any:
    """Return `ours` with NumPy's arguments, and NumPy's function for small arrays."""
    return or_numpy(name, theirs, as_ours, bind(name, ours, theirs))


def bind(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> Any:
    """Return `ours` with NumPy's arguments, and NumPy's function for what it does not take."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if "out" not in kwargs:
            result = call_at_once(name, ours, theirs, args, kwargs)
            if result is not NotImplemented:
                return result
        try:
            if not kwargs:
                return ours(*args)
            if _accepted(ours).issuperset(kwargs):
                return ours(*args, **kwargs)
            positional, options, out = _renamed(ours, theirs, args, dict(kwargs))
            return store(ours(*positional, **options), out)
        except (
            LibraryOnly,
            TypeError,
            ValueError,
            IndexError,
            UnsupportedError,
            AttributeError,
        ) as error:
            reason = _reason(error, ours, args, kwargs)
            if not reason:
                raise
            failure = error
        rest = dict(kwargs)
        out = rest.pop("out", None)
        try:
            return store(call(name, theirs, reason, args, rest), out)
        except (TypeError, TracerError):
            if isinstance(failure, DTypeError):  # NumPy does not take it either, or has no elements
                raise failure from None
            raise

    update_wrapper(function, ours)
    function.__name__ = function.__qualname__ = name
    function.__module__ = "smelt.numpy"
    return function


def library(name: str, theirs: Callable[..., Any], reason: str) -> Any:
    """Return NumPy's function for arrays of ours; every call is counted with the reason."""

    def function(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        return store(call(name, theirs, reason, args, kwargs), out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Call NumPy's `{name}` ({reason}).\n\nArguments are those of NumPy."
    function.__module__ = "smelt.numpy"
    return or_numpy(name, theirs, as_ours, function)


@cache
def _accepted(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of arguments that may be passed by name."""
    signature = signature_of(function)
    parameters = signature.parameters.values() if signature else ()
    return frozenset(p.name for p in parameters if p.kind not in (p.POSITIONAL_ONLY, p.VAR_KEYWORD))


def _renamed(ours: Any, theirs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return arguments for `ours`: by position what has another name there, and `out` apart."""
    accepted = _accepted(ours)
    out = None if "out" in accepted else kwargs.pop("out", None)
    for name, values in _NEUTRAL.items():
        if name in kwargs and name not in accepted:
            value = kwargs[name]
            if is_default(value) or any(value is v or _equal(value, v) for v in values):
                del kwargs[name]
    signature = signature_of(theirs)
    names = list(signature.parameters) if signature else []
    places = dict(enumerate(args))
    for name in [n for n in kwargs if n not in accepted and n in names]:
        places[names.index(name)] = kwargs.pop(name)
    if sorted(places) != list(range(len(places))):
        raise LibraryOnly("arguments by names that only NumPy has")
    return tuple(places[k] for k in range(len(places))), kwargs, out


def _equal(x: Any, y: Any) -> bool:
    return isinstance(x, (str, bool)) and x == y


def _reason(error: Exception, ours: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return why NumPy's function has to compute a failed call.

    Empty if the call should fail.
    """
    if isinstance(error, LibraryOnly):
        return str(error)
    if isinstance(error, TracerError):
        return ""
    if type(error) is IndexError:  # not one of ours: a shape that the function does not expect
        return "shapes that ours does not take"
    other = type_of_other_library((*args, *kwargs.values()))
    if other:
        return f"arguments of type {other}"
    foreign = foreign_elements((*args, *kwargs.values()))
    if foreign:
        return f"elements of dtype {foreign}"
    if isinstance(error, DTypeError):
        return "elements of dtypes that ours does not take"
    if isinstance(error, SmeltError):
        return ""
    return "" if takes(ours, args, kwargs) else "arguments that only NumPy's function takes"
