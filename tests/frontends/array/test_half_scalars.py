"""Numbers beside arrays of halves are such halves: as the array API standard says, and exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm

HALVES = (np.float16, ml_dtypes.bfloat16)
PROGRAMS = {
    "mul": lambda xp, a, n: a * n(0.1),
    "div": lambda xp, a, n: a / n(0.3),
    "add": lambda xp, a, n: a + n(0.7),
    "minimum": lambda xp, a, n: xp.minimum(a * n(0.001), n(0.7)),
    "where": lambda xp, a, n: xp.where(a > n(1000.3), a, n(0.1)),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_number_is_the_nearest_half(name, half):
    a, f = np.arange(1, 2000).astype(half), PROGRAMS[name]
    actual = np.asarray(sm.jit(lambda a: f(sm, a, float))(a))
    expected = f(np, a, half)
    assert actual.dtype == half
    np.testing.assert_array_equal(actual.astype("f4"), expected.astype("f4"))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("name", "half"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_padding_is_half_precision_too(isa, name, half):
    kernel = fuse(
        f"""graph f(x: {name}[n]) {{
  y = pad(x) {{low=(2,), high=(1,), value=0.1}}
  z = mul(y, 0.3:{name})
  return z
}}""",
        isa,
    )
    x = np.arange(1, 50).astype(half)
    (actual,), (expected,) = kernel(x), kernel.expected(x)
    np.testing.assert_array_equal(actual.astype("f4"), expected.astype("f4"))


_SPREAD = np.random.default_rng(0).uniform(-6e4, 6e4, (6, 8))
_BETWEEN: dict[str, tuple[float, Callable[[Any], Any]]] = {
    "vector_norm": (0.25, lambda x: sm.linalg.vector_norm(x, axis=1)),
    "vector_norm, 3": (0.25, lambda x: sm.linalg.vector_norm(x, axis=1, ord=3)),
    "matrix_norm": (0.125, sm.linalg.matrix_norm),
    "cross": (0.0042, lambda x: sm.linalg.cross(x[:, :3], x[:, :3] + 1)),
    "average": (1.0, lambda x: sm.average(x, axis=1, weights=sm.zeros_like(x[0]) + 4)),
    "cov": (0.005, sm.cov),
    "corrcoef": (1.0, sm.corrcoef),
    "trapezoid": (1.0, lambda x: sm.trapezoid(x, dx=0.25)),
    "gradient": (1.0, lambda x: sm.gradient(x, 2.0, axis=1)),
    "interp": (1.0, lambda x: sm.interp(x[0], sm.sort(x[1]), x[2])),
    "histogram": (1.0, lambda x: sm.histogram(x, bins=4)[0]),
    "density": (4e-9, lambda x: sm.histogram(x, bins=4, density=True)[0]),
    "std": (1.0, lambda x: sm.std(x, axis=1)),
    "nanstd": (1.0, lambda x: sm.nanstd(x, axis=1)),
    "layer_norm": (1.0, sm.nn.layer_norm),
    "rms_norm": (1.0, sm.nn.rms_norm),
    "batch_norm": (1.0, sm.nn.batch_norm),
    "logsumexp": (1.0, lambda x: sm.nn.logsumexp(x, axis=1)),
}


@pytest.mark.parametrize("name", _BETWEEN)
def test_what_is_between_does_not_overflow(name: str) -> None:
    scale, f = _BETWEEN[name]
    x = sm.asarray(_SPREAD * scale, dtype="float16")
    result, exact = f(x), f(sm.astype(x, "float64"))
    assert result.dtype in (sm.float16, sm.int64)
    np.testing.assert_allclose(np.asarray(result, np.float64), exact, rtol=4e-3, atol=1e-3)


def test_norms_of_halves() -> None:
    x = sm.asarray([300.0, 400.0], dtype="float16")
    assert float(sm.linalg.vector_norm(x)) == float(sm.linalg.matrix_norm(x[None])) == 500.0
