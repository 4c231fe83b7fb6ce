"""Programs compile ahead of time in another process and pass the gates of devices."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.codegen.device_programs import (
    ARCHS,
    PROGRAMS,
    QUICK,
    TABLE,
    TENSOR_CORES,
    VECTOR_LOADS,
    WARP_CORES,
    compiled,
    lines,
    rates,
)
from tests.kernel.goldens import GOLDENS

import smelt as sm
from smelt.backend.driver_gpu import gpu_of_driver
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.candidates import candidates
from smelt.codegen.triton.device_limits import device_limits
from smelt.codegen.triton.device_source import (
    CompiledEntry,
    DeviceSource,
    compile_source,
    device_source,
    source_of_stages,
)
from smelt.codegen.triton.resources import Resources, can_run, gate, spills_around_loops
from smelt.codegen.triton.schedule import EXACT
from smelt.codegen.triton.select import SelectedLaunch, SelectingCompiler, select
from smelt.codegen.triton.source import print_stage
from smelt.codegen.triton.worker_process import Worker, WorkerFailure
from smelt.errors import DeviceCompileError, DeviceKernelError
from smelt.kernel.flat_kernels import flat_map, over_arrays
from smelt.kernel.text import parse
from smelt.kernel.verify_sizes import size_names
from smelt.packages import installed
from smelt.packages.installed import has_triton
from smelt.runtime.cache import Cache
from smelt.runtime.cuda.array_tables import FILL_PTX
from smelt.tune.scheduled_gpu import rates_of
from smelt.types.expr import sizes_of

NEEDS_TRITON = pytest.mark.skipif(
    not has_triton(), reason="compiling ahead of time needs Triton: pip install triton==3.6.0"
)
DOUBLE = parse("""
kernel double(x: f32[n]) -> y: f32[n]
  grid n/4096
  y[n] = x[n] * 2
""")


def test_arrays_of_less_than_2_gib_are_near():
    """Calls beyond that have code of their own, as the entry is a part of its key."""
    (near,) = device_source(DOUBLE, {"n": (1 << 29) - 1}).entries
    (far,) = device_source(DOUBLE, {"n": 1 << 29}).entries
    assert near.near == ("ptr_x", "ptr_y") and far.near == ()
    assert near == replace(far, near=near.near, divisible=near.divisible)


@NEEDS_TRITON
@pytest.mark.parametrize("name", ["flat", "product"])
def test_near_arrays_have_buffer_instructions_on_amd_gpus(name):
    text, sizes = {
        "flat": ("x: f32[n,7], b: f32[7]", {"n": 100_001}),
        "product": ("x: bf16[m,k], b: bf16[k,n]", {"m": 512, "k": 512, "n": 512}),
    }[name]
    body = {
        "flat": "-> y: f32[n,7]\n  axis n, j in 7\n  grid n, j/1024\n  y[n,j] = x[n,j] * b[j]",
        "product": "-> y: f32[m,n]\n  grid m, n\n  y[m,n] = dot(x[m,k], b[k,n] over k)",
    }[name]
    kernel = parse(f"kernel k({text}) {body}")
    (launch,) = select(kernel, sizes, rates("gfx942"), TritonCompiler()).launches
    assert launch.program is not None and launch.entry is not None
    used = {m.partition("_")[0] for m in launch.program.resources.instructions if "dword" in m}
    assert "buffer" in used and not used & {"global", "flat"}
    source = source_of_stages(kernel, [launch.stage], sizes)
    far = TritonCompiler().program(source.text, replace(launch.entry, near=()), "gfx942")
    assert any(m.startswith("global_load") for m in far.resources.instructions)


@NEEDS_TRITON
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_programs_of_many_arrays_read_vectors_where_addresses_and_sizes_allow(arch):
    flat = flat_map(DOUBLE)
    (size,) = sizes_of(flat.axes[0].extent)
    counts = {}
    for divisor in (16, 1):
        source = device_source(over_arrays(flat, 128), {size: divisor})
        program = TritonCompiler().program(source.text, source.entries[0], arch)
        assert gate(program.resources, device_limits(arch)) is None
        counts[divisor] = program.resources.instructions
    assert counts[16]["LDG.128"] and counts[16]["STG.128"]
    assert "LDG.128" not in counts[1] and "STG.128" not in counts[1]


@NEEDS_TRITON
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_an_assembler_takes_what_fills_a_table(arch, tmp_path):
    (folder,) = importlib.util.find_spec("triton").submodule_search_locations
    assembler = Path(folder) / "backends" / "nvidia" / "bin" / "ptxas"
    (tmp_path / "fill.ptx").write_bytes(FILL_PTX)
    command = [assembler, f"-arch={arch}", tmp_path / "fill.ptx", "-o", tmp_path / "fill.cubin"]
    subprocess.run(command, check=True, capture_output=True)


# ---- programs of the fixed list ------------------------------------------------------------------


def check(name: str, arch: str) -> None:
    launches = list(compiled(name, arch, TritonCompiler()))
    assert launches
    for launch in launches:
        assert launch.program is not None
        needs = launch.program.resources
        assert gate(needs, device_limits(arch)) is None or spills_around_loops(needs)
        check_launch(launch, arch)
    expects = {
        "vectors": VECTOR_LOADS,
        "products": TENSOR_CORES[arch],
        "few rows": WARP_CORES,
    }
    instructions = {m for x in launches for m in x.program.resources.instructions}
    for kind in PROGRAMS[name].expects:
        assert any(m.startswith(expects[kind]) for m in instructions), kind
    table = TABLE.read_text().splitlines()
    if table[0] == f"# {TritonCompiler().identity}":
        stored = [line for line in table if line.startswith(f"{name} | {arch} | ")]
        assert lines(name, arch, launches) == stored


def check_launch(launch: SelectedLaunch, arch: str) -> None:
    """What the runtime passes at a launch is what the program's assembly declares."""
    if arch.startswith("gfx"):
        return
    entry, program = launch.entry, launch.program
    code = compile_source(launch_source(launch), arch, lambda *_: TritonCompiler().entry_of(
        program, entry, arch
    ))  # fmt: skip
    (plan,) = code.launches
    (head,) = re.findall(r"\.entry (\w+)\((.*?)\)(.*?)\{", program.assembly, re.DOTALL)
    assert head[0] == plan.symbol
    declared = re.findall(r"\.param \.([a-z])(\d+)( \.ptr)?", head[1])
    kinds = {("u", "64", " .ptr"): "address", ("u", "32", ""): "number", ("b", "32", ""): "number"}
    numbers = {"size", "stride"}
    passed = ["number" if a.kind in numbers else "address" for a in plan.arguments]
    assert [kinds[d] for d in declared] == passed
    assert re.findall(r"\.reqntid (\d+)", head[2]) == [str(plan.threads)]
    assert "cluster" not in head[2]
    dynamic = re.findall(r"\.extern \.shared[^;]*\[\]", program.assembly)
    assert len(dynamic) == (plan.shared_bytes > 0)
    kinds_of_scratch = [a.kind for a in plan.arguments[len(entry.arguments) :]]
    assert kinds_of_scratch[1:] == ["null"]
    assert (kinds_of_scratch[0] == "scratch") == (program.scratch_bytes > 0)


def launch_source(launch: SelectedLaunch) -> DeviceSource:
    """The text of one launch, as far as its plan is concerned."""
    return DeviceSource("", (launch.entry,), (), (), False)


@NEEDS_TRITON
@pytest.mark.parametrize("name", QUICK)
def test_program_compiles_for_sm_90_and_passes_the_gates(name):
    check(name, "sm_90")


@NEEDS_TRITON
@pytest.mark.nightly
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_compiles_and_passes_the_gates(name, arch):
    check(name, arch)


@NEEDS_TRITON
def test_programs_are_not_fused_multiply_adds_of_the_compiler():
    text = (
        "kernel f(x: f32[n], y: f32[n]) -> z: f32[n]\n  grid n/1024\n  z[n] = x[n] * y[n] + x[n]\n"
    )
    source = device_source(parse(text), {"n": 1024})
    program = TritonCompiler().program(source.text, source.entries[0], "sm_90")
    counts = program.resources.instructions
    assert "FFMA" not in counts and counts["FMUL"] == counts["FADD"] > 0
    assert "fma" not in program.assembly and "/tmp" not in program.assembly + program.ttir


@NEEDS_TRITON
def test_results_are_stored_and_read_again(tmp_path):
    source = device_source(DOUBLE, {"n": 4096})
    first = TritonCompiler(Cache(tmp_path / "cache"))
    program = first.program(source.text, source.entries[0], "sm_90")
    again = TritonCompiler(Cache(tmp_path / "cache"), Worker(script=tmp_path / "missing.py"))
    assert again.program(source.text, source.entries[0], "sm_90") == program
    with pytest.raises(DeviceCompileError):
        again.program(source.text, source.entries[0], "sm_80")


@NEEDS_TRITON
def test_compiled_entry_is_what_the_runtime_launches():
    source = device_source(DOUBLE, {"n": 4096})
    entry = TritonCompiler()(source.text, source.entries[0], "sm_90")
    assert entry.image.startswith(b"\x7fELF") and entry.threads == 32 * source.entries[0].warps
    assert entry.facts["spills"] == 0 and "triton" in entry.facts["compiler"]
    assert entry.scratch_arguments == 2


@NEEDS_TRITON
@pytest.mark.parametrize("sizes", [{"m": 3, "n": 1 << 31}, {"m": 1 << 31, "n": 3}])
def test_sizes_beyond_32_bits_are_wide_parameters(sizes):
    text = "kernel f(x: f32[m,n]) -> y: f32[m]\n  grid m\n  y[m] = sum(x[m,n] over n)\n"
    source = device_source(parse(text), sizes)
    (entry,) = source.entries
    program = TritonCompiler().program(source.text, entry, "sm_90")
    wide = [8 if sizes[a.name] >= 1 << 31 else 4 for a in entry.arguments if a.kind == "size"]
    assert program.parameters == (8, 8, *wide, 8, 8) and sum(wide) == 12
    narrow = replace(entry, signature=dict.fromkeys(entry.signature, "i32"))
    with pytest.raises(DeviceCompileError, match="its parameters have"):
        TritonCompiler().entry_of(program, narrow, "sm_90")


@NEEDS_TRITON
def test_a_program_that_triton_refuses_is_an_error():
    source = device_source(DOUBLE, {"n": 4096})
    text = source.text.replace("tl.load", "tl.nothing")
    with pytest.raises(
        DeviceCompileError, match=r"kernel_double for sm_90: (?s:.*)nothing"
    ) as caught:
        TritonCompiler().program(text, source.entries[0], "sm_90")
    assert caught.value.code == "E506"


@NEEDS_TRITON
def test_a_report_has_registers_and_assembly(tmp_path):
    with sm.config(cache_dir=tmp_path / "cache"):
        report = sm.explain(lambda x: sm.exp(x) * 2, sm.spec("f32[4096,4096]"), target="h100")
    (launch,) = report.data.kernels[0].device.launches
    assert launch.code.registers > 0 and launch.code.spills == 0
    assert launch.code.assembly.lstrip().startswith("//")
    assert f"{launch.code.registers} registers, no spills" in report.text(1)
    assert launch.code.assembly.rstrip() in report.text(4)
    assert launch.code.assembly.rstrip() not in report.text(3)
    stored = report.to_data()["kernels"][0]["device"]["launches"][0]
    assert stored["code"]["occupancy"] == launch.code.occupancy


@NEEDS_TRITON
def test_triton_is_not_imported_by_the_caller(tmp_path):
    script = (
        "import sys\nimport smelt as sm\n"
        'report = sm.explain(sm.exp, sm.spec("f32[4096]"), target="h100")\n'
        "assert report.data.kernels[0].device.launches[0].code.registers\n"
        'sys.exit(any(m.partition(".")[0] == "triton" for m in sys.modules))\n'
    )
    environment = {**os.environ, "SMELT_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


# ---- the worker, without Triton ------------------------------------------------------------------

ECHO = """
import json, os, sys, time
sys.stdin.readline()
for line in sys.stdin:
    request = json.loads(line)
    if "sleep" in request:
        time.sleep(request["sleep"])
    if "exit" in request:
        print("last words", file=sys.stderr)
        sys.stderr.flush()
        os._exit(request["exit"])
    print(json.dumps({"pid": os.getpid(), **request}), flush=True)
"""


@pytest.fixture
def worker(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    result = Worker(timeout_seconds=20, script=script)
    yield result
    result.close()


def test_worker_answers_from_one_process(worker):
    first = worker.request({"text": "a\nb"})
    assert first["text"] == "a\nb" and first["pid"] != os.getpid()
    assert worker.request({})["pid"] == first["pid"]


def test_worker_that_ends_is_an_error_and_starts_again(worker):
    first = worker.request({})["pid"]
    with pytest.raises(WorkerFailure, match="ended with status 3: last words"):
        worker.request({"exit": 3})
    assert worker.request({})["pid"] != first


def test_worker_that_hangs_is_ended(worker):
    pid = worker.request({})["pid"]
    worker.timeout_seconds = 0.2
    with pytest.raises(WorkerFailure, match=r"no answer within 0\.2 s"):
        worker.request({"sleep": 60})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_worker_that_refuses_goes_on(worker):
    pid = worker.request({})["pid"]
    with pytest.raises(WorkerFailure, match="no such type"):
        worker.request({"error": "no such type"})
    assert worker.request({})["pid"] == pid


def test_failure_of_the_worker_is_an_error_of_the_compiler(worker, monkeypatch):
    monkeypatch.setattr(TritonCompiler, "identity", "triton 0 1")
    source = device_source(DOUBLE, {"n": 4096})
    worker.script.write_text("raise SystemExit(9)")
    with pytest.raises(DeviceCompileError, match=r"kernel_double for sm_90: .* ended"):
        TritonCompiler(None, worker).program(source.text, source.entries[0], "sm_90")


# ---- gates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"spills": 8}, "spills 8 bytes a thread"),
        ({"spills": 16, "loops_spill": False}, "spills 16 bytes a thread"),
        ({"shared_bytes": 240_000}, "240000 bytes of shared memory, 232448 are the limit"),
        ({"warps": 64}, "64 warps, 32 are the limit"),
        ({"registers": 255, "warps": 16}, "130560 registers a program, 65536 are the limit"),
    ],
)
def test_gate_says_what_a_device_lacks(change, reason):
    needs = {"registers": 128, "spills": 0, "shared_bytes": 100_000, "warps": 8} | change
    limits = device_limits("sm_90")
    assert gate(Resources(**needs), limits) == reason
    assert can_run(Resources(**needs), limits) == (reason is None or "spills" in reason)


@pytest.mark.parametrize(
    ("needs", "programs"),
    [
        ((4, 32, 0), 16),
        ((4, 255, 0), 2),
        ((8, 128, 0), 2),
        ((8, 32, 100_000), 2),
        ((1, 16, 0), 32),
        ((8, 168, 0), 1),
    ],
)
def test_programs_of_a_processor(needs, programs):
    warps, registers, shared = needs
    limits = device_limits("sm_90")
    assert limits.programs(warps=warps, registers=registers, shared_bytes=shared) == programs
    part = limits.occupancy(warps=warps, registers=registers, shared_bytes=shared)
    assert part == programs * warps / 64


class FakeCompiler:
    """Programs need what the number of their lanes says."""

    def __init__(self, spills, around=0) -> None:
        self.spills, self.around, self.entries = spills, around, []

    def program(self, text, entry, arch):
        self.entries.append(entry)
        spills = self.spills(len(self.entries))
        if spills is None:
            raise DeviceCompileError(kernel="k", arch=arch, reason="no answer within 1 s")
        needs = Resources(registers=64, spills=spills, shared_bytes=0, warps=entry.warps)
        needs = replace(needs, loops_spill=len(self.entries) != self.around)
        return SimpleNamespace(resources=needs)


PRODUCT = parse("""
kernel product(x: bf16[m,k], w: bf16[k,n]) -> y: bf16[m,n]
  grid m, n
  y[m,n] = dot(x[m,k], w[k,n] over k)
""")
SIZES = {"m": 4096, "n": 4096, "k": 1024}


def test_candidate_that_fails_a_gate_is_dropped_with_its_reason():
    compiler = FakeCompiler(lambda count: {1: 16, 2: None}.get(count, 0))
    (launch,) = select(PRODUCT, SIZES, rates("sm_90"), compiler).launches
    reasons = [d.reason for d in launch.dropped]
    assert reasons == ["spills 16 bytes a thread", "k for sm_90: no answer within 1 s"]
    assert launch.warning is None and launch.others
    assert [d.candidate.blocks for d in launch.dropped] != launch.chosen.blocks


def test_least_spilling_candidate_is_used_where_all_spill():
    compiler = FakeCompiler(lambda count: 8 if count == 3 else 100)
    (launch,) = select(PRODUCT, SIZES, rates("sm_90"), compiler).launches
    assert launch.warning == "spills 8 bytes a thread" and launch.program.resources.spills == 8
    assert len(launch.dropped) == len(compiler.entries) - 1


def test_where_all_spill_one_that_spills_around_its_loops_is_used():
    compiler = FakeCompiler(lambda count: 16 if count == 2 else 8, around=2)
    (launch,) = select(PRODUCT, SIZES, rates("sm_90"), compiler).launches
    assert launch.warning is None and launch.program.resources.spills == 16
    assert "spills 16 bytes a thread" not in {d.reason for d in launch.dropped}


def test_a_program_that_spills_nothing_comes_before_one_that_spills_around_its_loops():
    compiler = FakeCompiler(lambda count: 0 if count == 3 else 8, around=1)
    (launch,) = select(PRODUCT, SIZES, rates("sm_90"), compiler).launches
    assert launch.program.resources.spills == 0 and len(launch.dropped) == 2


def test_a_much_slower_program_does_not_come_before_one_that_spills_around_its_loops():
    compiler = FakeCompiler(lambda count: 0 if count == 4 else 8, around=1)
    (launch,) = select(PRODUCT, SIZES, rates("sm_90"), compiler).launches
    (last,) = (d for d in launch.dropped if "spills 8" not in d.reason)
    assert launch.warning is None and launch.program.resources.spills == 8
    assert last.candidate.predicted_ns > 1.1 * launch.chosen.predicted_ns
    assert len(launch.dropped) == 3 and launch.others


def test_kernel_whose_candidates_all_fail_is_refused():
    with pytest.raises(DeviceKernelError, match="no answer within 1 s"):
        select(PRODUCT, SIZES, rates("sm_90"), FakeCompiler(lambda _: None))


class FakeTriton(FakeCompiler):
    """Images have the text and the constants of their programs."""

    identity = "fake triton 1"

    def program(self, text, entry, arch):
        result = super().program(text, entry, arch)
        result.image = f"{text}{entry.constants}{entry.warps}".encode()
        return result

    def entry_of(self, program, entry, arch):
        return CompiledEntry(program.image, entry.symbol, 32 * entry.warps, 0)


def test_runtime_launches_the_candidate_that_passes_the_gates():
    compiler = SelectingCompiler(rates("sm_90"), FakeTriton(lambda count: 16 * (count == 1)))
    text, compile_for = compiler.prepare(PRODUCT, SIZES)
    code = compile_for("sm_90")
    (launch,) = code.launches
    (chosen,) = select(
        PRODUCT, SIZES, rates("sm_90"), FakeTriton(lambda count: 16 * (count == 1))
    ).launches
    assert launch.threads == 32 * chosen.chosen.warps and chosen.dropped
    assert launch.grid == chosen.entry.grid and len(code.images) == 1
    assert compiler.prepare(PRODUCT, {**SIZES, "m": 4000})[0] == text
    assert compiler.prepare(PRODUCT, {**SIZES, "m": 20})[0] != text
    assert compiler.identity == "selected 3 fake triton 1"


def test_runtime_compiles_every_launch_of_a_kernel():
    kernel = parse(GOLDENS["decode"])
    compiler = SelectingCompiler(rates("sm_90"), FakeTriton(lambda _: 0))
    sizes = dict.fromkeys(size_names(kernel), 32)
    code = compiler.prepare(kernel, sizes)[1]("sm_90")
    assert len(code.launches) == 2 and code.workspaces


def test_report_without_triton_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sys.modules["smelt.explain.device_code"], "has_triton", lambda: False)
    report = sm.explain(sm.exp, sm.spec("f32[4096]"), target="h100")
    assert "pip install 'smelt-compiler[gpu]'" in report.text(1)
    assert report.data.kernels[0].device.launches[0].code is None


def test_a_triton_that_is_too_old_is_named_with_the_one_that_is_needed(monkeypatch):
    for name in ("smelt.codegen.triton.ahead", "smelt.explain.device_code"):
        monkeypatch.setattr(sys.modules[name], "triton_version", lambda: "3.3.1")
    monkeypatch.setattr(sys.modules["smelt.explain.device_code"], "has_triton", lambda: True)
    with pytest.raises(DeviceKernelError, match=r"compiles \(.*Triton 3.3.1 .* 3.4 or later"):
        select(PRODUCT, SIZES, rates("sm_90"), TritonCompiler())
    report = sm.explain(sm.exp, sm.spec("f32[4096]"), target="h100")
    assert "Triton 3.4 instead of 3.3.1 would show registers" in report.text(1)


@pytest.mark.parametrize("packages", [{"triton": ["pytorch-triton"]}, {}])
def test_a_triton_of_torch_has_the_version_of_its_package(monkeypatch, packages):
    def version(name):
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError(name)
        return f"3.5.0 as {name}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: packages)
    present = installed.triton_version.__wrapped__()
    assert present == ("3.5.0 as pytorch-triton" if packages else "unknown")
    assert not installed.is_too_old(present)


def test_report_may_leave_compiling_out():
    with sm.config(device_code=False):
        report = sm.explain(sm.exp, sm.spec("f32[4096]"), target="h100")
    assert report.data.kernels[0].device.launches[0].code is None


@NEEDS_TRITON
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_tensor_copies_of_a_persistent_product_pass_the_gates(arch):
    """The best candidate has the instructions that it is chosen for, and memory for descriptors."""
    (launch,) = select(PRODUCT, SIZES, rates(arch), TritonCompiler()).launches
    schedule, program = launch.chosen.schedule, launch.program
    assert schedule.copied and schedule.programs == rates(arch).processors
    assert gate(program.resources, device_limits(arch)) is None
    assert "cp.async.bulk.tensor" in program.assembly
    products = {"sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma"}[arch]
    assert products in program.assembly
    assert program.scratch_bytes == 128 * len(schedule.copied)
    code = TritonCompiler().entry_of(program, launch.entry, arch)
    assert code.scratch_bytes == program.scratch_bytes


@NEEDS_TRITON
@pytest.mark.parametrize("dtype", ["f16", "i8", "i32"])
def test_products_without_matrix_units_pass_the_gates(dtype):
    """Triton has lanes multiply half types on Turing, and refuses 8-bit integers there."""
    t4 = gpu_of_driver("Tesla T4", "sm_75", {"processors": 40})
    kernel = parse(_typed_product(dtype, "f32" if dtype == "f16" else "i32"))
    (launch,) = select(kernel, {}, rates_of(t4), TritonCompiler()).launches
    assert launch.warning is None
    assert "mma" not in launch.program.assembly
    seconds = launch.chosen.predicted_ns / 1e9
    assert 2 * 512**3 / seconds < t4.vector_gflops * 1e9


@NEEDS_TRITON
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16"])
def test_products_of_integers_in_their_own_type_pass_the_gates(dtype):
    kernel = parse(_typed_product(dtype, dtype))
    (launch,) = select(kernel, {}, rates("sm_90"), TritonCompiler()).launches
    assert launch.warning is None


def _typed_product(dtype, result):
    return (
        f"kernel product(x: {dtype}[512,512], w: {dtype}[512,512]) -> y: {result}[512,512]\n"
        "  axis m in 512, n in 512, k in 512\n  grid m/64, n/64\n"
        f"  stream k/64 with s = {result}(0) [m,n]\n"
        f"    s' = s + dot({result}(x[m,k]), {result}(w[k,n]) over k as {result})\n"
        "  y[m,n] = s\n"
    )


@NEEDS_TRITON
def test_operands_are_multiplied_as_they_are_in_shared_memory():
    """Nothing is converted, selected or stored again between a copy and its product."""
    half = replace(rates("sm_90"), limits=replace(device_limits("sm_90"), has_tensor_copies=False))
    (launch,) = select(PRODUCT, SIZES, half, TritonCompiler()).launches
    loop = launch.program.assembly.partition("wgmma.mma_async")[0]
    assert "cp.async.cg" in launch.program.assembly and "st.shared" not in loop
    assert "tl.where" not in launch.stage.program.text


@NEEDS_TRITON
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_specialised_warps_and_stores_by_descriptors_pass_the_gates(arch):
    """Other warps copy than compute, which registers say, and blocks of results are copied."""
    (every,) = candidates(PRODUCT, SIZES, rates(arch), EXACT)
    chosen = {c.schedule.specialised: c for c in every if c.schedule.stored}
    assert len(chosen) == 2
    for specialised, c in chosen.items():
        source = source_of_stages(PRODUCT, [print_stage(c.launch, c.schedule)], SIZES)
        program = TritonCompiler().program(source.text, source.entries[0], arch)
        assert gate(program.resources, device_limits(arch)) is None
        assert "cp.async.bulk.tensor.2d.global.shared" in program.assembly
        assert ("setmaxnreg" in program.assembly) == bool(specialised)
        assert (program.resources.warps > c.warps) == bool(specialised)
        assert f".reqntid {32 * program.resources.warps}" in program.assembly
        assert program.scratch_bytes >= 128 * 3
