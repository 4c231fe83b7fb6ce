"""Benchmark of models behind `torch.compile`: Smelt, eager code and Inductor on the same modules.

Models are made from configurations of the `transformers` package with seeded weights, in sizes that
take 1 to 300 ms. All run in one process with one thread, round-robin, and CPU time is measured,
which other load on the machine affects little; with more threads, elapsed time. Needs PyTorch and
`transformers`.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bench.cases import CASES, Case, model_and_inputs, runner
from bench.first import FirstCall, measure_first
from bench.peak import eager_peak, smelt_peak
from bench.table import Table
from smelt import knobs
from smelt.compiler import driver
from smelt.python.dataclass import dataclass
from smelt.runtime.memory import STOCK
from smelt.runtime.prelude import clear

__all__ = ["PEERS", "Row", "head", "page", "run"]

ROUNDS = 7
PEERS = ("eager", "inductor", "inductor-max", "onnxruntime", "smelt")


HEAD = """\
# Models

Models behind `torch.compile`, most of them made from configurations of the `transformers` package
with seeded weights; `minilm` is the demo's sentence model with its real weights, `diffusion` a
block of a U-Net. Written by `python -m bench --models --write-docs`{machine}.

`--peers` selects the peers: `inductor-max` is Inductor with `max_autotune` and `freezing`, and
`onnxruntime` runs PyTorch's ONNX export. A dash is a peer that failed.

"""

TIMES = """\
## A call

All run in one process with one thread, round-robin; the times are CPU milliseconds of a call, the
minimum of several.

"""

ELAPSED = """\
## A call on {threads} threads

The same with {threads} threads for each peer; the times are elapsed milliseconds of a call, the
median of several.

"""

FIRSTS = """\
## The first call

Seconds of the first call in a process of its own for each model and compiler: with empty caches
(cold), with the caches of a previous process (warm), and with a program that another process has
saved (saved: `aot_compile`, with guards on tensors). PyTorch's imports and tracing count; for ONNX
Runtime, the export counts.

"""

FURTHER = """\
## Other sizes

Seconds of the first calls with another batch and length (for images and models with Python loops
over the length: another batch) after the cold call, minus those of a repeated call. PyTorch
retraces a model once or twice until it treats a size as dynamic; `own` is Smelt's largest share of
such a call, in milliseconds.

"""

MEMORY = """\
## Kernels and memory

Peak memory of a call beyond parameters and inputs, in MiB; Smelt's packed parameters count.

"""


@dataclass(frozen=True, slots=True)
class Row:
    """Measurements of one model."""

    name: str
    ms: Mapping[str, float]
    """CPU milliseconds of a call, by peer; NaN for one that failed."""
    first: Mapping[str, FirstCall]
    """Compile times, by peer."""
    peak: Mapping[str, float]
    """Peak MiB of a call beyond parameters and inputs: eager code and Smelt."""
    error: float
    """Largest difference from eager code."""
    kernels: int
    left: int
    """Calls of torch operators in the compiled graph."""
    elapsed_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    """Elapsed milliseconds of a call on several threads, by peer; empty if that was not asked."""


def head() -> str:
    """Return the text above the page's tables, with the name of this machine."""
    target = driver.host()
    # Pages of older instruction sets are in no table of contents.
    front = "" if knobs.HOST_ISA.get() == "auto" else "---\norphan: true\n---\n\n"
    return front + HEAD.format(machine=f" on {target.name}, {target.isa}")


def run(
    names: Iterable[str] = (),
    peers: Sequence[str] = PEERS,
    say: Callable[[str], None] = lambda _: None,
    *,
    threads: int = 1,
    quick: bool = False,
) -> list[Row]:
    """Measure the named models, or all; peers that are not installed are left out.

    With more than one of `threads`, calls are timed once more, with so many. `quick` leaves out
    first calls. Raises KeyError for an unknown model, ImportError without PyTorch or
    `transformers`.
    """
    torch = import_module("torch")
    if not all(map(find_spec, ("onnxruntime", "onnxscript"))):
        peers = [p for p in peers if p != "onnxruntime"]
    rows: list[Row] = []
    for name in names or CASES:
        say(name)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            with _threads(torch, 1):
                row, calls = _measure(torch, name, CASES[name], peers)
            if threads > 1:
                with _threads(torch, threads):
                    elapsed = _times(calls, time.perf_counter, statistics.median)
                row = replace(row, elapsed_ms={**dict.fromkeys(peers, math.nan), **elapsed})
        if not quick:
            first = {peer: measure_first(peer, name) for peer in peers if peer != "eager"}
            row = replace(row, first=first)
        rows.append(row)
    return rows


@contextmanager
def _threads(torch: Any, count: int) -> Generator[None]:
    """Run PyTorch and Smelt with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with knobs.config(threads=count):
            yield
    finally:
        torch.set_num_threads(before)


def _measure(
    torch: Any, name: str, case: Case, peers: Sequence[str]
) -> tuple[Row, dict[str, Callable[[], Any]]]:
    """Measure a model's calls on one thread; return the calls too."""
    smelt_torch = import_module("smelt.torch")
    model, arguments = model_and_inputs(torch, case)
    calls: dict[str, Callable[[], Any]] = {}
    expected = _first_tensor(torch, model(**arguments))
    error = math.nan
    record: Any = None
    torch._dynamo.reset()
    clear()  # constants kept for the previous model
    gc.collect()
    STOCK.trim()
    before = STOCK.usage().requested
    for peer in peers:
        compiled = runner(torch, peer, model, arguments)
        try:
            with smelt_torch.record() as record_of_peer:
                result = _first_tensor(torch, compiled(**arguments))
        except Exception:  # a peer's failure leaves its cell empty
            if peer == "smelt":
                raise
            continue
        if peer == "smelt":
            error, record = (result - expected).abs().max().item(), record_of_peer
        calls[peer] = lambda f=compiled: f(**arguments)
        del result  # a live result would count as the next call's memory
    times = {**dict.fromkeys(peers, math.nan), **_times(calls)}
    gc.collect()  # results of earlier calls in reference cycles are not this call's memory
    peak = {"smelt": smelt_peak(calls["smelt"], before) / 2**20}
    if "eager" in calls:
        peak["eager"] = eager_peak(calls["eager"]) / 2**20
    kernels, torch_calls = (0, 0) if record is None else (len(record.kernels), len(record.left))
    return Row(name, times, {}, peak, error, kernels, torch_calls), calls


def _times(
    calls: Mapping[str, Callable[[], Any]],
    clock: Callable[[], float] = time.process_time,
    choose: Callable[[Sequence[float]], float] = min,
) -> dict[str, float]:
    """Return the time of each call in ms, chosen from those of alternating rounds."""
    seconds: dict[str, list[float]] = {peer: [] for peer in calls}
    for _ in range(ROUNDS):
        for peer, call in calls.items():
            call()  # warm the caches after another peer's call
            start = clock()
            call()
            seconds[peer].append(clock() - start)
    return {peer: choose(t) * 1e3 for peer, t in seconds.items()}


def _first_tensor(torch: Any, result: Any) -> Any:
    """Return the first tensor of a result."""
    leaves = torch.utils._pytree.tree_leaves(result)
    return next(x for x in leaves if isinstance(x, torch.Tensor))


def page(rows: Sequence[Row], threads: int = 1) -> str:
    """Return the tables in Markdown; `threads` are those of the elapsed times."""
    peers = [p for p in PEERS if p != "smelt" and p in rows[0].ms]
    parts = [TIMES + _times_table({r.name: r.ms for r in rows}, peers)]
    if all(r.elapsed_ms for r in rows):
        elapsed = {r.name: r.elapsed_ms for r in rows}
        parts.append(ELAPSED.format(threads=threads) + _times_table(elapsed, peers))
    if any(r.first for r in rows):
        parts += [FIRSTS + _firsts_table(rows, peers), FURTHER + _further_table(rows, peers)]
    return "\n".join((*parts, MEMORY + _memory_table(rows)))


def _times_table(times: Mapping[str, Mapping[str, float]], peers: Sequence[str]) -> str:
    """Return the milliseconds of each model and peer, and how many times faster Smelt is."""
    head = ["model", *peers, "smelt", *(f"over {p}" for p in peers)]
    gains = {name: {p: ms[p] / ms["smelt"] for p in peers} for name, ms in times.items()}
    cells = [
        [
            name,
            *(_number(ms[p]) for p in (*peers, "smelt")),
            *(_number(gains[name][p], suffix="x") for p in peers),
        ]
        for name, ms in times.items()
    ]
    means = [f"{p} {_mean([gain[p] for gain in gains.values()]):.2f}x" for p in peers]
    return _table(head, cells) + f"\nGeometric mean of the gain: {', '.join(means)}.\n"


def _firsts_table(rows: Sequence[Row], peers: Sequence[str]) -> str:
    ours = [*(p for p in peers if p != "eager"), "smelt"]
    head = ["model", *(f"{p} {what}" for p in ours for what in ("cold", "warm")), "smelt saved"]
    saved = {r.name: r.first.get("smelt", FirstCall()).saved for r in rows}
    cells = [
        [r.name, *(_number(t, 1) for p in ours for t in _seconds(r, p)), _number(saved[r.name], 1)]
        for r in rows
    ]
    return _table(head, cells)


def _further_table(rows: Sequence[Row], peers: Sequence[str]) -> str:
    ours = [*(p for p in peers if p not in ("eager", "onnxruntime")), "smelt"]
    head = ["model", *ours, "smelt, own ms"]
    calls = {(r.name, p): r.first.get(p, FirstCall()).further for r in rows for p in ours}
    owns = {r.name: r.first.get("smelt", FirstCall()).own or (math.nan,) for r in rows}
    return _table(
        head,
        [
            [
                r.name,
                *(", ".join(_number(t, 1) for t in calls[r.name, p]) or "–" for p in ours),
                _number(1e3 * max(owns[r.name]), 0),
            ]
            for r in rows
        ],
    )


def _seconds(row: Row, peer: str) -> tuple[float, float]:
    first_call = row.first.get(peer, FirstCall())
    return first_call.cold, first_call.warm


def _memory_table(rows: Sequence[Row]) -> str:
    head = ["model", "kernels", "calls of torch", "eager MiB", "smelt MiB"]
    return _table(
        head,
        [
            [
                r.name,
                str(r.kernels),
                str(r.left),
                *(_number(r.peak.get(p, math.nan), 1) for p in ("eager", "smelt")),
            ]
            for r in rows
        ],
    )


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return Table("", tuple(head), tuple(map(tuple, cells))).markdown() + "\n"


def _number(value: float, digits: int = 2, suffix: str = "") -> str:
    """Format a cell; a dash for a peer that failed."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}{suffix}"


def _mean(values: Sequence[float]) -> float:
    values = [v for v in values if not math.isnan(v)] or [math.nan]
    return math.exp(sum(map(math.log, values)) / len(values))
