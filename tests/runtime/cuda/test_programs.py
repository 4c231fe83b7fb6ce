"""Graphs compiled for a device and run by the fake driver, against NumPy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from tests.property.oracles import sizes_at
from tests.runtime.cuda.fake_triton import FakeTriton
from tests.strategies.graphs import graphs

import smelt as sm
from smelt.compiler.device import compile_for_device, use_compiler
from smelt.errors import DeviceKernelError, SmeltError, UnsupportedError
from smelt.runtime.cuda import tables
from smelt.runtime.cuda.buffer import copy_to_device, copy_to_host
from smelt.runtime.cuda.memory import driver_memory
from smelt.runtime.host import Budget
from smelt.types.dtype import f16, f32, from_numpy, i32


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def layer(x, w):
    h = sm.tanh(x @ w)
    return h / sm.sqrt(sm.mean(h * h, axis=1, keepdims=True) + 1e-6), sm.sum(h, axis=0)


def attention(q, k, v):
    return sm.nn.attention(q, k, v, causal=True)


HEADS = (1, 2, 19, 16)
PROGRAMS = {
    "map": (lambda x: sm.tanh(x) * 2 + 1, [(37, 100)]),
    "softmax": (softmax, [(5, 100)]),
    "columns": (lambda x: sm.sum(x, axis=0) / 3, [(37, 70)]),
    "total": (lambda x: sm.sum(x * x), [(37, 100)]),
    "split": (lambda x: sm.sum(sm.exp(x), axis=1), [(2, 20_000)]),
    "layer": (layer, [(18, 33), (33, 20)]),
    "attention": (attention, [HEADS, HEADS, HEADS]),
    "two results": (lambda x: (x + 1, sm.max(x, axis=0)), [(6, 50)]),
    "integers": (lambda x: sm.astype(x * 10, sm.int32) // 3 % 5, [(4, 33)]),
    "halves": (lambda x: sm.astype(x, sm.float16) * 2, [(4, 33)]),
}


def compile_jit(function, arrays, device):
    trace = sm.jit(function).lower(*arrays).trace
    return compile_for_device(trace.graph, trace.hints, device), trace


def run_on_device(program, trace, arrays, device):
    memory = driver_memory(device)
    buffers = [
        copy_to_device(arrays[k], from_numpy(arrays[k].dtype), memory, 0) for k in trace.arguments
    ]
    sizes = trace.match(*(n for a in arrays for n in a.shape))
    return program.executable.run(buffers, sizes, 0, memory)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_cpu_s_results(fake, device, name):
    function, shapes = PROGRAMS[name]
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(s).astype(np.float32) for s in shapes]
    compiler = FakeTriton()
    with use_compiler(compiler), sm.config(cache=False):
        program, trace = compile_jit(function, arrays, device)
        results = [copy_to_host(y) for y in run_on_device(program, trace, arrays, device)]
    wanted = sm.jit(function)(*arrays)
    for y, w in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_allclose(y.astype(np.float64), np.asarray(w, np.float64), 2e-5, 2e-5)
    fake.check()
    assert set(compiler.compiled) and all(arch == "sm_90" for _, arch in compiler.compiled)


class MeetingTriton(FakeTriton):
    """A compiler that waits until two threads compile."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2)

    def __call__(self, text, entry, arch):
        self.meeting.wait(60)
        return super().__call__(text, entry, arch)


def test_kernels_of_a_plan_compile_side_by_side_and_equal_ones_once(fake, device, monkeypatch):
    def twice(x, y):  # two different kernels, each of them two times
        return sm.sum(x, axis=0), sm.cumulative_sum(x, axis=1), sm.sum(y, axis=0)

    monkeypatch.setattr(tables, "MAX_SEARCHES", 4)
    monkeypatch.setattr(tables, "cpu_budget", lambda: Budget(4, "this test"))
    arrays = [np.ones((70, 33), np.float32), np.full((70, 33), 2, np.float32)]
    compiler = MeetingTriton()
    with use_compiler(compiler), sm.config(cache=False, fuse=False):
        program, trace = compile_jit(twice, arrays, device)
        results = [copy_to_host(y) for y in run_on_device(program, trace, arrays, device)]
    np.testing.assert_array_equal(results[0], np.full(33, 70))
    np.testing.assert_array_equal(results[2], np.full(33, 140))
    assert len(compiler.compiled) == 2
    fake.check()


def test_new_sizes_of_loaded_code_start_no_threads(fake, device, monkeypatch):
    def twice(x):
        return sm.sum(x, axis=0), sm.cumulative_sum(x, axis=1)

    with use_compiler(FakeTriton()), sm.config(cache=False, fuse=False):
        x = np.ones((70, 33), np.float32)
        program, _ = compile_jit(twice, [x], device)
        alive = program.executable.prepared((70, 33))
        monkeypatch.setattr(tables, "ThreadPoolExecutor", None)
        again = program.executable.prepared((69, 33))
    assert len(alive.codes) == len(again.codes) == 2
    assert {id(c) for c in alive.codes} == {id(c) for c in again.codes}


@pytest.mark.parametrize("larger", [1, 40_000])
@given(graphs(max_nodes=8, dtypes=(f32, f16, i32), flavours=["uniform"]))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_results_replace_arguments_where_nothing_is_read_after_it_is_written(
    fake, device, larger, case
):
    """Plans for larger sizes have kernels of several launches: none reads what one has stored."""
    graph, arrays = case
    memory = driver_memory(device)
    inputs = range(len(arrays))
    sizes = sizes_at(graph, arrays)
    hints = {name: n * larger for name, n in sizes.items()}

    def run(donate):
        program = compile_for_device(graph, hints, device, donate=donate)
        buffers = [copy_to_device(x, from_numpy(x.dtype), memory, 0) for x in arrays]
        numbers = tuple(sizes[name] for name in program.executable.size_names)
        results = program.executable.run(buffers, numbers, 0, memory)
        fake.synchronize()
        places = {b.address for b in buffers} & {y.address for y in results}
        return [copy_to_host(y) for y in results], len(places)

    with use_compiler(FakeTriton()), sm.config(cache=False):
        try:
            wanted, _ = run(())
        except SmeltError:  # a library call, or an array without elements
            assume(False)
        results, replaced = run(tuple(inputs))
    event(f"{replaced} replaced")
    for y, w in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(y, w)


def test_other_sizes_run_on_the_same_code_while_constants_agree(fake, device):
    compiler = FakeTriton()
    x = np.random.default_rng(1).standard_normal((7, 60)).astype(np.float32)
    with use_compiler(compiler), sm.config(cache=False):
        program, trace = compile_jit(softmax, [x], device)
        for rows, columns in ((7, 60), (3, 50), (9, 100)):
            part = np.resize(x, (rows, columns))
            (y,) = run_on_device(program, trace, [part], device)
            np.testing.assert_allclose(copy_to_host(y), np.asarray(softmax(part)), 1e-5)
    assert len(compiler.compiled) == 2  # lanes for 64 and for 128 columns


def test_code_comes_from_the_cache_on_disk_in_the_next_process(fake, device, tmp_path):
    x = np.ones((7, 60), np.float32)
    counts = []
    for _ in range(2):
        compiler = FakeTriton()
        with use_compiler(compiler), sm.config(cache_dir=tmp_path, cache=True):
            program, trace = compile_jit(softmax, [x], device)
            (y,) = run_on_device(program, trace, [x], device)
            np.testing.assert_allclose(copy_to_host(y), 1 / 60, 1e-6)
        counts.append(len(compiler.compiled))
        del program, y
    assert counts == [1, 0]


def test_a_library_call_is_refused_with_its_line(device):
    with (
        use_compiler(FakeTriton()),
        pytest.raises(UnsupportedError, match="library of the CPU") as e,
    ):
        compile_jit(lambda x: sm.linalg.inv(x) + 1, [np.eye(4)], device)
    assert e.value.origin.known and "linalg.inv" in e.value.origin.text


def test_a_kernel_without_a_program_is_refused_with_its_line(device, monkeypatch):
    def refuse(kernel, sizes):
        raise DeviceKernelError(kernel="k0", missing="something")

    monkeypatch.setattr("tests.runtime.cuda.fake_triton.device_source", refuse)
    x = np.ones((3, 4), np.float32)
    with use_compiler(FakeTriton()):
        program, trace = compile_jit(softmax, [x], device)
    with pytest.raises(DeviceKernelError, match="something") as e:
        run_on_device(program, trace, [x], device)
    assert "sm." in e.value.origin.text
