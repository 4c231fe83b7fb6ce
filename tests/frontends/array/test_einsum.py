"""Einstein's notation: what NumPy computes, in as many kernels as the same products spelled out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm

SPELLINGS = [
    "ij,jk->ik", "ij,jk", "ij->ji", "ij->", "ij->j", "ij", "ba", "ii->i", "ii", "iij->ji",
    "i,j->ij",
    "i,i->", "i,i->i", "bqd,bkd->bqk", "bhqd,bhkd->bhqk", "...ij,...jk->...ik", "...i->...",
    "i...,i...->...", "ij,j,jk->ik", "ab,bc,cd,de->ae", "bi,ijk,bj->bk", "aij,ajk->ik",
    " ij , jk -> k i ",
    "ij,kl->", "iji->j", "i,ij,j", "...,...", "abab->ba",
]  # fmt: skip
SIZES = dict(
    zip("abcdefghijklmnopq", [3, 4, 5, 2, 6, 3, 4, 2, 3, 5, 2, 4, 3, 5, 2, 3, 4], strict=True)
)


def operands(
    subscripts: str, dtype: Any = np.float64, stack: tuple[int, ...] = (2, 3)
) -> list[Any]:
    rng = np.random.default_rng(len(subscripts))
    left = subscripts.replace(" ", "").partition("->")[0]
    results = []
    for side in left.split(","):
        shape: tuple[int, ...] = ()
        for part in side.replace("...", ".").strip():
            shape += stack if part == "." else (SIZES[part],)
        results.append(rng.integers(-4, 5, shape).astype(dtype))
    return results


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("subscripts", SPELLINGS)
def test_it_is_numpys(subscripts: str, jit: bool) -> None:
    inputs = operands(subscripts)

    def product(*xs: Any) -> Any:
        return sm.einsum(subscripts, *xs)

    actual = sm.jit(product)(*inputs) if jit else product(*map(sm.asarray, inputs))
    wanted = np.einsum(subscripts, *inputs)
    assert actual.shape == wanted.shape
    np.testing.assert_array_equal(np.asarray(actual), wanted)  # small whole numbers: exact


@st.composite
def programs(draw: Any) -> tuple[str, list[Any]]:
    """Draw up to four operands over a few letters, of any type.

    Sizes of 0 and 1 are among them.
    """
    letters = "abcd"[: draw(st.integers(1, 4))]
    sizes = {c: draw(st.sampled_from([0, 1, 2, 3, 7])) for c in letters}
    dots = draw(st.sampled_from([(), (), (2,), (1, 3)]))
    dtype = draw(st.sampled_from(["int32", "int8", "float32", "float64", "uint16"]))
    sides, arrays = [], []
    for k in range(draw(st.integers(1, 4))):
        side = draw(st.text(letters, max_size=3))
        stretched = {c: draw(st.booleans()) and side.count(c) == 1 for c in side}
        shape = [1 if stretched[c] else sizes[c] for c in side]
        place = draw(st.integers(0, len(side))) if dots and draw(st.booleans()) else None
        if place is not None:
            side = f"{side[:place]}...{side[place:]}"
            shape[place:place] = dots
        sides.append(side)
        rng = np.random.default_rng(k)
        arrays.append(rng.integers(0, 4, shape).astype(dtype))
    used = sorted(set("".join(sides)) - {"."})
    out = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    shown = "..." if any("." in s for s in sides) else ""
    return ",".join(sides) + "->" + shown + "".join(out), arrays


@settings(max_examples=200, deadline=None)
@given(programs())
def test_random_subscripts(program: tuple[str, list[Any]]) -> None:
    subscripts, arrays = program
    wanted = np.einsum(subscripts, *arrays)
    actual = sm.einsum(subscripts, *map(sm.asarray, arrays))
    assert (actual.shape, np.asarray(actual).dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(np.asarray(actual), wanted)


def test_a_chain_is_multiplied_in_the_order_that_costs_least() -> None:
    """A matrix by a matrix by a vector: never the product of the matrices."""
    a, b, v = np.ones((300, 300)), np.ones((300, 300)), np.ones(300)
    report = sm.explain(lambda a, b, v: sm.einsum("ij,jk,k->i", a, b, v), a, b, v)
    assert sum(k.flops for k in report.kernels) < 300 * 300 * 8


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    scores = xp.einsum("bhqd,bhkd->bhqk", q, k) * 0.125
    e = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return xp.einsum("bhqk,bhkd->bhqd", e, v) / xp.sum(e, axis=-1, keepdims=True)


def test_attention_in_this_notation_is_one_kernel() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 1024, 64)).astype("f") for _ in range(3))
    f = sm.jit(lambda q, k, v: attention(sm, q, k, v))
    wide = (a.astype("d") for a in (q, k, v))
    np.testing.assert_allclose(np.asarray(f(q, k, v)), attention(np, *wide), atol=2e-6)
    assert len(sm.explain(f, q, k, v).kernels) == 1


def test_sizes_are_symbols_and_gradients_flow() -> None:
    f = sm.jit(lambda x, w: sm.einsum("...i,io,o->...", x, w, w[0]))
    g = sm.jit(sm.grad(lambda x, w: sm.sum(sm.einsum("bi,io->bo", x, w) ** 2)))
    rng = np.random.default_rng(0)
    for n in (5, 7, 9):
        x, w = rng.standard_normal((n, 4)), rng.standard_normal((4, 3))
        np.testing.assert_allclose(np.asarray(f(x, w)), x @ w @ w[0], rtol=1e-12)
        np.testing.assert_allclose(np.asarray(g(x, w)), 2 * x @ w @ w.T, rtol=1e-12)
    assert len(f.traces) == len(g.traces) == 1


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(2, 3)]),
        ("ij->ik", [(2, 3)]),
        ("ij->ii", [(2, 3)]),
        ("i->i", [(2, 3)]),
        ("ijk", [(2, 3)]),
        ("i1->i", [(2, 3)]),
        ("i....->i", [(2, 3)]),
        ("...->", [(2, 3)]),
        ("ij", []),
    ],
)
def test_subscripts_that_do_not_fit(subscripts: str, shapes: list[Any]) -> None:
    with pytest.raises(sm.errors.ArgumentError, match="einsum"):
        sm.einsum(subscripts, *map(sm.ones, shapes))


def test_numpys_other_form_is_refused_by_name() -> None:
    with pytest.raises(sm.errors.ArgumentError, match="a text such as"):
        sm.einsum(sm.ones((2, 3)), [0, 1], [1, 0])  # type: ignore[arg-type]


def test_sizes_that_differ() -> None:
    with pytest.raises(sm.errors.ShapeError, match="3"):
        sm.einsum("ij,jk->ik", sm.ones((2, 3)), sm.ones((4, 5)))
    with pytest.raises(sm.errors.ShapeError, match="'i' is 2 and 3"):
        sm.einsum("ii", sm.ones((2, 3)))
    with pytest.raises(sm.errors.DTypeError):
        sm.einsum("i,i", sm.ones(3, dtype=sm.bool), sm.ones(3, dtype=sm.bool))


def test_a_product_names_the_dimensions_it_sums_over() -> None:
    reported = "dimension -1 of one is 4, dimension -2 of the other 5"
    for product in (lambda x, y: x @ y, lambda x, y: sm.einsum("ij,jk->ik", x, y)):
        with pytest.raises(sm.errors.ShapeError, match=reported):
            sm.jit(product)(np.ones((3, 4)), np.ones((5, 2)))
