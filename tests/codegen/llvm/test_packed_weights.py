"""Products whose right operand is packed beforehand and read in place, for all sizes."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.llvm import emulate
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import fuse, runnable
from tests.codegen.llvm.test_contractions import inner_loops
from tests.codegen.llvm.variants import forced

from smelt.codegen.build import assembly, build, code_variants, panels, select_variant
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.nests.product_plan import register_tile
from smelt.codegen.llvm.products.fused_gemm_packing import UNROLL
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.compiler import driver
from smelt.graph.text import parse
from smelt.kernel.packed_weights import Panel, read_panels
from smelt.kernel.text_print import text as kernel_text
from smelt.kernel.verify import verify
from smelt.knobs import config
from smelt.machine.blocks import K_BLOCKED, PREPACKED_RIGHT, TSMM, UNPACKED
from smelt.machine.target import Target
from smelt.runtime.code import load
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
    kernel = fuse(source(columns, width), isa)
    (c,) = contractions(kernel.kernel, kernel.target)
    assert c.prepacked and c.reads_right_in_place()
    count = -(-columns // width)
    b = RNG.standard_normal(columns).astype(np.float32)
    for rows in (*range(1, 27), 128, 131):
        for depth in (1, 2, 255, 256, 257, 515) if rows in (3, 17, 26) else (40,):
            x = RNG.standard_normal((rows, depth)).astype(np.float32)
            w = np.zeros((depth, count * width), np.float32)
            w[:, :columns] = RNG.standard_normal((depth, columns))
            packed = np.ascontiguousarray(w.reshape(depth, count, width).transpose(1, 0, 2))
            expected = np.maximum(x.astype(np.float64) @ w[:, :columns] + b, 0)
            (actual,) = kernel(x, packed, b)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


def test_tiles_prefetch_the_next_panel():
    """A line for each summed position, beside one of the next rows; and keep sums in registers."""
    kernel = fuse(source(250, 32), "avx512")
    text = assembly(emit(kernel.kernel, kernel.target).llvm, kernel.target, 2)
    loops = [x for x in inner_loops(text) if len(re.findall("fmadd", x)) == 24]
    assert [x.count("prefetch") for x in loops] == [2]
    assert not re.search(r"(?m)zmm\d+, -?\d*\(%rsp|-?\d*\(%rsp\), %zmm", loops[0])


@pytest.mark.parametrize("isa", runnable())
def test_many_rows_meet_panels_block_by_block(isa):
    kernel = fuse(source(250, WIDTH[isa]), isa)
    least = {"m": UNPACKED.mc + 1, "k": 7}
    assert select_variant(kernel.variants, least) == "k_blocked"
    assert select_variant(kernel.variants, {**least, "m": UNPACKED.mc}) == ""
    narrow = fuse(source(TSMM.columns, WIDTH[isa]), isa)
    assert "k_blocked" not in [c.variant for c in narrow.variants]
    assert "panels" not in [c.variant for c in kernel.variants]  # it would pack them again


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("columns", [129, 250, PREPACKED_RIGHT.nc + 40])
def test_blocks_of_panels_at_every_height_and_depth(isa, columns):
    """Whole numbers, whose sums are exact, at the end of what may be touched."""
    width = WIDTH[isa]
    kernel = forced(source(columns, width), isa, "k_blocked")
    count = -(-columns // width)
    rng = np.random.default_rng(2)
    b = rng.integers(-9, 9, columns).astype("f4")
    for rows, depth in (
        (1, 1),
        (7, 0),
        (12, K_BLOCKED.kc),
        (13, 2 * K_BLOCKED.kc + 1),
        (30, 5),
        (PREPACKED_RIGHT.mc + 1, K_BLOCKED.kc + 3),
        (2 * PREPACKED_RIGHT.mc + 17, 31),
    ):
        x = rng.integers(-9, 9, (rows, depth)).astype("f4")
        w = np.zeros((depth, count * width), "f4")
        w[:, :columns] = rng.integers(-9, 9, (depth, columns))
        packed = np.ascontiguousarray(w.reshape(depth, count, width).transpose(1, 0, 2))
        (actual,) = run_guarded(kernel, [x, packed, b], at_end=True)
        assert np.array_equal(actual, np.maximum(x @ w[:, :columns] + b, 0)), (rows, depth)


@pytest.mark.parametrize("isa", runnable())
def test_products_side_by_side_meet_blocks_of_panels(isa):
    """One of them computes its left operand, which is packed; the other one's lies in rows."""
    plain = fuse(
        """graph f(x: f32[m,260], z: f32[m,260], w: f32[230,260], v: f32[260,230]) {
  e = neg(z)
  c = contract(x, w) {spec="m,k; n,k -> m,n"}
  d = contract(e, v) {spec="m,k; k,n -> m,n"}
  y = mul(c, d)
  return y
}""",
        isa,
    )
    kernel, rng = plain.kernel, np.random.default_rng(6)
    for panel, _ in panels(kernel, plain.target, frozenset({"w", "v"})):
        kernel = verify(read_panels(kernel, panel))
    assert select_variant(code_variants(kernel, plain.target), {"m": 400}) == "k_blocked"
    built = build(kernel, plain.target, variant="k_blocked")
    loaded = load(built.code, [f.symbol for f in built.functions])
    packed_kernel = replace(plain, kernel=kernel, built=built, loaded=loaded, variants=())
    x, z = (rng.integers(-5, 5, (400, 260)).astype("f4") for _ in range(2))
    width = WIDTH[isa]
    count = -(-230 // width)
    w, v = (rng.integers(-5, 5, (260, count * width)).astype("f4") for _ in range(2))
    w[:, 230:], v[:, 230:] = 0, 0
    inputs = {"w": w, "v": v}
    packed = {
        n: np.ascontiguousarray(a.reshape(260, count, width).transpose(1, 0, 2))
        for n, a in inputs.items()
    }
    read = [{"x": x, "z": z, **packed}[p.name] for p in kernel.inputs]
    (actual,) = run_guarded(packed_kernel, read, at_end=True, sizes={"m": 400})
    assert np.array_equal(actual, ((x @ w) * (-z @ v))[:, :230])


@pytest.mark.parametrize("isa", runnable())
def test_blocks_of_panels_are_neither_packed_nor_waited_for(isa):
    """Blocks of packed weights need no scratch memory.

    Tiles hold their sums in registers and prefetch the next block's panels.
    """
    kernel = fuse(source(250, WIDTH[isa]), isa)
    text = assembly(emit(kernel.kernel, kernel.target, variant="k_blocked").llvm, kernel.target, 2)
    tile_size = register_tile(kernel.target, WIDTH[isa] // 2)
    products = UNROLL * tile_size.rows * tile_size.vectors
    multiply = "fmadd" if kernel.target.has("fma") else "mulps"
    (tile,) = [x for x in inner_loops(text) if len(re.findall(multiply, x)) == products]
    assert tile.count("prefetch") == 1
    if multiply == "fmadd":  # else a product waits for its sum in a register more
        assert not re.search(r"(?m)[xyz]mm\d+, -?\d*\(%rsp|-?\d*\(%rsp\), %[xyz]mm", tile)
    rows = {"m": 4000, "k": 500}
    least = PREPACKED_RIGHT.mc * PREPACKED_RIGHT.nc * 4
    assert evaluate(
        build(kernel.kernel, kernel.target, variant="k_blocked").functions[0].scratch, rows
    ) < (least + K_BLOCKED.kc * PREPACKED_RIGHT.nc * 4)


PLAIN = """graph f(x: f32[m,60], w: f32[230,60], v: f32[60,230]) {
  c = contract(x, w) {spec="m,k; n,k -> m,n"}
  d = contract(x, v) {spec="m,k; k,n -> m,n"}
  y = add(c, d)
  return y
}"""


@pytest.mark.parametrize("isa", runnable())
def test_what_products_would_pack(isa):
    single = fuse(PLAIN, isa)
    width = contractions(single.kernel, single.target)[0].tile.columns
    actual = panels(single.kernel, single.target, frozenset({"w", "v", "x"}))
    assert {panel for panel, _ in actual} == {Panel("w", 0, 1, width), Panel("v", 1, 0, width)}
    assert [evaluate(rows, {"m": 99}) for _, rows in actual] == [99, 99]
    ((panel, _),) = panels(single.kernel, single.target, frozenset({"v"}))
    assert panel == Panel("v", 1, 0, width)
    kernel = single.kernel
    for panel, _ in actual:
        kernel = verify(read_panels(kernel, panel))
    assert [p.shape for p in kernel.inputs][1] == (-(-230 // width), 60, width)
    assert all(c.prepacked for c in contractions(kernel, single.target))


@pytest.mark.parametrize("isa", runnable())
def test_rows_that_the_code_takes_apart_count_once(isa):
    """Heads put together before a projection: rows are texts times places, both open."""
    kernel = fuse(
        """graph f(x: f32[b,12,s,64], w: f32[768,768]) {
  p = permute(x) {perm=(0, 2, 1, 3)}
  r = reshape(p) {shape=(b*s, 768)}
  c = contract(r, w) {spec="m,k; n,k -> m,n"}
  return c
}""",
        isa,
    )
    ((panel, rows),) = panels(kernel.kernel, kernel.target, frozenset({"w"}))
    assert panel.param == "w"
    assert evaluate(rows, {"b": 3, "s": 40}) == 120


def test_small_skinny_and_dynamic_operands_are_not_packed():
    for shape, rows in (("30,60", "m"), ("180,380", "m"), ("n,60", "m"), ("230,60", "8")):
        inside = shape.split(",")[1]
        text = f"""graph f(x: f32[{rows},{inside}], w: f32[{shape}]) {{
  c = contract(x, w) {{spec="m,k; n,k -> m,n"}}
  return c
}}"""
        kernel = fuse(text, runnable()[0])
        assert panels(kernel.kernel, kernel.target, frozenset({"w"})) == ()


def test_a_constant_that_two_kernels_read_in_one_way_is_packed_once():
    graph = parse("""graph f(x: f32[m,60], z: f32[n,60], w: f32[230,60] constant) {
  a = contract(x, w) {spec="m,k; n,k -> m,n"}
  b = contract(z, w) {spec="m,k; n,k -> m,n"}
  return a, b
}""")
    with config(constants_extra=None):
        compiled_program = driver.compile(graph, hints={"m": 300, "n": 40})
    assert compiled_program.executable.prelude is not None
    assert len(compiled_program.executable.prelude.parts) == 1


SHORT = {
    "bf16": ("avx512bf16", 2),
    "i8": ("avx512vnni", 4),
    "u8": ("avx512vnni", 4),
    "i16": ("", 2),
}


def short_product(kind: str, deep: int, wide: int, transposed: bool) -> str:
    """x @ w of short numbers, whose weights are constant."""
    shape = f"{wide},{deep}" if transposed else f"{deep},{wide}"
    left = "i8" if kind == "u8" else kind
    casts = "" if kind == "bf16" else " a = cast(x) {dtype=i32}\n b = cast(w) {dtype=i32}\n"
    names = "x, w" if kind == "bf16" else "a, b"
    spec = "m,k; n,k -> m,n" if transposed else "m,k; k,n -> m,n"
    return (
        f"graph f(x: {left}[m,{deep}], w: {kind}[{shape}] constant) {{\n{casts}"
        f' c = contract({names}) {{spec="{spec}"}}\n return c\n}}'
    )


def drawn(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Integers of the whole range; of bfloat16 such that sums of products are exact."""
    if kind == "bf16":
        return RNG.integers(-4, 5, shape).astype(bf16.numpy)
    info = np.iinfo({"i8": "i1", "u8": "u1", "i16": "i2"}[kind])
    return RNG.integers(info.min, info.max + 1, shape).astype(info.dtype)


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("transposed", [False, True])
def test_short_constants_are_packed_in_groups(kind, transposed):
    """Every remainder of a group, a panel and a block, at every height of tile, exactly."""
    feature, group = SHORT[kind]
    host = Target.host()
    short = host.isa == "avx512" and (not feature or host.has(feature))
    if kind == "bf16":
        short = host.has_fast_bf16_dot or (host.has("amx-bf16") and host.has("amx-tile"))
    for deep, wide in ((57, 230), (58, 97), (59, 65), (60, 64), (1027, 65), (2051, 40)):
        with config(constants_extra=None):
            compiled_program = driver.compile(
                parse(short_product(kind, deep, wide, transposed)), hints={"m": 40}
            )
        if short:
            (part,) = compiled_program.executable.prelude.parts
            width = WIDTH["avx512"]
            shape = f"{-(-wide // width)},{-(-deep // group)},{width},{group}"
            assert f"{kind}[{shape}]" in kernel_text(compiled_program.kernels[0])
            assert part.packed and not part.computed
        w = drawn(kind, (wide, deep) if transposed else (deep, wide))
        weights = w.T if transposed else w
        for rows in (1, 2, 3, 12, 13, 16, 17, 31, 300 if deep == 1027 else 40):
            x = drawn("i8" if kind == "u8" else kind, (rows, deep))
            (actual,) = compiled_program.run(
                [x, w], (rows,), None, compiled_program.run_prelude([x, w])
            )
            exact = np.float64 if kind == "bf16" else np.int64
            wanted = x.astype(exact) @ weights.astype(exact)
            wanted = wanted.astype("f4").astype(x.dtype) if kind == "bf16" else wanted.astype("i4")
            assert np.array_equal(actual, wanted), (deep, wide, rows)


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("pair", ["u8 i8", "i8 i8", "u8 u8", "i16 i16"])
def test_a_single_row_reads_groups_in_panels(isa, pair):
    """Every remainder of a group, a panel and a block, exactly."""
    left, right = pair.split()
    target = Target.host() if Target.host().isa == isa else Target.for_isa(isa)
    for deep, wide in ((301, 1030), (600, 64), (1027, 65), (9002, 100)):
        head = f"graph f(x: {left}[{deep}], w: {right}[{deep},{wide}] constant) {{\n"
        casts = " a = cast(x) {dtype=i32}\n b = cast(w) {dtype=i32}\n"
        product = ' c = contract(a, b) {spec="k; k,n -> n"}\n return c\n}'
        foreign = emulate.programs() if emulate.is_foreign(target) else nullcontext()
        x, w = drawn(left, (deep,)), drawn(right, (deep, wide))
        with foreign, config(constants_extra=None):
            program_of = driver.compile(parse(head + casts + product), target=target)
            (actual,) = program_of.run([x, w], (), None, program_of.run_prelude([x, w]))
        stored = 2 if right == "i16" else 1
        for plan in (c for kernel in program_of.kernels for c in contractions(kernel, target)):
            grouped = plan.group is not None and plan.group.dtype.itemsize == stored
            assert plan.prepacked == grouped
        wanted = (x.astype(np.int64) @ w.astype(np.int64)).astype("i4")
        assert np.array_equal(actual, wanted), (deep, wide)


@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("heads", "each"), [(12, 64), (5, 48), (7, 96), (3, 160)])
def test_columns_that_become_heads(isa, transposed, heads, each):
    """Two axes walk the columns of the weights: panels of the last one make the product ordinary,
    where each head has whole ones."""
    wide = heads * each
    shape, spec = (f"{wide},90", "n,k") if transposed else (f"90,{wide}", "k,n")
    graph = parse(f"""graph f(x: f32[m,90], w: f32[{shape}] constant) {{
  c = contract(x, w) {{spec="m,k; {spec} -> m,n"}}
  r = reshape(c) {{shape=(m, {heads}, {each})}}
  y = permute(r) {{perm=(1, 0, 2)}}
  return y
}}""")
    target = Target.for_isa(isa)
    with config(constants_extra=None):
        compiled_program = driver.compile(graph, hints={"m": 200}, target=target)
    (kernel,) = compiled_program.kernels
    packed = len(kernel.inputs[1 if kernel.inputs[0].name == "x" else 0].shape) == 3
    columns = 2 * target.vector_bytes // 4
    assert packed == (each % columns == 0)
    for rows in (1, 7, 200):
        x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((rows, 90), (90, wide)))
        (actual,) = compiled_program.run(
            [x, np.ascontiguousarray(w.T) if transposed else w], (rows,)
        )
        expected = (x.astype(np.float64) @ w).reshape(rows, heads, each).transpose(1, 0, 2)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
