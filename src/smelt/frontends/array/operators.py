"""Define Python's operators on arrays, such as `x + y` and `x += y`.

`Operators` is the base class of `sm.Array`.  Each method applies an operator of `families.BINARY`
or `UNARY`; in-place forms give the array a new version.  An operand may be nested lists.

>>> from smelt.frontends.array.convert import from_host
>>> value_of_lists([[1, 2], [3, 4]], from_host).type
TensorType(dtype=i64, shape=(2, 2))

Small results are handed to NumPy's users as NumPy's own arrays and scalars.  A result as small as
`SMELT_SMALL_ELEMENTS` of float64, which `smelt.numpy` sets as the limit, is computed when it is
made: a mean is a `numpy.float64`, a sum over rows a `numpy.ndarray`.  The code that asks has
NumPy's rules (see `promote`); recordings and the array API front end keep arrays of ours.

Where operators wait, one program computes the result and every array that waits for an operator
behind it, which is stored.  What waits for others keeps waiting, so that it may fuse with its
readers.  A full reduction ends a pass over memory in any case: its readers begin the next one.

>>> hand_out((1.5, None), ())
(1.5, None)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from smelt.errors import ArgumentError, DTypeError, RangeError, ShapeError
from smelt.frontends.array.at_once import pay
from smelt.frontends.array.complex_calls import ComplexOperand, call_complex, call_whole
from smelt.frontends.array.convert import operand_of_numpy, usable
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.families import BINARY, UNARY, Binary
from smelt.frontends.array.memory import release
from smelt.frontends.array.number import Number
from smelt.frontends.array.product import matmul
from smelt.frontends.array.promote import (
    cast,
    default_value,
    follows_numpy,
    has_numpys_rules,
    number,
)
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.value import (
    STATE,
    Value,
    copied,
    foreign,
    is_at_once,
    leaf,
    private_data,
)
from smelt.frontends.array.views import concat, reshape
from smelt.types.dtype import DType, counterpart

_NUMBERS = frozenset({bool, int, float})
"""Types of almost all items of lists, for which nothing else is tested."""


def value_of_lists(obj: Any, convert: Callable[[Any], Value], target: DType | None = None) -> Value:
    """Return the value of nested lists, stacked by `convert` if they hold recorded values.

    `target` is the dtype of the result, None for that of the numbers.  Raises ArgumentError for
    lists of different lengths, RangeError for a number that `target` cannot hold, DTypeError for
    elements that are not numbers.
    """
    if isinstance(obj, (list, tuple)) and _holds_values(obj):
        parts = [convert(item) for item in obj]
        parts = [reshape(p, (1, *shape_of(p))) for p in parts]
        return concat(parts, 0, "asarray")
    try:
        data = np.asarray(obj)
        if target is not None and target.is_integer and data.dtype.kind in "iufO":
            data = _exact_integers(obj, data, target)
    except RangeError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise _ragged(obj) or ArgumentError(f"asarray: {error}") from error
    data = usable(data)
    node = leaf(data) if data.base is None else foreign(data)  # an object with a buffer
    return cast(node, target) if target is not None else node


def _ragged(obj: Any) -> ArgumentError | None:
    """Return the error for nested lists of different lengths, or None if they agree."""
    level, paths = [obj], [""]
    while level:
        sizes = [len(x) if isinstance(x, (list, tuple)) else None for x in level]
        for path, size in zip(paths, sizes, strict=True):
            if size != sizes[0]:
                lengths = ["no list" if n is None else f"length {n}" for n in (sizes[0], size)]
                return ArgumentError(
                    op="asarray",
                    argument="obj",
                    value=f"lists ({lengths[0]} at obj{paths[0]}, {lengths[1]} at obj{path})",
                    expected="lists of one length at each depth",
                    hint="Fill the shorter ones up, or make an array of each and sm.concat them.",
                )
        if sizes[0] is None:
            return None
        paths = [f"{p}[{k}]" for p in paths for k in range(sizes[0])]
        level = [x for one in level for x in one]
    return None


def _exact_integers(obj: Any, default_data: Any, target: DType) -> Any:
    """Convert nested lists to the integer dtype `target` without rounding.

    `default_data` is what NumPy makes of them without a dtype, where large integers may have become
    float64.  Raises RangeError for a number that the dtype cannot hold.
    """
    failure: Exception | None = None
    try:
        with np.errstate(invalid="ignore"):
            converted = np.asarray(obj, dtype=target.numpy)
        if default_data.dtype.kind == "O" or (converted == np.trunc(default_data)).all():
            return converted  # NumPy truncated no fraction
    except (ValueError, OverflowError) as error:
        failure = error
    for item in default_data.ravel().tolist():
        number(item, target, "asarray")
    raise ArgumentError(f"asarray: {failure}") from failure


def _holds_values(obj: Any) -> bool:
    """Return whether arrays of ours, sizes or number arguments are among the items."""
    return any(
        item.__class__ not in _NUMBERS
        and (
            hasattr(item, "scope")
            or isinstance(getattr(item, "node", None), Value)
            or (isinstance(item, (list, tuple)) and _holds_values(item))
        )
        for item in obj
    )


_EQUAL, _NOT_EQUAL = BINARY["equal"], BINARY["not_equal"]

T = TypeVar("T", bound="Operators")
Method = Callable[[T, Any], T]
"""Operator with another operand."""


def _forward(what: str) -> Method[T]:
    family = BINARY[what]
    return lambda x, other: x.apply_forward(family, other)


def _reflected(what: str) -> Method[T]:
    family = BINARY[what]
    return lambda x, other: x.apply_reflected(family, other)


def _in_place(what: str) -> Method[T]:
    family = BINARY[what]
    return lambda x, other: x.apply_in_place(family, other)


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

    __add__, __radd__, __iadd__ = _forward("add"), _reflected("add"), _in_place("add")
    __sub__, __rsub__ = _forward("subtract"), _reflected("subtract")
    __isub__ = _in_place("subtract")
    __mul__, __rmul__ = _forward("multiply"), _reflected("multiply")
    __imul__ = _in_place("multiply")
    __truediv__, __rtruediv__ = _forward("divide"), _reflected("divide")
    __itruediv__ = _in_place("divide")
    __floordiv__, __rfloordiv__ = _forward("floor_divide"), _reflected("floor_divide")
    __ifloordiv__ = _in_place("floor_divide")
    __mod__, __rmod__ = _forward("remainder"), _reflected("remainder")
    __imod__ = _in_place("remainder")
    __pow__, __rpow__, __ipow__ = _forward("pow"), _reflected("pow"), _in_place("pow")
    __and__, __rand__ = _forward("bitwise_and"), _reflected("bitwise_and")
    __iand__ = _in_place("bitwise_and")
    __or__, __ror__ = _forward("bitwise_or"), _reflected("bitwise_or")
    __ior__ = _in_place("bitwise_or")
    __xor__, __rxor__ = _forward("bitwise_xor"), _reflected("bitwise_xor")
    __ixor__ = _in_place("bitwise_xor")
    __lshift__, __rlshift__ = _forward("bitwise_left_shift"), _reflected("bitwise_left_shift")
    __ilshift__ = _in_place("bitwise_left_shift")
    __rshift__, __rrshift__ = _forward("bitwise_right_shift"), _reflected("bitwise_right_shift")
    __irshift__ = _in_place("bitwise_right_shift")
    __lt__, __le__ = _forward("less"), _forward("less_equal")
    __gt__, __ge__ = _forward("greater"), _forward("greater_equal")

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self.apply_forward(_EQUAL, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self.apply_forward(_NOT_EQUAL, other)

    def apply_forward(self, family: Binary, other: Any) -> Self:
        """Return `self op other`, for the caller of the method that calls this."""
        kind = other.__class__
        if kind is self.__class__:
            if self.place is None and other.place is None:
                return finished(self.of(family(self.node, other.node)), 3)
            return finished(keep_order(self.of(_apply(family, self, other)), self, other), 3)
        if kind is float or kind is int:
            if self.place is None:
                return finished(self.of(family(self.node, other)), 3)
            return finished(keep_order(self.of(_apply(family, self, other)), self), 3)
        if is_complex(other):
            return finished(call_operator(family.what, self, other), 3)
        # NumPy's scalars have their dtype, which Python's floats have not.
        if kind is np.float64 and follows_numpy(sys._getframe(2).f_globals):  # pyright: ignore[reportPrivateUsage]
            other = np.asarray(other)
        if other.__class__ is np.ndarray and counterpart(other.dtype) is not None:
            return finished(keep_order(self.of(_apply(family, self, other)), self, other), 3)
        if isinstance(other, Operators):
            return NotImplemented  # a complex array: its reflected method computes the result
        y = operand(other)
        if y is NotImplemented:
            return y
        return finished(keep_order(self.of(family(self.node, y)), self, other), 3)

    def apply_reflected(self, family: Binary, other: Any) -> Self:
        """Return `other op self`."""
        if other.__class__ is float or other.__class__ is int:
            return finished(keep_order(self.of(_apply(family, other, self)), self), 3)
        if is_complex(other):
            return finished(call_operator(family.what, other, self), 3)
        y = operand(other)
        if y is NotImplemented:
            return y
        return finished(keep_order(self.of(family(y, self.node)), self, other), 3)

    def apply_in_place(self, family: Binary, other: Any) -> Self:
        """Compute `self op= other` and return the array to bind."""
        if _in_memory(family, self, other):
            return self
        is_view = self.place is not None and self.place.links
        if not (self.node.type.shape or is_view):  # a sum or an element, which may have other names
            return finished(self.apply_forward(family, other), 3)
        try:
            y = operand(other)
        except ComplexOperand:
            raise DTypeError(
                f"{family.what} in place: a complex result does not fit into {self.node.type_text}"
            ) from None
        if y is NotImplemented and isinstance(other, (np.ndarray, np.generic)):
            operand_of_numpy(other)  # raises: self keeps its dtype
        return y if y is NotImplemented else _replace(self, family.what, family(self.node, y))

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


for _name, _method in vars(Operators).items():
    if getattr(_method, "__name__", _name) != _name:  # pickles of bound methods find them by it
        _method.__name__, _method.__qualname__ = _name, f"Operators.{_name}"


def finished(result: Any, depth: int = 2) -> Any:
    """Return a result to the caller at a depth of frames: small ones as NumPy's by its rules."""
    if STATE.small_elements and isinstance(result, Operators) and result.is_small:
        names = sys._getframe(depth).f_globals  # pyright: ignore[reportPrivateUsage]
        return result.handed_out() if follows_numpy(names) else result
    return result


def call_operator(name: str, *args: Any) -> Any:
    """Call an operator's function with complex operands for the caller of its method.

    It is computed as a whole where the caller has NumPy's rules.
    """
    names = sys._getframe(3).f_globals  # pyright: ignore[reportPrivateUsage]
    is_whole = STATE.small_elements > 0 and follows_numpy(names)
    return (call_whole if is_whole else call_complex)(name, *args)


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
            is_native = x.dtype.char in "?bBhHiIlLqQefd" and x.dtype.isnative
            x = leaf(np.asarray(x)) if is_native else operand_of_numpy(x)
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


def hand_out(result: Any, arguments: Iterable[Any]) -> Any:
    """Return a function's result with NumPy's arrays in place of small ones, but for arguments."""
    if isinstance(result, Operators):
        is_ours = not result.is_small or any(_has(x, result) for x in arguments)
        return result if is_ours else result.handed_out()
    if isinstance(result, tuple):
        items = [hand_out(x, arguments) for x in result]
        return type(result)(*items) if hasattr(result, "_fields") else tuple(items)
    return [hand_out(x, arguments) for x in result] if result.__class__ is list else result


def _has(argument: Any, result: Any) -> bool:
    """Return whether a result is an argument, or an item of one, as of `out`."""
    return argument is result or (
        argument.__class__ is tuple and any(item is result for item in argument)
    )


def is_view(x: Any) -> bool:
    """Return whether an array shares elements with one that owns them."""
    place = x.place
    return place is not None and bool(place.links or place.memory.owner() is not x)


def in_order(data: Any, order: Sequence[int]) -> Any:
    """Return a copy whose axes have an order in memory, from the outermost on."""
    inverse = [order.index(axis) for axis in range(len(order))]
    copy = np.empty_like(np.empty_like(data.transpose(order), order="C").transpose(inverse))
    copy[...] = data
    return copy


def numpys_own(x: Any) -> Any:
    """Return a small array of ours as NumPy's own, in memory that nobody else sees.

    Views stay as they are, and so do arrays of a dtype that NumPy does not have.  Memory of other
    code is shared with it.
    """
    place, node = x.place, x.node
    if is_view(x):
        return x
    if STATE.following or STATE.tracing or node.type.dtype.numpy.kind == "V":
        return x
    if node.data is None:
        evaluate(node, others=False)
    if not node.type.shape:
        return node.current_buffer()[()]
    if place is not None and place.memory.is_held and node.shared:
        return place.export()
    if place is not None and place.memory.order is not None:
        return in_order(node.current_buffer(), place.memory.order)
    data = private_data(node, 2)  # the array's reference, and the one here
    if data is None:
        return np.array(node.current_buffer(), order="C")
    release(node.type, data)
    return data
