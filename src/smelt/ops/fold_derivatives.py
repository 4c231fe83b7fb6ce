"""Derivatives of reductions and scans: the columns of the monoids in `smelt.ops.combine`.

Each function gets the cotangent g of the result and returns that of x.  For reductions g and the
result have the rank of x, with folded axes of size 1.

    sum    y = Σ x        x̄ = g on every element
    prod   y = Π x        x̄ᵢ = g · Π_{j<i} x · Π_{j>i} x, without a division: zeros do no harm
    max    y = max x      x̄ᵢ = g / n where xᵢ = y, shared evenly by n equal ones
"""

from __future__ import annotations

from smelt.ops.create import Iota
from smelt.ops.index import Scatter
from smelt.ops.spec import Adjoint, V
from smelt.ops.view import Flip, Pad, Permute, Slice
from smelt.types.dtype import i64
from smelt.types.expr import product
from smelt.types.tensor import Shape

Axes = tuple[int, ...]


# ---- reductions --------------------------------------------------------------------------------


def of_sum(a: Adjoint[V], g: V, out: V, x: V, axes: Axes) -> V:
    """The same for every element."""
    return a.expand(g, a.type(x).shape)


def of_prod(a: Adjoint[V], g: V, out: V, x: V, axes: Axes) -> V:
    """The folded axes as one, at the end; then products of what stands before and after."""
    shape = a.type(x).shape
    kept = tuple(k for k in range(len(shape)) if k not in axes)
    order = (*kept, *axes)
    rest = tuple(shape[k] for k in kept)
    moved = a.apply(Permute(order), x) if order != tuple(range(len(shape))) else x
    flat = a.reshape(moved, (*rest, product(shape[k] for k in axes)))
    others = a.map("mul", before(a, flat, len(kept)), after(a, flat, len(kept)))
    others = a.reshape(others, tuple(shape[k] for k in order))
    if order != tuple(range(len(shape))):
        others = a.apply(Permute(tuple(order.index(k) for k in range(len(shape)))), others)
    return a.map("mul", others, g)


def of_extreme(a: Adjoint[V], g: V, out: V, x: V, axes: Axes) -> V:
    """Equal extremes share evenly, as for `max` of two operands; NaN rows have no derivative."""
    dtype = a.type(x).dtype
    hit = a.map("eq", x, out)
    kept = a.type(out).shape
    count = a.reshape(a.fold("sum", a.cast(hit, dtype.compute), axes), kept)
    share = a.cast(a.map("div", a.cast(g, dtype.compute), count), dtype)
    none = a.constant(0.0, dtype.compute)
    other = a.map(
        "select", a.map("eq", count, none), a.constant(float("nan"), dtype), a.constant(0.0, dtype)
    )
    return a.map("select", hit, share, other)


# ---- scans -------------------------------------------------------------------------------------


def of_running_sum(a: Adjoint[V], g: V, out: V, x: V, axis: int) -> V:
    """An element is in every sum from its own place on."""
    return _later(a, g, axis)


def of_running_prod(a: Adjoint[V], g: V, out: V, x: V, axis: int) -> V:
    """x̄ᵢ = Σ_{j≥i} gⱼ yⱼ / xᵢ up to the first zero; there, products that leave it out; then 0.

    Second derivatives are those of this formula: exact unless an element is exactly zero.
    """
    dtype = a.type(x).dtype
    none, one = a.constant(0.0, dtype), a.constant(1.0, dtype)
    zero = a.map("eq", x, none)
    nonzero = a.map("select", zero, none, one)
    alive = a.scan("prod", nonzero, axis)  # 1 before the first zero, 0 from there on
    dead = a.map("eq", alive, none)
    first = a.map("and", zero, a.map("ne", before(a, nonzero, axis), none))
    without = a.scan("prod", a.map("select", first, one, x), axis)
    smooth = a.map("div", _later(a, a.map("mul", g, out), axis), a.map("select", zero, one, x))
    at_zero = _later(a, a.map("mul", g, without), axis)
    return a.map("select", first, at_zero, a.map("select", dead, none, smooth))


def of_running_extreme(a: Adjoint[V], g: V, out: V, x: V, axis: int) -> V:
    """Each cotangent goes to the place of its record, the last of equals."""
    shape = a.type(x).shape
    place = a.apply(Iota(shape, axis, i64))
    record = a.map("or", a.map("eq", x, out), a.map("isnan", x))
    held = a.scan("max", a.map("select", record, place, a.constant(0, i64)), axis)
    index = [held if k == axis else _line(a, shape, k) for k in range(len(shape))]
    zeros = a.expand(a.constant(0.0, a.type(x).dtype), shape)
    return a.apply(Scatter("add"), zeros, g, *index)


def _line(a: Adjoint[V], shape: Shape, axis: int) -> V:
    line = tuple(n if k == axis else 1 for k, n in enumerate(shape))
    return a.apply(Iota(line, axis, i64))


def _later(a: Adjoint[V], g: V, axis: int) -> V:
    """Sums of what stands here and after."""
    turn = Flip((axis,))
    return a.apply(turn, a.scan("sum", a.apply(turn, g), axis))


def before(a: Adjoint[V], x: V, axis: int) -> V:
    """Products of all that stands before each element along an axis."""
    shape = a.type(x).shape
    low = tuple(1 if k == axis else 0 for k in range(len(shape)))
    none = (0,) * len(shape)
    moved = a.apply(Pad(low, none, 1.0), x)
    moved = a.apply(Slice(none, shape, (1,) * len(shape)), moved)
    return a.scan("prod", moved, axis)


def after(a: Adjoint[V], x: V, axis: int) -> V:
    """Products of all that stands after each element along an axis."""
    turn = Flip((axis,))
    return a.apply(turn, before(a, a.apply(turn, x), axis))
