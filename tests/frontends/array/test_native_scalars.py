"""NumPy's scalars as arguments of repeated calls: native code reads them where NumPy keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.array.test_native_calls import warm

import smelt as sm
from smelt.runtime import call_cache

pytestmark = pytest.mark.skipif(not call_cache.is_supported(), reason="another interpreter")
rng = np.random.default_rng(12)
SCALARS = [
    np.float32,
    np.float64,
    np.float16,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint64,
    np.bool_,
    sm.bfloat16.numpy.type,
]


@pytest.mark.parametrize("kind", SCALARS)
def test_scalars_of_numpy(kind: Any) -> None:
    """Their values are read where NumPy keeps them; a number or an array is another call."""
    f = sm.jit(lambda x, s: x * sm.astype(s, sm.float32))
    x = rng.random(5).astype(np.float32)
    for v in (1, 0, 3, 1):
        wanted = np.asarray(f(sm.asarray(x), sm.asarray(np.asarray(kind(v)))))
        assert np.array_equal(np.asarray(warm(f, x, kind(v))), wanted.astype(np.float32))
        for other in (v, float(v), np.asarray(kind(v)), np.int32(v)):
            assert np.asarray(f(x, other)).shape == x.shape
    assert call_cache.is_scalar(kind) and not call_cache.is_scalar(np.complex128)
    assert not call_cache.is_scalar(np.longdouble) and not call_cache.is_scalar(float)


def test_scalars_of_numpy_that_a_function_looks_at() -> None:
    f = sm.jit(lambda x, s: x * 2 if s > 1 else x + s)
    x = rng.random(5)
    for v in (0.5, 3.0, 0.25, 3.0, 0.5) * 2:
        assert np.array_equal(np.asarray(f(x, np.float64(v))), x * 2 if v > 1 else x + v)


def test_truth_values_of_python() -> None:
    """Each is a recording and a record of its own; numbers that equal it are other arguments."""

    def code(x: Any, transposed: Any, more: Any = True) -> Any:
        return (x * 2 if transposed else x - 3) + more

    f, x = sm.jit(code), rng.random(5)
    for _ in range(6):
        for transposed in (True, False, 1, 0, 1.0):
            for more in (True, False):
                wanted = (x * 2 if transposed else x - 3) + more
                assert np.array_equal(np.asarray(f(x, transposed, more=more)), wanted)
    assert np.array_equal(np.asarray(warm(sm.jit(code), x, True)), x * 2 + 1)
    assert np.array_equal(np.asarray(warm(sm.jit(code), x, False, False)), x - 3)


def test_truth_values_in_containers() -> None:
    f = sm.jit(lambda tree: tree["x"] * 2 if tree["how"][0] else tree["x"] - 3)
    x = rng.random(5)
    for how in (True, False, True, False, True, False):
        assert np.array_equal(np.asarray(f({"x": x, "how": [how]})), x * 2 if how else x - 3)
    assert np.array_equal(np.asarray(warm(f, {"x": x, "how": [True]})), x * 2)
