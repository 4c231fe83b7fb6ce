"""Variants of attention in plain operators, and what each of them has to compute.

>>> Case("causal", 10).pairs
55
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.codegen.llvm.schedule.mask_ranges import BAND, FINE
from smelt.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f32

Array = np.ndarray[Any, Any]
Scores = Callable[..., Any]
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
    Case("ALiBi, causal", 2048),
    Case("softcap", 2048),
    Case("plain", 2048, group=3),
    Case("causal", 2048, dim=128),
    Case("plain", 32768, heads=8, queries=1),
    Case("plain", 32768, heads=32, queries=1, group=4),
    *(Case(v, 2048, dim=d, dtype=bf16) for d in (64, 128) for v in ("plain", "causal")),
)


def plain(xp: Any, q: Any, k: Any, v: Any, variant: str, *more: Any) -> Any:
    """Attention in a namespace's operators; with groups, k and v are [heads, 1, keys, dim]."""
    s = CHANGES[variant](xp, xp.matmul(q, xp.matrix_transpose(k)) * q.shape[-1] ** -0.5, *more)
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


def _places(xp: Any, s: Any) -> tuple[Any, Any]:
    return xp.expand_dims(xp.arange(s.shape[-2]), axis=1), xp.arange(s.shape[-1])


def _causal(xp: Any, s: Any) -> Any:
    i, j = _places(xp, s)
    return xp.where(j <= i, s, -xp.inf)


def _window(xp: Any, s: Any) -> Any:
    i, j = _places(xp, s)
    return xp.where((j <= i) & (i - j < WINDOW), s, -xp.inf)


def _documents(xp: Any, s: Any, ids: Any) -> Any:
    return xp.where(xp.expand_dims(ids, axis=1) == ids, s, -xp.inf)


def _alibi(xp: Any, s: Any, slopes: Any) -> Any:
    i, j = _places(xp, s)
    far = xp.astype(j - i, s.dtype) * xp.expand_dims(slopes, axis=(1, 2))
    return xp.where(j <= i, s + far, -xp.inf)


CHANGES: dict[str, Scores] = {
    "plain": lambda xp, s: s,
    "causal": _causal,
    "window": _window,
    "documents": _documents,
    "ALiBi, causal": _alibi,
    "softcap": lambda xp, s: CAP * xp.tanh(s / CAP),
}
"""What each variant does to the scores."""


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
