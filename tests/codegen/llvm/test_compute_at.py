"""Windows over products: shared positions are computed once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, products, random
from tests.codegen.llvm.native import native
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster

from smelt import lower
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.graph.text import parse
from smelt.kernel.interp import run
from smelt.kernel.text import parse as parse_kernel
from smelt.machine.target import Target
from smelt.types.expr import evaluate

FIRST = """graph f(x: {t}[b,c,h,w], k: {t}[o,c,{u},{u}]) {{
  v0 = pad(x) {{low=(0, 0, {p}, {p}), high=(0, 0, {p}, {p}), value=0}}
  v1 = window(v0) {{axis=2, extent={u}, step={s}}}
  v2 = window(v1) {{axis=3, extent={u}, step={s}}}
  v3 = contract(v2, k) {{spec="b,c,h,w,u,v; o,c,u,v -> b,o,h,w"}}
  v4 = tanh(v3)
  v5 = pad(v4) {{low=(0, 0, {q}, {q}), high=(0, 0, {q}, {q}), value=-3.0}}
  v6 = window(v5) {{axis=2, extent={i}, step={r}, dilation={d}}}
  v7 = window(v6) {{axis=3, extent={i}, step={r}, dilation={d}}}
  v8 = reduce.{f}(v7) {{axes=(4, 5)}}
  return v8
}}"""
"""A convolution, tanh, and a fold over windows of it."""
LAST = """graph f(x: {t}[b,h,w,c], k: {t}[{u},{u},c,o]) {{
  v0 = pad(x) {{low=(0, {p}, {p}, 0), high=(0, {p}, {p}, 0), value=0}}
  v1 = window(v0) {{axis=1, extent={u}, step={s}}}
  v2 = window(v1) {{axis=2, extent={u}, step={s}}}
  v3 = contract(v2, k) {{spec="b,h,w,c,u,v; u,v,c,o -> b,h,w,o"}}
  v5 = pad(v3) {{low=(0, {q}, {q}, 0), high=(0, {q}, {q}, 0), value=-3.0}}
  v6 = window(v5) {{axis=1, extent={i}, step={r}, dilation={d}}}
  v7 = window(v6) {{axis=2, extent={i}, step={r}, dilation={d}}}
  v8 = reduce.{f}(v7) {{axes=(4, 5)}}
  return v8
}}"""
"""The same with channels last."""
DEPTHWISE = """graph f(x: {t}[b,c,h,w], k: {t}[c,{u},{u}]) {{
  v0 = pad(x) {{low=(0, 0, {p}, {p}), high=(0, 0, {p}, {p}), value=0}}
  v1 = window(v0) {{axis=2, extent={u}, step={s}}}
  v2 = window(v1) {{axis=3, extent={u}, step={s}}}
  v3 = contract(v2, k) {{spec="b,c,h,w,u,v; c,u,v -> b,c,h,w"}}
  v6 = window(v3) {{axis=2, extent={i}, step={r}, dilation={d}}}
  v7 = window(v6) {{axis=3, extent={i}, step={r}, dilation={d}}}
  v8 = reduce.{f}(v7) {{axes=(4, 5)}}
  return v8
}}"""
LINE = """graph f(x: f32[b,c,w], k: f32[o,c,3]) {
  v1 = window(x) {axis=2, extent=3}
  v3 = contract(v1, k) {spec="b,c,w,u; o,c,u -> b,o,w"}
  v6 = window(v3) {axis=2, extent=3, step=2}
  v8 = reduce.max(v6) {axes=(3,)}
  return v8
}"""
SPACE = """graph f(x: f32[b,c,t,h,w], k: f32[o,c,2,2,2]) {
  v0 = window(x) {axis=2, extent=2}
  v1 = window(v0) {axis=3, extent=2}
  v2 = window(v1) {axis=4, extent=2}
  v3 = contract(v2, k) {spec="b,c,t,h,w,r,u,v; o,c,r,u,v -> b,o,t,h,w"}
  v5 = window(v3) {axis=2, extent=2, step=2}
  v6 = window(v5) {axis=3, extent=2, step=2}
  v7 = window(v6) {axis=4, extent=2, step=2}
  v8 = reduce.max(v7) {axes=(5, 6, 7)}
  return v8
}"""
CHAIN = """graph f(x: f32[b,c,h,w], k: f32[c,3,3], p: f32[o,c]) {
  v1 = window(x) {axis=2, extent=3}
  v2 = window(v1) {axis=3, extent=3}
  v3 = contract(v2, k) {spec="b,c,h,w,u,v; c,u,v -> b,c,h,w"}
  v4 = contract(v3, p) {spec="b,c,h,w; o,c -> b,o,h,w"}
  v6 = window(v4) {axis=2, extent=2, step=2}
  v7 = window(v6) {axis=3, extent=2, step=2}
  v8 = reduce.max(v7) {axes=(4, 5)}
  return v8
}"""
"""Depthwise, pointwise, pooling."""
AROUND = """graph f(x: f32[b,c,h,w], k: f32[o,c,1,1], r: f32[b,o,h,w]) {
  v1 = window(x) {axis=2, extent=1}
  v2 = window(v1) {axis=3, extent=1}
  v3 = contract(v2, k) {spec="b,c,h,w,u,v; o,c,u,v -> b,o,h,w"}
  v4 = add(v3, r)
  v6 = window(v4) {axis=2, extent=2, step=2}
  v7 = window(v6) {axis=3, extent=2, step=2}
  v8 = reduce.max(v7) {axes=(4, 5)}
  v9 = reduce.sum(v7) {axes=(4, 5)}
  v10 = sub(v8, v9)
  return v10
}"""
"""A residual before two poolings of one convolution."""
ROWS = """graph f(x: f32[n,m,c], k: f32[o,c]) {
  v3 = contract(x, k) {spec="n,m,c; o,c -> n,m,o"}
  v6 = window(v3) {axis=1, extent=3}
  v8 = reduce.max(v6) {axes=(3,)}
  return v8
}"""
"""No convolution: the greatest of three neighbouring rows of a product."""


def text(
    source: str = FIRST,
    p: int = 1,
    u: int = 3,
    s: int = 1,
    i: int = 2,
    r: int = 2,
    d: int = 1,
    q: int = 0,
    f: str = "max",
    t: str = "f32",
) -> str:
    return source.format(p=p, u=u, s=s, i=i, r=r, d=d, q=q, f=f, t=t)


@pytest.mark.parametrize(
    "source",
    [
        text(i=3, q=1),
        text(i=3, r=1),
        text(i=3, r=3),
        text(i=3, r=4),  # places are left out: each window computes its own
        text(i=3, d=2, r=1),
        text(s=2, i=3, q=1),
        text(f="sum", i=3, q=1),
        text(i=7, r=1, q=3),  # too many steps to unroll
    ],
)
def test_every_size_stays_inside_its_arrays(source: str) -> None:
    kernel = fuse(source)
    for x, (o, c) in (
        ((1, 2, 9, 10), (3, 2)),
        ((2, 3, 40, 70), (20, 3)),  # tiles of every height, several bands
        ((1, 1, 8, 1300), (2, 1)),  # several pieces of lines
    ):
        check(kernel, *random(x, (o, c, 3, 3)))


@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        (text(LAST), ((2, 9, 11, 3), (3, 3, 3, 20))),
        (text(LAST, i=3, q=1), ((1, 23, 40, 5), (3, 3, 5, 33))),
        (text(DEPTHWISE), ((1, 3, 20, 37), (3, 3, 3))),
        (text(DEPTHWISE, u=7, p=3, i=3), ((2, 2, 21, 40), (2, 7, 7))),
        (text(DEPTHWISE, u=5, p=2, i=3, f="sum"), ((1, 2, 17, 600), (2, 5, 5))),
        (LINE, ((2, 3, 700), (5, 3, 3))),
        (SPACE, ((1, 2, 5, 7, 19), (3, 2, 2, 2, 2))),
        (CHAIN, ((1, 5, 12, 30), (5, 3, 3), (7, 5))),
        (AROUND, ((2, 3, 8, 20), (5, 3, 1, 1), (2, 5, 8, 20))),
        (ROWS, ((3, 40, 17), (50, 17))),
    ],
)
def test_whatever_is_looked_at(source: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(fuse(source), *random(*shapes))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_instruction_set(isa: str) -> None:
    check(fuse(text(i=3, q=1), isa), *random((1, 3, 20, 45), (5, 3, 3, 3)))


def test_double_precision() -> None:
    check(fuse(text(t="f64")), *random((1, 2, 9, 40), (3, 2, 3, 3), dtype=np.float64))


def test_padding_hides_infinite_weights_only() -> None:
    x, k = random((1, 2, 12, 40), (3, 2, 3, 3))
    x[0, 0, 5, 7], x[0, 1, 0, 39], x[0, 1, 11, 0] = np.inf, np.nan, -np.inf
    kernel = fuse(text(i=3, q=1))
    (actual,) = kernel(x, k)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(kernel.expected(x, k)[0]))


def test_products_stay_products() -> None:
    assert products(text()) == [ConvPlan]
    assert products(text(i=7, r=1, q=3)) == [ConvPlan]
    assert products(text(LAST)) == [NhwcConvPlan]
    assert products(text(DEPTHWISE, u=7, p=3)) == [DepthwisePlan]
    assert products(text(DEPTHWISE)) == []  # unrolled


@pytest.mark.parametrize(("i", "r", "most"), [(2, 2, 1.0), (3, 2, 1.13), (3, 1, 1.13)])
def test_neighbouring_tasks_share_few_lines(i: int, r: int, most: float) -> None:
    kernel = lower.run(one_cluster(parse(text(i=i, r=r))), "eager", {})
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    sizes = dict(zip("bcohw", (1, 64, 64, 112, 112), strict=True))
    place, reach = next(iter(phase.window_positions.items()))
    lines = evaluate(nests.local[place], sizes)
    assert lines <= most * reach.step * evaluate(nests.block[reach.axis], sizes) + 1e-9


GROUPED = """kernel f(
    x: f32[3,{k}], u: f32[8,{k}], t: f32[3,{k},24], w: f32[8,{k}]
) -> y: f32[3,2,4,24]
  axis i in 3, j in 2, c in 4, l in 24, h in {k}, g in {k}
  grid i, j
  v0 = t[i,g,l]
  v1 = w[j*4 + c, g]
  v2 = dot(v0, v1 over g)
  v3 = x[i,h]
  v4 = u[j*4 + c, h]
  v5 = dot(v3, v4 over h)
  v6 = v2 + v5
  v7 = sum(v6 over c, l)
  v8 = v6 - v7
  y[i,j,c,l] = v8
"""
"""Two products that a fold reads by groups, of which one is looped over after all: its sums are
carried in two parts."""


APART = """kernel f(t: f32[9,{k}], a: f32[{n},{k}], b: f32[9,{g}]) -> y: f32[9,3]
  axis i in 9, j in 3, c in {k}, l in {g}
  grid i
  v0 = t[i,c]
  v1 = a[j*{g} + l, c]
  v2 = dot(v0, v1 over c)
  v3 = b[i,l]
  v4 = v2 * v3
  v5 = sum(v4 over l)
  y[i,j] = v5
"""
"""A product whose columns a fold reads in groups, side by side."""
AFTER = """kernel f(
    x: f32[1,{k},8,6], a: f32[{n},{k}], b: f32[{g},{n}]
) -> y0: f32[1,{n},4,3], y1: f32[1,{g},4,3]
  axis i in {n}, j in 4, h in 3, l in 2, u in 2, c in {k}, o in {g}
  grid j, h
  v0 = x[0, c, j*2 + l, h*2 + u]
  v1 = a[i,c]
  v2 = dot(v0, v1 over c)
  v3 = sum(v2 over l, u)
  y0[0,i,j,h] = v3
  v4 = b[o,i]
  v5 = dot(v3, v4 over i)
  y1[0,o,j,h] = v5
"""
"""A product of what windows peek at, along the axes that tasks take in blocks for them."""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("groups", [1, 5, 8, 40])
def test_side_by_side_groups_are_no_loops(groups: int, isa: str) -> None:
    source = APART.format(k=16, g=groups, n=3 * groups)
    agrees(source, isa)
    (phase,) = program(parse_kernel(source)).phases
    assert len(schedule(phase, Target.for_isa("avx512")).blocked) == 1


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("k", "n", "g"), [(16, 8, 8), (5, 3, 7), (40, 1, 2)])
def test_another_product_along_the_windows(k: int, n: int, g: int, isa: str) -> None:
    agrees(AFTER.format(k=k, n=n, g=g), isa)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("length", [1, 6, 40])
def test_windows_read_finished_sums(length: int, isa: str) -> None:
    agrees(GROUPED.format(k=length), isa)


def agrees(source: str, isa: str) -> None:
    """Native code agrees with the interpreter."""
    code = native(source, isa)
    rng = np.random.default_rng(len(source))
    shapes = {p.name: [int(str(n)) for n in p.shape] for p in code.kernel.inputs}
    arrays = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    wanted = run(code.kernel, list(arrays.values()))
    for one_by_one in (False, True):
        actual = code(arrays, one_by_one=one_by_one)
        for name, value in wanted.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "spec", ["a,b,k; k,c -> a,b,c", "a,b,k; c,k -> c,a,b", "a,b,k; k,c -> c,b,a"]
)
def test_products_that_are_stored_themselves_do_not_move(spec: str, axis: int) -> None:
    """Products that are results themselves stay.

    Two axes walk the rows of one array, like windows.
    """
    kernel = fuse(f"""graph f(x: f32[3,3,3], w: f32[3,3]) {{
      c = contract(x, w) {{spec="{spec}"}}
      s = reduce.sum(c) {{axes=({axis},)}}
      return c, s
    }}""")
    rng = np.random.default_rng(2)
    x, w = rng.integers(-3, 4, (3, 3, 3)), rng.integers(-3, 4, (3, 3))
    arrays = x.astype("f4"), w.astype("f4")
    for actual, wanted in zip(kernel(*arrays), kernel.expected(*arrays), strict=True):
        np.testing.assert_array_equal(actual, wanted)


OPERANDS = {
    "along windows": (0, "b = sub(x, t)"),
    "along lines": (1, "b = mul(x, t)"),
    "along what is summed": (2, "b = sub(x, t)"),
}


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize(
    ("shape", "read"), [((3, 3, 3), "neg(c)"), ((8, 4, 16), "neg(c)"), ((3, 3, 3), "add(c, c)")]
)
def test_operands_that_reduce_are_not_recomputed(
    shape: tuple[int, int, int], read: str, operand: str, axis: int
) -> None:
    """Operands with reductions are not windows.

    Neither are values that only other axes of a reduction have, nor values that are contiguous
    along a row.
    """
    b, m, k = shape
    over, line = OPERANDS[operand]
    kept = ", ".join("1" if a == over else str(n) for a, n in enumerate(shape))
    kernel = fuse(f"""graph f(x: f32[{b},{m},{k}], w: f32[{k},3]) {{
      s = reduce.sum(x) {{axes=({over},)}}
      t = reshape(s) {{shape=({kept})}}
      {line}
      c = contract(b, w) {{spec="b,m,k; k,n -> b,m,n"}}
      d = {read}
      e = reduce.max(d) {{axes=({axis},)}}
      return d, e
    }}""")
    rng = np.random.default_rng(2)
    arrays = [rng.integers(-3, 4, s).astype("f4") for s in (shape, (k, 3))]
    for actual, wanted in zip(kernel(*arrays), kernel.expected(*arrays), strict=True):
        np.testing.assert_array_equal(actual, wanted)
