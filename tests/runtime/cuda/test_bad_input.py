"""Bad input and failing machines, on a first call and on a repeated one."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_threads import fake_threads
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.errors import (
    CaptureError,
    DeviceError,
    DeviceForkError,
    DeviceMemoryError,
    DonatedError,
    DriverCallError,
    DTypeError,
    NoDriverError,
    OldDriverError,
    OutArgumentError,
)
from smelt.frontends.array.device_array import DeviceArray
from smelt.runtime.cuda.driver import system_driver, use_library
from smelt.types.dtype import u8

X = np.arange(300, dtype=np.float32).reshape(6, 50)


@pytest.fixture(autouse=True)
def compiler():
    with use_compiler(FakeTriton()), sm.config(cache=False):
        yield


@pytest.fixture(params=[False, True], ids=["first call", "repeated call"])
def double(request, fake):
    """A compiled function, which native code answers if the call is a repeated one."""
    function = sm.jit(lambda x: x * 2)
    if request.param:
        function(sm.asarray(X, device="cuda:0"))
        function(sm.asarray(X, device="cuda:0"))
        gc.collect()
        fake.synchronize()
    return function


def test_a_lost_context_is_an_error_that_says_so(fake, double):
    x = sm.asarray(X, device="cuda:0")
    fake.synchronize()
    fake.lost = 700
    for _ in range(2):
        with pytest.raises(
            DriverCallError, match=r"ILLEGAL_ADDRESS.*queued before has failed"
        ) as e:
            double(x)
        assert e.value.code == "E704" and "restart the process" in e.value.help
    with pytest.raises(DriverCallError, match="context is lost"):
        x.to_device("cpu")
    fake.lost = 0


def test_a_kernel_that_fails_later_is_reported_where_the_host_waits(fake, double):
    x = sm.asarray(X, device="cuda:0")
    y = double(x)

    def fail():
        fake.lost = 719
        fake.streams[0].queue.clear()  # what comes after it never runs
        raise AssertionError("the kernel fails")

    fake.streams[0].queue.append(fail)
    with pytest.raises(DriverCallError):
        y.to_device("cpu")
    with pytest.raises(DriverCallError, match="context is lost"):
        double(x)
    fake.lost, fake.error = 0, None


def test_a_forked_child_is_refused(fake, double):
    x = sm.asarray(X, device="cuda:0")
    device = x.buffer.device
    ours = device.driver._process
    device.driver._process = device._process = ours - 1
    before = list(fake.calls)
    with pytest.raises(DeviceForkError):
        double(x)
    assert fake.calls == before  # the parent's objects are left alone
    device.driver._process = device._process = ours


def test_empty_arrays_and_scalars_have_results(fake, double):
    for shape in ((0, 50), (6, 0), ()):
        y = double(sm.asarray(np.ones(shape, np.float32), device="cuda:0"))
        np.testing.assert_array_equal(np.asarray(y.to_device("cpu")), np.full(shape, 2.0))
    for _ in range(2):
        assert double(sm.asarray(np.ones((0, 50), np.float32), device="cuda:0")).shape == (0, 50)


def test_dtypes_that_a_device_has_not_are_refused(fake):
    with pytest.raises(DTypeError, match="a device has no complex arrays"):
        sm.asarray(np.ones(3, np.complex64), device="cuda:0")
    for bad in (np.array(["a"]), np.array([object()])):
        with pytest.raises(DTypeError):
            sm.asarray(bad, device="cuda:0")
    assert not fake.live


def test_arrays_of_two_devices_are_refused_in_repeated_calls_too():
    with use_library(FakeDriver(devices=2)) as _:
        add = sm.jit(lambda x, y: x + y)
        x, y = (sm.asarray(X, device="cuda:0") for _ in range(2))
        add(x, y)
        add(x, y)
        other = sm.asarray(X, device="cuda:1")
        with pytest.raises(DeviceError, match="cuda:1"):
            add(x, other)
        assert add(other, other).device == "cuda:1"
        gc.collect()
        assert system_driver().count == 2


@pytest.mark.parametrize(
    ("options", "kind"), [({"devices": 0}, NoDriverError), ({"version": 11_080}, OldDriverError)]
)
def test_a_driver_that_does_not_serve_is_refused_where_a_device_is_named(options, kind):
    with use_library(FakeDriver(**options)), pytest.raises(kind) as e:
        sm.asarray(X, device="cuda:0")
    assert e.value.code in ("E701", "E702") and e.value.help


def test_arrays_that_do_not_fit_are_refused(fake, double):
    x = sm.asarray(X, device="cuda:0")
    fake.synchronize()
    fake.capacity, used = fake.used + X.nbytes - 1, fake.used
    with pytest.raises(DeviceMemoryError, match=r"1\.172 KiB are needed on cuda:0"):
        sm.asarray(X, device="cuda:0")
    with pytest.raises(DeviceMemoryError):
        double(x)
    assert double(x, out=x) is x  # needs no memory
    np.testing.assert_array_equal(np.asarray(x.to_device("cpu")), 2 * X)
    gc.collect()
    fake.synchronize()
    assert fake.used == used


def huge(x, count):
    """Return an array of so many bytes where `x` begins; most do not exist."""
    buffer = replace(x.buffer, shape=(count,), strides=(1,), dtype=u8)
    return DeviceArray.of(buffer)


@pytest.mark.parametrize("compiler", [FakeTriton, fake_threads])
def test_more_elements_than_32_bits_count_have_wide_offsets(fake, compiler):
    x = sm.asarray(X, device="cuda:0")
    fake.synchronize()
    double, many = sm.jit(lambda x: x * 2), huge(x, 1 << 31)
    try:
        with use_compiler(compiler()):
            for _ in range(2):
                double(many, out=many)
    finally:
        fake.streams[0].queue.clear()  # nobody waits for so many
    assert len(fake.launches) == 2
    assert all(1 << 31 in launch["arguments"] for launch in fake.launches)
    (recordings,) = double.device_recordings.values()
    (prepared,) = recordings[0].replacing[(0, 0),].executable._prepared.values()
    assert [c.code.is_wide for c in prepared.codes] == [True]


def test_empty_arrays_are_written_and_donated(fake, double):
    give = sm.jit(lambda x: x * 2, donate="x")
    for _ in range(3):
        x, y = (sm.asarray(np.ones((0, 50), np.float32), device="cuda:0") for _ in range(2))
        assert double(x, out=y) is y
        assert double(x, out=x) is x
        assert give(x).shape == (0, 50)
        with pytest.raises(DonatedError):
            double(x)


def test_complex_values_in_a_function_are_parts_of_floats(fake):
    x = sm.asarray(X, device="cuda:0")
    conjugate = sm.jit(lambda x: sm.imag(sm.conj(x * 1j)) + 1)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(conjugate(x).to_device("cpu")), 1 - X)
    with pytest.raises(OutArgumentError):
        conjugate(x, out=sm.asarray(X > 0, device="cuda:0"))


def test_a_capture_takes_no_call_that_needs_memory_of_the_driver_s(fake, double):
    x, y = (sm.asarray(X, device="cuda:0") for _ in range(2))
    stream = fake.new_stream()
    fake.synchronize()
    x.buffer.stream = y.buffer.stream = stream
    double(x, out=y)
    fake.begin_capture(stream)
    before = [c for c in fake.calls if c == "cuLaunchKernel"]
    for out in (None, y):
        with pytest.raises(CaptureError):
            double(x) if out is None else double(x, out=out)
    assert [c for c in fake.calls if c == "cuLaunchKernel"] == before
    assert fake.end_capture(stream)
    np.testing.assert_array_equal(np.asarray(double(x, out=y).to_device("cpu")), 2 * X)
