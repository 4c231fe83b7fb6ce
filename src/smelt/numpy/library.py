"""Call NumPy's own functions for what Smelt does not compute; count calls by line.

Such a call ends fusion, so `library_calls` lists the lines that make them.  Elements are passed
without a copy, in memory that NumPy cannot write to.  Results become arrays of ours if their dtype
is one of ours; others (strings, dates) stay NumPy's.

>>> total = call("trace", np.trace, "an example", (np.eye(3),))
>>> total, library_calls()[-1].name
(Array(3.), 'trace')
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from smelt.errors import InternalError, SmeltError, TracerError
from smelt.frontends.array import numpy_calls
from smelt.frontends.array.aliasing import refuse
from smelt.frontends.array.array import Array, check_device, copy_of
from smelt.frontends.array.complex_array import ComplexArray, from_memory
from smelt.frontends.array.library import check_extern_allowed
from smelt.frontends.array.masked_select import MaskedSelection
from smelt.frontends.array.number import Number
from smelt.frontends.array.subscript import unknown_count_error
from smelt.frontends.array.value import leaf
from smelt.numpy import small
from smelt.python.origin import here
from smelt.types.dtype import DType, counterpart, parse_numpy


class LibraryCall(NamedTuple):
    """Calls of one of NumPy's functions from one line."""

    name: str
    reason: str
    file: str
    line: int
    calls: int


class LibraryOnly(Exception):
    """Signal of a function of ours that NumPy's has to compute this call; says why."""


FAULT: Final = "a fault of ours"
"""Beginning of the reason where our function failed and NumPy's has computed the call."""
_COUNTS: Counter[tuple[str, str, str, int]] = Counter()


def library_calls(*, clear: bool = False) -> list[LibraryCall]:
    """Return the calls that NumPy computed since the start, by line, most frequent first.

    `clear` forgets them.
    """
    calls = [LibraryCall(*key, count) for key, count in _COUNTS.most_common()]
    if clear:
        _COUNTS.clear()
    return calls


def call(
    name: str,
    function: Callable[..., Any],
    reason: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call a function of NumPy on the elements of arrays, and count the call.

    Raises TracerError inside `sm.jit`, GradientError under differentiation, UnsupportedError under
    `SMELT_STRICT`, and what the function raises.
    """
    check_extern_allowed(name)
    origin = here(2)
    buffers: list[Any] = []
    values = [_elements(x, name, buffers) for x in args]
    options = {key: _elements(x, name, buffers) for key, x in (kwargs or {}).items()}
    check_device(options.get("device"))
    _COUNTS[name, reason, origin.file, origin.line] += 1
    return as_ours(function(*values, **options), buffers, f"a view that NumPy's {name} made")


def note_fault(
    name: str, ours: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], error: Any
) -> None:
    """Count a call that NumPy computes as ours raised an error that no argument explains."""
    is_refusal = (
        isinstance(error, (SmeltError, LibraryOnly)) and error.__class__ is not InternalError
    )
    if not is_refusal and takes(ours, args, kwargs):
        origin = here(2)
        reason = f"{FAULT}: {error.__class__.__name__}: {error}"
        _COUNTS[name, reason, origin.file, origin.line] += 1


def takes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function has parameters for these arguments."""
    signature = signature_of(function)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@cache
def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a function's signature; None if it has none that can be read."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def elements(arguments: Iterable[Any], name: str) -> list[Any]:
    """Return arguments of a NumPy function with the elements of arrays.

    Raises TracerError, GradientError.
    """
    return [_elements(x, name, []) for x in arguments]


def _elements(x: Any, name: str, buffers: list[Any]) -> Any:
    """Return an argument with the elements of arrays, read-only, and dtypes as NumPy's."""
    if isinstance(x, Array):
        return host_view(x, name, buffers)
    if isinstance(x, DType):
        return x.numpy
    if isinstance(x, Number):
        return x.value()
    if isinstance(x, MaskedSelection):
        raise unknown_count_error(x.mask)
    if type(x) in (list, tuple):
        return type(x)(_elements(item, name, buffers) for item in x)
    return x


def host_view(x: Array, name: str, buffers: list[Any]) -> Any:
    """Return a read-only view of an array's elements; append their memory to `buffers`.

    Raises TracerError, GradientError.
    """
    if isinstance(x, ComplexArray):
        x._check_may_leave(f"np.{name}")  # pyright: ignore[reportPrivateUsage]
        return x.elements(f"np.{name}")  # a copy: parts are stored apart
    node = x.node
    if node.scope is not None and node.scope.check_open(node.type_text):
        raise TracerError(
            use=f"np.{name}",
            value=node.type_text,
            hint="NumPy computes it, from elements: call it outside sm.jit. docs/numpy.md lists"
            " the functions that are recorded.",
        )
    x._check_may_leave(f"np.{name}")  # pyright: ignore[reportPrivateUsage]
    data = x._read(f"np.{name}")  # pyright: ignore[reportPrivateUsage]
    buffers.append(data)
    view = data.view()
    view.flags.writeable = False
    return view


def as_ours(result: Any, buffers: Sequence[Any] = (), what: str = "") -> Any:
    """Return NumPy's result with arrays of ours where the dtype is one of ours.

    `buffers` are memory of arguments.  A view of it, named `what`, becomes a copy that cannot be
    written.
    """
    if isinstance(result, np.generic) or type(result) is np.ndarray:
        if result.nbytes <= small.limit and small.is_plain() and _is_private(result, buffers):
            return result
        if result.dtype.char not in "FD" and not has_our_dtype(result.dtype):
            return result
        data = np.asarray(result)
        is_view = any(np.may_share_memory(data, b) for b in buffers)
        if not is_view and _is_of_other_object(data):
            return numpy_calls.array(data, what)
        if result.dtype.char in "FD":
            return from_memory(data, private=True)
        if is_view or not data.flags.writeable:
            data = data.copy()
        array = Array.of(leaf(data)) if data.flags.c_contiguous else copy_of(data)
        if is_view and what:
            refuse(array, what)
        return array
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(as_ours(item, buffers, what) for item in result))
    if type(result) in (list, tuple):
        return type(result)(as_ours(item, buffers, what) for item in result)
    return result


def _is_of_other_object(data: np.ndarray[Any, Any]) -> bool:
    """Return whether memory is that of bytes or another object with a buffer."""
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    return base is not None


def _is_private(result: Any, buffers: Sequence[Any]) -> bool:
    is_number = isinstance(result, np.generic)
    return is_number or not any(np.may_share_memory(result, b) for b in buffers)


def has_our_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of ours can hold elements of a NumPy dtype."""
    row = counterpart(dtype)
    return row is not None and row.kind != "complex"


def type_of_other_library(arguments: Sequence[Any]) -> str:
    """Return the name of an argument's type that has NumPy's functions of its own.

    Such as Series of pandas; empty if there is none.
    """
    for x in arguments:
        kind = type(x)
        if isinstance(x, (list, tuple)):
            name = type_of_other_library(x)
            if name:
                return name
        elif not isinstance(x, (Array, np.ndarray, np.generic)) and hasattr(kind, "__array__"):
            if any(getattr(kind, p, None) is not None for p in _PROTOCOLS):
                return kind.__name__
    return ""


_PROTOCOLS: Final = ("__array_ufunc__", "__array_function__")


def foreign_elements(arguments: Sequence[Any]) -> str:
    """Return the dtype of the first argument that only NumPy can hold.

    Empty if there is none.
    """
    dtype = _foreign_dtype(arguments)
    return "" if dtype is None else str(dtype)


def _foreign_dtype(arguments: Sequence[Any]) -> np.dtype[Any] | None:
    for x in arguments:
        dtype = _dtype_of(x)
        if dtype is not None and not has_our_dtype(dtype):
            return dtype
    return None


def _dtype_of(x: Any) -> np.dtype[Any] | None:
    if isinstance(x, ComplexArray):
        return x.dtype.numpy
    if isinstance(x, (Array, Number, DType, bool, int, float, str, bytes)):
        return None
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype
    if isinstance(x, complex):
        return np.dtype(complex)
    if isinstance(x, (type, np.dtype)):
        return parse_numpy(x)
    if isinstance(x, (list, tuple)) and x:
        inner = _foreign_dtype(x)
        if inner is not None:
            return inner
        if all(isinstance(item, (str, bytes)) for item in x):
            return np.dtype(str)
    return None


def plain(name: str, function: Callable[..., Any]) -> Any:
    """Wrap a NumPy function that reads only shapes and dtypes.

    The wrapper takes arrays and dtypes of ours.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_described, args), **{k: _described(v) for k, v in kwargs.items()})

    run.__name__ = run.__qualname__ = name
    run.__doc__ = (function.__doc__ or "").strip().partition("\n")[0]
    run.__module__ = "smelt.numpy"
    return run


def _described(x: Any) -> Any:
    """Return a NumPy array without memory, with the shape and dtype of ours.

    Dtypes become NumPy's; anything else stays.
    """
    if isinstance(x, Array):
        return np.broadcast_to(np.empty((), x.dtype.numpy), x.shape)
    return x.numpy if isinstance(x, DType) else x
