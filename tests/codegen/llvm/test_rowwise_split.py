"""Parts of a split reduction that walk their rows several times go row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.llvm.loopir.rowwise_split import split_rowwise
from smelt.codegen.llvm.program import program

MEAN = """graph f(x: {0}[r,c]) {{
  a = reduce.max(x) {{axes=(1,)}}
  b = reshape(a) {{shape=(r,1)}}
  d = sub(x, b)
  e = exp(d)
  g = reduce.sum(e) {{axes=(1,)}}
  h = log(g)
  i = add(h, a)
  j = reduce.{1}(i) {{axes=(0,)}}
  return j
}}"""
ROWS = """graph f(x: {0}[r,c]) {{
  a = reduce.sum(x) {{axes=(1,)}}
  b = reduce.{1}(a) {{axes=(0,)}}
  return b
}}"""


def is_rowwise(kernel: Any) -> bool:
    return split_rowwise(kernel) != kernel


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("combine", ["sum", "max", "prod"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_reductions_of_reductions(dtype: str, combine: str, isa: str) -> None:
    kernel = fuse(MEAN.format(dtype, combine), isa, r=8192, c=512)
    assert is_rowwise(kernel.kernel)
    for r, c in ((1, 1), (3, 700), (63, 5), (64, 33), (65, 16), (300, 40)):
        x = (np.random.default_rng(r).standard_normal((r, c)) / 4).astype(
            kernel.graph.inputs[0].type.dtype.numpy
        )
        (actual,), (wanted,) = kernel(x), kernel.expected(x)
        near = 1e-6 if dtype == "f32" else 2e-2
        np.testing.assert_allclose(actual.astype("f8"), wanted.astype("f8"), rtol=near, atol=near)


def test_sums_over_many_rows_stay_accurate() -> None:
    """Rows are added up in double precision: 200,000 of them are as good as one."""
    kernel = fuse(MEAN.format("f32", "sum"), r=200_000, c=3)
    x = np.random.default_rng(0).standard_normal((200_000, 3)).astype(np.float32)
    each = np.log(np.exp(x.astype("f8")).sum(1)).astype(np.float32)
    (actual,) = kernel(x)
    assert abs(float(actual) / float(each.astype("f8").sum()) - 1) < 2e-7


def test_what_is_left_alone() -> None:
    """Sums of doubles carry their errors along, and single sweeps read nothing again."""
    for source in (MEAN.format("f64", "sum"), ROWS.format("f32", "max")):
        kernel = fuse(source, r=8192, c=512)
        assert not is_rowwise(kernel.kernel)
        assert len(program(kernel.kernel).phases) == 2
