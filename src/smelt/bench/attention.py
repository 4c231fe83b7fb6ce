"""Attention against PyTorch's on one core, and against the arithmetic that its mask leaves.

    smelt bench --attention             # the table
    python -m smelt.bench.attention     # its rows as JSON, from this process

Each variant is written in plain operators: a product, what it does to the scores, softmax, a
product.  PyTorch takes the shortest way that it has: scaled_dot_product_attention, with
`is_causal`, a boolean or an additive mask that was made before, or groups; where that cannot do it,
the operators one after another.  Times are processor time, in turns, the best of the rounds.  The
floor counts two multiply-adds for each element of a head and each pair of a query and a key that
the mask leaves, at the measured peak: a tile that a mask cuts counts with its visible pairs alone.
Or it is the time in which a sum reads the queries, keys and values once, if that is longer.  The
last column counts what is visited: scores of the tiles that bands of 24 queries see, and weights of
what 12 queries see, times values.  With bfloat16, of which some processors multiply twice as
many at a time, scores are not rounded on the way (`rounding="fast"`), and their exponentials where
the second product takes them, as in PyTorch's own kernel.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm
from smelt import driver
from smelt.bench.process import Say, announced, command, heard, kept_to, silent, variables
from smelt.bench.products import Call, Timed, best_times
from smelt.bench.sheet import peak, sheet
from smelt.bench.table import NOTHING, Table, duration
from smelt.codegen.llvm.schedule.bands import BAND, FINE
from smelt.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f32

Array = np.ndarray[Any, Any]
Scores = Callable[..., Any]
PEERS = ("smelt", "torch")
ROUNDS = 3
WINDOW, DOCUMENTS, CAP = 256, 16, 30.0


@dataclass(frozen=True)
class Case:
    """Attention over `keys` positions: what happens to the scores, and the sizes."""

    variant: str
    keys: int
    dim: int = 64
    heads: int = 12
    queries: int = 0
    """How many there are, where that is not as many as keys."""
    group: int = 1
    """Query heads to each head of keys."""
    dtype: DType = f32

    @property
    def title(self) -> str:
        """What a row of the table is called."""
        queries = f"{self.queries} of " if self.queries else ""
        heads = f"{self.heads}/{self.heads // self.group}" if self.group > 1 else f"{self.heads}"
        dtype = "" if self.dtype == f32 else f", {self.dtype.long}"
        return f"{self.variant}, {heads} heads, {queries}{self.keys}×{self.dim}{dtype}"

    @property
    def rows(self) -> int:
        """Queries of a head."""
        return self.queries or self.keys

    def keep(self) -> Array | None:
        """Which key each query sees, None where that is every one."""
        i, j = np.arange(self.rows)[:, None], np.arange(self.keys)
        match self.variant:
            case "causal" | "ALiBi, causal":
                return j <= i
            case "window":
                return (j <= i) & (i - j < WINDOW)
            case "documents":
                ids = documents(self.keys)
                return ids[:, None] == ids
            case _:
                return None

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that the mask leaves, in one head."""
        keep = self.keep()
        return self.rows * self.keys if keep is None else int(keep.sum())


def visited(case: Case, columns: int) -> float:
    """Pairs of a head that are computed, on the mean of both products: a band of rows takes all
    tiles of so many columns that one of its rows sees any of, and sums over what they see."""
    keep = case.keep()
    if keep is None:
        return case.pairs
    found = 0
    for rows, step in ((BAND, columns), (FINE, 1)):
        for first in range(0, case.rows, rows):
            seen = np.flatnonzero(keep[first : first + rows].any(axis=0))
            start, stop = int(seen[0]) // step * step, -(-int(seen[-1] + 1) // step) * step
            found += min(rows, case.rows - first) * (min(stop, case.keys) - start)
    return found / 2


def documents(n: int) -> Array:
    """Which document each position belongs to: lengths that differ, one after another."""
    ends = np.cumsum(np.random.default_rng(1).dirichlet(np.full(DOCUMENTS, 4.0)) * n)
    return np.searchsorted(ends, np.arange(n), side="right").astype(np.int64)


CASES = (
    *(Case(v, n) for v in ("plain", "causal") for n in (128, 512)),
    *(Case(v, n) for v in ("plain", "causal", "window", "documents") for n in (1024, 2048, 4096)),
    *(Case(v, 16384) for v in ("plain", "causal", "window")),
    Case("ALiBi, causal", 2048), Case("softcap", 2048), Case("plain", 2048, group=3),
    Case("causal", 2048, dim=128), Case("plain", 32768, heads=8, queries=1),
    Case("plain", 32768, heads=32, queries=1, group=4),
    *(Case(v, 2048, dim=d, dtype=bf16) for d in (64, 128) for v in ("plain", "causal")),
)  # fmt: skip


def plain(q: Any, k: Any, v: Any, change: Scores, *more: Any) -> Any:
    """Attention in operators; with groups, k and v are [heads, 1, keys, dim]."""
    s = change(sm.matmul(q, sm.matrix_transpose(k)) * q.shape[-1] ** -0.5, *more)
    e = sm.exp(s - sm.max(s, axis=-1, keepdims=True))
    return sm.matmul(e / sm.sum(e, axis=-1, keepdims=True), v)


def _places(s: Any) -> tuple[Any, Any]:
    return sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])


def _causal(s: Any) -> Any:
    i, j = _places(s)
    return sm.where(j <= i, s, -sm.inf)


def _window(s: Any) -> Any:
    i, j = _places(s)
    return sm.where((j <= i) & (i - j < WINDOW), s, -sm.inf)


def _alibi(s: Any, slopes: Any) -> Any:
    i, j = _places(s)
    far = sm.astype(j - i, s.dtype) * sm.expand_dims(slopes, axis=(1, 2))
    return sm.where(j <= i, s + far, -sm.inf)


CHANGES: dict[str, Scores] = {
    "plain": lambda s: s,
    "causal": _causal,
    "window": _window,
    "documents": lambda s, ids: sm.where(sm.expand_dims(ids, axis=1) == ids, s, -sm.inf),
    "ALiBi, causal": _alibi,
    "softcap": lambda s: CAP * sm.tanh(s / CAP),
}


def arrays(case: Case) -> list[Array]:
    """q, k, v and what else a variant takes."""
    rng = np.random.default_rng(0)
    groups = case.heads // case.group
    lead = (groups, case.group) if case.group > 1 else (groups,)
    k = (groups, 1) if case.group > 1 else (groups,)
    shapes = [(*lead, case.rows, case.dim), *[(*k, case.keys, case.dim)] * 2]
    found = [rng.standard_normal(s).astype(case.dtype.numpy) for s in shapes]
    if case.variant == "documents":
        found.append(documents(case.keys))
    if case.variant == "ALiBi, causal":
        found.append((2.0 ** -np.arange(1.0, case.heads + 1)).astype(np.float32))
    return found


def calls(case: Case, peers: tuple[str, ...] = PEERS) -> dict[str, Call]:
    """The case as each library computes it."""
    given = arrays(case)
    found: dict[str, Call] = {}
    if "smelt" in peers:
        change = CHANGES[case.variant]
        ours = sm.jit(lambda q, k, v, *more: plain(q, k, v, change, *more))

        def run_ours() -> Any:
            with sm.config(rounding="fast"):
                return ours(*given)

        # Settings cost a call 12 us, a twentieth of the least case.
        found["smelt"] = run_ours if case.dtype == bf16 else lambda: ours(*given)
    with suppress(ImportError):
        if "torch" in peers:
            torch: Any = importlib.import_module("torch")
            torch.set_num_threads(1)
            found["torch"] = _torch(torch, case, given)
    return found


def _torch(torch: Any, case: Case, given: list[Array]) -> Call:
    """PyTorch's shortest way."""
    heads = case.heads, case.heads // case.group, case.heads // case.group
    halves = case.dtype == bf16  # of which torch takes the bits
    q, k, v = (torch.from_numpy(a.view(np.int16) if halves else a).reshape(1, h, -1, case.dim)
               for a, h in zip(given[:3], heads, strict=True))  # fmt: skip
    if halves:
        q, k, v = (x.view(torch.bfloat16) for x in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    if case.variant == "softcap":
        scale = case.dim**-0.5

        def capped() -> Any:
            s = torch.tanh(q @ k.mT * (scale / CAP)) * CAP
            return torch.softmax(s, dim=-1) @ v

        return capped
    if case.variant == "causal":
        return lambda: attention(q, k, v, is_causal=True)
    keep = case.keep()
    mask = None if keep is None else torch.from_numpy(keep)
    if case.variant == "ALiBi, causal":
        i, j = torch.arange(case.rows)[:, None], torch.arange(case.keys)
        far = (j - i).float() * torch.from_numpy(given[3])[:, None, None]
        mask = torch.where(mask, far, -torch.inf)[None]
    return lambda: attention(q, k, v, attn_mask=mask, enable_gqa=case.group > 1)


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
    line = command(["-m", "smelt.bench.attention", str(rounds)], variables(1, None, "now"))
    with kept_to(1):
        found = heard(line, say)
    return [Timed(**row) for row in json.loads(found)]


def table(found: list[Timed]) -> Table:
    """Times, how Smelt stands to PyTorch (above 1 is faster) and to the floor."""
    rows: list[tuple[str, ...]] = []
    cases = {case.title: case for case in CASES}
    columns = 2 * driver.host().vector_bytes // f32.itemsize
    for timed in found:
        own, theirs = timed.times.get("smelt"), timed.times.get("torch")
        against = f"{theirs / own:.2f}" if own and theirs else NOTHING
        share = f"{100 * timed.floor / own:.0f} %" if own else NOTHING
        cells = (duration(timed.times.get(p)) for p in PEERS)
        done = cases.get(timed.title)
        busy = f"{visited(done, columns) / done.pairs * 100 * timed.floor / own:.0f} %" \
            if own and done else NOTHING  # fmt: skip
        rows.append((timed.title, *cells, duration(timed.floor), against, share, busy))
    headers = ("attention", *PEERS, "floor", "torch / smelt", "floor / smelt", "visited / smelt")
    return Table("Attention on one core", headers, tuple(rows))


def page(found: list[Timed]) -> str:
    """The table as a page of the documentation."""
    return sheet("Attention", "attention", __doc__, table(found), peak())


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
