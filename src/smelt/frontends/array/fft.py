"""Fourier transforms, the `fft` extension of the array API standard.

NumPy computes the transforms: each is one library call in a plan, which reads and writes real and
imaginary parts.  Shifts and frequencies are array code.

>>> from smelt.frontends.array.creation import arange, zeros
>>> fft(arange(4) * 1.0), ifft(fft(arange(3) * 1.0)), rfft(arange(4) * 1.0).shape
(Array([ 6.+0.j, -2.+2.j, -2.+0.j, -2.-2.j]), Array([0.+0.j, 1.+0.j, 2.+0.j]), (3,))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array import complex_functions, manipulation
from smelt.frontends.array.array import Array, check_device, value
from smelt.frontends.array.complex_array import complex_array, is_complex_like, pair
from smelt.frontends.array.creation import arange, zeros
from smelt.frontends.array.dtypes import DTypeLike, astype, lookup_dtype
from smelt.frontends.array.library import (
    HALF_SPECTRA,
    NORMS,
    REAL_RESULTS,
    Norm,
    call,
    call_stacked,
)
from smelt.frontends.array.promote import cast
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.value import STATE
from smelt.frontends.array.views import as_integer, axes_of, axis_list, axis_of
from smelt.types.dtype import f32, f64


def _check_norm(what: str, norm: Any) -> Norm:
    if norm is None:
        return "backward"
    if norm not in NORMS:
        raise ArgumentError.of(what, "norm", norm, f"one of {', '.join(NORMS)}")
    return norm


def _parts(what: str, x: Any) -> tuple[Array, ...]:
    """Return the parts of an operand in float32 or float64; one if it is real.

    Raises DTypeError for a complex operand of a transform of real numbers.
    """
    if is_complex_like(x):
        z = complex_array(x)
        if what in HALF_SPECTRA:
            raise DTypeError(
                f"{what}({z.type_text}): it takes real numbers", hint="Use sm.fft.fft."
            )
        return z.parts
    node = value(x, what)
    real = Array.of(cast(node, node.type.dtype if node.type.dtype in (f32, f64) else f64))
    if what in HALF_SPECTRA:
        return (real,)
    return pair(real, 0.0).parts


def _run(what: str, x: Any, sizes: Sequence[int | None], axes: Any, norm: Any) -> Array:
    parts = _parts(what, x)
    norm = _check_norm(what, norm)
    places = tuple(axis_of(a, parts[0].ndim, what) for a in axis_list(axes))
    if len(set(places)) != len(places):
        raise ArgumentError.of(what, "axes", axes, "every axis at most once")
    sizes = tuple(None if n is None else as_integer(n, f"{what}(n)") for n in sizes)
    for k, (axis, n) in enumerate(zip(places, sizes, strict=True)):
        if n is not None and n < 1:
            raise ArgumentError(op=what, argument="n", value=n, expected="1 or more")
        extent = shape_of(parts[0].node)[axis]
        whole = what in REAL_RESULTS and k == len(places) - 1
        if n is None and extent == (1 if whole else 0):
            raise ArgumentError(f"{what}: axis {axis} has too few elements for a transform")
    if STATE.tapes:
        return _differentiable(what, parts, sizes, places, norm)
    options = {"function": what, "sizes": sizes, "axes": places, "norm": norm}
    name = "fft_real" if what in HALF_SPECTRA | REAL_RESULTS else "fft"
    if what in REAL_RESULTS:
        return Array.of(call(name, *(p.node for p in parts), **options))
    return call_stacked(name, *parts, **options)


def _one(what: str) -> Callable[..., Array]:
    def function(
        x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
    ) -> Array:
        return _run(what, x, (n,), axis, norm)

    return _named(function, what, "along one axis")


def _several(what: str) -> Callable[..., Array]:
    def function(
        x: Any,
        /,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: Norm = "backward",
    ) -> Array:
        rank = complex_array(x).ndim if is_complex_like(x) else value(x, what).type.rank
        if axes is None:
            axes = range(rank) if s is None else range(rank - len(s), rank)
        places = axis_list(axes)
        sizes = (None,) * len(places) if s is None else tuple(s)
        if len(sizes) != len(places):
            raise ArgumentError(f"{what}: {len(sizes)} sizes for {len(places)} axes")
        if not places:
            raise ArgumentError(f"{what}: there is no axis to transform")
        return _run(what, x, sizes, places, norm)

    return _named(function, what, "along several axes, by default all")


_DOCS: Final = {
    "fft": "discrete Fourier transform",
    "ifft": "inverse transform",
    "rfft": "transform of real numbers: frequencies 0 to n // 2",
    "irfft": "inverse of `rfft`, real: `n` is 2(m - 1) by default",
    "hfft": "transform of a signal with Hermitian symmetry, real",
    "ihfft": "inverse of `hfft`: the first half of the signal",
}


def _named(function: Any, name: str, where: str) -> Any:
    doc = _DOCS[name.removesuffix("n")]
    function.__name__ = function.__qualname__ = name
    size = "`n` crops or pads the axis" if where == "along one axis" else "`s` crops or pads axes"
    function.__doc__ = (
        f"Return the {doc.partition(':')[0]} {where}.\n\n"
        f'It is the {doc}.  {size}; `norm` is "backward", "ortho" or "forward".  The result\n'
        "is complex64 for float32 and complex64 (float32 if it is real), complex128 for others.\n"
        "\nRaises DTypeError, AxisError, ArgumentError for an empty axis."
    )
    return function


fft, ifft, rfft, irfft, hfft, ihfft = map(_one, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = map(_several, ("fftn", "ifftn", "rfftn", "irfftn"))


# Differentiation: only whole complex transforms have a derivative


def _differentiable(
    what: str, parts: tuple[Array, ...], sizes: Sequence[Any], axes: tuple[int, ...], norm: Norm
) -> Array:
    """Return a transform written with complex ones of unchanged sizes.

    A real result is that of the whole spectrum, whose other half mirrors what is stored of the last
    axis, once the other axes are transformed:

        irfft([a, b, c, d], n=6) = ifft([a.real, b, c, d.real, conj(c), conj(b)])
    """
    x: Any = pair(parts[0], parts[1] if len(parts) == 2 else 0.0)
    last = axes[-1]
    if what in REAL_RESULTS:
        if len(axes) > 1:
            x = _differentiable("ifftn", x.parts, sizes[:-1], axes[:-1], norm)
        extent = x.shape[last]
        n = 2 * (extent - 1) if sizes[-1] is None else sizes[-1]
        x = _resized(x, last, n // 2 + 1)
        middle = _along(x, last, slice(1, (n + 1) // 2))
        mirror = complex_functions.conj(manipulation.flip(middle, axis=last))
        ends = [pair(_along(x, last, slice(k, k + 1)).parts[0], 0.0) for k in (0, n // 2)]
        halves = [ends[0], middle, *ends[1 : 2 - n % 2], mirror]
        x = complex_functions.COMPLEX["concat"](halves, axis=last)
        sizes, axes = (None,), (last,)
    for axis, n in zip(axes, sizes, strict=True):
        x = x if n is None else _resized(x, axis, n)
    function = ("ifft" if what.startswith("i") else "fft") + ("n" if what.endswith("n") else "")
    options = {"function": function, "sizes": (None,) * len(axes), "axes": axes, "norm": norm}
    result: Any = call_stacked("fft", *x.parts, **options)
    if what in REAL_RESULTS:
        return result.parts[0]
    if what in HALF_SPECTRA:
        return _along(result, last, slice(0, x.shape[last] // 2 + 1))
    return result


def _along(z: Any, axis: int, part: slice) -> Any:
    return z[(*(slice(None),) * axis, part)]


def _resized(z: Any, axis: int, n: Any) -> Any:
    """Crop or pad an axis with zeros."""
    size = z.shape[axis]
    if size >= n:
        return z if size == n else _along(z, axis, slice(0, n))
    rest = tuple(n - size if k == axis else d for k, d in enumerate(z.shape))
    return complex_functions.COMPLEX["concat"]([z, zeros(rest, dtype=z.dtype)], axis=axis)


# Frequencies and shifts


def _frequencies(what: str, n: int, d: float, dtype: DTypeLike, device: Any, half: bool) -> Array:
    check_device(device)
    n = as_integer(n, what)
    if n < 1:
        raise ArgumentError(op=what, argument="n", value=n, expected="1 or more")
    target = f64 if dtype is None else lookup_dtype(dtype)
    if not target.is_float:
        raise DTypeError(f"{what}: frequencies are not {target.long}")
    positive = arange(n // 2 + 1 if half else (n - 1) // 2 + 1)
    parts = [positive] if half else [positive, arange(-(n // 2), 0)]
    return astype(manipulation.concat(parts) * (1.0 / (n * d)), target, copy=False)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike = None, device: Any = None) -> Array:
    """Return the frequencies of a transform of `n` samples at distance `d`.

    Raises ArgumentError for n below 1, DTypeError for a dtype of other numbers.
    """
    return _frequencies("fftfreq", n, d, dtype, device, half=False)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike = None, device: Any = None) -> Array:
    """Return the frequencies of `rfft` of `n` samples at distance `d`.

    Raises ArgumentError for n below 1, DTypeError for a dtype of other numbers.
    """
    return _frequencies("rfftfreq", n, d, dtype, device, half=True)


def _shifted(what: str, x: Any, axes: Any, sign: int) -> Array:
    array = complex_array(x) if is_complex_like(x) else Array.of(value(x, what))
    places = axes_of(axes, array.ndim, what)
    if not places:
        return array
    halves = tuple(array.shape[a] // 2 * sign for a in places)
    return manipulation.roll(array, halves, axis=places)


def fftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return the array with frequency zero in the middle.

    Raises AxisError.
    """
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Undo `fftshift`.

    Raises AxisError.
    """
    return _shifted("ifftshift", x, axes, -1)
