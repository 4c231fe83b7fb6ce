"""Simplified reductions give the same results: random chains under random masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.fusion.cascade.analyse import analyse
from smelt.fusion.cascade.monotone import hoist_monotone
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.ops.combine import COMBINES
from smelt.types.dtype import bf16, bool_, f32, f64

UNARY = ("neg", "log1p", "exp", "tanh", "sqrt", "abs", "square", "floor", "sigmoid", "log")
BINARY = ("max", "min", "add", "sub", "mul", "div")
ODD = (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 3e38)


@st.composite
def chains(draw: Any) -> tuple[Terms, Term]:
    """A largest or least element of operators on one number, masked here and there."""
    terms = Terms()
    t = terms.leaf("x", {"n"}, f32)
    for k in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("unary", "binary", "mask", "factor", "cast", "row")))
        if kind == "unary":
            t = terms.apply(draw(st.sampled_from(UNARY)), t)
        elif kind == "binary":
            c = terms.const(draw(st.sampled_from((0.0, -1.0, 0.5, 2.0, -np.inf))), f32)
            both = (t, c) if draw(st.booleans()) else (c, t)
            t = terms.apply(draw(st.sampled_from(BINARY)), *both)
        elif kind == "mask":
            c = terms.const(draw(st.sampled_from((0.0, -1e9, -np.inf, np.inf, 0.5))), f32)
            both = (t, c) if draw(st.booleans()) else (c, t)
            t = terms.select(terms.leaf(f"m{k}", {"n"}, bool_), *both)
        elif kind == "factor":
            t = terms.mul(t, terms.cast(terms.leaf(f"m{k}", {"n"}, bool_), f32))
        elif kind == "cast":
            t = terms.cast(t, bf16)
        else:
            t = terms.apply("max", t, terms.leaf("r", (), f32))
    return terms, terms.reduce(draw(st.sampled_from(("max", "min"))), t, ("n",), f32)


@given(chains(), st.integers(0, 2**32 - 1))
def test_nothing_changes(chain: tuple[Terms, Term], seed: int) -> None:
    """Rewritten chains give the same bits.

    Exceptions are the last bits of functions that are not rounded correctly, and a NaN from 0 times
    infinity where a mask is a factor.
    """
    terms, fold = chain
    way = hoist_monotone(terms, fold)
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(9) * 3).astype(np.float32)
    if seed % 3 == 0:
        x[rng.integers(0, 9, 3)] = rng.choice(ODD, 3)
    masks = {f"m{k}": rng.random(9) < rng.choice((0.0, 0.5, 1.0)) for k in range(5)}

    def leaf(t: Term) -> Any:
        if t.kind == "leaf":
            return {"x": x, "r": np.float32(0.25), **masks}[t.value]
        raise AssertionError(t)

    with np.errstate(all="ignore"):
        elements = np.broadcast_to(evaluate(fold.args[0], leaf), 9)
        want = COMBINES[fold.op].reduce(elements, axis=0)
        inner = COMBINES[way.combine].reduce(
            np.broadcast_to(evaluate(way.element, leaf), 9), axis=0
        )
        built = terms.leaf("result", (), way.element.dtype)
        actual = evaluate(
            way.apply_layers(terms, built), lambda t: inner if t is built else leaf(t)
        )
    if "mul" in repr(fold) and np.isnan(want):
        return
    assert np.allclose(actual, want, rtol=1e-6, atol=0, equal_nan=True)


def x_of(terms: Terms) -> Term:
    return terms.leaf("x", {"n"}, f32)


@pytest.mark.parametrize(
    ("ops", "left"),
    [
        (("sqrt",), "sqrt"),
        (("log",), "log"),
        (("square",), "square"),
        (("abs",), "abs"),
        (("exp", "log1p"), "x"),
        (("tanh", "neg"), "x"),
        (("sigmoid", "sqrt", "floor"), "x"),
        (("square", "sqrt"), "sqrt"),
    ],
)
def test_only_what_is_defined_everywhere_and_goes_one_way_leaves(
    ops: tuple[str, ...], left: str
) -> None:
    terms = Terms()
    t = x_of(terms)
    for op in ops:
        t = terms.apply(op, t)
    way = hoist_monotone(terms, terms.reduce("max", t, ("n",), f32))
    assert (way.element.op or "x") == left
    assert way.combine == ("min" if "neg" in ops else "max")


def test_other_numbers_than_the_mask_value_stay() -> None:
    """log1p(max(z, 0)) is never -1, hence -1 is nothing that a maximum may forget."""
    terms = Terms()
    keep, zero = terms.leaf("m", {"n"}, bool_), terms.const(0.0, f32)
    z = terms.apply("log1p", terms.apply("max", x_of(terms), zero))
    for c, forgotten in ((0.0, True), (0.5, False), (-1.0, False), (np.inf, False)):
        chosen = terms.select(keep, z, terms.const(c, f32))
        way = hoist_monotone(terms, terms.reduce("max", chosen, ("n",), f32))
        assert (way.layers != ()) == forgotten


def test_sums_and_reductions_with_other_readers_are_unchanged() -> None:
    """A softmax is bounded by the maximum of its own exponents, not of something below them."""
    terms = Terms()
    z = terms.apply("max", x_of(terms), terms.const(0.0, f32))
    assert hoist_monotone(terms, terms.reduce("sum", z, ("n",), f64)).layers == ()
    top = terms.reduce("max", z, ("n",), f32)
    total = terms.reduce("sum", terms.apply("exp", terms.sub(z, top)), ("n",), f32)
    assert [how.action for how in analyse(terms, [total], "n").treatments.values()] == [
        "plain",
        "dynamic",
    ]
    actual = analyse(terms, [top], "n")
    assert actual.states[0].block.args == (x_of(terms),)
