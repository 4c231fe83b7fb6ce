"""The driver's binding: what is loaded when, and the errors of drivers that do not serve."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver, image

from smelt.errors import (
    DeviceError,
    DeviceForkError,
    DriverCallError,
    NoDriverError,
    OldDriverError,
    OutsideError,
)
from smelt.runtime.cuda.buffer import copy_to_device, copy_to_host
from smelt.runtime.cuda.driver import Driver, system_driver, use_library
from smelt.runtime.cuda.flags import MOST_PENDING, deferred_flags
from smelt.runtime.cuda.launch_loop import IR, ROW_WORDS
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
    with pytest.raises(DriverCallError, match="cuModuleLoadData"):
        device.load(b"no image")
    module = device.load(image(f={"engine": "affine", "arguments": []}))
    assert module.function("f") == module.function("f")
    assert module.function("f", 100 << 10) != module.function("f")
    with pytest.raises(DriverCallError, match="CUDA_ERROR_NOT_FOUND"):
        module.function("g")
    with pytest.raises(DriverCallError, match="cuFuncSetAttribute"):
        module.function("f", 1 << 20)
    del module
    assert not fake.modules


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
    for _ in range(MOST_PENDING + 3):
        flags.add(unset.address, 0, lambda: pytest.fail("a flag that is not set fails"))
    flags.check(wait=True)
    assert not fake.events


def test_the_loop_reads_rows_of_the_documented_length():
    assert f"[{ROW_WORDS} x i64]" in IR
