"""Scalar operators printed as Triton have the bits of the CPU's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.checked_triton import launch
from tests.ops.numpy_machine import NumpyMachine

from smelt.codegen.triton.source import triton_source
from smelt.kernel.text import parse
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import f32
from smelt.types.dtype import parse as parse_dtype

UNARY = [
    name
    for name, row in SCALARS.items()
    if row.arity == 1 and "float" in row.rule.accepts[0] and row.rule.result == "same"
]


def numbers() -> np.ndarray:
    random = np.random.default_rng(0)
    patterns = random.integers(0, 1 << 32, 1024, np.uint64).astype(np.uint32).view(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 88.7, -103.9, 0.5, 2.5, -0.3]
    usual = random.standard_normal(1000).astype(np.float32) * 5
    return np.concatenate([patterns, usual, np.asarray(special, np.float32)])


@pytest.mark.parametrize("op", UNARY)
def test_printed_row_has_the_bits_of_its_formula(op):
    kernel = parse(f"kernel f(x: f32[n]) -> y: f32[n]\n  grid n/256\n  y[n] = {op}(x[n])")
    x = numbers()
    (actual,) = launch(triton_source(kernel), [x])
    with np.errstate(all="ignore"):
        wanted = np.broadcast_to(SCALARS[op].lower(NumpyMachine(), f32, x), x.shape)
    same = actual.view(np.uint32) == np.ascontiguousarray(wanted).view(np.uint32)
    same |= np.isnan(actual) & np.isnan(wanted)
    assert same.all(), (x[~same][:3], actual[~same][:3], wanted[~same][:3])


@pytest.mark.parametrize(
    ("op", "dtype"), [("pow", "i32"), ("pow", "i64"), ("pow", "u32"), ("philox", "u64")]
)
def test_printed_row_of_integers_has_the_bits_of_its_reference(op, dtype):
    text = f"kernel f(x: {dtype}[n], k: {dtype}[n]) -> y: {'u32' if op == 'philox' else dtype}[n]"
    kernel = parse(f"{text}\n  grid n/256\n  y[n] = {op}(x[n], k[n])")
    random = np.random.default_rng(0)
    kind = parse_dtype(dtype).numpy
    x = random.integers(0 if dtype[0] == "u" else -9, 1 << 16, 700).astype(kind)
    n = random.integers(0 if dtype[0] == "u" else -3, 40, 700).astype(kind)
    (actual,) = launch(triton_source(kernel), [x, n])
    np.testing.assert_array_equal(actual, SCALARS[op].numpy(x, n))
