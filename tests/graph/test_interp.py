"""The interpreter: sizes from shapes, checks of what it is given, checks of what it computes."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.errors import (
    ArgumentError,
    DTypeError,
    GuardError,
    IndexRangeError,
    InternalError,
    ShapeError,
)
from smelt.graph import build
from smelt.graph.interp import run, solve_sizes
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.ops.spec import TensorOp
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32
from smelt.types.tensor import TensorType


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def test_sizes_follow_from_shapes() -> None:
    graph = parse("graph f(x: f32[n*4,m], y: f32[n + m]) { return x, y }")
    assert solve_sizes(graph, [zeros(8, 3), zeros(5)]) == {"n": 2, "m": 3}
    later = parse("graph f(y: f32[n + m], x: f32[m]) { return x, y }")
    assert solve_sizes(later, [zeros(5), zeros(3)]) == {"n": 2, "m": 3}
    assert solve_sizes(later, [zeros(3), zeros(3)]) == {"n": 0, "m": 3}


@pytest.mark.parametrize(
    ("inputs", "arrays", "message"),
    [
        ("x: f32[n,n]", [(3, 4)], "dimension 1 is 4, not n = 3"),
        ("x: f32[n*4]", [(6,)], "no sizes make n\\*4 equal 6"),
        ("x: f32[n - 5], y: f32[n]", [(1,), (5,)], "dimension 0 is 5, not n = 6"),
        ("x: f32[3]", [(4,)], "dimension 0 is 4, not 3"),
        ("x: f32[n]", [(3, 4)], "is f32\\[n\\], not an array of shape \\[3, 4\\]"),
        ("x: f32[n*m]", [(12,)], "no sizes make"),
    ],
)
def test_shapes_that_do_not_fit(inputs: str, arrays: list[tuple[int, ...]], message: str) -> None:
    graph = parse(f"graph f({inputs}) {{ return x }}")
    with pytest.raises(ShapeError, match=message):
        run(graph, [zeros(*shape) for shape in arrays])


def test_arrays_that_are_not_as_declared() -> None:
    graph = parse("graph f(x: f32[n]) { return x }")
    with pytest.raises(DTypeError, match="float32, not float64"):
        run(graph, [np.zeros(3)])
    with pytest.raises(DTypeError):
        run(graph, [np.zeros(3, ">f4")])
    with pytest.raises(ArgumentError, match="takes 1 arrays, not 2"):
        run(graph, [zeros(3), zeros(3)])


def test_facts_are_checked() -> None:
    graph = parse("graph f(x: f32[n]) {\n require 2 <= n\n require n%2 == 0\n return x }")
    assert run(graph, [zeros(4)])[0].shape == (4,)
    with pytest.raises(GuardError, match="2 <= n does not hold: 2 and 1"):
        run(graph, [zeros(1)])
    with pytest.raises(GuardError, match="n%2 == 0"):
        run(graph, [zeros(3)])


def test_sizes_that_no_input_implies() -> None:
    graph = parse("graph f(x: f32[]) { y = expand(x) {shape=(n,)} return y }")
    with pytest.raises(ArgumentError, match="no input tells the size n"):
        run(graph, [zeros()])
    assert run(graph, [zeros()], {"n": 3})[0].shape == (3,)
    fact = parse("graph f(x: f32[]) {\n require 1 <= n\n return x }")
    with pytest.raises(ArgumentError, match="no input tells"):
        run(fact, [zeros()])


def test_positions_outside() -> None:
    graph = parse("graph f(x: f32[n], i: i64[k]) { y = gather(x, i) {first=0} return y }")
    assert run(graph, [np.arange(3, dtype=np.float32), np.array([2, 0])])[0].tolist() == [2, 0]
    with pytest.raises(IndexRangeError, match="gather"):
        run(graph, [zeros(3), np.array([3])])


def test_references_are_checked() -> None:
    @dataclass(frozen=True)
    class Wrong(TensorOp):
        def infer(self, *inputs: TensorType) -> TensorType:
            return inputs[0]

        def reference(self, sizes: object, *inputs: np.ndarray) -> np.ndarray:
            return inputs[0].astype(np.float64)

    x = build.input("x", TensorType(f32, (3,)))
    with pytest.raises(InternalError, match="reference of wrong gave float64"):
        run(Graph("f", (x,), (build.apply(Wrong(), x),)), [zeros(3)])


def test_results_do_not_depend_on_the_layout_of_operands() -> None:
    direct = parse("graph f(x: f32[n,m]) { y = reduce.sum(x) {axes=(0,)} return y }")
    twice = parse("""graph f(x: f32[n,m]) {
      a = permute(x) {perm=(1, 0)} b = permute(a) {perm=(1, 0)}
      y = reduce.sum(b) {axes=(0,)} return y }""")
    x = np.random.default_rng(0).standard_normal((1000, 3)).astype(np.float32)
    assert np.array_equal(run(direct, [x])[0], run(twice, [x])[0])


def test_an_output_may_be_an_input_or_come_twice() -> None:
    graph = parse("graph f(x: f32[n]) { y = exp(x) return y, x, y, 1.0:f32 }")
    a, b, c, d = run(graph, [zeros(2)])
    assert a.tolist() == c.tolist() == [1, 1]
    assert b.tolist() == [0, 0]
    assert d == 1
