"""Integer bounds hold for every value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.effort import NIGHTLY

from smelt.graph import build
from smelt.graph.bounds import is_in_bounds, value_range
from smelt.graph.interp import run
from smelt.graph.ir import Graph, Node
from smelt.graph.text import parse
from smelt.ops.create import Iota, SizeOf
from smelt.ops.elementwise import Cast
from smelt.ops.reduce import Reduce
from smelt.types.dtype import bool_, i8, i32, i64, u8
from smelt.types.expr import Index, evaluate, mul, size, sub
from smelt.types.tensor import TensorType

N = 5
X = build.input("x", TensorType(i64, (size("n"),)))
SHORT = build.input("s", TensorType(u8, (size("n"),)))
TYPES = (i64, i64, i64, i32, i8, u8, bool_)


@st.composite
def numbers(draw: Any) -> Node:
    """A whole number computed from data, sizes and positions."""
    built: list[Node] = [
        X,
        SHORT,
        build.apply(Iota((size("n"),), 0, i64)),
        build.apply(SizeOf(size("n"), i64)),
        build.apply(Reduce("argmax", (0,)), X),
        build.apply(SizeOf(sub(size("n"), 1), i64)),
        build.apply(SizeOf(mul(size("n"), -1), i64)),
    ]
    for _ in range(draw(st.integers(1, 8))):
        a = draw(st.sampled_from(built))
        same = [x for x in built if x.type.dtype == a.type.dtype]
        if draw(st.integers(0, 4)) == 0:
            built.append(build.apply(Cast(draw(st.sampled_from(TYPES))), a))
            continue
        if a.type.dtype == bool_:
            continue
        constants = [build.constant(k, a.type.dtype) for k in (0, 1, 3, 7, 100)]
        b = draw(st.sampled_from(same + constants))
        if draw(st.integers(0, 4)) == 0:
            test = build.map("lt", a, constants[0])
            built.append(build.map("select", test, build.map("add", a, b), a))
            continue
        how = draw(st.sampled_from(["add", "sub", "mul", "max", "min", "mod", "floordiv", "and"]))
        if how in ("mod", "floordiv"):
            b = draw(st.sampled_from([constants[1], constants[2], constants[4], built[3]]))
            if b.type.dtype != a.type.dtype:
                continue
        built.append(build.map(how, a, b))
    return built[-1]


@settings(max_examples=5000 if NIGHTLY else 400, deadline=None)
@given(numbers(), st.lists(st.integers(-9, 300), min_size=N, max_size=N))
def test_bounds_hold(node: Node, data: list[int]) -> None:
    x = np.asarray(data)
    inputs = [X, SHORT]
    graph = Graph("bounds", tuple(inputs), (node, X, SHORT))
    with np.errstate(all="ignore"):
        result = run(graph, [x, x.astype(np.uint8)])[0]
    low, high = value_range(node)

    def value(e: Index) -> int:
        return evaluate(e, {"n": N})

    whole = result.astype(np.int64)
    assert low is None or value(low) <= whole.min()
    assert high is None or whole.max() <= value(high)
    if is_in_bounds(node, size("n")):
        assert whole.min() >= 0 and whole.max() < N


def test_short_types_wrap_around() -> None:
    less = build.map("sub", SHORT, build.constant(250, u8))
    cut = build.apply(Cast(i64), build.map("max", less, build.constant(0, u8)))
    assert value_range(cut)[1] == 255


@pytest.mark.parametrize("name", ["u8", "u16", "u32", "i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("shift", [0, 1, 4, 7, 8, 63, -1])
def test_shifts_to_the_right_stay_in_their_bounds(name: str, shift: int) -> None:
    """Numbers move towards 0 or -1, also by counts that shift all bits out."""
    kind = {"u": "uint", "i": "int"}[name[0]] + name[1:]
    info = np.iinfo(kind)
    if not info.min <= shift <= info.max:
        return
    graph = parse(
        f"graph f(x: {name}[n]) {{\n v0 = and(x, 100:{name})\n v1 = shr(v0, {shift}:{name})\n"
        f" v2 = shr(x, {shift}:{name})\n return v1, v2\n}}"
    )
    data = np.array([info.min, info.min + 1, 0, 1, 5, 100, info.max], kind)
    for node, values in zip(graph.outputs, run(graph, [data], {"n": 7}), strict=True):
        low, high = value_range(node)
        assert low is None or (isinstance(low, int) and low <= values.min())
        assert high is None or (isinstance(high, int) and high >= values.max())
