"""Matrix products against the peers, on one core: sizes that suit a library and sizes that hurt.

    smelt bench --products              # the table
    python -m smelt.bench.products      # its rows as JSON, from this process

Times are processor time, so that a busy machine changes them little; the peers stand in one process
and take turns, the best of the rounds counts.  That process keeps to one CPU: libraries that work
on threads of their own are measured whole.  Constants may be packed whatever memory that takes
(`constants_extra=none`), which a product alone does not by default.  Where weights come "in turn",
each call multiplies the next of so many that they do not stay in the second cache, as the layers of
a model do; others are alike in every call.  The floor is what the machine
cannot beat: multiply-adds at the measured peak, or the operands read once at the measured
bandwidth, whichever is longer.

The last rows are products with what stands before and behind them (`bench/around.py`); `inductor`
is `torch.compile` told to try all that it has and to fold constants.
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
from smelt import driver
from smelt.bench import around
from smelt.bench.around import Around
from smelt.bench.process import Say, announced, command, heard, kept_to, silent, variables
from smelt.bench.sheet import peak, sheet
from smelt.bench.table import NOTHING, Table, duration
from smelt.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f32, i8

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
PEERS = around.PEERS
ROUNDS, LEAST_S = 7, 0.004
AIMS = {"best peer / smelt": 0.97, "floor / smelt": 80}
"""The least that columns of the page are to say."""


@dataclass(frozen=True)
class Case:
    """One product: shapes of both operands, whether the second is read transposed, and closed over
    rather than passed: a constant, as weights are; the operands' type; and how many of the second
    are multiplied in turn, one in each call."""

    title: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    turned: bool = False
    constant: bool = False
    dtype: DType = f32
    turns: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        columns = 1 if len(self.right) == 1 else self.right[-2 if self.turned else -1]
        return 2 * int(np.prod(self.left)) * columns


@dataclass(frozen=True)
class Timed:
    """Nanoseconds by library (absent ones are missing), and the floor's."""

    title: str
    floor: float
    times: dict[str, float]


TURNS = 12
"""Weights that are multiplied in turn: 113 MB of them, where they are 768 x 3072."""
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
            turns=TURNS,
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
    """The numbers that all libraries multiply: the left operand, and the right ones."""
    rng = np.random.default_rng(0)
    shapes = (case.left, *[case.right] * case.turns)
    if case.dtype == i8:
        x, *ys = (rng.integers(-128, 128, s).astype(np.int8) for s in shapes)
    else:
        x, *ys = (rng.standard_normal(s).astype(case.dtype.numpy) for s in shapes)
    return x, ys


def _each(multiply: Callable[[Any], Any], operands: Sequence[Any]) -> Call:
    """A call that multiplies by the next of some operands."""
    if len(operands) == 1:
        (only,) = operands
        return lambda: multiply(only)
    turns = cycle(operands)
    return lambda: multiply(next(turns))


def calls(case: Case, peers: tuple[str, ...] = PEERS) -> dict[str, Call]:
    """The product as each installed library computes it: of int8 in int32, of bfloat16 in
    bfloat16.  NumPy has no fast product of either."""
    x, ys = operands(case)
    found: dict[str, Call] = {}
    turned, short = case.turned, case.dtype == i8
    if "smelt" in peers:
        found["smelt"] = _ours(case, x, ys)
    if "numpy" in peers and case.dtype == f32:
        found["numpy"] = _each(lambda y: x @ (np.swapaxes(y, -1, -2) if turned else y), ys)
    with suppress(ImportError):
        if "torch" in peers:
            torch: Any = importlib.import_module("torch")
            torch.set_num_threads(1)
            p, *qs = (_tensor(torch, case, a) for a in (x, *ys))
            multiply = torch._int_mm if short else torch.matmul
            found["torch"] = _each(lambda q: multiply(p, q.mT if turned else q), qs)
    with suppress(ImportError):
        if "jax" in peers:
            jax: Any = importlib.import_module("jax")
            wide = {"preferred_element_type": np.int32} if short else {}

            def multiplied(a: Any, b: Any) -> Any:
                return jax.numpy.matmul(a, b.swapaxes(-1, -2) if turned else b, **wide)

            r, *ss = (jax.device_put(a) for a in (x, *ys))
            theirs, known = jax.jit(multiplied), jax.jit(lambda a: multiplied(a, ss[0]))
            found["jax"] = (
                (lambda: known(r).block_until_ready())
                if case.constant
                else _each(lambda s: theirs(r, s).block_until_ready(), ss)
            )
    return found


def _ours(case: Case, x: Array, ys: list[Array]) -> Call:
    def wide(a: Any) -> Any:
        return sm.astype(a, sm.int32) if case.dtype == i8 else a

    def multiplied(a: Any, b: Any) -> Any:
        return wide(a) @ wide(sm.matrix_transpose(b) if case.turned else b)

    if not case.constant:
        ours = sm.jit(multiplied)
        return _each(lambda y: ours(x, y), ys)
    own = sm.asarray(ys[0], copy=True)
    fixed = sm.jit(lambda a: multiplied(a, own))
    return lambda: fixed(x)


def _tensor(torch: Any, case: Case, a: Array) -> Any:
    if case.dtype == bf16:
        return torch.from_numpy(a.astype(np.float32)).bfloat16()
    return torch.from_numpy(a)


def floor_ns(case: Case) -> float:
    """Nanoseconds that one core needs at least for the arithmetic, or for reading the operands."""
    target = driver.host()
    pairs = case.dtype == bf16 and (target.multiplies_bfloats or target.has("amx-bf16"))
    fours = case.dtype == i8 and (target.has("avx512vnni") or target.has("avxvnni"))
    rate = target.fma_gflops * (4 if fours else 2 if pairs or case.dtype == i8 else 1)
    nbytes = case.dtype.itemsize * (int(np.prod(case.left)) + int(np.prod(case.right)))
    level = target.level(nbytes * case.turns, 1)
    return max(case.flops / rate, nbytes / target.bandwidth(level, "read", 1))


def measure(case: Case | Around, rounds: int = ROUNDS, peers: tuple[str, ...] = PEERS) -> Timed:
    """The best time of each library over rounds in which all take turns."""
    if isinstance(case, Around):
        floor, known = around.floor_ns(case), around.calls(case, peers)
    else:
        floor, known = floor_ns(case), calls(case, peers)
    turns = case.turns if isinstance(case, Case) else 1
    return Timed(case.title, floor, best_times(known, rounds, turns))


def best_times(known: dict[str, Call], rounds: int, turns: int = 1) -> dict[str, float]:
    """Nanoseconds of processor time of each call, the best of rounds in which they take turns, of
    so many calls at least.  A turn begins when the threads of the library before rest (JAX's work
    on for a while), with one more call that is not counted."""
    best: dict[str, float] = {}
    repeat: dict[str, int] = {}
    with sm.config(threads=1, constants_extra=None):
        for name, call in known.items():
            call()
            repeat[name] = max(turns, _repeats(call))
        for _ in range(rounds):
            for name, call in known.items():
                rest()
                call()
                ns = _seconds(call, repeat[name]) / repeat[name] * 1e9
                best[name] = min(ns, best.get(name, ns))
    return best


def rest(longest: float = 2.0) -> None:
    """Waits until no thread of this process works any more, or so many seconds."""
    ends = time.monotonic() + longest
    while time.monotonic() < ends:
        before = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - before < _LOOK_S / 10:
            return


_LOOK_S = 0.005


def _repeats(call: Call) -> int:
    """Calls that take about `LEAST_S`.  As many as that are made before they are counted: the first
    calls of a program may go a longer way than later ones."""
    found, before = 1, 0
    while found > 2 * before:
        before, spent = found, _seconds(call, found) / found
        found = max(found, int(LEAST_S / max(spent, 1e-7)), 1)
    return found


def _seconds(call: Call, times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - started


def run(rounds: int = ROUNDS, say: Say = silent) -> list[Timed]:
    """All cases, in a process where every library has one thread."""
    settings = variables(1, None, "now")
    settings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    line = command(["-m", "smelt.bench.products", str(rounds)], settings)
    with kept_to(1):
        found = heard(line, say)
    return [Timed(**row) for row in json.loads(found)]


def table(found: list[Timed]) -> Table:
    """Times, how Smelt stands to the best of the others (above 1 is faster) and to the floor."""
    peers = [p for p in PEERS if any(p in t.times for t in found)]
    rows: list[tuple[str, ...]] = []
    for timed in found:
        own = timed.times.get("smelt")
        others = [ns for name, ns in timed.times.items() if name != "smelt"]
        against = f"{min(others) / own:.2f}" if own and others else NOTHING
        share = f"{100 * timed.floor / own:.0f} %" if own else NOTHING
        cells = (duration(timed.times.get(p)) for p in peers)
        rows.append((timed.title, *cells, duration(timed.floor), against, share))
    headers = ("product", *peers, "floor", "best peer / smelt", "floor / smelt")
    return Table("Matrix products on one core", headers, tuple(rows))


def page(found: list[Timed]) -> str:
    """The table as a page of the documentation."""
    return sheet("Matrix products", "products", __doc__, table(found), peak(), aims=AIMS)


def write(found: list[Timed], folder: Path) -> Path:
    """Writes the page; its path."""
    path = folder / "products.md"
    path.write_text(page(found), encoding="utf-8")
    return path


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    sys.stdout.write(
        json.dumps([asdict(measure(c, chosen)) for c in announced((*CASES, *around.CASES))]) + "\n"
    )
