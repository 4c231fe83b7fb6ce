"""Engines that can run the encoder: a table to which one row adds an engine.

An engine says whether it is available (without being imported), and makes the parameters into a
function from a batch to embeddings. NumPy and Smelt run the same program, `minilm.encode`, with
different namespaces; Smelt's is compiled by `sm.jit` with the sizes of a batch symbolic, so that
one plan serves every batch.

>>> [engine.name for engine in ENGINES]
['numpy', 'torch', 'inductor', 'onnx', 'smelt-torch', 'smelt']
>>> by_name("numpy").absent() is None
True
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from demo import facts, minilm, onnx_model, torch_model

Parameters: TypeAlias = dict[str, NDArray[np.float32]]
Encoder: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.bool_]], NDArray[np.float32]]
"""(ids [batch, length], mask [batch, length]) -> embeddings [batch, hidden]."""


class Running(NamedTuple):
    """An engine that has been started."""

    encode: Encoder
    describe: Callable[[NDArray[np.int64], NDArray[np.bool_]], facts.Facts]
    """Facts of the engine's compiler about the program for a batch; empty for others."""


class Engine(NamedTuple):
    """A way to run the encoder."""

    name: str
    title: str
    absent: Callable[[], str | None]
    """Why this engine is unavailable here, or None; cheap, and imports nothing large."""
    start: Callable[[Parameters], Running]


def by_name(name: str) -> Engine:
    """Return the engine of that name.

    Raises:
        KeyError: there is none; the message lists the available names.
    """
    for engine in ENGINES:
        if engine.name == name:
            return engine
    names = ", ".join(engine.name for engine in ENGINES)
    raise KeyError(f"no engine is called {name!r}; there are: {names}")


def _no_facts(_ids: NDArray[np.int64], _mask: NDArray[np.bool_]) -> facts.Facts:
    return facts.Facts()


def _start_numpy(weights: Parameters) -> Running:
    return Running(partial(minilm.encode, np, weights), _no_facts)


COMPILERS = ("c++", "g++", "clang++")
"""Compilers that PyTorch's Inductor looks for."""


def _absent_torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "PyTorch is not installed"


def _absent_inductor() -> str | None:
    if not (reason := _absent_torch()) and not any(map(shutil.which, COMPILERS)):
        return "PyTorch's own compiler needs a C++ compiler, and none is on the path"
    return reason


def start_torch(weights: Parameters, backend: str = "") -> Running:
    """Start PyTorch, eager or with a compiler's name for `torch.compile`."""
    import torch  # pyright: ignore[reportMissingImports]

    model = torch_model.build(weights)
    if backend == "smelt":
        importlib.import_module("smelt.torch")  # where the package is not installed
    if backend:
        model = torch.compile(model, backend=backend, dynamic=True)

    def encode(ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return Running(encode, _no_facts)


def _absent_onnx() -> str | None:
    for package in ("onnxruntime", "onnxscript"):
        if not importlib.util.find_spec(package):
            return f"the package {package} is not installed"
    return _absent_torch()


def _start_onnx(weights: Parameters) -> Running:
    encode = onnx_model.session(torch_model.build(weights))
    return Running(encode, _no_facts)


def _smelt() -> Any:
    """Import `smelt` by name: the peers' processes never load it."""
    return importlib.import_module("smelt")


def _absent_smelt() -> str | None:
    required = ("jit", "erf", "take", "matmul", "permute_dims", "explain")
    lacking = [name for name in required if not hasattr(_smelt(), name)]
    return f"this Smelt has no {', '.join(lacking)} yet" if lacking else None


def _start_smelt(weights: Parameters) -> Running:
    sm = _smelt()
    # Private copies, captured by the function: they cannot change, so they are packed once.
    parameters = {name: sm.asarray(data, copy=True) for name, data in weights.items()}
    program = partial(minilm.encode, sm, parameters)
    compiled = sm.jit(program)

    def encode(ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        return np.asarray(compiled(ids, mask))

    def describe(ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> facts.Facts:
        return facts.from_report(sm.explain(program, ids, mask).to_json())

    return Running(encode, describe)


ENGINES: tuple[Engine, ...] = (
    Engine("numpy", "NumPy", lambda: None, _start_numpy),
    Engine("torch", "PyTorch eager", _absent_torch, start_torch),
    Engine(
        "inductor",
        "PyTorch compiled by Inductor",
        _absent_inductor,
        partial(start_torch, backend="inductor"),
    ),
    Engine("onnx", "ONNX Runtime", _absent_onnx, _start_onnx),
    Engine(
        "smelt-torch",
        "PyTorch compiled by Smelt",
        _absent_torch,
        partial(start_torch, backend="smelt"),
    ),
    Engine("smelt", "Smelt", _absent_smelt, _start_smelt),
)
"""In the order in which they run; the first is the reference."""
