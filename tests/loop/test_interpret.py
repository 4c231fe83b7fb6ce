"""Folds in every mode and order, values of lanes, and arrays of calls in the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smelt.errors import VerifyError
from smelt.loop.interpret import run
from smelt.loop.passes.accumulate import accumulate
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.text import parse
from smelt.loop.verify import verify


def _compute(body: str, x: np.ndarray, *, results: str = "y: out f32[4]", seed: int = 0):
    head = f"func f(x: f32[n], {results}; n)\n  "
    module = verify(parse(head + body.replace("\n", "\n  ")), bounds=False)
    return run(module, {"x": x}, {"n": x.size}, seed=seed)["y"]


def test_lanes_are_combined_by_halves_and_prefixes_by_doubling():
    x = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    body = "y[0 : 4] = splat(across(sum, x[0 : 4]), 4)"
    assert _compute(body, x).tolist() == [2.0] * 4  # (1e8 - 1e8) + (1 + 1)
    body = "y[0 : 4] = scan(sum, x[0 : 4])"
    assert _compute(body, x).tolist() == [1e8, 1e8, 0.0, 0.0]  # (1e8 + 1) + (1 - 1e8)


def test_several_vectors_give_one_lane_each():
    x = np.arange(4, dtype=np.float32)
    assert _compute("y[0 : 2] = across(max, x[0 : 2], x[2 : 2])\ny[2] = 0.0\ny[3] = 0.0", x)[
        :2
    ].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("transpose, v, w", [0, 2, 1, 3]),
        ("interleave, v, w", [0, 2, 1, 3]),
        ("deinterleave, v, w", [0, 2, 1, 3]),
        ("permute, v, w; 3, 3, 0, 1", [3, 3, 0, 1]),
    ],
)
def test_shuffles_move_lanes(pattern, expected):
    body = f"v = x[0 : 2]\nw = x[2 : 2]\ny[0 : 4] = shuffle({pattern})"
    assert _compute(body, np.arange(4, dtype=np.float32)).tolist() == expected


def test_lanes_of_an_index_count_from_their_start():
    x = np.arange(4, dtype=np.float32)
    body = "y[0 : 4] = x[lanes(2, 4 align 2; @//3) : 4] + f32(lanes(n, 4; -@))"
    assert _compute(body, x).tolist() == [-4.0, -4.0, -5.0, -6.0]
    with pytest.raises(VerifyError, match="multiple"):
        _compute(body.replace("align 2", "align 4"), x)


def test_modes_of_sums_round_as_documented():
    x = np.array([1e8, 1.0, -1e8, 1.0] * 4, np.float32)
    sums = {}
    for mode in ("sum", "sum:f64", "sum:pairs", "sum:two_sum"):
        carry = "splat(0.0, 2)"
        loop = f"each i in 0 .. n by 4 with s = {mode} {carry}\n  s <- x[i : 4]"
        loop = loop if mode == "sum:pairs" else loop.replace("by 4", "by 2").replace(": 4", ": 2")
        body = f"{loop}\ny[0 : 2] = f32(s)\ny[2 : 2] = 0.0"
        sums[mode] = [_compute(body, x, seed=seed)[:2].tolist() for seed in range(4)]
    # Lane 0 adds 1e8 and -1e8 in some order, lane 1 ones; pairs add 1e8 - 1e8 and 1 + 1 first.
    assert sums["sum:f64"] == sums["sum:pairs"] == sums["sum:two_sum"] == [[0.0, 8.0]] * 4


def test_the_best_element_has_the_first_position_and_nan_wins():
    loop = "each i in 0 .. n with b @ p = argmax -inf from 99\n  b <- x[i] @ i\n"
    body = loop + "y[0] = b\ny[1] = f32(p)\ny[2 : 2] = 0.0"
    for seed in range(5):
        x = np.array([1, 5, 5, 2], np.float32)
        assert _compute(body, x, seed=seed)[:2].tolist() == [5.0, 1.0]
        x[2:] = np.nan
        best, place = _compute(body, x, seed=seed)[:2]
        assert np.isnan(best)
        assert place == 2


@pytest.mark.parametrize(
    "combine", ["argmax", "argmin", "sum", "sum:f64", "sum:two_sum", "prod", "max"]
)
def test_folds_and_their_carries_agree(combine):
    at, start = (" @ p", " from 99") if "arg" in combine else ("", "")
    place = " @ i" if at else ""
    source = f"""func f(x: f32[n], y: out f64[2]; n)
  for i in 0 .. n with s{at} = {combine} 0.5{start}
    s <- x[i]{place}
  y[0] = f64(s)
  y[1] = {"f64(p)" if at else "f64(0.0)"}"""
    module = verify(parse(source))
    carried = verify(replace(module, funcs=(accumulate(module.funcs[0]),)))
    x = np.random.default_rng(0).standard_normal(17).astype(np.float32)
    for data in (x, np.where(np.arange(17) % 5 == 3, np.nan, x)):
        outputs = [run(m, {"x": data}, {"n": 17})["y"] for m in (module, carried)]
        np.testing.assert_array_equal(*outputs)


def test_vector_folds_have_the_bits_of_their_lanes():
    module = parse("""func f(x: f32[n], y: out f32[1]; n)
  each i in 0 .. n with s = sum 0.0
    s <- x[i]
  y[0] = s""")
    x = np.random.default_rng(0).standard_normal(37).astype(np.float32)
    vector = replace(module, funcs=(accumulate(vectorize(module.funcs[0], "i", 8, "mask")),))
    lanes = np.zeros(8, np.float32)
    for k in range(0, 37, 8):
        lanes += np.pad(x[k : k + 8], (0, 8 - x[k : k + 8].size))
    halves = lanes[:4] + lanes[4:]
    halves = halves[:2] + halves[2:]
    assert run(verify(vector), {"x": x}, {"n": 37})["y"][0] == halves[0] + halves[1]


def test_half_types_are_computed_in_float32():
    source = "func f(x: f16[4], y: out f16[4])\n  y[0 : 4] = x[0 : 4] + f16(0.1)"
    x = np.array([1, 2, 3, 4], np.float16)
    outputs = run(verify(parse(source)), {"x": x}, {})["y"]
    assert outputs.dtype == np.float16
    np.testing.assert_array_equal(
        outputs, (x.astype(np.float32) + np.float32(0.1)).astype(np.float16)
    )


def test_entries_run_in_order_and_share_partial_results():
    source = """func parts(x: f32[n], p: out f32[n]; n)
  chunk t in 0 .. n
    p[t] = x[t] * 2.0
func merge(p: f32[n], y: out f32[1]; n)
  for i in 0 .. n with s = 0.0
    s' = s + p[i]
  y[0] = s"""
    assert run(verify(parse(source)), {"x": np.ones(5)}, {"n": 5})["y"].tolist() == [10.0]


def test_scratch_of_a_thread_is_kept_from_task_to_task():
    source = """func f(y: out f32[n]; n)
  alloc e: f32[1] in SPACE
  e[0] = 7.0
  chunk t in 0 .. n
    y[t] = e[0]"""
    module = verify(parse(source.replace("SPACE", "thread")))
    assert run(module, {}, {"n": 4})["y"].tolist() == [7.0] * 4
    with pytest.raises(VerifyError, match="before it is written"):
        run(verify(parse(source.replace("SPACE", "task"))), {}, {"n": 4})


def test_arrays_have_the_length_of_their_parameter():
    with pytest.raises(VerifyError, match="x has 3 elements, not 4"):
        run(parse("func f(x: f32[n]; n)\n  v = x[0]"), {"x": np.ones(3)}, {"n": 4})
