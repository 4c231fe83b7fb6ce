"""Right operands with short rows are read in place if their vectors are aligned.

A vector in two cache lines would be loaded twice by every tile: of a stream, such operands are
packed once instead.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import Guarded

import smelt as sm
from smelt.codegen.llvm.module import emit
from smelt.kernel.text import parse
from smelt.machine.target import Target

Array = np.ndarray[Any, Any]
STREAM = """kernel f(q: f32[m,d], k: f32[n,d], v: f32[n,e]) -> y: f32[m,e]
  axis m, e, n, d
  grid m/64
  v0 = q[m,d]
  stream n/512 with s = 0 [m,e]
    v1 = k[n,d]
    v2 = dot(v0, v1 over d)
    v3 = abs(v2)
    v4 = v[n,e]
    s' = s + dot(v3, v4 over n)
  y[m,e] = s
"""


def moved(memory: Guarded, x: Array, after: int) -> Array:
    """A copy that begins so many bytes behind a page."""
    room = memory.array((x.size + 16,), x.dtype, at_end=False)
    result = room[after // 4 : after // 4 + x.size].reshape(x.shape)
    result[:] = x
    return result


@pytest.mark.parametrize(("isa", "wide"), [("avx512", 64), ("avx2", 32), ("neon", 16)])
def test_whole_vectors_are_tested_for_alignment(isa: str, wide: int) -> None:
    text = emit(parse(STREAM), Target.for_isa(isa)).llvm  # type: ignore[arg-type]
    (address,) = re.findall(r"(%\S+) = ptrtoint", text)
    address_test = re.search(rf"(%\S+) = or i64 {re.escape(address)}, %\S+\n(.*)\n", text)
    assert address_test is not None
    assert address_test[2].endswith(f"and i64 {address_test[1]}, {wide - 1}")


def attention(q: Any, k: Any, v: Any) -> Any:
    return sm.nn.softmax(q @ sm.matrix_transpose(k), axis=-1) @ v


@pytest.mark.parametrize("rows", [1, 24, 25, 200])
def test_keys_and_values_at_every_alignment(rows: int) -> None:
    """Few rows and many, at all sizes of blocks and at every place in a line."""
    rng, program = np.random.default_rng(rows), sm.jit(attention)
    program(*(np.ones((2, 2048, 64), np.float32) for _ in range(3)))  # a stream, for all sizes
    for n, d in product((7, 513, 700), (32, 64)):
        q = rng.standard_normal((2, rows, d)).astype(np.float32) / 8
        k, v = (rng.standard_normal((2, n, d)).astype(np.float32) for _ in range(2))
        w = np.exp(q.astype(np.float64) @ k.transpose(0, 2, 1))
        wanted = w @ v / w.sum(axis=2, keepdims=True)
        for after in (0, 4, 16, 32, 60):
            with Guarded() as memory:
                actual = np.array(program(q, moved(memory, k, after), moved(memory, v, after)))
            assert np.abs(actual - wanted).max() < 2e-6, (n, d, after)
