"""Fourier transforms with NumPy's names and arguments, over those of `sm.fft`.

>>> abs(rfft([1.0, 2.0, 1.0, 0.0])).round(3).tolist(), fftfreq(4), fftshift([1, 2, 3])
([4.0, 2.0, 0.0], Array([ 0.  ,  0.25, -0.5 , -0.25]), Array([3, 1, 2]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from smelt.frontends.array import fft as ours
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.array import Array
from smelt.frontends.array.numpy_hints import missing_names
from smelt.numpy.binding import bound

OURS: Final = """
    fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftfreq
    rfftfreq fftshift ifftshift
"""
"""Functions that are recorded; transforms are calls of NumPy in a plan."""

__all__ = OURS.split()  # pyright: ignore[reportUnsupportedDunderAll]


def fftfreq(n: int, d: float = 1.0, device: Any = None) -> Array:
    """Return the frequencies of a transform of `n` samples at distance `d`."""
    return ours.fftfreq(n, d=d, device=device)


def rfftfreq(n: int, d: float = 1.0, device: Any = None) -> Array:
    """Return the frequencies of a transform of `n` real samples at distance `d`."""
    return ours.rfftfreq(n, d=d, device=device)


def fftshift(x: Any, axes: Any = None) -> Any:
    """Return the array with frequency zero in the middle."""
    return ours.fftshift(calls.array(x, "fftshift"), axes=axes)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """Undo `fftshift`."""
    return ours.ifftshift(calls.array(x, "ifftshift"), axes=axes)


def _one(name: str) -> Callable[..., Any]:
    run: Any = getattr(ours, name)

    def function(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
        return calls.store(run(calls.array(a, name), n=n, axis=axis, norm=norm), out)

    return calls.named(function, name, f"Return `{name}` along one axis; arguments as in NumPy.")


def _several(name: str) -> Callable[..., Any]:
    two = name.endswith("2")
    run: Any = getattr(ours, name.replace("2", "n"))

    def function(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
        array = calls.array(a, name)
        axes = (-2, -1) if two and axes is None else axes
        return calls.store(run(array, s=s, axes=axes, norm=norm), out)

    return calls.named(function, name, f"Return `{name}` along axes; arguments as in NumPy.")


for _name in OURS.split():
    if _name in ("fftfreq", "rfftfreq", "fftshift", "ifftshift"):
        continue
    globals()[_name] = (_several if _name[-1] in "n2" else _one)(_name)
for _name in OURS.split():
    globals()[_name] = bound(f"fft.{_name}", globals()[_name], getattr(np.fft, _name))

__getattr__ = missing_names("smelt.numpy.fft", __all__)
