"""Products that are stored without an epilogue: which, and at tile remainders."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import random
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops

from smelt import lower
from smelt.codegen.build import assembly
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.products.direct_store import stored_products
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.graph.text import parse
from smelt.machine.blocks import COLUMNS, DEPTH
from smelt.machine.target import Target
from smelt.types.dtype import parse as parse_dtype

ROWS = """graph f(x: {t}[b,i,k], w: {t}[k,n]) {{
  v0 = contract(x, w) {{spec="b,i,k; k,n -> b,i,n"}}
  return v0
}}"""
"""Rows that an index finds by a quotient: no tall product."""
TWO = """graph f(x: f32[m,k], w: f32[k,n], y: f32[k,n]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = contract(x, y) {spec="m,k; k,n -> m,n"}
  return v0, v1
}"""
USED = """graph f(x: f32[m,k], w: f32[k,n]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = exp(v0)
  return v0, v1
}"""
BOTH = """graph f(x: f32[m,k], w: f32[k,n], y: f32[k,n]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = contract(x, y) {spec="m,k; k,n -> m,n"}
  v2 = exp(v1)
  return v0, v2
}"""
SEVERAL = """graph f(x: f32[m,k], w: f32[k,n]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = expand(v0) {shape=(3,m,n)}
  return v1
}"""
"""One sum is several results, along an axis that the product lacks: no address is that of a sum."""
SCALED = """graph f(x: f32[m,k], w: f32[k,n], y: f32[b,1,1]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = mul(v0, y)
  return v1
}"""
"""The same of what is made of a sum: nothing is asked for ahead."""
BYTES = """graph f(x: i8[m,k], w: i8[k,n]) {
  v0 = cast(x) {dtype=i32}
  v1 = cast(w) {dtype=i32}
  v2 = contract(v0, v1) {spec="m,k; k,n -> m,n"}
  return v2
}"""
PLACED = """graph f(x: f32[b,m,k], w: f32[b,k,n]) {
  v0 = contract(x, w) {spec="b,m,k; b,k,n -> m,b,n"}
  return v0
}"""


def check(kernel: SingleKernel, *arrays: np.ndarray) -> None:
    """Native code between forbidden pages says what the graph's interpreter says."""
    for at_end in (False, True):
        result = run_guarded(kernel, arrays, at_end=at_end)
        for one, expected in zip(result, kernel.expected(*arrays), strict=True):
            scale = float(np.abs(expected).max(initial=1.0))
            most = 64 * np.finfo(expected.dtype).eps * scale
            assert np.abs(one - expected).max(initial=0.0) <= most


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("columns", [1, 31, 32, 33, 64, COLUMNS, COLUMNS + 32, COLUMNS + 40])
@pytest.mark.parametrize("depth", [0, 3, DEPTH + 5])
def test_every_size_stays_inside_its_arrays(isa: str, columns: int, depth: int) -> None:
    """Whole tiles are written in place, others by way of scratch; sums go on over blocks."""
    for rows in (1, 5, 40):
        shapes = (rows, depth), (depth, columns), (depth, columns)
        kernel = fuse(TWO, isa, usual=True)
        check(kernel, *random(*shapes))
        kernel = fuse(PLACED, isa, usual=True)
        check(kernel, *random((2, rows, depth), (2, depth, columns)))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_small_ones_mask_what_columns_there_are(isa: str) -> None:
    """All of a small product is stored in place, whatever its width: nothing beside it is."""
    kernel = fuse(PLACED, isa)
    for columns in (1, 7, 16, 17, 24, 33, 47):
        for rows, depth in ((1, 3), (5, 17), (13, 0)):
            check(kernel, *random((3, rows, depth), (3, depth, columns)))


def test_nearly_whole_tiles_of_small_ones_are_one() -> None:
    """The last vector of a tile has a part, and what it stores goes where it belongs."""
    kernel = fuse(PLACED)
    text = assembly(
        emit(kernel.kernel, Target.for_isa("avx512"), variant="small").llvm,
        Target.for_isa("avx512"),
        2,
    )
    loops = [body for body in inner_loops(text) if "fmadd" in body]
    assert max(len(re.findall("fmadd", body)) for body in loops) == 16
    assert all("{%k" in body for body in loops)
    assert len(loops) == 8  # four heights of two vectors, and of one


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("source", [USED, BOTH])
def test_what_is_used_besides_is_right_too(isa: str, source: str) -> None:
    shapes = ((20, 17), (17, 64), (17, 64))[: 2 if source is USED else 3]
    x, *more = random(*shapes)
    check(fuse(source, isa, usual=True), x / 20, *more)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("source", "more"), [(SEVERAL, ()), (SCALED, ((3, 1, 1),))])
@pytest.mark.parametrize("sizes", [(5, 7, 32), (40, 40, 40), (200, DEPTH + 5, COLUMNS + 32)])
def test_a_sum_may_be_several_results(
    isa: str, source: str, more: tuple[tuple[int, ...], ...], sizes: tuple[int, int, int]
) -> None:
    rows, depth, columns = sizes
    check(fuse(source, isa, usual=True), *random((rows, depth), (depth, columns), *more))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("depth", [0, 1, 6, 4 * DEPTH + 3])
def test_factors_in_groups(isa: str, depth: int) -> None:
    """Sums of blocks that are corrected for what was added to bytes go where they belong too."""
    for rows, columns in ((1, 32), (13, 31), (30, 64)):
        rng = np.random.default_rng(rows)
        x, y = (rng.integers(-128, 128, n).astype("i1") for n in ((rows, depth), (depth, columns)))
        kernel = fuse(BYTES, isa, usual=True)
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, (x, y), at_end=at_end)
            assert np.array_equal(actual, x.astype("i4") @ y.astype("i4"))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_double_precision(isa: str) -> None:
    check(
        fuse(ROWS.format(t="f64"), isa, usual=True),
        *random((3, 7, 300), (300, 96), dtype="f8"),
    )


SHORT = """graph f(x: {t}[b,m,k], w: {t}[b,k,n]) {{
  v0 = contract(x, w) {{spec="b,m,k; b,k,n -> m,b,n"}}
  return v0
}}"""
"""Sums in float32 that are stored as a shorter type."""
PAIRS = tuple(f for f in ("avx512bf16",) if Target.host().has(f))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_last_sums_are_rounded_as_they_are_stored(isa: str, name: str) -> None:
    """Of one block and of several, in whole and broken tiles: exact sums are rounded once."""
    features = PAIRS if isa == "avx512" else ()
    kernel = fuse(SHORT.format(t=name), isa, usual=True, features=features)
    rng, one = np.random.default_rng(3), parse_dtype(name).numpy.type
    for rows, depth, columns in ((13, 6, 32), (5, 2 * DEPTH + 3, 64), (4, 3, 31), (3, 0, 32)):
        x, w = (
            rng.integers(-9, 10, n).astype(one) for n in ((2, rows, depth), (2, depth, columns))
        )
        if depth == 6:
            x[0, 0, 0], x[0, 1, 0], x[1, 2, 0], w[:, 0] = np.nan, np.inf, one(2.0**-14), 1
            x[1, 2, 1:] = 0
        sums = np.einsum("bmk,bkn->mbn", x.astype("f4"), w.astype("f4"))
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, (x, w), at_end=at_end)
            assert np.array_equal(
                actual.astype("f4"), sums.astype(one).astype("f4"), equal_nan=True
            )


def in_place(source: str) -> int:
    """Products of a graph, as one kernel, that tiles store in place."""
    kernel = lower.run(one_cluster(parse(source)), "eager", {})
    dtypes = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}
    built = [schedule(p, Target.for_isa("avx512")) for p in program(kernel).phases]
    return sum(len(dict(stored_products(s, dtypes))) for s in built)


def test_which_products_are_stored_in_place() -> None:
    assert in_place(TWO) == 2
    assert in_place(PLACED) == in_place(BYTES) == in_place(SHORT.format(t="bf16")) == 1
    assert in_place(USED) == in_place(BOTH) == in_place(SEVERAL) == 0
