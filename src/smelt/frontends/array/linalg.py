"""Linear algebra functions of the array API standard; `sm.linalg` has the extension's.

Products are contractions that the compiler plans with everything around them.  What LAPACK computes
(`inv`, `solve`, `det`, `cholesky`, and decompositions) is an extern call.

>>> import smelt as sm
>>> a = sm.asarray([[2.0, 0.0], [0.0, 4.0]])
>>> matmul(a, a), vecdot(a, a), solve(a, sm.ones(2))
(Array([[ 4.,  0.],
       [ 0., 16.]]), Array([ 4., 16.]), Array([0.5 , 0.25]))
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array import product as products
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.creation import arange, eye
from smelt.frontends.array.decomposition import (
    eigh,
    eigvalsh,
    matrices,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    square_matrices,
    svd,
    svdvals,
)
from smelt.frontends.array.dtypes import DTypeLike
from smelt.frontends.array.elementwise import abs as absolute
from smelt.frontends.array.elementwise import multiply, pow, sqrt, square
from smelt.frontends.array.library import call
from smelt.frontends.array.manipulation import broadcast_to, expand_dims, matrix_transpose, stack
from smelt.frontends.array.promote import cast, common
from smelt.frontends.array.statistical import count_nonzero
from smelt.frontends.array.statistical import max as greatest
from smelt.frontends.array.statistical import min as least
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import axes_of, expand, reshape, shape_of
from smelt.types.dtype import f64
from smelt.types.tensor import TensorType, broadcast_shapes

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def matmul(x1: Any, x2: Any, /) -> Array:
    """The matrix product: [..., m, k] and [..., k, n] give [..., m, n], other dimensions broadcast.

    A vector is a row on the left and a column on the right.  Half types accumulate in float32.
    Raises ShapeError, DTypeError for bool.
    """
    return Array.of(products.matmul(value(x1, "matmul"), value(x2, "matmul")))


def tensordot(x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Sum of products over pairs of axes: the last of x1 with the first of x2, or two sequences.

    Raises ShapeError, AxisError, DTypeError for bool.
    """
    return Array.of(products.tensordot(value(x1, "tensordot"), value(x2, "tensordot"), axes))


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Sum of products along `axis`, counted from the end of both; other dimensions broadcast.

    Raises ShapeError, AxisError, DTypeError for bool.
    """
    return Array.of(products.vecdot(value(x1, "vecdot"), value(x2, "vecdot"), axis))


def outer(x1: Any, x2: Any, /) -> Array:
    """All products of the elements of two vectors.  Raises ShapeError for other ranks."""
    for x in (value(x1, "outer"), value(x2, "outer")):
        if x.type.rank != 1:
            raise ShapeError(op="outer", operands=x.told, reason="it is no vector")
    return multiply(expand_dims(x1, axis=1), expand_dims(x2, axis=0))


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """The diagonals of matrices, `offset` above (or below, if negative) the main one."""
    array = Array.of(matrices(x, "diagonal"))
    n, m = array.shape[-2:]
    first, second = max(0, -offset), max(0, offset)
    rows, columns = n - first, m - second
    count = builtins.max(0, min(rows, columns))
    line = arange(count)
    return array[..., line + first, line + second]


def trace(x: Any, /, *, offset: int = 0, dtype: DTypeLike = None) -> Array:
    """The sum of the diagonal of each matrix; dtypes as in `sum`."""
    return total(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The vector product along an axis of size 3.  Raises ShapeError for other sizes."""
    for x in (value(x1, "cross"), value(x2, "cross")):
        if shape_of(x)[axis] != 3 and (x.scope is None or x.scope.pin(shape_of(x)[axis]) != 3):
            raise ShapeError(op="cross", operands=x.told, reason=f"axis {axis} is not 3")

    def part(x: Any, k: int) -> Array:
        node = value(x, "cross")
        key = [slice(None)] * node.type.rank
        key[axis] = k  # type: ignore[call-overload]
        return Array.of(node)[tuple(key)]

    a, b = ([part(x, k) for k in range(3)] for x in (x1, x2))
    parts = [a[(k + 1) % 3] * b[(k + 2) % 3] - a[(k + 2) % 3] * b[(k + 1) % 3] for k in range(3)]
    return stack(parts, axis=axis)


def vector_norm(
    x: Any, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: float = 2
) -> Array:
    """The `ord`-norm of vectors along `axis`, which are flattened first for None.

    2 is Euclid's, 1 the sum and infinity the greatest of absolute values, 0 counts.
    Raises ArgumentError for an `ord` that is no number, ShapeError for the least of nothing.
    """
    array = Array.of(_floating(x, "vector_norm"))
    if not isinstance(ord, Real):  # NumPy's numbers too
        raise ArgumentError(op="vector_norm", argument="ord", value=repr(ord), expected="a number")
    size = absolute(array)
    if ord == math.inf:
        return _greatest(size, axis, keepdims)
    if ord == -math.inf:
        return least(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        found = count_nonzero(array, axis=axis, keepdims=keepdims)
        return Array.of(cast(found.node, array.dtype))
    if ord == 1:
        return total(size, axis=axis, keepdims=keepdims)
    if ord == 2:
        return sqrt(total(square(array), axis=axis, keepdims=keepdims))
    return pow(total(pow(size, float(ord)), axis=axis, keepdims=keepdims), 1.0 / ord)


def matrix_norm(
    x: Any, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro"
) -> Array:
    """The norm of each matrix: Frobenius' ("fro"), the greatest (least) sum of columns (±1) or rows
    (±infinity), the sum of singular values ("nuc") or the greatest (least) of them (±2).

    Raises ArgumentError for another one, ShapeError for the least of nothing.
    """
    array = Array.of(_floating(x, "matrix_norm"))
    if array.ndim < 2:
        raise ShapeError(op="matrix_norm", operands=array.node.told, reason="it is no matrix")
    if ord is None or ord == "fro":
        return sqrt(total(square(array), axis=(-2, -1), keepdims=keepdims))
    if ord in ("nuc", 2, -2):
        values = svdvals(array)
        found = (
            _greatest(values, -1, False)
            if ord == 2
            else (total if ord == "nuc" else least)(values, axis=-1)
        )
        return expand_dims(found, axis=(-2, -1)) if keepdims else found
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(
            op="matrix_norm",
            argument="ord",
            value=repr(ord),
            expected="'fro', 'nuc', or 1, 2 or infinity of either sign",
        )
    along = -2 if ord in (1, -1) else -1
    sums = total(absolute(array), axis=along, keepdims=True)
    if ord in (1, math.inf):
        return _greatest(sums, (-2, -1), keepdims)
    return least(sums, axis=(-2, -1), keepdims=keepdims)


def _greatest(sizes: Array, axis: int | Sequence[int] | None, keepdims: bool) -> Array:
    """The greatest of numbers that are not negative: 0 of nothing."""
    node = sizes.node
    extents = [shape_of(node)[a] for a in axes_of(axis, node.type.rank, "norm")]
    some = builtins.all(holds(node.scope, 0, "<", n) for n in extents)
    return (greatest if some else total)(sizes, axis=axis, keepdims=keepdims)


def _floating(x: Any, what: str) -> Value:
    node = value(x, what)
    return node if node.type.dtype.is_float else cast(node, f64)


def matrix_power(x: Any, n: int, /) -> Array:
    """The product of `n` copies of each matrix; the inverse's for n < 0, identity for 0."""
    node = square_matrices(x, "matrix_power")
    base = Array.of(node) if n >= 0 else inv(x)
    result: Array | None = None
    left = builtins.abs(n)
    while left:
        if left & 1:
            result = base if result is None else matmul(result, base)
        left >>= 1
        if left:
            base = matmul(base, base)
    if result is None:
        return broadcast_to(eye(Array.of(node).shape[-1], dtype=node.type.dtype), base.shape)
    return result


def inv(x: Any, /) -> Array:
    """The inverse of each matrix.  ExternError when run for a singular one; integers as float64."""
    return Array.of(call("linalg_inv", square_matrices(x, "inv")))


def det(x: Any, /) -> Array:
    """The determinant of each matrix."""
    return Array.of(call("linalg_det", square_matrices(x, "det")))


def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """The Cholesky factor of each positive definite matrix, lower unless `upper`."""
    found = Array.of(call("linalg_cholesky", square_matrices(x, "cholesky")))
    return matrix_transpose(found) if upper else found


def solve(x1: Any, x2: Any, /) -> Array:
    """The y with x1 @ y = x2, for a vector x2 or matrices.  ExternError for a singular x1.

    Raises ShapeError unless x1 has square matrices and as many rows as x2.
    """
    a, b = square_matrices(x1, "solve"), _floating(x2, "solve")
    dtype = common("solve", a.type.dtype, b.type.dtype)
    rows = shape_of(b)[-1 if b.type.rank == 1 else -2]
    n = shape_of(a)[-1]
    if rows != n and (a.scope is None or not a.scope.same(rows, n)):
        raise ShapeError(op="solve", operands=f"{a.told}, {b.told}", reason="rows differ")
    vector = b.type.rank == 1 and a.type.rank > 2
    b = reshape(b, (n, 1)) if vector else b
    if b.type.rank > 1 and shape_of(a)[:-2] != shape_of(b)[:-2]:
        stacks = [TensorType(x.type.dtype, shape_of(x)[:-2]) for x in (a, b)]
        scope = a.scope or b.scope
        if scope is not None:
            stacks = scope.broadcast("solve", *stacks)
        stack_shape = broadcast_shapes(*(t.shape for t in stacks))
        a = expand(a, (*stack_shape, *shape_of(a)[-2:]))
        b = expand(b, (*stack_shape, *shape_of(b)[-2:]))
    found = call("linalg_solve", cast(a, dtype), cast(b, dtype))
    return Array.of(reshape(found, shape_of(found)[:-1]) if vector else found)
