"""Reductions over concatenations: which are split, with equal results."""

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
from smelt.graph.walk import users
from smelt.ops.create import Constant
from smelt.ops.reduce import Reduce
from smelt.ops.view import Concat, Expand, Slice
from smelt.passes.canonicalize import canonicalize
from smelt.passes.reduce_of_concat import split_concat_reductions

HEAD = """graph f(x: f32[n,k], w: f32[k,c], b: f32[n,d], g: f32[n,1]) {
 z = contract(x, w) {spec="n,k; k,c -> n,c"}
 t = exp(z)
"""


def parsed_body(body: str) -> Graph:
    return split_concat_reductions(parse(f"{HEAD}{body}\n}}"))


def concatenations(graph: Graph) -> list[int]:
    """For each concatenation, how many folds read it."""
    readers = users(graph)
    return [
        sum(isinstance(y.op, Reduce) for y in readers[x])
        for x in graph.nodes()
        if isinstance(x.op, Concat)
    ]


@pytest.mark.parametrize("fold", ["max", "min", "sum", "prod"])
def test_a_reduction_of_parts(fold: str) -> None:
    graph = parsed_body(
        f" r = concat(t, b) {{axis=1}}\n y = reduce.{fold}(r) {{axes=(1,)}}\n return y"
    )
    assert concatenations(graph) == []
    assert sum(isinstance(x.op, Reduce) for x in graph.nodes()) == 2


@pytest.mark.parametrize(
    "body",
    [
        " r = concat(t, b) {axis=1}\n y = reduce.max(r) {axes=(1,)}\n return y, r",
        " r = concat(t, b) {axis=1}\n y = reduce.max(r) {axes=(1,)}\n e = exp(r)\n return y, e",
        (
            " r = concat(t, b) {axis=1}\n y = reduce.max(r) {axes=(1,)}\n"
            " e = reduce.sum(r) {axes=(0,)}\n return y, e"
        ),
        " r = concat(t, b) {axis=1}\n y = reduce.argmax(r) {axes=(1,)}\n return y",
        " r = concat(b, g) {axis=1}\n y = reduce.sum(r) {axes=(1,)}\n return y",
        " r = concat(t, b) {axis=1}\n y = reduce.sum(r) {axes=(0,)}\n return y",
        " r = concat(b, b, b, b, t) {axis=1}\n y = reduce.sum(r) {axes=(1,)}\n return y",
    ],
    ids=["whole", "of whole", "other axis", "place", "no product", "along others", "many parts"],
)
def test_what_stays_one_reduction(body: str) -> None:
    graph = parsed_body(body)
    assert len(concatenations(graph)) == 1
    assert split_concat_reductions(graph) is graph


def test_a_sum_as_wide_as_its_elements_is_left_alone() -> None:
    """Two sums and their sum would round otherwise than one."""
    code = (
        "graph f(x: f64[n,k], w: f64[k,c], b: f64[n,1]) {\n"
        ' z = contract(x, w) {spec="n,k; k,c -> n,c"}\n r = concat(z, b) {axis=1}\n'
        " y = reduce.sum(r) {axes=(1,)}\n m = reduce.max(r) {axes=(1,)}\n return y, m\n}"
    )
    assert concatenations(split_concat_reductions(parse(code))) == [1], (
        "the maximum alone is taken apart"
    )


@given(
    sizes=st.tuples(*[st.integers(0, 4)] * 4),
    fold=st.sampled_from(["max", "min", "sum", "prod"]),
    first=st.booleans(),
    back=st.booleans(),
)
def test_the_same_numbers(sizes: tuple[int, ...], fold: str, first: bool, back: bool) -> None:
    """Of random parts, also empty ones, in either order, through operators with broadcast ones."""
    parts = "t, b" if first else "b, t"
    body = (
        f" r = concat({parts}) {{axis=1}}\n s = sub(r, g)\n a = abs(s)\n"
        f" y = reduce.{fold}(a) {{axes=({'0,1' if back else '1,'})}}\n return y"
    )
    graph = parse(f"{HEAD}{body}\n}}")
    apart = split_concat_reductions(graph)
    assert concatenations(apart) == []
    n, k, c, d = sizes
    if fold in ("max", "min"):  # of nothing they have no value
        n, c, d = n + 1, c + 1, d + 1
    rng = np.random.default_rng(n + k + c + d)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((n, k), (k, c), (n, d), (n, 1))]
    (want,), (actual,) = (run(g, arrays) for g in (graph, apart))
    if fold in ("max", "min"):
        assert np.array_equal(want, actual)
    else:
        assert np.allclose(want, actual, rtol=1e-6)


def contrast(xp: Any, q: Any, key: Any, queue: Any) -> Any:
    """Momentum contrast (He et al., 2020): the positive pair stands in front of a queue."""
    positive = xp.sum(q * key, axis=-1, keepdims=True)
    row = xp.concat([positive, xp.matmul(q, xp.matrix_transpose(queue))], axis=-1) / 0.07
    top = xp.max(row, axis=-1, keepdims=True)
    return xp.log(xp.sum(xp.exp(row - top), axis=-1)) + (top - row)[:, 0]


def test_a_loss_over_a_queue_stores_no_matrix() -> None:
    rng = np.random.default_rng(0)
    shapes = (1024, 32), (1024, 32), (20_000, 32)
    arrays = [rng.standard_normal(s).astype(np.float32) / 8 for s in shapes]
    program = sm.jit(lambda *xs: contrast(sm, *xs)).lower(*arrays).compile()
    assert program.memory_analysis().temp_size_in_bytes < 1024 * 20_000 * 4 / 3
    (actual,) = (np.asarray(y) for y in [program(*arrays)])
    want = contrast(np, *(a.astype(np.float64) for a in arrays))
    assert np.allclose(actual, want, rtol=1e-5, atol=1e-5)


def test_a_slice_of_padding_is_its_value() -> None:
    code = (
        "graph f(x: f32[n,c]) {\n p = pad(x) {low=(0, 2), high=(0, 3), value=7.0}\n"
        " a = slice(p) {starts=(0, c + 2), sizes=(n, 3), steps=(1, 1)}\n"
        " b = slice(p) {starts=(0, 0), sizes=(n, 2), steps=(1, 1)}\n"
        " d = slice(p) {starts=(0, 1), sizes=(n, 2), steps=(1, 1)}\n return a, b, d\n}"
    )
    graph = canonicalize(parse(code))
    assert [type(y.op) for y in graph.outputs] == [Expand, Expand, Slice]
    assert all(isinstance(y.inputs[0].op, Constant) for y in graph.outputs[:2])
    x = np.ones((2, 5), np.float32)
    for actual, want in zip(run(graph, [x]), run(parse(code), [x]), strict=True):
        assert np.array_equal(actual, want)
