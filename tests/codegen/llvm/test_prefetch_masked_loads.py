"""Masked loads and groups of strided ones are prefetched: some processors do not follow them."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.codegen.llvm.access.prefetch import CACHE_LINE

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


def test_contiguous_steps_are_prefetched_once() -> None:
    """LLVM reorders the vectors of a group, which stops hardware prefetchers."""
    x = np.arange(30000, dtype=np.float32)
    code = sm.explain(sm.jit(lambda x: x[0::3] + x[1::3] * x[2::3]), x).kernels[0].llvm
    blocks = re.split(r"\n[\w.]+:", code)
    counts = [len(re.findall(r"call void @\"?llvm\.prefetch", block)) for block in blocks]
    (lanes,) = {int(n) for b in blocks for n in re.findall(r"load <(\d+) x float>", b)}
    assert sum(counts) == max(counts), "in the main loop alone"
    assert sum(counts) == 3 * lanes * x.itemsize // CACHE_LINE, "each line of three vectors once"


def test_short_rows_are_prefetched() -> None:
    x = np.arange(300 * 13, dtype=np.float32).reshape(300, 13)
    program = sm.jit(lambda x: sm.sum(x, axis=1))
    code = sm.explain(program, x).kernels[0].llvm
    address = r"(?:.* = add .*\n)*.*getelementptr.*\n"
    assert re.search(rf"call .*masked\.load.*\n{address}.*llvm\.prefetch", code)
    np.testing.assert_allclose(np.asarray(program(x)), x.sum(axis=1), rtol=1e-6)
