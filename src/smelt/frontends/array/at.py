"""`x.at[key]`: a copy of an array with some elements changed, as JAX spells it.

`x[key] = value` gives the name x a new version; `x.at[key].set(value)` is that version, and x
stays.  The others join a value with what is there.  Where positions are named several times,
`x[i] = x[i] + 1` keeps one of the sums; `x.at[i].add(1)` makes all of them.

>>> import smelt as sm
>>> sm.zeros(3).at[sm.asarray([0, 2, 2])].add(1)
Array([1., 0., 2.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smelt.errors import DTypeError
from smelt.frontends.array.assign import update
from smelt.frontends.array.families import BINARY, UNARY
from smelt.frontends.array.promote import number
from smelt.frontends.array.subscript import get
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import expand, shape_of
from smelt.types.dtype import bool_

if TYPE_CHECKING:
    from smelt.frontends.array.array import Array

__all__ = ["At", "Place"]


class At:
    """What `x.at` is; indexing it gives a `Place`."""

    __slots__ = ("_array", "_read")

    def __init__(self, array: Array, read: Callable[[Any, str], Any]) -> None:
        self._array = array
        self._read = read

    def __getitem__(self, key: Any) -> Place:
        return Place(self._array, key, self._read)


class Place:
    """Elements of an array, to be changed in a copy.

    Keys are those of `x[key]`; a boolean mask takes one value.  Values broadcast to the elements
    and are brought to the array's dtype, which may not change their kind.  Positions that are named
    several times are joined in their order; of `set` the last value stays.  A position outside is
    an error.  All have derivatives; equal extremes share theirs evenly.

    Raises ShapeError, DTypeError, IndexRangeError and OutsideError.
    """

    __slots__ = ("_array", "_key", "_read")

    def __init__(self, array: Array, key: Any, read: Callable[[Any, str], Any]) -> None:
        self._array = array
        self._key = key
        self._read = read

    def get(self) -> Array:
        """The elements: `x[key]`."""
        return self._array.of(get(self._array.node, self._key))

    def set(self, value: Any, /) -> Array:
        """A copy with `value` there."""
        return self._updated("set", "put", value)

    def add(self, value: Any, /) -> Array:
        """A copy with `value` added there."""
        return self._updated("add", "add", value)

    def subtract(self, value: Any, /) -> Array:
        """A copy with `value` subtracted there."""
        node = self._operand("subtract", value)
        if node.type.dtype is bool_:
            raise DTypeError(f"x.at[key].subtract: {node.told} cannot be subtracted")
        minus = UNARY["negative"](node)  # of unsigned integers too: sums wrap around
        return self._updated("subtract", "add", self._array.of(minus))

    def multiply(self, value: Any, /) -> Array:
        """A copy with what is there multiplied by `value`."""
        return self._updated("multiply", "mul", value)

    mul = multiply

    def divide(self, value: Any, /) -> Array:
        """A copy with what is there divided by the product of the values of each place, floats."""
        x = self._array.node
        if not x.type.dtype.is_float:
            raise DTypeError(f"x.at[key].divide: {x.told} has no fractions")
        ones = expand(number(1.0, x.type.dtype, "divide"), shape_of(x))
        below = update(ones, self._key, self._operand("divide", value), "mul", "x.at[key].divide")
        return self._array.of(BINARY["divide"](x, below))

    def max(self, value: Any, /) -> Array:
        """A copy with the greater of `value` and what is there; NaN if there is one."""
        return self._updated("max", "max", value)

    def min(self, value: Any, /) -> Array:
        """A copy with the lesser of `value` and what is there; NaN if there is one."""
        return self._updated("min", "min", value)

    def _operand(self, name: str, value: Any) -> Value:
        found = self._read(value, f"x.at[key].{name}")
        if isinstance(found, Value):
            return found
        x = self._array.node
        if isinstance(found, float) and not x.type.dtype.is_float:
            raise DTypeError(f"x.at[key].{name}({found}): {x.told} does not hold it")
        return number(found, x.type.dtype, f"x.at[key].{name}")

    def _updated(self, name: str, how: str, value: Any) -> Array:
        v = self._operand(name, value)
        return self._array.of(update(self._array.node, self._key, v, how, f"x.at[key].{name}"))
