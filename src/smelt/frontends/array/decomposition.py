"""Matrix decompositions of the array API's `linalg` extension, by NumPy's LAPACK.

Each is one extern call, in recordings too, whose result holds all factors in one row; the factors
are views of it.  Reduced ones have derivatives.

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
    """What `eigh` gives."""

    eigenvalues: Array
    eigenvectors: Array


class QR(NamedTuple):
    """What `qr` gives."""

    Q: Array
    R: Array


class SignedLogarithm(NamedTuple):
    """What `slogdet` gives."""

    sign: Array
    logabsdet: Array


class Singular(NamedTuple):
    """What `svd` gives."""

    U: Array
    S: Array
    Vh: Array


def matrices(x: Any, what: str) -> Value:
    """An array of rank 2 or more.  Raises ShapeError."""
    node = value(x, what)
    if node.type.rank < 2:
        raise ShapeError(op=what, operands=node.told, reason="it has fewer than 2 dimensions")
    return node


def _real(x: Any, what: str) -> Value:
    """Matrices of float32 or float64; integers become float64.  Raises ShapeError, DTypeError."""
    node = matrices(x, what)
    if node.type.dtype.is_float and node.type.dtype.bits == 16:
        raise DTypeError(f"{what}({node.told}): half types have no linear algebra")
    return node if node.type.dtype.is_float else cast(node, f64)


def square_matrices(x: Any, what: str) -> Value:
    """Square ones of float32 or float64, as LAPACK takes them.  Raises ShapeError, DTypeError."""
    node = _real(x, what)
    n, m = shape_of(node)[-2:]
    if n != m and (node.scope is None or not node.scope.same(n, m)):
        raise ShapeError(op=what, operands=node.told, reason="its matrices are not square")
    return node


def eigh(x: Any, /) -> Eigen:
    """Eigenvalues in ascending order and eigenvectors (in columns) of symmetric matrices, of which
    the lower half is read.

    Raises ShapeError, DTypeError; ExternError when run where LAPACK does not converge.
    """
    node = square_matrices(x, "eigh")
    n = shape_of(node)[-1]
    return Eigen(*_split(call("linalg_eigh", node), (n,), (n, n)))


def eigvalsh(x: Any, /) -> Array:
    """The eigenvalues of symmetric matrices in ascending order.  As `eigh`."""
    return eigh(x).eigenvalues


def qr(x: Any, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    """x = Q @ R with orthonormal columns in Q and an upper triangle R.

    "complete" gives a square Q.  Raises ArgumentError for another mode, ShapeError, DTypeError.
    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError(
            op="qr", argument="mode", value=repr(mode), expected="'reduced' or 'complete'"
        )
    node = _real(x, "qr")
    m, n = shape_of(node)[-2:]
    k, wide = _lesser(node)
    if mode == "reduced":
        return QR(*_split(call("linalg_qr", node, wide=wide), (m, k), (k, n)))
    return QR(*_split(call("linalg_qr_complete", node, wide=wide), (m, m), (m, n)))


def svd(x: Any, /, *, full_matrices: bool = True) -> Singular:
    """x = U @ diag(S) @ Vh with singular values in descending order.

    U and Vh are square with `full_matrices`; without, they have min(m, n) columns and rows, and a
    derivative where no two singular values are equal.  Raises ShapeError, DTypeError.
    """
    node = _real(x, "svd")
    m, n = shape_of(node)[-2:]
    k, wide = _lesser(node)
    if not full_matrices or m == n:
        return Singular(*_split(call("linalg_svd", node, wide=wide), (m, k), (k,), (k, n)))
    return Singular(*_split(call("linalg_svd_full", node, wide=wide), (m, m), (k,), (n, n)))


def svdvals(x: Any, /) -> Array:
    """The singular values in descending order.  Raises ShapeError, DTypeError."""
    node = _real(x, "svdvals")
    return Array.of(call("linalg_svdvals", node, wide=_lesser(node)[1]))


def slogdet(x: Any, /) -> SignedLogarithm:
    """The sign and the logarithm of the absolute value of each determinant: 0 and -inf for a
    singular matrix.  Raises ShapeError, DTypeError."""
    return SignedLogarithm(*_split(call("linalg_slogdet", square_matrices(x, "slogdet")), (), ()))


def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """The Moore-Penrose inverse of each matrix: singular values up to `rtol` times the greatest
    count as 0 (None: max(m, n) times the dtype's epsilon).  Raises ShapeError, DTypeError."""
    u, s, vh = svd(x, full_matrices=False)
    large = greater(s, _threshold(x, s, rtol, "pinv"))
    inverse = where(large, 1.0 / where(large, s, 1.0), 0.0)
    return matrix_transpose(vh) @ (expand_dims(inverse, axis=-1) * matrix_transpose(u))


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """How many singular values are above `rtol` times the greatest, int64.  As `pinv`."""
    s = svdvals(x)
    return total(greater(s, _threshold(x, s, rtol, "matrix_rank")), axis=-1, dtype=i64)


def _threshold(x: Any, s: Array, rtol: Any, what: str) -> Array:
    """Up to where singular values count as 0, [..., 1]."""
    m, n = Array.of(matrices(x, what)).shape[-2:]
    if rtol is None:
        rtol = max(m, n) * float(np.finfo(s.dtype.numpy).eps)
    elif getattr(rtol, "ndim", 0):
        rtol = expand_dims(rtol, axis=-1)
    most = (
        greatest(s, axis=-1, keepdims=True)
        if s.shape[-1] != 0
        else total(s, axis=-1, keepdims=True)
    )
    return most * rtol


def _lesser(x: Value) -> tuple[Index, bool]:
    """The lesser side of matrices, and whether it is the number of rows."""
    m, n = shape_of(x)[-2:]
    if isinstance(m, int) and isinstance(n, int):
        return min(m, n), m <= n
    assert x.scope is not None
    wide = x.scope.holds(m, "<=", n)
    m, n = shape_of(x)[-2:]
    return (m if wide else n), wide


def _split(packed: Value, *shapes: Shape) -> list[Array]:
    """The factors that lie behind each other along the last axis."""
    stack = shape_of(packed)[:-1]
    found: list[Array] = []
    first: Index = 0
    for shape in shapes:
        count = product(shape)
        ones = (1,) * (len(stack) + 1)
        part = take_range(packed, (*(0 for _ in stack), first), (*stack, count), ones)
        found.append(Array.of(reshape(part, (*stack, *shape))))
        first = add(first, count)
    return found
