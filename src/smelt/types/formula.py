"""Formulas over the sizes and numbers of a call: Python text that is compiled to a function.

A recording's guards and sizes are one formula, printed from expressions. Text from a file may say
anything, so `Formula.read` accepts numbers, names of parameters, arithmetic, comparisons and a few
functions of numbers alone.

>>> f = Formula("n0, n1", "(n0, n0*n1) if n0 == n1 else None")
>>> f(3, 3), f(3, 4)
((3, 9), None)
>>> Formula.read("n", "n.real")
Traceback (most recent call last):
ValueError: a formula has no Attribute
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from smelt.python.origin import Origin
from smelt.types.arithmetic import Number, choose, larger, smaller
from smelt.types.expr import Index, text

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
