"""Views that move behind concatenations or before merged axes keep the elements."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.effort import effort

import smelt as sm
from smelt import passes
from smelt.graph import build
from smelt.graph.interp import run
from smelt.graph.ir import Graph, Node
from smelt.graph.text import parse
from smelt.graph.verify import verify, verify_same_signature
from smelt.ops.view import Concat, Permute, Reshape
from smelt.passes.canonicalize import canonicalize
from smelt.passes.views import move_views
from smelt.types.dtype import f32
from smelt.types.tensor import TensorType


@st.composite
def splits(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape of `count` elements."""
    shape: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0] or [1, 2]))
        shape.append(n)
        count //= n
    return (*shape, count)


@st.composite
def concatenated_views(draw: st.DrawFn) -> Graph:
    """Draw concatenations of arrays, transposed or not, and reshape them."""
    rest = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6]), min_size=1, max_size=3))
    axis = draw(st.integers(0, len(rest)))
    widths = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    shapes = [(*rest[:axis], n, *rest[axis:]) for n in widths]
    inputs = [build.input(f"x{k}", TensorType(f32, s)) for k, s in enumerate(shapes)]
    x: Node = build.apply(Concat(axis), *inputs)
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            x = build.apply(Permute(tuple(draw(st.permutations(range(x.type.rank))))), x)
        total = prod(n for n in x.type.shape if isinstance(n, int))
        x = build.apply(Reshape(draw(splits(total))), x)
    return Graph("f", tuple(inputs), (x,))


@effort(300)
@given(concatenated_views())
def test_views_of_concatenated_arrays_keep_every_element(graph: Graph) -> None:
    arrays = [
        np.arange(prod(x.type.shape), dtype=np.float32).reshape(x.type.shape) + 100 * k  # type: ignore[arg-type]
        for k, x in enumerate(graph.inputs)
    ]
    (wanted,) = run(graph, arrays)
    for change in (move_views, canonicalize, passes.run):
        after = change(graph)
        verify(verify_same_signature(graph, after))
        np.testing.assert_array_equal(run(after, arrays)[0], wanted)


STACKED = """graph f(q: f32[b,h,n,e], k: f32[b,h,n,e], v: f32[b,h,n,e], w: f32[h*e*3,c]) {
 q1 = reshape(q) {shape=(b*h, n, e)}
 q2 = permute(q1) {perm=(1, 0, 2)}
 q3 = reshape(q2) {shape=(1, n, b, h*e)}
 k1 = reshape(k) {shape=(b*h, n, e)}
 k2 = permute(k1) {perm=(1, 0, 2)}
 k3 = reshape(k2) {shape=(1, n, b, h*e)}
 v1 = reshape(v) {shape=(b*h, n, e)}
 v2 = permute(v1) {perm=(1, 0, 2)}
 v3 = reshape(v2) {shape=(1, n, b, h*e)}
 j = concat(q3, k3, v3) {axis=0}
 u = reshape(j) {shape=(3, n, b, 1, h*e)}
 p = permute(u) {perm=(3, 1, 2, 0, 4)}
 r = reshape(p) {shape=(n*b, h*e*3)}
 y = contract(r, w) {spec="i,k; k,j -> i,j"}
 return y
}"""


def test_stacked_gradients_of_a_projection_are_concatenated_rows() -> None:
    """Each part is transposed once and merged once, then concatenated."""
    after = passes.run(parse(STACKED))
    (join,) = (x for x in after.nodes() if isinstance(x.op, Concat))
    assert join.op == Concat(1)
    for part in join.inputs:
        assert isinstance(part.op, Reshape)
        assert isinstance(part.inputs[0].op, Permute)
        assert not part.inputs[0].inputs[0].inputs, "nothing between the input and its turning"


@pytest.mark.parametrize("n", [0, 1, 3])
def test_stacked_gradients_of_any_length(n: int) -> None:
    graph = parse(STACKED)
    rng = np.random.default_rng(0)
    q, k, v = rng.integers(-4, 5, (3, 2, 3, n, 4)).astype(np.float32)
    w = rng.integers(-4, 5, (36, 5)).astype(np.float32)
    rows = np.stack([x.transpose(2, 0, 1, 3).reshape(n * 2, 12) for x in (q, k, v)], 1)
    actual = run(passes.run(graph), [q, k, v, w])[0]
    np.testing.assert_array_equal(actual, rows.reshape(n * 2, 36) @ w)


@pytest.mark.parametrize("axis", [0, 1])
def test_doubling_again_and_again_is_one_view(axis):
    def doubled(concat, v):
        for _ in range(11):
            v = concat([v, v], axis=axis)
        return v + 1

    v = np.arange(6, dtype=np.float32).reshape(3, 2)
    report = sm.explain(sm.jit(lambda v: doubled(sm.concat, v)), v)
    assert len(report.kernels) == 1 and len(report.kernels[0].text.splitlines()) < 20
    got = np.asarray(sm.jit(lambda v: doubled(sm.concat, v))(v))
    np.testing.assert_array_equal(got, doubled(np.concatenate, v))
