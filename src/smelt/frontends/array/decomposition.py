"""Matrix decompositions of the array API's `linalg` extension, by NumPy's LAPACK.

Each is one extern call, in recordings too.  The call returns all factors packed in one row per
matrix; the factors are views of it.  Reduced decompositions have derivatives.

>>> import smelt as sm
>>> a = sm.asarray([[2.0, 0.0], [0.0, 5.0]])
>>> eigh(a).eigenvalues, svdvals(a), slogdet(-a).sign
(Array([2., 5.]), Array([5., 2.]), Array(1.))
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from smelt.errors import ArgumentError, DTypeError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.elementwise import greater, where
from smelt.frontends.array.library import call
from smelt.frontends.array.manipulation import expand_dims, matrix_transpose
from smelt.frontends.array.promote import cast
from smelt.frontends.array.statistical import max as greatest
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import reshape, shape_of, take_range
from smelt.types.dtype import f64, i64
from smelt.types.expr import Index, add, product
from smelt.types.tensor import Shape

__all__ = [
    "eigh",
    "eigvalsh",
    "matrices",
    "matrix_rank",
    "pinv",
    "qr",
    "slogdet",
    "square_matrices",
    "svd",
    "svdvals",
]


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


def matrices(x: Any, what: str) -> Value:
    """Return the `Value` of an array of rank 2 or more.

    Raises ShapeError.
    """
    node = value(x, what)
    if node.type.rank < 2:
        raise ShapeError(op=what, operands=node.type_text, reason="it has fewer than 2 dimensions")
    return node


def _float_matrices(x: Any, what: str) -> Value:
    """Return matrices of float32 or float64; integers become float64.

    Raises ShapeError, DTypeError for half types.
    """
    node = matrices(x, what)
    if node.type.dtype.is_float and node.type.dtype.bits == 16:
        raise DTypeError(f"{what}({node.type_text}): half types have no linear algebra")
    return node if node.type.dtype.is_float else cast(node, f64)


def square_matrices(x: Any, what: str) -> Value:
    """Return square matrices of float32 or float64, which LAPACK accepts.

    Raises ShapeError, DTypeError for half types.
    """
    node = _float_matrices(x, what)
    n, m = shape_of(node)[-2:]
    if n != m and (node.scope is None or not node.scope.same(n, m)):
        raise ShapeError(op=what, operands=node.type_text, reason="its matrices are not square")
    return node


def eigh(x: Any, /) -> Eigen:
    """Return eigenvalues and eigenvectors of symmetric matrices.

    Eigenvalues are in ascending order, eigenvectors in columns.  Only the lower triangle of x is
    read.

    Raises ShapeError, DTypeError for half types; ExternError, when run, if LAPACK does not
    converge.
    """
    node = square_matrices(x, "eigh")
    n = shape_of(node)[-1]
    return Eigen(*_split(call("linalg_eigh", node), (n,), (n, n)))


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
        raise ArgumentError(
            op="qr", argument="mode", value=repr(mode), expected="'reduced' or 'complete'"
        )
    node = _float_matrices(x, "qr")
    m, n = shape_of(node)[-2:]
    k, wide = _shorter_side(node)
    if mode == "reduced":
        return QR(*_split(call("linalg_qr", node, wide=wide), (m, k), (k, n)))
    return QR(*_split(call("linalg_qr_complete", node, wide=wide), (m, m), (m, n)))


def svd(x: Any, /, *, full_matrices: bool = True) -> Singular:
    """Factor x = U @ diag(S) @ Vh with singular values in descending order.

    U and Vh are square with `full_matrices`; without, they have k = min(m, n) columns and rows, and
    a derivative where no two singular values are equal.  Raises ShapeError, DTypeError for half
    types.
    """
    node = _float_matrices(x, "svd")
    m, n = shape_of(node)[-2:]
    k, wide = _shorter_side(node)
    if not full_matrices or m == n:
        return Singular(*_split(call("linalg_svd", node, wide=wide), (m, k), (k,), (k, n)))
    return Singular(*_split(call("linalg_svd_full", node, wide=wide), (m, m), (k,), (n, n)))


def svdvals(x: Any, /) -> Array:
    """Return the singular values of each matrix in descending order.

    Raises ShapeError, DTypeError for half types.
    """
    node = _float_matrices(x, "svdvals")
    return Array.of(call("linalg_svdvals", node, wide=_shorter_side(node)[1]))


def slogdet(x: Any, /) -> SignedLogarithm:
    """Return sign and logarithm of the absolute value of each determinant.

    A singular matrix gives 0 and -inf.  Raises ShapeError, DTypeError for half types.
    """
    return SignedLogarithm(*_split(call("linalg_slogdet", square_matrices(x, "slogdet")), (), ()))


def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the Moore-Penrose pseudo-inverse of each matrix.

    Singular values up to `rtol` times the largest count as 0; None means max(m, n) times the
    dtype's epsilon.  Raises ShapeError, DTypeError for half types.
    """
    u, s, vh = svd(x, full_matrices=False)
    large = greater(s, _threshold(x, s, rtol, "pinv"))
    inverse = where(large, 1.0 / where(large, s, 1.0), 0.0)
    return matrix_transpose(vh) @ (expand_dims(inverse, axis=-1) * matrix_transpose(u))


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the number of singular values above `rtol` times the largest, int64.

    `rtol` as in `pinv`.  Raises ShapeError, DTypeError for half types.
    """
    s = svdvals(x)
    return total(greater(s, _threshold(x, s, rtol, "matrix_rank")), axis=-1, dtype=i64)


def _threshold(x: Any, s: Array, rtol: Any, what: str) -> Array:
    """Return the value up to which singular values count as 0, [..., 1]."""
    m, n = Array.of(matrices(x, what)).shape[-2:]
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


def _split(packed: Value, *shapes: Shape) -> list[Array]:
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
