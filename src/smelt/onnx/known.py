"""Contents that are known before a call runs: constants, and integers computed from sizes.

A `Known` holds elements in NumPy: a plain array, or an array of objects whose elements are Python
numbers and `Size`s. Rules of operators compute with them as with arrays, so that what exporters
write as nodes (Shape, Gather, Concat, Reshape) becomes expressions over sizes.

>>> Known(np.array([2, 3])).ints()
[2, 3]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

import smelt as sm
from smelt.errors import OnnxLimitError
from smelt.frontends.array.array import Array
from smelt.frontends.array.number import Number
from smelt.types.dtype import from_numpy

MAX_CONTENT_ELEMENTS = 4096
"""Maximum elements of a content that rules compute with; larger ones are arrays."""


MAX_TABLE_ELEMENTS = 8 << 20
"""Maximum elements of a table that a rule computes in NumPy: positions, windows, weights."""


def check_count(count: float) -> None:
    """Raise OnnxLimitError for a table of more elements than rules compute."""
    if count > MAX_TABLE_ELEMENTS:
        raise OnnxLimitError(f"a table of {count} elements")


def object_array(shape: Sequence[int], elements: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Return an array of objects; NumPy's own constructor would read the value of a size."""
    result = np.empty(math.prod(shape), object)
    for k, x in enumerate(elements):
        result[k] = x
    return result.reshape(shape)


class Known:
    """Elements that are known; `dtype` is the tensor's element type."""

    __slots__ = ("_array", "dtype", "elements")

    def __init__(self, elements: Any, dtype: Any = None) -> None:
        elements = np.asarray(elements)
        if elements.dtype.kind == "U":
            elements = elements.astype(object)
        self.dtype: np.dtype[Any] = np.dtype(elements.dtype if dtype is None else dtype)
        is_number = elements.dtype == object and self.dtype != object
        if is_number and not any(isinstance(x, Number) for x in elements.flat):
            elements = elements.astype(self.dtype)
        elif not is_number:
            elements = elements.astype(self.dtype, copy=False)
        self.elements = elements
        self._array: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    @property
    def ndim(self) -> int:
        return self.elements.ndim

    @property
    def is_symbolic(self) -> bool:
        """Whether elements depend on sizes of the call."""
        return self.elements.dtype == object and self.dtype != object

    @property
    def is_content(self) -> bool:
        """Whether rules compute with the elements before a call runs."""
        return self.elements.size <= MAX_CONTENT_ELEMENTS

    def ints(self) -> list[Any]:
        """Return the elements as a flat list of numbers and sizes."""
        if self.is_symbolic:
            return list(self.elements.flat)
        return self.elements.reshape(-1).tolist()

    def item(self) -> Any:
        """Return the only element."""
        return self.ints()[0]

    def array(self) -> Array:
        """Return the elements as an array: constants of a program, or computed from sizes."""
        if self._array is not None:
            return self._array
        dtype = from_numpy(self.dtype)
        if self.is_symbolic:
            parts = [sm.full((1,), _plain(x), dtype=dtype) for x in self.elements.flat]
            return sm.reshape(sm.concat(parts) if len(parts) > 1 else parts[0], self.shape)
        flat = self.elements.reshape(-1)
        if (
            flat.size
            and flat.size <= MAX_CONTENT_ELEMENTS
            and self.dtype.kind in "bifu"
            and _is_uniform(flat)
        ):
            return sm.full(self.shape, flat[0].item(), dtype=dtype)
        self._array = sm.asarray(np.ascontiguousarray(self.elements).reshape(self.shape), copy=True)
        return self._array


Value: TypeAlias = Any
"""A value of the graph: Array, Known, a list (sequence) or None (an optional without a value)."""


def _plain(x: Any) -> Any:
    return x if isinstance(x, Number) else x.item() if isinstance(x, np.generic) else x


def _is_uniform(flat: np.ndarray[Any, Any]) -> bool:
    """Whether all elements have the same bits, and are finite numbers."""
    first = flat[0]
    return bool(np.isfinite(first)) and flat.tobytes() == first.tobytes() * flat.size


def known_of(elements: Any, like: Known) -> Known:
    """Return the result of a host rule; objects have the type of `like`."""
    if isinstance(elements, Known):
        return elements
    elements = np.asarray(elements) if not isinstance(elements, np.ndarray) else elements
    return Known(elements, like.dtype if elements.dtype == object else elements.dtype)


def on_elements(function: Callable[..., Any], *operands: np.ndarray[Any, Any]) -> Any:
    """Apply a function of Python numbers to elements, with operands broadcast."""
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    flat = [np.broadcast_to(x, shape).reshape(-1) for x in operands]
    columns = zip(*(list(x) for x in flat), strict=True)
    return object_array(shape, (function(*map(_plain, row)) for row in columns))
