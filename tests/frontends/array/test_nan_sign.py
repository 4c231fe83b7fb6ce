"""NaN keeps its sign: as a number, in memory, in recordings, and whatever ran before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

NAN = float("nan")
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "asarray": lambda x, n: sm.asarray(n, dtype=x.dtype),
    "lists": lambda x, n: sm.asarray([n, n], dtype=x.dtype),
    "full": lambda x, n: sm.full((2,), n, dtype=x.dtype),
    "full_like": sm.full_like,
    "copysign": sm.copysign,
    "copysign of an array": lambda x, n: sm.copysign(x, sm.full_like(x, n)),
    "where": lambda x, n: sm.where(x > 5, x, n),
    "pad": lambda x, n: sm.pad(x[:0], 1, constant_values=n),
    "pad and a product": lambda x, n: sm.copysign(sm.pad(x, 1) * 2 + 1, n),
    "set": lambda x, n: x.at[:].set(n),
    "nan_to_num": lambda x, n: sm.nan_to_num(x * sm.nan, nan=n),
    "concat": lambda x, n: sm.concat([sm.full_like(x, n), sm.full_like(x, n)]),
    "roll": lambda x, n: sm.roll(sm.full_like(x, n), 1),
    "negative": lambda x, n: -sm.full_like(x, -n),
    "clip": lambda x, n: sm.where(sm.isnan(sm.clip(x, 0, 1)), x, sm.full_like(x, n)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_the_sign_is_kept(form: str, dtype: str) -> None:
    x = sm.ones(3, dtype=dtype)
    for number in (NAN, -NAN, NAN, -NAN):  # each after the other: no cache confuses them
        plain = FORMS[form](x, number)
        recorded = sm.jit(lambda x, n=number: FORMS[form](x, n))(x)
        for result in (plain, recorded):
            signs = np.signbit(np.asarray(sm.astype(result, "float32")))
            assert signs.all() if np.signbit(number) else not signs.any(), number


def test_numbers_that_are_arguments() -> None:
    f = sm.jit(sm.copysign)
    static = sm.jit(sm.copysign, static_argnums=1)
    for number in (NAN, -NAN, NAN, -NAN):
        sign = -1.0 if np.signbit(number) else 1.0
        for g in (f, static):
            np.testing.assert_array_equal(g(sm.ones(3), number), np.full(3, sign))
