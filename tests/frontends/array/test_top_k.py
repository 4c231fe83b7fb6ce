"""`top_k` against a stable order in NumPy: lazily, under jit, and by each interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.frontends.array.numpy_comparison import MODES
from tests.property.oracles import compiled, interpret, kernels_agree, sizes_at
from tests.strategies.effort import NIGHT, effort

import smelt as sm
from smelt import knobs
from smelt.errors import ArgumentError, AxisError, ShapeError
from smelt.frontends.array.sorting import MAX_PASSES
from smelt.types.dtype import parse as element_type

pytestmark = NIGHT

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
TYPES = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")
ODD = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)


def numbers(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Values of a type, most of them equal to others, and its ends among them."""
    dtype = element_type(name).numpy
    if name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if element_type(name).is_float:
        result = random.standard_normal(shape).astype(dtype)
        odd = random.random(shape) < random.choice([0.0, 0.3, 1.0])
        return np.where(odd, random.choice(ODD, shape).astype(dtype), result)
    ends = np.iinfo(dtype)
    few = np.array([ends.min, ends.min + 1, 3, ends.max - 1, ends.max], dtype)
    return random.choice(few, shape)


def ordered(x: Array, k: int, axis: int, largest: bool) -> Array:
    """The first k positions in order, one row after another."""

    def row(line: Array) -> list[int]:
        nan = [bool(e != e) for e in line]
        wide = [
            0 if n else (float(e) if line.dtype.kind in "fV" else int(e))
            for e, n in zip(line, nan, strict=True)
        ]
        sign = -1 if largest else 1
        keys = [(sign * n, sign * e, i) for i, (n, e) in enumerate(zip(nan, wide, strict=True))]
        return [i for _, _, i in sorted(keys)[:k]]

    lines = np.moveaxis(x, axis, -1)
    flat = lines.reshape(-1, lines.shape[-1])
    result = np.array([row(line) for line in flat], np.int64).reshape(*lines.shape[:-1], k)
    return np.moveaxis(result, -1, axis)


def exactly(actual: Any, x: Array, k: int, axis: int, largest: bool) -> None:
    """Compare positions, and the bits at them."""
    values, places = map(np.asarray, actual)
    wanted = ordered(x, k, axis, largest)
    assert places.dtype == np.int64
    assert values.dtype == x.dtype
    np.testing.assert_array_equal(places, wanted)
    assert values.tobytes() == np.take_along_axis(x, wanted, axis).tobytes()


@st.composite
def calls(draw: Any) -> tuple[Array, int, int, bool]:
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    n = draw(st.sampled_from((1, 2, 3, 5, 16, 17, 33, 70)))
    k = draw(st.sampled_from(sorted({1, min(n, 2), min(n, 5), min(n, MAX_PASSES), n})))
    rest = draw(st.lists(st.sampled_from((0, 1, 2, 5)), max_size=2))
    axis = draw(st.integers(0, len(rest)))
    shape = (*rest[:axis], n, *rest[axis:])
    kind = draw(st.sampled_from(TYPES))
    return numbers(random, kind, shape), k, axis, draw(st.booleans())


@pytest.mark.parametrize("mode", MODES)
def test_as_a_stable_order(mode: str) -> None:
    @effort(24)
    @given(calls())
    def judge(call: tuple[Array, int, int, bool]) -> None:
        x, k, axis, largest = call

        def f(x: Any) -> Any:
            return sm.top_k(x, k, axis=axis, largest=largest)

        exactly((sm.jit(f) if mode == "jit" else f)(sm.asarray(x)), x, k, axis, largest)

    judge()


@effort(40)
@given(calls())
def test_interpreters_agree(call: tuple[Array, int, int, bool]) -> None:
    """The recorded graph, operator by operator; kernels in NumPy, and as they run."""
    x, k, axis, largest = call
    k = min(k, MAX_PASSES)
    trace = sm.jit(lambda x: sm.top_k(x, k, axis=axis, largest=largest)).lower(x).trace
    sizes = sizes_at(trace.graph, [x])
    result = interpret(trace.graph, [x], sizes)
    exactly([result[r.position] for r in trace.results], x, k, axis, largest)
    program, result = compiled(trace.graph, [x], sizes)
    exactly([result[r.position] for r in trace.results], x, k, axis, largest)
    same = [np.zeros(a.shape) for a in result]
    assert not kernels_agree(program, [x], sizes, same)


def test_one_recording_serves_every_size() -> None:
    f = sm.jit(lambda x: sm.top_k(x, 3))
    for shape in ((4, 3), (2, 9), (0, 5), (7, 300), (3, 2, 6), (11,)):
        x = RNG.standard_normal(shape).astype(np.float32)
        exactly(f(x), x, 3, x.ndim - 1, largest=True)


def test_no_position_is_looked_at_twice() -> None:
    """Places that folds have found are inside: nothing but values and places is computed."""
    x = RNG.standard_normal((6, 9)).astype(np.float32)
    report = sm.explain(lambda x: sm.top_k(x, 2), x)
    assert len(report.kernels) == 1
    assert "any(" not in report.kernels[0].text


def test_a_router_is_one_kernel() -> None:
    def router(x: Any) -> Any:
        share, places = sm.top_k(sm.nn.softmax(x), 2)
        return share / sm.sum(share, axis=-1, keepdims=True), places

    x = RNG.standard_normal((6, 8)).astype(np.float32)
    assert len(sm.explain(router, x).kernels) == 1
    share, places = map(np.asarray, sm.jit(router)(x))
    wanted = ordered(x, 2, 1, largest=True)
    np.testing.assert_array_equal(places, wanted)
    e = np.exp(np.take_along_axis(x.astype(np.float64), wanted, 1))
    np.testing.assert_allclose(share, e / e.sum(1, keepdims=True), rtol=1e-6)


def test_cotangents_go_to_the_chosen_positions() -> None:
    x = np.array([[3.0, 1.0, 3.0, 2.0], [0.0, -np.inf, -1.0, -np.inf]])
    weights = np.array([5.0, 7.0, 11.0])
    actual = sm.grad(lambda x: sm.sum(sm.top_k(x, 3).values * weights))(sm.asarray(x))
    np.testing.assert_array_equal(actual, [[5, 0, 7, 11], [5, 11, 7, 0]])


@pytest.mark.parametrize("largest", [True, False])
def test_many_are_sorted(largest: bool) -> None:
    x = numbers(RNG, "f32", (3, 40))
    for k in (MAX_PASSES, MAX_PASSES + 1, 40):
        exactly(sm.top_k(sm.asarray(x), k, largest=largest), x, k, 1, largest)
    with knobs.config(strict=True):
        exactly(sm.top_k(sm.asarray(x), 0), x, 0, 1, largest)


def test_what_is_refused() -> None:
    x = sm.ones((3, 4))
    with pytest.raises(ShapeError, match="fewer than 5"):
        sm.top_k(x, 5)
    with pytest.raises(ShapeError, match="no dimensions"):
        sm.top_k(sm.asarray(1.0), 1)
    for k in (-1, 1.5, True, None):
        with pytest.raises(ArgumentError):
            sm.top_k(x, k)
    with pytest.raises(AxisError):
        sm.top_k(x, 1, axis=2)
    f = sm.jit(lambda x: sm.top_k(x, 3).values)
    f(np.ones((2, 3)))
    with pytest.raises(ShapeError):
        f(np.ones((2, 2)))
