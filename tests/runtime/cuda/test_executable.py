"""Plans run through the fake driver: frames, order, streams, memory, graphs."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.device_programs import rates
from tests.runtime.cuda.fake_driver import image
from tests.runtime.cuda.fake_triton import FakeTriton

from smelt.codegen.triton.candidates import candidates
from smelt.codegen.triton.device_source import compile_source, source_of_stages
from smelt.codegen.triton.schedule import EXACT
from smelt.codegen.triton.source import print_stage
from smelt.errors import (
    CaptureError,
    DeviceLayoutError,
    DeviceMemoryError,
    DeviceSizeError,
    DriverCallError,
)
from smelt.kernel.device_code import Argument, DeviceCode, Launch
from smelt.kernel.text import parse
from smelt.runtime.cuda.buffer import copy_to_device, copy_to_host
from smelt.runtime.cuda.executable import DeviceExecutable, _fill_frame
from smelt.runtime.cuda.memory import driver_memory
from smelt.runtime.cuda.stream import MAX_GRAPHS, MIN_LAUNCHES, LaunchGraphs, launch_frame
from smelt.runtime.cuda.tables import DeviceStep, LoadedCode
from smelt.runtime.plan_tables import Value
from smelt.types.dtype import f16, f32
from smelt.types.expr import floordiv, size

N = size("n")


def affine_code(scale: float, shift: float = 0.0, *, aligned: tuple[str, ...] = ()) -> DeviceCode:
    """Code of y = scale x + shift."""
    data = {
        "engine": "affine",
        "block": 128,
        "scale": scale,
        "shift": shift,
        "arguments": ["ptr", "ptr", "i32"],
    }
    arguments = (Argument("buffer", "x"), Argument("buffer", "y"), Argument("size", "n"))
    launch = Launch("affine", (floordiv(N + 127, 128),), 64, 0, arguments)
    return DeviceCode((image(affine=data),), "sm_90", (launch,), (), aligned)


def step(device, code, x, y):
    loaded = LoadedCode(code, (device.load(code.images[0]),))
    return DeviceStep("affine", lambda sizes: loaded, {}, {"x": x, "y": y})


def chain(device, scales):
    """Kernels one after another: input 0, output 1, intermediates 2, 3, ... in the arena."""
    values = [Value(f32, (N,), "input", 0), Value(f32, (N,), "output", 0)]
    values += [Value(f32, (N,), "arena", -1, N * 4 * k) for k in range(len(scales) - 1)]
    numbers = [0, *range(2, len(values)), 1]
    groups = [
        [step(device, affine_code(s), numbers[k], numbers[k + 1])] for k, s in enumerate(scales)
    ]
    ends = [N * 4 * (k + 1) for k in range(len(scales) - 1)]
    return DeviceExecutable(device, ("n",), values, groups, ends, (1,))


def run(executable, x, stream=0):
    memory = driver_memory(executable.device)
    buffer = copy_to_device(x, f32, memory, stream)
    return executable.run([buffer], x.shape, stream, memory)


X = np.arange(1000, dtype=np.float32)


def test_a_kernel_runs_with_its_arguments(fake, device):
    (y,) = run(chain(device, [2.0]), X)
    assert not any(c == "cuStreamSynchronize" for c in fake.calls)  # nothing has waited
    np.testing.assert_array_equal(copy_to_host(y), 2 * X)
    (launch,) = fake.launches
    assert launch["grid"] == (8, 1, 1) and launch["threads"] == 64
    assert launch["arguments"][1:] == [y.address, 1000]


def test_kernels_run_in_order_on_an_arena_that_is_freed_behind_them(fake, device):
    executable = chain(device, [2.0, 3.0, 5.0])
    (y,) = run(executable, X)
    gc.collect()
    assert len(fake.live) == 1 and len(fake.retired) == 2  # frees of input and arena are queued
    np.testing.assert_array_equal(copy_to_host(y), 30 * X)
    assert not fake.retired
    del y
    fake.synchronize()
    assert fake.used == 0 == driver_memory(device).held


def test_streams_are_ordered_by_events(fake, device):
    first = fake.new_stream()
    second = fake.new_stream()
    executable = chain(device, [2.0])
    (y,) = run(executable, X, first)
    (z,) = executable.run([y], X.shape, second, driver_memory(device))
    del y  # its stream frees it only after the second one has read it
    gc.collect()
    fake.drain(first)
    np.testing.assert_array_equal(copy_to_host(z), 4 * X)


def test_a_fake_without_the_event_would_read_garbage(fake, device, monkeypatch):
    """The test above can fail."""
    monkeypatch.setattr(DeviceExecutable, "_wait_for_inputs", lambda *_: None)
    second = fake.new_stream()
    executable = chain(device, [2.0])
    (y,) = run(executable, X)
    (z,) = executable.run([y], X.shape, second, driver_memory(device))
    assert not np.array_equal(copy_to_host(z), 4 * X)


def test_empty_arrays_launch_nothing(fake, device):
    (y,) = run(chain(device, [2.0, 3.0]), X[:0])
    assert copy_to_host(y).shape == (0,) and not fake.launches


def test_a_plan_of_many_kernels_becomes_a_graph_when_its_addresses_come_again(fake, device):
    executable = chain(device, [2.0, 1.0, 1.0, 1.0][:MIN_LAUNCHES])
    memory = driver_memory(device)
    x = copy_to_device(X, f32, memory, 0)
    p = executable.prepared(X.shape)
    block, results = executable._allocate(p, [x], 0, memory)
    frame = _fill_frame(p, [x], results, block)
    for _ in range(4):
        with device.current():
            launch_frame(device, p, frame, 0, executable._graphs_of(X.shape))
    assert fake.calls.count("cuGraphInstantiateWithFlags") == 1
    assert fake.calls.count("cuGraphLaunch") == 3  # the first of the four was launched directly
    np.testing.assert_array_equal(copy_to_host(results[0]), 2 * X)


def test_graphs_beyond_the_limit_are_updated_in_place(fake, device):
    """A capture of another library forbids none of it."""
    stream = fake.new_stream()
    fake.begin_capture(stream)
    executable = chain(device, [2.0] * MIN_LAUNCHES)
    memory = driver_memory(device)
    inputs = [copy_to_device(X + k, f32, memory, 0) for k in range(MAX_GRAPHS + 2)]
    p = executable.prepared(X.shape)
    block, results = executable._allocate(p, [inputs[0]], 0, memory)
    frames = [_fill_frame(p, [x], results, block) for x in inputs]
    for frame in frames * 2:
        with device.current():
            launch_frame(device, p, frame, 0, executable._graphs_of(X.shape))
    assert fake.calls.count("cuGraphInstantiateWithFlags") == MAX_GRAPHS
    assert fake.calls.count("cuGraphExecUpdate_v2") == 2
    assert {*fake.streams} == {0, stream} and fake.end_capture(stream)
    np.testing.assert_array_equal(
        copy_to_host(results[0]), 2.0**MIN_LAUNCHES * (X + MAX_GRAPHS + 1)
    )


def test_a_launch_that_fails_while_it_is_recorded_leaves_no_graph(fake, device):
    def launch(stream):
        if stream:  # the one that is recorded
            raise RuntimeError("refused")

    recorded = LaunchGraphs(device)
    with device.current():
        recorded.run(b"addresses", launch, 0)
        with pytest.raises(RuntimeError, match="refused"):
            recorded.run(b"addresses", launch, 0)
    assert not fake.graphs


def test_a_captured_stream_takes_no_memory_of_ours(fake, device):
    stream = fake.new_stream()
    executable = chain(device, [2.0])
    x = copy_to_device(X, f32, driver_memory(device), stream)
    fake.begin_capture(stream)
    with pytest.raises(CaptureError, match="first call"):
        executable.run([x], X.shape, stream, driver_memory(device))
    executable.prepared(X.shape)
    with pytest.raises(CaptureError, match="torch's memory pool"):
        executable.run([x], X.shape, stream, driver_memory(device))
    assert fake.end_capture(stream)


def test_strides_and_misaligned_addresses_are_refused(fake, device):
    memory = driver_memory(device)
    x = copy_to_device(X, f32, memory, 0)
    executable = chain(device, [2.0])
    with pytest.raises(DeviceLayoutError, match=r"x: it has strides \(2,\)"):
        executable.run([replace(x, shape=(500,), strides=(2,))], (500,), 0, memory, ["x"])
    values = [Value(f32, (N,), "input", 0), Value(f32, (N,), "output", 0)]
    loaded = step(device, affine_code(2.0, aligned=("x",)), 0, 1)
    executable = DeviceExecutable(device, ("n",), values, [[loaded]], (), (1,))
    with pytest.raises(DeviceLayoutError, match="4 bytes past"):
        executable.run([replace(x, address=x.address + 4)], (999,), 0, memory)


def test_too_little_memory_is_an_error_with_sizes(fake, device):
    memory = driver_memory(device)
    kept = memory.allocate(1 << 20, 0)
    with pytest.raises(DeviceMemoryError, match=r"2 GiB are needed on cuda:0.*Smelt holds 1 MiB"):
        memory.allocate(2 << 30, 0)
    assert isinstance(kept.address, int) and "cuMemPoolTrimTo" in fake.calls


def test_a_failed_launch_names_its_kernel(fake, device):
    executable = chain(device, [2.0])
    fake.failing["cuLaunchKernel"] = 700
    with pytest.raises(DriverCallError, match="cuLaunchKernel of affine: CUDA_ERROR_ILLEGAL"):
        run(executable, X)


def test_sizes_beyond_32_bits_are_refused_before_anything_runs(fake, device):
    executable = chain(device, [2.0])
    with pytest.raises(DeviceSizeError, match=r"input 0 of the program has 2,147,483,648 elements"):
        executable.prepared((2**31,))
    wide = replace(affine_code(2.0), is_wide=True)
    values = [Value(f32, (N,), "input", 0), Value(f32, (N,), "output", 0)]
    executable = DeviceExecutable(device, ("n",), values, [[step(device, wide, 0, 1)]], (), (1,))
    assert executable.prepared((2**31,)).rows[0][1] == 2**24
    launch = wide.launches[0]._replace(grid=(1, N))
    tall = replace(wide, launches=(launch,))
    executable = DeviceExecutable(device, ("n",), values, [[step(device, tall, 0, 1)]], (), (1,))
    with pytest.raises(DeviceSizeError, match=r"the grid of affine has 70,000 programs, 65535"):
        executable.prepared((70_000,))
    assert not fake.launches


def test_programs_that_make_tensor_descriptors_have_memory_for_them(fake, device, monkeypatch):
    """Two products in a row, in persistent programs; memory of other sizes is between them."""
    kernel = parse(
        "kernel product(x: f16[m,k], w: f16[k,n]) -> y: f16[m,n]\n"
        "  grid m, n\n  y[m,n] = f16(dot(x[m,k], w[k,n] over k))\n"
    )
    module = sys.modules["smelt.codegen.triton.candidates"]
    monkeypatch.setattr(module, "MAX_CANDIDATES", 99)
    monkeypatch.setattr(module, "_varied", lambda every: every)
    sizes = dict.fromkeys("mnk", 200)
    few = replace(rates("sm_90"), processors=2)
    ((first, *others),) = candidates(kernel, sizes, few, EXACT)
    chosen = next(c for c in (first, *others) if c.schedule.copied and c.schedule.programs)
    source = source_of_stages(kernel, [print_stage(chosen.launch, chosen.schedule)], sizes)
    code = compile_source(source, "sm_90", FakeTriton())
    (launch,) = code.launches
    assert [a.kind for a in launch.arguments[-2:]] == ["scratch", "null"]
    assert DeviceCode.from_data(code.to_data(), b"".join(code.images)) == code
    loaded = LoadedCode(code, (device.load(code.images[0]),))
    shape, nbytes = (N, N), N * N * 2
    values = [Value(f16, shape, "input", 0), Value(f16, shape, "input", 1)]
    values += [Value(f16, shape, "output", 0), Value(f16, shape, "arena", -1, 0)]
    groups = [
        [
            DeviceStep(
                "product", lambda _: loaded, dict.fromkeys("mnk", "n"), {"x": x, "w": 1, "y": y}
            )
        ]
        for x, y in ((0, 3), (3, 2))
    ]
    ends = [nbytes + 64]  # scratch memory is aligned wherever the arena ends
    executable = DeviceExecutable(device, ("n",), values, groups, ends, (2,))
    memory = driver_memory(device)
    random = np.random.default_rng(0)
    x, w = ((random.standard_normal((200, 200)) / 8).astype(np.float16) for _ in range(2))
    buffers = [copy_to_device(a, f16, memory, 0) for a in (x, w)]
    (y,) = executable.run(buffers, (200,), 0, memory)
    wanted = (x.astype(np.float32) @ w).astype(np.float16).astype(np.float32) @ w
    np.testing.assert_allclose(copy_to_host(y).astype(np.float32), wanted, 2e-2, 2e-2)
    assert all(launch["grid"] == (2, 1, 1) for launch in fake.launches)
