"""Python numbers in a recording: sizes of arrays, and number arguments.

A `Size` is what `x.shape[0]` returns inside `jit`.  It computes symbolically, answers comparisons
under a guard, and becomes a plain int, valid for this recording only, where Python insists on one.
A `Scalar` is a float or int argument, or arithmetic on these.  It is an operand of array code like
a Python number, and answers comparisons under a guard too.  As the bound of a slice or as a
dimension it acts as a size.  Its value is read, and pinned, only where Python needs it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from smelt.errors import LeakError
from smelt.frontends.array.families import BINARY, UNARY
from smelt.frontends.array.promote import cast, range_error
from smelt.frontends.array.scope import Scope
from smelt.frontends.array.sizes import RELATIONS
from smelt.frontends.array.value import Value, constant
from smelt.frontends.array.views import as_integer
from smelt.graph.ir import Node
from smelt.ops.create import Constant, SizeOf
from smelt.types.dtype import DType, f64, i64
from smelt.types.expr import Index, floordiv, mod, mul, product, sub, text
from smelt.types.expr import add as plus


class Number:
    """Base of `Size` and `Scalar`, which behave as Python numbers in a recording."""

    __slots__ = ("scope",)

    scope: Scope

    @property
    def dtype(self) -> DType:
        """Dtype if no array is involved: i64 or f64."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Rank as an array: 0."""
        return 0

    @property
    def shape(self) -> tuple[()]:
        """Shape as an array: ()."""
        return ()

    @property
    def size(self) -> int:
        """Number of elements as an array: 1."""
        return 1

    def value(self) -> int | float:
        """Return the number; the recording is valid for this value only."""
        raise NotImplementedError

    def node(self, dtype: DType) -> Value:
        """Return the number as a value of rank 0."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        return bool(self.value())

    def __int__(self) -> int:
        return int(self.value())

    def __float__(self) -> float:
        return float(self.value())

    def __hash__(self) -> int:
        return hash(self.value())

    def _compare(self, relation: str, other: Any) -> bool:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return self._compare("==", other)

    def __lt__(self, other: Any) -> bool:
        return self._compare("<", other)

    def __le__(self, other: Any) -> bool:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(">=", other)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.value(), digits)

    def __format__(self, spec: str) -> str:
        return format(self.value(), spec) if spec else str(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.value(), dtype)

    def __pos__(self) -> Number:
        return self

    def __trunc__(self) -> int:
        return math.trunc(self.value())

    def __neg__(self) -> Any:
        """Return the negated number."""
        raise NotImplementedError

    def __invert__(self) -> Any:
        if self.dtype is not i64:
            raise TypeError("bad operand type for unary ~: 'float'")
        return -self - 1

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def bit_length(self) -> int:
        """Return `int.bit_length` of the number; the recording is valid for this value only."""
        return int(self.value()).bit_length()


class Size(Number):
    """Integer that depends on the sizes of a call."""

    __slots__ = ("expr",)

    def __init__(self, expr: Index, scope: Scope) -> None:
        self.expr = expr
        self.scope = scope

    @property
    def dtype(self) -> DType:
        return i64

    def value(self) -> int:
        return self.scope.pin(self.expr)

    def node(self, dtype: DType) -> Value:
        return self.scope.record(SizeOf(self.scope.canon(self.expr), dtype), ())

    def __index__(self) -> int:
        return self.value()

    def __repr__(self) -> str:
        return text(self.scope.canon(self.expr))

    def _compare(self, relation: str, other: Any) -> bool:
        e = _expr(other)
        if e is None:
            return _compare_guarded(self, relation, other)
        opposite = _OPPOSITE.get(relation)
        if opposite is None:
            return self.scope.holds(self.expr, relation, e)
        return not self.scope.holds(self.expr, opposite, e)

    def __bool__(self) -> bool:
        return not self.scope.holds(self.expr, "==", 0)

    def __neg__(self) -> Any:
        return user_dim(mul(self.expr, -1), self.scope)

    def __abs__(self) -> Any:
        return self if self >= 0 else -self


def _expr(x: object) -> Index | None:
    """Return the integer expression of an operand, None if it is none."""
    if isinstance(x, Size):
        return x.expr
    if isinstance(x, (int, np.integer)):
        return int(x)
    return None


_OPPOSITE = {">": "<=", ">=": "<"}


class Scalar(Number):
    """Number that is a value of rank 0; `hint` is its value in this call."""

    __slots__ = ("hint", "rank0")

    def __init__(self, node: Value, hint: int | float, scope: Scope) -> None:
        self.rank0 = node
        self.hint = hint
        self.scope = scope

    @property
    def dtype(self) -> DType:
        return self.rank0.type.dtype

    def value(self) -> int | float:
        self.scope.pin_scalars(self.rank0)
        return self.hint

    def node(self, dtype: DType) -> Value:
        if not self.scope.open:
            raise LeakError(value=str(self.rank0.type), function=self.scope.name)
        if dtype.is_integer and dtype is not i64 and isinstance(self.hint, int):
            self._check_range(np.iinfo(dtype.numpy), dtype)
        return cast(self.rank0, dtype)

    def _check_range(self, info: Any, dtype: DType) -> None:
        """Raise RangeError, as NumPy does, for a number beyond the dtype of the array operand."""
        if not info.min <= self.hint <= info.max:
            raise range_error(self.scope.name, self.hint, dtype)
        self.scope.bound_scalar(self.rank0, int(info.min), int(info.max))

    def __index__(self) -> int:
        return operator.index(self.value())  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<{self.dtype.long} argument>"

    def _compare(self, relation: str, other: Any) -> bool:
        return _compare_guarded(self, relation, other)

    def __bool__(self) -> bool:
        return not _compare_guarded(self, "==", 0)

    def __neg__(self) -> Scalar:
        return Scalar(UNARY["negative"](self.rank0), -self.hint, self.scope)

    def __abs__(self) -> Scalar:
        return Scalar(UNARY["abs"](self.rank0), abs(self.hint), self.scope)


def _compare_guarded(x: Number, relation: str, y: Any) -> bool:
    """Return whether `x relation y`; the recording is valid where the answer is the same."""
    if not isinstance(y, (Number, int, float, np.integer, np.floating)):
        return NotImplemented
    truth = RELATIONS[relation](_hint(x), _hint(y))
    texts = [
        x.scope.formula_of(v.rank0 if isinstance(v, Scalar) else _size_or_number(v)) for v in (x, y)
    ]
    if None in texts:
        for v in (x, y):
            if isinstance(v, Number):
                v.value()
    else:
        condition = f"{texts[0]} {relation} {texts[1]}"
        x.scope.require(condition if truth else f"not {condition}")
    return truth


def _size_or_number(x: Any) -> Index | float:
    if isinstance(x, Size):
        return x.expr
    return x if isinstance(x, (int, float)) else x.item()


def _size_expr(x: Scalar) -> Index | None:
    """Return an integer as an expression of sizes, if size arithmetic computed it, else None."""
    return _expr_of(x.rank0, x.scope) if x.dtype is i64 else None


def _expr_of(node: Node, scope: Scope) -> Index | None:
    op = node.op
    if isinstance(op, Constant):
        return int(op.value)
    if isinstance(op, SizeOf):
        return scope.canon(op.expr)
    if node in scope.scalars:
        return scope.size_of_scalar(node)  # type: ignore[arg-type]
    rule = _RULES.get(op.name)
    operands = [_expr_of(x, scope) for x in node.inputs] if rule is not None else []
    if rule is None or None in operands:
        return None
    if op.name == "neg":
        operands.insert(0, 0)
    return _expr(_size_arithmetic(rule, *operands, scope))  # type: ignore[arg-type]


def _hint(x: Any) -> int | float:
    if isinstance(x, Size):
        return x.scope.hint(x.expr)
    return x.hint if isinstance(x, Scalar) else x


def _scalar_arithmetic(what: str, plain: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Apply arithmetic that symbolic sizes do not support; the result is a `Scalar`."""
    for operand in (x, y):
        if not isinstance(operand, (Number, int, float, np.integer, np.floating)):
            return NotImplemented
    scope = x.scope if isinstance(x, Number) else y.scope
    floats = what == "divide" or any(
        isinstance(v, (float, np.floating)) or (isinstance(v, Number) and v.dtype is f64)
        for v in (x, y)
    )
    if what == "pow" and not floats and _hint(y) < 0:
        floats = True
    dtype = f64 if floats else i64
    nodes = [v.node(dtype) if isinstance(v, Number) else _constant(v, dtype) for v in (x, y)]
    return Scalar(BINARY[what](*nodes), plain(_hint(x), _hint(y)), scope)


def _constant(x: Any, dtype: DType) -> Value:
    return constant(float(x) if dtype.is_float else int(x), dtype)


_ARITHMETIC: tuple[tuple[str, str, Callable[..., Any], Callable[..., Index] | None], ...] = (
    ("add", "add", operator.add, plus),
    ("sub", "subtract", operator.sub, sub),
    ("mul", "multiply", operator.mul, mul),
    ("floordiv", "floor_divide", operator.floordiv, floordiv),
    ("mod", "remainder", operator.mod, mod),
    ("truediv", "divide", operator.truediv, None),
    ("pow", "pow", operator.pow, None),
)


def _methods(what: str, plain: Callable[..., Any], exact: Callable[..., Index] | None) -> Any:
    def apply(x: Any, y: Any) -> Any:
        a, b = _expr(x), _expr(y)
        if exact is not None and a is not None and b is not None:
            scope = x.scope if isinstance(x, Size) else y.scope
            return _size_arithmetic(exact, a, b, scope)
        if what == "pow" and a is not None and isinstance(y, int) and 0 <= y <= 4:
            return user_dim(product([a] * y), x.scope)
        return _scalar_arithmetic(what, plain, x, y)

    return apply, lambda x, y: apply(y, x)


def _pinned_int(x: Any) -> Any:
    """Return a plain int for an integer; the recording is valid for this value only."""
    return int(x.value()) if isinstance(x, Number) and x.dtype is i64 else x


def _bitwise_methods(
    plain: Callable[[Any, Any], Any], exact: Callable[[Any, int], Any] | None
) -> Any:
    """Return methods for shifts and masks, symbolic for some plain operands, else pinned."""

    def apply(x: Any, y: Any) -> Any:
        if exact is not None and isinstance(y, int) and x.dtype is i64:
            symbolic = exact(x, y)
            if symbolic is not None:
                return symbolic
        return (
            plain(_pinned_int(x), _pinned_int(y))
            if is_integral(x) and is_integral(y)
            else NotImplemented
        )

    def reflected(x: Any, y: Any) -> Any:
        return plain(y, _pinned_int(x)) if is_integral(x) and is_integral(y) else NotImplemented

    return apply, reflected


def _low_bits(x: Any, y: int) -> Any:
    """Return `x & y` for a mask of the lowest bits; None for other masks."""
    return x % (y + 1) if y >= 0 and not y & (y + 1) else None


for _name, _plain, _arithmetic in (
    ("rshift", operator.rshift, lambda x, y: x // 2**y if 0 <= y < 63 else None),
    (
        "lshift",
        operator.lshift,
        lambda x, y: x * 2**y if isinstance(x, Size) and 0 <= y < 63 else None,
    ),
    ("and", operator.and_, _low_bits),
    ("or", operator.or_, None),
    ("xor", operator.xor, None),
):
    _forward, _reflected = _bitwise_methods(_plain, _arithmetic)
    setattr(Number, f"__{_name}__", _forward)
    setattr(Number, f"__r{_name}__", _reflected)


_RULES: dict[str, Callable[..., Index]] = {
    "add": plus,
    "sub": sub,
    "mul": mul,
    "floordiv": floordiv,
    "mod": mod,
    "neg": sub,
}
"""Scalar operators on integers, as functions of size expressions."""


def _size_arithmetic(rule: Callable[..., Index], a: Index, b: Index, scope: Scope) -> Any:
    a, b = scope.canon(a), scope.canon(b)
    if rule in (floordiv, mod) and isinstance(b, int) and b < 0:
        a = scope.pin(a)
    if rule in (floordiv, mod) and not isinstance(b, int) and not scope.holds(1, "<=", b):
        b = scope.pin(b)
    return user_dim(rule(a, b), scope)


for _name, _what, _plain, _rule in _ARITHMETIC:
    _forward, _reflected = _methods(_what, _plain, _rule)
    setattr(Number, f"__{_name}__", _forward)
    setattr(Number, f"__r{_name}__", _reflected)


def user_dim(e: Index, scope: Scope | None) -> Any:
    """Return a dimension as users see it: an int, or a Size inside a recording."""
    if scope is None or isinstance(e, int):
        return e
    e = scope.canon(e)
    return e if isinstance(e, int) else Size(e, scope)


def is_integral(x: Any) -> bool:
    """Return whether an argument is an integer: plain, a size or a number argument."""
    return isinstance(x, (int, np.integer, Size)) or (isinstance(x, Scalar) and x.dtype is i64)


def as_dim(x: Any) -> Index:
    """Return a dimension that a user passed.

    Raises ArgumentError for something that is not an integer.
    """
    if isinstance(x, Size):
        return x.scope.canon(x.expr)
    expr = _size_expr(x) if isinstance(x, Scalar) else None
    return as_integer(x) if expr is None else x.scope.canon(expr)


def dims(shape: Any) -> tuple[Index, ...]:
    """Return a shape that a user passed: an integer or a sequence of integers."""
    single = isinstance(shape, (int, float, str, Number)) or getattr(shape, "ndim", None) == 0
    if single or not isinstance(shape, Iterable):
        return (as_dim(shape),)
    return tuple(as_dim(d) for d in shape)
