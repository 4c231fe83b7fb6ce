"""Provide `x.at[key]`: copies of an array with some elements changed.

The interface is JAX's.  `x[key] = value` gives the name x a new version; `x.at[key].set(value)`
returns that version and leaves x as it is.  The other methods combine a value with the present
element.  Where a position is named several times, `x[i] = x[i] + 1` keeps one of the sums;
`x.at[i].add(1)` adds each time.

>>> import smelt as sm
>>> sm.zeros(3).at[sm.asarray([0, 2, 2])].add(1)
Array([1., 0., 2.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from smelt.errors import DTypeError
from smelt.frontends.array.assign import update
from smelt.frontends.array.families import BINARY, UNARY
from smelt.frontends.array.numpy_hints import missing_attribute
from smelt.frontends.array.promote import number
from smelt.frontends.array.subscript import get
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import expand, shape_of
from smelt.types.dtype import bool_

if TYPE_CHECKING:
    from smelt.frontends.array.array import Array


class At:
    """Type of `x.at`; indexing it gives a `Place`."""

    __slots__ = ("_array", "_read")

    def __init__(self, array: Array, read: Callable[[Any, str], Any]) -> None:
        self._array = array
        self._read = read

    def __getitem__(self, key: Any) -> Place:
        return Place(self._array, key, self._read)


class Place:
    """Elements of an array that are to be changed in a copy.

    Keys are those of `x[key]`; a boolean mask takes one value.  Values broadcast to the selected
    elements and are cast to the array's dtype, which may not change their kind.  Positions that are
    named several times are combined in their order; with `set` the last value wins.  All methods
    have derivatives; equal extremes share theirs evenly.

    Raises ShapeError, DTypeError, IndexRangeError for positions known to be out of bounds, and
    OutsideError, at run time, for others.
    """

    __slots__ = ("_array", "_key", "_read")

    def __init__(self, array: Array, key: Any, read: Callable[[Any, str], Any]) -> None:
        self._array = array
        self._key = key
        self._read = read

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError with the nearest name."""
        raise missing_attribute("x.at[key]", name, type(self))

    def get(self) -> Array:
        """Return the elements: `x[key]`."""
        return self._array.of(get(self._array.node, self._key))

    def set(self, value: Any, /) -> Array:
        """Return a copy with `value` at the selected elements."""
        return self._updated("set", "put", value)

    def add(self, value: Any, /) -> Array:
        """Return a copy with `value` added to the selected elements."""
        return self._updated("add", "add", value)

    def subtract(self, value: Any, /) -> Array:
        """Return a copy with `value` subtracted from the selected elements.

        Raises DTypeError for booleans.
        """
        node = self._operand("subtract", value)
        if node.type.dtype is bool_:
            raise DTypeError(f"x.at[key].subtract: {node.type_text} cannot be subtracted")
        minus = UNARY["negative"](node)  # unsigned integers too: sums wrap around
        return self._updated("subtract", "add", self._array.of(minus))

    def multiply(self, value: Any, /) -> Array:
        """Return a copy with the selected elements multiplied by `value`."""
        return self._updated("multiply", "mul", value)

    mul = multiply

    def divide(self, value: Any, /) -> Array:
        """Return a copy with the selected elements divided by `value`.

        An element that is named several times is divided by the product of its values.  Raises
        DTypeError unless x is an array of floats.
        """
        x = self._array.node
        if not x.type.dtype.is_float:
            raise DTypeError(f"x.at[key].divide: {x.type_text} has no fractions")
        ones = expand(number(1.0, x.type.dtype, "divide"), shape_of(x))
        below = update(ones, self._key, self._operand("divide", value), "mul", "x.at[key].divide")
        return self._array.of(BINARY["divide"](x, below))

    def max(self, value: Any, /) -> Array:
        """Return a copy with the maximum of `value` and each selected element.

        NaN if either is NaN.
        """
        return self._updated("max", "max", value)

    def min(self, value: Any, /) -> Array:
        """Return a copy with the minimum of `value` and each selected element.

        NaN if either is NaN.
        """
        return self._updated("min", "min", value)

    def _operand(self, name: str, value: Any) -> Value:
        operand = self._read(value, f"x.at[key].{name}")
        if isinstance(operand, Value):
            return operand
        x = self._array.node
        if isinstance(operand, float) and not x.type.dtype.is_float:
            raise DTypeError(f"x.at[key].{name}({operand}): {x.type_text} does not hold it")
        return number(operand, x.type.dtype, f"x.at[key].{name}")

    def _updated(self, name: str, how: str, value: Any) -> Array:
        v = self._operand(name, value)
        return self._array.of(update(self._array.node, self._key, v, how, f"x.at[key].{name}"))
