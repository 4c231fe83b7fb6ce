"""What `smelt.bench.gpu` measures: sections of tasks, each of which is a program with its rows.

A task fails alone: an exception is a row of its own, and `smelt.bench.gpu` goes on after a task
that has ended its process.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

import smelt as sm
from smelt.codegen.nvptx.source import ThreadCompiler
from smelt.dataclass import dataclass
from smelt.device import use_compiler
from smelt.frontends.array.device_array import DeviceArray, to_device
from smelt.imports import fork_safe_import
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.memory import driver_memory

__all__ = ["SECTIONS", "Row", "Settings", "Task"]

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
Work = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run: device, the results file, seconds in all, sizes for a test.

    Empty `only` means all sections.
    """

    path: Path
    device: str = "cuda:0"
    budget_s: float = 540.0
    only: tuple[str, ...] = ()
    is_small: bool = False
    is_dry: bool = False
    """Whether programs are compiled alone, for a device that is not there."""

    @property
    def runs(self) -> int:
        """Timed runs of each row."""
        return 1 if self.is_dry else 2 if self.is_small else 11


class Task(NamedTuple):
    """A part of a section, which is run again by itself."""

    name: str
    rows: Callable[[], list[Row]]


Section = Callable[[Device, Settings], Iterator[Task]]


# ---- programs ------------------------------------------------------------------------------------


def softmax(x: Any) -> Any:
    """Softmax of each row."""
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def rms_norm(x: Any, w: Any) -> Any:
    """Root-mean-square norm of each row."""
    return x * w / sm.sqrt(sm.mean(x * x, axis=1, keepdims=True) + 1e-6)


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    """Linear layer with GELU."""
    return sm.nn.gelu(x @ w + b)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention."""
    return sm.nn.attention(q, k, v, causal=True)


def block(x: Any, w: Any, q: Any, o: Any) -> Any:
    """Norm, two linear layers with SiLU, and the residual."""
    h = rms_norm(x, w) @ q
    return x + (h * sm.sigmoid(h)) @ o


def recurrence(xs: Any, w: Any) -> Any:
    """Last state of a recurrent layer: a loop of products."""
    return sm.scan(lambda h, x: (sm.tanh(h @ w + x), None), xs[0], xs)[0]


def doubled(x: Any, w: Any) -> Any:
    """A loop whose condition the host reads."""
    return sm.while_loop(lambda h: sm.sum(h) < 1e4, lambda h: h + sm.abs(h @ w) + 1, x)


def updates(*arrays: Any) -> list[Any]:
    """An elementwise step of many arrays, in one launch."""
    return [x * 2 + 1 for x in arrays]


class Case(NamedTuple):
    """A program whose results are compared with the CPU's, with the shapes of its arrays.

    `positions` has shapes and bounds of arrays of positions behind these. Differences count
    relative to the largest result.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    positions: tuple[tuple[tuple[int, ...], int], ...] = ()
    dtype: Any = np.float32
    tolerance: float = 1e-4

    def arrays(self) -> list[Array]:
        """Random arguments."""
        random = np.random.default_rng(12)
        scale = 1.0 if self.dtype is np.float32 else 0.1
        floats = _arrays(self.shapes, scale, self.dtype)
        return [*floats, *(random.integers(0, n, shape) for shape, n in self.positions)]


def _half(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """Return a case whose products run on matrix units."""
    return Case(function, shapes, dtype=ml_dtypes.bfloat16, tolerance=2e-2)


CORRECT: Final[dict[str, Case]] = {
    "map": Case(lambda x: sm.tanh(x) * 2 + 1, ((37, 100),)),
    "softmax": Case(softmax, ((33, 1000),)),
    "rms_norm": Case(rms_norm, ((33, 300), (300,))),
    "columns": Case(lambda x: sm.sum(x, axis=0), ((500, 70),)),
    "total": Case(lambda x: sm.sum(x * x), ((300, 100),)),
    "argmax": Case(lambda x: sm.argmax(x, axis=1), ((37, 100),)),
    "scan": Case(lambda x: sm.cumulative_sum(x, axis=1), ((37, 100),)),
    "split": Case(lambda x: sm.sum(sm.exp(x), axis=1), ((2, 20_000),)),
    "looped row": Case(softmax, ((3, 100_000),)),
    "many arrays": Case(updates, tuple((50 + 7 * k,) for k in range(12))),
    "gather": Case(lambda x, i: x[i] * 2, ((300, 64),), (((50,), 300),)),
    "histogram": Case(lambda i: sm.bincount(i, minlength=256), (), (((10_000,), 256),)),
    "linear_gelu": Case(linear_gelu, ((65, 48), (48, 80), (80,))),
    "attention": Case(attention, ((1, 2, 70, 32),) * 3),
    "block": Case(block, ((20, 64), (64,), (64, 96), (96, 64))),
    "recurrence": Case(recurrence, ((9, 20, 64), (64, 64))),
    "condition": Case(doubled, ((20, 64), (64, 64))),
    "bf16 linear_gelu": _half(linear_gelu, (2048, 512), (512, 2048), (2048,)),
    "bf16 few rows": _half(lambda x, w: x @ w, (16, 512), (512, 512)),
    "bf16 attention": _half(attention, *((1, 2, 512, 64),) * 3),
    "bf16 wide heads": _half(attention, *((1, 2, 512, 128),) * 3),
}
"""Programs that are compared, by name."""
WITHOUT_TRITON: Final = ("map", "softmax", "rms_norm", "total", "gather")
"""Programs that are compared once more as LLVM prints them."""
REPEATS: Final = 5
"""Calls of each: repeated ones are native, and later ones replay graphs."""
DTYPES: Final[Mapping[str, Any]] = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
"""Types of the operands of products and attention, the one with tensor cores first."""
ROWS: Final = ((65536, 1024), (16384, 4096), (4096, 16384), (2048, 32768), (512, 131072))
PRODUCTS: Final = ((4096, 4096, 4096), (4096, 1024, 4096))
HEADS: Final = ((4, 16, 4096, 64), (4, 16, 4096, 128))


def _arrays(
    shapes: Sequence[tuple[int, ...]], scale: float = 1.0, dtype: Any = np.float32
) -> list[Array]:
    random = np.random.default_rng(11)
    return [(random.standard_normal(s, np.float32) * scale).astype(dtype) for s in shapes]


def _on_device(arrays: Sequence[Array], device: Device) -> list[DeviceArray]:
    return [to_device(x, device.name) for x in arrays]


# ---- timing --------------------------------------------------------------------------------------


class Timer:
    """Times work of the device's default stream between two events."""

    def __init__(self, device: Device, runs: int) -> None:
        self.device, self.runs = device, runs
        with device.current():
            self._first, self._last = (device.driver.word("cuEventCreate", 0) for _ in range(2))

    def ms(self, work: Work) -> float:
        """Return the median time of `work` in ms, after one warm-up run."""
        work()
        self.device.synchronize(0)
        times: list[float] = []
        driver = self.device.driver
        for _ in range(self.runs):
            with self.device.current():
                driver.call("cuEventRecord", self._first, 0)
            work()
            with self.device.current():
                driver.call("cuEventRecord", self._last, 0)
                driver.call("cuEventSynchronize", self._last)
                place = ctypes.c_float()
                driver.call("cuEventElapsedTime", ctypes.byref(place), self._first, self._last)
            times.append(place.value)
        return statistics.median(times)


def _timed(
    row: Row, device: Device, s: Settings, function: Callable[..., Any], make: Work
) -> list[Row]:
    """Return a row with a program's time and its rate in GB/s or TFLOP/s.

    `row` has bytes or operations; `make` makes the arguments.
    """
    compiled, arrays = sm.jit(function), make()
    start = time.perf_counter()
    compiled(*arrays)
    row["first_s"] = time.perf_counter() - start
    return [_rated(row, Timer(device, s.runs).ms(lambda: compiled(*arrays)))]


def _rated(row: Row, ms: float) -> Row:
    moved, flops = row.pop("moved", 0), row.pop("flops", 0)
    rates = {"gb_s": moved / ms / 1e6} if moved else {}
    return row | {"ms": ms} | rates | ({"tflop_s": flops / ms / 1e9} if flops else {})


# ---- sections ------------------------------------------------------------------------------------


def _machine(device: Device, s: Settings) -> Iterator[Task]:
    """Facts of the device, copy rates, and what a call costs the host."""
    yield Task("facts", partial(_facts, device))
    for nbytes in (1 << 16,) if s.is_small else (1 << 20, 1 << 24, 1 << 28, 1 << 30):
        yield Task(f"copy {nbytes}", partial(_copy_rate, device, s, nbytes))
    yield Task("call", partial(_call_time, device, s))


def _facts(device: Device) -> list[Row]:
    free, total = device.memory()
    kernel_module = Path("/proc/driver/nvidia/version")
    names = ("triton", "torch", "numpy", "llvmlite")
    versions = {n: importlib.metadata.version(n) for n in names if importlib.util.find_spec(n)}
    return [
        {
            "device": device.model,
            "arch": device.arch,
            "multiprocessors": device.multiprocessors,
            "driver": device.driver.version,
            "reads_pageable_memory": device.reads_pageable_memory,
            "free_bytes": free,
            "total_bytes": total,
            "python": sys.version.split()[0],
            "versions": versions,
            "module": kernel_module.read_text().partition("\n")[0]
            if kernel_module.exists()
            else "",
        }
    ]


def _copy_rate(device: Device, s: Settings, nbytes: int) -> list[Row]:
    memory = driver_memory(device)
    blocks = [memory.allocate(nbytes, 0) for _ in range(2)]

    def copy() -> None:
        with device.current():
            device.driver.call(
                "cuMemcpyDtoDAsync_v2", blocks[0].address, blocks[1].address, nbytes, 0
            )

    return [_rated({"copy_bytes": nbytes, "moved": 2 * nbytes}, Timer(device, s.runs).ms(copy))]


def _call_time(device: Device, s: Settings) -> list[Row]:
    x = to_device(np.ones(1000, np.float32), device.name)
    double = sm.jit(lambda x: x * 2)
    double(x)
    device.synchronize(0)
    calls = 20 if s.is_small or s.is_dry else 1000
    start = time.perf_counter()
    for _ in range(calls):
        double(x)
    host_us = (time.perf_counter() - start) / calls * 1e6
    device.synchronize(0)
    return [{"call_host_us": host_us}]


def _correct(device: Device, s: Settings) -> Iterator[Task]:
    """Largest difference to the CPU of each program, relative to its largest result."""
    for name, case in CORRECT.items():
        yield Task(name, partial(_compare, name, case, device, s))
    for name in WITHOUT_TRITON:
        yield Task(f"llvm {name}", partial(_compare_llvm, name, device, s))
    if _torch(s) is not None:
        yield Task("torch capture", partial(_compare_capture, device, s))


def _compare(name: str, case: Case, device: Device, s: Settings) -> list[Row]:
    arrays, compiled = case.arrays(), sm.jit(case.function)
    on_device = _on_device(arrays, device)
    calls = [_results(compiled(*on_device)) for _ in range(REPEATS)]
    if s.is_dry:
        return [{"name": name, "ok": True}]
    wanted = _results(sm.jit(case.function)(*arrays))
    error = max(_difference(y, w) for c in (calls[0], calls[-1]) for y, w in zip(c, wanted))
    return [{"name": name, "error": error, "ok": error <= case.tolerance}]


def _results(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


def _difference(y: Any, wanted: Any) -> float:
    actual = np.asarray(y.to_device("cpu"), np.float64)
    expected = np.asarray(wanted, np.float64)
    difference = np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-30)
    return float(difference) if math.isfinite(difference) else math.inf


def _compare_llvm(name: str, device: Device, s: Settings) -> list[Row]:
    with use_compiler(ThreadCompiler()):
        return _compare(f"llvm {name}", CORRECT[name], device, s)


def _compare_capture(device: Device, s: Settings) -> list[Row]:
    """A graph of torch replays our program on other elements."""
    torch, function = _torch(s), sm.jit(softmax)
    x = torch.randn(300, 1000, device=f"cuda:{device.ordinal}")
    function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.from_dlpack(function(x))
    x.copy_(torch.randn_like(x))
    graph.replay()
    error = float((y - torch.softmax(x, 1)).abs().max())
    return [{"name": "torch capture", "error": error, "ok": error <= 1e-5}]


def _rows(device: Device, s: Settings) -> Iterator[Task]:
    """Rates of softmax and a norm over rows of growing length."""
    for r, c in ((8, 64), (4, 200)) if s.is_small else ROWS:
        for function, shapes in ((softmax, [(r, c)]), (rms_norm, [(r, c), (c,)])):
            name = function.__name__
            row: Row = {"name": name, "shape": [r, c], "moved": 2 * 4 * r * c}
            make = partial(_random, shapes, device)
            yield Task(f"{name} {r} x {c}", partial(_timed, row, device, s, function, make))


def _products(device: Device, s: Settings) -> Iterator[Task]:
    """Rates of a linear layer with GELU."""
    shapes = ((16, 32, 16),) if s.is_small else PRODUCTS
    for (m, k, n), (dtype, kind) in itertools.product(shapes, DTYPES.items()):
        row: Row = {"name": "linear_gelu", "dtype": dtype, "shape": [m, k, n]}
        row["flops"] = 2 * m * k * n
        make = partial(_random, [(m, k), (k, n), (n,)], device, k**-0.5, kind)
        yield Task(f"{dtype} {m} x {k} x {n}", partial(_timed, row, device, s, linear_gelu, make))


def _attention(device: Device, s: Settings) -> Iterator[Task]:
    """Rates of causal attention; half of the products are counted."""
    shapes = ((1, 1, 40, 16),) if s.is_small else HEADS
    for (b, h, n, d), (dtype, kind) in itertools.product(shapes, DTYPES.items()):
        row: Row = {"name": "attention", "dtype": dtype, "shape": [b, h, n, d]}
        row["flops"] = 2 * b * h * n * n * d
        make = partial(_random, [(b, h, n, d)] * 3, device, 1.0, kind)
        yield Task(
            f"{dtype} {b} x {h} x {n} x {d}", partial(_timed, row, device, s, attention, make)
        )


def _random(
    shapes: Sequence[tuple[int, ...]], device: Device, scale: float = 1.0, dtype: Any = np.float32
) -> list[DeviceArray]:
    return _on_device(_arrays(shapes, scale, dtype), device)


def _models(device: Device, s: Settings) -> Iterator[Task]:
    """Times of a block of a model, by Smelt and by torch."""
    m, d = (8, 32) if s.is_small else (4096, 1024)
    shapes = [(m, d), (d,), (d, 4 * d), (4 * d, d)]
    row: Row = {"name": "block", "shape": [m, d], "flops": 16 * m * d * d}
    make = partial(_random, shapes, device, d**-0.5)
    yield Task("block", partial(_timed, row, device, s, block, make))
    for name in ("eager", "inductor", "smelt"):
        yield Task(f"torch {name}", partial(_torch_block, name, shapes, device, s))


def _torch(s: Settings) -> Any:
    """Return torch if it is here and sees a GPU, else None."""
    if s.is_dry or importlib.util.find_spec("torch") is None:
        return None
    torch = fork_safe_import("torch")
    return torch if torch.cuda.is_available() else None


def _torch_block(
    name: str, shapes: Sequence[tuple[int, ...]], device: Device, s: Settings
) -> list[Row]:
    torch = _torch(s)
    row: Row = {"name": f"torch {name}"}
    if torch is None:
        return [row | {"skipped": "torch is not installed, or sees no GPU"}]

    def model(x: Any, w: Any, q: Any, o: Any) -> Any:
        norm = x * w * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)
        h = norm @ q
        return x + (h * torch.sigmoid(h)) @ o

    backends = {"inductor": "inductor"}
    if name == "smelt":  # by function: its name is known where the package is installed alone
        backends["smelt"] = fork_safe_import("smelt.torch").backend
    f = model if name == "eager" else torch.compile(model, backend=backends[name])
    where = f"cuda:{device.ordinal}"
    tensors = [torch.from_numpy(a).to(where) for a in _arrays(shapes, shapes[0][1] ** -0.5)]
    return [row | {"ms": Timer(device, s.runs).ms(lambda: f(*tensors))}]


def _peers(device: Device, s: Settings) -> Iterator[Task]:
    """Rates of torch's own kernels at the shapes of the sections before."""
    torch = _torch(s)
    if torch is None:
        return
    f = torch.nn.functional
    for r, c in ROWS:
        row: Row = {"name": "torch softmax", "shape": [r, c], "moved": 2 * 4 * r * c}
        softmax_rows = partial(torch.softmax, dim=1)
        yield _peer(row, device, s, softmax_rows, [(r, c)], torch.float32)
    for m, k, n in PRODUCTS:
        row = {"name": "torch linear_gelu", "shape": [m, k, n], "flops": 2 * m * k * n}

        def linear(x: Any, w: Any, b: Any) -> Any:
            return f.gelu(torch.addmm(b, x, w))

        shapes = [(m, k), (k, n), (n,)]
        yield _peer(row | {"dtype": "bf16"}, device, s, linear, shapes, torch.bfloat16)
    for b, h, n, d in HEADS:
        row = {"name": "torch attention", "shape": [b, h, n, d], "flops": 2 * b * h * n * n * d}
        causal = partial(f.scaled_dot_product_attention, is_causal=True)
        shapes = [(b, h, n, d)] * 3
        yield _peer(row | {"dtype": "bf16"}, device, s, causal, shapes, torch.bfloat16)


def _peer(
    row: Row,
    device: Device,
    s: Settings,
    function: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: Any,
) -> Task:
    def rows() -> list[Row]:
        torch, where = _torch(s), f"cuda:{device.ordinal}"
        tensors = [torch.randn(shape, device=where, dtype=dtype) for shape in shapes]
        return [_rated(row, Timer(device, s.runs).ms(lambda: function(*tensors)))]

    return Task(f"{row['name']} {' x '.join(map(str, row['shape']))}", rows)


SECTIONS: Final[Mapping[str, Section]] = {
    "machine": _machine,
    "correct": _correct,
    "rows": _rows,
    "products": _products,
    "attention": _attention,
    "models": _models,
    "peers": _peers,
}
"""Sections by name, in order."""
