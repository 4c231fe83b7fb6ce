"""Reports for a GPU: its plan, and each kernel as a Triton program or why there is none."""

from __future__ import annotations

import json
import sys

import ml_dtypes
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from tests.codegen.checked_triton import launch
from tests.codegen.device_prices import prices
from tests.codegen.device_programs import PROGRAMS

import smelt as sm
from smelt.backend.gpus import GPUS, gpu
from smelt.cli.main import smelt
from smelt.errors import ArgumentError, DeviceKernelError
from smelt.explain.data import ReportData
from smelt.explain.units import show_time
from smelt.fusion.predict import costs
from smelt.tune.scheduled_gpu import scheduled


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_source_of_a_softmax_runs():
    x = array(37, 100)
    report = sm.explain(softmax, x, target="sm_90")
    (kernel,) = report.kernels
    (actual,) = launch(kernel.source, [x])
    np.testing.assert_allclose(actual, np.asarray(softmax(x)), 1e-6, 1e-7)
    assert report.data.total.measured is None
    assert "predicted from published rates, not measured" in str(
        report
    ) and kernel.source.rstrip() in str(report)
    assert kernel.source == sm.explain(softmax, x, target="h100").kernels[0].source
    assert report.to_data()["kernels"][0]["device"]["source"] == kernel.source
    assert "whole in 128, 1 warp" in report.text(1)


def test_source_of_a_count_runs():
    ids = np.arange(40) % 7
    report = sm.explain(lambda ids: sm.bincount(ids, minlength=50), ids, target="a100")
    (kernel,) = report.kernels
    (actual,) = launch(kernel.source, [ids])
    np.testing.assert_array_equal(actual, np.bincount(ids, minlength=50))


def test_refusal_has_its_code_and_reason(monkeypatch):
    missing = "all 4000000 elements of a row at once"

    def refuse(kernel, sizes, machine, cached, constants):
        raise DeviceKernelError(kernel=kernel.name, missing=missing)

    monkeypatch.setattr(sys.modules["smelt.explain.device"], "programs", refuse)
    report = sm.explain(softmax, array(4, 5), target="a100")
    (kernel,) = report.kernels
    assert kernel.source == ""
    assert kernel.data.device.refused == f"E505 kernel k0 needs {missing}"
    assert missing in str(report)


def test_captured_weights_are_packed_by_the_first_call_alone():
    shape = 256, 256, 3, 3

    def layer(x, w):
        return sm.nn.conv(sm.permute_dims(x, (0, 3, 1, 2)), w, padding=1)

    weights = sm.asarray(np.ones(shape, ml_dtypes.bfloat16), copy=True)
    image = sm.spec("bf16[32,28,28,256]")
    with sm.config(device_code=False):
        kept = sm.explain(lambda x: layer(x, weights), image, target="h100")
        each = sm.explain(layer, image, sm.spec(weights.shape, weights.dtype), target="h100")
    (copy, product), (copies, _) = (r.kernels[0].data.device.launches for r in (kept, each))
    assert copy.once and not product.once and not copies.once
    assert kept.data.total.predicted_ns == product.schedule.predicted_ns
    assert each.data.total.predicted_ns > kept.data.total.predicted_ns
    assert "in the first call alone" in kept.text(1) and "first call" not in each.text(1)


def test_report_without_a_target_has_no_device():
    report = sm.explain(softmax, array(4, 5))
    assert report.data.device is None and report.kernels[0].data.device is None
    assert report.kernels[0].source == ""


def test_argument_named_target_belongs_to_the_function():
    loss = sm.jit(lambda x, target: x if target == "sm_90" else x + 1, static_argnames="target")
    report = sm.explain(loss, array(3), target="other")
    assert report.data.device is None


def cross_entropy(x, w):
    scores = x @ w
    top = sm.max(scores, axis=1, keepdims=True)
    return sm.log(sm.sum(sm.exp(scores - top), axis=1))


CROSS_ENTROPY = (sm.spec((8192, 256), np.float32), sm.spec((256, 32768), np.float32))


def test_decisions_bytes_and_times_are_those_of_the_device():
    h100 = sm.explain(cross_entropy, *CROSS_ENTROPY, target="h100")
    (kernel,) = h100.kernels
    assert h100.data.target.name == "NVIDIA H100 SXM" and h100.data.target.cores == 132
    assert not h100.data.target.measured and h100.data.memory.temp == 0
    assert "cascade" in {d.reason for d in h100.decisions if d.verdict == "fused"}
    floor = kernel.data.bytes / 3350
    assert kernel.data.predicted_ns > kernel.data.floor_ns == pytest.approx(floor)
    assert kernel.data.device.cached_bytes == 0 and kernel.data.level == "dram"
    assert "predicted" in h100.text(1)
    smaller = tuple(sm.spec((512, d.shape[1]), np.float32) for d in CROSS_ENTROPY[:1])
    few = sm.explain(cross_entropy, *smaller, CROSS_ENTROPY[1], target="h100")
    assert len(few.kernels) > 1 and "Kept in separate kernels" in str(few)


def repeated(x):
    return sm.scan(lambda c, _: (sm.exp(c @ x), None), x, None, length=3)[0]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (softmax, [(4096, 4096)]),
        (softmax, [(65536, 64)]),
        (lambda x: sm.sum(x, axis=0), [(8192, 4096)]),
        (cross_entropy, [(512, 1024), (1024, 32768)]),
        (repeated, [(256, 256)]),
    ],
)
def test_time_of_a_kernel_is_that_of_its_launches(function, shapes):
    specs = [sm.spec(s, np.float32) for s in shapes]
    with sm.config(device_code=False):
        data = sm.explain(function, *specs, target="h100").data
    for k in data.kernels:
        if k.device.launches:
            times = [x.schedule.predicted_ns for x in k.device.launches]
            assert k.predicted_ns == pytest.approx(sum(times)) and min(times) > 0
        if k.kind == "loop":
            inside = [s.predicted_ns for s in data.kernels if s.within == k.id]
            assert k.predicted_ns == pytest.approx(k.rounds * sum(inside)) and inside
    whole = [k.predicted_ns for k in data.kernels if k.within is None]
    assert data.total.predicted_ns == pytest.approx(sum(whole))


def scattered(ids, g, t):
    """The gradient of an embedding: rows of floats, which are joined in order."""
    return sm.grad(lambda t: sm.sum(sm.take(t, ids, axis=0) * g))(t)


@pytest.mark.parametrize(
    ("function", "specs"),
    [
        (lambda ids: sm.bincount(ids, minlength=256), ["i64[1000000]"]),
        (scattered, ["i64[8192]", "f32[8192,1024]", "f32[32000,1024]"]),
        (lambda x, w: x @ w, ["bf16[4096,4096]", "bf16[4096,4096]"]),
        (lambda x, w: x @ w, ["bf16[1024,8,32,32]", "bf16[1024,8,32,32]"]),
    ],
)
def test_plans_take_the_time_of_their_schedules(function, specs):
    planned, launched = predictions(function, specs)[0]
    assert planned == pytest.approx(launched)


def predictions(function, specs, rounding="eager", target="h100"):
    """Nanoseconds of each kernel as the planner and as the chosen schedules predict them."""
    with sm.config(device_code=False, rounding=rounding):
        report = sm.explain(function, *map(sm.spec, specs), target=target)
        planned = costs(report.compiled.plan, scheduled(gpu(target)), report.sizes)
    launches = [k.device.launches for k in report.data.kernels]
    launched = [sum(x.schedule.predicted_ns for x in every) for every in launches]
    return [(cost.total, ns) for cost, ns in zip(planned, launched, strict=True)]


TARGETS = ("h100", "a100", "4090", "b200", "mi300x")
TOLERANCE = 0.2
"""Share of a plan's time by which that of its schedules may differ."""


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (n, TARGETS[k % len(TARGETS)])
        for k, n in enumerate(n for n, p in PROGRAMS.items() if callable(p.function))
    ],
)
def test_programs_take_the_time_of_their_schedules(name, target):
    """`python -m tests.codegen.device_prices` compares all programs on all targets."""
    planned, predicted = prices(PROGRAMS[name], target)
    assert planned == pytest.approx(predicted, rel=TOLERANCE)


def test_attention_takes_the_time_of_products_and_exponentials():
    """FlashAttention-2 reaches 320 to 350 Tflop/s on an H100, with 64 positions of a head."""
    program = PROGRAMS["attention D64 fast"]
    (times,) = predictions(program.function, program.arguments, program.rounding)
    operations = 4 * 4 * 16 * 2048**2 * 64
    assert all(150e3 < operations / ns < 400e3 for ns in times)


def test_joins_in_order_take_longer_than_atomic_operations():
    def time(*arguments):
        with sm.config(device_code=False):
            counts = sm.explain(
                lambda ids, *w: sm.bincount(ids, *w, minlength=64), *arguments, target="h100"
            )
        return counts.data.kernels[0].predicted_ns

    ids = sm.spec("i64[65536]")
    assert time(ids, sm.spec("f32[65536]")) > 100 * time(ids)


def test_other_devices_predict_other_times():
    x = sm.spec((4096, 4096), np.float32)
    times = [
        sm.explain(softmax, x, target=name).data.total.predicted_ns
        for name in ("4090", "a100", "h100", "h200", "b200")
    ]
    assert times == sorted(times, reverse=True) and len({*times}) == len(times)


def test_json_and_page_of_a_device_report(tmp_path):
    report = sm.explain(cross_entropy, *CROSS_ENTROPY, target="mi300x")
    data = msgspec.json.decode(report.to_json(), type=ReportData, strict=True)
    assert data.device.key == "mi300x" and [r.level for r in data.target.rates] == ["l2", "dram"]
    page = report.save(tmp_path / "report.html").read_text()
    assert "AMD Instinct MI300X" in page and "llvm" in page
    assert report.kernels[0].llvm == ""
    for k in report.kernels:
        assert k.asm == "\n".join(x.code.assembly for x in k.device.launches if x.code)
    assert str(report.why("contract", "max"))


def test_unknown_device_is_an_error_that_lists_them():
    with pytest.raises(ArgumentError, match="sm_90"):
        sm.explain(softmax, array(4, 5), target="sm_12")


def test_command_prints_programs(tmp_path):
    file = tmp_path / "double.py"
    file.write_text("def double(x: 'f32[n]'):\n    return x * 2\n")
    call = ["explain", f"{file}:double", "--size", "n=1000", "--target", "mi300x"]
    result = CliRunner().invoke(smelt, call)
    assert result.exit_code == 0, result.output
    assert "gfx942" in result.output and "@triton.jit" in result.output
    result = CliRunner().invoke(smelt, [*call, "--json"])
    assert json.loads(result.output)["device"]["key"] == "mi300x"


def chain(x, w, v):
    return sm.sum(sm.nn.gelu(x @ w) @ v, axis=0)


CHAIN = tuple(sm.spec((n, 1024), np.float32) for n in (512, 1024, 1024))


def test_arrays_are_priced_where_the_plan_leaves_them(monkeypatch):
    def report():
        with sm.config(device_code=False):
            return sm.explain(sm.nn.softmax, CHAIN[1], target="mi300x")

    cached = report()
    assert all(k.data.device.cached_bytes == k.data.bytes > 0 for k in cached.kernels)
    assert {k.data.level for k in cached.kernels} == {"l2"}
    assert "all in the shared cache" in cached.text(1)
    monkeypatch.setitem(GPUS, "mi300x", gpu("mi300x").with_cache(1 << 16))
    far = report()
    assert all(k.data.device.cached_bytes == 0 for k in far.kernels)
    pairs = zip(cached.kernels, far.kernels, strict=True)
    for near, other in ((a.data, b.data) for a, b in pairs):
        assert near.text == other.text and near.device.source == other.device.source
        assert near.floor_ns < other.floor_ns and near.predicted_ns <= other.predicted_ns
    assert cached.data.total.predicted_ns < far.data.total.predicted_ns


def test_the_last_line_has_the_sum_of_the_times_and_the_planners():
    with sm.config(device_code=False):
        report = sm.explain(chain, *CHAIN, target="h100")
    planned = sum(k.data.device.planned_ns for k in report.kernels)
    total = sum(k.data.predicted_ns for k in report.kernels)
    assert report.data.total.predicted_ns == pytest.approx(total)
    (line,) = [x for x in report.text(1).splitlines() if x.startswith("in all: ")]
    assert planned == pytest.approx(total) and line.endswith(show_time(total))


def steps(arrays: int, target="h100"):
    def step(ws, gs, rate):
        return [w - g * rate for w, g in zip(ws, gs, strict=True)]

    specs = [sm.spec((100 + k, 64), np.float32) for k in range(arrays)]
    with sm.config(device_code=False):
        return sm.explain(step, specs, specs, sm.spec((), np.float32), target=target)


def test_kernels_that_share_a_launch_are_shown_as_one():
    report = steps(10)
    launches, every = 2, tuple(range(10))
    assert {k.data.device.shared_with for k in report.kernels} == {every}
    assert [k.data.device.table_launches for k in report.kernels] == [launches] * 10
    total = report.data.total.predicted_ns
    busy = total - launches * gpu("h100").launch_ns
    assert 0 < busy < gpu("h100").launch_ns * launches
    text = report.text(2)
    assert "k0 and 9 more: one launch over many arrays, and 1 to fill its table" in text
    assert text.count("@triton.jit\ndef kernel_") == 1 and "for each of 16" in text
    assert sum(bool(k.data.device.table_sources) for k in report.kernels) == 1


def test_reductions_that_share_launches_are_shown_with_both_programs():
    specs = [sm.spec((1000 + k, 64), np.float32) for k in range(12)]
    with sm.config(device_code=False):
        report = sm.explain(lambda xs: [sm.sum(x * x) for x in xs], specs, target="h100")
    first = report.kernels[0].data.device
    assert len(first.shared_with) == 12 and len(first.table_sources) == 2
    assert all("@triton.jit" in x for x in first.table_sources)
    assert "k0 and 11 more: 2 launches over many arrays, and 1 to fill their tables" in str(report)
    assert 0 < report.data.total.predicted_ns < 4 * gpu("h100").launch_ns


def test_arrays_of_a_number_share_a_launch():
    """Their program has no argument of their shape, so that it is shown without a launcher."""
    specs = [sm.spec((1000 + k, 64), np.float32) for k in range(12)]

    def zeros(xs, rate):
        return [sm.zeros(x.shape, dtype="float32") + rate for x in xs]

    with sm.config(device_code=False):
        report = sm.explain(zeros, specs, sm.spec((), np.float32), target="h100")
    assert " and 11 more: one launch over many arrays" in report.text(2)


def test_few_kernels_and_kernels_of_a_chain_share_no_launch():
    assert all(not k.data.device.shared_with for k in steps(3).kernels)
    with sm.config(device_code=False, fuse=False):
        chained = sm.explain(lambda x: x * 2 * 3 * 4 * 5 * 6, sm.spec("f32[100]"), target="h100")
    assert len(chained.kernels) == 5
    assert all(not k.data.device.shared_with for k in chained.kernels)


@pytest.mark.parametrize("both", [False, True])
def test_copies_of_transposed_arguments_count_in_the_memory_of_a_device(both):
    x, y = array(32, 64), array(64, 32)
    second = x.T if both else y

    def memory(*arguments, **target):
        with sm.config(device_code=False):
            return sm.explain(lambda a, b: sm.exp(a) + b, *arguments, **target).data.memory

    plain, copied = (memory(a, second, target="h100") for a in (y, x.T))
    assert copied.temp - plain.temp == x.nbytes
    assert memory(x.T, x.T).temp == memory(x.T, x.T, target="avx2").temp == 0
