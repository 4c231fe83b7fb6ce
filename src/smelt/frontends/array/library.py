"""Functions that NumPy computes: sorting, searching, dense linear algebra, Fourier transforms.

Each is a row of the extern table.  In a plan it is one call, a barrier that nothing fuses across.
A call has one result, so both parts of a complex result are stacked in a leading dimension.

>>> from smelt.frontends.array.complex_array import complex_array
>>> from smelt.frontends.array.convert import from_host
>>> x = from_host(np.asarray([3.0, 1.0, 2.0]))
>>> call("sort", x, axis=0, descending=False, stable=True).type
TensorType(dtype=f64, shape=(3,))
>>> call_stacked("complex_unary", *complex_array([1j]).parts, function="arcsin")
Array([0.+0.88137359j])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import numpy as np

from smelt.errors import ExternError, UnsupportedError
from smelt.frontends.array.argsort import argsort_into, is_faster_packed
from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray, pair
from smelt.frontends.array.value import Buffer, Value, record
from smelt.knobs import STRICT
from smelt.ops import extern as derive
from smelt.ops.extern import EXTERNS, Extern, ExternRow, register
from smelt.ops.spec import Adjoint, Cotangents, V
from smelt.ops.view import Slice
from smelt.types.dtype import c64, c128, i64
from smelt.types.expr import Index, add, floordiv, mul, product, sub
from smelt.types.tensor import TensorType

Norm = str
"""Which direction is divided: "backward" (the inverse), "forward", or "ortho" (both by a root)."""
NORMS: Final = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""Norm -> that of the adjoint transform in the other direction."""
HALF_SPECTRA: Final = frozenset({"rfft", "rfftn", "ihfft"})
"""Transforms of real numbers, whose spectrum is half stored."""
REAL_RESULTS: Final = frozenset({"irfft", "irfftn", "hfft"})
"""Transforms whose result is real."""


def call(name: str, *values: Value, **options: Any) -> Value:
    """Record a library call on values of one dtype.

    Raises UnsupportedError under `SMELT_STRICT`.
    """
    check_extern_allowed(name)
    return record(_operator(name, tuple(options.items())), values)


@cache
def _operator(name: str, options: tuple[tuple[str, Any], ...]) -> Extern:
    """Return one operator object for equal calls, by which the type inference cache finds it."""
    return Extern(name, options)


def check_extern_allowed(name: str) -> None:
    """Raise UnsupportedError under `SMELT_STRICT`: nothing may run outside the compiler."""
    if STRICT.get():
        raise UnsupportedError(f"{name} runs outside the compiler, which SMELT_STRICT forbids")


def with_extern_errors(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to raise its exceptions as ExternError."""

    def run(*arrays: Buffer, **options: Any) -> Any:
        try:
            return function(*arrays, **options)
        except Exception as error:
            raise ExternError(op=name, reason=str(error)) from error

    return run


def _argsort(x: Buffer, axis: int, descending: bool, stable: bool) -> Buffer:
    """Return the positions that sort; equal elements keep their order in both directions."""
    result = np.empty(x.shape, np.int64)
    _argsort_into(result, x, axis, descending, stable)
    return result


def _argsort_into(out: Buffer, x: Buffer, axis: int, descending: bool, stable: bool) -> None:
    if x.dtype.kind == "V" or x.dtype == np.float16:  # sort by value, not by bits
        x = x.astype(np.float32)
    if stable or descending or is_faster_packed(x, axis):
        argsort_into(out, x, axis, descending)
    else:
        out[...] = np.argsort(x, axis=axis)


def _sort(x: Buffer, axis: int, descending: bool, stable: bool) -> Buffer:
    """Return the sorted elements.

    Equal elements have the same bits, except zeros of both signs, so NumPy's vectorised unstable
    sort suffices, which is much faster than a stable sort of positions.
    """
    result = np.empty(x.shape, x.dtype)
    _sort_into(result, x, axis, descending, stable)
    return result


def _sort_into(out: Buffer, x: Buffer, axis: int, descending: bool, stable: bool) -> None:
    if x.dtype.kind == "V":
        out[...] = _sort(x.astype(np.float32), axis, descending, stable).astype(x.dtype)
    elif stable and x.dtype.kind == "f" and _has_negative_zero(x):
        out[...] = np.take_along_axis(x, _argsort(x, axis, descending, stable), axis)
    else:
        out[...] = x
        out.sort(axis=axis)
        if descending:
            out[...] = np.flip(out, axis).copy()


_SAME_BITS = {
    kind.itemsize: (kind, int(np.iinfo(kind).min)) for kind in map(np.dtype, ("i2", "i4", "i8"))
}
"""Integer types by width in bytes, with the bits of negative zero as an integer."""


def _has_negative_zero(x: Buffer) -> bool:
    """Return whether -0.0 occurs: its bits are the smallest integer."""
    kind, least = _SAME_BITS[x.itemsize]
    return x.size > 0 and int(np.minimum.reduce(x.view(kind), axis=None)) == least


def _search(x: Buffer, values: Buffer, side: Any) -> Buffer:
    if x.dtype.kind == "V":
        x, values = x.astype(np.float32), values.astype(np.float32)
    if values.ndim == 1 and values.size >= max(x.size, _SAMPLES**2) and seems_sorted(values):
        positions = _merge_sorted(x, values, side)
        if positions is not None:
            return positions
    return np.searchsorted(x, values, side=side).astype(np.int64, copy=False)


def _merge_sorted(x: Buffer, values: Buffer, side: Any) -> Buffer | None:
    """Return where sorted values belong in a sorted vector; None if unsorted.

    Each element of the vector is searched among the values: it counts from there on.
    """
    if not (values[:-1] <= values[1:]).all():
        return None
    firsts = np.searchsorted(values, x, side="right" if side == "left" else "left")
    counts = np.diff(firsts, prepend=0, append=values.size)
    return None if counts.min() < 0 else np.repeat(np.arange(counts.size), counts)


_SAMPLES = 64


def seems_sorted(x: Buffer) -> bool:
    """Return whether a few elements of a vector are in ascending order."""
    if x.ndim != 1 or x.dtype.kind == "V":
        return False
    samples = x[:: max(x.size // _SAMPLES, 1)]
    return bool((samples[:-1] <= samples[1:]).all())


def _same_type(x: TensorType, *_others: TensorType, **_options: Any) -> TensorType:
    return x


def _solve(a: Buffer, b: Buffer) -> Buffer:
    if b.ndim == 1:  # NumPy's gufunc takes vectors only as columns
        return np.linalg.solve(a, b[:, None])[:, 0]
    return np.linalg.solve(a, b)


def _pack(*parts: Buffer) -> Buffer:
    """Concatenate the factors of a decomposition in one row: an extern call has one result."""
    rows = [p.reshape(*p.shape[:-2], p.shape[-2] * p.shape[-1]) for p in parts]
    return np.concatenate(rows, axis=-1)


def _factors(shapes: str) -> Any:
    """Return the type rule of factors, with a letter for each of their dimensions.

    m and n are the rows and columns, k the shorter side.
    """

    def rule(x: TensorType, wide: bool = False) -> TensorType:
        m, n = x.shape[-2:]
        sizes: dict[str, Index] = {"m": m, "n": n, "k": m if wide else n, "2": 2}
        total: Index = 0
        for shape in shapes.split():
            total = add(total, product(sizes[letter] for letter in shape))
        return TensorType(x.dtype, (*x.shape[:-2], total))

    return rule


def _eigh(x: Buffer) -> Buffer:
    w, v = np.linalg.eigh(x)
    return _pack(w[..., None, :], v)


def _qr(x: Buffer, wide: bool, mode: Any = "reduced") -> Buffer:
    return _pack(*np.linalg.qr(x, mode=mode))


def _svd(x: Buffer, wide: bool, full: bool = False) -> Buffer:
    u, s, vh = np.linalg.svd(x, full_matrices=full)
    return _pack(u, s[..., None, :], vh)


def _svdvals(x: Buffer, wide: bool) -> Buffer:
    return np.linalg.svd(x, compute_uv=False)


def _determinants(x: TensorType) -> TensorType:
    return TensorType(x.dtype, x.shape[:-2])


def _transformed(
    x: TensorType, *_: TensorType, function: str, sizes: Any, axes: tuple[int, ...], norm: Norm
) -> TensorType:
    shape: list[Index] = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        if size is not None:
            shape[axis] = size
    last = axes[-1]
    if function in HALF_SPECTRA:
        shape[last] = floordiv(shape[last], 2) + 1
    elif function in REAL_RESULTS and sizes[-1] is None:
        shape[last] = mul(sub(shape[last], 1), 2)
    return TensorType(x.dtype, tuple(shape) if function in REAL_RESULTS else (2, *shape))


def _transform(
    *parts: Buffer, function: str, sizes: Any, axes: tuple[int, ...], norm: Norm
) -> Buffer:
    x = parts[0] if len(parts) == 1 else joined(*parts)
    run: Any = getattr(np.fft, function)
    if function.endswith("n"):
        lengths = [x.shape[a] if n is None else n for a, n in zip(axes, sizes, strict=True)]
        if function == "irfftn" and sizes[-1] is None:
            lengths[-1] = 2 * (x.shape[axes[-1]] - 1)
        result = run(x, s=lengths, axes=axes, norm=norm)
    else:
        result = run(x, n=sizes[0], axis=axes[0], norm=norm)
    if function in REAL_RESULTS:
        return result.astype(parts[0].dtype, copy=False)
    return stacked(result, parts[0])


def _sides(a: Adjoint[V], both: V) -> tuple[V, ...]:
    """Return both parts of a complex value, which are stacked."""
    shape = a.type(both).shape
    starts = [(k, *(0 for _ in shape[1:])) for k in (0, 1)]
    slices = [Slice(start, (1, *shape[1:]), (1,) * len(shape)) for start in starts]
    return tuple(a.reshape(a.apply(part, both), shape[1:]) for part in slices)


def _transform_pullback(
    a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], **options: Any
) -> Cotangents[V]:
    """Return the cotangents of both parts: the unscaled transform in the other direction."""
    function = options["function"]
    other = function[1:] if function.startswith("i") else f"i{function}"
    options |= {"function": other, "norm": NORMS[options["norm"]]}
    return _sides(a, a.apply(Extern("fft", tuple(options.items())), *_sides(a, g)))


def _linear(name: str, *facts: Any) -> ExternRow:
    return ExternRow(f"linalg_{name}", *facts)


_ROWS = (
    ExternRow(
        "sort", "elements in order along an axis", _same_type, _sort, derive.of_sort, _sort_into
    ),
    ExternRow(
        "argsort",
        "positions that sort along an axis",
        lambda x, **_: TensorType(i64, x.shape),
        _argsort,
        into=_argsort_into,
    ),
    ExternRow(
        "searchsorted",
        "where elements belong in a sorted vector",
        lambda x, values, **_: TensorType(i64, values.shape),
        _search,
    ),
    _linear("inv", "inverse matrices", _same_type, np.linalg.inv, derive.of_inverse),
    _linear(
        "cholesky", "lower Cholesky factors", _same_type, np.linalg.cholesky, derive.of_cholesky
    ),
    _linear("det", "determinants", _determinants, np.linalg.det, derive.of_determinant),
    _linear("solve", "solutions of linear systems", lambda a, b: b, _solve, derive.of_solution),
    _linear(
        "slogdet",
        "signs and logarithms of determinants",
        _factors("2"),
        lambda x: np.stack(np.linalg.slogdet(x), axis=-1),
        derive.of_signed_logarithm,
    ),
    _linear(
        "eigh",
        "eigenvalues and eigenvectors of symmetric matrices",
        _factors("n nn"),
        _eigh,
        derive.of_symmetric,
    ),
    _linear("qr", "Q and R", _factors("mk kn"), _qr, derive.of_orthogonal),
    _linear("qr_complete", "square Q and R", _factors("mm mn"), partial(_qr, mode="complete")),
    _linear("svd", "singular vectors and values", _factors("mk k kn"), _svd, derive.of_singular),
    _linear(
        "svd_full",
        "square singular vectors, and values",
        _factors("mm k nn"),
        partial(_svd, full=True),
    ),
    _linear("svdvals", "singular values", _factors("k"), _svdvals, derive.of_singular_values),
    ExternRow(
        "fft",
        "a Fourier transform of complex numbers",
        _transformed,
        _transform,
        _transform_pullback,
    ),
    ExternRow(
        "fft_real",
        "a Fourier transform with real operand or result",
        _transformed,
        _transform,
    ),
)
for _row in _ROWS:
    _into = _row.into and with_extern_errors(_row.name, _row.into)
    register(replace(_row, call=with_extern_errors(_row.name, _row.call), into=_into))


def joined(real: Buffer, imag: Buffer) -> Buffer:
    """Return the complex array of two parts."""
    dtype = c64 if real.dtype == np.float32 else c128
    z = np.empty(np.broadcast_shapes(real.shape, imag.shape), dtype.numpy)
    z.real, z.imag = real, imag
    return z


def stacked(z: Any, like: Buffer) -> Buffer:
    """Return both parts of a complex array, in the dtype of the operand."""
    return np.stack([z.real, z.imag]).astype(like.dtype, copy=False)


def call_stacked(name: str, *parts: Array, **options: Any) -> ComplexArray:
    """Record a call whose result is both parts of a complex array."""
    both = Array.of(call(name, *(p.node for p in parts), **options))
    return pair(both[0], both[1])


def _of_parts(row: ExternRow) -> ExternRow:
    """Return the row that calls a function of complex arrays with their parts."""
    name = f"complex_{row.name}"
    is_registered = row.name in EXTERNS  # then its errors are ours
    function = row.call if is_registered else with_extern_errors(name, row.call)

    def infer(*types: TensorType, **options: Any) -> TensorType:
        result = row.infer(*types[::2], **options)
        return TensorType(result.dtype, (2, *result.shape))

    def run(*parts: Buffer, **options: Any) -> Buffer:
        operands = [joined(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        with np.errstate(all="ignore"):
            return stacked(function(*operands, **options), parts[0])

    return ExternRow(name, f"{row.doc}, complex", infer, run)


def _reduced(x: TensorType, axis: Any, keepdims: bool) -> TensorType:
    shape = [(1 if k in axis else d) for k, d in enumerate(x.shape) if keepdims or k not in axis]
    return TensorType(x.dtype, tuple(shape))


for _row in (
    ExternRow(
        "unary", "a function of numbers", _same_type, lambda z, function: getattr(np, function)(z)
    ),
    ExternRow("power", "powers", _same_type, np.power),
    ExternRow("prod", "products over axes", _reduced, np.prod),
    ExternRow("cumprod", "running products", _same_type, np.cumprod),
    *[row for name, row in EXTERNS.items() if name.startswith("linalg_")],
):
    register(_of_parts(_row))
