"""Memory shared with NumPy: what recordings capture, and what may change once read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array import jit


@pytest.mark.parametrize("copy", [None, False])
def test_memory_of_others_that_is_closed_over(copy: bool | None) -> None:
    source = np.arange(12.0).reshape(3, 4).T
    c = sm.asarray(source, copy=copy)
    f = sm.jit(lambda x: x + c)
    x = np.ones((4, 3))
    np.testing.assert_array_equal([f(x) for _ in range(4)][-1], source + 1)
    assert f.records  # of all kinds that there are, this one needs no Python
    source[:] = 7.0
    np.testing.assert_array_equal(f(x), source + 1)
    waits = c * 2  # reads a copy, or looks whether somebody writes
    np.testing.assert_array_equal(f(x), source + 1)
    np.testing.assert_array_equal(waits, source * 2)
    source[:] = 9.0
    np.testing.assert_array_equal(f(x), np.full((4, 3), 10.0))


def test_closed_over_memory_that_is_resized() -> None:
    source = np.ones(100)
    f = sm.jit(lambda x: x + sm.asarray(source))
    for _ in range(4):
        f(np.zeros(100))
    source.resize((4,), refcheck=False)
    with pytest.raises(sm.errors.ChangedError, match="resized"):
        f(np.zeros(100))


@pytest.mark.parametrize("copy", [None, False])
def test_large_memory_may_change_once_it_was_read(copy: bool | None) -> None:
    source = np.zeros(5000)
    x = sm.asarray(source, copy=copy)
    assert float(sm.sum(x + 1)) == 5000
    source[0] = 5.0
    y = x * 2
    assert float(y[0]) == 10.0
    z = x * 3
    source[0] = 6.0
    with pytest.raises(sm.errors.ChangedError, match="written"):
        np.asarray(z)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: np.broadcast_to(x, (2, 6)),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3),
        lambda x: x[::-2],
    ],
    ids=["broadcast", "windows", "steps"],
)
def test_cached_constants_keep_the_recorded_layout(view) -> None:
    c = sm.asarray(view(np.arange(6.0)))
    f = sm.jit(lambda x: x * c)
    x = np.full(c.shape, 2.0)
    for waits in (False, True):
        later = c * 3 if waits else None
        np.testing.assert_array_equal(f(x), view(np.arange(6.0)) * 2)
    np.testing.assert_array_equal(later, view(np.arange(6.0)) * 3)


def test_closed_over_memory_of_another_dtype() -> None:
    source = np.ones(100)
    f = sm.jit(lambda x: x + sm.asarray(source))
    for _ in range(4):
        f(np.zeros(100))
    source.dtype = np.int64
    with pytest.raises(sm.errors.ChangedError, match="dtype"):
        f(np.zeros(100))


def test_pending_work_after_an_error_still_reports_changes() -> None:
    source = np.zeros(5000)
    waits = sm.asarray(source) * 3
    source[0] = 6.0
    for _ in range(2):
        with pytest.raises(sm.errors.ChangedError, match="written"):
            np.asarray(waits)
        np.asarray(sm.asarray(np.ones(3)) + 1)  # other programs run


def test_work_pending_in_another_thread_still_reports_changes() -> None:
    source = np.zeros(5000)
    x = sm.asarray(source)
    doubled = x * 2
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(lambda: x * 5).result()
        np.asarray(doubled)
        source[0] = 1.0
        with pytest.raises(sm.errors.ChangedError, match="written"):
            other.submit(np.asarray, waits).result()


def test_gradients_of_memory_that_changed_meanwhile() -> None:
    source = np.ones(5000)
    c = sm.asarray(source)

    def f(x):
        y = sm.sum(x * c)
        assert float(y) == 5000  # runs, and its derivative will read the same
        source[0] = 0.0
        return y

    with pytest.raises(sm.errors.ChangedError, match="written"):
        np.asarray(sm.grad(f)(np.ones(5000)))


@pytest.mark.parametrize(("size", "copy"), [(10, None), (10, False), (5000, None)])
def test_pull_backs_of_memory_that_changed_meanwhile(size: int, copy: bool | None) -> None:
    source = np.ones(size)
    c = sm.asarray(source, copy=copy)
    y, pull = sm.vjp(lambda x: x * c, np.ones(size))
    np.testing.assert_array_equal(y, np.ones(size))
    source[0] = 3.0
    np.testing.assert_array_equal(c * 2, source * 2)
    if size == 10:  # of a copy
        np.testing.assert_array_equal(pull(np.ones(size))[0], np.ones(size))
    else:
        with pytest.raises(sm.errors.ChangedError, match="written"):
            np.asarray(pull(np.ones(size)))
    waits = c + 1
    source[0] = 5.0
    np.testing.assert_array_equal(c + 2, source + 2)  # not what the pull-back reads
    del waits


@pytest.mark.parametrize("size", [10, 2000])
@pytest.mark.parametrize("pending", [(True,), (False, True)])
def test_memory_that_something_pending_read_is_closed_over_as_before(
    size, pending, monkeypatch
) -> None:
    c = sm.asarray(np.ones(size))
    f, x = sm.jit(lambda x: x + c), np.zeros(size)
    for some in pending:
        waits = c * 2 if some else None
        for _ in range(5):
            f(x)
        np.asarray(c * 3)
        del waits
    for _ in range(3):
        f(x)
    assert f.records
    with monkeypatch.context() as patch:
        patch.setattr(jit, "count_call", lambda *_: pytest.fail("answered by Python"))
        np.testing.assert_array_equal(f(x), np.ones(size))


@pytest.mark.parametrize("size", [1, 10, 5000])
@pytest.mark.parametrize("copy", [None, False])
def test_memory_written_while_something_waits_is_read_as_it_is(
    size: int, copy: bool | None
) -> None:
    """Work recorded after a change of memory reads the new contents.

    Work recorded before gives what was there then, or raises an error.
    """
    source = np.zeros(size)
    x = sm.asarray(source, copy=copy)
    before = x + 1
    source[0] = 5.0
    after = x * 2 + x
    np.testing.assert_array_equal(after, source * 3)
    np.testing.assert_array_equal(x, source)
    source[-1] = 7.0
    assert float(x[0]) == source[0]
    np.testing.assert_array_equal(sm.asarray(x, copy=True), source)
    np.testing.assert_array_equal(sm.jit(lambda a: a + x)(np.zeros(size)), source)
    unread = x @ x  # of the third state
    source[0] = 2.0
    np.testing.assert_array_equal(sm.jit(lambda a: a * 2)(x), source * 2)
    np.testing.assert_array_equal(sm.grad(lambda a: sm.sum(a * a))(x), source * 2)
    del unread
    np.testing.assert_array_equal(x * 3, source * 3)
    if size < 5000:
        np.testing.assert_array_equal(before, np.ones(size))
    else:
        with pytest.raises(sm.errors.ChangedError, match="written"):
            np.asarray(before)


def test_results_that_numpy_writes_to() -> None:
    y = sm.jit(lambda a: a + 1)(np.zeros(3))
    view = np.asarray(y)
    np.testing.assert_array_equal(y * 2, [2.0, 2.0, 2.0])
    view[0] = 9.0
    np.testing.assert_array_equal(y * 2, [18.0, 2.0, 2.0])
    np.testing.assert_array_equal(y, view)


@pytest.mark.parametrize("copy", [None, False])
def test_memory_that_two_threads_have_read_is_read_as_it_is(copy: bool | None) -> None:
    """What one thread remembers for another one's results holds nobody up who reads the memory."""
    source = np.zeros(5000)
    x = sm.asarray(source, copy=copy)
    waits = x + 1
    other = Thread(target=lambda: np.asarray(x + 2))
    other.start()
    other.join()
    source[0] = 5.0
    np.testing.assert_array_equal(x, source)
    np.testing.assert_array_equal(sm.jit(lambda a: a * 2)(x), source * 2)
    with pytest.raises(sm.errors.ChangedError, match="written"):
        np.asarray(waits)
    np.testing.assert_array_equal(x, source)


def test_changes_of_other_dtypes_are_reported_whatever_is_pending() -> None:
    source = np.zeros(4, np.float32)
    x = sm.asarray(source)
    waits = x + 1
    source.dtype = np.int32  # type: ignore[assignment]
    with pytest.raises(sm.errors.ChangedError, match="another dtype"):
        np.asarray(x + 1)
    np.testing.assert_array_equal(waits, np.ones(4))
