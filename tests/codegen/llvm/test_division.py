"""Division by one number for all lanes has the bits of the processor's division."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE

import smelt as sm
from smelt.codegen.llvm.module import emit
from smelt.kernel.text import parse
from smelt.machine.target import Target

DTYPES = [np.float32, np.float64]
WORDS = {np.float32: np.uint32, np.float64: np.uint64}
MANTISSA = {np.float32: 23, np.float64: 52}
LEAST = {np.float32: 149, np.float64: 1074}
COLUMNS = 4096 + 37  # whole groups of vectors, and what is left
divide = sm.jit(lambda x, s: x / s)


@pytest.fixture(autouse=True)
def no_fast_divisions() -> Iterator[None]:
    """The code for processors that divide slowly, whichever this one is."""
    with sm.config(target=RUNNABLE[0]):
        yield


def wrong(x: Any, s: Any) -> list[Any]:
    """Quotients that are not the processor's, the first few."""
    with np.errstate(all="ignore"):
        wanted = x / s
    result = np.asarray(divide(x, s))
    word = WORDS[x.dtype.type]
    differ = (result.view(word) != wanted.view(word)) & ~(np.isnan(result) & np.isnan(wanted))
    return [(x[i, j], s[i, 0], result[i, j], wanted[i, j]) for i, j in np.argwhere(differ)[:3]]


def divisors(rng: np.random.Generator, dtype: Any, count: int) -> Any:
    """Any within the usual range, near powers of two, with few bits."""
    ulp = 2.0 ** -MANTISSA[dtype]
    special = [1 + k * ulp for k in range(8)] + [2 - k * ulp for k in range(1, 9)]
    special += [*range(3, 19), 0.75, 6.5, 2.0**-24, 2.0**24]
    usual = np.ldexp(1 + rng.random(count), rng.integers(-24, 24, count))
    return np.concatenate([special, usual]).astype(dtype)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients_near_the_middle_of_two_floats(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    s = divisors(rng, dtype, 30)
    q = (1 + rng.random((len(s), COLUMNS))).astype(dtype)
    wide = np.longdouble if dtype is np.float64 else np.float64
    half = wide(2.0) ** -(MANTISSA[dtype] + 1)
    x = (s.astype(wide) * (q.astype(wide) + half)).astype(dtype)
    near = x.view(WORDS[dtype]) + rng.integers(-2, 3, x.shape).astype(WORDS[dtype])
    assert not wrong(near.view(dtype), s)
    assert not wrong(-near.view(dtype), s)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("apart", [1, 13, 1000])
def test_small_denormal_and_other_numbers(dtype: Any, apart: int) -> None:
    """One odd number a group, a few, or none but in the last columns."""
    rng = np.random.default_rng(apart)
    s = divisors(rng, dtype, 30)
    x = rng.standard_normal((len(s), COLUMNS)).astype(dtype)
    far = rng.integers(-LEAST[dtype] - 3, 120, x.shape)
    x[:, ::apart] = np.ldexp(x, far).astype(dtype)[:, ::apart]
    assert not wrong(x, s)
    x[:, 5::31], x[:, 6::31], x[:, 7::97], x[:, 8::97], x[:, 9::97] = (
        0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
    )
    assert not wrong(x, s)
    assert not wrong(x, -s)
    assert not wrong(x, np.ldexp(s, rng.integers(-100, 100, s.shape)).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_denormal_quotients_in_the_middle(dtype: Any) -> None:
    """Multiples of the least number by small ones: ties go to the even one."""
    s = np.concatenate([np.arange(1, 40), np.arange(1, 40) / 2, [2.0**24]]).astype(dtype)[:, None]
    x = np.ldexp(np.arange(COLUMNS, dtype=dtype), -LEAST[dtype]) * np.ones_like(s)
    assert not wrong(x.astype(dtype), s)
    assert not wrong(-x.astype(dtype), s)


@pytest.mark.parametrize("dtype", DTYPES)
def test_divisors_that_are_no_usual_ones(dtype: Any) -> None:
    tiny, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    s = [0, -0.0, np.inf, -np.inf, np.nan, tiny, 3 * tiny, -tiny, large, -large, 1, -1, -3.3]
    x = np.random.default_rng(3).standard_normal((len(s), COLUMNS)).astype(dtype)
    x[:, ::7], x[:, 1::7], x[:, 2::70] = 0, -0.0, np.inf
    assert not wrong(x, np.array(s, dtype)[:, None])


@pytest.mark.parametrize("dtype", DTYPES)
def test_divisors_of_every_size_and_sign(dtype: Any) -> None:
    """Quotients that are about to be subnormal or infinite, and those that are."""
    rng = np.random.default_rng(6)
    info = np.finfo(dtype)
    exponents = np.arange(info.minexp, info.maxexp, 1 if dtype is np.float32 else 9)
    s = np.ldexp(dtype(1) + rng.random(len(exponents)).astype(dtype), exponents)
    s *= rng.choice(np.array([-1, 1], dtype), s.shape)
    s = s[:, None]
    edge = rng.choice([info.minexp, info.maxexp, -96, 96, -800, 800], (len(s), COLUMNS))
    power = np.where(abs(edge) < info.maxexp, edge, edge + exponents[:, None])
    with np.errstate(all="ignore"):
        near = 1 + rng.integers(-3, 4, power.shape) * info.eps
        x = np.ldexp(near, power + rng.integers(-2, 3, power.shape)).astype(dtype)
        usual = exponents[:, None] + rng.integers(-9, 9, x.shape)
        usual = np.ldexp(1 + rng.random(x.shape), usual).astype(dtype)
    x[:, ::2] = usual[:, ::2]
    x[::5, ::3], x[1::5, ::3] = 0, -0.0
    assert not wrong(x, s)
    assert not wrong(-x, s)


@pytest.mark.clock
def test_divisors_of_any_size_and_sign_take_as_long() -> None:
    """The processor's division of numbers that do not fit takes twenty times as long."""
    x = np.random.default_rng(7).random((256, 256), dtype=np.float32)
    times: dict[float, float] = {}
    for s in (3.0, -3.0, -1e-3, 1e-12, -1e20):
        by = np.float32(s).reshape(())
        taken: list[float] = []
        for _ in range(40):
            start = perf_counter()
            divide(x, by)
            taken.append(perf_counter() - start)
        times[s] = min(taken)
    assert max(times.values()) < 5 * times[3.0]


def test_processors_that_divide_fast_do_so() -> None:
    text = divide.lower(sm.spec("f32[r,c]"), sm.spec("f32[r,1]")).compile().as_text("kernel")
    slow = replace(Target.for_isa("avx512"), cpu="znver4")
    for target, fast in ((slow, False), (replace(slow, cpu="znver5"), True)):
        code = emit(parse(text), target).llvm
        assert ("smelt_divide" in code) != fast


def test_by_a_number_for_all() -> None:
    x = np.random.default_rng(4).standard_normal((3, COLUMNS)).astype(np.float32)
    by = sm.jit(lambda x, s: x / s)
    for s in (3.1, -7.0, 1e-30, 0.0):
        with np.errstate(all="ignore"):
            wanted = x / np.float32(s)
        assert np.array_equal(np.asarray(by(x, np.float32(s))), wanted, equal_nan=True), s


def test_softmax_of_far_logits() -> None:
    """Weights of all sizes, denormal ones and zeros among them."""
    x = 20 * np.random.default_rng(5).standard_normal((8, COLUMNS)).astype(np.float32)
    actual = np.asarray(sm.jit(lambda x: sm.nn.softmax(x, axis=-1))(x))
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    rounded = 2.0**-18  # a difference below 128, to half a unit in its last place
    wanted = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(actual, wanted, rtol=rounded + 2.0**-20, atol=3e-45)
