"""Rows that meet all blocks of a stream are visited in row blocks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.native import native

from smelt.codegen.llvm.loopir.items import Phase
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.scratch.workspace import MAX_RESIDENT_BLOCKS, resident_blocks
from smelt.kernel.text import parse
from smelt.machine.blocks import STREAM_ROW_BLOCK
from smelt.machine.target import Target
from smelt.types.expr import evaluate

PAIRS = """
kernel pairs(
    q: f32[n,d], k: f32[m,d], u: f32[n]
) -> y: f32[m,d], s: f32[m], top: f32[m], z: f32[n,d]
  stream m/BLOCK with t = 0 [n,d]
    w = dot(q[n,d], k[m,d] over d)
    b = dot(u[n] * q[n,d], k[m,d] over d)
    a = max(w + b, 0)
    y[m,d] = dot(a, q[n,d] over n)
    s[m] = sum(a over n)
    top[m] = max(w over n)
    t' = t + dot(a, k[m,d] over m)
  z[n,d] = t
"""
SCALED = """
kernel scaled(q: f32[n,d], g: f32[d], k: f32[m,d]) -> top: f32[n]
  p = q[n,d] * g[d]
  stream m/128 with t = -inf [n]
    w = dot(p, k[m,d] over d)
    t' = max(t, max(w over m))
  top[n] = t
"""
AGAIN = """
kernel again(q: f32[n,d], k: f32[m,d]) -> y: f32[m,d]
  stream m/128
    w = dot(q[n,d], k[m,d] over d) + dot(k[m,d], q[n,d] * q[n,d] over d)
    a = exp(w - max(w over n))
    y[m,d] = dot(a, q[n,d] over n)
"""


def phase(source: str) -> Phase:
    (result,) = program(parse(source)).phases
    return result


def visited(actual: Phase) -> list[tuple[str, int | None]]:
    return [(v.axis, v.size) for r in actual.regions() for v in r.visits]


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("block", [128, 512])
def test_the_same_numbers(isa: str, block: int) -> None:
    """Row blocking changes no number.

    Packed values may be more than one block of a product, along columns, along the sum, or both,
    and more than the cache holds.
    """
    kernel = native(PAIRS.replace("BLOCK", str(block)), isa)
    rng = np.random.default_rng(block)
    sizes = (
        (1, 1, 1),
        (STREAM_ROW_BLOCK, 128, 64),
        (STREAM_ROW_BLOCK + 1, 130, 20),
        (3 * STREAM_ROW_BLOCK - 7, 600, 70),
        (STREAM_ROW_BLOCK + 9, 530, 600),
        (STREAM_ROW_BLOCK + 5, 515, 1100),
    )
    for n, m, d in sizes:
        q, k, u = (rng.standard_normal(s).astype(np.float32) for s in ((n, d), (m, d), (n,)))
        actual = kernel({"q": q, "k": k, "u": u})
        w = k.astype(np.float64) @ q.T
        a = np.maximum(w + w * u, 0)
        wanted = {"y": a @ q, "s": a.sum(1), "top": w.max(1), "z": a.T @ k}
        for name, want in wanted.items():
            near = max(np.abs(want).max(), 1.0) * 2e-5
            np.testing.assert_allclose(actual[name], want, rtol=0, atol=near)


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_values_before_a_stream_are_packed_in_panels_of_their_block(isa: str) -> None:
    """Packed in squares, which take blocks of columns apart: each begins where its block does."""
    kernel, rng = native(SCALED, isa), np.random.default_rng(0)
    for n, m, d in ((64, 300, 24), (65, 300, 24), (130, 128, 64), (191, 257, 300)):
        q, g, k = (rng.standard_normal(s).astype(np.float32) for s in ((n, d), (d,), (m, d)))
        actual = kernel({"q": q, "g": g, "k": k})
        want = ((q * g).astype(np.float64) @ k.T).max(1)
        np.testing.assert_allclose(actual["top"], want, rtol=0, atol=2e-4)


def test_rows_are_visited_in_blocks() -> None:
    actual = phase(PAIRS.replace("BLOCK", "128"))
    assert visited(actual) == [("m", 128), ("n", STREAM_ROW_BLOCK)]
    s = schedule(actual, Target.for_isa("avx512"))
    widest = [item for item, axes in s.materialised.items() if {"n", "m"} <= set(axes)]
    assert widest and all(s.span(s.region(item), "n") == STREAM_ROW_BLOCK for item in widest)


@pytest.mark.parametrize(
    ("block", "d", "held"),
    [(128, 64, 1), (128, 600, 3), (512, 256, 2), (512, 600, 6), (512, 1100, MAX_RESIDENT_BLOCKS)],
)
def test_row_blocks_reuse_cached_panels(block: int, d: int, held: int) -> None:
    s = schedule(phase(PAIRS.replace("BLOCK", str(block))), Target.for_isa("avx512"))
    over = [c for c in s.blocked if c.k == "d"]
    assert [(c.m, c.n) for c in over] == 2 * [("n", "m")]
    assert {int(evaluate(resident_blocks(c, s), {"d": d})) for c in over} == {held}


def test_a_product_over_rows_reads_computed_values_in_place() -> None:
    s = schedule(phase(PAIRS.replace("BLOCK", "128")), Target.for_isa("avx512"))
    (over,) = [c for c in s.blocked if c.k == "n"]
    assert over.m_contiguous and over.direct and over.left_axes == ("n", "m")


def test_nests_that_need_the_row_sum_first_are_not_blocked() -> None:
    assert visited(phase(AGAIN)) == [("m", 128)]


def test_short_rows_are_left_whole() -> None:
    short = PAIRS.replace("f32[n,d]", f"f32[{STREAM_ROW_BLOCK},d]").replace(
        "f32[n]", f"f32[{STREAM_ROW_BLOCK}]"
    )
    short = short.replace("  stream", f"  axis n in {STREAM_ROW_BLOCK}\n  stream").replace(
        "BLOCK", "128"
    )
    assert visited(phase(short)) == [("m", 128)]
