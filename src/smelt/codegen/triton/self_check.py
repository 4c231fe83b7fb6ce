"""Compare a printed file with the kernel that it begins with, computed in NumPy.

    python k0.py        a printed file: `self_check(__file__, launch)` runs on this machine's GPU

Every printed file ends with that call. The kernel is read from the comment at its head, and runs
in the interpreter of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import NoDriverError
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel, Param
from smelt.kernel.text import parse
from smelt.python.imports import fork_safe_import
from smelt.types.expr import evaluate, sizes_of

OPEN_SIZE = 48
"""A size that the kernel leaves open, unless the call gives it."""
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
"""Allowed differences, in the largest magnitude of an output: sums have another order."""
NO_GPU = (
    "This file launches its kernel on a GPU and compares the results with NumPy's. Without one, "
    "`smelt explain --target NAME --level 4` shows what it compiles to."
)
_HEAD = "#     "

Array = np.ndarray[Any, Any]
Launch = Callable[..., Any]


def self_check(path: str, launch: Launch, **sizes: int) -> None:
    """Launch a printed program on random inputs and compare its outputs with the interpreter's.

    Args:
        path: the printed file.
        launch: its function, which takes and returns torch's tensors.
        sizes: sizes that the kernel leaves open; 48 by default.

    Raises AssertionError, with the output and the largest difference, if one differs, and
    NoDriverError where torch finds no GPU.
    """
    _check_device()
    kernel = kernel_of(Path(path).read_text(encoding="utf-8"))
    arrays, values = random_inputs(kernel, sizes)
    expected = run(kernel, {n: _copied(a) for n, a in arrays.items()}, values)
    named = {f"size_{n}": values[n] for n in _keywords(launch) if n in values}
    results = launch(*(_to_device(a) for a in arrays.values()), **named)
    results = results if isinstance(results, tuple) else (results,)
    for p, actual in zip(kernel.outputs, results, strict=True):
        pairs = (
            zip(actual, expected[p.name], strict=True) if p.each else ((actual, expected[p.name]),)
        )
        for a, b in pairs:
            _compare(p, _to_host(a), b)
    print(f"{kernel.name}: {len(kernel.outputs)} outputs agree with NumPy")  # noqa: T201


def _check_device() -> None:
    if not fork_safe_import("torch").cuda.is_available():
        raise NoDriverError(reason="torch finds none on this machine", hint=NO_GPU)


def kernel_of(text: str) -> Kernel:
    """Return the kernel in the comment at the head of a printed file."""
    lines = text.splitlines()[2:]
    end = next((k for k, line in enumerate(lines) if not line.startswith(_HEAD)), len(lines))
    return parse("\n".join(line.removeprefix(_HEAD) for line in lines[:end]))


def random_inputs(
    kernel: Kernel, sizes: Mapping[str, int], seed: int = 0
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return random inputs of a kernel by name, and every size.

    Integers are 0 or 1: positions in any array of two or more elements.
    """
    random = np.random.default_rng(seed)
    names = {s for p in (*kernel.inputs, *kernel.outputs) for e in p.shape for s in sizes_of(e)}
    names |= {s for a in kernel.axes for s in sizes_of(a.extent)}
    values = {**dict.fromkeys(sorted(names), OPEN_SIZE), **sizes}

    def draw(p: Param) -> Array:
        shape = tuple(int(evaluate(e, values)) for e in p.shape)
        if p.dtype.is_float:
            return np.asarray(random.standard_normal(shape).astype(p.dtype.numpy))
        return np.asarray(random.integers(0, 2, shape).astype(p.dtype.numpy))

    return {
        p.name: [draw(p) for _ in range(p.each)] if p.each else draw(p) for p in kernel.inputs
    }, values


def _copied(array: Any) -> Any:
    return [a.copy() for a in array] if isinstance(array, list) else array.copy()


def _keywords(launch: Launch) -> list[str]:
    parameters = signature(launch).parameters.values()
    return [p.name.removeprefix("size_") for p in parameters if p.kind is p.KEYWORD_ONLY]


def _compare(p: Param, actual: Array, expected: Array) -> None:
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    scale = max(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), 1.0)
    allowed = TOLERANCES.get(p.dtype.long, 0.0) * scale
    if not np.allclose(a, b, rtol=0.0, atol=allowed, equal_nan=True):
        difference = float(np.nanmax(np.abs(a - b)))
        raise AssertionError(f"{p.name} differs by {difference:.3g}, allowed is {allowed:.3g}")


def _to_device(array: Any) -> Any:
    if isinstance(array, list):
        return [_to_device(a) for a in array]
    torch = fork_safe_import("torch")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()


def _to_host(tensor: Any) -> Array:
    torch = fork_safe_import("torch")
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.float().cpu().numpy())
    return np.asarray(tensor.cpu().numpy())
