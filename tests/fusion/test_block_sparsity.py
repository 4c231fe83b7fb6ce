"""Bounds of what a block may hold are valid for random conditions and blocks.

Conditions are drawn from a grammar over positions, ids and lengths.  Each is evaluated on every
element of a block by NumPy, and its three-valued form once for the block: what is said to happen
nowhere must happen nowhere, and no position outside of a hull may be of use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.fusion.cascade.block_sparsity import bounds
from smelt.fusion.cascade.interval import BlockConditions
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.kernel.ir import IndexValue
from smelt.types.dtype import bool_, f32, i32, i64
from smelt.types.expr import axis
from smelt.types.expr import evaluate as number

EXTENT = 24
SHAPES: dict[str, tuple[str, ...]] = {
    "ids": ("i",),
    "other": ("j",),
    "length": (),
    "keep": ("j",),
    "mask": ("i", "j"),
}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


class World:
    """Arrays for the leaves of terms, and the value of any term on a block."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.arrays: dict[str, Any] = {
            name: rng.integers(0, 2 if name in ("keep", "mask") else EXTENT, (EXTENT,) * len(axes))
            for name, axes in SHAPES.items()
        }
        if seed % 2:
            self.arrays["ids"].sort()
            self.arrays["other"] = np.sort(self.arrays["other"])

    def value(self, t: Term, rows: range, columns: range) -> Any:
        ranges = {"i": np.array(rows)[:, None], "j": np.array(columns)[None, :]}

        def leaf(x: Term) -> Any:
            match x.kind:
                case "leaf":
                    index = tuple(ranges[a] for a in SHAPES[x.value])
                    return self.arrays[x.value][index].astype(x.dtype.numpy)
                case "extreme":
                    inside = np.asarray(self.value(x.args[0], rows, columns))
                    return inside.max() if x.value else inside.min()
                case "fails":
                    return not np.all(self.value(x.args[0], rows, columns))
                case _:
                    assert isinstance(x.value, IndexValue)
                    return np.asarray(number(x.value.index, {}, ranges))

        return evaluate(t, leaf)


@st.composite
def integers(draw: Any, terms: Terms, depth: int) -> Term:
    kind = draw(st.integers(0, 5 if depth else 2))
    if kind == 0:
        name = draw(st.sampled_from("ij"))
        return terms.index(axis(name, EXTENT))
    if kind == 1:
        return terms.const(draw(st.integers(-6, 30)), i64)
    if kind == 2:
        name = draw(st.sampled_from(("ids", "other", "length")))
        narrow = terms.leaf(name, SHAPES[name], draw(st.sampled_from((i32, i64))))
        return terms.cast(narrow, i64)
    x = draw(integers(terms, depth - 1))
    if kind == 3:
        return terms.apply(draw(st.sampled_from(("neg", "abs"))), x)
    if kind == 4:
        divisor = terms.const(draw(st.integers(1, 7)), i64)
        return terms.apply(draw(st.sampled_from(("floordiv", "mod"))), x, divisor)
    op = draw(st.sampled_from(("add", "sub", "max", "min")))
    return terms.apply(op, x, draw(integers(terms, depth - 1)))


@st.composite
def conditions(draw: Any, terms: Terms, depth: int = 2) -> Term:
    kind = draw(st.integers(0, 4 if depth else 1))
    if kind == 0:
        name = draw(st.sampled_from(("keep", "mask")))
        return terms.leaf(name, SHAPES[name], bool_)
    if kind < 3:
        pair = [draw(integers(terms, 2)) for _ in range(2)]
        return terms.apply(draw(st.sampled_from(COMPARISONS)), *pair)
    x = draw(conditions(terms, depth - 1))
    if kind == 3:
        return terms.apply("not", x)
    op = draw(st.sampled_from(("and", "or", "xor")))
    return terms.apply(op, x, draw(conditions(terms, depth - 1)))


@given(st.data())
def test_what_happens_nowhere_happens_nowhere(data: Any) -> None:
    terms = Terms()
    condition = data.draw(conditions(terms))
    world = World(data.draw(st.integers(0, 9)))
    rules = BlockConditions(terms, "j", frozenset())
    each = BlockConditions(terms, "j", frozenset(), each=True)
    for wanted in (True, False):
        may, hull = rules.may(condition, wanted), rules.hull(condition, wanted)
        for i0, j0, n in ((0, 0, 4), (5, 3, 7), (17, 0, 7), (3, 19, 5)):
            rows, columns = range(i0, i0 + n), range(j0, min(j0 + n, EXTENT))
            holds = np.asarray(world.value(condition, rows, columns)) == wanted
            assert bool(world.value(may, rows, columns)) or not holds.any()
        everywhere = world.value(condition, rows, range(EXTENT)) == wanted
        useful = np.broadcast_to(everywhere, (len(rows), EXTENT)).any(axis=0)
        first = 0 if hull.start is None else int(world.value(hull.start, rows, range(EXTENT)))
        stop = EXTENT if hull.stop is None else int(world.value(hull.stop, rows, range(EXTENT)))
        assert not useful[: max(first, 0)].any() and not useful[max(stop, 0) :].any()
        for j in range(EXTENT):
            reported = bool(world.value(each.may(condition, wanted), rows, range(j, j + 1)))
            assert reported or not useful[j]


@pytest.mark.parametrize(
    ("code", "none"),
    [
        ("le", (0, 8)),
        ("lt", (4, 8)),
        ("gt", (8, 4)),
        ("eq", (0, 8)),
    ],
)
def test_a_comparison_of_positions_is_known_apart_from_its_edge(
    code: str, none: tuple[int, int]
) -> None:
    terms = Terms()
    i, j = (terms.index(axis(a, EXTENT)) for a in "ij")
    may = BlockConditions(terms, "j", frozenset()).may(terms.apply(code, j, i), True)
    rows, columns = (range(at, at + 4) for at in none)
    assert not World(0).value(may, rows, columns)
    assert World(0).value(may, range(4, 8), range(4, 8))


def test_a_distance_has_two_ends() -> None:
    terms = Terms()
    i, j = (terms.index(axis(a, EXTENT)) for a in "ij")
    near = terms.apply("le", terms.apply("abs", terms.sub(i, j)), terms.const(3, i64))
    hull = BlockConditions(terms, "j", frozenset()).hull(near, True)
    assert hull.start is not None and hull.stop is not None and hull.exact
    ends = [World(0).value(e, range(8, 12), range(EXTENT)) for e in (hull.start, hull.stop)]
    assert ends == [5, 15]


def test_narrow_integers_wrap_and_say_nothing() -> None:
    terms = Terms()
    ids = terms.leaf("ids", ("i",), i32)
    far = terms.apply("sub", ids, terms.leaf("other", ("j",), i32))
    condition = terms.apply("lt", far, terms.const(-3, i32))
    actual = BlockConditions(terms, "j", frozenset()).may(condition, True)
    assert actual.kind == "const" and actual.value is True


@pytest.mark.parametrize("others", range(7))
def test_what_counts_seldom_counts(others: int) -> None:
    """Elements of joined arrays behind a few conditions: each has to hold, and the first not to."""
    terms = Terms()
    k = terms.index(axis("j", EXTENT))
    before = terms.apply("lt", k, terms.const(8, i64))
    x, y, rows = (terms.leaf(n, a, f32) for n, a in (("x", "ij"), ("y", "ij"), ("rows", "i")))
    inside = terms.apply("ge", k, terms.const(8, i64))
    for n in range(others):
        inside = terms.logical_and(inside, terms.leaf(("told", n), "j", bool_))
    zero = terms.const(0.0, f32)
    right = terms.select(inside, y, terms.select(before, x, zero))
    left = terms.select(terms.apply("le", rows, zero), zero, terms.apply("max", rows, zero))
    assert bounds(terms, [terms.dot(left, right, ("i",), f32)], "j", frozenset()) == (None, None)
    reported = [terms.dot(left, terms.select(before, x, zero), ("i",), f32)]
    _, stop = bounds(terms, reported, "j", frozenset())
    assert stop is not None and stop.kind == "const" and stop.value == 8


@pytest.mark.parametrize("way", ["state", "fold", "memory"])
@pytest.mark.parametrize(("put", "ends"), [(-np.inf, True), (-1e9, False)])
def test_a_row_of_nothing_but_a_great_number_weighs(put: float, ends: bool, way: str) -> None:
    """The weights of masked elements are 0 beside others, and all the same where there are none:
    then the greatest is that number itself.  Of nothing but -inf a program makes NaN."""
    terms = Terms()
    i, j = (terms.index(axis(a, EXTENT)) for a in "ij")
    scores, g = (terms.leaf(n, "ij", f32) for n in ("x", "y"))
    s = terms.select(terms.apply("le", j, i), scores, terms.const(put, f32))
    top = {
        "state": terms.state(0, "i", f32),
        "memory": terms.leaf("z", "i", f32),
        "fold": terms.opaque(("reduce", "max", ("j",)), (s,), "i", f32),
    }[way]
    weight = terms.apply("exp", terms.sub(s, top))
    _, stop = bounds(terms, [terms.dot(g, weight, ("i",), f32)], "j", frozenset())
    assert (stop is not None) == ends
