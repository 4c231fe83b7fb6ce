"""Differentiate reductions and scans: columns of the monoids in `smelt.ops.combine`.

Each function gets the cotangent g of the result and returns that of x.  For reductions, g and the
result have the rank of x, with reduced axes of size 1.

    sum    y = Σ x        x̄ = g on every element
    prod   y = Π x        x̄ᵢ = g · Π_{j<i} x · Π_{j>i} x, without a division: zeros do no harm
    max    y = max x      x̄ᵢ = g / n where xᵢ = y, shared evenly by n equal ones
"""

from __future__ import annotations

from smelt.ops.create import Iota
from smelt.ops.index import scatter_sums
from smelt.ops.spec import Adjoint, V
from smelt.ops.view import Flip, Pad, Permute, Slice
from smelt.types.dtype import i64
from smelt.types.expr import product
from smelt.types.tensor import Shape

Axes = tuple[int, ...]


# ---- reductions --------------------------------------------------------------------------------


def of_sum(a: Adjoint[V], g: V, out: V, x: V, axes: Axes) -> V:
    """Differentiate a sum: g for every element."""
    return a.expand(g, a.type(x).shape)


def of_prod(a: Adjoint[V], g: V, out: V, x: V, axes: Axes) -> V:
    """Differentiate a product: multiply the elements before and after each one.

    The reduced axes are merged into one at the end first.
    """
    shape = a.type(x).shape
    kept_axes = tuple(k for k in range(len(shape)) if k not in axes)
    order = (*kept_axes, *axes)
    kept_shape = tuple(shape[k] for k in kept_axes)
    permuted = a.apply(Permute(order), x) if order != tuple(range(len(shape))) else x
    flat = a.reshape(permuted, (*kept_shape, product(shape[k] for k in axes)))
    others = a.map(
        "mul",
        exclusive_prefix_products(a, flat, len(kept_axes)),
        exclusive_suffix_products(a, flat, len(kept_axes)),
    )
    others = a.reshape(others, tuple(shape[k] for k in order))
    if order != tuple(range(len(shape))):
        others = a.apply(Permute(tuple(order.index(k) for k in range(len(shape)))), others)
    return a.map("mul", others, g)


def of_extreme(a: Adjoint[V], g: V, out: V, x: V, axes: Axes) -> V:
    """Differentiate max or min: equal extremes share g evenly; NaN rows have no derivative."""
    dtype = a.type(x).dtype
    is_extreme = a.map("eq", x, out)
    kept_shape = a.type(out).shape
    count = a.reshape(a.reduce("sum", a.cast(is_extreme, dtype.compute), axes), kept_shape)
    share = a.cast(a.map("div", a.cast(g, dtype.compute), count), dtype)
    zero = a.constant(0.0, dtype.compute)
    elsewhere = a.map(
        "select", a.map("eq", count, zero), a.constant(float("nan"), dtype), a.constant(0.0, dtype)
    )
    return a.map("select", is_extreme, share, elsewhere)


# ---- scans -------------------------------------------------------------------------------------


def of_running_sum(a: Adjoint[V], g: V, out: V, x: V, axis: int) -> V:
    """Differentiate a cumulative sum: an element is in every sum from its position on."""
    return _suffix_sums(a, g, axis)


def of_running_prod(a: Adjoint[V], g: V, out: V, x: V, axis: int) -> V:
    """Differentiate a cumulative product, also with zeros.

    x̄ᵢ = Σ_{j≥i} gⱼ yⱼ / xᵢ before the first zero; at it, products that leave it out; then 0.
    Second derivatives are those of this formula: exact unless an element is exactly zero.
    """
    dtype = a.type(x).dtype
    zero_value, one = a.constant(0.0, dtype), a.constant(1.0, dtype)
    is_zero = a.map("eq", x, zero_value)
    nonzero = a.map("select", is_zero, zero_value, one)
    no_zero_yet = a.scan("prod", nonzero, axis)  # 1 before the first zero, 0 from there on
    after_zero = a.map("eq", no_zero_yet, zero_value)
    first = a.map(
        "and", is_zero, a.map("ne", exclusive_prefix_products(a, nonzero, axis), zero_value)
    )
    products_without_zero = a.scan("prod", a.map("select", first, one, x), axis)
    without_zeros = a.map(
        "div", _suffix_sums(a, a.map("mul", g, out), axis), a.map("select", is_zero, one, x)
    )
    at_zero = _suffix_sums(a, a.map("mul", g, products_without_zero), axis)
    return a.map("select", first, at_zero, a.map("select", after_zero, zero_value, without_zeros))


def of_running_extreme(a: Adjoint[V], g: V, out: V, x: V, axis: int) -> V:
    """Differentiate a cumulative max or min: g goes to the running extreme, the last of equals."""
    shape = a.type(x).shape
    position = a.apply(Iota(shape, axis, i64))
    is_record = a.map("or", a.map("eq", x, out), a.map("isnan", x))
    record_position = a.scan("max", a.map("select", is_record, position, a.constant(0, i64)), axis)
    index = [
        record_position if k == axis else _axis_positions(a, shape, k) for k in range(len(shape))
    ]
    return scatter_sums(a, g, shape, *index)


def _axis_positions(a: Adjoint[V], shape: Shape, axis: int) -> V:
    """Return the positions along one axis, in a shape that broadcasts."""
    axis_shape = tuple(n if k == axis else 1 for k, n in enumerate(shape))
    return a.apply(Iota(axis_shape, axis, i64))


def _suffix_sums(a: Adjoint[V], g: V, axis: int) -> V:
    """Return the sum of each element and those after it along an axis."""
    flip = Flip((axis,))
    return a.apply(flip, a.scan("sum", a.apply(flip, g), axis))


def exclusive_prefix_products(a: Adjoint[V], x: V, axis: int) -> V:
    """Return the product of all elements before each one along an axis."""
    shape = a.type(x).shape
    low = tuple(1 if k == axis else 0 for k in range(len(shape)))
    zeros = (0,) * len(shape)
    shifted = a.apply(Pad(low, zeros, 1.0), x)
    shifted = a.apply(Slice(zeros, shape, (1,) * len(shape)), shifted)
    return a.scan("prod", shifted, axis)


def exclusive_suffix_products(a: Adjoint[V], x: V, axis: int) -> V:
    """Return the product of all elements after each one along an axis."""
    flip = Flip((axis,))
    return a.apply(flip, exclusive_prefix_products(a, a.apply(flip, x), axis))
