"""Random programs and gradients, planned for a GPU, compute what the graph's interpreter does.

Plans have several kernels; the printed ones run in the checked emulation of Triton. They are
planned for the sizes of the arrays, and for larger ones: rows are then looped over, axes split, and
results of scatters stored in launches of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from tests.codegen.checked_triton import launch
from tests.codegen.device_catalogue import DevicePlan, planned
from tests.codegen.drawn_schedules import choices, drawn, low_limits, mechanisms, small_device
from tests.codegen.test_triton_catalogue import extra_sizes, sources_of
from tests.codegen.test_triton_goldens import stored
from tests.property.oracles import agree, interpret, sizes_at, spread
from tests.strategies.effort import NIGHT, NIGHTLY, start
from tests.strategies.graphs import Program, graphs

from smelt.autodiff import gradient
from smelt.backend.gpus import gpu
from smelt.errors import DeviceKernelError, GradientError
from smelt.fusion.plan import cluster_sizes
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.graph.verify import verify
from smelt.lower import interp as plans
from smelt.ops.spec import dims_at
from smelt.tune.scheduled_gpu import scheduled
from smelt.types.dtype import bool_, f32, i32

pytestmark = [*NIGHT, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
CASES = 2000 if NIGHTLY else 24
"""Programs of each of the parts below."""
LARGER = {"small": 1, "looped": 700, "split": 40_000}
"""How often larger the sizes are that a program is planned for."""


Sources = Callable[[DevicePlan, Sequence[Mapping[str, int]]], dict[int, str]]
"""Prints the kernels of a plan with some of their schedules."""


def emulated(
    graph: Graph,
    arrays: Sequence[Any],
    sizes: Mapping[str, int],
    larger: int,
    arch: str,
    print_sources: Sources = sources_of,
) -> list[Any]:
    """Return the results of a program whose kernels are printed for larger sizes."""
    large = {name: n * larger for name, n in sizes.items()}
    plan = planned(SimpleNamespace(graph=graph), large, scheduled(gpu(arch)))
    sources = print_sources(plan, cluster_sizes(plan.plan, sizes))

    def run(kernel: Any, operands: Sequence[Any], sizes: Mapping[str, int]) -> dict[str, Any]:
        source = sources[id(kernel)]
        inputs = [stored(p, np.asarray(a)) for p, a in zip(kernel.inputs, operands, strict=True)]
        outputs = launch(source, inputs, **extra_sizes(source, sizes))
        return {p.name: np.asarray(y) for p, y in zip(kernel.outputs, outputs, strict=True)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "interp", SimpleNamespace(run=run))
        return plans.run(plan.plan, plan.kernels, arrays, sizes)


def complaint(
    graph: Graph,
    arrays: Sequence[Any],
    larger: int,
    arch: str = "sm_90",
    print_sources: Sources = sources_of,
    sizes: Mapping[str, int] | None = None,
) -> str:
    """Return where the emulated results differ from the interpreter's; empty if nowhere."""
    sizes = sizes_at(graph, arrays) if sizes is None else sizes
    wanted, allowed = interpret(graph, arrays, sizes), spread(graph, arrays, sizes)
    results = emulated(graph, arrays, sizes, larger, arch, print_sources)
    for k, (a, b) in enumerate(zip(wanted, results, strict=True)):
        problem = agree(a, np.asarray(b).astype(a.dtype), allowed[k])
        if problem:
            return f"output {k}: {problem}\n{text(graph)}"
    return ""


def with_gradients(program: Program) -> Program | None:
    """Return a program that also computes the gradients of its floats; None without any."""
    graph, arrays = program
    by = [x for x in graph.inputs if x.type.dtype.is_float]
    if not by or not any(y.type.dtype.is_float for y in graph.outputs):
        return None
    try:
        whole = verify(gradient(graph, by))
    except GradientError:
        return None
    sizes, random = sizes_at(graph, arrays), np.random.default_rng(0)
    slopes = [
        random.uniform(0.5, 1.5, dims_at(x.type.shape, sizes)).astype(x.type.dtype.numpy)
        for x in whole.inputs[len(arrays) :]
    ]
    return Program(whole, [*arrays, *slopes])


def judge(
    program: Program,
    larger: int,
    arch: str,
    seen: Counter[str],
    print_sources: Sources = sources_of,
) -> None:
    """Compare a program's results; count those that no kernel can be printed for."""
    try:
        problem = complaint(*program, larger, arch, print_sources)
    except DeviceKernelError:
        seen["refused"] += 1
        return
    seen["judged"] += 1
    assert not problem, problem


MANY = settings(
    max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize("larger", LARGER)
def test_a_random_program_computes_the_same(larger, arch):
    seen: Counter[str] = Counter()

    @seed(start(len(larger)))
    @MANY
    @given(graphs(max_nodes=10))
    def check(program: Program) -> None:
        if not any(node.op.name == "scan.prod" for node in program.graph.nodes()):
            judge(program, LARGER[larger], arch, seen)  # a scan's products may underflow in a tree

    check()
    assert seen["refused"] <= 0.02 * seen["judged"]


REACHED = {
    "small": ("merged grid", "lanes along several axes"),
    "looped": ("merged grid", "loop"),
    "split": ("loop", "parts", "merge"),
}
"""What programs of a size have among their launches and schedules."""


@pytest.mark.parametrize("larger", LARGER)
def test_a_random_program_with_any_of_its_schedules_computes_the_same(larger):
    """On devices with few processors and registers, on which little is long."""
    seen: Counter[str] = Counter()

    def print_drawn(random: np.random.Generator) -> Sources:
        device = small_device(random)

        def sources(plan: DevicePlan, small: Sequence[Mapping[str, int]]) -> dict[int, str]:
            result: dict[int, str] = {}
            for kernel, sizes, of_call in zip(plan.kernels, plan.sizes, small, strict=True):
                if kernel is not None:
                    chosen, result[id(kernel)] = drawn(random, kernel, sizes, of_call, device)
                    seen.update(what for c in chosen for what in mechanisms(c))
            return result

        return sources

    @seed(start(100 + len(larger)))
    @MANY
    @given(graphs(max_nodes=8), choices())
    def check(program: Program, random: np.random.Generator) -> None:
        if not any(node.op.name == "scan.prod" for node in program.graph.nodes()):
            with low_limits():
                judge(program, LARGER[larger], "sm_90", seen, print_drawn(random))

    check()
    assert seen["refused"] <= 0.02 * seen["judged"]
    assert not set(REACHED[larger]) - set(seen), seen


@pytest.mark.parametrize("larger", LARGER)
def test_gradients_of_a_random_program_compute_the_same(larger):
    seen: Counter[str] = Counter()

    @seed(start(50 + len(larger)))
    @MANY
    @given(graphs(max_nodes=8, dtypes=(f32, f32, i32, bool_), flavours=("normal",)))
    def check(program: Program) -> None:
        whole = with_gradients(program)
        if whole is not None:
            judge(whole, LARGER[larger], "sm_90", seen)

    check()
    assert seen["judged"] > 0.2 * CASES and seen["refused"] <= 0.02 * seen["judged"]


FOUND = {
    "argmin of truth values in a loop": """graph f(x: bool[n,m]) {
        require 1 <= m
        a = reduce.argmin(x) {axes=(1,)}
        return a
    }""",
    "argmax of a padded, split array": """graph f(x: bf16[13,n,m]) {
        a = pad(x) {low=(0, 1, 1), high=(1, 1, 2), value=0.1}
        b = reduce.argmax(a) {axes=(0, 1, 2)}
        return b
    }""",
    "two winners of one split axis": """graph f(x: f32[n,m]) {
        require 1 <= n*3
        require 1 <= m
        a = concat(x, x, x) {axis=0}
        b = reduce.argmin(a) {axes=(0, 1)}
        c = reduce.argmax(a) {axes=(0,)}
        return b, c
    }""",
    "a product with transposed truth values": """graph f(x: bool[n,n], y: f32[n,3], z: f32[n,3]) {
        a = cast(x) {dtype=f32}
        b = reduce.sum(a) {axes=(1,)}
        c = contract(a, y) {spec="m,k; k,n -> m,n"}
        d = contract(z, a) {spec="m,n; m,k -> k,n"}
        return b, c, d
    }""",
    "a sum that is stored along its axis": """graph f(x: f32[n,m]) {
        a = reduce.sum(x) {axes=(0, 1)}
        b = reshape(a) {shape=(1,)}
        c = expand(b) {shape=(n,)}
        return c
    }""",
    "a product of nothing": """graph f(x: f16[n,0], y: f16[0,n]) {
        a = contract(x, y) {spec="m,k; k,n -> m,n"}
        return a
    }""",
    "an empty array": """graph f(x: f32[n,0]) {
        a = add(x, 1.0:f32)
        return a
    }""",
    "a merge with an axis that its parts lack": """graph f(x: i64[m,n]) {
        a = reduce.all(x) {axes=(0,)}
        b = expand(a) {shape=(65, n)}
        return a, b
    }""",
    "a position outside of an array": """graph f(x: f16[n,1,1]) {
        a = pad(x) {low=(0, 0, 2), high=(1, 1, 1), value=-1.0}
        b = slice(a) {starts=(0, 1, 0), sizes=(1, 1, 4), steps=(1, 1, 1)}
        return a, b
    }""",
    "a scatter of long rows in order": """graph f(x: f32[7,n,7], u: f32[5,n,7], k: i32[5]) {
        a = scatter.max(x, u, k)
        return a
    }""",
    "a large result of a scatter in order": """graph f(x: f64[n,17], u: f64[5,17], k: i64[5]) {
        a = scatter.put(x, u, k)
        b = scatter.add(x, u, k)
        return a, b
    }""",
}
"""Programs that once were refused, did not run, or computed something else."""


@pytest.mark.parametrize("larger", LARGER)
@pytest.mark.parametrize("name", FOUND)
def test_a_program_that_was_wrong_once_computes_the_same(name, larger):
    graph, random = parse(FOUND[name]), np.random.default_rng(3)
    shapes = [dims_at(x.type.shape, {"n": 9, "m": 7}) for x in graph.inputs]
    arrays = [
        np.asarray(random.standard_normal(s) * 3).astype(x.type.dtype.numpy)
        if x.type.dtype.is_float
        else random.integers(0, 2 if x.type.dtype == bool_ else 7, s).astype(x.type.dtype.numpy)
        for s, x in zip(shapes, graph.inputs, strict=True)
    ]
    assert not complaint(graph, arrays, LARGER[larger])
