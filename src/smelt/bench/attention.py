"""Attention against other libraries on one core, and against the arithmetic that its mask leaves.

    smelt bench --attention             # the table
    python -m smelt.bench.attention     # its rows as JSON, from this process

Each variant is written in plain operators: a product, what it does to the scores, softmax, a
product.  `torch` is the shortest way that PyTorch has: scaled_dot_product_attention, with
`is_causal`, a boolean or an additive mask that was made before, or groups; where that cannot do it,
the operators one after another.  `inductor` is the plain operators behind `torch.compile`, `flex`
the compiled `flex_attention` with the mask's blocks found before, `jax` the same text as Smelt's;
those that store the scores are asked while these stay below 1 GiB.  Times are processor time, in
turns, the best of the rounds; a turn begins when the threads of the library before rest (JAX's work
on for a while), with a call that is not counted.  The floor counts two multiply-adds for each
element of a head and each pair of a query and a key that the mask leaves, at the measured peak: a
tile that a mask cuts counts with its visible pairs alone.
Or it is the time in which a sum reads the queries, keys and values once, if that is longer.  The
last column counts what is visited: scores of the tiles that bands of 24 queries see, and weights of
what 12 queries see, times values.  With bfloat16, of which some processors multiply twice as
many at a time, scores are not rounded on the way (`rounding="fast"`), and their exponentials where
the second product takes them, as in PyTorch's own kernel.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import smelt as sm
from smelt import driver
from smelt.bench.attention_cases import CASES, Case, arrays, visited
from smelt.bench.attention_peers import PEERS, Call, calls
from smelt.bench.process import Say, announced, command, heard, kept_to, silent, variables
from smelt.bench.products import Timed, best_times
from smelt.bench.sheet import peak, sheet
from smelt.bench.table import NOTHING, Table, duration
from smelt.types.dtype import bf16, f32

ROUNDS = 3
AIMS = {"best peer / smelt": 2.0, "visited / smelt": 70}
"""The least that columns of the page are to say."""


def arithmetic_ns(case: Case) -> float:
    """Nanoseconds that one core needs at least for the multiply-adds of the visible pairs."""
    target = driver.host()
    pairs = case.dtype == bf16 and (target.multiplies_bfloats or target.has("amx-bf16"))
    rate = target.fma_gflops * (2 if pairs else 1)
    return 4 * case.heads * case.pairs * case.dim / rate


def _read(case: Case) -> Call:
    """Reads queries, keys and values once."""
    total = sm.jit(lambda *xs: tuple(sm.sum(x) for x in xs))
    given = arrays(case)[:3]
    return lambda: total(*given)


def measure(case: Case, rounds: int = ROUNDS, peers: tuple[str, ...] = PEERS) -> Timed:
    """The best time of each library over rounds in which all take turns."""
    times = best_times({**calls(case, peers), "read": _read(case)}, rounds)
    return Timed(case.title, max(arithmetic_ns(case), times.pop("read")), times)


def run(rounds: int = ROUNDS, say: Say = silent) -> list[Timed]:
    """All cases, in a process where every library has one thread."""
    settings = variables(1, None, "now")
    settings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    line = command(["-m", "smelt.bench.attention", str(rounds)], settings)
    with kept_to(1):
        found = heard(line, say)
    return [Timed(**row) for row in json.loads(found)]


def table(found: list[Timed]) -> Table:
    """Times, how Smelt stands to the best of the others (above 1 is faster) and to the floor."""
    peers = [p for p in PEERS if any(p in t.times for t in found)]
    rows: list[tuple[str, ...]] = []
    cases = {case.title: case for case in CASES}
    columns = 2 * driver.host().vector_bytes // f32.itemsize
    for timed in found:
        own = timed.times.get("smelt")
        others = [ns for name, ns in timed.times.items() if name != "smelt"]
        against = f"{min(others) / own:.2f}" if own and others else NOTHING
        share = f"{100 * timed.floor / own:.0f} %" if own else NOTHING
        cells = (duration(timed.times.get(p)) for p in peers)
        done = cases.get(timed.title)
        busy = (
            f"{visited(done, columns) / done.pairs * 100 * timed.floor / own:.0f} %"
            if own and done
            else NOTHING
        )
        rows.append((timed.title, *cells, duration(timed.floor), against, share, busy))
    headers = (
        "attention",
        *peers,
        "floor",
        "best peer / smelt",
        "floor / smelt",
        "visited / smelt",
    )
    return Table("Attention on one core", headers, tuple(rows))


def page(found: list[Timed]) -> str:
    """The table as a page of the documentation."""
    return sheet("Attention", "attention", __doc__, table(found), peak(), aims=AIMS)


def write(found: list[Timed], folder: Path) -> Path:
    """Writes the page; its path."""
    path = folder / "attention.md"
    path.write_text(page(found), encoding="utf-8")
    return path


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    sys.stdout.write(
        json.dumps([asdict(measure(case, chosen)) for case in announced(CASES)]) + "\n"
    )
