"""Several products in one kernel: separate if nothing reads both, else together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse
from tests.codegen.llvm.test_contractions import matrices, whole_numbers
from tests.codegen.llvm.variants import forced

import smelt as sm
from smelt.codegen.build import build, code_variants, select_variant
from smelt.codegen.llvm.module import emit
from smelt.compiler import driver
from smelt.fusion import plan
from smelt.graph.text import parse
from smelt.kernel.artifact import Variant, competing_candidates
from smelt.machine.blocks import GEMV, ISSUE_BOUND, ONE_PASS, SMALL_M, TSMM, UNPACKED
from smelt.runtime.code import load
from smelt.types.expr import evaluate

PLAIN = matrices("f32", "m,k; k,n -> m,n")
ISAS = [isa for isa in RUNNABLE if any(c.variant == "panels" for c in fuse(PLAIN, isa).variants)]
pytestmark = pytest.mark.skipif(not ISAS, reason="no set of instructions with enough registers")

BESIDE = """graph f(x: f32[m,k], a: f32[k,n], b: f32[k,p], c: f32[p]) {
  q = contract(x, a) {spec="m,k; k,n -> m,n"}
  s = contract(x, b) {spec="m,k; k,p -> m,p"}
  v = add(s, c)
  return q, v
}"""
TOGETHER = """graph f(x: f32[m,k], a: f32[{a}], y: f32[m,j], b: f32[{b}], r: f32[m,n]) {{
  q = contract(x, a) {{spec="m,k; {a} -> m,n"}}
  s = contract(y, b) {{spec="m,j; {b} -> m,n"}}
  {reads}
  return t, s
}}"""
READS = {"soon": "t = mul(q, s)", "later": "u = neg(q)\n  v = mul(u, s)\n  t = add(v, r)"}
FORMS = ("tall_skinny", "panels", "k_blocked")
SIZES = (
    (1, 1, 1, 0),
    (9, 33, 5, 7),
    (49, 31, 17, 1),
    (7, 65, 0, 3),
    (70, 47, 16, 200),
    (50, 100, 20, 9),
)


def test_products_beside_one_another_have_tasks_of_their_own() -> None:
    kernel = fuse(BESIDE, ISAS[0])
    built = emit(kernel.kernel, kernel.target, variant="panels")
    assert len(built.entries) == 2
    assert len(emit(kernel.kernel, kernel.target).entries) == 1
    least = {"m": UNPACKED.mc + 1, "n": 300, "p": 100, "k": 90}
    assert select_variant(kernel.variants, least) == "panels"
    assert select_variant(kernel.variants, {**least, "k": ONE_PASS.depth + 1}) in ("", "k_blocked")


@pytest.mark.parametrize("variant", FORMS)
def test_beside_one_another(variant: str) -> None:
    kernel = forced(BESIDE, ISAS[0], variant)
    for m, n, k, p in ((1, 1, 0, 1), (9, 33, 5, 70), (60, 16, 33, 100)):
        arrays = [whole_numbers(s, "f4", m) for s in ((m, k), (k, n), (k, p), (p,))]
        read = _in_order(kernel, arrays)
        sizes = {"m": m, "n": n, "k": k, "p": p}
        result = run_guarded(kernel, read, at_end=True, sizes=sizes)
        for got, wanted in zip(result, kernel.expected(*arrays), strict=True):
            assert np.array_equal(got, wanted), (m, n, k, p)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("variant", [*FORMS, "small_m"])
def test_together(variant: str, reads: str) -> None:
    mixed, alike = (("k,n", "n,j"), ("n,k", "j,n")), (("k,n", "j,n"), ("n,k", "n,j"))
    for a, b in alike if variant == "small_m" else mixed:
        kernel = forced(TOGETHER.format(a=a, b=b, reads=READS[reads]), ISAS[0], variant)
        for m, n, k, j in SIZES:
            at = {"m": m, "n": n, "k": k, "j": j}
            shapes = ("m,k", a, "m,j", b, "m,n")
            arrays = [whole_numbers(tuple(at[x] for x in s.split(",")), "f4", m) for s in shapes]
            result = run_guarded(kernel, _in_order(kernel, arrays), at_end=True, sizes=at)
            for got, wanted in zip(result, kernel.expected(*arrays), strict=True):
                assert np.array_equal(got, wanted), (a, b, m, n, k, j)


@pytest.mark.parametrize("weights", ["k,n", "n,k"])
@pytest.mark.parametrize("variant", ["small_m", "k_blocked"])
def test_rows_are_packed_once_for_all_that_read_them(variant: str, weights: str) -> None:
    """Also where another product stands between, and for sums of several blocks."""
    three, apart = (_shared(weights, second, variant) for second in ("x", "z"))
    at = {"m": 96, "n": 300, "k": 700}
    scratch = [evaluate(c.built.functions[0].scratch, at) for c in (three, apart)]
    assert scratch[1] - scratch[0] >= 4 * 96 * 90  # the rows of a block at least
    for m, n, k in (
        *(s[:3] for s in SIZES),
        (97, 150, 0),
        (13, 33, 2 * ISSUE_BOUND.kc + 1),
        (UNPACKED.mc, 40, SMALL_M.kc + 3),
        (ISSUE_BOUND.mc + 5, 19, 6),
    ):
        if variant == "small_m" and m > UNPACKED.mc:
            continue
        at = {"m": m, "n": n, "k": k}
        for kernel in (three, apart):
            shapes = (*["m,k"] * 3, *[weights] * 3)
            arrays = [
                whole_numbers(tuple(at[d] for d in shape.split(",")), "f4", i)
                for i, shape in enumerate(shapes)
            ]
            read = _in_order(kernel, arrays)
            result = run_guarded(kernel, read, at_end=True, sizes=at)
            for got, wanted in zip(result, kernel.expected(*arrays), strict=True):
                assert np.array_equal(got, wanted), (m, n, k)


SHARED = """graph f(x: f32[m,k], y: f32[m,k], z: f32[m,k], a: f32[{w}], b: f32[{w}], c: f32[{w}]) {{
  q = contract(x, a) {{spec="m,k; {w} -> m,n"}}
  s = contract(y, b) {{spec="m,k; {w} -> m,n"}}
  u = contract({second}, c) {{spec="m,k; {w} -> m,n"}}
  v = mul(q, s)
  t = sub(v, u)
  return t, q
}}"""


def _shared(weights: str, second: str, variant: Variant) -> SingleKernel:
    """Compile three products for a machine that copies rows.

    Two have the same rows if `second` is "x"; the machine starts few instructions.
    """
    plain = fuse(SHARED.format(w=weights, second=second), ISAS[0])
    target = replace(plain.target, l1_bytes=32 << 10, cpu="skylake-avx512")
    assert variant in [name for name, *_ in code_variants(plain.kernel, target)]
    built = build(plain.kernel, target, variant=variant)
    loaded = load(built.code, [f.symbol for f in built.functions])
    return replace(plain, target=target, built=built, loaded=loaded, variants=())


def test_few_rows_of_those_together() -> None:
    for w in ("k,n", "n,k"):
        actual = fuse(SHARED.format(w=w, second="x"), ISAS[0]).variants
        least = {"m": GEMV.rows + 1, "n": 3000, "k": 500}
        for m, is_possible in (
            (GEMV.rows, False),
            (GEMV.rows + 1, True),
            (UNPACKED.mc, True),
            (UNPACKED.mc + 1, False),
        ):
            possible = [c.variant for c in competing_candidates(actual, {**least, "m": m})]
            assert ("small_m" in possible) == is_possible
        assert select_variant(actual, {**least, "m": 32}) == "small_m"
    mixed = fuse(TOGETHER.format(a="k,n", b="n,j", reads=READS["soon"]), ISAS[0])
    assert "small_m" not in [variant for variant, *_ in mixed.variants]


def test_limits_of_those_together_count_all_sums() -> None:
    kernel = fuse(TOGETHER.format(a="k,n", b="j,n", reads=READS["soon"]), ISAS[0])
    least = {
        "m": UNPACKED.mc + 1,
        "n": TSMM.columns + 1,
        "k": ONE_PASS.depth // 2,
        "j": ONE_PASS.depth // 2,
    }
    for more in (0, 1):
        sizes = {**least, "j": ONE_PASS.depth // 2 + more}
        possible = [c.variant for c in competing_candidates(kernel.variants, sizes)]
        assert ("panels" in possible) == (more == 0)


@pytest.mark.parametrize("k", [90, 700])
def test_same_bits_as_apart_for_any_threads(k: int) -> None:
    """Sums have their order whatever is computed beside them."""
    rng = np.random.default_rng(3)
    x, a, b = (rng.standard_normal(s).astype("f4") for s in ((430, k), (k, 230), (230, k)))
    f = sm.jit(lambda x, a, b: (x @ a) * (x @ b.T))
    actual: list[bytes] = []
    for threads in (1, 2, 3):
        with sm.config(threads=threads):
            actual.append(np.asarray(f(x, a, b)).tobytes())
    one, other = (np.asarray(sm.jit(lambda x, w: x @ w)(x, w)) for w in (a, b.T))
    assert set(actual) == {(one * other).tobytes()}


def _in_order(kernel: object, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays as the kernel takes them."""
    by_name = {str(n.op.label): x for n, x in zip(kernel.graph.inputs, arrays, strict=True)}  # type: ignore[attr-defined]
    return [by_name[p.name] for p in kernel.kernel.inputs]  # type: ignore[attr-defined]


IN_PLACE = """graph f(x: f32[m,k], a: f32[k,n], b: f32[k,n], r: f32[m,n], u: f32[m,n]) {{
  q = contract(x, a) {{spec="m,k; k,n -> m,n"}}
  s = contract(x, b) {{spec="m,k; k,n -> m,n"}}
  t = add(q, r)
  v = mul(s, {other})
  w = add(v, u)
  return t, w
}}"""


def test_what_another_product_s_tasks_read_is_not_written_over() -> None:
    """Each has tasks of its own, one after the other: the first would have written it by then."""
    sizes = {"m": 300, "n": 300, "k": 64}
    shapes = ((300, 64), (64, 300), (64, 300), (300, 300), (300, 300))
    for other, taken in (("r", {4}), ("u", {3, 4})):
        graph = parse(IN_PLACE.format(other=other))
        target = fuse(IN_PLACE.format(other=other), ISAS[0]).target
        fused_plan = plan(graph, target, None, sizes, donated=dict.fromkeys(graph.inputs[3:]))
        assert len(fused_plan.clusters) == 1
        assert {s.reuses for s in fused_plan.slots if s.reuses} == {graph.inputs[k] for k in taken}
        arrays = [whole_numbers(shape, "f4", k) for k, shape in enumerate(shapes)]
        wanted = driver.compile(graph, hints=sizes)
        order = tuple(sizes[name] for name in wanted.size_names)
        expected = [np.array(x) for x in wanted.run(arrays, order)]
        got = driver.compile(graph, hints=sizes, donate=(3, 4)).run(arrays, order)
        assert all(map(np.array_equal, got, expected))


def test_code_is_keyed_by_what_decides_its_variants() -> None:
    """Caches among it, whose sizes are not part of the instruction set."""
    kernel = fuse(PLAIN, ISAS[0])
    stem = driver.identify(kernel.kernel, kernel.target).stem
    for name in ("l1_bytes", "l2_bytes"):
        other = replace(kernel.target, **{name: getattr(kernel.target, name) // 2})
        assert driver.identify(kernel.kernel, other).stem != stem
