"""Products by dot-product instructions: every size, every layout, extremes, error bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops

from smelt import lower
from smelt.codegen.build import asm_text
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.graph.text import parse
from smelt.kernel.text_print import text as kernel_text
from smelt.machine.target import Target
from smelt.types.dtype import bf16

Array = np.ndarray[Any, Any]
PLAIN = "m,k; k,n -> m,n"
LAYOUTS = (PLAIN, "m,k; n,k -> m,n", "k,m; k,n -> m,n", "k,m; n,k -> m,n")
MORE = tuple(f for f in ("avx512bf16", "avx512vnni") if Target.host().has(f))
KINDS = {"bf16": bf16.numpy, "i8": np.dtype("i1"), "u8": np.dtype("u1"), "i16": np.dtype("i2")}
PAIRS = ("bf16 bf16", "i8 i8", "u8 i8", "i8 u8", "u8 u8", "i16 i8", "i16 i16")


def source(pair: str, spec: str = PLAIN) -> str:
    first, second = pair.split()
    left, right = spec.partition("->")[0].split(";")
    casts = "" if first == "bf16" else " a = cast(x) {dtype=i32}\n b = cast(y) {dtype=i32}\n"
    names = "x, y" if first == "bf16" else "a, b"
    return (
        f"graph f(x: {first}[{left.strip()}], y: {second}[{right.strip()}]) {{\n{casts}"
        f' s = contract({names}) {{spec="{spec}"}}\n return s\n}}'
    )


def grouped(kernel: SingleKernel) -> bool:
    """Whether all contractions of a kernel pack their factors in groups."""
    results = [schedule(p, kernel.target).blocked for p in program(kernel.kernel).phases]
    return all(c.group is not None for blocked in results for c in blocked)


def product_kernel(pair: str, spec: str = PLAIN, isa: str = RUNNABLE[0]) -> SingleKernel:
    more = MORE if isa == "avx512" else ()
    kernel = fuse(source(pair, spec), isa, usual=True, features=more)
    has_dot = {"bf16 bf16": kernel.target.has_fast_bf16_dot, "i16 i16": kernel.target.has_word_dot}
    short = has_dot.get(pair, True)
    assert grouped(kernel) == short
    return kernel


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    """Integers of the whole range; of bfloat16 such that sums of products are exact."""
    rng, dtype = np.random.default_rng(seed), KINDS[kind]
    if kind == "bf16":
        return rng.integers(-4, 5, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def wanted(x: Array, y: Array) -> Array:
    if x.dtype == bf16.numpy:
        return (x.astype("f8") @ y.astype("f8")).astype(np.float32).astype(bf16.numpy)
    return (x.astype("i8") @ y.astype("i8")).astype("i4")


@pytest.mark.parametrize("pair", ["bf16 bf16", "i8 i8", "u8 i8", "u8 u8", "i16 i16"])
@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_size_up_to_two_tiles(pair: str, isa: str) -> None:
    kernel = product_kernel(pair, isa=isa)
    rows, columns = {"avx512": (12, 32), "avx2": (6, 16), "portable": (6, 8), "neon": (12, 8)}[isa]
    first, second = pair.split()
    for k in (0, 1, 2, 3, 4, 5, 17) if isa == RUNNABLE[0] else (1, 6, 7):
        x, y = drawn(first, (2 * rows + 1, k), k), drawn(second, (k, 2 * columns + 1), k + 1)
        right = wanted(x, y)
        step = 1 if k in (5, 7) else 7
        for m, n in product(
            range(1, 2 * rows + 2, 1 if step == 1 else 3), range(1, 2 * columns + 2, step)
        ):
            (actual,) = kernel(x[:m], np.ascontiguousarray(y[:, :n]))
            assert np.array_equal(actual, right[:m, :n]), (m, n, k)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("spec", LAYOUTS)
def test_layouts_and_blocks_between_forbidden_pages(pair: str, spec: str) -> None:
    """Operands that are walked along or across, several blocks, nothing read beyond the end."""
    first, second = pair.split()
    for isa in RUNNABLE[:2]:
        kernel = product_kernel(pair, spec, isa)
        for m, n, k in ((1, 1, 1), (13, 33, 17), (40, 300, 70), (17, 65, 1029)):
            x, y = drawn(first, (m, k), m), drawn(second, (k, n), n)
            right = wanted(x, y)
            x = np.ascontiguousarray(x.T) if spec.startswith("k,m") else x
            y = np.ascontiguousarray(y.T) if "n,k" in spec else y
            for at_end in (False, True):
                (actual,) = run_guarded(kernel, [x, y], at_end=at_end)
                assert np.array_equal(actual, right), (isa, m, n, k)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("pair", [p for p in PAIRS if "bf16" not in p])
def test_extremes_are_exact(pair: str, isa: str) -> None:
    """No step saturates; sums that leave int32 wrap."""
    kernel = product_kernel(pair, isa=isa)
    first, second = (np.iinfo(KINDS[p]) for p in pair.split())
    for a, b in product((first.min, first.max), (second.min, second.max)):
        x, y = np.full((14, 1027), a, first.dtype), np.full((1027, 37), b, second.dtype)
        assert np.array_equal(kernel(x, y)[0], wanted(x, y)), (a, b)


def test_computed_operands_go_in_groups_where_their_range_is_known() -> None:
    """Computed operands of known range use dot-product instructions.

    A zero point leaves 16 bits, a comparison one; a product of two bytes is short as well.
    """
    head = "graph f(x: i8[m,k], y: u8[k,n], z: i8[]) {\n a = cast(x) {dtype=i32}\n"
    tail = ' b = cast(y) {dtype=i32}\n s = contract(c, b) {spec="m,k; k,n -> m,n"}\n return s\n}'
    steps = {
        "zero point": (" c = sub(a, 3:i32)\n", lambda x, z: x - 3),
        "zero point of the call": (
            " d = cast(z) {dtype=i32}\n c = sub(a, d)\n",
            lambda x, z: x - z,
        ),
        "clipped": (" c = max(a, 0:i32)\n", lambda x, z: np.maximum(x, 0)),
        "square": (" c = mul(a, a)\n", lambda x, z: x * x),
    }
    for name, (code, does) in steps.items():
        kernel = fuse(head + code + tail, usual=True, features=MORE)
        assert grouped(kernel), name
        x, y = drawn("i8", (30, 70), 1), drawn("u8", (70, 50), 2)
        for z in (-128, 127):
            inputs = [x, y, np.array(z, "i1")]
            right = does(x.astype("i8"), z) @ y.astype("i8")
            assert np.array_equal(kernel(*inputs)[0], right), name
    wide = head + " d = mul(a, a)\n c = mul(d, a)\n" + tail
    assert not grouped(fuse(wide, usual=True, features=MORE))


@pytest.mark.parametrize("pair", ["bf16 bf16", "i8 i8", "u8 i8", "i16 i16"])
@pytest.mark.parametrize("spec", [*LAYOUTS[:3], "k; k,n -> n", "k; n,k -> n"])
def test_few_rows(pair: str, spec: str) -> None:
    """The larger operand is read as it lies; vectors, too, and several blocks of it."""
    first, second = pair.split()
    for isa in RUNNABLE[:2]:
        more = MORE if isa == "avx512" else ()
        kernel = fuse(source(pair, spec), isa, features=more)
        for m, n, k in (
            (1, 33, 17),
            (3, 65, 1),
            (7, 5, 515),
            (16, 40, 300),
            (2, 2100, 40),
            (12, 19, 4130),
        ):
            x, y = drawn(first, (m, k), m), drawn(second, (k, n), n)
            x = x[0] if spec.startswith("k;") else x
            right = wanted(x, y)
            x = np.ascontiguousarray(x.T) if spec.startswith("k,m") else x
            y = np.ascontiguousarray(y.T) if "n,k" in spec else y
            for at_end in (False, True):
                (actual,) = run_guarded(kernel, [x, y], at_end=at_end)
                assert np.array_equal(actual, right), (isa, m, n, k)


# ---- bfloat16 -----------------------------------------------------------------------------------

LEAST = 2.0**-126


def normal(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(bf16.numpy)


def errs_as_float32_sums(kernel: SingleKernel) -> None:
    """Within k·2^-24·Σ|a·b| beside the rounding of the result, by cancellation too."""
    for m, n, k in ((13, 33, 17), (30, 70, 300), (20, 40, 2000)):
        x, y = normal((m, k), k), normal((k, n), k + 1)
        if k == 300:
            x[:, 150:], y[150:] = x[:, :150], -y[:150] * np.array(1.0078125, bf16.numpy)
        exact = x.astype("f8") @ y.astype("f8")
        sums = np.abs(x.astype("f8")) @ np.abs(y.astype("f8"))
        bound = k * 2.0**-24 * sums + k * LEAST
        actual = kernel(x, y)[0].astype("f8")
        assert (np.abs(actual - exact) <= bound * (1 + 2**-8) + 2.0**-8 * np.abs(exact)).all()


def lets_nan_and_infinity_travel(kernel: SingleKernel) -> None:
    """They reach their own row and column, odd last positions included, and nothing else."""
    for k in (1, 5, 16, 513):
        x, y = normal((35, k), 1), normal((k, 35), 2)
        x[33, k - 1], y[k - 1, 7], x[5, 0] = np.nan, np.inf, -np.inf
        with np.errstate(all="ignore"):
            right = (x.astype("f8")[:, :, None] * y.astype("f8")[None]).sum(1)
        actual = kernel(x, y)[0].astype("f8")
        special = ~np.isfinite(right)
        assert np.array_equal(actual[special], right[special], equal_nan=True)
        assert np.isfinite(actual[~special]).all()


@pytest.mark.skipif("avx512bf16" not in MORE, reason="the processor has no such instruction")
class TestBfloat16:
    def test_error_is_that_of_float32_sums(self) -> None:
        errs_as_float32_sums(product_kernel("bf16 bf16"))

    def test_nan_and_infinity_travel(self) -> None:
        lets_nan_and_infinity_travel(product_kernel("bf16 bf16"))

    def test_denormals_count_as_zero_but_in_exact_rounding(self) -> None:
        tiny = np.full((13, 8), 2.0**-130, bf16.numpy)
        great = np.full((8, 33), 2.0**120, bf16.numpy)
        exact = fuse(source("bf16 bf16"), usual=True, features=MORE, rounding="exact")
        assert not grouped(exact)
        assert (exact(tiny, great)[0].astype("f8") == 8 * 2.0**-10).all()
        assert (product_kernel("bf16 bf16")(tiny, great)[0] == 0).all()

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_factors_that_nobody_has_rounded_are_rounded_to_nearest(self, side: str) -> None:
        """Not cut off: the rounding errors of many factors cancel."""
        first, second = ("a", "y") if side == "left" else ("x", "a")
        inputs = "x" if side == "left" else "y"
        code = (
            f"graph f(x: bf16[m,k], y: bf16[k,n], z: f32[]) {{\n"
            f" w = cast({inputs}) {{dtype=f32}}\n t = mul(w, z)\n a = cast(t) {{dtype=bf16}}\n"
            f' s = contract({first}, {second}) {{spec="{PLAIN}"}}\n return s\n}}'
        )
        kernel = fuse(code, usual=True, features=MORE, rounding="fast")
        assert grouped(kernel)
        assert "bf16(" not in kernel_text(kernel.kernel)
        x, y = drawn("bf16", (30, 700), 1), drawn("bf16", (700, 50), 2)
        third = np.array(1 / 3, np.float32)
        a, b = (
            (v.astype("f4") * third).astype(bf16.numpy) if place == side else v
            for v, place in ((x, "left"), (y, "right"))
        )
        want = a.astype("f8") @ b.astype("f8")
        (actual,) = kernel(x, y, third)
        assert np.allclose(actual.astype("f8"), want, rtol=2.0**-8, atol=1e-3)

    def test_float32_products_of_bfloat16_arrays_stay_float32(self) -> None:
        code = source("bf16 bf16").replace('n"}', 'n", dtype=f32}')
        assert not grouped(fuse(code, usual=True, features=MORE))


# ---- the loop -----------------------------------------------------------------------------------


VNNI = ("avx512bf16", "avx512vnni")
WORDS = "vpmaddwd|vpdpwssd"


@pytest.mark.parametrize(
    ("pair", "isa", "more", "step", "count"),
    [
        ("bf16 bf16", "avx512", VNNI, "vdpbf16ps", 16),
        *((pair, "avx512", VNNI, "vpdpbusd", 24) for pair in ("i8 i8", "u8 u8")),
        *((pair, "avx512", VNNI, "vpdpbusd", 16) for pair in ("u8 i8", "i8 u8")),
        ("i16 i8", "avx512", VNNI, "vpdpwssd", 16),
        ("i8 i8", "avx512", (), "vpmaddwd", 24),
        ("u8 i8", "avx2", ("avxvnni",), "vpdpbusd", 8),
        ("i16 i16", "avx2", ("avxvnni",), WORDS, 8),
        ("u8 u8", "avx2", (), "vpmaddwd", 12),
    ],
)
def test_the_inner_loop_stays_in_registers(
    pair: str, isa: str, more: tuple[str, ...], step: str, count: int
) -> None:
    """The inner loop has one instruction per accumulator and no spill.

    There are fewer accumulators where rows are strided, each with an address of its own.
    """
    target = Target.for_isa(isa)  # type: ignore[arg-type]
    target = replace(target, features=(*target.features, *more))
    kernel = lower.run(one_cluster(parse(source(pair))), "eager", {})
    text = asm_text(kernel, target)
    bodies = [b for b in inner_loops(text) if len(re.findall(step, b)) == count]
    assert bodies
    for body in bodies:
        assert not re.search(r"\(%rsp", body), body


@pytest.mark.parametrize("pair", ["bf16 bf16", "u8 i8", "i16 i16", "i8 i8"])
def test_rows_of_whole_groups_are_read_in_place(pair: str) -> None:
    """From any element on, in several blocks, with an end inside of a unit or not."""
    first, second = pair.split()
    casts = "" if first == "bf16" else " a = cast(t) {dtype=i32}\n b = cast(y) {dtype=i32}\n"
    names = "t, y" if first == "bf16" else "a, b"
    kernel = fuse(
        f"graph f(x: {first}[m,k], y: {second}[n,k-3]) {{\n"
        f" t = slice(x) {{starts=(0, 2), sizes=(m, k - 3), steps=(1, 1)}}\n{casts}"
        f' s = contract({names}) {{spec="m,k; n,k -> m,n"}}\n return s\n}}',
        usual=True,
        features=MORE if RUNNABLE[0] == "avx512" else (),
    )
    named = Target.for_isa("avx512")
    named = replace(named, features=(*named.features, *VNNI))
    actual = [c for p in program(kernel.kernel).phases for c in schedule(p, named).blocked]
    if actual[0].group is not None:
        assert [c.units for c in actual] == [not actual[0].group.left_offset]
    for m, n, k in (
        (9, 40, 17),
        (20, 33, 64),
        (17, 65, 1029),
        (3, 70, 1024),
        (8, 5, 2050),
        (1, 1, 2),
    ):
        x, y = drawn(first, (m, k + 3), m), drawn(second, (n, k), n)
        right = wanted(x[:, 2 : k + 2], y.T)
        for at_end in (False, True):
            assert np.array_equal(run_guarded(kernel, [x, y], at_end=at_end)[0], right), (m, n, k)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_short_numbers_are_converted_once_rather_than_by_every_tile(dtype: str) -> None:
    """Rows that are read where they lie in float32 are packed where each number takes converting:
    with AVX-512 but no instructions for pairs."""
    kernel = fuse(
        f"graph f(x: {dtype}[m,k], y: {dtype}[k,n]) {{\n"
        ' s = contract(x, y) {spec="m,k; k,n -> m,n", dtype=f32}\n return s\n}'
    )
    lie = [
        c.reads_left_in_place()
        for p in program(kernel.kernel).phases
        for c in schedule(p, Target.for_isa("avx512")).blocked
    ]
    assert lie == [dtype == "f32"]
