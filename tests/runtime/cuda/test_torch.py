"""Traced programs of torch on a device, with FakeTensors and the fake driver."""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace

import numpy as np
import pytest

from smelt.errors import CaptureError, DeviceKernelError, FallbackWarning, OutsideError
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.types.dtype import f32

torch = pytest.importorskip("torch")

from tests.runtime.cuda.fake_torch import Tensor, fake_torch, new_tensor, put  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from smelt.frontends.torch import device_segment  # noqa: E402
from smelt.frontends.torch.backend import compile_traced  # noqa: E402
from smelt.frontends.torch.lower import device_of  # noqa: E402

pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def on_fake_driver(fake, monkeypatch):
    with fake_torch(monkeypatch):
        yield


def traced(function, *shapes, dtypes=None):
    """The graph of a function of tensors on a GPU."""
    with FakeTensorMode():
        kinds = dtypes or [torch.float32] * len(shapes)
        examples = [
            torch.empty(s, device="cuda", dtype=k) for s, k in zip(shapes, kinds, strict=True)
        ]
    return make_fx(function)(*examples)


def call(graph, *arrays, **settings):
    program = compile_traced(graph, {"strict": True, **settings}, "inference")
    return program([put(x) for x in arrays])


X = np.random.default_rng(2).standard_normal((6, 40)).astype(np.float32)
W = np.random.default_rng(4).standard_normal((40, 20)).astype(np.float32)


def test_the_device_of_the_arguments_decides():
    assert device_of(traced(lambda x: x + 1, (3,)).graph).type == "cuda"
    assert device_of(make_fx(lambda x: x + 1)(torch.ones(3)).graph).type == "cpu"


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (torch.softmax(x, 1),),
        lambda x, w: (torch.tanh(x @ w) * 2, x.sum(0)),
        lambda x, w: (torch.nn.functional.layer_norm(x, (40,)), torch.relu(w)),
        lambda x, w: (x.T * 2, x.mean(1)),
    ],
    ids=["softmax", "product", "norm", "transposed"],
)
def test_a_graph_of_a_gpu_gives_torch_s_results(fake, function):
    wanted = function(torch.from_numpy(X), torch.from_numpy(W))
    results = call(traced(function, X.shape, W.shape), X, W)
    assert fake.launches and not any(c == "cuStreamSynchronize" for c in fake.calls)
    for y, w in zip(results, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), w.numpy(), 2e-5, 2e-5)


def test_what_no_program_does_is_left_to_torch_s_operator_on_the_device(fake):
    graph = traced(lambda x: (torch.sort(torch.exp(x), dim=1)[0],), X.shape)
    program = compile_traced(graph, {"strict": True}, "inference")
    called = []

    def sort(x, *rest):
        called.append(x.data_ptr())
        data = np.sort(x.numpy(), axis=1)
        return put(data), None

    spaces = [c.cell_contents for c in program.__closure__ or () if callable(c.cell_contents)]
    namespace = next(f.__globals__ for f in spaces if "graph0" in getattr(f, "__globals__", {}))
    for name, f in list(namespace.items()):
        if getattr(f, "name", lambda: "")() == "aten::sort":
            namespace[name] = sort
    (y,) = program([put(X)])
    np.testing.assert_allclose(y.numpy(), np.sort(np.exp(X), axis=1), 1e-5)
    assert called


def test_positions_are_checked_without_waiting(fake):
    def pick(x, i):
        return (torch.ops.aten.index.Tensor(x, [i]),)

    graph = traced(pick, (8,), (3,), dtypes=[torch.float32, torch.int64])
    program = compile_traced(graph, {"strict": True}, "inference")
    table = np.arange(8, dtype=np.float32)
    (y,) = program([put(table), put(np.array([1, 7, 0]))])
    assert not any(c in ("cuStreamSynchronize", "cuEventSynchronize") for c in fake.calls)
    np.testing.assert_array_equal(y.numpy(), [1, 7, 0])
    program([put(table), put(np.array([1, 9, 0]))])
    fake.drain()
    with pytest.raises(OutsideError):
        program([put(table), put(np.array([1, 7, 0]))])


def test_a_view_between_vectors_is_copied(fake):
    graph = traced(lambda x: (x * 2,), (20,))
    program = compile_traced(graph, {"strict": True}, "inference")
    whole = put(np.arange(21, dtype=np.float32)).buffer
    view = DeviceBuffer(whole.address + 4, (20,), (1,), f32, whole.device, 0, whole)
    (y,) = program([Tensor(view)])
    np.testing.assert_array_equal(y.numpy(), 2 * np.arange(1, 21, dtype=np.float32))


def test_empty_tensors_launch_nothing(fake):
    (y,) = call(traced(lambda x: (torch.exp(x),), (0, 4)), np.zeros((0, 4), np.float32))
    assert y.numpy().shape == (0, 4) and not fake.launches


def test_memory_is_torch_s_and_is_freed_behind_the_kernels(fake):
    graph = traced(lambda x: (torch.softmax(torch.exp(x), 1),), X.shape)
    program = compile_traced(graph, {"strict": True}, "inference")
    for _ in range(3):
        program([put(X)])
    gc.collect()
    fake.synchronize()
    assert not fake.live


def test_an_operator_without_a_program_runs_in_torch_with_a_warning(fake, monkeypatch):
    def refuse(kernel, sizes):
        raise DeviceKernelError(kernel="k0", missing="something")

    monkeypatch.setattr("tests.runtime.cuda.fake_triton.device_source", refuse)
    graph = traced(lambda x: (torch.exp(x),), (4,))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compile_traced(graph, {}, "inference")
    assert [w.category for w in seen] == [FallbackWarning]
    assert "something" in str(seen[0].message)


def test_repeated_calls_take_the_native_path(fake):
    """Same bits for other tensors, strides checked, misaligned views left to Python."""

    def function(x, w):
        return torch.softmax(x, 1) @ w, x.sum(0)

    program = compile_traced(traced(function, X.shape, W.shape), {"strict": True}, "inference")
    first = program([put(X), put(W)])
    before = new_tensor.calls
    again = program([put(X), put(W)])
    assert new_tensor.calls > before
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    other = program([put(X + 1), put(W)])
    np.testing.assert_allclose(other[1].numpy(), (X + 1).sum(0), 1e-5)
    flat = put(np.concatenate([np.zeros(1, np.float32), X.ravel()])).buffer
    view = replace(flat, address=flat.address + 4, shape=X.shape, strides=(40, 1))
    shifted = program([Tensor(view), put(W)])
    np.testing.assert_array_equal(shifted[0].numpy(), first[0].numpy())
    gc.collect()
    fake.synchronize()


# ---- captures ------------------------------------------------------------------------------------


@pytest.fixture
def stream(fake, monkeypatch):
    """Torch's current stream, which a test captures."""
    handle = fake.new_stream()
    monkeypatch.setattr(device_segment, "current_stream", lambda device: handle)
    return handle


@pytest.mark.parametrize("settings", [{}, {"strict": True}, {"tune": "race"}])
def test_no_program_is_compiled_and_no_plan_races_in_a_capture(fake, stream, settings):
    """Operators are not left to torch either: they would stay there when the capture ends."""
    graph = traced(lambda x: (torch.softmax(x, 1),), X.shape)
    x = put(X)
    fake.synchronize()
    calls = len(fake.calls)
    fake.begin_capture(stream)
    with pytest.raises(CaptureError, match="compiled by its first call"):
        compile_traced(graph, settings, "inference")
    assert fake.end_capture(stream)
    assert not {"cuLaunchKernel", "cuModuleLoadDataEx", "cuMemAllocAsync"} & {*fake.calls[calls:]}
    (y,) = compile_traced(graph, settings, "inference")([x])
    fake.synchronize()
    np.testing.assert_allclose(y.numpy(), torch.softmax(torch.from_numpy(X), 1), 1e-5)


def test_a_first_call_may_be_captured_and_its_code_stays_loaded(fake, stream):
    program = compile_traced(
        traced(lambda x: (torch.softmax(x, 1),), X.shape), {"strict": True}, "inference"
    )
    x = put(X)
    fake.synchronize()
    fake.begin_capture(stream)
    (y,) = program([x])
    graph = fake.end_capture(stream)
    assert graph and fake.launches[0]["stream"] == stream
    del program
    gc.collect()
    for shift in (0, 1):
        x.copy_(put(X * (1 + shift)))
        fake.synchronize()
        fake.cuGraphLaunch(graph, stream)
        fake.synchronize()
        wanted = torch.softmax(torch.from_numpy(X * (1 + shift)), 1)
        np.testing.assert_allclose(y.numpy(), wanted, 1e-5)


def test_positions_are_not_checked_in_a_capture(fake, stream):
    def pick(x, i):
        return (torch.ops.aten.index.Tensor(x, [i]),)

    graph = traced(pick, (8,), (3,), dtypes=[torch.float32, torch.int64])
    program = compile_traced(graph, {"strict": True}, "inference")
    unchecked = compile_traced(graph, {"strict": True, "check_positions": False}, "inference")
    x, i = put(np.arange(8, dtype=np.float32)), put(np.array([1, 7, 0]))
    fake.synchronize()
    program([x, i])  # the flag of this call is on its way
    fake.begin_capture(stream)
    with pytest.raises(CaptureError, match="positions are checked by the host"):
        program([x, i])
    (y,) = unchecked([x, i])
    graph = fake.end_capture(stream)
    assert graph
    fake.cuGraphLaunch(graph, stream)
    fake.synchronize()
    np.testing.assert_array_equal(y.numpy(), [1, 7, 0])
