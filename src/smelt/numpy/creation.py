"""Functions of NumPy that create arrays, written with functions of ours.

>>> array([[1, 2]], dtype=float), arange(3), linspace(0, 1, 3)
(Array([[1., 2.]]), Array([0, 1, 2]), Array([0. , 0.5, 1. ]))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.frontends.array import creation as make
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import methods
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import held
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.operators import keep_order
from smelt.numpy.binding import LibraryOnly
from smelt.numpy.library import as_ours
from smelt.types.dtype import DType


def array(
    object: Any,
    dtype: DTypeLike = None,
    *,
    copy: Any = True,
    order: Any = "K",
    subok: bool = False,
    ndmin: int = 0,
) -> Array:
    """Return a new array of numbers, nested lists or another array.

    Raises ArgumentError for lists of different lengths, DTypeError.
    """
    methods.check_order(order, "array")
    if copy:
        result = make.asarray(object, dtype=dtype, copy=True if _is_memory(object) else None)
    else:
        result = asarray(object, dtype, copy=copy)
    missing = ndmin - result.ndim
    return shapes.reshape(result, (*(1,) * missing, *result.shape)) if missing > 0 else result


def _is_memory(x: Any) -> bool:
    return isinstance(x, (Array, np.ndarray)) or hasattr(x, "__dlpack__")


def asarray(a: Any, dtype: DTypeLike = None, order: Any = None, *, copy: Any = None) -> Array:
    """Return numbers, nested lists or another array as an array, without a copy if possible.

    Raises ArgumentError for lists of different lengths, DTypeError.
    """
    if order == "F":
        return asfortranarray(make.asarray(a, dtype=dtype, copy=True) if copy else a, dtype)
    methods.check_order(order, "asarray")
    if order == "C" and isinstance(a, (Array, np.ndarray)) and not a.flags.c_contiguous:
        copy = True
    x = make.asarray(a, dtype=dtype, copy=copy)
    return x if isinstance(a, Array) else held(x)


asanyarray = asarray


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array that shares another library's memory, through DLPack.

    Raises DLPackError for memory or devices that cannot be read, ArgumentError.
    """
    return held(make.from_dlpack(x, device=device, copy=copy))


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Any:
    """Return the memory of an object with the buffer protocol as a vector."""
    target = dtype.numpy if isinstance(dtype, DType) else dtype
    return as_ours(np.frombuffer(buffer, target, count, offset))


def ascontiguousarray(a: Any, dtype: DTypeLike = None) -> Array:
    """Return the array if its elements are in the order of rows, else a copy."""
    x = asarray(a, dtype, "C")
    return x if x.ndim else methods.ravel(x)


def asfortranarray(a: Any, dtype: DTypeLike = None) -> Array:
    """Return the array if its elements are in the order of columns, else a copy."""
    x = ascontiguousarray(a, dtype) if _rank(a) == 0 else asarray(a, dtype)
    if x.flags.f_contiguous:
        return x
    columns = methods.transpose(x).__copy__()
    return methods.as_view(columns, methods.transpose(columns))


def asarray_chkfinite(a: Any, dtype: DTypeLike = None, order: Any = None) -> Array:
    """Return the array; NumPy raises its error if an element is not finite."""
    x = asarray(a, dtype, order)
    if not bool(calls.all(el.isfinite(x))):
        raise LibraryOnly("elements that are not finite")
    return x


def require(a: Any, dtype: DTypeLike = None, requirements: Any = None) -> Array:
    """Return the array if its memory is as required, else a copy."""
    wanted = [requirements] if isinstance(requirements, str) else list(requirements or ())
    letters = {str(r).upper()[:1] for r in wanted}
    x = (
        asfortranarray(a, dtype)
        if "F" in letters
        else asarray(a, dtype, "C" if "C" in letters else None)
    )
    is_view = not x.flags.owndata and "O" in letters
    return x.__copy__() if is_view or ("W" in letters and not x.flags.writeable) else x


def copy(a: Any, order: Any = "K", subok: bool = False) -> Array:
    """Return a copy, or an array of numbers and nested lists."""
    result = array(a, order=order)
    return keep_order(result, a) if order in ("K", "A") else result


def arange(*args: Any, dtype: DTypeLike = None, **named: Any) -> Array:
    """Return evenly spaced numbers: `arange(stop)` or `arange(start, stop, step, dtype)`."""
    if len(args) == 4:
        *args, dtype = args  # type: ignore[assignment]
    start, stop, step = _span(args, named)
    return make.arange(start, stop, step, dtype=dtype)


def _span(args: Any, named: dict[str, Any]) -> tuple[Any, Any, Any]:
    if len(args) == 1 and "stop" not in named:
        return 0, args[0], named.get("step", 1)
    order = ("start", "stop", "step")
    values = {"start": 0, "step": 1, **dict(zip(order, args, strict=False)), **named}
    if set(values) != set(order):
        raise LibraryOnly("arguments that only NumPy's function takes")
    return values["start"], values["stop"], values["step"]


def linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Any:
    """Return `num` evenly spaced numbers from `start` to `stop`, and their distance if asked.

    Raises ArgumentError.
    """
    if _rank(start) or _rank(stop):
        raise LibraryOnly("ends that are arrays")
    start, stop = float(start), float(stop)
    result = make.linspace(start, stop, num, dtype=None, endpoint=endpoint)
    if dtype is not None:
        target = as_dtype(dtype)
        result = el.floor(result) if target.is_integer else result
        result = methods.convert(result, target)
    if not retstep:
        return result
    parts = num - 1 if endpoint else num
    return result, make.asarray((stop - start) / parts if parts > 0 else math.nan)


def _rank(x: Any) -> int:
    return len(x) if isinstance(x, (list, tuple, range)) else getattr(x, "ndim", 0)


def logspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Array:
    """Return powers of `base` whose exponents are evenly spaced."""
    powers = el.pow(float(base), linspace(start, stop, num, endpoint))
    return powers if dtype is None else methods.convert(powers, dtype)


def geomspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Array:
    """Return numbers with a constant ratio from `start` to `stop`.

    Ends of which one is not positive are NumPy's.
    """
    if _rank(start) or _rank(stop) or not (start > 0 and stop > 0):
        raise LibraryOnly("ends that are not positive numbers")
    exponents = linspace(math.log10(start), math.log10(stop), num, endpoint)
    result = el.pow(10.0, exponents)
    if num > 0:
        result[0] = start
    if endpoint and num > 1:
        result[-1] = stop
    return result if dtype is None else methods.convert(result, dtype)


def eye(N: Any, M: Any = None, k: int = 0, dtype: DTypeLike = float) -> Array:
    """Return a matrix with ones on the `k`-th diagonal."""
    return make.eye(N, M, k=k, dtype=dtype)


def identity(n: Any, dtype: DTypeLike = None) -> Array:
    """Return the identity matrix."""
    return make.eye(n, dtype=dtype)


def tri(N: Any, M: Any = None, k: int = 0, dtype: DTypeLike = float) -> Array:
    """Return ones at and below the `k`-th diagonal, zeros above."""
    return make.tril(make.ones((N, N if M is None else M), dtype=dtype), k=k)


def tril(m: Any, k: int = 0) -> Array:
    """Set elements above the `k`-th diagonal to zero."""
    return make.tril(_matrix(m), k=k)


def triu(m: Any, k: int = 0) -> Array:
    """Set elements below the `k`-th diagonal to zero."""
    return make.triu(_matrix(m), k=k)


def _matrix(m: Any) -> Array:
    x = calls.array(m, "tril")
    return shapes.broadcast_to(x, (*x.shape, *x.shape)) if x.ndim == 1 else x


def diag(v: Any, k: int = 0) -> Array:
    """Return the `k`-th diagonal of a matrix, or the matrix with a vector on it."""
    x = calls.array(v, "diag")
    if x.ndim == 2:
        return methods.diagonal_view(x, k)
    if x.ndim != 1:
        raise LibraryOnly("an input that is neither a vector nor a matrix")
    n = x.shape[0] + abs(k)
    rows, columns = make.arange(n)[:, None], make.arange(n)[None, :]
    padded = shapes.concat([make.zeros(max(k, 0), dtype=x.dtype), x]) if k > 0 else x
    if k < 0:
        padded = shapes.concat([x, make.zeros(-k, dtype=x.dtype)])
    return el.where(columns - rows == k, padded[None, :], make.zeros((), dtype=x.dtype))


def diagflat(v: Any, k: int = 0) -> Array:
    """Return the matrix with the elements of an array on its `k`-th diagonal."""
    return diag(methods.ravel(calls.array(v, "diagflat")), k)


def vander(x: Any, N: Any = None, increasing: bool = False) -> Array:
    """Return the matrix whose columns are powers of a vector."""
    column = calls.array(x, "vander")[:, None]
    count = column.shape[0] if N is None else N
    powers = make.arange(count) if increasing else make.arange(count - 1, -1, -1)
    return column**powers


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    """Return coordinate arrays of a grid, one for each vector; a tuple, as in NumPy."""
    if sparse:
        raise LibraryOnly("a sparse grid")
    return tuple(make.meshgrid(*(calls.array(x, "meshgrid") for x in xi), indexing=indexing))


def full(shape: Any, fill_value: Any, dtype: DTypeLike = None) -> Array:
    """Return an array with the same number everywhere, or rows of numbers broadcast."""
    if _rank(fill_value):
        fill = make.asarray(fill_value, dtype=dtype)
        return shapes.broadcast_to(fill, shape)
    return make.full(shape, fill_value, dtype=dtype)


def _like(name: str) -> Any:
    function = getattr(make, f"{name}_like")

    def like(a: Any, dtype: DTypeLike = None, order: Any = "K", *, shape: Any = None) -> Array:
        x = calls.array(a, name)
        if shape is not None:
            return getattr(make, name)(shape, dtype=x.dtype if dtype is None else dtype)
        return function(x, dtype=dtype)

    return calls.named(like, f"{name}_like", function.__doc__)


zeros_like, ones_like, empty_like = _like("zeros"), _like("ones"), _like("empty")


def full_like(a: Any, fill_value: Any, dtype: DTypeLike = None, *, shape: Any = None) -> Array:
    """Return an array like `a` with the same number everywhere."""
    x = calls.array(a, "full_like")
    if _rank(fill_value):
        raise LibraryOnly("rows to fill with")
    return make.full(x.shape if shape is None else shape, fill_value, dtype or x.dtype)


def indices(dimensions: Any, dtype: DTypeLike = int, sparse: bool = False) -> Any:
    """Return the positions of a grid's points, one array for each dimension, stacked."""
    if sparse:
        raise LibraryOnly("a sparse grid")
    grids = make.meshgrid(*(make.arange(n) for n in dimensions), indexing="ij")
    return methods.convert(shapes.stack(grids), dtype)


def fromfunction(function: Any, shape: Any, *, dtype: DTypeLike = float, **kwargs: Any) -> Any:
    """Return a function of the positions of a grid's points."""
    return function(*indices(shape, dtype), **kwargs)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> Any:
    """Return the row and column positions at and below a diagonal."""
    return as_ours(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> Any:
    """Return the row and column positions at and above a diagonal."""
    return as_ours(np.triu_indices(n, k, m))


def tril_indices_from(arr: Any, k: int = 0) -> Any:
    """Return the row and column positions at and below a diagonal of a matrix."""
    if arr.ndim != 2:
        raise LibraryOnly("an array that is not 2-D")
    return tril_indices(arr.shape[0], k, arr.shape[1])


def triu_indices_from(arr: Any, k: int = 0) -> Any:
    """Return the row and column positions at and above a diagonal of a matrix."""
    if arr.ndim != 2:
        raise LibraryOnly("an array that is not 2-D")
    return triu_indices(arr.shape[0], k, arr.shape[1])


def diag_indices(n: int, ndim: int = 2) -> Any:
    """Return the positions of the main diagonal."""
    return (make.arange(n),) * ndim


def diag_indices_from(arr: Any) -> Any:
    """Return the positions of an array's main diagonal."""
    if arr.ndim < 2 or len(set(arr.shape)) > 1:
        raise LibraryOnly("an array without equal dimensions")
    return diag_indices(arr.shape[0], arr.ndim)


def _window(name: str) -> Any:
    theirs = getattr(np, name)

    def window(M: Any) -> Array:
        n = make.arange(1 - M, M, 2)
        if M < 1:
            return make.zeros(0)
        return make.ones(1) if M == 1 else _WINDOWS[name](n * 1.0, M - 1)

    return calls.named(window, name, (theirs.__doc__ or "").strip().partition("\n")[0])


_WINDOWS: dict[str, Any] = {
    "bartlett": lambda n, m: el.where(n <= 0, 1 + n / m, 1 - n / m),
    "blackman": lambda n, m: (
        0.42 + 0.5 * el.cos(math.pi * n / m) + 0.08 * el.cos(2 * math.pi * n / m)
    ),
    "hamming": lambda n, m: 0.54 + 0.46 * el.cos(math.pi * n / m),
    "hanning": lambda n, m: 0.5 + 0.5 * el.cos(math.pi * n / m),
}
bartlett, blackman, hamming, hanning = (
    _window(name) for name in ("bartlett", "blackman", "hamming", "hanning")
)
