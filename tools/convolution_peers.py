"""Networks of convolutions in other libraries, from one function text.

A function is written with `sm.nn.conv` and related functions; here its name `sm` is bound to
another library's functions. Weights are constants in each: parameters of a module (PyTorch;
Inductor with freezing; ONNX Runtime), captured arrays (Smelt, JAX).
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

import smelt as sm
from smelt.bench.frozen import frozen_options

PEERS = ("torch", "inductor", "onnxruntime", "jax")
Array = np.ndarray[Any, Any]
Code = Callable[[Any, Any], Any]
Run = Callable[[], Any]


def tree(p: Any, make: Callable[[Array], Any]) -> Any:
    """Convert every array in a nested dict of weights."""
    return {k: tree(v, make) for k, v in p.items()} if isinstance(p, dict) else make(p)


def with_namespace(code: Code, names: Any) -> Code:
    """Return the function, with `sm` bound to `names`.

    The functions of its module that it calls are rebound too.
    """
    namespace: dict[str, Any] = dict(code.__globals__)
    namespace["sm"] = names

    def rebound(f: FunctionType) -> FunctionType:
        return FunctionType(f.__code__, namespace, f.__name__, f.__defaults__, f.__closure__)

    for name, value in list(namespace.items()):
        if isinstance(value, FunctionType) and value.__module__ == code.__module__:
            namespace[name] = rebound(value)
    assert isinstance(code, FunctionType)
    return rebound(code)


def torch_names(torch: Any) -> Any:
    """Return PyTorch's functions under the names that networks use."""
    f = torch.nn.functional
    nn = SimpleNamespace(relu=f.relu, max_pool=f.max_pool2d, conv=f.conv2d, batch_norm=f.batch_norm)
    return SimpleNamespace(
        nn=nn,
        mean=lambda x, axis: x.mean(axis),
        minimum=lambda x, most: x.clamp(max=most),
        maximum=lambda x, least: x.clamp(min=least),
        permute_dims=torch.permute,
    )


def jax_names(jax: Any) -> Any:
    """Return JAX's functions under the names that networks use."""
    lax, numpy = jax.lax, jax.numpy

    def conv(
        x: Any, w: Any, stride: int = 1, padding: int = 0, groups: int = 1, last: bool = False
    ) -> Any:
        order = ("NHWC", "OHWI", "NHWC") if last else ("NCHW", "OIHW", "NCHW")
        return lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=order,
            feature_group_count=groups,
        )

    def max_pool(x: Any, size: int, stride: int, padding: int) -> Any:
        margins = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        window, steps = (1, 1, size, size), (1, 1, stride, stride)
        return lax.reduce_window(x, -np.inf, lax.max, window, steps, margins)

    def batch_norm(x: Any, *p: Any) -> Any:
        mean, variance, gain, shift = (v[:, None, None] for v in p)
        return (x - mean) * (lax.rsqrt(variance + 1e-5) * gain) + shift

    nn = SimpleNamespace(relu=jax.nn.relu, max_pool=max_pool, conv=conv, batch_norm=batch_norm)
    return SimpleNamespace(
        nn=nn,
        mean=numpy.mean,
        minimum=numpy.minimum,
        maximum=numpy.maximum,
        permute_dims=numpy.permute_dims,
    )


def runs(code: Code, x: Array, p: Any) -> dict[str, Run]:
    """Return the function as a call of Smelt and each installed library."""
    calls: dict[str, Run] = {"smelt": of_smelt(code, x, p)}
    with suppress(ImportError):
        calls |= of_torch(code, x, p)
    with suppress(ImportError):
        calls["jax"] = of_jax(code, x, p)
    return calls


def of_smelt(code: Code, x: Array, p: Any) -> Run:
    """Return the call of Smelt, with captured weights."""
    constants = tree(p, lambda a: sm.asarray(a, copy=True))
    compiled, image = sm.jit(lambda x: code(x, constants)), sm.asarray(x)
    return lambda: np.asarray(compiled(image))


def of_jax(code: Code, x: Array, p: Any) -> Run:
    """Return the call of JAX, with captured weights."""
    jax: Any = importlib.import_module("jax")
    constants, image = tree(p, jax.device_put), jax.device_put(x)
    rebound = with_namespace(code, jax_names(jax))
    compiled = jax.jit(lambda x: rebound(x, constants))
    return lambda: compiled(image).block_until_ready()


def of_torch(code: Code, x: Array, p: Any) -> dict[str, Run]:
    """Return the calls of PyTorch eager, of Inductor, and of ONNX Runtime.

    An array that is not row-major keeps its memory order, as PyTorch's `channels_last` does.
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.compiler.reset()
    rebound = with_namespace(code, torch_names(torch))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.known = torch.nn.ParameterList()
            self.places = tree(p, self.kept)

        def kept(self, a: Array) -> int:
            self.known.append(torch.nn.Parameter(torch.from_numpy(a), requires_grad=False))
            return len(self.known) - 1

        def forward(self, x: Any) -> Any:
            return rebound(x, tree(self.places, lambda k: self.known[k]))

    network, image = Network().eval(), torch.from_numpy(x)
    compiled = torch.compile(network, dynamic=False, options=frozen_options())
    calls: dict[str, Run] = {
        "torch": lambda: network(image),
        "inductor": lambda: compiled(image),
    }
    with suppress(ImportError):
        calls["onnxruntime"] = _onnx_call(torch, network, image)
    return calls


def _onnx_call(torch: Any, network: Any, image: Any) -> Run:
    runtime: Any = importlib.import_module("onnxruntime")
    importlib.import_module("onnxscript")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(network, (image,), dynamo=True, verbose=False).save(path)
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: np.ascontiguousarray(image.numpy())}
    return lambda: session.run(None, feed)
