"""Functions of whole complex arrays: creation, shapes, sums and linear algebra.

What moves or adds elements does so with both parts.  Products of matrices are products of parts.
Matrix decompositions and products over an axis are library calls.

>>> z = complex_array([[1j, 2.0], [0.0, 1 - 1j]])
>>> sm_sum(z, axis=0), matmul(z, z)[0]
(Array([0.+1.j, 3.-1.j]), Array([-1.+0.j,  2.+0.j]))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from smelt.errors import ArgumentError, AxisError, DTypeError
from smelt.frontends.array import complex_elementwise as cl
from smelt.frontends.array import creation as make
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import linalg, searching, sorting
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array, check_device, value
from smelt.frontends.array.complex_array import (
    PART_OF,
    ComplexArray,
    complex_array,
    from_memory,
    is_complex_like,
    pair,
)
from smelt.frontends.array.complex_calls import COMPLEX
from smelt.frontends.array.complex_library import call_stacked
from smelt.frontends.array.convert import as_buffer, is_foreign_array
from smelt.frontends.array.dtypes import DTypeLike, lookup_dtype
from smelt.frontends.array.einsum import einsum as real_einsum
from smelt.frontends.array.promote import cast
from smelt.frontends.array.value import leaf
from smelt.frontends.array.views import axes_of, axis_of, shape_of
from smelt.types.dtype import DType, bool_


def _part_dtype(dtype: DTypeLike) -> DType | None:
    """Return the dtype of the parts of a complex dtype; None for any other."""
    return PART_OF.get(lookup_dtype(dtype))


# Conversion


def astype(x: Any, dtype: DTypeLike, *, copy: bool = True, device: Any = None) -> Array:
    """Convert to a complex dtype; complex numbers only become bools beside.

    Raises DTypeError for other dtypes: imaginary parts would be lost.
    """
    check_device(device)
    target = lookup_dtype(dtype)
    if is_complex_like(x):
        z = complex_array(x)
        if target is bool_:
            return cl.not_equal(z, 0.0)
        part = PART_OF.get(target)
        if part is None:
            raise DTypeError(
                f"astype({z.type_text}, {target.long}): imaginary parts would be lost",
                hint="Convert x.real or abs(x).",
            )
        if target is z.dtype:
            return z.__copy__() if copy else z
        return pair(*(Array.of(cast(p.node, part)) for p in z.parts))
    real = Array.of(cast(value(x, "astype"), PART_OF[target]))
    return pair(real, 0.0)


def asarray(
    obj: Any, *, dtype: DTypeLike = None, device: Any = None, copy: bool | None = None
) -> Array:
    """Convert to a complex array; arguments and errors as in `sm.asarray`."""
    check_device(device)
    if isinstance(obj, ComplexArray):
        z = obj
        if copy:
            z = obj.__copy__()
    elif is_foreign_array(obj) and not isinstance(obj, Array) and is_complex_like(obj):
        data = as_buffer(obj)
        z = from_memory(data, bool(copy))
    elif copy is False:
        raise ArgumentError("asarray: complex numbers become an array only by a copy")
    elif is_complex_like(obj):
        z = complex_array(obj)
    else:
        return astype(make.asarray(obj), dtype)
    if dtype is None or lookup_dtype(dtype) is z.dtype:
        return z
    if copy is False:
        raise ArgumentError(f"asarray: {z.dtype} becomes {lookup_dtype(dtype)} only by a copy")
    return astype(z, dtype)


def from_dlpack(x: Any, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return a complex array that reads another library's memory."""
    return asarray(x, copy=copy)


# Creation


def full(shape: Any, fill_value: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array with the same complex number everywhere."""
    re, im = complex_array(fill_value).parts if is_complex_like(fill_value) else (fill_value, 0.0)
    if dtype is None:
        return pair(*(make.full(shape, p, device=device) for p in (re, im)))
    part = _part_dtype(dtype)
    if part is None:
        raise DTypeError(f"full: {fill_value!r} is not {lookup_dtype(dtype).long}")
    return pair(*(make.full(shape, p, dtype=part, device=device) for p in (re, im)))


def full_like(x: Any, fill_value: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array of the shape of `x` with the same complex number everywhere."""
    like = complex_array(x) if is_complex_like(x) else make.asarray(x)
    return make.full(like.shape, fill_value, dtype=dtype or like.dtype, device=device)


def _constant(fill: int) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def of_shape(shape: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
        return full(shape, fill, dtype=dtype, device=device)

    def like(x: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
        return full_like(x, fill, dtype=dtype, device=device)

    return of_shape, like


_ZEROS, _ZEROS_LIKE = _constant(0)
_ONES, _ONES_LIKE = _constant(1)


def eye(
    n_rows: Any, n_cols: Any = None, k: int = 0, dtype: DTypeLike = None, *, device: Any = None
) -> Array:
    """Return a complex matrix with ones on the `k`-th diagonal."""
    return pair(make.eye(n_rows, n_cols, k=k, dtype=_part_dtype(dtype), device=device), 0.0)


def arange(start: Any, *args: Any, dtype: DTypeLike = None, **options: Any) -> Array:
    """Return equally spaced real numbers as complex ones.

    Raises DTypeError for complex bounds, which are in no order.
    """
    if any(map(is_complex_like, (start, *args, *options.values()))):
        raise DTypeError("arange: complex numbers have no order")
    return pair(make.arange(start, *args, dtype=_part_dtype(dtype), **options), 0.0)


def linspace(start: Any, stop: Any, num: Any, *, dtype: DTypeLike = None, **options: Any) -> Array:
    """Return numbers on the line between two complex numbers."""
    ends = complex(start), complex(stop)
    part = None if dtype is None else _part_dtype(dtype)
    if dtype is not None and part is None:
        raise DTypeError(f"linspace: complex numbers are not {lookup_dtype(dtype).long}")
    re, im = (
        make.linspace(a, b, num, dtype=part, **options)
        for a, b in zip(*((z.real, z.imag) for z in ends), strict=True)
    )
    return pair(re, im)


# Shapes


def _structural(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that applies another to both parts of its first argument."""

    def on_parts(x: Any, *args: Any, **options: Any) -> Any:
        results = [function(part, *args, **options) for part in complex_array(x).parts]
        return _joined(*results)

    return on_parts


def _joined(real: Any, imag: Any) -> Any:
    if isinstance(real, (list, tuple)):
        return type(real)(map(pair, real, imag))
    return pair(real, imag)


def _of_list(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that applies another to both parts of a list of arrays."""

    def on_parts(arrays: Sequence[Any], **options: Any) -> Any:
        parts = [complex_array(x).parts for x in arrays]
        return _joined(*(function(list(side), **options) for side in zip(*parts, strict=True)))

    return on_parts


def _concat(arrays: Sequence[Any], axis: int | None = 0) -> Any:
    return _of_list(shapes.concat)(arrays, axis=axis)


def _stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    return _of_list(shapes.stack)(arrays, axis=axis)


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of several arrays that applies another to each kind of them."""

    def on_arrays(*arrays: Any, **options: Any) -> Any:
        pairs = [complex_array(x) if is_complex_like(x) else None for x in arrays]
        real = function(*(x if z is None else z.parts[0] for x, z in zip(arrays, pairs)), **options)
        imag = function(*(x if z is None else z.parts[1] for x, z in zip(arrays, pairs)), **options)
        return [r if z is None else pair(r, i) for r, i, z in zip(real, imag, pairs, strict=True)]

    return on_arrays


def _diff(x: Any, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None) -> Any:
    def side(y: Any, k: int) -> Any:
        return None if y is None else complex_array(y).parts[k]

    return pair(
        *(
            stat.diff(part, n=n, axis=axis, prepend=side(prepend, k), append=side(append, k))
            for k, part in enumerate(complex_array(x).parts)
        )
    )


# Reductions


def _converted(x: Any, dtype: DTypeLike) -> ComplexArray:
    """Return the operand of a sum in the requested dtype."""
    if dtype is None:
        return complex_array(x)
    result = astype(x, dtype)
    if not isinstance(result, ComplexArray):
        raise DTypeError(f"a sum of complex numbers is not {lookup_dtype(dtype).long}")
    return result


def sm_sum(x: Any, axis: Any = None, dtype: DTypeLike = None, *, keepdims: bool = False) -> Array:
    """Return the sum over `axis`."""
    parts = _converted(x, dtype).parts
    return pair(*(stat.sum(p, axis=axis, keepdims=keepdims) for p in parts))


def prod(x: Any, axis: Any = None, dtype: DTypeLike = None, *, keepdims: bool = False) -> Array:
    """Return the product over `axis`, by a library call."""
    z = _converted(x, dtype)
    axes = axes_of(axis, z.ndim, "prod")
    return call_stacked("complex_prod", *z.parts, axis=axes, keepdims=bool(keepdims))


def mean(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return the mean over `axis`."""
    return pair(*(stat.mean(p, axis=axis, keepdims=keepdims) for p in complex_array(x).parts))


def var(x: Any, axis: Any = None, **options: Any) -> Array:
    """Return the variance, that of the real parts and that of the imaginary parts."""
    re, im = complex_array(x).parts
    return stat.var(re, axis=axis, **options) + stat.var(im, axis=axis, **options)


def std(x: Any, axis: Any = None, **options: Any) -> Array:
    """Return the square root of the variance."""
    return el.sqrt(var(x, axis, **options))


def _of_truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that applies another to a mask of nonzero elements."""

    def on_truth(x: Any, *args: Any, **options: Any) -> Any:
        return function(cl.not_equal(x, 0.0), *args, **options)

    return on_truth


def cumulative_sum(
    x: Any, axis: int | None = None, dtype: DTypeLike = None, *, include_initial: bool = False
) -> Array:
    """Return prefix sums along `axis`."""
    return pair(
        *(
            stat.cumulative_sum(p, axis=axis, include_initial=include_initial)
            for p in _converted(x, dtype).parts
        )
    )


def cumulative_prod(
    x: Any, axis: int | None = None, dtype: DTypeLike = None, *, include_initial: bool = False
) -> Array:
    """Return prefix products along `axis`, by a library call."""
    z = _converted(x, dtype)
    if axis is None and z.ndim != 1:
        raise AxisError(f"cumulative_prod: an axis must be named for {z.ndim} dimensions")
    dim = axis_of(0 if axis is None else axis, z.ndim, "cumulative_prod")
    result = call_stacked("complex_cumprod", *z.parts, axis=dim)
    if not include_initial:
        return result
    shape = tuple(1 if a == dim else d for a, d in enumerate(z.shape))
    return _concat([make.ones(shape, dtype=z.dtype), result], axis=dim)


# Products


def _bilinear(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product of complex arrays from that of real ones."""

    def product(x: Any, y: Any, **options: Any) -> Any:
        a, b = _sides(x)
        c, d = _sides(y)
        if d is None:
            return pair(function(a, c, **options), function(b, c, **options))
        if b is None:
            return pair(function(a, c, **options), function(a, d, **options))
        return pair(
            function(a, c, **options) - function(b, d, **options),
            function(a, d, **options) + function(b, c, **options),
        )

    return product


def _sides(x: Any) -> tuple[Any, Any]:
    return complex_array(x).parts if is_complex_like(x) else (x, None)


matmul = _bilinear(linalg.matmul)


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    """Return the dot products of vectors, the first one conjugated."""
    return _bilinear(linalg.vecdot)(cl.conj(x) if is_complex_like(x) else x, y, axis=axis)


def tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """Sum products over pairs of axes of two arrays."""
    return _bilinear(linalg.tensordot)(x, y, axes=axes)


def cross(x: Any, y: Any, axis: int = -1) -> Any:
    """Return the cross product of vectors along an axis of size 3."""
    return _bilinear(linalg.cross)(x, y, axis=axis)


def einsum(subscripts: str, *operands: Any, optimize: Any = True) -> Any:
    """Evaluate a sum of products by a real sum for each choice of parts."""
    sides = [_sides(x) for x in operands]
    totals: list[Any] = [None, None]
    for choice in range(2 ** len(sides)):
        bits = [choice >> k & 1 for k in range(len(sides))]
        chosen = [side[bit] for side, bit in zip(sides, bits, strict=True)]
        if any(part is None for part in chosen):
            continue
        term = real_einsum(subscripts, *chosen)
        term = -term if sum(bits) % 4 > 1 else term
        kind = sum(bits) % 2
        totals[kind] = term if totals[kind] is None else totals[kind] + term
    return pair(*totals)


# Linear algebra by LAPACK


def _matrices(x: Any, what: str, square: bool = True) -> ComplexArray:
    z = complex_array(x)
    check = linalg.square_matrices if square else linalg.matrices
    check(z.parts[0], what)
    return z


def _factors(name: str, z: ComplexArray, *sizes: Any, **options: Any) -> list[Any]:
    """Return the factors of a decomposition, of the given shapes."""
    packed = call_stacked(f"complex_linalg_{name}", *z.parts, **options)
    sides = [linalg.split_factors(p.node, *sizes) for p in packed.parts]
    return [pair(a, b) for a, b in zip(*sides, strict=True)]


def eigh(x: Any) -> Any:
    """Return eigenvalues and eigenvectors of Hermitian matrices."""
    z = _matrices(x, "eigh")
    n = shape_of(z.parts[0].node)[-1]
    values, vectors = _factors("eigh", z, (n,), (n, n))
    return linalg.Eigen(values.parts[0], vectors)


def eigvalsh(x: Any) -> Any:
    """Return the eigenvalues of Hermitian matrices."""
    return eigh(x).eigenvalues


def qr(x: Any, *, mode: str = "reduced") -> Any:
    """Factor x = Q @ R."""
    if mode not in ("reduced", "complete"):
        raise ArgumentError(
            op="qr", argument="mode", value=repr(mode), expected="'reduced' or 'complete'"
        )
    z = _matrices(x, "qr", square=False)
    m, n, k, wide = _sizes(z)
    if mode == "reduced":
        return linalg.QR(*_factors("qr", z, (m, k), (k, n), wide=wide))
    return linalg.QR(*_factors("qr_complete", z, (m, m), (m, n), wide=wide))


def _sizes(z: ComplexArray) -> tuple[Any, Any, Any, bool]:
    node = z.parts[0].node
    k, wide = linalg.shorter_side(node)
    m, n = shape_of(node)[-2:]
    return m, n, k, wide


def svd(x: Any, *, full_matrices: bool = True) -> Any:
    """Factor x = U @ diag(S) @ Vh."""
    z = _matrices(x, "svd", square=False)
    m, n, k, wide = _sizes(z)
    if full_matrices and m != n:
        u, s, vh = _factors("svd_full", z, (m, m), (k,), (n, n), wide=wide)
    else:
        u, s, vh = _factors("svd", z, (m, k), (k,), (k, n), wide=wide)
    return linalg.Singular(u, s.parts[0], vh)


def svdvals(x: Any) -> Any:
    """Return the singular values of each matrix."""
    z = _matrices(x, "svdvals", square=False)
    return call_stacked("complex_linalg_svdvals", *z.parts, wide=_sizes(z)[3]).parts[0]


def slogdet(x: Any) -> Any:
    """Return the sign, on the unit circle, and the logarithm of each determinant."""
    sign, logarithm = _factors("slogdet", _matrices(x, "slogdet"), (), ())
    return linalg.SignedLogarithm(sign, logarithm.parts[0])


def _adjoint(z: Any) -> Any:
    return COMPLEX["matrix_transpose"](cl.conj(z))


def pinv(x: Any, *, rtol: Any = None) -> Any:
    """Return the Moore-Penrose pseudo-inverse of each matrix."""
    u, s, vh = svd(x, full_matrices=False)
    large = el.greater(s, linalg.threshold(complex_array(x).parts[0], s, rtol, "pinv"))
    inverse = el.where(large, 1.0 / el.where(large, s, 1.0), 0.0)
    return matmul(_adjoint(vh), shapes.expand_dims(inverse, axis=-1) * _adjoint(u))


def matrix_rank(x: Any, *, rtol: Any = None) -> Any:
    """Return the number of singular values above `rtol` times the largest."""
    s = svdvals(x)
    limit = linalg.threshold(complex_array(x).parts[0], s, rtol, "matrix_rank")
    return stat.count_nonzero(el.greater(s, limit), axis=-1)


def matrix_power(x: Any, n: int) -> Any:
    """Return the product of `n` copies of each square matrix."""
    z = _matrices(x, "matrix_power")
    base: Any = inv(z) if n < 0 else z
    result, count = None, abs(n)
    while count:
        if count % 2:
            result = base if result is None else matmul(result, base)
        count //= 2
        base = matmul(base, base) if count else base
    if result is None:
        return shapes.broadcast_to(make.eye(z.shape[-1], dtype=z.dtype), z.shape)
    return result


def _lapack(name: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return call_stacked(f"complex_linalg_{name}", *_matrices(x, name).parts)

    return function


inv = _lapack("inv")


def cholesky(x: Any, *, upper: bool = False) -> Any:
    """Return the Cholesky factor of each Hermitian positive definite matrix."""
    lower = _lapack("cholesky")(x)
    return _adjoint(lower) if upper else lower


def solve(x1: Any, x2: Any) -> Any:
    """Solve x1 @ y = x2; leading dimensions broadcast."""
    sides = zip(complex_array(x1).parts, complex_array(x2).parts, strict=True)
    (a, c, _), (b, d, is_vector) = (linalg.align_system(p, q) for p, q in sides)
    result = call_stacked("complex_linalg_solve", *map(Array.of, (a, b, c, d)))
    return shapes.squeeze(result, -1) if is_vector else result


def vector_norm(x: Any, **options: Any) -> Any:
    """Return the norm of vectors, which is that of the absolute values."""
    return linalg.vector_norm(cl.absolute(x), **options)


def matrix_norm(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return the norm of each matrix, from absolute or from singular values."""
    if ord not in ("nuc", 2, -2):
        return linalg.matrix_norm(cl.absolute(x), keepdims=keepdims, ord=ord)
    order = {"nuc": 1, 2: math.inf, -2: -math.inf}[ord]
    norm = linalg.vector_norm(svdvals(x), axis=-1, ord=order)
    return shapes.expand_dims(norm, axis=(-2, -1)) if keepdims else norm


# Functions of elements that are known


def _unique(ours: type, *more: str) -> Callable[[Any], Any]:
    """Return a function of NumPy's unique elements."""

    def function(x: Any) -> Any:
        data = complex_array(x).elements("unique elements, whose number depends on values,")
        flags: dict[str, Any] = {f"return_{name}": True for name in more}
        results: Any = np.unique(data, equal_nan=False, **flags)
        if not more:
            return from_memory(results, private=True)
        values, *rest = results
        indices = [
            Array.of(leaf((r.reshape(data.shape) if n == "inverse" else r).astype(np.int64)))
            for n, r in zip(more, rest, strict=True)
        ]
        return ours(from_memory(values, private=True), *indices)

    return function


_STRUCTURAL: Final[dict[str, Callable[..., Any]]] = {
    **{
        f.__name__: f
        for f in (
            shapes.broadcast_to,
            shapes.expand_dims,
            shapes.flip,
            shapes.moveaxis,
            shapes.permute_dims,
            shapes.matrix_transpose,
            shapes.repeat,
            shapes.reshape,
            shapes.roll,
            shapes.squeeze,
            shapes.tile,
            shapes.unstack,
            searching.take,
            searching.take_along_axis,
            make.tril,
            make.triu,
            linalg.diagonal,
        )
    },
}
"""Functions that move elements, of one array."""


def trace(x: Any, offset: int = 0, *, dtype: DTypeLike = None) -> Any:
    """Return the sum of the diagonal of each matrix."""
    diagonal = COMPLEX["diagonal"](_converted(x, dtype), offset=offset)
    return sm_sum(diagonal, axis=-1)


def outer(x1: Any, x2: Any) -> Any:
    """Return the outer product of two vectors."""
    return _bilinear(linalg.outer)(x1, x2)


COMPLEX.update(
    {
        "astype": astype,
        "asarray": asarray,
        "from_dlpack": from_dlpack,
        "full": full,
        "full_like": full_like,
        "zeros": _ZEROS,
        "zeros_like": _ZEROS_LIKE,
        "empty": _ZEROS,
        "empty_like": _ZEROS_LIKE,
        "ones": _ONES,
        "ones_like": _ONES_LIKE,
        "eye": eye,
        "arange": arange,
        "linspace": linspace,
        "concat": _concat,
        "stack": _stack,
        "broadcast_arrays": _each(shapes.broadcast_arrays),
        "meshgrid": _each(make.meshgrid),
        "diff": _diff,
        "sum": sm_sum,
        "prod": prod,
        "mean": mean,
        "var": var,
        "std": std,
        "cumulative_sum": cumulative_sum,
        "cumulative_prod": cumulative_prod,
        "all": _of_truth(stat.all),
        "any": _of_truth(stat.any),
        "count_nonzero": _of_truth(stat.count_nonzero),
        "nonzero": _of_truth(searching.nonzero),
        "matmul": matmul,
        "vecdot": vecdot,
        "tensordot": tensordot,
        "cross": cross,
        "outer": outer,
        "einsum": einsum,
        "trace": trace,
        "eigh": eigh,
        "eigvalsh": eigvalsh,
        "qr": qr,
        "svd": svd,
        "svdvals": svdvals,
        "slogdet": slogdet,
        "pinv": pinv,
        "matrix_rank": matrix_rank,
        "matrix_power": matrix_power,
        "inv": inv,
        "det": _lapack("det"),
        "cholesky": cholesky,
        "solve": solve,
        "vector_norm": vector_norm,
        "matrix_norm": matrix_norm,
        "unique_all": _unique(sorting.UniqueAll, "index", "inverse", "counts"),
        "unique_counts": _unique(sorting.UniqueCounts, "counts"),
        "unique_inverse": _unique(sorting.UniqueInverse, "inverse"),
        "unique_values": _unique(tuple),
        **{name: _structural(function) for name, function in _STRUCTURAL.items()},
    }
)
