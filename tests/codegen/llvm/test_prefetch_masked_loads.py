"""Masked loads are prefetched: some processors predict nothing from them."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

STRIDED: dict[str, Callable[[Any], Any]] = {
    "every third": lambda x: x[::3] + 1,
    "backwards": lambda x: x[::-3] + 1,
    "sums": lambda x: sm.sum(sm.reshape(x, (64, -1))[:, ::3], axis=1),
}


@pytest.mark.parametrize("name", STRIDED)
def test_steps_are_prefetched(name: str) -> None:
    x = np.arange(64 * 300, dtype=np.float32)
    program = sm.jit(STRIDED[name])
    code = "".join(k.llvm for k in sm.explain(program, x).kernels)
    assert "llvm.masked.load" in code
    assert "llvm.prefetch" in code
    np.testing.assert_allclose(np.asarray(program(x)), STRIDED[name](x), rtol=1e-6)


def test_contiguous_steps_are_not_prefetched() -> None:
    x = np.arange(3000, dtype=np.float32)
    code = sm.explain(sm.jit(lambda x: x[0::3] + x[1::3] * x[2::3]), x).kernels[0].llvm
    assert "llvm.prefetch" not in code


def test_short_rows_are_prefetched() -> None:
    x = np.arange(300 * 13, dtype=np.float32).reshape(300, 13)
    program = sm.jit(lambda x: sm.sum(x, axis=1))
    code = sm.explain(program, x).kernels[0].llvm
    assert re.search(r"call .*masked\.load.*\n.*getelementptr.*\n.*llvm\.prefetch", code)
    np.testing.assert_allclose(np.asarray(program(x)), x.sum(axis=1), rtol=1e-6)
