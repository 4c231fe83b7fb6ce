"""The algebra of sizes and indices against brute force: whatever is simplified keeps its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product as cross
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.effort import NIGHT, effort

from smelt.types import expr, polynomial
from smelt.types.expr import Index, axis, size
from smelt.types.text import parse

pytestmark = NIGHT

N, M = size("n"), size("m")
A, B, C = axis("i", N), axis("j", 6), axis("k", N * M)
LEAVES: dict[str, Index] = {"n": N, "m": M, "i": A, "j": B, "k": C}

Values = dict[str, int]


class Tree(NamedTuple):
    """An expression twice: simplified by the algebra, and as a plain function of the variables."""

    simplified: Index
    plain: Callable[[Values], int]
    spelled: str


def values() -> Iterator[Values]:
    """Every small assignment: sizes at least 1, axes inside their extents."""
    for n, m in cross((1, 2, 3, 5), repeat=2):
        for i, j, k in cross(range(n), range(6), range(n * m)):
            yield {"n": n, "m": m, "i": i, "j": j, "k": k}


ALL = tuple(values())
SAMPLE = ALL[:: max(len(ALL) // 400, 1)]


def leaf(name: str) -> Tree:
    return Tree(LEAVES[name], lambda v: v[name], name)


def number(c: int) -> Tree:
    return Tree(c, lambda v: c, f"({c})")


_OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (expr.add, lambda a, b: a + b),
    "-": (expr.sub, lambda a, b: a - b),
    "*": (expr.mul, lambda a, b: a * b),
    "//": (expr.floordiv, lambda a, b: a // b),
    "%": (expr.mod, lambda a, b: a % b),
    "min": (expr.minimum, min),
    "max": (expr.maximum, max),
}


def combine(op: str, a: Tree, b: Tree) -> Tree:
    ours, plain = _OPERATIONS[op]
    spelled = (
        f"{op}({a.spelled}, {b.spelled})" if op.isalpha() else f"({a.spelled} {op} {b.spelled})"
    )
    return Tree(ours(a.simplified, b.simplified), lambda v: plain(a.plain(v), b.plain(v)), spelled)


LEAF = st.sampled_from([leaf(name) for name in LEAVES]) | st.integers(-4, 8).map(number)
DIVISOR = (
    st.sampled_from([number(c) for c in (2, 3, 4, 6, 12)])
    | st.sampled_from([leaf("n"), leaf("m"), combine("*", leaf("n"), leaf("m"))])
    | st.just(combine("*", leaf("n"), number(4)))
)


def grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.builds(combine, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner) | (
        st.builds(combine, st.sampled_from(["//", "%"]), inner, DIVISOR)
    )


TREES = st.recursive(LEAF, grown, max_leaves=7)


def at(e: Index, v: Values) -> int:
    return int(expr.evaluate(e, v, v))


@effort(400)
@given(TREES)
def test_simplification_keeps_the_value(tree: Tree) -> None:
    for v in SAMPLE:
        assert at(tree.simplified, v) == tree.plain(v), (tree.spelled, tree.simplified, v)


@effort(150)
@given(TREES, st.integers(-3, 3))
def test_a_sum_and_a_product_with_a_number_are_in_normal_form(tree: Tree, k: int) -> None:
    e = tree.simplified
    joined = dict(expr.terms_of(e))
    joined[()] = joined.get((), 0) + k
    assert expr.add(e, k) == expr.add(k, e) == expr.build(joined)
    assert expr.mul(e, k) == expr.mul(k, e) == expr.build({m: c * k for m, c in expr.terms_of(e)})


@effort(200)
@given(TREES)
def test_text_reads_back(tree: Tree) -> None:
    plain = expr.text(tree.simplified)
    assert parse(plain, lambda name: LEAVES[name]) == tree.simplified
    index = expr.text(tree.simplified, index=True)
    only_axes = {name: LEAVES[name] for name in "ijk"}
    assert parse(index, lambda name: only_axes[name]) == tree.simplified
    assert str(tree.simplified) == plain


@effort(200)
@given(TREES, TREES)
def test_equal_text_is_equal_value(a: Tree, b: Tree) -> None:
    same = expr.text(a.simplified) == expr.text(b.simplified)
    assert same == (a.simplified == b.simplified)
    if same:
        assert hash(a.simplified) == hash(b.simplified)
        assert all(a.plain(v) == b.plain(v) for v in SAMPLE)


@effort(300)
@given(TREES)
def test_what_is_proven_holds(tree: Tree) -> None:
    e = tree.simplified
    bounds = expr.bounds(e)
    nonnegative, positive = expr.nonnegative(e), expr.positive(e)
    for v in SAMPLE:
        actual = tree.plain(v)
        assert not nonnegative or actual >= 0, (tree.spelled, v)
        assert not positive or actual >= 1, (tree.spelled, v)
        if bounds is not None:
            low, high = (at(b, v) for b in bounds)
            assert low <= actual <= high, (tree.spelled, v, bounds)


@effort(200)
@given(TREES)
def test_coefficients_are_strides(tree: Tree) -> None:
    for name in ("i", "j", "k"):
        stride = expr.coefficient(tree.simplified, name)
        if stride is None or name in expr.axes_of(stride):
            continue
        for v in SAMPLE[::7]:
            step = v | {name: v[name] + 1}
            assert at(tree.simplified, step) - at(tree.simplified, v) == at(stride, v)


@effort(200)
@given(TREES, TREES)
def test_substitution(tree: Tree, other: Tree) -> None:
    replaced = expr.substitute(tree.simplified, {"j": other.simplified % 6})
    for v in SAMPLE[::5]:
        assert at(replaced, v) == tree.plain(v | {"j": other.plain(v) % 6})
    substituted = expr.substitute(tree.simplified, {"n": 3, "m": 2}, "size")
    assert "n" not in expr.sizes_of(substituted)
    v = {"n": 3, "m": 2, "i": 2, "j": 5, "k": 4}
    assert at(substituted, v) == tree.plain(v)


@effort(100)
@given(TREES)
def test_names_and_arrays(tree: Tree) -> None:
    e = tree.simplified
    assert set(expr.axes_of(e)) <= {"i", "j", "k"}
    assert set(expr.sizes_of(e)) <= {"n", "m"}
    grid = {"i": np.arange(2)[:, None], "j": np.arange(6)[None, :], "k": np.array([[3]])}
    sizes = {"n": 2, "m": 3}
    actual = np.broadcast_to(expr.evaluate(e, sizes, grid), (2, 6))
    for i, j in cross(range(2), range(6)):
        assert actual[i, j] == tree.plain(sizes | {"i": i, "j": j, "k": 3})


@pytest.mark.parametrize(
    ("actual", "wanted"),
    [
        ((A // 4) * 4 + A % 4, A),
        ((N * 4 + A) // 4, N + A // 4),
        (A // N, 0),
        (A % N, A),
        ((A * 6 + B) // 6, A),
        ((A * 6 + B) % 6, B),
        ((C // 2) // 3, C // 6),
        (N * 4 // N, 4),
        ((N * 2 + 2) // (N + 1), 2),
        (((B + 1) * (N * 2 + 2) + A) // (N * 2 + 2), B + 1),
        (((B + 1) * (N * 2 + 2) + A) // (N * 4 + 4), (B + 1) // 2),
        (((B + 1) * (N * 2 + 2) + A) % (N * 2 + 2), A),
        ((C * 6 + B) // (N * 6), C // N),
        ((C * 6 + B) % (M * N * 12), (C % (M * N * 2)) * 6 + B),
        ((B * M * N + C) // (N * M * 2), B // 2),
        ((B * M * N + C) % (N * M * 2), (B % 2) * (M * N) + C),
        ((B * 35 + axis("l", 5) * 7 + axis("m", 7)) // 70, B // 2),
        ((B * 35 + axis("l", 5) * 7 + axis("m", 8)) // 70, None),
        (N - N, 0),
        (expr.minimum(N, N + 3), N),
        (expr.maximum(N, N * 2), N * 2),
        (expr.product((N, 4, M)), N * M * 4),
    ],
)
def test_what_views_rely_on(actual: Index, wanted: Index | None) -> None:
    """None: what cannot be taken apart stays a quotient."""
    assert actual == wanted if wanted is not None else "//" in expr.text(actual)


@given(st.data())
def test_indices_in_rows_divide_by_whole_rows(data: st.DataObject) -> None:
    """Whatever is seen of axes times what lies between their positions, it is the number."""
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    sizes = {f"s{k}": n for k, n in enumerate(lengths)}
    named = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    factors = [
        size(f"s{k}") if sign else n for k, (n, sign) in enumerate(zip(lengths, named, strict=True))
    ]
    e: Index = data.draw(st.integers(-3, 3))
    step: Index = 1
    for k, n in enumerate(factors):
        longer = data.draw(st.sampled_from((0, 0, 0, 1)))
        e = expr.add(e, expr.mul(axis(f"a{k}", expr.add(n, longer)), step))
        step = expr.mul(step, n)
    kept = data.draw(st.lists(st.sampled_from(factors), min_size=1, max_size=3))
    divisor = expr.mul(expr.product(kept), data.draw(st.sampled_from((1, 2, 3))))
    quotient, rest = expr.floordiv(e, divisor), expr.mod(e, divisor)
    by = expr.evaluate(divisor, sizes)
    for places in cross(*(range(n) for n in lengths)):
        axes = {f"a{k}": at for k, at in enumerate(places)}
        number = expr.evaluate(e, sizes, axes)
        assert expr.evaluate(quotient, sizes, axes) == number // by
        assert expr.evaluate(rest, sizes, axes) == number % by


@given(st.data())
def test_sums_divide_sums(data: st.DataObject) -> None:
    """Simplified divisions by sums of sizes keep their value."""

    def polynomial(degree: int, least: int = -2) -> Index:
        total: Index = 0
        for _ in range(data.draw(st.integers(1, 3))):
            term: Index = data.draw(st.integers(least, 4))
            for _ in range(data.draw(st.integers(0, degree))):
                term = expr.mul(term, data.draw(st.sampled_from((N, M, A, B))))
            total = expr.add(total, term)
        return total

    divisor: Index = data.draw(st.integers(0, 4))
    for one in data.draw(st.lists(st.sampled_from((N, M, expr.mul(N, M))), min_size=1, max_size=3)):
        divisor = expr.add(divisor, expr.mul(one, data.draw(st.integers(1, 4))))
    e = expr.add(expr.mul(polynomial(1), divisor), polynomial(2))
    quotient, rest = expr.floordiv(e, divisor), expr.mod(e, divisor)
    for n, m in ((1, 1), (2, 3), (7, 5)):
        sizes = {"n": n, "m": m}
        by = expr.evaluate(divisor, sizes)
        for i, j in cross(range(n), (0, 5)):
            axes = {"i": i, "j": j}
            number = expr.evaluate(e, sizes, axes)
            assert expr.evaluate(quotient, sizes, axes) == number // by
            assert expr.evaluate(rest, sizes, axes) == number % by


def test_mistakes() -> None:
    with pytest.raises(ZeroDivisionError):
        N // 0
    with pytest.raises(ZeroDivisionError):
        N % 0
    with pytest.raises(KeyError):
        expr.evaluate(N, {})
    for source in ("n/2", "n**2", "f(n)", "n.a", "True", "'n'", "n +", "min(n)", "1.5"):
        with pytest.raises(ValueError, match="not an index expression"):
            parse(source, size)


def test_what_differs_by_a_number_has_the_same_terms_and_another_constant():
    i = axis("i", 8)
    cases = [(i + 3, i + 1, 2), (i * 2, i * 2 - 5, 5), (i, i, 0), (7, 9, -2), (0, 4, -4)]
    for a, b, apart in cases:
        (left, p), (right, q) = expr.split_constant(a), expr.split_constant(b)
        assert (left == right, p - q) == (True, apart)
    for a, b in ((i, 2), (i, i * 2), (i + 1, axis("j", 8) + 1)):
        assert expr.split_constant(a)[0] != expr.split_constant(b)[0]


def test_bounds_of_nested_divisions_take_no_time():
    e = axis("i", size("n"))
    for k in range(2, 26):  # without memory, 2**24 questions
        e = (e // size(f"d{k}") + axis(f"j{k}", size("n"))) % (size("n") * k)
    assert expr.bounds(e) is not None


def test_signs_of_long_products_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are at least 1 have 2**40 coefficients here: those are not looked at each."""
    sizes = [size(f"d{k}") for k in range(40)]
    everything, half = expr.product(sizes), expr.product(sizes[:20])
    steps = Mock(side_effect=polynomial._shifted_coefficient)
    monkeypatch.setattr(polynomial, "_shifted_coefficient", steps)
    expr._nonnegative.cache_clear()
    cases = [(everything, True), (everything - 1, True), (1023 - everything, False)]
    cases += [(everything - half, True), (half - everything, False), (everything * 2 - half, True)]
    for e, answer in cases * 2:
        assert expr.nonnegative(e) == answer, e
    assert expr.floordiv(everything, 1024) != 0
    assert steps.call_count <= polynomial.PROOF_STEPS


def test_an_exhausted_budget_says_unknown_and_depends_on_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, m = size("n"), size("m")
    e = n * m - n - m + 1  # (n - 1)*(m - 1), which no term alone outweighs
    for _ in range(2):
        for limit, answer in ((polynomial.PROOF_STEPS, True), (1, False)):
            monkeypatch.setattr(polynomial, "PROOF_STEPS", limit)
            assert polynomial.is_nonnegative(e.terms, lambda a: a.kind == "size") == answer
            monkeypatch.undo()


def test_the_sizes_of_an_expression_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[object] = []
    atoms = expr.atoms
    monkeypatch.setattr(expr, "atoms", lambda e: (queries.append(e), atoms(e))[1])
    e = expr.add(expr.mul(expr.size("once"), 3), expr.size("and_again"))
    assert expr.sizes_of(e) == expr.sizes_of(e)
    assert set(expr.sizes_of(e)) == {"once", "and_again"}
    assert len(queries) == 1


def test_equal_expressions_of_other_extents_are_divided_anew() -> None:
    """Kept quotients are of axes of some extent; one of the same name may run further."""
    n = size("n")
    for extent, quotient in ((n, 0), (n * 2, None), (n, 0)):
        i = axis("i", extent)
        assert (i // n == quotient) is (quotient == 0)
        assert (i % n == i) is (quotient == 0)
        inner = expr.value("p", i // n * 2 + 1) // 2  # an extent of an extent
        assert (inner == 0) is (quotient == 0)


def test_a_variable_of_unknown_extent_may_be_any_integer():
    i, n = axis("i", expr.UNKNOWN), size("n")
    assert expr.bounds(i) is None
    assert not expr.nonnegative(i)
    assert not expr.nonnegative(n - i)
    assert (i // n) * n + i % n == i
    assert str(i // n) == "i//n"  # within an extent n it would be 0
    assert axis("i", n) // n == 0
    assert expr.nonnegative(i % 4)
