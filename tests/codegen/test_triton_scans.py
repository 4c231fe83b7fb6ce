"""Long rows are scanned in parts: one launch reduces each part, a second one scans it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.checked_triton import launch
from tests.codegen.device_catalogue import planned, recorded
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_goldens import with_lanes

import smelt as sm
from smelt.backend.gpu import MIN_SCAN, SCAN_STEP, scan_parts
from smelt.backend.gpus import gpu
from smelt.codegen.triton.candidates import candidates
from smelt.codegen.triton.schedule import EXACT, choose_schedule
from smelt.codegen.triton.source import prepare, print_file, print_stage
from smelt.fusion.predict import predictions
from smelt.kernel.interp import run
from smelt.kernel.text import parse
from smelt.tune.scheduled_gpu import scheduled

HEAD = "kernel k(x: {dtype}[r,n], g: {dtype}[r]) -> y: {dtype}[r,n], z: {dtype}[r,n]\n  grid r\n"
SPLIT = {
    "sum": "  a = sum(x[r,n] along n)\n  y[r,n] = a\n  z[r,n] = a - x[r,n]",
    "scaled": "  v = x[r,n] * g[r]\n  a = sum(v along n)\n  y[r,n] = a * a\n  z[r,n] = g[r] - a",
    "two": "  a = sum(x[r,n] along n)\n  b = max(x[r,n] - g[r] along n)\n"
    "  y[r,n] = a + b\n  z[r,n] = b",
    "wide": "  a = sum(x[r,n] along n as f64)\n  y[r,n] = f32(a)\n  z[r,n] = x[r,n]",
}
WHOLE = {
    "of a scan": "  a = sum(x[r,n] along n)\n  b = max(a along n)\n  y[r,n] = a\n  z[r,n] = b",
    "of what is reduced": "  m = max(x[r,n] over n)\n  a = sum(x[r,n] - m along n)\n"
    "  y[r,n] = a\n  z[r,n] = m",
}


def kernel_of(body: str, dtype: str = "f32"):
    return parse(HEAD.format(dtype=dtype) + body)


def compare(body: str, dtype: str, rows: int, length: int, lanes: int) -> None:
    kernel, sizes = kernel_of(body, dtype), {"r": rows, "n": length}
    prepared = prepare(kernel, sizes)
    assert [k.name for k in prepared] == ["k_parts", "k"]
    source = print_file(kernel, [print_stage(k, choose_schedule(k, sizes)) for k in prepared])
    random = np.random.default_rng(length)
    numpy = {"f32": np.float32, "f64": np.float64}[dtype]
    arrays = [random.integers(-9, 9, s).astype(numpy) for s in ((rows, length), (rows,))]
    wanted = run(kernel, arrays)
    for p, actual in zip(kernel.outputs, launch(with_lanes(source, lanes), arrays), strict=True):
        np.testing.assert_array_equal(actual, wanted[p.name])  # whole numbers have exact sums


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["sum", "scaled", "two"])
def test_parts_compute_what_the_interpreter_does(name, dtype):
    compare(SPLIT[name], dtype, 2, MIN_SCAN + 77, 4096)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(list(SPLIT)),
    rows=st.integers(1, 3),
    length=st.integers(MIN_SCAN, MIN_SCAN + 4 * SCAN_STEP),
    lanes=st.sampled_from([1024, 4096]),
)
def test_parts_of_any_length(name, rows, length, lanes):
    compare(SPLIT[name], "f32", rows, length, lanes)


def test_blocks_may_be_larger_than_the_unit_of_parts():
    """A part then begins inside of a block, whose first lanes have no value."""
    kernel, sizes = kernel_of(SPLIT["two"]), {"r": 1, "n": MIN_SCAN + 77}
    every = candidates(kernel, sizes, rates("sm_90"), EXACT)
    pairs = [
        pair
        for pair in zip(*every, strict=False)
        if any(n > SCAN_STEP for c in pair for n in c.schedule.streams.values())
    ]
    assert pairs
    random = np.random.default_rng(0)
    shapes = (sizes["r"], sizes["n"]), (sizes["r"],)
    arrays = [random.integers(-9, 9, s).astype(np.float32) for s in shapes]
    wanted = run(kernel, arrays)
    source = print_file(kernel, [print_stage(c.launch, c.schedule) for c in pairs[0]])
    for p, actual in zip(kernel.outputs, launch(source, arrays), strict=True):
        np.testing.assert_array_equal(actual, wanted[p.name])


def test_columns_in_blocks_of_the_grid_are_scanned_in_parts():
    """Each program then has one of them."""
    kernel = parse(
        "kernel k(x: f32[n,c]) -> y: f32[n,c]\n  axis n, c\n  grid c/1024\n"
        "  a = sum(x[n,c] along n)\n  y[n,c] = a"
    )
    sizes = {"n": MIN_SCAN + 5, "c": 3}
    prepared = prepare(kernel, sizes)
    assert [k.name for k in prepared] == ["k_parts", "k"]
    source = print_file(kernel, [print_stage(k, choose_schedule(k, sizes)) for k in prepared])
    x = np.random.default_rng(0).integers(-9, 9, (sizes["n"], sizes["c"])).astype(np.float32)
    np.testing.assert_array_equal(launch(source, [x])[0], run(kernel, {"x": x})["y"])


@pytest.mark.parametrize("name", WHOLE)
def test_what_waits_for_a_whole_row_is_no_sum_of_parts(name):
    assert len(prepare(kernel_of(WHOLE[name]), {"r": 1, "n": 1 << 20})) == 1


def test_scans_of_several_columns_of_a_program_are_no_sums_of_parts():
    """The columns are not an axis of the grid: a part would have a sum of each."""
    kernel = parse(
        "kernel k(x: f32[n,3]) -> y: f32[n]\n  axis n, j in 3\n"
        "  a = sum(x[n,j] along n)\n  b = sum(a over j)\n  y[n] = b"
    )
    assert len(prepare(kernel, {"n": 1 << 20})) == 1


def test_many_and_short_rows_stay_one_launch():
    kernel = kernel_of(SPLIT["sum"])
    assert len(prepare(kernel, {"r": 4096, "n": 1 << 20})) == 1
    assert len(prepare(kernel, {"r": 1, "n": MIN_SCAN - 1})) == 1
    assert scan_parts(1, MIN_SCAN, 132) == MIN_SCAN // (2 * SCAN_STEP)
    assert scan_parts(132, 1 << 20, 132) == 1 < scan_parts(131, 1 << 20, 132)


@pytest.mark.parametrize(("arch", "parts"), [("sm_80", 432), ("sm_90", 528), ("gfx942", 1216)])
def test_every_processor_of_a_device_scans_parts(arch, parts):
    """Four programs for each: planner and schedules count the same."""
    example = recorded(sm.cumulative_sum, [np.zeros(9, np.float32)], [(10_000_000,)], "f32")
    plan = planned(example.trace, example.sizes, scheduled(gpu(arch)))
    (cost,), _ = predictions(plan.plan, scheduled(gpu(arch)), example.sizes)
    ((kernel, sizes),) = plan.launched
    every = candidates(kernel, sizes, rates(arch), EXACT)
    assert {c.launch.axis("p").extent for of_launch in every for c in of_launch} == {parts}
    assert cost.tasks == parts


def test_a_scan_of_a_long_array_uses_the_device():
    with sm.config(device_code=False):
        report = sm.explain(sm.cumulative_sum, sm.spec("f32[10000000]"), target="h100")
    (kernel,) = report.data.kernels
    assert [x.name for x in kernel.device.launches] == ["kernel_k0_parts", "kernel_k0"]
    assert report.data.total.predicted_ns < 2 * report.data.total.floor_ns
    assert 0.5 < kernel.device.planned_ns / kernel.predicted_ns < 2
