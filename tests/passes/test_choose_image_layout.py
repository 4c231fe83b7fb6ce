"""The choice of channel order: when it changes, with unchanged results."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import passes
from smelt.compiler import driver
from smelt.graph import interp
from smelt.graph.text import parse, text
from smelt.graph.walk import input_size_names
from smelt.journal.facts import Journal, OrderChosen
from smelt.passes import choose_image_layout as module
from smelt.passes.choose_image_layout import choose_image_layout


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def grouped(x: Any) -> Any:
    y = sm.nn.conv(x, drawn(8, 4, 3, 3), padding=1)
    return sm.nn.conv(y, drawn(12, 4, 3, 3, seed=1), groups=2, stride=2, padding=1)


def residual(x: Any) -> Any:
    y = sm.nn.relu(sm.nn.conv(x, drawn(4, 4, 3, 3), padding=1))
    y = sm.nn.conv(y, drawn(4, 1, 3, 3, seed=1), padding=1, groups=4)
    return sm.nn.max_pool(y + x, 2, stride=1)


def squeezed(x: Any) -> Any:
    y = sm.nn.conv(x, drawn(6, 4, 1, 1))
    y = sm.nn.conv(y, drawn(6, 1, 3, 3, seed=1), padding=1, groups=6)
    s = sm.sigmoid(sm.nn.conv(sm.mean(y, axis=(2, 3), keepdims=True), drawn(6, 6, 1, 1, seed=2)))
    return sm.nn.conv(y * s, drawn(5, 6, 1, 1, seed=3))


def concatenated(x: Any) -> Any:
    y = sm.nn.conv(x, drawn(3, 4, 3, 3), padding=1)
    return sm.nn.conv(sm.concat([y, x], axis=1), drawn(2, 7, 3, 3, seed=1), padding=2, dilation=2)


def normed(x: Any) -> Any:
    y = sm.permute_dims(sm.nn.conv(x, drawn(4, 1, 5, 5), padding=2, groups=4), (0, 2, 3, 1))
    y = sm.nn.layer_norm(y, drawn(4), drawn(4, seed=1))
    return sm.permute_dims(sm.nn.gelu(y @ drawn(4, 4, seed=2)), (0, 3, 1, 2)) + x


def flattened(x: Any) -> Any:
    y = sm.nn.conv(x, drawn(5, 4, 3, 3), padding=1)
    return sm.reshape(sm.nn.softmax(y, axis=1), (y.shape[0], -1))


SHAPES = ((2, 4, 5, 7), (1, 4, 3, 3), (3, 4, 17, 2), (0, 4, 3, 3))
PROGRAMS = (grouped, residual, squeezed, concatenated, normed, flattened)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_results_are_those_of_the_other_order(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = sm.jit(program).lower(drawn(*SHAPES[0])).trace.graph
    monkeypatch.setattr(module, "MAX_TIME_RATIO", 0)
    before = passes.run(graph)
    monkeypatch.setattr(module, "MAX_TIME_RATIO", inf)
    after = passes.run(graph)
    assert text(after) != text(before)
    compiled_program = driver.compile(graph, hints=dict.fromkeys(input_size_names(graph), 5))
    for shape in SHAPES:
        arrays = [
            drawn(*(n if isinstance(n, int) else 3 for n in i.type.shape), seed=k)
            for k, i in enumerate(graph.inputs)
        ]
        arrays[0] = drawn(*shape, seed=7)
        arrays[0][:1, 0, 0, :2] = np.nan, np.inf
        (want,) = interp.run(before, arrays)
        by_name = interp.solve_sizes(graph, arrays)
        sizes = tuple(by_name[n] for n in compiled_program.size_names)
        for actual in (*interp.run(after, arrays), *compiled_program.run(arrays, sizes)):
            np.testing.assert_allclose(actual, want, rtol=1e-4, atol=1e-4)


LAYERS = """graph f(x: f32[b,8,n,n], k: f32[8,3,3], w: f32[256,8]) {
  v0 = window(x) {axis=2, extent=3}
  v1 = window(v0) {axis=3, extent=3}
  v2 = contract(v1, k) {spec="b,c,u,v,i,j; c,i,j -> b,c,u,v"}
  v3 = contract(v2, w) {spec="b,c,u,v; o,c -> b,o,u,v"}
  v4 = reduce.sum(v3) {axes=(2, 3)}
  return v4
}"""


@pytest.mark.parametrize(("b", "n", "last"), [(8, 58, True), (1, 3, False), (0, 9, False)])
def test_sizes_decide(b: int, n: int, last: bool) -> None:
    graph, journal = parse(LAYERS), Journal()
    actual = choose_image_layout(graph, {"b": b, "n": n}, journal)
    (fact,) = journal.of(OrderChosen)
    assert (fact.last, actual is not graph, fact.windows) == (last, last, 1)
    assert (fact.last_ns < fact.first_ns) or not last


def test_an_order_that_outputs_would_undo_is_not_chosen() -> None:
    graph = parse(LAYERS.replace("return v4", "return v2"))
    assert choose_image_layout(graph, {"b": 8, "n": 58}) is graph


def test_gradients_of_weights_are_left() -> None:
    """Weight gradients keep their layout.

    They sum over pixels: neither operand is read faster when transposed.
    """
    graph = parse(
        LAYERS.replace("v0 = window(x)", "y = exp(x)\n v0 = window(y)")
        .replace("contract(v1, k)", "contract(v1, z)")
        .replace("v2 =", "z = exp(k)\n v2 =")
    )
    assert choose_image_layout(graph, {"b": 8, "n": 58}) is graph


def test_one_product_alone_has_nothing_between_kernels() -> None:
    """What it makes is written in the order that is asked for, whatever lies faster."""
    lowered = sm.jit(lambda x: sm.nn.relu(sm.nn.conv(x, drawn(64, 64, 3, 3), padding=1)))
    journal = Journal()
    graph = lowered.lower(sm.spec((1, 64, 7, 7), np.float32)).trace.graph
    passes.run(graph, journal, "eager")
    assert not [x for x in journal.facts if isinstance(x, OrderChosen)]


def test_graphs_without_windows_are_skipped() -> None:
    journal = Journal()
    graph = parse("""graph f(x: f32[m,k], w: f32[k,n]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  return v0
}""")
    assert choose_image_layout(graph, None, journal) is graph and not journal.facts


def test_weights_that_are_packed_by_tile_transposes_cost_little() -> None:
    """512-channel weights are worth transposing if all taps of a channel are adjacent.

    They are arguments of each call, for rows of 7 pixels.
    """

    def last(layout: str, spec: str) -> bool:
        graph = parse(f"""graph f(x: f32[1,512,9,9], k: f32[{layout}], w: f32[512,512]) {{
  v0 = window(x) {{axis=2, extent=3}}
  v1 = window(v0) {{axis=3, extent=3}}
  v2 = contract(v1, k) {{spec="b,c,h,w,u,v; {spec} -> b,o,h,w"}}
  v3 = contract(v2, w) {{spec="b,c,h,w; o,c -> b,o,h,w"}}
  v4 = reduce.max(v3) {{axes=(2, 3)}}
  return v4
}}""")
        return choose_image_layout(graph) is not graph

    assert last("512,512,3,3", "o,c,u,v")
    assert not last("512,3,3,512", "o,u,v,c")
