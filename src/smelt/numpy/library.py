"""Call NumPy's own functions for what Smelt does not compute; count calls by line.

Such a call ends fusion, so `library_calls` lists the lines that make them.  Elements are passed
without a copy, in memory that NumPy cannot write to.  Results become arrays of ours if their dtype
is one of ours; others (strings, dates) stay NumPy's.

Most of our functions are array code, made to be fused.  Computed operator by operator they would
take longer than NumPy's, so NumPy's function is called as a whole where its arguments are computed
and compiling does not pay yet (`call_at_once`).  What fusing its result with a reader would save is
paid into an account, as for single operators; a function that has paid for compiling is recorded.

>>> total = call("trace", np.trace, "an example", (np.eye(3),))
>>> total, library_calls()[-1].name
(Array(3.), 'trace')
>>> call_at_once("clip", np.clip, np.clip, ([1, 5], 2, 3), {})
NotImplemented
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from smelt.errors import InternalError, SmeltError, TracerError, raised_by_signal_handler
from smelt.frontends.array import numpy_calls
from smelt.frontends.array.aliasing import refuse, writeable_elements
from smelt.frontends.array.array import Array, check_device, copy_of
from smelt.frontends.array.at_once import REQUESTED, Account, Purse, is_view, pay
from smelt.frontends.array.complex_array import ComplexArray, from_memory
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.library import check_extern_allowed
from smelt.frontends.array.masked_select import MaskedSelection
from smelt.frontends.array.memory import Recycled, recycled
from smelt.frontends.array.number import Number
from smelt.frontends.array.subscript import unknown_count_error
from smelt.frontends.array.value import intern, is_at_once, leaf, recorded
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


_LARGE: Final = 1 << 16
"""Smallest argument, in bytes, of calls that pay into an account."""
_PLAIN: Final = frozenset((int, float, complex, bool, str, type(None), type, type(Ellipsis)))
_DTYPES: Final = frozenset("?bBhHiIlLqQefd")
_WAITS: Final = object()
_ACCOUNTS: dict[Hashable, Account] = {}
_ACCOUNTS_LIMIT: Final = 4096
_MEMORY: dict[Hashable, Recycled] = {}
"""Memory for large results by ufunc and types of its arguments."""


def call_at_once(
    name: str,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Return the result of a function without `out`, NotImplemented where ours has to be called.

    That is so in recordings, for arguments that wait or that NumPy takes otherwise, for results
    that are views, and where NumPy's function raises.
    """
    if not is_at_once():
        return NotImplemented
    buffers: list[Any] = []
    values: list[Any] = []
    for x in (*args, *kwargs.values()):
        x = _computed_elements(x, buffers)
        if x is _WAITS:
            return NotImplemented
        values.append(x)
    account = failure = None
    if any(b.nbytes >= _LARGE for b in buffers) and all(b.dtype.kind != "c" for b in buffers):
        account = _account(name, buffers)
        pay(tuple([x.node for x in args if x.__class__ is Array]), account)
        if account.is_recorded:
            try:
                result = recorded(ours, *args, **kwargs)
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                failure, result = error, None
            if result.__class__ is Array:
                return result
            account.purse = Purse()
    try:
        if kwargs:
            options = dict(zip(kwargs, values[len(args) :], strict=True))
            result = theirs(*values[: len(args)], **options)
        else:
            result = _computed(theirs, values)
    except Exception as error:
        if raised_by_signal_handler(error) or isinstance(error, REQUESTED):
            raise
        return NotImplemented
    if failure is not None:  # else the caller sees the error
        note_fault(name, ours, args, kwargs, failure)
    if isinstance(result, (tuple, list)):
        items = [_ours(x, buffers) for x in result]
        if any(x is NotImplemented for x in items):
            return NotImplemented
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    result = _ours(result, buffers)
    if account is not None and result.__class__ is Array:
        account.runs += 1
        if not account.saved and result.node.data is not None:
            account.save(result.node.data.nbytes)
        result.node.account = account
    return result


def compute_into(theirs: Any, args: Sequence[Any], out: Any, where: Any) -> bool:
    """Compute a masked ufunc into an array of ours; return whether NumPy did."""
    if isinstance(out, tuple):
        (out,) = out
    if out.__class__ is not Array or not is_at_once():
        return False
    target = writeable_elements(out)
    values = [] if target is None else [_computed_elements(x, []) for x in (*args, where)]
    if not values or any(x is _WAITS for x in values):
        return False
    try:
        theirs(*values[:-1], out=target, where=values[-1])
    except (TypeError, ValueError):
        return False  # ours is raised
    return True


def _computed(theirs: Any, values: list[Any]) -> Any:
    """Return a function's result; large ones of ufuncs go to memory of dropped results."""
    if theirs is operator.pow and values[1].__class__ is int and values[1] == 2:
        theirs, values = np.square, values[:1]  # as NumPy's operator
    if theirs.__class__ is not np.ufunc:
        return theirs(*values)
    key: list[Any] = [theirs]
    for x in values:
        if x.__class__ is np.ndarray:
            if not x.flags.c_contiguous:
                return theirs(*values)
            key += x.dtype.char, x.shape
        else:
            key.append(x.__class__)
    memory = _MEMORY.get(tuple(key))
    data = None if memory is None else memory.take()
    if memory is not None and data is not None:
        theirs(*values, data)
        memory.buffers.append(data)
        return data
    result = theirs(*values)
    if result.__class__ is np.ndarray and result.nbytes > small.limit:
        row = counterpart(result.dtype)
        memory = None if row is None else recycled(intern(row, result.shape), result.nbytes)
        if memory is not None and result.flags.c_contiguous:
            if len(_MEMORY) >= _ACCOUNTS_LIMIT:
                _MEMORY.clear()
            _MEMORY[tuple(key)] = memory
            memory.add(result)
    return result


def _computed_elements(x: Any, buffers: list[Any]) -> Any:
    """Return an argument for NumPy, our arrays read-only; `_WAITS` for what only ours takes."""
    kind = x.__class__
    if kind is Array:
        place = x.place
        if place is not None and place.memory.order is not None:
            return _WAITS  # NumPy would see another order in memory
        node = x.node if place is None else place.memory.node
        data = node.current_buffer()
        if data is None and is_view(node):
            data = evaluate(node)  # NumPy's view of a constant would be a copy
        if data is None or data.dtype.char not in _DTYPES:
            return _WAITS
        try:
            view = data.view() if place is None else place.of(data).view()
        except ValueError:
            return _WAITS  # a view that waits lies in an order in which NumPy would copy it
        buffers.append(data)
        view.flags.writeable = False
        return view
    if kind in _PLAIN or isinstance(x, np.generic):
        return x
    if kind is np.ndarray:
        buffers.append(x)
        return x if x.dtype.char in _DTYPES or x.dtype.char in "FD" else _WAITS
    if kind is ComplexArray:
        data = x.computed() if small.limit else None
        if data is None:
            return _WAITS
        buffers.append(data)
        return data
    if kind is tuple or kind is list:
        items = [_computed_elements(item, buffers) for item in x]
        return _WAITS if any(item is _WAITS for item in items) else kind(items)
    return x.numpy if isinstance(x, DType) and x.numpy.char in _DTYPES else _WAITS


def _ours(result: Any, buffers: list[Any]) -> Any:
    """Return a large result as an array of ours; NotImplemented for views and other objects."""
    if isinstance(result, np.generic):
        if small.limit:
            return result
        data = np.asarray(result)
    elif type(result) is np.ndarray:
        data = result
        is_small = 0 < data.nbytes <= small.limit
        if not data.flags.writeable:
            return NotImplemented  # ours has NumPy's rules for views
        if data.base is not None and buffers:
            if not is_small or any(np.may_share_memory(data, b) for b in buffers):
                return NotImplemented
        if any(data is b for b in buffers):
            return NotImplemented
        if is_small:
            return data
    else:
        return NotImplemented
    if data.dtype.char in "FD":
        return from_memory(data, private=True)
    if data.dtype.char not in _DTYPES:
        return NotImplemented
    if data.flags.c_contiguous:
        return Array.of(leaf(data))
    return copy_of(data)


def _account(name: str, buffers: list[Any]) -> Account:
    key = (name, *[(x.dtype.char, x.shape) for x in buffers])
    account = _ACCOUNTS.get(key)
    if account is None:
        if len(_ACCOUNTS) >= _ACCOUNTS_LIMIT:
            _ACCOUNTS.clear()
        account = _ACCOUNTS[key] = Account()
    return account
