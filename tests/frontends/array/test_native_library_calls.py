"""Repeated calls with library calls in them, which native code answers: as Python answers them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from traceback import walk_tb
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ExternError
from smelt.runtime import call_cache

pytestmark = pytest.mark.skipif(not call_cache.is_supported(), reason="another interpreter")
rng = np.random.default_rng(5)
BASE = rng.standard_normal((6, 6)).astype(np.float32)


def answered(f: Any, *args: Any) -> Any:
    """The result of a call that native code has answered."""
    for _ in range(3):
        f(*args)
    assert f.records
    return f(*args)


def _between(x: Any) -> Any:
    """Kernels around two calls: what they hand on is in the arena and in results."""
    y = sm.sort(x * 2.0 + 1.0, axis=0)
    z = sm.sort(y - sm.sum(y, axis=0), axis=1)
    return y, sm.exp(z) * y, sm.argsort(z, axis=1)


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: sm.sort(x, axis=0),
    "alone": lambda x: (sm.argsort(x, axis=-1), sm.sum(x)),
    "between": _between,
    "inverse": lambda x: sm.linalg.inv(x @ x.mT + sm.eye(x.shape[0])) @ x,
    "several": lambda x: sm.linalg.qr(x.mT @ x),
    "read twice": lambda x: sm.linalg.solve(x.mT @ x + 1.0 * sm.eye(x.shape[1]), x.mT),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(
    "x",
    [
        BASE,
        BASE.astype("f8"),
        BASE[::-1, ::2],
        BASE.T,
        BASE[:, ::-1].T,
        BASE[:1],
        BASE[:, :1],
        np.broadcast_to(BASE[0], (3, 6)),
        np.where(BASE > 0.5, -0.0, BASE),
        np.zeros((0, 4)),
        np.zeros((3, 0)),
        rng.standard_normal((70, 41)),
    ],
    ids=str,
)
def test_the_same_results(name: str, x: Any) -> None:
    f = sm.jit(FORMULAS[name])
    first = f(x)
    expected = [np.asarray(r).copy() for r in (first if isinstance(first, tuple) else (first,))]
    for _ in range(3):
        result = f(x)
        for a, b in zip(result if isinstance(result, tuple) else (result,), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def test_sorted_by_native_code() -> None:
    for x in (BASE, BASE[::-1], BASE[:, ::-2], sm.asarray(BASE)):
        actual = answered(sm.jit(lambda x: sm.sort(x, axis=0)), x)
        np.testing.assert_array_equal(np.asarray(actual), np.sort(np.asarray(x), axis=0))


def test_results_are_kept_and_arguments_stay() -> None:
    f = sm.jit(_between)
    x = rng.standard_normal((50, 20))
    before = x.copy()
    answered(f, x)
    held = [f(x + k) for k in range(12)]
    for k, results in enumerate(held):
        for a, b in zip(results, _between(sm.asarray(before + k)), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    np.testing.assert_array_equal(x, before)


def test_an_error_names_its_line() -> None:
    def f(x: Any) -> Any:
        y = x * 2.0
        return sm.linalg.inv(y)  # here

    compiled = sm.jit(f)
    singular = np.zeros((3, 3))
    with pytest.raises(ExternError) as first:
        sm.jit(f)(singular)
    answered(compiled, np.eye(3))
    for _ in range(2):
        with pytest.raises(ExternError) as later:
            compiled(singular)
        assert str(later.value) == str(first.value)
        assert "test_native_library_calls" in str(later.value)
    np.testing.assert_array_equal(np.asarray(compiled(np.eye(3))), np.eye(3) / 2)


def test_an_error_holds_no_memory_of_other_calls() -> None:
    """A debugger may look at what was in its frames long after."""
    compiled, singular = sm.jit(lambda x: sm.linalg.inv(x * 2.0)), np.zeros((3, 3))
    answered(compiled, np.eye(3))
    with pytest.raises(ExternError) as raised:
        compiled(singular)
    cause = raised.value.__cause__
    assert cause is not None
    for error in (raised.value, cause):
        frames = [f for f, _ in walk_tb(error.__traceback__) if f.f_code.co_filename != __file__]
        assert frames
        assert not any(isinstance(x, np.ndarray) for f in frames for x in f.f_locals.values())


def test_threads() -> None:
    f = sm.jit(lambda x: sm.sort(sm.sort(x + 1.0) * 2.0))
    inputs = [rng.standard_normal(n) for n in (5, 300, 300, 40_000)]
    wrong: list[int] = []

    def work(k: int) -> None:
        for turn in range(100):
            x = inputs[(k + turn) % len(inputs)]
            if not np.array_equal(np.asarray(f(x)), np.sort((x + 1.0) * 2.0)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert f.records
