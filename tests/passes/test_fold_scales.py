"""Constant scales are folded into constant weights, in any spelling."""

from __future__ import annotations

import numpy as np
import pytest

import smelt as sm
from smelt import passes
from smelt.graph.interp import run
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.graph.verify import verify, verify_same_signature
from smelt.ops.contract import Contract
from smelt.passes.fold_scales import fold_scales

HEAD = """graph f(x: f32[n,4], w: f32[8,4] constant, s: f32[8] constant, t: f32[8] constant) {
  y = contract(x, w) {spec="n,k; o,k -> n,o"}
"""
RIGHT = HEAD.replace("n,k; o,k -> n,o", "n,k; o,k -> o,n")


def graph(*lines: str, head: str = HEAD) -> Graph:
    return parse(head + "\n".join(lines) + "\n  return z\n}")


def bare(g: Graph) -> bool:
    """Whether the product's result is at most shifted."""
    (product,) = [n for n in g.nodes() if isinstance(n.op, Contract)]
    (z,) = g.outputs
    return z is product or (product in z.inputs and z.op.name == "add")


def same(before: Graph, after: Graph) -> None:
    verify(verify_same_signature(before, after))
    rng = np.random.default_rng(0)
    shapes = [tuple(d if isinstance(d, int) else 5 for d in x.type.shape) for x in before.inputs]
    arrays = [rng.uniform(0.5, 2, s).astype(np.float32) for s in shapes]
    for a, b in zip(run(before, arrays), run(after, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "lines",
    [
        ("z = mul(y, s)",),
        ("z = mul(s, y)",),
        ("z = div(y, s)",),
        ("a = sub(y, t)", "z = mul(a, s)"),
        ("a = sub(t, y)", "z = div(a, s)"),
        ("a = mul(y, s)", "b = add(a, t)", "c = mul(b, t)", "d = sub(c, s)", "z = add(1.0:f32, d)"),
        ("z = mul(y, 2.0:f32)",),
        ("r = rsqrt(t)", "a = sub(y, t)", "b = mul(a, r)", "c = mul(b, s)", "z = add(c, t)"),
    ],
)
def test_weights_are_scaled(lines: tuple[str, ...]) -> None:
    before = graph(*lines)
    after = fold_scales(before)
    assert bare(after)
    same(before, after)


@pytest.mark.parametrize(
    ("lines", "head"),
    [
        (("z = div(s, y)",), HEAD),  # a reciprocal of the product
        (("z = add(y, s)",), HEAD),  # nothing to scale
        (("a = exp(y)", "z = mul(a, s)"), HEAD),
        (("a = mul(y, s)", "z = add(a, y)"), HEAD),  # the product itself is wanted too
        (("z = mul(y, s)",), HEAD.replace(" constant", "")),
        (("z = mul(y, s)",), HEAD.replace("[8] constant", "[8]")),
        (("z = mul(y, s)",), RIGHT.replace("f32[n,4]", "f32[8,4]")),  # along x's rows
    ],
)
def test_what_stays(lines: tuple[str, ...], head: str) -> None:
    before = graph(*lines, head=head)
    assert fold_scales(before) is before


def test_a_chain_of_normalised_convolutions_has_shifts_alone() -> None:
    rng = np.random.default_rng(1)
    w1, w2 = rng.standard_normal((2, 6, 6, 3, 3)).astype(np.float32)
    p = [np.abs(rng.standard_normal(6)).astype(np.float32) + 0.5 for _ in range(4)]

    def layer(x: object, w: object) -> object:
        return sm.nn.relu(sm.nn.batch_norm(sm.nn.conv(x, w, padding=1), *held))

    held = [sm.asarray(v, copy=True) for v in p]
    a, b = sm.asarray(w1, copy=True), sm.asarray(w2, copy=True)
    x = rng.standard_normal((2, 6, 9, 9)).astype(np.float32)
    fast = sm.jit(lambda x: layer(layer(x, a), b), rounding="fast")
    usual = sm.jit(lambda x: layer(layer(x, a), b))
    actual, wanted = np.asarray(fast(x)), np.asarray(usual(x))
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    ((trace,),) = fast.traces.values()
    after = passes.run(trace.graph, rounding="fast")
    large = [
        n.op.name
        for n in after.nodes()
        if n.inputs and not n.op.is_view and not isinstance(n.type.shape[0], int)
    ]
    assert large == ["contract", "add", "max"] * 2


def test_it_waits_for_fast_rounding() -> None:
    before = graph("z = mul(y, s)")
    assert bare(passes.run(before, rounding="fast"))
    assert not bare(passes.run(before, rounding="eager"))
