"""Represent terms of scalar operators, and the values that they are matched against.

A term is written as text: `select(not(m), x, y)`. A name is a variable; names that begin with `c`
or `d` match constants only; numbers match constants of that value, and `0` is the positive zero.

>>> term("mul(neg(x), 2)")
mul(neg(x), 2)
>>> evaluate(term("mul(neg(x), 2)"), {"x": np.float32(1.5)})
array(-3., dtype=float32)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from smelt.errors import ExprTextError
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, from_numpy
from smelt.types.text import number_text

Number = float | int | bool
Array = np.ndarray[Any, Any]
V = TypeVar("V")


@dataclass(frozen=True, slots=True, repr=False)
class Var:
    """Variable: matches any value, or only a constant one; equal names match equal values."""

    name: str
    constant: bool = False

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Num:
    """Number: matches a constant of this value.

    `of` gives the value for each element type instead.
    """

    value: Number
    of: Callable[[DType], Number | None] | None = None
    label: str = ""
    """The text that is printed for the value that `of` gives."""

    def value_for(self, dtype: DType) -> Number | None:
        """Return the number for an element type; None if that type has none."""
        return self.of(dtype) if self.of is not None else self.value

    def __repr__(self) -> str:
        return self.label or number_text(self.value).lower()


@dataclass(frozen=True, slots=True, repr=False)
class Call:
    """A scalar operator on terms."""

    op: str
    args: tuple[Term, ...]

    @property
    def row(self) -> ScalarOp:
        return SCALARS[self.op]

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.args))})"


Term: TypeAlias = Var | Num | Call


class Values(Protocol[V]):
    """Interface of a representation with values of type V."""

    def op(self, value: V) -> str | None:
        """Return the name of the scalar operator that computes `value`; None for anything else."""
        ...

    def args(self, value: V) -> tuple[V, ...]:
        """Return the operands of a value."""
        ...

    def number(self, value: V) -> Number | None:
        """Return the number that `value` is, if it is a constant."""
        ...

    def dtype(self, value: V) -> DType: ...

    def apply(self, op: str, args: tuple[V, ...], like: V) -> V:
        """Make a new value.

        `like` is the value that it is a part of (for its origin).
        """
        ...

    def constant(self, number: Number, dtype: DType, like: V) -> V: ...


# ---- text ----------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(?:(-?(?:inf|nan|true|false|\d[\d.]*(?:e-?\d+)?)\b)|(\w+)|([(),]))")
_WORDS: dict[str, Number] = {
    "true": True,
    "false": False,
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
    "-nan": float("-nan"),
}


def term(source: str) -> Term:
    """Parse a term; raises ExprTextError if `source` is not one."""
    tokens: list[tuple[str, str, str]] = []
    at = 0
    while at < len(source.rstrip()):
        match = _TOKEN.match(source, at)
        if match is None:
            raise ExprTextError(
                expected="a term", found=source[at:], source=source, line=1, column=at + 1
            )
        tokens.append((match[1] or "", match[2] or "", match[3] or ""))
        at = match.end()
    tokens.reverse()
    parsed = _read(tokens, source)
    if tokens:
        raise ExprTextError(expected="the end", found=str(tokens[-1]), source=source)
    return parsed


def _read(tokens: list[tuple[str, str, str]], source: str) -> Term:
    number, name, _ = tokens.pop() if tokens else ("", "", "")
    if number:
        return Num(_number(number))
    if not name:
        raise ExprTextError(f"{source!r} is not a term")
    if not tokens or tokens[-1][2] != "(":
        return Var(name, constant=name[0] in "cd")
    tokens.pop()
    args: list[Term] = []
    while True:
        args.append(_read(tokens, source))
        _, _, mark = tokens.pop() if tokens else ("", "", "")
        if mark == ")":
            return Call(name, tuple(args))
        if mark != ",":
            raise ExprTextError(f"{source!r} is not a term")


def _number(source: str) -> Number:
    if source in _WORDS:
        return _WORDS[source]
    return float(source) if re.search(r"[.e]", source) else int(source)


# ---- variables and types -------------------------------------------------------------------------


def variables(t: Term) -> tuple[Var, ...]:
    """Return the variables of a term in order of first appearance."""
    if isinstance(t, Var):
        return (t,)
    if isinstance(t, Num):
        return ()
    return tuple(dict.fromkeys(v for a in t.args for v in variables(a)))


def has_leading_type(row: ScalarOp, position: int) -> bool:
    """Whether operand `position` has the type of the row's leading operand."""
    rule = row.rule
    return rule.accepts[position] == rule.accepts[rule.lead] and position not in rule.free


def operand_types(row: ScalarOp, lead: DType) -> tuple[DType, ...]:
    """Return the types of the operands when the leading one is `lead`."""
    kinds, fixed = row.rule.accepts, dict(row.rule.fixed)
    return tuple(
        lead if has_leading_type(row, k) else fixed.get(k, bool_ if kinds[k] == ("bool",) else lead)
        for k in range(row.arity)
    )


def infer(t: Term, dtype: DType) -> tuple[dict[str, DType], DType] | None:
    """Return the types of the variables and of the term for numbers of `dtype`.

    None if some operator of the term is not defined for that type.
    """
    types: dict[str, DType] = {}
    result = _infer(t, dtype, dtype, types)
    return None if result is None else (types, result)


def _infer(t: Term, expected: DType, base: DType, types: dict[str, DType]) -> DType | None:
    if isinstance(t, Var):
        return types.setdefault(t.name, expected)
    if isinstance(t, Num):
        return expected
    row = t.row
    lead = base if row.rule.result == "bool" else expected
    arg_types = [_infer(a, k, base, types) for a, k in zip(t.args, operand_types(row, lead))]
    known_types = [dtype for dtype in arg_types if dtype is not None]
    if len(known_types) < len(arg_types):
        return None
    try:
        return row.result(*known_types)
    except TypeError:
        return None


def cost(t: Term) -> tuple[float, int]:
    """Return cycles (as the rows count them) and size: a rule must reduce this pair."""
    free = variables(t)
    if not isinstance(t, Call) or (free and all(v.constant for v in free)):
        return 0.0, 1  # constants are combined once, while compiling
    parts = [cost(a) for a in t.args]
    return t.row.cost + sum(p[0] for p in parts), 1 + sum(p[1] for p in parts)


def evaluate(t: Term, values: Mapping[str, Any], dtype: DType | None = None) -> Array:
    """Evaluate the term on arrays by the rows' references.

    Numbers take the type of their siblings.
    """
    if isinstance(t, Var):
        return np.asarray(values[t.name])
    if isinstance(t, Num):
        assert dtype is not None
        return np.asarray(t.value_for(dtype)).astype(dtype.numpy)
    row = t.row
    arrays = {k: evaluate(a, values) for k, a in enumerate(t.args) if variables(a)}
    lead = number_type(row, {k: from_numpy(a.dtype) for k, a in arrays.items()}) or dtype
    args = [arrays[k] if k in arrays else evaluate(a, values, lead) for k, a in enumerate(t.args)]
    with np.errstate(all="ignore"):
        return np.asarray(row.numpy(*args))


def number_type(row: ScalarOp, types_by_place: Mapping[int, DType]) -> DType | None:
    """Return the type of a bare number among operands with known types."""
    for position, dtype in types_by_place.items():
        if has_leading_type(row, position):
            return dtype
    return None
