"""Captured arrays: work on them is done once, and never used after they have changed."""

from __future__ import annotations

import gc
from functools import reduce
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import DonatedError
from smelt.machine.target import Target
from smelt.runtime import prelude

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _fresh():
    prelude.clear()
    gc.collect()
    assert prelude.held_bytes() == 0
    with sm.config(constants_extra=None):  # else small programs have no room for them
        yield


def weights(rows: int = 40, columns: int = 256):
    return RNG.standard_normal((rows, columns), np.float32)


def owned(data):
    return sm.asarray(data, copy=True)


def layer(w):
    return sm.jit(lambda x: x @ w)


def check(f, x, w) -> None:
    np.testing.assert_allclose(np.asarray(f(x)), x @ w, rtol=1e-4, atol=1e-4)


def test_a_captured_array_is_packed_once_for_all_sizes():
    data = weights()
    f = layer(owned(data))
    for rows in (3, 70, 200, 1, 17):
        check(f, RNG.standard_normal((rows, 40), np.float32), data)
    assert prelude.held_bytes() == data.nbytes


@pytest.mark.parametrize("columns", [193, 224, 255, 256, 257, 300, 511, 512, 513])
@pytest.mark.parametrize("transposed", [False, True])
def test_any_number_of_columns(columns, transposed):
    data = weights(50, columns)
    w = owned(data.T).mT if transposed else owned(data)
    f = layer(w)
    for rows in (2, 5, 30, 130):
        x = RNG.standard_normal((rows, 50), np.float32)
        check(f, x, data)
    panel = 2 * Target.host().lanes(4)
    assert prelude.held_bytes() == 4 * 50 * (-(-columns // panel) * panel)


def test_work_on_captured_arrays_is_done_once():
    w, s = weights(), weights(1)
    a, b = owned(w), owned(s)
    f = sm.jit(lambda x: x @ (sm.tanh(a) * b))
    x = RNG.standard_normal((70, 40), np.float32)
    expected = x @ (np.tanh(w) * s)
    for _ in range(2):
        np.testing.assert_allclose(np.asarray(f(x)), expected, rtol=1e-3, atol=1e-3)
    assert prelude.held_bytes() == w.nbytes


@pytest.mark.parametrize("transposed", [False, True])
def test_short_integers_that_are_widened_are_kept_short(transposed):
    data = RNG.integers(-128, 128, (60, 256)).astype(np.int8)
    w = owned(data.T) if transposed else owned(data)

    def product(x):
        wide = sm.astype(w, sm.int32)
        return sm.astype(x, sm.int32) @ (wide.mT if transposed else wide)

    f, wide = sm.jit(product), data.astype(np.int64)
    for rows in (1, 3, 17, 70):
        x = RNG.integers(-128, 128, (rows, 60)).astype(np.int8)
        assert np.array_equal(np.asarray(f(x)), x.astype(np.int64) @ wide)
    grouped = Target.host().isa == "avx512" and Target.host().has("avx512vnni")
    assert prelude.held_bytes() == (data.nbytes if grouped else 0)


def scaled(w, s):
    return sm.astype(w, sm.float32) * s[:, None]


def unpacked(w, s):
    low, high = (sm.astype(x, sm.float32) - 8.0 for x in (w & 15, w >> 4))
    return sm.reshape(sm.stack([low, high], axis=-1), (w.shape[0], -1)) * s[:, None]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("wide", [scaled, unpacked])
def test_weights_of_few_bits_with_scales_are_kept_so_where_the_function_scales_them(wide, inside):
    data = RNG.integers(0, 256, (60, 256)).astype(np.uint8)
    scales = RNG.random(60, np.float32) / 256
    w, s = owned(data), owned(scales)
    outside = wide(w, s)
    f = sm.jit(lambda x: x @ (wide(w, s) if inside else outside))
    expected = np.asarray(wide(sm.asarray(data), sm.asarray(scales)))
    for rows in (1, 3, 70):
        x = RNG.standard_normal((rows, 60), np.float32)
        check(f, x, expected)
    (trace,) = next(iter(f.traces.values()))
    kinds = [x.type.dtype for x in trace.captured]
    assert kinds == ([sm.uint8, sm.float32] if inside else [sm.float32])
    view = np.asarray(w)  # shares the memory
    view[...] = 7
    changed = np.asarray(wide(sm.asarray(view), sm.asarray(scales)))
    check(f, x, changed if inside else expected)


def test_expensive_work_on_captured_arrays_is_done_once():
    column, row = weights(60, 1), weights(1, 256)
    a, b = owned(column), owned(row)
    f = sm.jit(lambda x: x @ sm.tanh(a + b))
    x = RNG.standard_normal((5, 60), np.float32)
    check(f, x, np.tanh(column + row))
    (trace,) = next(iter(f.traces.values()))
    assert [x.type.shape for x in trace.captured] == [(60, 256)]


def test_scaled_weights_stay_small_whatever_is_computed_before_them() -> None:
    """Another constant that has to be computed does not compute them as well."""
    data = [RNG.integers(-9, 9, (24, 24)).astype(np.int8) for _ in range(2)]
    small = [sm.asarray(x, copy=True) for x in data]
    rows = np.ones((5, 24), np.float32)

    def f(x: Any) -> Any:
        scaled = [sm.astype(w, sm.float32) * 0.5 for w in small]
        norm = sm.sum(sm.astype(small[0], sm.float32), axis=0)  # many elements: it is computed
        return (x + norm) @ scaled[0] @ scaled[1]

    f = sm.jit(f)
    wide = [x.astype(np.float32) * 0.5 for x in data]
    want = (rows + data[0].sum(0)) @ wide[0] @ wide[1]
    np.testing.assert_allclose(np.asarray(f(rows)), want, rtol=1e-5)
    (traces,) = f.traces.values()
    assert [x.type.dtype for x in traces[0].captured].count(sm.int8) == 2


def test_what_is_pending_on_memory_of_others_is_computed_when_it_is_captured():
    data = RNG.integers(-100, 100, (60, 256)).astype(np.int8)
    wide = sm.astype(sm.asarray(data), sm.int32)
    f, before = sm.jit(lambda x: x @ wide), data.astype(np.int32)
    x = RNG.integers(-100, 100, (5, 60)).astype(np.int32)
    assert np.array_equal(np.asarray(f(x)), x @ before)
    data[:] = 0
    assert np.array_equal(np.asarray(f(x)), x @ before)


def test_memory_that_somebody_else_may_write_is_read_in_every_call():
    data = weights()
    f = layer(sm.asarray(data))
    x = RNG.standard_normal((70, 40), np.float32)
    check(f, x, data)
    assert prelude.held_bytes() == 0


@pytest.mark.parametrize("n", [3, 60])
def test_what_others_write_to_captured_memory_is_seen_by_the_next_call(n):
    data = np.zeros((n, n), np.float32)
    shared = sm.asarray(data)

    @sm.jit
    def f(x):
        return x @ shared + shared

    x = np.ones((n, n), np.float32)
    for k in range(5):
        data[...] = k
        assert np.array_equal(np.asarray(f(x)), np.full((n, n), (n + 1) * k, np.float32))


SHARED = np.zeros(6)
INNER = sm.jit(lambda y: y * sm.cos(sm.asarray(SHARED)))
DERIVED = {
    "through a jitted function": lambda x: INNER(x) + INNER(SHARED),
    "of an array": lambda x: x + sm.tanh(sm.asarray(SHARED)),
    "twice": lambda x: x * sm.exp(sm.sum(sm.asarray(SHARED) * 2) + 1) - SHARED,
    "looked at": lambda x: x + t if (t := sm.cos(sm.asarray(SHARED)))[0] > -2 else x,
    "written": lambda x: x + sm.sqrt(sm.asarray(SHARED)).at[0].set(2.0),
    "of a part": lambda x: x + sm.flip(sm.asarray(SHARED))[:1] * sm.asarray(SHARED)[1],
    "alone": lambda x: (x, sm.sin(sm.asarray(SHARED)) + 1)[1],
    "through many": lambda x: x + reduce(lambda y, _: y + 1, range(400), sm.asarray(SHARED)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_comes_of_captured_memory_of_others_is_computed_of_what_it_holds(name: str) -> None:
    f, x = sm.jit(DERIVED[name]), np.ones(6)
    for k in (0.0, 3.0, 1.0, 2.0):
        SHARED[...] = k + np.arange(6)
        expected = np.asarray(DERIVED[name](sm.asarray(x)))
        assert np.allclose(np.asarray(f(x)), expected, rtol=1e-14), k


def test_what_a_recording_leaves_behind_keeps_its_elements() -> None:
    data, kept = np.ones(5), list[Any]()

    @sm.jit
    def f(x: Any) -> Any:
        kept.append(sm.asarray(data) * 2)
        return x + kept[-1]

    f(np.ones(5))
    data[...] = 7
    assert kept[0].tolist() == [2.0] * 5
    assert np.asarray(f(np.ones(5))).tolist() == [15.0] * 5
    assert np.asarray(sm.jit(lambda x: x + kept[0])(np.ones(5))).tolist() == [3.0] * 5


def test_an_array_that_is_given_out_is_read_anew_from_then_on():
    w = owned(weights())
    f = layer(w)
    x = RNG.standard_normal((70, 40), np.float32)
    f(x)
    assert prelude.held_bytes()
    view = np.asarray(w)  # shares the memory
    check(f, x, view)
    view[...] = 3.0
    check(f, x, view)


def test_an_array_that_is_given_a_new_value_leaves_the_recording_as_it_was():
    data = weights()
    w = owned(data)
    f = layer(w)
    x = RNG.standard_normal((70, 40), np.float32)
    check(f, x, data)
    w[0] = 5.0
    check(f, x, data)  # captured is the value that the array had, as in JAX


def test_a_donated_array_is_reported():
    data = weights()
    w = owned(data)
    f = layer(w)
    x = RNG.standard_normal((70, 40), np.float32)
    check(f, x, data)
    sm.jit(lambda y: y + 1)(owned(data), out=w)
    with pytest.raises(DonatedError):
        f(x)


def test_panels_die_with_the_function():
    f = layer(owned(weights()))
    f(RNG.standard_normal((70, 40), np.float32))
    assert prelude.held_bytes()
    del f
    gc.collect()
    assert prelude.held_bytes() == 0


def test_two_functions_share_what_they_pack():
    w = owned(weights())
    f, g = layer(w), sm.jit(lambda x: sm.exp(x @ w * 0.01))
    x = RNG.standard_normal((70, 40), np.float32)
    f(x)
    held = prelude.held_bytes()
    g(x)
    assert prelude.held_bytes() == held
    del f
    gc.collect()
    assert prelude.held_bytes() == held


def test_ahead_of_time():
    data = weights()
    built = layer(owned(data)).lower(sm.spec("f32[n,40]")).compile()
    for rows in (70, 20):
        check(built, RNG.standard_normal((rows, 40), np.float32), data)
    assert prelude.held_bytes() == data.nbytes


def test_a_captured_array_is_cut_to_the_size_of_an_argument():
    data = weights(90, 40)
    table = owned(data)
    f = sm.jit(lambda x: x + table[: x.shape[0], :])
    for rows in (30, 70, 2):
        x = RNG.standard_normal((rows, 40), np.float32)
        np.testing.assert_array_equal(np.asarray(f(x)), x + data[:rows])


def test_reports_show_constant_work():
    data = weights()
    f = layer(owned(data))
    x = RNG.standard_normal((70, 40), np.float32)
    assert "once     41.0 kB packed, kept for the next calls" in str(sm.explain(f, x))
    built = f.lower(x).compile()
    assert built.memory_analysis().constant_size_in_bytes == data.nbytes


def test_the_knob():
    data = weights()
    w = owned(data)
    x = RNG.standard_normal((70, 40), np.float32)
    with sm.config(constants=0):
        check(layer(w), x, data)
        assert prelude.held_bytes() == 0
    with sm.config(constants=1000):  # too little for it: nothing is planned ahead
        check(layer(w), x, data)
        assert prelude.held_bytes() == 0


@pytest.mark.parametrize(
    "number",
    [
        np.float32(-1e9),
        np.finfo(np.float32).min,
        np.int8(-3),
        np.bool_(True),
        np.float32("nan"),
        np.float32(-0.0),
        np.uint64(2**63 + 5),
        np.float64(0.1),
    ],
)
def test_captured_numbers_of_numpy_are_numbers(number: Any) -> None:
    """They keep their type, and rules and masks know them as they know Python's."""
    for held in (number, sm.asarray(number)):
        traced = sm.jit(lambda x, held=held: sm.where(x > 0, sm.zeros((), dtype=held.dtype), held))
        assert traced.lower(np.ones(3, np.float32)).trace.captured == ()
        actual = np.asarray(traced(np.array([-1.0, 2.0], np.float32)))
        wanted = np.array([number, 0], number.dtype)
        assert actual.dtype == wanted.dtype and actual.tobytes() == wanted.tobytes()
    memory = np.array(2.0, np.float32)
    follows = sm.jit(lambda x: x * memory)
    assert float(follows(np.float32([3.0]))[0]) == 6.0
    memory[...] = 5.0
    assert float(follows(np.float32([3.0]))[0]) == 15.0


def given_away(w, data):
    sm.jit(lambda x: x * 0 + 7, donate=0)(w)


def overwritten(w, data):
    sm.jit(lambda x: x * 0 + 7)(sm.asarray(data), out=w)


def written_by_numpy(w, data):
    np.asarray(w)[...] = 7


def written_through_dlpack(w, data):
    np.from_dlpack(w)[...] = 7


def written_here(w, data):
    w[...] = 7


@pytest.mark.parametrize(
    "change",
    [given_away, overwritten, written_by_numpy, written_through_dlpack, written_here],
)
@pytest.mark.parametrize("side", [3, 40])
def test_views_that_waited_before_the_function_keep_what_they_showed(change, side):
    """The function knew the array that they show, and followed what was written to it."""
    data = weights(side, side)
    w = owned(data)
    transposed, wide = w.T, sm.astype(w, sm.float64)
    half = sm.astype(wide.T, sm.float64)  # of views that nobody holds
    half = sm.reshape(half, (-1, side))
    f = sm.jit(
        lambda x: x @ transposed + x @ sm.astype(wide, sm.float32) + sm.astype(x @ half, x.dtype)
    )
    g = sm.jit(lambda x: x @ w)
    x = RNG.standard_normal((2, side), np.float32)
    before = [np.asarray(f(x)).copy() for _ in range(4)][-1]
    follows = np.asarray(g(x)).copy()
    change(w, data)
    for _ in range(4):
        assert np.array_equal(np.asarray(f(x)), before)
        if change in (written_by_numpy, written_through_dlpack):
            np.testing.assert_allclose(np.asarray(g(x)), x @ np.full_like(data, 7), 1e-4)
        elif change is written_here:
            assert np.array_equal(np.asarray(g(x)), follows)
    assert np.array_equal(np.asarray(transposed), data.T)


def test_a_copy_of_unaligned_memory_is_nobody_elses() -> None:
    data = np.frombuffer(bytes(1 + 4 * 8), np.float32, offset=1)
    assert not sm.asarray(data, copy=True).node.shared
    assert not sm.asarray(data).node.shared
