"""Tiles of strided rows are as high as packed ones, with few address registers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.llvm.native import native_kernel
from tests.codegen.llvm.test_contractions import inner_loops, whole_numbers

from smelt.codegen.build import Variant, assembly
from smelt.codegen.llvm.module import emit
from smelt.kernel.text import parse
from smelt.machine.target import Target

ROWS = {
    "plain": ("f32[m,k]", "m,k"),
    "far apart": ("f32[m,3,k]", "m,1,k"),
}
PLAIN = """kernel f(x: f32[m,k], w: f32[k,n]) -> y: f32[m,n]
  axis m, n, k
  grid m, n
  v0 = x[{row}]
  v1 = w[k,n]
  v2 = dot(v0, v1 over k)
  y[m,n] = v2"""
STREAM = """kernel f(x: {kind}, w: f32[n,k]) -> y: f32[m]
  axis m, n, k
  grid m
  stream n/512 with t = -inf [m]
    v0 = x[{row}]
    v1 = w[n,k]
    v2 = dot(v0, v1 over k)
    t' = max(t, max(v2 over n))
  y[m] = t"""
TARGETS = {
    cpu: replace(Target.for_isa("avx512"), cpu=cpu, l1_bytes=32 << 10)
    for cpu in ("skylake-avx512", "znver4")
}
runs = pytest.mark.skipif(Target.host().isa != "avx512", reason="no such vectors here")


def _stream(rows: str) -> str:
    kind, row = ROWS[rows]
    return STREAM.format(kind=kind, row=row)


@pytest.mark.parametrize(("cpu", "together"), [("skylake-avx512", 4), ("znver4", 1)])
def test_a_streams_tile_has_twelve_rows(cpu: str, together: int) -> None:
    """And takes several positions in a round where few instructions start in a cycle."""
    loop = _tile(_stream("plain"), TARGETS[cpu], "", 24 * together)
    assert len(re.findall(r"vbroadcastss", loop)) == 12 * together
    assert len(re.findall(r"prefetch", loop)) == (2 * together if together > 1 else 0)


@pytest.mark.parametrize("variant", ["", "panels"])
@pytest.mark.parametrize("cpu", TARGETS)
def test_addresses_stay_in_registers(cpu: str, variant: Variant) -> None:
    code = PLAIN.format(row="m,k") if variant else _stream("plain")
    count = 96 if cpu == "skylake-avx512" and not variant else 24
    loop = _tile(code, TARGETS[cpu], variant, count)
    assert len(re.findall(r"movq\s+-?\d*\(%", loop)) <= 1
    assert not re.search(r"movq\s+%\w+, -?\d*\(%", loop)


def _tile(code: str, target: Target, variant: Variant, count: int) -> str:
    """The loop of so many multiply-adds."""
    text = assembly(emit(parse(code), target, variant=variant).llvm, target, 2)
    (loop, *_) = [x for x in inner_loops(text) if len(re.findall("vfmadd", x)) == count]
    return loop


@runs
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("cpu", TARGETS)
def test_all_heights_and_depths(cpu: str, rows: str) -> None:
    """Whole numbers, whose sums are exact."""
    kernel = native_kernel(parse(_stream(rows)), TARGETS[cpu])
    between = (3,) if rows == "far apart" else ()
    for m, n, k in (
        *((m, 40, 7) for m in range(1, 27)),
        *((13, 33, k) for k in range(1, 10)),
        *((30, 530, k) for k in (255, 256, 257, 259, 515)),
        (200, 1, 3),
    ):
        x, w = whole_numbers((m, *between, k), "f4", m), whole_numbers((n, k), "f4", n)
        used = x[:, 1] if between else x
        actual = kernel({"x": x, "w": w})["y"]
        assert np.array_equal(actual, (used @ w.T).max(axis=1)), (m, n, k)


@runs
@pytest.mark.parametrize("k", [1, 2, 3, 5, 255, 258])
def test_tall_skinny_products_of_every_height(k: int) -> None:
    for target in TARGETS.values():
        kernel = native_kernel(parse(PLAIN.format(row="m,k")), target, "panels")
        for m, n in ((1, 1), (11, 64), (12, 65), (13, 31), (25, 100), (50, 33)):
            x, w = whole_numbers((m, k), "f4", m), whole_numbers((k, n), "f4", n)
            assert np.array_equal(kernel({"x": x, "w": w})["y"], x @ w), (m, n)
