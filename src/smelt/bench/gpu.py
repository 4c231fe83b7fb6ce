"""Measure a GPU in one run: `python -m smelt.bench --gpu`, at most nine minutes.

Sections run in order: the machine, correct results, rows, products, attention, models. Each writes
the results file when it ends, has a failure of its own, and is skipped by a later run that finds it
in the file, so that an interrupted run goes on where it was. Times are of the device, between two
events; every row is the median of several runs after one that compiles.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

import smelt as sm
from smelt.dataclass import dataclass
from smelt.frontends.array.device_array import DeviceArray, to_device
from smelt.imports import fork_safe_import
from smelt.runtime.cuda.driver import Device, system_driver
from smelt.runtime.cuda.memory import driver_memory

__all__ = ["SECTIONS", "Settings", "all_rows", "run"]

Array = np.ndarray[Any, Any]
Row = dict[str, Any]


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


CORRECT: Final[dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]] = {
    "map": (lambda x: sm.tanh(x) * 2 + 1, ((37, 100),)),
    "softmax": (softmax, ((33, 1000),)),
    "rms_norm": (rms_norm, ((33, 300), (300,))),
    "columns": (lambda x: sm.sum(x, axis=0), ((500, 70),)),
    "total": (lambda x: sm.sum(x * x), ((300, 100),)),
    "argmax": (lambda x: sm.argmax(x, axis=1), ((37, 100),)),
    "scan": (lambda x: sm.cumulative_sum(x, axis=1), ((37, 100),)),
    "split": (lambda x: sm.sum(sm.exp(x), axis=1), ((2, 20_000),)),
    "linear_gelu": (linear_gelu, ((65, 48), (48, 80), (80,))),
    "attention": (attention, ((1, 2, 70, 32),) * 3),
    "block": (block, ((20, 64), (64,), (64, 96), (96, 64))),
    "recurrence": (recurrence, ((9, 20, 64), (64, 64))),
    "condition": (doubled, ((20, 64), (64, 64))),
}
"""Programs whose results are compared with the CPU's, with the shapes of their arrays."""
DTYPES: Final[Mapping[str, Any]] = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
"""Types of the operands of products and attention, the one with tensor cores first."""
TOLERANCE: Final = 1e-4
"""Largest difference to the CPU, relative to the largest result."""


def _arrays(
    shapes: Sequence[tuple[int, ...]], scale: float = 1.0, dtype: Any = np.float32
) -> list[Array]:
    random = np.random.default_rng(11)
    return [(random.standard_normal(s, np.float32) * scale).astype(dtype) for s in shapes]


# ---- timing --------------------------------------------------------------------------------------


class Timer:
    """Times work of the device's default stream between two events."""

    def __init__(self, device: Device, runs: int) -> None:
        self.device, self.runs = device, runs
        with device.current():
            self._first, self._last = (device.driver.word("cuEventCreate", 0) for _ in range(2))

    def ms(self, work: Callable[[], Any]) -> float:
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


def _on_device(arrays: Sequence[Array], device: Device) -> list[DeviceArray]:
    return [to_device(x, device.name) for x in arrays]


# ---- sections ------------------------------------------------------------------------------------


def _machine(device: Device, s: Settings) -> list[Row]:
    """Facts of the device, copy rates, and what a call costs the host."""
    free, total = device.memory()
    rows: list[Row] = [
        {
            "device": device.model,
            "arch": device.arch,
            "multiprocessors": device.multiprocessors,
            "driver": device.driver.version,
            "free_bytes": free,
            "total_bytes": total,
        }
    ]
    timer, memory = Timer(device, s.runs), driver_memory(device)
    for nbytes in (1 << 16,) if s.is_small else (1 << 20, 1 << 24, 1 << 28, 1 << 30):
        blocks = [memory.allocate(nbytes, 0) for _ in range(2)]

        def copy(blocks: list[Any] = blocks, nbytes: int = nbytes) -> None:
            with device.current():
                device.driver.call(
                    "cuMemcpyDtoDAsync_v2", blocks[0].address, blocks[1].address, nbytes, 0
                )

        ms = timer.ms(copy)
        rows.append({"copy_bytes": nbytes, "ms": ms, "gb_s": 2 * nbytes / ms / 1e6})
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
    rows.append({"call_host_us": host_us})
    return rows


def _correct(device: Device, s: Settings) -> list[Row]:
    """Largest difference to the CPU of each program, relative to its largest result."""
    rows: list[Row] = []
    for name, (function, shapes) in CORRECT.items():
        arrays = _arrays(shapes)
        row: Row = {"name": name}
        try:
            y = sm.jit(function)(*_on_device(arrays, device))
            actual = np.asarray(y.to_device("cpu"), np.float64)
            wanted = np.asarray(sm.jit(function)(*arrays), np.float64)
            row["error"] = float(np.abs(actual - wanted).max() / max(np.abs(wanted).max(), 1e-30))
            row["ok"] = row["error"] <= TOLERANCE
        except Exception as error:  # noqa: BLE001 - one program's failure is its own row
            row |= {"ok": False, "failed": f"{type(error).__name__}: {error}"}
        rows.append(row)
    return rows


def _rows(device: Device, s: Settings) -> list[Row]:
    """Rates of softmax and a norm over rows of growing length."""
    shapes = (
        ((8, 64), (4, 200))
        if s.is_small
        else ((65536, 1024), (16384, 4096), (4096, 16384), (2048, 32768), (512, 131072))
    )
    rows: list[Row] = []
    for r, c in shapes:
        x, w = _on_device(_arrays([(r, c), (c,)]), device)
        moved = 2 * 4 * r * c
        rows.append(_timed("softmax", device, s, softmax, [x], moved=moved, shape=(r, c)))
        rows.append(_timed("rms_norm", device, s, rms_norm, [x, w], moved=moved, shape=(r, c)))
    return rows


def _products(device: Device, s: Settings) -> list[Row]:
    """Rates of a linear layer with GELU."""
    shapes = ((16, 32, 16),) if s.is_small else ((4096, 4096, 4096), (4096, 1024, 4096))
    rows: list[Row] = []
    for (m, k, n), (name, dtype) in itertools.product(shapes, DTYPES.items()):
        arrays = _on_device(_arrays([(m, k), (k, n), (n,)], k**-0.5, dtype), device)
        row = _timed(
            "linear_gelu", device, s, linear_gelu, arrays, flops=2 * m * k * n, shape=(m, k, n)
        )
        rows.append(row | {"dtype": name})
    return rows


def _attention(device: Device, s: Settings) -> list[Row]:
    """Rates of causal attention; half of the products are counted."""
    shapes = ((1, 1, 40, 16),) if s.is_small else ((4, 16, 4096, 64), (4, 16, 4096, 128))
    rows: list[Row] = []
    for (b, h, n, d), (name, dtype) in itertools.product(shapes, DTYPES.items()):
        arrays = _on_device(_arrays([(b, h, n, d)] * 3, dtype=dtype), device)
        flops = 2 * b * h * n * n * d
        row = _timed("attention", device, s, attention, arrays, flops=flops, shape=(b, h, n, d))
        rows.append(row | {"dtype": name})
    return rows


def _models(device: Device, s: Settings) -> list[Row]:
    """Times of a block of a model, by Smelt and by torch."""
    m, d = (8, 32) if s.is_small else (4096, 1024)
    arrays = _arrays([(m, d), (d,), (d, 4 * d), (4 * d, d)], d**-0.5)
    flops = 16 * m * d * d
    rows = [
        _timed("block", device, s, block, _on_device(arrays, device), flops=flops, shape=(m, d))
    ]
    has_torch = not s.is_dry and importlib.util.find_spec("torch") is not None
    torch = fork_safe_import("torch") if has_torch else None
    if torch is None or not torch.cuda.is_available():
        return [*rows, {"name": "torch", "skipped": "torch is not installed, or sees no GPU"}]
    return rows + _torch_rows(torch, device, s, arrays)


def _torch_rows(torch: Any, device: Device, s: Settings, arrays: Sequence[Array]) -> list[Row]:
    def model(x: Any, w: Any, q: Any, o: Any) -> Any:
        norm = x * w * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)
        h = norm @ q
        return x + (h * torch.sigmoid(h)) @ o

    tensors = [torch.from_numpy(a).to(f"cuda:{device.ordinal}") for a in arrays]
    timer, rows = Timer(device, s.runs), list[Row]()
    for name in ("eager", "inductor", "smelt"):
        row: Row = {"name": f"torch {name}"}
        try:
            f = model if name == "eager" else torch.compile(model, backend=name)
            row["ms"] = timer.ms(lambda f=f: f(*tensors))
        except Exception as error:  # noqa: BLE001 - one peer's failure is its own row
            row["failed"] = f"{type(error).__name__}: {error}"
        rows.append(row)
    return rows


def _timed(
    name: str,
    device: Device,
    s: Settings,
    function: Callable[..., Any],
    arrays: Sequence[DeviceArray],
    *,
    shape: tuple[int, ...],
    moved: int = 0,
    flops: int = 0,
) -> Row:
    """Return the row of one program: time, and its rate in GB/s or TFLOP/s."""
    row: Row = {"name": name, "shape": list(shape)}
    compiled = sm.jit(function)
    try:
        start = time.perf_counter()
        compiled(*arrays)
        row["first_s"] = time.perf_counter() - start
        ms = row["ms"] = Timer(device, s.runs).ms(lambda: compiled(*arrays))
    except Exception as error:  # noqa: BLE001 - one program's failure is its own row
        return row | {"failed": f"{type(error).__name__}: {error}"}
    if moved:
        row["gb_s"] = moved / ms / 1e6
    if flops:
        row["tflop_s"] = flops / ms / 1e9
    return row


SECTIONS: Final[Mapping[str, Callable[[Device, Settings], list[Row]]]] = {
    "machine": _machine,
    "correct": _correct,
    "rows": _rows,
    "products": _products,
    "attention": _attention,
    "models": _models,
}
"""Sections by name, in order."""


# ---- the run -------------------------------------------------------------------------------------


def run(settings: Settings, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the sections that the results file does not have, and return all results.

    Raises NoDriverError and DeviceError where there is no such device, ValueError for a section
    that does not exist.
    """
    unknown = set(settings.only) - set(SECTIONS)
    if unknown:
        raise ValueError(f"no section {min(unknown)!r}; there are {', '.join(SECTIONS)}")
    device = system_driver().device(int(settings.device.partition(":")[2] or 0))
    start = time.perf_counter()
    results = _stored(settings.path)
    for name, section in SECTIONS.items():
        if name in results or (settings.only and name not in settings.only):
            continue
        spent = time.perf_counter() - start
        if spent > settings.budget_s:
            say(f"{name}: not begun, {spent:.0f} s of {settings.budget_s:.0f} s are spent")
            break
        entry: dict[str, Any] = {"device": device.model}
        try:
            entry["rows"] = section(device, settings)
        except Exception:  # noqa: BLE001 - the other sections still run
            entry["failed"] = traceback.format_exc()
        entry["seconds"] = time.perf_counter() - start - spent
        results[name] = entry
        settings.path.write_text(json.dumps(results, indent=1), encoding="utf-8")
        say(f"{name}: {_summary(entry)}")
    return results


def all_rows(results: Mapping[str, Any]) -> list[Row]:
    """Return the rows of all sections, and the sections that failed as a whole."""
    failed = [entry for entry in results.values() if "failed" in entry]
    return [*failed, *(row for entry in results.values() for row in entry.get("rows", ()))]


def _stored(path: Path) -> dict[str, Any]:
    """Return the sections of an earlier run that did not fail."""
    if not path.exists():
        return {}
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: entry for name, entry in stored.items() if "failed" not in entry}


def _summary(entry: Mapping[str, Any]) -> str:
    if "failed" in entry:
        return f"failed: {str(entry['failed']).strip().splitlines()[-1]}"
    rows = entry["rows"]
    failed = sum("failed" in r or r.get("ok") is False for r in rows)
    rates = [f"{r['name']} {r['gb_s']:.0f} GB/s" for r in rows if "gb_s" in r and "name" in r]
    rates += [f"{r['name']} {r['tflop_s']:.1f} TFLOP/s" for r in rows if "tflop_s" in r]
    text = f"{len(rows)} rows, {failed} failed, {math.ceil(entry['seconds'])} s"
    return f"{text}; {', '.join(rates[:6])}" if rates else text
