"""Compare single operators and short chains with NumPy and PyTorch on one core.

    python -m bench --operators              # the table
    python -m bench.operators      # its rows as JSON, from this process

Sizes fit the L1 cache, L2, and no cache.  Times are processor time of one call from Python,
including its result's memory; all libraries run in one process, round-robin, the best of the rounds
counts, after calls that are not counted.  A size is that of the first operand.  Ratios are a
library's time over Smelt's, the last column has the smaller one: above 1 Smelt is the fastest.
NumPy and PyTorch have the fastest form of a row that is known.  A library that lacks a row has no
number.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm
from bench.process import (
    Say,
    announce,
    command,
    ignore_progress,
    pin_to_cpus,
    run_and_report,
    variables,
)
from bench.products import best_times
from bench.results import geomean
from bench.sheet import sheet
from bench.table import Table, duration, ratio
from smelt.python.dataclass import dataclass

Array = np.ndarray[Any, Any]
Code = Callable[..., Any]
Call = Callable[[], Any]
PEERS = ("numpy", "torch")
SIZES = {"4 KiB": 1 << 12, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
ROUNDS = {"4 KiB": 7, "1 MiB": 7, "64 MiB": 4}


@dataclass(frozen=True)
class Operator:
    """A row: operands, code in the array API's names, and PyTorch's and NumPy's forms.

    `kinds` are the operands (see `operands`); NumPy runs `code` unless it has a form of its own.
    """

    title: str
    kinds: str
    code: Code
    torch: Code
    numpy: Code | None = None


@dataclass(frozen=True)
class OperatorTimes:
    """Nanoseconds by library of one row at one size; absent libraries are missing."""

    title: str
    size: str
    times: dict[str, float]

    @property
    def best_over_smelt(self) -> float | None:
        """Time of the fastest other library over Smelt's."""
        others = [ns for name, ns in self.times.items() if name != "smelt"]
        return min(others) / self.times["smelt"] if others and "smelt" in self.times else None


def _softmax(m: Any, a: Any) -> Any:
    e = m.exp(a - m.max(a, axis=1, keepdims=True))
    return e / m.sum(e, axis=1, keepdims=True)


def _row(title: str, kinds: str, code: Code, torch: Code | str, numpy: Code | None = None) -> Any:
    """Return a row whose PyTorch form may be just a name."""
    form = (lambda t, *a: getattr(t, torch)(*a)) if isinstance(torch, str) else torch
    return Operator(title, kinds, code, form, numpy)


OPERATORS: tuple[Operator, ...] = (
    # ---- elementwise
    _row("add", "x x", lambda m, a, b: a + b, "add"),
    _row("add a number", "x", lambda m, a: a + 1, lambda t, a: a + 1),
    _row("exp", "x", lambda m, a: m.exp(a), "exp"),
    _row("log", "p", lambda m, a: m.log(a), "log"),
    _row("tanh", "x", lambda m, a: m.tanh(a), "tanh"),
    _row("sin", "x", lambda m, a: m.sin(a), "sin"),
    _row("sqrt", "p", lambda m, a: m.sqrt(a), "sqrt"),
    _row("pow", "p x", lambda m, a, b: a**b, "pow"),
    _row("atan2", "x x", lambda m, a, b: m.atan2(a, b), "atan2"),
    _row("round", "x", lambda m, a: m.round(a), "round"),
    _row("clip", "x", lambda m, a: m.clip(a, -1, 1), lambda t, a: a.clip(-1, 1)),
    _row("compare", "x x", lambda m, a, b: a < b, "less"),
    _row("isnan", "x", lambda m, a: m.isnan(a), "isnan"),
    _row("where", "x x", lambda m, a, b: m.where(a > 0, a, b),
         lambda t, a, b: t.where(a > 0, a, b)),
    _row("exp, float64", "d", lambda m, a: m.exp(a), "exp"),
    _row("log, float64", "q", lambda m, a: m.log(a), "log"),
    _row("float16 product", "h h", lambda m, a, b: a * b, "mul"),
    _row("float32 to float16", "x", lambda m, a: m.astype(a, m.float16), lambda t, a: a.half()),
    _row("uint8 to float32 / 255", "u", lambda m, a: m.astype(a, m.float32) / 255,
         lambda t, a: a.float() / 255),
    # ---- integers
    _row("int32 // 7", "i", lambda m, a: a // 7, lambda t, a: a // 7),
    _row("int64 // 7", "l", lambda m, a: a // 7, lambda t, a: a // 7),
    _row("int32 % 7", "i", lambda m, a: a % 7, lambda t, a: a % 7),
    _row("int32 // int32", "i k", lambda m, a, b: a // b,
         lambda t, a, b: t.div(a, b, rounding_mode="floor")),
    _row("shifts and xor", "i", lambda m, a: (a << 3) ^ (a >> 2), lambda t, a: (a << 3) ^ (a >> 2)),
    _row("uint8 sum of two", "u u", lambda m, a, b: a + b, "add"),
    # ---- full reductions
    _row("sum", "x", lambda m, a: m.sum(a), "sum"),
    _row("sum, float64", "d", lambda m, a: m.sum(a), "sum"),
    _row("sum, int32", "i", lambda m, a: m.sum(a), "sum"),
    _row("prod", "x", lambda m, a: m.prod(a), "prod"),
    _row("max", "x", lambda m, a: m.max(a), "amax"),
    _row("argmax", "x", lambda m, a: m.argmax(a), "argmax"),
    _row("var", "x", lambda m, a: m.var(a), lambda t, a: a.var(correction=0)),
    _row("dot", "x x", lambda m, a, b: m.vecdot(a, b), "dot", lambda a, b: a @ b),
    _row("any", "x", lambda m, a: m.any(a > 100), lambda t, a: (a > 100).any()),
    _row("count", "x", lambda m, a: m.count_nonzero(a > 0), lambda t, a: (a > 0).count_nonzero()),
    # ---- rows and columns
    _row("sum of columns", "X", lambda m, a: m.sum(a, axis=0), lambda t, a: a.sum(0)),
    _row("sum of rows", "X", lambda m, a: m.sum(a, axis=1), lambda t, a: a.sum(1)),
    _row("max of columns", "X", lambda m, a: m.max(a, axis=0), lambda t, a: a.amax(0)),
    _row("max of rows", "X", lambda m, a: m.max(a, axis=1), lambda t, a: a.amax(1)),
    _row("argmax of columns", "X", lambda m, a: m.argmax(a, axis=0), lambda t, a: a.argmax(0)),
    _row("argmax of rows", "X", lambda m, a: m.argmax(a, axis=1), lambda t, a: a.argmax(1)),
    _row("var of rows", "X", lambda m, a: m.var(a, axis=1), lambda t, a: a.var(1, correction=0)),
    _row("softmax", "X", _softmax, lambda t, a: t.softmax(a, 1)),
    _row("mean of rows, Fortran order", "F", lambda m, a: m.mean(a, axis=1),
         lambda t, a: a.mean(1)),
    _row("sum of every third column", "X", lambda m, a: m.sum(a[:, ::3], axis=1),
         lambda t, a: a[:, ::3].sum(1)),
    # ---- scans and orders
    _row("cumulative sum", "x", lambda m, a: m.cumulative_sum(a), lambda t, a: a.cumsum(0)),
    _row("cumulative sum of columns", "X", lambda m, a: m.cumulative_sum(a, axis=0),
         lambda t, a: a.cumsum(0)),
    _row("cumulative sum of rows", "X", lambda m, a: m.cumulative_sum(a, axis=1),
         lambda t, a: a.cumsum(1)),
    _row("differences", "x", lambda m, a: m.diff(a), "diff"),
    _row("sort", "x", lambda m, a: m.sort(a), lambda t, a: a.sort()[0]),
    _row("sort rows", "X", lambda m, a: m.sort(a, axis=1), lambda t, a: a.sort(1)[0]),
    _row("argsort", "x", lambda m, a: m.argsort(a), "argsort", np.argsort),
    _row("argsort rows", "X", lambda m, a: m.argsort(a, axis=1), lambda t, a: a.argsort(1),
         lambda a: np.argsort(a, axis=1)),
    # ---- data movement
    _row("transpose times 2", "X", lambda m, a: m.permute_dims(a, (1, 0)) * 2,
         lambda t, a: (a.T * 2).contiguous(), lambda a: np.ascontiguousarray(a.T * 2)),
    _row("add a transpose", "X X", lambda m, a, b: a + m.permute_dims(b, (1, 0)),
         lambda t, a, b: a + b.T),
    _row("flip, add 1", "x", lambda m, a: m.flip(a) + 1, lambda t, a: a.flip(0) + 1),
    _row("roll", "x", lambda m, a: m.roll(a, 3), lambda t, a: a.roll(3)),
    _row("concatenate", "x x", lambda m, a, b: m.concat([a, b]), lambda t, a, b: t.cat([a, b])),
    _row("stack in columns", "x x", lambda m, a, b: m.stack([a, b], axis=1),
         lambda t, a, b: t.stack([a, b], 1)),
    _row("tile", "x", lambda m, a: m.tile(a, (3,)), lambda t, a: a.tile(3)),
    _row("repeat", "x", lambda m, a: m.repeat(a, 3), lambda t, a: a.repeat_interleave(3)),
    _row("every third, add 1", "x", lambda m, a: a[::3] + 1, lambda t, a: a[::3] + 1),
    _row("lower triangle", "X", lambda m, a: m.tril(a), "tril"),
    _row("outer", "r r", lambda m, a, b: a[:, None] * b[None, :], "outer"),
    # ---- gathers and ranges
    _row("take", "x j", lambda m, a, j: m.take(a, j), lambda t, a, j: a[j]),
    _row("take rows", "X e", lambda m, a, j: m.take(a, j, axis=0), lambda t, a, j: a[j]),
    _row("linspace times x", "x", lambda m, a: m.linspace(0, 1, a.shape[0], dtype=m.float32) * a,
         lambda t, a: t.linspace(0, 1, a.shape[0]) * a),
    _row("arange plus i", "i", lambda m, a: m.arange(a.shape[0], dtype=m.int32) + a,
         lambda t, a: t.arange(a.shape[0], dtype=t.int32) + a),
)  # fmt: skip


def operands(kinds: str, nbytes: int) -> list[Array]:
    """Return the arrays of a row whose first operand takes about `nbytes` bytes.

    `x` is float32 of a normal distribution, `p` its magnitudes; `d` and `q` are the same in
    float64, `h` in float16; `X` is a square matrix, `F` one in Fortran order, `r` a vector of its
    side; `i`, `l`, `u` are int32, int64 and uint8, `k` int32 of at least 1; `j` has indices into
    `x`, `e` rows of `X`.
    """
    rng = np.random.default_rng(0)
    first, *_ = kinds.split()
    count = nbytes // {"d": 8, "q": 8, "l": 8, "h": 2, "u": 1}.get(first, 4)
    side = int(count**0.5)

    def draw(kind: str) -> Array:
        if kind in "XF":
            x = rng.standard_normal((side, side)).astype(np.float32)
            return np.asfortranarray(x) if kind == "F" else x
        if kind in "je":
            return rng.integers(0, count if kind == "j" else side, count if kind == "j" else side)
        if kind == "k":
            return rng.integers(1, 1000, count).astype(np.int32)
        if kind in "ilu":
            top = {"i": np.int32, "l": np.int64, "u": np.uint8}[kind]
            return rng.integers(0 if kind == "u" else -1000, 256, count).astype(top)
        x = rng.standard_normal(side if kind == "r" else count)
        x = np.abs(x) if kind in "pq" else x
        return x.astype({"d": "f8", "q": "f8", "h": "f2"}.get(kind, "f4"))

    return [draw(kind) for kind in kinds.split()]


def calls(row: Operator, nbytes: int) -> dict[str, Call]:
    """Return the row as a call of each installed library."""
    arrays = operands(row.kinds, nbytes)
    compiled = sm.jit(lambda *a: row.code(sm, *a))
    numpy_form = row.numpy or (lambda *a: row.code(np, *a))
    by_library: dict[str, Call] = {
        "smelt": lambda: compiled(*arrays),
        "numpy": lambda: numpy_form(*arrays),
    }
    with suppress(ImportError):
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        tensors = [torch.from_numpy(a) for a in arrays]
        by_library["torch"] = lambda: row.torch(torch, *tensors)
    return by_library


def measure(row: Operator, size: str, rounds: int) -> OperatorTimes:
    """Return the best time of each library over alternating rounds."""
    return OperatorTimes(row.title, size, best_times(calls(row, SIZES[size]), rounds))


def run(quick: bool = False, say: Say = ignore_progress) -> list[OperatorTimes]:
    """Measure all rows at all sizes, in a process where every library has one thread."""
    line = command(["-m", "bench.operators", *["quick"] * quick], variables(1, None, "now"))
    with pin_to_cpus(1):
        output = run_and_report(line, say)
    return [OperatorTimes(**row) for row in json.loads(output)]


def table(measured: list[OperatorTimes]) -> Table:
    """Return Smelt's times for each size, and the ratios of the others to them."""
    peers = [p for p in PEERS if any(p in t.times for t in measured)]
    sizes = [s for s in SIZES if any(s == t.size for t in measured)]
    headers = ["operator, of one array"]
    for size in sizes:
        headers += [f"smelt, {size}", *(f"{p} / smelt" for p in peers), "best / smelt"]
    rows: dict[str, dict[str, OperatorTimes]] = {}
    for timed in measured:
        rows.setdefault(timed.title, {})[timed.size] = timed
    lines = [(title, *_cells(row, sizes, peers)) for title, row in rows.items()]
    means = ["geometric mean"]
    for size in sizes:
        of_size = [t for t in measured if t.size == size]
        means += ["", *(ratio(geomean(_against(t, p) for t in of_size)) for p in peers)]
        means.append(ratio(geomean(t.best_over_smelt for t in of_size)))
    return Table("Operators on one core", tuple(headers), (*lines, tuple(means)))


def _cells(row: Mapping[str, OperatorTimes], sizes: list[str], peers: list[str]) -> list[str]:
    cells: list[str] = []
    for size in sizes:
        timed = row.get(size) or OperatorTimes("", size, {})
        cells.append(duration(timed.times.get("smelt")))
        cells += [ratio(_against(timed, p)) for p in peers]
        cells.append(ratio(timed.best_over_smelt))
    return cells


def _against(timed: OperatorTimes, peer: str) -> float | None:
    if peer not in timed.times or "smelt" not in timed.times:
        return None
    return timed.times[peer] / timed.times["smelt"]


def to_json(measured: list[OperatorTimes]) -> str:
    """Return the times as a JSON list of rows, with nanoseconds by library."""
    return json.dumps([asdict(t) for t in measured], indent=1)


def page(measured: list[OperatorTimes]) -> str:
    """Return the table as a page of the documentation."""
    return sheet("Operators", "operators", __doc__, table(measured))


def write(measured: list[OperatorTimes], folder: Path) -> Path:
    """Write the page; return its path."""
    path = folder / "operators.md"
    path.write_text(page(measured), encoding="utf-8")
    return path


if __name__ == "__main__":
    brief = "quick" in sys.argv
    np.seterr(all="ignore")
    every = [
        measure(row, size, 2 if brief else ROUNDS[size])
        for size in SIZES
        for row in announce(OPERATORS)
    ]
    sys.stdout.write(json.dumps([asdict(t) for t in every]) + "\n")
