"""Fourier transforms with NumPy's names; NumPy computes those with complex results.

>>> abs(rfft([1.0, 2.0, 1.0, 0.0])).round(3).tolist(), fftfreq(4), fftshift([1, 2, 3])
([4.0, 2.0, 0.0], Array([ 0.  ,  0.25, -0.5 , -0.25]), Array([3, 1, 2]))
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from smelt.frontends.array import creation as make
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.array import Array
from smelt.frontends.array.numpy_hints import missing_names
from smelt.numpy.binding import library

LIBRARY: Final = """
    fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn
"""
"""Functions that NumPy computes."""

REASON: Final = "transforms have complex numbers"


def fftfreq(n: int, d: float = 1.0, device: Any = None) -> Array:
    """Return the frequencies of a transform of `n` samples at distance `d`."""
    half = (n - 1) // 2 + 1
    return shapes.concat([make.arange(half), make.arange(-(n // 2), 0)]) * (1.0 / (n * d))


def rfftfreq(n: int, d: float = 1.0, device: Any = None) -> Array:
    """Return the frequencies of a transform of `n` real samples at distance `d`."""
    return make.arange(n // 2 + 1) * (1.0 / (n * d))


def _shifted(x: Any, axes: Any, sign: int) -> Any:
    if isinstance(x, np.ndarray):  # complex, as transforms return
        return (np.fft.fftshift if sign > 0 else np.fft.ifftshift)(x, axes)
    array = calls.array(x, "fftshift")
    chosen = range(array.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    for axis in chosen:
        half = array.shape[axis] // 2
        array = shapes.roll(array, half if sign > 0 else -half, axis=axis)
    return array


def fftshift(x: Any, axes: Any = None) -> Any:
    """Return the array with frequency zero in the middle."""
    return _shifted(x, axes, 1)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """Undo `fftshift`."""
    return _shifted(x, axes, -1)


OURS: Final = ("fftfreq", "rfftfreq", "fftshift", "ifftshift")
"""Functions that are array code of ours."""

__all__ = [*LIBRARY.split(), *OURS]  # pyright: ignore[reportUnsupportedDunderAll]

for _name in LIBRARY.split():
    globals()[_name] = library(f"fft.{_name}", getattr(np.fft, _name), REASON)

__getattr__ = missing_names("smelt.numpy.fft", __all__)
