"""What `bench.gpu` measures: sections of tasks, each of which is a program with its rows.

A task fails alone: an exception is a row of its own, and `bench.gpu` goes on after a task
that has ended its process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

import smelt as sm
from bench.gpu_layers import layers
from bench.gpu_programs import (
    CORRECT,
    WITHOUT_TRITON,
    Case,
    attention,
    block,
    linear_gelu,
    rms_norm,
    softmax,
)
from bench.gpu_tasks import (
    DTYPES,
    HEADS,
    PRODUCTS,
    REPEATS,
    ROWS,
    Array,
    Row,
    Settings,
    Task,
    Timer,
    Work,
    random_arrays,
    rated,
)
from bench.gpu_torch import peers, shared_tasks, torch_block
from smelt.codegen.nvptx.source import ThreadCompiler
from smelt.compiler.device import use_compiler
from smelt.frontends.array.device_array import DeviceArray, to_device
from smelt.packages.installed import has_triton, triton_version
from smelt.runtime.cache import Cache
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.memory import driver_memory

__all__ = ["SECTIONS", "Row", "Settings", "Task"]

Section = Callable[[Device, Settings], Iterator[Task]]


RACE_SECONDS: Final = 20
"""Time in which the plans and schedules of a program race."""


def _on_device(arrays: Sequence[Array], device: Device) -> list[DeviceArray]:
    return [to_device(x, device.name) for x in arrays]


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
    return [rated(row, Timer(device, s).ms(lambda: compiled(*arrays)))]


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
    names = ("torch", "numpy", "llvmlite")
    versions = {n: importlib.metadata.version(n) for n in names if importlib.util.find_spec(n)}
    versions |= {"triton": triton_version()} if has_triton() else {}
    cache = Cache.default().info()
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
            "cache": {"path": cache.path, "refused": cache.refused, "entries": cache.entries},
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

    return [rated({"copy_bytes": nbytes, "moved": 2 * nbytes}, Timer(device, s).ms(copy))]


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
    yield from shared_tasks(device, s)


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
    return _on_device(random_arrays(shapes, scale, dtype), device)


def _models(device: Device, s: Settings) -> Iterator[Task]:
    """Times of a block of a model, by Smelt and by torch."""
    m, d = (8, 32) if s.is_small else (4096, 1024)
    shapes = [(m, d), (d,), (d, 4 * d), (4 * d, d)]
    for dtype, kind in DTYPES.items():
        row: Row = {"name": "block", "dtype": dtype, "shape": [m, d], "flops": 16 * m * d * d}
        make = partial(_random, shapes, device, d**-0.5, kind)
        yield Task(f"{dtype} block", partial(_timed, row, device, s, block, make))
        for name in ("eager", "inductor", "smelt"):
            task = partial(torch_block, name, dtype, shapes, device, s)
            yield Task(f"torch {name} {dtype}", task)


def _races(device: Device, s: Settings) -> Iterator[Task]:
    """Rates of programs whose plans and schedules have raced."""
    m, k, n = (16, 32, 16) if s.is_small else PRODUCTS[0]
    heads = (1, 1, 40, 16) if s.is_small else HEADS[-1]
    rows = (8, 64) if s.is_small else ROWS[2]
    shapes = {softmax: [rows], linear_gelu: [(m, k), (k, n), (n,)], attention: [heads] * 3}
    for function, kind in zip(shapes, (np.float32, ml_dtypes.bfloat16, ml_dtypes.bfloat16)):
        row: Row = {"name": function.__name__, "shape": shapes[function][0], "raced": True}
        make = partial(_random, shapes[function], device, k**-0.5, kind)
        yield Task(f"raced {row['name']}", partial(_raced, row, device, s, function, make))


def _raced(
    row: Row, device: Device, s: Settings, function: Callable[..., Any], make: Work
) -> list[Row]:
    with sm.config(tune="race", tune_seconds=RACE_SECONDS):
        return _timed(row, device, s, function, make)


SECTIONS: Final[Mapping[str, Section]] = {
    "machine": _machine,
    "correct": _correct,
    "layers": layers,
    "rows": _rows,
    "products": _products,
    "attention": _attention,
    "models": _models,
    "peers": peers,
    "races": _races,
}
"""Sections by name, in order."""
