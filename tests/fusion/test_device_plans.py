"""Plans for a GPU: what a dozen programs become, and that every program is planned and lowered."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from tests.explain.test_every_program import MAKERS, SAMPLE
from tests.fusion.formulas import Formula

import smelt as sm
from smelt import fusion, knobs, lower, passes
from smelt.backend.gpus import GPUS, gpu
from smelt.codegen.gpu_backend import GpuBackend
from smelt.fusion.plan import Plan, cluster_sizes
from smelt.fusion.predict import costs
from smelt.graph import interp
from smelt.graph.ir import Graph, Node
from smelt.journal.facts import Journal
from smelt.kernel.ir import Block, Kernel, Split
from smelt.kernel.verify import verify
from smelt.lower.interp import run as run_kernels
from smelt.machine.target import Target
from smelt.ops.spec import dims_at
from smelt.tune.scheduled_gpu import scheduled
from smelt.types.expr import evaluate

DEVICE = scheduled(gpu("sm_90"))
CPU = Target.for_isa("avx512", cores=2)

PLANS = {
    "row A1 row b": (1, 0),
    "row A4 dear": (2, 524_288),
    "row B1": (1, 0),
    "row B2 RMSNorm": (1, 0),
    "row B4 rows": (1, 0),
    "row B4 long": (3, 64),
    "row C2 GELU": (1, 0),
    "row C7": (2, 8_388_608),
    "row C8 head": (1, 0),
    "row D6": (2, 256),
    "row F2 softcap": (3, 65_536_000),
    "row G1 layernorm": (1, 0),
    "row H2 cheap": (4, 0),
    "row H3 waist": (2, 16_777_216),
    "example norm": (1, 0),
}
"""Kernels, and bytes that are written between them, of programs of the catalogue."""


def planned(name: str) -> tuple[Plan, dict[str, int]]:
    trace, sizes = MAKERS[name]()
    graph = passes.run(trace.graph, Journal(), knobs.ROUNDING.get(), sizes, DEVICE.tiling)
    return fusion.plan(graph, DEVICE, Journal(), sizes), sizes


def lowered(plan: Plan, sizes: dict[str, int]) -> list[Kernel]:
    return [
        verify(lower.run(c, knobs.ROUNDING.get(), {**at, **plan.sizes}, DEVICE.tiling))
        for c, at in zip(plan.all_clusters, cluster_sizes(plan, sizes), strict=True)
        if not c.is_extern and c.inner_plan is None
    ]


def stored(plan: Plan, sizes: dict[str, int]) -> int:
    return sum(int(evaluate(s.nbytes, sizes)) for s in plan.slots if s.offset is not None)


@pytest.mark.parametrize("name", PLANS)
def test_plan_of_a_program(name: str):
    plan, sizes = planned(name)
    assert (len(plan.clusters), stored(plan, sizes)) == PLANS[name]


@pytest.mark.parametrize("target", ["4090", "h100"])
def test_conversions_of_both_operands_are_read_together(target: str):
    """One alone costs time where lanes are fast: matrix units take two narrow operands."""

    def wide(x, w):
        return sm.astype(x, sm.float32) @ sm.astype(w, sm.float32)

    shapes = sm.spec("bf16[1024,512]"), sm.spec("bf16[512,1024]")
    graph = sm.jit(wide).lower(*shapes).trace.graph
    assert len(fusion.plan(graph, scheduled(gpu(target)), Journal(), {}).clusters) == 1


def sampled() -> list[object]:
    return [
        pytest.param(
            name,
            id=name.replace(" ", "_"),
            marks=() if zlib.crc32(name.encode()) % SAMPLE == 1 else (pytest.mark.nightly,),
        )
        for name in MAKERS
    ]


@pytest.mark.parametrize("name", sampled())
def test_every_program_is_planned_lowered_and_printed(name: str):
    plan, sizes = planned(name)
    predicted = costs(plan, DEVICE, sizes)
    assert all(c.total >= DEVICE.launch_ns for c in predicted)
    every = {n: k for at in cluster_sizes(plan, sizes) for n, k in at.items()}  # chunks' rows, too
    for kernel in lowered(plan, sizes):
        assert "def launch(" in GpuBackend().text(kernel, "triton", DEVICE, every)


REDUCTIONS = ("B1", "B2 RMSNorm", "B4 rows", "B4 long", "B5 all", "G1 layernorm", "H1 sum")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_schedules_of_a_plan_are_no_slower_than_those_of_its_operators(name: str):
    plan, sizes = planned(f"row {name}")
    apart = fusion.plan(plan.graph, DEVICE, Journal(), sizes, fuse=False)
    fused, separate = (sum(c.total for c in costs(p, DEVICE, sizes)) for p in (plan, apart))
    assert fused <= separate


def linear_cross_entropy(g: Formula) -> Graph:
    """Log-sum-exp over a vocabulary of the product of tokens and weights."""
    x, w = g.input("x", "n", "d"), g.input("w", "d", "v")
    return g.graph(g.logsumexp(g.matmul(x, w)))


def test_a_plan_is_decided_by_the_time_that_its_report_shows():
    """Bytes that hide behind products do not count in the end: a convolution has its ReLU."""
    image, weights = sm.spec("bf16[32,256,28,28]"), sm.spec("bf16[256,256,3,3]")

    def layer(x, w):
        return sm.maximum(sm.nn.conv(x, w, padding=1), 0)

    with sm.config(device_code=False):
        report = sm.explain(layer, image, weights, target="h100")
    (kernel,) = report.data.kernels
    assert kernel.device is not None
    assert kernel.device.planned_ns == pytest.approx(report.data.total.predicted_ns)


@pytest.mark.parametrize("name", ["row B3 training long", "row C7", "row D5 pool", "row F2"])
def test_no_kernels_stay_apart_that_are_faster_as_one(name: str):
    plan, _ = planned(name)
    apart = [d for d in plan.decisions if d.verdict == "split" and d.reason == "cost"]
    assert all(d.fused_ns >= d.split_ns for d in apart if d.fused_ns and d.split_ns)


def test_positions_of_a_scatter_are_computed_once():
    """Each program of a scatter looks at all positions: what they follow from is stored."""

    def scatter(x, i, u):
        return x.at[i].add(u)

    specs = sm.spec("i32[1000]"), sm.spec("i64[1000000]"), sm.spec("i32[1000000]")
    with sm.config(device_code=False):
        report = sm.explain(scatter, *specs, target="h100")
    assert len(report.data.kernels) == 2
    assert report.data.memory.temp == 8_000_000


def test_linear_cross_entropy_is_fused_where_programs_fill_the_device():
    g = Formula(n=8192, d=256, v=32768)
    graph = linear_cross_entropy(g)
    plan = fusion.plan(graph, DEVICE, None, g.sizes)
    assert len(plan.clusters) == 1 and stored(plan, g.sizes) == 0
    long = {**g.sizes, "d": 1024}  # smaller tiles cost more than the logits save: chunks of rows
    chunked = fusion.plan(graph, DEVICE, None, long)
    assert [c.body is None for c in chunked.clusters] == [False, True]
    assert stored(chunked, long) == 8 * g.sizes["n"]
    few = {**g.sizes, "n": 1024}
    separate = fusion.plan(graph, DEVICE, Journal(), few)
    assert len(separate.clusters) == 2
    reasons = {d.reason for d in separate.decisions if d.verdict == "split"}
    assert reasons <= {"lost-parallelism", "recompute-dear"}  # few programs, or small tiles


def test_a_long_row_is_split_into_parts_for_every_processor():
    g = Formula(n=8, m=1 << 18)
    graph = g.graph(g.fold("sum", g.input("x", "n", "m"), 1))
    for machine in (DEVICE, CPU):
        plan = fusion.plan(graph, machine, None, g.sizes)
        (kernel,) = (lower.run(c, "fast", g.sizes, machine.tiling) for c in plan.clusters)
        parts = [int(evaluate(b.parts, g.sizes)) for b in kernel.grid if isinstance(b, Split)]
        rows = [b.axis for b in kernel.grid if isinstance(b, Block)]
        assert rows and parts == ([64] if machine is DEVICE else [])


def norm_of(g: Formula, count: int) -> tuple[list[Node], Node]:
    """Return matrices of several shapes, and the sum of their elements' squares."""
    arrays = [g.input(f"x{k}", f"n{k}", f"m{k}") for k in range(count)]
    g.sizes |= {f"{d}{k}": 512 + 8 * k for k in range(count) for d in "nm"}
    total, *rest = (g.fold("sum", g.of("square", x), 0, 1) for x in arrays)
    for y in rest:
        total = g.of("add", total, y)
    return arrays, total


@pytest.mark.parametrize("count", [3, 20])
def test_no_program_reduces_an_array_alone_beside_others(count: int):
    """The merge of a split reduction is one program, which may not read another array."""
    g = Formula()
    arrays, total = norm_of(g, count)
    plan = fusion.plan(g.graph(total), DEVICE, None, g.sizes)
    for cluster, kernel in zip(plan.clusters, lowered(plan, g.sizes), strict=True):
        assert sum(x in arrays for x in cluster.inputs) <= 1
        assert bool(set(arrays) & set(cluster.inputs)) == any(
            isinstance(b, Split) for b in kernel.grid
        )


def test_reductions_by_one_formula_start_together():
    g = Formula()
    arrays, total = norm_of(g, 100)
    scale = g.of("min", g.of("reciprocal", total), 1.0)
    updates = [g.of("mul", x, g.expand(g.reshape(scale, 1, 1), *x.type.shape)) for x in arrays]
    plan = fusion.plan(g.graph(*updates), DEVICE, None, g.sizes)
    assert [len(group) for group in plan.launches] == [100, 1, 1, 100]


def test_tables_of_small_arrays_are_not_joined_one_by_one():
    """Each join would cost a launch of its own, and the search would try thousands of them."""
    g = Formula()
    arrays, total = norm_of(g, 24)
    g.sizes |= {f"{d}{k}": 4 + k % (7 - i) for k in range(24) for i, d in enumerate("nm")}
    scale = g.of("min", g.of("reciprocal", total), 1.0)
    updates = [g.of("mul", x, g.expand(g.reshape(scale, 1, 1), *x.type.shape)) for x in arrays]
    plan = fusion.plan(g.graph(*updates), DEVICE, None, g.sizes)
    assert [len(group) for group in plan.launches] == [23, 1, 24]


def test_few_small_reductions_are_one_kernel():
    g = Formula()
    _, total = norm_of(g, 4)
    plan = fusion.plan(g.graph(total), DEVICE, None, dict.fromkeys(g.sizes, 8))
    assert len(plan.clusters) == 1


@pytest.mark.parametrize("key", sorted({g.key for g in GPUS.values()}))
def test_more_bytes_are_never_cheaper_in_a_plan(key: str):
    before = 0.0
    for n in (1, 64, 1000, 4096, 1 << 15):
        g = Formula(n=n, m=4096)
        x = g.input("x", "n", "m")
        graph = g.graph(g.of("exp", g.of("add", x, 1.0)))
        plan = fusion.plan(graph, scheduled(gpu(key)), None, g.sizes)
        total = sum(c.total for c in costs(plan, scheduled(gpu(key)), g.sizes))
        assert total >= 0.99 * before  # few programs wait for memory, whatever they read
        before = total


def attention(g: Formula) -> Node:
    q, k, v = g.input("q", "n", "d"), g.input("k", "m", "d"), g.input("v", "m", "d")
    return g.matmul(g.softmax(g.matmul(q, g.permute(k, 1, 0))), v)


def matrix(g: Formula) -> Node:
    return g.input("x", "n", "m")


COMPUTED: dict[str, Callable[[Formula], Node]] = {
    "softmax": lambda g: g.softmax(matrix(g)),
    "softmax of columns": lambda g: g.softmax(matrix(g), 0),
    "norm": lambda g: g.normalised(matrix(g), 1),
    "norm of all": lambda g: g.normalised(matrix(g), 0, 1),
    "sum of columns": lambda g: g.fold("sum", matrix(g), 0),
    "largest position": lambda g: g.fold("argmax", matrix(g), 1),
    "running sum": lambda g: g.scan("sum", matrix(g), 1),
    "product": lambda g: g.of("exp", g.matmul(matrix(g), g.input("w", "m", "d"))),
    "cross-entropy": lambda g: g.logsumexp(
        g.matmul(g.input("x", "n", "d"), g.input("w", "d", "m"))
    ),
    "attention": attention,
}
LARGE = ({"n": 4096, "m": 4096, "d": 64}, {"n": 8, "m": 1 << 18, "d": 64}, {"n": 1, "m": 1, "d": 1})


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("hints", LARGE, ids=["square", "long", "ones"])
def test_kernels_for_a_device_compute_the_program(name: str, hints: dict[str, int]):
    g = Formula(**hints)
    graph = g.graph(COMPUTED[name](g))
    plan = fusion.plan(graph, DEVICE, None, hints)
    kernels = lowered(plan, hints)
    sizes = {"n": 37, "m": 321, "d": 5}
    random = np.random.default_rng(0)
    arrays = [
        random.standard_normal(dims_at(n.type.shape, sizes)).astype(np.float32)
        for n in graph.inputs
    ]
    (actual,) = run_kernels(plan, kernels, arrays, sizes)
    (wanted,) = interp.run(graph, arrays, sizes)
    np.testing.assert_allclose(actual, wanted, 2e-5, 2e-5)
