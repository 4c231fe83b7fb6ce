"""Run printed programs by Triton's own interpreter, with its defects repaired.

`python -m tests.codegen.triton_interpreter NAME ..` runs goldens in a process of its own: Triton
decides when it is imported whether it interprets. What is repaired, in Triton 3.6:

- bounds of loops that are arrays of one element, which NumPy does not convert;
- variables of loops, which are numbers of Python and not tensors;
- `tl.dot` of bfloat16, which multiplies the bit patterns;
- float32 to bfloat16, which is cut off and not rounded;
- comparisons of scalars, which become floats where they are repeated;
- reductions and scans with a function, which are called for one element at a time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl
from tests.codegen.test_triton_goldens import stored
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes
from triton.runtime import interpreter

from smelt.codegen.triton.source import triton_source
from smelt.kernel.interp import run
from smelt.kernel.text import parse

Builder = interpreter.InterpreterBuilder
Handle = interpreter.TensorHandle


def repair() -> None:
    """Replace what the interpreter has wrong."""
    dot, cast, operate = Builder.create_dot, Builder.cast_impl, Builder.binary_op
    patch_tensor, patch_core = interpreter._patch_lang_tensor, interpreter._patch_lang_core

    def wide(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return Handle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def rounded(self: Any, x: Any, dtype: Any) -> Any:
        if x.dtype.scalar != tl.float32 or dtype.scalar != tl.bfloat16:
            return cast(self, x, dtype)
        bits = np.asarray(x.data, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
        return Handle(bits, tl.bfloat16)

    def compared(self: Any, left: Any, right: Any, function: Any) -> Any:
        result = operate(self, left, right, function)
        return Handle(result.data, tl.int1) if result.data.dtype == bool else result

    def with_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda x: int(np.asarray(x.handle.data).reshape(-1)[0]))

    def with_indices(language: Any, scope: Any) -> None:
        patch_core(language, scope)
        counted = language.range

        def indices(*ends: Any, **options: Any) -> Any:
            for k in counted(*ends, **options):
                yield tl.core.tensor(Handle(np.array([k], np.int32), tl.int32), tl.int32)

        scope.set_attr(language, "range", indices)

    Builder.create_dot = lambda self, a, b, c, *rest: dot(self, wide(a), wide(b), c, *rest)
    Builder.cast_impl = Builder.create_fp_trunc = rounded
    Builder.binary_op = compared
    interpreter._patch_lang_tensor = with_index
    interpreter._patch_lang_core = with_indices
    interpreter.ReduceOps.generic_reduce = reduced
    interpreter.ScanOps.generic_scan = scanned


def combined(ops: Any, left: list[Any], right: list[Any], types: list[Any]) -> list[Any]:
    """Two lists of arrays, combined by a function of the program."""
    pairs = [*zip(left, types, strict=True), *zip(right, types, strict=True)]
    result = ops.combine_fn.fn(*(ops.to_tensor(x.copy(), t) for x, t in pairs))
    many = result if isinstance(result, tuple | list | tl.tuple) else (result,)
    return [np.asarray(x.handle.data) for x in many]


def reduced(self: Any, inputs: Any) -> Any:
    """Reduce halves by halves, as warps do."""
    inputs = inputs if isinstance(inputs, tuple | list) else (inputs,)
    types = [x.dtype for x in inputs]
    arrays = [x.handle.data for x in inputs]
    rank, axis = arrays[0].ndim, self.axis
    if axis is None:
        arrays, axis = [x.reshape(-1) for x in arrays], 0
    arrays = [np.moveaxis(x, axis, 0) for x in arrays]
    while len(arrays[0]) > 1:
        half = len(arrays[0]) // 2
        arrays = combined(self, [x[:half] for x in arrays], [x[half:] for x in arrays], types)
    arrays = [x[0] for x in arrays]
    if self.keep_dims:
        shape = (1,) * rank
        arrays = [
            x.reshape(shape) if self.axis is None else np.expand_dims(x, axis) for x in arrays
        ]
    return as_tensors(self, arrays, types)


def scanned(self: Any, inputs: Any) -> Any:
    """Scan in steps of 1, 2, 4 ... elements."""
    inputs = inputs if isinstance(inputs, tuple | list) else (inputs,)
    types = [x.dtype for x in inputs]
    arrays = [np.moveaxis(x.handle.data, self.axis, 0) for x in inputs]
    if self.reverse:
        arrays = [x[::-1] for x in arrays]
    step = 1
    while step < len(arrays[0]):
        moved = combined(self, [np.roll(x, step, 0) for x in arrays], arrays, types)
        arrays = [np.concatenate([x[:step], m[step:]]) for x, m in zip(arrays, moved, strict=True)]
        step *= 2
    if self.reverse:
        arrays = [x[::-1] for x in arrays]
    return as_tensors(self, [np.moveaxis(x, 0, self.axis) for x in arrays], types)


def as_tensors(ops: Any, arrays: list[Any], types: list[Any]) -> Any:
    result = [ops.to_tensor(x, t) for x, t in zip(arrays, types, strict=True)]
    return result[0] if len(result) == 1 else tuple(result)


def load(source: str, folder: str) -> ModuleType:
    path = Path(folder) / "printed.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("printed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensor(x: Any) -> Any:
    """An array as torch's tensor, repeated along axes without a stride."""
    if isinstance(x, list):
        return [tensor(a) for a in x]
    one = np.array(x[tuple(slice(0, 1) if n == 0 else slice(None) for n in x.strides)])
    if one.dtype == ml_dtypes.bfloat16:
        result = torch.from_numpy(one.view(np.int16)).view(torch.bfloat16)
    else:
        result = torch.from_numpy(one)
    return result.expand(x.shape)


def array(x: Any) -> np.ndarray:
    return x.to(torch.float64).numpy()


class Libdevice:
    """NumPy's functions for those of libdevice, of which the interpreter knows the names alone."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)

        def call(*operands: Any) -> Any:
            x = operands[0]
            with np.errstate(all="ignore"):
                data = function(*(t.handle.data for t in operands))
            return tl.core.tensor(Handle(data.astype(x.handle.data.dtype), x.dtype.scalar), x.type)

        return call


def launch(source: str, arrays: Sequence[Any], **sizes: int) -> tuple[Any, ...]:
    """Run the `launch` of a printed file on arrays, and return its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        module = load(source.replace('"cuda"', '"cpu"'), folder)
        if hasattr(module, "libdevice"):
            module.libdevice = Libdevice()
        results = module.launch(*map(tensor, arrays), **sizes)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(
        [stored_array(x) for x in r] if isinstance(r, list) else stored_array(r) for r in results
    )


def stored_array(x: Any) -> np.ndarray:
    """A tensor of torch as an array of the same type."""
    if x.dtype == torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def check(name: str) -> None:
    """Compare a golden with the kernel interpreter; raise AssertionError for other results."""
    kernel, reference = parse(GOLDENS[name]), REFERENCES[name]
    inputs = reference.inputs(np.random.default_rng(1), 1)
    arrays = {p.name: stored(p, inputs[p.name]) for p in kernel.inputs}
    extra = extra_sizes(name, arrays)
    wanted = run(kernel, arrays, extra)
    sizes = {f"size_{n}": k for n, k in extra.items()}
    with tempfile.TemporaryDirectory() as folder:
        module = load(triton_source(kernel), folder)
        results = module.launch(*(tensor(arrays[p.name]) for p in kernel.inputs), **sizes)
    results = results if isinstance(results, tuple) else (results,)
    for p, actual in zip(kernel.outputs, results, strict=True):
        pairs = zip(actual, wanted[p.name], strict=True) if p.each else [(actual, wanted[p.name])]
        for a, b in pairs:
            np.testing.assert_allclose(array(a), np.asarray(b, np.float64), 3e-6, 3e-6)


if __name__ == "__main__":
    repair()
    for golden in sys.argv[1:] or GOLDENS:
        check(golden)
        print(golden, "is as the interpreter of kernels says", flush=True)
