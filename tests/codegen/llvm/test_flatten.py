"""Rows of a few elements: maps over them are one run, and say the same as NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.codegen.build import asm_text, form_for, forms
from smelt.codegen.llvm.nests import schedule
from smelt.codegen.llvm.patterns import pattern
from smelt.codegen.llvm.program import program
from smelt.kernel.short import short_sizes, with_sizes
from smelt.kernel.text import parse, text
from smelt.target import Target
from smelt.types.expr import Index, add, axis, evaluate, floordiv, mod, mul, size

AVX512 = Target.for_isa("avx512")
Program = Callable[..., Any]

PROGRAMS: dict[str, tuple[Program, Callable[[int, int], tuple[tuple[int, ...], ...]]]] = {
    "bias": (lambda x, b: x + b, lambda n, d: ((n, d), (d,))),
    "row": (lambda x, b: x * 2 - b, lambda n, d: ((n, d), (n, 1))),
    "flip": (lambda x: sm.flip(x, axis=1) * 2, lambda n, d: ((n, d),)),
    "concat": (lambda a, b: sm.concat([a + 1, b], axis=1), lambda n, d: ((n, d), (n, 2))),
    "swap": (lambda x: sm.permute_dims(x, (0, 2, 1)) * 2, lambda n, d: ((n, d, 2),)),
    "three": (lambda a, b: a[:, None, :] * b[:, :, None], lambda n, d: ((n, d), (n, 3))),
    "picked": (lambda a: sm.stack([a[:, -1] - a[:, 0], a[:, 0]], axis=1), lambda n, d: ((n, d),)),
    "rolled": (lambda a: sm.roll(a, 1, axis=1) + a, lambda n, d: ((n, d),)),
    "product": (lambda a, x: (a @ x[:, :, None])[:, :, 0], lambda n, d: ((n, 3, d), (n, d))),
    "outside": (
        lambda a: sm.concat([a[:, :1], a, a[:, -1:] + 1], axis=1),
        lambda n, d: ((n, d),),
    ),
}
NUMPY: dict[str, Program] = {
    "bias": lambda x, b: x + b,
    "row": lambda x, b: x * 2 - b,
    "flip": lambda x: np.flip(x, 1) * 2,
    "concat": lambda a, b: np.concatenate([a + 1, b], 1),
    "swap": lambda x: np.transpose(x, (0, 2, 1)) * 2,
    "three": lambda a, b: a[:, None, :] * b[:, :, None],
    "picked": lambda a: np.stack([a[:, -1] - a[:, 0], a[:, 0]], 1),
    "rolled": lambda a: np.roll(a, 1, 1) + a,
    "product": lambda a, x: (a @ x[:, :, None])[:, :, 0],
    "outside": lambda a: np.concatenate([a[:, :1], a, a[:, -1:] + 1], 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16", "bool"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_short_rows_give_what_numpy_gives(name: str, dtype: str) -> None:
    """A jitted function for each row's length: small integers, so that nothing rounds."""
    if dtype == "bool" and name not in ("picked", "concat"):
        dtype = "uint8"
    program_, shapes = PROGRAMS[name]
    rng = np.random.default_rng(7)
    for d in (2, 3, 7, 12, 33):
        jitted = sm.jit(program_)
        for n in (2, 701):
            arrays = [rng.integers(0, 5, s).astype(dtype) for s in shapes(n, d)]
            if dtype == "bool":
                arrays = [a.astype("int16") for a in arrays]
            expected = NUMPY[name](*arrays)
            found = np.asarray(jitted(*arrays))
            np.testing.assert_array_equal(found, expected.astype(found.dtype), f"{n} rows of {d}")


@pytest.mark.parametrize("name", ["bias", "flip", "row"])
def test_strided_and_broadcast_rows(name: str) -> None:
    """Rows that do not follow one another in memory."""
    program_, shapes = PROGRAMS[name]
    rng = np.random.default_rng(3)
    first, *others = (rng.random(s, np.float32) for s in shapes(300, 5))
    wide = np.repeat(np.repeat(first, 2, 0), 3, 1)[::2, ::3]
    for x in (wide, np.asfortranarray(first), first[::-1], np.broadcast_to(first[:1], first.shape)):
        expected = NUMPY[name](x, *others)
        np.testing.assert_array_equal(np.asarray(sm.jit(program_)(x, *others)), expected)


def test_nothing_behind_the_last_row_is_read() -> None:
    """Arrays that end where their memory ends."""
    from mmap import PAGESIZE, mmap

    source = mmap(-1, 4 * PAGESIZE)
    for d in (3, 5, 12):
        n = 2 * PAGESIZE // 4 // d
        count = n * d
        x = np.frombuffer(source, np.float32, count=count, offset=4 * PAGESIZE - count * 4)
        x = x.reshape(n, d)
        found = np.asarray(sm.jit(lambda a: sm.flip(a, axis=1) + 1)(x))
        np.testing.assert_array_equal(found, np.flip(x, 1) + 1)


BIAS = parse("""
kernel k(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
  grid r, c/4096
  y[r,c] = x[r,c] + b[c]
""")


def test_one_run_has_one_axis() -> None:
    (phase,) = program(with_sizes(BIAS, {"c": 3})).phases
    s = schedule(phase, AVX512)
    assert [n.order for n in s.nests] == [("c",)]
    assert evaluate(s.phase.axes["c"], {"r": 10}) == 30


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_rows_stay_where_lanes_cannot_pick(isa: Any) -> None:
    (phase,) = program(with_sizes(BIAS, {"c": 3})).phases
    assert [n.order for n in schedule(phase, Target.for_isa(isa)).nests] == [("r", "c")]


def test_whole_vectors_stay_rows() -> None:
    (phase,) = program(with_sizes(BIAS, {"c": 16})).phases
    assert [n.order for n in schedule(phase, AVX512).nests] == [("r", "c")]


def test_lanes_pick_and_do_not_gather() -> None:
    code = asm_text(with_sizes(BIAS, {"c": 3}), AVX512)
    assert "vperm" in code


def test_short_sizes_are_numbers_in_the_form() -> None:
    found = forms(BIAS, AVX512, {"r": 5, "c": 3})
    assert form_for(found, {"r": 9, "c": 3}) == "@c=3"
    assert form_for(found, {"r": 5, "c": 4}) == ""
    assert form_for(found, {"r": 5, "c": 0}) == ""
    assert forms(BIAS, AVX512, {"r": 5, "c": 80}) == ()


def test_short_sizes_that_change_take_the_code_for_all() -> None:
    jitted, other = sm.jit(lambda x, b: x + b), np.arange(5, dtype=np.float32)
    for d in (3, 5, 3, 4):
        x = np.ones((50, d), np.float32)
        np.testing.assert_array_equal(np.asarray(jitted(x, other[:d].copy())), x + other[:d])


def test_only_inner_sizes_are_short() -> None:
    kernel = parse("""
    kernel k(x: f32[a,b,c,d]) -> y: f32[a,b,c,d]
      grid a, b, c, d/4096
      y[a,b,c,d] = x[a,b,c,d] + f32(size(b))
    """)
    assert short_sizes(kernel, {"a": 2, "b": 3, "c": 40, "d": 3}) == {"d": 3}
    assert short_sizes(kernel, {"a": 2, "b": 3, "c": 5, "d": 7}) == {"d": 7, "c": 5, "b": 3}
    # More than 256 elements together.
    assert short_sizes(kernel, {"a": 2, "b": 9, "c": 5, "d": 7}) == {"d": 7, "c": 5}
    told = text(with_sizes(kernel, {"d": 7, "c": 5, "b": 3}))
    assert "f32[a,3,5,7]" in told and "size(b)" not in told


def test_forms_of_products_are_those_of_the_kernel_with_numbers() -> None:
    """A column alone is no axis: what is small then is something else."""
    x, y = np.ones((4, 257)), np.arange(514.0).reshape(257, 2)
    for n in (1, 2):
        found = np.asarray(sm.jit(lambda a, b: a @ b)(x, y[:, :n].copy()))
        np.testing.assert_array_equal(found, x @ y[:, :n])


K = axis("k", mul(size("n"), 60))


@pytest.mark.parametrize(
    "e",
    [
        mod(K, 3), floordiv(K, 5), add(mul(floordiv(K, 3), 7), mod(K, 3)),
        mod(floordiv(K, 3), 5), floordiv(mod(K, 12), 4), add(mul(K, 2), mul(mod(K, 4), -3)),
    ],
)  # fmt: skip
def test_patterns_say_what_the_index_is(e: Index) -> None:
    found = pattern(e, "k")
    assert found is not None
    for k in range(200):
        of_place = found.places[k % found.period]
        assert evaluate(e, {"n": 9}, {"k": k}) == evaluate(found.first, {}) + of_place + (
            k // found.period * found.step
        )


def test_windows_hold_what_is_asked_for() -> None:
    found = pattern(add(mul(floordiv(K, 3), 3), mul(mod(K, 3), -1)), "k")
    assert found is not None
    held = [True, False, True]
    starts, wanted = found.windows(16, held)
    table = found.table(found.period + 15)
    for r, (start, bits) in enumerate(zip(starts, wanted, strict=True)):
        asked = {table[x] - start for x in range(r, r + 16) if held[x % 3]}
        assert asked == {i for i in range(64) if bits >> i & 1}


def test_no_pattern_where_numbers_are_missing() -> None:
    assert pattern(mod(K, size("m")), "k") is None
    assert pattern(mul(mod(K, 3), size("m")), "k") is None
    assert pattern(floordiv(K, 1000), "k") is None
