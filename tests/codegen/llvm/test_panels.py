"""Products whose right operand lies in panels already: read as it lies, for all sizes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.whole import runnable, whole

from smelt import driver
from smelt.codegen.build import panels
from smelt.codegen.llvm.nests import schedule
from smelt.codegen.llvm.program import program
from smelt.graph.text import parse
from smelt.kernel.panels import Panel, read_panels
from smelt.kernel.verify import verify

RNG = np.random.default_rng(1)
WIDTH = {"avx512": 32, "avx2": 16, "portable": 8}


def source(columns: int, width: int) -> str:
    count = -(-columns // width)
    return f"""graph f(x: f32[m,k], p: f32[{count},k,{width}], b: f32[{columns}]) {{
  t = permute(p) {{perm=(1, 0, 2)}}
  r = reshape(t) {{shape=(k, {count * width})}}
  w = slice(r) {{starts=(0, 0), sizes=(k, {columns}), steps=(1, 1)}}
  c = contract(x, w) {{spec="m,k; k,n -> m,n"}}
  d = add(c, b)
  y = max(d, 0.0:f32)
  return y
}}"""


def contractions(kernel, target):
    return [c for p in program(kernel).phases for c in schedule(p, target).blocked]


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("columns", [33, 64, 250])
def test_every_height_and_depth(isa, columns):
    width = max(WIDTH[isa], 32)
    made = whole(source(columns, width), isa)
    (c,) = contractions(made.kernel, made.target)
    assert c.panels and c.reads_right()
    count = -(-columns // width)
    b = RNG.standard_normal(columns).astype(np.float32)
    for rows in (*range(1, 27), 128, 131):
        for depth in (1, 2, 255, 256, 257, 515) if rows in (3, 17, 26) else (40,):
            x = RNG.standard_normal((rows, depth)).astype(np.float32)
            w = np.zeros((depth, count * width), np.float32)
            w[:, :columns] = RNG.standard_normal((depth, columns))
            packed = np.ascontiguousarray(w.reshape(depth, count, width).transpose(1, 0, 2))
            expected = np.maximum(x.astype(np.float64) @ w[:, :columns] + b, 0)
            (found,) = made(x, packed, b)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


PLAIN = """graph f(x: f32[m,60], w: f32[230,60], v: f32[60,230]) {
  c = contract(x, w) {spec="m,k; n,k -> m,n"}
  d = contract(x, v) {spec="m,k; k,n -> m,n"}
  y = add(c, d)
  return y
}"""


@pytest.mark.parametrize("isa", runnable())
def test_what_products_would_pack(isa):
    made = whole(PLAIN, isa)
    width = contractions(made.kernel, made.target)[0].tile.columns
    found = panels(made.kernel, made.target, frozenset({"w", "v", "x"}))
    assert set(found) == {Panel("w", 0, 1, width), Panel("v", 1, 0, width)}
    assert panels(made.kernel, made.target, frozenset({"v"})) == (Panel("v", 1, 0, width),)
    kernel = made.kernel
    for panel in found:
        kernel = verify(read_panels(kernel, panel))
    assert [p.shape for p in kernel.inputs][1] == (-(-230 // width), 60, width)
    assert all(c.panels for c in contractions(kernel, made.target))


def test_small_thin_and_open_operands_are_left_as_they_are():
    for shape, rows in (("30,60", "m"), ("180,380", "m"), ("n,60", "m"), ("230,60", "8")):
        inside = shape.split(",")[1]
        text = f"""graph f(x: f32[{rows},{inside}], w: f32[{shape}]) {{
  c = contract(x, w) {{spec="m,k; n,k -> m,n"}}
  return c
}}"""
        made = whole(text, runnable()[0])
        assert panels(made.kernel, made.target, frozenset({"w"})) == ()


def test_a_constant_that_two_kernels_read_in_one_way_is_packed_once():
    graph = parse("""graph f(x: f32[m,60], z: f32[n,60], w: f32[230,60] constant) {
  a = contract(x, w) {spec="m,k; n,k -> m,n"}
  b = contract(z, w) {spec="m,k; n,k -> m,n"}
  return a, b
}""")
    made = driver.compile(graph, hints={"m": 300, "n": 40})
    assert made.executable.prelude is not None
    assert len(made.executable.prelude.parts) == 1
