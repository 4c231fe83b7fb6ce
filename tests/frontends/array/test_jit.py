"""sm.jit: one recording for all sizes, guards, structures, arguments that are numbers, errors."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm
from smelt.graph.text import parse, text
from smelt.graph.verify import verify

rng = np.random.default_rng(3)


def recordings(f: Any) -> int:
    return sum(len(traces) for traces in f.traces.values())


def graphs(f: Any) -> list[Any]:
    return [trace.graph for traces in f.traces.values() for trace in traces]


# Sizes


def test_one_recording_for_all_sizes() -> None:
    f = sm.jit(lambda x, b: sm.log(sm.maximum(x + b, 1)))
    for n, m in ((3, 4), (2, 2), (7, 5), (100, 33)):
        x, b = rng.standard_normal((n, m)), rng.standard_normal(m)
        np.testing.assert_allclose(f(x, b), np.log(np.maximum(x + b, 1)), rtol=1e-12)
    assert recordings(f) == 1


def test_sizes_zero_and_one_are_their_own() -> None:
    f = sm.jit(lambda x, y: x + y)
    for shape_x, shape_y in (
        ((3, 4), (1, 4)),
        ((3, 4), (3, 1)),
        ((0, 4), (1, 4)),
        ((1, 1), (5, 5)),
    ):
        x, y = rng.standard_normal(shape_x), rng.standard_normal(shape_y)
        for _ in range(2):
            np.testing.assert_array_equal(f(x, y), x + y)
    assert recordings(f) == 4


@pytest.mark.parametrize("n", [*range(12), 64, 1000])
def test_every_small_size(n: int) -> None:
    x = rng.standard_normal((n, 3))
    np.testing.assert_allclose(SUMS(x), x[::-1].sum(axis=0) + n / 2 + np.arange(3), rtol=1e-12)


SUMS = sm.jit(lambda x: sm.sum(sm.flip(x, axis=0), axis=0) + x.shape[0] / 2 + sm.arange(3))


def test_rank_and_dtype_record_again() -> None:
    f = sm.jit(lambda x: x * 2)
    f(np.ones(3))
    f(np.ones((3, 3)))
    f(np.ones(3, np.float32))
    f(np.ones(5))
    assert recordings(f) == 3


def test_sizes_that_must_be_equal_are_checked_again() -> None:
    f = sm.jit(lambda x, y: x * y)
    assert f(np.ones(3), np.ones(3)).shape == (3,)
    assert f(np.ones(5), np.ones(5)).shape == (5,)
    assert recordings(f) == 1
    with pytest.raises(sm.errors.ShapeError, match=r"f64\[4\], f64\[5\]"):
        f(np.ones(4), np.ones(5))
    assert f(np.ones(6), np.ones(6)).shape == (6,)
    assert recordings(f) == 1


def test_a_comparison_of_sizes_is_a_guard() -> None:
    @sm.jit
    def f(x: Any) -> Any:
        return x * 2 if x.shape[0] > 4 else x - 1

    for n in (3, 9, 4, 5, 30):
        x = np.arange(float(n))
        np.testing.assert_array_equal(f(x), x * 2 if n > 4 else x - 1)
    assert recordings(f) == 2
    assert sorted(str(g) for t in next(iter(f.traces.values())) for g in t.guards) == [
        "4 < n0",
        "n0 <= 4",
    ]


def test_range_over_a_size_specialises() -> None:
    @sm.jit
    def f(x: Any) -> Any:
        total = 0
        for k in range(x.shape[0]):
            total = total + x[k]
        return total

    for n in (2, 5, 2):
        np.testing.assert_array_equal(f(np.ones((n, 3))), np.full(3, float(n)))
    assert recordings(f) == 2


def test_size_arithmetic_stays_symbolic() -> None:
    @sm.jit
    def f(x: Any) -> Any:
        b, length, size = x.shape
        heads = 4
        parts = sm.reshape(x, (b, length, heads, size // heads))
        return sm.reshape(sm.permute_dims(parts, (0, 2, 1, 3)), (b * heads, length, -1)) / length

    for b, length, size in ((2, 3, 8), (5, 7, 12), (3, 2, 64)):
        x = rng.standard_normal((b, length, size))
        wanted = (
            x.reshape(b, length, 4, -1).transpose(0, 2, 1, 3).reshape(b * 4, length, -1) / length
        )
        np.testing.assert_allclose(f(x), wanted, rtol=1e-15)
    assert recordings(f) == 1
    with pytest.raises(sm.errors.ShapeError, match="do not fill"):
        f(np.ones((2, 3, 10)))


def test_sizes_as_numbers_of_every_kind() -> None:
    @sm.jit
    def f(x: Any) -> Any:
        n = x.shape[0]
        whole = (
            n + 1,
            2 * n - 1,
            n // 2,
            n % 3,
            -n,
            n**2,
            abs(n),
            max(n, 4),
            min(n, 4),
            7 // n,
            9 % n,
        )
        return [x[0] * k for k in (*whole, n / 2, 1 / n, n**0.5, n**-0.5, divmod_sum(n), float(n))]

    for n in (5, 8, 3):
        whole = (n + 1, 2 * n - 1, n // 2, n % 3, -n, n**2, n, max(n, 4), min(n, 4), 7 // n, 9 % n)
        wanted = [float(k) for k in (*whole, n / 2, 1 / n, n**0.5, n**-0.5, n // 3 + n % 3, n)]
        np.testing.assert_allclose([float(v) for v in f(np.ones(n))], wanted, rtol=1e-15)


def divmod_sum(n: Any) -> Any:
    return n // 3 + n % 3


def test_math_functions_of_sizes_specialise() -> None:
    f = sm.jit(lambda x: x / math.sqrt(x.shape[-1]))
    for n in (4, 9):
        np.testing.assert_allclose(f(np.ones((2, n))), np.ones((2, n)) / math.sqrt(n))
    assert recordings(f) == 2


def test_creation_with_symbolic_shapes() -> None:
    @sm.jit
    def f(x: Any) -> Any:
        n = x.shape[0]
        return (
            sm.zeros((n, 2)),
            sm.arange(n),
            sm.eye(n),
            sm.ones_like(x),
            sm.linspace(0, 1, n),
            sm.full((n,), n),
            sm.arange(n, 0, -2),
        )

    for n in (2, 5, 6):
        wanted = (
            np.zeros((n, 2)),
            np.arange(n),
            np.eye(n),
            np.ones((n, 3)),
            np.linspace(0, 1, n),
            np.full((n,), n),
            np.arange(n, 0, -2),
        )
        for a, b in zip(f(np.ones((n, 3))), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-15)
            assert np.asarray(a).dtype == b.dtype
    assert recordings(f) == 1


def test_slices_of_symbolic_sizes() -> None:
    f = sm.jit(lambda x: (x[1:], x[:-1], x[-2:], x[::2], x[::-1], x[x.shape[0] // 2 :], x[-1]))
    for n in (4, 7, 10):
        x = np.arange(float(n))
        for a, b in zip(f(x), (x[1:], x[:-1], x[-2:], x[::2], x[::-1], x[n // 2 :], x[-1])):
            np.testing.assert_array_equal(a, b)
    assert recordings(f) == 1


def test_slices_that_clip_are_guarded() -> None:
    f = sm.jit(lambda x: x[:5] * 2)
    for n in (3, 5, 9, 4):
        np.testing.assert_array_equal(f(np.arange(float(n))), np.arange(float(n))[:5] * 2)
    assert recordings(f) == 2


def test_roll_tile_repeat_of_symbolic_sizes() -> None:
    f = sm.jit(
        lambda x: (
            sm.roll(x, 2, axis=0),
            sm.tile(x, (2, 1)),
            sm.repeat(x, 3, axis=1),
            sm.roll(x, -1),
            sm.concat([x, x]),
            sm.stack([x, x], axis=1),
        )
    )
    for n in (3, 4, 9):
        x = rng.standard_normal((n, 2))
        wanted = (
            np.roll(x, 2, 0),
            np.tile(x, (2, 1)),
            np.repeat(x, 3, 1),
            np.roll(x, -1),
            np.concatenate([x, x]),
            np.stack([x, x], 1),
        )
        for a, b in zip(f(x), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert recordings(f) == 1


def test_a_size_can_be_returned() -> None:
    f = sm.jit(lambda x, y: {"n": x.shape[0] * 2, "y": y.shape[1], "plain": 3})
    assert f(np.ones((5, 2)), np.ones((2, 7))) == {"n": 10, "y": 7, "plain": 3}
    assert f(np.ones((6, 2)), np.ones((2, 9))) == {"n": 12, "y": 9, "plain": 3}


def test_merged_and_split_sizes_of_two_arguments() -> None:
    f = sm.jit(lambda x, y: sm.reshape(x, y.shape) + y)
    for shape in ((3, 4), (5, 2), (2, 2)):
        x, y = rng.standard_normal(math.prod(shape)), rng.standard_normal(shape)
        np.testing.assert_array_equal(f(x, y), x.reshape(shape) + y)
    assert recordings(f) == 1
    with pytest.raises(sm.errors.ShapeError):
        f(np.ones(7), np.ones((3, 2)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(-4, 4), st.integers(-4, 4))
def test_walk_over_sizes_and_bounds(n: int, m: int, start: int, stop: int) -> None:
    x = np.arange(float(n * m)).reshape(n, m)
    f = WALKED.setdefault((start, stop), sm.jit(lambda x: sm.sum(x[start:, :stop], axis=1) * 2))
    np.testing.assert_array_equal(f(x), x[start:, :stop].sum(axis=1) * 2)


WALKED: dict[tuple[int, int], Any] = {}


# Structures


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Layer:
    w: Any
    b: Any = None


def test_nests_in_and_out() -> None:
    @sm.jit
    def f(params: Any, pair: Any, *, extra: Any) -> Any:
        layer = params["layers"][0]
        y = pair.left @ layer.w + pair.right
        return {"y": Pair(y, [y * 2, None]), "extra": OrderedDict(a=(extra[0],), b=Layer(y, None))}

    x, w = rng.standard_normal((3, 4)), rng.standard_normal((4, 2))
    params = {"layers": [Layer(w), Layer(w)]}
    out = f(params, Pair(x, 1.0), extra=(x, None))
    assert isinstance(out["y"], Pair)
    assert out["y"].right[1] is None
    np.testing.assert_allclose(out["y"].right[0], (x @ w + 1) * 2)
    assert type(out["extra"]) is OrderedDict
    assert isinstance(out["extra"]["b"], Layer)
    np.testing.assert_array_equal(out["extra"]["a"][0], x)


def test_unknown_leaves_are_refused() -> None:
    with pytest.raises(sm.errors.StaticArgError, match="str"):
        sm.jit(lambda x, mode: x)(np.ones(3), "mode")
    with pytest.raises(sm.errors.StructureError, match="set"):
        sm.jit(lambda x: {x.dtype})(np.ones(3))


def test_static_arguments() -> None:
    @sm.jit(static_argnames=("axis", "how"))
    def f(x: Any, axis: int, *, how: str = "sum") -> Any:
        return getattr(sm, how)(x, axis=axis)

    x = rng.standard_normal((3, 4))
    np.testing.assert_allclose(f(x, 0), x.sum(0))
    np.testing.assert_allclose(f(x, axis=1, how="max"), x.max(1))
    np.testing.assert_allclose(f(x, 0, how="max"), x.max(0))
    assert recordings(f) == 3
    with pytest.raises(sm.errors.StaticArgError, match="not hashable"):
        f(x, [0])
    with pytest.raises(sm.errors.StaticArgError, match="arrays are never static"):
        f(x, x)
    with pytest.raises(sm.errors.ArgumentError, match="nothing"):
        sm.jit(lambda x: x, static_argnames="nothing")
    g = sm.jit(lambda n, x: x * n, static_argnums=0)
    assert g(3, np.ones(2)).tolist() == [3.0, 3.0]
    assert g(4, np.ones(2)).tolist() == [4.0, 4.0]
    assert recordings(g) == 2
    signed = sm.jit(lambda z, x: sm.copysign(x, z[0]), static_argnums=0)
    for zero in (0.0, -0.0, 0.0):
        assert signed((zero,), np.ones(1)).tolist() == [np.copysign(1.0, zero)]


def test_methods() -> None:
    class Model:
        scale = 3.0

        @sm.jit(static_argnums=0)
        def __call__(self, x: Any) -> Any:
            return x * self.scale

    assert Model()(np.ones(2)).tolist() == [3.0, 3.0]


# Numbers as arguments


def test_numbers_do_not_record_again() -> None:
    f = sm.jit(lambda x, step, rate: x * rate**step - step)
    for step in (1, 2, 3):
        np.testing.assert_allclose(f(np.ones(3), step, 0.5), np.ones(3) * 0.5**step - step)
    assert recordings(f) == 1


def test_numbers_keep_the_dtype_of_arrays() -> None:
    f = sm.jit(lambda x, s, k: (x * s, x + k, x.astype if False else x // k))
    for dtype in (np.float32, np.float16):
        assert [v.dtype for v in f(np.ones(3, dtype), 2.0, 3)] == [
            sm.asarray(np.ones(1, dtype)).dtype
        ] * 3
    assert sm.jit(lambda x, s: x * s)(np.ones(3, np.int8), 0.5).dtype == sm.float64


def test_a_number_that_python_looks_at_is_guarded() -> None:
    f = sm.jit(lambda x, axis, flip: sm.sum(x, axis=axis) if flip else x)
    x = rng.standard_normal((3, 4))
    np.testing.assert_allclose(f(x, 0, True), x.sum(0))
    np.testing.assert_allclose(f(x, 1, True), x.sum(1))
    np.testing.assert_allclose(f(x, 0, True), x.sum(0))
    np.testing.assert_allclose(f(x, 0, False), x)
    g = sm.jit(lambda x, rate: x * 2 if rate > 0.5 else x)
    assert g(np.ones(1), 0.7).tolist() == [2.0]
    assert g(np.ones(1), 0.3).tolist() == [1.0]
    h = sm.jit(lambda x, n: sm.reshape(x, (n, -1)))
    assert h(np.ones(6), 2).shape == (2, 3)
    assert h(np.ones(6), 3).shape == (3, 2)


def test_numbers_can_be_returned() -> None:
    a, b = sm.jit(lambda s, k: (s * 2, k + 1))(1.5, 4)
    assert float(a) == 3.0
    assert int(b) == 5
    assert a.dtype == sm.float64


# Captured arrays, aliases, nesting


def test_captured_arrays() -> None:
    w = sm.asarray(rng.standard_normal((4, 2)))
    pending = w * 2
    f = sm.jit(lambda x: x @ w + pending[0])
    x = rng.standard_normal((3, 4))
    for n in (3, 2):
        wanted = x[:n] @ np.asarray(w) + np.asarray(w)[0] * 2
        np.testing.assert_allclose(f(x[:n]), wanted, rtol=1e-12)
    g = sm.jit(lambda x: x + np.arange(4.0))
    np.testing.assert_array_equal(g(x), x + np.arange(4.0))


def test_a_returned_argument_is_an_alias() -> None:
    x = sm.ones(3)
    source = np.ones(3)
    a, b, c = sm.jit(lambda x, y: (x, y, x + y))(x, source)
    assert a is x
    assert np.asarray(b) is source
    assert c.tolist() == [2.0, 2.0, 2.0]


def test_constants_can_be_returned() -> None:
    outer = sm.arange(3)
    a, b = sm.jit(lambda x: (outer, sm.zeros(2)))(np.ones(3))
    assert a.tolist() == [0, 1, 2]
    assert b.tolist() == [0.0, 0.0]


def test_nested_jit_is_inlined() -> None:
    inner = sm.jit(sm.exp)
    outer = sm.jit(lambda x: inner(x) + inner(x * 2))
    np.testing.assert_allclose(outer(np.ones(3)), np.exp(1) + np.exp(2) * np.ones(3))
    assert recordings(inner) == 0


def test_settings_record_again() -> None:
    f = sm.jit(sm.exp)
    f(np.ones(3))
    with sm.config(rounding="exact"):
        f(np.ones(3))
    f(np.ones(3))
    assert recordings(f) == 2


# Mistakes


def line_of(error: Exception) -> str:
    return error.origin.text  # type: ignore[attr-defined]


def test_values_are_not_there_yet() -> None:
    cases: list[Any] = [
        lambda x: x if sm.sum(x) > 0 else -x,
        lambda x: float(x[0]),
        lambda x: np.asarray(x) + 1,
        lambda x: int(x[0]),
        lambda x: x.tolist(),
        lambda x: x[x[0]] if 0 else sm.unique_values(x),
        lambda x: [0, 1][x.astype if 0 else sm.argmax(x)],
    ]
    for f in cases:
        with pytest.raises(sm.errors.TracerError) as caught:
            sm.jit(f)(np.ones(3))
        assert "lambda x" in line_of(caught.value) or "x[x[0]]" in line_of(caught.value)


def test_errors_name_the_users_line_and_both_shapes() -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y  # the line

    with pytest.raises(sm.errors.ShapeError) as caught:
        sm.jit(f)(np.ones((3, 4)), np.ones(5))
    assert line_of(caught.value) == "return x + y  # the line"
    assert "add(f64[3,4], f64[5]): dimension -1 is 4 in one and 5 in another" in str(caught.value)


def test_an_exception_inside_leaves_no_state() -> None:
    def f(x: Any, fail: bool) -> Any:
        y = x + 1
        if fail:
            raise KeyError("mine")
        return y

    g = sm.jit(f)
    with pytest.raises(KeyError, match="mine"):
        g(np.ones(3), True)
    assert (sm.ones(2) + 1).tolist() == [2.0, 2.0]
    assert g(np.ones(3), False).tolist() == [2.0] * 3
    assert recordings(g) == 1


def test_arrays_from_outside_are_not_written() -> None:
    outside = sm.ones(3)

    def f(x: Any) -> Any:
        outside[0] = x[0]
        return x

    with pytest.raises(sm.errors.TracerError, match="from outside"):
        sm.jit(f)(np.ones(3))
    assert outside.tolist() == [1.0] * 3


def test_a_leaked_array_is_refused() -> None:
    kept: list[Any] = []
    sm.jit(lambda x: kept.append(x) or kept.append(x.shape[0]) or x + 1)(np.ones(3))
    with pytest.raises(sm.errors.LeakError, match="has ended"):
        kept[0] + 1
    with pytest.raises(sm.errors.LeakError):
        sm.jit(lambda y: y + kept[0])(np.ones(3))
    with pytest.raises(sm.errors.LeakError):
        assert kept[1] > 2**40
    with pytest.raises(sm.errors.LeakError):
        sm.jit(lambda x: x)(kept[0])


def test_arrays_may_be_keys_while_recording() -> None:
    def f(x: Any, y: Any) -> Any:
        scale = {x: 2, y: 3}
        return x * scale[x] + y * scale[y]

    assert sm.jit(f)(np.ones(2), np.ones(2)).tolist() == [5.0, 5.0]
    with pytest.raises(sm.errors.StructureError, match="set"):
        sm.jit(lambda x: {x})(np.ones(2))


def test_recorded_graphs_are_well_formed() -> None:
    def f(x: Any, w: Any, s: Any, rows: Any) -> Any:
        b, n, d = x.shape
        h = sm.reshape(x @ w, (b, n, 2, d // 2)) * s
        return sm.sum(sm.take(h, rows, axis=1)[:, 1:], axis=-1) / n

    jitted = sm.jit(f)
    jitted(np.ones((2, 3, 4)), np.ones((4, 4)), 0.5, np.asarray([0, 2]))
    for graph in graphs(jitted):
        verify(graph)
        assert text(verify(parse(text(graph)))) == text(graph)


@pytest.mark.parametrize("inputs", [1.5, 2, np.float64(1.5), np.float32(1.5), np.int32(3)])
def test_numbers_have_the_shape_of_one_element(inputs: Any) -> None:
    actual = sm.jit(lambda x: (x * 2, x.ndim, x.shape, x.size))(inputs)
    assert actual[1:] == (0, (), 1)
    assert float(actual[0]) == 2 * float(inputs)


def test_what_cannot_be_called_is_refused_at_once():
    with pytest.raises(sm.errors.ArgumentError, match="function = 3"):
        sm.jit(3)
