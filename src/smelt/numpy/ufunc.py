"""Elementwise functions with NumPy's methods: `np.add.reduce`, `np.maximum.outer`.

>>> add = Ufunc("add", elementwise.add)
>>> add([1, 2], 3), add.reduce([1, 2]), add.outer([1, 2], [3, 4]).shape, add.accumulate([1, 2])
(Array([4, 5]), Array(3), (2, 2), Array([1, 3]))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import numpy as np

from smelt.frontends.array import elementwise, methods
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.array import Array
from smelt.frontends.array.operators import keep_order
from smelt.numpy import small
from smelt.numpy.binding import bind
from smelt.numpy.library import as_ours, call, compute_into
from smelt.types.dtype import DType, bool_, counterpart

_REDUCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": calls.sum,
    "multiply": calls.prod,
    "maximum": calls.max,
    "minimum": calls.min,
    "logical_and": calls.all,
    "logical_or": calls.any,
}
"""Function -> the reduction that repeats it."""

_SCANS: Final[dict[str, Callable[..., Any]]] = {"add": calls.cumsum, "multiply": calls.cumprod}
"""Function -> the scan that repeats it."""


def _or_numpy(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `Ufunc` that NumPy's replaces for small arguments."""
    name = method.__name__

    @wraps(method)
    def function(self: Any, *args: Any, **kwargs: Any) -> Any:
        if small.is_small(args, kwargs):
            return small.finish(getattr(self._theirs, name)(*args, **kwargs), as_ours, ())
        return small.own_results(method(self, *args, **kwargs), args, kwargs)

    return function


def _attribute(name: str, doc: str) -> Any:
    return property(lambda self: getattr(self._theirs, name), doc=doc)


class Ufunc:
    """An elementwise function of ours with the name, attributes and methods of NumPy's."""

    def __init__(self, name: str, ours: Callable[..., Any] | None, reason: str = "") -> None:
        self._theirs: Any = getattr(np, name)
        self.__name__ = self.__qualname__ = name
        self.__module__ = "smelt.numpy"
        about = (ours.__doc__ if ours else self._theirs.__doc__) or ""
        self.__doc__ = about.strip()
        self._reason = reason
        self._has_float_loops = bool(ours) and all(t[0] in "efdgFDGO" for t in self._theirs.types)
        self._loops: dict[Any, tuple[DType, ...] | None] = {}
        self._call = bind(name, ours, self._theirs) if ours else self._library

    def _library(self, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        result = call(self.__name__, self._theirs, self._reason, args, kwargs)
        return calls.store(result, out)

    nin = _attribute("nin", "Number of arguments.")
    nout = _attribute("nout", "Number of results.")
    nargs = _attribute("nargs", "Number of arguments and results.")
    identity = _attribute("identity", "The neutral element, None if there is none.")
    signature = _attribute("signature", "Which dimensions belong together, None if elementwise.")
    types = _attribute("types", "The dtypes that NumPy's function is compiled for.")

    def __repr__(self) -> str:
        return f"<ufunc '{self.__name__}' of smelt.numpy>"

    def __reduce__(self) -> Any:
        return _by_name, (self.__name__, self._reason)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function of the elements; `out`, `where` and `dtype` as in NumPy."""
        for x in args:
            if x.__class__ is not Array:
                if small.is_small(args, kwargs):
                    return small.finish(self._theirs(*args, **kwargs), as_ours, ())
                args = tuple([np.asarray(x) if x.__class__ is np.float64 else x for x in args])
                break  # NumPy's float has a dtype, unlike Python's
        return small.own_results(self._result(*args, **kwargs), args, kwargs)

    def _result(self, *args: Any, **kwargs: Any) -> Any:
        count = self._theirs.nin
        if len(args) > count:
            args, kwargs = args[:count], {"out": args[count:], **kwargs}
        if not kwargs:
            result = self._call(*self._resolved(args))
            return keep_order(result, *args) if isinstance(result, Array) else result
        out, where, dtype = (
            kwargs.pop(n, d) for n, d in (("out", None), ("where", True), ("dtype", None))
        )
        if where is not True and dtype is None and not kwargs and self.nout == 1:
            if compute_into(self._theirs, args, out, where):
                return next(iter(out)) if isinstance(out, tuple) else out
        if isinstance(out, tuple) and len(out) > 1:
            results = self._call(*args, **kwargs)
            return tuple(calls.store(r, o) for r, o in zip(results, out, strict=True))
        if dtype is not None:
            args = tuple(methods.convert(calls.array(x, self.__name__), dtype) for x in args)
        else:
            args = self._resolved(args)
        result = self._call(*args, **kwargs)
        if where is not True and isinstance(result, Array):
            kept: Any = next(iter(out)) if isinstance(out, tuple) else out
            other = 0 if kept is None else calls.array(kept, self.__name__)
            result = elementwise.where(calls.array(where, self.__name__), result, other)
        return calls.store(result, out)

    def _resolved(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments in the types that NumPy computes in: float16 of int8 for `sin`.

        They stay as they are where NumPy has no such types, and its function would refuse them.
        """
        if not self._has_float_loops:
            return args
        for x in args:
            if x.__class__ is not Array or not x.node.type.dtype.is_float:
                break
        else:  # the common case
            return args
        kinds = tuple(map(_kind, args))
        if kinds not in self._loops:
            self._loops[kinds] = self._loop(kinds)
        loop = self._loops[kinds]
        return args if loop is None else tuple(map(_as_loop_type, args, loop))

    def _loop(self, kinds: tuple[Any, ...]) -> tuple[DType, ...] | None:
        """Return the types of NumPy's inner loop for arguments, None without one."""
        if None in kinds:
            return None
        theirs = [kind.numpy if isinstance(kind, DType) else kind for kind in kinds]
        try:
            types = self._theirs.resolve_dtypes((*theirs, *[None] * self.nout))
        except TypeError:
            return None
        rows = [counterpart(t) for t in types[: len(kinds)]]
        row_types = tuple(row for row in rows if row is not None and row.kind != "complex")
        return row_types if len(row_types) == len(kinds) else None

    @_or_numpy
    def reduce(
        self,
        array: Any,
        axis: Any = 0,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        **options: Any,
    ) -> Any:
        """Return the function repeated over `axis`, the first dimension by default."""
        reduction = _REDUCTIONS.get(self.__name__)
        if reduction is None:
            result = self._method("reduce", array, axis, dtype, None, keepdims, **options)
        else:
            typed = {} if dtype is None else {"dtype": dtype}
            x = calls.array(array, self.__name__)
            result = reduction(x, axis=axis, keepdims=keepdims, **typed, **options)
        return calls.store(result, out)

    @_or_numpy
    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """Return all results of the function repeated along `axis`."""
        scan = _SCANS.get(self.__name__)
        if scan is not None:
            return scan(array, axis, dtype, out)
        return calls.store(self._method("accumulate", array, axis, dtype), out)

    @_or_numpy
    def outer(self, a: Any, b: Any, /, **options: Any) -> Any:
        """Return the function of all pairs of elements."""
        x, y = calls.array(a, self.__name__), calls.array(b, self.__name__)
        return self(methods.reshape(x, (*x.shape, *(1,) * y.ndim)), y, **options)

    @_or_numpy
    def reduceat(
        self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None
    ) -> Any:
        """Return the function repeated over parts that begin at positions."""
        return calls.store(self._method("reduceat", array, indices, axis, dtype), out)

    @_or_numpy
    def at(self, a: Any, indices: Any, b: Any = None, /) -> None:
        """Apply the function in place at positions, which may repeat."""
        values = () if b is None else (b,)
        if not isinstance(a, Array):
            self._theirs.at(a, indices, *map(np.asarray, values))
            return
        update = _UPDATES.get(self.__name__)
        if update is not None and b is not None and _fits(a, b):
            a.replace_value(getattr(a.at[indices], update)(b).node)
            return
        buffer = np.array(a)
        call(
            f"{self.__name__}.at",
            lambda *rest: self._theirs.at(buffer, *rest),
            "positions that may repeat",
            (indices, *values),
        )
        a[...] = buffer

    def _method(self, name: str, *args: Any, **options: Any) -> Any:
        reason = "a method without a kernel of ours"
        return call(f"{self.__name__}.{name}", getattr(self._theirs, name), reason, args, options)


def _kind(x: Any) -> Any:
    """Return an argument's dtype, int or float for a number, else None."""
    if type(x) in (int, float):
        return type(x)
    if type(x) is bool:
        return bool_
    if isinstance(x, Array):
        return x.dtype
    return counterpart(x.dtype) if isinstance(x, (np.ndarray, np.generic)) else None


def _as_loop_type(x: Any, dtype: DType) -> Any:
    if type(x) in (int, float):  # it takes the type of the other argument
        return x
    return methods.convert(calls.array(x, "smelt.numpy"), dtype, copy=False)


_UPDATES = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "maximum": "max",
    "minimum": "min",
}
"""Updates of `x.at[...]` that do what a function does at positions."""


def _fits(a: Array, b: Any) -> bool:
    """Return whether operands have the dtype of the array that is written: no cast is needed."""
    if a.dtype is bool_:
        return False
    if isinstance(b, Array | np.ndarray | np.generic):
        return bool(a.dtype == b.dtype)
    return type(b) is int or (type(b) is float and a.dtype.is_float)


def _by_name(name: str, reason: str) -> Any:
    return NAMED[name] if name in NAMED else Ufunc(name, None, reason)


NAMED: Final[dict[str, Ufunc]] = {}
"""All functions by name, for pickling."""
