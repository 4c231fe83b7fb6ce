"""Rows with two strided axes (a sequence before its batch) stay rows of one product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.llvm.program import program

SOURCE = """graph f(x: f32[s,b,k], w: f32[n,k]) {
 t = permute(x) {perm=(1,0,2)}
 r = reshape(t) {shape=(b*s,k)}
 y = contract(r, w) {spec="m,k; n,k -> m,n"}
 return y
}"""
ACROSS = """graph f(x: f32[b,k,s], w: f32[n,k]) {
 t = permute(x) {perm=(1,0,2)}
 r = reshape(t) {shape=(k,b*s)}
 y = contract(r, w) {spec="k,m; n,k -> n,m"}
 return y
}"""


def axes(kernel: Any) -> set[str]:
    (phase,) = program(kernel).phases
    return {*phase.axes}


@pytest.mark.parametrize("isa", RUNNABLE)
def test_strided_rows_are_one_axis(isa: str) -> None:
    """Strided rows of a batch form one product.

    Two axes would be a product of s rows for each of b, each packing all of w.
    """
    kernel = fuse(SOURCE, isa)
    assert len(axes(kernel.kernel)) == 3
    for s, b in ((1, 7), (2, 33), (40, 3)):
        x = np.random.default_rng(s).integers(-4, 5, (s, b, 20)).astype("f4")
        w = np.random.default_rng(b).integers(-4, 5, (35, 20)).astype("f4")
        (actual,) = kernel(x, w)
        assert np.array_equal(actual, x.transpose(1, 0, 2).reshape(-1, 20) @ w.T)


def test_adjacent_columns_are_walked_contiguously() -> None:
    """Vectors run along the inner one of two axes."""
    kernel = fuse(ACROSS, RUNNABLE[0])
    assert len(axes(kernel.kernel)) == 4
    x = np.random.default_rng(0).integers(-4, 5, (5, 20, 40)).astype("f4")
    w = np.random.default_rng(1).integers(-4, 5, (35, 20)).astype("f4")
    (actual,) = kernel(x, w)
    assert np.array_equal(actual, w @ x.transpose(1, 0, 2).reshape(20, -1))
