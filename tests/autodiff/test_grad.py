"""`sm.grad` and its kin as users of JAX expect them: arguments, nests, mistakes, laziness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ArgumentError, GradientError
from smelt.frontends.array.library import call
from smelt.frontends.array.value import STATE
from smelt.ops.extern import ExternRow, register


def array(*numbers: float, dtype: Any = None) -> sm.Array:
    return sm.asarray(list(map(float, numbers)), dtype=dtype)


def equal(x: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(x), wanted, rtol=1e-6)


register(ExternRow("test_missing", "a call without derivative", lambda x: x, np.cos))


def missing(x: Any) -> Any:
    """A library call that nobody has differentiated."""
    return sm.Array.of(call("test_missing", x.node))


def cubes(x: Any) -> Any:
    return sm.sum(x**3)


JITTED = [pytest.param(lambda f: f, id="lazy"), pytest.param(sm.jit, id="jit")]


@pytest.mark.parametrize("jit", JITTED)
class TestBothWays:
    def test_value_and_gradient(self, jit: Any) -> None:
        value, slope = jit(sm.value_and_grad(cubes))(array(1, 2))
        equal(value, 9)
        equal(slope, [3, 12])

    def test_argnums(self, jit: Any) -> None:
        def f(x: Any, y: Any, z: Any) -> Any:
            return sm.sum(x * y + z)

        x, y, z = array(1, 2), array(3, 4), array(5, 6)
        equal(jit(sm.grad(f, 1))(x, y, z), x)
        one, two = jit(sm.grad(f, (2, 0)))(x, y, z)
        equal(one, [1, 1])
        equal(two, y)
        equal(jit(sm.grad(f, -1))(x, y, z), [1, 1])
        (only,) = jit(sm.grad(f, (0,)))(x, y, z)
        equal(only, y)

    def test_aux(self, jit: Any) -> None:
        def f(x: Any) -> Any:
            return cubes(x), {"twice": x * 2, "name": 3}

        (value, aux), slope = jit(sm.value_and_grad(f, has_aux=True))(array(1, 2))
        equal(value, 9)
        equal(aux["twice"], [2, 4])
        assert aux["name"] == 3
        equal(slope, [3, 12])
        slope, aux = jit(sm.grad(f, has_aux=True))(array(1, 2))
        equal(slope, [3, 12])
        equal(aux["twice"], [2, 4])

    def test_nests(self, jit: Any) -> None:
        def f(p: Any) -> Any:
            return sm.sum(p["a"] * p["b"][0]) + p["b"][1] * 2 + (0 if p["c"] is None else 1)

        p = {"a": array(1, 2), "b": [array(3, 4), sm.asarray(5.0)], "c": None}
        slope = jit(sm.grad(f))(p)
        equal(slope["a"], [3, 4])
        equal(slope["b"][0], [1, 2])
        equal(slope["b"][1], 2)
        assert slope["c"] is None
        assert isinstance(slope["b"], list)

    def test_twice_and_thrice(self, jit: Any) -> None:
        f = sm.grad(lambda x: x**4)
        equal(jit(f)(2.0), 32)
        equal(jit(sm.grad(f))(2.0), 48)
        equal(jit(sm.grad(sm.grad(f)))(2.0), 48)
        equal(jit(sm.grad(sm.grad(f)))(sm.asarray(2.0)), 48)

    def test_inner_variables_are_not_outer_ones(self, jit: Any) -> None:
        """d/dx (x · d/dy (x + y)) is 1: the inner derivative must not see x move."""

        def f(x: Any) -> Any:
            return x * sm.grad(lambda y: x + y)(sm.asarray(1.0))

        equal(jit(sm.grad(f))(sm.asarray(2.0)), 1)
        equal(jit(sm.grad(lambda x: sm.grad(lambda y: x * y)(x)))(sm.asarray(3.0)), 1)

    def test_stop_gradient(self, jit: Any) -> None:
        f = sm.grad(lambda x: sm.sum(x * sm.stop_gradient(x)))
        equal(jit(f)(array(3, 4)), [3, 4])

    def test_what_plays_no_part_has_zeros(self, jit: Any) -> None:
        one, two = jit(sm.grad(lambda x, y: sm.sum(x), (0, 1)))(array(1, 2), sm.ones((2, 3)))
        equal(one, [1, 1])
        equal(two, np.zeros((2, 3)))
        equal(jit(sm.grad(lambda x: 3.0))(array(1, 2)), [0, 0])

    def test_dtypes_stay(self, jit: Any) -> None:
        for dtype in (sm.float16, sm.bfloat16, sm.float32, sm.float64):
            slope = jit(sm.grad(lambda x: sm.mean(sm.nn.gelu(x))))(array(1, 2, dtype=dtype))
            assert slope.dtype == dtype

    def test_numbers_are_weak(self, jit: Any) -> None:
        def f(s: Any, x: Any) -> Any:
            y = s * x
            assert y.dtype == sm.float32
            return sm.sum(y)

        equal(jit(sm.grad(f))(2.0, array(1, 2, dtype=sm.float32)), 3)

    def test_vjp(self, jit: Any) -> None:
        def f(x: Any, y: Any) -> Any:
            (a, b), pull = sm.vjp(lambda x, y: (x * y, [sm.sum(x)]), x, y)
            return a, b[0], pull((x, [sm.asarray(10.0)]))

        a, b, (by_x, by_y) = jit(f)(array(1, 2), array(3, 4))
        equal(a, [3, 8])
        equal(b, 3)
        equal(by_x, [13, 18])
        equal(by_y, [1, 4])

    def test_random_is_the_same_in_both_directions(self, jit: Any) -> None:
        def f(x: Any) -> Any:
            return sm.sum(x * sm.random.bernoulli(sm.random.key(3), 0.5, (100,)))

        kept = np.asarray(sm.random.bernoulli(sm.random.key(3), 0.5, (100,)))
        equal(jit(sm.grad(f))(sm.ones(100)), kept)

    def test_writing_by_index(self, jit: Any) -> None:
        def f(x: Any, y: Any) -> Any:
            z = x * 2
            z[1:3] = y
            z[0] += 1
            return sm.sum(z * z)

        by_x, by_y = jit(sm.grad(f, (0, 1)))(array(1, 2, 3, 4), array(5, 6))
        equal(by_x, [4 * 3, 0, 0, 4 * 8])
        equal(by_y, [10, 12])

    def test_keywords_are_not_differentiated(self, jit: Any) -> None:
        equal(jit(sm.grad(lambda x, *, k: sm.sum(x * k)))(array(1, 2), k=array(3, 4)), [3, 4])


# ---- outside of jit ----------------------------------------------------------------------------


def test_python_may_look_at_values() -> None:
    def f(x: Any) -> Any:
        y = sm.sum(x * x)
        while float(y) < 100:
            y = y * 2
        return y

    equal(sm.grad(f)(array(1, 2)), np.array([2, 4]) * 32)


def test_numbers_may_be_looked_at() -> None:
    equal(sm.grad(lambda x: x * x if x > 1 else -x)(3.0), 6)
    equal(sm.grad(lambda x: x * x if x > 1 else -x)(0.5), -1)


def test_jitted_functions_inside() -> None:
    inner = sm.jit(lambda x, k: sm.sum(x * x) * k)
    equal(sm.grad(lambda x: inner(x, 3.0) + inner(x, 1.0))(array(1, 2)), [8, 16])
    equal(sm.grad(inner)(array(1, 2), 2.0), [4, 8])


def test_nothing_is_kept_afterwards() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        assert float(sm.sum(y)) == 6
        return sm.sum(y * y)

    sm.grad(f)(array(1, 2))
    with pytest.raises(GradientError):
        sm.grad(lambda x: x)(array(1, 2))
    assert STATE.tapes == 0
    assert not STATE.retained


def test_vjp_after_the_values_were_read() -> None:
    y, pull = sm.vjp(lambda x: sm.exp(sm.sin(x)), array(1, 2))
    equal(y, np.exp(np.sin([1, 2])))
    (slope,) = pull(array(1, 10))
    equal(slope, np.exp(np.sin([1, 2])) * np.cos([1, 2]) * [1, 10])
    (again,) = pull(array(2, 0))
    equal(again, [2 * np.exp(np.sin(1)) * np.cos(1), 0])


def test_vjp_with_aux() -> None:
    y, pull, aux = sm.vjp(lambda x: (x * 2, "more"), array(1, 2), has_aux=True)
    equal(y, [2, 4])
    equal(pull(array(1, 1))[0], [2, 2])
    assert aux == "more"


def test_numpy_arguments() -> None:
    x = np.array([1.0, 2.0])
    equal(sm.grad(cubes)(x), [3, 12])
    equal(sm.jit(sm.grad(cubes))(x), [3, 12])


@dataclass
class Layer:
    """A nest that a user may have."""

    w: Any
    b: Any


def test_dataclasses() -> None:
    slope = sm.grad(lambda p, x: sm.sum(x @ p.w + p.b))(
        Layer(sm.ones((2, 3)), sm.zeros(3)), sm.ones((4, 2))
    )
    assert isinstance(slope, Layer)
    equal(slope.w, np.full((2, 3), 4))
    equal(slope.b, [4, 4, 4])


# ---- sizes -------------------------------------------------------------------------------------


def test_one_recording_for_all_sizes() -> None:
    def loss(w: Any, b: Any, x: Any) -> Any:
        h = sm.nn.layer_norm(x @ w + b)
        return sm.mean(sm.reshape(h, (-1,)) ** 3)

    f = sm.jit(sm.grad(loss, (0, 1)))
    for n in (5, 7, 2, 11):
        x, w, b = (np.random.default_rng(n).normal(size=s) for s in ((n, 3), (3, n + 1), (n + 1,)))
        for a, c in zip(f(w, b, x), sm.grad(loss, (0, 1))(w, b, x), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(c), rtol=1e-9, atol=1e-12)
    assert sum(map(len, f.traces.values())) == 1


def test_sizes_of_one_are_summed_back() -> None:
    def loss(x: Any, y: Any) -> Any:
        return sm.sum((x + y) * (x - y) ** 2)

    f = sm.jit(sm.grad(loss, (0, 1)))
    for n, m in ((3, 1), (1, 3), (3, 3), (1, 1)):
        x, y = np.arange(float(n * 2)).reshape(n, 2), np.arange(float(m * 2)).reshape(m, 2) - 1
        by_x, by_y = (np.asarray(g) for g in f(x, y))
        z, d = x + y, x - y
        wide_x, wide_y = d**2 + 2 * z * d, d**2 - 2 * z * d
        np.testing.assert_allclose(by_x, wide_x if n > 1 else wide_x.sum(0, keepdims=True))
        np.testing.assert_allclose(by_y, wide_y if m > 1 else wide_y.sum(0, keepdims=True))


def test_sizes_learnt_while_recording() -> None:
    """Equal only by a guard that is added after the first use."""

    def loss(x: Any, y: Any) -> Any:
        a, b = sm.exp(x), sm.sin(y)
        return sm.sum(sm.concat([a * b, a[:2]]) ** 2)

    f = sm.jit(sm.grad(loss, (0, 1)))
    x, y = array(1, 2, 3), array(0.5, 0.1, 0.2)
    for a, c in zip(f(x, y), sm.grad(loss, (0, 1))(x, y), strict=True):
        equal(a, np.asarray(c))


# ---- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "args", "match"),
    [
        (lambda x: x * 2, (array(1, 2),), r"gives f64\[2\], not one float"),
        (sm.sum, (sm.asarray([1, 2]),), r"argument 0 is i64\[2\], not floats"),
        (lambda x: x, (3,), "is an integer"),
        (lambda x: (x, x), (1.0,), "several values"),
        (sm.argmax, (array(1, 2),), "not one float"),
        (lambda x: sm.sum(missing(x)), (array(1, 2),), "extern.test_missing"),
        (lambda p: p["a"], ({"a": sm.asarray(1.0), "b": 2},), "argument 0.b is an integer"),
    ],
)
def test_what_cannot_be_differentiated(function: Any, args: Any, match: str) -> None:
    with pytest.raises(GradientError, match=match):
        sm.grad(function)(*args)
    with pytest.raises(TypeError):
        sm.jit(sm.grad(function))(*args)


def test_elements_do_not_leave() -> None:
    """NumPy has no way back: a gradient through it would silently be wrong."""
    with pytest.raises(GradientError, match="the way back would end"):
        sm.grad(lambda x: sm.sum(sm.asarray(np.sin(np.asarray(x)))))(array(1, 2))
    slope = sm.grad(lambda x: sm.sum(x * np.asarray(sm.stop_gradient(x * 2))))(array(1, 2))
    equal(slope, [2, 4])
    outside = array(1, 2) * 3
    equal(sm.grad(lambda x: sm.sum(x * np.asarray(outside)))(array(1, 2)), [3, 6])


def test_arguments_that_are_not_there() -> None:
    with pytest.raises(ArgumentError, match="argnums"):
        sm.grad(cubes, 1)(array(1, 2))
    with pytest.raises(ArgumentError, match="a function"):
        sm.grad(3)  # type: ignore[arg-type]
    with pytest.raises(GradientError, match="pair"):
        sm.grad(cubes, has_aux=True)(array(1, 2))


def test_cotangents_must_fit() -> None:
    _, pull = sm.vjp(lambda x: (x * 2, x), array(1, 2))
    with pytest.raises(GradientError, match="nested"):
        pull(array(1, 2))
    with pytest.raises(GradientError, match=r"a cotangent is f64\[3\], the value f64\[2\]"):
        pull((array(1, 2, 3), array(1, 2)))


def test_the_line_of_a_mistake_is_the_forward_one() -> None:
    def f(x: Any) -> Any:
        y = missing(x)
        return sm.sum(y)

    with pytest.raises(GradientError) as caught:
        sm.grad(f)(array(1, 2))
    assert caught.value.origin.text.startswith("return sm.Array.of(call(")


# ---- explaining --------------------------------------------------------------------------------


def test_gradient_operators_point_to_the_forward_line() -> None:
    def f(x: Any) -> Any:
        y = sm.sin(x)
        return sm.sum(y * y)

    graph = sm.jit(sm.grad(f)).lower(array(1, 2)).trace.graph
    lines = {n.op.name: n.origin.text for n in graph.nodes() if n.origin is not None}
    assert lines["cos"] == "y = sm.sin(x)"
    assert "return sm.sum(y * y)" in lines.values()
    assert "sm.sin(x)" in str(sm.explain(sm.grad(f), array(1, 2))) or "test_grad.py" in str(
        sm.explain(sm.grad(f), array(1, 2))
    )
