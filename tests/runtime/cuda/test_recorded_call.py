"""Repeated calls: what native code does, when it leaves a call to Python, and what it costs."""

from __future__ import annotations

import gc
from time import perf_counter_ns

import numpy as np
import pytest
from tests.runtime.cuda.fake_triton import FakeTriton
from tests.runtime.cuda.native_driver import NativeDriver

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.errors import (
    AliasError,
    CaptureError,
    DeviceMemoryError,
    DonatedError,
    DriverCallError,
    OutsideError,
)
from smelt.frontends.array.device_call import KnownCalls
from smelt.runtime.cuda import dlpack
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


def test_repeated_calls_on_a_device_without_pools(fake, repeated):
    fake.has_pools = False
    f, x = sm.jit(chain), on_device()
    first = host(f(x))
    for _ in range(5):
        np.testing.assert_array_equal(host(f(x)), first)
    assert len(repeated) == 5 and None not in repeated
    gc.collect()
    assert sorted(fake.live) == [x.buffer.address] and "cuMemAllocAsync" not in fake.calls


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
    stream = fake.new_stream()
    x.buffer.stream = stream
    f(x)
    fake.begin_capture(stream)
    with pytest.raises(CaptureError):
        f(x)
    assert repeated[-1] is None
    assert fake.end_capture(stream)
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


# --- out= and donate= ---------------------------------------------------------------------------


UPDATES = {
    "map": (lambda x: x * 2 + 1, (X,), (0,)),
    "two maps": (lambda x, y: (x + y, x - y), (X, X + 1), (0, 1)),
    "momentum": (lambda p, m, g: (p - 0.1 * (0.9 * m + g), 0.9 * m + g), (X, X, X + 1), (0, 1)),
    "epilogue": (lambda x, a, b: x + a @ b, (X, X[:, :30], X[:5].repeat(6, 0)), (0,)),
    "scan": (lambda x: sm.cumulative_sum(x, axis=1), (X,), (0,)),
    "centred": (lambda x: x - sm.mean(x), (np.linspace(0, 1, 90_000, dtype=np.float32),), (0,)),
    "one row": (lambda x, v: x.at[2].set(v), (X, X[0]), (0,)),
    "beside": (lambda x: (x * 2, sm.sum(x)), (X,), (0, None)),
}
"""Functions with arguments, and the argument that each result goes to (None: another array)."""
IN_PLACE = {"map", "two maps", "momentum", "epilogue", "scan", "centred", "one row"}


@pytest.mark.parametrize("name", UPDATES)
def test_arguments_are_updated(fake, repeated, name):
    function, arrays, numbers = UPDATES[name]
    f = sm.jit(function)
    wanted = function(*map(sm.asarray, arrays))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for _ in range(3):
        arguments = [on_device(np.ascontiguousarray(x)) for x in arrays]
        outs = [
            on_device(np.zeros(y.shape, np.float32)) if k is None else arguments[k]
            for k, y in zip(numbers, wanted, strict=True)
        ]
        out = tuple(outs) if len(outs) > 1 else outs[0]
        before = len(fake.calls)
        assert f(*arguments, out=out) is out
        calls = fake.calls[before:]
        for y, w in zip(outs, wanted, strict=True):
            np.testing.assert_allclose(host(y), np.asarray(w), 1e-5, 1e-5)
        assert ("cuMemcpyDtoDAsync_v2" in calls) == (name not in IN_PLACE)
    assert len(repeated) == 2 * (name in IN_PLACE) and None not in repeated


def test_repeated_calls_into_an_array_launch_alone(fake):
    f, x, y = sm.jit(lambda x: x * 2), on_device(), on_device(np.zeros_like(X))
    f(x, out=y)
    for out in (y, on_device(X + 3)):
        fake.calls.clear()
        assert f(x, out=out) is out
        assert fake.calls == [
            *("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuStreamIsCapturing"),
            *("cuLaunchKernel", "cuCtxPopCurrent_v2"),
        ]
        np.testing.assert_array_equal(host(out), 2 * X)


def test_nests_flags_and_graphs_repeat_into_arrays(fake, repeated):
    f = sm.jit(lambda x, i: {"picked": x[:, i], "chain": chain(x)})
    x, i = on_device(), on_device(np.array([3, 49]))
    first = f(x, i)
    outs = {"chain": on_device(np.zeros_like(X)), "picked": on_device(np.zeros_like(X[:, :2]))}
    for _ in range(5):
        assert f(x, i, out=outs) is outs
        for name, y in outs.items():
            np.testing.assert_array_equal(host(y), host(first[name]))
    assert len(repeated) == 4 and None not in repeated
    assert fake.calls.count("cuGraphLaunch") >= 1
    f(x, on_device(np.array([3, 50])), out=outs)
    assert len(repeated) == 5
    with pytest.raises(OutsideError):
        host(x)


def test_arrays_that_overlap_otherwise_are_left_to_python(fake, repeated):
    f, x, y = sm.jit(lambda x, y: (x + y, x - y)), on_device(), on_device(X + 1)
    outs = on_device(np.zeros_like(X)), on_device(np.zeros_like(X))
    for _ in range(2):
        f(x, y, out=outs)
    assert len(repeated) == 1
    with pytest.raises(AliasError, match="another"):
        f(x, y, out=(outs[0], outs[0]))
    f(x, x, out=(x, outs[1]))  # two arguments are overwritten by one result
    np.testing.assert_array_equal(host(x), 2 * X)
    assert len(repeated) == 1
    other = fake.new_stream()
    fake.synchronize()
    outs[0].buffer.stream = other  # a copy and an event would be needed
    f(y, y, out=outs)
    f(y, y, out=outs)
    assert len(repeated) == 1
    np.testing.assert_array_equal(host(outs[0]), 2 * (X + 1))


def test_a_part_that_is_not_aligned_is_written_by_python(fake, repeated):
    f, x, whole = sm.jit(lambda x: x * 2), on_device(), on_device(np.zeros(400, np.float32))
    part = on_device(np.zeros_like(X))
    f(x, out=part)
    for first in (4, 5, 8):
        part.buffer.address, part.buffer.owner = whole.buffer.address + 4 * first, whole
        f(x, out=part)
        np.testing.assert_array_equal(host(whole)[first : first + 300], 2 * X.ravel())
    assert [words is not None for words in repeated] == [True, False, True]


def test_donated_arrays_give_their_memory(fake, repeated):
    f = sm.jit(lambda x, g: (x - g, sm.sum(g, axis=1)), donate=("x",))
    g = on_device(X + 1)
    for _ in range(3):
        x = on_device()
        address = x.buffer.address
        y, total = f(x, g)
        assert y.buffer.address == address
        with pytest.raises(DonatedError, match=r"f32\[6,50\] gave its memory away at .*test_rec"):
            host(x)
        with pytest.raises(DonatedError):
            f(x, g)
        np.testing.assert_array_equal(host(y), X - (X + 1))
        np.testing.assert_allclose(host(total), (X + 1).sum(1), 1e-5, 1e-5)
    assert len(repeated) == 2 and None not in repeated
    del x, y, total
    gc.collect()
    fake.synchronize()
    assert list(fake.live) == [g.buffer.address]


def test_memory_that_others_have_is_not_given_away(fake, repeated):
    f = sm.jit(lambda x, g: x - g, donate=("x",))
    f(on_device(), on_device())
    x = on_device()
    capsule = x.__dlpack__(stream=-1)
    y = f(x, on_device(X + 1))
    assert host(y).max() < 0
    assert fake.block_at(y.buffer.address)[0] is not fake.block_at(address_in(capsule))[0]
    x = on_device()
    address = x.buffer.address
    assert f(x, x).buffer.address != address  # it is read twice
    z = on_device()
    assert f(z, on_device(X), out=z) is z  # and stays readable
    np.testing.assert_array_equal(host(z), 0 * X)


def test_a_donated_array_that_is_a_result_has_another_name(fake):
    f = sm.jit(lambda x: (x, x + 1), donate=("x",))
    for _ in range(2):
        x = on_device()
        same, more = f(x)
        np.testing.assert_array_equal(host(same), X)
        np.testing.assert_array_equal(host(more), X + 1)
        with pytest.raises(DonatedError):
            host(x)


def address_in(capsule):
    return dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor")).tensor.data


# --- costs ------------------------------------------------------------------------------------


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
