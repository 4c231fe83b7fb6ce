"""The interpreter's suspicions: indices, races, unfinished outputs, arrays that do not fit."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tests.kernel.goldens import GOLDENS

from smelt.errors import VerifyError
from smelt.kernel.interp import Trace, run
from smelt.kernel.text import parse

COPY = "kernel k(x: f32[n]) -> y: f32[n]\n  grid n/2\n  y[n] = x[n]"


def x(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float64).astype(dtype).reshape(shape)


def refused(source: str, arrays, match: str, sizes=None, **options) -> str:
    with pytest.raises(VerifyError, match=match) as caught:
        run(parse(source), arrays, sizes, **options)
    return str(caught.value)


def test_an_index_out_of_bounds_is_named_with_its_position():
    message = refused(COPY.replace("x[n]", "x[n + 1]"), [x(5)], "index 5 is outside dimension 0")
    assert "`y[n] = x[n + 1]`" in message
    assert "n = 4" in message
    refused(COPY.replace("x[n]", "x[n - 1]"), [x(5)], "index -1 is outside dimension 0 of x")


def test_a_store_outside_is_refused():
    refused(COPY.replace("y[n] =", "y[n + 1] ="), [x(5)], "outside dimension 0 of y")


def test_a_guard_is_lazy_and_a_select_is_not():
    lazy = COPY.replace("= x[n]", "= x[n - 1] if n > 0 else 9")
    assert run(parse(lazy), [x(3)])["y"].tolist() == [9, 0, 1]
    eager = COPY.replace("= x[n]", "= select(n > 0, x[n - 1], 9)")
    refused(eager, [x(3)], "index -1")


def test_a_reduction_under_a_guard_is_as_lazy():
    source = """kernel k(x: f32[n,m], c: bool[n]) -> y: f32[n]
  grid n/4
  y[n] = sum(x[n - 1,m] * m over m) if n > 0 else -1"""
    actual = run(parse(source), [x(3, 2), np.ones(3, bool)])["y"]
    assert actual.tolist() == [-1, 1, 3]


def test_two_blocks_at_one_element():
    racy = "kernel k(x: f32[n]) -> y: f32[1]\n  grid n\n  y[0] = x[n]"
    refused(racy, [x(3)], r"y\[0\] was stored by another block")
    twice = "kernel k(x: f32[n]) -> y: f32[n]\n  y[n] = x[n]\n  y[n] = 1"
    refused(twice, [x(3)], "was stored by the same block")
    folded = "kernel k(x: f32[n]) -> y: f32[n]\n  y[n//2] = x[n]"
    refused(folded, [x(3)], "more than once by one statement")


def test_unfinished_outputs():
    part = COPY.replace("= x[n]", "= x[n] where n > 0")
    refused(part, [x(3)], r"y\[0\] is never stored")
    assert run(parse(part), [x(3)], complete=False)["y"].tolist() == [0, 1, 2]


def test_a_race_in_place_shows_in_any_order():
    shift = "kernel k(x: f32[n]) -> x\n  grid n\n  x[n] = x[n - 1] else 0"
    refused(shift, [x(4)], "read after it was stored")
    assert run(parse(shift), [x(4)], order="backward")["x"].tolist() == [0, 0, 1, 2]


def test_in_place_leaves_the_input_alone():
    source = "kernel k(x: f32[n]) -> x\n  grid n\n  x[n] = x[n] * 2"
    data = x(4)
    assert run(parse(source), [data])["x"].tolist() == [0, 2, 4, 6]
    assert data.tolist() == [0, 1, 2, 3]


def test_values_of_another_block():
    source = """kernel k(x: f32[n]) -> y: f32[n]
  h = x[n] * 2
  stream n/2
    y[n] = h + 1"""
    assert run(parse(source), [x(5)])["y"].tolist() == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_streams_run_in_order_whatever_the_grid_does(order):
    source = """kernel k(x: f32[n,m]) -> y: f32[n]
  grid n
  stream m with s = 0
    s' = s * 2 + x[n,m]
  y[n] = s"""
    assert run(parse(source), [x(2, 3)], order=order)["y"].tolist() == [4, 25]


def test_an_old_state_stays_old_until_the_visit_ends():
    source = """kernel k(x: f32[n]) -> y: f32[n]
  stream n with a = 0, b = 1
    a' = b
    b' = a + a' + x[n]
    y[n] = a"""
    assert run(parse(source), [x(4)])["y"].tolist() == [0, 1, 1, 3]


def test_stops_are_clamped():
    source = """kernel k(x: f32[n], t: i64[]) -> y: f32[]
  stream n/2 to t[] with s = 0
    s' = s + sum(x[n] over n)
  y[] = s"""
    for stop, total in ((-3, 0), (0, 0), (1, 0), (3, 3), (5, 10), (99, 10)):
        assert run(parse(source), [x(5), np.int64(stop)])["y"] == total


def test_empty_axes():
    fold = (
        "kernel k(x: f32[n,m]) -> y: f32[n], z: f32[n], t: i64[n]\n"
        """  grid n
  y[n] = sum(x[n,m] over m)
  z[n] = max(x[n,m] over m)
  t[n] = argmax(x[n,m] over m)"""
    )
    actual = run(parse(fold), [x(2, 0)])
    assert actual["y"].tolist() == [0, 0]
    assert actual["z"].tolist() == [-np.inf, -np.inf]
    assert run(parse(fold), [x(0, 3)])["y"].shape == (0,)


def test_argmax_takes_the_first_and_nan():
    source = (
        "kernel k(x: f32[n,m]) -> y: i64[], z: i64[]\n"
        """  y[] = argmax(x[n,m] over n, m)
  z[] = argmin(x[n,m] over m, n)"""
    )
    data = np.array([[1, 5, 2], [5, -1, -1]], np.float32)
    actual = run(parse(source), [data])
    assert (actual["y"], actual["z"]) == (1, 3)  # of (n, m) row-major; of (m, n) row-major
    data[1, 2] = np.nan
    assert run(parse(source), [data])["y"] == 5


def test_half_types_are_float32_between_load_and_store():
    source = """kernel k(x: f16[n]) -> s: f16[], t: f32[], u: f32[]
  h = x[n] * 1.0001
  s[] = sum(h over n)
  t[] = sum(h over n)
  u[] = sum(f16(h) over n)"""
    data = np.full(100, 0.1, np.float16)
    actual = run(parse(source), [data])
    exact = float(np.float32(data[0]) * np.float32(1.0001)) * 100
    assert actual["t"] == pytest.approx(exact, rel=1e-6)
    assert actual["s"] == np.float16(exact)
    assert actual["u"] == pytest.approx(100 * float(data[0]), rel=1e-7)


def test_integers_wrap():
    source = (
        "kernel k(x: i8[n]) -> y: i8[n], s: i64[], t: i32[]\n"
        """  y[n] = x[n] + 100
  s[] = sum(x[n] over n)
  t[] = dot(x[n], x[n] over n as i32)"""
    )
    actual = run(parse(source), [np.array([100, 27], np.int8)])
    assert actual["y"].tolist() == [-56, 127]
    assert (actual["s"], actual["t"]) == (127, 10729)


def test_sums_are_rounded_once():
    data = np.array([1e8, 1, -1e8] * 100, np.float32)
    source = "kernel k(x: f32[n]) -> y: f32[]\n  y[] = sum(x[n] over n)"
    assert run(parse(source), [data])["y"] == 100


def test_families_have_sizes_of_their_own():
    source = """kernel k(x: f32[i] for each of 3, s: f32[]) -> y: f32[i] for each of 3
  grid each, i/2
  y[i] = x[i] * s[]"""
    data = [x(2), x(5), x(0)]
    trace = Trace()
    actual = run(parse(source), {"x": data, "s": np.float32(2)}, trace=trace)["y"]
    assert [a.tolist() for a in actual] == [[0, 2], [0, 2, 4, 6, 8], []]
    assert trace.stores["y"].unique == 7
    assert trace.loads["s"].unique == 1
    assert trace.blocks == 4


def test_arrays_that_do_not_fit():
    kernel = parse("kernel k(x: f32[n], w: f32[n,2*n]) -> y: f32[m]\n  axis j in m\n  y[j] = 0")
    good = [x(3), x(3, 6)]
    with pytest.raises(VerifyError, match="size m follows from no array"):
        run(kernel, good)
    assert run(kernel, good, {"m": 4})["y"].tolist() == [0] * 4
    for arrays, reason in (
        (good[:1], "takes 2 arrays, not 1"),
        ({"x": good[0]}, "takes x, w"),
        ([x(3), x(3, 5)], "dimension of 5"),
        ([x(4), x(3, 6)], "dimension of"),
        ([x(3, dtype=np.float64), x(3, 6)], "type float32, not float64"),
        ([x(3, 1), x(3, 6)], "1 dimensions, not 2"),
    ):
        with pytest.raises(VerifyError, match=reason):
            run(kernel, arrays, {"m": 4})


def test_facts_are_checked():
    source = "kernel k(x: f32[n]) -> y: f32[]\n  require n >= 3\n  y[] = x[2]"
    assert run(parse(source), [x(3)])["y"] == 2
    refused(source, [x(2)], "requires n - 3 >= 0")


def test_strided_inputs_are_read_through():
    source = "kernel k(x: bf16[n,m] strides(0,1)) -> y: f32[m]\n  y[m] = sum(x[n,m] over n)"
    data = np.broadcast_to(x(3, dtype=ml_dtypes.bfloat16), (4, 3))
    assert run(parse(source), [data])["y"].tolist() == [0, 4, 8]


def test_a_kernel_that_types_do_not_fit_is_refused():
    kernel = parse(COPY)
    wrong = parse(COPY.replace("y: f32", "y: f64").replace("= x[n]", "= f64(x[n])"))
    swapped = replace(wrong, body=kernel.body)
    with pytest.raises(VerifyError, match="float32 goes to float64"):
        run(swapped, [x(3)])


def test_blocks_of_one_are_not_overridden():
    kernel = parse(GOLDENS["wkv"])
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(s).astype(np.float32) for s in ((4, 3), (4, 3), 3, 3)]
    whole = run(kernel, arrays)["o"]
    assert np.array_equal(whole, run(kernel, arrays, grid_sizes={"t": 4, "c": 2})["o"])
