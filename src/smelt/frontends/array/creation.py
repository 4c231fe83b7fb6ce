"""Creation functions of the array API standard.

Arrays of numbers that nobody stored (`zeros`, `arange`, `eye`) are recorded, not filled: they cost
memory only when they are read by themselves.

>>> arange(3), linspace(0, 1, 3), eye(2)
(Array([0, 1, 2]), Array([0. , 0.5, 1. ]), Array([[1., 0.],
       [0., 1.]]))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, DLPackError, OverflowSizeError, RangeError, ShapeError
from smelt.frontends.array.array import Array, check_device, number_or_value, value
from smelt.frontends.array.convert import (
    as_buffer,
    from_host,
    is_foreign_array,
    number_dtype,
    usable,
)
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.number import Number, Scalar, as_dim, dims, is_whole, shown
from smelt.frontends.array.promote import cast, number, own_value
from smelt.frontends.array.subscript import SELECT
from smelt.frontends.array.value import STATE, Value, copied, leaf, record
from smelt.frontends.array.views import concat, expand, reshape, shape_of
from smelt.ops.create import Iota
from smelt.ops.view import Expand
from smelt.types.dtype import DType, f64, i64
from smelt.types.expr import Index, add, floordiv, mul, sub
from smelt.types.tensor import Shape

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "filled",
    "from_dlpack",
    "full",
    "full_like",
    "iota",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]


def filled(shape: Shape, fill: Value) -> Value:
    """A value of rank 0 in every place of a shape."""
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise OverflowSizeError(f"negative dimension in the shape {shape}")
    return record(Expand(shape), (fill,), STATE.scope) if shape else fill


def iota(shape: Shape, axis: int, dtype: DType = i64) -> Value:
    """Positions along an axis."""
    return record(Iota(shape, axis, dtype), (), STATE.scope)


# From what exists


def asarray(
    obj: Any, /, *, dtype: DTypeLike = None, device: Any = None, copy: bool | None = None
) -> Array:
    """An array from a number, nested lists, a NumPy array, or anything with DLPack.

    Args:
        obj: what to convert.  Memory of other libraries is shared unless `copy` or `dtype` needs a
            copy; whoever writes to shared memory changes the array, for all that is recorded or
            read from then on.  Results that are still pending notice: small memory was copied
            when they were recorded, and reading what is computed of large memory that was
            written meanwhile raises ChangedError.
        dtype: the dtype of the result; by default that of `obj` (bool, int64 and float64 for
            Python numbers).
        device: None or "cpu".
        copy: True always copies, False never does and raises instead.

    Raises:
        DTypeError, UnsupportedError (complex), DLPackError, DeviceError, ArgumentError; RangeError
        for Python numbers that `dtype` does not hold.
    """
    check_device(device)
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, Array):
        return _recast(obj, wanted, copy)
    if isinstance(obj, (bool, int, float, Number)):
        if copy is False:
            raise ArgumentError("asarray: a Python number becomes an array only by a copy")
        plain = number_dtype(obj) if not isinstance(obj, Number) else obj.dtype
        return Array.of(number(obj, wanted or plain, "asarray"))
    if is_foreign_array(obj):
        return _from_memory(obj, wanted, copy)
    if copy is False:
        raise ArgumentError("asarray: nested lists become an array only by a copy")
    return _from_lists(obj, wanted)


def _recast(x: Array, wanted: DType | None, copy: bool | None) -> Array:
    if wanted is not None and wanted is not x.dtype:
        if copy is False:
            raise ArgumentError(f"asarray: {x.dtype} becomes {wanted} only by a copy")
        return Array.of(cast(x.node, wanted))
    return Array.of(copied(x.node)) if copy else x


def _from_memory(obj: Any, wanted: DType | None, copy: bool | None) -> Array:
    given = as_buffer(obj)
    data = usable(given)
    if copy is False and data is not given:
        raise DLPackError(what=type(obj).__name__, reason="it can be read only by a copy")
    if copy and data is given:
        node = leaf(data.copy())
    else:
        node = from_host(obj if data is given else data)
        if data is given and copy is False:
            node.share(watched=True)
    if wanted is not None and wanted is not node.type.dtype:
        if copy is False:
            raise ArgumentError(f"asarray: {node.type.dtype} becomes {wanted} only by a copy")
        node = cast(node, wanted)
    return Array.of(node)


def _from_lists(obj: Any, wanted: DType | None) -> Array:
    if isinstance(obj, (list, tuple)) and _holds_arrays(obj):
        parts = [asarray(item, dtype=wanted).node for item in obj]
        parts = [reshape(p, (1, *shape_of(p))) for p in parts]
        return Array.of(concat(parts, 0, "asarray"))
    try:
        data = np.asarray(obj)
        if wanted is not None and wanted.is_integer and data.dtype.kind in "iufO":
            data = _whole_numbers(obj, data, wanted)
    except RangeError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise _ragged(obj) or ArgumentError(f"asarray: {error}") from error
    node = leaf(usable(data))
    return Array.of(cast(node, wanted) if wanted is not None else node)


def _ragged(obj: Any) -> ArgumentError | None:
    """What is wrong with lists of lists whose lengths differ, named by their places; None else."""
    level, places = [obj], [""]
    while level:
        sizes = [len(x) if isinstance(x, (list, tuple)) else None for x in level]
        for place, size in zip(places, sizes, strict=True):
            if size != sizes[0]:
                told = ["no list" if n is None else f"length {n}" for n in (sizes[0], size)]
                return ArgumentError(
                    op="asarray",
                    argument="obj",
                    value=f"lists ({told[0]} at obj{places[0]}, {told[1]} at obj{place})",
                    expected="lists of one length at each depth",
                    hint="Fill the shorter ones up, or make an array of each and sm.concat them.",
                )
        if sizes[0] is None:
            return None
        places = [f"{p}[{k}]" for p in places for k in range(sizes[0])]
        level = [x for one in level for x in one]
    return None


def _whole_numbers(obj: Any, plain: Any, wanted: DType) -> Any:
    """Lists as integers: as `plain`, what they are by themselves, they may be rounded to float64.
    Raises RangeError for numbers that the type does not hold."""
    failure: Exception | None = None
    try:
        with np.errstate(invalid="ignore"):
            found = np.asarray(obj, dtype=wanted.numpy)
        if plain.dtype.kind == "O" or (found == np.trunc(plain)).all():
            return found  # nor were NumPy's numbers cut off
    except (ValueError, OverflowError) as error:
        failure = error
    for item in plain.ravel().tolist():
        number(item, wanted, "asarray")
    raise ArgumentError(f"asarray: {failure}") from failure


def _holds_arrays(obj: Any) -> bool:
    return any(
        isinstance(item, (Array, Number))
        or (isinstance(item, (list, tuple)) and _holds_arrays(item))
        for item in obj
    )


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array that shares the memory of another library's, through DLPack.

    Raises DLPackError for memory that cannot be read in place if `copy` is False, DeviceError.
    """
    if device is not None and device not in ("cpu", (1, 0)):
        raise DLPackError(what=type(x).__name__, reason=f"there is no device {device!r}, only cpu")
    if isinstance(x, Array):
        return _recast(x, None, copy)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(
            op="from_dlpack",
            argument="x",
            value=type(x).__name__,
            expected="an object with __dlpack__",
        )
    return _from_memory(x, None, copy)


# From a shape


def full(shape: Any, fill_value: Any, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """An array with one number everywhere; the dtype is the number's own unless given.

    Raises OverflowSizeError for a negative or impossible size.
    """
    check_device(device)
    fill = number_or_value(fill_value, "full")
    if isinstance(fill, Value):
        if fill.type.shape:
            raise ShapeError(op="full", operands=fill.told, reason="the fill has dimensions")
        node = fill if dtype is None else cast(fill, as_dtype(dtype))
    elif dtype is None:
        node = own_value(fill, "full")
    else:
        node = number(fill, as_dtype(dtype), "full")
    return Array.of(filled(dims(shape), node))


def zeros(shape: Any, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """An array of zeros, float64 unless `dtype` says otherwise."""
    return full(shape, 0, dtype=as_dtype(dtype, f64), device=device)


def ones(shape: Any, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """An array of ones, float64 unless `dtype` says otherwise."""
    return full(shape, 1, dtype=as_dtype(dtype, f64), device=device)


def empty(shape: Any, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """An array whose values mean nothing; they are zeros."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Any, /, fill_value: Any, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """One number everywhere, in the shape of `x` and, unless given, its dtype."""
    node = value(x, "full_like")
    shape = tuple(shown(d, node.scope) for d in shape_of(node))
    return full(shape, fill_value, dtype=as_dtype(dtype, node.type.dtype), device=device)


def zeros_like(x: Any, /, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """Zeros in the shape of `x` and, unless given, its dtype."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """Ones in the shape of `x` and, unless given, its dtype."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, /, *, dtype: DTypeLike = None, device: Any = None) -> Array:
    """An array like `x` whose values mean nothing; they are zeros."""
    return full_like(x, 0, dtype=dtype, device=device)


# Sequences


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: DTypeLike = None, device: Any = None
) -> Array:
    """start, start + step, ... below `stop`; one argument is the stop and counts from 0.

    int64 for integers, float64 for floats unless `dtype` is given.  The number of elements is
    ceil((stop - start) / step).  Raises ArgumentError for a step of zero.
    """
    check_device(device)
    if stop is None:
        start, stop = 0, start
    if isinstance(step, (int, float)) and step == 0:
        raise ArgumentError(op="arange", argument="step", value=0, expected="another number")
    start, stop, step = map(_plain, (start, stop, step))
    whole = all(is_whole(v) for v in (start, stop, step))
    own = i64 if whole else f64
    target = as_dtype(dtype, own)
    count = _count(start, stop, step) if whole else _float_count(start, stop, step)
    if not whole:
        start, stop, step = float(start), float(stop), float(step)
        step = (start + step) - start  # as NumPy steps
    line = iota((count,), 0, i64)
    if not target.is_integer or not whole:
        line = cast(line, f64)
    if not isinstance(step, int) or step != 1:
        line = BINARY["multiply"](line, step)
    if not isinstance(start, int) or start != 0:
        line = BINARY["add"](line, start)
    return Array.of(cast(line, target))


def _plain(x: Any) -> Any:
    """NumPy's integers as those of Python."""
    return int(x) if isinstance(x, np.integer) else x


def _count(start: Any, stop: Any, step: Any) -> Index:
    """ceil((stop - start) / step), at least 0, of integers."""
    step = int(step)
    span = sub(as_dim(stop), as_dim(start))
    if step < 0:
        span = mul(span, -1)
    scope = STATE.scope
    positive = (
        span > 0 if isinstance(span, int) else scope is not None and scope.holds(0, "<", span)
    )
    return floordiv(add(span, abs(step) - 1), abs(step)) if positive else 0


def _float_count(start: Any, stop: Any, step: Any) -> int:
    span = (float(stop) - float(start)) / float(step)
    if not math.isfinite(span):
        raise ArgumentError(op="arange", argument="stop", value=stop, expected="a finite number")
    return max(0, math.ceil(span))


def linspace(
    start: Any,
    stop: Any,
    /,
    num: Any,
    *,
    dtype: DTypeLike = None,
    device: Any = None,
    endpoint: bool = True,
) -> Array:
    """`num` evenly spaced numbers from `start` to `stop`, which is left out if not `endpoint`.

    Calculated in float64, float64 unless `dtype` is given.  Raises ArgumentError for num < 0.
    """
    check_device(device)
    count = as_dim(num)
    if isinstance(count, int) and count < 0:
        raise ArgumentError(op="linspace", argument="num", value=count, expected="0 or more")
    target = as_dtype(dtype, f64)
    steps = count if not endpoint else sub(count, 1)
    line = cast(iota((count,), 0), f64)
    first, final = _real(start), _real(stop)
    if steps == 0 or count == 0:
        return Array.of(cast(BINARY["add"](line, first), target))
    each = own_value((final - first) / shown(steps, STATE.scope), "linspace")
    values = BINARY["add"](BINARY["multiply"](line, each), first)
    if endpoint:
        last = BINARY["equal"](line, own_value(shown(steps, STATE.scope), "linspace"))
        values = record(SELECT, (last, own_value(final, "linspace"), values))
    return Array.of(cast(values, target))


def _real(x: Any) -> Any:
    """A number as a float, which an argument of a recording stays an argument by."""
    return x * 1.0 if x.__class__ is Scalar else float(x)


def eye(
    n_rows: Any, n_cols: Any = None, /, *, k: int = 0, dtype: DTypeLike = None, device: Any = None
) -> Array:
    """Ones on the `k`-th diagonal of a matrix (above the main one if positive), zeros elsewhere."""
    check_device(device)
    rows = as_dim(n_rows)
    shape = (rows, rows if n_cols is None else as_dim(n_cols))
    return Array.of(cast(_compare("equal", shape, k), as_dtype(dtype, f64)))


def _compare(what: str, shape: Shape, k: int) -> Value:
    """column `what` row + k, for the last two dimensions."""
    rows = iota((shape[-2], 1), 0)
    columns = iota((1, shape[-1]), 1)
    return BINARY[what](columns, BINARY["add"](rows, _plain(k)) if k else rows)


def tril(x: Any, /, *, k: int = 0) -> Array:
    """`x` with zeros above the `k`-th diagonal of its matrices.  Raises ShapeError below rank 2."""
    return _triangle("tril", "less_equal", x, k)


def triu(x: Any, /, *, k: int = 0) -> Array:
    """`x` with zeros below the `k`-th diagonal of its matrices.  Raises ShapeError below rank 2."""
    return _triangle("triu", "greater_equal", x, k)


def _triangle(what: str, keeps: str, x: Any, k: int) -> Array:
    node = value(x, what)
    if node.type.rank < 2:
        raise ShapeError(op=what, operands=node.told, reason="it has fewer than 2 dimensions")
    mask = _compare(keeps, shape_of(node), k)
    zero = number(False if node.type.dtype.kind == "bool" else 0, node.type.dtype, what)
    return Array.of(record(SELECT, (mask, node, zero)))


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays from vectors of one dtype: each varies along its own dimension.

    With "xy" the first two dimensions are swapped.  Raises ShapeError for arrays of rank > 1.
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(
            op="meshgrid", argument="indexing", value=repr(indexing), expected="'xy' or 'ij'"
        )
    nodes = [value(a, "meshgrid") for a in arrays]
    for node in nodes:
        if node.type.rank > 1:
            raise ShapeError(op="meshgrid", operands=node.told, reason="it is no vector")
    nodes = [reshape(n, (1,)) if n.type.rank == 0 else n for n in nodes]
    order = list(range(len(nodes)))
    if indexing == "xy" and len(nodes) > 1:
        order[0], order[1] = 1, 0
    sizes = [shape_of(n)[0] for n in nodes]
    shape = tuple(sizes[k] for k in order)
    out: list[Array] = []
    for k, node in enumerate(nodes):
        line: list[Index] = [1] * len(nodes)
        line[order.index(k)] = sizes[k]
        out.append(Array.of(expand(reshape(node, tuple(line)), shape)))
    return out
