"""Define rewrite rules over terms, and apply them bottom-up until none matches.

A term of scalar operators is written as text: `select(not(m), x, y)`. A name is a variable; names
that begin with `c` or `d` match constants only; numbers match constants of that value, and `0` is
the positive zero. A rule is two terms, the types they are valid for, and a condition. The engine
counts which fired, and works on any representation that shows its values through `Values`.

    rewriter = Rewriter(GraphValues(), EXACT)
    node = rewriter.rewrite(node)          # operands first: the operands must be rewritten already
    rewriter.fired                         # Counter({'double negation': 1})

>>> term("mul(neg(x), 2)")
mul(neg(x), 2)
>>> evaluate(term("mul(neg(x), 2)"), {"x": np.float32(1.5)})
array(-3., dtype=float32)
>>> from smelt.types.dtype import bool_, f32
>>> double = rule("double negation", "neg(neg(x))", "x", NUMBERS)
>>> double.text, double.accepts(f32), double.accepts(bool_)
('neg(neg(x)) -> x', True, False)
>>> [str(t) for t in arrangements(term("mul(add(x, 1), y)"))]
['mul(add(x, 1), y)', 'mul(y, add(x, 1))']
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from itertools import product
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from smelt.errors import ExprTextError
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, from_numpy, number_text

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
    return next((t for k, t in types_by_place.items() if has_leading_type(row, k)), None)


# ---- matching -----------------------------------------------------------------------------------


def match(t: Term, value: V, values: Values[V]) -> dict[str, V] | None:
    """Return the value of each variable if `value` has the form of `t`, else None."""
    bound: dict[str, V] = {}
    return bound if _match(t, value, values, bound) else None


def _match(t: Term, value: V, values: Values[V], bound: dict[str, V]) -> bool:
    if isinstance(t, Call):
        if values.op(value) != t.op:
            return False
        for part, arg in zip(t.args, values.args(value), strict=True):
            if not _match(part, arg, values, bound):
                return False
        return True
    number = values.number(value)
    if isinstance(t, Num):
        if number is None:
            return False
        if isinstance(t.value, bool) and values.dtype(value).kind != "bool":
            return False  # true and false are not the numbers 1 and 0
        expected = t.value_for(values.dtype(value))
        return expected is not None and same_number(number, expected)
    if t.constant and number is None:
        return False
    previous = bound.setdefault(t.name, value)
    if previous is value:
        return True
    other = values.number(previous)
    return number is not None and other is not None and same_number(number, other)


def same_number(a: Number, b: Number) -> bool:
    """Compare numbers with the signs of 0 and NaN; 1, 1.0 and True are equal.

    NaN equals NaN of its sign.
    """
    is_nan = a != a and b != b
    if a != b and not is_nan:
        return False
    return (a != 0 and not is_nan) or math.copysign(1.0, a) == math.copysign(1.0, b)


def arrangements(t: Term) -> tuple[Term, ...]:
    """Return `t` with the operands of commutative operators in every distinct order.

    Constants stand last, and renaming variables gives no new order.
    """
    by_shape: dict[str, Term] = {}
    for order in _orders(t):
        by_shape.setdefault(_shape(order), order)
    return tuple(by_shape.values())


def _orders(t: Term) -> Iterator[Term]:
    if not isinstance(t, Call):
        yield t
        return
    for args in product(*(tuple(_orders(a)) for a in t.args)):
        yield Call(t.op, args)
        if (
            len(args) == 2
            and t.row.commutative
            and not _is_constant(args[0])
            and not _is_constant(args[1])
        ):
            yield Call(t.op, (args[1], args[0]))


def _is_constant(t: Term) -> bool:
    return isinstance(t, Num) or (isinstance(t, Var) and t.constant)


def _shape(t: Term) -> str:
    """Return the term's text with variables numbered in order of appearance."""
    names = {v.name: f"{'c' if v.constant else 'x'}{k}" for k, v in enumerate(variables(t))}

    def spell(t: Term) -> str:
        if isinstance(t, Var):
            return names[t.name]
        return f"{t.op}({','.join(map(spell, t.args))})" if isinstance(t, Call) else repr(t)

    return spell(t)


# ---- rules --------------------------------------------------------------------------------------

Numbers = Mapping[str, Number]
Compute = Callable[[Numbers], Number]
NUMBERS = ("int", "uint", "float")
INTEGERS = ("int", "uint")
BITS = ("bool", "int", "uint")
ANY = ("bool", "int", "uint", "float")
FLOATS = ("float",)


@dataclass(frozen=True)
class Rule:
    """`left` may be replaced by `right` if the type is accepted and `when` holds.

    `subject` is the variable whose element type counts, by default the first of the left side.
    `when` gets the values of the constant variables; `compute` gives numbers that only the right
    side names.
    """

    name: str
    left: Call
    right: Term
    kinds: tuple[str, ...] = ANY
    when: Callable[[Numbers, DType], bool] | None = None
    fast: bool = False
    compute: Mapping[str, Callable[[Numbers], Number]] = field(default_factory=dict[str, Compute])
    only: tuple[str, ...] = ()
    """Names of the element types, if the rule is not valid for all of a kind."""

    def accepts(self, dtype: DType) -> bool:
        """Whether the rule is valid for the type."""
        return dtype.kind in self.kinds and (not self.only or dtype.name in self.only)

    @cached_property
    def subject(self) -> str:
        named = variables(self.left)
        return next((v.name for v in named if v.name != "m"), named[0].name)

    @cached_property
    def constants(self) -> frozenset[str]:
        """Names of the variables that match constants only."""
        return frozenset(v.name for v in variables(self.left) if v.constant)

    @cached_property
    def arrangements(self) -> tuple[Call, ...]:
        """The left side with operands in every distinct order."""
        return tuple(t for t in arrangements(self.left) if isinstance(t, Call))

    @property
    def text(self) -> str:
        return f"{self.left} -> {self.right}"


class RuleSet:
    """Rules in order of trial, indexed by the operator of their left side."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.by_operator: dict[str, list[tuple[Call, Rule]]] = {}
        for candidate in self.rules:
            for left in candidate.arrangements:
                self.by_operator.setdefault(left.op, []).append((left, candidate))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)


def rule(name: str, left: str, right: str, kinds: tuple[str, ...] = ANY, **more: object) -> Rule:
    """Return a rule from the text of its sides."""
    pattern = term(left)
    assert isinstance(pattern, Call)
    return Rule(name, pattern, term(right), kinds, **more)  # type: ignore[arg-type]


# ---- rewriting ----------------------------------------------------------------------------------

MAX_APPLICATIONS = 64
"""Maximum rules that fire on one value and its parts. Every rule makes terms cheaper, so that this
is never reached."""


class Rewriter(Generic[V]):
    """Applies `rules` to values, one value at a time."""

    def __init__(self, values: Values[V], rules: RuleSet) -> None:
        self.values = values
        self.fired: Counter[str] = Counter()
        self._rules = rules.by_operator
        self._budget = MAX_APPLICATIONS

    def rewrite(self, value: V) -> V:
        """Return `value` in its simplest form; its operands must be in theirs."""
        self._budget = MAX_APPLICATIONS
        return self._rewrite(value)

    def _rewrite(self, value: V) -> V:
        while self._budget > 0:
            op = self.values.op(value)
            new = None if op is None else self._apply_first(value, op)
            if new is None:
                break
            value = new
        return value

    def _apply_first(self, value: V, op: str) -> V | None:
        for left, rule in self._rules.get(op, ()):
            bound = match(left, value, self.values)
            if bound is None or not self._is_allowed(rule, bound):
                continue
            self._budget -= 1
            new = self._build(rule.right, bound, rule, value, self.values.dtype(value))
            if new is not None:
                self.fired[rule.name] += 1
                return new
        return None

    def _is_allowed(self, rule: Rule, bound: dict[str, V]) -> bool:
        dtype = self.values.dtype(bound[rule.subject])
        if not rule.accepts(dtype):
            return False
        return rule.when is None or rule.when(self._numbers(rule, bound), dtype)

    def _numbers(self, rule: Rule, bound: dict[str, V]) -> dict[str, Number]:
        numbers = {
            name: self.values.number(v) for name, v in bound.items() if name in rule.constants
        }
        return {name: number for name, number in numbers.items() if number is not None}

    def _build(self, t: Term, bound: dict[str, V], rule: Rule, like: V, dtype: DType) -> V | None:
        """Build and rewrite the value of `t` on the right side of a rule.

        Numbers without typed siblings get `dtype`.
        """
        if isinstance(t, Var):
            if t.name in bound:
                return bound[t.name]
            number = rule.compute[t.name](self._numbers(rule, bound))
            return self.values.constant(number, dtype, like)
        if isinstance(t, Num):
            number = t.value_for(dtype)
            return None if number is None else self.values.constant(number, dtype, like)
        parts: dict[int, V] = {}
        for are_typed in (True, False):  # numbers last: they take the type of their siblings
            for k, arg in enumerate(t.args):
                if _is_typed(arg, bound) is not are_typed:
                    continue
                sibling_types = {j: self.values.dtype(v) for j, v in parts.items()}
                part = self._build(
                    arg, bound, rule, like, number_type(t.row, sibling_types) or dtype
                )
                if part is None:
                    return None
                parts[k] = part
        return self._apply(t, tuple(parts[k] for k in range(len(t.args))), like)

    def _apply(self, t: Call, args: tuple[V, ...], like: V) -> V:
        """Apply the operator to values; computed now if all of them are numbers."""
        numbers = [self.values.number(a) for a in args]
        if all(n is not None for n in numbers):
            dtypes = [self.values.dtype(a) for a in args]
            arrays = [np.asarray(n).astype(d.numpy) for n, d in zip(numbers, dtypes)]
            computed = np.asarray(t.row.numpy(*arrays))
            result = t.row.result(*dtypes)
            number = computed.astype(np.float64) if result.is_float else computed
            return self.values.constant(number.item(), result, like)
        return self._rewrite(self.values.apply(t.op, args, like))


def _is_typed(t: Term, bound: dict[str, V]) -> bool:
    """Whether a part of a right side has a type of its own."""
    return isinstance(t, Call) or (isinstance(t, Var) and t.name in bound)
