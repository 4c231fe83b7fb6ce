"""Powers of two of whole numbers are exponents of floats, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm


@pytest.mark.parametrize(("mask", "bias"), [(255, 127), (15, 7), (127, 0)])
def test_every_byte_has_its_power(mask: int, bias: int) -> None:
    s = np.arange(256, dtype="u1")

    def power(s: Any) -> Any:
        return sm.exp2(sm.astype(s & mask, sm.float32) - float(bias))

    got = np.asarray(sm.jit(power)(s))
    with np.errstate(over="ignore"):
        want = np.ldexp(np.float32(1), (s & mask).astype("i4") - bias)
    assert np.array_equal(got.view("u4"), want.view("u4"))
    assert "exp2_byte" in str(sm.explain(power, s).kernels[0].text)


def test_numbers_beyond_a_byte_stay_exponentials() -> None:
    s = np.arange(256, dtype="u1")

    def power(s: Any) -> Any:
        return sm.exp2(sm.astype(s, sm.float32) - 100.0)

    assert "exp2_byte" not in str(sm.explain(power, s).kernels[0].text)
    with np.errstate(over="ignore"):
        want = np.ldexp(np.float32(1), s.astype("i4") - 100)
    assert np.array_equal(np.asarray(sm.jit(power)(s)), want)
