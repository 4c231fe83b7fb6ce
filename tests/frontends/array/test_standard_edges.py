"""Edges of the array API standard that libraries written for it meet: found by running them.

Boolean indices of rank 0 (SciPy's `apply_where`), arguments by name, bounds beyond a type's range,
differences of too few elements, and integers that are none.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.frontends.array.numpy_comparison import MODES, check

import smelt as sm

A = np.arange(6.0).reshape(2, 3)
BYTES = np.asarray([0, 5, 250], np.uint8)
modes = pytest.mark.parametrize("mode", MODES)


# Booleans of rank 0


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)], ids=str)
def test_a_boolean_of_rank_0_keeps_all_or_nothing(truth: bool, shape: tuple[int, ...]) -> None:
    values = np.arange(float(np.prod(shape))).reshape(shape)
    mask = np.asarray(truth)
    for key in (truth, np.bool_(truth), mask, sm.asarray(mask), (sm.asarray(mask),), (truth, ...)):
        x = sm.asarray(values)
        wanted = values[mask]
        assert x[key].shape == wanted.shape
        np.testing.assert_array_equal(np.asarray(x[key]), wanted)
        x[key] = x[key] - 7  # as SciPy does
        y = values.copy()
        y[mask] = y[mask] - 7
        np.testing.assert_array_equal(np.asarray(x), y)
        x[key] = 1
        y[mask] = 1
        np.testing.assert_array_equal(np.asarray(x), y)


@modes
def test_a_boolean_of_rank_0_writes(mode: str) -> None:
    def f(xp: Any, x: Any, y: Any) -> Any:
        x = x.copy() if xp is np else x
        x[xp.sum(y) > 3] = y[0]
        x[xp.sum(y) > 100] = 9
        return x

    check(mode, f, A, A)


def test_a_scalar_boolean_index_of_unknown_value_or_position_is_refused() -> None:
    x = sm.asarray(A)
    with pytest.raises(sm.errors.TracerError, match="boolean"):
        sm.jit(lambda x: x[sm.sum(x) > 0])(x)
    with pytest.raises(sm.errors.UnsupportedError, match="rank 0 beside"):
        x[0, True]
    with pytest.raises(sm.errors.ShapeError):
        x[sm.asarray(True)] = sm.ones((4, 2, 3))


# Arguments


def test_arguments_by_keyword_and_by_position() -> None:
    assert sm.isdtype(dtype=sm.int8, kind="integral")
    assert sm.isdtype(sm.float32, kind=("bool", sm.float32))
    x = sm.asarray(A)
    assert sm.expand_dims(x, 1).shape == sm.expand_dims(x, axis=1).shape == (2, 1, 3)
    assert sm.expand_dims(x, (0, -1)).shape == (1, 2, 3, 1)
    assert sm.zeros(sm.asarray(3)).shape == sm.zeros(np.asarray(3)).shape == (3,)
    assert sm.zeros(sm.asarray([3, 2])).shape == (3, 2)


NO_INTEGER: list[Callable[[Any], Any]] = [
    lambda x: sm.zeros(2.0),
    lambda x: sm.zeros(None),
    lambda x: sm.zeros("ab"),
    lambda x: sm.zeros((2, 2.0)),
    lambda x: sm.reshape(x, (2.0, 3)),
    lambda x: sm.reshape(x, None),
    lambda x: sm.sum(x, axis=1.0),
    lambda x: sm.sum(x, axis="a"),
    lambda x: sm.flip(x, axis=(0.0,)),
    lambda x: x[1.5:],
    lambda x: x[::1.5],
    lambda x: sm.roll(x, (1, 2)),
    lambda x: sm.eye(2.0),
    lambda x: sm.linspace(0, 1, 3.0),
    lambda x: sm.tile(x, 1.5),
    lambda x: sm.linalg.vector_norm(x, ord="a"),
    lambda x: sm.diff(x, n=-1),
]


@pytest.mark.parametrize("k", range(len(NO_INTEGER)))
def test_what_is_no_integer_is_named_with_the_users_line(k: int) -> None:
    with pytest.raises(sm.errors.ArgumentError) as caught:
        NO_INTEGER[k](sm.asarray(A))
    assert caught.value.origin is not None and "lambda x" in caught.value.origin.text


@pytest.mark.parametrize(
    "wrong",
    [
        300,
        [300],
        [[1], [-1]],
        [2.5, 256.0],
        [True, 300],
        float("nan"),
        [0.0, float("nan")],
        [2**70],
        [np.int64(300)],
        [np.float64(-1)],
        [sm.asarray(3), 300],
        [[sm.asarray(3)], [-1]],
    ],
)
def test_numbers_that_a_type_does_not_hold_are_not_cut(wrong: Any) -> None:
    with pytest.raises(sm.errors.RangeError):
        sm.asarray(wrong, dtype=sm.uint8)


def test_numbers_that_a_type_holds_are_taken_from_lists() -> None:
    for values in ([0, 255], [[]], [True, False], [0.5, 255.5], [-0.5], [np.uint64(7), 3]):
        actual = sm.asarray(values, dtype=sm.uint8)
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(values).astype(np.uint8))
    assert sm.asarray([2**63], dtype=sm.uint64).dtype == sm.uint64
    assert np.asarray(sm.asarray([-(2**63), 2**63 - 1], dtype=sm.int64)).tolist()[1] == 2**63 - 1
    for values in ([2**63 - 1, 0.5], [1, 2**64 - 1], [sm.asarray(1.5), 2**53 + 1]):
        actual = sm.asarray(values, dtype=sm.int64 if 0.5 in values else sm.uint64)
        assert np.asarray(actual).tolist() == [int(n) for n in values]


def test_integers_to_a_negative_power_are_refused() -> None:
    x = sm.asarray([1, 2, 4])
    for wrong in (lambda: x**-1, lambda: sm.pow(x, -2), lambda: sm.jit(lambda x: x**-1)(x)):
        with pytest.raises(sm.errors.ArgumentError, match="negative power"):
            wrong()
    np.testing.assert_array_equal(np.asarray(x**-1.0), [1, 0.5, 0.25])
    np.testing.assert_array_equal(np.asarray(sm.astype(x, sm.float32) ** -1), [1, 0.5, 0.25])


def test_the_cpu_has_no_streams() -> None:
    x = sm.asarray(A)
    assert np.from_dlpack(x).shape == A.shape
    for wrong in (lambda: x.__dlpack__(stream=1), lambda: x.to_device("cpu", stream=1)):
        with pytest.raises(sm.errors.UnsupportedError, match="streams"):
            wrong()


# Bounds of `clip` in the type of what they bound

BOUNDS: list[tuple[Any, Any, Any, list[int]]] = [
    (BYTES, -3, 300, [0, 5, 250]),
    (BYTES, 1, None, [1, 5, 250]),
    (BYTES, None, -1, [0, 0, 0]),
    (BYTES, 1.5, 7.5, [2, 5, 7]),
    (BYTES, -np.inf, np.inf, [0, 5, 250]),
    (BYTES, np.asarray([-3, 6, 7]), None, [0, 6, 250]),
    (BYTES, None, np.int16(99), [0, 5, 99]),
    (np.asarray([2**62 + 1, -5]), 0.5, 1e30, [2**62 + 1, 1]),
    (np.asarray([3, 2**64 - 1], np.uint64), np.asarray([-1, -2]), None, [3, 2**64 - 1]),
    (np.asarray([3, -4]), None, np.asarray([2**64 - 1, 2], np.uint64), [3, -4]),
    (np.asarray([3, -4]), np.asarray([2**64 - 1, 2], np.uint64), None, [2**63 - 1, 2]),
]


@modes
@pytest.mark.parametrize("case", BOUNDS, ids=str)
def test_bounds_beyond_a_type_are_its_ends(mode: str, case: tuple[Any, Any, Any, Any]) -> None:
    x, low, high, wanted = case
    low, high = (
        sm.asarray(v) if isinstance(v, np.ndarray | np.generic) else v for v in (low, high)
    )
    f = (
        (lambda x: sm.clip(x, low, high))
        if mode == "lazy"
        else sm.jit(lambda x: sm.clip(x, low, high))
    )
    actual = np.asarray(f(sm.asarray(x)))
    assert actual.dtype == x.dtype
    np.testing.assert_array_equal(actual, np.asarray(wanted, x.dtype))


def test_integers_have_no_bound_that_is_no_number() -> None:
    with pytest.raises(sm.errors.ArgumentError, match="clip"):
        sm.clip(sm.asarray([1]), float("nan"), 3)


# Sizes


@modes
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_differences_of_too_few_elements(mode: str, n: int) -> None:
    check(mode, lambda xp, x: xp.diff(x, n=n), A)
    check(mode, lambda xp, x: xp.diff(x, n=n, axis=0, append=x), A)
    check(mode, lambda xp, x: xp.diff(x, n=n, axis=0), np.zeros((0, 2)))


SYSTEMS = [
    ((2, 4, 4), (2, 4, 4)),
    ((2, 4, 4), (4, 3)),
    ((4, 4), (3, 4, 2)),
    ((2, 1, 4, 4), (3, 4, 2)),
    ((2, 4, 4), (4,)),
    ((0, 4, 4), (4,)),
    ((4, 4), (4,)),
]


@modes
@pytest.mark.parametrize("shapes", SYSTEMS, ids=str)
def test_systems_of_equations_broadcast(mode: str, shapes: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s) for s in shapes)
    check(mode, lambda xp, a, b: xp.linalg.solve(a, b), a + 4 * np.eye(4), b, rtol=1e-9)


# Order


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_values_are_sorted_as_by_stable_positions(dtype: str, descending: bool) -> None:
    """Bit for bit: zeros of both signs keep their order, NaN is after (before) all numbers."""
    rng = np.random.default_rng(3)
    plain = np.round(rng.standard_normal((7, 33)) * 3).astype(dtype)
    mixed = plain.copy()
    if mixed.dtype.kind == "f":
        mixed[:, ::5], mixed[:, 1::7], mixed[2:, 3] = -0.0, 0.0, np.nan
    for x in (plain, mixed, abs(plain) if dtype != "bool" else plain):
        for axis in (0, 1):
            a = sm.asarray(x)
            order = sm.argsort(a, axis=axis, descending=descending)
            wanted = np.take_along_axis(x, np.asarray(order), axis)
            actual = np.asarray(sm.sort(a, axis=axis, descending=descending))
            np.testing.assert_array_equal(actual, wanted)
            if x.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(actual), np.signbit(wanted))
        values = np.unique(x, equal_nan=False)
        np.testing.assert_array_equal(np.asarray(sm.unique_values(sm.asarray(x))), values)
        found_values, counts = sm.unique_counts(sm.asarray(x))
        np.testing.assert_array_equal(np.asarray(found_values), values)
        assert int(sm.sum(counts)) == x.size


@pytest.mark.parametrize("order", [1, 2.0, np.int64(1), np.float32(3), np.inf])
def test_orders_of_norms_are_numbers_of_any_library(order: Any) -> None:
    x = np.arange(6.0).reshape(2, 3)
    actual = np.asarray(sm.linalg.vector_norm(sm.asarray(x), ord=order))
    assert np.allclose(actual, np.linalg.norm(x.ravel(), order))


@modes
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0), (0, 2, 3)])
def test_norms_of_nothing_are_zero(shape: tuple[int, ...], mode: str) -> None:
    def norm(name: str, **options: Any) -> Any:
        f = partial(getattr(sm.linalg, name), **options)
        return np.asarray((sm.jit(f) if mode == "jit" else f)(sm.asarray(x)))

    x = np.zeros(shape, np.float32)
    for order in ("fro", "nuc", 1, 2, np.inf):
        actual = norm("matrix_norm", ord=order)
        np.testing.assert_array_equal(actual, np.zeros(shape[:-2], np.float32))
    for order in (0, 1, 2, 3, np.inf):
        for axis in (None, 0, 1):
            actual = norm("vector_norm", ord=order, axis=axis, keepdims=True)
            np.testing.assert_array_equal(actual, np.sum(x, axis=axis, keepdims=True))
    with pytest.raises(sm.errors.ShapeError):
        norm("vector_norm", ord=-np.inf)


def test_a_norm_is_recorded_again_for_nothing() -> None:
    norm = sm.jit(partial(sm.linalg.vector_norm, ord=np.inf))
    for count in (5, 0, 7):
        assert float(norm(np.full(count, -2.0))) == (2.0 if count else 0.0)


@modes
@pytest.mark.parametrize("x", [np.array([np.nan, np.inf, -3.0, -0.0]), np.arange(3)], ids=str)
def test_imaginary_parts_of_real_numbers_are_zero(x: Any, mode: str) -> None:
    actual = np.asarray((sm.jit(sm.imag) if mode == "jit" else sm.imag)(sm.asarray(x)))
    assert actual.dtype == x.dtype
    assert not actual.any()
    assert not np.signbit(actual).any()


# Sizes that come out as 0 or 1


@modes
@pytest.mark.parametrize("shape", [(4, 0), (4, 2, 0), (2, 3)], ids=str)
def test_order_statistics_of_no_columns_are_none(shape: tuple[int, ...], mode: str) -> None:
    x = np.arange(float(np.prod(shape))).reshape(shape)
    check(mode, lambda xp, x: (xp.median(x, axis=0), xp.quantile(x, 0.3, axis=0)), x)


def test_no_positions_in_an_axis_whose_size_came_out_as_0() -> None:
    f = sm.jit(lambda x: sm.take_along_axis(x[:, :-2], sm.argsort(x[:, :-2], axis=0), axis=1))
    for columns in (2, 5):
        x = np.tile(np.asarray([[2.0], [1.0], [0.0]]), (1, columns))
        wanted = np.take_along_axis(x[:, :-2], np.argsort(x[:, :-2], axis=0), axis=1)
        np.testing.assert_array_equal(np.asarray(f(x)), wanted)


@pytest.mark.parametrize(
    "f",
    [
        lambda xp, x, y: x[:, None, :] @ y[:, :, None],
        lambda xp, x, y: xp.vecdot(x, y),
        lambda xp, x, y: xp.einsum("ij,ij->i", x, y),
        lambda xp, x, y: x + y,
    ],
    ids=["matmul", "vecdot", "einsum", "add"],
)
def test_a_size_that_came_out_as_1_stretches_in_products_too(f: Callable[..., Any]) -> None:
    compiled = sm.jit(lambda x, y: f(sm, x[2:], y))
    for rows, others in ((3, 4), (6, 4), (3, 1), (3, 2), (6, 1)):
        x, y = np.arange(rows * 5.0).reshape(rows, 5), np.arange(others * 5.0).reshape(others, 5)
        np.testing.assert_array_equal(np.asarray(compiled(x, y)), f(np, x[2:], y))
    with pytest.raises(sm.errors.ShapeError):
        compiled(np.ones((6, 5)), np.ones((3, 5)))


def test_signatures_that_libraries_rely_on():
    """Containers and the kinds of parameters, as the standard and NumPy have them."""
    x = sm.asarray([1.0, 4.0, 9.0, 16.0])
    assert isinstance(sm.meshgrid(x, x), list) and sm.meshgrid() == []
    assert np.asarray(sm.diff(x, 2)).tolist() == [2.0, 2.0]
    assert np.asarray(sm.diff(sm.stack([x, x + 1]), 1, 0)).tolist() == [[1.0] * 4]
    names = inspect.signature(sm.Array.__dlpack__).parameters
    assert list(names) == ["self", "stream", "max_version", "dl_device", "copy"]
    requested = {"stream": None, "max_version": (1, 0), "dl_device": (1, 0), "copy": None}
    assert "dltensor" in repr(x.__dlpack__(**requested))


def test_types_are_numpys_where_libraries_ask() -> None:
    for dtype in (sm.float32, sm.bfloat16, sm.int8, sm.bool):
        assert np.dtype(dtype) == dtype.numpy


def test_logic_takes_numbers_as_numpy_does() -> None:
    x, y = np.array([0.0, 2.0, math.nan]), np.array([0, 0, 1])
    for name in ("logical_and", "logical_or", "logical_xor"):
        actual = np.asarray(getattr(sm, name)(x, sm.asarray(y)))
        assert actual.tolist() == getattr(np, name)(x, y).tolist()
    assert np.asarray(sm.logical_not(sm.asarray(x))).tolist() == np.logical_not(x).tolist()


def test_where_without_choices_is_nonzero() -> None:
    mask = np.array([[True, False], [False, True]])
    rows, columns = sm.where(sm.asarray(mask))
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [0, 1])
    with pytest.raises(sm.errors.ArgumentError, match="two choices"):
        sm.where(sm.asarray(mask), 1)
