"""List the rewrite rules of scalar operators, for tensors and scalars alike.

Many rules follow from the columns of the rows (identity, annihilator, idempotence) and are made
here for every row that has them; the others are listed. Every rule is valid for some element types,
and tests check each of them (`tests/rewrite`): all values of 8- and 16-bit types, special and
random values of the wider ones, z3 for integers. An exact rule keeps every bit but those of NaNs; a
`fast` rule keeps the value for real numbers and rounds differently. Each right side costs less than
its left one, or as much and is shorter, so that rewriting terminates.

>>> [rule.text for rule in RULES if rule.name == "division by a power of two"]
['div(x, c) -> mul(x, k)']
"""

from __future__ import annotations

import math

import numpy as np

from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.rewrite.engine import (
    BITS,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Call,
    Num,
    Number,
    Numbers,
    Rule,
    RuleSet,
    Term,
    Var,
    rule,
)
from smelt.types.dtype import DType, bool_, f32, i32

# ---- conditions on constants ---------------------------------------------------------------------

_MIN_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}
_MAX_NORMAL = {"f16": 65504.0, "bf16": 2.0**127, "f32": 2.0**127, "f64": 2.0**1023}


def _normal(x: float, dtype: DType) -> bool:
    return _MIN_NORMAL[dtype.name] <= abs(x) <= _MAX_NORMAL[dtype.name]


def _power_of_two(bound: Numbers, dtype: DType) -> bool:
    """Whether c is 2^k or -2^k, and its reciprocal is a normal number too."""
    return _invertible(bound, dtype) and abs(math.frexp(bound["c"])[0]) == 0.5


def _invertible(bound: Numbers, dtype: DType) -> bool:
    c = float(bound["c"])
    return c != 0 and math.isfinite(c) and _normal(c, dtype) and _normal(1 / c, dtype)


def _same_side(bound: Numbers, dtype: DType) -> bool:
    """Whether both factors are normal and on the same side of 1.

    Then the product overflows only if the two steps do.
    """
    c, d = float(bound["c"]), float(bound["d"])
    if not all(math.isfinite(v) and _normal(v, dtype) for v in (c, d)) or not _normal(c * d, dtype):
        return False
    return (abs(c) >= 1) == (abs(d) >= 1)


def _positive_power_of_two(bound: Numbers, dtype: DType) -> bool:
    c = int(bound["c"])
    return c > 0 and c & (c - 1) == 0


def _not_both_zero(bound: Numbers, dtype: DType) -> bool:
    return bound["c"] != 0 or bound["d"] != 0


# ---- rules that follow from columns --------------------------------------------------------------

_X, _C, _D = Var("x"), Var("c", constant=True), Var("d", constant=True)


def _rules_of_columns(row: ScalarOp) -> list[Rule]:
    """Return the rules of identity, annihilator, idempotence and associativity."""
    rules: list[Rule] = []
    if row.identity is not None:
        rules += _identities(row)
    if row.annihilator is not None:
        zero = Num(0, row.annihilator, "annihilator")
        rules.append(Rule(f"annihilator of {row.name}", Call(row.name, (_X, zero)), zero))
    if row.idempotent:
        again = (_X, _X) if row.arity == 2 else (Call(row.name, (_X,)),)
        right: Term = _X if row.arity == 2 else Call(row.name, (_X,))
        rules.append(Rule(f"{row.name} once is enough", Call(row.name, again), right))
    if row.associative:
        rules += _associations(row)
    return [r for r in rules if set(r.kinds) & set(row.rule.accepts[0])]


def _identities(row: ScalarOp) -> list[Rule]:
    """Return the rules of an identity.

    That of floats may change -0 to 0; for an identity of 0, its sign matters.
    """
    of = row.identity
    assert of is not None

    def exact(dtype: DType) -> Number | None:
        e = of(dtype)
        if e is None or not dtype.is_float or _keeps_negative_zero(row, float(e)):
            return e
        return -0.0 if e == 0 and _keeps_negative_zero(row, -0.0) else None

    name = f"identity of {row.name}"
    kinds = row.rule.accepts[0]
    rules: list[Rule] = []
    if any(exact(d) is not None for d in (f32, i32, bool_) if d.kind in kinds):
        rules.append(Rule(name, Call(row.name, (_X, Num(0, exact, "identity"))), _X))
    e = of(f32) if "float" in kinds else None
    if e is not None and not _keeps_negative_zero(row, float(e)):
        left = Call(row.name, (_X, Num(0, of, "identity")))
        rules.append(Rule(f"{name}, 0 for -0", left, _X, FLOATS, fast=True))
    return rules


def _keeps_negative_zero(row: ScalarOp, e: float) -> bool:
    return bool(np.signbit(row.numpy(np.float32(-0.0), np.float32(e))))


def _associations(row: ScalarOp) -> list[Rule]:
    """Combine constants: (x op c) op d -> x op (c op d), computed once."""
    left = Call(row.name, (Call(row.name, (_X, _C)), _D))
    right = Call(row.name, (_X, Call(row.name, (_C, _D))))
    rules = [Rule(f"constants of {row.name} meet", left, right, BITS)]
    if row.idempotent:
        name = f"bounds of {row.name} meet"
        rules.append(Rule(name, left, right, FLOATS, when=_not_both_zero))
    return rules


def _roundings() -> list[Rule]:
    """Return the rules that rounding an integral number changes nothing."""
    names = [n for n, row in SCALARS.items() if row.arity == 1 and row.idempotent]
    rules = [
        rule(f"{n} after {other}", f"{n}({other}(x))", f"{other}(x)", NUMBERS)
        for n in names
        for other in names
        if other != n
    ]
    return rules + [rule(f"{n} of an integer", f"{n}(x)", "x", INTEGERS) for n in names]


# ---- listed rules --------------------------------------------------------------------------------

_SIGNS = (
    rule("double negation", "neg(neg(x))", "x", NUMBERS),
    rule("sum with a negative", "add(x, neg(y))", "sub(x, y)", NUMBERS),
    rule("difference with a negative", "sub(x, neg(y))", "add(x, y)", NUMBERS),
    rule("product of negatives", "mul(neg(x), neg(y))", "mul(x, y)", NUMBERS),
    rule("quotient of negatives", "div(neg(x), neg(y))", "div(x, y)", FLOATS),
    rule("product with -1", "mul(x, -1)", "neg(x)", NUMBERS),
    rule("quotient by -1", "div(x, -1)", "neg(x)", FLOATS),
    rule("negative of a difference", "neg(sub(x, y))", "sub(y, x)", INTEGERS),
    rule("negative of a difference, 0 for -0", "neg(sub(x, y))", "sub(y, x)", FLOATS, fast=True),
    rule("difference from 0", "sub(0, x)", "neg(x)", INTEGERS),
    rule("difference from 0, -0 for 0", "sub(0, x)", "neg(x)", FLOATS, fast=True),
    rule("difference from -0", "sub(-0.0, x)", "neg(x)", FLOATS),
    rule("magnitude of a magnitude", "abs(abs(x))", "abs(x)", NUMBERS),
    rule("magnitude of a negative", "abs(neg(x))", "abs(x)", ("int", "float")),
    rule("magnitude of an unsigned", "abs(x)", "x", ("uint",)),
    rule("magnitude of a square", "abs(square(x))", "square(x)", FLOATS),
    rule("square of a negative", "square(neg(x))", "square(x)", NUMBERS),
    rule("square of a magnitude", "square(abs(x))", "square(x)", NUMBERS),
    rule("sign of a sign", "sign(sign(x))", "sign(x)", NUMBERS),
)

_ARITHMETIC = (
    rule("product with itself", "mul(x, x)", "square(x)", NUMBERS),
    rule("difference with itself", "sub(x, x)", "0", INTEGERS),
    rule("difference with 0", "sub(x, 0)", "x", NUMBERS),
    rule("quotient by 1", "div(x, 1)", "x", FLOATS),
    rule("whole quotient by 1", "floordiv(x, 1)", "x", INTEGERS),
    rule("remainder by 1", "mod(x, 1)", "0", INTEGERS),
    rule("reciprocal", "div(1, x)", "reciprocal(x)", FLOATS),
    rule("product with a reciprocal", "mul(x, reciprocal(y))", "div(x, y)", FLOATS, fast=True),
    rule("division by a power of two", "div(x, c)", "mul(x, k)", FLOATS, when=_power_of_two,
         compute={"k": lambda b: 1 / b["c"]}),
    rule("division by a constant", "div(x, c)", "mul(x, k)", FLOATS, when=_invertible, fast=True,
         compute={"k": lambda b: 1 / b["c"]}),
    rule("constant factors meet", "mul(mul(x, c), d)", "mul(x, mul(c, d))", FLOATS,
         when=_same_side, fast=True),
    rule("whole quotient by a power of two", "floordiv(x, c)", "shr(x, k)", INTEGERS,
         when=_positive_power_of_two, compute={"k": lambda b: int(b["c"]).bit_length() - 1}),
    rule("remainder by a power of two", "mod(x, c)", "and(x, k)", INTEGERS,
         when=_positive_power_of_two, compute={"k": lambda b: int(b["c"]) - 1}),
    rule("root of a square", "sqrt(square(x))", "abs(x)", FLOATS, fast=True),
    rule("logarithm of an exponential", "log(exp(x))", "x", FLOATS, fast=True),
)  # fmt: skip

_POWERS = (
    rule("zeroth power", "pow(x, 0)", "1", NUMBERS),
    rule("first power", "pow(x, 1)", "x", NUMBERS),
    rule("second power", "pow(x, 2)", "square(x)", NUMBERS),
    rule("third power of an integer", "pow(x, 3)", "mul(square(x), x)", INTEGERS),
    rule("fourth power of an integer", "pow(x, 4)", "square(square(x))", INTEGERS),
    rule("third power", "pow(x, 3)", "mul(square(x), x)", FLOATS, fast=True),
    rule("fourth power", "pow(x, 4)", "square(square(x))", FLOATS, fast=True),
    rule("power -1", "pow(x, -1)", "reciprocal(x)", FLOATS, fast=True),
    rule("power -2", "pow(x, -2)", "reciprocal(square(x))", FLOATS, fast=True),
)

_COMPARISONS = (
    *(
        rule(f"constant on the left of {a}", f"{a}(c, x)", f"{b}(x, c)")
        for a, b in (("lt", "gt"), ("le", "ge"), ("gt", "lt"), ("ge", "le"))
    ),
    rule("not equal", "not(eq(x, y))", "ne(x, y)"),
    rule("not different", "not(ne(x, y))", "eq(x, y)"),
    *(
        rule(f"not {a}", f"not({a}(x, y))", f"{b}(x, y)", BITS)
        for a, b in (("lt", "ge"), ("le", "gt"), ("gt", "le"), ("ge", "lt"))
    ),
    rule("less than itself", "lt(x, x)", "false"),
    rule("greater than itself", "gt(x, x)", "false"),
    rule("equal to itself", "eq(x, x)", "true", BITS),
    rule("different from itself", "ne(x, x)", "false", BITS),
    rule("at most itself", "le(x, x)", "true", BITS),
    rule("at least itself", "ge(x, x)", "true", BITS),
    rule("NaN differs from itself", "ne(x, x)", "isnan(x)", FLOATS),
    rule("equal to true", "eq(x, true)", "x", ("bool",)),
    rule("equal to false", "eq(x, false)", "not(x)", ("bool",)),
    rule("different from false", "ne(x, false)", "x", ("bool",)),
    rule("different from true", "ne(x, true)", "not(x)", ("bool",)),
    rule("no integer is NaN", "isnan(x)", "false", INTEGERS),
    rule("no integer is infinite", "isinf(x)", "false", INTEGERS),
    rule("integers are finite", "isfinite(x)", "true", INTEGERS),
)

_LOGIC = (
    rule("double not", "not(not(x))", "x", BITS),
    rule("exclusive with itself", "xor(x, x)", "0", INTEGERS),
    rule("exclusive with itself, logical", "xor(x, x)", "false", ("bool",)),
    rule("exclusive with true", "xor(x, true)", "not(x)", ("bool",)),
    rule("and absorbs or", "and(x, or(x, y))", "x", BITS),
    rule("or absorbs and", "or(x, and(x, y))", "x", BITS),
    rule("a thing and its opposite", "and(x, not(x))", "false", ("bool",)),
    rule("a thing or its opposite", "or(x, not(x))", "true", ("bool",)),
    rule("both opposites", "and(not(x), not(y))", "not(or(x, y))", BITS),
    rule("either opposite", "or(not(x), not(y))", "not(and(x, y))", BITS),
)

_CHOICES = (
    rule("chosen always", "select(true, x, y)", "x"),
    rule("chosen never", "select(false, x, y)", "y"),
    rule("choice of the same", "select(m, x, x)", "x"),
    rule("choice by the opposite", "select(not(m), x, y)", "select(m, y, x)"),
    rule("choice of true or false", "select(m, true, false)", "m", ("bool",)),
    rule("choice of false or true", "select(m, false, true)", "not(m)", ("bool",)),
    rule("chosen twice", "select(m, select(m, x, y), z)", "select(m, x, z)"),
    rule("rejected twice", "select(m, x, select(m, y, z))", "select(m, x, z)"),
)


def _is_defined(candidate: Rule) -> bool:
    """Whether all operators of a rule have rows."""
    return all(_has_known_operators(side) for side in (candidate.left, candidate.right))


def _has_known_operators(t: Term) -> bool:
    return not isinstance(t, Call) or (t.op in SCALARS and all(map(_has_known_operators, t.args)))


_LISTED = (*_SIGNS, *_ARITHMETIC, *_POWERS, *_COMPARISONS, *_LOGIC, *_CHOICES)
RULES = RuleSet(
    (
        *(r for row in SCALARS.values() for r in _rules_of_columns(row)),
        *_roundings(),
        *(r for r in _LISTED if _is_defined(r)),
    )
)
"""Every rule, exact and fast; earlier ones are tried first."""

EXACT = RuleSet(r for r in RULES if not r.fast)
"""The rules that keep every bit."""

ROUNDING_SENSITIVE = frozenset(row.name for row in SCALARS.values() if row.depends_on_spacing)
"""Operators that depend on the spacing of their type: in a wider type they compute another
function."""
