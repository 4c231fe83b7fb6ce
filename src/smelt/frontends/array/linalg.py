"""Linear algebra functions of the array API standard and of its `linalg` extension.

Products are contractions, which the compiler plans and fuses with their neighbours.  What LAPACK
computes (`inv`, `solve`, `det`, `cholesky`, and decompositions) is an extern call, which nothing
fuses with.

>>> import smelt as sm
>>> a = sm.asarray([[2.0, 0.0], [0.0, 4.0]])
>>> matmul(a, a), vecdot(a, a), solve(a, sm.ones(2))
(Array([[ 4.,  0.],
       [ 0., 16.]]), Array([ 4., 16.]), Array([0.5 , 0.25]))
>>> a = sm.asarray([[2.0, 0.0], [0.0, 5.0]])
>>> eigh(a).eigenvalues, svdvals(a), slogdet(-a).sign
(Array([2., 5.]), Array([5., 2.]), Array(1.))
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from smelt.errors import ArgumentError, DTypeError, ShapeError
from smelt.frontends.array import product as products
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.complex_array import ComplexArray, complex_array, is_complex_like, pair
from smelt.frontends.array.complex_calls import ComplexOperand, takes_complex
from smelt.frontends.array.creation import arange, eye
from smelt.frontends.array.dtypes import DTypeLike
from smelt.frontends.array.elementwise import abs as absolute
from smelt.frontends.array.elementwise import conj, greater, multiply, pow, sqrt, square, where
from smelt.frontends.array.library import call, call_stacked
from smelt.frontends.array.manipulation import (
    broadcast_to,
    expand_dims,
    matrix_transpose,
    squeeze,
    stack,
)
from smelt.frontends.array.numpy_hints import missing_names
from smelt.frontends.array.promote import cast, common
from smelt.frontends.array.reduction import cast_to_float
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.statistical import count_nonzero
from smelt.frontends.array.statistical import max as greatest
from smelt.frontends.array.statistical import min as least
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import axes_of, axis_of, expand, reshape, take_range
from smelt.types.dtype import f64, i64
from smelt.types.expr import Index, add, product
from smelt.types.tensor import Shape, TensorType, broadcast_shapes

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet",
    "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

__getattr__ = missing_names("smelt.linalg", __all__)


class Eigen(NamedTuple):
    """Result of `eigh`: eigenvalues [..., n] and eigenvectors [..., n, n] in columns."""

    eigenvalues: Array
    eigenvectors: Array


class QR(NamedTuple):
    """Result of `qr`: factors with x = Q @ R."""

    Q: Array
    R: Array


class SignedLogarithm(NamedTuple):
    """Result of `slogdet`: sign and logarithm of the absolute determinant, each [...]."""

    sign: Array
    logabsdet: Array


class Singular(NamedTuple):
    """Result of `svd`: factors with x = U @ diag(S) @ Vh."""

    U: Array
    S: Array
    Vh: Array


Parts = tuple[Value, ...]
"""An array of real numbers, or the real and imaginary parts of complex ones."""


def _parts(x: Any, what: str) -> Parts:
    try:
        return (value(x, what),)
    except ComplexOperand:
        return tuple(part.node for part in complex_array(x).parts)


def _real(x: Array) -> Array:
    """Return a result that is real, of complex operands too."""
    return x.parts[0] if isinstance(x, ComplexArray) else x


def _adjoint(x: Array) -> Array:
    return matrix_transpose(conj(x))


def _matrices(x: Any, what: str, *, square: bool = False) -> Parts:
    """Return matrices in float32 or float64, which LAPACK accepts; integers become float64.

    Raises ShapeError, DTypeError for half types.
    """
    parts = _parts(x, what)
    node = parts[0]
    _check_rank(node, what)
    if node.type.dtype.is_float and node.type.dtype.bits == 16:
        raise DTypeError(f"{what}({node.type_text}): half types have no linear algebra")
    n, m = shape_of(node)[-2:]
    if square and n != m and (node.scope is None or not node.scope.same(n, m)):
        raise ShapeError(op=what, operands=node.type_text, reason="its matrices are not square")
    return tuple(p if p.type.dtype.is_float else cast(p, f64) for p in parts)


def _check_rank(node: Value, what: str) -> None:
    if node.type.rank < 2:
        raise ShapeError(op=what, operands=node.type_text, reason="it has fewer than 2 dimensions")


def _lapack(name: str, *operands: Parts, **options: Any) -> Array:
    """Record a call of LAPACK on operands that are all real or all complex."""
    values = [part for parts in operands for part in parts]
    if len(values) == len(operands):
        return Array.of(call(f"linalg_{name}", *values, **options))
    return call_stacked(f"complex_linalg_{name}", *map(Array.of, values), **options)


def _factors(name: str, x: Parts, *shapes: Shape, **options: Any) -> list[Array]:
    packed = _lapack(name, x, **options)
    if not isinstance(packed, ComplexArray):
        return _split_factors(packed.node, *shapes)
    sides = [_split_factors(part.node, *shapes) for part in packed.parts]
    return [pair(re, im) for re, im in zip(*sides, strict=True)]


def eigh(x: Any, /) -> Eigen:
    """Return eigenvalues and eigenvectors of symmetric or Hermitian matrices.

    Eigenvalues are in ascending order, eigenvectors in columns.  Only the lower triangle of x is
    read.

    Raises ShapeError, DTypeError for half types; ExternError, when run, if LAPACK does not
    converge.
    """
    parts = _matrices(x, "eigh", square=True)
    n = shape_of(parts[0])[-1]
    values, vectors = _factors("eigh", parts, (n,), (n, n))
    return Eigen(_real(values), vectors)


def eigvalsh(x: Any, /) -> Array:
    """Return the eigenvalues of symmetric matrices in ascending order; see `eigh`."""
    return eigh(x).eigenvalues


def qr(x: Any, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    """Factor x = Q @ R, Q with orthonormal columns and R upper triangular.

    For x [..., m, n] and k = min(m, n), "reduced" gives Q [..., m, k] and R [..., k, n]; "complete"
    gives Q [..., m, m] and R [..., m, n].

    Raises ArgumentError for another mode, ShapeError, DTypeError for half types.
    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError.of("qr", "mode", mode, "'reduced' or 'complete'")
    parts = _matrices(x, "qr")
    m, n = shape_of(parts[0])[-2:]
    k, wide = _shorter_side(parts[0])
    if mode == "reduced":
        return QR(*_factors("qr", parts, (m, k), (k, n), wide=wide))
    return QR(*_factors("qr_complete", parts, (m, m), (m, n), wide=wide))


def svd(x: Any, /, *, full_matrices: bool = True) -> Singular:
    """Factor x = U @ diag(S) @ Vh with singular values in descending order.

    U and Vh are square with `full_matrices`; without, they have k = min(m, n) columns and rows, and
    a derivative where no two singular values are equal.  Raises ShapeError, DTypeError for half
    types.
    """
    parts = _matrices(x, "svd")
    m, n = shape_of(parts[0])[-2:]
    k, wide = _shorter_side(parts[0])
    if not full_matrices or m == n:
        u, s, vh = _factors("svd", parts, (m, k), (k,), (k, n), wide=wide)
    else:
        u, s, vh = _factors("svd_full", parts, (m, m), (k,), (n, n), wide=wide)
    return Singular(u, _real(s), vh)


def svdvals(x: Any, /) -> Array:
    """Return the singular values of each matrix in descending order.

    Raises ShapeError, DTypeError for half types.
    """
    parts = _matrices(x, "svdvals")
    return _real(_lapack("svdvals", parts, wide=_shorter_side(parts[0])[1]))


def slogdet(x: Any, /) -> SignedLogarithm:
    """Return sign and logarithm of the absolute value of each determinant.

    The sign of a complex one is on the unit circle.  A singular matrix gives 0 and -inf.  Raises
    ShapeError, DTypeError for half types.
    """
    sign, logarithm = _factors("slogdet", _matrices(x, "slogdet", square=True), (), ())
    return SignedLogarithm(sign, _real(logarithm))


def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the Moore-Penrose pseudo-inverse of each matrix.

    Singular values up to `rtol` times the largest count as 0; None means max(m, n) times the
    dtype's epsilon.  Raises ShapeError, DTypeError for half types.
    """
    u, s, vh = svd(x, full_matrices=False)
    large = greater(s, _threshold(x, s, rtol, "pinv"))
    inverse = where(large, 1.0 / where(large, s, 1.0), 0.0)
    return _adjoint(vh) @ (expand_dims(inverse, axis=-1) * _adjoint(u))


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the number of singular values above `rtol` times the largest, int64.

    `rtol` as in `pinv`.  Raises ShapeError, DTypeError for half types.
    """
    s = svdvals(x)
    return total(greater(s, _threshold(x, s, rtol, "matrix_rank")), axis=-1, dtype=i64)


def _threshold(x: Any, s: Array, rtol: Any, what: str) -> Array:
    """Return the value up to which singular values count as 0, [..., 1]."""
    m, n = Array.of(_parts(x, what)[0]).shape[-2:]
    if rtol is None:
        rtol = max(m, n) * float(np.finfo(s.dtype.numpy).eps)
    elif getattr(rtol, "ndim", 0):
        rtol = expand_dims(rtol, axis=-1)
    largest = (
        greatest(s, axis=-1, keepdims=True)
        if s.shape[-1] != 0
        else total(s, axis=-1, keepdims=True)
    )
    return largest * rtol


def _shorter_side(x: Value) -> tuple[Index, bool]:
    """Return the smaller of rows and columns, and whether that is the rows."""
    m, n = shape_of(x)[-2:]
    if isinstance(m, int) and isinstance(n, int):
        return min(m, n), m <= n
    assert x.scope is not None
    wide = x.scope.holds(m, "<=", n)
    m, n = shape_of(x)[-2:]
    return (m if wide else n), wide


def _split_factors(packed: Value, *shapes: Shape) -> list[Array]:
    """Slice the packed factors from the last axis and restore their shapes."""
    stack = shape_of(packed)[:-1]
    factors: list[Array] = []
    first: Index = 0
    for shape in shapes:
        count = product(shape)
        ones = (1,) * (len(stack) + 1)
        part = take_range(packed, (*(0 for _ in stack), first), (*stack, count), ones)
        factors.append(Array.of(reshape(part, (*stack, *shape))))
        first = add(first, count)
    return factors


@takes_complex
def matmul(x1: Any, x2: Any, /) -> Array:
    """Return the matrix product: [..., m, k] and [..., k, n] give [..., m, n].

    Leading dimensions broadcast.  A vector is a row on the left and a column on the right, and that
    dimension is dropped from the result.  The dtype is the promoted one; half types accumulate in
    float32.

    Raises ShapeError for sizes that differ and arrays of rank 0, DTypeError for bool.
    """
    return Array.of(products.matmul(value(x1, "matmul"), value(x2, "matmul")))


@takes_complex
def tensordot(x1: Any, x2: Any, /, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Sum products over pairs of axes of two arrays.

    With an integer, the last `axes` axes of x1 are paired with the first of x2; else `axes` is a
    pair of sequences.  The result has the remaining axes of x1, then those of x2.

    Raises ShapeError, AxisError, DTypeError for bool.
    """
    return Array.of(products.tensordot(value(x1, "tensordot"), value(x2, "tensordot"), axes))


@takes_complex
def vecdot(x1: Any, x2: Any, /, axis: int = -1) -> Array:
    """Return the dot products of vectors along `axis`; other dimensions broadcast.

    `axis` is negative: it counts from the end of both arrays.  Raises ShapeError, AxisError,
    DTypeError for bool.
    """
    return Array.of(products.vecdot(value(x1, "vecdot"), value(x2, "vecdot"), axis))


@takes_complex
def outer(x1: Any, x2: Any, /) -> Array:
    """Return the outer product of two vectors: [m] and [n] give [m, n].

    Raises ShapeError for other ranks.
    """
    for x in (value(x1, "outer"), value(x2, "outer")):
        if x.type.rank != 1:
            raise ShapeError(op="outer", operands=x.type_text, reason="it is not 1-D")
    return multiply(expand_dims(x1, axis=1), expand_dims(x2, axis=0))


@takes_complex
def diagonal(x: Any, /, offset: int = 0) -> Array:
    """Return the diagonals of matrices: [..., m, n] gives [..., length].

    `offset` selects a diagonal above (or below, if negative) the main one.  Raises ShapeError below
    rank 2.
    """
    array = Array.of(value(x, "diagonal"))
    _check_rank(array.node, "diagonal")
    n, m = array.shape[-2:]
    first, second = max(0, -offset), max(0, offset)
    rows, columns = n - first, m - second
    count = builtins.max(0, min(rows, columns))
    steps = arange(count)
    return array[..., steps + first, steps + second]


def trace(x: Any, /, offset: int = 0, *, dtype: DTypeLike = None) -> Array:
    """Return the sum of the diagonal of each matrix; dtypes as in `sum`.

    Raises ShapeError below rank 2.
    """
    return total(diagonal(x, offset=offset), axis=-1, dtype=dtype)


@takes_complex
def cross(x1: Any, x2: Any, /, axis: int = -1) -> Array:
    """Return the cross product of vectors along an axis of size 3.

    Other dimensions broadcast.  Raises ShapeError for other sizes, AxisError.
    """
    for x in (value(x1, "cross"), value(x2, "cross")):
        axis_of(axis, x.type.rank, "cross")
        if shape_of(x)[axis] != 3 and (x.scope is None or x.scope.pin(shape_of(x)[axis]) != 3):
            raise ShapeError(op="cross", operands=x.type_text, reason=f"axis {axis} is not 3")

    def part(x: Any, k: int) -> Array:
        node = value(x, "cross")
        key = [slice(None)] * node.type.rank
        key[axis] = k  # type: ignore[call-overload]
        return Array.of(cast(node, compute))[tuple(key)]

    dtype = common("cross", value(x1, "cross").type.dtype, value(x2, "cross").type.dtype)
    compute = dtype.compute if dtype.is_float else dtype
    a, b = ([part(x, k) for k in range(3)] for x in (x1, x2))
    parts = [a[(k + 1) % 3] * b[(k + 2) % 3] - a[(k + 2) % 3] * b[(k + 1) % 3] for k in range(3)]
    return Array.of(cast(stack(parts, axis=axis).node, dtype))


def vector_norm(
    x: Any, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: float = 2
) -> Array:
    """Return the `ord`-norm of vectors along `axis`; None flattens the array first.

    Args:
        x: the array; integers are converted to float64.
        axis: one or several dimensions, or None for all.
        keepdims: keep the reduced dimensions with size 1.
        ord: 2 is the Euclidean norm, 1 the sum of absolute values, infinity (-infinity) their
            maximum (minimum), 0 the number of nonzero elements; other p give sum(|x|^p)^(1/p).

    Half types are computed in float32.  Raises ArgumentError for an `ord` that is not a number,
    ShapeError for the minimum of no elements, AxisError.
    """
    x = _sizes_if_complex(x)
    dtype = _floating(x, "vector_norm").type.dtype
    norm = _vector_norm(Array.of(cast_to_float(value(x, "vector_norm"))), axis, keepdims, ord)
    return Array.of(cast(norm.node, dtype))


def _vector_norm(
    array: Array, axis: int | Sequence[int] | None, keepdims: bool, ord: float
) -> Array:
    if not isinstance(ord, Real):  # NumPy's numbers too
        raise ArgumentError(op="vector_norm", argument="ord", value=repr(ord), expected="a number")
    size = absolute(array)
    if ord == math.inf:
        return _max_or_zero(size, axis, keepdims)
    if ord == -math.inf:
        return least(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        nonzeros = count_nonzero(array, axis=axis, keepdims=keepdims)
        return Array.of(cast(nonzeros.node, array.dtype))
    if ord == 1:
        return total(size, axis=axis, keepdims=keepdims)
    if ord == 2:
        return sqrt(total(square(array), axis=axis, keepdims=keepdims))
    return pow(total(pow(size, float(ord)), axis=axis, keepdims=keepdims), 1.0 / ord)


def matrix_norm(
    x: Any, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro"
) -> Array:
    """Return the norm of each matrix: [..., m, n] gives [...].

    Args:
        x: the array; integers are converted to float64.
        keepdims: keep the last two dimensions with size 1.
        ord: "fro" or None: the Frobenius norm; 1 (-1): the maximum (minimum) column sum of absolute
            values; infinity (-infinity): the same of rows; 2 (-2): the maximum (minimum) singular
            value; "nuc": the sum of singular values.

    Half types are computed in float32, except for singular values, which they do not have.  Raises
    ArgumentError for another `ord`, ShapeError below rank 2 and for the minimum of no elements.
    """
    if ord in ("nuc", 2, -2):
        _matrices(x, "matrix_norm")
        values = svdvals(x)
        norm = (
            _max_or_zero(values, -1, False)
            if ord == 2
            else (total if ord == "nuc" else least)(values, axis=-1)
        )
        return expand_dims(norm, axis=(-2, -1)) if keepdims else norm
    node = _floating(_sizes_if_complex(x), "matrix_norm")
    norm = _matrix_norm(Array.of(cast_to_float(node)), keepdims, ord)
    return Array.of(cast(norm.node, node.type.dtype))


def _matrix_norm(array: Array, keepdims: bool, ord: float | str | None) -> Array:
    if array.ndim < 2:
        raise ShapeError(op="matrix_norm", operands=array.node.type_text, reason="it is 0-D or 1-D")
    if ord is None or ord == "fro":
        return sqrt(total(square(array), axis=(-2, -1), keepdims=keepdims))
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError.of(
            "matrix_norm", "ord", ord, "'fro', 'nuc', or 1, 2 or infinity of either sign"
        )
    along = -2 if ord in (1, -1) else -1
    sums = total(absolute(array), axis=along, keepdims=True)
    if ord in (1, math.inf):
        return _max_or_zero(sums, (-2, -1), keepdims)
    return least(sums, axis=(-2, -1), keepdims=keepdims)


def _max_or_zero(sizes: Array, axis: int | Sequence[int] | None, keepdims: bool) -> Array:
    """Return the maximum of nonnegative numbers, or 0 if there are none."""
    node = sizes.node
    extents = [shape_of(node)[a] for a in axes_of(axis, node.type.rank, "norm")]
    has_elements = builtins.all(holds(node.scope, 0, "<", n) for n in extents)
    return (greatest if has_elements else total)(sizes, axis=axis, keepdims=keepdims)


def _sizes_if_complex(x: Any) -> Any:
    """Return the absolute values of complex numbers, whose norms are those of the numbers."""
    return absolute(x) if is_complex_like(x) else x


def _floating(x: Any, what: str) -> Value:
    node = value(x, what)
    return node if node.type.dtype.is_float else cast(node, f64)


def matrix_power(x: Any, n: int, /) -> Array:
    """Return the product of `n` copies of each square matrix.

    The inverse is multiplied for n < 0; n = 0 gives identity matrices.  Computed by repeated
    squaring.  Raises ShapeError unless matrices are square.
    """
    parts = [Array.of(part) for part in _matrices(x, "matrix_power", square=True)]
    base = inv(x) if n < 0 else pair(*parts) if len(parts) > 1 else parts[0]
    result: Array | None = None
    exponent = builtins.abs(n)
    while exponent:
        if exponent & 1:
            result = base if result is None else matmul(result, base)
        exponent >>= 1
        if exponent:
            base = matmul(base, base)
    if result is None:
        return broadcast_to(eye(base.shape[-1], dtype=base.dtype), base.shape)
    return result


def inv(x: Any, /) -> Array:
    """Return the inverse of each square matrix; integers are computed as float64.

    Raises ShapeError, DTypeError for half types; ExternError, when run, for a singular matrix.
    """
    return _lapack("inv", _matrices(x, "inv", square=True))


def det(x: Any, /) -> Array:
    """Return the determinant of each square matrix.

    Raises ShapeError, DTypeError for half types.
    """
    return _lapack("det", _matrices(x, "det", square=True))


def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """Return the Cholesky factor of each positive definite matrix, lower unless `upper`.

    Raises ShapeError, DTypeError for half types; ExternError, when run, for matrices that are not
    positive definite.
    """
    lower = _lapack("cholesky", _matrices(x, "cholesky", square=True))
    return _adjoint(lower) if upper else lower


def solve(x1: Any, x2: Any, /) -> Array:
    """Solve x1 @ y = x2 for y, a vector or matrices like x2.

    Args:
        x1: square matrices [..., n, n].
        x2: [n], or [..., n, k]; leading dimensions broadcast with those of x1.

    Returns:
        y in the shape of x2 after broadcasting, in the promoted dtype (float64 for integers).

    Raises ShapeError unless matrices are square and sizes agree, DTypeError for half types;
    ExternError, when run, for a singular matrix.
    """
    sides: Any = [(x1, x2)]
    if is_complex_like(x1) or is_complex_like(x2):
        sides = zip(complex_array(x1).parts, complex_array(x2).parts, strict=True)
    left, right, is_vector = zip(*(_align_system(a, b) for a, b in sides), strict=True)
    solution = _lapack("solve", left, right)
    return squeeze(solution, -1) if is_vector[0] else solution


def _align_system(x1: Any, x2: Any) -> tuple[Value, Value, bool]:
    """Return both sides of linear systems with equal dtypes and leading dimensions.

    The last result says whether a vector on the right was made a column.  Raises ShapeError,
    DTypeError for half types.
    """
    (a,), b = _matrices(x1, "solve", square=True), _floating(x2, "solve")
    dtype = common("solve", a.type.dtype, b.type.dtype)
    rows = shape_of(b)[-1 if b.type.rank == 1 else -2]
    n = shape_of(a)[-1]
    if rows != n and (a.scope is None or not a.scope.same(rows, n)):
        raise ShapeError(op="solve", operands=f"{a.type_text}, {b.type_text}", reason="rows differ")
    is_vector = b.type.rank == 1 and a.type.rank > 2
    b = reshape(b, (n, 1)) if is_vector else b
    if b.type.rank > 1 and shape_of(a)[:-2] != shape_of(b)[:-2]:
        stacks = [TensorType(x.type.dtype, shape_of(x)[:-2]) for x in (a, b)]
        scope = a.scope or b.scope
        if scope is not None:
            stacks = scope.broadcast("solve", *stacks)
        stack_shape = broadcast_shapes(*(t.shape for t in stacks))
        a = expand(a, (*stack_shape, *shape_of(a)[-2:]))
        b = expand(b, (*stack_shape, *shape_of(b)[-2:]))
    return cast(a, dtype), cast(b, dtype), is_vector
