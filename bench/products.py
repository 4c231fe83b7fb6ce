"""Compare matrix products with other libraries on one core.

    python -m bench --products              # the table
    python -m bench.products      # its rows as JSON, from this process

Sizes are both convenient and inconvenient for libraries.  Times are processor time, so that a busy
machine changes them little; the peers run in one process, round-robin, and the best round counts.
That process is bound to one CPU: worker threads of a library count too.  Constants may be packed
whatever memory that takes (`constants_extra=none`), which a product alone does not by default.
Where weights come "in turn", each call uses the next of several weights that together exceed the L2
cache, as the layers of a model do; other rows use the same operands in every call.  The floor is a
lower bound of the machine: multiply-adds at the measured peak, or reading the operands once at the
measured bandwidth, whichever is longer.

The last rows are products with fused prologues and epilogues (`bench/around.py`); `inductor` is
`torch.compile` with `max_autotune` and `freezing`.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm
from bench import around
from bench.around import FusedProduct
from bench.isa import held
from bench.process import (
    Say,
    announce,
    command,
    ignore_progress,
    one_thread_variables,
    pin_to_cpus,
    run_and_report,
)
from bench.sheet import peak, sheet
from bench.table import NOTHING, Table, duration
from smelt.compiler import driver
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f32, i8

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
PEERS = around.PEERS
ROUNDS, MIN_S = 7, 0.004
AIMS = {"best peer / smelt": 0.97, "floor / smelt": 80}
"""Minimum that columns of the page should reach."""


@dataclass(frozen=True)
class Case:
    """A product: shapes, whether the right operand is transposed or constant, and its type.

    A constant is captured instead of passed, as weights are. Each call uses the next of
    `operand_count` right operands.
    """

    title: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    right_transposed: bool = False
    constant: bool = False
    dtype: DType = f32
    operand_count: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        columns = 1 if len(self.right) == 1 else self.right[-2 if self.right_transposed else -1]
        return 2 * int(np.prod(self.left)) * columns


@dataclass(frozen=True)
class ProductTimes:
    """Nanoseconds by library (absent ones are missing), and the floor's."""

    title: str
    floor: float
    times: dict[str, float]


OPERAND_COUNT = 12
"""Right operands that calls cycle through: 113 MB in all, if they are 768 x 3072."""
CASES: tuple[Case, ...] = (
    *(Case(f"{n}³", (n, n), (n, n)) for n in (128, 256, 512, 1024, 2048)),
    Case("1024³, right transposed", (1024, 1024), (1024, 1024), True),
    Case("linear 512×768 to 3072", (512, 768), (3072, 768), True),
    Case("matrix 4096² × vector", (4096, 4096), (4096,)),
    Case("vector × matrix 4096²", (4096,), (4096, 4096)),
    *(Case(f"{m} rows × 4096²", (m, 4096), (4096, 4096)) for m in (2, 4, 8, 16)),
    *(Case(f"{m} rows × 4096², transposed", (m, 4096), (4096, 4096), True) for m in (2, 4, 8)),
    *(
        Case(
            f"{m}×{k} to {n}{', transposed' * turned}, in turn",
            (m, k),
            (n, k) if turned else (k, n),
            turned,
            operand_count=OPERAND_COUNT,
        )
        for turned in (False, True)
        for m in (32, 128)
        for k, n in ((768, 3072), (3072, 768))
    ),
    *(Case(f"{n}³, right constant", (n, n), (n, n), False, True) for n in (256, 512, 1024, 2048)),
    Case("linear 512×768 to 3072, constant", (512, 768), (3072, 768), True, True),
    *(
        Case(f"{m} rows × 4096², transposed, constant", (m, 4096), (4096, 4096), True, True)
        for m in (2, 8, 16)
    ),
    Case("64 × (64×64×64)", (64, 64, 64), (64, 64, 64)),
    Case("1024 × (32×32×32)", (1024, 32, 32), (1024, 32, 32)),
    Case("4096 × (16×16×16)", (4096, 16, 16), (4096, 16, 16)),
    Case("64×100000×64", (64, 100_000), (100_000, 64)),
    *(Case(f"{n}³, bfloat16", (n, n), (n, n), dtype=bf16) for n in (256, 1024)),
    *(
        Case(f"{m} rows × 4096², transposed, bfloat16", (m, 4096), (4096, 4096), True, dtype=bf16)
        for m in (1, 4)
    ),
    *(Case(f"{n}³, int8", (n, n), (n, n), dtype=i8) for n in (256, 1024)),
    Case("1024³, bfloat16, right constant", (1024, 1024), (1024, 1024), False, True, bf16),
    Case("1024³, int8, right constant", (1024, 1024), (1024, 1024), False, True, i8),
    Case(
        "4 rows × 4096², transposed, bfloat16, constant", (4, 4096), (4096, 4096), True, True, bf16
    ),
    Case("16 rows × 4096², transposed, int8, constant", (16, 4096), (4096, 4096), True, True, i8),
)


def operands(case: Case) -> tuple[Array, list[Array]]:
    """Return the left operand and the right ones, the same for all libraries."""
    rng = np.random.default_rng(0)
    shapes = (case.left, *[case.right] * case.operand_count)
    if case.dtype == i8:
        x, *ys = (rng.integers(-128, 128, s).astype(np.int8) for s in shapes)
    else:
        x, *ys = (rng.standard_normal(s).astype(case.dtype.numpy) for s in shapes)
    return x, ys


def _each(multiply: Callable[[Any], Any], operands: Sequence[Any]) -> Call:
    """Return a call that multiplies by the next of some operands."""
    if len(operands) == 1:
        (only,) = operands
        return lambda: multiply(only)
    turns = cycle(operands)
    return lambda: multiply(next(turns))


def calls(case: Case, peers: tuple[str, ...] = PEERS) -> dict[str, Call]:
    """Return the product as a call of each installed library.

    int8 is multiplied into int32, bfloat16 into bfloat16. NumPy has no fast product of either.
    """
    x, ys = operands(case)
    by_library: dict[str, Call] = {}
    transposed, is_int8 = case.right_transposed, case.dtype == i8
    if "smelt" in peers:
        by_library["smelt"] = _smelt_call(case, x, ys)
    if "numpy" in peers and case.dtype == f32:
        by_library["numpy"] = _each(lambda y: x @ (np.swapaxes(y, -1, -2) if transposed else y), ys)
    with suppress(ImportError):
        if "torch" in peers:
            torch: Any = importlib.import_module("torch")
            torch.set_num_threads(1)
            p, *qs = (_tensor(torch, case, a) for a in (x, *ys))
            multiply = torch._int_mm if is_int8 else torch.matmul
            by_library["torch"] = _each(lambda q: multiply(p, q.mT if transposed else q), qs)
    with suppress(ImportError):
        if "jax" in peers:
            jax: Any = importlib.import_module("jax")
            options = {"preferred_element_type": np.int32} if is_int8 else {}

            def multiplied(a: Any, b: Any) -> Any:
                return jax.numpy.matmul(a, b.swapaxes(-1, -2) if transposed else b, **options)

            r, *ss = (jax.device_put(a) for a in (x, *ys))
            compiled, compiled_constant = (
                jax.jit(multiplied),
                jax.jit(lambda a: multiplied(a, ss[0])),
            )
            by_library["jax"] = (
                (lambda: compiled_constant(r).block_until_ready())
                if case.constant
                else _each(lambda s: compiled(r, s).block_until_ready(), ss)
            )
    return by_library


def _smelt_call(case: Case, x: Array, ys: list[Array]) -> Call:
    def widened(a: Any) -> Any:
        return sm.astype(a, sm.int32) if case.dtype == i8 else a

    def multiplied(a: Any, b: Any) -> Any:
        return widened(a) @ widened(sm.matrix_transpose(b) if case.right_transposed else b)

    if not case.constant:
        compiled = sm.jit(multiplied)
        return _each(lambda y: compiled(x, y), ys)
    constant = sm.asarray(ys[0], copy=True)
    fixed = sm.jit(lambda a: multiplied(a, constant))
    return lambda: fixed(x)


def _tensor(torch: Any, case: Case, a: Array) -> Any:
    if case.dtype == bf16:
        return torch.from_numpy(a.astype(np.float32)).bfloat16()
    return torch.from_numpy(a)


def floor_ns(case: Case) -> float:
    """Return the minimum ns on one core, for the arithmetic or for reading the operands."""
    target = driver.host()
    pairs = case.dtype == bf16 and (target.has_fast_bf16_dot or target.has("amx-bf16"))
    fours = case.dtype == i8 and target.has_byte_dot
    rate = target.fma_gflops * (4 if fours else 2 if pairs or case.dtype == i8 else 1)
    nbytes = case.dtype.itemsize * (int(np.prod(case.left)) + int(np.prod(case.right)))
    level = target.level(nbytes * case.operand_count, 1)
    return max(case.flops / rate, nbytes / target.bandwidth(level, "read", 1))


def measure(
    case: Case | FusedProduct, rounds: int = ROUNDS, peers: tuple[str, ...] = PEERS
) -> ProductTimes:
    """Return the best time of each library over alternating rounds."""
    if isinstance(case, FusedProduct):
        floor, by_library = around.floor_ns(case), around.calls(case, held(peers))
    else:
        floor, by_library = floor_ns(case), calls(case, held(peers))
    turns = case.operand_count if isinstance(case, Case) else 1
    return ProductTimes(case.title, floor, best_times(by_library, rounds, turns))


def best_times(by_library: dict[str, Call], rounds: int, turns: int = 1) -> dict[str, float]:
    """Return the ns of processor time of each call, the best of alternating rounds.

    Each round has at least `operand_count` calls of a library. It begins when the threads of the
    previous library are idle (JAX's keep working for a while), with one more call that is not
    counted.
    """
    best: dict[str, float] = {}
    repeat: dict[str, int] = {}
    with sm.config(threads=1, constants_extra=None):
        for name, call in by_library.items():
            call()
            repeat[name] = max(turns, _repeats(call))
        for _ in range(rounds):
            for name, call in by_library.items():
                wait_until_idle()
                call()
                ns = _seconds(call, repeat[name]) / repeat[name] * 1e9
                best[name] = min(ns, best.get(name, ns))
    return best


def wait_until_idle(longest: float = 2.0) -> None:
    """Wait until no thread of this process is busy, at most `longest` seconds."""
    ends = time.monotonic() + longest
    while time.monotonic() < ends:
        before = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - before < _LOOK_S / 10:
            return


_LOOK_S = 0.005


def _repeats(call: Call) -> int:
    """Return the number of calls that take about `MIN_S`.

    As many are made before they are timed: the first calls of a program may take a slower path.
    """
    count, before = 1, 0
    while count > 2 * before:
        before, call_seconds = count, _seconds(call, count) / count
        count = max(count, int(MIN_S / max(call_seconds, 1e-7)), 1)
    return count


def _seconds(call: Call, times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - started


def run(rounds: int = ROUNDS, say: Say = ignore_progress) -> list[ProductTimes]:
    """Measure all cases, in a process where every library has one thread."""
    settings = one_thread_variables()
    line = command(["-m", "bench.products", str(rounds)], settings)
    with pin_to_cpus(1):
        output = run_and_report(line, say)
    return [ProductTimes(**row) for row in json.loads(output)]


def table(measured: list[ProductTimes]) -> Table:
    """Return times, the best peer's over Smelt's, and Smelt's share of the floor."""
    peers = [p for p in PEERS if any(p in t.times for t in measured)]
    rows: list[tuple[str, ...]] = []
    for timed in measured:
        smelt_ns = timed.times.get("smelt")
        others = [ns for name, ns in timed.times.items() if name != "smelt"]
        against = f"{min(others) / smelt_ns:.2f}" if smelt_ns and others else NOTHING
        share = f"{100 * timed.floor / smelt_ns:.0f} %" if smelt_ns else NOTHING
        cells = (duration(timed.times.get(p)) for p in peers)
        rows.append((timed.title, *cells, duration(timed.floor), against, share))
    headers = ("product", *peers, "floor", "best peer / smelt", "floor / smelt")
    return Table("Matrix products on one core", headers, tuple(rows))


def page(measured: list[ProductTimes]) -> str:
    """Return the table as a page of the documentation."""
    return sheet("Matrix products", "products", __doc__, table(measured), peak(), aims=AIMS)


def write(measured: list[ProductTimes], folder: Path) -> Path:
    """Write the page; return its path."""
    path = folder / "products.md"
    path.write_text(page(measured), encoding="utf-8")
    return path


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    sys.stdout.write(
        json.dumps([asdict(measure(c, chosen)) for c in announce((*CASES, *around.CASES))]) + "\n"
    )
