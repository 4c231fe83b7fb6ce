"""Record reductions of values: axes, accumulator types, numbers of elements.

>>> import numpy as np
>>> from smelt.frontends.array.convert import from_host
>>> x = from_host(np.ones((2, 3), np.float16))
>>> reduce_axes("sum", x, (1,), keepdims=True).type, mean(x, (0, 1), keepdims=False).type
(TensorType(dtype=f16, shape=(2, 1)), TensorType(dtype=f16, shape=()))
"""

from __future__ import annotations

from smelt.errors import ShapeError
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.promote import cast
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.trace_cache import cache_trace
from smelt.frontends.array.value import STATE, Value, constant, record
from smelt.frontends.array.views import reshape
from smelt.ops.combine import COMBINES
from smelt.ops.create import SizeOf
from smelt.ops.reduce import Reduce
from smelt.types.dtype import DType, f64
from smelt.types.expr import Index, product

Axes = tuple[int, ...]


@cache_trace
def reduce_axes(combine: str, x: Value, axes: Axes, *, keepdims: bool) -> Value:
    """Reduce over axes in increasing order.

    Raises ShapeError for an empty axis if the reduction has no neutral element.
    """
    shape = shape_of(x)
    reduction = COMBINES[combine]
    if reduction.has_no_empty_value:
        for a in axes:
            if is_empty(x, a):
                raise ShapeError(
                    op=combine,
                    operands=x.type_text,
                    reason=f"axis {a} is empty, it has no {combine}",
                    hint="Look at the size first, or join the array with the least value there is.",
                )
    result = record(Reduce(combine, axes), (x,)) if axes or reduction.grow != "same" else x
    return reshape(result, keepdims_shape(shape, axes)) if keepdims else result


def is_empty(x: Value, axis: int) -> bool:
    """Return whether an axis has no elements; a recording guards the answer."""
    size = shape_of(x)[axis]
    return size == 0 or not (x.scope is None or x.scope.holds(0, "<", size))


def keepdims_shape(shape: tuple[Index, ...], axes: Axes) -> tuple[Index, ...]:
    """Return a shape with its reduced axes as dimensions of size 1."""
    return tuple(1 if a in axes else d for a, d in enumerate(shape))


def size_value(size: Index, dtype: DType) -> Value:
    """Return a number of elements as a value of rank 0."""
    if isinstance(size, int):
        return constant(float(size) if dtype.is_float else size, dtype)
    scope = STATE.scope
    assert scope is not None
    return scope.record(SizeOf(scope.canon(size), dtype), ())


def count(x: Value, axes: Axes) -> Index:
    """Return how many elements are reduced to one."""
    shape = shape_of(x)
    return product(shape[a] for a in axes)


def cast_to_float(x: Value) -> Value:
    """Cast `x` to the float dtype of means: float64 for integers, float32 for half types."""
    dtype = x.type.dtype
    return cast(x, dtype.compute if dtype.is_float else f64)


@cache_trace
def mean(x: Value, axes: Axes, *, keepdims: bool) -> Value:
    """Return the arithmetic mean; NaN for no elements.

    Half types are summed and divided in float32.
    """
    upcast = cast_to_float(x)
    total = reduce_axes("sum", upcast, axes, keepdims=keepdims)
    result = BINARY["divide"](total, size_value(count(x, axes), upcast.type.dtype))
    return cast(result, x.type.dtype) if x.type.dtype.is_float else result


@cache_trace
def variance(x: Value, axes: Axes, correction: float, *, keepdims: bool) -> Value:
    """Return the variance with divisor n - correction, computed in two passes.

    The first pass computes the mean, the second sums squares of differences, which avoids
    cancellation.
    """
    upcast = cast_to_float(x)
    centred = BINARY["subtract"](upcast, mean(upcast, axes, keepdims=True))
    total = reduce_axes("sum", BINARY["multiply"](centred, centred), axes, keepdims=keepdims)
    size = size_value(count(x, axes), upcast.type.dtype)
    if correction:
        size = BINARY["maximum"](BINARY["subtract"](size, correction), 0.0)
    result = BINARY["divide"](total, size)
    return cast(result, x.type.dtype) if x.type.dtype.is_float else result
