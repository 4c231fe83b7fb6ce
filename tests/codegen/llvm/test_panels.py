"""Products whose right operand lies in panels already: read as it lies, for all sizes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.codegen.llvm.test_contractions import inner_loops
from tests.codegen.llvm.whole import runnable, whole

from smelt import driver
from smelt.codegen.build import panels
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.optimize import assembly
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.nests import schedule
from smelt.graph.text import parse
from smelt.kernel.panels import Panel, read_panels
from smelt.kernel.text_print import text as kernel_text
from smelt.kernel.verify import verify
from smelt.knobs import config
from smelt.target import Target
from smelt.types.dtype import bf16
from smelt.types.expr import evaluate

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


def test_tiles_ask_for_the_panel_that_follows():
    """A line for each summed position, beside one of the next rows; and keep sums in registers."""
    made = whole(source(250, 32), "avx512")
    text = assembly(emit(made.kernel, made.target).llvm, made.target, 2)
    loops = [x for x in inner_loops(text) if len(re.findall("fmadd", x)) == 16]
    assert [x.count("prefetch") for x in loops] == [2]
    assert not re.search(r"(?m)zmm\d+, -?\d*\(%rsp|-?\d*\(%rsp\), %zmm", loops[0])


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
    assert {panel for panel, _ in found} == {Panel("w", 0, 1, width), Panel("v", 1, 0, width)}
    assert [evaluate(rows, {"m": 99}) for _, rows in found] == [99, 99]
    ((panel, _),) = panels(made.kernel, made.target, frozenset({"v"}))
    assert panel == Panel("v", 1, 0, width)
    kernel = made.kernel
    for panel, _ in found:
        kernel = verify(read_panels(kernel, panel))
    assert [p.shape for p in kernel.inputs][1] == (-(-230 // width), 60, width)
    assert all(c.panels for c in contractions(kernel, made.target))


@pytest.mark.parametrize("isa", runnable())
def test_rows_that_the_code_takes_apart_count_once(isa):
    """Heads put together before a projection: rows are texts times places, both open."""
    made = whole(
        """graph f(x: f32[b,12,s,64], w: f32[768,768]) {
  p = permute(x) {perm=(0, 2, 1, 3)}
  r = reshape(p) {shape=(b*s, 768)}
  c = contract(r, w) {spec="m,k; n,k -> m,n"}
  return c
}""",
        isa,
    )
    ((panel, rows),) = panels(made.kernel, made.target, frozenset({"w"}))
    assert panel.param == "w"
    assert evaluate(rows, {"b": 3, "s": 40}) == 120


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
    with config(constants_extra=None):
        made = driver.compile(graph, hints={"m": 300, "n": 40})
    assert made.executable.prelude is not None
    assert len(made.executable.prelude.parts) == 1


SHORT = {
    "bf16": ("avx512bf16", 2),
    "i8": ("avx512vnni", 4),
    "u8": ("avx512vnni", 4),
    "i16": ("", 2),
}


def short_product(kind: str, deep: int, wide: int, turned: bool) -> str:
    """x @ w of short numbers, whose weights are constant."""
    shape = f"{wide},{deep}" if turned else f"{deep},{wide}"
    left = "i8" if kind == "u8" else kind
    casts = "" if kind == "bf16" else " a = cast(x) {dtype=i32}\n b = cast(w) {dtype=i32}\n"
    names = "x, w" if kind == "bf16" else "a, b"
    spec = "m,k; n,k -> m,n" if turned else "m,k; k,n -> m,n"
    return (f"graph f(x: {left}[m,{deep}], w: {kind}[{shape}] constant) {{\n{casts}"
            f' c = contract({names}) {{spec="{spec}"}}\n return c\n}}')  # fmt: skip


def drawn(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Integers of the whole range; of bfloat16 such that sums of products are exact."""
    if kind == "bf16":
        return RNG.integers(-4, 5, shape).astype(bf16.numpy)
    info = np.iinfo({"i8": "i1", "u8": "u1", "i16": "i2"}[kind])
    return RNG.integers(info.min, info.max + 1, shape).astype(info.dtype)


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("turned", [False, True])
def test_short_constants_are_packed_in_groups(kind, turned):
    """Every remainder of a group, a panel and a block, at every height of tile, exactly."""
    feature, group = SHORT[kind]
    host = Target.host()
    short = host.isa == "avx512" and (not feature or host.has(feature))
    if kind == "bf16":
        short = host.multiplies_bfloats or (host.has("amx-bf16") and host.has("amx-tile"))
    for deep, wide in ((57, 230), (58, 97), (59, 65), (60, 64), (1027, 65), (2051, 40)):
        with config(constants_extra=None):
            made = driver.compile(parse(short_product(kind, deep, wide, turned)), hints={"m": 40})
        if short:
            (part,) = made.executable.prelude.parts
            width = WIDTH["avx512"]
            shape = f"{-(-wide // width)},{-(-deep // group)},{width},{group}"
            assert f"{kind}[{shape}]" in kernel_text(made.kernels[0])
            assert part.packed and not part.computed
        w = drawn(kind, (wide, deep) if turned else (deep, wide))
        known = w.T if turned else w
        for rows in (1, 2, 3, 12, 13, 16, 17, 31, 300 if deep == 1027 else 40):
            x = drawn("i8" if kind == "u8" else kind, (rows, deep))
            (found,) = made.run([x, w], (rows,), None, made.held([x, w]))
            exact = np.float64 if kind == "bf16" else np.int64
            wanted = x.astype(exact) @ known.astype(exact)
            wanted = wanted.astype("f4").astype(x.dtype) if kind == "bf16" else wanted.astype("i4")
            assert np.array_equal(found, wanted), (deep, wide, rows)


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("heads", "each"), [(12, 64), (5, 48), (7, 96), (3, 160)])
def test_columns_that_become_heads(isa, turned, heads, each):
    """Two axes walk the columns of the weights: panels of the last one make the product ordinary,
    where each head has whole ones."""
    wide = heads * each
    shape, spec = (f"{wide},90", "n,k") if turned else (f"90,{wide}", "k,n")
    graph = parse(f"""graph f(x: f32[m,90], w: f32[{shape}] constant) {{
  c = contract(x, w) {{spec="m,k; {spec} -> m,n"}}
  r = reshape(c) {{shape=(m, {heads}, {each})}}
  y = permute(r) {{perm=(1, 0, 2)}}
  return y
}}""")
    target = Target.for_isa(isa)
    with config(constants_extra=None):
        made = driver.compile(graph, hints={"m": 200}, target=target)
    (kernel,) = made.kernels
    packed = len(kernel.inputs[1 if kernel.inputs[0].name == "x" else 0].shape) == 3
    columns = 2 * target.vector_bytes // 4
    assert packed == (each % columns == 0)
    for rows in (1, 7, 200):
        x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((rows, 90), (90, wide)))
        (found,) = made.run([x, np.ascontiguousarray(w.T) if turned else w], (rows,))
        expected = (x.astype(np.float64) @ w).reshape(rows, heads, each).transpose(1, 0, 2)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
