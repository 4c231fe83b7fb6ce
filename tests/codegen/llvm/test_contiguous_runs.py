"""Contiguous runs shorter than an axis, as heads are: a block may begin inside one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.native import native
from tests.codegen.llvm.single_kernel import runnable

from smelt.codegen.build import llvm_text
from smelt.codegen.llvm.instructions.indexing import lane_invariant, multiple_of
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.types.expr import add, axis, coefficient, floordiv, maximum, minimum, mod, mul, size

WEIGHTS = """kernel weights(x: f32[b*n,{r}], g: f32[b,{h},n,{w}]) -> y: f32[{r},{r}], s: f32[1,{r}]
  axis i in {r}, j in {r}, k in b*n
  grid i
  v0 = g[k//size(n),i//{w},k%size(n),i%{w}]
  v1 = x[k,j]
  y[i,j] = dot(v0, v1 over k)
  s[0,i] = sum(v0 over k)
"""


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("width", [8, 16, 24, 32, 64])
def test_blocks_of_rows_that_begin_inside_of_a_run(width: int, heads: int, isa: str) -> None:
    """A task takes 48 rows of a product: four vectors of eight that begin at row 48 leave the head
    of 32 that they are in."""
    rows = heads * width
    f = native(WEIGHTS.format(r=rows, h=heads, w=width), isa)
    rng = np.random.default_rng(width)
    for batch, length in ((5, 45), (1, 17), (40, 3), (8, 72)):
        g = rng.standard_normal((batch, heads, length, width)).astype("f4")
        x = rng.standard_normal((batch * length, rows)).astype("f4")
        actual = f({"x": x, "g": g})
        flat = g.astype("f8").transpose(1, 3, 0, 2).reshape(rows, -1)
        # A sum of so many numbers, rounded to float32 once or twice for each.
        most = np.abs(flat).sum(1).max() * batch * length * 2.0**-23
        np.testing.assert_allclose(actual["s"][0], flat.sum(1), atol=most)
        np.testing.assert_allclose(actual["y"], flat @ x, atol=most * np.abs(x).max())


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("width", [4, 8, 16, 24, 32])
def test_heads_are_transposed_where_products_pack_them(width: int, isa: str) -> None:
    """Operands in runs are packed by tile transposes in registers.

    The runs cross the summed axis; lanes are read one by one if runs are shorter than a tile.
    """
    rows, batch, length = 4 * width, 3, 45
    source = WEIGHTS.format(r=rows, h=4, w=width).replace("b*n", "135").replace("size(n)", "45")
    f = native(source.replace("f32[b,", "f32[3,").replace(",n,", ",45,"), isa)
    (phase,) = program(f.kernel).phases
    s = schedule(phase, f.target)
    (left, _), *_ = (n.packs for n in s.nests if n.packs)
    assert bool(left.transposed) == (width % s.lanes == 0)
    rng = np.random.default_rng(width)
    g = rng.standard_normal((batch, 4, length, width)).astype("f4")
    x = rng.standard_normal((batch * length, rows)).astype("f4")
    flat = g.astype("f8").transpose(1, 3, 0, 2).reshape(rows, -1)
    most = np.abs(flat).sum(1).max() * batch * length * 2.0**-23 * np.abs(x).max()
    np.testing.assert_allclose(f({"x": x, "g": g})["y"], flat @ x, atol=most)


def test_what_a_position_is_a_multiple_of() -> None:
    n, i = size("n"), axis("i", 100)
    assert [multiple_of(e) for e in (0, 48, mul(32, i), add(mul(32, i), 48), n)] == [
        0,
        48,
        32,
        16,
        1,
    ]
    either = mul(64, n), mul(48, size("m"))
    assert multiple_of(minimum(*either)) == 16
    assert multiple_of(mul(6, maximum(*either))) == 96


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("width", [4, 8, 16, 24, 64])
@pytest.mark.parametrize("summed", [False, True])
def test_runs_within_runs_are_packed_by_vectors(summed: bool, width: int, isa: str) -> None:
    """Heads within thirds of a row, `(r//w)%h`: what changes with the head is one number for all
    lanes that lie in it, whether rows are summed or are the product's."""
    heads, batch, length = 3, 2, 90
    row, all_rows = 3 * heads * width, batch * length
    r, n = ("k", "i") if summed else ("i", "k")
    rows, depth = (all_rows, row) if summed else (row, all_rows)
    f = native(
        f"kernel unpacked(g: f32[3,{batch},{heads},{length},{width}], x: f32[{depth},40])"
        f" -> y: f32[{rows},40]\n"
        f"  axis i in {rows}, j in 40, k in {depth}\n  grid i, j\n"
        f"  v0 = g[{r}//{heads * width},{n}//{length},({r}//{width})%{heads},{n}%{length},"
        f"{r}%{width}]\n"
        f"  v1 = x[k,j]\n  y[i,j] = dot(v0, v1 over k)\n",
        isa,
    )
    (phase,) = program(f.kernel).phases
    s = schedule(phase, f.target)
    if not summed:
        (left, _), *_ = (n.packs for n in s.nests if n.packs)
        assert bool(left.transposed) == (width % s.lanes == 0)
    elif width % (2 * s.lanes) == 0:  # packed by two vectors at a time
        assert "gather" not in llvm_text(f.kernel, f.target)
    rng = np.random.default_rng(width)
    g = rng.standard_normal((3, batch, heads, length, width)).astype("f4")
    x = rng.standard_normal((depth, 40)).astype("f4")
    flat = g.astype("f8").transpose(1, 3, 0, 2, 4).reshape(all_rows, row)
    left_side = flat if summed else flat.T
    most = np.abs(flat).sum(1 if summed else 0).max() * depth * 2.0**-23 * np.abs(x).max()
    np.testing.assert_allclose(f({"x": x, "g": g})["y"], left_side @ x, atol=most)


def test_what_is_one_number_for_all_lanes_of_a_vector() -> None:
    k = axis("k", 1152)
    head = mod(floordiv(k, 64), 6)
    whole = add(mul(head, 8192), mod(k, 64))
    assert coefficient(lane_invariant(whole, "k", 16), "k") == 1
    assert coefficient(lane_invariant(whole, "k", 48), "k") is None
    assert coefficient(lane_invariant(mod(floordiv(add(k, 3), 64), 6), "k", 16), "k") is None
