"""Programs in three layers: torch's own, the printed file by Triton's launcher, Smelt's runtime.

Where the printed file is wrong, code generation is; where it is right and the runtime's result is
not, the runtime is; where the runtime is slower than the printed file, the path of a launch is.
Each layer of a program is a task of its own, so that one that ends its process leaves the others.
Times stand beside the predicted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

import smelt as sm
from bench.gpu_programs import attention, linear_gelu, softmax
from bench.gpu_tasks import Array, Row, Settings, Task, Timer, random_arrays, rated
from bench.gpu_torch import torch_of
from smelt.frontends.array.device_array import to_device
from smelt.packages.triton_package import has_triton
from smelt.python.imports import fork_safe_import
from smelt.runtime.cuda.driver import Device

__all__ = ["LAYERED", "Layered", "layers"]

Shapes = tuple[tuple[int, ...], ...]
HOST_CALLS: Final = 200
"""Calls that are queued to see what one costs the host."""
TOLERANCES: Final = {"f32": 1e-4, "bf16": 2e-2}
"""Largest difference relative to the largest result; of tf32, its rounding."""
TF32_TOLERANCE: Final = 5e-3
KINDS: Final = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}


class Layered(NamedTuple):
    """A program, its shapes for results and for times, and what torch calls it.

    `moved` and `flops` are bytes and operations at the large shapes; `torch` is an expression of
    `F` and the arguments `a`, which are tensors.
    """

    function: Callable[..., Any]
    small: Shapes
    large: Shapes
    dtype: str = "bf16"
    rounding: str = "fast"
    flops: int = 0
    moved: int = 0
    torch: str = ""

    def arrays(self, shapes: Shapes) -> list[Array]:
        scale = shapes[0][-1] ** -0.5 if self.flops else 1.0
        return random_arrays(shapes, scale, KINDS[self.dtype])

    @property
    def tolerance(self) -> float:
        is_tf32 = self.flops and self.dtype == "f32" and self.rounding == "fast"
        return TF32_TOLERANCE if is_tf32 else TOLERANCES[self.dtype]


# ---- programs ------------------------------------------------------------------------------------


def gradients(function: Callable[..., Any], *arrays: Any) -> Any:
    """Gradients of a function of all arrays but the last, which arrives at its result."""
    return sm.vjp(function, *arrays[:-1])[1](arrays[-1])


def product(x: Any, y: Any) -> Any:
    """Product of two matrices."""
    return x @ y


def doubled(x: Any) -> Any:
    """A map."""
    return x * 2 + 1


def convolved(x: Any, w: Any) -> Any:
    """A convolution of images whose channels come last."""
    y = sm.nn.conv(sm.permute_dims(x, (0, 3, 1, 2)), w, padding=1)
    return sm.permute_dims(y, (0, 2, 3, 1))


def running(x: Any) -> Any:
    """Sums of all elements before each."""
    return sm.cumulative_sum(x)


def classifier(x: Any, w: Any) -> Any:
    """Log-sum-exp of a classifier's rows, whose logits no kernel stores."""
    return sm.sum(sm.nn.logsumexp(x @ w, axis=1))


def classifier_gradients(x: Any, w: Any) -> Any:
    """Gradients of the classifier."""
    return sm.grad(classifier, (0, 1))(x, w)


def _rows(rows: int, columns: int, rounding: str) -> Layered:
    return Layered(
        softmax,
        ((3, columns),),
        ((rows, columns),),
        "f32",
        rounding,
        moved=8 * rows * columns,
        torch="torch.softmax(a[0], 1)",
    )


def _heads(width: int, rounding: str) -> Layered:
    b, h, n = 4, 16, 4096
    return Layered(
        attention,
        ((1, 2, 256, width),) * 3,
        ((b, h, n, width),) * 3,
        rounding=rounding,
        flops=2 * b * h * n * n * width,
        torch="F.scaled_dot_product_attention(*a, is_causal=True)",
    )


_MATRIX, _VECTOR = (8192, 4096), (4096,)
_NORM = "F.layer_norm(a[0], a[1].shape, a[1], a[2])"
LAYERED: Final[dict[str, Layered]] = {
    "map": Layered(doubled, ((1000,),), ((1 << 27,),), "f32", moved=8 << 27, torch="a[0] * 2 + 1"),
    "softmax 4096": _rows(16384, 4096, "fast"),
    "softmax 4096 eager": _rows(16384, 4096, "eager"),
    "softmax 32768": _rows(4096, 32768, "fast"),
    "softmax 131072": _rows(1024, 131072, "fast"),
    "norm": Layered(
        sm.nn.layer_norm,
        ((33, 512), (512,), (512,)),
        (_MATRIX, _VECTOR, _VECTOR),
        moved=4 * 8192 * 4096,
        torch=_NORM,
    ),
    "norm backward": Layered(
        partial(gradients, sm.nn.layer_norm),
        ((65, 512), (512,), (512,), (65, 512)),
        (_MATRIX, _VECTOR, _VECTOR, _MATRIX),
        moved=6 * 8192 * 4096,
        torch=f"torch.autograd.grad({_NORM}, a[:3], a[3])",
    ),
    "product": Layered(
        product, ((256, 128), (128, 256)), ((8192, 8192),) * 2, flops=2 << 39, torch="a[0] @ a[1]"
    ),
    "product tf32": Layered(
        product,
        ((256, 128), (128, 256)),
        ((4096, 4096),) * 2,
        "f32",
        flops=2 << 36,
        torch="a[0] @ a[1]",
    ),
    "few rows": Layered(
        product,
        ((16, 512), (512, 256)),
        ((16, 8192), (8192, 8192)),
        moved=2 << 26,
        torch="a[0] @ a[1]",
    ),
    "linear gelu": Layered(
        linear_gelu,
        ((256, 128), (128, 256), (256,)),
        ((8192, 8192), (8192, 8192), (8192,)),
        flops=2 << 39,
        torch="F.gelu(torch.addmm(a[2], a[0], a[1]))",
    ),
    "attention 64": _heads(64, "fast"),
    "attention 128": _heads(128, "fast"),
    "attention 128 eager": _heads(128, "eager"),
    "attention backward": Layered(
        partial(gradients, attention),
        ((1, 2, 128, 64),) * 4,
        ((4, 16, 2048, 64),) * 4,
        flops=5 * 64 * 2048**2 * 64,
        torch="torch.autograd.grad(F.scaled_dot_product_attention(*a[:3], is_causal=True),"
        " a[:3], a[3])",
    ),
    "classifier backward": Layered(
        classifier_gradients,
        ((128, 64), (64, 256)),
        ((8192, 1024), (1024, 32768)),
        flops=6 << 38,
        torch="torch.autograd.grad(torch.logsumexp(a[0] @ a[1], 1).sum(), a)",
    ),
    "convolution": Layered(
        convolved,
        ((2, 14, 14, 32), (32, 32, 3, 3)),
        ((32, 56, 56, 64), (64, 64, 3, 3)),
        flops=2 * 32 * 56 * 56 * 64 * 64 * 9,
        torch="F.conv2d(a[0].permute(0, 3, 1, 2), a[1], padding=1)",
    ),
    "scan": Layered(
        running, ((70001,),), ((1 << 27,),), "f32", moved=8 << 27, torch="torch.cumsum(a[0], 0)"
    ),
}
"""Programs by name: rounding `fast`, gradients, tf32 and long rows among them."""

# ---- tasks ---------------------------------------------------------------------------------------


def layers(device: Device, s: Settings) -> Iterator[Task]:
    """Results, times and predicted times of each program in each layer."""
    torch = torch_of(s)
    for name, program in LAYERED.items():
        if torch is not None and program.torch and not s.is_small:
            yield Task(f"torch {name}", partial(_by_torch, name, program, device, s))
        if torch is not None and has_triton():
            yield Task(f"printed {name}", partial(_by_triton, name, program, device, s))
        yield Task(f"runtime {name}", partial(_by_runtime, name, program, device, s))


def _row(layer: str, name: str, program: Layered) -> Row:
    rates = {"moved": program.moved, "flops": program.flops}
    row: Row = {"name": f"{layer} {name}", "layer": layer, "rounding": program.rounding}
    return row | {"dtype": program.dtype} | rates


def _by_torch(name: str, program: Layered, device: Device, s: Settings) -> list[Row]:
    torch = torch_of(s)
    tensors = _tensors(torch, program.arrays(program.large), f"cuda:{device.ordinal}")
    torch.backends.cuda.matmul.allow_tf32 = program.rounding == "fast"
    work = torch_work(torch, program, tensors)
    return [rated(_row("torch", name, program), Timer(device, s).ms(work))]


def torch_work(torch: Any, program: Layered, tensors: Sequence[Any]) -> Callable[[], Any]:
    """Return torch's own program on tensors."""
    is_backward = "autograd" in program.torch
    a = [t.requires_grad_() if is_backward else t for t in tensors]
    names = {"torch": torch, "F": torch.nn.functional, "a": a}
    code = compile(program.torch, f"<{program.function}>", "eval")
    return lambda: eval(code, names)  # noqa: S307 - a text of this module


def _by_triton(name: str, program: Layered, device: Device, s: Settings) -> list[Row]:
    torch = torch_of(s)
    where = torch.device("cuda", device.ordinal)
    row = _row("printed", name, program) | _error(program, _printed(program, program.small, where))
    if s.is_small or not row["ok"]:
        return [row]
    start = time.perf_counter()
    work = _printed(program, program.large, where)
    work()
    row |= {"first_s": time.perf_counter() - start, "predicted_ms": _predicted(program, device)}
    return [rated(row, Timer(device, s).ms(work))]


def _printed(program: Layered, shapes: Shapes, where: Any) -> Callable[[], list[Any]]:
    """Return a call of a program's printed files, by Triton's launcher on torch's tensors."""
    torch = fork_safe_import("torch")
    module = fork_safe_import("smelt.frontends.torch.printed_program")
    arrays = program.arrays(shapes)
    with sm.config(rounding=program.rounding):
        trace = sm.jit(program.function).lower(*arrays).trace
        sizes = trace.match(*(n for x in arrays for n in x.shape))
        printed = module.printed_program(trace.graph, trace.hints, where)
    tensors = _tensors(torch, [arrays[k] for k in trace.arguments], where)
    kept = [n for n, v in enumerate(printed.values) if v.place == "output"]
    order = [kept.index(n) for n in printed.outputs]

    def run() -> list[Any]:
        with sm.config(rounding=program.rounding):
            results = printed.run(tensors, sizes)
        return [results[k] for k in order]

    return run


def _by_runtime(name: str, program: Layered, device: Device, s: Settings) -> list[Row]:
    with sm.config(rounding=program.rounding):
        compiled = sm.jit(program.function)
        small = [to_device(x, device.name) for x in program.arrays(program.small)]
        row = _row("runtime", name, program)
        if s.is_dry:
            compiled(*small)
        row |= {"ok": True} if s.is_dry else _error(program, lambda: compiled(*small))
        if s.is_small or not row["ok"]:
            return [row]
        row["host_us"] = _host_us(device, lambda: compiled(*small), 2 if s.is_dry else HOST_CALLS)
        arrays = [to_device(x, device.name) for x in program.arrays(program.large)]
        start = time.perf_counter()
        compiled(*arrays)
        row |= {"first_s": time.perf_counter() - start, "predicted_ms": _predicted(program, device)}
        return [rated(row, Timer(device, s).ms(lambda: compiled(*arrays)))]


def _host_us(device: Device, work: Callable[[], Any], calls: int) -> float:
    """Return what a repeated call costs the host."""
    work()
    device.synchronize(0)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    elapsed = time.perf_counter() - start
    device.synchronize(0)
    return elapsed / calls * 1e6


def _error(program: Layered, work: Callable[[], Any]) -> Row:
    """Compare the results of a program at its small shapes with the CPU's."""
    with sm.config(rounding=program.rounding):
        wanted = _listed(sm.jit(program.function)(*program.arrays(program.small)))
    results = _listed(work())
    error = max(_difference(y, w) for y, w in zip(results, wanted, strict=True))
    return {"error": error, "ok": error <= program.tolerance}


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


def _difference(result: Any, wanted: Any) -> float:
    """Return the largest difference of a tensor or array, relative to the largest element."""
    here = result.float().cpu().numpy() if hasattr(result, "cpu") else result.to_device("cpu")
    expected = np.asarray(wanted, np.float64)
    largest = np.abs(np.asarray(here, np.float64) - expected).max()
    difference = float(largest / max(np.abs(expected).max(), 1e-30))
    return difference if math.isfinite(difference) else math.inf


def _predicted(program: Layered, device: Device) -> float | None:
    """Return the predicted milliseconds at the large shapes."""
    specs = [sm.spec(shape, KINDS[program.dtype]) for shape in program.large]
    with sm.config(rounding=program.rounding, device_code=False):
        report = sm.explain(program.function, *specs, target=device.name)
    predicted = report.data.total.predicted_ns
    return None if predicted is None else predicted / 1e6


def _tensors(torch: Any, arrays: Sequence[Array], where: Any) -> list[Any]:
    """Return arrays as torch's tensors on a device; half types pass as their bits."""
    tensors: list[Any] = []
    for x in arrays:
        if x.dtype == ml_dtypes.bfloat16:
            tensors.append(torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(where))
        else:
            tensors.append(torch.from_numpy(x).to(where))
    return tensors
