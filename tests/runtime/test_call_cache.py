"""Cached calls that native code makes, keyed by input addresses."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.runtime import call_cache
from smelt.runtime import native_layout as layout
from smelt.runtime.memory import address_of, usage

pytestmark = pytest.mark.skipif(not call_cache.is_supported(), reason="another interpreter")


class Owner:
    """Something with memory, as tensors have it."""

    def __init__(self, elements: np.ndarray[Any, Any], message: Any = None) -> None:
        self.elements = elements
        self.told = address_of(elements) if message is None else message

    def data_ptr(self) -> Any:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def _written_down(function: Any, *arrays: Any, wrap: Any = lambda a: a) -> tuple[Any, Any]:
    """The native function with the record of a call, and what keeps the record."""
    f = sm.jit(function)
    f(*arrays)
    (exact,) = f._exact.values()
    at = call_cache.address_runner()
    assert at is not None
    record = call_cache.record_by_address(exact.trace.executable.executable, exact.sizes, wrap)
    assert record is not None
    return lambda inputs: at(record.address, inputs), (f, record)


@pytest.mark.parametrize("n", [1, 20, 100_000])
def test_addresses_and_owners(n: int) -> None:
    x, y = np.arange(float(n)), np.ones(n)
    at, _keep = _written_down(lambda x, y: (x + y, sm.exp(-x) * y), x, y)
    for inputs in (
        [address_of(x), address_of(y)],
        (Owner(x), Owner(y)),
        (Owner(x), address_of(y)),
    ):
        for _ in range(20):
            a, b = at(inputs)
            np.testing.assert_array_equal(a, x + 1)
            np.testing.assert_allclose(b, np.exp(-x), rtol=1e-14)


def test_results_are_wrapped() -> None:
    x = np.arange(4.0)
    at, _keep = _written_down(lambda x: x + 1, x, wrap=lambda a: [a])
    (((actual,)),) = at([address_of(x)])
    np.testing.assert_array_equal(actual, x + 1)

    def refuse(a: Any) -> Any:
        raise KeyError("no")

    at, _keep = _written_down(lambda x: (x + 1, x * 2), x, wrap=refuse)
    live = usage().live
    for _ in range(20):
        with pytest.raises(KeyError):
            at([address_of(x)])
    assert usage().live == live


def test_wrong_inputs_are_refused() -> None:
    x = np.arange(4.0)
    at, _keep = _written_down(lambda x, y: x + y, x, x)
    good = Owner(x)
    for inputs, error in (
        ((good,), SystemError),
        ((good, good, good), SystemError),
        ((good, [x]), AttributeError),
        ((good, Owner(x, "text")), SystemError),
        ((good, Owner(x, KeyError())), KeyError),
        (3, TypeError),
        ((good, None), AttributeError),
    ):
        references = sys.getrefcount(good)
        for _ in range(10):
            with pytest.raises(error):
                at(inputs)
        assert sys.getrefcount(good) == references


def test_arrays_are_inputs_as_they_are() -> None:
    x, y = np.arange(4.0), np.ones(4)
    at, _keep = _written_down(lambda x, y: x + y, x, x)
    references = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(10):
        for make in (lambda: [x, y], lambda: (x, y), lambda: (Owner(x), y)):
            assert at(make())[0].tolist() == [1, 2, 3, 4]
        for wrong in (lambda: [x], lambda: [x, None]):
            with pytest.raises((SystemError, AttributeError)):
                at(wrong())
    assert (sys.getrefcount(x), sys.getrefcount(y)) == references


def test_strides_that_a_plan_requires() -> None:
    x = np.arange(40.0)
    f = sm.jit(lambda x: x + 1)
    views = [
        np.lib.stride_tricks.as_strided(x, (2, 3), (8 * a, 8 * b))
        for a, b in ((5, 2), (20, 3), (4, 4))
    ]
    f(views[0])
    (exact,) = f._exact.values()
    executable = exact.trace.executable.executable
    requested = {(source, d) for _, source, d in executable.prepared(exact.sizes).strides}
    assert requested == {(0, 0), (0, 1)}
    assert call_cache.record_by_address(executable, exact.sizes, lambda a: a, {(0, 0): 5}) is None
    at = call_cache.address_runner()
    assert at is not None
    for view in views:
        reported = {(0, d): view.strides[d] // 8 for d in (0, 1)}
        record = call_cache.record_by_address(executable, exact.sizes, lambda a: a, reported)
        assert record is not None
        for _ in range(3):
            (actual,) = at(record.address, [address_of(x)])
            np.testing.assert_array_equal(actual, view + 1)


def test_what_only_python_can_call() -> None:
    x = np.arange(12.0).reshape(3, 4)
    for f, inputs in (
        (sm.jit(lambda x: x + 1), np.lib.stride_tricks.as_strided(x, (2, 2), (40, 16))),
        (sm.jit(sm.sort), x),
    ):
        f(inputs)
        (exact,) = f._exact.values()
        executable = exact.trace.executable.executable
        assert call_cache.record_by_address(executable, exact.sizes, lambda a: a) is None
    assert call_cache.record_by_address(object(), (), lambda a: a) is None  # type: ignore[arg-type]


def test_one_thread_runs_its_kernels_without_the_pool_and_without_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls run beside one another: what each keeps between its kernels and inside of them is its
    own."""

    def normed(x: Any) -> Any:
        return sm.nn.softmax(x * sm.sum(x), axis=1)

    def refuse(*_: int) -> None:
        raise AssertionError("the pool was asked")

    monkeypatch.setattr(call_cache, "_run", refuse)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((40, 1500)).astype("f4") for _ in range(4)]
    with sm.config(threads=1):
        at, (f, record) = _written_down(normed, inputs[0])
        words = (ctypes.c_int64 * len(layout.RECORD)).from_address(record.address)
        assert words[layout.RECORD["UNLOCKED"] // 8] and words[layout.RECORD["ARENA"] // 8]
        wanted = [np.asarray(f(x)) for x in inputs]

    def often(k: int) -> bool:
        return all(np.array_equal(at([inputs[k]])[0], wanted[k]) for _ in range(100))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(often, range(4)))
