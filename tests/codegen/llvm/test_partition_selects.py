"""Rows split at position-dependent selects: the side not chosen is not loaded."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse

import smelt as sm

POSITIONS = """ i = iota() {shape=(m,), axis=0, dtype=i64}
 k = reshape(i) {shape=(m,1)}
 j = iota() {shape=(n,), axis=0, dtype=i64}
"""
ROWS = {
    "joined": "v = mul(x, 2.0:f32)\n w = sub(x, 1.0:f32)\n y = concat(v, w) {axis=1}",
    "three": "v = exp(x)\n w = flip(x) {axes=(1,)}\n y = concat(v, x, w) {axis=1}",
    "below": "v = mul(x, 2.0:f32)\n w = exp(x)\n y = concat(v, w, x) {axis=0}",
    "both": "v = mul(x, 2.0:f32)\n w = concat(v, x) {axis=1}\n u = neg(w)\n"
    " y = concat(w, u) {axis=0}",
    "margins": "v = exp(x)\n y = pad(v) {low=(1,2), high=(3,5), value=7.0}",
    "margins of parts": "v = concat(x, x, x, x) {axis=0}\n w = neg(v)\n u = concat(w, v) {axis=0}\n"
    " y = pad(u) {low=(0,2), high=(0,3), value=7.0}",
    "triangle": "c = ge(j, k)\n e = exp(x)\n y = select(c, e, x)",
    "other triangle": "c = lt(j, k)\n e = exp(x)\n y = select(c, e, x)",
    "band": "d = sub(j, k)\n a = ge(d, -3:i64)\n b = le(d, 20:i64)\n c = and(a, b)\n"
    " e = exp(x)\n y = select(c, e, x)",
    "ends": "a = lt(j, 3:i64)\n b = gt(j, 40:i64)\n c = or(a, b)\n e = exp(x)\n"
    " y = select(c, e, x)",
    "not": "a = lt(j, 40:i64)\n c = not(a)\n e = exp(x)\n y = select(c, e, x)",
    "one place": "a = eq(j, 5:i64)\n e = exp(x)\n y = select(a, e, x)",
}
ROUNDED = {
    "three",
    "below",
    "margins",
    "triangle",
    "other triangle",
    "band",
    "ends",
    "not",
    "one place",
}


def kernel_of(name: str, isa: str | None = None, dtype: str = "f32") -> SingleKernel:
    lines = (POSITIONS if re.search(r"\bj\b", ROWS[name]) else "") + " " + ROWS[name]
    text = f"graph f(x: f32[m,n]) {{\n{lines}\n return y\n}}"
    return fuse(text.replace("f32", dtype), isa)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", ROWS)
def test_every_piece_is_right_and_reads_nothing_else(name: str, isa: str) -> None:
    rng = np.random.default_rng(3)
    for dtype in ("f32", "f64"):
        kernel = kernel_of(name, isa, dtype)
        for shape in ((1, 1), (2, 3), (5, 16), (3, 31), (40, 64), (7, 129), (2, 700), (65, 300)):
            x = rng.standard_normal(shape).astype(kernel.graph.inputs[0].type.dtype.numpy)
            (wanted,), (actual,) = kernel.expected(x), kernel(x)
            near = 4 * np.finfo(x.dtype).eps if name in ROUNDED else 0
            np.testing.assert_allclose(actual, wanted, rtol=near, atol=0, err_msg=str(shape))
            for at_end in (True, False):
                assert run_guarded(kernel, [x], at_end=at_end)[0].tobytes() == actual.tobytes()


def code(f: Callable[[sm.Array], object]) -> str:
    return sm.jit(f).lower(sm.spec(("m", "n"), "f32")).compile().as_text("llvm")


UNTESTED = re.compile(r"= load <\d+ x float>")


@pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="other sets load masked vectors by elements")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: sm.concat([x * 2, x - 1], axis=1),
        lambda x: sm.concat([x[:, :1], x, x[:, -1:]], axis=1) * 2,
        lambda x: sm.concat([x * 2, x - 1], axis=0),
        lambda x: sm.roll(x, 3, axis=1) * 2,
        sm.tril,
    ],
)
def test_whole_vectors_of_a_piece_are_loaded_without_tests(f: Callable[[sm.Array], object]) -> None:
    assert UNTESTED.search(code(f))


def test_pairs_of_a_row_stay_inside_it() -> None:
    """Two times half a length, rounded down, is no more than the length."""
    text = sm.jit(lambda x: sm.minimum(x[:, ::2][:, : x.shape[1] // 2], x[:, 1::2]))
    kernel = text.lower(sm.spec(("m", "n"), "f32")).compile().as_text("kernel")
    assert "else" not in kernel


def test_empty_rows_and_parts() -> None:
    for name in ("joined", "three", "below", "both", "margins"):
        kernel = kernel_of(name)
        for shape in ((0, 3), (3, 0), (0, 0)):
            x = np.zeros(shape, "f4")
            assert np.array_equal(kernel(x)[0], kernel.expected(x)[0]), (name, shape)


def test_concatenated_arrays_of_unlike_lengths_any_of_them_empty() -> None:
    body = "v = exp(y)\n w = concat(x, v, z) {axis=0}\n return w"
    kernel = fuse(f"graph f(x: f32[m], y: f32[n], z: f32[k]) {{\n {body}\n}}")
    for sizes in ((0, 40, 3), (40, 0, 3), (100, 70, 0), (0, 0, 5), (1, 1, 1), (64, 64, 64)):
        arrays = [np.arange(n, dtype="f4") / 64 for n in sizes]
        (wanted,), (actual,) = kernel.expected(*arrays), kernel(*arrays)
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)
        assert run_guarded(kernel, arrays, at_end=True)[0].tobytes() == actual.tobytes()


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("reduction", ["sum", "argmin"])
@pytest.mark.parametrize("test", ["c = lt(i, 1:i64)", "k = sub(s, 2:i64) c = lt(i, k)"])
def test_every_position_counts_where_a_test_selects_one_of_two_numbers(
    test: str, reduction: str, isa: str
) -> None:
    """Between the ends of a row one number is chosen: a vector of it, not a single lane."""
    kernel = fuse(
        f"""graph f(x: i64[], y: i64[], z: f32[n]) {{
          i = iota() {{shape=(n,), axis=0, dtype=i64}}
          s = size() {{expr=n, dtype=i64}}
          {test}
          v = select(c, x, y)
          r = reduce.{reduction}(v) {{axes=(0,)}}
          return r
        }}""",
        isa,
    )
    for n in (1, 5, 64, 1000):
        for x, y in ((1, 3), (3, 1)):
            arrays = [np.array(x), np.array(y), np.zeros(n, "f4")]
            assert kernel(*arrays)[0] == kernel.expected(*arrays)[0], (n, x, y)
