"""Terms, matching and the engine on a representation of three lines: nested tuples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.errors import ExprTextError
from smelt.rewrite.engine import (
    MAX_APPLICATIONS,
    Rewriter,
    RuleSet,
    arrangements,
    evaluate,
    infer,
    match,
    rule,
    same_number,
    term,
    variables,
)
from smelt.rewrite.rules import EXACT, RULES
from smelt.types.dtype import DType, bool_, f32, i32


class Tuples:
    """Values are `("add", x, y)`, names, or numbers; all numbers are float32."""

    def __init__(self) -> None:
        self.made = 0

    def op(self, value: Any) -> str | None:
        return value[0] if isinstance(value, tuple) else None

    def args(self, value: Any) -> tuple[Any, ...]:
        return value[1:]

    def number(self, value: Any) -> float | None:
        return value if isinstance(value, (int, float)) else None

    def dtype(self, value: Any) -> DType:
        return bool_ if isinstance(value, tuple) and value[0] in ("lt", "eq", "ne") else f32

    def apply(self, op: str, args: tuple[Any, ...], like: Any) -> Any:
        self.made += 1
        return (op, *args)

    def constant(self, number: Any, dtype: DType, like: Any) -> Any:
        return number


def rewrite(value: Any, rules: RuleSet = EXACT) -> Any:
    rewriter = Rewriter(Tuples(), rules)

    def walk(v: Any) -> Any:
        return rewriter.rewrite((v[0], *map(walk, v[1:]))) if isinstance(v, tuple) else v

    return walk(value)


def test_rules_reach_a_fixed_point() -> None:
    x = ("neg", ("neg", ("neg", ("neg", "x"))))
    assert rewrite(x) == "x"
    assert rewrite(("add", ("mul", "x", 1), ("neg", "y"))) == ("sub", "x", "y")
    assert rewrite(("not", ("eq", "x", "y"))) == ("ne", "x", "y")
    assert rewrite(("div", "x", 4.0)) == ("mul", "x", 0.25)


def test_constants_are_computed_once() -> None:
    assert rewrite(("max", ("max", "x", 1.0), 2.0)) == ("max", "x", 2.0)
    assert rewrite(("mul", ("mul", "x", 3.0), 2.0), RULES) == ("mul", "x", 6.0)


def test_the_engine_says_which_rules_fired() -> None:
    rewriter = Rewriter(Tuples(), EXACT)
    rewriter.rewrite(("neg", ("neg", "x")))
    assert rewriter.fired == {"double negation": 1}


def test_rules_that_turn_in_circles_end() -> None:
    there, back = rule("there", "sub(x, y)", "div(x, y)"), rule("back", "div(x, y)", "sub(x, y)")
    turning = Rewriter(Tuples(), RuleSet([there, back]))
    assert turning.rewrite(("sub", "x", "y"))[1:] == ("x", "y")
    assert sum(turning.fired.values()) == MAX_APPLICATIONS


def test_matching_binds_and_compares() -> None:
    values = Tuples()
    assert match(term("mul(x, x)"), ("mul", "a", "a"), values) == {"x": "a"}
    assert match(term("mul(x, x)"), ("mul", "a", "b"), values) is None
    assert match(term("mul(x, x)"), ("mul", 2.0, 2.0), values) == {"x": 2.0}
    assert match(term("add(x, c)"), ("add", "a", 2.0), values) == {"x": "a", "c": 2.0}
    assert match(term("add(x, c)"), ("add", "a", "b"), values) is None
    assert match(term("add(x, 0)"), ("add", "a", 0.0), values) == {"x": "a"}
    assert match(term("add(x, 0)"), ("add", "a", -0.0), values) is None
    assert match(term("add(x, -0.0)"), ("add", "a", -0.0), values) == {"x": "a"}


def test_numbers_are_distinguished_by_value_and_sign() -> None:
    nan = float("nan")
    assert same_number(nan, nan) and same_number(-nan, -nan)
    assert not same_number(nan, -nan)
    assert repr(term("add(x, -nan)")) == "add(x, -nan)"
    assert same_number(1, True)
    assert same_number(0, 0.0)
    assert not same_number(0.0, -0.0)
    assert not same_number(1, nan)


def test_arrangements() -> None:
    assert len(arrangements(term("mul(add(x, y), z)"))) == 2
    assert len(arrangements(term("mul(neg(x), neg(y))"))) == 1
    assert len(arrangements(term("and(x, or(x, y))"))) == 4
    assert len(arrangements(term("add(x, c)"))) == 1


def test_terms_read_and_print() -> None:
    for source in ("add(x, 1)", "select(m, true, -inf)", "max(x, 1e-05)", "and(not(x), y)"):
        assert str(term(source)) == source
    assert [v.name for v in variables(term("select(m, add(x, c), x)"))] == ["m", "x", "c"]
    for source in ("", "add(x", "add(x,,y)", "add x", "add(x) y", "+"):
        with pytest.raises(ExprTextError):
            term(source)


def test_types_of_variables() -> None:
    assert infer(term("select(lt(x, y), x, y)"), f32) == ({"x": f32, "y": f32}, f32)
    assert infer(term("select(m, x, 1)"), i32) == ({"m": bool_, "x": i32}, i32)
    assert infer(term("ldexp(x, n)"), f32) == ({"x": f32, "n": i32}, f32)
    assert infer(term("not(x)"), f32) is None


def test_terms_are_evaluated_in_the_type_of_their_operands() -> None:
    x = np.array([1, 200], np.uint8)
    assert evaluate(term("add(x, 100)"), {"x": x}).tolist() == [101, 44]
    mask = evaluate(term("lt(x, 100)"), {"x": x})
    assert mask.tolist() == [True, False]
