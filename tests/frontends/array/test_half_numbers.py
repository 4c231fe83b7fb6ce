"""Numbers beside arrays of halves are such halves: as the array API standard says, and exactly."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.llvm.whole import RUNNABLE, whole

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
    found = np.asarray(sm.jit(lambda a: f(sm, a, float))(a))
    expected = f(np, a, half)
    assert found.dtype == half
    np.testing.assert_array_equal(found.astype("f4"), expected.astype("f4"))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("name", "half"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_margins_are_halves_too(isa, name, half):
    made = whole(
        f"""graph f(x: {name}[n]) {{
  y = pad(x) {{low=(2,), high=(1,), value=0.1}}
  z = mul(y, 0.3:{name})
  return z
}}""",
        isa,
    )
    x = np.arange(1, 50).astype(half)
    (found,), (expected,) = made(x), made.expected(x)
    np.testing.assert_array_equal(found.astype("f4"), expected.astype("f4"))
