"""What passes ask the machine: a GPU's answers, with unchanged results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import passes
from smelt.backend.gpus import gpu
from smelt.compiler.device_compiler import plan_for_device
from smelt.graph import interp
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.journal.facts import Journal, OrderChosen
from smelt.kernel.text_print import text as kernel_text
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.ops.contract import Contract

GPU_TILING = gpu("h100").tiling
LAYERS = """graph f(x: f32[b,8,n,n], k: f32[8,3,3], w: f32[256,8]) {
  v0 = exp(x)
  v1 = window(v0) {axis=2, extent=3}
  v2 = window(v1) {axis=3, extent=3}
  v3 = contract(v2, k) {spec="b,c,u,v,i,j; c,i,j -> b,c,u,v"}
  v4 = contract(v3, w) {spec="b,c,u,v; o,c -> b,o,u,v"}
  v5 = reduce.sum(v4) {axes=(2, 3)}
  return v5
}"""
GATED = """graph f(x: f32[n,16], w: f32[16,256]) {
  h = contract(x, w) {spec="n,k; k,c -> n,c"}
  a = slice(h) {starts=(0, 0), sizes=(n, 128), steps=(1, 1)}
  b = slice(h) {starts=(0, 128), sizes=(n, 128), steps=(1, 1)}
  y = mul(a, b)
  return y
}"""


def simplified(source: str, tiling: Tiling, **sizes: int) -> tuple[Graph, Journal]:
    journal = Journal()
    return passes.run(parse(source), journal, "eager", sizes, tiling), journal


def contractions(graph: Graph) -> list[Contract]:
    return [x.op for x in graph.nodes() if isinstance(x.op, Contract)]


def test_images_keep_their_order_on_a_gpu():
    cpu, facts = simplified(LAYERS, CPU_TILING, b=8, n=58)
    (fact,) = facts.of(OrderChosen)
    assert fact.last
    device, facts = simplified(LAYERS, GPU_TILING, b=8, n=58)
    assert not facts.of(OrderChosen)
    assert [op.out[1] for op in contractions(cpu)] == ["u", "u"]
    assert [op.out[1] for op in contractions(device)] == ["c", "o"]


def test_stencils_are_packed_on_a_cpu_alone():
    assert any(op.packed for op in contractions(simplified(LAYERS, CPU_TILING, b=1, n=9)[0]))
    assert not any(op.packed for op in contractions(simplified(LAYERS, GPU_TILING, b=1, n=9)[0]))


@pytest.mark.parametrize(("terms", "is_kept"), [(8, False), (9, True), (64, True)])
def test_a_gpu_unrolls_sums_of_few_products(terms: int, is_kept: bool):
    """Sums along windows are unrolled: neighbouring windows read the same elements."""
    source = f"""graph f(w: f32[{terms},n], u: f32[{terms}], x: f32[n,70]) {{
      v0 = contract(w, u) {{spec="k,i; k -> i"}}
      v1 = window(x) {{axis=1, extent={terms}}}
      v2 = contract(v1, u) {{spec="i,j,k; k -> i,j"}}
      return v0, v2
    }}"""
    of_rows, of_windows = contractions(simplified(source, GPU_TILING, n=100)[0])
    assert of_rows.packed == is_kept and not of_windows.packed
    assert not any(op.packed for op in contractions(simplified(source, CPU_TILING, n=100)[0]))
    arrays = [np.random.default_rng(2).standard_normal(s) for s in ((terms, 5), terms, (5, 70))]
    inputs: list[Any] = [a.astype(np.float32) for a in arrays]
    results = [interp.run(simplified(source, t, n=5)[0], inputs) for t in (CPU_TILING, GPU_TILING)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "on_cpu", "on_gpu"), [(100, 1, 1), (200, 2, 1), (300, 2, 2)])
def test_gated_products_are_split_by_the_rows_of_a_tile(rows: int, on_cpu: int, on_gpu: int):
    half = GATED.replace("f32", "bf16")
    counts = [len(contractions(simplified(half, t, n=rows)[0])) for t in (CPU_TILING, GPU_TILING)]
    assert counts == [on_cpu, on_gpu]
    narrow = replace(GPU_TILING, min_gated_columns=129)
    assert len(contractions(simplified(half, narrow, n=rows)[0])) == 1


@pytest.mark.parametrize(("rows", "count"), [(128 * 263, 1), (128 * 264, 2)])
def test_gated_float32_products_are_split_where_every_processor_has_programs(rows: int, count: int):
    """Two for each of 132: without matrix units, arithmetic is the time of a product."""
    graph, _ = simplified(GATED, GPU_TILING, n=rows)
    assert len(contractions(graph)) == count


@pytest.mark.parametrize("source", [LAYERS, GATED], ids=["layers", "gated"])
def test_results_do_not_depend_on_the_machine(source: str):
    draw = np.random.default_rng(1).standard_normal
    sizes = {"b": 2, "n": 300 if source is GATED else 7}
    shapes = [(300, 16), (16, 256)] if source is GATED else [(2, 8, 7, 7), (8, 3, 3), (256, 8)]
    arrays: list[Any] = [draw(s).astype(np.float32) for s in shapes]
    results = [
        interp.run(simplified(source, t, **sizes)[0], arrays)[0] for t in (CPU_TILING, GPU_TILING)
    ]
    np.testing.assert_allclose(*results, rtol=2e-4, atol=1e-5)


def blocks(x: Any, k: Any, w: Any) -> Any:
    y = sm.nn.relu(sm.nn.conv(sm.exp(x), k, padding=1, groups=8))
    return sm.nn.relu(sm.nn.conv(y, w))


def test_a_report_has_the_kernels_that_the_device_runs():
    specs = [sm.spec("f32[4,8,28,28]"), sm.spec("f32[8,1,3,3]"), sm.spec("f32[64,8,1,1]")]
    report = sm.explain(blocks, *specs, target="sm_90")
    trace = sm.jit(blocks).lower(*specs).trace
    ran = plan_for_device(trace.graph, trace.hints, gpu("sm_90"), None, Journal())
    shown = [kernel_text(k.kernel) for k in report.kernels if k.kernel is not None]
    assert shown == [kernel_text(k) for k in ran.kernels]
    host = sm.explain(blocks, *specs)
    assert text(report.compiled.graph) != text(host.compiled.graph)


def running(x: Any, decay: Any) -> Any:
    def step(carry: Any, at: Any) -> tuple[Any, Any]:
        carry = carry * decay + at
        return carry, carry

    return sm.tanh(sm.scan(step, sm.zeros_like(decay), sm.exp(x))[1])


@pytest.mark.parametrize(("channels", "on_cpu", "on_gpu"), [(4096, 2, 4), (1 << 15, 2, 2)])
def test_steps_take_costly_neighbours_where_every_processor_has_a_part(
    channels: int, on_cpu: int, on_gpu: int
):
    specs = [sm.spec(f"f32[64,{channels}]"), sm.spec(f"f32[{channels}]")]
    reports = [sm.explain(running, *specs, target=t) for t in ("avx512", "sm_90")]
    assert [len(r.kernels) for r in reports] == [on_cpu, on_gpu]


def test_a_report_for_another_cpu_has_the_passes_of_a_cpu():
    specs = [sm.spec("f32[4,8,28,28]"), sm.spec("f32[8,1,3,3]"), sm.spec("f32[64,8,1,1]")]
    host, other = (sm.explain(blocks, *specs, target=t) for t in ("avx512", "neon"))
    assert text(host.compiled.graph) == text(other.compiled.graph)
