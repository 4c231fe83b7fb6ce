"""Compare attention with other libraries on one core, and with its masked arithmetic.

    python -m bench --attention             # the table
    python -m bench.attention     # its rows as JSON, from this process

Each variant is written in plain operators: a product, its change of the scores, softmax, a product.
`torch` is PyTorch's shortest form: scaled_dot_product_attention, with `is_causal`, a precomputed
boolean or additive mask, or groups; where that does not apply, the operators one after another.
`inductor` is the plain operators behind `torch.compile`, `flex` the compiled `flex_attention` with
a precomputed block mask, `jax` the same text as Smelt's; those that store the scores run while
these stay below 1 GiB. Times are processor time, round-robin, the best of the rounds. A turn begins
when the threads of the previous library are idle (JAX's keep working for a while), with a call that
is not counted. The floor counts two multiply-adds for each element of a head and each visible pair
of a query and a key, at the measured peak: a tile on the mask's boundary counts with its visible
pairs only. Or it is the time to read the queries, keys and values once, if that is longer. The last
column counts visited pairs: scores of the tiles that row blocks of 24 queries attend to, and
weights of what 12 queries attend to, times values. With bfloat16, for which some processors have
twice the rate, scores are not rounded to bfloat16 (`rounding="fast"`), and their exponentials only
before the second product, as in PyTorch's own kernel.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import smelt as sm
from bench.attention_cases import CASES, Case, arrays, visited_pairs
from bench.attention_peers import PEERS, Call, calls
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
from bench.products import ProductTimes, best_times
from bench.sheet import peak, sheet
from bench.table import NOTHING, Table, duration
from smelt.compiler import driver
from smelt.types.dtype import bf16, f32

ROUNDS = 3
AIMS = {"best peer / smelt": 2.0, "visited / smelt": 70}
"""Minimum that columns of the page should reach."""


def arithmetic_ns(case: Case) -> float:
    """Return the minimum nanoseconds on one core for the multiply-adds of the visible pairs."""
    target = driver.host()
    pairs = case.dtype == bf16 and (target.has_fast_bf16_dot or target.has("amx-bf16"))
    rate = target.fma_gflops * (2 if pairs else 1)
    return 4 * case.heads * case.pairs * case.dim / rate


def _read_call(case: Case) -> Call:
    """Return a call that reads queries, keys and values once."""
    total = sm.jit(lambda *xs: tuple(sm.sum(x) for x in xs))
    operands = arrays(case)[:3]
    return lambda: total(*operands)


def measure(case: Case, rounds: int = ROUNDS, peers: tuple[str, ...] = PEERS) -> ProductTimes:
    """Return the best time of each library over alternating rounds."""
    times = best_times({**calls(case, held(peers)), "read": _read_call(case)}, rounds)
    return ProductTimes(case.title, max(arithmetic_ns(case), times.pop("read")), times)


def run(rounds: int = ROUNDS, say: Say = ignore_progress) -> list[ProductTimes]:
    """Measure all cases, in a process where every library has one thread."""
    settings = one_thread_variables()
    line = command(["-m", "bench.attention", str(rounds)], settings)
    with pin_to_cpus(1):
        output = run_and_report(line, say)
    return [ProductTimes(**row) for row in json.loads(output)]


def table(measured: list[ProductTimes]) -> Table:
    """Return times, the best peer's over Smelt's, and Smelt's share of the floor."""
    peers = [p for p in PEERS if any(p in t.times for t in measured)]
    rows: list[tuple[str, ...]] = []
    cases = {row_case.title: row_case for row_case in CASES}
    columns = 2 * driver.host().vector_bytes // f32.itemsize
    for timed in measured:
        smelt_ns = timed.times.get("smelt")
        others = [ns for name, ns in timed.times.items() if name != "smelt"]
        against = f"{min(others) / smelt_ns:.2f}" if smelt_ns and others else NOTHING
        share = f"{100 * timed.floor / smelt_ns:.0f} %" if smelt_ns else NOTHING
        cells = (duration(timed.times.get(p)) for p in peers)
        row_case = cases.get(timed.title)
        visited_share = NOTHING
        if smelt_ns and row_case:
            visited = visited_pairs(row_case, columns) / row_case.pairs
            visited_share = f"{100 * visited * timed.floor / smelt_ns:.0f} %"
        rows.append((timed.title, *cells, duration(timed.floor), against, share, visited_share))
    headers = (
        "attention",
        *peers,
        "floor",
        "best peer / smelt",
        "floor / smelt",
        "visited / smelt",
    )
    return Table("Attention on one core", headers, tuple(rows))


def page(measured: list[ProductTimes]) -> str:
    """Return the table as a page of the documentation."""
    return sheet("Attention", "attention", __doc__, table(measured), peak(), aims=AIMS)


def write(measured: list[ProductTimes], folder: Path) -> Path:
    """Write the page; return its path."""
    path = folder / "attention.md"
    path.write_text(page(measured), encoding="utf-8")
    return path


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    sys.stdout.write(json.dumps([asdict(measure(case, chosen)) for case in announce(CASES)]) + "\n")
