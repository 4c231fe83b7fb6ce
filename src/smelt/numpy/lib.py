"""NumPy's `lib` with `stride_tricks.sliding_window_view` for arrays of ours.

>>> from smelt.frontends.array.creation import arange
>>> stride_tricks.sliding_window_view(arange(5), 3).tolist()
[[0, 1, 2], [1, 2, 3], [2, 3, 4]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import UnsupportedError
from smelt.frontends.array import creation as make
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import methods, searching
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.aliasing import own
from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray
from smelt.frontends.array.numpy_hints import missing_names
from smelt.numpy.library import as_ours, call
from smelt.numpy.manipulation import broadcast_arrays, broadcast_to
from smelt.numpy.small import or_numpy


def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Array:
    """Return all windows of an array, as new last dimensions.

    The result fuses with what reads it.
    """
    return methods.read_only_view(
        calls.array(x, "sliding_window_view"),
        lambda array: _windows(array, window_shape, axis),
        lambda data: np.lib.stride_tricks.sliding_window_view(data, window_shape, axis),  # pyright: ignore[reportCallIssue, reportArgumentType]
        "windows, which overlap" if writeable else "",
    )


def _windows(array: Array, window_shape: Any, axis: Any) -> Array:
    sizes = (window_shape,) if isinstance(window_shape, int) else tuple(window_shape)
    axes = range(array.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    for size, a in zip(sizes, axes, strict=True):
        a %= array.ndim
        count = array.shape[a] - size + 1
        index = make.arange(count)[:, None] + make.arange(size)[None, :]
        windows = searching.take(array, methods.ravel(index), axis=a)
        shape = (*array.shape[:a], count, size, *array.shape[a + 1 :])
        array = shapes.moveaxis(methods.reshape(windows, shape), a + 1, -1)
    return array


def as_strided(
    x: Any, shape: Any = None, strides: Any = None, subok: bool = False, writeable: bool = True
) -> Any:
    """Return elements by strides in bytes, as NumPy finds them; they cannot be written."""

    array = calls.array(x, "as_strided")
    if isinstance(array, ComplexArray):
        raise UnsupportedError("as_strided of complex numbers", hint="Pass x.real and x.imag.")
    place = own(array)

    def theirs(data: Any) -> Any:
        return np.lib.stride_tricks.as_strided(place.of(data), shape, strides)

    def of_elements(data: Any) -> Any:
        root = place.memory.shadow()
        if data.strides != root.strides:  # strides are those that NumPy's array has
            ordered = np.empty_like(root)
            ordered[...] = data
            data = ordered
        return theirs(data)

    owner = methods.base(array)
    return methods.read_only_view(
        array if owner is None else owner,
        lambda v: call("as_strided", of_elements, "strides of memory", (v,)),
        theirs,
        "what as_strided returns" if writeable else "",
    )


def _or_numpy(function: Any) -> Any:
    name = function.__name__
    theirs = getattr(np, name, None) or getattr(np.lib.stride_tricks, name)
    return staticmethod(or_numpy(name, theirs, as_ours, function))


class StrideTricks:
    """The functions of NumPy's `stride_tricks`."""

    sliding_window_view = _or_numpy(sliding_window_view)
    broadcast_to = _or_numpy(broadcast_to)
    broadcast_arrays = _or_numpy(broadcast_arrays)
    as_strided = _or_numpy(as_strided)


stride_tricks = StrideTricks()


def __getattr__(name: str) -> Any:
    """Return other names of NumPy's module; raise AttributeError with the nearest name."""
    if not hasattr(np.lib, name):
        _missing(name)
    return getattr(np.lib, name)


_missing = missing_names("smelt.numpy.lib", dir(np.lib))
