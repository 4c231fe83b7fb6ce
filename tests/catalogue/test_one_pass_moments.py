"""Moments in one pass are as exact as in two.

They are planned for a large matrix and run on small ones whose numbers are hard: far from 0, all
alike, with the first of them far from the others, beyond the range of squares.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import count, make
from tests.catalogue.rows import DTYPES, Row

from smelt import knobs

MATRIX = {"r": 8192, "c": 4096}
X, XY = ("T[r,c]",), ("T[r,c]", "T[r,c]")
Array = np.ndarray[Any, Any]


def central(axis: Any, power: int) -> Any:
    def code(xp: Any, x: Any) -> Any:
        d = x - xp.mean(x, axis=axis, keepdims=True)
        return xp.mean(d * d * d if power == 3 else d**2, axis=axis)

    return code


def covariance(axis: Any) -> Any:
    def code(xp: Any, x: Any, y: Any) -> Any:
        dx = x - xp.mean(x, axis=axis, keepdims=True)
        dy = y - xp.mean(y, axis=axis, keepdims=True)
        return xp.mean(dx * dy, axis=axis)

    return code


def as_written(xp: Any, x: Any) -> Any:
    return xp.mean(x * x, axis=0) - xp.mean(x, axis=0) ** 2


def argmax_and_moments(xp: Any, x: Any) -> Any:
    return xp.argmax(x), xp.var(x), xp.argmin(x), xp.max(x)


def row(name: str, code: Any, inputs: tuple[str, ...] = X) -> Row:
    return Row(name, code, inputs, MATRIX, fused="0", unfused="0")


COLUMNS, ALL = row("variance of columns", central(0, 2)), row("variance of all", central(None, 2))
MOMENTS = (
    COLUMNS,
    ALL,
    row("third moment of columns", central(0, 3)),
    row("third moment of all", central(None, 3)),
    row("covariance of columns", covariance(0), XY),
    row("covariance of all", covariance(None), XY),
)
PLACES = row("places of all", argmax_and_moments)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("made_of", MOMENTS, ids=str)
def test_moments_are_one_pass(made_of: Row, dtype: str) -> None:
    actual = count(make(made_of, dtype))
    assert (actual.kernels, actual.launches, actual.sweeps, actual.stored) == (1, 1, 1, ())


def test_cancellation_before_adding_epsilon_is_exact_in_one_pass() -> None:
    def code(xp: Any, x: Any, y: Any) -> Any:
        return xp.var(y * 1e9 - 1e9 + x, axis=0)

    program = make(row("masked by a difference", code, XY))
    x = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    (actual,) = program.run([x, np.ones_like(x)])
    assert np.allclose(actual, np.var(x.astype(np.float64), axis=0), rtol=1e-6)


def test_a_difference_of_means_stays_as_it_is_written() -> None:
    program = make(row("as written", as_written))
    x = (np.random.default_rng(0).standard_normal((4096, 64)) + 1000).astype(np.float32)
    square, mean = (
        np.mean((x * x).astype(np.float64), axis=0),
        np.mean(x.astype(np.float64), axis=0),
    )
    wanted = square.astype(np.float32) - mean.astype(np.float32) ** 2
    (actual,) = program.run([x])
    assert np.abs(actual - wanted).max() <= 0.25  # the last bits of a million, cancelled or not
    assert np.abs(actual - np.var(x.astype(np.float64), axis=0)).max() > 1e-3


# ---- numbers -----------------------------------------------------------------------------------


def hard(n: int, c: int) -> dict[str, Array]:
    z = np.random.default_rng(n + c).standard_normal((n, c))
    first, zeros, huge = z.copy(), z + 1e4, z.copy()
    first[0], zeros[: n // 64], huge[0] = 1e6, 0, 1e15
    one = np.full((n, c), 1e8)
    one[n // 2] += 8
    return {
        "around 0": z,
        "far": z + 1e4,
        "farther": z * 100 + 1e8,
        "outlier first": first,
        "zeros first": zeros,
        "huge first": huge,
        "one other": one,
        "ramp": np.arange(n)[:, None] + np.zeros(c),
    }


NAMES = tuple(hard(2, 1))


def exact(x: Array, mean: Array, axis: int | None) -> Array:
    """The mean of squares about a given mean, with more bits than a double has."""
    d = x.astype(np.longdouble) - mean.astype(np.longdouble)
    return np.mean(d * d, axis=axis)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("made_of", "axis"), [(COLUMNS, 0), (ALL, None)], ids=str)
def test_a_variance_is_as_exact_as_in_two_passes(
    made_of: Row, axis: int | None, dtype: str, name: str
) -> None:
    program = make(made_of, dtype)
    for n, c in ((4096, 33), (20_011, 5)):
        x = hard(n, c)[name].astype(DTYPES[dtype])
        (actual,) = program.run([x])
        u = np.finfo(x.dtype).eps / 2
        true = np.mean(x.astype(np.longdouble), axis=axis)
        wanted = exact(x, true, axis)
        # Two sweeps take differences from a mean that is rounded, by 2 u of it.
        allowed = 64 * u * wanted + (2 * u * np.abs(true)) ** 2
        assert (np.abs(actual - wanted) <= allowed).all()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_elements_that_are_alike_have_no_variance(dtype: str) -> None:
    x = np.full((5000, 9), 0.1).astype(DTYPES[dtype])
    for made_of in (COLUMNS, ALL):
        (actual,) = make(made_of, dtype).run([x])
        assert (np.abs(actual.astype(np.float64)) <= (0.1 * 2.0**-7) ** 2).all()
        assert dtype in ("bf16", "f16") or (np.abs(actual) <= np.finfo(x.dtype).eps ** 2).all()


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_few_elements(n: int, dtype: str) -> None:
    x = np.arange(n * 3).reshape(n, 3).astype(DTYPES[dtype]) * 7 + 1
    (columns,) = make(COLUMNS, dtype).run([x])
    (whole,) = make(ALL, dtype).run([x])
    np.testing.assert_allclose(columns, np.var(x.astype(np.float64), axis=0), rtol=1e-6)
    np.testing.assert_allclose(whole, np.var(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("place", [0, 1, 2222, 4443, 4999])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_spoils_its_column(odd: float, place: int, dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((5000, 4)).astype(DTYPES[dtype])
    x[place, 1] = odd
    (actual,) = make(COLUMNS, dtype).run([x])
    assert np.isnan(actual).tolist() == [False, True, False, False]
    (whole,) = make(ALL, dtype).run([x])
    assert np.isnan(whole)


def masked(xp: Any, x: Any, w: Any) -> Any:
    n, keep = xp.sum(w, axis=0), w > 0
    m = xp.sum(xp.where(keep, x, 0), axis=0) / n
    return xp.sum(xp.where(keep, (x - m) ** 2, 0), axis=0) / n


def weighted(xp: Any, x: Any, w: Any) -> Any:
    n = xp.sum(w, axis=0)
    return xp.sum(w * (x - xp.sum(w * x, axis=0) / n) ** 2, axis=0) / n


def ruled_out(xp: Any, x: Any, w: Any) -> Any:
    """The logarithms of a softmax over what a mask leaves."""
    z = xp.where(w > 0, x, -np.inf)
    top = xp.max(z, axis=0)
    rest = z - (top + xp.log(xp.sum(xp.exp(z - top), axis=0)))
    return xp.sum(xp.where(w > 0, rest, 0), axis=0)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("code", "hidden"),
    [
        (masked, np.nan),
        (masked, -np.inf),
        (masked, 1e25),
        (weighted, -1e9),
        (ruled_out, 0.5),
    ],
)
def test_what_a_mask_hides_is_no_anchor(code: Any, hidden: float, dtype: str) -> None:
    """Padding on the left, of all three places that are looked at, and none."""
    program = make(row("hidden", code, XY), dtype)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((5000, 4)) + 7).astype(DTYPES[dtype])
    w = (rng.random((5000, 4)) < 0.8).astype(DTYPES[dtype])
    w[0, 1:], w[1666, 2:], w[3332, 3:] = 0, 0, 0
    with np.errstate(all="ignore"):
        want = code(np, np.where(w > 0, x, 7.0).astype(np.float64), w.astype(np.float64))
    x[w == 0] = hidden
    (actual,) = program.run([x, w])
    np.testing.assert_allclose(actual, want, rtol=2e-5 if dtype == "f32" else 1e-10)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_squares_out_of_range_are_infinite(dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((5000, 4))
    x[:, 2] *= {"f32": 1e30, "f64": 1e200}[dtype]
    (actual,) = make(COLUMNS, dtype).run([x.astype(DTYPES[dtype])])
    assert np.isinf(actual).tolist() == [False, False, True, False]


# ---- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(1, 1), (1, 700), (700, 1), (3, 129), (130, 67), (1031, 517)])
def test_argmax_over_a_whole_array_takes_the_first_of_equals(
    shape: tuple[int, int], dtype: str
) -> None:
    program = make(PLACES, dtype)
    rng = np.random.default_rng(shape[0])
    ties = rng.integers(-2, 3, shape).astype(DTYPES[dtype])
    one = ties.copy()
    one[shape[0] // 2, shape[1] // 2] = np.nan
    two = one.copy()
    two[-1, -1] = np.nan
    lowest = np.full(shape, -np.inf, DTYPES[dtype])
    for x in (ties, one, two, lowest):
        high, _, low, top = program.run([x])
        plain = x.astype(np.float64)
        assert (high, low) == (np.argmax(plain), np.argmin(plain))
        np.testing.assert_array_equal(np.float64(top), np.max(plain))


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("shape", [(20_000, 3), (300, 700), (3, 20_000)])
def test_argmax_of_booleans_in_parts(shape: tuple[int, int], axis: int | None) -> None:
    code = lambda xp, x: (xp.argmax(x, axis=axis), xp.argmin(x, axis=axis))  # noqa: E731
    program = make(Row("truths", code, ("bool[r,c]",), MATRIX, fused="0", unfused="0"))
    late = np.zeros(shape, bool)
    late[shape[0] // 2 :, shape[1] // 2] = True
    for x in (late, ~late, np.ones(shape, bool), np.zeros(shape, bool)):
        high, low = program.run([x])
        np.testing.assert_array_equal(high, np.argmax(x, axis=axis))
        np.testing.assert_array_equal(low, np.argmin(x, axis=axis))


@pytest.mark.parametrize("made_of", [COLUMNS, ALL, PLACES], ids=str)
def test_threads_do_not_change_a_bit(made_of: Row) -> None:
    program = make(made_of, "f64")
    x = np.random.default_rng(5).standard_normal((1031, 517)) + 1e3
    with knobs.config(threads=1):
        alone = program.run([x])
    for threads in (2, 3):
        with knobs.config(threads=threads):
            again = program.run([x])
        assert [a.tobytes() for a in again] == [a.tobytes() for a in alone]


# ---- other moments -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("made_of", MOMENTS[2:], ids=str)
def test_other_moments_far_from_zero(made_of: Row, dtype: str) -> None:
    rng = np.random.default_rng(2)
    arrays = [(rng.standard_normal((3001, 7)) + 1e3).astype(DTYPES[dtype]) for _ in made_of.inputs]
    (actual,) = make(made_of, dtype).run(arrays)
    wanted = made_of.code(np, *(a.astype(np.longdouble) for a in arrays))
    u = np.finfo(DTYPES[dtype]).eps / 2
    # The mean is off by 2 u of 1000, and three or two differences of about 1 are multiplied.
    assert (np.abs(actual - wanted) <= 64 * u + 3 * 2 * u * 1e3).all()
