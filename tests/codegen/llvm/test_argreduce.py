"""Vectorised argmax and argmin: few elements are more than compared with the best so far."""

import re
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm

Array = np.ndarray[Any, Any]
FLOATS = ("f2", "f4", "f8")
LENGTHS = (1, 63, 64, 65, 129, 1000, 4097, 70001)


def rows(dtype: str, length: int) -> list[Array]:
    """What ties, ends, or is not a number, in one place and in many."""
    rng = np.random.default_rng(length)
    few = rng.integers(0, 4, length).astype(dtype)
    results = [few, np.full(length, few[0]), (np.arange(length) % 100).astype(dtype)]
    if dtype not in FLOATS:
        info = np.iinfo(dtype)
        return [*results, np.full(length, info.min, dtype), np.full(length, info.max, dtype)]
    normal = rng.standard_normal(length).astype(dtype)
    results += [np.full(length, value, dtype) for value in (-np.inf, np.inf, np.nan)]
    results += [np.where(rng.random(length) < 0.5, -0.0, 0.0).astype(dtype)]
    for value, share in ((np.nan, 0.01), (np.nan, 0.5), (np.inf, 0.02), (-np.inf, 0.5)):
        results.append(np.where(rng.random(length) < share, value, normal).astype(dtype))
    last = normal.copy()
    last[length // 2], last[-1] = np.inf, np.nan
    return [*results, normal, last]


@pytest.mark.parametrize("dtype", [*FLOATS, "i1", "u1", "i4", "u4", "i8"])
def test_the_index_is_numpys(dtype: str) -> None:
    most, least = sm.jit(sm.argmax), sm.jit(sm.argmin)
    for length in LENGTHS:
        for x in rows(dtype, length):
            assert int(most(x)) == x.argmax(), (length, x)
            assert int(least(x)) == x.argmin(), (length, x)


@pytest.mark.parametrize("shape", [(3, 200), (40, 33), (5, 1000), (2, 3, 300)])
def test_argmax_of_rows_beside_other_reductions(shape: tuple[int, ...]) -> None:
    def both(x: Any) -> Any:
        return sm.argmax(x, axis=-1), sm.max(x, axis=-1), sm.argmin(x, axis=-1), sm.sum(x, axis=-1)

    program = sm.jit(both)
    for share in (0.0, 0.01):
        x = np.random.default_rng(0).integers(0, 9, shape).astype("f4")
        x[np.random.default_rng(1).random(shape) < share] = np.nan
        place, best, least, total = (np.asarray(a) for a in program(x))
        np.testing.assert_array_equal(place, x.argmax(-1))
        np.testing.assert_array_equal(best, x.max(-1))
        np.testing.assert_array_equal(least, x.argmin(-1))
        np.testing.assert_allclose(total, x.sum(-1), rtol=1e-6)


def test_no_lane_keeps_an_index_of_its_own() -> None:
    x = np.zeros((8, 4096), np.float32)
    code = sm.explain(sm.jit(lambda x: sm.argmax(x, axis=1)), x).kernels[0].llvm
    assert "cttz" in code
    assert not re.search(r"= select <\d+ x i1> .*x i64>", code)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_the_best_of_columns_that_are_stored_apart(isa: str) -> None:
    """Rows run together read and write every third element of what is carried."""
    kernel = fuse(
        """graph f(x: u16[15,15,15], y: bool[15,15,15]) {
          a = reduce.argmax(x) {axes=(1,)}
          v = reshape(a) {shape=(15, 1, 15)}
          b = slice(v) {starts=(0, 0, 7), sizes=(13, 1, 3), steps=(1, 1, 3)}
          w = cast(v) {dtype=bool}
          c = ge(w, y)
          return b, c
        }""",
        isa,
    )
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (15, 15, 15)).astype("u2"), rng.random((15, 15, 15)) < 0.5
    for got, want in zip(kernel(x, y), kernel.expected(x, y), strict=True):
        np.testing.assert_array_equal(got, want)
