"""Column ranges of a product as results: all interpreters agree, also at remainders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse
from tests.codegen.llvm.test_direct_store import one_cluster

import smelt as sm
from smelt import lower
from smelt.codegen.build import build
from smelt.codegen.llvm.loopir.store_ranges import Range, stored_range
from smelt.codegen.llvm.products.direct_store import stored_products
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.fusion.range_outputs import MAX_RANGES, cluster_parts
from smelt.graph.text import parse
from smelt.kernel.interp import run as interpret
from smelt.kernel.text import parse as parse_kernel
from smelt.kernel.text_print import text
from smelt.machine.target import Target
from smelt.types.expr import evaluate

THIRDS = """graph f(x: {t}[m,k], w: {t}[k,3*n]) {{
  v0 = contract(x, w) {{spec="m,k; k,n -> m,n"}}
  q = slice(v0) {{starts=(0, 0), sizes=(m, n), steps=(1, 1)}}
  r = slice(v0) {{starts=(0, n), sizes=(m, n), steps=(1, 1)}}
  s = slice(v0) {{starts=(0, 2*n), sizes=(m, n), steps=(1, 1)}}
  return q, r, s
}}"""
BIASED = """graph f(x: f32[m,k], w: f32[k,n + 21], b: f32[n + 21]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = add(v0, b)
  q = slice(v1) {starts=(0, 0), sizes=(m, n), steps=(1, 1)}
  r = slice(v1) {starts=(0, n), sizes=(m, 20), steps=(1, 1)}
  s = slice(v1) {starts=(0, n + 20), sizes=(m, 1), steps=(1, 1)}
  return q, r, s
}"""
WHOLE = """graph f(x: f32[m,k], w: f32[k,n + 5]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  q = slice(v0) {starts=(0, 3), sizes=(m, n), steps=(1, 1)}
  r = slice(v0) {starts=(0, 1), sizes=(m, n), steps=(1, 1)}
  return v0, q, r
}"""
"""Ranges that share elements, and everything as well."""
ROWS = """graph f(x: f32[m + 7,k], w: f32[k,n + 9]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  q = slice(v0) {starts=(0, 0), sizes=(7, n), steps=(1, 1)}
  r = slice(v0) {starts=(7, n), sizes=(m, 9), steps=(1, 1)}
  s = slice(v0) {starts=(7, 0), sizes=(m, n), steps=(1, 1)}
  return q, r, s
}"""
"""Ranges of rows, and of both."""
TURNED = """graph f(x: f32[m,k], w: f32[k,2*n]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = permute(v0) {perm=(1, 0)}
  q = slice(v1) {starts=(0, 0), sizes=(n, m), steps=(1, 1)}
  r = slice(v1) {starts=(n, 0), sizes=(n, m), steps=(1, 1)}
  return q, r
}"""
BATCH = """graph f(x: f32[b,m,k], w: f32[b,k,2*n]) {
  v0 = contract(x, w) {spec="b,m,k; b,k,n -> b,m,n"}
  v1 = tanh(v0)
  q = slice(v1) {starts=(0, 0, 0), sizes=(b, m, n), steps=(1, 1, 1)}
  r = slice(v1) {starts=(0, 0, n), sizes=(b, m, n), steps=(1, 1, 1)}
  return q, r
}"""
SHAPES = [
    (1, 5, 1),
    (3, 17, 16),
    (9, 300, 5),
    (33, 40, 64),
    (130, 33, 33),
    (40, 600, 96),
    (260, 16, 11),
    (64, 96, 171),
    (300, 400, 130),
]


def random(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Numbers about zero."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _inputs(kernel: SingleKernel, m: int, k: int, n: int) -> list[Any]:
    """Arrays for a graph of these sizes."""
    sizes = {"m": m, "k": k, "n": n, "b": 2}
    shapes = [
        [int(d) if isinstance(d, int) else _size(d, sizes) for d in p.shape]
        for p in kernel.kernel.inputs
    ]
    kinds = [p.dtype.numpy for p in kernel.kernel.inputs]
    return [random(tuple(s), seed=j).astype(t) for j, (s, t) in enumerate(zip(shapes, kinds))]


def _size(e: Any, sizes: dict[str, int]) -> int:
    return int(evaluate(e, sizes))


def _check(kernel: SingleKernel, arrays: list[Any]) -> None:
    """What all judges say of some arrays."""
    wanted = kernel.expected(*arrays)
    depth = arrays[0].shape[-1]
    apart = 1e-5 * depth if arrays[0].dtype == np.float32 else 1e-12 * depth
    collected = {
        "code": kernel(*arrays),
        "last first": run_guarded(kernel, arrays, at_end=False),
        "guarded": run_guarded(kernel, arrays, at_end=True, one_by_one=True),
    }
    for how, results in collected.items():
        for one, other in zip(results, wanted, strict=True):
            assert one.shape == other.shape, how
            np.testing.assert_allclose(one, other, atol=apart, err_msg=how)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    "source",
    [THIRDS.format(t="f32"), THIRDS.format(t="f64"), BIASED, WHOLE, ROWS, TURNED, BATCH],
    ids=["thirds", "f64", "biased", "whole", "rows", "transposed", "batch"],
)
def test_ranges_are_stored_where_they_belong(source: str, isa: str) -> None:
    kernel = fuse(source, isa)
    assert any("where" in line for line in text(kernel.kernel).splitlines())
    assert parse_kernel(text(kernel.kernel)) == kernel.kernel
    for m, k, n in SHAPES:
        _check(kernel, _inputs(kernel, m, k, n))


def test_past_the_caches() -> None:
    kernel = fuse(THIRDS.format(t="f32"), streaming=True)
    for m, k, n in ((40, 40, 64), (33, 20, 21), (260, 16, 11)):
        _check(kernel, _inputs(kernel, m, k, n))


@pytest.mark.parametrize("source", [THIRDS.format(t="f32"), BIASED, WHOLE, ROWS, BATCH])
def test_the_interpreter_sees_each_element_stored_once(source: str) -> None:
    kernel = fuse(source)
    arrays = _inputs(kernel, 5, 6, 7)
    result = interpret(kernel.kernel, arrays, {"m": 5, "k": 6, "n": 7, "b": 2})
    for one, other in zip(result.values(), kernel.expected(*arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_what_is_no_number_stays_where_it_is() -> None:
    kernel = fuse(THIRDS.format(t="f32"))
    x, w = _inputs(kernel, 40, 30, 33)
    x[3], x[7, 2], x[9, 1] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        wanted = kernel.expected(x, w)
    for one, other in zip(kernel(x, w), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_tiles_write_into_the_range_that_holds_them() -> None:
    cluster = one_cluster(parse(THIRDS.format(t="f32")))
    kernel = lower.run(cluster, "eager", {"m": 64, "k": 64, "n": 64})
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    ((_, stores),) = stored_products(
        nests, phase.dtypes | {p.name: p.dtype for p in kernel.outputs}
    )
    assert len(stores) == 3
    axis = cluster.nodes[0].type.shape[1]
    ranges = [stored_range(s) for s in stores]
    assert ranges[0] is not None and ranges[0].first == 0
    assert ranges[2] == Range(ranges[0].axis, ranges[2].first if ranges[2] else 0, None)
    assert phase.axes[ranges[0].axis] == axis


def _cut(parts: int, between: str = "") -> str:
    """A biased product of so many ranges of n columns each, with something left out between."""
    wide = f"{parts}*n + {parts}" if between else f"{parts}*n"
    starts = [f"{j}*n + {j}" if between else f"{j}*n" for j in range(parts)]
    slices = "".join(
        f"  r{j} = slice(v1) {{starts=(0, {at}), sizes=(m, n), steps=(1, 1)}}\n"
        for j, at in enumerate(starts)
    )
    results = ", ".join(f"r{j}" for j in range(parts))
    return f"""graph f(x: f32[m,k], w: f32[k,{wide}], b: f32[{wide}]) {{
  v0 = contract(x, w) {{spec="m,k; k,n -> m,n"}}
  v1 = add(v0, b)
{slices}  return {results}
}}"""


FORMS = ["", "small_m", "k_blocked", "panels", "tall_skinny"]


@pytest.mark.parametrize("variant", FORMS)
def test_ranges_are_little_code(variant: str) -> None:
    """A range takes few comparisons per tile and one store beside all tiles."""
    target = Target.for_isa("avx512")
    lines: dict[int, int] = {}
    for parts in (1, 2, 8):
        cluster = one_cluster(parse(_cut(parts)))
        kernel = lower.run(cluster, "eager", {"m": 512, "k": 256, "n": 256})
        lines[parts] = build(kernel, target, variant=variant).ir_size
    print(variant, lines)
    assert lines[8] - lines[2] < 6 * 450
    assert lines[2] < 1.6 * lines[1]


@pytest.mark.parametrize("between", ["", "gaps"])
@pytest.mark.parametrize("isa", RUNNABLE)
def test_tiles_overlap_one_range_several_or_none(isa: str, between: str) -> None:
    """Rows and columns of every form of code, whose tiles are whole, broken, or cut by ranges."""
    kernel = fuse(_cut(3, between), isa)
    for m, k, n in (
        (40, 300, 64),
        (29, 200, 37),
        (130, 520, 33),
        (512, 40, 96),
        (300, 300, 50),
        (17, 130, 3),
        (1, 130, 33),
        (1000, 9, 5),
    ):
        _check(kernel, _inputs(kernel, m, k, n))


def test_only_whole_runs_are_ranges() -> None:
    source = """graph f(x: f32[m,k], w: f32[k,2*n]) {
      v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
      q = slice(v0) {starts=(0, 0), sizes=(m, n), steps=(1, 2)}
      r = expand(v0) {shape=(3, m, 2*n)}
      return v0, q, r
    }"""
    assert not cluster_parts(one_cluster(parse(source)))


def _projections(x: Any, w: Any, b: Any) -> Any:
    h = x @ w + b
    n = h.shape[-1] // 3
    return h[..., :n], h[..., n : 2 * n], h[..., 2 * n :]


def _twice(x: Any, w: Any, b: Any) -> Any:
    h = x @ w + b
    return h[:, 2:9], h[:, 2:9], h[:, 9:9], h[:, 0], h


@pytest.mark.parametrize("shape", [(512, 256, 1536), (256, 512, 768)])
def test_projections_are_one_kernel(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    arrays = [random((m, k)), random((k, n), seed=1), random((n,), seed=2)]
    report = sm.explain(_projections, *arrays)
    assert len(report.kernels) == 1
    for one, other in zip(sm.jit(_projections)(*arrays), _projections(*arrays), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("n", [10, 16, 63])
def test_empty_single_and_repeated_ranges(n: int) -> None:
    arrays = [random((20, 30)), random((30, n), seed=1), random((n,), seed=2)]
    for one, other in zip(sm.jit(_twice)(*arrays), _twice(*arrays), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_ranges_may_have_no_elements() -> None:
    for n in (1, 2, 3, 4):  # thirds of one column: two of them are empty
        arrays = [random((20, 30)), random((30, n), seed=1), random((n,), seed=2)]
        for one, other in zip(sm.jit(_projections)(*arrays), _projections(*arrays), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("parts", [MAX_RANGES, MAX_RANGES + 1, 64])
def test_values_cut_into_many_ranges_are_copied(parts: int) -> None:
    """Each is asked about by every tile."""

    def cut(x: Any, w: Any) -> Any:
        h = x @ w
        n = h.shape[-1] // parts
        return tuple(h[:, k * n : (k + 1) * n] for k in range(parts))

    arrays = [random((512, 64)), random((64, 4 * parts), seed=1)]
    assert (len(sm.explain(cut, *arrays).kernels) == 1) == (parts <= MAX_RANGES)
    for one, other in zip(sm.jit(cut)(*arrays), cut(*arrays), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(32, 64, 16), (33, 20, 40), (70, 8, 50)])
def test_ranges_of_running_sums_begin_where_these_do(axis: int, shape: tuple[int, ...]) -> None:
    def running(x: Any, w: Any, total: Any = sm.cumulative_sum) -> Any:
        h = total(x @ w, axis=axis)
        return h[:, 8:16], h[16:30, 5:], h[20:], h

    m, k, n = shape
    arrays = [random((m, k)), random((k, n), seed=1)]
    assert len(sm.explain(running, *arrays).kernels) == 1
    for one, other in zip(
        sm.jit(running)(*arrays), running(arrays[0], arrays[1], np.cumsum), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-3)


def _total(x: Any, w: Any) -> Any:
    """A number and the same under another shape: a range of all there is, of another rank."""
    result = sm.sum(sm.exp(sm.nn.softmax(x @ w) @ sm.matrix_transpose(w)))
    return result, sm.reshape(result, (1,))


def _attended(x: Any, w: Any) -> Any:
    result = sm.nn.softmax(x @ w) @ sm.matrix_transpose(w)
    return result[:, :8], result[:, 8:], result


def _lower(x: Any, w: Any) -> Any:
    result = sm.nn.softmax(x @ w) @ sm.matrix_transpose(w)
    return sm.matrix_transpose(result)[8:], sm.reshape(result, (-1, 1)), result[3:5, None, 2:7]


@pytest.mark.parametrize("f", [_total, _attended, _lower])
def test_what_is_streamed_is_cut_into_ranges(f: Any) -> None:
    rng = np.random.default_rng(3)
    x, w = (0.3 * rng.standard_normal(s).astype("f4") for s in ((40, 16), (16, 300)))
    weights = np.exp((x @ w).astype("f8"))
    whole = weights / weights.sum(1, keepdims=True) @ w.T
    wanted = {
        _total: (np.exp(whole).sum(), np.exp(whole).sum(keepdims=True).ravel()),
        _attended: (whole[:, :8], whole[:, 8:], whole),
        _lower: (whole.T[8:], whole.reshape(-1, 1), whole[3:5, None, 2:7]),
    }[f]
    for got, want in zip(sm.jit(f)(x, w), wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)


def test_a_transposed_copy_is_not_written_over_its_input() -> None:
    rng = np.random.default_rng(4)
    x, w, r = (rng.standard_normal((48, 48)).astype("f4") for _ in range(3))

    def f(x: Any, w: Any, r: Any) -> Any:
        h = x @ w + r
        return sm.matrix_transpose(h), h

    wanted = x @ w + r
    transposed, h = sm.jit(f, donate=("r",))(*map(sm.asarray, (x, w)), sm.asarray(r, copy=True))
    np.testing.assert_allclose(np.asarray(h), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(transposed), np.asarray(h).T)
