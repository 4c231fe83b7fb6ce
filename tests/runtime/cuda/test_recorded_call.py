"""Repeated calls: what native code does, when it leaves a call to Python, and what it costs."""

from __future__ import annotations

import ctypes
import gc
from time import perf_counter_ns

import numpy as np
import pytest
from tests.runtime.cuda.fake_triton import FakeTriton
from tests.runtime.cuda.native_driver import NativeDriver

import smelt as sm
from smelt.device import use_compiler
from smelt.errors import CaptureError, DeviceMemoryError, DriverCallError, OutsideError
from smelt.frontends.array.device_repeats import KnownCalls
from smelt.runtime.cuda.driver import use_library
from smelt.runtime.cuda.memory import driver_memory
from smelt.runtime.cuda.recorded_call import RecordedCall

X = np.random.default_rng(5).standard_normal((6, 50)).astype(np.float32)


@pytest.fixture(autouse=True)
def compiler():
    with use_compiler(FakeTriton()), sm.config(cache=False):
        yield


def on_device(x=X):
    return sm.asarray(x, device="cuda:0")


def host(x):
    return np.asarray(x.to_device("cpu"))


@pytest.fixture
def repeated(monkeypatch):
    """Results of the calls that native code has answered: addresses, or None."""
    seen = []
    run = RecordedCall.run

    def spy(self, addresses, stream):
        words = run(self, addresses, stream)
        seen.append(words)
        return words

    monkeypatch.setattr(RecordedCall, "run", spy)
    return seen


def chain(x):
    """Five kernels: scans of columns and rows in turn."""
    for k in range(5):
        x = sm.cumulative_sum(sm.flip(x, axis=0), axis=k % 2) * 0.5
    return x


@pytest.mark.parametrize("function", [lambda x: x * 2, chain], ids=["one kernel", "a graph"])
def test_repeated_calls_give_the_first_one_s_bits(fake, repeated, function):
    f, x = sm.jit(function), on_device()
    first = host(f(x))
    for _ in range(5):
        y = f(x)
        np.testing.assert_array_equal(host(y), first)
    assert len(repeated) == 5 and None not in repeated
    other = on_device(X + 1)
    np.testing.assert_array_equal(host(f(other)), host(sm.jit(function)(other)))
    del y
    gc.collect()
    fake.synchronize()
    assert sorted(fake.live) == sorted([x.buffer.address, other.buffer.address])
    assert driver_memory(x.buffer.device).held == 2 * X.nbytes


def test_a_plan_of_many_kernels_replays_its_graph(fake, repeated):
    f, x = sm.jit(chain), on_device()
    for _ in range(6):
        f(x)
        fake.synchronize()
    assert None not in repeated and fake.calls.count("cuGraphLaunch") >= 1


def test_a_repeated_call_asks_the_driver_for_memory_and_launches_alone(fake):
    f, x = sm.jit(lambda x: x * 2), on_device()
    f(x)
    gc.collect()
    fake.calls.clear()
    y = f(x)
    del y
    assert fake.calls == [
        *("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuStreamIsCapturing"),
        *("cuMemAllocAsync", "cuLaunchKernel", "cuCtxPopCurrent_v2"),
        *("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuMemFreeAsync", "cuCtxPopCurrent_v2"),
    ]


def test_structure_types_and_settings_are_part_of_the_key(fake, repeated):
    f, x = sm.jit(lambda x: (x[0] if isinstance(x, list) else x) + 1), on_device()
    f(x)
    f([x])  # another nest: recorded apart
    assert not repeated
    assert isinstance(f([x]), type(x)) and len(repeated) == 1
    f(on_device(X.astype(np.float16)))
    f(on_device(X[:5]))
    with sm.config(rounding="exact"):
        f(x)
    assert len(repeated) == 1
    with sm.config(max_extra_memory=1 << 20):
        f(x)
        f(x)  # a limit may change: not recorded
    with sm.config(native_calls=False):
        g = sm.jit(lambda x: x - 1)
        g(x)
        g(x)
    assert len(repeated) == 1
    f(x)
    assert len(repeated) == 2


def test_two_results_captured_arrays_and_flags_repeat(fake, repeated):
    def table():
        return np.arange(50, dtype=np.float32)

    @sm.jit
    def f(x, i):
        return {"picked": x[:, i], "sum": x + table()}

    x, i, bad = on_device(), on_device(np.array([3, 49])), on_device(np.array([3, 50]))
    for _ in range(3):
        y = f(x, i)
        np.testing.assert_array_equal(host(y["picked"]), X[:, [3, 49]])
        np.testing.assert_array_equal(host(y["sum"]), X + table())
    assert len(repeated) == 2
    f(x, bad)
    assert len(repeated) == 3
    fake.drain()
    with pytest.raises(OutsideError):
        f(x, i)
    host(f(x, i)["sum"])
    visible = table()
    g = sm.jit(lambda x: x + visible)
    for _ in range(3):
        np.testing.assert_array_equal(host(g(x)), X + visible)
        visible += 1  # so it is copied in every call
    assert len(repeated) == 6


def test_memory_that_the_driver_refuses_is_an_error_and_nothing_stays(fake, repeated):
    f, x = sm.jit(lambda x: (x * 2, x + 1)), on_device()
    kept = f(x)
    fake.synchronize()
    used = fake.used
    fake.capacity = used + X.nbytes + 100  # the first result fits, the second does not
    with pytest.raises(DeviceMemoryError):
        f(x)
    assert repeated == [None]
    gc.collect()
    fake.synchronize()
    assert fake.used == used and kept
    fake.capacity = 1 << 30
    np.testing.assert_array_equal(host(f(x)[1]), X + 1)


def test_a_captured_stream_is_left_to_python(fake, repeated):
    f, x = sm.jit(lambda x: x * 2), on_device()
    f(x)
    driver = x.buffer.device.driver
    stream = driver.word("cuStreamCreate", 1)
    x.buffer.stream = stream
    f(x)
    driver.call("cuStreamBeginCapture_v2", stream, 1)
    with pytest.raises(CaptureError):
        f(x)
    assert repeated[-1] is None
    driver.call("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_uint64()))
    host(f(x))


def test_a_failed_launch_of_a_repeated_call_names_its_kernel_and_frees(fake):
    f, x = sm.jit(lambda x: x * 2), on_device()
    f(x)
    gc.collect()
    fake.failing["cuLaunchKernel"] = 701
    with pytest.raises(DriverCallError, match="cuLaunchKernel of k0"):
        f(x)
    fake.failing.clear()
    fake.synchronize()
    gc.collect()
    fake.synchronize()
    assert list(fake.live) == [x.buffer.address]


def test_large_frames_do_not_go_on_the_stack(fake, repeated, monkeypatch):
    monkeypatch.setattr("smelt.runtime.cuda.recorded_call.STACK_WORDS", 2)
    f, x = sm.jit(lambda x: x / sm.sum(x)), on_device()
    first = host(f(x))
    np.testing.assert_array_equal(host(f(x)), first)
    assert len(repeated) == 1 and repeated[0] is not None


@pytest.mark.clock
def test_a_repeated_call_costs_few_microseconds():
    """Times of calls through a driver of empty functions, and that nothing is left out."""
    library = NativeDriver()
    with use_library(library):
        x, f = on_device(), sm.jit(lambda x: x * 2)
        f(x)
        assert isinstance(f.known_device_calls, KnownCalls)
        times = []
        before = library.count("cuLaunchKernel"), library.count("cuMemFreeAsync")
        for _ in range(50):
            start = perf_counter_ns()
            for _ in range(20):
                f(x)
            times.append((perf_counter_ns() - start) / 20)
        assert library.count("cuLaunchKernel") - before[0] == 1000
        assert library.count("cuMemFreeAsync") - before[1] == 1000
    assert min(times) < 20_000  # ns: a third of what Python takes without the record
