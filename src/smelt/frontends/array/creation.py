"""Creation functions of the array API standard.

Arrays whose elements follow from a formula (`zeros`, `arange`, `eye`) are recorded, not filled:
they take memory only when they are read by themselves.

>>> arange(3), linspace(0, 1, 3), eye(2)
(Array([0, 1, 2]), Array([0. , 0.5, 1. ]), Array([[1., 0.],
       [0., 1.]]))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, DLPackError, OverflowSizeError, ShapeError
from smelt.frontends.array.array import Array, check_device, names_gpu, number_or_value, value
from smelt.frontends.array.cache_calls import cache_call
from smelt.frontends.array.complex_calls import ComplexOperand, takes_complex
from smelt.frontends.array.convert import (
    as_buffer,
    from_host,
    is_foreign_array,
    number_dtype,
    usable,
)
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.number import Number, Scalar, as_dim, dims, is_integral, user_dim
from smelt.frontends.array.operators import value_of_lists
from smelt.frontends.array.promote import cast, default_value, number
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.subscript import SELECT
from smelt.frontends.array.value import STATE, Value, copied, leaf, record
from smelt.frontends.array.views import expand, reshape
from smelt.ops.create import Iota
from smelt.ops.view import Expand
from smelt.python.imports import fork_safe_import
from smelt.types.dtype import DType, f64, i64
from smelt.types.expr import Index, add, floordiv, mul, sub
from smelt.types.tensor import Shape


def filled(shape: Shape, fill: Value) -> Value:
    """Broadcast a value of rank 0 to a shape.

    Raises OverflowSizeError for a negative size.
    """
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise OverflowSizeError(f"negative dimension in the shape {shape}")
    return record(Expand(shape), (fill,), STATE.scope) if shape else fill


def iota(shape: Shape, axis: int, dtype: DType = i64) -> Value:
    """Return positions along `axis`, as an array of the given shape."""
    return record(Iota(shape, axis, dtype), (), STATE.scope)


# From what exists


@takes_complex
def asarray(
    obj: Any, /, *, dtype: DTypeLike = None, device: Any = None, copy: bool | None = None
) -> Array:
    """Convert a number, nested lists, a NumPy array or a DLPack object to an array.

    Args:
        obj: what to convert.  Memory of other libraries is shared unless `copy` or `dtype` needs a
            copy.  Writing to shared memory changes the array: later reads, and operators recorded
            later, see the new elements.  Operators that were pending at the time do not silently
            read them: small memory (up to 4 KiB) was copied when they were recorded; for larger
            memory, computing them raises ChangedError if one of a few remembered elements changed.
            `smelt.numpy` copies larger memory too.
        dtype: the dtype of the result; by default that of `obj` (bool, int64 and float64 for
            Python numbers).
        device: None or "cpu", or "cuda:0" for a GPU: the result is then a `DeviceArray`, which
            functions of `sm.jit` take. What is there already is not copied.
        copy: True always copies; False never copies, and raises an error if a copy is needed; None
            copies if needed.

    Returns:
        An array of the shape of `obj`.  NaN keeps its sign; its payload is kept only in memory that
        is read, not of Python numbers.

    Raises:
        ArgumentError for lists of different lengths, and for numbers and lists if `copy` is False;
        DTypeError for unknown dtypes, and real ones for complex numbers; DLPackError for memory
        that cannot be read; DeviceError; NoDriverError, OldDriverError and DeviceMemoryError for a
        GPU; RangeError for Python numbers that `dtype` cannot hold.
    """
    if names_gpu(device):
        return fork_safe_import("smelt.frontends.array.device_array").to_device(obj, device, dtype)
    check_device(device)
    target = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, Array):
        return _convert_array(obj, target, copy)
    if isinstance(obj, (bool, int, float, Number)):
        if copy is False:
            raise ArgumentError("asarray: a Python number becomes an array only by a copy")
        default_type = number_dtype(obj) if not isinstance(obj, Number) else obj.dtype
        return Array.of(number(obj, target or default_type, "asarray"))
    if is_foreign_array(obj):
        return _from_memory(obj, target, copy)
    if copy is False:
        raise ArgumentError("asarray: nested lists become an array only by a copy")
    return Array.of(value_of_lists(obj, lambda item: asarray(item, dtype=target).node, target))


def _convert_array(x: Array, target: DType | None, copy: bool | None) -> Array:
    if target is not None and target is not x.dtype:
        if copy is False:
            raise ArgumentError(f"asarray: {x.dtype} becomes {target} only by a copy")
        return Array.of(cast(x.node, target))
    return Array.of(copied(x.node)) if copy else x


def _converts_alike(source: np.dtype[Any], target: DType) -> bool:
    """Return whether NumPy converts to a dtype with our results, whatever the elements."""
    if source.kind in "iub":
        return target.is_integer or target.name in ("f32", "f64")
    return source.kind == "f" and target.name == "f64"


def _from_memory(obj: Any, target: DType | None, copy: bool | None) -> Array:
    original = as_buffer(obj)
    data = usable(original)
    if copy is False and data is not original:
        raise DLPackError(what=type(obj).__name__, reason="it can be read only by a copy")
    if copy and data is original:
        if target is not None and _converts_alike(data.dtype, target):
            return Array.of(leaf(data.astype(target.numpy)))  # in one pass over memory
        node = leaf(data.copy())
    else:
        node = from_host(obj) if data is original else leaf(data)  # a copy is nobody else's
    if target is not None and target is not node.type.dtype:
        if copy is False:
            raise ArgumentError(f"asarray: {node.type.dtype} becomes {target} only by a copy")
        node = cast(node, target)
    return Array.of(node)


@takes_complex
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array that shares another library's memory, through DLPack.

    Args:
        x: an object with `__dlpack__`.
        device: None, "cpu" or (1, 0).
        copy: True copies; False raises an error where the memory cannot be read in place.

    Raises DLPackError for memory or devices that cannot be read, ArgumentError without
    `__dlpack__`.
    """
    if names_gpu(device):
        return asarray(x, device=device)
    if device is not None and device not in ("cpu", (1, 0)):
        raise DLPackError(what=type(x).__name__, reason=f"there is no device {device!r}, only cpu")
    if isinstance(x, Array):
        return _convert_array(x, None, copy)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(
            op="from_dlpack",
            argument="x",
            value=type(x).__name__,
            expected="an object with __dlpack__",
        )
    return _from_memory(x, None, copy)


# From a shape


@cache_call
def full(shape: Any, fill_value: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array with the same number everywhere.

    Args:
        shape: an integer or a sequence of integers.
        fill_value: a number or an array of rank 0.
        dtype: by default that of the number: bool, int64 or float64.
        device: None or "cpu".

    Raises OverflowSizeError for a negative or impossible size, ShapeError for a fill with
    dimensions.
    """
    check_device(device)
    fill = number_or_value(fill_value, "full")
    if isinstance(fill, Value):
        if fill.type.shape:
            raise ShapeError(op="full", operands=fill.type_text, reason="the fill has dimensions")
        node = fill if dtype is None else cast(fill, as_dtype(dtype))
    elif dtype is None:
        node = default_value(fill, "full")
    else:
        node = number(fill, as_dtype(dtype), "full")
    return Array.of(filled(dims(shape), node))


@cache_call
def zeros(shape: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array of zeros, float64 unless `dtype` is given.

    Raises OverflowSizeError, DTypeError.
    """
    return full(shape, 0, dtype=f64 if dtype is None else dtype, device=device)


@cache_call
def ones(shape: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array of ones, float64 unless `dtype` is given.

    Raises OverflowSizeError, DTypeError.
    """
    return full(shape, 1, dtype=f64 if dtype is None else dtype, device=device)


def empty(shape: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array whose elements are unspecified (they are zeros)."""
    return zeros(shape, dtype=dtype, device=device)


@takes_complex
def full_like(x: Any, /, fill_value: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array of the shape of `x` with the same number everywhere.

    The dtype is that of `x` unless `dtype` is given.
    """
    node = value(x, "full_like")
    shape = tuple(user_dim(d, node.scope) for d in shape_of(node))
    return full(shape, fill_value, dtype=as_dtype(dtype, node.type.dtype), device=device)


def zeros_like(x: Any, /, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return zeros in the shape and, unless `dtype` is given, the dtype of `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return ones in the shape and, unless `dtype` is given, the dtype of `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, /, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array like `x` whose elements are unspecified (they are zeros)."""
    return full_like(x, 0, dtype=dtype, device=device)


# Sequences


@takes_complex
def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: DTypeLike = None, device: Any = None
) -> Array:
    """Return start, start + step, ... up to but excluding `stop`.

    With one argument, it is the stop and counting starts from 0.  The dtype is int64 if all
    arguments are integers and float64 otherwise, unless `dtype` is given.  The result has
    ceil((stop - start) / step) elements, at least 0.

    Raises ArgumentError for a step of zero or a range that is not finite.
    """
    check_device(device)
    if stop is None:
        start, stop = 0, start
    if isinstance(step, (int, float)) and step == 0:
        raise ArgumentError(op="arange", argument="step", value=0, expected="another number")
    start, stop, step = map(_python_integer, (start, stop, step))
    integral = all(is_integral(v) for v in (start, stop, step))
    default = i64 if integral else f64
    target = as_dtype(dtype, default)
    count = _count(start, stop, step) if integral else _float_count(start, stop, step)
    if not integral:
        start, stop, step = float(start), float(stop), float(step)
        step = (start + step) - start  # as NumPy steps
    values = iota((count,), 0, i64)
    if not target.is_integer or not integral:
        values = cast(values, f64)
    if not isinstance(step, int) or step != 1:
        values = BINARY["multiply"](values, step)
    if not isinstance(start, int) or start != 0:
        values = BINARY["add"](values, start)
    return Array.of(cast(values, target))


def _python_integer(x: Any) -> Any:
    return int(x) if isinstance(x, np.integer) else x


def _count(start: Any, stop: Any, step: Any) -> Index:
    """Return ceil((stop - start) / step), at least 0, for integers."""
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


@takes_complex
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
    """Return `num` evenly spaced numbers from `start` to `stop`.

    Args:
        start: the first number.
        stop: the last number; excluded unless `endpoint`.
        num: how many; 0 or more.
        dtype: float64 by default; the numbers are calculated in float64.
        device: None or "cpu".
        endpoint: whether `stop` is the last number.

    Raises ArgumentError for a negative `num`.
    """
    check_device(device)
    count = as_dim(num)
    if isinstance(count, int) and count < 0:
        raise ArgumentError(op="linspace", argument="num", value=count, expected="0 or more")
    target = as_dtype(dtype, f64)
    steps = count if not endpoint else sub(count, 1)
    counts = cast(iota((count,), 0), f64)
    first, final = _as_float(start), _as_float(stop)
    if steps == 0 or count == 0:
        return Array.of(cast(BINARY["add"](counts, first), target))
    spacing = default_value((final - first) / user_dim(steps, STATE.scope), "linspace")
    values = BINARY["add"](BINARY["multiply"](counts, spacing), first)
    if endpoint:
        last = BINARY["equal"](counts, default_value(user_dim(steps, STATE.scope), "linspace"))
        values = record(SELECT, (last, default_value(final, "linspace"), values))
    return Array.of(cast(values, target))


def _as_float(x: Any) -> Any:
    """Convert a number to a float; an argument of a recording stays symbolic."""
    if isinstance(x, (complex, np.complexfloating)):
        raise ComplexOperand("linspace of complex numbers")
    return x * 1.0 if x.__class__ is Scalar else float(x)


@takes_complex
def eye(
    n_rows: Any, n_cols: Any = None, /, k: int = 0, dtype: DTypeLike = None, *, device: Any = None
) -> Array:
    """Return a matrix with ones on the `k`-th diagonal and zeros elsewhere.

    A positive `k` is above the main diagonal.  The shape is [n_rows, n_cols], square without
    `n_cols`; the dtype float64 unless given.
    """
    check_device(device)
    rows = as_dim(n_rows)
    shape = (rows, rows if n_cols is None else as_dim(n_cols))
    return Array.of(cast(_compare("equal", shape, k), as_dtype(dtype, f64)))


def _compare(what: str, shape: Shape, k: int) -> Value:
    """Apply `column <what> row + k` to positions in the last two dimensions."""
    rows = iota((shape[-2], 1), 0)
    columns = iota((1, shape[-1]), 1)
    return BINARY[what](columns, BINARY["add"](rows, _python_integer(k)) if k else rows)


@takes_complex
def tril(x: Any, /, k: int = 0) -> Array:
    """Set elements above the `k`-th diagonal of each matrix to zero.

    Raises ShapeError below rank 2.
    """
    return _triangle("tril", "less_equal", x, k)


@takes_complex
def triu(x: Any, /, k: int = 0) -> Array:
    """Set elements below the `k`-th diagonal of each matrix to zero.

    Raises ShapeError below rank 2.
    """
    return _triangle("triu", "greater_equal", x, k)


def _triangle(what: str, keeps: str, x: Any, k: int) -> Array:
    node = value(x, what)
    if node.type.rank < 2:
        raise ShapeError(op=what, operands=node.type_text, reason="it has fewer than 2 dimensions")
    mask = _compare(keeps, shape_of(node), k)
    zero = number(False if node.type.dtype.kind == "bool" else 0, node.type.dtype, what)
    return Array.of(record(SELECT, (mask, node, zero)))


@takes_complex
def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Array]:
    """Return coordinate arrays of a grid, one for each vector.

    Array k varies along dimension k only; with `indexing="xy"` the first two dimensions are
    swapped.  Arrays of rank 0 count as vectors of one element.

    Raises ShapeError for ranks above 1, ArgumentError for an unknown indexing.
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError.of("meshgrid", "indexing", indexing, "'xy' or 'ij'")
    nodes = [value(a, "meshgrid") for a in arrays]
    for node in nodes:
        if node.type.rank > 1:
            raise ShapeError(op="meshgrid", operands=node.type_text, reason="it is not 1-D")
    nodes = [reshape(n, (1,)) if n.type.rank == 0 else n for n in nodes]
    order = list(range(len(nodes)))
    if indexing == "xy" and len(nodes) > 1:
        order[0], order[1] = 1, 0
    sizes = [shape_of(n)[0] for n in nodes]
    shape = tuple(sizes[k] for k in order)
    out: list[Array] = []
    for k, node in enumerate(nodes):
        single: list[Index] = [1] * len(nodes)
        single[order.index(k)] = sizes[k]
        out.append(Array.of(expand(reshape(node, tuple(single)), shape)))
    return out
