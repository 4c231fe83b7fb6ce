"""Size symbols: whatever was answered holds for every size that passes the guards."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.frontends.array.sizes import Sizes
from smelt.types.expr import evaluate, floordiv, mod, size

COUNT = 3
SPAN = range(2, 9)
RELATIONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}


@st.composite
def expressions(draw: Any) -> Any:
    """Products, sums, quotients and remainders of symbols."""
    e: Any = draw(st.integers(1, 6))
    for _ in range(draw(st.integers(0, 3))):
        n = size(f"n{draw(st.integers(0, COUNT - 1))}")
        kind = draw(st.sampled_from(["*", "+", "-", "//", "%"]))
        if kind == "*":
            e = e * n
        elif kind == "+":
            e = e + n
        elif kind == "-":
            e = n - e
        elif kind == "//":
            e = floordiv(n, draw(st.integers(2, 4))) + e
        else:
            e = mod(n, draw(st.integers(2, 4))) + e
    return e


@st.composite
def questions(draw: Any) -> Any:
    kind = draw(st.sampled_from(["holds", "divisible", "pin", "same"]))
    e = draw(expressions())
    if kind == "holds":
        return kind, e, draw(st.sampled_from(list(RELATIONS))), draw(expressions())
    if kind == "same":
        return kind, e, "==", draw(expressions())
    if kind == "divisible":
        divisor = draw(st.integers(2, 4) | st.integers(0, COUNT - 1).map(lambda k: size(f"n{k}")))
        return kind, e, "", divisor
    return "pin" if kind == "pin" else "holds", e, "==", size(f"n{draw(st.integers(0, COUNT - 1))}")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(SPAN), min_size=COUNT, max_size=COUNT),
    st.lists(questions(), min_size=1, max_size=5),
)
def test_answers_hold_wherever_the_guards_do(hints: list[int], requested: list[Any]) -> None:
    sizes = Sizes()
    for hint in hints:
        sizes.symbol(hint)
    claims: list[Any] = []
    for kind, e, relation, other in requested:
        if kind == "holds":
            claims.append((kind, e, relation, other, sizes.holds(e, relation, other)))
        elif kind == "same":
            claims.append(("holds", e, relation, other, sizes.same(e, other)))
        elif kind == "divisible":
            claims.append((kind, e, relation, other, sizes.divisible(e, other)))
        else:
            claims.append((kind, e, relation, other, sizes.pin(e)))
    match = sizes.matcher(", ".join(f"n{k}" for k in range(COUNT)), tuple(sizes.hints))
    assert match(*hints) is not None, "the recording's own sizes pass"
    for values in itertools.product(SPAN, repeat=COUNT):
        actual = match(*values)
        if actual is not None:
            _check(sizes, dict(zip(sizes.hints, actual, strict=True)), claims)


def _check(sizes: Sizes, values: dict[str, int], claims: list[Any]) -> None:
    for name, e in sizes.bound.items():
        assert evaluate(e, values) == values[name]
    for kind, e, relation, other, answer in claims:
        value = evaluate(e, values)
        if kind == "holds":
            assert RELATIONS[relation](value, evaluate(other, values)) == answer
        elif kind == "divisible":
            assert (value % evaluate(other, values) == 0) == answer
        else:
            assert value == answer
        assert evaluate(sizes.canon(e), values) == value


def test_equal_sizes_keep_the_older_name() -> None:
    s = Sizes()
    a, b, c = (s.symbol(6) for _ in range(3))
    assert s.same(b, c)
    assert s.same(a, c)
    assert s.canon(b) == s.canon(c) == a


def test_what_is_provable_needs_no_guard() -> None:
    s = Sizes()
    n = s.symbol(6)
    assert s.holds(1, "<", n)
    assert s.holds(n, "<=", n * 2)
    assert not s.holds(n + 1, "<", n)
    assert not s.same(n, 1)
    assert s.divisible(n * 4, 2)
    assert s.guards == []


@pytest.mark.parametrize(("hint", "answer"), [(6, True), (7, False)])
def test_divisibility(hint: int, answer: bool) -> None:
    s = Sizes()
    n = s.symbol(hint)
    assert s.divisible(n * s.symbol(5), 3) is answer
    match = s.matcher("n0, n1", ("n1",))
    assert (match(9, 5) == (5,)) is answer
    assert (match(8, 5) == (5,)) is not answer


def test_guests_give_way() -> None:
    s = Sizes()
    n = s.symbol(8)
    s.replaceable.add("goal")
    goal = s.symbol(4, "goal")
    assert s.divisible(n, 2)
    assert s.same(goal, n // 2)
    assert s.canon(goal) == s.canon(n // 2)
    assert s.canon(n) != n
