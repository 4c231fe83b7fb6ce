"""Proofs of bounds and disjointness hold when enumerated."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt.kernel import bounds
from smelt.kernel.bounds import facts_of, nonnegative, proves_inside
from smelt.kernel.ir import Apply, Cast, Const, IndexValue, Ref
from smelt.kernel.races import determined_axes, disjoint
from smelt.types.dtype import i8, i32, i64
from smelt.types.expr import Index, axis, evaluate, floordiv, maximum, minimum, mod, size, value

n, m = size("n"), size("m")
EXTENTS: dict[str, Index] = {"i": n, "j": m, "k": 3, "l": n * m, "q": n + m}
AXES = {name: axis(name, extent) for name, extent in EXTENTS.items()}


@st.composite
def expressions(draw, depth: int = 3) -> Index:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([*AXES.values(), n, m, 0, 1, 2, 5]))
    a, b = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    form = draw(st.integers(0, 7))
    if form == 4:
        return floordiv(a, draw(st.sampled_from([2, 3, n, m, n * 2])))
    if form == 5:
        return mod(a, draw(st.sampled_from([2, 3, n, m, n * 2])))
    forms = (lambda: a + b, lambda: a - b, lambda: a * draw(st.integers(-2, 3)), lambda: a + b)
    return forms[form]() if form < 4 else (minimum if form == 6 else maximum)(a, b)


def points(*sizes: int):
    """Every value of the axes, for sizes from 1 up."""
    for numbers in product(sizes, repeat=2):
        size_values = dict(zip(("n", "m"), numbers, strict=True))
        ranges = [range(int(evaluate(e, size_values))) for e in EXTENTS.values()]
        for place in product(*ranges):
            yield size_values, dict(zip(EXTENTS, place, strict=True))


POINTS = [p for k, p in enumerate(points(1, 2, 3)) if k % 7 == 0 or k < 200]


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions(), st.sampled_from([n, m, n * m, n + m, 3, n * 2]))
def test_what_is_proven_inside_is_inside(e, extent):
    if proves_inside(e, extent):
        for sizes, axes in POINTS:
            assert 0 <= evaluate(e, sizes, axes) < evaluate(extent, sizes)


@pytest.mark.parametrize(
    "extent", [n * (m - 1), (n - 1) * (m - 1), n * m - n + m - 1, n * m * m - n]
)
@pytest.mark.parametrize("add", [0, 1, n])
def test_rows_of_a_difference(extent, add):
    """n rows of m - 1 places are some only where m - 1 is: what divides by it is inside."""
    at = axis("r", extent)
    for e in (floordiv(at + add, m - 1), mod(at + add, m - 1), floordiv(at, m - 1) * 2 + add):
        for limit in (n, m - 1, n + 1, extent, n * m, n * 2 + n):
            if not proves_inside(e, limit):
                continue
            for a, b in product(range(1, 6), repeat=2):
                sizes = {"n": a, "m": b}
                for place in range(evaluate(extent, sizes)):
                    assert 0 <= evaluate(e, sizes, {"r": place}) < evaluate(limit, sizes)


def test_bounds_from_rows_of_a_difference():
    at, other = axis("r", n * m - n), axis("s", (n - 2) * (m - 1))
    assert proves_inside(floordiv(at, m - 1), n)
    assert proves_inside(mod(at, m - 1), m - 1)
    assert not proves_inside(floordiv(at + 1, m - 1), n)
    assert not proves_inside(mod(other, m - 1), m - 1)  # n - 2 may be negative
    assert not proves_inside(mod(axis("i", n), m - 1), m - 1)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions(2), st.lists(expressions(2), max_size=3))
def test_what_follows_from_facts_holds_where_they_do(e, facts):
    if nonnegative(e, tuple(facts)):
        for sizes, axes in POINTS:
            if all(evaluate(f, sizes, axes) >= 0 for f in facts):
                assert evaluate(e, sizes, axes) >= 0


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(expressions(2), min_size=1, max_size=3))
def test_axes_that_are_proven_distinct_are_distinct(index):
    expected = determined_axes(tuple(index))
    for sizes in ({"n": 2, "m": 3}, {"n": 3, "m": 1}):
        seen: dict[tuple[int, ...], tuple[int, ...]] = {}
        ranges = [range(int(evaluate(e, sizes))) for e in EXTENTS.values()]
        for place in product(*ranges):
            axes = dict(zip(EXTENTS, place, strict=True))
            key = tuple(int(evaluate(e, sizes, axes)) for e in index)
            distinct = tuple(axes[a] for a in sorted(expected))
            assert seen.setdefault(key, distinct) == distinct


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions(2), expressions(2), st.lists(expressions(1), max_size=2))
def test_what_is_disjoint_never_meets(a, b, facts):
    if not disjoint((a,), tuple(facts), (b,), ()):
        return
    for sizes in ({"n": 1, "m": 2}, {"n": 2, "m": 2}):
        ranges = [range(int(evaluate(e, sizes))) for e in EXTENTS.values()]
        places = [dict(zip(EXTENTS, p, strict=True)) for p in product(*ranges)]
        left = {
            int(evaluate(a, sizes, p))
            for p in places
            if all(evaluate(f, sizes, p) >= 0 for f in facts)
        }
        assert not left & {int(evaluate(b, sizes, p)) for p in places}


i, j, k = AXES["i"], AXES["j"], AXES["k"]
p = value("p", n)


@pytest.mark.parametrize(
    ("e", "extent"),
    [
        (i, n),
        (n - 1 - i, n),
        (i * m + j, n * m),
        (i * 3 + k, n * 3),
        (i // 2, n),
        (p, n),
        (AXES["l"] // m, n),
        (AXES["l"] % m, m),
        ((i + 7) % n, n),
        (minimum(i + 1, n - 1), n),
        (maximum(i - 1, 0), n),
        (axis("h", n // 2) * 2 + 1, n),
        (p + j, n + m),
        (n // 2, n),
        (axis("h", (n - 1) // 2) * 2 + 2, n),
        (maximum(i, j), maximum(n, m)),
        (i + j, n + m - 1),
        (minimum(p, j), m),
    ],
)
def test_everyday_indices_are_proven(e, extent):
    assert proves_inside(e, extent)


@pytest.mark.parametrize(
    ("e", "extent"),
    [(i + 1, n), (i - 1, n), (i, m), (n, n), (i * 2, n), (i + k, n), (p + 1, n), (j - i, m)],
)
def test_what_can_leave_is_not_proven(e, extent):
    assert not proves_inside(e, extent)


def at(e: Index, dtype=i64) -> IndexValue:
    return IndexValue(e, dtype)


def test_conditions_become_facts():
    less = Apply("lt", (at(i), at(m)))
    assert facts_of(less, {}) == (m - i - 1,)
    assert facts_of(less, {}, holds=False) == (i - m,)
    assert facts_of(Apply("not", (less,)), {}) == (i - m,)
    both = Apply("and", (less, Ref("c")))
    assert facts_of(both, {"c": Apply("ge", (at(i), Const(2, i64)))}) == (m - i - 1, i - 2)
    assert facts_of(both, {}, holds=False) == ()
    either = Apply("or", (less, Apply("eq", (at(i), at(j)))))
    assert facts_of(either, {}) == ()
    assert facts_of(either, {}, holds=False) == (i - m,)
    equal = facts_of(Apply("eq", (Apply("mul", (at(i), Const(2, i64))), at(j))), {})
    assert set(equal) == {i * 2 - j, j - i * 2}
    assert facts_of(Apply("ne", (at(i), at(j))), {}, holds=False) == (i - j, j - i)


def test_narrow_integers_are_no_facts():
    """An i8 wraps: i < 100 says nothing about a long axis counted in it."""
    assert facts_of(Apply("lt", (at(i, i8), Const(100, i8))), {}) == ()
    assert facts_of(Apply("lt", (Cast(at(i), i32), Const(100, i32))), {}) == ()
    assert facts_of(Apply("lt", (Cast(at(i, i8), i64), Const(100, i64))), {}) == ()


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((i, j), "ij"),
        ((j, i), "ij"),
        ((i + j,), ""),
        ((i * m + j,), "ij"),
        ((i * 2,), "i"),
        ((n - 1 - i,), "i"),
        ((AXES["l"] // m, AXES["l"] % m), "l"),
        ((AXES["l"] // m,), ""),
        ((i, i + j), "ij"),
        ((p,), ""),
        ((p, i), "i"),
        ((i * 3 + k,), "ik"),
        ((i * 2 + k,), ""),
        (((AXES["l"] // 3) % n, AXES["l"] // (n * 3), AXES["l"] % 3), "l"),
        ((0,), ""),
    ],
)
def test_common_stores_are_proven_disjoint(index, expected):
    assert determined_axes(index) == set(expected)


def test_facts_in_another_order_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    # Windows of an image that were rolled: each way of subtracting some of six facts was tried on
    # its own, and a condition took seconds; a Swin's compilation was two thirds proofs.
    requested: list[object] = []
    step = bounds._prove_by_steps
    monkeypatch.setattr(
        bounds, "_prove_by_steps", lambda *a: (requested.append(a[:3]), step(*a))[1]
    )
    window, place = axis("w", 64), axis("p", 49)
    row = window // 8 * 7 + place // 7 + 3
    column = window % 8 * 7 + place % 7 + 3
    facts = tuple(52 - at + k for at in (row, column) for k in range(3))
    assert not nonnegative(50 - row - column, facts)
    assert len(requested) == len({*requested}) < 1500
    assert nonnegative(104 - row - column, facts)
