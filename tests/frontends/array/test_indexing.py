"""Reading and writing by index against NumPy's, lazily and under jit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.array.numpy_comparison import MODES, check

import smelt as sm
from smelt.errors import IndexRangeError, ShapeError
from smelt.frontends.array import assign

rng = np.random.default_rng(8)
A = rng.standard_normal((3, 4))
CUBE = rng.standard_normal((2, 3, 4))
S = np.s_

MATRIX_KEYS = [
    S[0], S[-1], S[1:], S[::2], S[::-1], S[1:3, 2], S[..., 0], S[None], S[1, None, 2], S[..., None],
    S[2:0:-1], S[-2:], S[5:], S[:-1, 1:], S[2:1], S[::-2, ::3], S[()], S[...], S[10:0:-3], S[-9:2],
    [0, 2, 1], S[[0, -1], [1, 2]], S[:, [0, 2]], np.array([[0, 1], [2, 0]]), S[0, [1, 2]],
    S[[1], None, 1:], S[[0, 1, 2], ::-1], S[:, np.zeros(0, np.int64)], np.uint8([2, 0]),
]  # fmt: skip
CUBE_KEYS = [
    S[0, :, [1, 2]],
    S[[0, 1], :, [1, 2]],
    S[:, [0, 1], [1, 2]],
    S[[0, 1], None, 1],
    S[..., [0, 1]],
    S[1, ..., 2],
    S[:, 1:, ::2],
    S[[[0], [1]], [0, 2]],
    S[None, [0], :, None, 1],
]

modes = pytest.mark.parametrize("mode", MODES)


@modes
@pytest.mark.parametrize("key", MATRIX_KEYS, ids=str)
def test_matrix(mode: str, key: Any) -> None:
    check(mode, lambda xp, x: x[key], A)


@modes
@pytest.mark.parametrize("key", CUBE_KEYS, ids=str)
def test_cube(mode: str, key: Any) -> None:
    check(mode, lambda xp, x: x[key], CUBE)


def written(key: Any, value: Any) -> Any:
    def f(xp: Any, x: Any, *values: Any) -> Any:
        x = x.copy() if xp is np else x
        x[key(x) if callable(key) else key] = value(*values) if callable(value) else value
        return x

    return f


WRITES = [
    (S[0], 1.5), (S[1:, 2], 7), (S[::2], 0), (S[::-1], lambda v: v), (S[...], 2.0),
    (S[..., 1:3], lambda v: v[:, 1:3]), ([0, 2], 9.0), (S[[0, 2], 1:3], 5.0),
    (S[:, [1, 0]], lambda v: v[:, :2]), (S[1, 2], 3), (S[::-2], lambda v: v[:2]),
    (S[:], lambda v: v), (S[0, 1:], lambda v: v[0, 1:]), (S[:, ::3], lambda v: v[:, :2]),
    (S[2:1], 1.0), (S[[0, 2], ::-1], lambda v: v[:2]), (lambda x: x > 0, 0.0),
    (S[None, 1], 4.0), (S[:, 0], lambda v: v[:, 1]), (S[[0, 0], [1, 1]], 3.0),
    (lambda x: S[x[:, 0] > 0, ...], 0.0), (lambda x: S[:, x[0] > 0], 2.0),
    (lambda x: S[..., x[0] > 0], 2.0), (lambda x: S[1:, x[0] > 0], 1),
    (lambda x: S[1, x[0] > 0], 3),
    (lambda x: S[x[:, 0] > 0, -1], 3.0), (lambda x: S[x[:, 0] > 0, ::-2], 3.0),
    (lambda x: x[:, 0] > 0, lambda v: v[0]), (lambda x: S[x[:, 0] > 0, 1:], lambda v: v[0, 1:]),
]  # fmt: skip


@modes
@pytest.mark.parametrize(("key", "value"), WRITES, ids=lambda x: "f" if callable(x) else str(x))
def test_writing(mode: str, key: Any, value: Any) -> None:
    check(mode, written(key, value), A, A * 10)


def test_writing_keeps_old_versions() -> None:
    x = sm.asarray(A, copy=True)
    before = x + 1
    alias = x
    x[0] = 100.0
    x += 1
    np.testing.assert_array_equal(before, A + 1)
    assert alias is x
    np.testing.assert_array_equal(x[1:], A[1:] + 1)
    assert x[0].tolist() == [101.0] * 4


def test_writing_leaves_shared_memory_alone() -> None:
    source = A.copy()
    x = sm.asarray(source)
    x[0] = 1.0
    assert x[0].tolist() == [1.0] * 4
    np.testing.assert_array_equal(source, A)


def test_masks_outside_jit() -> None:
    x = sm.asarray(A)
    np.testing.assert_array_equal(x[x > 0], A[A > 0])
    np.testing.assert_array_equal(x[x[:, 0] > 0], A[A[:, 0] > 0])
    np.testing.assert_array_equal(x[1, x[0] > 0], A[1, A[0] > 0])
    y = sm.asarray(A, copy=True)
    wanted = A.copy()
    wanted[A > 0] = np.arange((A > 0).sum())
    y[x > 0] = sm.arange(int((A > 0).sum()), dtype=sm.float64)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (3, sm.errors.IndexRangeError),
        (S[0, -5], sm.errors.IndexRangeError),
        (S[0, 0, 0], sm.errors.IndexRangeError),
        (S[..., ...], sm.errors.IndexRangeError),
        ("a", sm.errors.IndexRangeError),
        (1.5, sm.errors.IndexRangeError),
        ([0.5], sm.errors.DTypeError),
        (S[::0], sm.errors.ArgumentError),
        ([3], sm.errors.IndexRangeError),
        ([-4], sm.errors.IndexRangeError),
        (np.zeros((2, 2), bool), sm.errors.IndexRangeError),
    ],
    ids=str,
)
def test_wrong_keys(key: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        sm.asarray(A)[key]
    with pytest.raises(error):
        sm.jit(lambda x: x[key])(A)


@pytest.mark.parametrize("shape", [(1,), (4,), (1, 4), (3, 1), (2, 4)])
def test_masks_do_not_stretch(shape: tuple[int, ...]) -> None:
    """One that did wrote to elements that it does not choose; NumPy refuses."""

    def write(x: Any, mask: Any) -> Any:
        return sm.asarray(x).at[mask].set(0)

    for call in (write, sm.jit(write)):
        with pytest.raises(sm.errors.IndexRangeError, match="does not fit"):
            call(A, sm.ones(shape, dtype=sm.bool))


def test_masks_inside_jit_name_the_way_out() -> None:
    with pytest.raises(sm.errors.TracerError, match="where"):
        sm.jit(lambda x: x[x > 0])(A)
    with pytest.raises(sm.errors.TracerError, match="nonzero"):
        sm.jit(sm.nonzero)(A)


def test_indexed_writes_end_their_kernel_beside_equal_shapes() -> None:
    """Neighbours of one element, which fold nothing, were joined with it: that is not a kernel."""

    def put(x: Any, i: Any) -> Any:
        y = sm.asarray(x, copy=True)
        y[i % y.shape[0]] = 2
        return y

    @sm.jit
    def f(x: Any, i: Any) -> Any:
        return x @ x, put(x, i) @ put(x, i)

    assert [float(v) for v in f(np.full(1, 3.0), np.int64(5))] == [9, 4]
    assert [float(v) for v in f(np.full(3, 3.0), np.int64(5))] == [27, 22]


def test_in_place_sizes_that_come_out_as_one_stretch() -> None:
    @sm.jit
    def f(x: Any, y: Any) -> Any:
        x = sm.asarray(x[None, :], copy=True)
        x += y[2:, None]
        return x

    assert f(np.ones(4), np.arange(3.0)).tolist() == [[3] * 4]
    with pytest.raises(ShapeError):
        f(np.ones(4), np.arange(4.0))
    assert f(np.ones(6), np.arange(3.0)).tolist() == [[3] * 6]


def test_masks_that_are_known_choose_in_a_recording() -> None:
    """Their sizes were compared with symbols, which they never were."""
    mask = sm.asarray([True, False, True])
    f = sm.jit(lambda x: x[mask] * 2)
    assert f(np.arange(6.0).reshape(3, 2)).tolist() == [[0, 2], [8, 10]]
    assert f(np.arange(9.0).reshape(3, 3)).tolist() == [[0, 2, 4], [12, 14, 16]]
    with pytest.raises(IndexRangeError):
        f(np.ones((4, 2)))


def test_what_a_box_records_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of slices and masks of boxes took a loop of in-place steps most of its time."""

    def steps(u: Any) -> Any:
        for k in range(3):
            u[1:-1] += 0.25 * (u[2:] - 2 * u[1:-1] + u[:-2])
            u[0], u[-2::-3] = u[1] + k, u[3]
        return u

    x = rng.standard_normal((9, 2))
    expected = steps(x.copy())
    np.testing.assert_allclose(steps(sm.asarray(x, copy=True)), expected, rtol=1e-12)
    monkeypatch.setattr(assign, "parse", None)
    np.testing.assert_allclose(steps(sm.asarray(x, copy=True)), expected, rtol=1e-12)
