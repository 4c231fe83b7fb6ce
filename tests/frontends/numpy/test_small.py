"""Small arrays are NumPy's: no result, dtype, warning or view depends on the size."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from tests.frontends.numpy import programs, scripts
from tests.frontends.numpy.samples import SAMPLES
from tests.frontends.numpy.test_programs import close

import smelt as sm
import smelt.numpy as np
from smelt.errors import TracerError
from smelt.frontends.array.array import Array
from smelt.frontends.array.at_once import Account
from smelt.numpy import small

LIMIT = 64


@pytest.fixture(autouse=True)
def _leave_small_arrays() -> Iterator[None]:
    former = small.set_limit(LIMIT)
    yield
    small.set_limit(former)


@pytest.mark.parametrize("name", [n for n in SAMPLES if isinstance(getattr(numpy, n, 0), object)])
def test_functions_of_small_arrays_are_numpys(name: str) -> None:
    theirs = getattr(numpy, name, None)
    if theirs is None or not hasattr(np, name):
        pytest.skip("no function of this NumPy")
    for sample in SAMPLES[name]:
        args, options = sample(np)
        wanted, wanted_options = sample(numpy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            actual = getattr(np, name)(*args, **options)
            expected = theirs(*wanted, **wanted_options)
        if isinstance(expected, (numpy.ndarray, numpy.generic)):
            assert type(actual) is type(expected) or isinstance(actual, Array)
            assert numpy.asarray(actual).dtype == expected.dtype
            numpy.testing.assert_array_equal(numpy.asarray(actual), expected)


OF_SIZE: list[Callable[[Any, int], Any]] = [
    lambda np, n: np.zeros(n),
    lambda np, n: np.full(n, 2),
    lambda np, n: np.arange(n) + 1,
    lambda np, n: np.linspace(0, 1, n),
    lambda np, n: np.arange(0, n, 2.0) * 2,
    lambda np, n: np.ones((n, 2)) / 3,
    lambda np, n: np.arange(n)[::-2],
    lambda np, n: np.outer(np.arange(n), np.arange(3)),
    lambda np, n: np.arange(n)[:, None] - np.arange(n),
    lambda np, n: np.concatenate([np.arange(n), np.zeros(3)]),
    lambda np, n: np.array([[k, k + 1] for k in range(n)]),
    lambda np, n: np.meshgrid(np.arange(n), np.arange(3))[0],
    lambda np, n: np.sort(np.arange(n) % 7),
    lambda np, n: np.where(np.arange(n) > 3, 1.5, np.zeros(n)),
    lambda np, n: np.add.accumulate(np.arange(n)),
    lambda np, n: np.maximum(np.arange(n), 5),
    lambda np, n: np.cumsum(np.arange(n) * 1.5),
    lambda np, n: np.arange(n).mean() * np.ones(3, np.float32),
    lambda np, n: np.ones(n, np.float32) * np.float64(2),
    lambda np, n: np.ones(n, np.float32) * np.arange(3.0).sum(),
    lambda np, n: np.eye(n)[0] + np.arange(n),
    lambda np, n: np.hanning(n),
    lambda np, n: np.unique(np.arange(n) % 3),
    lambda np, n: np.fft.rfft(np.arange(n) * 1.0),
    lambda np, n: np.linalg.norm(np.arange(n)),
    lambda np, n: np.arange(n) @ np.arange(n),
]


@pytest.mark.parametrize("make", OF_SIZE)
def test_both_sides_of_the_border_are_numpys(make: Callable[[Any, int], Any]) -> None:
    for n in (5, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2):
        actual, expected = numpy.asarray(make(np, n)), make(numpy, n)
        assert actual.dtype == expected.dtype
        numpy.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-9)


def test_types_by_size() -> None:
    a, b = np.zeros(LIMIT), np.zeros(LIMIT + 1)
    assert type(a) is type(a + a) is type(np.exp(a)) is numpy.ndarray and type(b) is Array
    assert isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    assert not isinstance([1], np.ndarray) and issubclass(type(b), np.ndarray)
    assert type(np.outer(a, a)) is Array and type(np.unique(b)) is numpy.ndarray
    assert type(a[:, None] * b) is Array and type(np.sqrt(2.0)) is numpy.float64


def test_small_arrays_meet_large_ones() -> None:
    def program(np: Any) -> list[Any]:
        big, little = np.arange(200.0), np.arange(5.0)
        wait = big[:5] * 2 + little
        little[0] = 7
        late = little - big[:5]
        little += big[1:6]
        big[:5] = little
        little[1:3] = big[-2:]
        np.copyto(little[3:], big[100:102])
        return [wait, late, little, big, little @ big[:5], little == big[:5], little > big[7]]

    for mine, theirs in zip(program(np), program(numpy), strict=True):
        numpy.testing.assert_array_equal(numpy.asarray(mine), theirs)


def test_recorded_operators_read_numpys_arrays_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Masks of our arrays are NumPy's own, and other code may write to them at any time."""
    monkeypatch.setattr(Account, "is_recorded", True)
    small.set_limit(1000)  # the mask takes 6000 bytes

    def program(xp: Any) -> Any:
        x = xp.arange(6000.0)
        mask, other, index = x > 3, numpy.ones(6000), numpy.arange(0, 6000, 2)
        results = [xp.where(mask, x, 0) + x, x * mask, x + other, xp.add(x, other), x[index] + 1]
        mask[5:50], other[7], index[3] = False, 9, 1
        return [result * 2 for result in results]

    for _ in range(2):  # types of operators are known in the second turn
        for actual, expected in zip(program(np), program(numpy), strict=True):
            assert actual.tolist() == expected.tolist()


def test_views_of_small_arrays_are_numpys() -> None:
    a = np.arange(6.0)
    windows = np.lib.stride_tricks.sliding_window_view(a, 2)
    rows, parts = np.broadcast_to(a, (30, 6)), np.split(a, 2)
    a[1] = 50
    assert windows[0].tolist() == [0, 50] and rows[29, 1] == parts[0][1] == 50
    np.reshape(a, (2, 3))[1, 0] = 9
    assert a[3] == 9 and np.shares_memory(a, np.ravel(a))
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 1


def test_recordings_and_gradients_record_small_arrays() -> None:
    def loss(x: Any) -> Any:
        w = np.ones(3)
        w[1] = 2
        return np.sum(np.exp(x) * w * np.arange(3))

    x = np.zeros(3)
    assert float(sm.jit(loss)(x)) == float(loss(x)) == 4
    assert numpy.asarray(sm.grad(loss)(sm.asarray(x))).tolist() == [0, 2, 2]
    kept = np.zeros(3)

    def writes(y: Any) -> Any:
        kept[0] = y[0]
        return y

    with pytest.raises((TracerError, ValueError)):
        sm.jit(writes)(np.ones(3))


@pytest.mark.parametrize("name", ["kalman", "viterbi", "orbits"])
def test_loops_on_small_arrays_record_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small.set_limit(8192)
    expected = getattr(scripts, name)(40)
    monkeypatch.setattr(scripts, "np", np)
    recorded: list[Any] = []
    monkeypatch.setattr(Array, "of", recorded.append)
    actual = getattr(scripts, name)(40)
    monkeypatch.undo()
    assert not recorded
    close(actual, expected)


@pytest.mark.parametrize("program", programs.PROGRAMS[:8], ids=lambda p: p.__name__)
def test_programs_whose_arrays_cross_the_border(program: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(program(np), program(numpy))


def test_numpys_other_kinds_of_arrays_are_numpys() -> None:
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    assert np.sum(masked) == 4 and type(np.sqrt(masked)) is numpy.ma.MaskedArray
    assert np.char.upper(np.array(["a", "b"])).tolist() == ["A", "B"]
    assert np.strings.add(np.array(["a"]), "b").tolist() == ["ab"]
    people = np.array([("Ada", 36), ("Alan", 41)], dtype=[("name", "U8"), ("age", "i4")])
    people["age"] += 1
    assert people["age"].tolist() == [37, 42] and np.sort(people, order="age")[0]["name"] == "Ada"
    records = np.rec.fromarrays([np.arange(3), np.arange(3.0)], names="a,b")
    assert records.a.tolist() == [0, 1, 2] and np.mean(records.b) == 1
    objects = np.array([1, "a", None], dtype=object)
    assert np.concatenate([objects, objects]).tolist() == [1, "a", None] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = np.matrix([[1, 2], [3, 4]])
        assert type(np.asmatrix(np.ones((2, 2)))) is numpy.matrix
        assert (m * m).tolist() == [[7, 10], [15, 22]] and type(np.transpose(m)) is numpy.matrix
    days = np.arange("2026-01", "2026-03", dtype="datetime64[M]")
    assert np.diff(days).tolist() == [1]


def test_memmaps_are_numpys(tmp_path: Any) -> None:
    file = np.memmap(tmp_path / "x", dtype="float32", mode="w+", shape=(100,))
    file[:] = np.arange(100)
    file.flush()
    again = np.memmap(tmp_path / "x", dtype="float32", mode="r")
    assert float(np.sum(again)) == 4950 and float(np.exp(again - again).sum()) == 100


def test_warnings_are_numpys() -> None:
    for change in (lambda x: x / 0, lambda x: np.log(x - 1), np.sqrt):
        with pytest.warns(RuntimeWarning):
            change(np.array([0.0, -1.0]))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        np.array([1.0]) / np.array([0.0])
