"""Fold integer instructions whose operands are constants or neutral.

Strides of constant extents and offsets of unrolled loops are such products and sums; LLVM would
read, number and remove a third of all lines otherwise. Values and wrap-around are LLVM's. Vectors
and floats are left to LLVM.

>>> from smelt.codegen.llvm.ir.types import IntType
>>> i64 = IntType(64)
>>> fold_binary("mul", i64(6), i64(7)).ref, fold_binary("udiv", i64(7), i64(0))
('42', None)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache

from smelt.codegen.llvm.ir.types import Constant, IntType, Type, Value

_RIGHT_NEUTRAL = {
    **dict.fromkeys(("add", "sub", "or", "xor", "shl", "lshr", "ashr"), 0),
    **dict.fromkeys(("mul", "udiv", "sdiv"), 1),
    "and": -1,
}
"""Operation -> its right operand that returns the left one."""
_COMMUTATIVE = frozenset(("add", "mul", "and", "or", "xor"))
_ABSORBING = {"mul": 0, "and": 0, "or": -1}
"""Commutative operation -> the operand that is the result."""
_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "udiv": operator.floordiv,
    "sdiv": operator.floordiv,
    "urem": operator.mod,
    "srem": operator.mod,
}
"""Operations that are folded for operands without sign."""
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "icmp eq": operator.eq,
    "icmp ne": operator.ne,
    "icmp slt": operator.lt,
    "icmp sle": operator.le,
    "icmp sgt": operator.gt,
    "icmp sge": operator.ge,
}


def integer(value: Value) -> int | None:
    """Return the number of a scalar integer constant, between -2^(width-1) and its opposite."""
    if not isinstance(value, Constant) or not isinstance(value.type, IntType):
        return None
    number = 0 if value.constant is None else value.constant
    return _wrapped(value.type.width, number) if isinstance(number, int) else None


def is_true(value: Value) -> bool:
    """Return whether a truth value is the constant true."""
    return integer(value) == -1


def is_false(value: Value) -> bool:
    """Return whether a truth value is the constant false."""
    return integer(value) == 0


def _wrapped(width: int, number: int) -> int:
    half = 1 << (width - 1)
    return ((number + half) & (2 * half - 1)) - half


@lru_cache(maxsize=4096)
def _constant(kind: Type, number: int) -> Constant:
    return Constant(kind, number)


def fold_binary(operation: str, a: Value, b: Value) -> Value | None:
    """Return the result of a binary operation that needs no instruction; None for another."""
    x, y = integer(a), integer(b)
    if x is None and y is None:
        return None
    kind: IntType = a.type
    if y is not None and _RIGHT_NEUTRAL.get(operation) == y:
        return a
    if operation in _COMMUTATIVE:
        if x is not None and _RIGHT_NEUTRAL[operation] == x:
            return b
        if operation in _ABSORBING and _ABSORBING[operation] in (x, y):
            return _constant(kind, _ABSORBING[operation])
    if x is None or y is None:
        return None
    if operation in _EXACT:
        return _constant(kind, _wrapped(kind.width, _EXACT[operation](x, y)))
    if operation in _DIVISIONS and x >= 0 and y > 0:
        return _constant(kind, _DIVISIONS[operation](x, y))
    return None


def fold_comparison(operation: str, a: Value, b: Value) -> Value | None:
    """Return the truth of a signed comparison of constants; None for another comparison."""
    compare = _COMPARISONS.get(operation)
    if compare is None or (x := integer(a)) is None or (y := integer(b)) is None:
        return None
    return _constant(IntType(1), int(compare(x, y)))


def fold_extension(operation: str, a: Value, kind: Type) -> Value | None:
    """Return a truncated or extended constant; None for another conversion."""
    x = integer(a)
    if x is None or operation not in ("trunc", "sext", "zext") or not isinstance(kind, IntType):
        return None
    if operation == "zext":
        x &= (1 << a.type.width) - 1
    return _constant(kind, _wrapped(kind.width, x))
