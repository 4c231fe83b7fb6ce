"""Products that are stored as they are: which, and at whole and broken tiles."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.guarded import run_guarded
from tests.codegen.llvm.whole import RUNNABLE, Whole, one_cluster, whole
from tests.codegen.llvm.windows import random

from smelt import lower
from smelt.blocks import COLUMNS, DEPTH
from smelt.codegen.llvm.products.direct import stored
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.nests import schedule
from smelt.graph.text import parse
from smelt.target import Target

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
PLACED = """graph f(x: f32[b,m,k], w: f32[b,k,n]) {
  v0 = contract(x, w) {spec="b,m,k; b,k,n -> m,b,n"}
  return v0
}"""


def check(kernel: Whole, *arrays: np.ndarray) -> None:
    """Native code between forbidden pages says what the graph's interpreter says."""
    for at_end in (False, True):
        found = run_guarded(kernel, arrays, at_end=at_end)
        for one, expected in zip(found, kernel.expected(*arrays), strict=True):
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
        kernel = whole(TWO, isa, usual=True)
        check(kernel, *random(*shapes))
        kernel = whole(PLACED, isa, usual=True)
        check(kernel, *random((2, rows, depth), (2, depth, columns)))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("source", [USED, BOTH])
def test_what_is_used_besides_is_right_too(isa: str, source: str) -> None:
    shapes = ((20, 17), (17, 64), (17, 64))[: 2 if source is USED else 3]
    x, *more = random(*shapes)
    check(whole(source, isa, usual=True), x / 20, *more)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("source", "more"), [(SEVERAL, ()), (SCALED, ((3, 1, 1),))])
@pytest.mark.parametrize("sizes", [(5, 7, 32), (40, 40, 40), (200, DEPTH + 5, COLUMNS + 32)])
def test_a_sum_may_be_several_results(
    isa: str, source: str, more: tuple[tuple[int, ...], ...], sizes: tuple[int, int, int]
) -> None:
    rows, depth, columns = sizes
    check(whole(source, isa, usual=True), *random((rows, depth), (depth, columns), *more))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_double_precision(isa: str) -> None:
    check(whole(ROWS.format(t="f64"), isa, usual=True),
          *random((3, 7, 300), (300, 96), dtype="f8"))  # fmt: skip


def in_place(source: str) -> int:
    """Products of a graph, as one kernel, that tiles store in place."""
    kernel = lower.run(one_cluster(parse(source)), "eager", {})
    dtypes = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}
    made = [schedule(p, Target.for_isa("avx512")) for p in program(kernel).phases]
    return sum(len(dict(stored(s, dtypes))) for s in made)


def test_which_products_are_stored_in_place() -> None:
    assert in_place(TWO) == 2
    assert in_place(PLACED) == 1
    assert in_place(USED) == in_place(BOTH) == in_place(SEVERAL) == 0
