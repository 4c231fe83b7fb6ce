"""Record arithmetic on numbers of a later call, as rows that refer to earlier rows.

A program without Python computes sizes, guards and predicted times itself. The same Python code
that computes them here is called with a `Number` for each unknown: its operators append rows
instead of computing. A condition cannot branch then; `choose` takes one of two values.

>>> rows = Rows()
>>> n = rows.parameter(0)
>>> larger(n // 4, 1)
<Number 5>
>>> rows.table[2:]
[('DIV', 0, 1, 0), ('CONSTANT_OF', 1, 0, 0), ('LT', 2, 3, 0), ('SELECT', 4, 3, 2)]
"""

from __future__ import annotations

import math
import struct
from typing import Any

__all__ = ["Number", "Rows", "choose", "common_divisor", "larger", "smaller", "whole"]

Row = tuple[str, int, int, int]


class Rows:
    """A table of operations: name, then the rows or the number that it takes."""

    def __init__(self) -> None:
        self.table: list[Row] = []
        self._numbers: dict[Row, int] = {}

    def add(self, op: str, a: int = 0, b: int = 0, c: int = 0, *, is_float: bool = False) -> Number:
        """Return the result of an operation; equal ones share a row."""
        row = op, a, b, c
        number = self._numbers.setdefault(row, len(self.table))
        if number == len(self.table):
            self.table.append(row)
        return Number(self, number, is_float)

    def parameter(self, position: int) -> Number:
        """Return a number of the call."""
        return self.add("PARAMETER", position)

    def constant(self, value: float) -> Number:
        """Return a known number."""
        if isinstance(value, float):
            (bits,) = struct.unpack("<q", struct.pack("<d", value))
            return self.add("CONSTANT_OF", bits, is_float=True)
        return self.add("CONSTANT_OF", int(value))

    def number(self, value: Any) -> Number:
        """Return a number or a `Number` as a row of this table."""
        return value if isinstance(value, Number) else self.constant(value)


class Number:
    """Integer or floating point number that a row computes; conditions are 0 and 1."""

    __slots__ = ("is_float", "row", "rows")

    def __init__(self, rows: Rows, row: int, is_float: bool) -> None:
        self.rows, self.row, self.is_float = rows, row, is_float

    def __repr__(self) -> str:
        return f"<Number {self.row}>"

    def __bool__(self) -> bool:
        raise TypeError("a condition on a number that only a call will know: use `choose`")

    def as_float(self) -> Number:
        """Return the floating point number of an integer."""
        return self if self.is_float else self.rows.add("TO_FLOAT", self.row, is_float=True)

    def _both(self, other: Any, *, is_float: bool = False) -> tuple[Number, Number, str]:
        """Return both operands as numbers of one type, and the prefix of its operations."""
        b = self.rows.number(other)
        if is_float or self.is_float or b.is_float:
            return self.as_float(), b.as_float(), "FLOAT_"
        return self, b, ""

    def _make(self, op: str, a: Number, b: Number, kind: str) -> Number:
        return self.rows.add(kind + op, a.row, b.row, is_float=bool(kind))

    def __add__(self, other: Any) -> Number:
        return self._make("ADD", *self._both(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Number:
        return self._make("SUB", *self._both(other))

    def __rsub__(self, other: Any) -> Number:
        a, b, kind = self._both(other)
        return self._make("SUB", b, a, kind)

    def __neg__(self) -> Number:
        return 0 - self

    def __abs__(self) -> Number:
        return choose(self < 0, -self, self)

    def __mul__(self, other: Any) -> Number:
        return self._make("MUL", *self._both(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        return self._make("DIV", *self._both(other, is_float=True))

    def __rtruediv__(self, other: Any) -> Number:
        a, b, kind = self._both(other, is_float=True)
        return self._make("DIV", b, a, kind)

    def __floordiv__(self, other: Any) -> Number:
        return self._integers("DIV", self, other)

    def __rfloordiv__(self, other: Any) -> Number:
        return self._integers("DIV", other, self)

    def __mod__(self, other: Any) -> Number:
        return self._integers("MOD", self, other)

    def __rmod__(self, other: Any) -> Number:
        return self._integers("MOD", other, self)

    def _integers(self, op: str, left: Any, right: Any) -> Number:
        a, b = self.rows.number(left), self.rows.number(right)
        if a.is_float or b.is_float:
            raise TypeError(f"{op} of floating point numbers")
        return self.rows.add(op, a.row, b.row)

    # ---- conditions ------------------------------------------------------------------------------

    def _compare(self, op: str, a: Number, b: Number, kind: str) -> Number:
        return self.rows.add(kind + op, a.row, b.row)

    def __lt__(self, other: Any) -> Number:
        return self._compare("LT", *self._both(other))

    def __le__(self, other: Any) -> Number:
        return self._compare("LE", *self._both(other))

    def __gt__(self, other: Any) -> Number:
        a, b, kind = self._both(other)
        return self._compare("LT", b, a, kind)

    def __ge__(self, other: Any) -> Number:
        a, b, kind = self._both(other)
        return self._compare("LE", b, a, kind)

    def __eq__(self, other: object) -> Any:
        return self._integers("EQ", self, other)

    def __ne__(self, other: object) -> Any:
        return 1 - (self == other)

    __hash__ = None  # type: ignore[assignment]


# ---- operations on both kinds --------------------------------------------------------------------


def choose(condition: Any, a: Any, b: Any) -> Any:
    """Return `a` if the condition holds, else `b`."""
    if not isinstance(condition, Number):
        return a if condition else b
    rows = condition.rows
    x, y = rows.number(a), rows.number(b)
    if x.is_float or y.is_float:
        x, y = x.as_float(), y.as_float()
    return rows.add("SELECT", condition.row, x.row, y.row, is_float=x.is_float)


def larger(a: Any, b: Any) -> Any:
    """Return the maximum of two numbers."""
    return choose(a < b, b, a)


def smaller(a: Any, b: Any) -> Any:
    """Return the minimum of two numbers."""
    return choose(b < a, b, a)


def common_divisor(a: Any, b: int) -> Any:
    """Return the greatest common divisor of a number and a positive one."""
    if not isinstance(a, Number):
        return math.gcd(a, b)
    return a.rows.add("GCD", a.row, a.rows.constant(b).row)


def whole(x: Any) -> Any:
    """Return a value of an expression of sizes as an integer."""
    return x if isinstance(x, Number) else int(x)
