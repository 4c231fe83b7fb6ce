"""Call NumPy's own function where its arguments are computed and compiling does not pay yet.

Most of our functions are array code, made to be fused.  Computed operator by operator they would
take longer than NumPy's, so NumPy's function is called as a whole.  What fusing its result with a
reader would save is paid into an account, as for single operators; a function that has paid for
compiling is recorded.

>>> call_at_once("clip", np.clip, np.clip, ([1, 5], 2, 3), {})
NotImplemented
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from smelt.errors import raised_by_signal_handler
from smelt.frontends.array.aliasing import writeable_elements
from smelt.frontends.array.array import Array, copy_of
from smelt.frontends.array.at_once import REQUESTED, Account, Purse, is_view, pay
from smelt.frontends.array.complex_array import ComplexArray, from_memory
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.recycle import Recycled, recycled
from smelt.frontends.array.value import intern, is_at_once, leaf, recorded
from smelt.numpy import small
from smelt.numpy.library import note_fault
from smelt.types.dtype import DType, counterpart

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
        x = _elements(x, buffers)
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
    values = [] if target is None else [_elements(x, []) for x in (*args, where)]
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


def _elements(x: Any, buffers: list[Any]) -> Any:
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
        items = [_elements(item, buffers) for item in x]
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
