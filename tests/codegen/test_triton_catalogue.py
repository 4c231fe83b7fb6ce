"""Kernels of the catalogue, planned for large sizes, print, compute and compile for a GPU.

A program is printed for a row's own sizes, with the loops that they need, and runs at small ones,
where it computes what the interpreter does. At its own sizes a schedule passes the gates.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from tests.catalogue import harness
from tests.catalogue.rows import Row, varied
from tests.codegen.checked_triton import launch
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_goldens import stored, with_lanes

from smelt.codegen.triton.ahead import TritonCompiler, has_triton
from smelt.codegen.triton.select import select
from smelt.codegen.triton.source import triton_source
from smelt.kernel.interp import run
from smelt.types.expr import evaluate


def rows() -> dict[str, Row]:
    """Every row that the catalogue's modules define."""
    every: list[Row] = []
    for path in sorted((Path(__file__).parents[1] / "catalogue").glob("test_*.py")):
        for value in vars(importlib.import_module(f"tests.catalogue.{path.stem}")).values():
            every += [value] if isinstance(value, Row) else []
            if isinstance(value, list | tuple):
                every += [r for r in value if isinstance(r, Row)]
    return {r.id: r for r in every}


ROWS = rows()
SOME = ("A7", "B1", "B4 long", "B5 all", "B6", "C2 GELU", "C4", "C11", "F2", "G1 softmax")


def tiny(row: Row) -> dict[str, int]:
    numbers = {n: (5, 18, 7, 9, 3)[k % 5] for k, n in enumerate(varied(row))}
    return dict(row.sizes) | {n: k * row.multiples.get(n, 1) for n, k in numbers.items()}


def arrays_of(kernel, sizes):
    random = np.random.default_rng(0)

    def array(p):
        shape = tuple(int(evaluate(d, sizes)) for d in p.shape)
        x = random.standard_normal(shape)
        if p.dtype.kind == "bool":
            x = x > 0
        elif not p.dtype.is_float:
            x = random.integers(0, 5, shape)
        return stored(p, np.asarray(x).astype(p.dtype.numpy))

    return [[array(p) for _ in range(p.each)] if p.each else array(p) for p in kernel.inputs]


def check(row: Row, dtype: str) -> None:
    built = harness.sketch(row, dtype)
    sizes = built.sizes(tiny(row))
    for kernel in built.sketch.kernels:
        if kernel is None:  # a library call
            continue
        source = with_lanes(triton_source(kernel, built.sizes(row.sizes)), 32)
        head = source.partition("def launch(")[2].partition("):")[0]
        extra = {f"size_{s}": sizes[s] for s in re.findall(r"size_(\w+)", head)}
        arrays = arrays_of(kernel, sizes)
        wanted = run(kernel, [a if isinstance(a, list) else a.copy() for a in arrays], sizes)
        outputs = launch(source, arrays, **extra)
        for p, actual in zip(kernel.outputs, outputs, strict=True):
            pairs = (actual, wanted[p.name])
            for a, b in zip(*pairs, strict=True) if p.each else [pairs]:
                same(np.asarray(a, np.float64), np.asarray(b, np.float64), p.dtype.bits)


def same(a, b, bits: int) -> None:
    tolerance = 2e-2 if bits == 16 else 2e-5
    largest = np.abs(b[np.isfinite(b)]).max(initial=1)
    np.testing.assert_allclose(a, b, tolerance, tolerance * largest)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", SOME)
def test_kernels_of_a_row_print_and_compute_the_same(name):
    check(ROWS[name], "f32")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", ROWS)
def test_kernels_of_every_row_print_and_compute_the_same(name, dtype):
    row = ROWS[name]
    if dtype == "f32" or dtype in row.dtypes:
        check(row, dtype)


# ---- compiled ahead of time ----------------------------------------------------------------------

NEEDS_TRITON = pytest.mark.skipif(
    not has_triton(), reason="compiling ahead of time needs Triton: pip install triton==3.6.0"
)


def check_gates(row: Row, dtype: str) -> None:
    built = harness.sketch(row, dtype)
    for kernel in built.sketch.kernels:
        if kernel is None:
            continue
        selection = select(kernel, built.sizes(row.sizes), rates("sm_90"), TritonCompiler())
        assert [x.warning for x in selection.launches if x.warning is not None] == []


@NEEDS_TRITON
@pytest.mark.parametrize("name", ["B1", "G1 softmax"])
def test_a_schedule_of_a_row_compiles_and_passes_the_gates(name):
    check_gates(ROWS[name], "f32")


@NEEDS_TRITON
@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", ROWS)
def test_a_schedule_of_every_row_compiles_and_passes_the_gates(name, dtype):
    row = ROWS[name]
    if dtype == "f32" or dtype in row.dtypes:
        check_gates(row, dtype)
