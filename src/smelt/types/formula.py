"""Formulas over the sizes and numbers of a call: Python text that is compiled to a function.

A recording's guards and sizes are one formula, printed from expressions. Text from a file may say
anything, so `Formula.read` accepts numbers, names of parameters, arithmetic, comparisons and a few
functions of numbers alone.

A program without Python computes sizes, guards and predicted times itself. The Python code that
computes them here is then called with a `Number` for each unknown: its operators append rows that
refer to earlier rows instead of computing. A condition cannot branch there; `choose` takes one of
two values.

>>> f = Formula("n0, n1", "(n0, n0*n1) if n0 == n1 else None")
>>> f(3, 3), f(3, 4)
((3, 9), None)
>>> rows = Rows()
>>> n = rows.parameter(0)
>>> larger(n // 4, 1)
<Number 5>
>>> rows.table[2:]
[('DIV', 0, 1, 0), ('CONSTANT_OF', 1, 0, 0), ('LT', 2, 3, 0), ('SELECT', 4, 3, 2)]
>>> Formula.read("n", "n.real")
Traceback (most recent call last):
ValueError: a formula has no Attribute
"""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from smelt.python.origin import Origin
from smelt.types.expr import Index, text

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


# ---- formulas ------------------------------------------------------------------------------------

MAX_FORMULA_CHARS: Final = 1 << 18
_FUNCTIONS: Final = {"min": min, "max": max, "float": float, "inf": float("inf")}
_NAMES: Final = {**_FUNCTIONS, "nan": float("nan")}
_NODES: Final = (
    *(ast.Expression, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Tuple, ast.NamedExpr),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
    *(ast.UnaryOp, ast.USub, ast.Not, ast.BoolOp, ast.And, ast.Or, ast.IfExp),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    *(ast.Call, ast.Subscript),
)


class Guard(NamedTuple):
    """Condition `left relation right` on sizes for a recording, and the line that made it."""

    left: Index
    relation: str
    right: Index
    origin: Origin

    def __str__(self) -> str:
        return f"{text(self.left)} {self.relation} {text(self.right)}"


class Formula:
    """A function of the named parameters, called with numbers in their order."""

    __slots__ = ("_function", "body", "parameters")

    def __init__(self, parameters: str, body: str) -> None:
        """Compile text that was printed from expressions."""
        self.parameters, self.body = parameters, body
        self._function = eval(f"lambda {parameters}: {body}", {**_NAMES})  # noqa: S307

    @staticmethod
    def read(parameters: str, body: str) -> Formula:
        """Return a formula from any text; raises ValueError for what is not a formula."""
        _check(parameters, body)
        try:
            return Formula(parameters, body)
        except SyntaxError as error:
            raise ValueError(f"not a formula: {error}") from error

    def on(self, numbers: Sequence[Number | None]) -> tuple[Any, list[Any]]:
        """Return whether the value is a tuple, and its elements, for later numbers.

        None stands for a number that the formula must not read. Raises ValueError for a formula
        that is about floating point numbers.
        """
        names = [name.strip() for name in self.parameters.split(",") if name.strip()]
        tree = ast.parse(self.body, mode="eval").body
        return _Symbolic(dict(zip(names, numbers, strict=True))).outcome(tree)

    def __call__(self, *numbers: Any) -> Any:
        """Return the value for these numbers; raises ZeroDivisionError, TypeError."""
        return self._function(*numbers)


def _check(parameters: str, body: str) -> None:
    if len(body) > MAX_FORMULA_CHARS:
        raise ValueError(f"a formula of {len(body)} characters")
    names = {name.strip() for name in parameters.split(",") if name.strip()}
    if not all(name.isidentifier() and name not in _NAMES for name in names):
        raise ValueError("a formula's parameters are names")
    try:
        nodes = list(ast.walk(ast.parse(body, mode="eval")))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a formula: {error}") from error
    names |= _NAMES.keys()
    names |= {n.target.id for n in nodes if isinstance(n, ast.NamedExpr)}
    for node in nodes:
        match node:
            case ast.Name(id=name):
                is_allowed = name in names
            case ast.Constant(value=value):
                is_allowed = type(value) in (int, float, bool, type(None))
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                is_allowed = callable(_FUNCTIONS.get(name))
            case ast.Subscript(slice=index):
                is_allowed = isinstance(index, ast.Constant | ast.UnaryOp)
            case _:
                is_allowed = isinstance(node, _NODES) and not isinstance(node, ast.Call)
        if not is_allowed:
            raise ValueError(f"a formula has no {type(node).__name__}")


class _Symbolic:
    """Value of a formula as rows of arithmetic; what Python would skip is computed too."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = dict(names)

    def outcome(self, node: ast.expr) -> tuple[Any, list[Any]]:
        """Return whether the value is a tuple (1) or None (0), and its elements."""
        match node:
            case ast.Constant(value=None):
                return 0, []
            case ast.Tuple(elts=elements):
                return 1, [self.value(x) for x in elements]
            case ast.IfExp():
                test = self.value(node.test)
                (ok, values), (other_ok, others) = map(self.outcome, (node.body, node.orelse))
                if values and others:
                    pairs = zip(values, others, strict=True)
                    return choose(test, ok, other_ok), [choose(test, *pair) for pair in pairs]
                return choose(test, ok, other_ok), values or others
            case _:
                raise ValueError(f"a formula with the value of {type(node).__name__}")

    def value(self, node: ast.expr) -> Any:
        """Return a number or a condition."""
        match node:
            case ast.Constant(value=bool() | int() as value):
                return int(value)
            case ast.Name(id=name) if self.names.get(name) is not None:
                return self.names[name]
            case ast.NamedExpr():
                self.names[node.target.id] = value = self.value(node.value)
                return value
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                return _ARITHMETIC[type(node.op)](self.value(node.left), self.value(node.right))
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand)
            case ast.UnaryOp(op=ast.Not()):
                return self.value(node.operand) == 0
            case ast.BoolOp():
                total, *rest = (self.value(x) for x in node.values)
                for x in rest:
                    total = choose(total, *((x, 0) if isinstance(node.op, ast.And) else (1, x)))
                return total
            case ast.IfExp():
                return choose(*map(self.value, (node.test, node.body, node.orelse)))
            case ast.Compare():
                operands = [self.value(x) for x in (node.left, *node.comparators)]
                tests = zip(node.ops, operands, operands[1:])
                total = 1
                for op, a, b in tests:
                    total = total * _COMPARISONS[type(op)](a, b)
                return total
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *rest]):
                total = self.value(first)
                for x in rest:
                    total = (smaller if name == "min" else larger)(total, self.value(x))
                return total
            case _:
                raise ValueError("a formula of floating point numbers")


_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
