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
from typing import Any, Final

__all__ = ["Formula"]

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
