"""Maps over short rows are one contiguous loop, with NumPy's results."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.native import native_kernel
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm
from smelt.codegen import build
from smelt.codegen.build import asm_text, code_variants, emit, llvm_text, select_variant
from smelt.codegen.llvm.loopir.periodic_index import find_period
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.interp import run
from smelt.kernel.size_constants import (
    row_counts,
    short_sizes,
    transposed_sizes,
    with_sizes,
)
from smelt.kernel.text import parse, text
from smelt.machine.target import Target
from smelt.types.expr import Index, add, axis, evaluate, floordiv, mod, mul, size

AVX512 = Target.for_isa("avx512")
Program = Callable[..., Any]

PROGRAMS: dict[str, tuple[Program, Callable[[int, int], tuple[tuple[int, ...], ...]]]] = {
    "bias": (lambda x, b: x + b, lambda n, d: ((n, d), (d,))),
    "row": (lambda x, b: x * 2 - b, lambda n, d: ((n, d), (n, 1))),
    "flip": (lambda x: sm.flip(x, axis=1) * 2, lambda n, d: ((n, d),)),
    "concat": (lambda a, b: sm.concat([a + 1, b], axis=1), lambda n, d: ((n, d), (n, 2))),
    "swap": (lambda x: sm.permute_dims(x, (0, 2, 1)) * 2, lambda n, d: ((n, d, 2),)),
    "three": (lambda a, b: a[:, None, :] * b[:, :, None], lambda n, d: ((n, d), (n, 3))),
    "picked": (lambda a: sm.stack([a[:, -1] - a[:, 0], a[:, 0]], axis=1), lambda n, d: ((n, d),)),
    "rolled": (lambda a: sm.roll(a, 1, axis=1) + a, lambda n, d: ((n, d),)),
    "product": (lambda a, x: (a @ x[:, :, None])[:, :, 0], lambda n, d: ((n, 3, d), (n, d))),
    "tiny": (lambda a, b: a @ b, lambda n, d: ((n, d, 3), (n, 3, d))),
    "inner": (lambda a, b: a @ b, lambda n, d: ((n, 3, d), (n, d, 4))),
    "gram": (lambda a: sm.matrix_transpose(a) @ a, lambda n, d: ((n, 2, d),)),
    "transposed": (lambda a: sm.permute_dims(a, (1, 0)) * 2 + 1, lambda n, d: ((n, d),)),
    "turned back": (lambda a: sm.permute_dims(a, (1, 0)) * 2 + 1, lambda n, d: ((d, n),)),
    "columns": (lambda a: a[:, 0] * 3 + a[:, -1] * a[:, 1], lambda n, d: ((n, d),)),
    "outside": (
        lambda a: sm.concat([a[:, :1], a, a[:, -1:] + 1], axis=1),
        lambda n, d: ((n, d),),
    ),
}
NUMPY: dict[str, Program] = {
    "bias": lambda x, b: x + b,
    "row": lambda x, b: x * 2 - b,
    "flip": lambda x: np.flip(x, 1) * 2,
    "concat": lambda a, b: np.concatenate([a + 1, b], 1),
    "swap": lambda x: np.transpose(x, (0, 2, 1)) * 2,
    "three": lambda a, b: a[:, None, :] * b[:, :, None],
    "picked": lambda a: np.stack([a[:, -1] - a[:, 0], a[:, 0]], 1),
    "rolled": lambda a: np.roll(a, 1, 1) + a,
    "product": lambda a, x: (a @ x[:, :, None])[:, :, 0],
    "tiny": lambda a, b: a @ b,
    "inner": lambda a, b: a @ b,
    "gram": lambda a: np.swapaxes(a, 1, 2) @ a,
    "transposed": lambda a: a.T * 2 + 1,
    "turned back": lambda a: a.T * 2 + 1,
    "columns": lambda a: a[:, 0] * 3 + a[:, -1] * a[:, 1],
    "outside": lambda a: np.concatenate([a[:, :1], a, a[:, -1:] + 1], 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16", "bool"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_short_rows_give_what_numpy_gives(name: str, dtype: str) -> None:
    """A jitted function for each row's length: small integers, so that nothing rounds."""
    if dtype == "bool" and name not in ("picked", "concat"):
        dtype = "uint8"
    program_, shapes = PROGRAMS[name]
    rng = np.random.default_rng(7)
    for d in (2, 3, 7, 12, 33) if dtype == "float32" else (2, 7, 33):
        jitted = sm.jit(program_)
        for n in (2, 701):
            arrays = [rng.integers(0, 5, s).astype(dtype) for s in shapes(n, d)]
            if dtype == "bool":
                arrays = [a.astype("int16") for a in arrays]
            expected = NUMPY[name](*arrays)
            actual = np.asarray(jitted(*arrays))
            np.testing.assert_array_equal(actual, expected.astype(actual.dtype), f"{n} rows of {d}")


@pytest.mark.parametrize("name", ["bias", "flip", "row"])
def test_strided_and_broadcast_rows(name: str) -> None:
    """Rows that do not follow one another in memory."""
    program_, shapes = PROGRAMS[name]
    rng = np.random.default_rng(3)
    first, *others = (rng.random(s, np.float32) for s in shapes(300, 5))
    wide = np.repeat(np.repeat(first, 2, 0), 3, 1)[::2, ::3]
    for x in (wide, np.asfortranarray(first), first[::-1], np.broadcast_to(first[:1], first.shape)):
        expected = NUMPY[name](x, *others)
        np.testing.assert_array_equal(np.asarray(sm.jit(program_)(x, *others)), expected)


def test_nothing_behind_the_last_row_is_read() -> None:
    """Arrays that end where their memory ends."""
    from mmap import PAGESIZE, mmap

    source = mmap(-1, 4 * PAGESIZE)
    for d in (3, 5, 12):
        n = 2 * PAGESIZE // 4 // d
        count = n * d
        x = np.frombuffer(source, np.float32, count=count, offset=4 * PAGESIZE - count * 4)
        x = x.reshape(n, d)
        actual = np.asarray(sm.jit(lambda a: sm.flip(a, axis=1) + 1)(x))
        np.testing.assert_array_equal(actual, np.flip(x, 1) + 1)


BIAS = parse("""
kernel k(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
  grid r, c/4096
  y[r,c] = x[r,c] + b[c]
""")


def test_one_run_has_one_axis() -> None:
    (phase,) = program(with_sizes(BIAS, {"c": 3})).phases
    s = schedule(phase, AVX512)
    assert [n.order for n in s.nests] == [("c",)]
    assert evaluate(s.phase.axes["c"], {"r": 10}) == 30


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_rows_are_no_run_where_lanes_cannot_pick(isa: Any) -> None:
    """Their columns are vectors, if they are fewer than a vector's lanes."""
    for c, order in ((3, ("r",)), (13, ("r", "c"))):
        (phase,) = program(with_sizes(BIAS, {"c": c})).phases
        assert [n.order for n in schedule(phase, Target.for_isa(isa)).nests] == [order]


def test_whole_vectors_stay_rows() -> None:
    (phase,) = program(with_sizes(BIAS, {"c": 16})).phases
    assert [n.order for n in schedule(phase, AVX512).nests] == [("r", "c")]


def test_lanes_pick_and_do_not_gather() -> None:
    code = asm_text(with_sizes(BIAS, {"c": 3}), AVX512)
    assert "vperm" in code


def test_short_sizes_are_numbers_in_the_form() -> None:
    variants = code_variants(BIAS, AVX512, {"r": 5, "c": 3})
    assert select_variant(variants, {"r": 9, "c": 3}) == "@c=3"
    assert select_variant(variants, {"r": 5, "c": 4}) == ""
    assert select_variant(variants, {"r": 5, "c": 0}) == ""
    assert code_variants(BIAS, AVX512, {"r": 5, "c": 80}) == ()


def test_short_rows_stay_numbers_where_what_is_around_them_changes() -> None:
    halved = parse("""
kernel k(x: f32[h,w,c]) -> y: f32[h//2,w//2]
  axis i in h//2, j in w//2, k in 2, l in 2
  grid i, j
  v0 = x[i*2 + k, j*2 + l, 0] else 0
  y[i,j] = sum(v0 over k, l)
""")
    variants = code_variants(halved, AVX512, {"h": 9, "w": 8, "c": 3})
    sizes = ({"h": 9, "w": w, "c": c} for w, c in ((8, 3), (500, 3), (8, 4)))
    assert [select_variant(variants, at) for at in sizes] == ["@c=3,w=8", "@c=3", ""]


FEW_TERMS = parse("""
kernel f(x: f32[n,d], w: f32[d,c]) -> y: f32[n,c]
  grid n, c
  v0 = x[n,d]
  v1 = w[d,c]
  v2 = dot(v0, v1 over d)
  y[n,c] = v2
""")


@pytest.mark.parametrize(("terms", "numbers"), [(2, True), (3, True), (4, True), (5, False)])
def test_sizes_of_products_with_few_terms_are_numbers(terms: int, numbers: bool) -> None:
    """Products of few terms know their sizes.

    One operand has too many rows to unroll. Whole vectors hold the factors of a few terms; more
    terms are packed for tiles, which know all sizes.
    """
    at = {"n": 5000, "d": terms, "c": 3}
    assert (
        select_variant(code_variants(FEW_TERMS, AVX512, at), at).endswith(f"@d={terms},c=3")
        == numbers
    )


def test_short_sizes_that_change_take_the_code_for_all() -> None:
    jitted, other = sm.jit(lambda x, b: x + b), np.arange(5, dtype=np.float32)
    for d in (3, 5, 3, 4):
        x = np.ones((50, d), np.float32)
        np.testing.assert_array_equal(np.asarray(jitted(x, other[:d].copy())), x + other[:d])


def test_only_inner_sizes_are_short() -> None:
    kernel = parse("""
    kernel k(x: f32[a,b,c,d]) -> y: f32[a,b,c,d]
      grid a, b, c, d/4096
      y[a,b,c,d] = x[a,b,c,d] + f32(size(b))
    """)
    assert short_sizes(kernel, {"a": 2, "b": 3, "c": 80, "d": 3}) == {"d": 3}
    assert short_sizes(kernel, {"a": 2, "b": 3, "c": 5, "d": 7}) == {"d": 7, "c": 5, "b": 3}
    # More than 256 elements together.
    assert short_sizes(kernel, {"a": 2, "b": 9, "c": 5, "d": 7}) == {"d": 7, "c": 5}
    output = text(with_sizes(kernel, {"d": 7, "c": 5, "b": 3}))
    assert "f32[a,3,5,7]" in output and "size(b)" not in output


def test_gemm_variants_match_those_of_the_specialised_kernel() -> None:
    """A column alone is not an axis: what is small then is something else."""
    x, y = np.ones((4, 257)), np.arange(514.0).reshape(257, 2)
    for n in (1, 2):
        actual = np.asarray(sm.jit(lambda a, b: a @ b)(x, y[:, :n].copy()))
        np.testing.assert_array_equal(actual, x @ y[:, :n])


K = axis("k", mul(size("n"), 60))


@pytest.mark.parametrize(
    "e",
    [
        mod(K, 3),
        floordiv(K, 5),
        add(mul(floordiv(K, 3), 7), mod(K, 3)),
        mod(floordiv(K, 3), 5),
        floordiv(mod(K, 12), 4),
        add(mul(K, 2), mul(mod(K, 4), -3)),
    ],
)
def test_patterns_say_what_the_index_is(e: Index) -> None:
    actual = find_period(e, "k")
    assert actual is not None
    for k in range(200):
        of_place = actual.offsets[k % actual.period]
        assert evaluate(e, {"n": 9}, {"k": k}) == evaluate(actual.first, {}) + of_place + (
            k // actual.period * actual.step
        )


def test_windows_hold_the_requested_elements() -> None:
    actual = find_period(add(mul(floordiv(K, 3), 3), mul(mod(K, 3), -1)), "k")
    assert actual is not None
    held = [True, False, True]
    starts, wanted = actual.windows(16, held)
    table = actual.table(actual.period + 15)
    for r, (start, bits) in enumerate(zip(starts, wanted, strict=True)):
        required = {table[x] - start for x in range(r, r + 16) if held[x % 3]}
        assert required == {i for i in range(64) if bits >> i & 1}


def test_lanes_that_start_at_a_period_need_smaller_windows() -> None:
    """4x4 times 4x4: a register has one product, so four of its elements are one window."""
    actual = find_period(add(mul(floordiv(K, 16), 16), mod(K, 4)), "k")
    assert actual is not None
    assert (actual.span(16), actual.span(16, firsts=actual.start_offsets(16, 32))) == (20, 4)
    assert actual.start_offsets(4, 8) == {4, 12} and actual.start_offsets(0, 1) == {*range(16)}


PRODUCT = """
kernel k(a: f32[n,p,q], b: f32[n,q,r]) -> y: f32[n,p,r]
  grid n, p, r
  v0 = a[n,p,q]
  v1 = b[n,q,r]
  v2 = dot(v0, v1 over q)
  y[n,p,r] = v2
"""


@pytest.mark.parametrize("d", [2, 3, 4])
def test_vectors_hold_several_tiny_products(d: int) -> None:
    reported = with_sizes(parse(PRODUCT), {"p": d, "q": d, "r": d})
    (phase,) = program(reported).phases
    s = schedule(phase, AVX512)
    (nest,) = s.nests
    assert nest.vector is not None and nest.product is None
    assert s.phase.axes[nest.vector] == mul(size("n"), d * d)


def test_sizes_that_a_map_turns_are_short_though_they_count_rows() -> None:
    """Elsewhere a size that counts longer rows is a length, which changes from call to call."""
    sizes = {"a": 3, "b": 200}
    turn = "kernel k(x: f32[a,b]) -> y: f32[b,a]\n  grid b, a\n  y[b,a] = x[a,b]\n"
    keep = "kernel k(x: f32[a,b]) -> y: f32[a,b]\n  grid a, b\n  y[a,b] = x[a,b]\n"
    fold = """
    kernel k(x: f32[a,b]) -> y: f32[a,a]
      axis i in a
      grid a
      v0 = x[a,b]
      v1 = sum(v0 over b)
      y[a,i] = v1
    """
    actual = [transposed_sizes(parse(source), sizes) for source in (turn, keep, fold)]
    assert actual == [{"a"}, set(), set()]


def test_no_pattern_where_numbers_are_missing() -> None:
    assert find_period(mod(K, size("m")), "k") is None
    assert find_period(mul(mod(K, 3), size("m")), "k") is None
    assert find_period(floordiv(K, 1000), "k") is None


JUDGED = {
    "bias": """
    kernel k(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
      grid r, c/4096
      y[r,c] = x[r,c] + b[c]
    """,
    "flip": """
    kernel k(x: f32[r,c]) -> y: f32[r,c]
      grid r, c/4096
      y[r,c] = x[r, size(c) - c - 1] * 2
    """,
    "joined": """
    kernel k(x: f32[r,c], z: f32[r,2]) -> y: f32[r,c + 2]
      grid r, j in (c + 2)/4096
      a = x[r,j] else 0
      b = z[r, j - size(c)] else 0
      i = index(j - size(c))
      y[r,j] = select(i >= 0, b, a)
    """,
    "transposed": """
    kernel k(x: f32[r,c,e]) -> y: f32[r,e,c]
      grid r, e, c/4096
      y[r,e,c] = x[r,c,e] + x[r,0,e]
    """,
}


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("isa", RUNNABLE)
def test_code_with_numbers_at_forbidden_pages(name: str, isa: str) -> None:
    """Native code agrees with the kernel interpreter and touches only its arrays."""
    kernel = parse(JUDGED[name])
    rng = np.random.default_rng(5)
    for c in (2, 3, 5, 11, 15):
        single = native_kernel(with_sizes(kernel, {"c": c, "e": 3}), isa)
        for r in (1, 33, 120):
            sizes = {"r": r, "c": c, "e": 3}
            arrays = {
                p.name: rng.random([int(evaluate(n, sizes)) for n in p.shape], np.float32)
                for p in kernel.inputs
            }
            wanted = run(single.kernel, arrays, {"r": r})["y"]
            for at_end in (True, False):
                actual = single(arrays, {"r": r}, at_end=at_end)["y"]
                np.testing.assert_array_equal(actual, wanted, f"{r} rows of {c}")
    assert find_period(mul(mod(K, 3), 1 << 23), "k") is None


# ---- types of several widths ---------------------------------------------------------------------


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("read", ["i64", "f64", "i32", "i16", "u8", "bool", "f16"])
@pytest.mark.parametrize("stored", ["f32", "f64", "i16"])
def test_lanes_pick_elements_of_any_width(read: str, stored: str, isa: str) -> None:
    """Sixteen lanes of single precision read 64-bit elements in two registers."""
    kernel = fuse(
        f"""graph f(x: {stored}[n,c], b: {read}[c]) {{
          t = cast(b) {{dtype={stored}}}
          u = flip(x) {{axes=(1,)}}
          y = add(u, t)
          return y
        }}""",
        isa,
        n=300,
        c=3,
    )
    rng = np.random.default_rng(5)
    x, b = (
        rng.integers(0, 2 if node.type.dtype.long == "bool" else 9, s).astype(node.type.dtype.numpy)
        for node, s in zip(kernel.graph.inputs, ((301, 3), (3,)), strict=True)
    )
    for at_end in (True, False):
        actual = run_guarded(kernel, [x, b], at_end=at_end)[0]
        np.testing.assert_array_equal(actual, x[:, ::-1] + b.astype(x.dtype))


def test_masks_of_more_lanes_than_words_have_bits() -> None:
    """Lanes of bytes are 256 together: their masks lie where such words may be read from."""

    def program_(a: Any) -> Any:
        return sm.reshape(sm.roll(a, 1, axis=1), (1285,))

    x = np.random.default_rng(2).integers(0, 9, (257, 5, 1)).astype(np.uint8)
    np.testing.assert_array_equal(np.asarray(sm.jit(program_)(x)), np.roll(x, 1, 1).reshape(-1))
    bytes_ = parse("""
    kernel k(x: u8[r,5]) -> y: u8[r*5]
      grid k in r*5/4096
      v = x[k//5, k%5 - 1] else 0
      y[k] = v
    """)
    tables = [x for x in llvm_text(bytes_, AVX512).splitlines() if x.startswith('@"table')]
    assert tables
    assert all(x.endswith("align 64") for x in tables)


def test_rows_whose_ends_nobody_looks_for_have_one_code() -> None:
    """Where all arrays are walked from end to end, the length of rows is not asked for."""
    plain = parse("""
    kernel k(x: f32[r,c], z: f32[r,c]) -> y: f32[r,c]
      grid r, c/4096
      y[r,c] = x[r,c] + z[r,c]
    """)
    assert code_variants(plain, AVX512, {"r": 5, "c": 3}) == ()


def test_a_program_has_two_codes_of_a_kernel_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the first call's short size, and that of all sizes."""
    emitted: list[str] = []

    def noted(*args: Any, variant: str = "", **kwargs: Any) -> Any:
        emitted.append(variant)
        return emit(*args, variant=variant, **kwargs)

    monkeypatch.setattr(build, "emit", noted)
    jitted = sm.jit(lambda x, b: x * b + 11)
    with sm.config(cache=False):
        for d in range(2, 40):
            x = np.full((5, d), 2, np.float32)
            np.testing.assert_array_equal(np.asarray(jitted(x, x[0])), x * x + 11)
    assert len(emitted) == 2


def test_rows_of_nothing_stay() -> None:
    kernel = fuse(
        """graph f(x: u32[n,1,1]) {
          s = slice(x) {starts=(0, 0, 0), sizes=(n, 0, 1), steps=(1, 1, 1)}
          y = add(x, s)
          return s, y
        }"""
    )
    assert [y.shape for y in kernel(np.ones((7, 1, 1), np.uint32))] == [(7, 0, 1), (7, 0, 1)]


@pytest.mark.parametrize("shape", [(0, 16, 16), (16, 0, 16), (16, 16, 0), (0, 4, 16)])
def test_sums_over_nothing_are_nothing(shape: tuple[int, ...]) -> None:
    """How many rows a task takes is not a division by a size that may be 0."""
    x = np.zeros(shape, np.float32)
    for over in ((0,), (1,), (2,), (0, 2), (1, 2)):
        kept = [f"n{k}" if n == 0 else str(n) for k, n in enumerate(shape)]
        axes = ",".join(map(str, over))
        kernel = fuse(
            f"graph f(x: f32[{','.join(kept)}]) {{\n s = reduce.sum(x) {{axes=({axes},)}}\n"
            " return s\n}"
        )
        np.testing.assert_array_equal(kernel(x)[0], np.sum(x, over))


def test_lengths_are_no_short_rows() -> None:
    """What counts long rows somewhere is a length: another one takes the same code."""
    n, t = size("n"), size("t")
    assert row_counts([(n, t), (n, t, 3)], {"n": 2, "t": 5}) == set()
    assert row_counts([(n, t), (n, t, 100)], {"n": 2, "t": 5}) == {"n", "t"}
    assert row_counts([(n, t, 16, 16)], {"n": 2, "t": 5}) == {"n"}
    assert row_counts([(n, 3), (n, t, 768)], {"n": 2}) == {"n", "t"}


def test_a_short_first_text_has_one_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are rows of numbers, and so are few of them."""
    emitted: list[str] = []

    def noted(*args: Any, variant: str = "", **kwargs: Any) -> Any:
        emitted.append(variant)
        return emit(*args, variant=variant, **kwargs)

    def program_(x: Any, words: Any) -> Any:
        return sm.exp(x) + 5, words * 2

    monkeypatch.setattr(build, "emit", noted)
    jitted = sm.jit(program_)
    with sm.config(cache=False):
        for t in (5, 7, 9):
            x = np.ones((2, t, t), np.float32)[:, :, ::1]
            actual, _ = jitted(x.transpose(0, 2, 1), np.ones((t, 99), np.float32))
            np.testing.assert_allclose(np.asarray(actual), np.exp(x) + 5, rtol=1e-6)
    before = len(emitted)
    assert not any("@" in variant for variant in emitted)
    with sm.config(cache=False):
        jitted(np.ones((2, 11, 11), np.float32).transpose(0, 2, 1), np.ones((11, 99), np.float32))
    assert len(emitted) == before
