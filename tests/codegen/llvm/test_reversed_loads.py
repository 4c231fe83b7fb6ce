"""Arrays read backwards: whole vectors are loaded and reversed."""

import numpy as np
import pytest

import smelt as sm

LENGTHS = (0, 1, 2, 15, 16, 17, 33, 64, 65, 1000)
READS = {
    "flip": lambda x: x[:, ::-1],
    "both": lambda x: x[::-1, ::-1],
    "every second": lambda x: x[:, ::-2],
    "every third": lambda x: x[:, ::-3],
    "every fourth, from the last but one": lambda x: x[:, -2::-4],
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "i8", "?"])
@pytest.mark.parametrize("name", READS)
def test_reading_backwards_agrees_with_numpy(name: str, dtype: str) -> None:
    read = READS[name]
    compiled = sm.jit(read)
    for length in LENGTHS:
        x = (np.random.default_rng(length).standard_normal((3, length)) * 50).astype(dtype)
        actual = np.asarray(compiled(x))
        np.testing.assert_array_equal(actual, read(x))


def test_reading_backwards_gathers_nothing() -> None:
    (kernel,) = sm.explain(sm.jit(READS["flip"]), np.zeros((3, 100), np.float32)).kernels
    assert "masked.gather" not in kernel.llvm


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("function", ["cumulative_sum", "cumulative_prod"])
def test_scans_along_the_vector_axis(function: str, dtype: str) -> None:
    compiled = sm.jit(lambda x: getattr(sm, function)(x, axis=1))
    for length in (1, 7, 16, 31, 32, 33, 100, 1000):
        rng = np.random.default_rng(length)
        x = (1 + rng.uniform(-0.02, 0.02, (2, length))).astype(dtype)
        want = getattr(np, function)(x.astype("f8" if dtype[0] == "f" else dtype), axis=1)
        tolerance = 2 * np.finfo(dtype).eps if dtype[0] == "f" else 0
        if dtype == "f8":  # the reference rounds at every step, Smelt carries what is lost
            tolerance *= length
        np.testing.assert_allclose(np.asarray(compiled(x)), want, rtol=tolerance)


def test_running_sums_meet_infinities_and_nans_in_order() -> None:
    x = np.ones((1, 50), np.float32)
    x[0, 20], x[0, 40] = np.inf, np.nan
    want = np.cumsum(x, axis=1)
    actual = sm.jit(lambda x: sm.cumulative_sum(x, axis=1))(x)
    np.testing.assert_array_equal(np.asarray(actual), want)
