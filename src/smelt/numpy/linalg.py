"""Linear algebra with NumPy's names and arguments.

>>> norm([3.0, 4.0]), norm([[1.0, 2.0]], axis=0), multi_dot([[[2.0]], [[3.0]]])
(Array(5.), Array([1., 2.]), Array([[6.]]))
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Final

import numpy as np

from smelt.frontends.array import linalg, methods
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.array import Array
from smelt.frontends.array.numpy_hints import missing_names
from smelt.numpy import arithmetic, manipulation
from smelt.numpy.arithmetic import refuse_bools
from smelt.numpy.binding import LibraryOnly, bound, library, of_arrays

LinAlgError = np.linalg.LinAlgError


def _array(x: Any) -> Array:
    return calls.array(x, "linalg")


for _count, _names in {
    1: "matrix_norm vector_norm inv det slogdet cholesky svdvals trace",
    2: "matmul outer cross",
}.items():
    for _name in _names.split():
        globals()[_name] = of_arrays(getattr(linalg, _name), _count, more=False)


def solve(a: Any, b: Any) -> Array:
    """Return the solution of linear equations."""
    return linalg.solve(_array(a), _array(b))


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the norm of vectors or matrices; None flattens and takes the Euclidean one."""
    array = _array(x)
    if axis is None and ord is None:
        return linalg.vector_norm(array, keepdims=keepdims)
    if axis is None and array.ndim == 1:
        axis = 0
    if axis is None or isinstance(axis, (tuple, list)):
        if axis not in (None, (-2, -1), (array.ndim - 2, array.ndim - 1)):
            raise LibraryOnly("matrices in other dimensions than the last two")
        if axis is None and array.ndim != 2:
            raise LibraryOnly("a norm of matrices for another number of dimensions")
        order = "fro" if ord is None else ord
        return linalg.matrix_norm(array, ord=order, keepdims=keepdims)
    order = 2 if ord is None else ord
    return linalg.vector_norm(array, axis=axis, ord=order, keepdims=keepdims)


def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """Return the product of several matrices, from left to right."""
    first, *others = map(_array, arrays)
    for x in others:
        first = linalg.matmul(first, x)
    return calls.store(first, out)


def eigh(a: Any, UPLO: str = "L") -> Any:
    """Return eigenvalues and eigenvectors of symmetric matrices."""
    if UPLO != "L":
        raise LibraryOnly("the upper triangle")
    return linalg.eigh(_array(a))


def eigvalsh(a: Any, UPLO: str = "L") -> Array:
    """Return eigenvalues of symmetric matrices."""
    if UPLO != "L":
        raise LibraryOnly("the upper triangle")
    return linalg.eigvalsh(_array(a))


def qr(a: Any, mode: str = "reduced") -> Any:
    """Return the QR factors of matrices."""
    if mode not in ("reduced", "complete"):
        raise LibraryOnly(f"mode {mode!r}")
    return linalg.qr(_array(a), mode=mode)  # type: ignore[arg-type]


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Return the singular value decomposition, or the singular values alone."""
    if not compute_uv:
        return linalg.svdvals(_array(a))
    return linalg.svd(_array(a), full_matrices=full_matrices)


def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Array:
    """Return the pseudo-inverse; singular values up to 1e-15 of the largest are zero."""
    tolerance = rtol if calls.is_default(rcond) else rcond
    return linalg.pinv(_array(a), rtol=1e-15 if calls.is_default(tolerance) else tolerance)


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """Return the number of singular values that are not zero."""
    if tol is not None or _array(A).ndim < 2:
        raise LibraryOnly("an absolute tolerance, or a vector")
    return linalg.matrix_rank(_array(A), rtol=rtol)


def matrix_power(a: Any, n: int) -> Array:
    """Return powers of square matrices."""
    refuse_bools("products", matrices := _array(a))
    return linalg.matrix_power(matrices, n)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices in the last two dimensions."""
    return methods.diagonal_view(_array(x), offset, -2, -1)


tensordot, vecdot = arithmetic.tensordot, arithmetic.vecdot
matrix_transpose = manipulation.matrix_transpose

OURS: Final = """
    norm matrix_norm vector_norm multi_dot solve inv det slogdet cholesky eigh eigvalsh qr svd
    svdvals pinv matrix_rank matrix_power matmul matrix_transpose diagonal trace outer cross
    tensordot vecdot
"""
"""Functions that are array code of ours; decompositions run LAPACK in a plan."""

LIBRARY: Final = {
    "eig": "complex eigenvalues",
    "eigvals": "complex eigenvalues",
    "lstsq": "least squares by LAPACK",
    "cond": "the ratio of singular values by LAPACK",
    "tensorsolve": "a shape of its own for each call",
    "tensorinv": "a shape of its own for each call",
}
"""Function that NumPy computes -> the reason."""

__all__ = ["LinAlgError", *OURS.split(), *LIBRARY]  # pyright: ignore[reportUnsupportedDunderAll]

for _name in OURS.split():
    _ours, _theirs = globals()[_name], getattr(np.linalg, _name)
    globals()[_name] = bound(f"linalg.{_name}", _ours, _theirs)
    if hasattr(_ours, "__wrapped__"):  # the array API has other names
        globals()[_name].__signature__ = signature(_theirs)
for _name, _reason in LIBRARY.items():
    globals()[_name] = library(f"linalg.{_name}", getattr(np.linalg, _name), _reason)

__getattr__ = missing_names("smelt.numpy.linalg", __all__)
