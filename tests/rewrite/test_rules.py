"""Every rule, for every type that it claims: a machine tries to refute it."""

from __future__ import annotations

import pytest
from tests.rewrite.refute import claimed, proof, provable, refutation

from smelt.ops.scalar import SCALARS
from smelt.rewrite.engine import Call, Rule, Term, cost, rule, term, variables
from smelt.rewrite.rules import EXACT, ROUNDING_SENSITIVE, RULES
from smelt.types.dtype import f32, i8, i32, u8, u32

ALL = pytest.mark.parametrize("rule", list(RULES), ids=lambda r: r.name.replace(" ", "-"))


@ALL
def test_no_counterexample(rule: Rule) -> None:
    types = claimed(rule)
    assert types, f"{rule.name} claims no type that its operators take"
    for dtype, variable_types in types:
        actual = refutation(rule, dtype, variable_types)
        assert not actual, f"{rule.name} ({rule.text}) for {dtype}: {actual}"


@ALL
def test_right_side_is_smaller(rule: Rule) -> None:
    assert cost(rule.right) < cost(rule.left) or _turns_a_comparison(rule)


def _turns_a_comparison(rule: Rule) -> bool:
    """A constant that moves to the right ends there: no rule moves it back."""
    left, right = rule.left.args[0], rule.right
    return isinstance(right, Call) and left == right.args[1] and left in variables(rule.left)


@ALL
def test_right_side_has_no_new_variables(rule: Rule) -> None:
    bound = {v.name for v in variables(rule.left)} | set(rule.compute)
    assert {v.name for v in variables(rule.right)} <= bound


INTEGER_RULES = [r for r in EXACT if provable(r) and any(d in (i32, u32) for d, _ in claimed(r))]


@pytest.mark.parametrize("rule", INTEGER_RULES, ids=lambda r: r.name.replace(" ", "-"))
def test_z3_proves_integer_rules(rule: Rule) -> None:
    divides = {"floordiv", "mod"} & _operators(rule.left)
    for dtype, types in claimed(rule):
        if dtype in ((i8, u8) if divides else (i32, u32)):
            assert not proof(rule, dtype, types)


def _operators(t: Term) -> set[str]:
    return {t.op, *(n for a in t.args for n in _operators(a))} if isinstance(t, Call) else set()


def test_every_written_rule_is_in_force() -> None:
    """A rule whose operator has no row would be left out silently."""
    for r in RULES:
        assert _operators(r.left) | _operators(r.right) <= set(SCALARS)
    assert "second power" in {r.name for r in RULES}
    assert set(SCALARS) >= ROUNDING_SENSITIVE


def test_names_distinguish_rules() -> None:
    names = [r.name for r in RULES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("left", "right", "kinds"),
    [
        ("add(x, 0.0)", "x", ("float",)),
        ("sub(x, x)", "0", ("float",)),
        ("div(x, 3)", "mul(x, 0.3333333333333333)", ("float",)),
        ("add(sub(x, y), y)", "x", ("float",)),
        ("not(lt(x, y))", "ge(x, y)", ("float",)),
        ("abs(neg(x))", "x", ("int",)),
        ("floordiv(neg(x), y)", "neg(floordiv(x, y))", ("int",)),
        ("select(lt(x, y), x, y)", "min(x, y)", ("float",)),
    ],
)
def test_the_machine_refutes_what_is_wrong(left: str, right: str, kinds: tuple[str, ...]) -> None:
    wrong = rule("wrong", left, right, kinds)
    assert any(refutation(wrong, dtype, types) for dtype, types in claimed(wrong))


def test_z3_refutes_what_is_wrong() -> None:
    wrong = rule("wrong", "abs(neg(x))", "x", ("int",))
    (actual,) = [proof(wrong, d, t) for d, t in claimed(wrong) if d == i32]
    assert "sat" in actual


def test_terms_print_and_parse() -> None:
    for r in RULES:
        if "identity" not in r.text and "annihilator" not in r.text:
            assert str(term(str(r.left))) == str(r.left)
    assert cost(term("mul(x, y)")) == (SCALARS["mul"].cost, 3)
    assert RULES.by_operator["mul"]
    assert f32.is_float
