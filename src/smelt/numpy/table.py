"""The verdict on every public name of NumPy: one row each.

A function is `ours` (a function of the front end), `composite` (array code over ours), `plain`
(NumPy's function, which reads shapes, dtypes or settings, not elements), a `library` call (NumPy
computes, and the call is counted with its reason), or `refused` with a hint.

>>> ROWS["sum"].way, ROWS["unique"].way, ROWS["test"].way
('ours', 'library', 'refused')

Types and constants are NumPy's own.  What returns arrays (`mgrid`, `r_`, `vectorize`) returns ours.

>>> CLASSES["r_"][1:4, 7], CLASSES["float32"](0.5), CLASSES["pi"] > 3
(Array([1, 2, 3, 7]), np.float32(0.5), True)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any, Final, NamedTuple

import numpy as np

from smelt.errors import UnsupportedError
from smelt.frontends.array import creation as make
from smelt.frontends.array import einsum as sums
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import linalg as products
from smelt.frontends.array import methods, sorting
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.array import Array
from smelt.numpy import arithmetic, creation, manipulation, reduction
from smelt.numpy.binding import bound, library
from smelt.numpy.direct import direct
from smelt.numpy.library import as_ours, call, plain
from smelt.numpy.small import or_numpy
from smelt.numpy.ufunc import NAMED, Ufunc


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
    timedelta64 typecodes ubyte uint uint16 uint32 uint64 uint8 uintc uintp ulong
    ulonglong unsignedinteger ushort void complex256 float128 flatiter matrix memmap recarray record
"""
"""Types, constants and objects that are NumPy's own."""

MODULES: Final = "char ctypeslib emath ma polynomial rec strings testing typing"
"""Modules that are NumPy's own. NumPy imports most of them on first use, and so do we."""

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


class Row(NamedTuple):
    """What a name of NumPy is here: the way, the function, and a reason or hint."""

    name: str
    way: str
    function: Any
    note: str = ""


_SAME_NAME: Final = """
    abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift
    bitwise_or bitwise_right_shift bitwise_xor ceil conj copysign cos cosh divide equal exp exp2
    expm1 floor floor_divide greater greater_equal hypot isfinite isinf isnan less less_equal
    log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor maximum minimum
    multiply negative nextafter not_equal
    positive remainder sign signbit sin sinh sqrt square subtract tan tanh trunc
"""
"""Elementwise functions whose name is that of NumPy."""

_ELEMENTWISE: Final[dict[str, str]] = {
    "absolute": "abs",
    **{
        f"arc{name[1:]}": name
        for name in ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh"]
    },
    "conjugate": "conj",
    "bitwise_not": "bitwise_invert",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "mod": "remainder",
    "true_divide": "divide",
    **{name: name for name in _SAME_NAME.split()},
}
"""NumPy's elementwise function -> ours."""

_COMPOSITE_UFUNCS: Final = """
    cbrt deg2rad degrees divmod fabs float_power fmax fmin fmod heaviside ldexp logaddexp2
    modf power rad2deg radians reciprocal rint matvec vecdot
    vecmat
"""

_OF_FLAGS: Final = ("require",)
"""Composites that look at their arguments' flags: NumPy gets arrays of ours that are read-only."""

_OURS: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(module, name)
    for module, names in (
        (calls, "all any argmax argmin cumprod cumsum max mean min prod ptp std sum var"),
        (methods, "argsort dot repeat take trace"),
        (sums, "einsum"),
        (make, "empty ones zeros"),
        (products, "matmul"),
        (sorting, "unique_all unique_counts unique_inverse unique_values"),
    )
    for name in names.split()
} | {"amax": calls.max, "amin": calls.min, "round": methods.rounded}

_ALIASES: Final = {"pow": "power", "around": "round", "permute_dims": "transpose"}

_PLAIN: Final = """
    broadcast_shapes can_cast common_type einsum_path get_include get_printoptions getbufsize
    geterr geterrcall info iscomplexobj isdtype isfortran isrealobj isscalar issubdtype iterable
    min_scalar_type mintypecode ndim printoptions promote_types result_type set_printoptions
    setbufsize seterr seterrcall shape show_config show_runtime size typename base_repr
    binary_repr
"""

_LIBRARY: Final[Mapping[str, str]] = {
    "sets are found by sorting": ("unique union1d intersect1d setdiff1d setxor1d"),
    "results have a size that depends on elements": ("histogram_bin_edges unwrap"),
    "integers bit by bit": ("bitwise_count packbits unpackbits frexp spacing gcd lcm"),
    "a function without a row": ("i0 kaiser"),
    "positions in several dimensions": (
        "ravel_multi_index unravel_index histogram2d histogramdd mask_indices"
    ),
    "polynomials of a few coefficients": (
        "poly polyadd polyder polydiv polyfit polyint polymul polysub roots"
    ),
    "the function gets NumPy's arrays": ("apply_along_axis frompyfunc"),
    "complex numbers": ("sort_complex"),
    "text": ("array2string array_repr array_str format_float_positional format_float_scientific"),
    "files and buffers": (
        "fromfile fromiter fromregex fromstring genfromtxt load loadtxt save "
        "savetxt savez savez_compressed"
    ),
    "matrices are NumPy's": ("asmatrix bmat"),
    "dates": ("busday_count busday_offset datetime_as_string datetime_data is_busday isnat"),
}
"""Reason -> functions that NumPy computes."""

_REFUSED: Final = {
    "nested_iters": "Loop over positions with np.ndindex.",
    "test": "Run numpy.test() of NumPy itself.",
}
"""Function that raises UnsupportedError -> what to write instead."""


def _refused(name: str, hint: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"np.{name}", hint=hint)

    return calls.named(function, name, f"Raise UnsupportedError.  {hint}")


def _composites() -> Iterator[tuple[str, Any]]:
    """Yield the functions of the modules with array code, by NumPy's names."""
    for module in (arithmetic, creation, manipulation, reduction):
        for name, function in vars(module).items():
            is_ours = getattr(function, "__module__", "").startswith("smelt.numpy.")
            if is_ours and callable(function) and not name.startswith("_") and _is_function(name):
                yield name, function


def _is_function(name: str) -> bool:
    theirs = getattr(np, name, None)
    return callable(theirs) and not isinstance(theirs, type)


def _rows() -> Iterator[Row]:
    for name, mine in _ELEMENTWISE.items():
        yield Row(name, "ours", Ufunc(name, getattr(el, mine)))
    for name, function in _OURS.items():
        yield Row(name, "ours", bound(name, function, getattr(np, name)))
    for name, function in _composites():
        theirs = getattr(np, name)
        if name in _COMPOSITE_UFUNCS.split():
            composite: Any = Ufunc(name, function)
        elif name in _OF_FLAGS:
            composite = or_numpy(name, theirs, as_ours, function)
        else:
            composite = bound(name, function, theirs)
            if hasattr(function, "__wrapped__"):  # the array API has other names
                composite.__signature__ = signature(theirs)
        yield Row(name, "composite", composite)
    for name in _PLAIN.split():
        yield Row(name, "plain", plain(name, getattr(np, name)))
    for reason, names in _LIBRARY.items():
        for name in names.split():
            theirs = getattr(np, name)
            is_ufunc = isinstance(theirs, np.ufunc)
            function = Ufunc(name, None, reason) if is_ufunc else library(name, theirs, reason)
            yield Row(name, "library", function, reason)
    for name, hint in _REFUSED.items():
        yield Row(name, "refused", _refused(name, hint), hint)


def _by_name() -> dict[str, Row]:
    rows = {row.name: row for row in _rows() if hasattr(np, row.name)}
    NAMED.update({row.name: row.function for row in rows.values() if type(row.function) is Ufunc})
    for name, row in rows.items():
        if row.way != "refused":
            rows[name] = row._replace(function=direct(name, row.function))
    for name, other in _ALIASES.items():
        rows[name] = rows[other]._replace(name=name)
    return dict(sorted(rows.items()))


ROWS: Final = _by_name()
"""Name -> row."""
