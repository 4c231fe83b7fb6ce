"""Networks of convolutions in other libraries: the same function text, with their functions.

A function is written with `sm.nn.conv` and its like; here its name `sm` stands for another
library.  Weights are constants to each: parameters of a module (PyTorch, Inductor told to fold
them, ONNX Runtime), captured arrays (Smelt, JAX).
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

PEERS = ("torch", "inductor", "onnxruntime", "jax")
Array = np.ndarray[Any, Any]
Code = Callable[[Any, Any], Any]
Run = Callable[[], Any]


def tree(p: Any, make: Callable[[Array], Any]) -> Any:
    """A nest of weights with every array converted."""
    return {k: tree(v, make) for k, v in p.items()} if isinstance(p, dict) else make(p)


def named(code: Code, names: Any) -> Code:
    """The function, and those of its own module that it calls, where `sm` is another library."""
    known: dict[str, Any] = dict(code.__globals__)
    known["sm"] = names

    def moved(f: FunctionType) -> FunctionType:
        return FunctionType(f.__code__, known, f.__name__, f.__defaults__, f.__closure__)

    for name, found in list(known.items()):
        if isinstance(found, FunctionType) and found.__module__ == code.__module__:
            known[name] = moved(found)
    assert isinstance(code, FunctionType)
    return moved(code)


def torch_names(torch: Any) -> Any:
    """PyTorch's functions under the names that networks use."""
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
    """The same of JAX."""
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
    """The function of an image and weights in Smelt and in each library that is installed."""
    found: dict[str, Run] = {"smelt": of_smelt(code, x, p)}
    with suppress(ImportError):
        found |= of_torch(code, x, p)
    with suppress(ImportError):
        found["jax"] = of_jax(code, x, p)
    return found


def of_smelt(code: Code, x: Array, p: Any) -> Run:
    """In Smelt, its weights captured."""
    own = tree(p, lambda a: sm.asarray(a, copy=True))
    ours, image = sm.jit(lambda x: code(x, own)), sm.asarray(x)
    return lambda: np.asarray(ours(image))


def of_jax(code: Code, x: Array, p: Any) -> Run:
    """In JAX, its weights captured."""
    jax: Any = importlib.import_module("jax")
    held, given = tree(p, jax.device_put), jax.device_put(x)
    there = named(code, jax_names(jax))
    theirs = jax.jit(lambda x: there(x, held))
    return lambda: theirs(given).block_until_ready()


def of_torch(code: Code, x: Array, p: Any) -> dict[str, Run]:
    """In PyTorch, eagerly, compiled by Inductor, and exported to ONNX Runtime.  An array whose
    memory is in another order than row-major stays in that, as PyTorch's `channels_last` is."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.compiler.reset()
    there = named(code, torch_names(torch))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.known = torch.nn.ParameterList()
            self.places = tree(p, self.kept)

        def kept(self, a: Array) -> int:
            self.known.append(torch.nn.Parameter(torch.from_numpy(a), requires_grad=False))
            return len(self.known) - 1

        def forward(self, x: Any) -> Any:
            return there(x, tree(self.places, lambda k: self.known[k]))

    network, given = Network().eval(), torch.from_numpy(x)
    compiled = torch.compile(network, dynamic=False, options={"freezing": True})
    found: dict[str, Run] = {
        "torch": lambda: network(given),
        "inductor": lambda: compiled(given),
    }
    with suppress(ImportError):
        found["onnxruntime"] = _of_onnx(torch, network, given)
    return found


def _of_onnx(torch: Any, network: Any, given: Any) -> Run:
    runtime: Any = importlib.import_module("onnxruntime")
    importlib.import_module("onnxscript")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(network, (given,), dynamo=True, verbose=False).save(path)
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: np.ascontiguousarray(given.numpy())}
    return lambda: session.run(None, feed)
