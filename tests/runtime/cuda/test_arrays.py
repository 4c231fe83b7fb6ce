"""Arrays on a device: conversion, compiled calls, DLPack, errors read later."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.errors import (
    ArgumentError,
    CaptureError,
    DeviceError,
    DLPackError,
    DTypeError,
    NoDriverError,
    OutsideError,
)
from smelt.frontends.array.device_array import DeviceArray
from smelt.runtime.cuda import dlpack
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.cuda.driver import system_driver, use_library
from smelt.runtime.cuda.memory import driver_memory
from smelt.types.dtype import u8


@pytest.fixture(autouse=True)
def compiler(fake):
    with use_compiler(FakeTriton()) as _, sm.config(cache=False):
        yield fake


X = np.random.default_rng(3).standard_normal((6, 50)).astype(np.float32)


@sm.jit
def normalize(x, scale):
    return (x - sm.mean(x, axis=1, keepdims=True)) * scale


def test_arrays_go_to_a_device_and_back():
    x = sm.asarray(X, device="cuda:0")
    assert (x.device, x.shape, x.ndim, x.size, x.dtype) == ("cuda:0", (6, 50), 2, 300, sm.float32)
    assert len(x) == 6 and repr(x) == ("DeviceArray(shape=(6, 50), dtype=float32, device='cuda:0')")
    np.testing.assert_array_equal(np.asarray(x.to_device("cpu")), X)
    assert x.to_device("cuda:0") is x and sm.asarray(x, device="cuda") is x
    y = sm.asarray(X).to_device("cuda")
    np.testing.assert_array_equal(np.asarray(y.to_device("cpu")), X)
    assert float(sm.asarray(2.5, device="cuda:0")) == 2.5
    assert sm.asarray([1, 2], device="cuda:0").tolist() == [1, 2]
    halves = sm.asarray(x, device="cuda:0", dtype=sm.float16)
    assert halves.dtype == sm.float16


def test_a_compiled_function_runs_where_its_arrays_are(fake):
    x = sm.asarray(X, device="cuda:0")
    y = normalize(x, 3.0)
    assert y.device == "cuda:0"
    np.testing.assert_allclose(
        np.asarray(y.to_device("cpu")), np.asarray(normalize(X, 3.0)), 1e-5, 1e-6
    )
    launches = len(fake.launches)
    normalize(y, 2.0)
    assert len(fake.launches) == launches + 1  # the recording of the first call
    assert len(normalize.device_recordings) == 1


def test_operators_run_at_once():
    x = sm.asarray(X, device="cuda:0")
    y = 2 * abs(-x) - x / 2
    np.testing.assert_allclose(np.asarray(y.to_device("cpu")), 2 * abs(X) - X / 2, 1e-6)
    assert (x < 0).dtype == sm.bool and bool((x == x).to_device("cpu").all())


def test_containers_numbers_and_captured_arrays(fake):
    table = sm.asarray(np.arange(50, dtype=np.float32), copy=True)

    @sm.jit
    def f(nest, *, k):
        return {"a": nest["x"] + table * k, "n": nest["x"].shape[0], "same": nest["x"]}

    x = sm.asarray(X, device="cuda:0")
    for k in (2.0, 3.0):
        result = f({"x": x}, k=k)
        expected = X + np.arange(50, dtype=np.float32) * k
        np.testing.assert_allclose(np.asarray(result["a"].to_device("cpu")), expected, 1e-6)
        assert result["n"] == 6 and result["same"] is x
    assert fake.calls.count("cuMemcpyHtoDAsync_v2") == 2  # x, and the table once
    assert any(c.startswith("cuMemset") for c in fake.calls)  # the numbers


def test_results_free_their_memory_in_stream_order(fake):
    x = sm.asarray(X, device="cuda:0")
    for _ in range(5):
        normalize(x, 2.0)
    gc.collect()
    fake.synchronize()
    assert list(fake.live) == [x.buffer.address]


def test_a_position_out_of_bounds_is_an_error_of_a_later_read():
    @sm.jit
    def pick(x, i):
        return x[i]

    x = sm.asarray(np.arange(8, dtype=np.float32), device="cuda:0")
    good = sm.asarray(np.array([1, 7]), device="cuda:0")
    bad = sm.asarray(np.array([1, 8]), device="cuda:0")
    np.testing.assert_array_equal(np.asarray(pick(x, good).to_device("cpu")), [1, 7])
    y = pick(x, bad)  # nothing has run
    with pytest.raises(OutsideError, match="in a call on the GPU before") as e:
        y.to_device("cpu")
    assert "x[i]" in e.value.origin.text
    np.testing.assert_array_equal(np.asarray(pick(x, good).to_device("cpu")), [1, 7])


def test_arrays_of_two_places_are_an_error():
    x = sm.asarray(X, device="cuda:0")
    with pytest.raises(DeviceError, match="'scale' is on the CPU") as e:
        normalize(x, np.ones(50, np.float32))
    assert 'device="cuda:0"' in e.value.help
    with pytest.raises(DLPackError, match="on a GPU"):
        sm.exp(x)
    with pytest.raises(DeviceError, match="NumPy reads memory of the CPU"):
        np.asarray(x)
    with pytest.raises(DeviceError, match="out= is on the CPU"):
        normalize(x, 2.0, out=np.zeros((6, 50), np.float32))
    with pytest.raises(ArgumentError, match="one element"):
        x.item()


def test_unknown_devices_are_refused():
    with pytest.raises(DeviceError, match="cuda:7"):
        sm.asarray(X, device="cuda:7")
    with pytest.raises(DeviceError, match="cuda:x"):
        sm.asarray(X, device="cuda:x")
    with pytest.raises(DeviceError, match="tpu"):
        sm.asarray(X).to_device("tpu")


def test_a_machine_without_a_gpu_says_so(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    with use_library(None), pytest.raises(NoDriverError):
        sm.asarray(X, device="cuda:0")


# --- DLPack -------------------------------------------------------------------------------------


class Foreign:
    """An array of another library on the device."""

    def __init__(self, array, version=None):
        self.array, self.version, self.streams = array, version, []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream):
        self.streams.append(stream)
        return self.array.__dlpack__(stream=stream, max_version=self.version)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_foreign_arrays_are_read_where_they_lie(fake, version):
    x = Foreign(sm.asarray(X, device="cuda:0"), version)
    copies = fake.calls.count("cuMemcpyHtoDAsync_v2")
    y = normalize(x, 3.0)
    assert fake.calls.count("cuMemcpyHtoDAsync_v2") == copies
    assert x.streams and set(x.streams) == {1}  # the legacy default stream
    np.testing.assert_allclose(
        np.asarray(y.to_device("cpu")), np.asarray(normalize(X, 3.0)), 1e-5, 1e-6
    )
    del x, y
    gc.collect()
    fake.synchronize()
    assert not fake.live and not dlpack._EXPORTED


def test_another_library_keeps_its_memory_until_kernels_have_read_it(fake):
    """CuPy's and JAX's streams do not wait for the default one, in which our kernels run."""
    double = sm.jit(lambda x: x * 2)
    double(sm.asarray(X, device="cuda:0"))
    fake.synchronize()
    y = double(Foreign(sm.asarray(X, device="cuda:0")))
    gc.collect()
    assert len(dlpack._EXPORTED) == 1  # nobody else has the array, and the kernel has not run
    np.testing.assert_array_equal(np.asarray(y.to_device("cpu")), X * 2)
    assert not dlpack._EXPORTED
    z = double(Foreign(sm.asarray(X, device="cuda:0")))
    fake.synchronize()
    double(Foreign(sm.asarray(X, device="cuda:0")))  # the next call finds that it has run
    gc.collect()
    assert len(dlpack._EXPORTED) == 1 and z.shape == X.shape
    fake.synchronize()
    system_driver().device(0).call_finished()
    assert not dlpack._EXPORTED


def test_another_library_keeps_memory_that_a_second_stream_reads(fake, device):
    x = sm.asarray(Foreign(sm.asarray(X, device="cuda:0")), device="cuda:0")
    stream = fake.new_stream()
    x.buffer.owner.used_by(stream)
    fake.calls.clear()
    del x
    gc.collect()
    assert "cuStreamWaitEvent" in fake.calls
    fake.synchronize()
    device.call_finished()
    assert not dlpack._EXPORTED


def test_a_capsule_that_nobody_takes_frees_its_struct():
    x = sm.asarray(X, device="cuda:0")
    capsule = x.__dlpack__(max_version=(1, 0))
    assert len(dlpack._EXPORTED) == 1
    del capsule
    assert not dlpack._EXPORTED


def test_an_export_orders_the_consumer_s_stream(fake):
    stream = fake.new_stream()
    x = sm.asarray(X, device="cuda:0")
    fake.calls.clear()
    x.__dlpack__(stream=-1)
    assert "cuStreamWaitEvent" not in fake.calls
    x.__dlpack__(stream=stream)
    assert fake.calls.count("cuStreamWaitEvent") == 1
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError):
        x.__dlpack__(copy=True)


def _altered(array, **changes):
    """A capsule with other facts than the array's."""
    capsule = array.__dlpack__(stream=-1)
    struct = dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor"))
    for name, x in changes.items():
        setattr(struct.tensor, name, x)
    return capsule


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"device_type": 1}, DLPackError, "a device of type 1"),
        ({"bits": 8, "code": 2}, DTypeError, r"\(2, 8, 1\)"),
        ({"byte_offset": 2}, DLPackError, "not aligned"),
        ({"device_id": 5}, DeviceError, "cuda:5"),
    ],
)
def test_what_a_capsule_claims_is_checked(fake, changes, kind, text):
    x = sm.asarray(X, device="cuda:0")
    with pytest.raises(kind, match=text):
        dlpack.import_capsule(_altered(x, **changes), system_driver(), 0, "Foreign")


def test_a_foreign_array_with_strides_is_copied_on_the_device(fake):
    x = sm.asarray(X, device="cuda:0")
    capsule = _altered(x)
    struct = dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor"))
    struct.tensor.strides[0], struct.tensor.strides[1] = 1, 6
    view = SimpleNamespace(__dlpack__=lambda stream: capsule, __dlpack_device__=lambda: (2, 0))
    y = normalize(view, 2.0)
    wanted = normalize(X.reshape(50, 6).T, 2.0)
    np.testing.assert_allclose(np.asarray(y.to_device("cpu")), np.asarray(wanted), 1e-5, 1e-6)


# --- torch --------------------------------------------------------------------------------------


class FakeTensor:
    """A tensor of torch on the fake device."""

    is_cuda = True

    def __init__(self, array):
        self.array = array
        self.device = SimpleNamespace(index=array.buffer.device.ordinal)
        self.is_negated = False
        self.recorded = []
        if not array.buffer.stream:  # elements are in order in torch's own stream
            array.buffer.device.synchronize(0)

    def is_neg(self):
        return self.is_negated

    def detach(self):
        return self

    def data_ptr(self):
        return self.array.buffer.address

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.dtype.itemsize

    def record_stream(self, stream):
        self.recorded.append(stream)

    def __dlpack_device__(self):
        return (2, self.device.index)

    def __dlpack__(self, *, stream):
        """Export the array; torch's code says what it refuses."""
        ordinal = self.array.buffer.device.ordinal
        if ordinal != sys.modules["torch"].cuda.current_device():
            raise BufferError("Can't export tensors on a different CUDA device index.")
        return self.array.__dlpack__(stream=stream)


@pytest.fixture
def torch(monkeypatch, fake):
    """A stand-in of torch's interface to its streams and its allocator."""
    module = torch_of(fake)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def torch_of(fake):
    driver = system_driver()
    stream = fake.new_stream()
    module = SimpleNamespace(Tensor=FakeTensor, uint8="uint8", allocated=[], current=0)

    def empty(n, dtype, device):
        place = driver.device(device[1])
        captured = place.is_capturing(stream)  # then from the pool of the graph
        block = driver_memory(place).allocate(n, 0 if captured else stream)
        buffer = DeviceBuffer(block.address, (n,), (1,), u8, place, stream, block)
        module.allocated.append(n)
        return FakeTensor(DeviceArray.of(buffer))

    module.empty = empty
    module.device = lambda kind, index: (kind, index)
    module.OutOfMemoryError = MemoryError

    @contextmanager
    def on_device(device):
        before, module.current = module.current, device.index
        yield
        module.current = before

    module.cuda = SimpleNamespace(
        device=on_device,
        current_device=lambda: module.current,
        current_stream=lambda device: SimpleNamespace(cuda_stream=stream),
        ExternalStream=lambda handle, device: handle,
        memory_reserved=lambda place: 0,
    )
    module.stream = stream
    return module


def test_tensors_of_torch_use_its_stream_and_allocator(fake, torch):
    x = FakeTensor(sm.asarray(X, device="cuda:0"))
    y = normalize(x, 3.0)
    assert fake.launches[-1]["stream"] == torch.stream
    assert 4 * X.size in torch.allocated
    np.testing.assert_allclose(
        np.asarray(y.to_device("cpu")), np.asarray(normalize(X, 3.0)), 1e-5, 1e-6
    )


def test_a_tensor_of_another_device_than_torch_s_current_one_is_an_argument(monkeypatch):
    with use_library(fake := FakeDriver(devices=2)):
        torch = torch_of(fake)
        monkeypatch.setitem(sys.modules, "torch", torch)
        x = FakeTensor(sm.asarray(X, device="cuda:1"))
        with pytest.raises(BufferError):
            x.__dlpack__(stream=-1)
        y = sm.jit(lambda x: x * 2)(x)
        assert y.device == "cuda:1" and torch.current == 0
        np.testing.assert_array_equal(np.asarray(y.to_device("cpu")), X * 2)


def test_a_tensor_whose_signs_torch_keeps_apart_is_refused(fake, torch):
    x = FakeTensor(sm.asarray(X, device="cuda:0"))
    x.is_negated = True
    with pytest.raises(DLPackError, match=r"negated elements: pass x.resolve_neg\(\)"):
        sm.jit(lambda x: x * 2)(x)


def test_a_capture_of_torch_takes_programs_that_ran_before(fake, torch):
    @sm.jit
    def double(x):
        return x * 2

    x = FakeTensor(sm.asarray(X, device="cuda:0"))
    driver = system_driver()
    double(x)
    normalize(x, 3.0)
    fake.synchronize()
    with driver.device(0).current():
        fake.begin_capture(torch.stream)
        y = double(x)
        with pytest.raises(CaptureError, match="first call"):
            sm.jit(lambda x: x * 3)(x)
        calls = len(fake.calls)
        with sm.config(tune="race"), pytest.raises(CaptureError, match="first call"):
            double(x)
        with pytest.raises(CaptureError, match="first call"):
            double(x, out=x)  # another program: the result replaces the argument
        assert not {"cuMemAllocAsync", "cuEventSynchronize", "cuLaunchKernel"} & {
            *fake.calls[calls:]
        }
        with pytest.raises(CaptureError, match="read at replay"):
            normalize(x, 3.0)
        graph = fake.end_capture(torch.stream)
        driver.call("cuGraphLaunch", graph, torch.stream)
    np.testing.assert_allclose(np.asarray(y.to_device("cpu")), 2 * X)


@pytest.mark.parametrize(
    ("function", "kernels"), [(lambda x: x * 2 + 1, 1), (lambda x: (x * x).sum(), 2)]
)
def test_a_captured_table_of_arrays_is_filled_at_replay(fake, torch, function, kernels):
    arrays = [np.full(k + 2, k, np.float32) for k in range(12)]
    tensors = [FakeTensor(sm.asarray(x, device="cuda:0")) for x in arrays]
    f = sm.jit(lambda *xs: [function(x) for x in xs])
    f(*tensors)
    fake.synchronize()
    driver = system_driver()
    with driver.device(0).current():
        fake.begin_capture(torch.stream)
        results = f(*tensors)
        graph = fake.end_capture(torch.stream)
        driver.call("cuGraphLaunch", graph, torch.stream)
    launched = [x["symbol"] for x in fake.launches[-1 - kernels :]]
    assert launched == ["smelt_fill", *["kernel_k"] * kernels]
    for x, y in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(np.asarray(y.to_device("cpu")), function(x))


def test_positions_cannot_be_checked_in_a_capture(fake, torch):
    @sm.jit
    def pick(x, i):
        return x[i]

    x = FakeTensor(sm.asarray(np.arange(8, dtype=np.float32), device="cuda:0"))
    i = FakeTensor(sm.asarray(np.array([1, 7]), device="cuda:0"))
    pick(x, i)
    fake.synchronize()
    fake.begin_capture(torch.stream)
    with pytest.raises(CaptureError, match="positions are checked"):
        pick(x, i)
    assert fake.end_capture(torch.stream)


def test_an_array_of_another_stream_is_not_waited_for_in_a_capture(fake, torch):
    x = sm.asarray(X, device="cuda:0")
    fake.begin_capture(torch.stream)
    with pytest.raises(CaptureError, match="written in a stream that is not captured"):
        x.__dlpack__(stream=torch.stream)
    assert fake.end_capture(torch.stream)


# --- several devices ----------------------------------------------------------------------------


def test_arrays_of_two_devices_are_an_error():
    with use_library(FakeDriver(devices=2)):
        x, y = (sm.asarray(X, device=f"cuda:{k}") for k in range(2))
        with pytest.raises(DeviceError, match=r"on cuda:1, others are on cuda:0"):
            x + y
        with pytest.raises(DeviceError, match="arrays do not move from one GPU to another"):
            x.to_device("cuda:1")
        assert (y * 2).device == "cuda:1"


def test_a_call_on_a_device_is_explained_for_it(fake):
    fake.model = "NVIDIA A10"
    arrays = {"x": sm.asarray(X, device="cuda:0"), "scales": [2.0]}

    def scaled(d):
        return normalize(d["x"], d["scales"][0])

    report = sm.explain(scaled, arrays)
    assert report.data.device.name == "NVIDIA A10"
    assert report.kernels[0].source
    assert sm.explain(scaled, arrays, target="h200").data.device.key == "h200"
    assert sm.explain(sm.exp, sm.spec("f32[100]"), target="cuda").data.device.name == "NVIDIA A10"
    with pytest.raises(DeviceError, match="cuda:1"):
        sm.explain(sm.exp, sm.spec("f32[100]"), target="cuda:1")
    with pytest.raises(ArgumentError, match="cuda:0"):
        sm.explain(sm.exp, sm.spec("f32[100]"), target="cuda:first")
