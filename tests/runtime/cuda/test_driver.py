"""The driver's binding: what is loaded when, and the errors of drivers that do not serve."""

from __future__ import annotations

import contextvars
import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver, image
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.errors import (
    CaptureError,
    DeviceError,
    DeviceForkError,
    DeviceMemoryError,
    DriverCallError,
    NoDriverError,
    OldDriverError,
    OutsideError,
)
from smelt.runtime.cuda.buffer import copy_to_device, copy_to_host
from smelt.runtime.cuda.driver import Driver, system_driver, use_library
from smelt.runtime.cuda.flags import MAX_PENDING, deferred_flags
from smelt.runtime.cuda.memory import driver_memory
from smelt.types.dtype import bool_, f32

SOURCE = Path(__file__).parents[3] / "src"
IMPORTED = """
import sys
import numpy as np
import smelt as sm
assert float(sm.jit(lambda x: sm.sum(x))(np.ones(8))) == 8
loaded = [name for name in sys.modules if "cuda" in name]
assert not loaded, loaded
assert not any("libcuda" in line for line in open("/proc/self/maps"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_program_on_the_cpu_imports_and_loads_nothing_of_cuda():
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", IMPORTED], check=True, env=environment)


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with use_library(None), pytest.raises(NoDriverError, match=r"libcuda\.so\.1 does not load"):
        system_driver()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"devices": 0}, NoDriverError, "no device"),
        ({"version": 11_040}, OldDriverError, r"CUDA 11\.4, 12\.0 is required"),
    ],
)
def test_a_driver_that_does_not_serve_is_refused(options, kind, text):
    with pytest.raises(kind, match=text):
        Driver(FakeDriver(**options))


def test_a_driver_that_does_not_start_gives_its_own_name():
    fake = FakeDriver()
    fake.failing["cuInit"] = 100
    with pytest.raises(NoDriverError, match="CUDA_ERROR_UNKNOWN"):
        Driver(fake)


def test_a_function_that_is_missing_is_named(fake, device):
    fake.missing.add("cuMemAllocAsync")
    with pytest.raises(OldDriverError, match="no function cuMemAllocAsync"):
        driver_memory(device).allocate(8, 0)


def test_an_unknown_device_lists_those_here(fake):
    with pytest.raises(DeviceError, match=r"'cuda:3'; here: cpu, cuda:0"):
        system_driver().device(3)


def test_a_device_has_its_properties(device):
    assert (device.arch, device.model, device.multiprocessors) == ("sm_90", "Fake GPU", 132)
    assert device.memory() == (1 << 30, 1 << 30)
    assert device.facts["processors"] == 132 and device.facts["memory_bytes"] == 1 << 30


def test_figures_that_a_driver_does_not_know_are_zero(fake, device):
    del fake.figures[36]
    assert device.facts["memory_khz"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
def test_a_forked_child_is_refused(fake, device):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            device.memory()
        except DeviceForkError as error:
            os.write(write, str(error.fields["parent"]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100) == str(os.getpid()).encode()
    os.close(read)


def test_the_context_is_current_inside_of_calls_only(fake, device):
    assert not fake.contexts
    with device.current(), device.current():
        assert len(fake.contexts) == 1
    assert not fake.contexts


def test_modules_are_checked_and_unloaded(fake, device):
    with pytest.raises(
        DriverCallError, match=r"cuModuleLoadDataEx: .*: line 1: no such instruction"
    ):
        device.load(b"no image")
    module = device.load(image(f={"engine": "affine", "arguments": []}))
    assert module.function("f") == module.function("f") == module.function("f", 100 << 10)
    with pytest.raises(DriverCallError, match="CUDA_ERROR_NOT_FOUND"):
        module.function("g")
    with pytest.raises(DriverCallError, match="cuFuncSetAttribute"):
        module.function("f", 1 << 20)
    first = module.handle
    del module
    assert "cuModuleUnload" not in fake.calls  # garbage may be collected in a capture
    module = device.load(image(f={"engine": "affine", "arguments": []}))
    assert [*fake.modules] == [module.handle] != [first]


def test_a_function_may_have_the_most_shared_memory_of_its_launches(fake, device):
    kernel = {"engine": "affine", "arguments": [], "static_shared": 1 << 10}
    module = device.load(image(f=kernel))
    for shared_bytes in (48 << 10, 100 << 10, 60 << 10, 0):
        handle = module.function("f", shared_bytes)
        assert fake.functions[handle]["most_shared"] >= shared_bytes
        # Triton's launcher asks for more shared memory than cache in the same cases.
        assert ("prefers" in fake.functions[handle]) == (
            fake.functions[handle]["most_shared"] > 48 << 10
        )


def test_a_thread_without_a_context_calls_as_any_other(fake):
    double, x = sm.jit(lambda x: x * 2), np.ones((3, 5), np.float32)
    results: list[sm.Array] = []

    def run():
        y = sm.asarray(x, device="cuda:0")
        for _ in range(3):
            y = double(y)
        results.append(y.to_device("cpu"))

    with use_compiler(FakeTriton()), sm.config(cache=False):
        for _ in range(2):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
            thread.start()
            thread.join()
    assert [np.asarray(y).max() for y in results] == [8, 8]


def test_an_array_may_change_when_it_is_on_the_device(device, fake):
    """A device that reads the host's memory itself does so when its queue comes to it."""
    fake.reads_pageable = 1
    with use_library(fake):
        memory = driver_memory(system_driver().device(0))
        x = np.arange(6, dtype=np.float32)
        buffer = copy_to_device(x, f32, memory, 0)
        x[:] = -1
        np.testing.assert_array_equal(copy_to_host(buffer), np.arange(6))


def test_the_pool_keeps_a_share_of_the_memory_when_the_host_waits(fake, device):
    driver_memory(device)
    assert fake.pool_keeps == fake.capacity // 16


def test_code_is_loaded_before_its_first_launch(fake, device):
    fake.missing.add("cuFuncLoad")  # a driver of CUDA 12.3
    assert device.load(image(f={"arguments": []})).function("f")
    fake.missing.clear()
    module = device.load(image(f={"arguments": []}))
    assert "cuFuncLoad" not in fake.calls and module.function("f") == module.function("f")
    assert fake.calls.count("cuFuncLoad") == 1


def test_memory_without_pools_is_allocated_and_freed_at_once(fake):
    fake.has_pools = False
    memory = driver_memory(system_driver().device(0))
    fake.capacity = 3 << 10
    x = np.arange(512, dtype=np.float32)
    buffer = copy_to_device(x, f32, memory, 0)
    np.testing.assert_array_equal(copy_to_host(buffer), x)
    del buffer
    gc.collect()
    assert not fake.live and not fake.retired and memory.held == 0
    with pytest.raises(DeviceMemoryError):
        memory.allocate(4 << 10, 0)


def test_memory_that_is_freed_late_is_waited_for(fake, device):
    memory = driver_memory(device)
    fake.capacity = 3 << 10
    block = memory.allocate(2 << 10, 0)
    del block
    other = memory.allocate(2 << 10, 0)
    calls = [c for c in fake.calls if not c.startswith(("cuCtx", "cuThread"))]
    wait = ["cuMemAllocAsync", "cuStreamSynchronize", "cuMemPoolTrimTo", "cuMemAllocAsync"]
    assert calls[-4:] == wait and other.nbytes == 2 << 10


# ---- captures of other libraries -----------------------------------------------------------------


@pytest.mark.parametrize("in_same_thread", [True, False])
def test_a_capture_goes_on_while_we_load_wait_and_unload(fake, device, in_same_thread):
    """torch captures in the mode that forbids these calls in all threads."""
    memory, flags = driver_memory(device), deferred_flags(device)
    unset = copy_to_device(np.array(False), bool_, memory, 0)
    flags.add(unset.address, 0, lambda: pytest.fail("a flag that is not set fails"))
    old = device.load(image(f={"engine": "affine", "arguments": []}))
    stream, kept = fake.new_stream(), []

    def act():
        nonlocal old
        device.load(image(f={"engine": "affine", "arguments": []})).function("f")
        flags.check()
        flags.add(unset.address, 0, lambda: pytest.fail("a flag that is not set fails"))
        flags.check(wait=True)
        del old
        gc.collect()
        kept.append(device.load(image(f={"engine": "affine", "arguments": []})))

    fake.begin_capture(stream)
    if in_same_thread:
        act()
    else:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
    assert [*fake.modules] == [module.handle for module in kept]
    assert fake.end_capture(stream)


def test_the_fake_ends_a_capture_where_a_driver_does(fake, device):
    stream, event = fake.new_stream(), ctypes.c_uint64()
    with device.current():
        device.driver.call("cuEventCreate", ctypes.byref(event), 0)
        fake.begin_capture(stream)
        assert device.driver.result("cuEventQuery", event.value) == 900
        assert not fake.end_capture(stream)
        fake.begin_capture(stream)
        device.driver.call("cuEventRecord", event.value, stream)
        with device.relaxed():
            assert device.driver.result("cuEventQuery", event.value) == 907
        assert fake.end_capture(stream)
        device.driver.call("cuEventDestroy_v2", event.value)


def test_a_captured_stream_that_waits_for_the_default_one_forbids_it(fake, device):
    stream = fake.new_stream(flags=0)
    fake.begin_capture(stream)
    with pytest.raises(CaptureError, match="the call is in the default stream"):
        copy_to_device(np.ones(3, np.float32), f32, driver_memory(device), 0)
    assert fake.end_capture(stream)


def test_elements_go_to_the_device_and_back(fake, device):
    memory = driver_memory(device)
    for x in (np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(4), np.zeros((0, 3))):
        buffer = copy_to_device(np.asarray(x, np.float32), f32, memory, 0)
        np.testing.assert_array_equal(copy_to_host(buffer), x)


def test_flags_are_read_without_waiting(fake, device):
    def fail():
        raise OutsideError("position 7 is out of bounds")

    memory, flags = driver_memory(device), deferred_flags(device)
    unset, flag = (copy_to_device(np.array(x), bool_, memory, 0) for x in (False, True))
    fake.calls.clear()
    flags.add(unset.address, 0, fail)
    flags.add(flag.address, 0, fail)
    flags.check()  # nothing has arrived
    assert "cuStreamSynchronize" not in fake.calls and "cuEventSynchronize" not in fake.calls
    fake.drain()
    with pytest.raises(OutsideError, match="position 7"):
        flags.check()
    flags.check()
    flags.add(flag.address, 0, fail)
    with pytest.raises(OutsideError, match="position 7"):
        flags.check(wait=True)


def test_more_flags_than_slots_wait_for_the_first_ones(fake, device):
    flags = deferred_flags(device)
    unset = copy_to_device(np.array(False), bool_, driver_memory(device), 0)
    for _ in range(MAX_PENDING + 3):
        flags.add(unset.address, 0, lambda: pytest.fail("a flag that is not set fails"))
    flags.check(wait=True)
    assert not fake.events
