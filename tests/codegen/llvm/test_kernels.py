"""Complete kernels of many kinds: non-temporal stores, single tasks, foreign processors.

Each of `FAMILY` is run with its normal stores and with stores past the caches, with its tasks in
any order and grouping, and compiled for every instruction set that there is.
"""

from __future__ import annotations

import ctypes
import json
import platform
import re
from typing import Any, Literal

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse, one_cluster

from smelt import lower
from smelt.codegen.build import CompiledKernel, asm_text, assembly, build, llvm_text
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.graph.text import parse
from smelt.machine.target import Target
from smelt.runtime.code import load
from smelt.runtime.jit import compile_ir

Array = np.ndarray[Any, Any]

FAMILY = {
    "map": "graph f(x: f32[m,n], y: f32[m,n]) {\n a = exp(x)\n b = mul(a, y)\n return b\n}",
    "narrow": "graph f(x: i8[m,n], y: i8[m,n]) {\n a = add(x, y)\n return a\n}",
    "two results": "graph f(x: f32[m,n], y: f32[m,n]) {\n a = sin(x)\n b = add(a, y)\n"
    " c = lt(a, y)\n return a, b, c\n}",
    "halves": "graph f(x: bf16[m,n], y: f16[m,n]) {\n a = cast(x) {dtype=f16}\n b = mul(a, y)\n"
    " return b\n}",
    "mixed": "graph f(x: f64[m,n], y: f32[m,n]) {\n a = cast(y) {dtype=f64}\n b = mul(a, x)\n"
    " c = cast(b) {dtype=i8}\n return c\n}",
    "rows": "graph f(x: f32[m,n], y: f32[m,n]) {\n s = reduce.sum(x) {axes=(1,)}\n"
    " t = reshape(s) {shape=(m,1)}\n a = mul(y, t)\n return a\n}",
    "softmax": "graph f(x: f32[m,n], y: f32[m,n]) {\n h = reduce.max(x) {axes=(1,)}\n"
    " i = reshape(h) {shape=(m,1)}\n t = sub(x, i)\n e = exp(t)\n"
    " l = reduce.sum(e) {axes=(1,)}\n j = reshape(l) {shape=(m,1)}\n z = div(e, j)\n"
    " w = add(z, y)\n return w\n}",
    "columns": "graph f(x: f32[m,n], y: f32[m,n]) {\n a = mul(x, y)\n"
    " s = reduce.sum(a) {axes=(0,)}\n b = sub(x, s)\n return b, s\n}",
    "transposed": "graph f(x: f32[m,n], y: f32[m,n]) {\n a = permute(x) {perm=(1,0)}\n"
    " b = permute(y) {perm=(1,0)}\n c = add(a, b)\n return c\n}",
    "one turned": "graph f(x: f32[m,n]) {\n a = permute(x) {perm=(1,0)}\n"
    " b = mul(a, 2.0:f32)\n c = square(b)\n return b, c\n}",
    "row and column": "graph f(x: f32[m,n], y: f32[m,n]) {\n s = reduce.sum(x) {axes=(1,)}\n"
    " t = reshape(s) {shape=(m,1)}\n u = reduce.max(y) {axes=(0,)}\n"
    " a = mul(t, u)\n return a\n}",
    "running": "graph f(x: f32[m,n], y: f32[m,n]) {\n a = scan.sum(x) {axis=0}\n b = mul(a, y)\n"
    " return b\n}",
    "product": "graph f(x: f32[m,n], y: f32[m,n]) {\n"
    ' a = contract(x, y) {spec="m,k; n,k -> m,n"}\n b = tanh(a)\n return b\n}',
    "padded": "graph f(x: f32[m,n], y: f32[m,n]) {\n"
    " a = pad(x) {low=(1,2), high=(2,1), value=3.0}\n"
    " b = pad(y) {low=(2,1), high=(1,2), value=nan}\n c = min(a, b)\n return c\n}",
    "everything": "graph f(x: f32[m,n], y: f32[m,n]) {\n a = mul(x, y)\n"
    " s = reduce.sum(a) {axes=(0,1)}\n return s\n}",
}
SIZES = ((1, 1), (3, 17), (16, 64), (33, 129), (65, 300), (2, 5000))


def arrays_for(kernel: SingleKernel, m: int, n: int) -> list[Array]:
    rng = np.random.default_rng(m * 1000 + n)
    return [
        (rng.standard_normal((m, n)) * 3).astype(node.type.dtype.numpy)
        for node in kernel.graph.inputs
    ]


def is_same(first: list[Array], second: list[Array]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", FAMILY)
def test_memory_tasks_and_streams(name: str, isa: str) -> None:
    """Between forbidden pages, task by task, stored past the caches: always the same bits."""
    kernel, past = (
        fuse(FAMILY[name], isa),
        fuse(FAMILY[name], isa, streaming=True),
    )
    for m, n in SIZES:
        arrays = arrays_for(kernel, m, n)
        actual = kernel(*arrays)
        for wanted, got in zip(kernel.expected(*arrays), actual, strict=True):
            with np.errstate(all="ignore"):
                a, b = wanted.astype("f8"), got.astype("f8")
            near = 1e-2 if name in ("halves", "mixed") else 2e-5
            assert np.allclose(b, a, rtol=near, atol=near * 20, equal_nan=True), (m, n)
        for at_end in (True, False):
            assert is_same(run_guarded(kernel, arrays, at_end=at_end, one_by_one=at_end), actual)
            assert is_same(run_guarded(past, arrays, at_end=at_end), actual), (m, n)
        assert is_same(past(*arrays), actual)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", ["map", "narrow", "two results", "rows", "one turned"])
def test_streams_start_anywhere(name: str, isa: str) -> None:
    """Results may begin within cache lines, each elsewhere, and nothing beside them is written."""
    kernel, past = fuse(FAMILY[name], isa), fuse(FAMILY[name], isa, streaming=True)
    arrays = arrays_for(kernel, 16, 640)
    wanted = kernel(*arrays)
    starts = [(skip, apart) for skip in (0, 1, 2, 13, 16, 63, 64) for apart in (0, 4, 8, 1)]
    for skip, apart in starts:
        raw = [np.full(w.nbytes + 2048, 85, np.uint8) for w in wanted]
        out: list[Array] = []
        for k, (memory, w) in enumerate(zip(raw, wanted, strict=True)):
            start = 64 + -memory.ctypes.data % 64 + (skip + k * apart) * w.itemsize
            out.append(memory[start : start + w.nbytes].view(w.dtype).reshape(w.shape))
        past(*arrays, out=out)
        assert is_same(out, wanted), (skip, apart)
        for memory, result in zip(raw, out, strict=True):
            result[...] = 0
            assert int((memory != 85).sum()) <= result.nbytes, (skip, apart)


IN_PERIODS = {
    "again": "graph f(x: f32[32], z: f32[8192]) {\n a = reshape(x) {shape=(32,1)}\n"
    " b = reshape(z) {shape=(32,256)}\n c = mul(b, a)\n d = reshape(c) {shape=(8192,)}\n"
    " return d\n}",
    "in turn": "graph f(x: f32[64], z: f32[8192]) {\n b = reshape(z) {shape=(128,64)}\n"
    " c = mul(b, x)\n d = reshape(c) {shape=(8192,)}\n return d\n}",
    "places": "graph f(z: f32[8192]) {\n b = reshape(z) {shape=(2048,4)}\n"
    " i = iota() {shape=(4,), axis=0, dtype=f32}\n c = add(b, i)\n"
    " d = reshape(c) {shape=(8192,)}\n return d\n}",
    "running": "graph f(z: f64[8192]) {\n a = scan.prod(z) {axis=0}\n return a\n}",
}


@pytest.mark.parametrize("name", IN_PERIODS)
def test_streams_that_start_anywhere_know_no_multiples(name: str) -> None:
    """Loops that begin at the next row assume no multiples.

    Their vectors cross periods of a quotient or a remainder, which other loops never do; no
    rounding depends on where they begin.
    """
    kernel, past = fuse(IN_PERIODS[name]), fuse(IN_PERIODS[name], streaming=True)
    types = [node.type for node in kernel.graph.inputs]
    arrays = [
        (1 + np.random.default_rng(0).random(t.shape) / 9).astype(t.dtype.numpy) for t in types
    ]
    wanted = kernel(*arrays)
    for skip in (1, 4, 63):
        raw = np.zeros(8192 + 128, wanted[0].dtype)
        start = (-raw.ctypes.data % 64) // raw.itemsize + skip
        past(*arrays, out=[raw[start : start + 8192]])
        assert is_same([raw[start : start + 8192]], wanted), skip


def test_what_is_stored_past_the_caches() -> None:
    """Maps with whole lines are; on every instruction set it is ordered before the task's end."""
    for isa, mnemonic in (("avx512", "vmovntps"), ("avx2", "vmovntps"), ("portable", "movntps")):
        target = Target.for_isa(isa)  # type: ignore[arg-type]
        light = "graph f(x: f32[m,n]) {\n y = add(x, 1.0:f32)\n return y\n}"
        kernel = lower.run(one_cluster(parse(light)), "eager", {})
        normal, past = (
            assembly(emit(kernel, target, streaming=s).llvm, target) for s in (False, True)
        )
        for word in (mnemonic, "sfence"):
            assert word not in normal
            assert word in past
        assert past.rindex("sfence") > past.rindex(mnemonic)


def test_only_whole_cache_lines_are_stored_past_the_caches() -> None:
    """Vectors of a loop's rest are parts of a line where results have fewer bits than operands."""
    narrow = "graph f(x: f32[n]) {\n y = cast(x) {dtype=bf16}\n return y\n}"
    kernel = lower.run(one_cluster(parse(narrow)), "eager", {"n": 1 << 20})
    code = emit(kernel, Target.for_isa("avx512"), streaming=True).llvm
    matches = re.findall(r"store <(\d+) x i16>.* align (\d+), !nontemporal", code)
    assert {(int(n) * 2, int(align)) for n, align in matches} == {(128, 64)}


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_results_at_different_distances_from_lines_are_stored_in_pieces(
    isa: Literal["avx512", "avx2"],
) -> None:
    """Several results have a version whose stores need malloc's alignment only; one needs none."""

    def alignments(graph: str) -> set[int]:
        kernel = lower.run(one_cluster(parse(graph)), "eager", {})
        code = emit(kernel, Target.for_isa(isa), streaming=True).llvm
        return {int(n) for n in re.findall(r"store <.* align (\d+), !nontemporal", code)}

    one = "graph f(x: f32[n]) {\n y = add(x, 1.0:f32)\n return y\n}"
    two = "graph f(x: f32[n]) {\n y = add(x, 1.0:f32)\n z = mul(x, x)\n return y, z\n}"
    long = "graph f(x: f32[n]) {\n y = erf(x)\n z = sin(y)\n w = tanh(z)\n return w\n}"
    assert alignments(one) == {64}
    assert alignments(two) == {16, 64}
    assert 16 in alignments(long), "longer than memory takes: the same version serves all results"


NARROWED = {
    "bf16": ("f32", "y = cast(x) {{dtype=bf16}}"),
    "f16": ("f32", "y = cast(x) {{dtype=f16}}"),
    "i8": ("i32", "y = cast(x) {{dtype=i8}}"),
    "i16": ("i64", "y = cast(x) {{dtype=i16}}"),
    "i32": ("i64", "y = cast(x) {{dtype=i32}}"),
    "bool": ("f32", "y = gt(x, 0.0:f32)"),
    "f32": ("f64", "y = cast(x) {{dtype=f32}}"),
}


@pytest.mark.parametrize("dtype", NARROWED)
def test_the_last_element_of_a_row_is_no_wider_than_it_is(dtype: str) -> None:
    """The last narrow element of a row overwrites nothing.

    With constant extents LLVM sees the masks; for one remaining narrow lane it wrote a whole wide
    one.
    """
    source, line = NARROWED[dtype]
    for count in (9, 17, 33, 65):
        for tail in ("return y", "s = reduce.max(x) {{axes=(1,)}}\n return y, s"):
            code = f"graph f(x: {source}[n,{count}]) {{{{\n {line}\n {tail}\n}}}}".format()
            for isa in RUNNABLE:
                kernel = fuse(code, isa)
                x = (np.arange(3 * count).reshape(3, count) % 50 - 20).astype(
                    kernel.graph.inputs[0].type.dtype.numpy
                )
                (wanted, *_) = kernel.expected(x)
                for at_end in (True, False):
                    actual = run_guarded(kernel, [x], at_end=at_end, one_by_one=True)
                    assert np.array_equal(actual[0].astype("f8"), wanted.astype("f8")), (isa, count)


# ---- tasks ---------------------------------------------------------------------------------------


def test_any_split_of_the_tasks_gives_the_same_bits() -> None:
    """Chunks begin anywhere: the numbers of the first task are decoded, the others counted on."""
    kernel = fuse(
        "graph f(x: f32[a,b,c]) {\n y = reduce.sum(x) {axes=(2,)}\n z = exp(x)\n return y, z\n}"
    )
    x = np.random.default_rng(0).standard_normal((3, 5, 70)).astype("f4")
    actual = kernel(x)
    inside = run_guarded(kernel, [x], at_end=True, one_by_one=True)
    assert is_same(actual, inside)
    assert np.allclose(actual[0], x.sum(2), atol=1e-5)


# ---- foreign processors --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILY)
def test_compiles_for_a_foreign_processor(name: str) -> None:
    kernel = lower.run(one_cluster(parse(FAMILY[name])), "eager", {})
    target = Target.for_isa("neon")
    code = build(kernel, target)
    assert code.code[:4] == b"\x7fELF"
    assert code.code[18] == 0xB7  # the machine is AArch64
    text = asm_text(kernel, target)
    assert not re.findall(r"^\s*bl\s+fmaf?$", text, flags=re.MULTILINE)


# ---- facts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILY)
def test_facts_are_plain_data(name: str) -> None:
    """What the cache stores is JSON and reads back as it was."""
    for hints in ({}, {"m": 1 << 20}):
        built = fuse(FAMILY[name], **hints).built
        again = CompiledKernel.from_data(json.loads(json.dumps(built.to_data())), built.code)
        assert again == built


def test_compilation_repeats_exactly() -> None:
    for name, code in FAMILY.items():
        kernel = lower.run(one_cluster(parse(code)), "eager", {})
        again = lower.run(one_cluster(parse(code)), "eager", {})
        target = Target.for_isa("avx512")
        assert llvm_text(kernel, target) == llvm_text(again, target), name
        assert build(kernel, target) == build(again, target), name


def test_neighbouring_axes_are_walked_as_one() -> None:
    """Four dimensions that all arrays walk in one run are one loop; a broadcast one stays apart."""

    def axes(code: str) -> int:
        kernel = lower.run(one_cluster(parse(code)), "eager", {})
        (phase,) = program(kernel).phases
        return len(phase.axes)

    assert axes("graph f(x: f32[a,b,c,d]) {\n y = exp(x)\n return y\n}") == 1
    assert axes("graph f(x: f32[a,b,c,d], r: f32[d]) {\n y = add(x, r)\n return y\n}") == 2
    assert axes("graph f(x: f32[a,b,c,d]) {\n y = reduce.sum(x) {axes=(2,3)}\n return y\n}") == 2
    assert axes("graph f(x: f32[a,b,c,d]) {\n y = reduce.sum(x) {axes=(1,3)}\n return y\n}") == 4
    assert axes("graph f(x: f32[a,1,c,1]) {\n y = exp(x)\n return y\n}") == 1
    assert axes("graph f(x: f32[a,b] strides(?,?)) {\n y = exp(x)\n return y\n}") == 2
    assert axes("graph f(x: f32[a,b]) {\n y = permute(x) {perm=(1,0)}\n return y\n}") == 2


def test_one_pass_serves_the_reductions_of_one_level() -> None:
    """A softmax over cached rows takes three passes, with its maximum in the first."""
    kernel = lower.run(one_cluster(parse(FAMILY["softmax"])), "eager", {})
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa("avx512")).nests
    assert [(len(n.reductions), len(n.stores)) for n in nests] == [(1, 0), (1, 0), (0, 1)]
    two = "graph f(x: f32[m,n]) {\n a = reduce.sum(x) {axes=(1,)}\n b = reduce.max(x) {axes=(1,)}\n"
    kernel = lower.run(one_cluster(parse(two + " return a, b\n}")), "eager", {})
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa("avx512")).nests
    assert [len(n.reductions) for n in nests if n.reductions] == [2]


# ---- the environment -----------------------------------------------------------------------------

_CONTROL = """
declare void @llvm.x86.sse.stmxcsr(ptr)
define i32 @mxcsr() {
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %value = load i32, ptr %place
  ret i32 %value
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is x86's")
def test_the_floating_point_environment_survives() -> None:
    """Rounding, flushing, masks (R10): unchanged by compilation and runs."""
    control = load(compile_ir(_CONTROL), ["mxcsr"])
    read = ctypes.CFUNCTYPE(ctypes.c_uint32)(control.address("mxcsr"))
    before = read() & ~0x3F
    for code in FAMILY.values():
        kernel = fuse(code)
        kernel(*arrays_for(kernel, 33, 129))
    assert read() & ~0x3F == before


def test_subnormals_travel() -> None:
    """No kernel flushes subnormals: not in maps, sums, products or transposed tiles."""
    tiny = np.float32(1e-40)
    x = np.full((40, 70), tiny)
    for name in ("rows", "transposed", "columns", "product", "padded", "everything"):
        kernel = fuse(FAMILY[name])
        y = np.ones((40, 70), "f4")
        for wanted, got in zip(kernel.expected(x, y), kernel(x, y), strict=True):
            assert np.allclose(
                got.astype("f8"), wanted.astype("f8"), rtol=1e-5, atol=1e-45, equal_nan=True
            ), name


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_neighbours_of_half_precision_numbers(dtype: str) -> None:
    """Of every number, in every direction, although kernels hold them as float32."""
    kernel = fuse(f"graph f(x: {dtype}[n], y: {dtype}[n]) {{\n z = nextafter(x, y)\n return z\n}}")
    kind = kernel.graph.inputs[0].type.dtype.numpy
    x = np.arange(1 << 16, dtype=np.uint16).view(kind)
    for towards in (np.inf, -np.inf, 0.0, -0.0, 1.0, np.nan):
        y = np.full_like(x, towards)
        actual, wanted = kernel(x, y)[0], kernel.expected(x, y)[0]
        same = actual.view(np.uint16) == wanted.view(np.uint16)
        assert (same | (np.isnan(actual) & np.isnan(wanted))).all(), towards
