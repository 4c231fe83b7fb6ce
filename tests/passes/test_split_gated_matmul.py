"""Products whose halves gate each other: which are split, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import smelt as sm
from smelt.graph.interp import run
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.ops.contract import Contract
from smelt.ops.view import Slice
from smelt.passes.split_gated_matmul import split_gated_matmul

HEAD = """graph f(x: f32[n,k], w: f32[k,192], b: f32[192], c: f32[n,1], v: f32[k,m]) {
 h = contract(x, w) {spec="n,k; k,c -> n,c"}
"""


def part(name: str, of: str, start: int, width: int, first: int = 0, step: int = 1) -> str:
    """A part of a row, in units of 16 columns."""
    rows, start = "n" if first == 0 else f"n - {first}", start if step > 1 else 16 * start
    return (
        f" {name} = slice({of}) {{starts=({first}, {start}), sizes=({rows}, {16 * width}), "
        f"steps=(1, {step})}}\n"
    )


BOTH = part("p", "h", 0, 6) + part("q", "h", 6, 6)


def products(graph: Graph) -> int:
    return sum(isinstance(x.op, Contract) for x in graph.nodes())


def agree(graph: Graph, new: Graph, seed: int, *, special: bool = False) -> None:
    rng = np.random.default_rng(seed)
    for n, k in ((0, 3), (1, 1), (5, 0), (7, 4)):
        arrays = [
            rng.standard_normal(s).astype(np.float32)
            for s in ((n, k), (k, 192), (192,), (n, 1), (k, 2))
        ]
        if special:
            for a in arrays:
                a.flat[:: max(a.size // 3, 1)] = [np.nan, np.inf, -np.inf, 0.0][seed % 4]
        with np.errstate(all="ignore"):
            for x, y in zip(run(graph, arrays), run(new, arrays), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        BOTH + " e = exp(p)\n y = mul(e, q)\n return y",
        BOTH + " e = exp(p)\n y = mul(e, q)\n return y, e",
        part("p", "h", 1, 4) + part("q", "h", 7, 4) + " y = max(p, q)\n return y",
        part("q", "h", 4, 4)
        + part("p", "h", 0, 4)
        + part("r", "h", 8, 4)
        + " e = mul(q, p)\n y = add(r, e)\n return y",
        " t = add(h, b)\n s = mul(t, c)\n"
        + part("p", "s", 0, 6)
        + part("q", "s", 6, 6)
        + " y = mul(p, q)\n return y",
        " t = mul(h, h)\n"
        + part("p", "t", 0, 6)
        + part("q", "t", 6, 6)
        + " y = sub(q, p)\n return y",
    ],
)
def test_parts_that_meet(body: str) -> None:
    graph = parse(f"{HEAD}{body}\n}}")
    new = split_gated_matmul(graph, {"n": 256})
    assert products(new) == sum(isinstance(x.op, Slice) for x in graph.nodes())
    wide = [x for x in new.nodes() if isinstance(x.op, Contract) and 192 in x.type.shape]
    assert not wide
    for seed in range(4):
        agree(graph, new, seed)
        agree(graph, new, seed, special=True)


@pytest.mark.parametrize(
    "body",
    [
        BOTH + " y = mul(p, q)\n return y, h",  # the product is wanted whole
        BOTH + " y = mul(p, q)\n z = exp(h)\n return y, z",
        BOTH + " return p, q",  # they do not meet
        BOTH + " s = reduce.sum(p) {axes=(1,)}\n t = reduce.sum(q) {axes=(1,)}\n"
        " y = add(s, t)\n return y",
        part("p", "h", 0, 6) + part("q", "h", 5, 6) + " y = mul(p, q)\n return y",  # they overlap
        part("p", "h", 0, 6, step=2) + part("q", "h", 1, 6, step=2) + " y = mul(p, q)\n return y",
        part("p", "h", 0, 6, first=1)
        + part("q", "h", 6, 6, first=1)
        + " y = mul(p, q)\n return y",  # of fewer rows, too
        ' z = contract(x, w) {spec="n,k; k,c -> n,c"}\n e = exp(z)\n s = add(h, e)\n'
        + part("p", "s", 0, 6)
        + part("q", "s", 6, 6)
        + " y = mul(p, q)\n return y",  # a sum of two products
        " y = exp(h)\n return y",
        part("p", "h", 0, 6) + " y = exp(p)\n return y",
    ],
)
def test_what_stays(body: str) -> None:
    graph = parse(f"{HEAD}{body}\n}}")
    assert split_gated_matmul(graph, {"n": 256}) is graph


RESHAPED = """graph f(x: f32[n,m,k], w: f32[k,192], b: f32[192], c: f32[96]) {{
 r = reshape(x) {{shape=(n*m, k)}}
 h = contract(r, w) {{spec="n,k; k,c -> n,c"}}
 t = add(h, b)
{}
 return y
}}"""
HALVES = """ s = reshape(t) {shape=(n, m, 192)}
 p = slice(s) {starts=(0, 0, 0), sizes=(n, m, 96), steps=(1, 1, 1)}
 q = slice(s) {starts=(0, 0, 96), sizes=(n, m, 96), steps=(1, 1, 1)}
 y = mul(p, q)"""
PAIRS = """ s = reshape(t) {shape=(n, m, 2, 96)}
 u = mul(s, c)
 p = slice(u) {starts=(0, 0, 0, 0), sizes=(n, m, 1, 96), steps=(1, 1, 1, 1)}
 q = slice(u) {starts=(0, 0, 1, 0), sizes=(n, m, 1, 96), steps=(1, 1, 1, 1)}
 o = reshape(p) {shape=(n, m, 96)}
 i = reshape(q) {shape=(n, m, 96)}
 y = mul(o, i)"""


@pytest.mark.parametrize("body", [HALVES, PAIRS])
def test_parts_behind_a_reshape(body: str) -> None:
    """PyTorch's linear layers take rows of one axis."""
    graph = parse(RESHAPED.format(body))
    new = split_gated_matmul(graph, {"n": 2, "m": 128})
    wide = [x for x in new.nodes() if isinstance(x.op, Contract) and 192 in x.type.shape]
    assert products(new) == 2 and not wide
    assert split_gated_matmul(graph, {"n": 2, "m": 64}) is graph
    rng = np.random.default_rng(0)
    for n, m, k in ((0, 3, 2), (1, 1, 1), (3, 5, 4), (2, 3, 0)):
        shapes = ((n, m, k), (k, 192), (192,), (96,))
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        for x, y in zip(run(graph, arrays), run(new, arrays), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        PAIRS.replace("2, 96)", "96, 2)")
        .replace("1, 96)", "96, 1)")
        .replace("1, 0)", "0, 1)")
        .replace(" u = mul(s, c)\n", "")
        .replace("slice(u)", "slice(s)"),  # alternate columns
        HALVES.replace("(n, m, 96)", "(n, m - 1, 96)"),  # of fewer rows, too
        """ s = reshape(t) {shape=(n, m, 4, 48)}
 p = slice(s) {starts=(0, 0, 0, 0), sizes=(n, m, 4, 24), steps=(1, 1, 1, 1)}
 q = slice(s) {starts=(0, 0, 0, 24), sizes=(n, m, 4, 24), steps=(1, 1, 1, 1)}
 y = mul(p, q)""",  # parts of each of four ranges
        """ s = reshape(t) {shape=(n*m*192,)}
 p = slice(s) {starts=(0,), sizes=(n*m*96,), steps=(1,)}
 q = slice(s) {starts=(n*m*96,), sizes=(n*m*96,), steps=(1,)}
 y = mul(p, q)""",  # parts of rows and columns
    ],
)
def test_ranges_that_are_none_of_the_product_stay(body: str) -> None:
    graph = parse(RESHAPED.format(body))
    assert split_gated_matmul(graph, {"n": 64, "m": 128}) is graph


def test_few_rows_stay_together() -> None:
    graph = parse(f"{HEAD}{BOTH} y = mul(p, q)\n return y\n}}")
    assert split_gated_matmul(graph, {"n": 100}) is graph
    assert products(split_gated_matmul(graph, {"n": 4096})) == 2


def test_narrow_parts_stay_together() -> None:
    for width in (1, 2, 3, 4):
        body = part("p", "h", 0, width) + part("q", "h", 12 - width, width)
        graph = parse(f"{HEAD}{body} y = mul(p, q)\n return y\n}}")
        assert products(split_gated_matmul(graph, {"n": 4096})) == (1 if width < 4 else 2)
    graph = parse("""graph f(x: f32[n,k], w: f32[k,2*m]) {
 h = contract(x, w) {spec="n,k; k,c -> n,c"}
 p = slice(h) {starts=(0, 0), sizes=(n, m), steps=(1, 1)}
 q = slice(h) {starts=(0, m), sizes=(n, m), steps=(1, 1)}
 y = mul(p, q)
 return y
}""")
    assert split_gated_matmul(graph, {"n": 4096, "m": 63}) is graph
    assert products(split_gated_matmul(graph, {"n": 4096, "m": 64})) == 2


def test_an_axis_of_both_factors_stays() -> None:
    """Heads that both factors have: parts of them are parts of both."""
    graph = parse("""graph f(x: f32[4,n,k], w: f32[4,k,m]) {
 h = contract(x, w) {spec="h,n,k; h,k,m -> h,n,m"}
 p = slice(h) {starts=(0, 0, 0), sizes=(2, n, m), steps=(1, 1, 1)}
 q = slice(h) {starts=(2, 0, 0), sizes=(2, n, m), steps=(1, 1, 1)}
 y = mul(p, q)
 return y
}""")
    assert split_gated_matmul(graph, {"n": 512, "m": 512, "k": 64}) is graph


def test_parts_of_rows_stay_together() -> None:
    """Each would pack the columns that they share."""
    graph = parse("""graph f(x: f32[512,k], w: f32[k,m]) {
 h = contract(x, w) {spec="n,k; k,c -> n,c"}
 p = slice(h) {starts=(0, 0), sizes=(256, m), steps=(1, 1)}
 q = slice(h) {starts=(256, 0), sizes=(256, m), steps=(1, 1)}
 y = mul(p, q)
 return y
}""")
    assert split_gated_matmul(graph, {"m": 512, "k": 64}) is graph


def gated(xp: Any, *inputs: Any) -> Any:
    x, w, b = inputs
    h = x @ w + b
    n = b.shape[0] // 2
    g = h[..., :n]
    return g / (1 + xp.exp(-g)) * h[..., n:]


@pytest.mark.parametrize(
    ("shape", "constant", "dtype"),
    [
        ((256, 64, 80), False, np.float32),
        ((256, 64, 80), True, np.float64),
        ((3, 150, 33, 67), True, np.float32),
        ((129, 7, 1), False, np.float32),
    ],
)
def test_a_gate_is_one_kernel(shape: tuple[int, ...], constant: bool, dtype: type) -> None:
    *rows, k, n = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*rows, k)).astype(dtype)
    w, b = (rng.standard_normal(s).astype(dtype) for s in ((k, 2 * n), (2 * n,)))
    if constant:
        kept = sm.asarray(w), sm.asarray(b)
        built, inputs = sm.jit(lambda x: gated(sm, x, *kept)), (x,)
    else:
        built, inputs = sm.jit(lambda *a: gated(sm, *a)), (x, w, b)
    with np.errstate(all="ignore"):
        want = gated(np, *(a.astype(np.float64) for a in (x, w, b)))
    np.testing.assert_allclose(np.asarray(built(*inputs)), want, rtol=2e-4, atol=2e-4)
    if rows[0] * n > 4096:
        assert len(sm.explain(built, *inputs).kernels) == 1
    transposed = np.asfortranarray(x)
    inputs = (transposed, *inputs[1:])
    np.testing.assert_allclose(np.asarray(built(*inputs)), want, rtol=2e-4, atol=2e-4)


def test_other_sizes_in_one_plan() -> None:
    """Rows, depth and width that the recording knows nothing of, down to nothing."""
    rng = np.random.default_rng(1)
    jitted = sm.jit(lambda *a: gated(sm, *a))
    for m, k, n in ((300, 40, 72), (1, 40, 24), (0, 3, 5), (17, 1, 1), (200, 65, 130)):
        x, w, b = (
            rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, 2 * n), (2 * n,))
        )
        want = gated(np, *(a.astype(np.float64) for a in (x, w, b)))
        np.testing.assert_allclose(np.asarray(jitted(x, w, b)), want, rtol=2e-4, atol=2e-4)


@given(st.lists(st.integers(0, 4), min_size=4, max_size=4), st.integers(0, 3))
def test_parts_of_any_widths(widths: list[int], seed: int) -> None:
    """Gaps and parts in turn: those that meet broadcast no more than their own shape."""
    gap, one, between, other = widths
    body = part("p", "h", gap, one) + part("q", "h", min(gap + one + between, 8), other)
    if one != other or gap + one + between > 8:
        return
    graph = parse(f"{HEAD}{body} y = add(p, q)\n return y\n}}")
    agree(graph, split_gated_matmul(graph, {"n": 256}), seed)
