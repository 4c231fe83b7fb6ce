"""Streams natively: every golden kernel with one, many block sizes, and random ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tests.codegen.llvm.native import Native, native, native_kernel
from tests.codegen.llvm.random_streams import streams as random_streams
from tests.codegen.llvm.rounding_noise import spread
from tests.codegen.llvm.single_kernel import RUNNABLE
from tests.kernel.goldens import GOLDENS
from tests.kernel.random_kernels import kernels
from tests.kernel.references import REFERENCES, extra_sizes
from tests.kernel.test_goldens import flat
from tests.kernel.test_verify_property import accepted, arrays_for
from tests.property.oracles import agree

from smelt.codegen.build import Variant, asm_text
from smelt.codegen.llvm.loopir.items import Phase
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.task_tiling import stream_task_rows
from smelt.codegen.llvm.scratch.workspace import lay_out
from smelt.kernel import ir
from smelt.kernel.interp import run
from smelt.kernel.memory import Buffer
from smelt.kernel.text import parse, text
from smelt.kernel.walk import statements
from smelt.machine.target import Target
from smelt.types.dtype import DType, bf16, f16, f64
from smelt.types.expr import evaluate

Array = np.ndarray[Any, Any]
STREAMED = [name for name, source in GOLDENS.items() if "\n  stream " in source]


def in_blocks(kernel: ir.Kernel, size: int | None) -> ir.Kernel:
    """The kernel with other blocks in its streams, where they are not of one."""
    if size is None:
        return kernel

    def cut(s: ir.Statement) -> ir.Statement:
        if not isinstance(s, ir.Stream):
            return s
        blocks = tuple(b if b.size == 1 else replace(b, size=size) for b in s.blocks)
        return replace(s, blocks=blocks, body=tuple(map(cut, s.body)))

    return replace(kernel, body=tuple(map(cut, kernel.body)))


def sizes_as_built(kernel: Native) -> dict[str, int]:
    """For the interpreter: the blocks that the back end takes."""
    grid = {b.axis: 1 for b in kernel.kernel.grid if isinstance(b, ir.Block)}
    return grid | kernel.block_sizes()


# ---- the kernels of the page ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isa", "size"),
    [
        *((isa, size) for isa in RUNNABLE[:1] for size in (None, 2, 16)),
        (RUNNABLE[-2:][0], 3),
        (RUNNABLE[-1], 5),
    ],
)
@pytest.mark.parametrize("name", STREAMED)
def test_goldens(name: str, size: int | None, isa: str) -> None:
    """What NumPy says, between forbidden pages, in any order of the tasks."""
    kernel = native_kernel(in_blocks(parse(GOLDENS[name]), size), isa)
    reference = REFERENCES[name]
    for scale in (1, 7, 20):
        arrays = reference.inputs(np.random.default_rng(scale), scale)
        sizes = extra_sizes(name, arrays)
        actual = kernel(arrays, sizes)
        again = kernel(arrays, sizes, at_end=False, one_by_one=True)
        for key, wanted in reference.outputs(**arrays).items():
            rtol, atol = max(reference.rtol, 1e-5), max(reference.atol, 1e-5)
            np.testing.assert_allclose(flat(actual[key]), flat(wanted), rtol=rtol, atol=atol)
            assert actual[key].tobytes() == again[key].tobytes()


NEAREST = """kernel nearest(x: f32[n,k], y: f32[m,k]) -> z: i64[n]
  grid n/4
  v0 = x[n,k]
  stream m/8 with s = -inf [n], p = i64(9223372036854775807) [n]
    v1 = y[m,k]
    v2 = dot(v0, v1 over k)
    s' = max(s, max(v2 over m))
    w0 = v2 == s'
    w1 = v2 != v2
    w2 = w0 | w1
    w3 = m
    w4 = select(w2, w3, 9223372036854775807)
    w5 = s == s'
    w6 = s != s
    w7 = w5 | w6
    w8 = select(w7, p, 9223372036854775807)
    p' = min(w8, min(w4 over m))
  z[n] = p
"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("size", [3, 16, 256])
def test_where_the_largest_stands(size: int, isa: str) -> None:
    """The first of equals, NaN before all, whatever the blocks."""
    kernel = native_kernel(in_blocks(parse(NEAREST), size), isa)
    rng = np.random.default_rng(size)
    x, y = (rng.integers(-2, 3, s).astype(np.float32) for s in ((37, 3), (530, 3)))
    y[200], x[5] = np.nan, -np.inf
    for wide in (530, 150, 1):
        with np.errstate(invalid="ignore"):
            wanted = (x @ y[:wide].T).argmax(axis=1)
        np.testing.assert_array_equal(kernel({"x": x, "y": y[:wide].copy()})["z"], wanted)


@pytest.mark.parametrize("name", STREAMED)
def test_compiles_for_a_foreign_processor(name: str) -> None:
    assert asm_text(parse(GOLDENS[name]), Target.for_isa("neon"))


def test_a_stream_that_only_reduces_is_a_reduction() -> None:
    """A stream with reductions only is one reduction.

    Products are packed and tiled over the whole axis, and columns take one pass; blocks of a part
    with a size of its own are visited in that size.
    """
    assert [r for p in program(parse(GOLDENS["variance"])).phases for r in p.regions()]
    for name in ("linear_gelu", "norm_qkv", "conv_bn_relu", "columns"):
        assert not [r for p in program(parse(GOLDENS[name])).phases for r in p.regions()], name
    assert "fma" in asm_text(parse(GOLDENS["linear_gelu"]), Target.for_isa("avx512"))


@pytest.mark.parametrize("variant", ["rows", "columns"])
@pytest.mark.parametrize("name", ["decode", "causal_attention", "splade"])
def test_gemv_variants(name: str, variant: Variant) -> None:
    """What is taken for few is not packed, and right however many there are."""
    for size in (None, 5):
        kernel = native_kernel(in_blocks(parse(GOLDENS[name]), size), RUNNABLE[0], variant)
        arrays = REFERENCES[name].inputs(np.random.default_rng(3), 4)
        for key, wanted in REFERENCES[name].outputs(**arrays).items():
            actual = kernel(arrays)[key]
            np.testing.assert_allclose(flat(actual), flat(wanted), rtol=1e-5, atol=1e-5)


def test_the_weights_of_attention_are_multiplied_in_place() -> None:
    """The weights overwrite the scores and are multiplied there.

    They are computed once and summed in place; queries are packed before the stream and keys are
    transposed straight into panels.
    """
    source = GOLDENS["causal_attention"].replace("n/512", "n/48")
    (phase,) = program(parse(source)).phases
    target = Target.for_isa("avx512")
    s = schedule(phase, target)
    scores, weights = sorted(s.products.values(), key=lambda c: s.phase.items.index(c.item))
    assert (scores.direct, weights.direct) == (0, 80)
    storage = lay_out(s)
    assert storage.takes_over == {scores.item: weights.left}
    assert sum(n.items.count(weights.left) for n in s.nests) == 1
    assert storage.arrays[weights.left, 0] == storage.arrays[scores.item, 0]


TWO = """kernel two(
    q: f32[n,d], k: f32[m,d], p: f32[n,d], r: f32[m,d], v: f32[m,e]
) -> y: f32[n,e], s: f32[n], z: f32[n,e], t: f32[n]
  axis n, m, e, d
  grid n
  stream m/48 with y0 = 0 [n,e], s0 = 0 [n], z0 = 0 [n,e], t0 = 0 [n]
    q0 = q[n,d]
    k0 = k[m,d]
    a = dot(q0, k0 over d)
    a1 = exp(a)
    s0' = s0 + sum(a1 over m)
    p0 = p[n,d]
    r0 = r[m,d]
    b = dot(p0, r0 over d)
    b1 = exp(b)
    t0' = t0 + sum(b1 over m)
    v0 = v[m,e]
    z0' = z0 + dot(b1, v0 over m)
    y0' = y0 + dot(a1, v0 over m)
  y[n,e] = y0
  s[n] = s0
  z[n,e] = z0
  t[n] = t0
"""


def test_weights_of_two_attentions_overwrite_their_own_scores() -> None:
    """Two attentions in one nest each overwrite their own scores.

    The nest has several stages: the other's scores are not read yet when the first weights are
    stored.
    """
    kernel = parse(TWO)
    (phase,) = program(kernel).phases
    s = schedule(phase, Target.for_isa("avx512"))
    shared = lay_out(s).takes_over
    assert len(shared) == 2
    assert all(scores in weights.args for scores, weights in shared.items())
    rng = np.random.default_rng(5)
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in zip(
            "qkprv", ((50, 8), (130, 8), (50, 8), (130, 8), (130, 40)), strict=True
        )
    }
    q, k, p, r, v = (a.astype(np.float64) for a in arrays.values())
    a, b = np.exp(q @ k.T), np.exp(p @ r.T)
    wanted = {"y": a @ v, "s": a.sum(1), "z": b @ v, "t": b.sum(1)}
    actual = native_kernel(kernel, RUNNABLE[0])(arrays)
    for name, x in wanted.items():
        np.testing.assert_allclose(actual[name], x, rtol=2e-4, atol=1e-3 * np.abs(x).max())


def test_reductions_beside_a_product_vectorise_along_loaded_rows() -> None:
    """The columns' sums are read with lanes along a line, though the product's results are rows."""
    source = """kernel f(x: f32[m,n], r: f32[n]) -> y: f32[m]
      axis m, n
      stream n/128 with a = 0 [m]
        v = x[m,n]
        w = r[n]
        s = sum(v over m)
        t = w / s
        a' = a + dot(v, t over n)
      y[m] = a"""
    (phase,) = program(parse(source)).phases
    (nest,) = (n for n in schedule(phase, Target.for_isa("avx512")).nests if n.reductions)
    assert nest.vector == "n"
    kernel = native(source)
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 2, (37, 301)).astype(np.float32)
    r = rng.standard_normal(301).astype(np.float32)
    actual = kernel({"x": x, "r": r})["y"]
    np.testing.assert_allclose(actual, x @ (r / x.sum(axis=0, dtype=np.float64)), atol=1e-4)


def test_blocks_of_rows_fit_the_first_cache() -> None:
    kernel = native(GOLDENS["softmax_long"])
    target = kernel.target
    assert kernel.block_sizes()["c"] * 4 * 3 <= target.l1_bytes
    asm = asm_text(parse(GOLDENS["softmax_long"]), target)
    assert "prefetch" in asm


def test_fewer_rows_share_what_is_wider_for_all_of_them_than_for_one() -> None:
    """Tasks have fewer rows where all rows together visit more than each.

    A stream that stops at the last row of a task visits more for the others; one that starts at the
    first as well does so twice. Ends that hold for all rows cost nothing, and neither do those of
    row bands.
    """

    def phase(ends: str) -> Phase:
        source = GOLDENS["causal_attention"].replace(" to last(m) + 1", ends)
        (result,) = program(parse(source)).phases
        return result

    target = Target.for_isa("avx512")
    ends = " from 3 to 9", " to last(m) + 1", " from first(m) - 9 to last(m) + 1"
    whole, causal, window = (stream_task_rows(phase(e), (), target) for e in ends)
    assert whole > causal > window
    variants: list[Variant] = ["", "small"]  # both of them in bands
    for variant in variants:
        assert {schedule(phase(e), target, variant).block["m"] for e in ends} == {288}


LOOKED_UP = """
kernel documents(q: f32[m,d], k: f32[n,d], v: f32[n,e], a: i64[m], b: i64[n]) -> o: f32[m,e]
  grid m/64
  w0 = a[m]
  w1 = min(select((b[n] >= least(w0)) & (most(w0) >= b[n]), n, size(n)) over n)
  w2 = max(select((b[n] >= least(w0)) & (most(w0) >= b[n]), index(n + 1), index(0)) over n)
  stream n/512 from w1 to w2 with r = -inf [m], l = 0 [m], acc = 0 [m,e]
    s = dot(q[m,d], k[n,d] over d)
    t = select(w0 == b[n], s, -inf)
    r' = max(r, max(t over n))
    w = exp(t - r')
    l' = l * exp(r - r') + sum(w over n)
    acc' = acc * exp(r - r') + dot(w, v[n,e] over n)
  o[m,e] = acc / l"""


def test_fewer_rows_look_for_what_each_of_them_sees() -> None:
    """Searched range ends are found again for each row band.

    The search covers what all rows of the task see; ends that follow from positions need none.
    """
    (actual,) = program(parse(LOOKED_UP)).phases
    placed = GOLDENS["causal_attention"].replace(" to last(m) + 1", " from first(m) - 9 to last(m)")
    (other,) = program(parse(placed)).phases
    target = Target.for_isa("avx512")
    assert schedule(actual, target, "").block["m"] == 144
    assert schedule(other, target, "").block["m"] == 288


# ---- small streams -------------------------------------------------------------------------------

SMALL = {
    "logsumexp": """
kernel f(x: f32[r,c]) -> y: f32[r]
  grid r
  stream c/32 with m = -inf, l = 0
    t = x[r,c]
    m' = max(m, max(t over c))
    l' = l * exp(m - m') + sum(exp(t - m') over c)
  y[r] = m + log(l)""",
    "columns": """
kernel f(x: f32[r,c]) -> y: f32[c]
  grid c/64
  stream r/8 with m = -inf [c], l = 0 [c]
    t = x[r,c]
    m' = max(m, max(t over r))
    l' = l * exp(m - m') + sum(exp(t - m') over r)
  y[c] = m + log(l)""",
    "old and new": """
kernel f(x: f32[r,c]) -> y: f32[r,c], z: f32[r]
  grid r
  stream c/16 with a = 0, b = 1
    s = sum(x[r,c] over c)
    b' = b * 0.5 + a
    a' = a + s + b'
    y[r,c] = x[r,c] * a + b
  z[r] = a + b""",
    "a stream in a stream": """
kernel f(x: f32[r,c]) -> y: f32[r], z: f32[r,c]
  axis r, c
  stream r with t = 0
    stream c/8 with s = 0.5
      s' = s + max(x[r,c] over c) * t
      z[r,c] = x[r,c] + s
    y[r] = s
    t' = t + s * 0.01""",
    "positions": """
kernel f(x: f32[r,c]) -> y: i64[r], z: i64[r]
  grid r
  stream c/8 with s = i64(0), t = i64(0)
    s' = s + argmax(x[r,c] over c)
    t' = t + sum(i64(last(c)) * 1 over c)
  y[r] = s
  z[r] = t""",
    "two axes": """
kernel f(x: f32[r,c]) -> y: f32[], z: i64[]
  stream r/2, c/8 with s = -inf, n = i64(0)
    s' = max(s * 0.5, max(x[r,c] over r, c))
    n' = n + argmin(x[r,c] over r, c)
  y[] = s
  z[] = n""",
}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", SMALL)
def test_small_streams(name: str, isa: str) -> None:
    kernel = native(SMALL[name].strip(), isa)
    for r, c in ((1, 1), (3, 31), (5, 32), (4, 100), (70, 9)):
        x = np.random.default_rng(r * c).standard_normal((r, c)).astype("f4") * 4
        cut = sizes_as_built(kernel)
        wanted = run(kernel.kernel, {"x": x}, grid_sizes=cut)
        allowed = spread(kernel.kernel, {"x": x}, {}, grid_sizes=cut)
        for key, actual in kernel({"x": x}).items():
            problem = agree(wanted[key], actual, allowed[key])
            assert not problem, f"{key} at {r, c}: {problem}"


GROUPED = """
kernel f(q: {t}[b,g,m,d], k: {t}[b,n,d], v: {t}[b,n,e]) -> o: {t}[b,g,m,e]
  grid b, g, m/64
  stream n/32 with r = {c}(-inf) [m], l = {c}(0) [m], acc = {c}(0) [m,e]
    s = dot(q[b,g,m,d], k[b,n,d] over d) * 0.125
    r' = max(r, max(s over n))
    w = exp(s - r')
    l' = l * exp(r - r') + sum(w over n)
    acc' = acc * exp(r - r') + dot(w, v[b,n,e] over n)
  o[b,g,m,e] = acc / l"""


@pytest.mark.parametrize(("dtype", "near"), [(f16, 2e-3), (bf16, 2e-2), (f64, 1e-12)])
def test_attention_in_other_types(dtype: DType, near: float) -> None:
    """Heads that share keys; half types are computed in float32, double precision in its own."""
    source = GROUPED.strip().format(t=dtype.name, c=dtype.compute.name)
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 3, 40, 16), "k": (2, 33, 16), "v": (2, 33, 19)}
    arrays = {n: rng.standard_normal(s).astype(dtype.numpy) for n, s in shapes.items()}
    wanted = run(parse(source), arrays)["o"].astype("f8")
    for isa in RUNNABLE:
        kernel = native(source, isa)(arrays)["o"].astype("f8")
        assert np.abs(kernel - wanted).max() < near, isa


def test_rows_that_hold_nothing_finite() -> None:
    kernel = native(GOLDENS["softmax_long"].replace("8192", "16"))
    x = np.zeros((5, 50), "f4")
    x[0], x[1, 3], x[2, 20], x[3, 40:] = -np.inf, np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        wanted = run(kernel.kernel, {"x": x})["y"]
    np.testing.assert_allclose(kernel({"x": x})["y"], wanted, rtol=1e-5)


# ---- random ones ---------------------------------------------------------------------------------


def stored_elements(kernel: ir.Kernel, arrays: dict[str, Array], **settings: Any) -> Any:
    """The interpreter's results, and which elements of them have been stored."""
    seen: dict[str, Buffer] = {}
    store = Buffer.store

    def recorded(self: Buffer, *args: Any, **options: Any) -> None:
        seen[self.param.name] = self
        store(self, *args, **options)

    with mock.patch.object(Buffer, "store", recorded):
        result = run(kernel, arrays, complete=False, **settings)
    return result, {n: (b.writer >= 0).reshape(result[n].shape) for n, b in seen.items()}


@pytest.mark.parametrize(
    ("isa", "part", "maker", "examples"),
    [
        (RUNNABLE[0], 0, kernels, 30),
        (RUNNABLE[-1], 2, kernels, 20),
        (RUNNABLE[0], 3, random_streams, 15),
        (RUNNABLE[-2:][0], 4, random_streams, 8),
    ],
)
def test_random_kernels(isa: str, part: int, maker: Any, examples: int) -> None:
    @seed(part)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[
            hypothesis.Phase.generate
        ],  # shrinking a kernel takes minutes; its text is in the message
    )
    @given(maker(), st.sampled_from([(1, 1), (3, 70), (2, 5), (40, 3), (5, 1)]))
    def judge(kernel: ir.Kernel, numbers: tuple[int, int]) -> None:
        sizes = dict(zip(("n", "m"), numbers, strict=True))
        streams = any(isinstance(s, ir.Stream) for s in statements(kernel))
        holds = all(evaluate(fact, sizes) >= 0 for fact in kernel.facts)
        if not streams or not holds or not accepted(kernel):
            return
        single = native_kernel(kernel, isa)
        arrays, cut = arrays_for(kernel, sizes, 1), sizes_as_built(single)
        wanted, stored = stored_elements(kernel, arrays, sizes=sizes, grid_sizes=cut)
        allowed = spread(kernel, arrays, sizes, complete=False, grid_sizes=cut)
        result = single(arrays, sizes)
        for name, where in stored.items():
            sides = (np.atleast_1d(a[name][where]) for a in (wanted, result, allowed))
            problem = agree(*sides)
            assert not problem, f"{name}: {problem}\n{text(kernel)}"

    judge()


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("condition", ["false", "true"])
def test_stores_under_one_condition_for_all_lanes(isa: str, condition: str) -> None:
    source = f"""kernel f(a: f32[n,7]) -> y: f32[n,7]
  axis i in n, j in 7
  stream i/1
    v1 = a[i,j] + 1
    y[i,j] = v1 where {condition}
"""
    a = np.arange(21, dtype=np.float32).reshape(3, 7)
    code = native(source, isa)
    _, stored = stored_elements(code.kernel, {"a": a}, sizes={"n": 3}, grid_sizes={})
    assert stored["y"].all() == (condition == "true")
    result = code({"a": a}, {"n": 3})["y"]
    np.testing.assert_array_equal(result == a + 1, stored["y"])


GATED = """kernel f(a: f32[{n},70], b: f32[70,{n}], x: f32[70,12]) -> y: f32[70]
  axis i in 70, j in {n}, u in 12
  stream i/32 with s = 0 [j]
    v1 = x[i,u]
    v2 = sum(v1 over u)
    v3 = a[j,i]
    s' = s + dot(v2, v3 over i)
  v4 = s * 2
  stream i/32
    v5 = b[i,j]
    v6 = dot(v4, v5 over j)
    y[i] = v6
"""
"""A short sum over what a stream carries: squeeze and excitation."""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("n", [1, 7, 28])
def test_short_sums_over_states(n: int, isa: str) -> None:
    code = native(GATED.format(n=n), isa)
    rng = np.random.default_rng(n)
    arrays = {
        p.name: rng.standard_normal([int(str(e)) for e in p.shape]).astype("f4")
        for p in code.kernel.inputs
    }
    wanted = run(code.kernel, list(arrays.values()))["y"]
    np.testing.assert_allclose(code(arrays)["y"], wanted, rtol=1e-5, atol=1e-4)


SCALED = """kernel f(x: f32[n,m], a: f32[n], t: f32[m]) -> y: f32[n,m]
  axis n, m
  v0 = t[m]
  stream n/16
    v1 = x[n,m]
    v2 = a[n]
    v3 = dot(v1, v0 over m)
    v4 = v2 / v3
    v5 = v4 * v1
    y[n,m] = v5 * v0
"""
"""Rows times what a product along them gives: the last round of Sinkhorn's algorithm."""


@pytest.mark.parametrize("isa", RUNNABLE)
def test_rows_beside_a_short_operand_are_stored_in_lines(isa: str) -> None:
    """Rows beside a short operand are stored contiguously.

    The product's result and `a` run along n, but no lane addresses a cache line of its own for
    them: each is one number of a row.
    """
    code = native(SCALED, isa)
    actual = emit(code.kernel, code.target).llvm
    assert "masked.scatter" not in actual
    assert "masked.gather" not in actual
    for n, m in ((1, 1), (16, 40), (37, 70)):
        rng = np.random.default_rng(n)
        arrays = {"x": rng.random((n, m)) + 0.5, "a": rng.random(n), "t": rng.random(m) + 0.5}
        arrays = {name: a.astype("f4") for name, a in arrays.items()}
        wanted = run(code.kernel, list(arrays.values()))["y"]
        np.testing.assert_allclose(code(arrays)["y"], wanted, rtol=1e-5)
