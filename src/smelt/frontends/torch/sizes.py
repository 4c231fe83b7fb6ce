"""Symbolic sizes of a traced program as ours: SymPy expressions to index expressions.

Each symbol of the tracer gets a short name in order of appearance, so that a program that is traced
again has the same text.  A size that only the data tells (the number of true elements) is refused:
the operator that needs it is left to torch.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

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
from smelt.origin import Origin
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

__all__ = ["Sizes", "agree", "count", "is_size", "told"]


class Sizes:
    """The symbols of one traced program: `names` by symbol, `hints` by name."""

    def __init__(self, arguments: Iterable[Any] = ()) -> None:
        given = [x.meta.get("val") for x in arguments]
        dims = [n for x in given for n in (x.shape if isinstance(x, torch.Tensor) else (x,))]
        self._told = {n.node.expr for n in dims if isinstance(n, torch.SymInt)}
        """Symbols that arguments and their dimensions are."""
        self.names: dict[Any, str] = {}
        self.hints: dict[str, int] = {}
        self.signed: set[str] = set()
        """Names of numbers that no guard keeps from being negative."""
        self._maybe_zero: set[str] = set()
        self._known: dict[Any, Index] = {}
        self._env: Any = None

    def index(self, n: Any) -> Index:
        """An int or SymInt as an index expression.  Raises UnsupportedError where it is none."""
        if isinstance(n, int):
            return int(n)
        if not isinstance(n, torch.SymInt):
            raise UnsupportedError(f"{n!r} is no size")
        constant = n.node.maybe_as_int()
        if constant is not None:
            return int(constant)
        self._env = n.node.shape_env
        expr = n.node.expr
        found = self._known.get(expr)
        if found is None:
            found = self._equal(n)
            self._known[expr] = found = self._convert(expr) if found is None else found
        return found

    def real(self, n: torch.SymFloat, origin: Origin | None) -> V | float:
        """A number of Python's that is computed of sizes, in float64 as Python computes.  Raises
        UnsupportedError where it is none."""
        constant = n.node.maybe_as_float()
        if constant is not None:
            return float(constant)
        self._env = n.node.shape_env
        return self._real(n.node.expr, origin)

    def _real(self, e: Any, origin: Origin | None) -> V:
        kind = type(e).__name__
        if e.is_number:
            return number(float(e), f64, origin)
        if isinstance(e, sympy.Symbol) or kind not in _OF_REALS:
            return number(self._convert(e), f64, origin)
        args = [self._real(a, origin) for a in e.args]
        if kind == "Pow":
            return _real_power(args[0], e.args[1])
        found = args[0]
        for other in args[1:]:
            found = found.map(_OF_REALS[kind], other)
        return found.map(_OF_REALS[kind]) if kind.startswith("Opaque") else found

    def _equal(self, n: Any) -> Index | None:
        """The expression of an earlier size that the tracer's guards make equal to this one."""
        expr, hint = n.node.expr, n.node.hint
        if isinstance(expr, sympy.Symbol) or hint is None:
            return None
        if hint in (0, 1) and self._are_equal(expr, sympy.Integer(hint)):
            return int(hint)  # what it meets was stretched, or is empty
        for other, known in self._known.items():
            if isinstance(known, int) or evaluate(known, self.hints) != hint:
                continue
            if self._are_equal(expr, other):
                return known
        return None

    def compare(self, found: Shape, wanted: Shape) -> None:
        """Looks whether dimensions, counted from the end, that are no 1 and spelt otherwise are as
        many in the call that is traced.  Raises UnsupportedError where they are not: guards then
        make one of them a 1, and we do not know."""
        for n, m in zip(reversed(found), reversed(wanted), strict=False):
            if n not in (1, m) and evaluate(n, self.hints) != evaluate(m, self.hints):
                raise UnsupportedError(f"{n} elements where {m} are wanted")

    def _are_equal(self, one: Any, other: Any) -> bool:
        """Whether guards say so."""
        try:
            return bool(self._env._maybe_evaluate_static(sympy.Eq(one, other)) or False)
        except (AttributeError, TypeError):
            return False

    def is_made(self, node: Any) -> bool:
        """Whether a call makes it, and not a number of sizes that arguments tell: no tensor is made
        to be asked for its size."""
        known = node.meta.get("val")
        if node.op != "call_function" or not isinstance(known, torch.SymInt):
            return node.op == "call_function"
        try:
            names = sizes_of(self.index(known))
        except UnsupportedError:
            return True
        return not {self.names[s] for s in self._told if s in self.names}.issuperset(names)

    def counted(self, n: Index) -> Index:
        """The same, if it counts positions.  Raises UnsupportedError if it may be negative: then it
        counts from the end, and quotients and extrema are others."""
        if not self.is_counted(n):
            raise UnsupportedError("a number that may be negative, as a position")
        return n

    def is_counted(self, n: Index) -> bool:
        """Whether it is made of sizes alone, so that extrema of it are what they say."""
        return isinstance(n, int) or self.signed.isdisjoint(sizes_of(n))

    def is_negative(self, n: Index) -> bool:
        """Whether a position counts from the end.  Where sizes leave that open, the tracer has made
        a guard of what it is in the call that is traced."""
        return not nonnegative(n) and evaluate(n, self.hints) < 0

    def is_positive(self, n: Index) -> bool:
        """Whether guards say that a number is 1 or more."""
        return positive(n) and self._maybe_zero.isdisjoint(sizes_of(n))

    def shape(self, dims: Sequence[Any]) -> Shape:
        """All dimensions of a tensor.  Bounds and extrema take every name in them for a size: of a
        number that may be negative (n + k of `x[:, :k]`) guards then say that it is none.  Raises
        UnsupportedError where it is one in the call that is traced, or it is late for guards."""
        found = [self.index(n) for n in dims]
        for n in found:
            if not self.is_counted(n):
                self._guard_signs(sizes_of(n))
        return tuple(map(self.counted, found))

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

    def _convert(self, e: Any) -> Index:
        if isinstance(e, sympy.Integer):
            return int(e)
        if isinstance(e, sympy.Symbol):
            return self._symbol(e)
        if type(e).__name__ in _WHOLE:
            above, below = self._ratio(e.args[0])
            up = below - 1 if type(e).__name__ == "CeilToInt" else 0
            return floordiv(add(self.counted(above), up), below)
        rule = _RULES.get(type(e).__name__)
        if rule is None:
            raise UnsupportedError(f"sizes with {type(e).__name__} are not supported: {e}")
        if (whole := self._divisor(e)) is not None:
            return whole
        args = [self._convert(a) for a in e.args]
        if type(e).__name__ in _OF_SIZES:
            args = [self.counted(a) for a in args]
        found = args[0]
        for other in args[1:]:
            found = rule(found, other)
        return found

    def _ratio(self, e: Any) -> tuple[Index, int]:
        """A number of sizes as a quotient, if Python computes it without rounding or rounds it
        once, so that its whole part is that of the quotient.  Raises UnsupportedError."""
        kind = type(e).__name__
        if e.is_number:
            exact = Fraction(float(e))
            if exact.denominator <= _FINEST and exact >= 0:
                return exact.numerator, exact.denominator
        elif kind == "ToFloat":
            return self._convert(e.args[0]), 1
        elif kind in ("IntTrueDiv", "FloatTrueDiv") and e.args[1].is_number:
            if float(e.args[1]) == -1:  # `arange(n, 0, -1.0)`
                above, below = self._ratio(e.args[0])
                if below == 1:  # others' whole parts are cut off towards zero
                    return mul(-1, above), 1
            (above, below), (n, m) = map(self._ratio, e.args)
            if isinstance(n, int) and n and below == m == 1:
                return above, n
        elif kind == "Mul":
            parts = [self._ratio(a) for a in e.args]
            below = prod(m for _, m in parts)
            if below <= _FINEST and not below & (below - 1):  # another quotient is rounded
                return product(n for n, _ in parts), below
        elif kind not in _OF_REALS:
            return self._convert(e), 1
        raise UnsupportedError(f"a whole number of {e}")

    def _divisor(self, e: Any) -> int | None:
        """c for n // (n // c), where guards say that c divides n: torch spells the inner dimension
        so where it views one as two."""
        if type(e).__name__ not in _QUOTIENTS or type(e.args[1]).__name__ not in _QUOTIENTS:
            return None
        n, (m, c) = e.args[0], e.args[1].args
        return int(c) if m == n and c.is_Integer and self._divides(c, n, e.args[1]) else None

    def _divides(self, c: Any, n: Any, quotient: Any) -> bool:
        """Whether guards say that c divides n: that products with it and with the quotient are
        equal."""
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
            if not _is_least(self._env, symbol, 0):
                self.signed.add(name)
            if not _is_least(self._env, symbol, 1):
                self._maybe_zero.add(name)
            self.hints[name] = hint
        return size(name)


def agree(node: Any, pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    """Has guards say whether dimensions of a call's operands are equal: (operand, axis) and another
    one.  They keep to what they are in this call: the tracer traces again for what is otherwise."""
    for dims in pairs:
        one, other = (told(node.args[x]).shape[a] for x, a in dims)
        symbols = [n.node for n in (one, other) if isinstance(n, torch.SymInt)]
        if symbols and all(n.has_hint() and not n.shape_env.frozen for n in symbols):
            bool(one == other)


def told(a: Any) -> Any:
    """An operator's argument with what the tracer knows of values in their place."""
    if isinstance(a, torch.fx.Node):
        return a.meta["val"]
    return map_arg(a, lambda x: x.meta["val"]) if isinstance(a, (list, tuple)) else a


def is_size(node: Any) -> bool:
    """Whether it is a size, or a number that is computed of sizes."""
    known = node.meta.get("val")
    kinds = (torch.SymInt, torch.SymFloat, int)
    return isinstance(known, kinds) and not isinstance(known, bool)


def count(node: Any) -> int:
    """Elements of a tensor, at the sizes that it was traced with; one for a number."""
    shape = () if is_size(node) else node.meta["val"].shape
    return prod(n if isinstance(n, int) else n.node.hint or 0 for n in shape)


def _is_least(env: Any, symbol: Any, least: int) -> bool:
    """Whether a guard says that a symbol is so much or more; where there are none it is a size."""
    known = getattr(env, "var_to_range", {}).get(symbol)
    return (known is None and least == 0) or (known is not None and bool(known.lower >= least))


def _hint(env: Any, symbol: Any) -> int | None:
    """The value of a symbol in the call that is traced; None if only the data tells."""
    table = "backed_var_to_val" if hasattr(env, "backed_var_to_val") else "var_to_val"
    found: Any = getattr(env, table, {}).get(symbol)
    if found is None or not getattr(sympy.sympify(found), "is_Integer", False):
        return None  # or it is the name of a ragged dimension
    return int(found)


def _power(base: Index, exponent: Index) -> Index:
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError("a size with a fractional or symbolic power")
    found: Index = 1
    for _ in range(exponent):
        found = mul(found, base)
    return found


def _real_power(base: V, exponent: Any) -> V:
    if exponent == -1:
        return 1.0 / base
    raise UnsupportedError(f"a number of sizes to the power of {exponent}")


_OF_REALS: dict[str, str] = {
    "Add": "add",
    "Mul": "mul",
    "IntTrueDiv": "div",
    "FloatTrueDiv": "div",
    "ToFloat": "",
    "Pow": "",
    "OpaqueUnaryFn_sqrt": "sqrt",
}
"""What numbers of Python's are computed with, as our operators."""
_WHOLE = ("TruncToInt", "FloorToInt", "CeilToInt")
_FINEST = 1 << 16
"""The largest denominator, a power of two where it comes of a number: multiples of sizes are then
exact in float64."""
_RULES: dict[str, Any] = {
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
_OF_SIZES = ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "Max", "Min")
"""What is computed as if all numbers were sizes, that is not negative."""
