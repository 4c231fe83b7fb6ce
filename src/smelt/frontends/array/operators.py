"""Define Python's operators on arrays, such as `x + y` and `x += y`.

`Operators` is the base class of `sm.Array`.  Each method applies an operator of `families.BINARY`
or `UNARY`; in-place forms give the array a new version.
"""

from __future__ import annotations

import sys
from typing import Any, Self, TypeVar

import numpy as np

from smelt.errors import ArgumentError, DTypeError, ShapeError
from smelt.frontends.array.at_once import pay
from smelt.frontends.array.complex_calls import ComplexOperand, call_complex, call_whole
from smelt.frontends.array.convert import operand_of_numpy
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.families import BINARY, UNARY, Binary
from smelt.frontends.array.from_lists import value_of_lists
from smelt.frontends.array.module_rules import follows_numpy
from smelt.frontends.array.number import Number
from smelt.frontends.array.product import matmul
from smelt.frontends.array.promote import cast, default_value, has_numpys_rules
from smelt.frontends.array.value import (
    STATE,
    Value,
    copied,
    is_at_once,
    leaf,
    private_data,
)
from smelt.frontends.array.views import shape_of
from smelt.types.dtype import counterpart

_ADD = BINARY["add"]
_SUBTRACT = BINARY["subtract"]
_MULTIPLY = BINARY["multiply"]
_DIVIDE = BINARY["divide"]
_FLOOR_DIVIDE = BINARY["floor_divide"]
_REMAINDER = BINARY["remainder"]
_POW = BINARY["pow"]
_BITWISE_AND = BINARY["bitwise_and"]
_BITWISE_OR = BINARY["bitwise_or"]
_BITWISE_XOR = BINARY["bitwise_xor"]
_BITWISE_LEFT_SHIFT = BINARY["bitwise_left_shift"]
_BITWISE_RIGHT_SHIFT = BINARY["bitwise_right_shift"]
_EQUAL = BINARY["equal"]
_NOT_EQUAL = BINARY["not_equal"]
_LESS = BINARY["less"]
_LESS_EQUAL = BINARY["less_equal"]
_GREATER = BINARY["greater"]
_GREATER_EQUAL = BINARY["greater_equal"]


class Operators:
    """Operator methods of `smelt.Array`; the other operand is an array or a Python number."""

    def __hash__(self) -> int:
        """Hash by identity inside `jit`, and as the number that it is at rank 0.

        Raises TypeError outside of `jit` for other ranks: their elements may change.
        """
        if self.node.scope is not None:
            return id(self)
        if self.node.type.shape:
            raise TypeError("an Array cannot be hashed: its elements may change; use x.tolist()")
        return hash(self._number("hash(x)"))

    def _number(self, use: str) -> Any:
        """Return the element of an array of rank 0 as a Python number."""
        raise NotImplementedError

    __slots__ = ("__weakref__", "node", "place")

    node: Value
    place: Any
    """Where a view, or an array that has views, is in memory: see `aliasing`; else None."""

    @staticmethod
    def of(node: Value) -> Any:
        """Return the array that stands for a recorded value."""
        raise NotImplementedError

    @property
    def is_small(self) -> bool:
        """Whether NumPy's users get this result as NumPy's own, unless it is a view."""
        node = self.node
        data = node.data
        if data is not None:
            return data.nbytes <= 8 * STATE.small_elements
        if node.scope is not None:
            return False
        nbytes: Any = node.type.nbytes
        return nbytes <= 8 * STATE.small_elements

    def computed(self) -> Any:
        """Return the elements, which may not be written, if they are computed, else None."""
        place = self.place
        if place is None:
            return self.node.current_buffer()
        return place.elements() if place.memory.order is None else None

    @staticmethod
    def unread() -> Any:
        """Return an array without a value, which has to get a place."""
        raise NotImplementedError

    def handed_out(self) -> Any:
        """Return this small result as NumPy's own array or scalar; see `small_results`."""
        raise NotImplementedError

    def replace_value(self, node: Value) -> None:
        """Make `node` the newest version of this array."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        return _forward(_ADD, self, other)

    def __radd__(self, other: Any) -> Self:
        return _reflected(_ADD, self, other)

    def __iadd__(self, other: Any) -> Self:
        return _in_place(_ADD, self, other)

    def __sub__(self, other: Any) -> Self:
        return _forward(_SUBTRACT, self, other)

    def __rsub__(self, other: Any) -> Self:
        return _reflected(_SUBTRACT, self, other)

    def __isub__(self, other: Any) -> Self:
        return _in_place(_SUBTRACT, self, other)

    def __mul__(self, other: Any) -> Self:
        return _forward(_MULTIPLY, self, other)

    def __rmul__(self, other: Any) -> Self:
        return _reflected(_MULTIPLY, self, other)

    def __imul__(self, other: Any) -> Self:
        return _in_place(_MULTIPLY, self, other)

    def __truediv__(self, other: Any) -> Self:
        return _forward(_DIVIDE, self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return _reflected(_DIVIDE, self, other)

    def __itruediv__(self, other: Any) -> Self:
        return _in_place(_DIVIDE, self, other)

    def __floordiv__(self, other: Any) -> Self:
        return _forward(_FLOOR_DIVIDE, self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return _reflected(_FLOOR_DIVIDE, self, other)

    def __ifloordiv__(self, other: Any) -> Self:
        return _in_place(_FLOOR_DIVIDE, self, other)

    def __mod__(self, other: Any) -> Self:
        return _forward(_REMAINDER, self, other)

    def __rmod__(self, other: Any) -> Self:
        return _reflected(_REMAINDER, self, other)

    def __imod__(self, other: Any) -> Self:
        return _in_place(_REMAINDER, self, other)

    def __pow__(self, other: Any) -> Self:
        return _forward(_POW, self, other)

    def __rpow__(self, other: Any) -> Self:
        return _reflected(_POW, self, other)

    def __ipow__(self, other: Any) -> Self:
        return _in_place(_POW, self, other)

    def __and__(self, other: Any) -> Self:
        return _forward(_BITWISE_AND, self, other)

    def __rand__(self, other: Any) -> Self:
        return _reflected(_BITWISE_AND, self, other)

    def __iand__(self, other: Any) -> Self:
        return _in_place(_BITWISE_AND, self, other)

    def __or__(self, other: Any) -> Self:
        return _forward(_BITWISE_OR, self, other)

    def __ror__(self, other: Any) -> Self:
        return _reflected(_BITWISE_OR, self, other)

    def __ior__(self, other: Any) -> Self:
        return _in_place(_BITWISE_OR, self, other)

    def __xor__(self, other: Any) -> Self:
        return _forward(_BITWISE_XOR, self, other)

    def __rxor__(self, other: Any) -> Self:
        return _reflected(_BITWISE_XOR, self, other)

    def __ixor__(self, other: Any) -> Self:
        return _in_place(_BITWISE_XOR, self, other)

    def __lshift__(self, other: Any) -> Self:
        return _forward(_BITWISE_LEFT_SHIFT, self, other)

    def __rlshift__(self, other: Any) -> Self:
        return _reflected(_BITWISE_LEFT_SHIFT, self, other)

    def __ilshift__(self, other: Any) -> Self:
        return _in_place(_BITWISE_LEFT_SHIFT, self, other)

    def __rshift__(self, other: Any) -> Self:
        return _forward(_BITWISE_RIGHT_SHIFT, self, other)

    def __rrshift__(self, other: Any) -> Self:
        return _reflected(_BITWISE_RIGHT_SHIFT, self, other)

    def __irshift__(self, other: Any) -> Self:
        return _in_place(_BITWISE_RIGHT_SHIFT, self, other)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return _forward(_EQUAL, self, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return _forward(_NOT_EQUAL, self, other)

    def __lt__(self, other: Any) -> Self:
        return _forward(_LESS, self, other)

    def __le__(self, other: Any) -> Self:
        return _forward(_LESS_EQUAL, self, other)

    def __gt__(self, other: Any) -> Self:
        return _forward(_GREATER, self, other)

    def __ge__(self, other: Any) -> Self:
        return _forward(_GREATER_EQUAL, self, other)

    def __matmul__(self, other: Any) -> Self:
        if other.__class__ is self.__class__ or other.__class__ is np.ndarray:
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            product = small_product(self, other, caller)
            if product is not None:
                return product
        if is_complex(other):
            return finished(call_complex("matmul", self, other))
        is_array = other.__class__ is self.__class__ or other.__class__ is np.ndarray
        if not is_array and not isinstance(operand(other), Value):
            return NotImplemented
        return finished(self.of(_apply(matmul, self, other)))

    def __rmatmul__(self, other: Any) -> Self:
        if is_complex(other):
            return finished(call_complex("matmul", other, self))
        x = operand(other)
        if not isinstance(x, Value):
            return NotImplemented
        return finished(self.of(matmul(x, self.node)))

    def __imatmul__(self, other: Any) -> Self:
        y = operand(other)
        if not isinstance(y, Value):
            return NotImplemented
        return _replace(self, "matmul", matmul(self.node, y))

    def __neg__(self) -> Self:
        return finished(keep_order(self.of(_apply(UNARY["negative"], self)), self))

    def __pos__(self) -> Self:
        node = self.node if self.node.scope is not None else copied(self.node)
        return finished(keep_order(self.of(node), self))

    def __abs__(self) -> Self:
        return finished(keep_order(self.of(_apply(UNARY["abs"], self)), self))

    def __invert__(self) -> Self:
        return finished(keep_order(self.of(_apply(UNARY["bitwise_invert"], self)), self))


T = TypeVar("T", bound=Operators)


def finished(result: Any, depth: int = 2) -> Any:
    """Return a result to the caller at a depth of frames: small ones as NumPy's by its rules."""
    if STATE.small_elements and isinstance(result, Operators) and result.is_small:
        names = sys._getframe(depth).f_globals  # pyright: ignore[reportPrivateUsage]
        return result.handed_out() if follows_numpy(names) else result
    return result


def _call_complex(name: str, *args: Any) -> Any:
    """Call a function with a complex operand: as a whole where the user has NumPy's rules."""
    names = sys._getframe(3).f_globals  # pyright: ignore[reportPrivateUsage]
    is_whole = STATE.small_elements > 0 and follows_numpy(names)
    return (call_whole if is_whole else call_complex)(name, *args)


def _forward(family: Binary, x: T, other: Any) -> T:
    kind = other.__class__
    if kind is x.__class__:
        if x.place is None and other.place is None:
            return finished(x.of(family(x.node, other.node)), 3)
        return finished(keep_order(x.of(_apply(family, x, other)), x, other), 3)
    if kind is float or kind is int:
        if x.place is None:
            return finished(x.of(family(x.node, other)), 3)
        return finished(keep_order(x.of(_apply(family, x, other)), x), 3)
    if is_complex(other):
        return finished(_call_complex(family.what, x, other), 3)
    # NumPy's scalars have their dtype, which Python's floats have not.
    if kind is np.float64 and follows_numpy(sys._getframe(2).f_globals):  # pyright: ignore[reportPrivateUsage]
        other = np.asarray(other)
    if other.__class__ is np.ndarray and counterpart(other.dtype) is not None:
        return finished(keep_order(x.of(_apply(family, x, other)), x, other), 3)
    y = operand(other)
    return y if y is NotImplemented else finished(keep_order(x.of(family(x.node, y)), x, other), 3)


def _apply(function: Any, *operands: Any) -> Value:
    """Apply a function of values to arrays, numbers and NumPy's arrays.

    Where the operator is computed at once, views are read in their owner's memory, and NumPy's
    arrays in theirs.
    """
    if not is_at_once():
        return function(*map(_recorded_operand, operands))
    values: list[Any] = []
    is_private = True
    for x in operands:
        if isinstance(x, Operators):
            place = x.place
            if place is not None:
                is_private = False
                x = place.operand(x)
            else:
                x = x.node
        elif isinstance(x, (np.ndarray, np.generic)):
            is_private = False
            x = leaf(np.asarray(x)) if _is_native(x) else operand_of_numpy(x)
        values.append(x)
    result: Value = function(*values)
    if is_private or result.data is not None:
        return result
    return function(*map(_recorded_operand, operands))  # parts of arrays, or copies


def _recorded_operand(x: Any) -> Any:
    if isinstance(x, (np.ndarray, np.generic)):
        return operand_of_numpy(x)
    return operand(x)


def apply_ufunc(ufunc: Any, x: Any, y: Any) -> Any:
    """Apply a ufunc to NumPy's array or scalar and an array; return None for others."""
    function = _OF_UFUNC.get(ufunc)
    if function is None or not isinstance(y, Operators):
        return None
    result = y.of(_apply(function, x, y))
    return result if function is matmul else keep_order(result, y)


_OF_UFUNC: dict[Any, Any] = {
    np.matmul: matmul,
    **{getattr(np, what): family for what, family in BINARY.items() if hasattr(np, what)},
}
"""Functions of values by NumPy's ufunc."""


def small_product(x: Any, y: Any, frame: Any) -> Any:
    """Return a small product of matrices in memory as NumPy's own, None for others.

    Both are real arrays of ours, or arrays of NumPy.  `frame` runs the code that asks.
    """
    if not (STATE.small_elements and is_at_once() and follows_numpy(frame.f_globals)):
        return None
    a, b = _elements_in_memory(x), _elements_in_memory(y)
    if a is None or b is None or a.dtype is not b.dtype or a.dtype.char not in "fd":
        return None
    if not (0 < a.ndim < 3 and 0 < b.ndim < 3 and a.shape[-1] == b.shape[0] and a.size and b.size):
        return None
    rows, columns = a.size // a.shape[-1], b.size // b.shape[0]
    if rows * columns * a.itemsize > 8 * STATE.small_elements:
        return None
    pay(tuple([v.node for v in (x, y) if isinstance(v, Operators) and v.place is None]))
    return np.matmul(a, b)


def _elements_in_memory(x: Any) -> Any:
    """Return the elements of an array if they are computed, else None."""
    return x if x.__class__ is np.ndarray else x.computed()


def _is_native(x: Any) -> bool:
    dtype = x.dtype
    return dtype.char in "?bBhHiIlLqQefd" and dtype.isnative


def _reflected(family: Binary, x: T, other: Any) -> T:
    if other.__class__ is float or other.__class__ is int:
        return finished(keep_order(x.of(_apply(family, other, x)), x), 3)
    if is_complex(other):
        return finished(_call_complex(family.what, other, x), 3)
    y = operand(other)
    return y if y is NotImplemented else finished(keep_order(x.of(family(y, x.node)), x, other), 3)


def keep_order(result: T, *operands: Any) -> T:
    """Give the result of an elementwise function the order in memory that NumPy's has.

    It is the order of rows unless an operand is a transposed view, or was computed from one.
    """
    for x in operands:
        place = x.place if isinstance(x, Operators) else None
        if place is not None and place.is_permuted:
            place.keep_order(result, operands)
            break
    return result


def _in_memory(family: Binary, x: Any, other: Any) -> bool:
    """Compute an in-place operator where the elements are, if that is possible."""
    if not is_at_once():
        return False
    kind = other.__class__
    is_array = kind is x.__class__
    if not (is_array or kind is float or kind is int):
        return False
    place = x.place
    if place is not None and place.links:  # the rest of the memory stays where it is
        evaluate(place.memory.node)
        if is_array and other.place is None:
            evaluate(other.node)
    if is_array and other.place is None and other.node.data is None:
        return False
    if place is None:
        node = x.node
        if not node.type.shape or private_data(node, 2) is None:  # the array's reference, and this
            return False
    else:
        target = place.writeable()
        if target is None or not target.ndim:
            return False
        node = leaf(target)
    if is_array:
        other = other.node if other.place is None else other.place.operand(other)
    return family.into(node, other, place is not None)


def _in_place(family: Binary, x: T, other: Any) -> T:
    if _in_memory(family, x, other):
        return x
    is_view = x.place is not None and x.place.links
    if not (x.node.type.shape or is_view):  # a sum or an element, which may have other names
        return finished(_forward(family, x, other), 3)
    try:
        y = operand(other)
    except ComplexOperand:
        raise DTypeError(
            f"{family.what} in place: a complex result does not fit into {x.node.type_text}"
        ) from None
    if y is NotImplemented and isinstance(other, (np.ndarray, np.generic)):
        operand_of_numpy(other)  # raises: x keeps its dtype
    return y if y is NotImplemented else _replace(x, family.what, family(x.node, y))


def is_complex(x: Any) -> bool:
    """Return whether an operand is a complex number or a complex array of NumPy."""
    return isinstance(x, complex) or (
        isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "c"
    )


def operand(x: Any) -> Any:
    """Return the other operand of an operator: a value, a number, or NotImplemented.

    By NumPy's rules its operators take what has a dtype that only NumPy has, as dates.
    Raises ComplexOperand for complex numbers and arrays.
    """
    if isinstance(x, Operators):
        return x.node
    if isinstance(x, (bool, int, float, Number)):
        return operand_of_numpy(x) if x.__class__ is np.float64 and has_numpys_rules() else x
    if isinstance(x, complex):
        raise ComplexOperand("complex numbers for this function")
    if isinstance(x, (np.ndarray, np.generic)):
        is_numpys = counterpart(x.dtype) is None and has_numpys_rules()
        return NotImplemented if is_numpys else operand_of_numpy(x)
    if isinstance(x, (list, tuple, range)):
        return list_operand(x)
    return NotImplemented


def list_operand(x: Any) -> Value:
    """Return nested lists as a value; numbers and arrays may be mixed.

    Raises ArgumentError for lists of different lengths, DTypeError for other elements.
    """
    return value_of_lists(x, _item_operand)


def _item_operand(item: Any) -> Value:
    if isinstance(item, (list, tuple, range)):
        return list_operand(item)
    result = operand(item)
    if result is NotImplemented:
        raise ArgumentError(
            op="asarray", argument="an item", value=type(item).__name__, expected="a number"
        )
    return result if isinstance(result, Value) else default_value(result, "asarray")


_RANK: dict[str, int] = {"bool": 0, "uint": 1, "int": 2, "float": 3}


def _replace(x: T, what: str, result: Value) -> T:
    """Make `result` the new version of `x`, cast to the dtype of x.

    Raises ShapeError if the result has another shape, DTypeError if its kind does not fit.
    """
    old = x.node.type
    if not _has_same_shape(result, x.node):
        raise ShapeError(
            op=what,
            operands=f"{x.node.type_text}, ...",
            reason=f"in place the result {result.type_text} would not have the array's shape",
        )
    if _RANK[result.type.dtype.kind] > _RANK[old.dtype.kind]:
        raise DTypeError(
            f"{what} in place: the result {result.type_text} does not fit into {x.node.type_text}"
        )
    x.replace_value(cast(result, old.dtype))
    return x


def _has_same_shape(result: Value, x: Value) -> bool:
    """Return whether the shapes are equal; a recording guards the equality of symbolic sizes."""
    scope, shapes = result.scope or x.scope, (shape_of(result), shape_of(x))
    if scope is None or len(shapes[0]) != len(shapes[1]):
        return shapes[0] == shapes[1]
    return all(scope.same(a, b) for a, b in zip(*shapes, strict=True))
