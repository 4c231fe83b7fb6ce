"""Types, constants and helper objects of NumPy's namespace.

Types and constants are NumPy's own.  What returns arrays (`mgrid`, `r_`, `vectorize`) returns ours.

>>> CLASSES["r_"][1:4, 7], CLASSES["float32"](0.5), CLASSES["pi"] > 3
(Array([1, 2, 3, 7]), np.float32(0.5), True)
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from smelt.frontends.array.array import Array
from smelt.numpy.library import call, plain


class Indexed:
    """An object of NumPy that makes arrays from subscripts, as `np.r_[1:4]`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, key: Any) -> Any:
        theirs = getattr(np, self._name)
        keys = key if isinstance(key, tuple) else (key,)
        reason = "positions in brackets"
        return call(self._name, lambda *k: theirs[k if type(key) is tuple else k[0]], reason, keys)


class vectorize:  # noqa: N801 - NumPy's name
    """A function of numbers that NumPy calls for each element."""

    def __init__(self, pyfunc: Any = None, *args: Any, **kwargs: Any) -> None:
        self._options: Any = args, kwargs
        self._function = None if pyfunc is None else np.vectorize(pyfunc, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function of the elements; as a decorator with options, the function."""
        if self._function is None:
            return vectorize(args[0], *self._options[0], **self._options[1])
        return call("vectorize", self._function, "a function of Python", args, kwargs)


def _iterated(name: str) -> Any:
    def make(*arrays: Any, **options: Any) -> Any:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]

        def elements(a: Any) -> Any:
            if isinstance(a, (list, tuple)):
                return [elements(item) for item in a]
            return a.exported(f"np.{name}", frame) if isinstance(a, Array) else a

        return getattr(np, name)(*map(elements, arrays), **options)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Return NumPy's `{name}` of the elements."
    return make


_SAME: Final = """
    False_ ScalarType True_ bool bool_ busdaycalendar byte bytes_ cdouble character clongdouble
    complex128 complex64 complexfloating csingle datetime64 double dtype dtypes e errstate
    euler_gamma exceptions flexible float16 float32 float64 floating generic half index_exp
    inexact inf int16 int32 int64 int8 int_ intc integer intp little_endian long longdouble
    longlong nan ndindex newaxis number object_ pi poly1d s_ short signedinteger single str_
    testing timedelta64 typecodes typing ubyte uint uint16 uint32 uint64 uint8 uintc uintp ulong
    ulonglong unsignedinteger ushort void polynomial complex256 float128
    char ctypeslib emath flatiter ma matrix memmap rec recarray record strings
"""
"""Types, constants, objects and modules that are NumPy's own."""

REFUSED: Final = {
    "core": "a private module of NumPy",
    "f2py": "a program of NumPy",
    "sctypeDict": "use np.dtype(name)",
}
"""Classes and modules that are not here -> hint."""

CLASSES: Final[dict[str, Any]] = {
    **{name: getattr(np, name) for name in _SAME.split() if hasattr(np, name)},
    **{name: Indexed(name) for name in ("c_", "mgrid", "ogrid", "r_")},
    **{name: _iterated(name) for name in ("broadcast", "ndenumerate", "nditer")},
    "finfo": plain("finfo", np.finfo),
    "iinfo": plain("iinfo", np.iinfo),
    "vectorize": vectorize,
}
"""Name -> what it is here."""
