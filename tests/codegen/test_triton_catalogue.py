"""Programs of the catalogue, planned for a GPU, print, compute and compile for it.

A kernel is printed for a program's own sizes, with the loops that they need, and runs at small
ones, where it computes what the interpreter does. At its own sizes a schedule passes the gates.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from tests.catalogue import harness
from tests.codegen.checked_triton import launch
from tests.codegen.device_catalogue import EXAMPLES, DevicePlan, has_dtype, planned
from tests.codegen.device_programs import rates
from tests.codegen.device_users import USERS
from tests.codegen.test_triton_goldens import stored, with_lanes

import smelt as sm
from smelt.backend import Gpu, Machine
from smelt.backend.gpus import gpu
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.candidates import candidates
from smelt.codegen.triton.schedule import EXACT, FAST
from smelt.codegen.triton.select import select
from smelt.codegen.triton.source import print_file, print_stage
from smelt.explain.device_code import programs
from smelt.fusion.plan import cluster_sizes
from smelt.fusion.predict import predictions
from smelt.kernel.interp import run
from smelt.lower import interp as plans
from smelt.packages.installed import has_triton
from smelt.tune.scheduled_gpu import scheduled

QUICK = (
    "row A7",
    "row B1",
    "row B4 long",
    "row B5 all",
    "row B6",
    "row C2 GELU",
    "row C4",
    "row C11",
    "row F2",
    "row G1 softmax",
    "A5 updates",
    "E1 sinks",
    "E4 one query of a group",
    "F3 by_length",
    "gradients of E1 window",
    "gradients of F4 by_labels",
    "packed by_search",
    "user k-means",
    "user softmax regression",
    "user clip by norm",
    "user principal axis",
    "user Kalman filter",
    "user gradient of rows",
    "user batched updates",
    "user least of sums",
    "user nearest",
    "user summed area",
)
"""Programs that `make test` runs; all others are for the night."""
COMPILED = ("row B1", "row G1 softmax", "E6 talking heads", "weights square, masked")
ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942")
SAMPLE = 4
"""`make test` prints one program in so many for AMD's GPU, and all for an H100."""
TOLERANCE = 0.2
"""Share of the time of a plan's schedules by which the planner's may differ."""


def test_the_catalogue_is_complete():
    sections = {name.removeprefix("gradients of ").removeprefix("row ")[0] for name in EXAMPLES}
    assert len(EXAMPLES) > 200 and sections >= set("ABCDEFGHu")


def nightly(names, quick):
    return [pytest.param(n, marks=() if n in quick else (pytest.mark.nightly,)) for n in names]


# ---- printed -------------------------------------------------------------------------------------


def printed(name: str, dtype: str, target: str) -> None:
    """Print a plan's kernels; planner and schedules predict it alike, with one sum of levels."""
    example, machine = EXAMPLES[name](dtype), scheduled(gpu(target))
    plan = planned(example.trace, example.sizes, machine)
    assert plan.launched
    costs, levels = predictions(plan.plan, machine, example.sizes)
    cost_of = dict(zip(map(id, plan.plan.clusters), costs, strict=True))
    by_planner = by_schedules = 0.0
    parts = zip(plan.plan.all_clusters, plan.kernels, plan.sizes, strict=True)
    for cluster, kernel, sizes in parts:
        if kernel is None:
            continue
        arrays = zip((*cluster.inputs, *cluster.outputs), (*kernel.inputs, *kernel.outputs))
        cached = [p.name for n, p in arrays if levels.get(n, "dram") != "dram"]
        with sm.config(device_code=False):
            source, launches = programs(kernel, sizes, machine, cached)
        assert "def launch(" in source
        assert all(x.schedule.predicted_ns > 0 for x in launches)
        if id(cluster) in cost_of:
            by_planner += cost_of[id(cluster)].total
            by_schedules += sum(x.schedule.predicted_ns for x in launches)
    if not by_schedules:
        return  # all kernels are in loops
    assert by_planner == pytest.approx(by_schedules, rel=TOLERANCE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_kernels_of_a_program_print(name):
    printed(name, "f32", "sm_90")


@pytest.mark.parametrize(
    "name", nightly(EXAMPLES, [n for n in EXAMPLES if zlib.crc32(n.encode()) % SAMPLE == 0])
)
def test_kernels_of_a_program_print_for_another_device(name):
    printed(name, "bf16" if has_dtype(name, "bf16") else "f32", "gfx942")


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["a100", "4090", "h200", "b200", "mi300x", "mi355x"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_planner_and_schedules_predict_programs_alike(name, target):
    printed(name, "f32", target)


@pytest.mark.parametrize("name", USERS)
def test_a_program_of_a_user_is_predicted_to_use_the_device(name):
    user = USERS[name]
    with sm.config(device_code=False):
        report = sm.explain(user.code, *user.specs(), target="h100")
    assert not any(k.device.refused for k in report.data.kernels if k.kind == "kernel")
    assert report.data.total.predicted_ns < 1e3 * user.most_us


# ---- computed ------------------------------------------------------------------------------------


def check(name: str, dtype: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a plan by the interpreter, and by the checked emulation of its printed kernels.

    All results of kernels are compared. A kernel reads what kernels before it computed in the same
    way: one may look for an element that is equal to the largest one, computed again.
    """
    example = EXAMPLES[name](dtype)
    plan = planned(example.trace, example.sizes, machine)
    arch = machine.arch if isinstance(machine, Gpu) else "sm_90"
    sources = sources_of(plan, cluster_sizes(plan.plan, example.small_sizes), arch)
    wanted: list[tuple[str, dict[str, np.ndarray]]] = []
    actual: list[tuple[str, dict[str, np.ndarray]]] = []

    def interpreted(kernel, operands, sizes):
        wanted.append((kernel.name, run(kernel, operands, sizes)))
        return wanted[-1][1]

    def emulated(kernel, operands, sizes):
        arrays = [stored(p, np.asarray(a)) for p, a in zip(kernel.inputs, operands, strict=True)]
        outputs = launch(sources[id(kernel)], arrays, **extra_sizes(sources[id(kernel)], sizes))
        results = zip(kernel.outputs, outputs, strict=True)
        actual.append((kernel.name, {p.name: np.asarray(y) for p, y in results}))
        return actual[-1][1]

    arrays = harness.inputs(example.trace, example.arrays)
    for runner in (interpreted, emulated):
        monkeypatch.setattr(plans, "interp", SimpleNamespace(run=runner))
        plans.run(plan.plan, plan.kernels, arrays, example.small_sizes)
    assert {n for n, _ in wanted} == {k.name for k, _ in plan.launched}
    for (kernel, outputs), (other, results) in zip(wanted, actual, strict=True):
        assert kernel == other
        for output, y in outputs.items():
            same(np.asarray(results[output], np.float64), np.asarray(y, np.float64), y.itemsize)


def extra_sizes(source: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that the launcher of a file takes, for no array has them."""
    head = source.partition("def launch(")[2].partition("):")[0]
    return {f"size_{s}": sizes[s] for s in re.findall(r"size_(\w+)", head)}


def sources_of(
    plan: DevicePlan, small: Sequence[Mapping[str, int]], arch: str = "sm_90"
) -> dict[int, str]:
    """The files of a plan's kernels, printed for large sizes, with small blocks.

    Whether rows are aligned is said of small sizes, as in a call.
    """
    sources: dict[int, str] = {}
    for kernel, sizes, of_call in zip(plan.kernels, plan.sizes, small, strict=True):
        if kernel is not None:
            every = candidates(kernel, sizes, rates(arch), EXACT, of_call)
            stages = [print_stage(best.launch, best.schedule) for best, *_ in every]
            sources[id(kernel)] = with_lanes(print_file(kernel, stages), 32)
    return sources


def same(a, b, itemsize: int) -> None:
    tolerance = 2e-2 if itemsize == 2 else 2e-5
    largest = np.abs(b[np.isfinite(b)]).max(initial=1)
    np.testing.assert_allclose(a, b, tolerance, tolerance * largest)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", nightly(EXAMPLES, QUICK))
def test_kernels_of_a_program_compute_the_same(name, monkeypatch):
    check(name, "f32", scheduled(gpu("sm_90")), monkeypatch)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", [n for n in EXAMPLES if has_dtype(n, "bf16")])
def test_kernels_of_a_program_compute_the_same_in_bfloat16(name, monkeypatch):
    check(name, "bf16", scheduled(gpu("sm_90")), monkeypatch)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_kernels_that_are_planned_for_a_cpu_compute_the_same(name, monkeypatch):
    """They are larger, and run in chunks of rows."""
    check(name, "f32", harness.MACHINE, monkeypatch)


# ---- compiled ahead of time ----------------------------------------------------------------------

NEEDS_TRITON = pytest.mark.skipif(
    not has_triton(), reason="compiling ahead of time needs Triton: pip install triton==3.6.0"
)


def check_gates(name: str, dtype: str, arch: str, rounding: str = "eager") -> None:
    with sm.config(rounding=rounding):
        example = EXAMPLES[name](dtype)
        plan = planned(example.trace, example.sizes, scheduled(gpu(arch)))
    policy = FAST if rounding == "fast" else EXACT
    for kernel, sizes in plan.launched:
        selection = select(kernel, sizes, rates(arch), TritonCompiler(), policy)
        for x in selection.launches:
            assert x.program is not None
            assert x.warning is None, x.warning


@NEEDS_TRITON
@pytest.mark.parametrize("name", COMPILED)
def test_a_schedule_compiles_and_passes_the_gates(name):
    check_gates(name, "f32", "sm_90")


@NEEDS_TRITON
@pytest.mark.nightly
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_schedule_of_every_program_compiles_and_passes_the_gates(name, dtype, arch):
    if has_dtype(name, dtype):
        check_gates(name, dtype, arch)


@NEEDS_TRITON
@pytest.mark.nightly
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", [n for n in EXAMPLES if n.startswith(("E", "gradients of E"))])
def test_attention_with_hardware_functions_passes_the_gates(name, arch):
    check_gates(name, "bf16", arch, "fast")
