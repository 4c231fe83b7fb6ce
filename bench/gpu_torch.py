"""Programs of torch and CuPy on a GPU: what they share with ours, and their own times."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import smelt as sm
from bench.gpu_programs import softmax
from bench.gpu_tasks import (
    HEADS,
    PRODUCTS,
    REPEATS,
    ROWS,
    Row,
    Settings,
    Task,
    Timer,
    Work,
    random_arrays,
    rated,
)
from smelt.python.imports import fork_safe_import
from smelt.runtime.cuda.driver import Device

__all__ = ["peers", "shared_tasks", "torch_block"]


Cases = list[tuple[Row, tuple[int, ...]]]
"""Sizes of a program, with its type and the bytes or operations that rates count."""


def shared_tasks(device: Device, s: Settings) -> Iterator[Task]:
    """Results of programs that run on arrays of torch and CuPy, or are torch's own."""
    every: dict[str, tuple[Any, Callable[[str, Settings], list[Row]]]] = {
        "torch capture": (torch_of(s), _compare_capture),
        "torch training": (torch_of(s), _compare_training),
        "torch inference": (torch_of(s), _compare_inference),
        "torch compiled capture": (torch_of(s), _compare_compiled_capture),
        "cupy": (cupy_of(s), _compare_cupy),
    }
    for name, (library, compare) in every.items():
        if library is not None:
            yield Task(name, partial(compare, f"cuda:{device.ordinal}", s))


def _compare_capture(where: str, s: Settings) -> list[Row]:
    """A graph of torch replays our program on other elements."""
    torch, function = torch_of(s), sm.jit(softmax)
    x = torch.randn(300, 1000, device=where)
    function(x)
    y = _replayed(torch, x, lambda: torch.from_dlpack(function(x)))
    return [_agreement("torch capture", [y], [torch.softmax(x, 1)], 1e-5)]


def _replayed(torch: Any, x: Any, work: Work) -> Any:
    """Record work on a tensor, replay it on other elements, and return what it returns."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = work()
    x.copy_(torch.randn_like(x))
    graph.replay()
    return y


def _model(torch: Any, where: str) -> tuple[Any, Any, Any]:
    """Return a small model, the same one compiled by Smelt, and an argument."""
    n = torch.nn
    torch.manual_seed(0)
    layers = n.LayerNorm(256), n.Linear(256, 512), n.GELU(), n.Linear(512, 256)
    model = n.Sequential(*layers).to(where)
    torch.compiler.reset()
    compiled = torch.compile(model, backend=fork_safe_import("smelt.torch").backend)
    return model, compiled, torch.randn(64, 256, device=where)


def _compare_training(where: str, s: Settings) -> list[Row]:
    """Results and gradients of a compiled model, on a first and a repeated call."""
    torch = torch_of(s)
    model, compiled, x = _model(torch, where)
    calls: list[list[Any]] = []
    for function in (model, compiled, compiled):
        model.zero_grad()
        y = function(x)
        y.square().mean().backward()
        calls.append([y.detach(), *(p.grad for p in model.parameters())])
    wanted, first, repeated = calls
    return [_agreement("torch training", first + repeated, wanted * 2, 1e-4)]


def _compare_inference(where: str, s: Settings) -> list[Row]:
    """Results of a compiled model in a stream of its own."""
    torch = torch_of(s)
    model, compiled, x = _model(torch, where)
    here = torch.cuda.current_stream(where)
    side = torch.cuda.Stream(where)
    side.wait_stream(here)
    with torch.inference_mode(), torch.cuda.stream(side):
        results = [compiled(x) for _ in range(REPEATS)]
        wanted = model(x)
    here.wait_stream(side)
    return [_agreement("torch inference", results, [wanted] * REPEATS, 1e-4)]


def _compare_compiled_capture(where: str, s: Settings) -> list[Row]:
    """A graph of torch replays a compiled model on other elements."""
    torch = torch_of(s)
    model, compiled, x = _model(torch, where)
    with torch.no_grad():
        compiled(x)
        y = _replayed(torch, x, lambda: compiled(x))
        return [_agreement("torch compiled capture", [y], [model(x)], 1e-4)]


def _agreement(name: str, results: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> Row:
    """Return a row of the largest difference of tensors, relative to the largest element."""
    pairs = zip(results, wanted, strict=True)
    errors = [float(abs(y - w).max() / abs(w).max()) for y, w in pairs]
    error = max(e if math.isfinite(e) else math.inf for e in errors)
    return {"name": name, "error": error, "ok": error <= tolerance}


def _compare_cupy(where: str, s: Settings) -> list[Row]:
    """An array of CuPy, written in a stream that waits for none, and back."""
    cupy = cupy_of(s)
    with cupy.cuda.Device(int(where.partition(":")[2])), cupy.cuda.Stream(non_blocking=True):
        x = cupy.random.standard_normal((300, 1000), dtype=np.float32)
        y = cupy.from_dlpack(sm.jit(softmax)(x * 2))
        e = cupy.exp(2 * x - (2 * x).max(1, keepdims=True))
        row = _agreement("cupy", [y], [e / e.sum(1, keepdims=True)], 1e-5)
        del y  # memory is freed behind what streams do with it, and this one ends here
        return [row]


def torch_of(s: Settings) -> Any:
    """Return torch if it is here and sees a GPU, else None."""
    if s.is_dry or importlib.util.find_spec("torch") is None:
        return None
    torch = fork_safe_import("torch")
    return torch if torch.cuda.is_available() else None


def cupy_of(s: Settings) -> Any:
    """Return CuPy if it is here, else None."""
    is_here = not s.is_dry and importlib.util.find_spec("cupy") is not None
    return fork_safe_import("cupy") if is_here else None


def torch_block(
    name: str, dtype: str, shapes: Sequence[tuple[int, ...]], device: Device, s: Settings
) -> list[Row]:
    """Return the row of a block of a model in torch, compiled by a backend."""
    torch = torch_of(s)
    row: Row = {"name": f"torch {name}", "dtype": dtype}
    if torch is None:
        return [row | {"skipped": "torch is not installed, or sees no GPU"}]

    def model(x: Any, w: Any, q: Any, o: Any) -> Any:
        norm = x * w * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)
        h = norm @ q
        return x + (h * torch.sigmoid(h)) @ o

    backends = {"inductor": "inductor"}
    if name == "smelt":  # by function: its name is known where the package is installed alone
        backends["smelt"] = fork_safe_import("smelt.torch").backend
    torch.compiler.reset()
    f = model if name == "eager" else torch.compile(model, backend=backends[name])
    where, kind = f"cuda:{device.ordinal}", _torch_kind(torch, dtype)
    arrays = random_arrays(shapes, shapes[0][1] ** -0.5)
    tensors = [torch.from_numpy(a).to(where, kind) for a in arrays]
    return [row | {"ms": Timer(device, s).ms(lambda: f(*tensors))}]


def _torch_kind(torch: Any, dtype: str) -> Any:
    return torch.bfloat16 if dtype == "bf16" else torch.float32


def peers(device: Device, s: Settings) -> Iterator[Task]:
    """Rates of torch's own kernels at the shapes of the sections before, then of Inductor's."""
    if torch_of(s) is None:
        return
    rows: Cases = [({"dtype": "f32", "moved": 2 * 4 * r * c}, (r, c)) for r, c in ROWS]
    products: Cases = [({"flops": 2 * m * k * n}, (m, k, n)) for m, k, n in PRODUCTS]
    heads: Cases = [({"flops": 2 * b * h * n * n * d}, (b, h, n, d)) for b, h, n, d in HEADS]
    every = {"softmax": rows, "matmul": products, "linear_gelu": products, "attention": heads}
    compiled = {"softmax": rows, "rms_norm": rows, "linear_gelu": products}
    compiled["flex_attention"] = heads
    for maker, programs in (("torch", every), ("inductor", compiled)):
        for program, cases in programs.items():
            for rates, shape in cases:
                row: Row = {"name": f"{maker} {program}", "dtype": "bf16", "shape": shape} | rates
                work = partial(_peer, maker, program, row, device, s)
                yield Task(f"{row['name']} {' x '.join(map(str, shape))}", work)


def _peer(maker: str, program: str, row: Row, device: Device, s: Settings) -> list[Row]:
    """Return the row of a program by torch's own kernels or by Inductor's."""
    torch, where = torch_of(s), f"cuda:{device.ordinal}"
    function, shapes = _torch_program(torch, program, row["shape"], where)
    kind = _torch_kind(torch, row["dtype"])
    tensors = [torch.randn(shape, device=where, dtype=kind) for shape in shapes]
    if maker == "inductor":
        torch.compiler.reset()  # each shape is a program of its own, as it is for us
        function = torch.compile(function, dynamic=False)
    return [rated(row, Timer(device, s).ms(lambda: function(*tensors)))]


def _torch_program(
    torch: Any, program: str, shape: Sequence[int], where: str
) -> tuple[Callable[..., Any], list[Sequence[int]]]:
    """Return a program in torch's terms, and the shapes of its arguments."""
    f = torch.nn.functional
    if program == "softmax":
        return lambda x: torch.softmax(x, 1), [shape]
    if program == "rms_norm":
        norm = lambda x, w: x * w / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-6)  # noqa: E731
        return norm, [shape, shape[1:]]
    if program in ("matmul", "linear_gelu"):
        m, k, n = shape
        if program == "matmul":
            return torch.matmul, [(m, k), (k, n)]
        return lambda x, w, b: f.gelu(torch.addmm(b, x, w)), [(m, k), (k, n), (n,)]
    if program == "attention":
        causal = partial(f.scaled_dot_product_attention, is_causal=True)
        return causal, [shape] * 3
    flex, n = fork_safe_import("torch.nn.attention.flex_attention"), shape[2]
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, n, n, device=where)
    return lambda q, k, v: flex.flex_attention(q, k, v, block_mask=mask), [shape] * 3
