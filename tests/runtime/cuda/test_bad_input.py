"""Bad input and failing machines, on a first call and on a repeated one."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.device import use_compiler
from smelt.errors import (
    DeviceError,
    DeviceForkError,
    DriverCallError,
    DTypeError,
)
from smelt.runtime.cuda.driver import system_driver, use_library

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
