"""Convert the tracer's symbolic sizes (SymPy) to index expressions.

Each symbol gets a short name in order of appearance, so that a program that is traced again has the
same text. A size that depends on data (the number of true elements) is refused: the operator that
needs it is left to torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import sympy
import torch
from torch.fx.node import map_arg

from smelt.errors import UnsupportedError
from smelt.frontends.torch.value import V, number
from smelt.python.origin import Origin
from smelt.types.dtype import f64
from smelt.types.expr import (
    Index,
    add,
    evaluate,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    nonnegative,
    positive,
    product,
    size,
    sizes_of,
)
from smelt.types.tensor import Shape


class Sizes:
    """Symbols of one traced program: `names` by symbol, `hints` by name."""

    def __init__(self, arguments: Iterable[Any] = ()) -> None:
        values = [x.meta.get("val") for x in arguments]
        dims = [n for x in values for n in (x.shape if isinstance(x, torch.Tensor) else (x,))]
        self._argument_symbols = {n.node.expr for n in dims if isinstance(n, torch.SymInt)}
        """Symbols that are arguments or dimensions of arguments."""
        self.names: dict[Any, str] = {}
        self.hints: dict[str, int] = {}
        self.signed: set[str] = set()
        """Names of numbers that no guard keeps from being negative."""
        self._maybe_zero: set[str] = set()
        self._converted: dict[Any, Index] = {}
        self._env: Any = None

    def index(self, n: Any) -> Index:
        """Return an int or SymInt as an index expression; raises UnsupportedError for others."""
        if isinstance(n, int):
            return int(n)
        if not isinstance(n, torch.SymInt):
            raise UnsupportedError(f"{n!r} is not a size")
        constant = n.node.maybe_as_int()
        if constant is not None:
            return int(constant)
        self._env = n.node.shape_env
        expr = n.node.expr
        converted = self._converted.get(expr)
        if converted is None:
            converted = self._equal_expression(n)
            self._converted[expr] = converted = (
                self.convert(expr) if converted is None else converted
            )
        return converted

    def real_number(self, n: torch.SymFloat, origin: Origin | None) -> V | float:
        """Return a Python float computed from sizes, in float64 as Python computes it.

        Raises UnsupportedError if it cannot be converted.
        """
        constant = n.node.maybe_as_float()
        if constant is not None:
            return float(constant)
        self._env = n.node.shape_env
        return self._real(n.node.expr, origin)

    def _real(self, e: Any, origin: Origin | None) -> V:
        kind = type(e).__name__
        if e.is_number:
            return number(float(e), f64, origin)
        if isinstance(e, sympy.Symbol) or kind not in _FLOAT_OPERATORS:
            return number(self.convert(e), f64, origin)
        args = [self._real(a, origin) for a in e.args]
        if kind == "Pow":
            if e.args[1] != -1:
                raise UnsupportedError(f"a number of sizes to the power of {e.args[1]}")
            return 1.0 / args[0]
        value = args[0]
        for other in args[1:]:
            value = value.map(_FLOAT_OPERATORS[kind], other)
        return value.map(_FLOAT_OPERATORS[kind]) if kind.startswith("Opaque") else value

    def _equal_expression(self, n: Any) -> Index | None:
        """Return the expression of an earlier size that guards make equal to this one."""
        expr, hint = n.node.expr, n.node.hint
        if isinstance(expr, sympy.Symbol) or hint is None:
            return None
        if hint in (0, 1) and self._are_equal(expr, sympy.Integer(hint)):
            return int(hint)  # what it broadcasts with was expanded, or is empty
        for other, converted in self._converted.items():
            if isinstance(converted, int) or evaluate(converted, self.hints) != hint:
                continue
            if self._are_equal(expr, other):
                return converted
        return None

    def require_equal_hints(self, actual: Shape, expected: Shape) -> None:
        """Require that dimensions, counted from the end, have equal hints unless one is 1.

        Raises UnsupportedError otherwise: guards then make one of them a 1, which is not visible
        here.
        """
        for n, m in zip(reversed(actual), reversed(expected), strict=False):
            if n not in (1, m) and evaluate(n, self.hints) != evaluate(m, self.hints):
                raise UnsupportedError(f"{n} elements where {m} are wanted")

    def respell(self, x: V, shape: Shape) -> V:
        """Respell the dimensions of a value as those of `shape`, which guards make equal.

        Raises UnsupportedError if they differ in the traced call.
        """
        self.require_equal_hints(x.shape, shape)
        return x.respell(shape)

    def _are_equal(self, left: Any, right: Any) -> bool:
        """Whether guards make two expressions equal."""
        try:
            return bool(self._env._maybe_evaluate_static(sympy.Eq(left, right)) or False)
        except (AttributeError, TypeError):
            return False

    def needs_call(self, node: Any) -> bool:
        """Whether torch must be called for it.

        Not for a number that follows from sizes of arguments: no tensor is computed just for its
        size.
        """
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.SymInt):
            return node.op == "call_function"
        try:
            names = sizes_of(self.index(value))
        except UnsupportedError:
            return True
        return not {self.names[s] for s in self._argument_symbols if s in self.names}.issuperset(
            names
        )

    def require_nonnegative(self, n: Index) -> Index:
        """Return a position that cannot be negative.

        Raises UnsupportedError otherwise: negative positions count from the end, and quotients and
        extrema differ.
        """
        if not self.is_nonnegative(n):
            raise UnsupportedError("a number that may be negative, as a position")
        return n

    def is_nonnegative(self, n: Index) -> bool:
        """Whether it is made of sizes alone, so that extrema and quotients are as computed."""
        return isinstance(n, int) or self.signed.isdisjoint(sizes_of(n))

    def is_negative(self, n: Index) -> bool:
        """Whether a position counts from the end.

        If sizes leave that open, the tracer has added a guard for the traced call.
        """
        return not nonnegative(n) and evaluate(n, self.hints) < 0

    def is_positive(self, n: Index) -> bool:
        """Whether guards say that a number is 1 or more."""
        return positive(n) and self._maybe_zero.isdisjoint(sizes_of(n))

    def shape(self, dims: Sequence[Any]) -> Shape:
        """Return all dimensions of a tensor.

        Bounds and extrema take every name in them for a size: for a number that may be negative (n
        + k of `x[:, :k]`) a guard is added. Raises UnsupportedError if it is negative in the traced
        call, or guards can no longer be added.
        """
        converted = [self.index(n) for n in dims]
        for n in converted:
            if not self.is_nonnegative(n):
                self._guard_signs(sizes_of(n))
        return tuple(map(self.require_nonnegative, converted))

    def _guard_signs(self, names: Iterable[str]) -> None:
        among = self.signed.intersection(names)
        for symbol, name in self.names.items():
            if (
                name in among
                and self.hints[name] >= 0
                and not self._env.frozen
                and self._env.evaluate_expr(sympy.Ge(symbol, 0))
            ):
                self.signed.discard(name)

    def convert(self, e: Any) -> Index:
        """Return a SymPy expression of sizes as an index expression; raises UnsupportedError."""
        if isinstance(e, sympy.Integer):
            return int(e)
        if isinstance(e, sympy.Symbol):
            return self._symbol(e)
        if type(e).__name__ in _ROUNDINGS:
            numerator, denominator = self._ratio(e.args[0])
            round_up = denominator - 1 if type(e).__name__ == "CeilToInt" else 0
            return floordiv(add(self.require_nonnegative(numerator), round_up), denominator)
        rule = _INDEX_RULES.get(type(e).__name__)
        if rule is None:
            raise UnsupportedError(f"sizes with {type(e).__name__} are not supported: {e}")
        if (divisor := self._exact_divisor(e)) is not None:
            return divisor
        args = [self.convert(a) for a in e.args]
        if type(e).__name__ in _NONNEGATIVE_ONLY:
            args = [self.require_nonnegative(a) for a in args]
        result = args[0]
        for other in args[1:]:
            result = rule(result, other)
        return result

    def _ratio(self, e: Any) -> tuple[Index, int]:
        """Return a float as a quotient that has the same integer part.

        Only if Python computes it without rounding, or rounds it once. Raises UnsupportedError
        otherwise.
        """
        kind = type(e).__name__
        if e.is_number:
            exact = Fraction(float(e))
            if exact.denominator <= _MAX_DENOMINATOR and exact >= 0:
                return exact.numerator, exact.denominator
        elif kind == "ToFloat":
            return self.convert(e.args[0]), 1
        elif kind in ("IntTrueDiv", "FloatTrueDiv") and e.args[1].is_number:
            if float(e.args[1]) == -1:  # `arange(n, 0, -1.0)`
                numerator, denominator = self._ratio(e.args[0])
                if denominator == 1:  # other quotients are truncated towards zero
                    return mul(-1, numerator), 1
            (numerator, denominator), (n, m) = map(self._ratio, e.args)
            if isinstance(n, int) and n and denominator == m == 1:
                return numerator, n
        elif kind == "Mul":
            parts = [self._ratio(a) for a in e.args]
            denominator = prod(m for _, m in parts)
            if denominator <= _MAX_DENOMINATOR and not denominator & (
                denominator - 1
            ):  # other quotients are rounded
                return product(n for n, _ in parts), denominator
        elif kind not in _FLOAT_OPERATORS:
            return self.convert(e), 1
        raise UnsupportedError(f"a whole number of {e}")

    def _exact_divisor(self, e: Any) -> int | None:
        """Return c for n // (n // c), if guards say that c divides n.

        Torch spells the inner dimension so when it views one dimension as two.
        """
        if type(e).__name__ not in _QUOTIENTS or type(e.args[1]).__name__ not in _QUOTIENTS:
            return None
        n, (m, c) = e.args[0], e.args[1].args
        return int(c) if m == n and c.is_Integer and self._is_divisible(c, n, e.args[1]) else None

    def _is_divisible(self, c: Any, n: Any, quotient: Any) -> bool:
        """Whether guards say that c divides n.

        They say that products with c and with the quotient are equal.
        """
        if self._are_equal(c * quotient, n):
            return True
        equal = [g.expr for g in getattr(self._env, "guards", ()) if isinstance(g.expr, sympy.Eq)]
        return any(
            sympy.expand(c * quotient * x - n * y) == 0
            for g in equal
            for x, y in ((g.lhs, g.rhs), (g.rhs, g.lhs))
        )

    def _symbol(self, symbol: Any) -> Index:
        name = self.names.get(symbol)
        if name is None:
            hint = _hint(self._env, symbol)
            if hint is None:
                raise UnsupportedError(f"the size {symbol} depends on data")
            name = self.names[symbol] = f"n{len(self.names)}"
            if not _is_at_least(self._env, symbol, 0):
                self.signed.add(name)
            if not _is_at_least(self._env, symbol, 1):
                self._maybe_zero.add(name)
            self.hints[name] = hint
        return size(name)


def guard_equal_dims(node: Any, pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    """Add guards on whether dimensions of a call's operands are equal.

    Each dimension is (operand, axis). Guards state what holds in this call; for anything else the
    tracer traces again.
    """
    for dims in pairs:
        first, second = (fake_value(node.args[x]).shape[a] for x, a in dims)
        symbols = [n.node for n in (first, second) if isinstance(n, torch.SymInt)]
        if symbols and all(n.has_hint() and not n.shape_env.frozen for n in symbols):
            bool(first == second)


def fake_value(a: Any) -> Any:
    """Return an operator's argument with the tracer's values in place of nodes.

    None for a function.
    """
    if isinstance(a, torch.fx.Node):
        return a.meta.get("val")
    return map_arg(a, lambda x: x.meta.get("val")) if isinstance(a, (list, tuple)) else a


def is_size(node: Any) -> bool:
    """Whether it is a size, or a number computed from sizes."""
    value = node.meta.get("val")
    kinds = (torch.SymInt, torch.SymFloat, int)
    return isinstance(value, kinds) and not isinstance(value, bool)


def element_count(node: Any) -> int:
    """Return the elements of a tensor at the traced sizes; 1 for a number."""
    shape = () if is_size(node) else node.meta["val"].shape
    return prod(n if isinstance(n, int) else n.node.hint or 0 for n in shape)


def _is_at_least(env: Any, symbol: Any, least: int) -> bool:
    """Whether a guard says that a symbol is at least `least`; 0 without guards."""
    value_range = getattr(env, "var_to_range", {}).get(symbol)
    return (value_range is None and least == 0) or (
        value_range is not None and bool(value_range.lower >= least)
    )


def _hint(env: Any, symbol: Any) -> int | None:
    """Return the traced value of a symbol; None if it depends on data."""
    table = "backed_var_to_val" if hasattr(env, "backed_var_to_val") else "var_to_val"
    value: Any = getattr(env, table, {}).get(symbol)
    if value is None or not getattr(sympy.sympify(value), "is_Integer", False):
        return None  # or the symbol of a ragged dimension
    return int(value)


def _power(base: Index, exponent: Index) -> Index:
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError("a size with a fractional or symbolic power")
    return product([base] * exponent)


_FLOAT_OPERATORS: dict[str, str] = {
    "Add": "add",
    "Mul": "mul",
    "IntTrueDiv": "div",
    "FloatTrueDiv": "div",
    "ToFloat": "",
    "Pow": "",
    "OpaqueUnaryFn_sqrt": "sqrt",
}
"""SymPy function on floats -> our operator."""
_ROUNDINGS = ("TruncToInt", "FloorToInt", "CeilToInt")
_MAX_DENOMINATOR = 1 << 16
"""Largest denominator, a power of two if it comes from a number: multiples of sizes are then exact
in float64."""
_INDEX_RULES: dict[str, Any] = {
    "Add": add,
    "Mul": mul,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "Mod": mod,
    "PythonMod": mod,
    "Max": maximum,
    "Min": minimum,
    "Identity": lambda a: a,
}
_QUOTIENTS = ("FloorDiv", "CleanDiv")
_NONNEGATIVE_ONLY = ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "Max", "Min")
"""Functions that are only converted for arguments that are not negative."""
